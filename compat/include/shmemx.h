/*
 * Extensions to OpenSHMEM 1.6, which the standard keeps out of shmem.h.
 *
 * Tuning: at start the library measures every way to reach other PEs, or reads what an earlier job
 * measured, and routes operations by it (SHMEM_TUNE). A program may know more than was known then.
 */
#ifndef TOMBOLO_SHMEMX_H
#define TOMBOLO_SHMEMX_H

#include "shmem.h"

TOMBOLO_BEGIN_C

/* How buffers are used: again soon, or once. Buffers are taken to be hot until a hint says else. */
#define SHMEMX_REUSE_HOT  0
#define SHMEMX_REUSE_COLD 1

/*
 * Collective over all PEs: measures again, whatever SHMEM_TUNE says, and routes operations by the
 * result from then on. Completes outstanding operations as shmem_barrier_all does. No other thread
 * may be in a routine of the library. Takes about SHMEM_TUNE_BUDGET.
 *
 * Returns 0, or non-zero if it failed, with a message on standard error; the routes then stay.
 */
int shmemx_tune(void);

/*
 * Local: says how the buffers of this PE's next puts and gets are used. With SHMEMX_REUSE_COLD,
 * copies on mapped memory are chosen by what was measured on memory outside the caches. No other
 * thread may be in a routine of the library.
 *
 * Returns 0, or non-zero if `reuse` is none of the values above.
 */
int shmemx_tune_hint(int reuse);

TOMBOLO_END_C

#endif
