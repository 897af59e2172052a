/* SPDX-License-Identifier: Apache-2.0 */
/* Prints its process number and waits for what never happens. */
#include "../check.h"
#include <unistd.h>

int main(void) {
    static long never;
    check_start();
    printf("%d\n", (int)getpid());
    fflush(stdout);
    shmem_long_wait_until(&never, SHMEM_CMP_NE, 0);
    return 98;
}
