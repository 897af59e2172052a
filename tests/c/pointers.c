/* SPDX-License-Identifier: Apache-2.0 */
/* shmem_ptr and shmem_team_ptr: loads, stores and CPU atomics through them on heap and static
 * data. */
#include "check.h"

static long global[4];
static long in_bss_end[100000];

/* Where memory is shared, and only there, a pointer can be had. */
static int shares(int pe) {
    return shmem_team_translate_pe(SHMEM_TEAM_WORLD, pe, SHMEM_TEAM_SHARED) >= 0;
}

static void check_object(long *object) {
    memset(object, 0, 4 * sizeof *object);
    shmem_barrier_all();
    CHECK(shmem_ptr(object, me) == object);
    for (int pe = 0; pe < npes; pe++) {
        long *remote = shmem_ptr(object, pe);
        CHECK((remote != NULL) == shares(pe));
        CHECK(shmem_team_ptr(SHMEM_TEAM_WORLD, object, pe) == remote);
        shmem_long_atomic_add(object + 1, 1, pe);
        if (remote == NULL) continue;
        __atomic_fetch_add(remote, 1, __ATOMIC_RELAXED);
        __atomic_fetch_add(remote + 1, 1, __ATOMIC_RELAXED); /* mixes with the library's atomics */
    }
    long *remote = shmem_ptr(object, next_pe);
    if (remote != NULL)
        remote[2] = me + 1;
    else
        shmem_long_p(object + 2, me + 1, next_pe);
    shmem_barrier_all();
    CHECK_EQ(object[0], shmem_team_n_pes(SHMEM_TEAM_SHARED));
    CHECK_EQ(object[1], npes + shmem_team_n_pes(SHMEM_TEAM_SHARED));
    CHECK_EQ(object[2], previous_pe + 1);
    if (remote != NULL) CHECK_EQ(remote[2], me + 1);
    CHECK_EQ(shmem_long_g(object + 2, next_pe), me + 1);
    shmem_barrier_all();
}

int main(void) {
    check_start();
    long *heap = check_alloc(4, sizeof *heap);
    check_object(heap);
    check_object(global);
    check_object(in_bss_end + 100000 - 4);

    long local = 0;
    CHECK(shmem_ptr(&local, next_pe) == NULL || npes == 1);
    CHECK(shmem_team_ptr(SHMEM_TEAM_INVALID, heap, 0) == NULL);

    /* PE numbers are the team's. */
    shmem_team_t reverse;
    CHECK_EQ(shmem_team_split_strided(SHMEM_TEAM_WORLD, npes - 1, -1, npes, NULL, 0, &reverse), 0);
    for (int pe = 0; pe < npes; pe++) {
        CHECK(shmem_team_ptr(reverse, heap, pe) == shmem_ptr(heap, npes - 1 - pe));
        CHECK(shmem_team_ptr(reverse, global, pe) == shmem_ptr(global, npes - 1 - pe));
    }
    shmem_team_destroy(reverse);

    /* SHMEM_TEAM_SHARED are those for whom this works. */
    int sharers = 0;
    for (int pe = 0; pe < npes; pe++) sharers += shmem_ptr(heap, pe) != NULL;
    CHECK_EQ(shmem_team_n_pes(SHMEM_TEAM_SHARED), sharers);
    for (int pe = 0; pe < sharers; pe++) CHECK(shmem_team_ptr(SHMEM_TEAM_SHARED, heap, pe) != NULL);
    if (getenv("TOMBOLO_HOST") == NULL && getenv("CHECK_APART") == NULL)
        CHECK_EQ(sharers, npes); /* all PEs are on this host */
    CHECK_EQ(shmem_team_sync(SHMEM_TEAM_SHARED), 0);

    shmem_free(heap);
    return check_done();
}
