/* SPDX-License-Identifier: Apache-2.0 */
/* What PE 0 does to the last PE, one operation after the other: puts of 8 and 16 bytes with quiet, gets of
 * them, fetch-add; and the bandwidth of puts of 64 KiB, 16 at a time. First while that PE waits in the
 * library, then while it sleeps. Samples of times are medians of a hundred averages of 8 operations, because
 * to read the clock takes some machines long, in microseconds; those of bandwidth are MB/s. */
#include "bench.h"

enum { EACH = 101, AVERAGED = 8, ROUNDS = 3, LONG = 64 << 10, FLIGHT = 16, PUTS = 128 };

static long *word, *stop; /* symmetric */
static char *many, *from; /* symmetric */
static long adds;

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

#define MEASURE(into, statement)                                                                   \
    do {                                                                                           \
        for (int k = -10; k < EACH; k++) {                                                         \
            double ns = NS_EACH(AVERAGED, statement);                                              \
            if (k >= 0)                                                                            \
                sample[k] = ns / 1e3;                                                              \
        }                                                                                          \
        qsort(sample, EACH, sizeof *sample, by_value);                                             \
        (into) = sample[EACH / 2];                                                                 \
    } while (0)

static void measure(int pe, const char *how)
{
    enum { PUT8, PUT16, GET8, GET16, ADD, RATE, COUNT };
    static const char *const NAMES[COUNT] = {"put8", "put16", "get8", "get16", "fetch_add", "bandwidth"};
    static double result[COUNT][ROUNDS], sample[EACH];
    static long source[2], got[2];
    for (int k = 0; k < ROUNDS; k++) {
        MEASURE(result[PUT8][k], (shmem_putmem(word + 8, source, 8, pe), shmem_quiet()));
        MEASURE(result[PUT16][k], (shmem_putmem(word + 16, source, 16, pe), shmem_quiet()));
        MEASURE(result[GET8][k], shmem_getmem(got, word + 8, 8, pe));
        MEASURE(result[GET16][k], shmem_getmem(got, word + 16, 16, pe));
        MEASURE(result[ADD][k], got[0] = shmem_long_atomic_fetch_add(word, 1, pe));
        adds += (EACH + 10) * AVERAGED;
        if (got[0] != adds - 1)
            fail("%ld adds of %ld", got[0] + 1, adds);
        double begun = now_ns();
        for (int i = 0; i < PUTS; i += FLIGHT) {
            for (int j = 0; j < FLIGHT; j++)
                shmem_putmem_nbi(many + j * LONG, from, LONG, pe);
            shmem_quiet();
        }
        result[RATE][k] = (double)PUTS * LONG * 1e3 / (now_ns() - begun);
    }
    for (int i = 0; i < COUNT; i++) {
        char name[64];
        snprintf(name, sizeof name, "%s_%s", NAMES[i], how);
        print_samples(name, i == RATE ? "MB/s" : "us", result[i], ROUNDS);
    }
}

int main(void)
{
    shmem_init();
    int me = shmem_my_pe(), pe = shmem_n_pes() - 1;
    word = symmetric(PAGE);
    stop = symmetric(PAGE);
    many = symmetric(FLIGHT * LONG);
    from = symmetric(LONG);
    if (me == 0) {
        measure(pe, "target_waits");
        shmem_long_p(stop, 1, pe);
    } else if (me == pe) {
        shmem_long_wait_until(stop, SHMEM_CMP_GE, 1);
    }
    shmem_barrier_all();
    if (me == 0) {
        measure(pe, "target_sleeps");
        shmem_long_p(stop, 2, pe);
    } else if (me == pe) {
        while (*(volatile long *)stop < 2)
            nanosleep(&(struct timespec){0, 20000000}, NULL);
    }
    shmem_finalize();
    return 0;
}
