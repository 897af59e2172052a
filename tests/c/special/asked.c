/* SPDX-License-Identifier: Apache-2.0 */
/* A thread asks for the thread level while another one waits for the other PEs in shmem_finalize. */
#include "../check.h"
#include <pthread.h>
#include <time.h>
#include <unistd.h>

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void *ask(void *unused) {
    (void)unused;
    usleep(200000);
    double begun = seconds();
    int level = -1;
    shmem_query_thread(&level);
    CHECK_EQ(level, SHMEM_THREAD_MULTIPLE);
    CHECK(seconds() - begun < 0.5);
    return NULL;
}

int main(void) {
    int provided;
    pthread_t thread;
    shmem_init_thread(SHMEM_THREAD_MULTIPLE, &provided);
    check_places();
    shmem_barrier_all();
    if (me == 0)
        CHECK_EQ(pthread_create(&thread, NULL, ask, NULL), 0);
    else
        sleep(1);
    shmem_finalize();
    return me == 0 ? pthread_join(thread, NULL) : 0;
}
