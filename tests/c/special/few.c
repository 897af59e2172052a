/* SPDX-License-Identifier: Apache-2.0 */
/* Something of everything, a few times: for PEs that reach each other slowly. */
#include "../check.h"

#define WORDS 8192
#define ROUNDS 10

int main(void) {
    check_start();
    long *words = check_alloc(WORDS, sizeof *words);
    long *counter = check_alloc(1, sizeof *counter);
    uint64_t *signal = check_alloc(1, sizeof *signal);
    long *sums = check_alloc(2, sizeof *sums);
    static long own[WORDS], back[WORDS];

    for (int round = 1; round <= ROUNDS; round++) {
        for (int i = 0; i < WORDS; i++) own[i] = 1000000L * me + 10000L * round + i;
        shmem_putmem_signal(words, own, sizeof own, signal, (uint64_t)round, SHMEM_SIGNAL_SET,
                            next_pe);
        shmem_signal_wait_until(signal, SHMEM_CMP_GE, (uint64_t)round);
        for (int i = 0; i < WORDS; i++)
            CHECK_EQ(words[i], 1000000L * previous_pe + 10000L * round + i);
        /* What was put and what is read are in no order but by this. */
        shmem_quiet();
        shmem_getmem(back, words, sizeof back, next_pe);
        CHECK(memcmp(back, own, sizeof back) == 0);
        for (int pe = 0; pe < npes; pe++) shmem_long_atomic_inc(counter, pe);
        sums[0] = me + round;
        CHECK_EQ(shmem_long_sum_reduce(SHMEM_TEAM_WORLD, sums + 1, sums, 1), 0);
        CHECK_EQ(sums[1], npes * (npes - 1) / 2 + (long)npes * round);
        shmem_barrier_all();
        CHECK_EQ(shmem_long_atomic_fetch(counter, next_pe), (long)npes * round);
        shmem_barrier_all();
    }
    return check_done();
}
