/* SPDX-License-Identifier: Apache-2.0 */
/* Set-up, queries and exit: initialisation counted, thread levels, version and name,
 * accessibility. */
#include "check.h"

static int global = 5;

static int initialized(void) {
    int yes = -1;
    shmem_query_initialized(&yes);
    return yes;
}

int main(void) {
    int provided = -1, local = 0;
    CHECK(!initialized());
    CHECK_EQ(shmem_init_thread(SHMEM_THREAD_FUNNELED, &provided), 0);
    check_places();
    CHECK(initialized());
    CHECK(provided >= SHMEM_THREAD_FUNNELED && provided <= SHMEM_THREAD_MULTIPLE);
    CHECK(npes >= 1 && me >= 0 && me < npes);
    CHECK(me == shmem_team_my_pe(SHMEM_TEAM_WORLD) && npes == shmem_team_n_pes(SHMEM_TEAM_WORLD));

    /* Initialised twice, finalised once: still there. */
    long *kept = check_alloc(1, sizeof *kept);
    shmem_init();
    shmem_long_p(kept, me + 1, next_pe);
    shmem_finalize();
    CHECK(initialized());
    CHECK_EQ(*kept, previous_pe + 1);
    shmem_barrier_all();

    int level = -1;
    shmem_query_thread(&level);
    CHECK_EQ(level, provided);

    int major = 0, minor = 0;
    shmem_info_get_version(&major, &minor);
    CHECK_EQ(major, SHMEM_MAJOR_VERSION);
    CHECK_EQ(minor, SHMEM_MINOR_VERSION);
    char name[SHMEM_MAX_NAME_LEN];
    memset(name, '#', sizeof name);
    shmem_info_get_name(name);
    CHECK(memchr(name, 0, sizeof name) != NULL);
    CHECK(strcmp(name, SHMEM_VENDOR_STRING) == 0);

    for (int pe = 0; pe < npes; pe++) {
        CHECK(shmem_pe_accessible(pe));
        CHECK(shmem_addr_accessible(kept, pe));
        CHECK(shmem_addr_accessible(&global, pe));
        CHECK(!shmem_addr_accessible(&local, pe));
        CHECK(!shmem_addr_accessible(NULL, pe));
    }
    CHECK(!shmem_pe_accessible(npes));
    CHECK(!shmem_pe_accessible(-1));
    shmem_pcontrol(0);
    shmem_pcontrol(2, "more", 3.5, kept);

    shmem_free(kept);
    shmem_finalize();
    CHECK(!initialized());

    /* The level is that of the first call. */
    shmem_init();
    CHECK_EQ(shmem_init_thread(SHMEM_THREAD_MULTIPLE, &provided), 0);
    CHECK_EQ(provided, SHMEM_THREAD_SERIALIZED);
    shmem_query_thread(&level);
    CHECK_EQ(level, SHMEM_THREAD_SERIALIZED);
    shmem_finalize();
    shmem_finalize();
    CHECK(!initialized());
    return 0;
}
