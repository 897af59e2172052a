/* SPDX-License-Identifier: Apache-2.0 */
/* * What every test program uses: start, finish, and checks that name the PE, the place and the
 * values. * A failed check prints one line and ends the whole job with exit code 1. */
#ifndef TESTS_CHECK_H
#define TESTS_CHECK_H

#include <shmem.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int me, npes, next_pe, previous_pe;

static inline void check_failed(const char *file, int line, const char *what) {
    fprintf(stderr, "PE %d of %d: %s:%d: %s\n", me, npes, file, line, what);
    fflush(NULL);
    shmem_global_exit(1);
}

#define CHECK(CONDITION)                                                                           \
    do {                                                                                           \
        if (!(CONDITION)) check_failed(__FILE__, __LINE__, "expected " #CONDITION);                \
    } while (0)

/* Compares after converting EXPECTED to the type of ACTUAL; prints the real parts of both. */
#define CHECK_EQ(ACTUAL, EXPECTED)                                                                 \
    do {                                                                                           \
        __typeof__(ACTUAL) actual_ = (ACTUAL);                                                     \
        __typeof__(actual_ + 0) expected_ = (__typeof__(ACTUAL))(EXPECTED);                        \
        if (!(actual_ == expected_)) {                                                             \
            char text_[400];                                                                       \
            snprintf(text_, sizeof text_, "%s is %Lg, expected %s = %Lg", #ACTUAL,                 \
                     (long double)actual_, #EXPECTED, (long double)expected_);                     \
            check_failed(__FILE__, __LINE__, text_);                                               \
        }                                                                                          \
    } while (0)

static inline void check_places(void) {
    me = shmem_my_pe();
    npes = shmem_n_pes();
    next_pe = (me + 1) % npes;
    previous_pe = (me + npes - 1) % npes;
}

#ifdef WITH_GAP
/* Its alignment keeps it apart from initialised variables, in a segment of its own. */
static _Alignas(1 << 22) char check_aligned[1 << 22];
#endif

static inline void check_start(void) {
#ifdef WITH_GAP
    check_aligned[1] = 1;
    __asm__ volatile("" : : "r"(check_aligned) : "memory");
#endif
    shmem_init();
    check_places();
}

static inline int check_done(void) {
    shmem_barrier_all();
    shmem_finalize();
    return 0;
}

/* Symmetric memory for COUNT objects, or a failed check. */
static inline void *check_alloc(size_t count, size_t size) {
    void *memory = shmem_malloc(count * size);
    CHECK(memory != NULL);
    memset(memory, 0, count * size);
    shmem_barrier_all();
    return memory;
}

/* A value that tells PEs and positions apart and fits every type. */
#define VALUE(PE, I) (((PE) * 37 + (I) * 3 + 1) % 101)

#endif
