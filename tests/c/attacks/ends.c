/* SPDX-License-Identifier: Apache-2.0 */
/* A PE ends, or hurts itself, in some phase of a job; the others do what that phase is about.
 * Arguments: the PE, the way, the phase, and the time in microseconds that it takes in phases which are
 * met by chance. With SHMEM_ON_LOSS=continue the others must go on and find their data right.
 *
 * Ways that end the PE: a signal by name, "exit" (code 3), "_exit", "quick_exit" and "exec" (code 0,
 * none of which finalizes), "closefrom" (all descriptors from 3 on are closed).
 * Ways that it must survive: "fork" (a child that outlives it), "descriptors", "space" and "locked"
 * (limits on open files, address space and locked memory), "user" (gives up the rights of root) and
 * "root" (sees no file any more).
 * Phases: "before" and "init" (shmem_init), "exchange" (between two exchanges with the launcher, whose
 * number stands in place of the time), "computing", "rma", "collectives", "locks", "finalize", "after". */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <shmemx.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "../check.h"

enum { WORDS = 3000, ROUNDS = 12, WITH_LOCKS = 4 };

static const char *way, *phase;
static int victim, survives, going_on;
static long delay;
static long tally, ready, *heap, *locks, *back, *out;
static shmem_team_t others = SHMEM_TEAM_INVALID;

static int is(const char *word, const char *other) { return strcmp(word, other) == 0; }

static const struct {
    const char *name;
    int number;
} SIGNALS[] = {{"SIGKILL", SIGKILL}, {"SIGTERM", SIGTERM}, {"SIGSEGV", SIGSEGV}, {"SIGABRT", SIGABRT},
               {"SIGBUS", SIGBUS},   {"SIGFPE", SIGFPE},   {"SIGXCPU", SIGXCPU}, {"SIGSYS", SIGSYS}};

static void limit(int what, rlim_t value) {
    struct rlimit old;
    getrlimit(what, &old);
    struct rlimit new = {value, old.rlim_max};
    CHECK_EQ(setrlimit(what, &new), 0);
}

static void limit_space(void) {
    unsigned long pages = 0;
    FILE *own = fopen("/proc/self/statm", "r");
    CHECK(own && fscanf(own, "%lu", &pages) == 1);
    fclose(own);
    limit(RLIMIT_AS, pages * 4096);
}

static void hurt(void) {
    for (size_t i = 0; i < sizeof SIGNALS / sizeof *SIGNALS; i++)
        if (is(way, SIGNALS[i].name)) kill(getpid(), SIGNALS[i].number);
    if (is(way, "exit")) _exit(3);
    if (is(way, "_exit")) _exit(0);
    if (is(way, "quick_exit")) quick_exit(0);
    if (is(way, "exec")) execlp("true", "true", (char *)NULL);
    if (is(way, "closefrom")) closefrom(3);
    if (is(way, "fork") && fork() == 0) {
        setsid();
        sleep(1000);
        _exit(0);
    }
    if (is(way, "descriptors"))
        while (open("/dev/null", O_RDONLY) >= 0) continue;
    if (is(way, "space")) limit_space();
    if (is(way, "locked")) limit(RLIMIT_MEMLOCK, 0);
    if (is(way, "user") && setuid(65534) != 0) abort();
    if (is(way, "root") && chroot("/proc/self/task") != 0) abort();
}

static void *hurt_soon(void *unused) {
    (void)unused;
    struct timespec time = {delay / 1000000, delay % 1000000 * 1000};
    nanosleep(&time, NULL);
    hurt();
    return NULL;
}

/* While the program goes on. */
static void hurt_meanwhile(void) {
    pthread_t thread;
    CHECK_EQ(pthread_create(&thread, NULL, hurt_soon, NULL), 0);
    pthread_detach(thread);
}

static long word(int from, int round, int i) { return from * 1000003L + round * 10007L + i; }

/* To `pe`, whose place for this PE holds what was put last; atomics beside it. */
static void put_get_amo(int pe, int round) {
    long *place = heap + me * WORDS;
    int count = (int[]){1, 7, 100, WORDS}[round % 4];
    for (int i = 0; i < count; i++) out[i] = word(me, round, i);
    shmem_long_put(place, out, (size_t)count, pe);
    shmem_long_atomic_inc(&tally, pe);
    (void)shmem_long_atomic_fetch_inc(&tally, pe);
    shmem_quiet();
    shmem_long_get(back, place, (size_t)count, pe);
    /* Who has closed its network may find the others lost before it is ended. */
    if (pe == victim || (me == victim && shmemx_pe_is_lost(pe))) return;
    for (int i = 0; i < count; i++) CHECK_EQ(back[i], out[i]);
}

/* Answers of the launcher to this PE that ended an exchange; -1 where they are not counted. */
static long answers = -1;

static ssize_t count_answers(int fd, const char *bytes, ssize_t count) {
    if (answers >= 0 && count > 0 && fd == atoi(getenv("PMI_FD")) &&
        memmem(bytes, (size_t)count, "barrier_out", 11) != NULL && ++answers == delay) {
        answers = -1;
        hurt();
    }
    return count;
}

/* What the library calls in place of the C library's. */
ssize_t recv(int fd, void *bytes, size_t size, int flags) {
    return count_answers(fd, bytes, syscall(SYS_recvfrom, fd, bytes, size, flags, NULL, NULL));
}

ssize_t read(int fd, void *bytes, size_t size) {
    return count_answers(fd, bytes, syscall(SYS_read, fd, bytes, size));
}

static void compute(void) {
    struct timespec time = {0, 2000000};
    nanosleep(&time, NULL);
}

/* One round of the phase among `team`, which the victim is in unless others go on without it. */
static void one_round(shmem_team_t team, int round) {
    if (is(phase, "collectives")) {
        long *sums = heap + npes * WORDS;
        int members = shmem_team_n_pes(team), base = 0;
        for (int pe = 0; pe < members; pe++)
            base += shmem_team_translate_pe(team, pe, SHMEM_TEAM_WORLD);
        for (int i = 0; i < WORDS; i++) sums[i] = me + round + i;
        CHECK_EQ(shmem_long_sum_reduce(team, sums + WORDS, sums, WORDS), 0);
        for (int i = 0; i < WORDS; i++)
            CHECK_EQ(sums[WORDS + i], base + (long)members * (round + i));
        CHECK_EQ(shmem_long_broadcast(team, sums + 2 * WORDS, sums, WORDS, 0), 0);
        for (int i = 0; shmem_team_my_pe(team) != 0 && i < WORDS; i++)
            CHECK_EQ(sums[2 * WORDS + i], shmem_team_translate_pe(team, 0, SHMEM_TEAM_WORLD) + round + i);
        CHECK_EQ(shmem_team_sync(team), 0);
    } else if (is(phase, "locks") && !going_on) {
        shmem_set_lock(locks);
        long count = shmem_long_g(locks + 1, 0);
        shmem_long_p(locks + 1, count + 1, 0);
        shmem_quiet();
        shmem_clear_lock(locks);
    } else if (is(phase, "computing")) {
        compute();
    } else {
        for (int pe = 0; pe < npes; pe++) put_get_amo(pe, round);
    }
}

/* Whether the victim is known to be lost: in collective work, to all of the team. */
static int is_lost(shmem_team_t team) {
    static int known, of_all;
    known = shmemx_pe_is_lost(victim);
    if (!is(phase, "collectives")) return known;
    CHECK_EQ(shmem_int_min_reduce(team, &of_all, &known, 1), 0);
    return of_all;
}

static void do_work(void) {
    shmem_team_t team = going_on && !survives ? others : SHMEM_TEAM_WORLD;
    int ends = !survives && !is(phase, "finalize") && !is(phase, "after");
    if (going_on && me == victim && ends)
        for (int round = 0;; round++) put_get_amo(previous_pe, round);
    for (int round = 0; ends && (!going_on || !is_lost(team)); round++)
        one_round(team, round);
    int rounds = is(phase, "locks") ? WITH_LOCKS : ROUNDS;
    for (int round = 0; round < rounds; round++) one_round(team, round);
    if (is(phase, "locks") && !going_on) {
        shmem_barrier_all();
        CHECK_EQ(shmem_long_g(locks + 1, 0), (long)rounds * npes);
    }
}

/* Who still waits in the barrier before a phase would wait for the victim there: it is hurt after that. */
static void await_phase(void) {
    if (me == victim) {
        shmem_long_wait_until(&ready, SHMEM_CMP_EQ, npes - 1);
        hurt_meanwhile();
    } else {
        shmem_long_atomic_inc(&ready, victim);
        shmem_quiet();
    }
}

int main(int argc, char **argv) {
    static const char *const WAYS[] = {"fork", "descriptors", "space", "locked", "user", "root"};
    if (argc != 5) return 2;
    victim = atoi(argv[1]);
    way = argv[2];
    phase = argv[3];
    delay = atol(argv[4]);
    const char *on_loss = getenv("SHMEM_ON_LOSS");
    going_on = on_loss && is(on_loss, "continue");
    for (int i = 0; i < 6; i++) survives |= is(way, WAYS[i]);
    /* Set by oshrun. */
    int number = atoi(getenv("PMI_RANK"));
    if (number == victim && is(phase, "before")) hurt();
    if (number == victim && is(phase, "init")) hurt_meanwhile();
    if (number == victim && is(phase, "exchange")) answers = 0;
    check_start();
    /* There were not so many. */
    if (answers >= 0) {
        answers = -1;
        hurt_meanwhile();
    }
    if (going_on)
        shmem_team_split_strided(SHMEM_TEAM_WORLD, victim == 0, victim == 1 ? 2 : 1, 2, NULL, 0,
                                 &others);
    heap = check_alloc((size_t)(npes + 3) * WORDS, sizeof *heap);
    locks = check_alloc(2, sizeof *locks);
    back = calloc(WORDS, sizeof *back);
    out = calloc(WORDS, sizeof *out);
    CHECK(back && out);
    if (!is(phase, "init") && !is(phase, "exchange")) shmem_barrier_all();

    int now = is(phase, "computing") || is(phase, "rma") || is(phase, "collectives") ||
              is(phase, "locks");
    if (now) await_phase();
    do_work();
    if (me != victim || survives) printf("PE %d went on\n", me);
    fflush(stdout);
    if (me == victim && is(phase, "finalize")) hurt_meanwhile();
    shmem_finalize();
    if (me == victim && is(phase, "after")) hurt();
    /* Until it is hurt at last. */
    if (me == victim && is(phase, "finalize") && !survives && !is(way, "closefrom")) sleep(20);
    return 0;
}
