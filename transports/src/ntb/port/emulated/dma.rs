// SPDX-License-Identifier: Apache-2.0
//! A DMA channel: bounded descriptors, a start-up cost, TLPs of the full payload.
//!
//! In modelled time a transfer takes the wire from the moment at which an engine would have begun it,
//! however late its pieces are moved. Who moves them is a thread of the channel's own, which
//! sleeps while there is nothing to do, and whoever polls the channel. So the submitter can
//! compute meanwhile, as beside an engine; but unlike an engine the thread takes processor time: not that of
//! who submits, where it may use another processor. It also raises the interrupt.

use super::doorbell;
use super::flight::Piece;
use super::link::Link;
use super::posted::Posted;
use super::random::Random;
use super::sys;
use super::translation::Registry;
use crate::ntb::port::{
    DmaCapability, DmaChannel, DmaProgress, DmaRefusal, DmaTransfer, Event, PortError, Result,
};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::JoinHandle;
use std::time::Duration;
use tombolo_core::threads::{Processors, processor, spawn_without_signals};

/// Fixed cost of a transfer in modelled time, nanoseconds: that of the simulator's engine.
pub const START_NS: u64 = 1000;
/// Bytes that arrive at once.
const PIECE: usize = 16 << 10;
/// Pieces that a poll moves, so that the poller gets back to what it waits for.
const PIECES_PER_POLL: usize = 4;
/// Shortest and longest sleep of the thread while something is under way.
const NAPS: [Duration; 2] = [Duration::from_micros(5), Duration::from_millis(1)];

/// An open channel.
pub struct EmulatedDma {
    engine: Arc<Engine>,
    /// None only while it is dropped.
    thread: Option<JoinHandle<()>>,
    limits: DmaCapability,
    registry: Arc<Mutex<Registry>>,
    /// What can be read, as it was when a range was last opened.
    sources: Vec<Range<usize>>,
}

/// What the thread and the pollers share.
struct Engine {
    link: Arc<Link>,
    /// Used in turn; those from `finished` to `submitted` are queued.
    descriptors: Box<[Descriptor]>,
    submitted: AtomicU64,
    finished: AtomicU64,
    failed: AtomicU64,
    asleep: AtomicBool,
    /// The processor of the thread that submitted last.
    submitter: AtomicUsize,
    stop: AtomicBool,
    first: Mutex<First>,
    /// Who polls needs no interrupt.
    polls: AtomicU64,
    interrupts: AtomicBool,
    side: usize,
    /// Of the port: what a wait there is told.
    transferred: Arc<AtomicBool>,
}

/// A queued transfer. Written before `submitted` says so, read after.
#[derive(Default)]
struct Descriptor {
    offset: AtomicU64,
    source: AtomicU64,
    len: AtomicU64,
    flag_offset: AtomicU64,
    flag: AtomicU64,
    start_ps: AtomicU64,
}

/// Stands for no flag.
const NO_FLAG: u64 = u64::MAX;

/// The first of the queued transfers, and how far it has come.
struct First {
    posted: Posted,
    payload: usize,
    random: Random,
    begun: bool,
    /// Bytes that have left.
    left: usize,
    /// Some of them got nowhere: the flag does not leave.
    lost: bool,
    flag_left: bool,
    /// What has left last and not arrived.
    under_way: Option<(Piece, From)>,
}

/// Where a piece comes from.
#[derive(Clone, Copy)]
enum From {
    /// The source, from so many bytes on.
    Source(usize),
    Flag,
}

/// How it goes on.
enum Next {
    /// Nothing is queued.
    Nothing,
    /// Something is due in so many picoseconds.
    In(u64),
}

impl EmulatedDma {
    pub fn new(
        posted: Posted,
        limits: DmaCapability,
        registry: Arc<Mutex<Registry>>,
        transferred: Arc<AtomicBool>,
    ) -> Result<EmulatedDma> {
        let config = &posted.link().config;
        let first = First {
            payload: config.timing.max_payload as usize,
            random: Random::new(config.seed, 2 << 48 | posted.side() as u64),
            begun: false,
            left: 0,
            lost: false,
            flag_left: false,
            under_way: None,
            posted,
        };
        let engine = Arc::new(Engine {
            link: Arc::clone(first.posted.link()),
            side: first.posted.side(),
            transferred,
            polls: AtomicU64::new(0),
            interrupts: AtomicBool::new(false),
            descriptors: (0..limits.descriptors).map(|_| Descriptor::default()).collect(),
            submitted: AtomicU64::new(0),
            finished: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            asleep: AtomicBool::new(false),
            submitter: AtomicUsize::new(usize::MAX),
            stop: AtomicBool::new(false),
            first: Mutex::new(first),
        });
        let running = Arc::clone(&engine);
        let thread = spawn_without_signals("shmem-ntb-dma", move || running.run());
        let thread = thread.map_err(|e| PortError::system("starting a DMA engine's thread", e))?;
        Ok(EmulatedDma { engine, thread: Some(thread), limits, registry, sources: Vec::new() })
    }

    fn unpark(&self) {
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
    }
}

impl Drop for EmulatedDma {
    fn drop(&mut self) {
        self.engine.stop.store(true, Ordering::SeqCst);
        self.unpark();
        // A source may be freed from now on. A panic of the thread has been printed already.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

impl DmaChannel for EmulatedDma {
    fn open(&mut self, offset: usize, len: usize) -> Result<()> {
        let registry = self.registry.lock().unwrap_or_else(PoisonError::into_inner);
        self.sources = registry.sources();
        drop(registry);
        self.engine.first().posted.open(offset, len)
    }

    unsafe fn submit(&mut self, transfer: DmaTransfer) -> std::result::Result<u64, DmaRefusal> {
        let DmaTransfer { offset, source, len, flag } = transfer;
        if len > self.limits.max_len {
            return Err(DmaRefusal::TooLong);
        }
        let from = source.addr();
        let holds = |range: &Range<usize>| range.contains(&from) && len <= range.end - from;
        if len > 0 && !self.sources.iter().any(holds) {
            return Err(DmaRefusal::Unregistered);
        }
        let engine = &*self.engine;
        let submitted = engine.submitted.load(Ordering::Relaxed);
        let queued = submitted - engine.finished.load(Ordering::Acquire);
        if queued == engine.descriptors.len() as u64 {
            return Err(DmaRefusal::Full);
        }
        let (flag_offset, value) = flag.map_or((NO_FLAG, 0), |(at, value)| (at as u64, value));
        let start_ps = engine.link.now_ps() + self.limits.start_ns * 1000;
        let descriptor = engine.descriptor(submitted);
        descriptor.offset.store(offset as u64, Ordering::Relaxed);
        descriptor.source.store(source.expose_provenance() as u64, Ordering::Relaxed);
        descriptor.len.store(len as u64, Ordering::Relaxed);
        descriptor.flag_offset.store(flag_offset, Ordering::Relaxed);
        descriptor.flag.store(value, Ordering::Relaxed);
        descriptor.start_ps.store(start_ps, Ordering::Relaxed);
        engine.submitter.store(processor(), Ordering::Relaxed);
        // In one order with `asleep`: either the thread sees the transfer or this sees it asleep.
        engine.submitted.store(submitted + 1, Ordering::SeqCst);
        if engine.asleep.load(Ordering::SeqCst) {
            self.unpark();
        }
        Ok(submitted + 1)
    }

    fn poll(&mut self) -> DmaProgress {
        let engine = &*self.engine;
        engine.polls.fetch_add(1, Ordering::Relaxed);
        if engine.is_busy() {
            // Whoever holds it moves it.
            match engine.first.try_lock() {
                Ok(mut first) => _ = engine.advance(&mut first),
                Err(TryLockError::Poisoned(poisoned)) => {
                    engine.advance(&mut poisoned.into_inner());
                }
                Err(TryLockError::WouldBlock) => {}
            }
        }
        // Read in this order, or a transfer might count as finished and not as failed.
        let finished = engine.finished.load(Ordering::Acquire);
        DmaProgress { finished, failed: engine.failed.load(Ordering::Acquire) }
    }

    fn wake(&mut self) -> bool {
        self.engine.interrupts.store(true, Ordering::Relaxed);
        true
    }
}

impl Engine {
    fn run(&self) {
        sys::nap_precisely();
        let mut processors = Processors::of_thread();
        // Polls before it last slept, and transfers that it has told of.
        let (mut polls, mut told) = (0, 0);
        while !self.stop.load(Ordering::SeqCst) {
            // Not held while this sleeps.
            let next = self.advance(&mut self.first());
            match next {
                Next::In(0) => {}
                Next::In(left_ps) => {
                    polls = self.polls.load(Ordering::Relaxed);
                    let left = Duration::from_nanos(left_ps / 1000);
                    std::thread::sleep(left.clamp(NAPS[0], NAPS[1]));
                }
                Next::Nothing => {
                    let finished = self.finished.load(Ordering::Relaxed);
                    let is_new = std::mem::replace(&mut told, finished) != finished;
                    if is_new && self.polls.load(Ordering::Relaxed) == polls {
                        self.interrupt();
                    }
                    self.asleep.store(true, Ordering::SeqCst);
                    if !self.is_busy() && !self.stop.load(Ordering::SeqCst) {
                        std::thread::park();
                    }
                    self.asleep.store(false, Ordering::SeqCst);
                    processors.leave(self.submitter.load(Ordering::Relaxed));
                    polls = self.polls.load(Ordering::Relaxed);
                }
            }
        }
    }

    /// Moves on what is due.
    fn advance(&self, first: &mut First) -> Next {
        for _ in 0..PIECES_PER_POLL {
            if !self.is_busy() {
                return Next::Nothing;
            }
            let transfer = self.descriptor(self.finished.load(Ordering::Relaxed));
            if !first.begun {
                first.begun = true;
                let ppm = self.link.memory().faults.dma_error_ppm.load(Ordering::Relaxed);
                if ppm != 0 && first.random.chance(ppm) {
                    self.finish(first, true);
                    continue;
                }
            }
            let Some((piece, from)) = first.under_way.or_else(|| first.depart(transfer)) else {
                self.finish(first, false);
                continue;
            };
            first.under_way = Some((piece, from));
            let now = self.link.now_ps();
            if piece.due_ps > now {
                return Next::In(piece.due_ps - now);
            }
            first.under_way = None;
            let flag = transfer.flag.load(Ordering::Relaxed);
            let source: *const u8 = match from {
                From::Source(at) => {
                    let source = transfer.source.load(Ordering::Relaxed) as usize;
                    std::ptr::with_exposed_provenance::<u8>(source).wrapping_add(at)
                }
                From::Flag => (&raw const flag).cast(),
            };
            // SAFETY: the piece lies within the source, which stays readable until the transfer has
            // finished, or is the flag, a local.
            first.lost |= !unsafe { first.posted.arrive(&piece, source) };
        }
        Next::In(0)
    }

    fn interrupt(&self) {
        if self.interrupts.load(Ordering::Relaxed) {
            self.transferred.store(true, Ordering::SeqCst);
            doorbell::announce(&self.link.side(self.side).doorbell);
        }
    }

    fn finish(&self, first: &mut First, failed: bool) {
        (first.begun, first.left, first.lost, first.flag_left) = (false, 0, false, false);
        first.posted.count(Event::DmaTransfers, 1);
        if failed {
            first.posted.count(Event::DmaErrors, 1);
            self.failed.fetch_add(1, Ordering::Release);
        }
        self.finished.fetch_add(1, Ordering::Release);
    }

    fn descriptor(&self, number: u64) -> &Descriptor {
        &self.descriptors[(number % self.descriptors.len() as u64) as usize]
    }

    fn is_busy(&self) -> bool {
        self.finished.load(Ordering::SeqCst) != self.submitted.load(Ordering::SeqCst)
    }

    fn first(&self) -> MutexGuard<'_, First> {
        self.first.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl First {
    /// The next piece leaves: of the data, then the flag. None: all has left.
    fn depart(&mut self, transfer: &Descriptor) -> Option<(Piece, From)> {
        let start_ps = transfer.start_ps.load(Ordering::Relaxed);
        let offset = transfer.offset.load(Ordering::Relaxed) as usize;
        let len = transfer.len.load(Ordering::Relaxed) as usize;
        while self.left < len {
            let at = offset.saturating_add(self.left);
            let piece = (len - self.left).min(PIECE);
            let from = From::Source(self.left);
            match self.posted.depart(at, piece, self.payload, start_ps) {
                Ok(piece) => {
                    self.left += piece.len;
                    return Some((piece, from));
                }
                Err(lost) => {
                    self.left += lost;
                    self.lost = true;
                }
            }
        }
        let flag_offset = transfer.flag_offset.load(Ordering::Relaxed);
        if flag_offset == NO_FLAG || self.lost || std::mem::replace(&mut self.flag_left, true) {
            return None;
        }
        let left = self.posted.depart(flag_offset as usize, 8, self.payload, start_ps);
        left.ok().map(|piece| (piece, From::Flag))
    }
}
