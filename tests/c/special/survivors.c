/* SPDX-License-Identifier: Apache-2.0 */
/* PEs that go on when others are lost. Argument 1 has a letter per PE: those of the same letter can
 * reach each other to the end, and all others are lost; PEs of letters x and d are killed from outside,
 * those of letter k by themselves. With argument 2, the survivors wait at last for everybody in a
 * "barrier", which must not last for ever, or use "locks" that lie at all PEs; or they do nothing but
 * "test" a variable that a lost PE would have to change. */
#include <shmemx.h>
#include <signal.h>
#include <unistd.h>

#include "../check.h"

#define BYTES 200000
#define ROUNDS 150
#define PES 16
#define LOCKS 64

static const char *group;
static unsigned char *inbox, *out, *back;
static uint64_t *signals;
static long *counter;

static int survives(int pe) { return group[pe] == group[me]; }

static unsigned char value(int pe, int round, int i) { return (unsigned char)(pe + 7 * round + i); }

/* Operations of every kind are under way to everybody when PEs get lost. */
static int all_are_lost(void) {
    int lost = 1;
    for (int pe = 0; pe < npes; pe++) {
        if (!survives(pe)) lost &= shmemx_pe_is_lost(pe);
    }
    return lost;
}

static void keep_busy_until_lost(uint64_t *noise, long *tally, unsigned char *sink) {
    for (int round = 0; !all_are_lost(); round++) {
        static long olds[PES];
        if (round == 3 && group[me] == 'k') raise(SIGKILL);
        for (int pe = 0; pe < npes; pe++) {
            shmem_putmem_signal_nbi(sink, out, BYTES, noise + me, 1, SHMEM_SIGNAL_ADD, pe);
            shmem_long_atomic_inc(tally, pe);
            shmem_getmem_nbi(back, sink, BYTES, pe);
            shmem_long_atomic_fetch_inc_nbi(olds + pe, tally, pe);
            shmem_fence();
            shmem_getmem(back, sink, 1000, pe);
            (void)shmem_long_atomic_fetch_inc(tally, pe);
        }
        shmem_quiet();
    }
}

/* What is done to lost PEs has no effect and ends. */
static void check_drops(void) {
    for (int pe = 0; pe < npes; pe++) {
        CHECK_EQ(shmemx_pe_is_lost(pe), !survives(pe));
        if (survives(pe)) continue;
        shmem_putmem(inbox, out, BYTES, pe);
        shmem_putmem_nbi(inbox, out, BYTES, pe);
        shmem_putmem_signal(inbox, out, BYTES, signals, 1, SHMEM_SIGNAL_SET, pe);
        shmem_long_atomic_inc(counter, pe);
        shmem_fence();
        long old = 5;
        shmem_long_atomic_fetch_add_nbi(&old, counter, 1, pe);
        memset(back, 0xff, BYTES);
        shmem_getmem(back, inbox, BYTES / 2, pe);
        shmem_getmem_nbi(back + BYTES / 2, inbox, BYTES / 2, pe);
        shmem_quiet();
        for (int i = 0; i < BYTES; i++) CHECK_EQ(back[i], 0);
        CHECK_EQ(old, 0);
        CHECK_EQ(shmem_long_atomic_fetch_inc(counter, pe), 0);
        CHECK_EQ(shmem_long_g(counter, pe), 0);
    }
}

static void exchange(int round) {
    unsigned char *place = inbox + (size_t)(round % 2 * npes + me) * BYTES;
    for (int i = 0; i < BYTES; i++) out[i] = value(me, round, i);
    for (int pe = 0; pe < npes; pe++) {
        /* To lost PEs as well: most programs will not look at each operation. */
        shmem_putmem_signal_nbi(place, out, BYTES, signals + me, 1, SHMEM_SIGNAL_ADD, pe);
        shmem_long_atomic_inc(counter, pe);
    }
    shmem_quiet();
    for (int pe = 0; pe < npes; pe++) {
        if (!survives(pe)) continue;
        shmem_signal_wait_until(signals + pe, SHMEM_CMP_GE, (uint64_t)round + 1);
        const unsigned char *from = inbox + (size_t)(round % 2 * npes + pe) * BYTES;
        for (int i = 0; i < BYTES; i++) CHECK_EQ(from[i], value(pe, round, i));
        shmem_getmem(back, place, BYTES, pe);
        CHECK(memcmp(back, out, BYTES) == 0);
    }
}

/* The last two PEs of a letter; made before anybody is lost, as it takes all PEs. */
static shmem_team_t pair(char letter) {
    int last = -1, before = -1;
    for (int pe = 0; pe < npes; pe++) {
        if (group[pe] != letter) continue;
        before = last;
        last = pe;
    }
    shmem_team_t team = SHMEM_TEAM_INVALID;
    if (before >= 0)
        shmem_team_split_strided(SHMEM_TEAM_WORLD, before, last - before, 2, NULL, 0, &team);
    return team;
}

int main(int argc, char **argv) {
    check_start();
    CHECK(argc > 1 && npes <= PES && strlen(argv[1]) == (size_t)npes);
    group = argv[1];
    inbox = check_alloc(2 * (size_t)npes, BYTES);
    signals = check_alloc((size_t)npes, sizeof *signals);
    counter = check_alloc(4, sizeof *counter);
    long *locks = check_alloc(LOCKS, sizeof *locks);
    uint64_t *noise = check_alloc((size_t)npes, sizeof *noise);
    unsigned char *sink = check_alloc(1, BYTES);
    out = calloc(1, BYTES);
    back = calloc(1, BYTES);
    CHECK(out && back);
    shmem_team_t a = pair('a'), b = pair('b');
    shmem_team_t team = a != SHMEM_TEAM_INVALID ? a : b;
    shmem_barrier_all();
    /* Whoever takes a PE away waits for this file. */
    const char *under_way = getenv("CHECK_UNDER_WAY");
    FILE *file = under_way ? fopen(under_way, "w") : NULL;
    if (file) fclose(file);
    /* Or for a line of a PE that is to be lost. Its agent tells with one of its next signs of life, one each second
     * or so, that it has started: until then the others could not do without it. */
    if (getenv("CHECK_READY") && group[me] == 'x') {
        sleep(4);
        puts("ready");
        fflush(stdout);
    }

    while (argc > 2 && strcmp(argv[2], "test") == 0 && !shmem_long_test(counter, SHMEM_CMP_EQ, 1))
        ;
    keep_busy_until_lost(noise, counter + 1, sink);
    check_drops();
    int survivors = 0;
    for (int pe = 0; pe < npes; pe++) survivors += survives(pe);
    /* Fewer where each takes long. */
    const char *told = getenv("CHECK_ROUNDS");
    long rounds = told ? atol(told) : ROUNDS;
    CHECK(rounds > 0);
    for (int round = 0; round < rounds; round++) exchange(round);
    /* The last increments may still be on their way; there are no more than those. */
    shmem_long_wait_until(counter, SHMEM_CMP_GE, rounds * survivors);
    CHECK_EQ(*counter, rounds * survivors);
    if (team != SHMEM_TEAM_INVALID) {
        counter[2] = me + 1;
        CHECK_EQ(shmem_long_sum_reduce(team, counter + 3, counter + 2, 1), 0);
        int other = shmem_team_translate_pe(team, 1 - shmem_team_my_pe(team), SHMEM_TEAM_WORLD);
        CHECK_EQ(counter[3], me + other + 2);
        CHECK_EQ(shmem_team_sync(team), 0);
    }
    if (argc > 2 && strcmp(argv[2], "barrier") == 0) shmem_barrier_all();
    for (int i = 0; argc > 2 && strcmp(argv[2], "locks") == 0 && i < LOCKS; i++) {
        shmem_set_lock(locks + i);
        shmem_clear_lock(locks + i);
    }
    printf("PE %d went on\n", me);
    shmem_finalize();
    free(out);
    free(back);
    return 0;
}
