/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of profiles expect to find: known numbers of known calls. argv[1] "die": PE 1 kills itself
 * before it would finalise; "threads": operations of several threads; "stream": puts for argv[2] seconds to the PE
 * half way round, with pauses in which service threads have to work, and nothing else; "waiters": four threads of
 * PE 1 wait 100 ms, and threads come and go; "uneven": 64 short puts to the next PE, a pause, and again; "forks": a
 * child exits, then a thread puts and lives for 200 ms; "teams": splits, contexts and their ends, five of each;
 * "barriers": argv[2] of them, and nothing else. */
#include <pthread.h>
#include <shmem.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define BLOCK (1 << 20)

static long scalar, sum, word;
static uint64_t seen;

static void *adds(void *unused) {
    (void)unused;
    for (int i = 0; i < 1000; i++) shmem_long_atomic_add(&sum, 1, 0);
    return NULL;
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static void *waits(void *unused) {
    (void)unused;
    shmem_long_wait_until(&word, SHMEM_CMP_EQ, 1);
    return NULL;
}

static void waiters(void) {
    pthread_t threads[4];
    shmem_barrier_all();
    if (shmem_my_pe() == 1) {
        for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, waits, NULL);
        for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
        for (int i = 0; i < 40; i++) {
            pthread_create(&threads[0], NULL, adds, NULL);
            pthread_join(threads[0], NULL);
        }
    } else if (shmem_my_pe() == 0) {
        usleep(100000);
        shmem_long_p(&word, 1, 1);
    }
    shmem_barrier_all();
}

static void uneven(const char *local) {
    char *heap = shmem_calloc(4096, 1);
    int target = (shmem_my_pe() + 1) % shmem_n_pes();
    for (int round = 0; round < 40; round++) {
        for (int i = 0; i < 64; i++) shmem_putmem(heap, local, 64, target);
        usleep(1000);
    }
    heap = shmem_realloc(heap, 8192);
    shmem_free(heap);
}

static void *puts_and_stays(void *target) {
    shmem_long_p(&word, 1, *(int *)target);
    usleep(200000);
    return NULL;
}

static void forks(void) {
    int target = (shmem_my_pe() + 1) % shmem_n_pes();
    pthread_t thread;
    shmem_long_p(&scalar, 1, target);
    pid_t child = fork();
    if (child == 0) exit(0);
    waitpid(child, NULL, 0);
    pthread_create(&thread, NULL, puts_and_stays, &target);
    pthread_join(thread, NULL);
}

static void teams(void) {
    int n = shmem_n_pes();
    shmem_team_config_t config = {.num_contexts = 1};
    for (int i = 0; i < 5; i++) {
        shmem_team_t whole, row, column;
        shmem_ctx_t context;
        shmem_team_split_strided(SHMEM_TEAM_WORLD, 0, 1, n, &config, SHMEM_TEAM_NUM_CONTEXTS, &whole);
        shmem_team_split_2d(SHMEM_TEAM_WORLD, n, NULL, 0, &row, NULL, 0, &column);
        shmem_team_create_ctx(whole, 0, &context);
        for (int k = 0; k < 100; k++) shmem_ctx_long_p(context, &scalar, k, (shmem_my_pe() + 1) % n);
        shmem_ctx_destroy(context);
        shmem_team_destroy(column);
        shmem_team_destroy(row);
        shmem_team_destroy(whole);
    }
}

static void stream(char *heap, const char *local, double seconds) {
    int target = (shmem_my_pe() + shmem_n_pes() / 2) % shmem_n_pes();
    for (double begun = now(); now() < begun + seconds;) {
        for (int i = 0; i < 200; i++) shmem_putmem_nbi(heap, local, 16384, target);
        shmem_quiet();
        for (double paused = now(); now() < paused + 0.005;) {}
    }
    shmem_barrier_all();
}

int main(int argc, char **argv) {
    const char *how = argc > 1 ? argv[1] : "";
    shmem_init();
    int me = shmem_my_pe(), n = shmem_n_pes(), next = (me + 1) % n;
    char *heap = shmem_malloc(BLOCK);
    static char local[BLOCK];
    if (!strcmp(how, "stream")) {
        stream(heap, local, atof(argv[2]));
        shmem_finalize();
        return 0;
    }
    if (!strcmp(how, "barriers")) {
        for (long left = atol(argv[2]); left > 0; left--) shmem_barrier_all();
        shmem_finalize();
        return 0;
    }
    int other = 1;
    if (!strcmp(how, "waiters")) waiters();
    else if (!strcmp(how, "uneven")) uneven(local);
    else if (!strcmp(how, "forks")) forks();
    else if (!strcmp(how, "teams")) teams();
    else other = 0;
    if (other) {
        shmem_finalize();
        return 0;
    }
    memset(local, me, sizeof local);
    for (int i = 0; i < 1000; i++) shmem_long_p(&scalar, i, next);
    for (int i = 0; i < 300; i++) sum += shmem_long_g(&scalar, next);
    for (int i = 0; i < 40; i++) shmem_putmem(heap, local, 100, next);
    for (int i = 0; i < 7; i++) shmem_putmem(heap, local, BLOCK, next);
    for (int i = 0; i < 5; i++) shmem_getmem_nbi(local, heap, 4096, next);
    shmem_quiet();
    shmem_fence();
    sum = 0;
    shmem_barrier_all();
    if (!strcmp(how, "threads")) {
        pthread_t threads[20];
        for (int i = 0; i < 20; i++) pthread_create(&threads[i], NULL, adds, NULL);
        for (int i = 0; i < 20; i++) pthread_join(threads[i], NULL);
    } else {
        for (int i = 0; i < 200; i++) shmem_long_atomic_add(&sum, 1, 0);
        for (int i = 0; i < 20; i++) shmem_long_atomic_fetch_inc(&word, next);
    }
    shmem_long_iput((long *)heap, (long *)local, 2, 2, 10, next);
    shmem_putmem_signal(heap, local, 64, &seen, 1, SHMEM_SIGNAL_ADD, next);
    shmem_signal_wait_until(&seen, SHMEM_CMP_GE, 1);
    /* Long enough to be seen in a timeline, whatever else the machine does. */
    if (me == 0) usleep(500000);
    shmem_barrier_all();
    shmem_int_sum_reduce(SHMEM_TEAM_WORLD, (int *)heap, (int *)heap, 16);
    shmem_broadcastmem(SHMEM_TEAM_WORLD, heap, heap, 0, 0);
    if (!strcmp(how, "die")) {
        shmem_barrier_all();
        if (me == 1) kill(getpid(), SIGKILL);
    }
    if (!strcmp(how, "threads") && me == 0 && sum != 20000L * n) return 3;
    shmem_barrier_all();
    shmem_free(heap);
    shmem_finalize();
    return 0;
}
