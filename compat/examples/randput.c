/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Puts of random length to random places of the next PE.
 *
 *   oshcc -O2 randput.c -o randput && oshrun -n 4 ./randput [puts]
 *
 * A later put may hit the place of an earlier one: shmem_fence keeps them in order. What must be there in the end is
 * worked out on the side, and compared with what a get brings back.
 */
#include <shmem.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PLACES = 256, PLACE = 64 };

static uint64_t memory[PLACES][PLACE];
static uint64_t expected[PLACES][PLACE], got[PLACES][PLACE];

static uint64_t random_bits(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

int main(int argc, char **argv)
{
    shmem_init();
    int me = shmem_my_pe(), next = (me + 1) % shmem_n_pes();
    long puts = argc > 1 ? strtol(argv[1], NULL, 10) : 5000;
    uint64_t state = (uint64_t)me + 7;
    shmem_barrier_all();
    for (long i = 0; i < puts; i++) {
        uint64_t bits = random_bits(&state);
        long place = (long)(bits % PLACES);
        size_t length = bits / PLACES % PLACE + 1;
        for (size_t k = 0; k < length; k++)
            expected[place][k] = bits + k;
        shmem_uint64_put(memory[place], expected[place], length, next);
        shmem_fence();
    }
    shmem_barrier_all();
    shmem_getmem(got, memory, sizeof got, next);

    static long wrong, all;
    wrong = memcmp(got, expected, sizeof got) != 0;
    shmem_long_sum_reduce(SHMEM_TEAM_WORLD, &all, &wrong, 1);
    if (me == 0)
        printf("randput: %ld puts from each PE, %s\n", puts, all ? "WRONG" : "all as they were sent last");
    shmem_finalize();
    return all != 0;
}
