/* SPDX-License-Identifier: Apache-2.0 */
/* For jobs of many PEs. Argument: what happens between two barriers.
 * "nothing"; "kill": the PE in the middle dies by a signal; "hang": it never comes to the second
 * barrier; "counts": PE 0 prints the most descriptors, mappings and KiB of private memory that any PE
 * has got by shmem_init. */
#include "../check.h"
#include <dirent.h>
#include <signal.h>
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
    shmem_barrier_all();
    CHECK_EQ(shmem_long_max_reduce(SHMEM_TEAM_WORLD, most, now, KINDS), 0);
    if (me == 0 && strcmp(argv[1], "counts") == 0)
        printf("counts %ld %ld %ld\n", most[DESCRIPTORS], most[MAPPINGS], most[MEMORY]);
    return check_done();
}
