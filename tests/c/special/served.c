/* SPDX-License-Identifier: Apache-2.0 */
/* Whether a PE has a service thread, which does for others what their transports leave to the target:
 * argument "served", or "alone" where nothing is left to it. */
#include <dirent.h>
#include <unistd.h>

#include "../check.h"

/* Threads of this process that have named themselves so. */
static int count(const char *wanted) {
    int found = 0, threads = 0;
    DIR *all = opendir("/proc/self/task");
    CHECK(all != NULL);
    for (struct dirent *entry; (entry = readdir(all)) != NULL;) {
        char path[300], name[32] = "";
        snprintf(path, sizeof path, "/proc/self/task/%s/comm", entry->d_name);
        FILE *file = fopen(path, "r");
        if (entry->d_name[0] == '.' || file == NULL) continue;
        CHECK(fgets(name, sizeof name, file) != NULL);
        fclose(file);
        threads++;
        found += strcmp(name, wanted) == 0;
    }
    closedir(all);
    CHECK(threads > 0);
    return found;
}

int main(int argc, char **argv) {
    check_start();
    CHECK(argc == 2);
    int wanted = strcmp(argv[1], "served") == 0, found = count("shmem-service\n");
    /* A thread that has just started has no name yet. */
    for (int i = 0; i < (wanted ? 500 : 5) && found != 1; i++) {
        usleep(10000);
        found = count("shmem-service\n");
    }
    CHECK_EQ(found, wanted);
    return check_done();
}
