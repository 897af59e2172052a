/* shmem_ptr and shmem_team_ptr: loads, stores and CPU atomics through them on heap and static
 * data. */
#include "check.h"

static long global[4];
static long in_bss_end[100000];

/* All PEs are on this host unless the launcher was told to emulate several. */
static int is_here(int pe) {
    return shmem_team_translate_pe(SHMEM_TEAM_WORLD, pe, SHMEM_TEAM_SHARED) >= 0;
}

static void check_object(long *object) {
    memset(object, 0, 4 * sizeof *object);
    shmem_barrier_all();
    CHECK(shmem_ptr(object, me) == object);
    for (int pe = 0; pe < npes; pe++) {
        long *remote = shmem_ptr(object, pe);
        CHECK((remote != NULL) == is_here(pe));
        CHECK(shmem_team_ptr(SHMEM_TEAM_WORLD, object, pe) == remote);
        shmem_long_atomic_add(object + 1, 1, pe);
        if (remote) {
            __atomic_fetch_add(remote, 1, __ATOMIC_RELAXED);
            __atomic_fetch_add(remote + 1, 1, __ATOMIC_RELAXED); /* mixes with the library's */
        } else {
            shmem_long_atomic_inc(object, pe);
            shmem_long_atomic_inc(object + 1, pe);
        }
    }
    long *remote = shmem_ptr(object, next_pe);
    if (remote) remote[2] = me + 1;
    else shmem_long_p(object + 2, me + 1, next_pe);
    shmem_barrier_all();
    CHECK_EQ(object[0], npes);
    CHECK_EQ(object[1], 2 * npes);
    CHECK_EQ(object[2], previous_pe + 1);
    CHECK(!remote || remote[2] == me + 1);
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
    int shared = shmem_team_n_pes(SHMEM_TEAM_SHARED), found = 0;
    for (int pe = 0; pe < npes; pe++) found += is_here(pe);
    CHECK_EQ(shared, found);
    CHECK_EQ(shmem_team_translate_pe(SHMEM_TEAM_SHARED, shmem_team_my_pe(SHMEM_TEAM_SHARED),
                                     SHMEM_TEAM_WORLD), me);
    for (int pe = 0; pe < shared; pe++) CHECK(shmem_team_ptr(SHMEM_TEAM_SHARED, heap, pe) != NULL);
    CHECK_EQ(shmem_team_sync(SHMEM_TEAM_SHARED), 0);

    shmem_free(heap);
    return check_done();
}
