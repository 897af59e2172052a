/* SPDX-License-Identifier: Apache-2.0 */
/* The heap has the size that was asked for, argv[1] bytes, all of it for the program. */
#include "../check.h"

int main(int argc, char **argv) {
    if (argc != 2) return 99;
    size_t size = strtoul(argv[1], NULL, 10);
    check_start();
    char *all = shmem_malloc(size);
    CHECK((all == NULL) == (size == 0));
    CHECK(shmem_malloc(1) == NULL);
    if (all != NULL) {
        shmem_char_p(&all[size - 1], (char)me, next_pe);
        shmem_barrier_all();
        CHECK_EQ(all[size - 1], (char)previous_pe);
    }
    shmem_free(all);
    return check_done();
}
