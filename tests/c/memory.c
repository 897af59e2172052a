/* SPDX-License-Identifier: Apache-2.0 */
/* The symmetric heap: alignment, same offsets everywhere, content kept, exhaustion answered with
 * NULL and memory usable again afterwards. */
#include "check.h"
#include <stddef.h>

static unsigned char *heap_start;

/* The offset of a block is the same on every PE. */
static void check_symmetric(void *block) {
    static long offset;
    offset = (long)((unsigned char *)block - heap_start);
    shmem_barrier_all();
    CHECK_EQ(shmem_long_g(&offset, next_pe), offset);
    shmem_barrier_all();
}

static void fill(unsigned char *block, size_t size, int seed) {
    for (size_t i = 0; i < size; i++) block[i] = (unsigned char)(i * 7 + (size_t)seed);
}
static void check_filled(const unsigned char *block, size_t size, int seed) {
    for (size_t i = 0; i < size; i++) CHECK_EQ(block[i], (unsigned char)(i * 7 + (size_t)seed));
}

static void test_malloc(void) {
    CHECK(shmem_malloc(0) == NULL);
    unsigned char *blocks[20];
    for (int i = 0; i < 20; i++) {
        blocks[i] = shmem_malloc((size_t)(i * i * 13 + 1));
        CHECK(blocks[i] != NULL);
        CHECK_EQ((uintptr_t)blocks[i] % _Alignof(max_align_t), 0);
        check_symmetric(blocks[i]);
        fill(blocks[i], (size_t)(i * i * 13 + 1), i + me);
    }
    for (int i = 0; i < 20; i += 2) shmem_free(blocks[i]);
    for (int i = 1; i < 20; i += 2) check_filled(blocks[i], (size_t)(i * i * 13 + 1), i + me);
    for (int i = 1; i < 20; i += 2) shmem_free(blocks[i]);
    shmem_free(NULL);
}

static void test_align(void) {
    CHECK(shmem_align(64, 0) == NULL);
    CHECK(shmem_align(3, 8) == NULL); /* no power of two; the library says so once */
    for (size_t alignment = sizeof(void *); alignment <= 8 << 20; alignment *= 2) {
        void *block = shmem_align(alignment, 100);
        CHECK(block != NULL);
        CHECK_EQ((uintptr_t)block % alignment, 0);
        check_symmetric(block);
        memset(block, 1, 100);
        shmem_free(block);
    }
}

static void test_calloc(void) {
    CHECK(shmem_calloc(0, 8) == NULL);
    CHECK(shmem_calloc(8, 0) == NULL);
    /* The product overflows: the call fails as others do, with a barrier. */
    long *arrived = check_alloc(1, sizeof *arrived);
    shmem_long_atomic_inc(arrived, 0);
    CHECK(shmem_calloc(SIZE_MAX / 2, 4) == NULL);
    if (me == 0) CHECK_EQ(*arrived, npes);
    shmem_free(arrived);
    void *dirty = check_alloc(1, 5000);
    memset(dirty, 0xff, 5000);
    shmem_free(dirty);
    unsigned char *zeros = shmem_calloc(50, 100);
    CHECK(zeros != NULL);
    for (int i = 0; i < 5000; i++) CHECK_EQ(zeros[i], 0);
    shmem_free(zeros);
}

static void test_realloc(void) {
    unsigned char *block = shmem_realloc(NULL, 100);
    CHECK(block != NULL);
    fill(block, 100, me);
    unsigned char *wall = shmem_malloc(64);
    for (size_t size = 200; size <= 200000; size *= 10) {
        block = shmem_realloc(block, size);
        CHECK(block != NULL);
        check_symmetric(block);
        check_filled(block, 100, me);
    }
    block = shmem_realloc(block, 50);
    CHECK(block != NULL);
    check_filled(block, 50, me);
    CHECK(shmem_realloc(block, SIZE_MAX / 2) == NULL); /* fails: the block stays as it was */
    check_filled(block, 50, me);
    CHECK(shmem_realloc(block, 0) == NULL);
    shmem_free(wall);
}

static void test_hints(void) {
    CHECK(shmem_malloc_with_hints(0, 0) == NULL);
    const long all = SHMEM_MALLOC_ATOMICS_REMOTE | SHMEM_MALLOC_SIGNAL_REMOTE;
    for (long hints = 0; hints <= all; hints++) {
        uint64_t *block = shmem_malloc_with_hints(8 * sizeof *block, hints);
        CHECK(block != NULL);
        check_symmetric(block);
        block[0] = 0;
        shmem_barrier_all();
        shmem_uint64_atomic_add(block, 3, next_pe);
        shmem_barrier_all();
        CHECK_EQ(block[0], 3);
        block = shmem_realloc(block, 4096);
        CHECK(block != NULL);
        CHECK_EQ(block[0], 3);
        shmem_free(block);
    }
}

/* What the hints promise of a block, and its alignment, last when it grows and has to move. */
static void test_moves(void) {
    char *block = shmem_malloc_with_hints(8, SHMEM_MALLOC_SIGNAL_REMOTE);
    char *wall = shmem_malloc(8), *page = shmem_align(4096, 100), *second = shmem_malloc(8);
    for (size_t size = 8; size < 100000; size = size * 3 + 1) {
        block = shmem_realloc(block, size);
        page = shmem_realloc(page, size);
        char *after = shmem_malloc(8);
        CHECK(block != NULL && wall != NULL && page != NULL && second != NULL && after != NULL);
        CHECK_EQ((uintptr_t)block % 128, 0);
        CHECK_EQ((uintptr_t)page % 4096, 0);
        size_t end = (size + 127) / 128 * 128;
        char *others[] = {wall, page, second, after};
        for (int i = 0; i < 4; i++) CHECK(others[i] + 8 <= block || others[i] >= block + end);
        shmem_free(after);
    }
    char *all[] = {block, wall, page, second};
    for (int i = 0; i < 4; i++) shmem_free(all[i]);
}

static void test_exhaustion(void) {
    CHECK(shmem_malloc(SIZE_MAX / 2) == NULL);
    CHECK(shmem_malloc(SIZE_MAX) == NULL);
    CHECK(shmem_align(4096, (size_t)1 << 50) == NULL);
}

/* Takes all the heap in quarters of what is left, and gives it back; tells how much that was. */
static size_t take_all(void) {
    void *blocks[200];
    int count = 0;
    size_t taken = 0;
    for (size_t size = (size_t)1 << 34; size >= 64 && count < 200;) {
        void *block = shmem_malloc(size);
        if (block == NULL) {
            size /= 2;
        } else {
            blocks[count++] = block;
            taken += size;
        }
    }
    while (count > 0) shmem_free(blocks[--count]);
    return taken;
}

/* Calls that ask for nothing perform no action: a PE may make them alone. */
static void test_nothing(void) {
    if (me == 0) {
        CHECK(shmem_malloc(0) == NULL);
        CHECK(shmem_align(64, 0) == NULL);
        CHECK(shmem_malloc_with_hints(0, SHMEM_MALLOC_SIGNAL_REMOTE) == NULL);
        CHECK(shmem_calloc(0, 8) == NULL);
        CHECK(shmem_calloc(8, 0) == NULL);
        CHECK(shmem_realloc(NULL, 0) == NULL);
        shmem_free(NULL);
    }
}

int main(void) {
    check_start();
    heap_start = shmem_malloc(16);
    CHECK(heap_start != NULL);
    size_t whole = take_all();
    CHECK(whole >= (size_t)1 << 20);
    CHECK_EQ(take_all(), whole);
    test_malloc();
    test_align();
    test_calloc();
    test_realloc();
    test_hints();
    test_moves();
    test_exhaustion();
    test_nothing();
    CHECK_EQ(take_all(), whole); /* nothing of it is lost */
    shmem_free(heap_start);
    return check_done();
}
