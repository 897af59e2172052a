/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Producers and consumers in a ring: every PE sends a stream of messages to the next one.
 *
 *   oshcc -O2 ring.c -o ring && oshrun -n 4 ./ring [messages [bytes each]]
 *
 * The consumer has a few slots. A message goes into the next slot together with a signal, which counts the
 * messages; a signal back counts those that have been read, so that no slot is overwritten too early.
 */
#include <shmem.h>
#include <stdio.h>
#include <stdlib.h>

enum { SLOTS = 8 };

static uint64_t sent;  /* to this PE by the one before */
static uint64_t read_; /* of this PE's messages by the next */

int main(int argc, char **argv)
{
    shmem_init();
    int me = shmem_my_pe(), n_pes = shmem_n_pes();
    int next = (me + 1) % n_pes, before = (me + n_pes - 1) % n_pes;
    uint64_t messages = argc > 1 ? strtoull(argv[1], NULL, 10) : 1000;
    size_t bytes = argc > 2 ? strtoul(argv[2], NULL, 10) : 1024;
    unsigned char *slots = shmem_malloc(SLOTS * (bytes + 1)), *message = malloc(bytes + 1);
    if (!slots || !message)
        shmem_global_exit(1);

    static uint64_t sum, all;
    uint64_t out = 0, in = 0;
    while (out < messages || in < messages) {
        if (out < messages && out < shmem_signal_fetch(&read_) + SLOTS) {
            for (size_t i = 0; i < bytes; i++)
                message[i] = (unsigned char)(out + i);
            shmem_putmem_signal(&slots[out % SLOTS * bytes], message, bytes, &sent, out + 1,
                                SHMEM_SIGNAL_SET, next);
            out++;
        } else if (in < messages) {
            shmem_signal_wait_until(&sent, SHMEM_CMP_GT, in);
        } else {
            shmem_signal_wait_until(&read_, SHMEM_CMP_GT, out - SLOTS);
        }
        while (in < shmem_signal_fetch(&sent)) {
            for (size_t i = 0; i < bytes; i++)
                sum += slots[in % SLOTS * bytes + i] ^ (unsigned char)(in + i);
            in++;
            shmem_signal_set(&read_, in, before);
        }
    }
    shmem_uint64_sum_reduce(SHMEM_TEAM_WORLD, &all, &sum, 1);
    if (me == 0)
        printf("ring: %llu messages of %zu bytes from each PE, %s\n", (unsigned long long)messages,
               bytes, all == 0 ? "all as they were sent" : "DAMAGED");
    free(message);
    shmem_free(slots);
    shmem_finalize();
    return all != 0;
}
