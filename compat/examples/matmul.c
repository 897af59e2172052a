/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Product of two matrices, split by columns.
 *
 *   oshcc -O2 matmul.c -o matmul && oshrun -n 4 ./matmul [side]
 *
 * PE 0 has both matrices. Every PE gets the first one whole, and of the second the columns that it multiplies by, with
 * a stride; its columns of the product go back in the same way.
 */
#include <shmem.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    shmem_init();
    int me = shmem_my_pe(), n_pes = shmem_n_pes();
    size_t side = argc > 1 ? strtoul(argv[1], NULL, 10) : 20;
    double *a = shmem_calloc(side * side + 1, sizeof *a), *b = shmem_calloc(side * side + 1, sizeof *b);
    double *c = shmem_calloc(side * side + 1, sizeof *c);
    double *mine = malloc((side * side + 1) * sizeof *mine), *column = malloc((side + 1) * sizeof *column);
    double *product = malloc((side + 1) * sizeof *product);
    if (!a || !b || !c || !mine || !column || !product)
        shmem_global_exit(1);
    for (size_t i = 0; i < side * side && me == 0; i++)
        a[i] = (double)(i % 7), b[i] = (double)(i % 5);

    shmem_barrier_all();
    shmem_double_get(mine, a, side * side, 0);
    for (size_t j = (size_t)me; j < side; j += (size_t)n_pes) {
        shmem_double_iget(column, b + j, 1, (ptrdiff_t)side, side, 0);
        for (size_t i = 0; i < side; i++) {
            product[i] = 0;
            for (size_t k = 0; k < side; k++)
                product[i] += mine[i * side + k] * column[k];
        }
        shmem_double_iput(c + j, product, (ptrdiff_t)side, 1, side, 0);
    }
    shmem_barrier_all();

    size_t wrong = 0;
    double trace = 0;
    for (size_t i = 0; i < side && me == 0; i++)
        for (size_t j = 0; j < side; j++) {
            double expected = 0;
            for (size_t k = 0; k < side; k++)
                expected += a[i * side + k] * b[k * side + j];
            wrong += c[i * side + j] != expected;
            trace += i == j ? expected : 0;
        }
    if (me == 0)
        printf("matmul: %zu x %zu, trace %g: %s\n", side, side, trace, wrong ? "WRONG" : "right");
    shmem_finalize();
    return wrong != 0;
}
