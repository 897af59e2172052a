//! Service threads: progress that does not depend on the program calling the library.
//!
//! Each lane has a thread for each port, because a thread can sleep on one doorbell only. One of
//! them at a time is awake and turns the lane's crank for both sides; idle for a while, it says so to
//! the neighbours (they ring only for sleepers), looks once more and sleeps. The thread of the right
//! port also keeps the clock: heartbeats, repetitions, the links.
//!
//! - Two lanes may share a doorbell bit, and some chips drop an event when another bit is
//!   pending. Neither loses more than a millisecond: the clock's thread looks anyway.
//! - While callers turn the crank, and each PE has a processor to do so, the thread that is awake
//!   stands by and leaves the lane's lock alone: it yields or naps, and as it is not said to sleep
//!   nobody rings.

use super::lane::{Lane, Pace, Turn};
use super::links::Links;
use super::report::Reporter;
use crate::ntb::port::NtbPort;
use crate::ntb::ring::Side;
use nix::sys::signal::{SigSet, SigmaskHow, pthread_sigmask};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use tombolo_core::board::monotonic_ns;

/// Longest sleep of a thread that does not keep the clock; also how long the end may take.
const LONG_NAP: Duration = Duration::from_millis(5);
/// First and longest nap of a thread that stands by.
const STAND_BY: [Duration; 2] = [Duration::from_micros(10), Duration::from_micros(100)];
/// Callers that have turned the crank for so long will most likely go on.
const LONG_AT_IT_NS: u64 = 400_000;
/// How much later than asked for a nap may end, nanoseconds. The system's own 50 microseconds would
/// hold up what a caller that stops turning the crank leaves behind.
const NAP_SLACK_NS: libc::c_ulong = 1_000;

/// Busy turns by the clock that are no reason to stay awake: heartbeats are no more than these.
const QUIET_TURNS: u32 = 3;

/// What a thread serves.
#[derive(Clone)]
pub struct Post {
    pub lane: Arc<Lane>,
    pub links: Arc<Links>,
    pub reporter: Arc<Reporter>,
    /// The port it sleeps at.
    pub port: Arc<dyn NtbPort>,
    pub side: Side,
    pub doorbell: u64,
    pub pace: Pace,
    /// The lane is the PE's first: what all of them see is said by it.
    pub leads: bool,
}

/// Running threads; they end when this is dropped.
pub struct Threads {
    stop: Arc<AtomicBool>,
    handles: Vec<JoinHandle<()>>,
}

impl Threads {
    /// Starts one thread for each post. It takes no signals.
    pub fn start(posts: Vec<Post>) -> io::Result<Threads> {
        let mut threads = Threads { stop: Arc::default(), handles: Vec::new() };
        let mut before = SigSet::empty();
        pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::all()), Some(&mut before))?;
        let started: io::Result<()> = posts.into_iter().try_for_each(|post| {
            let stop = threads.stop.clone();
            let builder = std::thread::Builder::new().name("shmem-ntb".into());
            threads.handles.push(builder.spawn(move || post.run(&stop))?);
            Ok(())
        });
        pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&before), None)?;
        started.map(|()| threads)
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for handle in self.handles.drain(..) {
            // A panic of the thread has been printed already.
            let _ = handle.join();
        }
    }
}

impl Post {
    fn run(&self, stop: &AtomicBool) {
        let keeps_clock = self.side == Side::Right;
        // SAFETY: a prctl without memory arguments, for this thread alone. Where it is refused naps
        // end later.
        unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, NAP_SLACK_NS) };
        let nap = if keeps_clock { self.pace.nap } else { LONG_NAP };
        // Ends by telling the neighbours that it sleeps.
        self.work(stop, keeps_clock);
        while !stop.load(Ordering::Relaxed) {
            let wake = self.port.db_wait(self.doorbell, nap);
            if wake.pending != 0 {
                self.port.db_clear(wake.pending);
            }
            if keeps_clock || wake.link_changed {
                self.links.tend();
                self.reporter.report(&self.lane, self.leads);
            }
            let due = keeps_clock && (0..QUIET_TURNS).all(|_| self.lane.serve() == Turn::Busy);
            if wake.pending != 0 || due {
                self.work(stop, keeps_clock);
            }
        }
    }

    /// Turns the crank until there has been nothing to do for a while.
    fn work(&self, stop: &AtomicBool, keeps_clock: bool) {
        while self.lane.wake() {
            self.stay_awake(stop, keeps_clock);
            if self.lane.sleep() != Turn::Busy || stop.load(Ordering::Relaxed) {
                return;
            }
        }
    }

    fn stay_awake(&self, stop: &AtomicBool, keeps_clock: bool) {
        let mut tended = monotonic_ns();
        let mut busy_at = tended;
        let (mut nap, mut standing_by) = (STAND_BY[0], None);
        while !stop.load(Ordering::Relaxed) {
            let now = monotonic_ns();
            if keeps_clock && now - tended >= self.pace.nap.as_nanos() as u64 {
                tended = now;
                self.links.tend();
                self.reporter.report(&self.lane, self.leads);
            }
            if self.pace.stands_by && self.lane.has_callers(now) {
                let since = *standing_by.get_or_insert(now);
                self.stand_by(now - since, &mut nap);
                busy_at = monotonic_ns();
                continue;
            }
            (nap, standing_by) = (STAND_BY[0], None);
            match self.lane.serve() {
                Turn::Busy => busy_at = now,
                _ if now - busy_at >= self.pace.spin_ns => return,
                Turn::Idle if !self.pace.yields => std::hint::spin_loop(),
                Turn::Idle | Turn::Taken => std::thread::yield_now(),
            }
        }
    }

    /// Lets callers have the lane, as for `stood_ns` now. Where processors are short a caller is often
    /// not running: then this thread must soon help, and naps only if callers stay at it for long.
    fn stand_by(&self, stood_ns: u64, nap: &mut Duration) {
        if self.pace.yields && stood_ns < LONG_AT_IT_NS {
            return std::thread::yield_now();
        }
        std::thread::sleep(*nap);
        *nap = (*nap * 2).min(STAND_BY[1]);
    }
}
