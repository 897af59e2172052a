/* SPDX-License-Identifier: Apache-2.0 */
/* A PE writes garbage over memory that it shares with others, while all of them work with each other.
 * Arguments: the PE, a part of the name of the memory file, what is written ("zeros", "ones", "noise"
 * all over, or "words" here and there), and a seed. Nothing is promised for data after that, but the
 * others neither crash nor stay for ever. */
#define _GNU_SOURCE
#include <shmem.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { WORDS = 3000, ROUNDS = 400, HIT = 100, CONTROL = 600 << 10 };

static uint64_t state;

static uint64_t chance(void) {
    state += 0x9e3779b97f4a7c15;
    uint64_t z = state;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
}

static void scribble(uint64_t *words, size_t count, const char *how) {
    if (strcmp(how, "words") == 0) {
        for (int i = 0; i < 200; i++)
            ((volatile uint64_t *)words)[chance() % count] = chance() >> chance() % 64;
        return;
    }
    for (size_t i = 0; i < count; i++) {
        uint64_t noise = how[0] == 'n' ? chance() : how[0] == 'o' ? UINT64_MAX : 0;
        ((volatile uint64_t *)words)[i] = noise;
    }
}

/* What of a file is mapped: of the heap the beginning of this PE's own, which programs do not use. */
static void attack(const char *file, const char *how, const char *own) {
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[400], *ranges[200][2];
    int found = 0;
    while (maps && fgets(line, sizeof line, maps) && found < 200) {
        char *begin, *end, access[8];
        if (!strstr(line, file) || sscanf(line, "%p-%p %7s", (void **)&begin, (void **)&end, access) != 3)
            continue;
        int heap = strstr(file, "heap") != NULL;
        if (access[1] != 'w' || (heap && (own < begin || own >= end))) continue;
        if (heap && end - begin > CONTROL) end = begin + CONTROL;
        ranges[found][0] = begin;
        ranges[found++][1] = end;
    }
    if (maps) fclose(maps);
    for (int i = 0; i < found; i++)
        scribble((uint64_t *)ranges[i][0], (size_t)(ranges[i][1] - ranges[i][0]) / 8, how);
    printf("%d places were hit\n", found);
    fflush(stdout);
}

int main(int argc, char **argv) {
    if (argc != 5) return 2;
    shmem_init();
    int me = shmem_my_pe(), npes = shmem_n_pes();
    int victim = atoi(argv[1]);
    state = strtoull(argv[4], NULL, 0);
    long *heap = shmem_calloc(WORDS + 2, sizeof *heap);
    static long back[WORDS], sum, one = 1;
    shmem_barrier_all();
    for (int round = 0; round < ROUNDS; round++) {
        if (me == victim && round >= HIT && round < HIT + 5)
            attack(argv[2], argv[3], (const char *)heap);
        int pe = (me + 1 + round % npes) % npes;
        shmem_long_put(heap, back, (size_t)(1 + round % WORDS), pe);
        shmem_long_atomic_inc(heap + WORDS, pe);
        (void)shmem_long_atomic_fetch_inc(heap + WORDS + 1, pe);
        shmem_quiet();
        shmem_long_get(back, heap, (size_t)(1 + round * 7 % WORDS), pe);
        if (round % 20 == 0) shmem_long_sum_reduce(SHMEM_TEAM_WORLD, &sum, &one, 1);
    }
    shmem_barrier_all();
    printf("PE %d is through\n", me);
    shmem_finalize();
    return 0;
}
