/* SPDX-License-Identifier: Apache-2.0 */
/* Half of an MPMD job: argv[1] says which program this is; PE numbers run through the programs
 * in order. */
#include "../check.h"

int main(int argc, char **argv) {
    check_start();
    if (argc != 2) return 99;
    char *roles = check_alloc((size_t)npes, 1);
    for (int pe = 0; pe < npes; pe++) shmem_char_p(&roles[me], argv[1][0], pe);
    shmem_barrier_all();
    if (me == 0) printf("roles %.*s\n", npes, roles);
    shmem_free(roles);
    return check_done();
}
