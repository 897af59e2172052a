// SPDX-License-Identifier: Apache-2.0
//! A port's DMA channel, as the direct puts of this PE share it, or a lane uses it for its packets.
//!
//! A channel writes by itself, so two things have to be waited for that stores of the CPU do not need:
//!
//! - A transfer that was queued before the link went down must not be carried out after it has come
//!   back: its put was repeated another way, and what the program has put there since would be
//!   overwritten. So nothing is opened again before the queue has been worked off
//!   ([`DmaWriter::cut`]), and nothing is repeated before its transfer has ended.
//! - An engine may stop without a word. One that does nothing for a while ([`stall_ns`]) is given up: its
//!   channel is closed, after which it reads and writes nothing, and the CPU copies.

use crate::ntb::port::{
    DmaCapability, DmaChannel, DmaProgress, DmaRefusal, DmaTransfer, PortError,
};
use crate::ntb::ring::{RunClock, Transfer};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tombolo_core::board::monotonic_ns;

/// Time without progress after which a channel is given up: a transfer of the longest kind takes
/// milliseconds, and an engine that is a thread has to get a processor.
const fn stall_ns(limits: &DmaCapability) -> u64 {
    if limits.needs_processor { 5_000_000_000 } else { 1_000_000_000 }
}

/// At most so much of the time between two looks counts: a process that was stopped has not looked, and its engine may
/// be one of its threads.
const STEP_NS: u64 = 100_000_000;

/// See the module.
pub struct DmaWriter {
    limits: DmaCapability,
    state: Mutex<State>,
}

struct State {
    /// None once it was given up.
    channel: Option<Box<dyn DmaChannel>>,
    submitted: u64,
    progress: DmaProgress,
    /// Transfers up to this one were submitted before the link last changed.
    stale: u64,
    clock: RunClock,
    /// When it last had nothing to do, or made progress, by `clock`.
    moved_at: u64,
    stall_ns: u64,
}

/// The last transfer of a put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    number: u64,
    /// Transfers that had failed when it was submitted.
    failed: u64,
}

impl Ticket {
    /// Transfers are numbered in their order.
    pub fn number(self) -> u64 {
        self.number
    }

    /// The same for this transfer and all since `earlier` was submitted.
    pub fn since(self, earlier: Ticket) -> Ticket {
        Ticket { failed: earlier.failed, ..self }
    }
}

/// What has become of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Its source is being read, or will be.
    UnderWay,
    /// It has left.
    Posted,
    /// It, or another one since, was not carried out, and never will be.
    Failed,
}

impl DmaWriter {
    /// A channel with nothing under way.
    pub fn new(channel: Box<dyn DmaChannel>, limits: DmaCapability) -> DmaWriter {
        let state = State {
            channel: Some(channel),
            submitted: 0,
            progress: DmaProgress::default(),
            stale: 0,
            clock: RunClock::default(),
            moved_at: monotonic_ns(),
            stall_ns: stall_ns(&limits),
        };
        DmaWriter { limits, state: Mutex::new(state) }
    }

    /// Has the port tell when all has been carried out; false: it does not.
    pub fn wake(&self) -> bool {
        self.lock().channel.as_mut().is_some_and(|channel| channel.wake())
    }

    /// Transfers that can be queued.
    pub fn descriptors(&self) -> usize {
        self.limits.descriptors
    }

    /// The link has changed: what is queued must end before anything is opened.
    pub fn cut(&self) {
        let mut state = self.lock();
        state.stale = state.submitted;
    }

    /// Opens a range of the window. False: not yet, because something is under way that must end first,
    /// the link is down, or the peer has not opened the range. Try again: a range that is open for the
    /// CPU's stores alone would swallow what the engine writes.
    pub fn open(&self, offset: usize, len: usize) -> bool {
        let mut state = self.lock();
        state.look();
        let cleared = state.progress.finished >= state.stale;
        let Some(channel) = state.channel.as_mut().filter(|_| cleared) else {
            return state.channel.is_none();
        };
        match channel.open(offset, len) {
            Ok(()) => true,
            Err(PortError::NotConnected | PortError::Closed { .. }) => false,
            Err(error) => {
                tracing::warn!(%error, "opening a window for a DMA engine");
                state.give_up();
                true
            }
        }
    }

    /// Copies to `offset` of the window, and writes the flag's value behind it. None: not now.
    ///
    /// # Safety
    /// `source` is readable for `len` bytes until the transfer has ended.
    pub unsafe fn submit(
        &self,
        offset: usize,
        source: *const u8,
        len: usize,
        flag: Option<(usize, u64)>,
    ) -> Option<Ticket> {
        let mut state = self.lock();
        state.look();
        let state = &mut *state;
        let pieces = len.div_ceil(self.limits.max_len).max(1);
        let queued = state.submitted - state.progress.finished;
        if queued as usize + pieces > self.limits.descriptors {
            return None;
        }
        if queued == 0 {
            state.moved();
        }
        let channel = state.channel.as_mut()?;
        let failed = state.progress.failed;
        for piece in 0..pieces {
            let at = piece * self.limits.max_len;
            let transfer = DmaTransfer {
                offset: offset + at,
                source: source.wrapping_add(at),
                len: (len - at).min(self.limits.max_len),
                flag: flag.filter(|_| piece + 1 == pieces),
            };
            // SAFETY: the caller's promise. One that is refused is the first: there is room for all,
            // and a source is known to the port as a whole or not at all.
            let number = unsafe { channel.submit(transfer) }.ok()?;
            state.submitted = number;
        }
        Some(Ticket { number: state.submitted, failed })
    }

    /// Queues a flag behind all that was queued. None: not now. `Done`: the channel was given up, and none of its
    /// writes is on its way any more.
    pub fn mark(&self, flag: (usize, u64)) -> Option<Transfer> {
        let mut state = self.lock();
        state.look();
        let state = &mut *state;
        let Some(channel) = &mut state.channel else { return Some(Transfer::Done) };
        let (offset, source, len) = (flag.0, std::ptr::null(), 0);
        // SAFETY: nothing is read.
        match unsafe { channel.submit(DmaTransfer { offset, source, len, flag: Some(flag) }) } {
            Ok(number) => {
                if state.progress.finished == state.submitted {
                    state.moved();
                }
                state.submitted = number;
                Some(Transfer::Queued(number))
            }
            Err(DmaRefusal::Gone) => {
                state.give_up();
                Some(Transfer::Done)
            }
            Err(_) => None,
        }
    }

    /// Whether so many transfers find room.
    pub fn has_room(&self, transfers: usize) -> bool {
        let mut state = self.lock();
        state.look();
        let queued = state.submitted - state.progress.finished;
        state.channel.is_some() && queued as usize + transfers <= self.limits.descriptors
    }

    /// The number of the next transfer.
    pub fn next_number(&self) -> u64 {
        self.lock().submitted + 1
    }

    /// Whether a transfer has ended: it reads nothing any more.
    pub fn has_ended(&self, number: u64) -> bool {
        let mut state = self.lock();
        state.look();
        state.progress.finished >= number
    }

    /// Whether nothing is queued.
    pub fn is_idle(&self) -> bool {
        let mut state = self.lock();
        state.look();
        state.progress.finished == state.submitted
    }

    /// Whether the channel is not used any more.
    pub fn is_given_up(&self) -> bool {
        let mut state = self.lock();
        state.look();
        state.channel.is_none()
    }

    /// What has become of a transfer. Lets the channel go on.
    pub fn outcome(&self, ticket: Ticket) -> Outcome {
        let mut state = self.lock();
        state.look();
        match state.progress {
            _ if state.channel.is_none() => Outcome::Failed,
            DmaProgress { finished, .. } if finished < ticket.number => Outcome::UnderWay,
            DmaProgress { failed, .. } if failed != ticket.failed => Outcome::Failed,
            _ => Outcome::Posted,
        }
    }

    /// Ends the use of the channel: it reads nothing any more.
    pub fn close(&self) {
        let mut state = self.lock();
        state.channel = None;
        state.progress.finished = state.submitted;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Lets the channel go on, and gives it up where it does not.
    fn look(&mut self) {
        let Some(channel) = &mut self.channel else { return };
        if self.progress.finished == self.submitted {
            return;
        }
        let progress = channel.poll();
        if progress.finished != self.progress.finished {
            self.progress = progress;
            self.moved();
        } else if self.now().saturating_sub(self.moved_at) >= self.stall_ns {
            self.give_up();
        }
    }

    /// Time that this process has run and looked, so far.
    fn now(&mut self) -> u64 {
        self.clock.advance(monotonic_ns(), STEP_NS)
    }

    fn moved(&mut self) {
        self.moved_at = self.now();
    }

    #[cold]
    fn give_up(&mut self) {
        tracing::warn!("a DMA engine of an NTB port does not go on: the CPU copies from now on");
        self.channel = None;
        self.progress.finished = self.submitted;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ntb::port::Result;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    const LIMITS: DmaCapability = DmaCapability {
        channels: 1,
        max_len: 100,
        descriptors: 4,
        start_ns: 0,
        needs_processor: false,
    };

    /// An engine that works when it is told to.
    #[derive(Default)]
    struct Engine {
        finished: AtomicU64,
        failed: AtomicU64,
        opened: AtomicU64,
        flags: AtomicU64,
        closed: AtomicBool,
    }

    struct Channel(Arc<Engine>, u64);

    impl DmaChannel for Channel {
        fn open(&mut self, _: usize, _: usize) -> Result<()> {
            self.0.opened.fetch_add(1, Ordering::Relaxed);
            match self.0.closed.load(Ordering::Relaxed) {
                true => Err(PortError::Closed { window: 0, slot: 0 }),
                false => Ok(()),
            }
        }

        unsafe fn submit(&mut self, transfer: DmaTransfer) -> Result<u64, DmaRefusal> {
            assert!(transfer.len <= LIMITS.max_len);
            self.0.flags.fetch_add(u64::from(transfer.flag.is_some()), Ordering::Relaxed);
            self.1 += 1;
            Ok(self.1)
        }

        fn poll(&mut self) -> DmaProgress {
            let Engine { finished, failed, .. } = &*self.0;
            let [finished, failed] = [finished, failed].map(|count| count.load(Ordering::Relaxed));
            DmaProgress { finished, failed }
        }
    }

    fn writer() -> (DmaWriter, Arc<Engine>) {
        let engine = Arc::new(Engine::default());
        (DmaWriter::new(Box::new(Channel(engine.clone(), 0)), LIMITS), engine)
    }

    fn submit(writer: &DmaWriter, len: usize) -> Option<Ticket> {
        // SAFETY: the engine of these tests reads nothing.
        unsafe { writer.submit(0, std::ptr::null(), len, Some((0, 1))) }
    }

    #[test]
    fn a_long_put_is_cut_and_ends_with_its_last_transfer() {
        let (writer, engine) = writer();
        let ticket = submit(&writer, 250).unwrap();
        assert_eq!((ticket.number, engine.flags.load(Ordering::Relaxed)), (3, 1));
        assert_eq!(submit(&writer, 101), None, "there is one descriptor left");
        let flag = submit(&writer, 0).unwrap();
        engine.finished.store(3, Ordering::Relaxed);
        assert_eq!(writer.outcome(ticket), Outcome::Posted);
        assert_eq!(writer.outcome(flag), Outcome::UnderWay);
    }

    #[test]
    fn a_failure_is_told_to_all_who_may_have_had_it() {
        let (writer, engine) = writer();
        let (first, second) = (submit(&writer, 1).unwrap(), submit(&writer, 1).unwrap());
        engine.failed.store(1, Ordering::Relaxed);
        engine.finished.store(1, Ordering::Relaxed);
        assert_eq!(writer.outcome(second), Outcome::UnderWay);
        assert_eq!(writer.outcome(first), Outcome::Failed);
        let third = submit(&writer, 1).unwrap();
        engine.finished.store(3, Ordering::Relaxed);
        assert_eq!(writer.outcome(second), Outcome::Failed);
        assert_eq!(writer.outcome(third), Outcome::Posted);
        assert_eq!(writer.outcome(third.since(second)), Outcome::Failed);
    }

    #[test]
    fn nothing_is_opened_before_what_was_queued_has_ended() {
        let (writer, engine) = writer();
        assert!(writer.open(0, 1));
        submit(&writer, 200).unwrap();
        assert!(writer.open(0, 1), "the link is what it was");
        writer.cut();
        submit(&writer, 1).unwrap();
        engine.finished.store(1, Ordering::Relaxed);
        assert!(!writer.open(0, 1));
        engine.finished.store(2, Ordering::Relaxed);
        assert!(writer.open(0, 1));
        assert_eq!(engine.opened.load(Ordering::Relaxed), 3);
    }

    #[test]
    fn what_the_peer_has_not_opened_yet_is_not_open() {
        let (writer, engine) = writer();
        engine.closed.store(true, Ordering::Relaxed);
        assert!(!writer.open(0, 1));
        engine.closed.store(false, Ordering::Relaxed);
        assert!(writer.open(0, 1));
    }

    #[test]
    fn a_mark_is_queued_behind_all_or_found_needless() {
        let (writer, engine) = writer();
        submit(&writer, 200).unwrap();
        assert_eq!(writer.mark((0, 7)), Some(Transfer::Queued(3)));
        assert!(!writer.has_ended(3));
        engine.finished.store(3, Ordering::Relaxed);
        assert!(writer.has_ended(3));
        writer.close();
        assert_eq!(writer.mark((0, 7)), Some(Transfer::Done));
    }

    #[test]
    fn an_engine_that_stops_is_given_up() {
        let (writer, _engine) = writer();
        let ticket = submit(&writer, 1).unwrap();
        writer.cut();
        assert_eq!(writer.outcome(ticket), Outcome::UnderWay);
        writer.lock().moved_at -= stall_ns(&LIMITS);
        assert_eq!(writer.outcome(ticket), Outcome::Failed);
        assert_eq!(submit(&writer, 1), None);
        assert!(writer.open(0, 1), "the CPU's stores do not wait for it");
    }
}
