/* SPDX-License-Identifier: Apache-2.0 */
/* Put with signal: every type and size, plain, on a context and generic, both signal operations;
 * signal set, add, fetch and wait. The target waits for the signal alone: the data must be there
 * by then. */
#include "check.h"
#include "types.h"

#define N 12
static shmem_ctx_t test_ctx;
static uint64_t *sent;         /* at the target: counts up by one per put */
static uint64_t step;

#define ROUND(CALL, NAME, SUFFIX, OP)                                                              \
    do {                                                                                           \
        step++;                                                                                    \
        for (int i = 0; i < N; i++) dest[i] = 0, source[i] = VALUE(me + (int)step, i);             \
        shmem_sync_all();                                                                          \
        CALL(NAME, put, SUFFIX, dest, source, N, sent,                                             \
             (OP) == SHMEM_SIGNAL_SET ? step : (uint64_t)1, OP, next_pe);                          \
        CHECK_EQ(shmem_signal_wait_until(sent, SHMEM_CMP_GE, step), step);                         \
        for (int i = 0; i < N; i++) CHECK_EQ(dest[i], VALUE(previous_pe + (int)step, i));          \
        CHECK_EQ(shmem_signal_fetch(sent), step);                                                  \
        shmem_ctx_quiet(test_ctx);                                                                 \
        shmem_barrier_all();                                                                       \
    } while (0)

#define FORM(CALL, NAME)                                                                           \
    ROUND(CALL, NAME, _signal, SHMEM_SIGNAL_SET);                                                  \
    ROUND(CALL, NAME, _signal, SHMEM_SIGNAL_ADD);                                                  \
    ROUND(CALL, NAME, _signal_nbi, SHMEM_SIGNAL_SET);                                              \
    ROUND(CALL, NAME, _signal_nbi, SHMEM_SIGNAL_ADD);

#define TEST_TYPE(T, TYPE, ...)                                                                    \
    static void test_##T(TYPE *dest) {                                                             \
        TYPE source[N];                                                                            \
        FORM(TYPED, T) FORM(TYPED_CTX, T) FORM(GENERIC, T) FORM(GENERIC_CTX, T)                    \
    }
RMA_TYPES(TEST_TYPE, ~)

#define TEST_SIZE(T, TYPE, ...)                                                                    \
    static void test_##T(TYPE *dest) {                                                             \
        TYPE source[N];                                                                            \
        FORM(SIZED, T) FORM(SIZED_CTX, T)                                                          \
    }
SIZES_AND_MEM(TEST_SIZE, ~)

static void test_signal_operations(void) {
    uint64_t *signal = check_alloc(1, sizeof *signal);
    shmem_signal_set(signal, 3, next_pe);
    CHECK_EQ(shmem_signal_wait_until(signal, SHMEM_CMP_NE, 0), 3);
    shmem_barrier_all();
    shmem_signal_add(signal, 4, next_pe);
    CHECK_EQ(shmem_signal_wait_until(signal, SHMEM_CMP_GT, 3), 7);
    shmem_barrier_all();
    shmem_ctx_signal_set(test_ctx, signal, 1, next_pe);
    CHECK_EQ(shmem_signal_wait_until(signal, SHMEM_CMP_LT, 7), 1);
    shmem_barrier_all();
    shmem_ctx_signal_add(test_ctx, signal, UINT64_MAX, next_pe); /* modular: 1 + (2^64 - 1) = 0 */
    CHECK_EQ(shmem_signal_wait_until(signal, SHMEM_CMP_LE, 0), 0);
    shmem_barrier_all();
    (shmem_signal_set)(signal, 5, next_pe);
    shmem_signal_wait_until(signal, SHMEM_CMP_EQ, 5);
    shmem_barrier_all();
    shmem_signal_add(test_ctx, signal, 5, next_pe); /* C11 generic with a context */
    shmem_signal_wait_until(signal, SHMEM_CMP_GE, 10);
    shmem_barrier_all();
    shmem_signal_set(test_ctx, signal, 1, next_pe);
    shmem_signal_wait_until(signal, SHMEM_CMP_EQ, 1);
    shmem_barrier_all();
    shmem_free(signal);
}

int main(void) {
    check_start();
    CHECK(shmem_ctx_create(0, &test_ctx) == 0);
    sent = check_alloc(1, sizeof *sent);
    void *heap = check_alloc(N, sizeof(long double));
#define RUN(T, TYPE, ...) test_##T(heap);
    RMA_TYPES(RUN, ~)
    SIZES_AND_MEM(RUN, ~)
    test_signal_operations();
    shmem_free(heap);
    shmem_free(sent);
    shmem_ctx_destroy(test_ctx);
    return check_done();
}
