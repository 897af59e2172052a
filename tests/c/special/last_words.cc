/* SPDX-License-Identifier: Apache-2.0 */
/* PE 0 ends the job by shmem_global_exit(7) and has output that only the normal end of a program writes: in a stream of
 * C++ that is not the C library's, in a file, and in what runs at exit. The others wait. argv[1]: the file; argv[2]:
 * what else there is.
 *
 *   plain     nothing
 *   finalise  a function registered with atexit uses the library and finalises it
 *   wait      one waits for another PE, which comes to nothing any more
 *   again     one calls shmem_global_exit(3)
 *   hang      one never returns
 *   late      shmem_global_exit is called at exit, by a function that was registered before shmem_init
 *   exit      the same by one that was registered after it
 *   thread    a thread calls shmem_global_exit while the main thread is in a barrier
 *   two       two threads do so at the same time
 *   signal    a signal handler does so while the program waits for a variable */
#include "../check.h"
#include <fstream>
#include <iostream>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

static long flag;
static const char *way = "";
static std::ofstream file;

static int is(const char *word) { return strcmp(way, word) == 0; }

static struct Object {
    ~Object() {
        if (me == 0) std::cout << "destroyed\n";
    }
} object;

static void before(void) {
    if (is("late") && me == 0) shmem_global_exit(7);
}

static void after(void) {
    if (me != 0) return;
    std::cout << "at exit\n";
    if (is("exit")) shmem_global_exit(7);
    if (is("again")) shmem_global_exit(3);
    if (is("wait")) shmem_long_wait_until(&flag, SHMEM_CMP_EQ, 1);
    while (is("hang")) pause();
    if (is("finalise")) {
        /* The others do not come to the barriers. */
        CHECK_EQ(shmem_my_pe(), 0);
        shmem_long_p(&flag, 5, 1);
        shmem_quiet();
        CHECK_EQ(shmem_long_g(&flag, 1), 5);
        shmem_barrier_all();
        shmem_sync_all();
        shmem_finalize();
        std::cout << "finalised\n";
    }
}

static void *end_the_job(void *) {
    shmem_global_exit(7);
    return NULL;
}

static void handle(int) { shmem_global_exit(7); }

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    std::ios::sync_with_stdio(false);
    way = argv[2];
    pthread_t threads[2];
    atexit(before);
    int provided;
    shmem_init_thread(SHMEM_THREAD_MULTIPLE, &provided);
    check_places();
    atexit(after);
    shmem_barrier_all();
    while (me != 0) pause();
    std::cout << "in a stream\n";
    printf("in the C library\n");
    file.open(argv[1]);
    file << "in a file\n";
    if (is("late") || is("exit")) return 0;
    if (is("thread") || is("two")) {
        for (int i = 0; i < (is("two") ? 2 : 1); i++) pthread_create(&threads[i], NULL, end_the_job, NULL);
        shmem_barrier_all();
    }
    if (is("signal")) {
        signal(SIGALRM, handle);
        ualarm(100000, 0);
        shmem_long_wait_until(&flag, SHMEM_CMP_EQ, 1);
    }
    shmem_global_exit(7);
}
