/* SPDX-License-Identifier: Apache-2.0 */
/* The last PE dies by a signal while the others wait for it: in a barrier, or in a loop that tests, which
 * argument 1 names: a "variable", or a "lock" that it holds. */
#include "../check.h"
#include <signal.h>

int main(int argc, char **argv) {
    check_start();
    long *variable = check_alloc(2, sizeof *variable), *lock = variable + 1;
    const char *tests = argc > 1 ? argv[1] : "";
    if (me == npes - 1) shmem_set_lock(lock);
    shmem_sync_all();
    if (me == npes - 1) raise(SIGKILL);
    while (strcmp(tests, "variable") == 0 && !shmem_long_test(variable, SHMEM_CMP_EQ, 1))
        ;
    while (strcmp(tests, "lock") == 0 && shmem_test_lock(lock))
        ;
    shmem_barrier_all();
    return 98;
}
