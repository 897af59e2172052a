/* SPDX-License-Identifier: Apache-2.0 */
/* Random numbers of a test program, others on each PE. SEED=<number> repeats a run; the seed is printed
 * when a check fails. */
#ifndef SEEDED_H
#define SEEDED_H
#include "check.h"

static uint64_t state, seed;

static uint64_t next_random(void) { /* xorshift64* */
    state ^= state >> 12, state ^= state << 25, state ^= state >> 27;
    return state * 2685821657736338717u;
}
static size_t below(size_t limit) { return (size_t)(next_random() >> 11) % limit; }

#define EXPECT_SEED(CONDITION)                                                                     \
    do {                                                                                           \
        if (!(CONDITION)) {                                                                        \
            fprintf(stderr, "repeat with SEED=%llu\n", (unsigned long long)seed);                  \
            CHECK(CONDITION);                                                                      \
        }                                                                                          \
    } while (0)

/* All PEs call this once after check_start. */
static void seed_start(void) {
    static uint64_t shared_seed;
    const char *given = getenv("SEED");
    uint64_t by_chance = (uint64_t)(uintptr_t)&given * 2654435761u; /* where the stack is */
    if (me == 0) shared_seed = given ? strtoull(given, NULL, 0) : by_chance;
    shmem_barrier_all();
    seed = shmem_uint64_g(&shared_seed, 0);
    state = (seed ^ ((uint64_t)me * 0x9e3779b97f4a7c15u)) | 1;
}

#endif
