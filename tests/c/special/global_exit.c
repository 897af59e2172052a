/* SPDX-License-Identifier: Apache-2.0 */
/* shmem_global_exit from one PE ends all, whatever they do, with its status. argv[1]: status;
 * argv[2]: what the others do meanwhile, "wait", "spin" or "barrier". */
#include "../check.h"


int main(int argc, char **argv) {
    check_start();
    if (argc != 3) return 99;
    static long never;
    printf("output of PE %d before the end\n", me); /* not flushed: global_exit does */
    shmem_sync_all();
    if (me == npes - 1) shmem_global_exit(atoi(argv[1]));
    if (strcmp(argv[2], "wait") == 0) shmem_long_wait_until(&never, SHMEM_CMP_NE, 0);
    if (strcmp(argv[2], "barrier") == 0) shmem_barrier_all();
    for (volatile int spin = 1; spin;) {}
    return 98;
}
