/* SPDX-License-Identifier: Apache-2.0 */
/* Threads of every PE queue for the same locks: all wait while another PE holds them, and then add up what only locks
 * keep right, in the order of the queue. A lock that another thread of the PE has or wants is not given to who tests
 * it. */
#include "../check.h"
#include <pthread.h>
#include <unistd.h>

enum { THREADS = 4, TIMES = 100, LOCKS = 3 };

static long locks[LOCKS], sums[LOCKS], waiting;

static void add(int which) {
    long sum = shmem_long_g(&sums[which], 0);
    shmem_long_p(&sums[which], sum + 1, 0);
    shmem_clear_lock(&locks[which]);
}

static void *queue(void *number) {
    __atomic_fetch_add(&waiting, 1, __ATOMIC_RELAXED);
    for (int time = 0; time < TIMES; time++) {
        int which = (int)((time + (long)number) % LOCKS);
        if (time % 4 == 3)
            while (shmem_test_lock(&locks[which])) continue;
        else
            shmem_set_lock(&locks[which]);
        add(which);
    }
    return NULL;
}

static void *test(void *unused) {
    CHECK_EQ(shmem_test_lock(&locks[0]), 1);
    return unused;
}

int main(void) {
    int provided;
    pthread_t threads[THREADS];
    shmem_init_thread(SHMEM_THREAD_MULTIPLE, &provided);
    check_places();
    /* The last PE holds all locks until everybody waits. */
    for (int which = 0; me == npes - 1 && which < LOCKS; which++) shmem_set_lock(&locks[which]);
    if (me == npes - 1) {
        CHECK_EQ(pthread_create(&threads[0], NULL, test, NULL), 0);
        pthread_join(threads[0], NULL);
    }
    shmem_barrier_all();
    for (long i = 0; i < THREADS; i++)
        CHECK_EQ(pthread_create(&threads[i], NULL, queue, (void *)i), 0);
    while (__atomic_load_n(&waiting, __ATOMIC_RELAXED) < THREADS) usleep(1000);
    usleep(20000);
    for (int which = 0; me == npes - 1 && which < LOCKS; which++) shmem_clear_lock(&locks[which]);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    shmem_barrier_all();
    long all = 0;
    for (int which = 0; which < LOCKS; which++) {
        all += sums[which];
        CHECK_EQ(locks[which], 0);
    }
    if (me == 0) CHECK_EQ(all, (long)npes * THREADS * TIMES);
    return check_done();
}
