/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Extensions to OpenSHMEM 1.6, which the standard keeps out of shmem.h.
 *
 * Lost PEs: a program may go on without PEs that were killed or cannot be reached any more.
 *
 * Tuning: at start the library measures every channel to other PEs, or reads what an earlier job
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
 * The hint holds for all contexts, all buffers and all later operations of this PE until the next one.
 * It takes some microseconds and, where the use changes, a little memory until the program ends: it
 * is for phases of a program, not for single calls. There is no form for a range of addresses,
 * because looking it up would slow every small operation down. Operations on PEs of other hosts are
 * not concerned. SHMEM_TUNE_HINT gives the hint that holds from the start.
 *
 * Returns 0, or non-zero if `reuse` is none of the values above.
 */
int shmemx_tune_hint(int reuse);

/*
 * Local: the same of the next puts and gets on one context, which may be SHMEM_CTX_DEFAULT. The
 * context then goes by its own hint, whatever shmemx_tune_hint says before or after. No other thread may
 * be in a routine of the library.
 *
 * Operations on other contexts keep their routes. Once a context has a hint, every copy of at least the
 * size from which the routes differ (oshinfo --tuning) is looked up by its context, which takes some
 * 10 ns; shorter copies, words and atomic operations take no longer than before.
 *
 * Buffers that are used once are measured at start if there is time left for it, and first if
 * SHMEM_TUNE_HINT speaks of them. SHMEM_TUNE_HINT=contexts:cold gives every context that the program
 * creates this hint, without a call.
 *
 * Returns 0, or non-zero if `reuse` is none of the values above.
 */
int shmemx_ctx_tune_hint(shmem_ctx_t ctx, int reuse);

/*
 * Local: 1 if the PE is known to be lost, 0 otherwise, also for numbers that are no PE. A lost PE
 * stays lost. A PE is lost when
 * - it was killed, crashed or exited between shmem_init and shmem_finalize. oshrun tells the PEs of
 *   its host at once; under other launchers they find out by themselves when they wait or ask. Of
 *   several emulated hosts one is lost as a whole: its PEs serve for each other what arrives over its
 *   links, so oshrun kills the others;
 * - its host died, or a transport that reached it does not any more, and the library has given it up
 *   (over an NTB ring about two seconds after its links have gone down, and by default after 30 seconds
 *   of silence while they are up; over networks within ten).
 *
 * By default a lost PE ends the job. With SHMEM_ON_LOSS=continue in the environment the others go
 * on:
 * - Operations on a lost PE are dropped. Puts and atomic operations have no effect; gets fill their
 *   destination with zeros, but non-blocking ones that were under way leave what has arrived;
 *   fetching operations give 0, but non-blocking ones that were under way leave the place as it
 *   was. Fence and quiet do not wait for them. Memory that is shared with a PE of the same host,
 *   however, stays as it left it, and operations work on it as before.
 * - Waiting routines, collectives and locks cannot know whether a lost PE would have been needed.
 *   They go on, but one that lasts more than 10 seconds, counted from the loss or from its beginning
 *   if that is later, ends the job with an error. So make teams of those that may survive together
 *   in time, and do not use routines over all PEs, such as shmem_malloc, after a loss.
 * - A lock that a lost PE held, or waited for, is not passed on any more: shmem_set_lock ends as
 *   above, shmem_test_lock goes on saying that it is taken. A lock whose queue lies at a lost PE of
 *   another host is lost with it, and who asks for it ends the job with an error.
 * - shmem_finalize completes this PE's operations, then waits for the PEs that still run.
 * - oshrun returns 125 if all PEs but the lost ones end well.
 */
int shmemx_pe_is_lost(int pe);

TOMBOLO_END_C

#endif
