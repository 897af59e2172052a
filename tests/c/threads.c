/* SPDX-License-Identifier: Apache-2.0 */
/* SHMEM_THREAD_MULTIPLE: threads that put, get, wait, do atomics and create and destroy contexts
 * at once. */
#include "check.h"
#include <pthread.h>

#define THREADS 4
#define ROUNDS  300
static long *slots, *counter, *rows;
static uint64_t *signals;

/* Its own context, private to the thread, made anew every few rounds. */
static void *with_context(void *argument) {
    long id = (long)argument;
    shmem_ctx_t ctx = SHMEM_CTX_INVALID;
    for (long i = 0; i < ROUNDS; i++) {
        if (i % 10 == 0) CHECK_EQ(shmem_ctx_create(i % 20 ? SHMEM_CTX_PRIVATE : 0, &ctx), 0);
        shmem_ctx_long_p(ctx, &slots[id], i * THREADS + id, next_pe);
        shmem_ctx_quiet(ctx);
        CHECK_EQ(shmem_ctx_long_g(ctx, &slots[id], next_pe), i * THREADS + id);
        shmem_ctx_long_atomic_inc(ctx, counter, 0);
        if (i % 10 == 9) shmem_ctx_destroy(ctx);
    }
    return NULL;
}

/* The default context, shared by all threads. */
static void *on_default(void *argument) {
    long id = (long)argument;
    long row[16], back[16];
    for (long i = 0; i < ROUNDS; i++) {
        for (int k = 0; k < 16; k++) row[k] = i + id + k;
        shmem_long_put_nbi(&rows[16 * id], row, 16, next_pe);
        shmem_quiet();
        shmem_long_get(back, &rows[16 * id], 16, next_pe);
        for (int k = 0; k < 16; k++) CHECK_EQ(back[k], row[k]);
        shmem_long_atomic_add(counter, 1, 0);
    }
    return NULL;
}

/* One thread waits while others work: ping-pong of a signal with the same thread of the next PE. */
static void *waiting(void *argument) {
    long id = (long)argument;
    for (uint64_t i = 1; i <= ROUNDS; i++) {
        shmem_fence(); /* behind the value before */
        shmem_uint64_atomic_set(&signals[id], i, next_pe);
        shmem_uint64_wait_until(&signals[id], SHMEM_CMP_GE, i);
        shmem_long_atomic_inc(counter, 0);
    }
    return NULL;
}

/* Collectives of all PEs, which arrays of the threads' own keep apart. */
static void *by_arrays(void *argument) {
    static long syncs[THREADS][SHMEM_REDUCE_SYNC_SIZE];
    static long work[THREADS][SHMEM_REDUCE_MIN_WRKDATA_SIZE], terms[THREADS], sums[THREADS];
    long id = (long)argument;
    for (long i = 0; i < ROUNDS; i++) {
        shmem_long_atomic_inc(counter, 0);
        if (i % 6 != id) continue;
        terms[id] = (id + 1) * (me + 1) + i;
        shmem_long_sum_to_all(&sums[id], &terms[id], 1, 0, 0, npes, work[id], syncs[id]);
        CHECK_EQ(sums[id], (id + 1) * npes * (npes + 1) / 2 + i * npes);
        shmem_barrier(0, 0, npes, syncs[id]);
    }
    return NULL;
}

static void run(void *(*body)(void *)) {
    pthread_t threads[THREADS];
    *counter = 0;
    shmem_barrier_all();
    for (long t = 0; t < THREADS; t++)
        CHECK_EQ(pthread_create(&threads[t], NULL, body, (void *)t), 0);
    for (int t = 0; t < THREADS; t++) CHECK_EQ(pthread_join(threads[t], NULL), 0);
    shmem_barrier_all();
    if (me == 0) CHECK_EQ(*counter, (long)npes * THREADS * ROUNDS);
    shmem_barrier_all();
}

static void *mixed(void *argument) {
    static void *(*const bodies[])(void *) = {with_context, on_default, waiting, with_context};
    return bodies[(long)argument](argument);
}

int main(void) {
    int provided = -1;
    CHECK_EQ(shmem_init_thread(SHMEM_THREAD_MULTIPLE, &provided), 0);
    check_places();
    CHECK_EQ(provided, SHMEM_THREAD_MULTIPLE);
    slots = check_alloc(THREADS, sizeof *slots);
    counter = check_alloc(1, sizeof *counter);
    rows = check_alloc(16 * THREADS, sizeof *rows);
    signals = check_alloc(THREADS, sizeof *signals);
    run(with_context);
    run(on_default);
    run(waiting);
    memset(signals, 0, THREADS * sizeof *signals);
    shmem_barrier_all();
    run(mixed);
    run(by_arrays);
    shmem_free(slots);
    shmem_free(counter);
    shmem_free(rows);
    shmem_free(signals);
    return check_done();
}
