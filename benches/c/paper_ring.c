/* SPDX-License-Identifier: Apache-2.0 */
/* Figures 4 to 7 of the ring paper (Lim & Cha): puts to the neighbour by size, from one host and from all at
 * once; one acknowledged put to the farthest host, from one host and from all at once. One PE on each host. */
#include "bench.h"

enum { LARGEST = 1 << 20, TIMES = 5 };

static char *buffer, *source;

/* Microseconds of a put in a series of `count` to the next PE. */
static double series(size_t bytes, int count, int sends)
{
    int next = (shmem_my_pe() + 1) % shmem_n_pes();
    shmem_barrier_all();
    double begun = now_ns();
    if (sends) {
        for (int i = 0; i < count; i++)
            shmem_putmem_nbi(buffer, source, bytes, next);
        shmem_quiet();
    }
    double us = (now_ns() - begun) / 1e3 / count;
    shmem_barrier_all();
    return us;
}

/* Microseconds of a put to the farthest host and its acknowledgement. */
static double far_put(size_t bytes, int sends)
{
    int target = (shmem_my_pe() + shmem_n_pes() / 2) % shmem_n_pes();
    shmem_barrier_all();
    double begun = now_ns();
    for (int i = 0; i < 8 && sends; i++) {
        shmem_putmem(buffer, source, bytes, target);
        shmem_quiet();
    }
    double us = (now_ns() - begun) / 8e3;
    shmem_barrier_all();
    return us;
}

int main(void)
{
    static double one[TIMES], all[TIMES], far[TIMES], far_all[TIMES];
    shmem_init();
    int me = shmem_my_pe(), n = shmem_n_pes();
    buffer = symmetric(LARGEST);
    source = malloc(LARGEST);
    memset(source, me + 1, LARGEST);
    for (size_t bytes = 4096; bytes <= LARGEST; bytes *= 4) {
        int count = (int)((4u << 20) / bytes);
        if (count > 100)
            count = 100;
        series(bytes, 4, 1);
        for (int time = 0; time < TIMES; time++) {
            one[time] = series(bytes, count, me == 0);
            all[time] = series(bytes, count, 1);
        }
        if (buffer[0] != (me + n - 1) % n + 1 || buffer[bytes - 1] != buffer[0])
            fail("%zu bytes did not arrive", bytes);
        if (me == 0) {
            char name[64];
            snprintf(name, sizeof name, "ring.one_%zu", bytes);
            print_samples(name, "us", one, TIMES);
            snprintf(name, sizeof name, "ring.all_%zu", bytes);
            print_samples(name, "us", all, TIMES);
        }
    }
    for (size_t bytes = 4096; bytes <= LARGEST; bytes *= 16) {
        for (int time = 0; time < TIMES; time++) {
            far[time] = far_put(bytes, me == 0);
            far_all[time] = far_put(bytes, 1);
        }
        int from = (me + n - n / 2) % n;
        if (buffer[0] != from + 1 || buffer[bytes - 1] != from + 1)
            fail("%zu bytes did not get to the farthest host", bytes);
        if (me == 0) {
            char name[64];
            snprintf(name, sizeof name, "ring.far_%zu", bytes);
            print_samples(name, "us", far, TIMES);
            snprintf(name, sizeof name, "ring.far_all_%zu", bytes);
            print_samples(name, "us", far_all, TIMES);
        }
    }
    shmem_barrier_all();
    shmem_finalize();
    return 0;
}
