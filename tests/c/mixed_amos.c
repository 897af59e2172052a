/* SPDX-License-Identifier: Apache-2.0 */
/* Atomic operations of all kinds at the same time, on variables of other PEs and of the PE itself, of 4
 * and of 8 bytes side by side. Several PEs change a variable, each its own byte of it, so that each
 * knows what it must find there. SEED=<number> repeats a run. */
#include "seeded.h"

#define ROUNDS 10
#define WORDS  1000

/* Neighbours. */
struct place {
    uint32_t before, also_before;
    uint64_t middle;
    uint32_t after, also_after;
};

/* One operation on this PE's byte, which holds MINE, of a variable. What has no result is ordered before
 * the next one. */
#define MIX(T, AT, PE, MINE)                                                                       \
    do {                                                                                           \
        T##_t *at = (AT), old, new, found;                                                         \
        unsigned shift = 8 * (unsigned)me, bits = (unsigned)below(256);                            \
        unsigned more = (unsigned)below(256u - (MINE)), less = (unsigned)below((MINE) + 1u);       \
        _Bool known = 1;                                                                           \
        old = (T##_t)(MINE) << shift;                                                              \
        switch (below(11)) {                                                                       \
        case 0: known = 0, shmem_##T##_atomic_add(at, (T##_t)more << shift, PE);                   \
            (MINE) = (unsigned char)((MINE) + more); break;                                        \
        case 1: old = shmem_##T##_atomic_fetch_add(at, (T##_t)more << shift, PE);                  \
            EXPECT_SEED((old >> shift & 255) == (MINE)); (MINE) = (unsigned char)((MINE) + more); break; \
        case 2: old = shmem_##T##_atomic_fetch_add(at, -((T##_t)less << shift), PE);               \
            EXPECT_SEED((old >> shift & 255) == (MINE)); (MINE) = (unsigned char)((MINE) - less); break; \
        case 3: known = 0, shmem_##T##_atomic_or(at, (T##_t)bits << shift, PE);                    \
            (MINE) |= (unsigned char)bits; break;                                                  \
        case 4: old = shmem_##T##_atomic_fetch_xor(at, (T##_t)bits << shift, PE);                  \
            EXPECT_SEED((old >> shift & 255) == (MINE)); (MINE) ^= (unsigned char)bits; break;     \
        case 5: known = 0, shmem_##T##_atomic_and(at, ~((T##_t)bits << shift), PE);                \
            (MINE) &= (unsigned char)~bits; break;                                                 \
        case 6: old = shmem_##T##_atomic_fetch_and(at, ~((T##_t)bits << shift), PE);               \
            EXPECT_SEED((old >> shift & 255) == (MINE)); (MINE) &= (unsigned char)~bits; break;    \
        case 7:                                                                                    \
            for (old = shmem_##T##_atomic_fetch(at, PE);; old = found) {                           \
                EXPECT_SEED((old >> shift & 255) == (MINE));                                       \
                new = (old & ~((T##_t)255 << shift)) | (T##_t)bits << shift;                       \
                found = shmem_##T##_atomic_compare_swap(at, old, new, PE);                         \
                if (found == old) break;                                                           \
            }                                                                                      \
            (MINE) = (unsigned char)bits; break;                                                   \
        case 8: shmem_##T##_atomic_fetch_nbi(&found, at, PE), shmem_quiet();                       \
            EXPECT_SEED((found >> shift & 255) == (MINE)); break;                                  \
        case 9: shmem_##T##_atomic_fetch_add_nbi(&found, at, (T##_t)more << shift, PE);            \
            shmem_quiet();                                                                         \
            EXPECT_SEED((found >> shift & 255) == (MINE));                                         \
            (MINE) = (unsigned char)((MINE) + more); break;                                        \
        default: known = 0, shmem_##T##_atomic_xor(at, (T##_t)bits << shift, PE);                  \
            (MINE) ^= (unsigned char)bits;                                                         \
        }                                                                                          \
        if (!known && bits % 2) shmem_fence();                                                     \
        else if (!known) shmem_quiet();                                                            \
    } while (0)

static void mix(struct place *place, unsigned char (*mine)[3]) {
    for (int round = 0; round < ROUNDS; round++) {
        for (int pe = 0; pe < npes; pe++) {
            if (me < 4) MIX(uint32, &place->also_before, pe, mine[pe][0]);
            if (me < 8) MIX(uint64, &place->middle, pe, mine[pe][1]);
            if (me < 4) MIX(uint32, &place->after, pe, mine[pe][2]);
        }
    }
    shmem_barrier_all();
    for (int pe = 0; pe < npes; pe++) {
        struct place now;
        shmem_getmem(&now, place, sizeof now, pe);
        EXPECT_SEED(now.before == 0 && now.also_after == 0);
        if (me < 4) EXPECT_SEED((now.also_before >> 8 * me & 255) == mine[pe][0]);
        if (me < 8) EXPECT_SEED((now.middle >> 8 * me & 255) == mine[pe][1]);
        if (me < 4) EXPECT_SEED((now.after >> 8 * me & 255) == mine[pe][2]);
    }
    shmem_barrier_all();
    /* The halves of the variable by themselves, and whole again: in turn, not at the same time. */
    uint64_t before = shmem_uint64_atomic_fetch(&place->middle, next_pe);
    shmem_barrier_all();
    uint32_t *halves = (uint32_t *)(void *)&place->middle;
    EXPECT_SEED(shmem_uint32_atomic_fetch_add(&halves[0], 3, next_pe) == (uint32_t)before);
    EXPECT_SEED(shmem_uint32_atomic_swap(&halves[1], 5, next_pe) == (uint32_t)(before >> 32));
    uint64_t expected = (uint64_t)5 << 32 | (uint32_t)(before + 3);
    EXPECT_SEED(shmem_uint64_atomic_fetch_inc(&place->middle, next_pe) == expected);
    EXPECT_SEED(shmem_uint64_atomic_swap(&place->middle, 0, next_pe) == expected + 1);
    shmem_barrier_all();
}

/* Tickets from the first PE and from the last: all different, and none is lost. */
static void tickets(long *counter, long *taken) {
    long own = 0;
    for (int round = 0; round < 3 * ROUNDS; round++) {
        int pe = round % 2 ? npes - 1 : 0;
        long ticket = shmem_long_atomic_fetch_inc(&counter[round % 2], pe);
        CHECK(ticket >= 0);
        own += ticket;
        shmem_long_atomic_add(&counter[2], 5, pe);
    }
    shmem_long_atomic_add(taken, own, 0);
    shmem_barrier_all();
    long most = 3L * ROUNDS / 2 * npes;
    CHECK_EQ(shmem_long_atomic_fetch(&counter[0], 0), most);
    CHECK_EQ(shmem_long_atomic_fetch(&counter[1], npes - 1), most);
    CHECK_EQ(shmem_long_atomic_fetch(taken, 0), 2 * (most * (most - 1) / 2));
    long sum = shmem_long_atomic_fetch(&counter[2], 0);
    if (npes > 1) sum += shmem_long_atomic_fetch(&counter[2], npes - 1);
    CHECK_EQ(sum, 5L * 3 * ROUNDS * npes);
    shmem_barrier_all();
}

/* A lock at the last PE, made of compare-and-swap and of setting, around a counter that is put and got. */
static void locks(long *lock, long *guarded) {
    for (int round = 0; round < ROUNDS / 2; round++) {
        while (shmem_long_atomic_compare_swap(lock, 0, me + 1, npes - 1) != 0);
        long count = shmem_long_g(guarded, npes - 1);
        shmem_long_p(guarded, count + 1, npes - 1);
        shmem_quiet();
        CHECK_EQ(shmem_long_atomic_fetch(lock, npes - 1), me + 1);
        shmem_long_atomic_set(lock, 0, npes - 1);
    }
    shmem_barrier_all();
    CHECK_EQ(shmem_long_g(guarded, npes - 1), (long)(ROUNDS / 2) * npes);
    shmem_barrier_all();
}

/* Puts before atomic operations and the other way round, in the order of fences; signals after data; and
 * what a quiet completes. */
static void order(long *data, long *flags, uint64_t *signals) {
    static long source[WORDS];
    for (long round = 1; round <= ROUNDS; round++) {
        for (int i = 0; i < WORDS; i++) source[i] = round;
        shmem_long_put_nbi(data, source, WORDS, next_pe);
        shmem_fence();
        shmem_long_atomic_inc(&flags[0], next_pe);
        shmem_fence();
        shmem_long_p(&flags[1], round, next_pe);
        shmem_long_wait_until(&flags[0], SHMEM_CMP_GE, round);
        for (int i = 0; i < WORDS; i++) CHECK_EQ(data[i], round);
        shmem_long_wait_until(&flags[1], SHMEM_CMP_GE, round);
        CHECK_EQ(shmem_long_atomic_fetch(&flags[0], me), round);
        shmem_quiet();
        shmem_barrier_all();
        size_t bytes = (round % 2 ? WORDS : 10) * sizeof *source;
        source[0] = source[bytes / sizeof *source - 1] = -round;
        int op = round % 3 ? SHMEM_SIGNAL_ADD : SHMEM_SIGNAL_SET;
        uint64_t value = op == SHMEM_SIGNAL_SET ? (uint64_t)round : 1;
        shmem_putmem_signal_nbi(data, source, bytes, signals, value, op, next_pe);
        shmem_signal_wait_until(signals, SHMEM_CMP_GE, (uint64_t)round);
        CHECK_EQ(data[0], -round);
        CHECK_EQ(data[bytes / sizeof *source - 1], -round);
        shmem_long_atomic_add(&flags[2], 7, next_pe);
        shmem_quiet();
        CHECK_EQ(shmem_long_g(&flags[2], next_pe), 7 * round);
        shmem_barrier_all();
    }
}

int main(void) {
    check_start();
    seed_start();

    static struct place in_static;
    static long counter[3], taken, lock;
    unsigned char (*mine)[3] = calloc((size_t)npes, sizeof *mine);
    CHECK(mine != NULL);
    struct place *in_heap = check_alloc(1, sizeof *in_heap);
    long *guarded = check_alloc(1, sizeof *guarded), *data = check_alloc(WORDS, sizeof *data);
    long *flags = check_alloc(3, sizeof *flags);
    uint64_t *signals = check_alloc(1, sizeof *signals);
    mix(in_heap, mine);
    memset(mine, 0, (size_t)npes * sizeof *mine);
    mix(&in_static, mine);
    tickets(counter, &taken);
    locks(&lock, guarded);
    order(data, flags, signals);
    free(mine);
    return check_done();
}
