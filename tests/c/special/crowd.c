/* SPDX-License-Identifier: Apache-2.0 */
/* For jobs of many PEs. Argument: what happens between two barriers.
 * "nothing"; "kill": the PE in the middle dies by a signal; "hang": it never comes to the second
 * barrier; "counts": PE 0 prints the most descriptors, mappings and KiB of private memory that any PE
 * has got by shmem_init; "reads", "compares", "swaps": a number goes from PE to PE, each waits for it
 * by such an AMO on its own variable, and PE 0 prints how many were in vain for each time that a processor
 * went from one thread to another. */
#include "../check.h"
#include <dirent.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

enum { DESCRIPTORS, MAPPINGS, MEMORY, KINDS };

static long descriptors(void) {
    DIR *folder = opendir("/proc/self/fd");
    CHECK(folder != NULL);
    long count = 0;
    while (readdir(folder)) count++;
    closedir(folder);
    return count;
}

/* Lines of the file, or the number behind `name` in it. */
static long read_from(const char *file, const char *name) {
    FILE *opened = fopen(file, "r");
    CHECK(opened != NULL);
    char line[1024];
    long count = 0;
    for (; fgets(line, sizeof line, opened); count++)
        if (name && strncmp(line, name, strlen(name)) == 0) {
            count = atol(line + strlen(name));
            break;
        }
    fclose(opened);
    return count;
}

static void look(long *found) {
    found[DESCRIPTORS] = descriptors();
    found[MAPPINGS] = read_from("/proc/self/maps", NULL);
    found[MEMORY] = read_from("/proc/self/smaps_rollup", "Anonymous:");
}

/* A lock of one's own variable, which 0 opens, is taken by this AMO; whether it was open. */
static int taken(long *lock, const char *by) {
    if (strcmp(by, "compares") == 0) return shmem_atomic_compare_swap(lock, 0, 1, me) == 0;
    if (strcmp(by, "swaps") == 0) return shmem_atomic_swap(lock, 1, me) == 0;
    return shmem_atomic_fetch(lock, me) == 0 && shmem_atomic_swap(lock, 1, me) == 0;
}

/* How often this PE has left its processor to another thread. */
static long turns(void) {
    struct rusage usage;
    CHECK_EQ(getrusage(RUSAGE_SELF, &usage), 0);
    return usage.ru_nvcsw + usage.ru_nivcsw;
}

static long looks_of_a_turn(const char *by) {
    enum { ROUNDS = 50, LOOKS = 0, TURNS = 1 };
    static long lock = 1, mine[2], all[2];
    shmem_barrier_all();
    mine[TURNS] = -turns();
    for (int round = 0; round < ROUNDS; round++) {
        if (me == 0) shmem_atomic_set(&lock, 0, 1 % npes);
        while (!taken(&lock, by)) mine[LOOKS]++;
        if (me != 0) shmem_atomic_set(&lock, 0, (me + 1) % npes);
    }
    mine[TURNS] += turns();
    CHECK_EQ(shmem_long_sum_reduce(SHMEM_TEAM_WORLD, all, mine, 2), 0);
    return all[LOOKS] / (all[TURNS] + 1);
}

int main(int argc, char **argv) {
    static long before[KINDS], now[KINDS], most[KINDS];
    look(before);
    check_start();
    CHECK_EQ(argc, 2);
    shmem_barrier_all();
    look(now);
    for (int i = 0; i < KINDS; i++) now[i] -= before[i];
    if (me == npes / 2 && strcmp(argv[1], "kill") == 0) raise(SIGKILL);
    if (me == npes / 2 && strcmp(argv[1], "hang") == 0)
        for (;;) pause();
    if (strchr("rcs", argv[1][0]) && strcmp(argv[1], "counts") != 0) {
        long looks = looks_of_a_turn(argv[1]);
        if (me == 0) printf("looks %ld\n", looks);
    }
    shmem_barrier_all();
    CHECK_EQ(shmem_long_max_reduce(SHMEM_TEAM_WORLD, most, now, KINDS), 0);
    if (me == 0 && strcmp(argv[1], "counts") == 0)
        printf("counts %ld %ld %ld\n", most[DESCRIPTORS], most[MAPPINGS], most[MEMORY]);
    return check_done();
}
