/* SPDX-License-Identifier: Apache-2.0 */
/* One of three PEs that share a host dies. Arguments: the PE; how it dies; what the others do then.
 * It dies: "kill" (by the next PE), "script" (the one that has started it is killed), "segv", "abort",
 * "exit" or "leave" (both without shmem_finalize), "closed" (closes all descriptors, so that
 * shmem_finalize fails).
 * The others: "go-on", or wait for it in vain in a "barrier", for a "flag", for a "lock" or in a
 * "reduce", or "die" as well, one after the other. */
#include <sched.h>
#include <shmemx.h>
#include <signal.h>
#include <sys/types.h>
#include <unistd.h>

#include "../check.h"

#define LOCKS 16
#define ROUNDS 50
#define WORDS 1000

static int victim;
/* Static data: reached by mapping or, with SHMEM_STATIC=cma, by copies and requests. */
static long tally, words[WORDS];

static int is(const char *word, const char *other) { return strcmp(word, other) == 0; }

static void die(const char *how, long *pid) {
    volatile int *volatile nowhere = NULL;
    if (is(how, "segv")) *nowhere = 1;
    if (is(how, "abort")) abort();
    if (is(how, "exit")) exit(3);
    if (is(how, "leave")) _exit(0);
    if (is(how, "closed")) {
        closefrom(3);
        shmem_finalize();
        _exit(0);
    }
    long pids[2] = {is(how, "script") ? getppid() : getpid(), getpid()};
    shmem_long_put_signal(pid, pids, 2, (uint64_t *)pid + 2, 1, SHMEM_SIGNAL_SET, next_pe);
    for (;;) pause();
}

/* Operations of every kind are under way to the PE when it dies. */
static void keep_busy_until_lost(const char *how, long *pid, long *count, long *copy) {
    int by_hand = is(how, "kill") || is(how, "script");
    if (by_hand && previous_pe == victim) {
        shmem_signal_wait_until((uint64_t *)pid + 2, SHMEM_CMP_EQ, 1);
        CHECK_EQ(kill((pid_t)pid[0], SIGKILL), 0);
        /* What its script has left behind is ended as well. */
        while (is(how, "script") && kill((pid_t)pid[1], 0) == 0) sched_yield();
    }
    while (!shmemx_pe_is_lost(victim)) {
        shmem_long_atomic_inc(count, victim);
        (void)shmem_long_atomic_fetch_inc(&tally, victim);
        shmem_long_atomic_inc(&tally, victim);
        shmem_long_p(words, 7, victim);
        shmem_long_put_nbi(words, copy, WORDS, victim);
        shmem_long_get(copy, words, WORDS, victim);
        shmem_quiet();
        sched_yield();
    }
}

/* Memory that is mapped stays as it was left; other operations are dropped. */
static void check_operations(long *count) {
    for (int pe = 0; pe < npes; pe++) CHECK_EQ(shmemx_pe_is_lost(pe), pe == victim);
    long *variables[] = {count, &tally};
    for (int i = 0; i < 2; i++) {
        int mapped = shmem_ptr(variables[i], victim) != NULL;
        long before = shmem_long_atomic_fetch_inc(variables[i], victim);
        long after = shmem_long_atomic_fetch(variables[i], victim);
        CHECK(mapped ? after > before : before == 0 && after == 0);
    }
    int mapped = shmem_ptr(words, victim) != NULL;
    static long copy[WORDS];
    for (int i = 0; i < WORDS; i++) copy[i] = 5;
    shmem_long_put(words, copy, WORDS, victim);
    shmem_long_p(words, 5, victim);
    for (int i = 0; i < WORDS; i++) copy[i] = -1;
    shmem_long_get(copy, words, WORDS, victim);
    for (int i = 0; i < WORDS; i++) CHECK_EQ(copy[i], mapped ? 5 : 0);
    CHECK_EQ(shmem_long_g(words, victim), mapped ? 5 : 0);
}

/* Locks work though some have their queue at the lost PE, where that is mapped. */
static void check_locks(shmem_team_t others, long *locks, long *count) {
    if (shmem_ptr(locks, victim) == NULL) return;
    int home = shmem_team_translate_pe(others, 0, SHMEM_TEAM_WORLD);
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < LOCKS; i++) {
            shmem_set_lock(locks + i);
            shmem_long_p(count + i, shmem_long_g(count + i, home) + 1, home);
            shmem_clear_lock(locks + i);
        }
    }
    CHECK_EQ(shmem_team_sync(others), 0);
    for (int i = 0; i < LOCKS; i++) CHECK_EQ(shmem_long_g(count + i, home), 2 * ROUNDS);
}

static void check_each_other(shmem_team_t others, uint64_t *signals, long *values) {
    int other = shmem_team_translate_pe(others, 1 - shmem_team_my_pe(others), SHMEM_TEAM_WORLD);
    for (int round = 1; round <= ROUNDS; round++) {
        long value = VALUE(me, round);
        shmem_long_put_signal(values, &value, 1, signals, (uint64_t)round, SHMEM_SIGNAL_SET, other);
        shmem_signal_wait_until(signals, SHMEM_CMP_GE, (uint64_t)round);
        CHECK_EQ(values[0], VALUE(other, round));
        values[1] = me + round;
        CHECK_EQ(shmem_long_sum_reduce(others, values + 2, values + 1, 1), 0);
        CHECK_EQ(values[2], me + other + 2 * round);
    }
}

static void wait_in_vain(const char *what, long *flag, long *lock, long *values) {
    if (is(what, "barrier")) shmem_barrier_all();
    if (is(what, "flag")) shmem_long_wait_until(flag, SHMEM_CMP_EQ, 1);
    if (is(what, "lock")) shmem_set_lock(lock);
    if (is(what, "die")) {
        if (me != (victim + 1) % npes)
            while (!shmemx_pe_is_lost((victim + 1) % npes)) sched_yield();
        abort();
    }
    if (is(what, "reduce")) shmem_long_sum_reduce(SHMEM_TEAM_WORLD, values + 1, values, 1);
}

int main(int argc, char **argv) {
    check_start();
    CHECK(argc == 4 && npes == 3);
    victim = atoi(argv[1]);
    long *pid = check_alloc(3, sizeof *pid), *flag = check_alloc(1, sizeof *flag);
    long *count = check_alloc(1 + LOCKS, sizeof *count), *values = check_alloc(3, sizeof *values);
    long *locks = check_alloc(LOCKS, sizeof *locks), *copy = check_alloc(WORDS, sizeof *copy);
    uint64_t *signals = check_alloc(1, sizeof *signals);
    /* Made before anybody is lost, as it takes all PEs. */
    shmem_team_t others;
    shmem_team_split_strided(SHMEM_TEAM_WORLD, victim == 0, victim == 1 ? 2 : 1, 2, NULL, 0, &others);
    if (me == victim && is(argv[3], "lock")) shmem_set_lock(locks);
    shmem_barrier_all();

    if (me == victim) die(argv[2], pid);
    keep_busy_until_lost(argv[2], pid, count, copy);
    if (!is(argv[3], "go-on")) {
        wait_in_vain(argv[3], flag, locks, values);
        return 98;
    }
    /* What the other one has under way as well is over. */
    CHECK_EQ(shmem_team_sync(others), 0);
    check_operations(count);
    check_locks(others, locks, count + 1);
    check_each_other(others, signals, values);
    printf("PE %d went on\n", me);
    shmem_finalize();
    return 0;
}
