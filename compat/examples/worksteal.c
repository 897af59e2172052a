/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Work stealing: PEs that have nothing left to do take work from others.
 *
 *   oshcc -O2 worksteal.c -o worksteal && oshrun -n 4 ./worksteal [tasks]
 *
 * All tasks begin at PE 0. Each PE has a pool with a lock. It takes from its own pool; when that is empty,
 * it takes half of another's. A count at PE 0 tells when all are done, and PE 0 then signals it to all.
 * The task with number i counts the steps that a Collatz sequence takes from i + 1.
 */
#include <shmem.h>
#include <stdio.h>
#include <stdlib.h>

static long locks[64]; /* one per pool */
static long pool[2];   /* of this PE: first task and one past the last */
static uint64_t done_tasks, over, steps, all_steps;

static void run(long task)
{
    for (uint64_t n = task + 1; n != 1; steps++)
        n = n % 2 ? 3 * n + 1 : n / 2;
}

/* Takes one task of the own pool, or half of another's into the own pool. */
static long take(int from)
{
    int me = shmem_my_pe();
    long range[2], task = -1;
    shmem_set_lock(&locks[from]);
    shmem_long_get(range, pool, 2, from);
    long count = range[1] - range[0];
    if (count > 0) {
        long taken = from == me ? 1 : (count + 1) / 2;
        task = range[0];
        range[0] += taken;
        shmem_long_put(pool, range, 2, from);
        if (from != me) {
            shmem_clear_lock(&locks[from]);
            long stolen[2] = {task + 1, task + taken};
            shmem_set_lock(&locks[me]);
            shmem_long_put(pool, stolen, 2, me);
            shmem_clear_lock(&locks[me]);
            return task;
        }
    }
    shmem_clear_lock(&locks[from]);
    return task;
}

int main(int argc, char **argv)
{
    shmem_init();
    int me = shmem_my_pe(), n_pes = shmem_n_pes();
    long tasks = argc > 1 ? strtol(argv[1], NULL, 10) : 2000;
    if (n_pes > 64 || tasks < 1)
        shmem_global_exit(2);
    if (me == 0)
        pool[1] = tasks;
    shmem_barrier_all();

    uint64_t mine = 0;
    for (int victim = me; !shmem_uint64_test(&over, SHMEM_CMP_NE, 0);) {
        long task = take(victim);
        if (task < 0) {
            victim = (victim + 1) % n_pes;
            continue;
        }
        victim = me;
        run(task);
        mine++;
        if (shmem_uint64_atomic_fetch_inc(&done_tasks, 0) + 1 == (uint64_t)tasks)
            for (int pe = 0; pe < n_pes; pe++)
                shmem_signal_set(&over, 1, pe);
    }
    shmem_uint64_sum_reduce(SHMEM_TEAM_WORLD, &all_steps, &steps, 1);
    if (me == 0)
        printf("worksteal: %ld tasks, %llu steps\n", tasks, (unsigned long long)all_steps);
    if (getenv("VERBOSE"))
        fprintf(stderr, "PE %d ran %llu tasks\n", me, (unsigned long long)mine);
    shmem_finalize();
    return 0;
}
