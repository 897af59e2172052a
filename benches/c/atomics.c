/* SPDX-License-Identifier: Apache-2.0 */
/* 64-bit fetch-add on a variable of PE 0 against `lock xadd` on the same mapping: by one PE alone
 * and by all PEs at once. 2 or more PEs. */
#include "bench.h"

enum { ALONE = 20000, TOGETHER = 5000 };

enum { FETCH_ADD, ADD, XADD, XADD_CALL, KINDS };
static const char *const NAMES[KINDS] = {"fetch_add", "add", "xadd", "xadd_call"};

static double time_kind(int kind, long *counter, long *mapping, long count)
{
    switch (kind) {
    case FETCH_ADD: return NS_EACH(count, shmem_long_atomic_fetch_add(counter, 1, 0));
    case ADD: return NS_EACH(count, shmem_long_atomic_add(counter, 1, 0));
    /* The instruction behind a call. It waits until the call's own store, of the place to return
     * to, has reached the cache: no library can be faster than this. */
    case XADD_CALL: return NS_EACH(count, plain_fetch_add(mapping, 1));
    /* Inlined: the bare instruction. */
    default: return NS_EACH(count, __atomic_fetch_add(mapping, 1, __ATOMIC_SEQ_CST));
    }
}

/* All PEs at once, from a moment agreed on: PEs leave a barrier one after the other, and in a short
 * run the first would be done before the last begins. Until the last one is done. */
static double time_together(int kind, long *counter, long *mapping)
{
    static double *moments; /* the start, then the end at each PE */
    int me = shmem_my_pe(), n = shmem_n_pes();
    if (moments == NULL)
        moments = symmetric(((size_t)n + 1) * sizeof *moments);
    shmem_barrier_all();
    double start = now_ns() + 50000;
    for (int pe = 0; me == 0 && pe < n; pe++)
        shmem_double_p(&moments[0], start, pe);
    shmem_barrier_all();
    start = *(volatile double *)&moments[0];
    while (now_ns() < start) {
    }
    time_kind(kind, counter, mapping, TOGETHER);
    shmem_double_p(&moments[1 + me], now_ns(), 0);
    shmem_barrier_all();
    double end = start;
    for (int pe = 0; pe < n; pe++)
        if (moments[1 + pe] > end)
            end = moments[1 + pe];
    return (end - start) / TOGETHER;
}

static void print_all(const char *suffix, double ns[KINDS][BATCHES])
{
    for (int kind = 0; kind < KINDS; kind++) {
        char name[64];
        snprintf(name, sizeof name, "%s.%s", NAMES[kind], suffix);
        print_samples(name, "ns", ns[kind], BATCHES);
    }
}

int main(void)
{
    static double ns[KINDS][BATCHES];
    shmem_init();
    int me = shmem_my_pe(), n = shmem_n_pes();
    long *counter = symmetric(CACHE_LINE);
    long *mapping = mapped(counter, 0);
    long expected = 0;

    if (me == n - 1) {
        for (int batch = 0; batch < BATCHES; batch++)
            for (int kind = 0; kind < KINDS; kind++)
                ns[kind][batch] = time_kind(kind, counter, mapping, ALONE);
        shmem_quiet();
    }
    expected += (long)KINDS * BATCHES * ALONE;
    shmem_barrier_all();
    if (me == 0 && *counter != expected)
        fail("one PE counted to %ld, expected %ld", *counter, expected);
    if (me == n - 1)
        print_all("alone", ns);
    shmem_barrier_all();

    for (int batch = 0; batch < BATCHES; batch++)
        for (int kind = 0; kind < KINDS; kind++)
            ns[kind][batch] = time_together(kind, counter, mapping);
    expected += (long)KINDS * BATCHES * TOGETHER * n;
    if (me == 0 && *counter != expected)
        fail("%d PEs counted to %ld, expected %ld", n, *counter, expected);
    if (me == 0)
        print_all("together", ns);
    shmem_barrier_all();
    shmem_finalize();
    return 0;
}
