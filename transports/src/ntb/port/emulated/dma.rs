// SPDX-License-Identifier: Apache-2.0
//! A DMA channel: bounded descriptors, a start-up cost, TLPs of the full payload.
//!
//! It has no thread: transfers move on when the channel is polled, one piece at a time, on the CPU
//! of whoever polls. Bandwidth and start-up follow the model; the CPU that hardware would leave free
//! is not.

use super::posted::Posted;
use crate::ntb::port::{DmaCapability, DmaChannel, DmaProgress, DmaRefusal, DmaTransfer, Event};
use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use super::random::Random;

/// Fixed cost of a transfer in modelled time, nanoseconds.
pub const START_NS: u64 = 5000;
/// Bytes moved by one poll.
const PIECE: usize = 16 << 10;

/// An open channel.
pub struct EmulatedDma {
    posted: Posted,
    limits: DmaCapability,
    payload: usize,
    random: Random,
    queue: VecDeque<Queued>,
    submitted: u64,
    progress: DmaProgress,
}

struct Queued {
    transfer: DmaTransfer,
    done: usize,
    start_ps: u64,
}

// SAFETY: the source pointers are read wherever the channel is polled; whoever submits promises
// that they stay readable.
unsafe impl Send for EmulatedDma {}

impl EmulatedDma {
    pub fn new(posted: Posted, limits: DmaCapability) -> EmulatedDma {
        let config = &posted.link().config;
        EmulatedDma {
            payload: config.timing.max_payload as usize,
            random: Random::new(config.seed, 2 << 48 | posted.side() as u64),
            queue: VecDeque::with_capacity(limits.descriptors),
            submitted: 0,
            progress: DmaProgress::default(),
            posted,
            limits,
        }
    }

    fn finish(&mut self, failed: bool) {
        self.queue.pop_front();
        self.progress.finished += 1;
        self.posted.count(Event::DmaTransfers, 1);
        if failed {
            self.progress.failed += 1;
            self.posted.count(Event::DmaErrors, 1);
        }
    }
}

impl DmaChannel for EmulatedDma {
    unsafe fn submit(&mut self, transfer: DmaTransfer) -> Result<u64, DmaRefusal> {
        if transfer.len > self.limits.max_len {
            return Err(DmaRefusal::TooLong);
        }
        if self.queue.len() == self.limits.descriptors {
            return Err(DmaRefusal::Full);
        }
        // Where a slot is closed, what goes there vanishes.
        let _ = self.posted.open(transfer.offset, transfer.len);
        if let Some((offset, _)) = transfer.flag {
            let _ = self.posted.open(offset, 8);
        }
        let start_ps = self.posted.link().now_ps() + self.limits.start_ns * 1000;
        self.queue.push_back(Queued { transfer, done: 0, start_ps });
        self.submitted += 1;
        Ok(self.submitted)
    }

    fn poll(&mut self) -> DmaProgress {
        let Some(first) = self.queue.front_mut() else { return self.progress };
        if self.posted.link().now_ps() < first.start_ps {
            return self.progress;
        }
        if first.done == 0 {
            let ppm = self.posted.link().memory().faults.dma_error_ppm.load(Ordering::Relaxed);
            if ppm != 0 && self.random.chance(ppm) {
                self.finish(true);
                return self.progress;
            }
        }
        let DmaTransfer { offset, source, len, flag } = first.transfer;
        let piece = (len - first.done).min(PIECE);
        let at = offset.saturating_add(first.done);
        // SAFETY: `done + piece <= len` bytes, readable until the transfer has finished.
        unsafe { self.posted.send(at, source.add(first.done), piece, self.payload) };
        first.done += piece;
        if first.done == len {
            if let Some((offset, value)) = flag {
                // SAFETY: eight bytes of a local.
                unsafe { self.posted.send(offset, (&raw const value).cast(), 8, self.payload) };
            }
            // The source may be used again, and a word written, only when all has arrived.
            self.posted.settle();
            self.finish(false);
        }
        self.progress
    }
}
