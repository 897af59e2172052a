/* SPDX-License-Identifier: Apache-2.0 */
/* The profiling interface: a program's own shmem_ routine is called in place of the library's
 * and reaches it by its pshmem_ name. */
#include "check.h"
#include <pshmem.h>

static int calls;

void shmem_long_p(long *dest, long value, int pe) {
    calls++;
    pshmem_long_p(dest, 2 * value, pe);
}

int(shmem_team_sync)(shmem_team_t team) {
    calls += 100;
    return pshmem_team_sync(team);
}

int main(void) {
    check_start();
    static long target;
    shmem_long_p(&target, 4, next_pe);
    shmem_fence(); /* in this order */
    shmem_p(&target, 5L, next_pe); /* the generic is a macro over the routine */
    CHECK_EQ(shmem_sync(SHMEM_TEAM_WORLD), 0);
    CHECK_EQ(calls, 102);
    pshmem_barrier_all();
    CHECK_EQ(target, 10);
    CHECK_EQ(pshmem_long_g(&target, next_pe), 10);
    CHECK_EQ(pshmem_my_pe(), me);
    return check_done();
}
