/* SPDX-License-Identifier: Apache-2.0 */
/* Team collectives that move data: broadcast, collect, fcollect, alltoall, alltoalls; every type
 * and the byte forms, typed and generic, over the world, over every second PE, and over the PEs
 * in reverse. */
#include "check.h"
#include "types.h"

#define N     5
#define PES   (npes > 16 ? npes : 16)
static shmem_team_t team;
static int size, rank;

#define CLEAR() for (int i = 0; i < 4 * N * PES; i++) dest[i] = 0

#define BROADCAST(T, TYPE, CALL)                                                                   \
    for (int root = 0; root < size; root++) {                                                      \
        CLEAR();                                                                                   \
        for (int i = 0; i < N; i++) source[i] = VALUE(rank + root, i);                             \
        shmem_team_sync(team);                                                                     \
        CHECK_EQ(CALL(T, broadcast, , team, dest, source, N, root), 0);                            \
        for (int i = 0; i < N; i++) CHECK_EQ(dest[i], VALUE(2 * root, i));                         \
        CHECK_EQ(dest[N], 0);                                                                      \
        shmem_team_sync(team);                                                                     \
    }

/* PE r of the team gives r % 3 * 2 elements: some give none. */
#define COLLECT(T, TYPE, CALL)                                                                     \
    do {                                                                                           \
        CLEAR();                                                                                   \
        for (int i = 0; i < N; i++) source[i] = VALUE(rank, i);                                    \
        shmem_team_sync(team);                                                                     \
        CHECK_EQ(CALL(T, collect, , team, dest, source, (size_t)(rank % 3 * 2)), 0);               \
        int at = 0;                                                                                \
        for (int pe = 0; pe < size; pe++) {                                                        \
            for (int i = 0; i < pe % 3 * 2; i++) CHECK_EQ(dest[at++], VALUE(pe, i));               \
        }                                                                                          \
        CHECK_EQ(dest[at], 0);                                                                     \
        shmem_team_sync(team);                                                                     \
        CHECK_EQ(CALL(T, fcollect, , team, dest, source, N), 0);                                   \
        for (int i = 0; i < size * N; i++) CHECK_EQ(dest[i], VALUE(i / N, i % N));                 \
        CHECK_EQ(dest[size * N], 0);                                                               \
        shmem_team_sync(team);                                                                     \
    } while (0)

#define ALLTOALL(T, TYPE, CALL)                                                                    \
    do {                                                                                           \
        CLEAR();                                                                                   \
        for (int i = 0; i < 4 * N * PES; i++) source[i] = VALUE(rank, i);                          \
        shmem_team_sync(team);                                                                     \
        CHECK_EQ(CALL(T, alltoall, , team, dest, source, N), 0);                                   \
        for (int i = 0; i < size * N; i++)                                                         \
            CHECK_EQ(dest[i], VALUE(i / N, rank * N + i % N));                                     \
        CHECK_EQ(dest[size * N], 0);                                                               \
        shmem_team_sync(team);                                                                     \
        CLEAR();                                                                                   \
        shmem_team_sync(team);                                                                     \
        CHECK_EQ(CALL(T, alltoalls, , team, dest, source, 2, 3, N), 0);                            \
        for (int i = 0; i < size * N; i++) {                                                       \
            CHECK_EQ(dest[2 * i], VALUE(i / N, 3 * (rank * N + i % N)));                           \
            CHECK_EQ(dest[2 * i + 1], 0);                                                          \
        }                                                                                          \
        shmem_team_sync(team);                                                                     \
    } while (0)

#define ALL(T, TYPE, CALL) BROADCAST(T, TYPE, CALL) COLLECT(T, TYPE, CALL); ALLTOALL(T, TYPE, CALL);
#define TEST(T, TYPE, ...)                                                                         \
    static void test_##T(TYPE *dest, TYPE *source) {                                               \
        ALL(T, TYPE, TYPED)                                                                        \
        ALL(T, TYPE, GENERIC)                                                                      \
    }
RMA_TYPES(TEST, ~)

/* broadcastmem and the rest count bytes. */
static void test_mem(uint8_t *dest, uint8_t *source) { ALL(mem, uint8_t, SIZED) }

/* Elements of one buffer may lie between those of the other. */
static void test_interleaved(long *both) {
    for (int i = 0; i < 2 * N * size; i++) both[2 * i + 1] = VALUE(rank, i);
    shmem_team_sync(team);
    CHECK_EQ(shmem_long_alltoalls(team, both, both + 1, 4, 2, N), 0);
    for (int i = 0; i < size * N; i++) CHECK_EQ(both[4 * i], VALUE(i / N, rank * N + i % N));
    for (int i = 0; i < 2 * N * size; i++) CHECK_EQ(both[2 * i + 1], VALUE(rank, i));
    shmem_team_sync(team);
}

/* Nothing is moved, so there need be no buffers. */
static void test_nothing(void) {
    CHECK_EQ(shmem_long_broadcast(team, NULL, NULL, 0, 0), 0);
    CHECK_EQ(shmem_long_collect(team, NULL, NULL, 0), 0);
    CHECK_EQ(shmem_long_fcollect(team, NULL, NULL, 0), 0);
    CHECK_EQ(shmem_long_alltoall(team, NULL, NULL, 0), 0);
    CHECK_EQ(shmem_long_alltoalls(team, NULL, NULL, 1, 1, 0), 0);
    CHECK_EQ(shmem_long_sum_reduce(team, NULL, NULL, 0), 0);
    CHECK_EQ(shmem_long_sum_inscan(team, NULL, NULL, 0), 0);
    CHECK_EQ(shmem_long_sum_exscan(team, NULL, NULL, 0), 0);
    shmem_team_sync(team);
}

int main(void) {
    check_start();
    void *dest = check_alloc(4 * N * PES, sizeof(long double));
    void *source = check_alloc(4 * N * PES, sizeof(long double));
    shmem_team_t even, reverse;
    CHECK_EQ(shmem_team_split_strided(SHMEM_TEAM_WORLD, 0, 2, (npes + 1) / 2, NULL, 0, &even), 0);
    CHECK_EQ(shmem_team_split_strided(SHMEM_TEAM_WORLD, npes - 1, -1, npes, NULL, 0, &reverse), 0);
    shmem_team_t teams[] = {SHMEM_TEAM_WORLD, even, reverse};

    for (int t = 0; t < 3; t++) {
        team = teams[t];
        if (team == SHMEM_TEAM_INVALID) continue;
        size = shmem_team_n_pes(team);
        rank = shmem_team_my_pe(team);
#define RUN(T, TYPE, ...) test_##T(dest, source);
        RMA_TYPES(RUN, ~)
        test_mem(dest, source);
        test_interleaved(source);
        test_nothing();
    }
    shmem_team_destroy(even);
    shmem_team_destroy(reverse);
    shmem_free(dest);
    shmem_free(source);
    return check_done();
}
