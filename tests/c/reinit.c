/* SPDX-License-Identifier: Apache-2.0 */
/* The library can be started again after it was finalised, and starts from nothing. */
#include "check.h"

static long counter;

int main(void) {
    for (int round = 0; round < 3; round++) {
        check_start();
        long *heap = check_alloc(1000, sizeof *heap);
        CHECK_EQ(heap[999], 0);
        counter = 0;
        shmem_barrier_all();
        for (int pe = 0; pe < npes; pe++) {
            shmem_long_atomic_inc(&counter, pe);
            shmem_long_atomic_inc(&heap[999], pe);
        }
        shmem_barrier_all();
        CHECK_EQ(counter, npes);
        CHECK_EQ(heap[999], npes);
        shmem_team_t team;
        CHECK_EQ(shmem_team_split_strided(SHMEM_TEAM_WORLD, 0, 1, npes, NULL, 0, &team), 0);
        shmem_ctx_t ctx;
        CHECK_EQ(shmem_ctx_create(0, &ctx), 0);
        shmem_finalize(); /* frees the heap, the team and the shareable context */
    }
    return 0;
}
