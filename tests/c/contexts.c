/* SPDX-License-Identifier: Apache-2.0 */
/* Contexts: every option, of the world and of teams with team numbering, ordering and completion
 * per context and per PE, sessions, the team of a context, and what the standard says of invalid
 * handles. */
#include "check.h"

static void test_options(void) {
    long options[] = {0, SHMEM_CTX_SERIALIZED, SHMEM_CTX_PRIVATE, SHMEM_CTX_NOSTORE,
                      SHMEM_CTX_SERIALIZED | SHMEM_CTX_NOSTORE,
                      SHMEM_CTX_PRIVATE | SHMEM_CTX_NOSTORE};
    long *x = check_alloc(6, sizeof *x);
    shmem_ctx_t ctx[6];
    for (int i = 0; i < 6; i++) {
        ctx[i] = SHMEM_CTX_INVALID;
        CHECK_EQ(shmem_ctx_create(options[i], &ctx[i]), 0);
        CHECK(ctx[i] != SHMEM_CTX_INVALID && ctx[i] != SHMEM_CTX_DEFAULT);
        for (int k = 0; k < i; k++) CHECK(ctx[k] != ctx[i]);
    }
    for (int i = 0; i < 6; i++) {
        shmem_ctx_long_p(ctx[i], &x[i], me + i, next_pe);
        shmem_ctx_fence(ctx[i]);
        shmem_ctx_long_atomic_add(ctx[i], &x[i], 100, next_pe);
    }
    for (int i = 0; i < 6; i++) shmem_ctx_quiet(ctx[i]);
    shmem_sync_all();
    for (int i = 0; i < 6; i++) CHECK_EQ(x[i], 100 + previous_pe + i);
    for (int i = 0; i < 6; i++) shmem_ctx_destroy(ctx[i]);

    /* The default context, named. */
    shmem_barrier_all();
    shmem_ctx_long_p(SHMEM_CTX_DEFAULT, x, 7, next_pe);
    shmem_ctx_fence(SHMEM_CTX_DEFAULT);
    shmem_ctx_quiet(SHMEM_CTX_DEFAULT);
    shmem_sync_all();
    CHECK_EQ(x[0], 7);
    shmem_free(x);
}

static void test_invalid(void) {
    shmem_team_t team = SHMEM_TEAM_WORLD;
    shmem_ctx_t ctx = SHMEM_CTX_DEFAULT;
    CHECK(shmem_ctx_get_team(SHMEM_CTX_INVALID, &team) != 0);
    CHECK(team == SHMEM_TEAM_INVALID);
    CHECK(shmem_team_create_ctx(SHMEM_TEAM_INVALID, 0, &ctx) != 0);
    CHECK(ctx == SHMEM_CTX_INVALID);
    shmem_ctx_fence(SHMEM_CTX_INVALID); /* these do nothing */
    shmem_ctx_quiet(SHMEM_CTX_INVALID);
    shmem_ctx_destroy(SHMEM_CTX_INVALID);
    shmem_ctx_session_start(SHMEM_CTX_INVALID, SHMEM_CTX_SESSION_BATCH, NULL, 0);
    shmem_ctx_session_stop(SHMEM_CTX_INVALID);
    ctx = SHMEM_CTX_DEFAULT;
    CHECK(shmem_ctx_create(1L << 20, &ctx) != 0); /* no such option */
    CHECK(ctx == SHMEM_CTX_INVALID);
}

static void test_of_world(void) {
    shmem_ctx_t ctx;
    shmem_team_t team = SHMEM_TEAM_INVALID;
    CHECK_EQ(shmem_ctx_get_team(SHMEM_CTX_DEFAULT, &team), 0);
    CHECK(team == SHMEM_TEAM_WORLD);
    CHECK_EQ(shmem_ctx_create(0, &ctx), 0);
    team = SHMEM_TEAM_INVALID;
    CHECK_EQ(shmem_ctx_get_team(ctx, &team), 0);
    CHECK(team == SHMEM_TEAM_WORLD);
    shmem_ctx_destroy(ctx);
}

/* On a context of a team PEs are numbered as in the team: here, in reverse. */
static void test_of_team(void) {
    shmem_team_config_t config = {.num_contexts = 2};
    shmem_team_t reverse, read;
    shmem_ctx_t ctx, second;
    CHECK_EQ(shmem_team_split_strided(SHMEM_TEAM_WORLD, npes - 1, -1, npes, &config,
                                      SHMEM_TEAM_NUM_CONTEXTS, &reverse), 0);
    /* As many at a time as the team is configured for, and no more. */
    for (int i = 0; i < 3; i++) {
        shmem_ctx_t more = SHMEM_CTX_DEFAULT;
        CHECK_EQ(shmem_team_create_ctx(reverse, 0, &ctx), 0);
        CHECK_EQ(shmem_team_create_ctx(reverse, SHMEM_CTX_PRIVATE, &second), 0);
        CHECK(shmem_team_create_ctx(reverse, 0, &more) != 0);
        CHECK(more == SHMEM_CTX_INVALID);
        if (i < 2) shmem_ctx_destroy(ctx), shmem_ctx_destroy(second);
    }
    CHECK_EQ(shmem_ctx_get_team(ctx, &read), 0);
    CHECK(read == reverse);

    long *x = check_alloc(4, sizeof *x);
    uint64_t *signal = check_alloc(1, sizeof *signal);
    int to = shmem_team_translate_pe(SHMEM_TEAM_WORLD, next_pe, reverse);
    CHECK_EQ(to, npes - 1 - next_pe);
    shmem_ctx_long_p(ctx, &x[0], 10 + me, to);
    shmem_ctx_long_atomic_set(second, &x[1], 20 + me, to);
    long value = 30 + me;
    shmem_ctx_long_put_nbi(ctx, &x[2], &value, 1, to);
    shmem_ctx_long_put_signal(ctx, &x[3], &value, 1, signal, 5, SHMEM_SIGNAL_SET, to);
    shmem_signal_wait_until(signal, SHMEM_CMP_EQ, 5);
    CHECK_EQ(x[3], 30 + previous_pe);
    shmem_ctx_quiet(ctx);
    shmem_ctx_quiet(second);
    shmem_sync_all();
    CHECK_EQ(x[0], 10 + previous_pe);
    CHECK_EQ(x[1], 20 + previous_pe);
    CHECK_EQ(x[2], 30 + previous_pe);
    CHECK_EQ(shmem_ctx_long_g(ctx, &x[0], to), 10 + me);
    shmem_sync_all();
    shmem_ctx_destroy(ctx);
    shmem_ctx_destroy(second);
    shmem_team_destroy(reverse);
    shmem_free(x);
    shmem_free(signal);
}

/* Completion towards some PEs; on the default context and on another. */
static void test_pe_quiet(void) {
    long *x = check_alloc(2, sizeof *x);
    shmem_ctx_t ctx;
    CHECK_EQ(shmem_ctx_create(0, &ctx), 0);
    long value = 50 + me, got = 0;
    int targets[] = {next_pe, previous_pe};
    shmem_long_put_nbi(&x[0], &value, 1, next_pe);
    shmem_pe_quiet(targets, 2);
    shmem_ctx_long_put_nbi(ctx, &x[1], &value, 1, next_pe);
    shmem_ctx_pe_quiet(ctx, targets, 1);
    shmem_pe_quiet(NULL, 0);
    shmem_ctx_pe_quiet(ctx, NULL, 0);
    shmem_sync_all();
    CHECK_EQ(x[0], 50 + previous_pe);
    CHECK_EQ(x[1], 50 + previous_pe);
    shmem_long_get_nbi(&got, &x[0], 1, next_pe);
    shmem_pe_quiet(&next_pe, 1);
    CHECK_EQ(got, 50 + me);
    shmem_sync_all();
    shmem_ctx_destroy(ctx);
    shmem_free(x);
}

/* Hints change nothing but time: many small puts and atomics inside nested starts. */
static void test_sessions(void) {
    enum { OPS = 500 };
    long *x = check_alloc(OPS + 1, sizeof *x);
    shmem_ctx_t ctx;
    CHECK_EQ(shmem_ctx_create(SHMEM_CTX_SERIALIZED, &ctx), 0);
    shmem_ctx_session_config_t config = {.total_ops = OPS};
    shmem_ctx_t contexts[] = {ctx, SHMEM_CTX_DEFAULT};
    for (int c = 0; c < 2; c++) {
        shmem_ctx_session_start(contexts[c], SHMEM_CTX_SESSION_BATCH, &config,
                                SHMEM_CTX_SESSION_TOTAL_OPS);
        shmem_ctx_session_start(contexts[c], 0, NULL, 0);
        static long values[OPS];
        for (long i = 0; i < OPS; i++) {
            values[i] = i * (c + 1) + me;
            shmem_ctx_long_put_nbi(contexts[c], &x[i], &values[i], 1, next_pe);
            shmem_ctx_long_atomic_inc(contexts[c], &x[OPS], next_pe);
        }
        shmem_ctx_session_stop(contexts[c]);
        shmem_ctx_quiet(contexts[c]);
        shmem_sync_all();
        for (long i = 0; i < OPS; i++) CHECK_EQ(x[i], i * (c + 1) + previous_pe);
        CHECK_EQ(x[OPS], OPS * (c + 1));
        shmem_sync_all();
    }
    shmem_ctx_destroy(ctx);
    shmem_free(x);
}

/* A put, a fence, a flag: whoever sees the flag sees the data. */
static void test_fence(void) {
    long *data = check_alloc(1, sizeof *data), *flag = check_alloc(1, sizeof *flag);
    for (long i = 1; i <= 200; i++) {
        shmem_long_put_nbi(data, &i, 1, next_pe);
        shmem_fence();
        shmem_long_p(flag, i, next_pe);
        shmem_long_wait_until(flag, SHMEM_CMP_GE, i);
        CHECK_EQ(*data, i);
        shmem_quiet();
        shmem_sync_all();
    }
    shmem_free(data);
    shmem_free(flag);
}

int main(void) {
    check_start();
    test_options();
    test_invalid();
    test_of_world();
    test_of_team();
    test_pe_quiet();
    test_sessions();
    test_fence();
    return check_done();
}
