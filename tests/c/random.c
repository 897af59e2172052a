/* SPDX-License-Identifier: Apache-2.0 */
/* Random operations against a model: each PE owns one region at every PE and mirrors what it did
 * there. SEED=<number> repeats a run; the seed is printed when a check fails. */
#include "seeded.h"

#define REGION 4096
#define STEPS  3000

static unsigned char *mine;     /* my region in the symmetric block */
static unsigned char *model;    /* what it should hold at each PE */

/* How many words of a strided operation, of at most this many: few, because over some transports each word is an
 * exchange with the target's processor, but now and then as many as there are. */
static size_t words_of(size_t most) { return below(16) && most > 40 ? below(40) : most; }

static void step(void) {
    unsigned char buffer[REGION];
    int pe = (int)below((size_t)npes);
    size_t offset = below(REGION), size = below(REGION - offset) + 1;
    unsigned char *expected = model + (size_t)pe * REGION;
    switch (below(6)) {
    case 0:
    case 1:
        for (size_t i = 0; i < size; i++)
            expected[offset + i] = buffer[i] = (unsigned char)next_random();
        if (size % 2) shmem_putmem_nbi(mine + offset, buffer, size, pe);
        else shmem_putmem(mine + offset, buffer, size, pe);
        shmem_quiet();
        break;
    case 2:
        shmem_getmem(buffer, mine + offset, size, pe);
        EXPECT_SEED(memcmp(buffer, expected + offset, size) == 0);
        break;
    case 3: { /* a strided put of words */
        offset -= offset % 4;
        size_t stride = below(5) + 1, count = words_of((REGION - offset) / (4 * stride));
        uint32_t words[REGION / 4];
        for (size_t i = 0; i < count; i++) {
            words[i] = (uint32_t)next_random();
            memcpy(expected + offset + 4 * i * stride, &words[i], 4);
        }
        shmem_uint32_iput((uint32_t *)(void *)(mine + offset), words, (ptrdiff_t)stride, 1, count,
                          pe);
        shmem_quiet();
        break;
    }
    case 4: { /* fetch-add on a word */
        offset -= offset % 8;
        uint64_t add = next_random(), old, *at = (uint64_t *)(void *)(mine + offset);
        if (offset + 8 > REGION) break;
        memcpy(&old, expected + offset, 8);
        EXPECT_SEED(shmem_uint64_atomic_fetch_add(at, add, pe) == old);
        old += add;
        memcpy(expected + offset, &old, 8);
        break;
    }
    default: { /* a strided get of words */
        offset -= offset % 4;
        size_t stride = below(7) + 1, count = words_of((REGION - offset) / (4 * stride));
        uint32_t words[REGION / 4], word;
        shmem_uint32_iget(words, (uint32_t *)(void *)(mine + offset), 1, (ptrdiff_t)stride, count,
                          pe);
        for (size_t i = 0; i < count; i++) {
            memcpy(&word, expected + offset + 4 * i * stride, 4);
            EXPECT_SEED(words[i] == word);
        }
    }
    }
}

int main(void) {
    check_start();
    seed_start();

    unsigned char *block = check_alloc((size_t)npes * REGION, 1);
    mine = block + (size_t)me * REGION;
    model = calloc((size_t)npes, REGION);
    CHECK(model != NULL);
    for (int i = 0; i < STEPS; i++) step();
    shmem_barrier_all();
    for (int pe = 0; pe < npes; pe++) {
        unsigned char whole[REGION];
        shmem_getmem(whole, mine, REGION, pe);
        EXPECT_SEED(memcmp(whole, model + (size_t)pe * REGION, REGION) == 0);
    }
    shmem_barrier_all();
    free(model);
    shmem_free(block);
    return check_done();
}
