/* SPDX-License-Identifier: Apache-2.0 */
// All PEs put to each other and count for a while. One of them may be stopped meanwhile, as by a
// debugger. Arguments: seconds to go on, the PE that is stopped (or -1), milliseconds it is stopped for.
#include <shmem.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { BYTES = 16384 };

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

// A child stops this process, and lets it go on later.
static void stop_for(long milliseconds) {
    pid_t parent = getpid();
    if (fork() == 0) {
        struct timespec time = {milliseconds / 1000, milliseconds % 1000 * 1000000};
        kill(parent, SIGSTOP);
        nanosleep(&time, NULL);
        kill(parent, SIGCONT);
        _exit(0);
    }
}

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    shmem_init();
    int me = shmem_my_pe(), pes = shmem_n_pes();
    char *data = shmem_malloc((size_t)BYTES * pes), *source = malloc(BYTES);
    long *counter = shmem_calloc(1, sizeof(long)), rounds = 0;
    memset(source, me + 1, BYTES);
    shmem_barrier_all();
    double end = now() + atof(argv[1]);
    if (me == atoi(argv[2])) stop_for(atol(argv[3]));
    // One that is stopped at once may go on after the end.
    do {
        for (int pe = 0; pe < pes; pe++)
            if (pe != me) shmem_putmem_nbi(data + (size_t)BYTES * me, source, BYTES, pe);
        shmem_long_atomic_add(counter, 1, (me + 1) % pes);
        shmem_quiet();
        rounds++;
    } while (now() < end);
    shmem_long_atomic_add(counter, -rounds, (me + 1) % pes);
    shmem_quiet();
    shmem_barrier_all();
    long bad = *counter != 0;
    for (int pe = 0; pe < pes; pe++)
        for (int at = 0; pe != me && at < BYTES; at++) bad += data[(size_t)BYTES * pe + at] != pe + 1;
    printf("PE %d: %ld bad\n", me, bad);
    shmem_barrier_all();
    shmem_finalize();
    return bad != 0;
}
