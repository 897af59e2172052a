/* SPDX-License-Identifier: Apache-2.0 */
/* After shmem_init PEs lose what the library may have had in mind for later. Data must arrive all the
 * same. Arguments: what is lost, and the PE that loses it, or "all".
 * "descriptors": every free descriptor is taken. "closed": all from 3 on are closed; the PE only looks
 * on then, and is killed a second later at the latest. "user": the rights of root are given up. "files": the PE sees no file
 * any more, argument 3 is an empty folder. "memory": nothing can be mapped any more. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <shmemx.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "../check.h"

#define BYTES (700 * 1000)
#define SECONDS 0.8

static int is(const char *word, const char *other) { return strcmp(word, other) == 0; }

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void limit_memory(void) {
    unsigned long pages = 0;
    FILE *own = fopen("/proc/self/statm", "r");
    CHECK(own && fscanf(own, "%lu", &pages) == 1);
    fclose(own);
    struct rlimit limit = {pages * 4096, pages * 4096};
    CHECK_EQ(setrlimit(RLIMIT_AS, &limit), 0);
}

static void lose(const char *what, const char *folder) {
    if (is(what, "descriptors"))
        while (open("/dev/null", O_RDONLY) >= 0) continue;
    else if (is(what, "closed"))
        closefrom(3);
    else if (is(what, "user"))
        CHECK_EQ(setuid(65534), 0);
    else if (is(what, "files"))
        CHECK_EQ(chroot(folder), 0);
    else if (is(what, "memory"))
        limit_memory();
    else
        CHECK(!"a thing that can be lost");
}

static unsigned char byte_of(int from, int round, int i) {
    return (unsigned char)(from * 31 + round * 7 + i + (i >> 8) * 3);
}

/* Puts to all PEs and gets from all, of a length that differs from round to round; every byte is
 * checked. `onlooker` takes part only as a target, as long as it is there. */
static void exchange(unsigned char *inbox, unsigned char *out, unsigned char *back, int round,
                     shmem_team_t team, int onlooker) {
    int len = (int[]){BYTES, 20000, 100, 60, 8, 4097}[round % 6];
    for (int i = 0; i < len; i++) out[i] = byte_of(me, round, i);
    for (int pe = 0; pe < npes; pe++)
        shmem_putmem(inbox + (size_t)me * BYTES, out, (size_t)len, pe);
    shmem_quiet();
    CHECK_EQ(shmem_team_sync(team), 0);
    for (int pe = 0; pe < npes; pe++) {
        for (int i = 0; pe != onlooker && i < len; i++)
            CHECK_EQ(inbox[(size_t)pe * BYTES + (size_t)i], byte_of(pe, round, i));
        memset(back, 0xee, (size_t)len);
        shmem_getmem(back, inbox + (size_t)me * BYTES, (size_t)len, pe);
        int there = pe != onlooker || !shmemx_pe_is_lost(pe);
        CHECK(!there || memcmp(back, out, (size_t)len) == 0);
    }
    CHECK_EQ(shmem_team_sync(team), 0);
}

int main(int argc, char **argv) {
    check_start();
    CHECK(argc >= 3);
    int everybody = is(argv[2], "all"), victim = everybody ? -1 : atoi(argv[2]);
    unsigned char *inbox = check_alloc((size_t)npes, BYTES);
    unsigned char *out = malloc(BYTES), *back = malloc(BYTES);
    int *stop = check_alloc(2, sizeof *stop);
    CHECK(out && back);
    memset(out, 1, BYTES);
    memset(back, 1, BYTES);
    /* The others of three PEs go on without one that is killed. */
    shmem_team_t team = SHMEM_TEAM_WORLD;
    int killed = is(argv[1], "closed");
    if (killed)
        shmem_team_split_strided(SHMEM_TEAM_WORLD, victim == 0, victim == 1 ? 2 : 1, npes - 1, NULL,
                                 0, &team);
    shmem_barrier_all();
    if (everybody || me == victim) lose(argv[1], argv[argc - 1]);
    if (killed && me == victim) {
        sleep(1);
        raise(SIGKILL);
    }

    int round = 0, enough = 0;
    for (double start = seconds(); !enough || round < 12; round++) {
        exchange(inbox, out, back, round, team, killed ? victim : -1);
        *stop = seconds() - start > SECONDS && (!killed || shmemx_pe_is_lost(victim));
        CHECK_EQ(shmem_int_min_reduce(team, stop + 1, stop, 1), 0);
        enough = stop[1];
    }
    printf("PE %d went on\n", me);
    fflush(stdout);
    shmem_finalize();
    return 0;
}
