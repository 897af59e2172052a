/* SPDX-License-Identifier: Apache-2.0 */
/* Wait and test, every type: one variable, all, any and some of several, with one value or a
 * vector of values, with a status array, with an empty set; and the deprecated shmem_wait. */
#include "check.h"
#include "types.h"

#define N 8
#define PUTS(T, I, V) shmem_##T##_atomic_set(v + (I), V, next_pe)

/* All PEs are done with what they saw: the variables may change again. */
#define NEXT() shmem_barrier_all()

/* shmem_T_wait_until and shmem_T_test with each comparison: the variable goes 0, 1, 3, 1, 0, 4. */
#define SINGLE(T, TYPE, CALL, PUT)                                                                 \
    do {                                                                                           \
        v[0] = 0;                                                                                  \
        NEXT();                                                                                    \
        CHECK_EQ(CALL(T, test, , v, SHMEM_CMP_NE, 0), 0);                                          \
        NEXT();                                                                                    \
        PUT(T, 0, 1);                                                                              \
        CALL(T, wait_until, , v, SHMEM_CMP_NE, 0);                                                 \
        CHECK_EQ(CALL(T, test, , v, SHMEM_CMP_NE, 0), 1);                                          \
        CHECK_EQ(CALL(T, test, , v, SHMEM_CMP_EQ, 1), 1);                                          \
        NEXT();                                                                                    \
        PUT(T, 0, 3);                                                                              \
        CALL(T, wait_until, , v, SHMEM_CMP_GT, 2);                                                 \
        CHECK_EQ(CALL(T, test, , v, SHMEM_CMP_GT, 3), 0);                                          \
        NEXT();                                                                                    \
        PUT(T, 0, 1);                                                                              \
        CALL(T, wait_until, , v, SHMEM_CMP_LE, 1);                                                 \
        CHECK_EQ(CALL(T, test, , v, SHMEM_CMP_LE, 0), 0);                                          \
        NEXT();                                                                                    \
        PUT(T, 0, 0);                                                                              \
        CALL(T, wait_until, , v, SHMEM_CMP_LT, 1);                                                 \
        CHECK_EQ(CALL(T, test, , v, SHMEM_CMP_LT, 0), 0);                                          \
        NEXT();                                                                                    \
        PUT(T, 0, 4);                                                                              \
        CALL(T, wait_until, , v, SHMEM_CMP_GE, 4);                                                 \
        CALL(T, wait_until, , v, SHMEM_CMP_EQ, 4);                                                 \
        CHECK_EQ(CALL(T, test, , v, SHMEM_CMP_GE, 5), 0);                                          \
        NEXT();                                                                                    \
    } while (0)

/* An empty set: nothing to wait for, all of nothing holds, none of it is found. */
#define EMPTY(T, TYPE, CALL, COUNT, STATUS, SUFFIX, VALUES)                                        \
    do {                                                                                           \
        CALL(T, wait_until_all, SUFFIX, v, COUNT, STATUS, SHMEM_CMP_EQ, VALUES);                   \
        CHECK_EQ(CALL(T, wait_until_any, SUFFIX, v, COUNT, STATUS, SHMEM_CMP_EQ, VALUES),          \
                 SIZE_MAX);                                                                        \
        CHECK_EQ(CALL(T, wait_until_some, SUFFIX, v, COUNT, found, STATUS, SHMEM_CMP_EQ, VALUES),  \
                 0);                                                                               \
        CHECK_EQ(CALL(T, test_all, SUFFIX, v, COUNT, STATUS, SHMEM_CMP_EQ, VALUES), 1);            \
        CHECK_EQ(CALL(T, test_any, SUFFIX, v, COUNT, STATUS, SHMEM_CMP_EQ, VALUES), SIZE_MAX);     \
        CHECK_EQ(CALL(T, test_some, SUFFIX, v, COUNT, found, STATUS, SHMEM_CMP_EQ, VALUES), 0);    \
    } while (0)

/* Collects by wait_until_any, then by wait_until_some, each index but 3 exactly once. */
#define COLLECT(T, TYPE, CALL, SUFFIX, CMP, VALUES)                                                \
    do {                                                                                           \
        size_t count;                                                                              \
        memset(status, 0, sizeof status);                                                          \
        status[3] = 1;                                                                             \
        for (int k = 0; k < N - 1; k++) {                                                          \
            size_t i = CALL(T, wait_until_any, SUFFIX, v, N, status, CMP, VALUES);                 \
            CHECK(i < N && !status[i]);                                                            \
            status[i] = 1;                                                                         \
        }                                                                                          \
        memset(status, 0, sizeof status);                                                          \
        status[3] = 1;                                                                             \
        for (count = 0; count < N - 1;) {                                                          \
            size_t n = CALL(T, wait_until_some, SUFFIX, v, N, found, status, CMP, VALUES);         \
            CHECK(n >= 1 && n + count <= N - 1);                                                 \
            for (size_t k = 0; k < n; k++) {                                                       \
                CHECK(found[k] < N && !status[found[k]]);                                          \
                status[found[k]] = 1;                                                              \
            }                                                                                      \
            count += n;                                                                            \
        }                                                                                          \
    } while (0)

#define SEVERAL(T, TYPE, CALL, SUFFIX, CMP, VALUES)                                                \
    do {                                                                                           \
        size_t found[N];                                                                           \
        int status[N], all[N];                                                                     \
        for (int i = 0; i < N; i++) v[i] = 0, all[i] = 1, values[i] = (TYPE)(i + 1);               \
        EMPTY(T, TYPE, CALL, 0, NULL, SUFFIX, VALUES);                                             \
        EMPTY(T, TYPE, CALL, N, all, SUFFIX, VALUES);                                              \
        CHECK_EQ(CALL(T, test_all, SUFFIX, v, N, NULL, CMP, VALUES), 0);                           \
        CHECK_EQ(CALL(T, test_any, SUFFIX, v, N, NULL, CMP, VALUES), SIZE_MAX);                    \
        CHECK_EQ(CALL(T, test_some, SUFFIX, v, N, found, NULL, CMP, VALUES), 0);                   \
        NEXT();                                                                                    \
        for (int i = N - 1; i >= 0; i--) {                                                         \
            if (i != 3) PUTS(T, i, (TYPE)(i + 1));                                                 \
        }                                                                                          \
        COLLECT(T, TYPE, CALL, SUFFIX, CMP, VALUES);                                               \
        memset(status, 0, sizeof status);                                                          \
        status[3] = 7; /* any nonzero value excludes */                                            \
        CALL(T, wait_until_all, SUFFIX, v, N, status, CMP, VALUES);                                \
        CHECK_EQ(CALL(T, test_all, SUFFIX, v, N, status, CMP, VALUES), 1);                         \
        CHECK_EQ(CALL(T, test_all, SUFFIX, v, N, NULL, CMP, VALUES), 0);                           \
        CHECK_EQ(CALL(T, test_some, SUFFIX, v, N, found, NULL, CMP, VALUES), N - 1);               \
        CHECK_EQ(CALL(T, test_some, SUFFIX, v, N, found, status, CMP, VALUES), N - 1);             \
        CHECK(CALL(T, test_any, SUFFIX, v, N, status, CMP, VALUES) < N);                           \
        CHECK_EQ(CALL(T, test_any, SUFFIX, v + 3, 1, NULL, CMP, VALUES), SIZE_MAX);                \
        NEXT();                                                                                    \
        PUTS(T, 3, 4);                                                                             \
        CALL(T, wait_until_all, SUFFIX, v, N, NULL, CMP, VALUES);                                  \
        CHECK_EQ(CALL(T, wait_until_any, SUFFIX, v, 1, NULL, CMP, VALUES), 0);                     \
        CHECK_EQ(CALL(T, wait_until_some, SUFFIX, v, N, found, NULL, CMP, VALUES), N);             \
        NEXT();                                                                                    \
    } while (0)

#define WAIT(T, TYPE, ...)                                                                         \
    static void deprecated_##T(TYPE *v) {                                                          \
        v[0] = 6;                                                                                  \
        shmem_barrier_all();                                                                       \
        shmem_##T##_p(v, 2, next_pe);                                                              \
        shmem_##T##_wait(v, 6);                                                                    \
        CHECK_EQ(v[0], 2);                                                                         \
        shmem_barrier_all();                                                                       \
    }

#define TEST(T, TYPE, ...)                                                                         \
    static void test_##T(TYPE *v) {                                                                \
        TYPE values[N];                                                                            \
        SINGLE(T, TYPE, TYPED, PUTS);                                                              \
        SINGLE(T, TYPE, GENERIC, PUTS);                                                            \
        SEVERAL(T, TYPE, TYPED, , SHMEM_CMP_GT, 0);                                                \
        SEVERAL(T, TYPE, GENERIC, , SHMEM_CMP_NE, 0);                                              \
        SEVERAL(T, TYPE, TYPED, _vector, SHMEM_CMP_EQ, values);                                    \
        SEVERAL(T, TYPE, GENERIC, _vector, SHMEM_CMP_GE, values);                                  \
    }                                                                                              \
    WAIT(T, TYPE)
AMO_TYPES(TEST, ~)

/* Deprecated: these types can be waited for one at a time only, and there is no AMO to set them. */
#define PUTS_SHORT(T, I, V) shmem_##T##_p(v + (I), V, next_pe)
#define TEST_SHORT(T, TYPE)                                                                        \
    static void test_##T(TYPE *v) {                                                                \
        SINGLE(T, TYPE, TYPED, PUTS_SHORT);                                                        \
        SINGLE(T, TYPE, GENERIC, PUTS_SHORT);                                                      \
    }                                                                                              \
    WAIT(T, TYPE)
TEST_SHORT(short, short)
TEST_SHORT(ushort, unsigned short)

int main(void) {
    check_start();
    void *heap = check_alloc(N, sizeof(long long));
#define RUN(T, TYPE, ...) test_##T(heap); deprecated_##T(heap);
    AMO_TYPES(RUN, ~)
    RUN(short, short)
    RUN(ushort, unsigned short)

    long *v = heap;
    v[0] = 1;
    shmem_barrier_all();
    shmem_long_p(v, 5, next_pe);
    shmem_wait(v, 1);
    (shmem_wait_until)(v, SHMEM_CMP_EQ, 5); /* the deprecated routine, not the generic macro */
    shmem_free(heap);
    return check_done();
}
