/* SPDX-License-Identifier: Apache-2.0 */
/* How much of a non-blocking put or get the caller hides by computing for as long as the blocking one takes: PE 1
 * sleeps meanwhile, so that its processor is free. A PE that is alone puts to itself and gets from itself.
 *
 * - `NAME` is the operation and a quiet at once, `blocking_NAME` the blocking one; `rare_...` the same, each
 *   after a pause in which a thread of the library may have fallen asleep.
 * - `compute_NAME` is a computation, `both_NAME` the operation, the computation, and a quiet, and `left_NAME` what
 *   these take longer. */
#include "bench.h"

enum { SIZES = 4, LONGEST = 16 << 20, RARE = 4 };

static const size_t sizes[SIZES] = {64 << 10, 256 << 10, 1 << 20, LONGEST};
static const int calls[SIZES] = {40, 20, 10, 2};
static const char *const size_names[SIZES] = {"64k", "256k", "1m", "16m"};

/* Not inlined: the same instructions at the same place each time. */
__attribute__((noinline)) static void compute(long turns)
{
    for (long turn = 0; turn < turns; turn++)
        __asm__ volatile("" : "+r"(turn));
}

/* With whom PE 0 exchanges data. */
static int other;

static void begin(int get, char *remote, char *local, size_t bytes)
{
    if (get)
        shmem_getmem_nbi(local, remote, bytes, other);
    else
        shmem_putmem_nbi(remote, local, bytes, other);
}

static void block(int get, char *remote, char *local, size_t bytes)
{
    if (get)
        shmem_getmem(local, remote, bytes, other);
    else
        shmem_putmem(remote, local, bytes, other);
}

/* One operation after a pause of about a quarter of a millisecond. */
static double rare(int get, int blocking, char *remote, char *local, size_t bytes, double turn)
{
    double took = 0;
    for (int k = 0; k < RARE; k++) {
        compute((long)(250e3 / turn));
        double begun = now_ns();
        if (blocking) {
            block(get, remote, local, bytes);
        } else {
            begin(get, remote, local, bytes);
            shmem_quiet();
        }
        took += now_ns() - begun;
    }
    return took / RARE;
}

static void measure(int get, char *remote, char *local)
{
    enum { KINDS = 7 };
    static double values[KINDS][SIZES][BATCHES];
    static const char *const kinds[KINDS] = {"", "blocking_", "compute_", "both_", "rare_", "rare_blocking_", "left_"};
    const char *name = get ? "get" : "put";
    for (int s = 0; s < SIZES; s++) {
        size_t bytes = sizes[s];
        double turn = NS_EACH(1, compute(2000000)) / 2e6;
        for (int batch = 0; batch < BATCHES; batch++) {
            double alone = NS_EACH(calls[s], begin(get, remote, local, bytes); shmem_quiet());
            double blocking = NS_EACH(calls[s], block(get, remote, local, bytes));
            long turns = (long)(blocking / turn);
            double computing = NS_EACH(calls[s], compute(turns));
            double both = NS_EACH(calls[s], begin(get, remote, local, bytes); compute(turns); shmem_quiet());
            double seldom[] = {rare(get, 0, remote, local, bytes, turn), rare(get, 1, remote, local, bytes, turn)};
            double all[KINDS] = {alone, blocking, computing, both, seldom[0], seldom[1], both > computing ? both - computing : 1};
            for (int kind = 0; kind < KINDS; kind++)
                values[kind][s][batch] = all[kind];
        }
    }
    for (int kind = 0; kind < KINDS; kind++)
        for (int s = 0; s < SIZES; s++) {
            char label[64];
            snprintf(label, sizeof label, "%s%s_%s", kinds[kind], name, size_names[s]);
            print_samples(label, "ns", values[kind][s], BATCHES);
        }
}

int main(void)
{
    shmem_init();
    int me = shmem_my_pe();
    other = shmem_n_pes() > 1;
    char *remote = symmetric(LONGEST), *local = symmetric(LONGEST);
    long *done = symmetric(CACHE_LINE);
    memset(local, me + 1, LONGEST), memset(remote, me + 11, LONGEST);
    shmem_barrier_all();
    if (me == 0) {
        shmem_putmem_nbi(remote, local, LONGEST, other);
        shmem_quiet();
        measure(0, remote, local);
        memset(local, 0, LONGEST);
        shmem_getmem_nbi(local, remote, LONGEST, other);
        shmem_quiet();
        for (size_t k = 0; k < LONGEST; k++)
            if (local[k] != 1)
                fail("byte %zu came back as %d, expected 1", k, local[k]);
        measure(1, remote, local);
        for (int pe = 1; pe < shmem_n_pes(); pe++)
            shmem_long_p(done, 1, pe);
    } else {
        while (!__atomic_load_n(done, __ATOMIC_ACQUIRE))
            nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    }
    shmem_barrier_all();
    shmem_finalize();
    return 0;
}
