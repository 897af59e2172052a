/* SPDX-License-Identifier: Apache-2.0 */
/* Puts of 64 KiB between two PEs: 20 on the default context, 5 on a context of which nothing is said and 3 on one
 * that is for buffers that are used once, if argv[1] is "call"; 40 on it, when they are used again, and 80 on the
 * default context, when its are used once. Words go along on each. */
#include "../check.h"
#include <shmemx.h>

enum { LEN = 65536 };

static char *dest, source[LEN];
static long *word;

static void put(shmem_ctx_t ctx, int rounds) {
    for (int round = 0; round < rounds; round++) {
        if (ctx == SHMEM_CTX_DEFAULT)
            shmem_putmem(dest, source, LEN, next_pe);
        else
            shmem_ctx_putmem(ctx, dest, source, LEN, next_pe);
        shmem_ctx_putmem_nbi(ctx, dest, source, 32, next_pe);
        shmem_ctx_long_p(ctx, word, rounds + round, next_pe);
    }
    shmem_ctx_quiet(ctx);
}

int main(int argc, char **argv) {
    int by_call = argc > 1 && strcmp(argv[1], "call") == 0;
    check_start();
    dest = check_alloc(LEN, 1);
    word = check_alloc(1, sizeof *word);
    memset(source, me + 1, LEN);

    shmem_ctx_t plain, hinted;
    CHECK(shmem_ctx_create(0, &plain) == 0);
    CHECK(shmem_ctx_create(SHMEM_CTX_PRIVATE, &hinted) == 0);
    if (by_call) {
        CHECK(shmemx_ctx_tune_hint(hinted, 17) != 0);
        CHECK(shmemx_ctx_tune_hint(hinted, SHMEMX_REUSE_COLD) == 0);
        /* What is said of the PE does not concern a context with a hint of its own. */
        CHECK(shmemx_tune_hint(SHMEMX_REUSE_COLD) == 0);
        CHECK(shmemx_tune_hint(SHMEMX_REUSE_HOT) == 0);
    }
    put(SHMEM_CTX_DEFAULT, 20);
    put(plain, 5);
    put(hinted, 3);
    shmem_barrier_all();
    for (int i = 0; i < LEN; i++) CHECK_EQ(dest[i], previous_pe + 1);
    CHECK_EQ(*word, 5);
    shmem_barrier_all();
    if (by_call) {
        CHECK(shmemx_ctx_tune_hint(hinted, SHMEMX_REUSE_HOT) == 0);
        put(hinted, 40);
        CHECK(shmemx_ctx_tune_hint(SHMEM_CTX_DEFAULT, SHMEMX_REUSE_COLD) == 0);
        put(SHMEM_CTX_DEFAULT, 80);
        shmem_barrier_all();
        CHECK_EQ(*word, 159);
    }
    shmem_ctx_destroy(plain);
    shmem_ctx_destroy(hinted);
    return check_done();
}
