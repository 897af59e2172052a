/* SPDX-License-Identifier: Apache-2.0 */
/* Collective operations of the PEs of one host against plain programs of the same algorithms: loads and
 * stores to memory that all PEs map, and flags.
 *
 * - 8 bytes: each PE stores its word and a flag to a line of its own at each other PE, and waits for theirs.
 *   collect stores the length as well.
 * - More: broadcast stores to all (4 KiB), or lets all copy from the root (256 KiB); sum adds up a share of all
 *   arrays, where they are, and stores it to all; fcollect and alltoall store blocks to their places; collect
 *   does so when it knows all lengths.
 *
 * Calls follow each other without barriers. Roots of broadcasts take turns, so that none runs ahead. */
#include "bench.h"

#include <sched.h>

#define HAS_TEAMS (SHMEM_MAJOR_VERSION > 1 || SHMEM_MINOR_VERSION >= 5)

enum { SIZES = 3, LONGEST = 256 << 10, LOOKS = 100 };

static const size_t sizes[SIZES] = {8, 4 << 10, LONGEST};
static const int calls[SIZES] = {200, 100, 10};
static const char *const size_names[SIZES] = {"8", "4k", "256k"};

static long *from, *to;
static int me, n;

/* What one PE writes at another one, in a line of the cache. */
struct line {
    long number, words[7];
};

/* By the parity of the call, and by who writes. */
static struct line *lines[2];
/* By who writes: broadcasts of this root, what this PE has taken from the other, meetings. */
static struct line *offers, *taken, *meetings;

/* Leaves the core to its other thread, and the line to its writer. */
static void pause_briefly(void)
{
#if defined __x86_64__ || defined __i386__
    __builtin_ia32_pause();
#endif
}

static void *at(const void *symmetric_address, int pe)
{
    return pe == me ? (void *)symmetric_address : shmem_ptr(symmetric_address, pe);
}

static void tell(struct line *own_line, int pe, long number)
{
    struct line *theirs = at(own_line, pe);
    __atomic_store_n(&theirs->number, number, __ATOMIC_RELEASE);
}

static void hear(const struct line *line, long number)
{
    for (long looks = 1; __atomic_load_n(&line->number, __ATOMIC_ACQUIRE) < number; looks++)
        if (looks % LOOKS == 0)
            sched_yield();
        else
            pause_briefly();
}

static void meet(void)
{
    static long number;
    number++;
    for (int k = 1; k < n; k++)
        tell(&meetings[me], (me + k) % n, number);
    for (int k = 1; k < n; k++)
        hear(&meetings[(me + k) % n], number);
}

static long line_number;

/* Sends a word, and another one, to a PE. */
static void send_words(int pe, long first, long second)
{
    struct line *theirs = at(&lines[line_number & 1][me], pe);
    theirs->words[0] = first, theirs->words[1] = second;
    __atomic_store_n(&theirs->number, line_number, __ATOMIC_RELEASE);
}

static const long *receive_words(int pe)
{
    const struct line *line = &lines[line_number & 1][pe];
    hear(line, line_number);
    return line->words;
}

static void plain_broadcast(size_t bytes, int root)
{
    static long number[64];
    long now = ++number[root];
    int parity = (int)(now & 1);
    if (bytes == 8) {
        /* The line of a broadcast before the last has been read. */
        struct line *line = &offers[2 * root + parity];
        if (me == root) {
            for (int pe = 0; pe < n; pe++)
                if (pe != me) {
                    hear(&taken[pe], now - 2);
                    struct line *theirs = at(line, pe);
                    theirs->words[0] = from[0];
                    __atomic_store_n(&theirs->number, now, __ATOMIC_RELEASE);
                }
            to[0] = from[0];
        } else {
            hear(line, now);
            to[0] = line->words[0];
            tell(&taken[me], root, now);
        }
    } else if (bytes < LONGEST) {
        if (me == root) {
            for (int pe = 0; pe < n; pe++)
                memcpy(at(to, pe), from, bytes);
            for (int pe = 0; pe < n; pe++)
                if (pe != me)
                    tell(&offers[2 * root + parity], pe, now);
        } else {
            hear(&offers[2 * root + parity], now);
            tell(&taken[me], root, now);
        }
    } else if (me == root) {
        for (int pe = 0; pe < n; pe++)
            if (pe != me)
                tell(&offers[2 * root + parity], pe, now);
        memcpy(to, from, bytes);
        for (int pe = 0; pe < n; pe++)
            if (pe != me)
                hear(&taken[pe], now);
    } else {
        hear(&offers[2 * root + parity], now);
        memcpy(to, at(from, root), bytes);
        tell(&taken[me], root, now);
    }
}

static void plain_sum(size_t bytes)
{
    size_t count = bytes / sizeof(long), begin = count * me / n, end = count * (me + 1) / n;
    if (bytes == 8) {
        long sum = from[0];
        line_number++;
        for (int k = 1; k < n; k++)
            send_words((me + k) % n, from[0], 0);
        for (int k = 1; k < n; k++)
            sum += receive_words((me + k) % n)[0];
        to[0] = sum;
        return;
    }
    meet();
    for (size_t len; begin < end; begin += len) {
        /* Sums that stay in the first cache until they are stored to all. */
        long sums[512];
        len = end - begin < 512 ? end - begin : 512;
        memcpy(sums, (long *)at(from, 0) + begin, len * sizeof(long));
        for (int pe = 1; pe < n; pe++) {
            const long *restrict theirs = (long *)at(from, pe) + begin;
            for (size_t k = 0; k < len; k++)
                sums[k] += theirs[k];
        }
        for (int k = 1; k <= n; k++)
            memcpy((long *)at(to, (me + k) % n) + begin, sums, len * sizeof(long));
    }
    meet();
}

/* `step` is the number of words between the blocks for two PEs: none where all get the same. */
static void plain_blocks(size_t bytes, size_t step)
{
    size_t count = bytes / sizeof(long);
    if (bytes == 8) {
        line_number++;
        for (int k = 1; k < n; k++)
            send_words((me + k) % n, from[(me + k) % n * step], 0);
        to[me] = from[me * step];
        for (int k = 1; k < n; k++)
            to[(me + k) % n] = receive_words((me + k) % n)[0];
        return;
    }
    for (int k = 1; k <= n; k++) {
        int pe = (me + k) % n;
        memcpy((long *)at(to, pe) + me * count, from + pe * step, bytes);
    }
    meet();
}

static void plain_collect(size_t bytes)
{
    size_t before = 0;
    line_number++;
    for (int k = 1; k < n; k++)
        send_words((me + k) % n, (long)bytes, from[0]);
    if (bytes == 8) {
        for (int pe = 0; pe < n; pe++) {
            const long *words = pe == me ? NULL : receive_words(pe);
            to[before / sizeof(long)] = words ? words[1] : from[0];
            before += words ? (size_t)words[0] : bytes;
        }
        return;
    }
    for (int pe = 0; pe < n; pe++)
        if (pe != me) {
            size_t theirs = (size_t)receive_words(pe)[0];
            before += pe < me ? theirs : 0;
        }
    for (int k = 1; k <= n; k++)
        memcpy((char *)at(to, (me + k) % n) + before, from, bytes);
    meet();
}

enum { BROADCAST, SUM, FCOLLECT, ALLTOALL, COLLECT, OPERATIONS };

static const char *const names[OPERATIONS] = {"broadcast", "sum", "fcollect", "alltoall", "collect"};

static void plain(int operation, size_t bytes, int root)
{
    switch (operation) {
    case BROADCAST: plain_broadcast(bytes, root); break;
    case SUM: plain_sum(bytes); break;
    case FCOLLECT: plain_blocks(bytes, 0); break;
    case ALLTOALL: plain_blocks(bytes, bytes / sizeof(long)); break;
    case COLLECT: plain_collect(bytes); break;
    }
}

#if HAS_TEAMS
static void library(int operation, size_t bytes, int root)
{
    size_t count = bytes / sizeof(long);
    switch (operation) {
    case BROADCAST: shmem_long_broadcast(SHMEM_TEAM_WORLD, to, from, count, root); break;
    case SUM: shmem_long_sum_reduce(SHMEM_TEAM_WORLD, to, from, count); break;
    case FCOLLECT: shmem_long_fcollect(SHMEM_TEAM_WORLD, to, from, count); break;
    case ALLTOALL: shmem_long_alltoall(SHMEM_TEAM_WORLD, to, from, count); break;
    case COLLECT: shmem_long_collect(SHMEM_TEAM_WORLD, to, from, count); break;
    }
}
#else
static long psync[2][SHMEM_COLLECT_SYNC_SIZE + SHMEM_BCAST_SYNC_SIZE + SHMEM_REDUCE_SYNC_SIZE +
                     SHMEM_ALLTOALL_SYNC_SIZE];
static long work[LONGEST / sizeof(long) + SHMEM_REDUCE_MIN_WRKDATA_SIZE];

static void library(int operation, size_t bytes, int root)
{
    static int turn;
    size_t count = bytes / sizeof(long);
    long *sync = psync[turn ^= 1];
    switch (operation) {
    case BROADCAST: shmem_broadcast64(to, from, count, root, 0, 0, n, sync); break;
    case SUM: shmem_long_sum_to_all(to, from, (int)count, 0, 0, n, work, sync); break;
    case FCOLLECT: shmem_fcollect64(to, from, count, 0, 0, n, sync); break;
    case ALLTOALL: shmem_alltoall64(to, from, count, 0, 0, n, sync); break;
    case COLLECT: shmem_collect64(to, from, count, 0, 0, n, sync); break;
    }
}
#endif

/* Word `k` of `from` at a PE. */
static long element(int pe, size_t k)
{
    return 1 + (long)k * 64 + pe;
}

static long expected(int operation, size_t count, int root, size_t k)
{
    size_t block = k / count, within = k % count;
    switch (operation) {
    case BROADCAST: return element(root, k);
    case SUM: return n * element(0, k) + (long)n * (n - 1) / 2;
    case ALLTOALL: return element((int)block, (size_t)me * count + within);
    default: return element((int)block, within);
    }
}

static void check(void (*call)(int, size_t, int), const char *what)
{
    for (int operation = 0; operation < OPERATIONS; operation++)
        for (int s = 0; s < SIZES; s++)
            for (int root = 0; root < n; root++) {
                size_t count = sizes[s] / sizeof(long), all = operation <= SUM ? count : count * (size_t)n;
                memset(to, 0, all * sizeof(long));
                shmem_barrier_all();
                call(operation, sizes[s], root);
                /* A broadcast to an active set leaves its root alone. */
                if (HAS_TEAMS || operation != BROADCAST || me != root)
                    for (size_t k = 0; k < all; k++)
                        if (to[k] != expected(operation, count, root, k))
                            fail("%s %s of %zu bytes: word %zu is %ld, expected %ld", what, names[operation],
                                 sizes[s], k, to[k], expected(operation, count, root, k));
                shmem_barrier_all();
            }
}

/* Of a call. Those that come first find in the caches what other operations have left, and are not counted. */
static double time_of(void (*call)(int, size_t, int), int operation, int s)
{
    for (int root = 0; root < n; root++)
        call(operation, sizes[s], root);
    shmem_barrier_all();
    return NS_EACH(calls[s], call(operation, sizes[s], (int)(i % n)));
}

int main(void)
{
    static double times[2][OPERATIONS][SIZES][BATCHES];
    shmem_init();
    me = shmem_my_pe(), n = shmem_n_pes();
    if (n < 2 || n > 64) {
        fprintf(stderr, "one_host: 2 to 64 PEs\n");
        shmem_global_exit(2);
    }
    from = symmetric((size_t)n * LONGEST), to = symmetric((size_t)n * LONGEST);
    lines[0] = symmetric((size_t)n * sizeof(struct line)), lines[1] = symmetric((size_t)n * sizeof(struct line));
    offers = symmetric(2 * (size_t)n * sizeof(struct line));
    taken = symmetric((size_t)n * sizeof(struct line));
    meetings = symmetric((size_t)n * sizeof(struct line));
#if !HAS_TEAMS
    for (size_t k = 0; k < sizeof psync[0] / sizeof(long); k++)
        psync[0][k] = psync[1][k] = SHMEM_SYNC_VALUE;
#endif
    int maps = 1;
    for (int pe = 0; pe < n; pe++)
        maps &= pe == me || shmem_ptr(from, pe) != NULL;
    for (size_t k = 0; k < (size_t)n * LONGEST / sizeof(long); k++)
        from[k] = element(me, k);
    shmem_barrier_all();
    check(library, "library's");
    if (maps)
        check(plain, "plain");
    for (int batch = 0; batch < BATCHES; batch++)
        for (int operation = 0; operation < OPERATIONS; operation++)
            for (int s = 0; s < SIZES; s++)
                for (int turn = 0; turn < 2; turn++) {
                    /* By turns the first one, which finds more in the other PEs' caches. */
                    int kind = (batch + turn) % 2;
                    if (kind == 0 || maps)
                        times[kind][operation][s][batch] = time_of(kind ? plain : library, operation, s);
                }
    if (me == 0)
        for (int kind = 0; kind <= maps; kind++)
            for (int operation = 0; operation < OPERATIONS; operation++)
                for (int s = 0; s < SIZES; s++) {
                    char name[64];
                    snprintf(name, sizeof name, "%s%s_%s", kind ? "plain_" : "", names[operation], size_names[s]);
                    print_samples(name, "ns", times[kind][operation][s], BATCHES);
                }
    shmem_barrier_all();
    shmem_finalize();
    return 0;
}
