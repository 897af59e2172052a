/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Histogram and index gather, two patterns of many small accesses all over the memory of all PEs.
 *
 *   oshcc -O2 histogram.c -o histogram && oshrun -n 4 ./histogram [accesses in all [table size]]
 *
 * A table is spread over the PEs in turn: entry i is at PE i % n. The histogram adds 1 to random entries,
 * by atomic operations. The index gather reads random entries, all under way at once.
 */
#include <shmem.h>
#include <stdio.h>
#include <stdlib.h>

/* The i-th random number: the same whatever the number of PEs. */
static uint64_t number(uint64_t i)
{
    uint64_t x = (i + 1) * 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

int main(int argc, char **argv)
{
    shmem_init();
    size_t me = shmem_my_pe(), n_pes = shmem_n_pes();
    size_t accesses = argc > 1 ? strtoul(argv[1], NULL, 10) : 20000;
    size_t entries = argc > 2 ? strtoul(argv[2], NULL, 10) : 1000;
    if (entries == 0)
        entries = 1;
    size_t first = accesses * me / n_pes, mine = accesses * (me + 1) / n_pes - first;
    uint64_t *table = shmem_calloc(entries / n_pes + 1, sizeof *table);
    uint64_t *found = malloc((mine + 1) * sizeof *found);
    if (!table || !found)
        shmem_global_exit(1);

    for (size_t i = 0; i < mine; i++) {
        size_t entry = number(first + i) % entries;
        shmem_uint64_atomic_inc(&table[entry / n_pes], entry % n_pes);
    }
    shmem_barrier_all();

    for (size_t i = 0; i < mine; i++) {
        size_t entry = number(first + i) % entries;
        shmem_uint64_get_nbi(&found[i], &table[entry / n_pes], 1, entry % n_pes);
    }
    shmem_quiet();

    /* Counts add up to the accesses; what was gathered adds up to the sum of their squares. */
    static uint64_t mine_of[3], all[3];
    for (size_t i = 0; i < mine; i++)
        mine_of[2] += found[i];
    shmem_barrier_all();
    for (size_t i = 0; me + i * n_pes < entries; i++) {
        mine_of[0] += table[i];
        mine_of[1] += table[i] * table[i];
    }
    shmem_uint64_sum_reduce(SHMEM_TEAM_WORLD, all, mine_of, 3);
    int good = all[0] == accesses && all[1] == all[2];
    if (me == 0)
        printf("histogram: %llu accesses counted, squares %llu, gathered %llu: %s\n",
               (unsigned long long)all[0], (unsigned long long)all[1], (unsigned long long)all[2],
               good ? "right" : "WRONG");
    free(found);
    shmem_free(table);
    shmem_finalize();
    return !good;
}
