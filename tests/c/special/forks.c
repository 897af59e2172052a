/* SPDX-License-Identifier: Apache-2.0 */
/* Threads of a PE fork at the same time: each child has the static data. After the program has closed the
 * descriptors of the library, or another file has their numbers, a child has them or is told that it cannot. What the
 * program does around forks, by handlers that are older than the job, each process does to its own variables. */
#define _GNU_SOURCE
#include "../check.h"
#include <fcntl.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = 4, FORKS = 200, WITHOUT = 127 };

static long global = 1;
static _Thread_local long forks_begun;
static long children, locked;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void before_fork(void) {
    CHECK(pthread_mutex_lock(&lock) == 0);
    locked++;
    forks_begun++;
}

static void in_parent(void) { pthread_mutex_unlock(&lock); }

static void in_child(void) {
    children++;
    pthread_mutex_unlock(&lock);
}

static int status_of_child(void) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        int seen = global == 100 + me && children == 1 && locked >= forks_begun && pthread_mutex_trylock(&lock) == 0;
        global = -1;
        _exit(seen ? 0 : 1);
    }
    int status = -1;
    CHECK_EQ(waitpid(child, &status, 0), child);
    return status;
}

static void *forks(void *unused) {
    (void)unused;
    for (int i = 0; i < FORKS; i++) CHECK_EQ(status_of_child(), 0);
    return NULL;
}

static void without_descriptors(void) {
    closefrom(3);
    CHECK_EQ(status_of_child(), WITHOUT << 8);
    int other = open("/proc/self/exe", O_RDONLY);
    CHECK(other >= 0);
    for (int i = 0; i < 64; i++) CHECK(dup(other) >= 0);
    CHECK_EQ(status_of_child(), WITHOUT << 8);
}

int main(void) {
    CHECK(pthread_atfork(before_fork, in_parent, in_child) == 0);
    check_start();
    global = 100 + me;
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) CHECK(pthread_create(&threads[i], NULL, forks, NULL) == 0);
    for (int i = 0; i < THREADS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK_EQ(global, 100 + me);
    CHECK_EQ(children, 0);
    CHECK_EQ(locked, THREADS * FORKS);
    shmem_barrier_all();
    /* The launcher takes a PE that has closed its connection for one that has failed. So it is done by a program that
     * this one starts without a launcher. */
    if (getenv("ALONE") != NULL) {
        without_descriptors();
        _exit(0);
    }
    if (me == 0) CHECK_EQ(system("env -i ALONE=1 SHMEM_SYMMETRIC_SIZE=4m /proc/$PPID/exe"), 0);
    return check_done();
}
