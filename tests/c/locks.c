/* SPDX-License-Identifier: Apache-2.0 */
/* Locks on static and heap memory: mutual exclusion, completion of the critical region's puts,
 * test_lock's answers, several locks at once. */
#include "check.h"

static long static_lock;

static void test_exclusion(long *lock, long *counter, int rounds) {
    for (int i = 0; i < rounds; i++) {
        shmem_set_lock(lock);
        long seen = shmem_long_g(counter, 0); /* not atomic: only the lock protects it */
        shmem_long_p(counter, seen + 1, 0);
        shmem_clear_lock(lock);
    }
    shmem_barrier_all();
    CHECK_EQ(shmem_long_g(counter, 0), (long)rounds * npes);
    shmem_barrier_all();
}

static void test_test_lock(long *lock) {
    static int holder_done;
    holder_done = 0;
    shmem_barrier_all();
    if (me == 0) CHECK_EQ(shmem_test_lock(lock), 0);
    shmem_barrier_all();
    if (me != 0) CHECK_EQ(shmem_test_lock(lock), 1);
    shmem_barrier_all();
    if (me == 0) shmem_clear_lock(lock);
    shmem_barrier_all();
    /* One after the other by trying: each gets it exactly once. */
    while (shmem_test_lock(lock) != 0) {}
    int before = shmem_int_g(&holder_done, 0);
    shmem_int_p(&holder_done, before + 1, 0);
    shmem_clear_lock(lock);
    shmem_barrier_all();
    CHECK_EQ(shmem_int_g(&holder_done, 0), npes);
    shmem_barrier_all();
}

int main(void) {
    check_start();
    long *locks = check_alloc(2, sizeof *locks), *counters = check_alloc(3, sizeof *counters);
    test_exclusion(&static_lock, &counters[0], 200);
    test_exclusion(&locks[0], &counters[1], 200);
    test_test_lock(&locks[0]);
    test_test_lock(&static_lock);

    /* Two locks held together, always taken in the same order. */
    for (int i = 0; i < 50; i++) {
        shmem_set_lock(&locks[0]);
        shmem_set_lock(&locks[1]);
        shmem_long_p(&counters[2], shmem_long_g(&counters[2], 0) + 1, 0);
        shmem_clear_lock(&locks[1]);
        shmem_clear_lock(&locks[0]);
    }
    shmem_barrier_all();
    CHECK_EQ(shmem_long_g(&counters[2], 0), 50L * npes);
    shmem_barrier_all();
    shmem_free(locks);
    shmem_free(counters);
    return check_done();
}
