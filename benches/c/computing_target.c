/* SPDX-License-Identifier: Apache-2.0 */
/* Operations of PE 0 on the last PE, one after the other, while all PEs but PE 0 compute and never call the library.
 * Samples are times of single operations. */
#include "bench.h"

enum { MOST = 20000, LONG = 65536 };
static const double SPAN_NS = 6e8;

static double sample[MOST];

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void report(const char *name, int n)
{
    double sum = 0;
    for (int k = 0; k < n; k++)
        sum += sample[k];
    qsort(sample, n, sizeof *sample, by_value);
    printf("%-12s us: median %8.1f  mean %8.1f  99 %% %8.1f  most %8.0f  of %d\n", name, sample[n / 2], sum / n,
           sample[n * 99 / 100], sample[n - 1], n);
    fflush(stdout);
}

static void compute(double until)
{
    static volatile double sum;
    while (now_ns() < until)
        for (int k = 0; k < 2000; k++)
            sum += k * 1e-3;
}

#define MEASURE(name, statement)                                                                   \
    do {                                                                                           \
        double end = now_ns() + SPAN_NS;                                                           \
        int n = 0;                                                                                 \
        if (shmem_my_pe() != 0)                                                                    \
            compute(end + SPAN_NS / 10);                                                           \
        while (shmem_my_pe() == 0 && n < MOST && now_ns() < end) {                                 \
            double begun = now_ns();                                                               \
            statement;                                                                             \
            sample[n++] = (now_ns() - begun) / 1e3;                                                \
        }                                                                                          \
        if (shmem_my_pe() == 0)                                                                    \
            report(name, n);                                                                       \
        shmem_barrier_all();                                                                       \
    } while (0)

int main(void)
{
    shmem_init();
    int last = shmem_n_pes() - 1;
    char *data = shmem_calloc(1, LONG), *own = malloc(LONG);
    long *word = (long *)data;
    shmem_barrier_all();
    MEASURE("get 8 B", shmem_getmem(own, data, 8, last));
    MEASURE("fetch-add", shmem_long_atomic_fetch_add(word, 1, last));
    MEASURE("put + quiet", (shmem_long_p(word, 1, last), shmem_quiet()));
    MEASURE("get 64 KiB", shmem_getmem(own, data, LONG, last));
    free(own);
    shmem_finalize();
    return 0;
}
