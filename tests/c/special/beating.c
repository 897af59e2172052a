/* SPDX-License-Identifier: Apache-2.0 */
/* All PEs wait for each other again and again, until somebody ends the job. */
#include <time.h>

#include "../check.h"

int main(void) {
    check_start();
    shmem_barrier_all();
    if (me == 0) {
        puts("ready");
        fflush(stdout);
    }
    for (;;) {
        const struct timespec pause = {0, 10000000};
        nanosleep(&pause, NULL);
        shmem_barrier_all();
    }
}
