/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rotation by gets: every PE gets the array of the next one, and gives it on, until each has its own again.
 *
 *   oshcc -O2 rotget.c -o rotget && oshrun -n 4 ./rotget [numbers]
 *
 * A get needs nothing of its target but that the data stay: a barrier before it says that they are there, and one
 * after it that they may be overwritten.
 */
#include <shmem.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv)
{
    shmem_init();
    int me = shmem_my_pe(), n_pes = shmem_n_pes(), next = (me + 1) % n_pes;
    size_t numbers = argc > 1 ? strtoul(argv[1], NULL, 10) : 65536;
    double *given = shmem_malloc((numbers + 1) * sizeof *given), *got = malloc((numbers + 1) * sizeof *got);
    if (!given || !got)
        shmem_global_exit(1);
    for (size_t i = 0; i < numbers; i++)
        given[i] = me * 1e6 + (double)i;

    static long wrong, all;
    for (int turn = 1; turn <= n_pes; turn++) {
        shmem_barrier_all();
        shmem_double_get(got, given, numbers, next);
        for (size_t i = 0; i < numbers; i++)
            wrong += got[i] != (me + turn) % n_pes * 1e6 + (double)i;
        shmem_barrier_all();
        memcpy(given, got, numbers * sizeof *given);
    }

    shmem_long_sum_reduce(SHMEM_TEAM_WORLD, &all, &wrong, 1);
    if (me == 0)
        printf("rotget: %zu numbers round all PEs, %s\n", numbers, all ? "WRONG" : "each back where it was");
    shmem_finalize();
    return all != 0;
}
