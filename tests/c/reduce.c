/* SPDX-License-Identifier: Apache-2.0 */
/* Team reductions and scans: every type and operation, typed and generic, out of place and in
 * place, one element and many, over the world and over every second PE. */
#include "check.h"
#include "types.h"

#define N 40
static shmem_team_t team;
static int size, rank;

/* Element I that PE gives: small, so that sums and products of up to 16 PEs fit in a signed
 * char. */
#define GIVES(PE, I) ((PE) == (I) % size ? 2 + (I) % 4 : 1)
/* With a bit of its own per PE, for the bitwise operations. */
#define BITS(PE, I) ((1 << (PE) % 7) | ((I) & 1))

#define REDUCE(T, TYPE, CALL, OP, ELEMENT, START, COMBINE)                                         \
    for (int in_place = 0; in_place < 2; in_place++) {                                             \
        TYPE *from = in_place ? dest : source;                                                     \
        for (int i = 0; i < N; i++) dest[i] = 0;                                                   \
        for (int i = 0; i < N; i++) from[i] = (TYPE)(ELEMENT(rank, i));                            \
        shmem_team_sync(team);                                                                     \
        CHECK_EQ(CALL(T, OP, _reduce, team, dest, from, N - 1), 0);                                \
        for (int i = 0; i < N - 1; i++) {                                                          \
            TYPE a = (TYPE)(START(i));                                                             \
            for (int pe = 1; pe < size; pe++) {                                                    \
                TYPE b = (TYPE)(ELEMENT(pe, i));                                                   \
                a = (TYPE)(COMBINE);                                                               \
            }                                                                                      \
            CHECK_EQ(dest[i], a);                                                                  \
        }                                                                                          \
        CHECK_EQ(dest[N - 1], (TYPE)(in_place ? ELEMENT(rank, N - 1) : 0));                        \
        shmem_team_sync(team);                                                                     \
    }
#define FIRST_GIVES(I) GIVES(0, I)
#define FIRST_BITS(I)  BITS(0, I)

#define BITWISE(T, TYPE, CALL)                                                                     \
    REDUCE(T, TYPE, CALL, and, BITS, FIRST_BITS, a & b)                                            \
    REDUCE(T, TYPE, CALL, or, BITS, FIRST_BITS, a | b)                                             \
    REDUCE(T, TYPE, CALL, xor, BITS, FIRST_BITS, a ^ b)
#define MINMAX(T, TYPE, CALL)                                                                      \
    REDUCE(T, TYPE, CALL, max, GIVES, FIRST_GIVES, a > b ? a : b)                                  \
    REDUCE(T, TYPE, CALL, min, GIVES, FIRST_GIVES, a < b ? a : b)
#define ARITH(T, TYPE, CALL)                                                                       \
    REDUCE(T, TYPE, CALL, sum, GIVES, FIRST_GIVES, a + b)                                          \
    REDUCE(T, TYPE, CALL, prod, GIVES, FIRST_GIVES, a *b)                                          \
    SCAN(T, TYPE, CALL, sum_inscan, pe <= rank)                                                    \
    SCAN(T, TYPE, CALL, sum_exscan, pe < rank)

#define SCAN(T, TYPE, CALL, KIND, INCLUDES_PE)                                                     \
    for (int in_place = 0; in_place < 2; in_place++) {                                             \
        TYPE *from = in_place ? dest : source;                                                     \
        for (int i = 0; i < N; i++) dest[i] = 77;                                                  \
        for (int i = 0; i < N; i++) from[i] = (TYPE)GIVES(rank, i);                                \
        shmem_team_sync(team);                                                                     \
        CHECK_EQ(CALL(T, KIND, , team, dest, from, N), 0);                                         \
        for (int i = 0; i < N; i++) {                                                              \
            TYPE sum = 0;                                                                          \
            for (int pe = 0; pe < size; pe++)                                                      \
                if (INCLUDES_PE) sum = (TYPE)(sum + GIVES(pe, i));                                 \
            CHECK_EQ(dest[i], sum);                                                                \
        }                                                                                          \
        shmem_team_sync(team);                                                                     \
    }

#define TEST(CLASS, BODY, T, TYPE)                                                                 \
    static void CLASS##_##T(TYPE *dest, TYPE *source) {                                            \
        BODY(T, TYPE, TYPED)                                                                       \
        BODY(T, TYPE, GENERIC)                                                                     \
    }
#define TEST_BITWISE(T, TYPE, ...) TEST(bitwise, BITWISE, T, TYPE)
#define TEST_MINMAX(T, TYPE, ...)  TEST(minmax, MINMAX, T, TYPE)
#define TEST_ARITH(T, TYPE, ...)   TEST(arith, ARITH, T, TYPE)
BITWISE_REDUCE_TYPES(TEST_BITWISE, ~)
RMA_TYPES(TEST_MINMAX, ~)
RMA_TYPES(TEST_ARITH, ~)
COMPLEX_TYPES(TEST_ARITH, ~)

/* Signs, infinities and imaginary parts, which small positive numbers do not show. */
static void test_values(void) {
    double *d = check_alloc(4, sizeof *d);
    d[0] = rank == 0 ? -1e300 : rank;
    d[1] = rank == 0 ? -1.0 / 0.0 : 1;
    CHECK_EQ(shmem_double_min_reduce(team, d + 2, d, 2), 0);
    CHECK_EQ(d[2], -1e300);
    CHECK_EQ(d[3], -1.0 / 0.0);
    shmem_free(d);

    int8_t *s = check_alloc(2, sizeof *s);
    uint8_t *u = check_alloc(2, sizeof *u);
    s[0] = (int8_t)(rank == size - 1 ? -128 : 1);
    u[0] = (uint8_t)(rank == size - 1 ? 128 : 1);
    CHECK_EQ(shmem_int8_min_reduce(team, s + 1, s, 1), 0);
    CHECK_EQ(s[1], -128);
    CHECK_EQ(shmem_uint8_max_reduce(team, u + 1, u, 1), 0);
    CHECK_EQ(u[1], 128);
    shmem_free(s);
    shmem_free(u);

    double _Complex *z = check_alloc(2, sizeof *z);
    z[0] = I;
    CHECK_EQ(shmem_complexd_prod_reduce(team, z + 1, z, 1), 0); /* i to the number of PEs */
    double _Complex powers[] = {1, I, -1, -I};
    CHECK(z[1] == powers[size % 4]);
    z[0] = 1 + 2 * I;
    shmem_barrier_all();
    CHECK_EQ(shmem_sum_reduce(team, z + 1, z, 1), 0);
    CHECK(z[1] == size * (1 + 2 * I));
    shmem_free(z);
}

/* More elements than fit in any internal buffer. */
static void test_many(void) {
    const size_t count = 200000;
    long *source = check_alloc(count, sizeof *source), *dest = check_alloc(count, sizeof *dest);
    for (size_t i = 0; i < count; i++) source[i] = (long)i * (rank + 1);
    CHECK_EQ(shmem_long_sum_reduce(team, dest, source, count), 0);
    for (size_t i = 0; i < count; i++) CHECK_EQ(dest[i], (long)i * size * (size + 1) / 2);
    CHECK_EQ(shmem_long_sum_inscan(team, dest, source, count), 0);
    for (size_t i = 0; i < count; i++) CHECK_EQ(dest[i], (long)i * (rank + 1) * (rank + 2) / 2);
    shmem_free(dest);
    shmem_free(source);
}

int main(void) {
    check_start();
    void *dest = check_alloc(N, sizeof(long double) * 2);
    void *source = check_alloc(N, sizeof(long double) * 2);
    shmem_team_t even;
    CHECK_EQ(shmem_team_split_strided(SHMEM_TEAM_WORLD, 0, 2, (npes + 1) / 2, NULL, 0, &even), 0);
    shmem_team_t teams[] = {SHMEM_TEAM_WORLD, even};
    for (int t = 0; t < 2; t++) {
        team = teams[t];
        if (team == SHMEM_TEAM_INVALID) continue;
        size = shmem_team_n_pes(team);
        rank = shmem_team_my_pe(team);
#define RUN_BITWISE(T, TYPE, ...) bitwise_##T(dest, source);
#define RUN_MINMAX(T, TYPE, ...)  minmax_##T(dest, source);
#define RUN_ARITH(T, TYPE, ...)   arith_##T(dest, source);
        BITWISE_REDUCE_TYPES(RUN_BITWISE, ~)
        RMA_TYPES(RUN_MINMAX, ~)
        RMA_TYPES(RUN_ARITH, ~)
        COMPLEX_TYPES(RUN_ARITH, ~)
    }
    shmem_team_destroy(even);
    team = SHMEM_TEAM_WORLD, size = npes, rank = me;
    test_values();
    test_many();
    shmem_free(dest);
    shmem_free(source);
    return check_done();
}
