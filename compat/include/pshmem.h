/* SPDX-License-Identifier: Apache-2.0 */
/*
 * OpenSHMEM 1.6 profiling interface: every shmem_<routine> also as pshmem_<routine>.
 *
 * The library defines pshmem_<routine>; shmem_<routine> is a weak alias of it, so that a tool may
 * define its own shmem_<routine> and call through. The type-generic routines are macros (in C++
 * inline functions) over the routines and have no twin of their own.
 */
#ifndef TOMBOLO_PSHMEM_H
#define TOMBOLO_PSHMEM_H

#include "shmem.h"

TOMBOLO_BEGIN_C

#define TOMBOLO_(ROUTINE) pshmem_##ROUTINE
#include "tombolo/prototypes.h"
#undef TOMBOLO_

TOMBOLO_END_C

#endif
