/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Breadth-first search: how many steps each vertex of a graph is away from vertex 0.
 *
 *   oshcc -O2 bfs.c -o bfs && oshrun -n 4 ./bfs [vertices [edges per vertex]]
 *
 * Vertices are spread over the PEs in turn. Who reaches a vertex of another PE claims it there by a
 * compare-and-swap of its level; the one PE that wins enters it into the next list of its owner, at a place
 * that a fetch-and-increment gives out. A reduction after each level tells whether there is another.
 * At the end PE 0 draws how many vertices each level has.
 */
#include <shmem.h>
#include <stdio.h>
#include <stdlib.h>

static uint64_t number(uint64_t i)
{
    uint64_t x = (i + 1) * 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static void draw(const uint64_t *counts, int levels)
{
    static const char bar[] = "##################################################";
    uint64_t most = 1;
    for (int i = 0; i < levels; i++)
        most = counts[i] > most ? counts[i] : most;
    for (int i = 0; i < levels; i++) {
        double part = (double)counts[i] / (double)most;
        printf("level %2d %10llu %.*s\n", i, (unsigned long long)counts[i],
               1 + (int)(part * (sizeof bar - 2)), bar);
    }
}

int main(int argc, char **argv)
{
    static uint64_t lengths[2]; /* of the lists of this level and of the next */
    shmem_init();
    size_t me = shmem_my_pe(), n_pes = shmem_n_pes();
    size_t vertices = argc > 1 ? strtoul(argv[1], NULL, 10) : 5000;
    size_t degree = argc > 2 ? strtoul(argv[2], NULL, 10) : 3;
    size_t room = vertices / n_pes + 1;
    int *level = shmem_malloc(room * sizeof *level);
    uint64_t *lists[2] = {shmem_malloc(room * sizeof **lists), shmem_malloc(room * sizeof **lists)};
    uint64_t *counts = calloc(vertices + 1, sizeof *counts); /* vertices of each level */
    if (!level || !lists[0] || !lists[1] || !counts || vertices == 0)
        shmem_global_exit(1);
    for (size_t i = 0; i < room; i++)
        level[i] = -1;
    if (me == 0) {
        level[0] = 0;
        lists[0][0] = 0;
        lengths[0] = 1;
    }
    shmem_barrier_all();

    static uint64_t found, all_found = 1;
    int depth = 0;
    for (; all_found > 0; depth++) {
        int now = depth % 2, next = 1 - now;
        counts[depth] = all_found;
        found = 0;
        for (size_t i = 0; i < lengths[now]; i++) {
            uint64_t vertex = lists[now][i];
            for (size_t edge = 0; edge < degree; edge++) {
                uint64_t other = number(vertex * degree + edge) % vertices;
                int pe = other % n_pes;
                int *place = &level[other / n_pes];
                if (shmem_int_atomic_compare_swap(place, -1, depth + 1, pe) != -1)
                    continue;
                uint64_t at = shmem_uint64_atomic_fetch_inc(&lengths[next], pe);
                shmem_uint64_p(&lists[next][at], other, pe);
                found++;
            }
        }
        lengths[now] = 0;
        shmem_barrier_all(); /* lists are complete, and the old one is empty everywhere */
        shmem_uint64_sum_reduce(SHMEM_TEAM_WORLD, &all_found, &found, 1);
    }

    static uint64_t mine[2], all[2]; /* vertices reached, sum of their levels */
    for (size_t i = 0; me + i * n_pes < vertices; i++) {
        mine[0] += level[i] >= 0;
        mine[1] += level[i] >= 0 ? level[i] : 0;
    }
    shmem_uint64_sum_reduce(SHMEM_TEAM_WORLD, all, mine, 2);
    if (me == 0) {
        draw(counts, depth);
        printf("bfs: %llu of %zu vertices reached, %d levels, sum of levels %llu\n",
               (unsigned long long)all[0], vertices, depth, (unsigned long long)all[1]);
    }
    free(counts);
    shmem_finalize();
    return 0;
}
