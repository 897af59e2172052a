/* SPDX-License-Identifier: Apache-2.0 */
/* The program has closed its standard streams before it initialises the library: what it prints afterwards
 * goes nowhere, and memory of PEs stays as it is. */
#include "../check.h"
#include <sys/stat.h>
#include <unistd.h>

enum { WORDS = 1 << 16 };

static long global[WORDS];

int main(void) {
    for (int stream = 0; stream <= 2; stream++) close(stream);
    check_start();
    long *heap = check_alloc(WORDS, sizeof *heap);
    for (int i = 0; i < WORDS; i++) heap[i] = global[i] = me + i;
    shmem_barrier_all();
    for (int i = 0; i < 200000; i++) {
        printf("to the standard output\n");
        fprintf(stderr, "to the standard error\n");
    }
    char byte;
    while (read(0, &byte, 1) > 0) continue;
    shmem_barrier_all();
    for (int i = 0; i < WORDS; i++) {
        CHECK_EQ(heap[i], me + i);
        CHECK_EQ(global[i], me + i);
        CHECK_EQ(shmem_long_g(&heap[i], next_pe), next_pe + i);
    }
    for (int stream = 0; stream <= 2; stream++) {
        struct stat file;
        CHECK(fstat(stream, &file) == 0 && S_ISCHR(file.st_mode));
    }
    shmem_barrier_all();
    shmem_free(heap);
    return check_done();
}
