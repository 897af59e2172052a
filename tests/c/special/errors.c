/* SPDX-License-Identifier: Apache-2.0 */
/* One mistake per run, named by argv[1]; the library must end the job and say what was wrong.
 * Exit code 98 means that it did not notice. */
#include "../check.h"

static long global[16];
static const long constants[16] = {1, 2, 3};

static void before_init(const char *which) {
    if (strcmp(which, "before-init") == 0) shmem_long_p(global, 1, 0);
    if (strcmp(which, "barrier-before-init") == 0) shmem_barrier_all();
    if (strcmp(which, "malloc-before-init") == 0) shmem_malloc(8);
}

static void after_finalize(const char *which) {
    if (strcmp(which, "after-finalize") == 0) shmem_long_p(global, 1, 0);
    if (strcmp(which, "barrier-after-finalize") == 0) shmem_barrier_all();
}

int main(int argc, char **argv) {
    if (argc != 2) return 99;
    const char *which = argv[1];
    before_init(which);
    check_start();
    long *heap = check_alloc(16, sizeof *heap), *freed = check_alloc(16, sizeof *heap);
    long *small = check_alloc(4, sizeof *heap);
    long stack[32] = {0};
#define CASE(NAME) if (strcmp(which, NAME) == 0)
    CASE("pe-too-large") shmem_long_p(heap, 1, npes);
    CASE("pe-negative") shmem_long_g(heap, -1);
    CASE("pe-out-of-team") {
        shmem_team_t team;
        shmem_ctx_t ctx;
        shmem_team_config_t config = {.num_contexts = 1};
        shmem_team_split_strided(SHMEM_TEAM_WORLD, 0, 1, npes, &config, SHMEM_TEAM_NUM_CONTEXTS,
                                 &team);
        CHECK_EQ(shmem_team_create_ctx(team, 0, &ctx), 0);
        shmem_ctx_long_p(ctx, heap, 1, npes);
    }
    CASE("not-symmetric") shmem_long_p(stack, 1, 0);
    CASE("constant") shmem_long_put((long *)(size_t)constants, stack, 4, 1 - me);
    CASE("not-symmetric-amo") shmem_long_atomic_inc(stack, 0);
    CASE("not-symmetric-wait") shmem_long_wait_until(stack, SHMEM_CMP_EQ, 0);
    CASE("past-heap") shmem_putmem(heap, stack, (size_t)1 << 40, 0);
    /* One element too many. The next block follows at once. */
    CASE("past-block") shmem_long_put(heap, stack, 17, 1 - me);
    CASE("past-variables") {
        shmem_long_wait_until_all(heap, 17, NULL, SHMEM_CMP_EQ, 0);
    }
    CASE("past-fcollect") shmem_long_fcollect(SHMEM_TEAM_WORLD, heap, freed, 9);
    CASE("short-source") shmem_long_broadcast(SHMEM_TEAM_WORLD, heap, small, 5, 0);
    CASE("null-source") shmem_long_put(heap, NULL, 4, 1 - me);
    CASE("past-static") shmem_getmem(heap, global, (size_t)1 << 40, 0);
    CASE("misaligned-amo") shmem_long_atomic_add((long *)(void *)((char *)heap + 3), 1, 0);
    CASE("misaligned-wait") {
        shmem_long_wait_until((long *)(void *)((char *)heap + 4), SHMEM_CMP_EQ, 0);
    }
    CASE("overlapping-put") shmem_long_put(heap + 1, heap, 8, me);
    CASE("overlapping-strides") {
        shmem_long_alltoalls(SHMEM_TEAM_WORLD, heap, heap + 3, 2, 3, 2);
    }
    CASE("overlapping-blocks") shmem_long_fcollect(SHMEM_TEAM_WORLD, heap, heap + 6, 4);
    CASE("no-stride") shmem_long_iput(heap, freed, 0, 1, 4, 0);
    /* Counts whose bytes wrap around to none. */
    const size_t wraps = (size_t)1 << 61;
    CASE("wraps-broadcast") shmem_long_broadcast(SHMEM_TEAM_WORLD, heap, freed, wraps, 0);
    CASE("wraps-collect") shmem_long_collect(SHMEM_TEAM_WORLD, heap, freed, wraps);
    CASE("wraps-alltoalls") {
        shmem_long_alltoalls(SHMEM_TEAM_WORLD, heap, freed, 1, 1, wraps);
    }
    CASE("wraps-stride") {
        shmem_long_alltoalls(SHMEM_TEAM_WORLD, heap, freed, (ptrdiff_t)wraps, 1, 1);
    }
    CASE("wraps-iput") shmem_long_iput(heap, freed, 1, 1, wraps, 0);
    CASE("past-ibget") shmem_long_ibget(freed, heap, 8, 8, 4, 100, 0);
    CASE("wraps-reduce") shmem_long_sum_reduce(SHMEM_TEAM_WORLD, heap, freed, wraps);
    CASE("wraps-fcollect") {
        static long sync[SHMEM_COLLECT_SYNC_SIZE];
        shmem_fcollect64(heap, freed, wraps, 0, 0, npes, sync);
    }
    CASE("collective-mismatch") {
        shmem_long_sum_reduce(SHMEM_TEAM_WORLD, heap, freed, me == 0 ? 4 : 8);
    }
    CASE("root-mismatch") shmem_long_broadcast(SHMEM_TEAM_WORLD, heap, freed, 4, me == 0 ? 0 : 1);
    CASE("no-root") shmem_long_broadcast(SHMEM_TEAM_WORLD, heap, freed, 4, npes);
    CASE("malloc-mismatch") (void)shmem_malloc(me == 0 ? 64 : 128);
    CASE("use-after-free") {
        shmem_free(freed);
        shmem_long_p(freed, 1, 0);
    }
    CASE("double-free") {
        shmem_free(freed);
        shmem_free(freed);
    }
    CASE("invalid-context") shmem_ctx_long_p(SHMEM_CTX_INVALID, heap, 1, 0);
    CASE("destroyed-context") {
        shmem_ctx_t ctx;
        CHECK_EQ(shmem_ctx_create(0, &ctx), 0);
        shmem_ctx_destroy(ctx);
        shmem_ctx_long_p(ctx, heap, 1, 0);
    }
    CASE("destroyed-team") {
        shmem_team_t team;
        shmem_team_split_strided(SHMEM_TEAM_WORLD, 0, 1, npes, NULL, 0, &team);
        shmem_team_destroy(team);
        shmem_team_n_pes(team);
    }
    CASE("quiet-of-no-pe") shmem_pe_quiet(&npes, 1);
    CASE("invalid-comparison") shmem_long_test(heap, 77, 0);
    CASE("invalid-signal") {
        shmem_long_put_signal(heap, stack, 1, (uint64_t *)(void *)freed, 1, 9, 0);
    }
    CASE("signal-in-dest") {
        uint64_t *signal = (uint64_t *)(void *)(heap + 3);
        shmem_long_put_signal(heap, stack, 4, signal, 1, SHMEM_SIGNAL_SET, 1 - me);
    }
    /* Buffers that only touch, and all of a block. */
    CASE("none") {
        shmem_long_put(heap + 8, heap, 8, me);
        shmem_barrier_all();
        shmem_long_fcollect(SHMEM_TEAM_WORLD, heap, heap + 8, 4);
        shmem_barrier_all();
        shmem_long_fcollect(SHMEM_TEAM_WORLD, heap + 4, heap, 4);
        shmem_barrier_all();
        shmem_long_put(heap, stack, 16, 1 - me);
    }
    shmem_barrier_all();
    shmem_finalize();
    after_finalize(which);
    return 98;
}
