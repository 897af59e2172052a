/* SPDX-License-Identifier: Apache-2.0 */
/* The shortest job: what it takes from the launcher's start to its end is start-up and shut-down. */
#include <shmem.h>
#include <stdio.h>

int main(void)
{
    shmem_init();
    printf("PE %d of %d\n", shmem_my_pe(), shmem_n_pes());
    shmem_finalize();
    return 0;
}
