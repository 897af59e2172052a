// SPDX-License-Identifier: Apache-2.0
//! Service threads: they poll a lane while the program does not call the library.
//!
//! Each lane has one thread for each port, because a thread can wait for the doorbell of one port
//! only. One of the two is awake at a time and polls the lane for both sides. When it has polled in
//! vain for a while it tells the neighbours that it will sleep, since they ring the doorbell only for
//! a thread that sleeps. Then it polls once more and sleeps. The thread of the right port also looks
//! after timers: heartbeats, repetitions, the state of the links. A DMA engine that has carried out all
//! wakes a thread of its port, which asks whether that has arrived.
//!
//! These threads are not the core's service thread, which polls transports that need it
//! ([`Progress::Always`](tombolo_core::transport::Progress)):
//!
//! - That thread sleeps on a file descriptor. [`NtbPort::db_wait`] gives none: processes of emulated
//!   hosts wait for a doorbell on a word of shared memory, and a thread that turned doorbells into
//!   a descriptor would be one more thread and one more switch on the way of each packet.
//! - That thread executes requests of other PEs, and answers by operations that it waits for. A host of
//!   the ring must pass on packets of others meanwhile, or all hosts behind it wait.
//!
//! - Two lanes may share a doorbell bit, and some chips drop an event when another bit is
//!   pending. Neither delays a packet by more than a millisecond: the thread that looks after timers
//!   wakes that often.
//! - While callers poll, and each PE has a processor, the thread that is awake stands by: it does
//!   not take the lane's lock, but yields or sleeps for up to 100 microseconds. The neighbours are not
//!   told that it sleeps, so they do not ring.

use super::arrival::Arrivals;
use super::lane::{Lane, Polled, ServiceTiming};
use super::links::Links;
use super::report::Reporter;
use crate::ntb::port::NtbPort;
use crate::ntb::ring::Side;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use tombolo_core::board::monotonic_ns;
use tombolo_core::threads::spawn_without_signals;
use tombolo_core::transport::Work;
use tombolo_core::wait::give_way_polling;

/// Longest sleep of a thread that does not look after timers; also how long the end may take.
const LONG_NAP: Duration = Duration::from_millis(5);
/// First and longest nap of a thread that stands by.
const STAND_BY: [Duration; 2] = [Duration::from_micros(10), Duration::from_micros(100)];
/// Callers that have polled for so long will most likely go on.
const LONG_ACTIVE_NS: u64 = 400_000;
/// How much later than asked for a nap may end, nanoseconds. The system's default of 50 microseconds
/// would delay packets that arrive after a caller has stopped polling.
const NAP_SLACK_NS: libc::c_ulong = 1_000;

/// Busy polls after a timer that are no reason to stay awake: heartbeats take no more.
const QUIET_POLLS: u32 = 3;

/// A service thread: the lane that it polls, and the port whose doorbell it waits for.
#[derive(Clone)]
pub struct ServiceThread {
    pub lane: Arc<Lane>,
    pub links: Arc<Links>,
    pub reporter: Arc<Reporter>,
    /// The port it sleeps at.
    pub port: Arc<dyn NtbPort>,
    pub side: Side,
    pub doorbell: u64,
    pub timing: ServiceTiming,
    /// What DMA engines have under way.
    pub transfers: Arc<[Arc<Arrivals>]>,
    /// The lane is the PE's first: what all of them see is said by it.
    pub leads: bool,
}

/// Running threads; they end when this is dropped.
pub struct ServiceThreads {
    stop: Arc<AtomicBool>,
    handles: Vec<JoinHandle<()>>,
}

impl ServiceThreads {
    /// Starts all threads. They take no signals.
    pub fn start(threads_to_start: Vec<ServiceThread>) -> io::Result<ServiceThreads> {
        let mut threads = ServiceThreads { stop: Arc::default(), handles: Vec::new() };
        for thread in threads_to_start {
            let stop = threads.stop.clone();
            let handle = spawn_without_signals("shmem-ntb", move || thread.run(&stop))?;
            threads.handles.push(handle);
        }
        Ok(threads)
    }
}

impl Drop for ServiceThreads {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for handle in self.handles.drain(..) {
            // A panic of the thread has been printed already.
            let _ = handle.join();
        }
    }
}

impl ServiceThread {
    fn run(&self, stop: &AtomicBool) {
        let keeps_timers = self.side == Side::Right;
        // SAFETY: a prctl without memory arguments, for this thread alone. Where it is refused naps
        // end later.
        unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, NAP_SLACK_NS) };
        let nap = if keeps_timers { self.timing.nap } else { LONG_NAP };
        // Ends by telling the neighbours that it sleeps.
        self.work(stop, keeps_timers);
        while !stop.load(Ordering::Relaxed) {
            let wake = self.port.db_wait(self.doorbell, nap);
            if wake.pending != 0 {
                self.port.db_clear(wake.pending);
            }
            if keeps_timers || wake.link_changed {
                self.links.tend();
                self.reporter.report(&self.lane, self.leads);
            }
            if wake.transferred {
                self.look_at_transfers();
            }
            let due = keeps_timers && (0..QUIET_POLLS).all(|_| self.lane.serve() == Polled::Busy);
            if wake.pending != 0 || wake.transferred || due {
                self.work(stop, keeps_timers);
            }
        }
    }

    /// Polls until there has been nothing to do for a while.
    fn work(&self, stop: &AtomicBool, keeps_timers: bool) {
        while self.lane.wake() {
            self.stay_awake(stop, keeps_timers);
            if self.lane.sleep() != Polled::Busy || stop.load(Ordering::Relaxed) {
                return;
            }
        }
    }

    fn stay_awake(&self, stop: &AtomicBool, keeps_timers: bool) {
        let mut tended = monotonic_ns();
        let mut busy_at = tended;
        let (mut nap, mut standing_by) = (STAND_BY[0], None);
        let mut work = Work::new("service thread of a lane");
        while !stop.load(Ordering::Relaxed) {
            let now = monotonic_ns();
            if keeps_timers && now.saturating_sub(tended) >= self.timing.nap.as_nanos() as u64 {
                tended = now;
                self.links.tend();
                self.reporter.report(&self.lane, self.leads);
            }
            if self.timing.stands_by && self.lane.has_active_callers(now) {
                let since = *standing_by.get_or_insert(now);
                self.stand_by(now.saturating_sub(since), &mut nap);
                busy_at = monotonic_ns();
                continue;
            }
            (nap, standing_by) = (STAND_BY[0], None);
            self.look_at_transfers();
            let polled = self.lane.serve();
            work.looked(polled == Polled::Busy, self.reporter.told());
            match polled {
                Polled::Busy => busy_at = now,
                _ if now.saturating_sub(busy_at) >= self.timing.spin_ns => return,
                Polled::Idle if !self.timing.yields => std::hint::spin_loop(),
                // Where each PE may have a processor, this thread may find one that nobody uses at present.
                Polled::Idle | Polled::Taken if self.timing.stands_by => give_way_polling(),
                Polled::Idle | Polled::Taken => std::thread::yield_now(),
            }
        }
    }

    /// Asks about what DMA engines have carried out, and takes answers.
    fn look_at_transfers(&self) {
        self.transfers.iter().for_each(|arrivals| arrivals.progress());
    }

    /// Leaves the lane to callers, as for `stood_ns` now. Where processors are short a caller is often not
    /// running and this thread must soon poll for it, so it sleeps only if callers go on for long.
    fn stand_by(&self, stood_ns: u64, nap: &mut Duration) {
        if self.timing.yields && stood_ns < LONG_ACTIVE_NS {
            return std::thread::yield_now();
        }
        std::thread::sleep(*nap);
        *nap = (*nap * 2).min(STAND_BY[1]);
    }
}
