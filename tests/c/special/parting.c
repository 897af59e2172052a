/* SPDX-License-Identifier: Apache-2.0 */
/* PE 0 exits with code 3 when its work is done, PE 1 goes on after shmem_finalize for longer than a job takes to end.
 * argv[1]: how the library is initialised, "init" or "start_pes", which finalises at exit. */
#include "../check.h"
#include <unistd.h>

static long arrived;

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    if (strcmp(argv[1], "init") == 0)
        shmem_init();
    else
        start_pes(0);
    check_places();
    if (me == 1) usleep(300000);
    shmem_long_p(&arrived, 1 + me, next_pe);
    if (strcmp(argv[1], "init") == 0) {
        shmem_finalize();
        if (me == 1) sleep(1);
    }
    if (me == 1) printf("PE 1 has ended\n");
    return me == 0 ? 3 : 0;
}
