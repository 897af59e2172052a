/* SPDX-License-Identifier: Apache-2.0 */
/* Long gets from the PE half way around for a number of seconds (argument 1), checked to the last byte, while a
 * cable is pulled in the midst of one. */
#include <time.h>

#include "../check.h"

#define WORDS (128 << 10) /* 1 MiB */
#define PIECES 4

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static uint64_t word(int pe, size_t index) { return ((uint64_t)pe << 32 | index) * 0x9e3779b97f4a7c15u; }

int main(int argc, char **argv) {
    check_start();
    double limit = argc > 1 ? atof(argv[1]) : 1;
    uint64_t *source = check_alloc(WORDS, 8), *back = malloc(WORDS * 8);
    long *stop = check_alloc(1, sizeof *stop);
    CHECK(back);
    for (size_t i = 0; i < WORDS; i++) source[i] = word(me, i);
    shmem_barrier_all();

    int other = (me + npes / 2) % npes;
    long round = 0;
    double start = seconds(), longest = 0;
    if (me == 0) puts("ready"), fflush(stdout);
    for (; !*(volatile long *)stop; round++) {
        double begun = seconds();
        memset(back, 0xff, WORDS * 8);
        for (size_t at = 0; at < WORDS; at += WORDS / PIECES)
            shmem_get64_nbi(back + at, source + at, WORDS / PIECES, other);
        shmem_quiet();
        if (seconds() - begun > longest) longest = seconds() - begun;
        for (size_t i = 0; i < WORDS; i++) CHECK_EQ(back[i], word(other, i));
        if (me == 0 && seconds() - start > limit)
            for (int pe = 0; pe < npes; pe++) shmem_long_p(stop, 1, pe);
    }
    shmem_barrier_all();
    if (me == 0) printf("%ld rounds, longest %.1f\n", round, longest);
    return check_done();
}
