// SPDX-License-Identifier: Apache-2.0
//! Completion counters.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Completion counters of one context on one transport.
///
/// - Whoever issues raises `issued` (only the context's own thread, unless the context is shared).
/// - The transport raises `completed` when the operation is visible at the target and will not
///   write there again (put, AMO), or when the result has been written (get, fetching AMO). The
///   result is written before the count, with release order.
/// - `failed` holds 1 + the number of a PE for which an operation failed: the PE became unreachable,
///   or, with [`Stream::REFUSED`] added, it refused the operation. Failed operations are counted as
///   completed, after `failed` was set: nothing of them is touched any more.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub struct Stream {
    /// Names the stream to the transport; operations of one stream may depend on each other's
    /// order, those of different streams never do.
    pub id: u32,
    /// The context is private to one thread or serialised by the program: no lock is needed.
    pub exclusive: bool,
    /// Operations accepted.
    pub issued: AtomicU64,
    /// Operations completed, raised by the transport.
    pub completed: AtomicU64,
    /// 1 + a PE that was lost or refused, or 0.
    pub failed: AtomicU32,
}

impl Stream {
    /// Added to `failed` when the PE did not take an operation, such as one out of range.
    pub const REFUSED: u32 = 1 << 31;

    /// A stream with nothing outstanding.
    pub fn new(id: u32, exclusive: bool) -> Stream {
        Stream { id, exclusive, ..Stream::default() }
    }

    /// Counts an operation on `pe` that failed as completed.
    pub fn fail(&self, pe: u32, refused: bool) {
        let mark = if refused { Stream::REFUSED } else { 0 };
        // A refusal outranks a loss, which the program may have asked to live with.
        self.failed.fetch_max((pe + 1) | mark, Ordering::Release);
        self.completed.fetch_add(1, Ordering::Release);
    }

    /// Counts an operation while it is submitted. It counts before it can complete, or another
    /// thread of a shared context could take its completion for that of an earlier one.
    #[inline]
    pub fn counted(&self, submit: impl FnOnce() -> super::Status) -> super::Status {
        if self.exclusive {
            let issued = self.issued.load(Ordering::Relaxed);
            self.issued.store(issued + 1, Ordering::Relaxed);
            let status = submit();
            if status != super::Status::Pending {
                self.issued.store(issued, Ordering::Relaxed);
            }
            return status;
        }
        self.issued.fetch_add(1, Ordering::Relaxed);
        let status = submit();
        if status != super::Status::Pending {
            self.issued.fetch_sub(1, Ordering::Relaxed);
        }
        status
    }

    /// True when everything issued has completed.
    #[inline]
    pub fn is_quiet(&self) -> bool {
        self.completed.load(Ordering::Acquire) >= self.issued.load(Ordering::Relaxed)
    }

    /// True when everything issued has completed and nothing has failed.
    #[inline]
    pub fn is_settled(&self) -> bool {
        // Failures are told before they are counted.
        self.is_quiet() && self.failed.load(Ordering::Relaxed) == 0
    }
}
