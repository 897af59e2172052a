/* shmem_ptr and shmem_team_ptr: loads, stores and CPU atomics through them on heap and static
 * data. */
#include "check.h"

static long global[4];
static long in_bss_end[100000];

static void check_object(long *object) {
    memset(object, 0, 4 * sizeof *object);
    shmem_barrier_all();
    CHECK(shmem_ptr(object, me) == object);
    for (int pe = 0; pe < npes; pe++) {
        long *remote = shmem_ptr(object, pe);
        CHECK(remote != NULL); /* all PEs are on this host */
        CHECK(shmem_team_ptr(SHMEM_TEAM_WORLD, object, pe) == remote);
        __atomic_fetch_add(remote, 1, __ATOMIC_RELAXED);
        shmem_long_atomic_add(object + 1, 1, pe);
        __atomic_fetch_add(remote + 1, 1, __ATOMIC_RELAXED); /* mixes with the library's atomics */
    }
    long *remote = shmem_ptr(object, next_pe);
    remote[2] = me + 1;
    shmem_barrier_all();
    CHECK_EQ(object[0], npes);
    CHECK_EQ(object[1], 2 * npes);
    CHECK_EQ(object[2], previous_pe + 1);
    CHECK_EQ(remote[2], me + 1);
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

    /* SHMEM_TEAM_SHARED are those for whom this works: here, all. */
    CHECK_EQ(shmem_team_n_pes(SHMEM_TEAM_SHARED), npes);
    CHECK_EQ(shmem_team_my_pe(SHMEM_TEAM_SHARED), me);
    for (int pe = 0; pe < npes; pe++) CHECK(shmem_team_ptr(SHMEM_TEAM_SHARED, heap, pe) != NULL);
    CHECK_EQ(shmem_team_sync(SHMEM_TEAM_SHARED), 0);

    shmem_free(heap);
    return check_done();
}
