/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sorts numbers that are spread over all PEs, by samples.
 *
 *   oshcc -O2 samplesort.c -o samplesort && oshrun -n 4 ./samplesort [numbers in all]
 *
 * Each PE sorts its own numbers and shows some of them to all. From all samples follow the limits
 * between the PEs' ranges. Each PE tells every other how many numbers it has for it (alltoall),
 * learns where they go, and puts them there. Then each sorts what it has got.
 */
#include <shmem.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SAMPLES = 32 };

static int compare(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* The i-th number: the same whatever the number of PEs. */
static uint64_t number(uint64_t i)
{
    uint64_t x = (i + 1) * 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static void *need(void *memory)
{
    if (!memory)
        shmem_global_exit(1);
    return memory;
}

int main(int argc, char **argv)
{
    shmem_init();
    size_t me = shmem_my_pe(), n_pes = shmem_n_pes();
    size_t total = argc > 1 ? strtoul(argv[1], NULL, 10) : 100000;
    size_t first = total * me / n_pes, mine = total * (me + 1) / n_pes - first;
    uint64_t *numbers = need(malloc((mine + 1) * sizeof *numbers)), sum = 0;
    for (size_t i = 0; i < mine; i++)
        sum += numbers[i] = number(first + i);
    qsort(numbers, mine, sizeof *numbers, compare);

    uint64_t *samples = need(shmem_calloc(SAMPLES, sizeof *samples));
    uint64_t *all = need(shmem_calloc(SAMPLES * n_pes, sizeof *all));
    for (size_t i = 0; i < SAMPLES; i++)
        samples[i] = mine ? numbers[mine * i / SAMPLES] : UINT64_MAX;
    shmem_uint64_fcollect(SHMEM_TEAM_WORLD, all, samples, SAMPLES);
    qsort(all, SAMPLES * n_pes, sizeof *all, compare);

    /* How many of ours go to each PE, how many of each PE's come to us, and where ours begin there. */
    uint64_t *counts = need(shmem_calloc(n_pes, sizeof *counts));
    uint64_t *coming = need(shmem_calloc(n_pes, sizeof *coming));
    uint64_t *begins = need(shmem_calloc(n_pes, sizeof *begins));
    uint64_t *places = need(shmem_calloc(n_pes, sizeof *places));
    size_t pe = 0;
    for (size_t i = 0; i < mine; i++) {
        while (pe + 1 < n_pes && numbers[i] >= all[SAMPLES * (pe + 1)])
            pe++;
        counts[pe]++;
    }
    shmem_uint64_alltoall(SHMEM_TEAM_WORLD, coming, counts, 1);
    static uint64_t received, largest;
    for (size_t i = 0; i < n_pes; i++) {
        begins[i] = received;
        received += coming[i];
    }
    shmem_uint64_alltoall(SHMEM_TEAM_WORLD, places, begins, 1);
    shmem_uint64_max_reduce(SHMEM_TEAM_WORLD, &largest, &received, 1);
    uint64_t *sorted = need(shmem_malloc((largest + 1) * sizeof *sorted));
    for (size_t to = 0, begin = 0; to < n_pes; begin += counts[to++])
        shmem_uint64_put_nbi(&sorted[places[to]], &numbers[begin], counts[to], to);
    shmem_barrier_all();
    qsort(sorted, received, sizeof *sorted, compare);

    /* In order here and between PEs, and none lost: the sum is the same. */
    static uint64_t last, before, sums[2], totals[2];
    static long faults, all_faults;
    for (size_t i = 1; i < received; i++)
        faults += sorted[i - 1] > sorted[i];
    for (size_t i = 0; i < received; i++)
        sums[1] += sorted[i];
    sums[0] = sum;
    last = received ? sorted[received - 1] : 0;
    shmem_barrier_all();
    for (size_t i = 0; i < me; i++) {
        uint64_t theirs = shmem_uint64_g(&last, i);
        before = theirs > before ? theirs : before;
    }
    faults += received && before > sorted[0];
    shmem_long_sum_reduce(SHMEM_TEAM_WORLD, &all_faults, &faults, 1);
    shmem_uint64_sum_reduce(SHMEM_TEAM_WORLD, totals, sums, 2);
    int good = all_faults == 0 && totals[0] == totals[1];
    if (me == 0)
        printf("samplesort: %zu numbers, %s, checksum %016llx\n", total,
               good ? "in order" : "NOT in order", (unsigned long long)totals[1]);
    shmem_finalize();
    return !good;
}
