/* SPDX-License-Identifier: Apache-2.0 */
/* shmem_pe_quiet waits for the PEs that it names alone: while PE 1 is stopped, operations on PE 2 complete. On three
 * hosts of one machine, by a transport of which each PE carries out a part for the others. */
#include <dirent.h>
#include <signal.h>
#include <unistd.h>

#include "../check.h"

#define BYTES 60000

static long pid, counter, value;
static unsigned char inbox[BYTES], outbox[BYTES], got[3][BYTES];

/* Whether all threads of a process are stopped. */
static int is_stopped(long process) {
    char folder[64], name[400], line[256];
    snprintf(folder, sizeof folder, "/proc/%ld/task", process);
    DIR *threads = opendir(folder);
    CHECK(threads != NULL);
    int all = 1;
    for (struct dirent *entry; (entry = readdir(threads)) != NULL;) {
        if (entry->d_name[0] == '.') continue;
        snprintf(name, sizeof name, "%s/%s/stat", folder, entry->d_name);
        FILE *stat = fopen(name, "r");
        if (stat == NULL) continue;
        CHECK(fgets(line, sizeof line, stat) != NULL);
        fclose(stat);
        all &= strstr(line, ") T ") != NULL;
    }
    closedir(threads);
    return all;
}

static void operate(shmem_ctx_t ctx) {
    static long olds[3], sources[3];
    int pes[] = {1, 2};
    memset(got, 0, sizeof got);
    for (int pe = 1; pe <= 2; pe++) {
        olds[pe] = -1;
        sources[pe] = 7000 + pe;
        shmem_ctx_long_put_nbi(ctx, &value, &sources[pe], 1, pe);
        shmem_ctx_putmem_nbi(ctx, inbox, outbox, BYTES, pe);
        shmem_ctx_getmem_nbi(ctx, got[pe], outbox, BYTES, pe);
        shmem_ctx_long_atomic_fetch_inc_nbi(ctx, &olds[pe], &counter, pe);
    }
    shmem_ctx_pe_quiet(ctx, &pes[1], 1);
    CHECK(olds[2] >= 0);
    CHECK_EQ(got[2][0], 2);
    CHECK_EQ(got[2][BYTES - 1], 2);
    CHECK_EQ(shmem_long_g(&value, 2), 7002);
    /* PE 1 has carried out nothing. */
    CHECK_EQ(olds[1], -1);
    CHECK_EQ(got[1][0], 0);
    CHECK_EQ(kill((pid_t)pid, SIGCONT), 0);
    shmem_ctx_pe_quiet(ctx, pes, 2);
    CHECK(olds[1] >= 0);
    CHECK_EQ(got[1][BYTES - 1], 1);
    CHECK_EQ(shmem_long_g(&value, 1), 7001);
}

int main(void) {
    check_start();
    CHECK_EQ(npes, 3);
    memset(outbox, me, BYTES);
    pid = getpid();
    shmem_barrier_all();
    if (me == 0) {
        shmem_ctx_t own;
        CHECK_EQ(shmem_ctx_create(SHMEM_CTX_PRIVATE, &own), 0);
        shmem_ctx_t contexts[] = {SHMEM_CTX_DEFAULT, own};
        pid = shmem_long_g(&pid, 1);
        for (int round = 0; round < 2; round++) {
            CHECK_EQ(kill((pid_t)pid, SIGSTOP), 0);
            while (!is_stopped(pid)) usleep(1000);
            operate(contexts[round]);
        }
        shmem_ctx_destroy(own);
    }
    shmem_barrier_all();
    if (me != 0) {
        CHECK_EQ(counter, 2);
        CHECK_EQ(inbox[BYTES - 1], 0);
    }
    return check_done();
}
