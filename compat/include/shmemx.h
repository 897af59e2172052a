/*
 * Extensions to OpenSHMEM 1.6, which the standard keeps out of shmem.h. Tombolo has none: the
 * header is here because the standard asks for it.
 */
#ifndef TOMBOLO_SHMEMX_H
#define TOMBOLO_SHMEMX_H

#include "shmem.h"

#endif
