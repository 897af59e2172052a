//! A lane: one engine and whoever turns its crank.
//!
//! The threads of the program that submit or wait turn it themselves, which saves them a switch to
//! another thread; the lane's service threads do so when nobody else does. A lock decides who. It
//! is held for one turn at a time, and a service thread lets go at once when a caller wants it.

use super::host::DriveHost;
use super::memory::HostMemory;
use crate::ntb::port::PortError;
use crate::ntb::ring::{Engine, Event, Side, Stats};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;
use tombolo_core::board::monotonic_ns;
use tombolo_core::transport::Status;

/// A caller that turned the crank twice within this time, and so recently, is still at it. One that
/// looks by once in a while is not: it may be waiting, asleep most of the time.
const AT_IT_NS: u64 = 20_000;
/// Between two polls. After more, either the threads did not run or a link did not take what was
/// stored to it: the next stores tell which.
const LATE_NS: u64 = 20_000_000;
/// Tries for the lock before sleeping on it.
const TRIES: u32 = 2_000;

/// See the module.
pub struct Lane {
    state: Mutex<State>,
    /// Callers that want the lock.
    wanted: AtomicU32,
    /// When a caller last ended a turn of the crank, and when one that followed another shortly.
    turned_at: AtomicU64,
    at_it_at: AtomicU64,
}

struct State {
    engine: Engine,
    host: DriveHost,
    /// A service thread is awake.
    awake: bool,
    /// When it was last polled.
    polled_at: u64,
}

/// What a turn of the crank did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Something moved.
    Busy,
    /// Nothing to do.
    Idle,
    /// Somebody else holds the lane.
    Taken,
}

impl Lane {
    /// A lane whose service threads sleep.
    pub fn new(engine: Engine, host: DriveHost) -> Lane {
        Lane {
            state: Mutex::new(State { engine, host, awake: false, polled_at: monotonic_ns() }),
            wanted: AtomicU32::new(0),
            turned_at: AtomicU64::new(0),
            at_it_at: AtomicU64::new(0),
        }
    }

    /// Hands an operation to the engine and turns the crank, so that it leaves at once.
    #[inline]
    pub fn submit(&self, mut act: impl FnMut(&mut Engine, &mut DriveHost) -> Status) -> Status {
        let mut state = self.lock();
        let state = &mut *state;
        let mut status = act(&mut state.engine, &mut state.host);
        let now = monotonic_ns();
        state.turn_at(now);
        if status == Status::Again {
            status = act(&mut state.engine, &mut state.host);
        }
        self.note_caller(now);
        status
    }

    /// Whether what a stream issues to each host from now on follows what it issued there before.
    pub fn fence(&self, stream: u32) -> bool {
        let mut state = self.lock();
        let hosts = state.engine.hosts();
        // Every host's fence takes effect, whatever the others say.
        (0..hosts).fold(true, |ordered, host| state.engine.fence(stream, host) & ordered)
    }

    /// Turns the crank for a caller that waits.
    pub fn progress(&self) {
        if let Some(mut state) = self.try_lock() {
            let now = monotonic_ns();
            state.turn_at(now);
            self.note_caller(now);
        }
    }

    /// Turns the crank for a service thread.
    pub fn serve(&self) -> Turn {
        if self.wanted.load(Ordering::Relaxed) != 0 {
            return Turn::Taken;
        }
        match self.try_lock() {
            Some(mut state) => state.turn(),
            None => Turn::Taken,
        }
    }

    /// Whether callers turn the crank at the time `now`, so that service threads need not.
    pub fn has_callers(&self, now: u64) -> bool {
        now.saturating_sub(self.at_it_at.load(Ordering::Relaxed)) < AT_IT_NS
    }

    /// A caller has turned the crank since `begun`.
    fn note_caller(&self, begun: u64) {
        let now = monotonic_ns();
        if begun.saturating_sub(self.turned_at.load(Ordering::Relaxed)) < AT_IT_NS {
            self.at_it_at.store(now, Ordering::Relaxed);
        }
        self.turned_at.store(now, Ordering::Relaxed);
    }

    /// A service thread has woken up: neighbours need not ring. False: another one is awake
    /// already, and serves both sides.
    pub fn wake(&self) -> bool {
        let mut state = self.lock();
        let state = &mut *state;
        if state.awake {
            return false;
        }
        state.awake = true;
        state.engine.set_sleeping(false, &mut state.host);
        state.host.flush();
        true
    }

    /// The service thread that is awake is about to sleep. `Busy`: there is something to do after
    /// all.
    pub fn sleep(&self) -> Turn {
        let mut guard = self.lock();
        let state = &mut *guard;
        state.awake = false;
        state.engine.set_sleeping(true, &mut state.host);
        // A packet that passes this news on its way is rung for when the neighbour hears it.
        state.host.flush();
        state.turn()
    }

    /// The link at `side` can be used, or cannot any more.
    pub fn link_event(&self, side: Side, up: bool) {
        let mut state = self.lock();
        let state = &mut *state;
        state.engine.link_event(side, up, monotonic_ns(), &mut state.host);
        state.host.flush();
    }

    /// Opens the neighbour's region at `side` for writing, unless the link is in use already.
    pub fn open_link(&self, side: Side) -> Result<(), PortError> {
        let mut state = self.lock();
        if state.engine.link_in_use(side) { Ok(()) } else { state.host.open(side) }
    }

    /// Hands over the memory that packets are delivered to.
    pub fn deliver_to(&self, memory: HostMemory) {
        self.lock().host.deliver_to(memory);
    }

    /// Whether a link is in use by the protocol.
    pub fn link_in_use(&self, side: Side) -> bool {
        self.lock().engine.link_in_use(side)
    }

    /// Epochs of a link in use: of this side and of the neighbour.
    pub fn link_epochs(&self, side: Side) -> Option<(u32, u32)> {
        self.lock().engine.link_epochs(side)
    }

    /// Whether a host was given up: nothing that was issued to it is under way any more.
    pub fn has_lost(&self, host: u16) -> bool {
        self.lock().engine.is_lost(host)
    }

    /// Bytes of the longest put whose source may be reused on return.
    pub fn retain_bytes_max(&self) -> usize {
        self.lock().engine.retain_bytes_max()
    }

    /// The oldest event not yet told.
    pub fn next_event(&self) -> Option<Event> {
        self.lock().host.next_event()
    }

    /// Counters of the engine, and operations refused by their targets.
    pub fn stats(&self) -> (Stats, u64) {
        let state = self.lock();
        (*state.engine.stats(), state.host.refused())
    }

    fn try_lock(&self) -> Option<MutexGuard<'_, State>> {
        match self.state.try_lock() {
            Ok(state) => Some(state),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    #[inline]
    fn lock(&self) -> MutexGuard<'_, State> {
        self.try_lock().unwrap_or_else(|| self.lock_contended())
    }

    #[cold]
    fn lock_contended(&self) -> MutexGuard<'_, State> {
        self.wanted.fetch_add(1, Ordering::Relaxed);
        let quick = (0..TRIES).find_map(|_| {
            std::hint::spin_loop();
            self.try_lock()
        });
        let state =
            quick.unwrap_or_else(|| self.state.lock().unwrap_or_else(PoisonError::into_inner));
        self.wanted.fetch_sub(1, Ordering::Relaxed);
        state
    }
}

impl State {
    fn turn(&mut self) -> Turn {
        self.turn_at(monotonic_ns())
    }

    fn turn_at(&mut self, now: u64) -> Turn {
        if now.saturating_sub(self.polled_at) > LATE_NS {
            self.host.time_stores();
        }
        self.polled_at = now;
        self.host.poll();
        let busy = self.engine.poll(now, &mut self.host);
        self.host.flush();
        if busy { Turn::Busy } else { Turn::Idle }
    }
}

/// How long service threads do what.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Without anything to do before they sleep, nanoseconds.
    pub spin_ns: u64,
    /// Others need the processor: let them have it while there is nothing to do.
    pub yields: bool,
    /// Callers that turn the crank can be relied on: each PE has a processor.
    pub stands_by: bool,
    /// Longest sleep of the thread that keeps the clock.
    pub nap: Duration,
}

impl Pace {
    /// For `pes` PEs that may all be on this machine, each with `threads` lanes.
    pub fn new(pes: usize, threads: usize) -> Pace {
        let cpus = tombolo_core::wait::usable_cpus();
        let room = cpus >= pes * (1 + threads);
        // A wake-up costs tens of microseconds: staying awake for less would save nothing.
        let stands_by = cpus >= pes;
        Pace { spin_ns: 50_000, yields: !room, stands_by, nap: Duration::from_millis(1) }
    }
}
