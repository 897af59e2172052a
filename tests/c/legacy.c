/* SPDX-License-Identifier: Apache-2.0 */
/* A program of the 1990s: start_pes, names without prefix, cache routines, no finalize. */
#include "check.h"
#include <mpp/shmem.h>

static long target;

int main(void) {
    start_pes(0);
    start_pes(5); /* no effect */
    check_places();
    CHECK_EQ(_my_pe(), me);
    CHECK_EQ(_num_pes(), npes);

    long *block = shmalloc(10 * sizeof *block);
    CHECK(block != NULL);
    for (int i = 0; i < 10; i++) block[i] = i + me;
    block = shrealloc(block, 1000 * sizeof *block);
    CHECK(block != NULL);
    for (int i = 0; i < 10; i++) CHECK_EQ(block[i], i + me);
    long *aligned = shmemalign(256, 64);
    CHECK(aligned != NULL && (uintptr_t)aligned % 256 == 0);

    shmem_set_cache_inv();
    shmem_set_cache_line_inv(&target);
    shmem_long_p(&target, me + 1, next_pe);
    shmem_barrier_all();
    shmem_clear_cache_inv();
    shmem_clear_cache_line_inv(&target);
    shmem_udcflush();
    shmem_udcflush_line(&target);
    CHECK_EQ(target, previous_pe + 1);

    CHECK_EQ(_SHMEM_MAJOR_VERSION, SHMEM_MAJOR_VERSION);
    CHECK_EQ(_SHMEM_SYNC_VALUE, SHMEM_SYNC_VALUE);
    shfree(aligned);
    shfree(block);
    return 0; /* the library ends with the program */
}
