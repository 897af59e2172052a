// SPDX-License-Identifier: Apache-2.0
//! A lane: one engine, and the threads that poll it.
//!
//! - A thread of the program polls the engine when it submits an operation and while it waits for
//!   one. That saves a switch to another thread.
//! - The service threads of the lane poll it when no thread of the program does.
//! - A lock lets one thread at a time poll. It is held for one poll. A service thread does not take
//!   it while a thread of the program wants it.

use super::memory::HostMemory;
use super::port_memory::PortMemory;
use crate::ntb::port::PortError;
use crate::ntb::ring::{Engine, Event, Memory, Side, Stats};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;
use tombolo_core::board::monotonic_ns;
use tombolo_core::transport::Status;
use tombolo_core::wait::Reason;

/// Callers count as active if one of them has polled within this time, and the poll before that was
/// not longer ago either. A caller that sleeps between its polls is not active.
const CALLER_GAP_NS: u64 = 20_000;
/// Between two polls. After more, either the threads did not run or a link did not take what was
/// stored to it: the next stores tell which.
const LATE_NS: u64 = 20_000_000;
/// Steps of payloads that the CPU stores in a poll.
const STEPS: usize = 64;
/// Tries for the lock before sleeping on it.
const TRIES: u32 = 2_000;

/// See the module.
pub struct Lane {
    state: Mutex<State>,
    /// Callers that want the lock.
    wanted: AtomicU32,
    /// When a caller last ended a poll, and when one last ended a poll soon after another.
    caller_polled_at: AtomicU64,
    callers_active_at: AtomicU64,
}

struct State {
    engine: Engine,
    host: PortMemory,
    /// A service thread is awake.
    awake: bool,
    /// When it was last polled.
    polled_at: u64,
}

/// What a poll did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Polled {
    /// Something moved.
    Busy,
    /// Nothing to do.
    Idle,
    /// Somebody else holds the lane.
    Taken,
}

impl Lane {
    /// A lane whose service threads sleep.
    pub fn new(engine: Engine, host: PortMemory) -> Lane {
        Lane {
            state: Mutex::new(State { engine, host, awake: false, polled_at: monotonic_ns() }),
            wanted: AtomicU32::new(0),
            caller_polled_at: AtomicU64::new(0),
            callers_active_at: AtomicU64::new(0),
        }
    }

    /// Hands an operation to the engine and polls it, so that the operation leaves at once.
    #[inline]
    pub fn submit(&self, mut act: impl FnMut(&mut Engine, &mut PortMemory) -> Status) -> Status {
        let mut state = self.lock();
        let state = &mut *state;
        let now = monotonic_ns();
        state.begin(now);
        let mut status = act(&mut state.engine, &mut state.host);
        // Before a look at what has arrived, which takes as long as a short packet does.
        state.engine.send(now, &mut state.host);
        state.host.flush();
        let polled = state.poll_engine(now);
        if status == Status::Again {
            status = act(&mut state.engine, &mut state.host);
        }
        self.note_caller(now, end_of(polled, now));
        status
    }

    /// Whether what a stream issues to each host from now on follows what it issued there before.
    pub fn fence(&self, stream: u32) -> bool {
        let mut state = self.lock();
        let hosts = state.engine.hosts();
        // Every host's fence takes effect, whatever the others say.
        (0..hosts).fold(true, |ordered, host| state.engine.fence(stream, host) & ordered)
    }

    /// Whether an operation with that token is under way.
    pub fn has(&self, token: u64) -> bool {
        self.lock().engine.has(token)
    }

    /// Polls for a caller that waits.
    pub fn progress(&self) -> Polled {
        let Some(mut state) = self.try_lock() else { return Polled::Taken };
        let now = monotonic_ns();
        let polled = state.poll_at(now);
        self.note_caller(now, end_of(polled, now));
        polled
    }

    /// Polls for a service thread.
    pub fn serve(&self) -> Polled {
        if self.wanted.load(Ordering::Relaxed) != 0 {
            return Polled::Taken;
        }
        match self.try_lock() {
            Some(mut state) => state.poll(),
            None => Polled::Taken,
        }
    }

    /// Whether callers poll at the time `now`, so that service threads need not.
    pub fn has_active_callers(&self, now: u64) -> bool {
        now.saturating_sub(self.callers_active_at.load(Ordering::Relaxed)) < CALLER_GAP_NS
    }

    /// A caller has polled from `begun` to `end`.
    fn note_caller(&self, begun: u64, end: u64) {
        if begun.saturating_sub(self.caller_polled_at.load(Ordering::Relaxed)) < CALLER_GAP_NS {
            self.callers_active_at.store(end, Ordering::Relaxed);
        }
        self.caller_polled_at.store(end, Ordering::Relaxed);
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
    pub fn sleep(&self) -> Polled {
        let mut guard = self.lock();
        let state = &mut *guard;
        state.awake = false;
        state.engine.set_sleeping(true, &mut state.host);
        // A packet that passes this news on its way is rung for when the neighbour hears it.
        state.host.flush();
        let polled = state.poll();
        if polled != Polled::Busy {
            state.host.rest();
        }
        polled
    }

    /// The link at `side` can be used, or cannot any more.
    pub fn link_event(&self, side: Side, up: bool) {
        let mut state = self.lock();
        let state = &mut *state;
        if !up {
            state.host.cut(side);
        }
        state.engine.link_event(side, up, monotonic_ns(), &mut state.host);
        state.host.flush();
    }

    /// Opens the neighbour's region at `side` for writing, unless the link is in use already and all of the
    /// region is open. A link is in use with a part of it: the lines of the handshake are at its start.
    pub fn open_link(&self, side: Side) -> Result<(), PortError> {
        let mut state = self.lock();
        match state.engine.link_in_use(side) && state.host.is_open(side) {
            true => state.host.open_engine(side),
            false => state.host.open(side),
        }
    }

    /// Hands over the memory that packets are delivered to.
    pub fn deliver_to(&self, memory: HostMemory) {
        self.lock().host.deliver_to(memory);
    }

    /// Ends the use of DMA engines.
    pub fn close_engines(&self) {
        self.lock().host.close_engines();
    }

    /// Whether a link is in use by the protocol.
    pub fn link_in_use(&self, side: Side) -> bool {
        self.lock().engine.link_in_use(side)
    }

    /// Epochs of a link in use: of this side and of the neighbour.
    pub fn link_epochs(&self, side: Side) -> Option<(u32, u32)> {
        self.lock().engine.link_epochs(side)
    }

    /// What holds up operations; none as well while another thread polls.
    pub fn held_up_by(&self) -> Option<Reason> {
        self.try_lock()?.engine.held_up_by()
    }

    /// Gives a host up that does not do its part.
    pub fn give_up(&self, host: u16) {
        let mut state = self.lock();
        let state = &mut *state;
        state.engine.give_up(host, &mut state.host);
    }

    /// Whether a host was given up: what was issued to it fails, and nothing more is issued to it.
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

/// When a poll ended that began at `now`. One that finds nothing takes no time to speak of.
fn end_of(polled: Polled, now: u64) -> u64 {
    if polled == Polled::Busy { monotonic_ns() } else { now }
}

impl State {
    fn poll(&mut self) -> Polled {
        self.poll_at(monotonic_ns())
    }

    fn poll_at(&mut self, now: u64) -> Polled {
        self.begin(now);
        self.poll_engine(now)
    }

    /// The ports are polled once before anything is stored.
    fn begin(&mut self, now: u64) {
        if now.saturating_sub(self.polled_at) > LATE_NS {
            self.host.time_stores();
        }
        self.polled_at = now;
        self.host.poll();
    }

    fn poll_engine(&mut self, now: u64) -> Polled {
        let mut busy = self.engine.poll(now, &mut self.host);
        // Between two steps a look at what has arrived. What is left after so many is for the next poll.
        for _ in 0..STEPS {
            if !self.host.has_steps() {
                break;
            }
            busy |= self.engine.poll(now, &mut self.host);
        }
        self.host.flush();
        if busy { Polled::Busy } else { Polled::Idle }
    }
}

/// How service threads divide their time between polling, yielding and sleeping.
#[derive(Clone, Copy, Debug)]
pub struct ServiceTiming {
    /// How long they poll in vain before they sleep, nanoseconds.
    pub spin_ns: u64,
    /// Whether they yield the processor after each poll in vain, because there are more threads than
    /// processors.
    pub yields: bool,
    /// Whether they leave polling to active callers: each PE has a processor.
    pub stands_by: bool,
    /// Longest sleep of the thread that looks after timers.
    pub nap: Duration,
}

impl ServiceTiming {
    /// For `pes` PEs that may all be on this machine, each with `lanes` lanes.
    pub fn new(pes: usize, lanes: usize) -> ServiceTiming {
        let cpus = tombolo_core::wait::usable_cpus();
        let room = cpus >= pes * (1 + lanes);
        // A wake-up takes tens of microseconds: to sleep for less would save nothing.
        let stands_by = cpus >= pes;
        ServiceTiming { spin_ns: 50_000, yields: !room, stands_by, nap: Duration::from_millis(1) }
    }
}
