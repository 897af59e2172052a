/* SPDX-License-Identifier: Apache-2.0 */
/* Deprecated collectives over an active set: every routine, over all PEs and over strided sets
 * with and without this PE, pSync arrays used again and again, their content restored. */
#include "check.h"
#include "types.h"

#define N   6
#define PES (npes > 16 ? npes : 16)
static long sync_a[SHMEM_SYNC_SIZE], sync_b[SHMEM_SYNC_SIZE];
static long collect_sync[SHMEM_COLLECT_SYNC_SIZE], reduce_sync[2][SHMEM_REDUCE_SYNC_SIZE];
static int start, log_stride, size, rank; /* the active set */

static int in_set(void) { return rank >= 0; }
static int use;
/* Two arrays in turn: one may still be in use by a slower PE when the next call starts. */
static long *pSync(void) { return use++ % 2 ? sync_b : sync_a; }
static long *reduce_pSync(void) { return reduce_sync[use++ % 2]; }

static void choose_set(int s, int log, int n) {
    start = s, log_stride = log, size = n;
    int offset = me - s;
    rank = offset >= 0 && offset % (1 << log) == 0 && offset >> log < n ? offset >> log : -1;
}

#define SET start, log_stride, size
#define CLEAR() for (int i = 0; i < 4 * N * PES; i++) dest[i] = 0

#define TEST_DATA(BITS, TYPE)                                                                      \
    static void test_##BITS(TYPE *dest, TYPE *source) {                                            \
        for (int i = 0; i < 4 * N * PES; i++) source[i] = VALUE(me, i);                            \
        for (int root = 0; root < size; root++) {                                                  \
            CLEAR();                                                                               \
            shmem_barrier_all();                                                                   \
            if (in_set()) {                                                                        \
                shmem_broadcast##BITS(dest, source, N, root, SET, pSync());                        \
                int from = start + (root << log_stride);                                           \
                for (int i = 0; i < N; i++) CHECK_EQ(dest[i], rank == root ? 0 : VALUE(from, i));  \
            }                                                                                      \
        }                                                                                          \
        CLEAR();                                                                                   \
        shmem_barrier_all();                                                                       \
        if (in_set()) {                                                                            \
            int at = 0;                                                                            \
            shmem_collect##BITS(dest, source, (size_t)((rank + 1) % 3), SET, collect_sync);        \
            for (int r = 0; r < size; r++)                                                         \
                for (int i = 0; i < (r + 1) % 3; i++)                                              \
                    CHECK_EQ(dest[at++], VALUE(start + (r << log_stride), i));                     \
            CHECK_EQ(dest[at], 0);                                                                 \
        }                                                                                          \
        shmem_barrier_all();                                                                       \
        if (in_set()) {                                                                            \
            shmem_fcollect##BITS(dest, source, N, SET, pSync());                                   \
            for (int i = 0; i < size * N; i++)                                                     \
                CHECK_EQ(dest[i], VALUE(start + ((i / N) << log_stride), i % N));                  \
        }                                                                                          \
        CLEAR();                                                                                   \
        shmem_barrier_all();                                                                       \
        if (in_set()) {                                                                            \
            shmem_alltoall##BITS(dest, source, N, SET, pSync());                                   \
            for (int i = 0; i < size * N; i++)                                                     \
                CHECK_EQ(dest[i], VALUE(start + ((i / N) << log_stride), rank * N + i % N));       \
        }                                                                                          \
        CLEAR();                                                                                   \
        shmem_barrier_all();                                                                       \
        if (in_set()) {                                                                            \
            shmem_alltoalls##BITS(dest, source, 3, 2, N, SET, pSync());                            \
            for (int i = 0; i < size * N; i++)                                                     \
                CHECK_EQ(dest[3 * i],                                                              \
                         VALUE(start + ((i / N) << log_stride), 2 * (rank * N + i % N)));          \
        }                                                                                          \
        shmem_barrier_all();                                                                       \
    }
TEST_DATA(32, uint32_t)
TEST_DATA(64, uint64_t)

/* Element I that PE gives; small enough for products of 16 PEs in a short. */
#define GIVES(PE, I) ((PE) % 3 == (I) % 3 ? 2 + (I) % 2 : 1)
#define TO_ALL(T, TYPE, OP, COMBINE)                                                               \
    for (int count = 1; count <= N; count += N - 1) {                                              \
        for (int i = 0; i < N; i++) dest[i] = 0, source[i] = GIVES(me, i);                         \
        shmem_barrier_all();                                                                       \
        if (in_set()) {                                                                            \
            shmem_##T##_##OP##_to_all(dest, source, count, SET, work, reduce_pSync());             \
            for (int i = 0; i < count; i++) {                                                      \
                TYPE a = GIVES(start, i);                                                          \
                for (int r = 1; r < size; r++) {                                                   \
                    TYPE b = GIVES(start + (r << log_stride), i);                                  \
                    a = (TYPE)(COMBINE);                                                           \
                }                                                                                  \
                CHECK_EQ(dest[i], a);                                                              \
            }                                                                                      \
        }                                                                                          \
        shmem_barrier_all();                                                                       \
    }
#define BITWISE(T, TYPE, ...)                                                                      \
    static void bitwise_##T(TYPE *dest, TYPE *source, TYPE *work) {                                \
        TO_ALL(T, TYPE, and, a & b)                                                                \
        TO_ALL(T, TYPE, or, a | b)                                                                 \
        TO_ALL(T, TYPE, xor, a ^ b)                                                                \
    }
#define MINMAX(T, TYPE, ...)                                                                       \
    static void minmax_##T(TYPE *dest, TYPE *source, TYPE *work) {                                 \
        TO_ALL(T, TYPE, max, a > b ? a : b)                                                        \
        TO_ALL(T, TYPE, min, a < b ? a : b)                                                        \
    }
#define ARITH(T, TYPE, ...)                                                                        \
    static void arith_##T(TYPE *dest, TYPE *source, TYPE *work) {                                  \
        TO_ALL(T, TYPE, sum, a + b)                                                                \
        TO_ALL(T, TYPE, prod, a *b)                                                                \
    }
BITWISE_TO_ALL_TYPES(BITWISE, ~)
MINMAX_TO_ALL_TYPES(MINMAX, ~)
MINMAX_TO_ALL_TYPES(ARITH, ~)
COMPLEX_TYPES(ARITH, ~)

/* shmem_barrier completes puts; shmem_sync only synchronises. */
static void test_synchronisation(void) {
    long *flag = check_alloc(1, sizeof *flag);
    for (int round = 1; round <= 20; round++) {
        if (in_set()) {
            int next = start + ((rank + 1) % size << log_stride);
            shmem_long_p(flag, round, next);
            shmem_barrier(SET, pSync());
            CHECK_EQ(*flag, round);
            shmem_sync(SET, pSync());
        }
    }
    shmem_free(flag);
}

int main(void) {
    check_start();
    for (int i = 0; i < SHMEM_SYNC_SIZE; i++) sync_a[i] = sync_b[i] = SHMEM_SYNC_VALUE;
    for (int i = 0; i < SHMEM_COLLECT_SYNC_SIZE; i++) collect_sync[i] = SHMEM_SYNC_VALUE;
    for (int i = 0; i < SHMEM_REDUCE_SYNC_SIZE; i++)
        reduce_sync[0][i] = reduce_sync[1][i] = SHMEM_SYNC_VALUE;
    void *dest = check_alloc(4 * N * PES, sizeof(long double));
    void *source = check_alloc(4 * N * PES, sizeof(long double));
    void *work = check_alloc(SHMEM_REDUCE_MIN_WRKDATA_SIZE, 2 * sizeof(long double));

    int sets[][3] = {
        {0, 0, npes}, {0, 1, (npes + 1) / 2}, {npes - 1, 0, 1}, {npes / 2, 0, npes - npes / 2}};
    for (int s = 0; s < 4; s++) {
        choose_set(sets[s][0], sets[s][1], sets[s][2]);
        shmem_barrier_all();
        test_32(dest, source);
        test_64(dest, source);
#define RUN_BITWISE(T, TYPE, ...) bitwise_##T(dest, source, work);
#define RUN_MINMAX(T, TYPE, ...)  minmax_##T(dest, source, work);
#define RUN_ARITH(T, TYPE, ...)   arith_##T(dest, source, work);
        BITWISE_TO_ALL_TYPES(RUN_BITWISE, ~)
        MINMAX_TO_ALL_TYPES(RUN_MINMAX, ~)
        MINMAX_TO_ALL_TYPES(RUN_ARITH, ~)
        COMPLEX_TYPES(RUN_ARITH, ~)
        test_synchronisation();
        shmem_barrier_all();
        for (int i = 0; i < SHMEM_SYNC_SIZE; i++) {
            CHECK_EQ(sync_a[i], SHMEM_SYNC_VALUE);
            CHECK_EQ(sync_b[i], SHMEM_SYNC_VALUE);
        }
        for (int i = 0; i < SHMEM_COLLECT_SYNC_SIZE; i++)
            CHECK_EQ(collect_sync[i], SHMEM_SYNC_VALUE);
        for (int i = 0; i < SHMEM_REDUCE_SYNC_SIZE; i++) {
            CHECK_EQ(reduce_sync[0][i], SHMEM_SYNC_VALUE);
            CHECK_EQ(reduce_sync[1][i], SHMEM_SYNC_VALUE);
        }
        shmem_barrier_all();
    }
    shmem_free(work);
    shmem_free(dest);
    shmem_free(source);
    return check_done();
}
