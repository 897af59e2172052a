/* SPDX-License-Identifier: Apache-2.0 */
/* Put, get, p, g, strided and block-strided forms, blocking and not: every type and size, plain,
 * on a context and as C11 generics, on heap and on static data. Each PE writes to the next and
 * reads it. */
#include "check.h"
#include "types.h"

#define N 16
static shmem_ctx_t test_ctx;

/* Runs STATEMENTS, which write `dest` of the next PE, and checks what the previous PE wrote
 * here. */
#define WRITES(EXPECTED, ...)                                                                      \
    do {                                                                                           \
        for (int i = 0; i < N; i++) dest[i] = 0;                                                   \
        shmem_barrier_all();                                                                       \
        __VA_ARGS__;                                                                               \
        shmem_ctx_quiet(test_ctx);                                                                 \
        shmem_barrier_all();                                                                       \
        for (int i = 0; i < N; i++) CHECK_EQ(dest[i], EXPECTED);                                   \
    } while (0)

/* Runs STATEMENTS, which read `dest` of the next PE into `got`, and checks `got`. */
#define READS(EXPECTED, ...)                                                                       \
    do {                                                                                           \
        for (int i = 0; i < N; i++) got[i] = 0, dest[i] = VALUE(me, i);                            \
        shmem_barrier_all();                                                                       \
        __VA_ARGS__;                                                                               \
        for (int i = 0; i < N; i++) CHECK_EQ(got[i], EXPECTED);                                    \
        shmem_barrier_all();                                                                       \
    } while (0)

#define FROM(I) VALUE(previous_pe, I)
#define OF(I)   VALUE(next_pe, I)

#define CONTIGUOUS(NAME, TYPE, CALL)                                                               \
    WRITES(FROM(i), CALL(NAME, put, , dest, source, N, next_pe));                                  \
    WRITES(FROM(i), CALL(NAME, put, _nbi, dest, source, N, next_pe));                              \
    WRITES(i < 3 ? FROM(i) : 0, CALL(NAME, put, , dest, source, 3, next_pe));                      \
    WRITES(0, CALL(NAME, put, , dest, source, 0, next_pe));                                        \
    READS(OF(i), CALL(NAME, get, , got, dest, N, next_pe));                                        \
    READS(OF(i), CALL(NAME, get, _nbi, got, dest, N, next_pe); shmem_quiet();                      \
          shmem_ctx_quiet(test_ctx));                                                              \
    READS(0, CALL(NAME, get, , got, dest, 0, next_pe));

#define STRIDED(NAME, TYPE, CALL)                                                                  \
    WRITES(i % 2 == 0 && i < 10 ? FROM(3 * (i / 2)) : 0,                                           \
           CALL(NAME, iput, , dest, source, 2, 3, 5, next_pe));                                    \
    READS(i % 3 == 0 && i < 15 ? OF(2 * (i / 3)) : 0,                                              \
          CALL(NAME, iget, , got, dest, 3, 2, 5, next_pe));                                        \
    WRITES(i % 4 < 2 ? FROM(3 * (i / 4) + i % 4) : 0,                                              \
           CALL(NAME, ibput, , dest, source, 4, 3, 2, 4, next_pe));                                \
    READS(i % 3 < 2 && i < 12 ? OF(4 * (i / 3) + i % 3) : 0,                                       \
          CALL(NAME, ibget, , got, dest, 3, 4, 2, 4, next_pe));

#define SCALAR(NAME, TYPE, CALL)                                                                   \
    WRITES(FROM(i), for (int i = 0; i < N; i++) CALL(NAME, p, , dest + i, source[i], next_pe));    \
    READS(OF(i), for (int i = 0; i < N; i++) got[i] = CALL(NAME, g, , dest + i, next_pe));

#define SOURCE(TYPE)                                                                               \
    TYPE source[N], got[N];                                                                        \
    for (int i = 0; i < N; i++) source[i] = VALUE(me, i);

/* One function per type, for all forms; DEST is heap memory or a static array. */
#define TEST_TYPE(TYPENAME, TYPE, ...)                                                             \
    static void test_##TYPENAME(TYPE *dest) {                                                      \
        SOURCE(TYPE)                                                                               \
        CONTIGUOUS(TYPENAME, TYPE, TYPED) CONTIGUOUS(TYPENAME, TYPE, TYPED_CTX)                    \
        CONTIGUOUS(TYPENAME, TYPE, GENERIC) CONTIGUOUS(TYPENAME, TYPE, GENERIC_CTX)                \
        STRIDED(TYPENAME, TYPE, TYPED) STRIDED(TYPENAME, TYPE, TYPED_CTX)                          \
        STRIDED(TYPENAME, TYPE, GENERIC) STRIDED(TYPENAME, TYPE, GENERIC_CTX)                      \
        SCALAR(TYPENAME, TYPE, TYPED) SCALAR(TYPENAME, TYPE, TYPED_CTX)                            \
        SCALAR(TYPENAME, TYPE, GENERIC) SCALAR(TYPENAME, TYPE, GENERIC_CTX)                        \
    }                                                                                              \
    static TYPE static_##TYPENAME[N];
RMA_TYPES(TEST_TYPE, ~)

#define TEST_SIZE(SIZE, TYPE, ...)                                                                 \
    static void test_strided_##SIZE(TYPE *dest) {                                                  \
        SOURCE(TYPE)                                                                               \
        STRIDED(SIZE, TYPE, SIZED) STRIDED(SIZE, TYPE, SIZED_CTX)                                  \
    }
SIZES(TEST_SIZE, ~)

#define TEST_SIZE_OR_MEM(SIZE, TYPE, ...)                                                          \
    static void test_contiguous_##SIZE(TYPE *dest) {                                               \
        SOURCE(TYPE)                                                                               \
        CONTIGUOUS(SIZE, TYPE, SIZED) CONTIGUOUS(SIZE, TYPE, SIZED_CTX)                            \
    }                                                                                              \
    static TYPE static_sized_##SIZE[N];
SIZES_AND_MEM(TEST_SIZE_OR_MEM, ~)

#define REACH 3000
static unsigned char static_bytes[REACH], source_bytes[REACH], got_bytes[REACH];

#define OF_BYTE(PE, I) (unsigned char)((PE) * 31 + (I) * 7 + (I) / 256)

/* Calls a block-strided routine for elements of SIZE bytes. */
#define BLOCKS(ROUTINE, DEST, SOURCE, DST, SST)                                                    \
    switch (size) {                                                                                \
    case 1: shmem_##ROUTINE##8(DEST, SOURCE, DST, SST, bsize, count, next_pe); break;              \
    case 2: shmem_##ROUTINE##16(DEST, SOURCE, DST, SST, bsize, count, next_pe); break;             \
    case 4: shmem_##ROUTINE##32(DEST, SOURCE, DST, SST, bsize, count, next_pe); break;             \
    case 8: shmem_##ROUTINE##64(DEST, SOURCE, DST, SST, bsize, count, next_pe); break;             \
    default: shmem_##ROUTINE##128(DEST, SOURCE, DST, SST, bsize, count, next_pe);                  \
    }

/* Checks blocks of BSIZE elements of SIZE bytes, and what lies between them. Those in DEST are DST elements
 * apart, the others SST. */
static void test_blocks(unsigned char *dest, size_t size, size_t bsize, size_t dst, size_t sst) {
    size_t longest = (dst > sst ? dst : sst) * size, count = REACH / longest;
    for (size_t i = 0; i < REACH; i++) source_bytes[i] = OF_BYTE(me, i), dest[i] = 1;
    shmem_barrier_all();
    BLOCKS(ibput, dest, source_bytes, (ptrdiff_t)dst, (ptrdiff_t)sst)
    shmem_barrier_all();
    for (size_t i = 0; i < REACH; i++) {
        size_t block = i / (dst * size), within = i % (dst * size);
        int is_put = block < count && within < bsize * size;
        CHECK_EQ(dest[i], is_put ? OF_BYTE(previous_pe, block * sst * size + within) : 1);
    }
    for (size_t i = 0; i < REACH; i++) dest[i] = OF_BYTE(me, i), got_bytes[i] = 1;
    shmem_barrier_all();
    BLOCKS(ibget, got_bytes, dest, (ptrdiff_t)sst, (ptrdiff_t)dst)
    for (size_t i = 0; i < REACH; i++) {
        size_t block = i / (sst * size), within = i % (sst * size);
        int is_got = block < count && within < bsize * size;
        CHECK_EQ(got_bytes[i], is_got ? OF_BYTE(next_pe, block * dst * size + within) : 1);
    }
    shmem_barrier_all();
}

/* Words and others, far apart and side by side. */
static void test_all_blocks(unsigned char *heap) {
    test_blocks(heap, 8, 1, 2, 3);
    test_blocks(static_bytes, 4, 1, 5, 2);
    test_blocks(heap, 1, 3, 11, 7);
    test_blocks(static_bytes, 4, 3, 4, 3);
    test_blocks(heap, 16, 2, 3, 2);
    test_blocks(heap, 1, 700, 701, 750);
}

/* Whether a type of this size is to be tested: where PEs share no memory, transports tell types of one size from
 * each other as little as the library does, and take long. */
static int is_due(size_t size) {
    static char tested[64];
    return tested[size]++ == 0 || getenv("CHECK_APART") == NULL;
}

int main(void) {
    check_start();
    CHECK(shmem_ctx_create(0, &test_ctx) == 0);
    void *heap = check_alloc(N, sizeof(long double));

#define RUN_TYPE(TYPENAME, TYPE, ...)                                                              \
    if (is_due(sizeof(TYPE))) test_##TYPENAME(heap), test_##TYPENAME(static_##TYPENAME);
    RMA_TYPES(RUN_TYPE, ~)
#define RUN_STRIDED(SIZE, TYPE, ...)                                                               \
    test_strided_##SIZE(heap);                                                                     \
    test_strided_##SIZE(static_sized_##SIZE);
    SIZES(RUN_STRIDED, ~)
#define RUN_CONTIGUOUS(SIZE, TYPE, ...)                                                            \
    test_contiguous_##SIZE(heap);                                                                  \
    test_contiguous_##SIZE(static_sized_##SIZE);
    SIZES_AND_MEM(RUN_CONTIGUOUS, ~)

    unsigned char *bytes = check_alloc(REACH, 1);
    test_all_blocks(bytes);
    shmem_free(bytes);

    shmem_free(heap);
    shmem_ctx_destroy(test_ctx);
    return check_done();
}
