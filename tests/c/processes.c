/* SPDX-License-Identifier: Apache-2.0 */
/* fork, system and popen in a PE are harmless: children neither disturb the PE's symmetric
 * memory nor the job when they write to their copy, exit, or die. */
#include "check.h"
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static long global = 1;

static void wait_for(pid_t child, int expected_status) {
    int status = -1;
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(status, expected_status);
}

int main(void) {
    check_start();
    long *heap = check_alloc(1, sizeof *heap);
    global = 100 + me;
    *heap = 200 + me;
    shmem_barrier_all();

    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) { /* a private copy of static data: writes stay here */
        int seen = global == 100 + me;
        global = -1;
        exit(seen ? 7 : 8);
    }
    wait_for(child, 7 << 8);
    CHECK_EQ(global, 100 + me);

    child = fork();
    CHECK(child >= 0);
    if (child == 0) raise(SIGKILL);
    wait_for(child, SIGKILL);

    /* A child of a child has what that one wrote. */
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        global = -1;
        pid_t grandchild = fork();
        if (grandchild == 0) {
            int seen = global == -1;
            global = -2;
            _exit(seen ? 3 : 4);
        }
        int status = -1;
        waitpid(grandchild, &status, 0);
        _exit(global == -1 && status == 3 << 8 ? 0 : 1);
    }
    wait_for(child, 0);
    CHECK_EQ(global, 100 + me);

    CHECK_EQ(system("exit 5"), 5 << 8);
    FILE *pipe = popen("echo hello from a child", "r");
    char line[64] = "";
    CHECK(pipe != NULL && fgets(line, sizeof line, pipe) != NULL);
    CHECK(strcmp(line, "hello from a child\n") == 0);
    CHECK_EQ(pclose(pipe), 0);

    /* The PE still communicates, on both segments, in both directions. */
    shmem_barrier_all();
    CHECK_EQ(shmem_long_g(&global, next_pe), 100 + next_pe);
    CHECK_EQ(shmem_long_g(heap, next_pe), 200 + next_pe);
    shmem_barrier_all();
    shmem_long_p(&global, me, next_pe);
    shmem_long_p(heap, me, next_pe);
    shmem_barrier_all();
    CHECK_EQ(global, previous_pe);
    CHECK_EQ(*heap, previous_pe);
    shmem_barrier_all();
    shmem_free(heap);
    return check_done();
}
