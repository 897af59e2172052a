/* SPDX-License-Identifier: Apache-2.0 */
/* A thread that runs before shmem_init writes to static variables all the time, also while the data
 * segment is being shared. None of its writes is lost, and what it reads is what it wrote. */
#include "../check.h"
#include <pthread.h>
#include <stdatomic.h>

enum { VARIABLES = 4096, ROOM = 24 << 20 };

/* Far apart, in initialised and in zero data, before and after much that has to be copied. */
static volatile long first[VARIABLES] = {1};
static char much[ROOM];
static volatile long last[VARIABLES];
static atomic_int stop, started;

static void *writer(void *unused) {
    (void)unused;
    static const long step = 1;
    long round = 0;
    while (!atomic_load(&stop)) {
        round += step;
        for (int i = 0; i < VARIABLES; i++) {
            first[i] = round;
            last[i] = round;
            if (first[i] != round || last[i] != round) return (void *)(intptr_t)(i + 1);
        }
        atomic_store(&started, 1);
    }
    for (int i = 0; i < VARIABLES; i++)
        if (first[i] != round || last[i] != round) return (void *)(intptr_t)(i + 1);
    return NULL;
}

int main(void) {
    memset(much, 'm', sizeof much);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, writer, NULL) == 0);
    while (!atomic_load(&started)) sched_yield();
    check_start();
    atomic_store(&stop, 1);
    void *wrong;
    CHECK(pthread_join(thread, &wrong) == 0);
    CHECK_EQ((long)(intptr_t)wrong, 0);
    for (size_t i = 0; i < sizeof much; i++) CHECK(much[i] == 'm');

    /* Peers see what the thread wrote. */
    CHECK_EQ(shmem_long_g((long *)&last[VARIABLES - 1], me), last[VARIABLES - 1]);
    CHECK(shmem_long_g((long *)&first[0], next_pe) > 0);
    return check_done();
}
