/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Conjugate gradient: solves A x = b for the matrix of the one-dimensional Poisson equation.
 *
 *   oshcc -O2 cg.c -o cg -lm && oshrun -n 4 ./cg [unknowns]
 *
 * Each PE owns a range of the unknowns. The product with A needs one value of each neighbour, which they put
 * here with a signal. The scalar products are reductions over a team.
 */
#include <math.h>
#include <shmem.h>
#include <stdio.h>
#include <stdlib.h>

static double halo[2][2];   /* by parity of the iteration: from below, from above */
static uint64_t arrived[2]; /* last iteration whose value has come */
static double part, whole;

static double dot(shmem_team_t team, const double *a, const double *b, size_t n)
{
    part = 0;
    for (size_t i = 0; i < n; i++)
        part += a[i] * b[i];
    shmem_double_sum_reduce(team, &whole, &part, 1);
    return whole;
}

int main(int argc, char **argv)
{
    shmem_init();
    size_t unknowns = argc > 1 ? strtoul(argv[1], NULL, 10) : 200;
    /* PEs without an unknown of their own take no part. */
    size_t members = (size_t)shmem_n_pes() < unknowns ? (size_t)shmem_n_pes() : unknowns;
    shmem_team_t team;
    if (members == 0 ||
        shmem_team_split_strided(SHMEM_TEAM_WORLD, 0, 1, members, NULL, 0, &team) != 0)
        shmem_global_exit(2);
    int status = 0;
    if (team != SHMEM_TEAM_INVALID) {
        size_t me = shmem_team_my_pe(team);
        size_t first = unknowns * me / members, n = unknowns * (me + 1) / members - first;
        double *x = calloc(n, sizeof *x), *r = malloc(n * sizeof *r), *p = malloc(n * sizeof *p),
               *q = malloc(n * sizeof *q);
        if (!x || !r || !p || !q)
            shmem_global_exit(1);
        for (size_t i = 0; i < n; i++)
            p[i] = r[i] = 1.0;
        double rr = dot(team, r, r, n), wanted = 1e-20 * rr;
        uint64_t iteration = 0;
        while (rr > wanted && iteration < 2 * unknowns) {
            double *sides = halo[++iteration % 2];
            sides[0] = me == 0 ? 0.0 : sides[0];
            sides[1] = me + 1 == members ? 0.0 : sides[1];
            if (me > 0)
                shmem_double_put_signal(&sides[1], &p[0], 1, &arrived[1], iteration,
                                        SHMEM_SIGNAL_SET, me - 1);
            if (me + 1 < members)
                shmem_double_put_signal(&sides[0], &p[n - 1], 1, &arrived[0], iteration,
                                        SHMEM_SIGNAL_SET, me + 1);
            if (me > 0)
                shmem_signal_wait_until(&arrived[0], SHMEM_CMP_GE, iteration);
            if (me + 1 < members)
                shmem_signal_wait_until(&arrived[1], SHMEM_CMP_GE, iteration);
            for (size_t i = 0; i < n; i++)
                q[i] = 2 * p[i] - (i ? p[i - 1] : sides[0]) - (i + 1 < n ? p[i + 1] : sides[1]);
            double alpha = rr / dot(team, p, q, n), before = rr;
            for (size_t i = 0; i < n; i++) {
                x[i] += alpha * p[i];
                r[i] -= alpha * q[i];
            }
            rr = dot(team, r, r, n);
            for (size_t i = 0; i < n; i++)
                p[i] = r[i] + rr / before * p[i];
        }
        /* The solution is known: x(i) = (i + 1)(unknowns - i) / 2. */
        double error = 0;
        for (size_t i = 0; i < n; i++) {
            double exact = (first + i + 1.0) * (unknowns - first - i) / 2;
            error = fmax(error, fabs(x[i] - exact) / exact);
        }
        static double mine, worst;
        mine = error;
        shmem_double_max_reduce(team, &worst, &mine, 1);
        status = worst > 1e-6;
        if (me == 0)
            printf("cg: %zu unknowns, %s\n", unknowns, status ? "NOT solved" : "solved");
        free(x);
        free(r);
        free(p);
        free(q);
        shmem_team_destroy(team);
    }
    shmem_finalize();
    return status;
}
