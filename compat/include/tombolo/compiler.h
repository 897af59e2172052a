/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What differs between compilers and languages.
 *
 * TOMBOLO_WARN_DEPRECATED: define it before including shmem.h to get a warning for each use of a
 * routine that OpenSHMEM 1.6 deprecates; several, one for each type, for a generic one in C. There is
 * none where short and unsigned short are waited for or tested. Off by default: deprecated routines
 * remain supported.
 */
#ifndef TOMBOLO_COMPILER_H
#define TOMBOLO_COMPILER_H

#ifdef __cplusplus
#define TOMBOLO_BEGIN_C extern "C" {
#define TOMBOLO_END_C   }
#else
#define TOMBOLO_BEGIN_C
#define TOMBOLO_END_C
#endif

/* A small number as a handle, and none. Programs in C++ may have compilers remark on casts in the style of C, and on zeros
 * as pointers. */
#ifdef __cplusplus
#define TOMBOLO_HANDLE(TYPE, NUMBER) (reinterpret_cast<TYPE>(NUMBER))
#define TOMBOLO_NO_HANDLE(TYPE)      (static_cast<TYPE>(nullptr))
#else
#define TOMBOLO_HANDLE(TYPE, NUMBER) ((TYPE)(NUMBER))
#define TOMBOLO_NO_HANDLE(TYPE)      ((TYPE)0)
#endif

/* The attribute rather than _Noreturn: C++ and C99 lack the keyword and C23 deprecates it. */
#define TOMBOLO_NORETURN __attribute__((__noreturn__))

#ifdef TOMBOLO_WARN_DEPRECATED
#define TOMBOLO_DEPRECATED(ADVICE) __attribute__((__deprecated__(ADVICE)))
#else
#define TOMBOLO_DEPRECATED(ADVICE)
#endif

#endif
