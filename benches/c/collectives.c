/* SPDX-License-Identifier: Apache-2.0 */
/* Collective operations of all PEs against what single operations of the same PEs take.
 *
 * - 8 bytes: against the one-way time of a word between PE 0 and PE 1.
 * - 256 KiB and 4 MiB: against the rate at which all PEs put to their right neighbours at the same time,
 *   and copy within their own memory. `put` is the time of one such put of the size, `copy` of one copy.
 *   All PEs together copy no faster, so the least time is
 *     broadcast           put                  (each byte is written once at each PE; the root copies to its own
 *                                               dest as well, which adds copy where no engine makes the put)
 *     fcollect, alltoall  (n - 1) put + copy   (each PE writes a block at each)
 *     sum                 2 (n - 1) / n put + (n - 1) / n copy (shares are sent, combined, and sent)
 * - Where all PEs run on one machine, also against programs of plain loads and stores, whose memory all PEs
 *   map without the library, also those of emulated hosts:
 *     plain_put           as put
 *     plain_broadcast     PE 0 stores to all, itself last, and tells them
 *     plain_fcollect, plain_alltoall
 *                         each PE stores a block to each, itself last, and all meet
 *     plain_sum           each PE adds up its share of all arrays, where they are, and stores it to all
 *     plain_push          nothing is read of others, as over links: each PE stores to each its share, adds up
 *                         what was stored to it, and stores the sums to all */
#define _GNU_SOURCE
#include "bench.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

enum { TRIPS = 100, MANY = 200, SIZES = 3, LONGEST = 4 << 20 };

static const size_t sizes[SIZES] = {4 << 10, 256 << 10, LONGEST};
static const int calls[SIZES] = {50, 10, 2};
static const char *const size_names[SIZES] = {"4k", "256k", "4m"};

static char *from, *to;
static long *word;
static int me, n;

/* Memory of the plain programs, by PE. */
static struct plain {
    char *from, *to, *inbox;
    long *flags;
} *plain;

/* What a PE tells others of its memory: a file of its process, and a number with which nothing else begins. */
struct told {
    long process, file, mark;
};

/* The memory of a PE, if it is on this machine. */
static void *map(const struct told *told, size_t bytes)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%ld/fd/%ld", told->process, told->file);
    int file = open(path, O_RDWR);
    long mark = 0;
    void *memory = MAP_FAILED;
    if (file >= 0 && pread(file, &mark, sizeof mark, 0) == sizeof mark && mark == told->mark)
        memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    return memory == MAP_FAILED ? NULL : memory;
}

/* Memory of each PE that all PEs have mapped, if they run on one machine: the same answer on all PEs. */
static int map_plain(void)
{
    size_t whole = (size_t)n * LONGEST, lines = (size_t)n * CACHE_LINE;
    size_t boxes = LONGEST + (size_t)n * lines, bytes = 2 * whole + boxes + lines;
    struct told *told = symmetric((size_t)n * sizeof *told), own = {getpid(), memfd_create("plain", 0), 0};
    long *here = symmetric(sizeof(long)), *all = symmetric(sizeof(long));
    own.mark = (long)now_ns() | 1;
    if (ftruncate((int)own.file, (off_t)bytes) || pwrite((int)own.file, &own.mark, sizeof(long), 0) < 0)
        own.file = -1;
    for (int pe = 0; pe < n; pe++)
        shmem_putmem(&told[me], &own, sizeof own, pe);
    shmem_barrier_all();
    plain = calloc((size_t)n, sizeof *plain);
    *here = 1;
    for (int pe = 0; pe < n; pe++) {
        char *memory = map(&told[pe], bytes), *box = memory + 2 * whole;
        *here &= memory != NULL;
        plain[pe] = (struct plain){memory, memory + whole, box, (long *)(box + boxes)};
    }
    shmem_long_min_reduce(SHMEM_TEAM_WORLD, all, here, 1);
    for (size_t k = 0; *all && k < whole / sizeof(long); k++)
        ((long *)plain[me].from)[k] = me + 1, ((long *)plain[me].to)[k] = 0;
    shmem_barrier_all();
    return (int)*all;
}

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

/* What follows is not moved before this, nor left out. */
static void keep(void)
{
    __asm__ volatile("" ::: "memory");
}

static void tell(int pe, long number)
{
    __atomic_store_n(&plain[pe].flags[me * 8], number, __ATOMIC_RELEASE);
}

static void hear(int pe, long number)
{
    for (long spins = 1; __atomic_load_n(&plain[me].flags[pe * 8], __ATOMIC_ACQUIRE) < number; spins++)
        if (spins % 100 == 0)
            sched_yield();
}

/* Numbers of meetings and broadcasts. */
static long number;

static void plain_meet(void)
{
    number++;
    for (int pe = 0; pe < n; pe++)
        tell(pe, number);
    for (int pe = 0; pe < n; pe++)
        hear(pe, number);
}

static void plain_put(size_t bytes)
{
    memcpy(plain[(me + 1) % n].to, plain[me].from, bytes);
    keep();
}

static void plain_broadcast(size_t bytes)
{
    number++;
    if (me != 0)
        return hear(0, number);
    for (int pe = 1; pe <= n; pe++) {
        memcpy(plain[pe % n].to, plain[0].from, bytes);
        tell(pe % n, number);
    }
}

/* `step` is the number of bytes between the blocks for two PEs: none where all get the same. */
static void plain_blocks(size_t bytes, size_t step)
{
    for (int k = 1; k <= n; k++) {
        int pe = (me + k) % n;
        memcpy(plain[pe].to + me * bytes, plain[me].from + pe * step, bytes);
    }
    plain_meet();
}

static void plain_sum(size_t bytes)
{
    size_t count = bytes / sizeof(long), begin = count * me / n, end = count * (me + 1) / n;
    plain_meet();
    long *restrict sums = (long *)plain[me].to;
    memcpy(sums + begin, (long *)plain[0].from + begin, (end - begin) * sizeof(long));
    for (int pe = 1; pe < n; pe++) {
        const long *restrict theirs = (long *)plain[pe].from;
        for (size_t k = begin; k < end; k++)
            sums[k] += theirs[k];
    }
    for (int pe = 0; pe < n; pe++)
        if (pe != me)
            memcpy((long *)plain[pe].to + begin, sums + begin, (end - begin) * sizeof(long));
    plain_meet();
}

static void plain_push(size_t bytes)
{
    size_t count = bytes / sizeof(long), begin = count * me / n, end = count * (me + 1) / n;
    long *restrict sums = (long *)plain[me].to, *restrict boxes = (long *)plain[me].inbox;
    size_t room = count / n + 1;
    plain_meet();
    for (int pe = 0; pe < n; pe++)
        if (pe != me) {
            size_t start = count * pe / n, stop = count * (pe + 1) / n;
            long *theirs = (long *)plain[pe].inbox + me * room;
            memcpy(theirs, (long *)plain[me].from + start, (stop - start) * sizeof(long));
        }
    plain_meet();
    memcpy(sums + begin, (long *)plain[me].from + begin, (end - begin) * sizeof(long));
    for (int pe = 0; pe < n; pe++)
        if (pe != me) {
            const long *restrict theirs = boxes + pe * room;
            for (size_t k = 0; k < end - begin; k++)
                sums[begin + k] += theirs[k];
        }
    for (int pe = 0; pe < n; pe++)
        if (pe != me)
            memcpy((long *)plain[pe].to + begin, sums + begin, (end - begin) * sizeof(long));
    plain_meet();
}

static void sum(size_t bytes)
{
    shmem_long_sum_reduce(SHMEM_TEAM_WORLD, (long *)to, (long *)from, bytes / sizeof(long));
}

static void verify(char *sums, size_t bytes, const char *what)
{
    long expected = (long)n * (n + 1) / 2;
    for (size_t k = 0; k < bytes / sizeof(long); k++)
        if (((long *)sums)[k] != expected)
            fail("%s: element %zu is %ld, expected %ld", what, k, ((long *)sums)[k], expected);
    memset(sums, 0, bytes);
    shmem_barrier_all();
}

enum { KINDS = 12, OF_LIBRARY = 6 };

static const char *const names[KINDS] = {
    "put",       "copy",            "broadcast",      "fcollect",       "alltoall",  "sum",
    "plain_put", "plain_broadcast", "plain_fcollect", "plain_alltoall", "plain_sum", "plain_push",
};

static void call(int kind, size_t bytes)
{
    switch (kind) {
    case 0: put_right(bytes); break;
    case 1: memcpy(to, from, bytes), keep(); break;
    case 2: shmem_broadcastmem(SHMEM_TEAM_WORLD, to, from, bytes, 0); break;
    case 3: shmem_fcollectmem(SHMEM_TEAM_WORLD, to, from, bytes); break;
    case 4: shmem_alltoallmem(SHMEM_TEAM_WORLD, to, from, bytes); break;
    case 5: sum(bytes); break;
    case 6: plain_put(bytes); break;
    case 7: plain_broadcast(bytes); break;
    case 8: plain_blocks(bytes, 0); break;
    case 9: plain_blocks(bytes, bytes); break;
    case 10: plain_sum(bytes); break;
    case 11: plain_push(bytes); break;
    }
}

/* What is measured after another thing finds in the caches what that has left: each comes after each. The same
 * order on all PEs. */
static void shuffle(int *order, int count)
{
    static unsigned state = 1;
    for (int k = count - 1; k > 0; k--) {
        state = state * 1103515245 + 12345;
        int other = (int)((state >> 16) % (unsigned)(k + 1)), kept = order[k];
        order[k] = order[other], order[other] = kept;
    }
}

int main(void)
{
    static double trip[BATCHES], barrier[BATCHES], broadcast8[BATCHES], sum8[BATCHES];
    static double times[KINDS][SIZES][BATCHES];
    shmem_init();
    me = shmem_my_pe(), n = shmem_n_pes();
    if (n < 2) {
        fprintf(stderr, "collectives: at least 2 PEs\n");
        shmem_global_exit(2);
    }
    from = symmetric((size_t)n * LONGEST), to = symmetric((size_t)n * LONGEST);
    word = symmetric(CACHE_LINE);
    int kinds = map_plain() ? KINDS : OF_LIBRARY, order[KINDS];
    for (int kind = 0; kind < kinds; kind++)
        order[kind] = kind;
    for (size_t k = 0; k < (size_t)n * LONGEST / sizeof(long); k++)
        ((long *)from)[k] = me + 1;
    shmem_barrier_all();
    sum(LONGEST);
    verify(to, LONGEST, "sum");
    for (int kind = 10; kind < kinds; kind++) {
        call(kind, LONGEST);
        verify(plain[me].to, LONGEST, names[kind]);
    }
    for (int batch = 0; batch < BATCHES; batch++) {
        trip[batch] = one_way((long)batch * TRIPS);
        barrier[batch] = NS_EACH(MANY, shmem_barrier_all());
        broadcast8[batch] = NS_EACH(MANY, shmem_broadcastmem(SHMEM_TEAM_WORLD, to, from, 8, 0));
        sum8[batch] = NS_EACH(MANY, sum(8));
        for (int s = 0; s < SIZES; s++) {
            shuffle(order, kinds);
            for (int k = 0; k < kinds; k++) {
                int kind = order[k];
                call(kind, sizes[s]);
                shmem_barrier_all();
                times[kind][s][batch] = NS_EACH(calls[s], call(kind, sizes[s]));
            }
        }
    }
    if (me == 0) {
        print_samples("one_way", "ns", trip, BATCHES);
        print_samples("barrier_all", "ns", barrier, BATCHES);
        print_samples("broadcast_8", "ns", broadcast8, BATCHES);
        print_samples("sum_8", "ns", sum8, BATCHES);
        for (int kind = 0; kind < kinds; kind++)
            for (int s = 0; s < SIZES; s++) {
                char name[64];
                snprintf(name, sizeof name, "%s_%s", names[kind], size_names[s]);
                print_samples(name, "ns", times[kind][s], BATCHES);
            }
    }
    shmem_barrier_all();
    shmem_finalize();
    return 0;
}
