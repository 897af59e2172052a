/* SPDX-License-Identifier: Apache-2.0 */
/*
 * OpenSHMEM 1.6 application programming interface: shmem.h of Tombolo.
 *
 * C99 and later, C++11 and later. C11 adds the type-generic routines as macros, C++ as overloads.
 *
 *   tombolo/constants.h     constants, handles and structure types
 *   tombolo/types.h         the type tables of the standard
 *   tombolo/prototypes.h    every routine
 *   tombolo/generics_c11.h  type-generic routines by _Generic
 *   tombolo/generics_cxx.h  type-generic routines by overloading
 *
 * The routines under their profiling names, pshmem_<routine>, are declared by pshmem.h.
 */
#ifndef TOMBOLO_SHMEM_H
#define TOMBOLO_SHMEM_H

#include <stddef.h>
#include <stdint.h>

/* Python's shmem4py tells implementations apart by their macros; it takes one that has these two, which
 * are those of Sandia OpenSHMEM, for complete. */
#ifndef SHMEM_DEF_H
#define SHMEM_DEF_H
#endif
#ifndef SHMEM_FUNCTION_ATTRIBUTES
#define SHMEM_FUNCTION_ATTRIBUTES
#endif

#include "tombolo/compiler.h"
#include "tombolo/constants.h"
#include "tombolo/types.h"

TOMBOLO_BEGIN_C

#define TOMBOLO_(ROUTINE) shmem_##ROUTINE
#include "tombolo/prototypes.h"
#undef TOMBOLO_

/* Names from before the shmem_ prefix, deprecated. The standard gives them no profiling twin. */
TOMBOLO_DEPRECATED("use shmem_init")
void start_pes(int npes);
TOMBOLO_DEPRECATED("use shmem_my_pe")
int _my_pe(void);
TOMBOLO_DEPRECATED("use shmem_n_pes")
int _num_pes(void);
TOMBOLO_DEPRECATED("use shmem_malloc")
void *shmalloc(size_t size);
TOMBOLO_DEPRECATED("use shmem_free")
void shfree(void *ptr);
TOMBOLO_DEPRECATED("use shmem_realloc")
void *shrealloc(void *ptr, size_t size);
TOMBOLO_DEPRECATED("use shmem_align")
void *shmemalign(size_t alignment, size_t size);

TOMBOLO_END_C

#if defined(__cplusplus)
/* Programs include this file within extern "C" as well, where there are no overloads. */
extern "C++" {
#include "tombolo/generics_cxx.h"
}
#elif defined(__STDC_VERSION__) && __STDC_VERSION__ >= 201112L
#include "tombolo/generics_c11.h"
#endif

#endif
