/* SPDX-License-Identifier: Apache-2.0 */
/* Long and short traffic around all PEs for a number of seconds (argument 1), checked to the last byte, while
 * cables are pulled. Nothing arrives late, and AMOs are carried out once. With a second argument instead: how
 * many bytes PE 0 puts to PE 1 in a second, in MB/s. */
#include <time.h>

#include "../check.h"

#define WORDS (128 << 10) /* of a long put: 1 MiB */
#define TAIL (8 << 10)    /* of a put with a signal */

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static uint64_t word(int pe, long round, size_t index) {
    return ((uint64_t)round << 32 | (uint64_t)pe << 24 | index) * 0x9e3779b97f4a7c15u;
}

static void check_words(const char *what, const uint64_t *at, size_t from, size_t count, int pe, long round) {
    for (size_t i = from; i < from + count; i++) {
        uint64_t is = *(const volatile uint64_t *)&at[i];
        if (is == word(pe, round, i)) continue;
        char text[200];
        snprintf(text, sizeof text, "%s: word %zu of round %ld is %016lx, not %016lx", what, i, round, is,
                 word(pe, round, i));
        check_failed(__FILE__, __LINE__, text);
    }
}

static void fill(uint64_t *at, size_t count, int pe, long round) {
    for (size_t i = 0; i < count; i++) at[i] = word(pe, round, i);
}

static int measure(uint64_t *inbox, const uint64_t *out, double limit) {
    long puts = 0;
    double start = seconds();
    if (me == 0) {
        for (; seconds() - start < limit; puts += 8) {
            for (int i = 0; i < 8; i++) shmem_put64_nbi(inbox, out, WORDS, 1);
            shmem_quiet();
        }
        printf("%.1f\n", (double)puts * WORDS * 8 / (seconds() - start) / 1e6);
    }
    return check_done();
}

int main(int argc, char **argv) {
    check_start();
    double limit = argc > 1 ? atof(argv[1]) : 1;
    uint64_t *inbox = check_alloc(WORDS + TAIL, 8), *out = check_alloc(WORDS + TAIL, 8);
    uint64_t *back = malloc(WORDS * 8), *signal = check_alloc(1, 8);
    long *counter = check_alloc(1, sizeof *counter), *small = check_alloc(64, sizeof *small);
    long *stop = check_alloc(1, sizeof *stop);
    CHECK(back);
    shmem_barrier_all();
    if (argc > 2) return measure(inbox, out, limit);

    long round = 0;
    double start = seconds(), begun = start, longest = 0;
    for (;;) {
        round++;
        if (seconds() - begun > longest) longest = seconds() - begun;
        begun = seconds();
        if (me == 0) {
            if (round == 2) puts("ready"), fflush(stdout);
            for (int pe = 0; pe < npes; pe++) shmem_long_p(stop, seconds() - start > limit, pe);
        }
        fill(out, WORDS + TAIL, me, round);
        shmem_barrier_all();
        int last = *(volatile long *)stop != 0;
        /* Pieces of many lengths, in any order. */
        for (size_t at = 0, len; at < WORDS; at += len) {
            len = 1 + (size_t)(word(me, round, at) >> 48) % (64 << 10);
            if (len > WORDS - at) len = WORDS - at;
            shmem_put64_nbi(inbox + at, out + at, len, next_pe);
        }
        shmem_get64_nbi(back, out, WORDS, previous_pe);
        for (int i = 0; i < 64; i++) {
            shmem_long_p(small + i, round + i, next_pe);
            CHECK_EQ(shmem_long_atomic_fetch_inc(counter, next_pe), (round - 1) * 64 + i);
        }
        shmem_quiet();
        check_words("get", back, 0, WORDS, previous_pe, round);
        shmem_put64_signal(inbox + WORDS, out + WORDS, TAIL, signal, 1, SHMEM_SIGNAL_ADD, next_pe);
        shmem_signal_wait_until(signal, SHMEM_CMP_EQ, (uint64_t)round);
        check_words("signal", inbox, WORDS, TAIL, previous_pe, round);
        shmem_barrier_all();
        check_words("put", inbox, 0, WORDS, previous_pe, round);
        for (int i = 0; i < 64; i++) CHECK_EQ(small[i], round + i);
        CHECK_EQ(*counter, round * 64);
        /* What is newer stays, although older puts may still be on their way somewhere. */
        fill(inbox, WORDS + TAIL, me + npes, round);
        shmem_barrier_all();
        if (last) {
            for (double from = seconds(); seconds() - from < 2;) {
                const struct timespec pause = {0, 10000000};
                nanosleep(&pause, NULL);
            }
        }
        check_words("newer", inbox, 0, WORDS + TAIL, me + npes, round);
        if (last) break;
    }
    shmem_barrier_all();
    if (me == 0) printf("%ld rounds, longest %.1f\n", round, longest);
    return check_done();
}
