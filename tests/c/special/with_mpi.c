/* SPDX-License-Identifier: Apache-2.0 */
/* OpenSHMEM and MPI in one process: `with_mpi LIBRARY ORDER`. The library is loaded at run time, so
 * that no header of it is needed: Open MPI's handles are addresses of its variables, MPICH's are
 * numbers. ORDER says who begins, and so who ends last: mpi or shmem. */
#include <dlfcn.h>
#include <shmem.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MPICH_COMM_WORLD ((void *)(intptr_t)0x44000000)
#define MPICH_INT ((void *)(intptr_t)0x4c000405)
#define MPICH_SUM ((void *)(intptr_t)0x58000003)

static void *library;

static void *find(const char *name)
{
    void *found = dlsym(library, name);
    if (!found) {
        fprintf(stderr, "%s\n", dlerror());
        exit(2);
    }
    return found;
}

/* What Open MPI has as a variable; else MPICH's number. */
static void *handle(const char *name, void *number)
{
    void *variable = dlsym(library, name);
    return variable ? variable : number;
}

int main(int argc, char **argv)
{
    static int mine, theirs;
    int sum = 0, size = 0;
    if (argc != 3 || !(library = dlopen(argv[1], RTLD_NOW | RTLD_GLOBAL))) {
        fprintf(stderr, "usage: with_mpi LIBRARY mpi|shmem: %s\n", argc == 3 ? dlerror() : "");
        return 2;
    }
    int mpi_first = !strcmp(argv[2], "mpi");
    int (*init)(int *, char ***) = (int (*)(int *, char ***))find("MPI_Init");
    int (*finalize)(void) = (int (*)(void))find("MPI_Finalize");
    int (*comm_size)(void *, int *) = (int (*)(void *, int *))find("MPI_Comm_size");
    int (*allreduce)(const void *, void *, int, void *, void *, void *) =
        (int (*)(const void *, void *, int, void *, void *, void *))find("MPI_Allreduce");
    void *world = handle("ompi_mpi_comm_world", MPICH_COMM_WORLD);

    if (mpi_first)
        init(NULL, NULL);
    shmem_init();
    if (!mpi_first)
        init(NULL, NULL);
    int me = shmem_my_pe(), n = shmem_n_pes();
    comm_size(world, &size);
    if (size != n) {
        fprintf(stderr, "PE %d: %d PEs, and %d processes of MPI\n", me, n, size);
        return 1;
    }
    /* Around the ring by one, then together by the other. */
    mine = me + 1;
    shmem_int_put(&theirs, &mine, 1, (me + 1) % n);
    shmem_barrier_all();
    allreduce(&theirs, &sum, 1, handle("ompi_mpi_int", MPICH_INT), handle("ompi_mpi_op_sum", MPICH_SUM),
              world);
    if (sum != n * (n + 1) / 2) {
        fprintf(stderr, "PE %d: the sum is %d\n", me, sum);
        return 1;
    }
    if (mpi_first)
        shmem_finalize();
    finalize();
    if (!mpi_first)
        shmem_finalize();
    if (me == 0)
        printf("both agree: %d\n", sum);
    return 0;
}
