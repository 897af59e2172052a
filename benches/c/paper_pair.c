/* SPDX-License-Identifier: Apache-2.0 */
/* The programs by which the paper on two PCs (Joo & Choi) showed that its library works: rotget, dip, randput and
 * a product of matrices. Each is checked, and its time taken. */
#include "bench.h"

enum { TIMES = 3, ROTATED = 1 << 16, SCALARS = 130000, RANDOM = 20000, SIDE = 20 };

static int me, n;

static uint64_t random_bits(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* Every PE gets the array of the next one. */
static void rotget(void)
{
    static double *source, *got;
    if (!source)
        source = symmetric(ROTATED * sizeof *source), got = malloc(ROTATED * sizeof *got);
    for (long i = 0; i < ROTATED; i++)
        source[i] = me * 1e6 + i;
    shmem_barrier_all();
    int next = (me + 1) % n;
    shmem_double_get(got, source, ROTATED, next);
    for (long i = 0; i < ROTATED; i++)
        if (got[i] != next * 1e6 + i)
            fail("rotget: element %ld", i);
}

/* The inner product of two distributed vectors: every product is put to PE 0 by itself. */
static void dip(void)
{
    static double *products;
    if (!products)
        products = symmetric(SCALARS * sizeof *products);
    shmem_barrier_all();
    for (long i = me; i < SCALARS; i += n)
        shmem_double_p(&products[i], (i % 100) * 2.0, 0);
    shmem_barrier_all();
    if (me == 0) {
        double sum = 0, expected = 0;
        for (long i = 0; i < SCALARS; i++)
            sum += products[i], expected += (i % 100) * 2.0;
        if (sum != expected)
            fail("dip: %g in place of %g", sum, expected);
    }
}

/* Blocks of random length to random places of the other PE; each place belongs to one sender. */
static void randput(void)
{
    enum { PLACES = 1024, PLACE = 64 };
    static uint64_t *memory, expected[PLACES][PLACE];
    if (!memory)
        memory = symmetric((size_t)n * sizeof expected);
    memset(expected, 0, sizeof expected);
    memset(memory, 0, (size_t)n * sizeof expected);
    shmem_barrier_all();
    uint64_t state = (uint64_t)me + 7;
    int other = (me + 1) % n;
    for (long i = 0; i < RANDOM; i++) {
        uint64_t bits = random_bits(&state);
        long place = (long)(bits % PLACES), length = (long)(bits >> 20) % PLACE + 1;
        for (long k = 0; k < length; k++)
            expected[place][k] = bits + (uint64_t)k;
        shmem_uint64_put(memory + ((long)me * PLACES + place) * PLACE, expected[place], (size_t)length, other);
        shmem_fence();
    }
    shmem_barrier_all();
    static uint64_t got[PLACES][PLACE];
    shmem_getmem(got, memory + (long)me * PLACES * PLACE, sizeof got, other);
    if (memcmp(got, expected, sizeof got) != 0)
        fail("randput: not all blocks arrived as they were sent last");
    shmem_barrier_all();
}

/* C = A B, split by columns: every PE gets A from PE 0 and puts its columns of C there. */
static void matmul(void)
{
    static double *a, *b, *c;
    if (!a)
        a = symmetric(sizeof(double) * SIDE * SIDE), b = symmetric(sizeof(double) * SIDE * SIDE),
        c = symmetric(sizeof(double) * SIDE * SIDE);
    for (int i = 0; i < SIDE * SIDE; i++)
        a[i] = i % 7, b[i] = i % 5, c[i] = -1;
    double mine[SIDE * SIDE], column[SIDE];
    shmem_barrier_all();
    shmem_double_get(mine, a, SIDE * SIDE, 0);
    for (int j = me; j < SIDE; j += n) {
        for (int i = 0; i < SIDE; i++) {
            column[i] = 0;
            for (int k = 0; k < SIDE; k++)
                column[i] += mine[i * SIDE + k] * b[k * SIDE + j];
        }
        shmem_double_iput(c + j, column, SIDE, 1, SIDE, 0);
    }
    shmem_barrier_all();
    for (int i = 0; i < SIDE && me == 0; i++)
        for (int j = 0; j < SIDE; j++) {
            double sum = 0;
            for (int k = 0; k < SIDE; k++)
                sum += a[i * SIDE + k] * b[k * SIDE + j];
            if (c[i * SIDE + j] != sum)
                fail("matmul: element %d, %d", i, j);
        }
}

static void timed(const char *name, void (*program)(void))
{
    static double ms[TIMES];
    program();
    for (int time = 0; time < TIMES; time++) {
        shmem_barrier_all();
        double begun = now_ns();
        program();
        shmem_barrier_all();
        ms[time] = (now_ns() - begun) / 1e6;
    }
    if (me == 0)
        print_samples(name, "ms", ms, TIMES);
}

int main(void)
{
    shmem_init();
    me = shmem_my_pe(), n = shmem_n_pes();
    timed("pair.rotget", rotget);
    timed("pair.dip", dip);
    timed("pair.randput", randput);
    timed("pair.matmul", matmul);
    shmem_finalize();
    return 0;
}
