/* SPDX-License-Identifier: Apache-2.0 */
/* The first thread of each PE ends, another one goes on: its PE is reached as before, and can reach others. The process
 * ends with its last thread. */
#define _GNU_SOURCE
#include "../check.h"
#include <pthread.h>
#include <unistd.h>

static pthread_t first;
static long global[2];

static void *goes_on(void *unused) {
    (void)unused;
    CHECK(pthread_join(first, NULL) == 0);
    long *heap = check_alloc(2000, sizeof *heap);
    /* Now nobody has a first thread any more. */
    shmem_barrier_all();
    for (int i = 0; i < 2000; i++) heap[i] = 1000 * me + i;
    shmem_barrier_all();
    static long copy[2000];
    shmem_long_get(copy, heap, 2000, next_pe);
    for (int i = 0; i < 2000; i++) CHECK_EQ(copy[i], 1000 * next_pe + i);
    shmem_barrier_all();
    shmem_long_p(&global[0], 5 + me, next_pe);
    shmem_long_atomic_add(&global[1], 7, next_pe);
    shmem_long_put(heap, copy, 2000, next_pe);
    shmem_barrier_all();
    CHECK_EQ(global[0], 5 + previous_pe);
    CHECK_EQ(global[1], 7);
    for (int i = 0; i < 2000; i++) CHECK_EQ(heap[i], 1000 * me + i);
    exit(check_done());
}

int main(void) {
    CHECK_EQ(shmem_init_thread(SHMEM_THREAD_MULTIPLE, &(int){0}), 0);
    check_places();
    first = pthread_self();
    pthread_t other;
    CHECK(pthread_create(&other, NULL, goes_on, NULL) == 0);
    pthread_exit(NULL);
}
