/* SPDX-License-Identifier: Apache-2.0 */
/* Words and large puts to PEs of other hosts, against a plain copy into memory that processes share.
 * One PE per host, in a ring: PE 0 works with its neighbour and, where there is one that is not a
 * neighbour, with the PE half way round. */
#include "bench.h"

#include <sys/mman.h>

#define LARGE ((size_t)1 << 20)
#define MEDIUM ((size_t)64 << 10)
/* Ceiling of a modelled link with its default timing, bytes per nanosecond: Gen3 x8, 8 % of it for
 * acknowledgements and flow control, 24 bytes around each TLP of 64 that a CPU's stores become. */
#define CEILING (8.0 * 128 / 130 * 0.92 * 64 / (64 + 24))
enum { TRIPS = 200, WINDOW = 64, MESSAGES = 64 * WINDOW, PIPELINE = 8, MEDIUMS = 64 };

static char *large;   /* symmetric: PIPELINE blocks of LARGE bytes */
static char *source;  /* symmetric */
static long *words;   /* symmetric: WINDOW words */
static long *flag;    /* symmetric */
static long *call;    /* symmetric */

/* A word there and a word back; PE 0 and `partner` call it. One-way time in nanoseconds. */
static double one_way(int partner, long start)
{
    int me = shmem_my_pe();
    double begun = now_ns();
    for (long trip = start + 1; trip <= start + TRIPS; trip++) {
        if (me == 0)
            shmem_long_p(flag, trip, partner);
        shmem_long_wait_until(flag, SHMEM_CMP_EQ, trip);
        if (me != 0)
            shmem_long_p(flag, trip, 0);
    }
    return (now_ns() - begun) / (2.0 * TRIPS);
}

/* A word there and back before what PE 0 measures alone. A partner that has waited for long sleeps,
 * and takes a while to leave the work to its service threads: that is no figure of the link. */
static void rouse(int partner, long round)
{
    if (shmem_my_pe() == 0)
        shmem_long_p(call, round, partner);
    shmem_long_wait_until(call, SHMEM_CMP_EQ, round);
    if (shmem_my_pe() != 0)
        shmem_long_p(call, round, 0);
}

static double messages(int partner)
{
    static long values[WINDOW];
    double begun = now_ns();
    for (long message = 0; message < MESSAGES; message++) {
        long at = message % WINDOW;
        values[at] = message;
        shmem_long_put_nbi(&words[at], &values[at], 1, partner);
        if (at == WINDOW - 1)
            shmem_quiet();
    }
    return (now_ns() - begun) / MESSAGES;
}

/* Nanoseconds per block of `blocks` blocks of `bytes`, until all have arrived. */
static double put_blocks(int partner, int blocks, size_t bytes)
{
    double begun = now_ns();
    for (int k = 0; k < blocks; k++)
        shmem_putmem_nbi(large + (size_t)k * bytes, source + (size_t)k * bytes % LARGE, bytes,
                         partner);
    shmem_quiet();
    return (now_ns() - begun) / blocks;
}

/* Puts of `size` bytes must all arrive where nothing was before. */
static void verify_blocks(int partner, long blocks, size_t size)
{
    int me = shmem_my_pe();
    memset(large, 0, PIPELINE * LARGE);
    shmem_barrier_all();
    if (me == 0)
        put_blocks(partner, blocks, size);
    shmem_barrier_all();
    for (size_t at = 0; me == partner && at < (size_t)blocks * size; at++)
        if (large[at] != source[at % LARGE])
            fail("byte %zu of puts of %zu bytes to PE %d", at, size, partner);
    shmem_barrier_all();
}

static void verify(int partner)
{
    int me = shmem_my_pe();
    for (size_t at = 0; at < LARGE; at++)
        source[at] = (char)(1 + (at * 7 + at / 509 + (size_t)partner) % 255);
    verify_blocks(partner, PIPELINE, LARGE);
    verify_blocks(partner, MEDIUMS, MEDIUM);
    if (me == 0)
        messages(partner);
    shmem_barrier_all();
    for (long at = 0; me == partner && at < WINDOW; at++)
        if (words[at] != MESSAGES - WINDOW + at)
            fail("word %ld at PE %d is %ld", at, partner, words[at]);
    shmem_barrier_all();
}

static void print(const char *distance, const char *what, const double *ns)
{
    char name[64];
    snprintf(name, sizeof name, "%s.%s", distance, what);
    print_samples(name, "ns", ns, BATCHES);
}

static void measure(const char *distance, int partner, char *shared)
{
    static double way[BATCHES], message[BATCHES], block[BATCHES], stream[BATCHES], copy[BATCHES];
    static double medium[BATCHES], ceiling_medium[BATCHES], ceiling_large[BATCHES];
    int me = shmem_my_pe();
    *flag = *call = 0;
    shmem_barrier_all();
    for (int batch = 0; batch < BATCHES && (me == 0 || me == partner); batch++) {
        way[batch] = one_way(partner, (long)batch * TRIPS);
        rouse(partner, 3 * (long)batch + 1);
        if (me == 0)
            message[batch] = messages(partner);
        rouse(partner, 3 * (long)batch + 2);
        if (me == 0) {
            block[batch] = put_blocks(partner, 1, LARGE);
            stream[batch] = put_blocks(partner, PIPELINE, LARGE);
        }
        rouse(partner, 3 * (long)batch + 3);
        if (me != 0)
            continue;
        medium[batch] = put_blocks(partner, MEDIUMS, MEDIUM);
        ceiling_medium[batch] = (double)MEDIUM / CEILING;
        ceiling_large[batch] = (double)LARGE / CEILING;
        copy[batch] = NS_EACH(PIPELINE, plain_copy(shared + (size_t)i * LARGE, source, LARGE));
    }
    shmem_barrier_all();
    if (me == 0) {
        print(distance, "one_way", way);
        print(distance, "message", message);
        print(distance, "put_1m", block);
        print(distance, "stream_1m", stream);
        print(distance, "stream_64k", medium);
        print(distance, "copy_1m", copy);
        print(distance, "ceiling_64k", ceiling_medium);
        print(distance, "ceiling_1m", ceiling_large);
    }
}

int main(void)
{
    shmem_init();
    int n = shmem_n_pes();
    if (n < 2) {
        fprintf(stderr, "across_hosts: needs 2 PEs\n");
        shmem_global_exit(2);
    }
    large = symmetric(PIPELINE * LARGE);
    source = symmetric(LARGE);
    words = symmetric(WINDOW * sizeof *words);
    flag = symmetric(CACHE_LINE);
    call = symmetric(CACHE_LINE);
    char *shared = mmap(NULL, PIPELINE * LARGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                        -1, 0);
    if (shared == MAP_FAILED) {
        fprintf(stderr, "across_hosts: no memory to copy into\n");
        shmem_global_exit(1);
    }
    memset(shared, 0, PIPELINE * LARGE);
    verify(1);
    measure("neighbour", 1, shared);
    if (n >= 4) {
        verify(n / 2);
        measure("far", n / 2, shared);
    }
    shmem_barrier_all();
    shmem_finalize();
    return 0;
}
