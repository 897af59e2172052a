/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Constants, handles and structure types of OpenSHMEM 1.6 ("Library Constants", "Library Handles").
 *
 * The values are part of the library's binary interface: compat/src/abi.rs states them too, and a
 * test compares the two. Handles are opaque pointers; the predefined ones are small integers, so
 * they work in static initialisers and need no relocation. They are macros in C and C++, and variables
 * of the library for languages that know declarations alone.
 */
#ifndef TOMBOLO_CONSTANTS_H
#define TOMBOLO_CONSTANTS_H

#include <stddef.h>
#include <stdint.h>

/* Version of the standard, and of this library. */
#define SHMEM_MAJOR_VERSION 1
#define SHMEM_MINOR_VERSION 6
#define SHMEM_MAX_NAME_LEN  256
#define SHMEM_VENDOR_STRING "Tombolo 0.1.0"

/* Thread levels, in increasing order. */
#define SHMEM_THREAD_SINGLE     0
#define SHMEM_THREAD_FUNNELED   1
#define SHMEM_THREAD_SERIALIZED 2
#define SHMEM_THREAD_MULTIPLE   3

/* Communication contexts: handles, creation options, session options and session mask. */
typedef struct tombolo_ctx *shmem_ctx_t;
TOMBOLO_BEGIN_C
extern const shmem_ctx_t SHMEM_CTX_INVALID;
extern const shmem_ctx_t SHMEM_CTX_DEFAULT;
TOMBOLO_END_C
#define SHMEM_CTX_INVALID TOMBOLO_NO_HANDLE(shmem_ctx_t)
#define SHMEM_CTX_DEFAULT TOMBOLO_HANDLE(shmem_ctx_t, 1)

#define SHMEM_CTX_SERIALIZED (1L << 0)
#define SHMEM_CTX_PRIVATE    (1L << 1)
#define SHMEM_CTX_NOSTORE    (1L << 2)

#define SHMEM_CTX_SESSION_BATCH (1L << 0)

typedef struct {
    size_t total_ops;
} shmem_ctx_session_config_t;
#define SHMEM_CTX_SESSION_TOTAL_OPS (1L << 0)

/* Teams: handles and configuration. */
typedef struct tombolo_team *shmem_team_t;
TOMBOLO_BEGIN_C
extern const shmem_team_t SHMEM_TEAM_INVALID;
extern const shmem_team_t SHMEM_TEAM_WORLD;
extern const shmem_team_t SHMEM_TEAM_SHARED;
TOMBOLO_END_C
#define SHMEM_TEAM_INVALID TOMBOLO_NO_HANDLE(shmem_team_t)
#define SHMEM_TEAM_WORLD   TOMBOLO_HANDLE(shmem_team_t, 1)
#define SHMEM_TEAM_SHARED  TOMBOLO_HANDLE(shmem_team_t, 2)

typedef struct {
    int num_contexts;
} shmem_team_config_t;
#define SHMEM_TEAM_NUM_CONTEXTS (1L << 0)

/* Hints of shmem_malloc_with_hints. */
#define SHMEM_MALLOC_ATOMICS_REMOTE (1L << 0)
#define SHMEM_MALLOC_SIGNAL_REMOTE  (1L << 1)

/* Signal operations of shmem_put_signal. */
#define SHMEM_SIGNAL_SET 0
#define SHMEM_SIGNAL_ADD 1

/* Comparisons of the wait and test routines. */
#define SHMEM_CMP_EQ 0
#define SHMEM_CMP_NE 1
#define SHMEM_CMP_GT 2
#define SHMEM_CMP_LE 3
#define SHMEM_CMP_LT 4
#define SHMEM_CMP_GE 5

/* Deprecated: work arrays of the active-set collectives, in elements of type long. */
#define SHMEM_SYNC_VALUE              0
#define SHMEM_SYNC_SIZE               64
#define SHMEM_BARRIER_SYNC_SIZE       64
#define SHMEM_BCAST_SYNC_SIZE         64
#define SHMEM_COLLECT_SYNC_SIZE       64
#define SHMEM_REDUCE_SYNC_SIZE        64
#define SHMEM_ALLTOALL_SYNC_SIZE      64
#define SHMEM_ALLTOALLS_SYNC_SIZE     64
#define SHMEM_REDUCE_MIN_WRKDATA_SIZE 16

/* Deprecated: the spelling of the constants before OpenSHMEM 1.2. */
#define _SHMEM_MAJOR_VERSION           SHMEM_MAJOR_VERSION
#define _SHMEM_MINOR_VERSION           SHMEM_MINOR_VERSION
#define _SHMEM_MAX_NAME_LEN            SHMEM_MAX_NAME_LEN
#define _SHMEM_VENDOR_STRING           SHMEM_VENDOR_STRING
#define _SHMEM_CMP_EQ                  SHMEM_CMP_EQ
#define _SHMEM_CMP_NE                  SHMEM_CMP_NE
#define _SHMEM_CMP_GT                  SHMEM_CMP_GT
#define _SHMEM_CMP_LE                  SHMEM_CMP_LE
#define _SHMEM_CMP_LT                  SHMEM_CMP_LT
#define _SHMEM_CMP_GE                  SHMEM_CMP_GE
#define _SHMEM_SYNC_VALUE              SHMEM_SYNC_VALUE
#define _SHMEM_BARRIER_SYNC_SIZE       SHMEM_BARRIER_SYNC_SIZE
#define _SHMEM_BCAST_SYNC_SIZE         SHMEM_BCAST_SYNC_SIZE
#define _SHMEM_COLLECT_SYNC_SIZE       SHMEM_COLLECT_SYNC_SIZE
#define _SHMEM_REDUCE_SYNC_SIZE        SHMEM_REDUCE_SYNC_SIZE
#define _SHMEM_REDUCE_MIN_WRKDATA_SIZE SHMEM_REDUCE_MIN_WRKDATA_SIZE

#endif
