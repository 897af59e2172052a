/* SPDX-License-Identifier: Apache-2.0 */
/* PE 0 asks PE 1, which was killed and to which it is connected, to carry out an AMO; it goes on when PE 1 is lost. */
#include <shmemx.h>
#include <signal.h>
#include <unistd.h>

#include "../check.h"

static int pid, told, counter;

int main(void) {
    check_start();
    CHECK_EQ(npes, 2);
    pid = (int)getpid();
    shmem_barrier_all();
    if (me == 1) {
        shmem_int_wait_until(&told, SHMEM_CMP_EQ, 1);
        raise(SIGKILL);
    }
    int other = shmem_int_g(&pid, 1);
    /* Nothing is awaited from it when it dies. */
    shmem_int_p(&told, 1, 1);
    shmem_quiet();
    /* Until its launcher has taken notice of its death. */
    while (kill(other, 0) == 0) usleep(1000);
    /* Of 4 bytes, which no card carries out. */
    CHECK_EQ(shmem_int_atomic_fetch_inc(&counter, 1), 0);
    CHECK(shmemx_pe_is_lost(1));
    puts("went on");
    shmem_finalize();
    return 0;
}
