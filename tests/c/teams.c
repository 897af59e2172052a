/* SPDX-License-Identifier: Apache-2.0 */
/* Teams: strided and 2D splits of teams and of their parts, numbering, translation, configuration,
 * failure answered on all members, and many alive at once. */
#include "check.h"

static void check_member(shmem_team_t team, int rank, int size) {
    CHECK(team != SHMEM_TEAM_INVALID);
    CHECK_EQ(shmem_team_my_pe(team), rank);
    CHECK_EQ(shmem_team_n_pes(team), size);
    CHECK_EQ(shmem_team_sync(team), 0);
}

static void test_invalid(void) {
    shmem_team_t team = SHMEM_TEAM_WORLD, other = SHMEM_TEAM_WORLD;
    shmem_team_config_t config = {.num_contexts = 3};
    CHECK_EQ(shmem_team_my_pe(SHMEM_TEAM_INVALID), -1);
    CHECK_EQ(shmem_team_n_pes(SHMEM_TEAM_INVALID), -1);
    CHECK(shmem_team_get_config(SHMEM_TEAM_INVALID, SHMEM_TEAM_NUM_CONTEXTS, &config) != 0);
    CHECK_EQ(shmem_team_translate_pe(SHMEM_TEAM_INVALID, 0, SHMEM_TEAM_WORLD), -1);
    CHECK_EQ(shmem_team_translate_pe(SHMEM_TEAM_WORLD, 0, SHMEM_TEAM_INVALID), -1);
    CHECK_EQ(shmem_team_translate_pe(SHMEM_TEAM_WORLD, npes, SHMEM_TEAM_WORLD), -1);
    CHECK_EQ(shmem_team_translate_pe(SHMEM_TEAM_WORLD, -1, SHMEM_TEAM_WORLD), -1);
    CHECK(shmem_team_split_strided(SHMEM_TEAM_INVALID, 0, 1, 1, NULL, 0, &team) != 0);
    CHECK(team == SHMEM_TEAM_INVALID);
    team = SHMEM_TEAM_WORLD;
    CHECK(shmem_team_split_2d(SHMEM_TEAM_INVALID, 1, NULL, 0, &team, NULL, 0, &other) != 0);
    CHECK(team == SHMEM_TEAM_INVALID && other == SHMEM_TEAM_INVALID);
    /* Triplets that leave the parent. */
    int bad[][3] = {{0, 1, npes + 1}, {npes, 1, 1}, {-1, 1, 1}, {0, -1, 2}, {0, 1, 0}};
    for (int i = 0; i < 5; i++) {
        team = SHMEM_TEAM_WORLD;
        CHECK(shmem_team_split_strided(SHMEM_TEAM_WORLD, bad[i][0], bad[i][1], bad[i][2], NULL, 0,
                                       &team) != 0);
        CHECK(team == SHMEM_TEAM_INVALID);
    }
    shmem_team_destroy(SHMEM_TEAM_INVALID);
}

static void test_strided(void) {
    for (int stride = -3; stride <= 3; stride++) {
        int size = stride == 0 ? 1 : (npes + abs(stride) - 1) / abs(stride);
        int start = stride < 0 ? (size - 1) * -stride : 0;
        shmem_team_t team;
        CHECK_EQ(shmem_team_split_strided(SHMEM_TEAM_WORLD, start, stride, size, NULL, 0, &team),
                 0);
        int rank = -1;
        for (int i = 0; i < size; i++) {
            if (start + i * stride == me) rank = i;
        }
        if (rank < 0) {
            CHECK(team == SHMEM_TEAM_INVALID);
            continue;
        }
        check_member(team, rank, size);
        for (int i = 0; i < size; i++) {
            CHECK_EQ(shmem_team_translate_pe(team, i, SHMEM_TEAM_WORLD), start + i * stride);
            CHECK_EQ(shmem_team_translate_pe(SHMEM_TEAM_WORLD, start + i * stride, team), i);
        }
        for (int pe = 0; pe < npes; pe++) {
            int member = stride == 0 ? pe == start : (pe - start) % stride == 0;
            CHECK_EQ(shmem_team_translate_pe(SHMEM_TEAM_WORLD, pe, team) >= 0, member);
        }
        shmem_team_destroy(team);
    }
    shmem_barrier_all();
}

/* Every second PE, of them all but the first, of them the last: members only make the next call. */
static void test_nested(void) {
    shmem_team_t even, rest = SHMEM_TEAM_INVALID;
    int evens = (npes + 1) / 2;
    CHECK_EQ(shmem_team_split_strided(SHMEM_TEAM_WORLD, 0, 2, evens, NULL, 0, &even), 0);
    if (even != SHMEM_TEAM_INVALID && evens > 1) {
        CHECK_EQ(shmem_team_split_strided(even, 1, 1, evens - 1, NULL, 0, &rest), 0);
        if (me == 0) {
            CHECK(rest == SHMEM_TEAM_INVALID);
        } else {
            check_member(rest, me / 2 - 1, evens - 1);
            CHECK_EQ(shmem_team_translate_pe(rest, 0, SHMEM_TEAM_WORLD), 2);
            CHECK_EQ(shmem_team_translate_pe(rest, 0, even), 1);
            shmem_team_t odd_out;
            CHECK_EQ(shmem_team_split_strided(rest, evens - 2, 1, 1, NULL, 0, &odd_out), 0);
            CHECK_EQ(odd_out != SHMEM_TEAM_INVALID, me == 2 * (evens - 1));
            shmem_team_destroy(odd_out);
        }
    }
    shmem_team_destroy(rest);
    shmem_team_destroy(even);
    shmem_barrier_all();
}

static void test_2d(void) {
    for (int xrange = 1; xrange <= npes + 1; xrange++) {
        int x_size = xrange < npes ? xrange : npes;
        shmem_team_t x, y;
        CHECK_EQ(shmem_team_split_2d(SHMEM_TEAM_WORLD, xrange, NULL, 0, &x, NULL, 0, &y), 0);
        int row = me / x_size, column = me % x_size;
        int rows = (npes + x_size - 1) / x_size;
        int last_row = npes - (rows - 1) * x_size;
        check_member(x, column, row == rows - 1 ? last_row : x_size);
        check_member(y, row, column < last_row ? rows : rows - 1);
        for (int i = 0; i < shmem_team_n_pes(x); i++)
            CHECK_EQ(shmem_team_translate_pe(x, i, SHMEM_TEAM_WORLD), row * x_size + i);
        for (int i = 0; i < shmem_team_n_pes(y); i++)
            CHECK_EQ(shmem_team_translate_pe(y, i, SHMEM_TEAM_WORLD), i * x_size + column);
        shmem_team_t xx, xy; /* a row, split again: 2 wide */
        CHECK_EQ(shmem_team_split_2d(x, 2, NULL, 0, &xx, NULL, 0, &xy), 0);
        CHECK_EQ(shmem_team_my_pe(xx), shmem_team_n_pes(x) < 2 ? 0 : column % 2);
        shmem_team_destroy(xx);
        shmem_team_destroy(xy);
        shmem_team_destroy(x);
        shmem_team_destroy(y);
    }
    shmem_barrier_all();
}

static void test_config(void) {
    shmem_team_config_t config = {.num_contexts = 4}, read = {.num_contexts = -1};
    shmem_team_t team, plain;
    CHECK_EQ(shmem_team_split_strided(SHMEM_TEAM_WORLD, 0, 1, npes, &config,
                                      SHMEM_TEAM_NUM_CONTEXTS, &team), 0);
    CHECK_EQ(shmem_team_get_config(team, SHMEM_TEAM_NUM_CONTEXTS, &read), 0);
    CHECK_EQ(read.num_contexts, 4);
    read.num_contexts = -1;
    CHECK_EQ(shmem_team_get_config(team, 0, &read), 0);
    CHECK_EQ(read.num_contexts, -1);
    CHECK_EQ(shmem_team_get_config(team, 0, NULL), 0);
    /* What the mask does not name is ignored. */
    CHECK_EQ(shmem_team_split_strided(SHMEM_TEAM_WORLD, 0, 1, npes, &config, 0, &plain), 0);
    CHECK_EQ(shmem_team_get_config(plain, SHMEM_TEAM_NUM_CONTEXTS, &read), 0);
    CHECK_EQ(read.num_contexts, 0);
    /* A negative number is no more than 0. */
    shmem_team_t none;
    config.num_contexts = -1;
    CHECK_EQ(shmem_team_split_strided(SHMEM_TEAM_WORLD, 0, 1, npes, &config,
                                      SHMEM_TEAM_NUM_CONTEXTS, &none), 0);
    CHECK_EQ(shmem_team_get_config(none, SHMEM_TEAM_NUM_CONTEXTS, &read), 0);
    CHECK_EQ(read.num_contexts, 0);
    shmem_team_destroy(team);
    shmem_team_destroy(plain);
    shmem_team_destroy(none);
}

/* Handles differ, teams do not disturb one another, and their place is free after destruction. */
static void test_many(void) {
    enum { TEAMS = 64 };
    long *sum = check_alloc(1, sizeof *sum), *one = check_alloc(1, sizeof *one);
    for (int round = 0; round < 3; round++) {
        shmem_team_t teams[TEAMS];
        for (int t = 0; t < TEAMS; t++) {
            CHECK_EQ(shmem_team_split_strided(SHMEM_TEAM_WORLD, 0, 1, 1 + t % npes, NULL, 0,
                                              &teams[t]), 0);
            CHECK_EQ(teams[t] != SHMEM_TEAM_INVALID, me <= t % npes);
            for (int u = 0; u < t; u++)
                CHECK(teams[t] == SHMEM_TEAM_INVALID || teams[t] != teams[u]);
        }
        *one = 1;
        for (int t = TEAMS - 1; t >= 0; t--) {
            if (teams[t] == SHMEM_TEAM_INVALID) continue;
            CHECK_EQ(shmem_long_sum_reduce(teams[t], sum, one, 1), 0);
            CHECK_EQ(*sum, 1 + t % npes);
            shmem_team_sync(teams[t]);
        }
        for (int t = 0; t < TEAMS; t++) shmem_team_destroy(teams[t]);
    }
    shmem_free(sum);
    shmem_free(one);
}

static void test_sync(void) {
    long *slot = check_alloc((size_t)npes, sizeof *slot);
    for (long round = 1; round <= 50; round++) {
        /* A store: sync makes it visible. A put to another host needs a quiet as well. */
        long *remote = shmem_ptr(slot + me, next_pe);
        if (remote != NULL) {
            *remote = round;
        } else {
            shmem_long_p(slot + me, round, next_pe);
            shmem_quiet();
        }
        switch (round % 4) {
        case 0: shmem_sync_all(); break;
        case 1: CHECK_EQ(shmem_team_sync(SHMEM_TEAM_WORLD), 0); break;
        case 2: CHECK_EQ(shmem_sync(SHMEM_TEAM_WORLD), 0); break;
        default:
            /* The standard calls these equivalent. */
            if (me % 2) {
                shmem_barrier_all();
            } else {
                shmem_quiet();
                shmem_team_sync(SHMEM_TEAM_WORLD);
            }
        }
        CHECK_EQ(slot[previous_pe], round);
        shmem_sync_all();
    }
    shmem_free(slot);
}

int main(void) {
    check_start();
    test_invalid();
    test_strided();
    test_nested();
    test_2d();
    test_config();
    test_many();
    test_sync();
    return check_done();
}
