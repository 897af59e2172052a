/* SPDX-License-Identifier: Apache-2.0 */
/* Barrier and sync over all PEs, against the time a cache line takes from one PE to another, measured
 * by ping-pong over every pair of the same PEs. 2 or 4 PEs, better on cores of their own. */
#include "bench.h"

#include <sched.h>

enum { ROUNDS = 500, CALLS = 500 };

struct line {
    _Alignas(CACHE_LINE) long value;
};

static long load(struct line *line)
{
    return __atomic_load_n(&line->value, __ATOMIC_ACQUIRE);
}

static void store(struct line *line, long value)
{
    __atomic_store_n(&line->value, value, __ATOMIC_RELEASE);
}

/* One-way time between two PEs; both call it. `own` and `theirs` are the same object of the two,
 * `start` is what the call before left in it, zero at first. */
static double ping_pong(struct line *own, struct line *theirs, long start, int first)
{
    double begun = now_ns();
    for (long round = start + 1; round <= start + ROUNDS; round++) {
        if (first)
            store(theirs, round);
        for (long spins = 1; load(own) != round; spins++)
            if (spins % 10000 == 0) /* on a busy machine the other may not be running */
                sched_yield();
        if (!first)
            store(theirs, round);
    }
    return (now_ns() - begun) / (2.0 * ROUNDS);
}

/* Mean one-way time over all pairs; in each step all PEs are busy, in pairs. */
static double one_way(struct line *lines, int batch)
{
    static double *sums;
    static double *work;
    static long sync[SHMEM_REDUCE_SYNC_SIZE];
    int me = shmem_my_pe(), n = shmem_n_pes();
    if (sums == NULL) {
        for (int k = 0; k < SHMEM_REDUCE_SYNC_SIZE; k++)
            sync[k] = SHMEM_SYNC_VALUE;
        sums = symmetric(2 * sizeof *sums);
        work = symmetric(SHMEM_REDUCE_MIN_WRKDATA_SIZE * sizeof *work);
    }
    sums[0] = 0;
    for (int step = 1; step < n; step++) { /* n is a power of two */
        int partner = me ^ step;
        struct line *theirs = mapped(&lines[step], partner);
        shmem_barrier_all();
        sums[0] += ping_pong(&lines[step], theirs, (long)batch * ROUNDS, me < partner);
    }
    shmem_barrier_all();
    shmem_double_sum_to_all(&sums[1], sums, 1, 0, 0, n, work, sync);
    shmem_barrier_all();
    return sums[1] / n / (n - 1);
}

/* A PE that leaves a barrier must find what its neighbour wrote before entering it. */
static void verify(void)
{
    long *seen = symmetric(CACHE_LINE);
    int me = shmem_my_pe(), n = shmem_n_pes();
    for (long round = 1; round <= CALLS; round++) {
        shmem_long_p(seen, round, (me + 1) % n);
        shmem_barrier_all();
        long found = *(volatile long *)seen;
        if (found != round && found != round + 1) /* the neighbour may be ahead by one */
            fail("after barrier %ld the neighbour's word is %ld", round, found);
    }
    shmem_barrier_all();
}

int main(void)
{
    static double barrier[BATCHES], sync[BATCHES], trip[BATCHES], ideal[BATCHES];
    shmem_init();
    int n = shmem_n_pes();
    int trips = 0;
    for (int reached = 1; reached < n; reached *= 2)
        trips++;
    if (n < 2 || 1 << trips != n) {
        fprintf(stderr, "barrier: the number of PEs must be a power of two, at least 2\n");
        shmem_global_exit(2);
    }
    struct line *lines = symmetric((size_t)n * sizeof *lines);
    verify();
    for (int batch = 0; batch < BATCHES; batch++) {
        trip[batch] = one_way(lines, batch);
        ideal[batch] = trips * trip[batch];
        barrier[batch] = NS_EACH(CALLS, shmem_barrier_all());
        sync[batch] = NS_EACH(CALLS, shmem_sync_all());
    }
    if (shmem_my_pe() == 0) {
        print_samples("one_way", "ns", trip, BATCHES);
        print_samples("log2_trips", "ns", ideal, BATCHES);
        print_samples("barrier_all", "ns", barrier, BATCHES);
        print_samples("sync_all", "ns", sync, BATCHES);
    }
    shmem_barrier_all();
    shmem_finalize();
    return 0;
}
