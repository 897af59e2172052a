/* SPDX-License-Identifier: Apache-2.0 */
/* Transfers of megabytes at odd sizes and offsets, blocking and not, both ways. */
#include "check.h"

/* Less over a transport that takes long for each few bytes. */
#define SIZE ((size_t)(getenv("CHECK_SHORT") ? 300001 : 3 << 20))

static unsigned char pattern(size_t i, int pe) {
    return (unsigned char)(i * 31 + (i >> 11) + (size_t)pe * 17);
}

static void check_pattern(const unsigned char *block, size_t first, size_t count, int pe) {
    for (size_t i = 0; i < count; i++) {
        if (block[i] != pattern(first + i, pe)) CHECK_EQ(block[i], pattern(first + i, pe));
    }
}

int main(void) {
    check_start();
    unsigned char *target = check_alloc(SIZE, 1);
    unsigned char *source = malloc(SIZE), *back = malloc(SIZE);
    CHECK(source && back);
    for (size_t i = 0; i < SIZE; i++) source[i] = pattern(i, me);

    size_t offsets[] = {0, 1, 63, 4095, 100001};
    size_t sizes[] = {1, 7, 64, 4097, 65536, SIZE / 3 + 7, SIZE - 100001};
    for (int o = 0; o < 5; o++) {
        for (int s = 0; s < 7; s++) {
            size_t offset = offsets[o], size = sizes[s];
            memset(target, 0, SIZE);
            shmem_barrier_all();
            if (s % 2) {
                shmem_putmem(target + offset, source + offset, size, next_pe);
            } else {
                shmem_putmem_nbi(target + offset, source + offset, size, next_pe);
            }
            shmem_barrier_all();
            check_pattern(target + offset, offset, size, previous_pe);
            CHECK(offset == 0 || target[offset - 1] == 0);
            CHECK(offset + size == SIZE || target[offset + size] == 0);
            memset(back, 0, SIZE);
            if (s % 2) {
                shmem_getmem_nbi(back, target + offset, size, next_pe);
                shmem_quiet();
            } else {
                shmem_getmem(back, target + offset, size, next_pe);
            }
            check_pattern(back, offset, size, me);
            CHECK(size == SIZE || back[size] == 0);
            shmem_barrier_all();
        }
    }
    /* Many non-blocking puts in flight, one quiet. */
    memset(target, 0, SIZE);
    shmem_barrier_all();
    for (size_t at = 0; at < SIZE; at += 1021) {
        size_t size = SIZE - at < 1021 ? SIZE - at : 1021;
        shmem_putmem_nbi(target + at, source + at, size, next_pe);
    }
    shmem_quiet();
    shmem_barrier_all();
    check_pattern(target, 0, SIZE, previous_pe);
    shmem_barrier_all();
    free(source);
    free(back);
    shmem_free(target);
    return check_done();
}
