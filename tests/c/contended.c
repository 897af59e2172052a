/* SPDX-License-Identifier: Apache-2.0 */
/* All PEs at once on the same variables: no update is lost and fetched values are unique. */
#include "check.h"

#define ROUNDS 500
static int counter_int;
static float swap_float = -1;

int main(void) {
    check_start();
    long *total = check_alloc(1, sizeof *total);
    uint64_t *bits = check_alloc(1, sizeof *bits);
    unsigned *cas = check_alloc(1, sizeof *cas);
    char *taken = check_alloc(ROUNDS * (size_t)npes, 1);

    for (int i = 0; i < ROUNDS; i++) {
        shmem_long_atomic_add(total, 2, 0);
        long ticket = shmem_int_atomic_fetch_inc(&counter_int, 0);
        CHECK(ticket >= 0 && ticket < (long)ROUNDS * npes);
        shmem_char_p(&taken[ticket], 1, 0);
        shmem_uint64_atomic_xor(bits, (uint64_t)1 << me % 32, 0);
        for (unsigned old = 0;;) { /* an increment made of compare-and-swap */
            unsigned found = shmem_uint_atomic_compare_swap(cas, old, old + 1, 0);
            if (found == old) break;
            old = found;
        }
    }
    shmem_uint64_atomic_or(bits, (uint64_t)1 << (32 + me % 32), 0);
    /* Every value swapped in comes out exactly once. */
    float out = shmem_float_atomic_swap(&swap_float, (float)me, 0);
    static long swapped_sum;
    shmem_long_atomic_add(&swapped_sum, (long)out, 0);
    shmem_barrier_all();

    if (me == 0) {
        CHECK_EQ(*total, 2L * ROUNDS * npes);
        CHECK_EQ(counter_int, ROUNDS * npes);
        for (int i = 0; i < ROUNDS * npes; i++) CHECK_EQ(taken[i], 1);
        CHECK_EQ(*bits, (((uint64_t)1 << (npes < 32 ? npes : 32)) - 1) << 32);
        CHECK_EQ(*cas, (unsigned)(ROUNDS * npes));
        CHECK_EQ(swapped_sum + (long)swap_float, -1 + (long)npes * (npes - 1) / 2);
    }
    shmem_barrier_all();
    shmem_free(total);
    shmem_free(bits);
    shmem_free(cas);
    shmem_free(taken);
    return check_done();
}
