/* SPDX-License-Identifier: Apache-2.0 */
/* Collective operations of all PEs against what single operations of the same PEs take.
 *
 * - 8 bytes: against the one-way time of a word between PE 0 and PE 1.
 * - 256 KiB and 4 MiB: against the rate at which all PEs put to their right neighbours at the same time,
 *   and copy within their own memory. `put` is the time of one such put of the size, `copy` of one copy.
 *   All PEs together copy no faster, so the least time is
 *     broadcast           put                  (each byte is written once at each PE)
 *     fcollect, alltoall  (n - 1) put + copy   (each PE writes a block at each)
 *     sum                 2 (n - 1) / n put + (n - 1) / n copy (shares are sent, combined, and sent)
 * - On one host also sums against a program of plain loads and stores: each PE adds up its share of all
 *   arrays, where they are, and stores it to all. And against one that reads nothing of others, as over
 *   links (plain_push): each PE stores to each its share, adds up what was stored to it, and stores the
 *   sums to all. */
#include "bench.h"

#include <sched.h>

enum { TRIPS = 100, MANY = 200, SIZES = 3, LONGEST = 4 << 20 };

static const size_t sizes[SIZES] = {4 << 10, 256 << 10, LONGEST};
static const int calls[SIZES] = {50, 10, 2};
static const char *const size_names[SIZES] = {"4k", "256k", "4m"};

static char *from, *to, *inbox;
static long *word, *flags;
static int me, n;

static double one_way(long start)
{
    double begun = now_ns();
    if (me < 2)
        for (long trip = start + 1; trip <= start + TRIPS; trip++) {
            if (me == 0)
                shmem_long_p(word, trip, 1);
            shmem_long_wait_until(word, SHMEM_CMP_GE, trip);
            if (me == 1)
                shmem_long_p(word, trip, 0);
        }
    double took = (now_ns() - begun) / (2.0 * TRIPS);
    shmem_barrier_all();
    return took;
}

static void put_right(size_t bytes)
{
    shmem_putmem_nbi(to, from, bytes, (me + 1) % n);
    shmem_quiet();
}

/* All PEs of the plain program meet. */
static void plain_meet(void)
{
    static long round;
    round++;
    for (int pe = 0; pe < n; pe++)
        __atomic_store_n((long *)mapped(flags, pe) + me * 8, round, __ATOMIC_RELEASE);
    for (int pe = 0; pe < n; pe++)
        for (long spins = 1; __atomic_load_n(&flags[pe * 8], __ATOMIC_ACQUIRE) < round; spins++)
            if (spins % 100 == 0)
                sched_yield();
}

static void plain_sum(size_t bytes)
{
    size_t count = bytes / sizeof(long), begin = count * me / n, end = count * (me + 1) / n;
    plain_meet();
    long *restrict sums = (long *)to;
    memcpy(sums + begin, (long *)mapped(from, 0) + begin, (end - begin) * sizeof(long));
    for (int pe = 1; pe < n; pe++) {
        const long *restrict theirs = mapped(from, pe);
        for (size_t k = begin; k < end; k++)
            sums[k] += theirs[k];
    }
    for (int pe = 0; pe < n; pe++)
        if (pe != me)
            memcpy((long *)mapped(to, pe) + begin, sums + begin, (end - begin) * sizeof(long));
    plain_meet();
}

static void plain_push(size_t bytes)
{
    size_t count = bytes / sizeof(long), begin = count * me / n, end = count * (me + 1) / n;
    long *restrict sums = (long *)to, *restrict boxes = (long *)inbox;
    size_t room = count / n + 1;
    plain_meet();
    for (int pe = 0; pe < n; pe++)
        if (pe != me) {
            size_t start = count * pe / n, stop = count * (pe + 1) / n;
            memcpy((long *)mapped(inbox, pe) + me * room, (long *)from + start, (stop - start) * sizeof(long));
        }
    plain_meet();
    memcpy(sums + begin, (long *)from + begin, (end - begin) * sizeof(long));
    for (int pe = 0; pe < n; pe++)
        if (pe != me) {
            const long *restrict theirs = boxes + pe * room;
            for (size_t k = 0; k < end - begin; k++)
                sums[begin + k] += theirs[k];
        }
    for (int pe = 0; pe < n; pe++)
        if (pe != me)
            memcpy((long *)mapped(to, pe) + begin, sums + begin, (end - begin) * sizeof(long));
    plain_meet();
}

static void sum(size_t bytes)
{
    shmem_long_sum_reduce(SHMEM_TEAM_WORLD, (long *)to, (long *)from, bytes / sizeof(long));
}

static void verify(size_t bytes, long expected, const char *what)
{
    for (size_t k = 0; k < bytes / sizeof(long); k++)
        if (((long *)to)[k] != expected)
            fail("%s: element %zu is %ld, expected %ld", what, k, ((long *)to)[k], expected);
    memset(to, 0, bytes);
    shmem_barrier_all();
}

int main(void)
{
    static double trip[BATCHES], barrier[BATCHES], broadcast8[BATCHES], sum8[BATCHES];
    static double times[8][SIZES][BATCHES];
    static const char *const names[] = {"put", "copy", "broadcast", "fcollect", "alltoall", "sum", "plain_sum", "plain_push"};
    shmem_init();
    me = shmem_my_pe(), n = shmem_n_pes();
    if (n < 2) {
        fprintf(stderr, "collectives: at least 2 PEs\n");
        shmem_global_exit(2);
    }
    from = symmetric((size_t)n * LONGEST), to = symmetric((size_t)n * LONGEST);
    inbox = symmetric(LONGEST + (size_t)n * n * sizeof(long));
    word = symmetric(CACHE_LINE), flags = symmetric((size_t)n * CACHE_LINE);
    int plain = 1;
    for (int pe = 0; pe < n; pe++)
        plain &= shmem_ptr(from, pe) != NULL;
    for (size_t k = 0; k < (size_t)n * LONGEST / sizeof(long); k++)
        ((long *)from)[k] = me + 1;
    shmem_barrier_all();
    sum(LONGEST);
    verify(LONGEST, (long)n * (n + 1) / 2, "sum");
    if (plain) {
        plain_sum(LONGEST);
        verify(LONGEST, (long)n * (n + 1) / 2, "plain sum");
        plain_push(LONGEST);
        verify(LONGEST, (long)n * (n + 1) / 2, "plain push");
    }
    for (int batch = 0; batch < BATCHES; batch++) {
        trip[batch] = one_way((long)batch * TRIPS);
        barrier[batch] = NS_EACH(MANY, shmem_barrier_all());
        broadcast8[batch] = NS_EACH(MANY, shmem_broadcastmem(SHMEM_TEAM_WORLD, to, from, 8, 0));
        sum8[batch] = NS_EACH(MANY, sum(8));
        for (int s = 0; s < SIZES; s++) {
            size_t bytes = sizes[s];
            double(*of)[SIZES][BATCHES] = times;
            shmem_barrier_all();
            of[0][s][batch] = NS_EACH(calls[s], put_right(bytes));
            shmem_barrier_all();
            of[1][s][batch] = NS_EACH(calls[s], memcpy(to, from, bytes); __asm__ volatile("" ::: "memory"));
            shmem_barrier_all();
            of[2][s][batch] = NS_EACH(calls[s], shmem_broadcastmem(SHMEM_TEAM_WORLD, to, from, bytes, 0));
            of[3][s][batch] = NS_EACH(calls[s], shmem_fcollectmem(SHMEM_TEAM_WORLD, to, from, bytes));
            of[4][s][batch] = NS_EACH(calls[s], shmem_alltoallmem(SHMEM_TEAM_WORLD, to, from, bytes));
            of[5][s][batch] = NS_EACH(calls[s], sum(bytes));
            if (plain) {
                of[6][s][batch] = NS_EACH(calls[s], plain_sum(bytes));
                of[7][s][batch] = NS_EACH(calls[s], plain_push(bytes));
            }
        }
    }
    if (me == 0) {
        print_samples("one_way", "ns", trip, BATCHES);
        print_samples("barrier_all", "ns", barrier, BATCHES);
        print_samples("broadcast_8", "ns", broadcast8, BATCHES);
        print_samples("sum_8", "ns", sum8, BATCHES);
        for (int k = 0; k < (plain ? 8 : 6); k++)
            for (int s = 0; s < SIZES; s++) {
                char name[64];
                snprintf(name, sizeof name, "%s_%s", names[k], size_names[s]);
                print_samples(name, "ns", times[k][s], BATCHES);
            }
    }
    shmem_barrier_all();
    shmem_finalize();
    return 0;
}
