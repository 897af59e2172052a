/* SPDX-License-Identifier: Apache-2.0 */
/* The integer sort of the NAS Parallel Benchmarks, class S and W, as a whole (Dinan & Flajslik measured its key
 * exchange with contexts): the keys that NPB prescribes, ten rankings with NPB's partial verification, and a full
 * verification. A ranking counts keys by bucket, adds the counts up over all PEs, gives each PE a range of buckets,
 * exchanges the keys, and ranks what arrived. Keys are exchanged by blocking calls, by non-blocking calls on the
 * default context, and with a context for gets and one for puts. Takes the class, S unless given. */
#include "bench.h"

enum { RANKINGS = 10, BUCKETS = 512, CHECKS = 5, PIECE = 4096 };
enum { BLOCKING, ONE_CONTEXT, TWO_CONTEXTS, KINDS };
static const char *const NAMES[KINDS] = {"blocking", "one_context", "two_contexts"};

static int me, n, log_keys, log_range;
static int checked[CHECKS];
static long checked_rank[CHECKS];
static int *keys, *sorted; /* this PE's keys, and the same by bucket */
static int *received;      /* symmetric: keys of this PE's buckets */
static long *counts, *totals; /* symmetric: keys by bucket, here and everywhere */
static long capacity, own;

/* NPB's generator: x = 5^13 x mod 2^46, as a fraction of 2^46. */
static double randlc(uint64_t *x)
{
    *x = *x * 1220703125u & ((1ull << 46) - 1);
    return (double)*x / (double)(1ull << 46);
}

/* Four numbers make a key; every PE begins where the ones before it end. */
static void make_keys(void)
{
    uint64_t seed = 314159265, step = 1220703125;
    for (uint64_t skip = 4ull * (uint64_t)me * (uint64_t)own; skip > 0; skip /= 2) {
        if (skip % 2)
            seed = seed * step & ((1ull << 46) - 1);
        step = step * step & ((1ull << 46) - 1);
    }
    double quarter = (double)(1 << log_range) / 4;
    for (long i = 0; i < own; i++) {
        double sum = randlc(&seed);
        for (int k = 0; k < 3; k++)
            sum += randlc(&seed);
        keys[i] = (int)(quarter * sum);
    }
}

static int bucket_of(int key) { return key >> (log_range - 9); }

/* The first bucket of each PE: as even as whole buckets allow, and the same on all PEs. */
static void share_out(int *first)
{
    long sum = 0;
    int pe = 0;
    for (int bucket = 0; bucket < BUCKETS; bucket++) {
        while (pe < n && sum >= ((1l << log_keys) * pe + n - 1) / n)
            first[pe++] = bucket;
        sum += totals[bucket];
    }
    while (pe <= n)
        first[pe++] = BUCKETS;
}

static long keys_of(const long *of, int from, int to)
{
    long sum = 0;
    for (int bucket = from; bucket < to; bucket++)
        sum += of[bucket];
    return sum;
}

static void exchange(int kind, shmem_ctx_t gets, shmem_ctx_t puts, const int *first, long *before)
{
    long at = 0;
    for (int turn = 0; turn < n; turn++) {
        int owner = (me + turn) % n;
        int from = first[owner], width = first[owner + 1] - from;
        /* Where this PE's keys go there: behind those of the PEs before it. */
        for (int pe = 0; pe < me && width > 0; pe++)
            if (kind == BLOCKING)
                shmem_ctx_getmem(gets, before + pe * BUCKETS, counts + from, (size_t)width * sizeof *counts, pe);
            else
                shmem_ctx_getmem_nbi(gets, before + pe * BUCKETS, counts + from, (size_t)width * sizeof *counts, pe);
        if (kind != BLOCKING)
            shmem_ctx_quiet(gets);
        at = 0;
        for (int pe = 0; pe < me; pe++)
            at += keys_of(before + pe * BUCKETS, 0, width);
        const int *source = sorted + keys_of(counts, 0, from);
        long count = keys_of(counts, from, from + width);
        if (at + count > capacity)
            fail("%ld keys do not fit", at + count);
        for (long sent = 0; sent < count; sent += PIECE) {
            size_t bytes = (size_t)(count - sent < PIECE ? count - sent : PIECE) * sizeof *source;
            if (kind == BLOCKING)
                shmem_ctx_putmem(puts, received + at + sent, source + sent, bytes, owner);
            else
                shmem_ctx_putmem_nbi(puts, received + at + sent, source + sent, bytes, owner);
        }
    }
    shmem_ctx_quiet(puts);
}

/* One ranking; gives how long the exchange took. `ranks`: keys of this PE's range that are less or equal. */
static double rank_keys(int kind, int ranking, shmem_ctx_t gets, shmem_ctx_t puts, int *first, long *before, long *ranks)
{
    if (me == 0)
        keys[ranking] = ranking;
    /* NPB changes a key of the whole array, which is on the PE that made it. */
    long other = ranking + RANKINGS;
    if (other / own == me)
        keys[other % own] = (1 << log_range) - ranking;
    memset(counts, 0, BUCKETS * sizeof *counts);
    for (long i = 0; i < own; i++)
        counts[bucket_of(keys[i])]++;
    long next[BUCKETS], sum = 0;
    for (int bucket = 0; bucket < BUCKETS; bucket++)
        next[bucket] = sum, sum += counts[bucket];
    for (long i = 0; i < own; i++)
        sorted[next[bucket_of(keys[i])]++] = keys[i];
    shmem_barrier_all();
    shmem_long_sum_reduce(SHMEM_TEAM_WORLD, totals, counts, BUCKETS);
    share_out(first);
    shmem_barrier_all();
    double begun = now_ns();
    exchange(kind, gets, puts, first, before);
    shmem_barrier_all();
    double took = now_ns() - begun;
    int from = first[me] << (log_range - 9), to = first[me + 1] << (log_range - 9);
    long mine = keys_of(totals, first[me], first[me + 1]);
    memset(ranks, 0, (size_t)(to - from) * sizeof *ranks);
    for (long i = 0; i < mine; i++) {
        if (received[i] < from || received[i] >= to)
            fail("key %d does not belong here", received[i]);
        ranks[received[i] - from]++;
    }
    for (int key = from + 1; key < to; key++)
        ranks[key - from] += ranks[key - 1 - from];
    /* NPB's partial verification: the ranks of five keys, which move with the keys that are changed. */
    long below = keys_of(totals, 0, first[me]);
    for (int check = 0; check < CHECKS; check++) {
        int key = checked[check];
        if (key <= from || key >= to)
            continue;
        long rank = below + ranks[key - 1 - from];
        int rises = log_keys == 16 ? check <= 2 : check < 2;
        long moved = log_keys == 16 ? ranking : rises ? ranking - 2 : ranking;
        long expected = checked_rank[check] + (rises ? moved : -moved);
        if (rank != expected)
            fail("ranking %d: key %d has rank %ld, not %ld", ranking, key, rank, expected);
    }
    return took;
}

int main(int count, char **arguments)
{
    static double ms[KINDS][RANKINGS], exchanged[KINDS][RANKINGS];
    static const int of_s[CHECKS] = {48427, 17148, 23627, 62548, 4431};
    static const long rank_s[CHECKS] = {0, 18, 346, 64917, 65463};
    static const int of_w[CHECKS] = {357773, 934767, 875723, 898999, 404505};
    static const long rank_w[CHECKS] = {1249, 11698, 1039987, 1043896, 1048018};
    shmem_init();
    me = shmem_my_pe(), n = shmem_n_pes();
    int small = count < 2 || arguments[1][0] == 'S';
    log_keys = small ? 16 : 20, log_range = small ? 11 : 16;
    if (n > 64 || (1l << log_keys) % n != 0) {
        fprintf(stderr, "integer_sort: a power of two of PEs, 64 at most\n");
        shmem_global_exit(2);
    }
    own = (1l << log_keys) / n;
    capacity = own + own / 2 + (1l << log_keys) / 64;
    keys = malloc((size_t)own * sizeof *keys), sorted = malloc((size_t)own * sizeof *sorted);
    received = symmetric((size_t)capacity * sizeof *received);
    counts = symmetric(BUCKETS * sizeof *counts), totals = symmetric(BUCKETS * sizeof *totals);
    long *words = symmetric((CHECKS + 2) * sizeof *words);
    long *before = calloc((size_t)n * BUCKETS, sizeof *before);
    long *ranks = calloc(1u << log_range, sizeof *ranks);
    int *first = calloc((size_t)n + 1, sizeof *first);
    shmem_ctx_t gets, puts;
    if (shmem_ctx_create(SHMEM_CTX_PRIVATE, &gets) != 0 || shmem_ctx_create(SHMEM_CTX_PRIVATE, &puts) != 0) {
        fprintf(stderr, "no context could be created\n");
        shmem_global_exit(1);
    }
    make_keys();
    /* The keys to be checked are those at five places of the whole array. */
    for (int check = 0; check < CHECKS; check++) {
        long at = small ? of_s[check] : of_w[check];
        checked_rank[check] = small ? rank_s[check] : rank_w[check];
        if (at / own == me)
            for (int pe = 0; pe < n; pe++)
                shmem_long_p(&words[check], keys[at % own], pe);
    }
    shmem_barrier_all();
    for (int check = 0; check < CHECKS; check++)
        checked[check] = (int)words[check];
    for (int ranking = 1; ranking <= RANKINGS; ranking++)
        for (int turn = 0; turn < KINDS; turn++) {
            int kind = (turn + ranking) % KINDS, separate = kind == TWO_CONTEXTS;
            memset(received, 0xff, (size_t)capacity * sizeof *received);
            shmem_barrier_all();
            double begun = now_ns();
            exchanged[kind][ranking - 1] = rank_keys(kind, ranking, separate ? gets : SHMEM_CTX_DEFAULT,
                                                     separate ? puts : SHMEM_CTX_DEFAULT, first, before, ranks) / 1e6;
            shmem_barrier_all();
            ms[kind][ranking - 1] = (now_ns() - begun) / 1e6;
        }
    /* Full verification: in order within each PE, PEs in order, and no key lost. */
    long mine = keys_of(totals, first[me], first[me + 1]), placed = 0;
    int from = first[me] << (log_range - 9), to = first[me + 1] << (log_range - 9);
    for (int key = from; key < to; key++) {
        if (key > from && ranks[key - from] < ranks[key - from - 1])
            fail("keys are out of order at %d", key);
        placed = ranks[key - from];
    }
    if (placed != mine)
        fail("%ld of %ld keys have a rank", placed, mine);
    words[CHECKS] = mine;
    shmem_barrier_all();
    shmem_long_sum_reduce(SHMEM_TEAM_WORLD, &words[CHECKS + 1], &words[CHECKS], 1);
    if (words[CHECKS + 1] != 1l << log_keys)
        fail("%ld keys in place of %ld", words[CHECKS + 1], 1l << log_keys);
    shmem_ctx_destroy(gets);
    shmem_ctx_destroy(puts);
    for (int kind = 0; kind < KINDS && me == 0; kind++) {
        char name[64];
        snprintf(name, sizeof name, "integer_sort.%s", NAMES[kind]);
        print_samples(name, "ms", ms[kind], RANKINGS);
        snprintf(name, sizeof name, "integer_sort.exchange_%s", NAMES[kind]);
        print_samples(name, "ms", exchanged[kind], RANKINGS);
    }
    shmem_barrier_all();
    shmem_finalize();
    return 0;
}
