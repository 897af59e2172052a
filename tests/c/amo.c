/* SPDX-License-Identifier: Apache-2.0 */
/* Atomic memory operations: every type, plain, on a context, as C11 generics, fetching or not,
 * blocking or not, and the deprecated names. Each PE works on a variable of the next PE that is
 * its alone. */
#include "check.h"
#include "types.h"

static shmem_ctx_t test_ctx;

/* Completes what was issued on the default context and on the test's own. */
static void quiet_both(void) {
    shmem_quiet();
    shmem_ctx_quiet(test_ctx);
}

#define IS(T, CALL, EXPECTED) CHECK_EQ(CALL(T, atomic_fetch, , x, next_pe), EXPECTED)

#define EXTENDED(T, TYPE, CALL)                                                                    \
    do {                                                                                           \
        TYPE fetched = 0;                                                                          \
        CALL(T, atomic_set, , x, 5, next_pe);                                                      \
        quiet_both();                                                                              \
        IS(T, CALL, 5);                                                                            \
        CHECK_EQ(CALL(T, atomic_swap, , x, 7, next_pe), 5);                                        \
        IS(T, CALL, 7);                                                                            \
        CALL(T, atomic_fetch, _nbi, &fetched, x, next_pe);                                         \
        quiet_both();                                                                              \
        CHECK_EQ(fetched, 7);                                                                      \
        CALL(T, atomic_swap, _nbi, &fetched, x, 9, next_pe);                                       \
        quiet_both();                                                                              \
        CHECK_EQ(fetched, 7);                                                                      \
        IS(T, CALL, 9);                                                                            \
    } while (0)

#define STANDARD(T, TYPE, CALL)                                                                    \
    do {                                                                                           \
        TYPE fetched = 0;                                                                          \
        CALL(T, atomic_set, , x, 10, next_pe);                                                     \
        quiet_both();                                                                              \
        CHECK_EQ(CALL(T, atomic_compare_swap, , x, 11, 50, next_pe), 10);                          \
        IS(T, CALL, 10);                                                                           \
        CHECK_EQ(CALL(T, atomic_compare_swap, , x, 10, 20, next_pe), 10);                          \
        CHECK_EQ(CALL(T, atomic_fetch_inc, , x, next_pe), 20);                                     \
        CALL(T, atomic_inc, , x, next_pe);                                                         \
        quiet_both();                                                                              \
        CHECK_EQ(CALL(T, atomic_fetch_add, , x, 8, next_pe), 22);                                  \
        CALL(T, atomic_add, , x, 4, next_pe);                                                      \
        quiet_both();                                                                              \
        IS(T, CALL, 34);                                                                           \
        CALL(T, atomic_compare_swap, _nbi, &fetched, x, 34, 40, next_pe);                          \
        quiet_both();                                                                              \
        CHECK_EQ(fetched, 34);                                                                     \
        CALL(T, atomic_fetch_inc, _nbi, &fetched, x, next_pe);                                     \
        quiet_both();                                                                              \
        CHECK_EQ(fetched, 40);                                                                     \
        CALL(T, atomic_fetch_add, _nbi, &fetched, x, 9, next_pe);                                  \
        quiet_both();                                                                              \
        CHECK_EQ(fetched, 41);                                                                     \
        IS(T, CALL, 50);                                                                           \
    } while (0)

#define BITWISE(T, TYPE, CALL)                                                                     \
    do {                                                                                           \
        TYPE fetched = 0;                                                                          \
        TYPE high = (TYPE)1 << (sizeof(TYPE) * 8 - 2);                                             \
        CALL(T, atomic_set, , x, high | 0x5a, next_pe);                                            \
        quiet_both();                                                                              \
        CHECK_EQ(CALL(T, atomic_fetch_and, , x, high | 0x0f, next_pe), high | 0x5a);               \
        CHECK_EQ(CALL(T, atomic_fetch_or, , x, 0x41, next_pe), high | 0x0a);                       \
        CHECK_EQ(CALL(T, atomic_fetch_xor, , x, 0x0f, next_pe), high | 0x4b);                      \
        CALL(T, atomic_and, , x, high | 0xf0, next_pe);                                            \
        quiet_both();                                                                              \
        IS(T, CALL, high | 0x40);                                                                  \
        CALL(T, atomic_or, , x, 0x03, next_pe);                                                    \
        quiet_both();                                                                              \
        IS(T, CALL, high | 0x43);                                                                  \
        CALL(T, atomic_xor, , x, high | 0x02, next_pe);                                            \
        quiet_both();                                                                              \
        IS(T, CALL, 0x41);                                                                         \
        CALL(T, atomic_fetch_and, _nbi, &fetched, x, 0x40, next_pe);                               \
        quiet_both();                                                                              \
        CHECK_EQ(fetched, 0x41);                                                                   \
        CALL(T, atomic_fetch_or, _nbi, &fetched, x, 0x07, next_pe);                                \
        quiet_both();                                                                              \
        CHECK_EQ(fetched, 0x40);                                                                   \
        CALL(T, atomic_fetch_xor, _nbi, &fetched, x, 0x42, next_pe);                               \
        quiet_both();                                                                              \
        CHECK_EQ(fetched, 0x47);                                                                   \
        IS(T, CALL, 0x05);                                                                         \
    } while (0)

/* The deprecated names have neither contexts nor non-blocking forms. */
#define DEPRECATED_EXTENDED(T, TYPE, CALL)                                                         \
    do {                                                                                           \
        CALL(T, set, , x, 5, next_pe);                                                             \
        shmem_quiet();                                                                             \
        CHECK_EQ(CALL(T, fetch, , x, next_pe), 5);                                                 \
        CHECK_EQ(CALL(T, swap, , x, 6, next_pe), 5);                                               \
        CHECK_EQ(CALL(T, fetch, , x, next_pe), 6);                                                 \
    } while (0)

#define DEPRECATED_STANDARD(T, TYPE, CALL)                                                         \
    do {                                                                                           \
        CALL(T, set, , x, 1, next_pe);                                                             \
        shmem_quiet();                                                                             \
        CHECK_EQ(CALL(T, cswap, , x, 1, 10, next_pe), 1);                                          \
        CHECK_EQ(CALL(T, finc, , x, next_pe), 10);                                                 \
        CALL(T, inc, , x, next_pe);                                                                \
        shmem_quiet();                                                                             \
        CHECK_EQ(CALL(T, fadd, , x, 5, next_pe), 12);                                              \
        CALL(T, add, , x, 3, next_pe);                                                             \
        shmem_quiet();                                                                             \
        CHECK_EQ(CALL(T, fetch, , x, next_pe), 20);                                                \
    } while (0)

#define ALL_FORMS(BODY, T, TYPE)                                                                   \
    BODY(T, TYPE, TYPED);                                                                          \
    BODY(T, TYPE, TYPED_CTX);                                                                      \
    BODY(T, TYPE, GENERIC);                                                                        \
    BODY(T, TYPE, GENERIC_CTX);

#define TEST_EXTENDED(T, TYPE, ...)                                                                \
    static void extended_##T(TYPE *x) {                                                            \
        ALL_FORMS(EXTENDED, T, TYPE)                                                               \
        DEPRECATED_EXTENDED(T, TYPE, TYPED);                                                       \
        DEPRECATED_EXTENDED(T, TYPE, GENERIC);                                                     \
    }                                                                                              \
    static TYPE static_##T;
#define TEST_STANDARD(T, TYPE, ...)                                                                \
    static void standard_##T(TYPE *x) {                                                            \
        ALL_FORMS(STANDARD, T, TYPE)                                                               \
        DEPRECATED_STANDARD(T, TYPE, TYPED);                                                       \
        DEPRECATED_STANDARD(T, TYPE, GENERIC);                                                     \
    }
#define TEST_BITWISE(T, TYPE, ...)                                                                 \
    static void bitwise_##T(TYPE *x) { ALL_FORMS(BITWISE, T, TYPE) }
EXTENDED_AMO_TYPES(TEST_EXTENDED, ~)
AMO_TYPES(TEST_STANDARD, ~)
BITWISE_AMO_TYPES(TEST_BITWISE, ~)

int main(void) {
    check_start();
    CHECK(shmem_ctx_create(0, &test_ctx) == 0);
    void *heap = check_alloc(1, sizeof(long long));

#define RUN(CLASS, T)                                                                              \
    CLASS##_##T(heap);                                                                             \
    shmem_barrier_all();                                                                           \
    CLASS##_##T(&static_##T);                                                                      \
    shmem_barrier_all();
#define RUN_EXTENDED(T, TYPE, ...) RUN(extended, T)
#define RUN_STANDARD(T, TYPE, ...) RUN(standard, T)
#define RUN_BITWISE(T, TYPE, ...)  RUN(bitwise, T)
    EXTENDED_AMO_TYPES(RUN_EXTENDED, ~)
    AMO_TYPES(RUN_STANDARD, ~)
    BITWISE_AMO_TYPES(RUN_BITWISE, ~)

    shmem_free(heap);
    shmem_ctx_destroy(test_ctx);
    return check_done();
}
