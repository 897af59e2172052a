// SPDX-License-Identifier: Apache-2.0
//! How PEs leave a job together.
//!
//! By default the launcher has all of them wait for each other. Where the program goes on without lost PEs, `oshrun`
//! waits for those that still run, but other launchers wait for the lost ones as well. There each PE tells all
//! others, in a line that each of them has for it, that it has come to the end, and waits until it is told the same by
//! every PE that is not lost. Then all do so again, for a short time: who leaves may still have to confirm what another
//! one has told it.

use super::World;
use crate::control;
use crate::error::Result;
use crate::loss::LAUNCHER_GONE;
use crate::service::{LINE_WORDS, Wire};
use crate::transport::{Status, Stream};
use crate::wait::Look;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// In what a PE tells: it leaves for good. What it does from then on is no loss.
const FOR_GOOD: u64 = 1 << 63;

/// How long the others are waited for that are known to have come.
const BRIEF: Duration = Duration::from_secs(2);

/// What is told to all, as long as transports may read it.
struct Message {
    line: [u64; LINE_WORDS],
    stream: Stream,
}

impl World {
    /// Collective: waits for all PEs, or, if the program goes on without lost ones, for those that still run. This PE's
    /// operations are complete, and if it leaves `for_good`, so are the calls of all its threads.
    pub fn leave_together(&self, routine: &'static str, for_good: bool) -> Result<()> {
        if !self.goes_on() || self.config.board_fd.is_some() {
            return self.bootstrap.barrier_at_end();
        }
        let round = 2 * (self.partings.fetch_add(1, Ordering::Relaxed) + 1);
        let mark = if for_good { FOR_GOOD } else { 0 };
        self.tell_all(routine, None, (round - 1) | mark);
        self.until_all(routine, None, |pe| self.has_come(pe, round - 1) || self.is_lost(pe));
        self.tell_all(routine, Some(BRIEF), round | mark);
        self.until_all(routine, Some(BRIEF), |pe| self.has_come(pe, round) || self.is_gone(pe));
        Ok(())
    }

    /// Whether a PE has told that it leaves for good.
    pub(crate) fn has_left(&self, pe: usize) -> bool {
        self.told_by(pe) & FOR_GOOD != 0
    }

    fn has_come(&self, pe: usize, round: u64) -> bool {
        self.told_by(pe) & !FOR_GOOD >= round
    }

    /// What a PE has told last, or 0.
    fn told_by(&self, pe: usize) -> u64 {
        let line = self.heap.base() as usize + control::left(self.n_pes(), pe);
        let word = |index: usize| {
            // SAFETY: a word of the line that the control area has for the PE; all words there are atomics.
            let word = unsafe { &*((line + index * size_of::<u64>()) as *const AtomicU64) };
            word.load(Ordering::Acquire)
        };
        // They differ while some transport writes them byte by byte.
        let (first, last) = (word(0), word(LINE_WORDS - 1));
        if first == last { first } else { 0 }
    }

    /// As [`World::is_lost`] without a word of it: who has told that it leaves may do so at any time.
    fn is_gone(&self, pe: usize) -> bool {
        self.losses.is_known(pe)
            || self.board.is_lost(pe)
            || self.transports().iter().any(|transport| transport.has_given_up(pe))
    }

    /// Writes `word` into the line that every other PE has for this one. Those that cannot be reached do not count.
    fn tell_all(&self, routine: &'static str, limit: Option<Duration>, word: u64) {
        let stream = Stream::new(u32::MAX, true);
        let message = Box::new(Message { line: [word; LINE_WORDS], stream });
        let Message { line, stream } = &*message;
        let wire = &self.control_wire;
        let offset = control::left(self.n_pes(), self.pe);
        let put = |pe| self.is_gone(pe) || wire.put(stream, pe, offset, line) != Status::Again;
        self.until_all(routine, limit, put);
        self.until_told(routine, limit, &mut || wire.is_quiet(stream));
        if !stream.is_quiet() {
            // A transport may still read it.
            std::mem::forget(message);
        }
    }

    /// Waits until something holds of all other PEs, or the limit is over.
    fn until_all(
        &self,
        routine: &'static str,
        limit: Option<Duration>,
        mut holds: impl FnMut(usize) -> bool,
    ) {
        let mut pe = 0;
        self.until_told(routine, limit, &mut || {
            while pe < self.n_pes() && (pe == self.pe || holds(pe)) {
                pe += 1;
            }
            pe == self.n_pes()
        });
    }

    /// Waits as [`World::wait`] does, but as long as it takes: others may compute for hours before they leave.
    fn until_told(
        &self,
        routine: &'static str,
        limit: Option<Duration>,
        ready: &mut dyn FnMut() -> bool,
    ) {
        let begun = Instant::now();
        let is_over = || limit.is_some_and(|limit| begun.elapsed() > limit);
        let mut step = || match self.progress() {
            _ if ready() || is_over() => Look::Ready,
            true => Look::Moved,
            false => Look::Nothing,
        };
        if !self.patience.look(&mut step, &mut || self.nap()) {
            self.patience.sleep(&mut step, &mut || {
                if !self.bootstrap.is_alive() {
                    self.stop_job(routine, LAUNCHER_GONE);
                }
            });
        }
    }
}
