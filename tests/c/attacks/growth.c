/* SPDX-License-Identifier: Apache-2.0 */
/* Uses something over and over; descriptors, mappings and memory of the PE must not grow with it after
 * the first quarter.
 * Arguments: "blocks", "contexts", "teams" or "cycles" (of shmem_init and shmem_finalize), and how
 * often. */
#include <dirent.h>
#include <shmem.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { KEPT = 16, FIELDS = 3, QUARTERS = 4 };

static const char *const NAMES[FIELDS] = {"descriptors", "mappings", "pages"};
/* Connections with the two others may be made late. Tables of the C library and of the kernel come in
 * portions: a step at any time, of a few MB at most. */
static const long MORE[FIELDS] = {2, 4, 1500};
/* What is lost in every round grows in every quarter. */
static const long MORE_EACH = 40;

static void wrong(const char *what, long before, long after) {
    fprintf(stderr, "%s: %ld after a quarter, %ld at the end\n", what, before, after);
    fflush(stderr);
    _exit(9);
}

static void count(long *counts) {
    memset(counts, 0, FIELDS * sizeof *counts);
    DIR *open = opendir("/proc/self/fd");
    while (readdir(open) != NULL) counts[0]++;
    closedir(open);
    FILE *maps = fopen("/proc/self/maps", "r");
    for (int c; (c = getc(maps)) != EOF;) counts[1] += c == '\n';
    fclose(maps);
    FILE *sizes = fopen("/proc/self/statm", "r");
    if (fscanf(sizes, "%*d %ld", counts + 2) != 1) wrong("statm", 0, 0);
    fclose(sizes);
}

static void blocks(int round) {
    static char *kept[KEPT];
    char **place = kept + round % KEPT;
    shmem_free(*place);
    size_t size = 1 + (size_t)round * 7919 % 100000;
    *place = round % 3 ? shmem_malloc(size) : shmem_align(256, size);
    if (*place == NULL) wrong("blocks", round, 0);
    (*place)[0] = (*place)[size - 1] = (char)round;
}

static void contexts(int round) {
    static long words[2];
    static const long OPTIONS[] = {0, SHMEM_CTX_PRIVATE, SHMEM_CTX_SERIALIZED, SHMEM_CTX_NOSTORE};
    shmem_ctx_t ctx;
    if (shmem_ctx_create(OPTIONS[round % 4], &ctx) != 0) wrong("contexts", round, 0);
    long value = round;
    int next = (shmem_my_pe() + 1) % shmem_n_pes();
    shmem_ctx_long_put_nbi(ctx, words, &value, 1, next);
    shmem_ctx_long_atomic_inc(ctx, words + 1, next);
    shmem_ctx_destroy(ctx);
}

static void teams(int round) {
    int n = shmem_n_pes(), size = 1 + round % n;
    shmem_team_t team = SHMEM_TEAM_INVALID;
    if (shmem_team_split_strided(SHMEM_TEAM_WORLD, 0, 1, size, NULL, 0, &team) != 0)
        wrong("teams", round, 0);
    shmem_ctx_t ctx = SHMEM_CTX_INVALID;
    if (team != SHMEM_TEAM_INVALID && round % 5 == 0) shmem_team_create_ctx(team, 0, &ctx);
    if (team != SHMEM_TEAM_INVALID) shmem_team_sync(team);
    if (ctx != SHMEM_CTX_INVALID) shmem_ctx_destroy(ctx);
    if (team != SHMEM_TEAM_INVALID) shmem_team_destroy(team);
}

static void cycles(int round) {
    (void)round;
    shmem_finalize();
    shmem_init();
    char *block = shmem_malloc(100000);
    memset(block, 1, 100000);
    shmem_barrier_all();
}

/* Counted at the end of each quarter. */
static void compare(long counts[QUARTERS][FIELDS]) {
    int growing = 0;
    for (int quarter = 1; quarter < QUARTERS; quarter++)
        growing += counts[quarter][FIELDS - 1] > counts[quarter - 1][FIELDS - 1] + MORE_EACH;
    for (int field = 0; field < FIELDS; field++) {
        long before = counts[0][field], after = counts[QUARTERS - 1][field];
        int grows = field == FIELDS - 1 && growing == QUARTERS - 1;
        if (grows || after > before + MORE[field]) wrong(NAMES[field], before, after);
    }
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*use)(int round);
    } USES[] = {{"blocks", blocks}, {"contexts", contexts}, {"teams", teams}, {"cycles", cycles}};
    if (argc != 3) return 2;
    int rounds = atoi(argv[2]);
    long counts[QUARTERS][FIELDS];
    shmem_init();
    for (size_t i = 0; i < sizeof USES / sizeof *USES; i++) {
        if (strcmp(USES[i].name, argv[1]) != 0) continue;
        for (int round = 0, quarter = 0; round < rounds; round++) {
            USES[i].use(round);
            if (round + 1 == rounds * (quarter + 1) / QUARTERS) count(counts[quarter++]);
        }
        if (rounds >= QUARTERS) compare(counts);
        printf("PE %d is flat\n", shmem_my_pe());
    }
    shmem_barrier_all();
    shmem_finalize();
    return 0;
}
