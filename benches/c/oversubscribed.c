/* SPDX-License-Identifier: Apache-2.0 */
/* Barriers of more PEs than cores, each checked: what waiting costs when the awaited PE is not
 * running. Takes the number of barriers. */
#include "bench.h"

int main(int count, char **arguments)
{
    long rounds = count > 1 ? strtol(arguments[1], NULL, 10) : 200;
    double ns[5];
    shmem_init();
    int me = shmem_my_pe(), n = shmem_n_pes();
    long *seen = symmetric(CACHE_LINE), round = 0;
    for (int batch = 0; batch < 5; batch++) {
        double begun = now_ns();
        for (long end = round + rounds; round < end;) {
            shmem_long_p(seen, ++round, (me + 1) % n);
            shmem_barrier_all();
            long found = *(volatile long *)seen;
            if (found != round && found != round + 1) /* the neighbour may be ahead by one */
                fail("after barrier %ld the neighbour's word is %ld", round, found);
        }
        ns[batch] = (now_ns() - begun) / rounds;
    }
    if (me == 0)
        print_samples("barrier_oversubscribed", "ns", ns, 5);
    shmem_barrier_all();
    shmem_finalize();
    return 0;
}
