/* SPDX-License-Identifier: Apache-2.0 */
/* Each PE forks once and then ends without what the C library does at the end of a program: linked with -static it may
 * not get so far. */
#include <shmem.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

int main(void) {
    shmem_init();
    shmem_barrier_all();
    pid_t child = fork();
    if (child == 0) _exit(3);
    int status = 0;
    waitpid(child, &status, 0);
    dprintf(1, "status %d\n", status == 3 << 8);
    shmem_barrier_all();
    _exit(0);
}
