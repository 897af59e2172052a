/* SPDX-License-Identifier: Apache-2.0 */
/* The predefined handles as other languages find them: variables of the library, with the values of the macros. */
#define _GNU_SOURCE
#include "../check.h"
#include <dlfcn.h>

#define CHECK_HANDLE(TYPE, NAME)                     \
    do {                                             \
        TYPE *variable = dlsym(RTLD_DEFAULT, #NAME); \
        CHECK(variable != NULL);                     \
        CHECK(*variable == NAME);                    \
    } while (0)

int main(void) {
    shmem_init();
    check_places();
    CHECK_HANDLE(shmem_ctx_t, SHMEM_CTX_INVALID);
    CHECK_HANDLE(shmem_ctx_t, SHMEM_CTX_DEFAULT);
    CHECK_HANDLE(shmem_team_t, SHMEM_TEAM_INVALID);
    CHECK_HANDLE(shmem_team_t, SHMEM_TEAM_WORLD);
    CHECK_HANDLE(shmem_team_t, SHMEM_TEAM_SHARED);
    shmem_team_t *world = dlsym(RTLD_DEFAULT, "SHMEM_TEAM_WORLD");
    CHECK_EQ(shmem_team_n_pes(*world), shmem_n_pes());
    shmem_finalize();
    return 0;
}
