/* SPDX-License-Identifier: Apache-2.0 */
/* Atomic operations and signals on a variable of 8 bytes of the last PE, by PE 0, one after the other: while
 * that PE waits in the library, and while it computes and never calls it. And by PE 0 on its own variable,
 * and without waiting for each. Samples are times of single operations, but for the rate. */
#include "bench.h"

enum { EACH = 101, BURST = 256 };

static long *word;      /* symmetric: a line, then the signal, then its data */
static long *stop;      /* symmetric */
static double sample[EACH];

#define MEASURE(name, statement)                                                                   \
    do {                                                                                           \
        for (int k = -10; k < EACH; k++) {                                                         \
            double ns = NS_EACH(1, statement);                                                     \
            if (k >= 0)                                                                            \
                sample[k] = ns / 1e3;                                                              \
        }                                                                                          \
        report(name);                                                                              \
    } while (0)

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void report(const char *name)
{
    qsort(sample, EACH, sizeof *sample, by_value);
    printf("%-36s us: best tenth %9.1f  median %9.1f  last tenth %9.1f\n", name, sample[EACH / 10],
           sample[EACH / 2], sample[EACH - EACH / 10]);
    fflush(stdout);
}

static void measure(int pe, const char *how)
{
    static long source[8];
    char name[64];
#define NAMED(what) (snprintf(name, sizeof name, "%s, %s", what, how), name)
    MEASURE(NAMED("fetch-add"), shmem_long_atomic_fetch_add(word, 1, pe));
    MEASURE(NAMED("add + quiet"), (shmem_long_atomic_add(word, 1, pe), shmem_quiet()));
    MEASURE(NAMED("compare-swap"), shmem_long_atomic_compare_swap(word, -1, 1, pe));
    MEASURE(NAMED("fetch"), shmem_long_atomic_fetch(word, pe));
    MEASURE(NAMED("swap"), shmem_long_atomic_swap(word, i, pe));
    MEASURE(NAMED("set + quiet"), (shmem_long_atomic_set(word, i, pe), shmem_quiet()));
    MEASURE(NAMED("fetch-or"), shmem_uint64_atomic_fetch_or((uint64_t *)word, 1, pe));
    MEASURE(NAMED("put 64 B, signal set + quiet"),
            (shmem_putmem_signal(word + 16, source, 64, (uint64_t *)word + 8, 1, SHMEM_SIGNAL_SET, pe),
             shmem_quiet()));
    MEASURE(NAMED("put 64 B, signal add + quiet"),
            (shmem_putmem_signal(word + 16, source, 64, (uint64_t *)word + 8, 1, SHMEM_SIGNAL_ADD, pe),
             shmem_quiet()));
    for (int k = 0; k < 11; k++) {
        double ns = NS_EACH(BURST, shmem_long_atomic_add(word, 1, pe));
        double begun = now_ns();
        shmem_quiet();
        sample[k] = (ns + (now_ns() - begun) / BURST) / 1e3;
    }
    qsort(sample, 11, sizeof *sample, by_value);
    printf("%-36s us each: median %9.1f\n", NAMED("256 adds, one quiet"), sample[5]);
    fflush(stdout);
}

int main(void)
{
    shmem_init();
    int me = shmem_my_pe(), last = shmem_n_pes() - 1;
    word = symmetric(PAGE);
    stop = symmetric(PAGE);
    if (me == 0) {
        measure(last, "target waits");
        shmem_long_p(stop, 1, last);
    } else if (me == last) {
        shmem_long_wait_until(stop, SHMEM_CMP_GE, 1);
    }
    shmem_barrier_all();
    if (me == 0) {
        measure(last, "target computes");
        shmem_long_p(stop, 2, last);
    } else if (me == last) {
        while (*(volatile long *)stop < 2)
            ;
    }
    shmem_barrier_all();
    if (me == 0)
        measure(0, "own variable");
    shmem_finalize();
    return 0;
}
