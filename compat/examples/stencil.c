/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A five-point stencil on a square grid, the same in C, C++, Python and Rust.
 *
 *   oshcc -O2 stencil.c -o stencil && oshrun -n 4 ./stencil [points [steps]]
 *
 * Each PE owns a band of rows. After every step it puts its first and last row into the neighbours'
 * halo rows together with a signal, and waits for theirs. Halo rows of even and odd steps differ, so
 * a neighbour never overwrites one that is still to be read. Whatever the number of PEs, the result
 * is the same to the last bit.
 */
#include <shmem.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t arrived[2]; /* last step whose halo row has come from above, from below */

int main(int argc, char **argv)
{
    shmem_init();
    size_t me = shmem_my_pe(), n_pes = shmem_n_pes();
    size_t points = argc > 1 ? strtoul(argv[1], NULL, 10) : 64;
    size_t steps = argc > 2 ? strtoul(argv[2], NULL, 10) : 100;
    if (points < 2 || points < n_pes) {
        if (me == 0)
            fprintf(stderr, "%zu points per side do for as many PEs at most\n", points);
        shmem_global_exit(2);
    }
    size_t first = points * me / n_pes, rows = points * (me + 1) / n_pes - first;
    size_t row_bytes = points * sizeof(double);
    /* With a halo row above and one below. */
    double *now = calloc(rows + 2, row_bytes), *next = calloc(rows + 2, row_bytes);
    for (size_t i = 0; me == 0 && i < points; i++)
        now[points + i] = next[points + i] = 1.0;
    double *halo = shmem_calloc(4 * points, sizeof *halo); /* above, below; even, odd steps */
    double *row_sums = shmem_calloc(points, sizeof *row_sums);
    if (!now || !next || !halo || !row_sums)
        shmem_global_exit(1);

    for (uint64_t step = 1; step <= steps; step++) {
        double *above = &halo[step % 2 * 2 * points], *below = above + points;
        if (me > 0)
            shmem_double_put_signal(below, &now[points], points, &arrived[1], step,
                                    SHMEM_SIGNAL_SET, me - 1);
        if (me + 1 < n_pes)
            shmem_double_put_signal(above, &now[rows * points], points, &arrived[0], step,
                                    SHMEM_SIGNAL_SET, me + 1);
        if (me > 0) {
            shmem_signal_wait_until(&arrived[0], SHMEM_CMP_GE, step);
            memcpy(now, above, row_bytes);
        }
        if (me + 1 < n_pes) {
            shmem_signal_wait_until(&arrived[1], SHMEM_CMP_GE, step);
            memcpy(&now[(rows + 1) * points], below, row_bytes);
        }
        for (size_t row = 1; row <= rows; row++) {
            if (first + row == 1 || first + row == points)
                continue; /* the rim never changes */
            for (size_t i = row * points + 1; i + 1 < (row + 1) * points; i++)
                next[i] = 0.25 * (now[i - points] + now[i - 1] + now[i + 1] + now[i + points]);
        }
        double *before = now;
        now = next;
        next = before;
    }

    for (size_t row = 1; row <= rows; row++) {
        double sum = 0;
        for (size_t i = 0; i < points; i++)
            sum += now[row * points + i];
        shmem_double_p(&row_sums[first + row - 1], sum, 0);
    }
    shmem_barrier_all();
    if (me == 0) {
        double sum = 0;
        for (size_t row = 0; row < points; row++)
            sum += row_sums[row];
        printf("stencil: %zu points, %zu steps, sum %.9f\n", points, steps, sum);
    }
    free(now);
    free(next);
    shmem_free(row_sums);
    shmem_free(halo);
    shmem_finalize();
    return 0;
}
