/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inner product of two distributed vectors, element by element: every product is put to PE 0 by itself.
 *
 *   oshcc -O2 dip.c -o dip && oshrun -n 4 ./dip [elements]
 *
 * A single number is stored by shmem_double_p: on one host an instruction, over links a short packet. The barrier
 * makes all of them arrive before PE 0 adds them up, always in the same order, so that the sum has the same bits
 * however many PEs there are.
 */
#include <shmem.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    shmem_init();
    int me = shmem_my_pe(), n_pes = shmem_n_pes();
    long elements = argc > 1 ? strtol(argv[1], NULL, 10) : 130000;
    double *products = shmem_malloc(((size_t)elements + 1) * sizeof *products);
    if (!products)
        shmem_global_exit(1);
    for (long i = me; i < elements; i += n_pes) {
        double x = (double)(i % 100), y = 1.0 / (double)(i % 7 + 1);
        shmem_double_p(&products[i], x * y, 0);
    }
    shmem_barrier_all();
    if (me == 0) {
        double sum = 0;
        for (long i = 0; i < elements; i++)
            sum += products[i];
        printf("dip: %ld elements, inner product %.6f\n", elements, sum);
    }
    shmem_finalize();
    return 0;
}
