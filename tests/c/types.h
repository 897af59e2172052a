/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The type tables of OpenSHMEM 1.6, stated here apart from the header's own so that the programs do
 * not inherit a mistake. TABLE(X, ...) expands X(TYPENAME, TYPE, ...) per row.
 *
 * CALL macros spell a routine in one of its forms, so that one test body serves all of them:
 * CALL(TYPENAME, VERB, SUFFIX, arguments), for instance TYPED(int, put, _nbi, dest, source, 1, pe).
 */
#ifndef TESTS_TYPES_H
#define TESTS_TYPES_H

#include <complex.h>
#include <stddef.h>
#include <stdint.h>

#define AMO_TYPES(X, ...)                                                                          \
    X(int, int, __VA_ARGS__)                                                                       \
    X(long, long, __VA_ARGS__)                                                                     \
    X(longlong, long long, __VA_ARGS__)                                                            \
    X(uint, unsigned int, __VA_ARGS__)                                                             \
    X(ulong, unsigned long, __VA_ARGS__)                                                           \
    X(ulonglong, unsigned long long, __VA_ARGS__)                                                  \
    X(int32, int32_t, __VA_ARGS__)                                                                 \
    X(int64, int64_t, __VA_ARGS__)                                                                 \
    X(uint32, uint32_t, __VA_ARGS__)                                                               \
    X(uint64, uint64_t, __VA_ARGS__)                                                               \
    X(size, size_t, __VA_ARGS__)                                                                   \
    X(ptrdiff, ptrdiff_t, __VA_ARGS__)

#define EXTENDED_AMO_TYPES(X, ...)                                                                 \
    AMO_TYPES(X, __VA_ARGS__)                                                                      \
    X(float, float, __VA_ARGS__)                                                                   \
    X(double, double, __VA_ARGS__)

#define BITWISE_AMO_TYPES(X, ...)                                                                  \
    X(uint, unsigned int, __VA_ARGS__)                                                             \
    X(ulong, unsigned long, __VA_ARGS__)                                                           \
    X(ulonglong, unsigned long long, __VA_ARGS__)                                                  \
    X(int32, int32_t, __VA_ARGS__)                                                                 \
    X(int64, int64_t, __VA_ARGS__)                                                                 \
    X(uint32, uint32_t, __VA_ARGS__)                                                               \
    X(uint64, uint64_t, __VA_ARGS__)

#define RMA_TYPES(X, ...)                                                                          \
    EXTENDED_AMO_TYPES(X, __VA_ARGS__)                                                             \
    X(longdouble, long double, __VA_ARGS__)                                                        \
    X(char, char, __VA_ARGS__)                                                                     \
    X(schar, signed char, __VA_ARGS__)                                                             \
    X(short, short, __VA_ARGS__)                                                                   \
    X(uchar, unsigned char, __VA_ARGS__)                                                           \
    X(ushort, unsigned short, __VA_ARGS__)                                                         \
    X(int8, int8_t, __VA_ARGS__)                                                                   \
    X(int16, int16_t, __VA_ARGS__)                                                                 \
    X(uint8, uint8_t, __VA_ARGS__)                                                                 \
    X(uint16, uint16_t, __VA_ARGS__)

#define COMPLEX_TYPES(X, ...)                                                                      \
    X(complexf, float _Complex, __VA_ARGS__)                                                       \
    X(complexd, double _Complex, __VA_ARGS__)

#define BITWISE_REDUCE_TYPES(X, ...)                                                               \
    BITWISE_AMO_TYPES(X, __VA_ARGS__)                                                              \
    X(uchar, unsigned char, __VA_ARGS__)                                                           \
    X(ushort, unsigned short, __VA_ARGS__)                                                         \
    X(int8, int8_t, __VA_ARGS__)                                                                   \
    X(int16, int16_t, __VA_ARGS__)                                                                 \
    X(uint8, uint8_t, __VA_ARGS__)                                                                 \
    X(uint16, uint16_t, __VA_ARGS__)                                                               \
    X(size, size_t, __VA_ARGS__)

#define BITWISE_TO_ALL_TYPES(X, ...)                                                               \
    X(short, short, __VA_ARGS__)                                                                   \
    X(int, int, __VA_ARGS__)                                                                       \
    X(long, long, __VA_ARGS__)                                                                     \
    X(longlong, long long, __VA_ARGS__)

#define MINMAX_TO_ALL_TYPES(X, ...)                                                                \
    BITWISE_TO_ALL_TYPES(X, __VA_ARGS__)                                                           \
    X(float, float, __VA_ARGS__)                                                                   \
    X(double, double, __VA_ARGS__)                                                                 \
    X(longdouble, long double, __VA_ARGS__)

/* Element sizes of the untyped routines. */
__extension__ typedef unsigned __int128 uint128;
#define SIZES(X, ...)                                                                              \
    X(8, uint8_t, __VA_ARGS__)                                                                     \
    X(16, uint16_t, __VA_ARGS__)                                                                   \
    X(32, uint32_t, __VA_ARGS__)                                                                   \
    X(64, uint64_t, __VA_ARGS__)                                                                   \
    X(128, uint128, __VA_ARGS__)
#define SIZES_AND_MEM(X, ...)                                                                      \
    SIZES(X, __VA_ARGS__)                                                                          \
    X(mem, uint8_t, __VA_ARGS__)

#define TYPED(TYPENAME, VERB, SUFFIX, ...) shmem_##TYPENAME##_##VERB##SUFFIX(__VA_ARGS__)
#define TYPED_CTX(TYPENAME, VERB, SUFFIX, ...)                                                     \
    shmem_ctx_##TYPENAME##_##VERB##SUFFIX(test_ctx, __VA_ARGS__)
#define GENERIC(TYPENAME, VERB, SUFFIX, ...)     shmem_##VERB##SUFFIX(__VA_ARGS__)
#define GENERIC_CTX(TYPENAME, VERB, SUFFIX, ...) shmem_##VERB##SUFFIX(test_ctx, __VA_ARGS__)
#define SIZED(SIZE, VERB, SUFFIX, ...)           shmem_##VERB##SIZE##SUFFIX(__VA_ARGS__)
#define SIZED_CTX(SIZE, VERB, SUFFIX, ...)                                                         \
    shmem_ctx_##VERB##SIZE##SUFFIX(test_ctx, __VA_ARGS__)

#endif
