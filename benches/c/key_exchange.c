/* SPDX-License-Identifier: Apache-2.0 */
/* The key exchange of an integer sort (NAS IS; Dinan & Flajslik): every PE owns a range of keys, and
 * sends each of its random keys to the owner. Where its keys go at an owner follows from the other
 * PEs' counts, which it gets; then it puts the keys, in pieces. With blocking calls, with
 * non-blocking calls on the default context, where waiting for the gets waits for the puts as well,
 * and with one context for gets and one for puts. */
#include "bench.h"

enum { KEYS = 1 << 17, RANGE = 1 << 20, PIECE = 4096, TIMES = 11 };

enum { BLOCKING, ONE_CONTEXT, TWO_CONTEXTS, KINDS };
static const char *const NAMES[KINDS] = {"blocking", "one_context", "two_contexts"};

static int *keys;      /* this PE's keys, in the order of their owners */
static int *received;  /* symmetric */
static long *counts;   /* symmetric: keys of this PE per owner */
static long capacity;

static uint64_t random_bits(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static int owner_of(int key)
{
    return (int)((long)key * shmem_n_pes() / RANGE);
}

static void make_keys(void)
{
    int n = shmem_n_pes();
    uint64_t state = (uint64_t)shmem_my_pe() + 1;
    int *unordered = malloc(KEYS * sizeof *unordered);
    long *next = calloc((size_t)n + 1, sizeof *next);
    for (int k = 0; k < KEYS; k++) {
        unordered[k] = (int)(random_bits(&state) % RANGE);
        counts[owner_of(unordered[k])]++;
    }
    for (int pe = 0; pe < n; pe++)
        next[pe + 1] = next[pe] + counts[pe];
    for (int k = 0; k < KEYS; k++)
        keys[next[owner_of(unordered[k])]++] = unordered[k];
    free(unordered);
    free(next);
}

static void send(shmem_ctx_t context, int blocking, const int *from, long count, long at, int pe)
{
    for (long sent = 0; sent < count; sent += PIECE) {
        size_t bytes = (size_t)(count - sent < PIECE ? count - sent : PIECE) * sizeof *from;
        if (blocking)
            shmem_ctx_putmem(context, received + at + sent, from + sent, bytes, pe);
        else
            shmem_ctx_putmem_nbi(context, received + at + sent, from + sent, bytes, pe);
    }
}

static void exchange(int kind, shmem_ctx_t gets, shmem_ctx_t puts, long *before)
{
    int me = shmem_my_pe(), n = shmem_n_pes();
    for (int turn = 0; turn < n; turn++) {
        int owner = (me + turn) % n;
        long first = 0, at = 0;
        for (int pe = 0; pe < owner; pe++)
            first += counts[pe];
        for (int pe = 0; pe < me; pe++)
            if (kind == BLOCKING)
                shmem_ctx_getmem(gets, &before[pe], &counts[owner], sizeof *counts, pe);
            else
                shmem_ctx_getmem_nbi(gets, &before[pe], &counts[owner], sizeof *counts, pe);
        if (kind != BLOCKING)
            shmem_ctx_quiet(gets);
        for (int pe = 0; pe < me; pe++)
            at += before[pe];
        send(puts, kind == BLOCKING, keys + first, counts[owner], at, owner);
    }
    shmem_ctx_quiet(puts);
}

/* The keys here are in this PE's range, as many as were sent, and none was lost on the way: over all
 * PEs their number and the sum of their mixed bits are those of the keys made. */
static void verify(const char *name, long *totals)
{
    int me = shmem_my_pe(), n = shmem_n_pes();
    uint64_t made = 0, arrived = 0;
    long expected = 0;
    for (int pe = 0; pe < n; pe++)
        expected += shmem_long_g(&counts[me], pe);
    if (expected > capacity)
        fail("%s: %ld keys do not fit", name, expected);
    for (long k = 0; k < KEYS; k++) {
        uint64_t state = (uint64_t)keys[k];
        made += random_bits(&state);
    }
    for (long k = 0; k < expected; k++) {
        if (received[k] < 0 || owner_of(received[k]) != me)
            fail("%s: key %d does not belong here", name, received[k]);
        uint64_t state = (uint64_t)received[k];
        arrived += random_bits(&state);
    }
    totals[0] = totals[1] = 0;
    shmem_barrier_all();
    shmem_long_atomic_add(&totals[0], (long)made, 0);
    shmem_long_atomic_add(&totals[1], (long)arrived, 0);
    shmem_barrier_all();
    if (me == 0 && totals[0] != totals[1])
        fail("%s: keys were changed on their way", name);
    memset(received, 0xff, (size_t)capacity * sizeof *received);
    shmem_barrier_all();
}

int main(void)
{
    static double ms[KINDS][TIMES];
    shmem_init();
    int n = shmem_n_pes();
    /* A bucket of random keys is never this much larger than the mean. */
    capacity = KEYS + KEYS / 4;
    keys = malloc(KEYS * sizeof *keys);
    received = symmetric((size_t)capacity * sizeof *received);
    counts = symmetric((size_t)n * sizeof *counts);
    long *totals = symmetric(2 * sizeof *totals);
    long *before = calloc((size_t)n, sizeof *before);
    make_keys();
    shmem_ctx_t gets, puts;
    if (shmem_ctx_create(SHMEM_CTX_PRIVATE, &gets) != 0
        || shmem_ctx_create(SHMEM_CTX_PRIVATE, &puts) != 0) {
        fprintf(stderr, "no context could be created\n");
        shmem_global_exit(1);
    }
    for (int time = 0; time < TIMES; time++)
        for (int kind = 0; kind < KINDS; kind++) {
            int own = kind == TWO_CONTEXTS;
            shmem_barrier_all();
            double begun = now_ns();
            exchange(kind, own ? gets : SHMEM_CTX_DEFAULT, own ? puts : SHMEM_CTX_DEFAULT, before);
            shmem_barrier_all();
            ms[kind][time] = (now_ns() - begun) / 1e6;
            verify(NAMES[kind], totals);
        }
    shmem_ctx_destroy(gets);
    shmem_ctx_destroy(puts);
    for (int kind = 0; kind < KINDS && shmem_my_pe() == 0; kind++) {
        char name[64];
        snprintf(name, sizeof name, "key_exchange.%s", NAMES[kind]);
        print_samples(name, "ms", ms[kind], TIMES);
    }
    free(before);
    free(keys);
    shmem_barrier_all();
    shmem_finalize();
    return 0;
}
