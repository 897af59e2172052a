/* SPDX-License-Identifier: Apache-2.0 */
/* Long puts in pieces, in any order and on several contexts, with atomic operations between them: all of it is there
 * when the flag behind a fence, or the signal, is seen; nothing of it is written afterwards, and each atomic operation is
 * carried out once. Arguments: rounds, seed. */
#include <stdint.h>
#include <time.h>

#include "../check.h"

#define WORDS (1 << 16)
#define LONGEST 20000
#define MOST 512
#define UNUSED 0xeeeeeeeeeeeeeeeeul

static uint64_t flags[64], freed[64];
static long tally;
static int small_tally;
static uint64_t state;

static uint64_t below(uint64_t limit) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state % limit;
}

static uint64_t word(uint64_t round, int from, size_t at) { return round << 40 | (uint64_t)from << 32 | at; }

/* Cuts all words into pieces, and brings them out of order: how many there are. */
static int pieces(size_t at[MOST], size_t len[MOST]) {
    int count = 0;
    for (size_t next = 0; next < WORDS; next += len[count++]) {
        at[count] = next;
        len[count] = count + 1 < MOST ? 1 + below(below(4) == 0 ? 300 : LONGEST) : WORDS;
        if (len[count] > WORDS - next) len[count] = WORDS - next;
    }
    for (int i = count - 1; i > 0; i--) {
        int j = (int)below(i + 1);
        size_t one = at[i], length = len[i];
        at[i] = at[j], len[i] = len[j];
        at[j] = one, len[j] = length;
    }
    return count;
}

/* Adds to variables of any PE: what it has added to both. */
static void add(long added[2]) {
    if (below(3) == 0) {
        shmem_long_atomic_inc(&tally, (int)below(npes));
        added[0]++;
    }
    if (below(5) == 0) {
        (void)shmem_int_atomic_fetch_add(&small_tally, 3, (int)below(npes));
        added[1] += 3;
    }
}

static void send_all(shmem_ctx_t context, uint64_t *to, const uint64_t *from, uint64_t round, int pe, long added[2]) {
    size_t at[MOST], len[MOST];
    int last = pieces(at, len) - 1;
    for (int i = 0; i < last; i++) {
        add(added);
        if (below(2))
            shmem_ctx_uint64_put_nbi(context, to + at[i], from + at[i], len[i], pe);
        else
            shmem_ctx_uint64_put(context, to + at[i], from + at[i], len[i], pe);
    }
    to += at[last], from += at[last];
    int how = (int)below(3);
    if (how == 0) {
        shmem_ctx_fence(context);
        shmem_ctx_uint64_put_signal_nbi(context, to, from, len[last], &flags[me], round, SHMEM_SIGNAL_SET, pe);
        return;
    }
    shmem_ctx_uint64_put_nbi(context, to, from, len[last], pe);
    shmem_ctx_fence(context);
    if (how == 1)
        shmem_ctx_uint64_atomic_set(context, &flags[me], round, pe);
    else
        shmem_ctx_uint64_p(context, &flags[me], round, pe);
}

static void pause_a_little(void) {
    struct timespec time = {0, (long)below(5000000)};
    nanosleep(&time, NULL);
}

int main(int argc, char **argv) {
    int rounds = argc > 1 ? atoi(argv[1]) : 4;
    check_start();
    state = (argc > 2 ? strtoull(argv[2], NULL, 10) : 1) * 7919 + (uint64_t)me * 104729 + 12345;
    uint64_t *memory = check_alloc((size_t)npes * WORDS, sizeof *memory);
    uint64_t *source = malloc((size_t)npes * WORDS * sizeof *source), *back = malloc(WORDS * sizeof *back);
    CHECK(source != NULL && back != NULL);
    shmem_ctx_t context;
    CHECK_EQ(shmem_ctx_create(below(2) ? SHMEM_CTX_PRIVATE : 0, &context), 0);
    static long added[2], all_added[2], found[2], all_found[2];
    for (int round = 1; round <= rounds; round++) {
        for (int pe = next_pe; pe != me; pe = (pe + 1) % npes) {
            uint64_t *own = source + (size_t)pe * WORDS;
            shmem_uint64_wait_until(&freed[pe], SHMEM_CMP_EQ, round - 1);
            for (size_t i = 0; i < WORDS; i++) own[i] = word(round, me, i);
            send_all(below(2) ? context : SHMEM_CTX_DEFAULT, memory + (size_t)me * WORDS, own, round, pe, added);
        }
        for (int pe = next_pe; pe != me; pe = (pe + 1) % npes) {
            const uint64_t *theirs = memory + (size_t)pe * WORDS;
            shmem_uint64_wait_until(&flags[pe], SHMEM_CMP_EQ, round);
            for (size_t i = 0; i < WORDS; i++) CHECK_EQ(theirs[i], word(round, pe, i));
        }
        shmem_quiet();
        shmem_ctx_quiet(context);
        shmem_uint64_get(back, memory + (size_t)me * WORDS, WORDS, next_pe);
        CHECK_EQ(memcmp(back, source + (size_t)next_pe * WORDS, WORDS * sizeof *back), 0);
        shmem_barrier_all();
        /* All puts are complete: none of them writes anything more. */
        for (size_t i = 0; i < (size_t)npes * WORDS; i++) memory[i] = UNUSED;
        pause_a_little();
        for (size_t i = 0; i < (size_t)npes * WORDS; i++) CHECK_EQ(((volatile uint64_t *)memory)[i], UNUSED);
        shmem_barrier_all();
        for (int pe = 0; pe < npes; pe++) shmem_uint64_p(&freed[me], round, pe);
    }
    shmem_ctx_destroy(context);
    shmem_barrier_all();
    found[0] = tally, found[1] = small_tally;
    shmem_long_sum_reduce(SHMEM_TEAM_WORLD, all_added, added, 2);
    shmem_long_sum_reduce(SHMEM_TEAM_WORLD, all_found, found, 2);
    CHECK_EQ(all_found[0], all_added[0]);
    CHECK_EQ(all_found[1], all_added[1]);
    free(back);
    free(source);
    return check_done();
}
