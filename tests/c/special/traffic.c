/* SPDX-License-Identifier: Apache-2.0 */
/* Traffic between all PEs for a number of seconds, checked to the last byte: argument 1. */
#include <sched.h>
#include <stdlib.h>
#include <time.h>

#include "../check.h"

#define BYTES 20000
#define WORDS 16

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

int main(int argc, char **argv) {
    check_start();
    double limit = argc > 1 ? atof(argv[1]) : 1;
    unsigned char *inbox = check_alloc((size_t)npes, BYTES);
    uint64_t *signals = check_alloc((size_t)npes, sizeof *signals);
    long *counters = check_alloc(WORDS, sizeof *counters);
    long *stop = check_alloc(1, sizeof *stop);
    unsigned char *out = malloc(BYTES), *back = malloc(BYTES);
    CHECK(out && back);
    shmem_barrier_all();

    long rounds = 0, old = -1;
    for (double start = seconds(); !*(volatile long *)stop;) {
        rounds++;
        memset(out, (int)(rounds * 7 + me), BYTES);
        for (int pe = 0; pe < npes; pe++) {
            shmem_putmem_signal_nbi(inbox + (size_t)me * BYTES, out, BYTES, signals + me, 1,
                                    SHMEM_SIGNAL_ADD, pe);
            shmem_long_atomic_inc(counters + rounds % WORDS, pe);
        }
        long seen = shmem_long_atomic_fetch_inc(counters, next_pe);
        CHECK(seen > old); /* a counter that only grows, applied once and in order */
        old = seen;
        shmem_quiet();
        for (int pe = 0; pe < npes; pe++)
            shmem_signal_wait_until(signals + pe, SHMEM_CMP_GE, (uint64_t)rounds);
        for (int pe = 0; pe < npes; pe++)
            for (int i = 0; i < BYTES; i++)
                CHECK_EQ(inbox[(size_t)pe * BYTES + i], (unsigned char)(rounds * 7 + pe));
        shmem_getmem(back, inbox + (size_t)me * BYTES, BYTES, next_pe);
        CHECK(memcmp(back, out, BYTES) == 0);
        if (me == 0 && seconds() - start > limit)
            for (int pe = 0; pe < npes; pe++) shmem_long_p(stop, 1, pe);
        shmem_barrier_all();
    }

    for (int word = 0; word < WORDS; word++) {
        long times = rounds / WORDS + (word && word <= rounds % WORDS ? 1 : 0);
        CHECK_EQ(counters[word], times * npes + (word ? 0 : rounds));
    }
    for (int pe = 0; pe < npes; pe++) CHECK_EQ(signals[pe], (uint64_t)rounds);
    if (me == 0) printf("%ld rounds\n", rounds);
    free(out);
    free(back);
    return check_done();
}
