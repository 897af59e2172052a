// SPDX-License-Identifier: Apache-2.0
/* PE 0 puts argv[1] MiB to PE 1 in one call and gets them back in another, while PE 1 waits in a barrier. */
#include "../check.h"

int main(int argc, char **argv) {
    check_start();
    size_t words = (size_t)atol(argv[argc - 1]) << 17;
    long *shared = shmem_malloc(words * sizeof *shared), *own = malloc(words * sizeof *own);
    CHECK(shared != NULL && own != NULL);
    for (size_t i = 0; i < words; i++) own[i] = (long)i * 3;
    shmem_barrier_all();
    if (me == 0) {
        shmem_long_put(shared, own, words, 1);
        shmem_quiet();
    }
    shmem_barrier_all();
    if (me == 1)
        for (size_t i = 0; i < words; i++) CHECK(shared[i] == (long)i * 3);
    for (size_t i = 0; i < words; i++) own[i] = 0;
    shmem_barrier_all();
    if (me == 0) {
        shmem_long_get(own, shared, words, 1);
        for (size_t i = 0; i < words; i++) CHECK(own[i] == (long)i * 3);
    }
    free(own);
    return check_done();
}
