/* SPDX-License-Identifier: Apache-2.0 */
/* The last PE dies by a signal while the others wait for it. */
#include "../check.h"
#include <signal.h>

int main(void) {
    check_start();
    shmem_sync_all();
    if (me == npes - 1) raise(SIGKILL);
    shmem_barrier_all();
    return 98;
}
