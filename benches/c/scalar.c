/* SPDX-License-Identifier: Apache-2.0 */
/* Words to and from a PE of the same host, heap and static data, against a store and a load through
 * a function of a shared library on the same mapping. 2 PEs; PE 0 works. */
#include "bench.h"

enum { WORDS = 64, CALLS = 20000 };

enum { P, G, PUTMEM8, GETMEM8, LONG_PUT1, LONG_GET1, STORE, LOAD, MOVE_TO, MOVE_FROM, KINDS };
static const char *const NAMES[KINDS] = {"p",         "g",         "putmem8", "getmem8",
                                         "long_put1", "long_get1", "store",   "load",
                                         "move_to",   "move_from"};

static long in_static[WORDS];

static double time_kind(int kind, long *area, long *mapping, long *sum)
{
    long got = 0, total = 0;
    double ns = 0;
#define AT (i % WORDS)
    switch (kind) {
    case P: ns = NS_EACH(CALLS, shmem_long_p(&area[AT], i, 1)); break;
    case G: ns = NS_EACH(CALLS, total += shmem_long_g(&area[AT], 1)); break;
    case PUTMEM8: ns = NS_EACH(CALLS, shmem_putmem(&area[AT], &i, 8, 1)); break;
    case GETMEM8: ns = NS_EACH(CALLS, shmem_getmem(&got, &area[AT], 8, 1); total += got); break;
    case LONG_PUT1: ns = NS_EACH(CALLS, shmem_long_put(&area[AT], &i, 1, 1)); break;
    case LONG_GET1: ns = NS_EACH(CALLS, shmem_long_get(&got, &area[AT], 1, 1); total += got); break;
    case STORE: ns = NS_EACH(CALLS, plain_store(&mapping[AT], i)); break;
    case MOVE_TO: ns = NS_EACH(CALLS, plain_move(&mapping[AT], &i)); break;
    case MOVE_FROM: ns = NS_EACH(CALLS, plain_move(&got, &mapping[AT]); total += got); break;
    case LOAD: ns = NS_EACH(CALLS, total += plain_load(&mapping[AT])); break;
    }
#undef AT
    *sum = total;
    return ns;
}

static int reads(int kind)
{
    return kind == G || kind == GETMEM8 || kind == LONG_GET1;
}

/* After a pass of stores word w holds the last i with i % WORDS == w. */
static long last_value(int word)
{
    return (CALLS - 1 - word) / WORDS * WORDS + word;
}

/* Each operation once, with what it left or read compared. */
static void verify(const char *where, long *area)
{
    long expected = 0;
    for (int i = 0; i < CALLS; i++)
        expected += 1000 + i % WORDS;
    for (int kind = 0; kind < STORE; kind++) {
        for (int word = 0; word < WORDS; word++)
            area[word] = reads(kind) ? 1000 + word : -1;
        shmem_barrier_all();
        long sum = 0;
        if (shmem_my_pe() == 0)
            time_kind(kind, area, NULL, &sum);
        shmem_barrier_all();
        if (shmem_my_pe() == 0 && reads(kind) && sum != expected)
            fail("%s %s read a sum of %ld, expected %ld", NAMES[kind], where, sum, expected);
        for (int word = 0; shmem_my_pe() == 1 && !reads(kind) && word < WORDS; word++)
            if (area[word] != last_value(word))
                fail("%s %s left %ld, expected %ld", NAMES[kind], where, area[word],
                     last_value(word));
        shmem_barrier_all();
    }
}

static void measure(const char *where, long *area, long *mapping)
{
    static double ns[KINDS][BATCHES];
    long sum;
    for (int batch = 0; batch < BATCHES; batch++)
        for (int kind = 0; kind < KINDS; kind++)
            ns[kind][batch] = time_kind(kind, area, mapping, &sum);
    for (int kind = 0; kind < KINDS; kind++) {
        char name[64];
        snprintf(name, sizeof name, "%s.%s", NAMES[kind], where);
        print_samples(name, "ns", ns[kind], BATCHES);
    }
}

int main(void)
{
    shmem_init();
    long *in_heap = symmetric(sizeof in_static);
    verify("heap", in_heap);
    verify("static", in_static);
    if (shmem_my_pe() == 0) {
        long *heap_mapping = mapped(in_heap, 1);
        /* Where static data is not mapped, the words of the heap still give a reference. */
        long *static_mapping = shmem_ptr(in_static, 1);
        measure("heap", in_heap, heap_mapping);
        measure("static", in_static, static_mapping ? static_mapping : heap_mapping);
    }
    shmem_barrier_all();
    shmem_finalize();
    return 0;
}
