/* SPDX-License-Identifier: Apache-2.0 */
/* What the paper on hybrid designs (MVAPICH2-X) measured: large puts to heap and global data, a barrier by flags
 * against one by atomic operations, collectives by size, the rate of pairs, and a breadth-first search of a
 * Graph500-like graph, whose tree is verified.
 *
 * With the argument "pairs", the rate of pairs alone; with "between A B", puts by size from a PE on processor A to
 * one on processor B. */
#define _GNU_SOURCE
#include "bench.h"

#include <sched.h>

enum { TIMES = 5, LARGE = 4 << 20, SMALL = 64 };

static int me, n;
static char global_data[LARGE];
static long arrivals, generation;
static char *heap_data, *source;

static double us_since(double begun) { return (now_ns() - begun) / 1e3; }

/* The barrier that the paper replaces: all PEs count on PE 0, which then tells each. */
static void atomic_barrier(void)
{
    static long turn;
    turn++;
    shmem_long_atomic_inc(&arrivals, 0);
    if (me == 0) {
        shmem_long_wait_until(&arrivals, SHMEM_CMP_GE, turn * n);
        for (int pe = 1; pe < n; pe++)
            shmem_long_atomic_set(&generation, turn, pe);
    } else {
        shmem_long_wait_until(&generation, SHMEM_CMP_GE, turn);
    }
}

static void puts_and_barriers(void)
{
    static double heap[TIMES], global[TIMES], small_heap[TIMES], small_global[TIMES], flags[TIMES], atomics[TIMES];
    for (int time = 0; time < TIMES; time++) {
        shmem_barrier_all();
        if (me == 0) {
            double begun = now_ns();
            shmem_putmem(heap_data, source, LARGE, n - 1);
            shmem_quiet();
            heap[time] = us_since(begun);
            begun = now_ns();
            shmem_putmem(global_data, source, LARGE, n - 1);
            shmem_quiet();
            global[time] = us_since(begun);
            begun = now_ns();
            for (int i = 0; i < 1000; i++)
                shmem_putmem(heap_data, source, SMALL, n - 1);
            shmem_quiet();
            small_heap[time] = us_since(begun) / 1000;
            begun = now_ns();
            for (int i = 0; i < 1000; i++)
                shmem_putmem(global_data, source, SMALL, n - 1);
            shmem_quiet();
            small_global[time] = us_since(begun) / 1000;
        }
        shmem_barrier_all();
        double begun = now_ns();
        for (int i = 0; i < 100; i++)
            shmem_sync_all();
        flags[time] = us_since(begun) / 100;
        begun = now_ns();
        for (int i = 0; i < 100; i++)
            atomic_barrier();
        atomics[time] = us_since(begun) / 100;
    }
    if (me == n - 1 && (memcmp(heap_data, source, LARGE) != 0 || memcmp(global_data, source, LARGE) != 0))
        fail("4 MiB did not arrive");
    if (me == 0) {
        print_samples("hybrid.heap_4M", "us", heap, TIMES);
        print_samples("hybrid.global_4M", "us", global, TIMES);
        print_samples("hybrid.heap_64", "us", small_heap, TIMES);
        print_samples("hybrid.global_64", "us", small_global, TIMES);
        print_samples("hybrid.barrier_flags", "us", flags, TIMES);
        print_samples("hybrid.barrier_atomics", "us", atomics, TIMES);
    }
}

/* Collectives of the library and the same by one PE that does all, as a reference without shared memory does. */
static void collectives(void)
{
    static double own[3][TIMES], plain[3][TIMES];
    static const char *const names[3] = {"broadcast", "collect", "reduce"};
    long *in = (long *)heap_data, *out = (long *)(heap_data + LARGE / 2);
    for (size_t bytes = 64; bytes <= 65536; bytes *= 32) {
        size_t words = bytes / sizeof(long);
        for (int time = 0; time < TIMES; time++)
            for (int kind = 0; kind < 3; kind++) {
                int rounds = 10;
                for (size_t i = 0; i < words; i++)
                    in[i] = me + (long)i;
                shmem_barrier_all();
                double begun = now_ns();
                for (int round = 0; round < rounds; round++)
                    kind == 0 ? shmem_broadcastmem(SHMEM_TEAM_WORLD, out, in, bytes, 0)
                    : kind == 1 ? shmem_fcollectmem(SHMEM_TEAM_WORLD, out, in, bytes)
                                : shmem_long_sum_reduce(SHMEM_TEAM_WORLD, out, in, words);
                shmem_barrier_all();
                own[kind][time] = us_since(begun) / rounds;
                if (kind == 2 && (out[0] != (long)n * (n - 1) / 2 || out[words - 1] != out[0] + n * (long)(words - 1)))
                    fail("reduce of %zu bytes", bytes);
                begun = now_ns();
                for (int round = 0; round < rounds; round++) {
                    if (kind == 0) {
                        for (int pe = 0; pe < n && me == 0; pe++)
                            shmem_putmem(out, in, bytes, pe);
                    } else if (kind == 1) {
                        for (int pe = 0; pe < n; pe++)
                            shmem_putmem(out + (size_t)me * words, in, bytes, pe);
                    } else if (me == 0) {
                        memcpy(out, in, bytes);
                        for (int pe = 1; pe < n; pe++) {
                            shmem_getmem(source, in, bytes, pe);
                            for (size_t i = 0; i < words; i++)
                                out[i] += ((long *)source)[i];
                        }
                        for (int pe = 1; pe < n; pe++)
                            shmem_putmem(out, out, bytes, pe);
                    }
                    shmem_barrier_all();
                }
                plain[kind][time] = us_since(begun) / rounds;
            }
        for (int kind = 0; kind < 3 && me == 0; kind++) {
            char name[64];
            snprintf(name, sizeof name, "hybrid.%s_%zu", names[kind], bytes);
            print_samples(name, "us", own[kind], TIMES);
            snprintf(name, sizeof name, "hybrid.plain_%s_%zu", names[kind], bytes);
            print_samples(name, "us", plain[kind], TIMES);
        }
    }
}

/* PE p puts to PE p + n/2: nanoseconds that 8 bytes take, all pairs together. */
static void pairs(void)
{
    static double ns[TIMES];
    int pairs = n / 2;
    for (int time = 0; time < TIMES && pairs > 0; time++) {
        shmem_barrier_all();
        double begun = now_ns();
        for (int i = 0; i < 5000 && me < pairs; i++)
            shmem_putmem_nbi(heap_data + i % 64 * 64, source, 8, me + pairs);
        shmem_quiet();
        shmem_barrier_all();
        ns[time] = (now_ns() - begun) / 5000 / pairs;
    }
    if (me == 0 && pairs > 0)
        print_samples("hybrid.pairs_8", "ns", ns, TIMES);
}

enum { SCALE = 11, VERTICES = 1 << SCALE, EDGES = 16 * VERTICES };

static uint64_t random_bits(uint64_t i)
{
    uint64_t z = (i + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* An edge of a Kronecker graph with Graph500's 0.57, 0.19, 0.19, 0.05. */
static void edge_of(long edge, long *from, long *to)
{
    *from = *to = 0;
    for (int bit = 0; bit < SCALE; bit++) {
        uint64_t chance = random_bits((uint64_t)edge * SCALE + (uint64_t)bit) % 100;
        *from |= (long)(chance >= 76) << bit;
        *to |= (long)((chance >= 57 && chance < 76) || chance >= 95) << bit;
    }
}

static void search(void)
{
    static double ms[TIMES];
    long each = VERTICES / n + 1, *first = calloc((size_t)each + 1, sizeof *first), count = 0;
    long *parent = symmetric((size_t)each * sizeof *parent), *level = symmetric((size_t)each * sizeof *level);
    long *lists = symmetric(2 * (size_t)each * sizeof *lists), *lengths = symmetric(2 * sizeof *lengths);
    long *found = symmetric(2 * sizeof *found);
    for (int pass = 0; pass < 2; pass++)
        for (long edge = 0; edge < EDGES && pass == 0; edge++) {
            long ends[2];
            edge_of(edge, &ends[0], &ends[1]);
            for (int end = 0; end < 2; end++)
                if (ends[end] % n == me)
                    first[ends[end] / n + 1]++, count++;
        }
    for (long i = 0; i < each; i++)
        first[i + 1] += first[i];
    long *next = malloc((size_t)each * sizeof *next), *others = malloc(((size_t)count + 1) * sizeof *others);
    memcpy(next, first, (size_t)each * sizeof *next);
    for (long edge = 0; edge < EDGES; edge++) {
        long ends[2];
        edge_of(edge, &ends[0], &ends[1]);
        for (int end = 0; end < 2; end++)
            if (ends[end] % n == me)
                others[next[ends[end] / n]++] = ends[1 - end];
    }
    for (int time = 0; time < TIMES; time++) {
        for (long i = 0; i < each; i++)
            parent[i] = level[i] = -1;
        memset(lengths, 0, 2 * sizeof *lengths);
        if (me == 0)
            parent[0] = 0, level[0] = 0, lists[0] = 0, lengths[0] = 1;
        shmem_barrier_all();
        double begun = now_ns();
        for (long depth = 0;; depth++) {
            long now = depth % 2 * each, then = (depth + 1) % 2 * each;
            found[0] = 0;
            for (long i = 0; i < lengths[depth % 2]; i++) {
                long vertex = lists[now + i] * n + me;
                for (long at = first[lists[now + i]]; at < first[lists[now + i] + 1]; at++) {
                    long other = others[at], place = other / n;
                    int pe = (int)(other % n);
                    if (shmem_long_atomic_compare_swap(&parent[place], -1, vertex, pe) != -1)
                        continue;
                    shmem_long_p(&level[place], depth + 1, pe);
                    long slot = shmem_long_atomic_fetch_inc(&lengths[(depth + 1) % 2], pe);
                    shmem_long_p(&lists[then + slot], place, pe);
                    found[0]++;
                }
            }
            shmem_barrier_all();
            lengths[depth % 2] = 0;
            shmem_long_sum_reduce(SHMEM_TEAM_WORLD, &found[1], &found[0], 1);
            if (found[1] == 0)
                break;
        }
        ms[time] = (now_ns() - begun) / 1e6;
        shmem_barrier_all();
        /* As Graph500 verifies: levels of an edge's ends differ by one at most, both or none are reached, and a
         * parent is one level up. */
        for (long i = 0; i * n + me < VERTICES; i++) {
            if (parent[i] < 0) {
                if (level[i] != -1)
                    fail("vertex %ld has a level and no parent", i * n + me);
            } else if (i * n + me != 0) {
                long up = shmem_long_g(&level[parent[i] / n], (int)(parent[i] % n));
                if (up != level[i] - 1)
                    fail("vertex %ld is %ld, its parent %ld steps away", i * n + me, level[i], up);
            }
            for (long at = first[i]; at < first[i + 1]; at += 5) {
                long far = shmem_long_g(&level[others[at] / n], (int)(others[at] % n));
                if ((far < 0) != (level[i] < 0) || far - level[i] > 1 || level[i] - far > 1)
                    fail("an edge spans levels %ld and %ld", level[i], far);
            }
        }
        shmem_barrier_all();
    }
    if (me == 0)
        print_samples("hybrid.bfs", "ms", ms, TIMES);
}

/* Time of a put that is complete, by size, between two processors. */
static void between(int processor)
{
    static double us[TIMES];
    cpu_set_t only;
    CPU_ZERO(&only);
    CPU_SET(processor, &only);
    if (sched_setaffinity(0, sizeof only, &only) != 0)
        fail("processor %d cannot be used", processor);
    for (size_t bytes = 8; bytes <= LARGE; bytes *= 8) {
        int count = bytes > 65536 ? 20 : 1000;
        for (int time = 0; time < TIMES; time++) {
            shmem_barrier_all();
            double begun = now_ns();
            for (int i = 0; i < count && me == 0; i++) {
                shmem_putmem(heap_data, source, bytes, 1);
                shmem_quiet();
            }
            us[time] = us_since(begun) / count;
            shmem_barrier_all();
            /* The target reads what came: the next put finds the lines there, as in a program. */
            if (me == 1 && memcmp(heap_data, source, bytes) != 0)
                fail("%zu bytes did not arrive", bytes);
        }
        if (me == 0) {
            char name[64];
            snprintf(name, sizeof name, "hybrid.between_%zu", bytes);
            print_samples(name, "us", us, TIMES);
        }
    }
}

int main(int count, char **arguments)
{
    shmem_init();
    me = shmem_my_pe(), n = shmem_n_pes();
    heap_data = symmetric(LARGE);
    source = malloc(LARGE);
    memset(source, 7, LARGE);
    if (count > 3 && n == 2) {
        between(atoi(arguments[2 + me]));
    } else if (count > 1) {
        pairs();
    } else {
        puts_and_barriers();
        collectives();
        pairs();
        search();
    }
    shmem_barrier_all();
    shmem_finalize();
    return 0;
}
