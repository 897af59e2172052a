/* SPDX-License-Identifier: Apache-2.0 */
/* How PEs end, and how they poll, in the tests of profiles: with known numbers of calls and least times.
 * argv[1] "hang": all but the last PE are in a barrier, to which that one never comes; "die", "exit": it comes to its
 * end 1.2 s after the others have come there, by SIGKILL or by shmem_global_exit(3); "sleep": no PE calls anything;
 * "thread": a second thread of PE 0 waits for a variable, and after 1.2 s the PE kills itself; "early": PE 0 exits
 * with code 1 and never initialises; "poll": PE 0 tests a variable until PE 1 sets it 1 s later, and says how
 * often. */
#include <pthread.h>
#include <shmem.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static long here, flag;
static uint64_t seen;

static void sleep_well(void) { usleep(1200000); }

static void await_others(int others, int me) {
    while (shmem_long_atomic_fetch(&here, me) < others) usleep(1000);
}

static void last_words(const char *how) {
    if (!strcmp(how, "hang")) pause();
    sleep_well();
    if (!strcmp(how, "exit")) shmem_global_exit(3);
    kill(getpid(), SIGKILL);
}

static void *waits(void *unused) {
    (void)unused;
    shmem_long_atomic_inc(&here, 0);
    shmem_long_wait_until(&flag, SHMEM_CMP_EQ, 1);
    return NULL;
}

static void poll(int me) {
    if (me == 1) {
        await_others(1, me);
        sleep(1);
        shmem_long_p(&flag, 1, 0);
    } else if (me == 0) {
        long tests = 1;
        uint64_t sum = 0;
        size_t indices[1];
        shmem_long_atomic_inc(&here, 1);
        while (!shmem_long_test(&flag, SHMEM_CMP_EQ, 1)) tests++;
        for (int i = 0; i < 100000; i++) sum += shmem_signal_fetch(&seen);
        for (int i = 0; i < 1000; i++) shmem_long_wait_until(&flag, SHMEM_CMP_EQ, 1);
        if (shmem_long_test_any(&flag, 0, NULL, SHMEM_CMP_EQ, 1) != SIZE_MAX) sum++;
        if (shmem_long_wait_until_any(&flag, 0, NULL, SHMEM_CMP_EQ, 1) != SIZE_MAX) sum++;
        if (shmem_long_wait_until_some(&flag, 0, indices, NULL, SHMEM_CMP_EQ, 1) != 0) sum++;
        if (sum > 0) exit(4);
        printf("%ld\n", tests);
    }
    shmem_barrier_all();
}

int main(int argc, char **argv) {
    const char *how = argc > 1 ? argv[1] : "";
    const char *rank = getenv("PMI_RANK");
    if (!strcmp(how, "early") && rank && atoi(rank) == 0) {
        sleep(1);
        return 1;
    }
    shmem_init();
    int me = shmem_my_pe(), last = shmem_n_pes() - 1;
    if (!strcmp(how, "sleep")) {
        sleep(60);
    } else if (!strcmp(how, "poll")) {
        poll(me);
    } else if (!strcmp(how, "thread")) {
        pthread_t thread;
        pthread_create(&thread, NULL, waits, NULL);
        await_others(1, me);
        sleep_well();
        kill(getpid(), SIGKILL);
    } else if (me == last) {
        await_others(last, me);
        last_words(how);
    } else {
        shmem_long_atomic_inc(&here, last);
        shmem_barrier_all();
    }
    shmem_finalize();
    return 0;
}
