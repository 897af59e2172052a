/* SPDX-License-Identifier: Apache-2.0 */
/* Makes teams until there are no more, and asks for some more. All PEs get the same answers. */
#include "../check.h"

int main(void) {
    enum { ASKED = 300 };
    shmem_team_t teams[ASKED], rows, columns;
    int made = 0;
    check_start();
    for (int i = 0; i < ASKED; i++) {
        int failed = shmem_team_split_strided(SHMEM_TEAM_WORLD, 0, 1, npes, NULL, 0, &teams[i]);
        CHECK_EQ(failed != 0, teams[i] == SHMEM_TEAM_INVALID);
        if (!failed) CHECK_EQ(made++, i);
    }
    CHECK(made > 64 && made < ASKED);
    CHECK(shmem_team_split_2d(SHMEM_TEAM_WORLD, 1, NULL, 0, &rows, NULL, 0, &columns) != 0);
    for (int i = 0; i < made; i++) shmem_team_destroy(teams[i]);
    return check_done();
}
