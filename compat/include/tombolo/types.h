/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Type tables of OpenSHMEM 1.6, one per class of routines: TABLE(X) expands X(TYPENAME, TYPE) for
 * every row, where TYPENAME is the part of a routine's name and TYPE the C type.
 *
 * The tables whose name ends in _DISTINCT drop the rows that name the same C type twice (int32_t is
 * int, size_t is unsigned long, ...): _Generic and C++ overloads need each type once. They pass
 * further arguments on to X.
 */
#ifndef TOMBOLO_TYPES_H
#define TOMBOLO_TYPES_H

#include <stddef.h>
#include <stdint.h>

/* C has complex types by keyword; C++ compilers have the same keyword as an extension. */
__extension__ typedef float _Complex tombolo_complexf;
__extension__ typedef double _Complex tombolo_complexd;

/* Table "Standard RMA Types and Names". */
#define TOMBOLO_RMA_TYPES(X)             \
    X(float, float)                      \
    X(double, double)                    \
    X(longdouble, long double)           \
    X(char, char)                        \
    X(schar, signed char)                \
    X(short, short)                      \
    X(int, int)                          \
    X(long, long)                        \
    X(longlong, long long)               \
    X(uchar, unsigned char)              \
    X(ushort, unsigned short)            \
    X(uint, unsigned int)                \
    X(ulong, unsigned long)              \
    X(ulonglong, unsigned long long)     \
    X(int8, int8_t)                      \
    X(int16, int16_t)                    \
    X(int32, int32_t)                    \
    X(int64, int64_t)                    \
    X(uint8, uint8_t)                    \
    X(uint16, uint16_t)                  \
    X(uint32, uint32_t)                  \
    X(uint64, uint64_t)                  \
    X(size, size_t)                      \
    X(ptrdiff, ptrdiff_t)

/* Table "Standard AMO Types and Names"; also the types of the wait and test routines. */
#define TOMBOLO_AMO_TYPES(X)             \
    X(int, int)                          \
    X(long, long)                        \
    X(longlong, long long)               \
    X(uint, unsigned int)                \
    X(ulong, unsigned long)              \
    X(ulonglong, unsigned long long)     \
    X(int32, int32_t)                    \
    X(int64, int64_t)                    \
    X(uint32, uint32_t)                  \
    X(uint64, uint64_t)                  \
    X(size, size_t)                      \
    X(ptrdiff, ptrdiff_t)

/* Table "Extended AMO Types and Names". */
#define TOMBOLO_EXTENDED_AMO_TYPES(X)    \
    X(float, float)                      \
    X(double, double)                    \
    TOMBOLO_AMO_TYPES(X)

/* Table "Bitwise AMO Types and Names". */
#define TOMBOLO_BITWISE_AMO_TYPES(X)     \
    X(uint, unsigned int)                \
    X(ulong, unsigned long)              \
    X(ulonglong, unsigned long long)     \
    X(int32, int32_t)                    \
    X(int64, int64_t)                    \
    X(uint32, uint32_t)                  \
    X(uint64, uint64_t)

/* Table "Reduction Types, Names and Supporting Operations": AND, OR, XOR. */
#define TOMBOLO_BITWISE_REDUCE_TYPES(X)  \
    X(uchar, unsigned char)              \
    X(ushort, unsigned short)            \
    X(uint, unsigned int)                \
    X(ulong, unsigned long)              \
    X(ulonglong, unsigned long long)     \
    X(int8, int8_t)                      \
    X(int16, int16_t)                    \
    X(int32, int32_t)                    \
    X(int64, int64_t)                    \
    X(uint8, uint8_t)                    \
    X(uint16, uint16_t)                  \
    X(uint32, uint32_t)                  \
    X(uint64, uint64_t)                  \
    X(size, size_t)

/* The same table: MAX, MIN. */
#define TOMBOLO_MINMAX_REDUCE_TYPES(X) TOMBOLO_RMA_TYPES(X)

/* The same table: SUM, PROD, and the scans. */
#define TOMBOLO_ARITH_REDUCE_TYPES(X)    \
    TOMBOLO_RMA_TYPES(X)                 \
    TOMBOLO_COMPLEX_TYPES(X)

#define TOMBOLO_COMPLEX_TYPES(X)         \
    X(complexd, tombolo_complexd)        \
    X(complexf, tombolo_complexf)

/* Deprecated active-set reductions: AND, OR, XOR; MAX, MIN; SUM, PROD. */
#define TOMBOLO_BITWISE_TO_ALL_TYPES(X)  \
    X(short, short)                      \
    X(int, int)                          \
    X(long, long)                        \
    X(longlong, long long)

#define TOMBOLO_MINMAX_TO_ALL_TYPES(X)   \
    TOMBOLO_BITWISE_TO_ALL_TYPES(X)      \
    X(float, float)                      \
    X(double, double)                    \
    X(longdouble, long double)

#define TOMBOLO_ARITH_TO_ALL_TYPES(X)    \
    TOMBOLO_MINMAX_TO_ALL_TYPES(X)       \
    TOMBOLO_COMPLEX_TYPES(X)

/* Element sizes in bits of the untyped routines, with and without the byte-counting "mem" form. */
#define TOMBOLO_SIZES(X)         X(8) X(16) X(32) X(64) X(128)
#define TOMBOLO_SIZES_AND_MEM(X) TOMBOLO_SIZES(X) X(mem)

/* Each C type of a class once. */
#define TOMBOLO_RMA_DISTINCT(X, ...)                \
    X(float, float, __VA_ARGS__)                    \
    X(double, double, __VA_ARGS__)                  \
    X(longdouble, long double, __VA_ARGS__)         \
    X(char, char, __VA_ARGS__)                      \
    X(schar, signed char, __VA_ARGS__)              \
    X(short, short, __VA_ARGS__)                    \
    X(int, int, __VA_ARGS__)                        \
    X(long, long, __VA_ARGS__)                      \
    X(longlong, long long, __VA_ARGS__)             \
    X(uchar, unsigned char, __VA_ARGS__)            \
    X(ushort, unsigned short, __VA_ARGS__)          \
    X(uint, unsigned int, __VA_ARGS__)              \
    X(ulong, unsigned long, __VA_ARGS__)            \
    X(ulonglong, unsigned long long, __VA_ARGS__)

#define TOMBOLO_AMO_DISTINCT(X, ...)                \
    X(int, int, __VA_ARGS__)                        \
    X(long, long, __VA_ARGS__)                      \
    X(longlong, long long, __VA_ARGS__)             \
    X(uint, unsigned int, __VA_ARGS__)              \
    X(ulong, unsigned long, __VA_ARGS__)            \
    X(ulonglong, unsigned long long, __VA_ARGS__)

/* One variable at a time can also be waited for where there is no AMO: deprecated. */
#define TOMBOLO_WAIT_DISTINCT(X, ...)               \
    X(short, short, __VA_ARGS__)                    \
    X(ushort, unsigned short, __VA_ARGS__)          \
    TOMBOLO_AMO_DISTINCT(X, __VA_ARGS__)

#define TOMBOLO_EXTENDED_AMO_DISTINCT(X, ...)       \
    X(float, float, __VA_ARGS__)                    \
    X(double, double, __VA_ARGS__)                  \
    TOMBOLO_AMO_DISTINCT(X, __VA_ARGS__)

#define TOMBOLO_BITWISE_AMO_DISTINCT(X, ...)        \
    X(uint, unsigned int, __VA_ARGS__)              \
    X(ulong, unsigned long, __VA_ARGS__)            \
    X(ulonglong, unsigned long long, __VA_ARGS__)   \
    X(int32, int32_t, __VA_ARGS__)                  \
    X(int64, int64_t, __VA_ARGS__)

#define TOMBOLO_BITWISE_REDUCE_DISTINCT(X, ...)     \
    X(uchar, unsigned char, __VA_ARGS__)            \
    X(ushort, unsigned short, __VA_ARGS__)          \
    X(uint, unsigned int, __VA_ARGS__)              \
    X(ulong, unsigned long, __VA_ARGS__)            \
    X(ulonglong, unsigned long long, __VA_ARGS__)   \
    X(int8, int8_t, __VA_ARGS__)                    \
    X(int16, int16_t, __VA_ARGS__)                  \
    X(int32, int32_t, __VA_ARGS__)                  \
    X(int64, int64_t, __VA_ARGS__)

#define TOMBOLO_MINMAX_REDUCE_DISTINCT(X, ...) TOMBOLO_RMA_DISTINCT(X, __VA_ARGS__)

#define TOMBOLO_ARITH_REDUCE_DISTINCT(X, ...)       \
    TOMBOLO_RMA_DISTINCT(X, __VA_ARGS__)            \
    X(complexd, tombolo_complexd, __VA_ARGS__)      \
    X(complexf, tombolo_complexf, __VA_ARGS__)

#endif
