// SPDX-License-Identifier: Apache-2.0
//! The thread that serves other PEs while the program computes: one per PE, for requests and for all
//! transports that need it.
//!
//! A program that waits in the library serves by itself ([`Service::poll`]), at once; the thread then
//! keeps out of its way. Otherwise the thread looks for work, and sleeps when there is none: on the
//! bell where requesters can ring it, on the transports' event descriptors where they have some, and
//! for short times where neither tells of all work.

use super::server::Server;
use super::wire::Wire;
use crate::board::monotonic_ns;
use crate::sync::thread::{self, JoinHandle};
use crate::sync::{Arc, AtomicBool, AtomicU32, AtomicU64, Futex, Mutex, Ordering};
use crate::threads::{of_library, without_signals};
use crate::transport::{Told, Work};
use crate::wait::{COMPUTES_NS, Patience, leave_processor};
use std::os::fd::RawFd;
use std::sync::OnceLock;
use std::time::Duration;

/// What a service thread sleeps on, in the control area.
#[repr(C, align(64))]
pub struct Bell {
    pub(super) rings: Futex,
    /// 1 while the service thread sleeps or is about to.
    pub(super) asleep: AtomicU32,
}

impl Bell {
    /// Wakes the service thread if it sleeps. For requesters that have the bell mapped.
    pub fn ring(&self) {
        self.rings.change();
        if self.asleep.load(Ordering::SeqCst) != 0 {
            self.rings.wake();
        }
    }
}

/// What a service thread polls besides requests: the transports of a PE.
pub trait Pollable: Send + Sync {
    /// Moves work on; true if something moved.
    fn progress(&self) -> bool;

    /// Whether a thread of the program works on some of it at this moment.
    fn is_taken(&self) -> bool;

    /// Descriptors that become readable when there is work, or none if there is work of which no
    /// descriptor tells.
    fn event_fds(&self) -> Option<Vec<RawFd>>;

    /// Prepares for sleeping on the descriptors; false if there may be work already.
    fn arm(&self) -> bool;
}

/// How requests are announced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Announced {
    /// Everybody who may send one rings the bell.
    ByBell,
    /// Some requesters cannot reach the bell.
    Silently,
}

/// Time without work after which the thread sleeps, where no other wants its processor.
const LOOK_ON_NS: u64 = if cfg!(loom) { 0 } else { 80_000 };
/// Giving way takes longer than this where another thread runs meanwhile.
const GAVE_WAY_NS: u64 = 10_000;
/// The thread then moves to another processor, if it may find room there. Where another thread computes all the same, it
/// does not give way for so long, but sleeps instead. A thread that gives way may wait until others have had their turns of
/// milliseconds; one that sleeps runs as soon as there is work, but often where whoever sent that work runs.
const SHARED_NS: u64 = 100_000_000;
/// Turn on the processor, in nanoseconds, that the thread asks the kernel for. With the shortest that there
/// is it need not wait for the end of the turn of a program that computes (Linux 6.12 on).
const TURN_NS: u64 = 100_000;
/// Polls by the program between two looks of the thread that are too few to leave serving to it.
const RARELY: u64 = 8;
/// See [`Polled::look`].
const BETWEEN: u32 = 8;
/// Shortest and longest sleep when nothing tells of work.
const NAP: [Duration; 2] = [Duration::from_micros(50), Duration::from_micros(500)];
/// Longest sleep when something tells of work: only against what nobody thinks of.
const SLEEP: Duration = Duration::from_millis(if cfg!(loom) { 1 } else { 1000 });

/// What has become of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    /// There were some.
    Given,
    /// There were none.
    Idle,
    /// Somebody else looks for them, and may have looked already where one has just arrived.
    Taken,
}

/// What the thread does next, in a time without work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// Looks again at once.
    Look,
    /// Lets other threads run, and looks again. With the time at which that begins.
    GiveWay(u64),
    Sleep,
}

/// A time without work, and how others use the processor meanwhile. Times in nanoseconds.
#[derive(Debug)]
struct Lull {
    /// How long the thread looks on without giving way.
    spin: u64,
    since: Option<u64>,
    /// When the thread left a processor that it shared.
    left: Option<u64>,
    /// When the thread gave way to one that computed, although it had moved. Others that wait or serve give the
    /// processor back sooner than a thread that sleeps is woken.
    shared: Option<u64>,
}

impl Lull {
    fn new(spin: u64) -> Lull {
        Lull { spin: spin.min(LOOK_ON_NS), since: None, left: None, shared: None }
    }

    fn next(&mut self, now: u64) -> Next {
        let idle = now.saturating_sub(*self.since.get_or_insert(now));
        let is_shared = lately(self.shared, now);
        match idle {
            _ if idle < self.spin => Next::Look,
            _ if idle < LOOK_ON_NS && !is_shared => Next::GiveWay(now),
            _ => Next::Sleep,
        }
    }

    /// The thread gave way from one time to another. Whether it is to move.
    fn gave_way(&mut self, from: u64, to: u64) -> bool {
        let away = to.saturating_sub(from);
        let moves = away > GAVE_WAY_NS && !lately(self.left, to);
        if moves {
            self.left = Some(to);
        } else if away > COMPUTES_NS {
            self.shared = Some(to);
        }
        moves
    }

    /// There is work.
    fn end(&mut self) {
        self.since = None;
    }
}

/// Whether this was within [`SHARED_NS`] before now.
fn lately(at: Option<u64>, now: u64) -> bool {
    at.is_some_and(|at| now.saturating_sub(at) < SHARED_NS)
}

/// What the program has done for a while.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Done {
    /// How many times it polled.
    polls: u64,
    /// How many times it waited.
    waits: u64,
    /// For how many nanoseconds it did.
    waited: u64,
}

/// A time in which the program polls again and again, in nanoseconds of `CLOCK_MONOTONIC`.
#[derive(Debug)]
struct Polled {
    since: u64,
    /// When the thread last looked.
    looked: u64,
}

impl Polled {
    /// The thread finds what the program has `done` since it last looked. Gives for how many nanoseconds the program has
    /// polled again and again. That time begins anew if the program did something else meanwhile: if it waited for less
    /// than half of the time since then, and polled less often than once in `polls_every`, and there were more than
    /// [`BETWEEN`] times that long from one wait to the next. None of these tells alone: short waits are not counted,
    /// where PEs give way to each other, one that waits may poll rarely, and to send something to another host may take
    /// as long as to wait for the answer.
    fn look(&mut self, now: u64, done: Done, polls_every: Option<Duration>) -> u64 {
        let since_look = now.saturating_sub(self.looked);
        let Done { polls, waits, waited } = done;
        let is_less = |count: u64, every: Duration, than: u64| {
            u128::from(count) * every.as_nanos() < than.into()
        };
        let is_rare = |every: Duration| {
            is_less(polls, every, since_look)
                && is_less(waits, every * BETWEEN, since_look.saturating_sub(waited))
        };
        if waited < since_look / 2 && polls_every.is_some_and(is_rare) {
            self.since = now;
        }
        self.looked = now;
        now.saturating_sub(self.since)
    }
}

/// How long the thread leaves serving to a program that has polled for so many nanoseconds: as long again, up to half a
/// millisecond, and then an eighth of that time. If the program begins to compute meanwhile, whoever asks something of
/// it waits for the end of the rest. But each look of the thread was measured to cost programs 20 us and more on a
/// virtual machine.
fn rest(polled: u64, [min, max]: [Duration; 2]) -> Duration {
    let polled = Duration::from_nanos(polled);
    polled.min(NAP[1]).max(polled / 8).clamp(min, max)
}

/// Asks for turns of [`TURN_NS`] for the calling thread. Kernels that cannot have them take no notice.
fn ask_for_short_turns() {
    const LEN: u32 = size_of::<libc::sched_attr>() as u32;
    // SAFETY: the calls read and fill one structure of the length that it states.
    unsafe {
        let mut now: libc::sched_attr = std::mem::zeroed();
        let asked = libc::syscall(libc::SYS_sched_getattr, 0, &raw mut now, LEN, 0);
        if asked == 0 && now.sched_policy == libc::SCHED_OTHER as u32 {
            now.sched_runtime = TURN_NS;
            libc::syscall(libc::SYS_sched_setattr, 0, &raw const now, 0);
        }
    }
}

/// Serves other PEs until it is dropped.
pub struct Service<W: Wire + 'static> {
    shared: Arc<Shared<W>>,
    thread: Option<JoinHandle<()>>,
}

struct Shared<W> {
    patience: Patience,
    server: Option<Mutex<Server<W>>>,
    transports: Option<Box<dyn Pollable>>,
    bell: *const Bell,
    announced: Announced,
    stop: AtomicBool,
    /// Counts polls by the program.
    polls: AtomicU64,
    /// Threads of the program that wait, and poll again and again meanwhile.
    attending: AtomicU32,
    /// When the last of these waits began, in nanoseconds of `CLOCK_MONOTONIC`.
    attends_since: AtomicU64,
    /// How many such waits there were.
    waits: AtomicU64,
    /// How many nanoseconds all of them took that are over.
    attended_ns: AtomicU64,
    told: OnceLock<Told>,
}

// SAFETY: the bell consists of atomics, in memory that outlives the thread by the contract of
// `start`; all else is shareable by itself.
unsafe impl<W: Send> Send for Shared<W> {}
// SAFETY: as above.
unsafe impl<W: Send> Sync for Shared<W> {}

impl<W: Wire + 'static> Service<W> {
    /// Starts serving: requests if there is a `server`, and `transports` if some need it.
    ///
    /// # Safety
    /// The bell stays mapped until the service is dropped.
    pub unsafe fn start(
        bell: *const Bell,
        server: Option<Server<W>>,
        announced: Announced,
        transports: Option<Box<dyn Pollable>>,
        patience: &Patience,
    ) -> std::io::Result<Service<W>> {
        let shared = Arc::new(Shared {
            patience: *patience,
            server: server.map(Mutex::new),
            transports,
            bell,
            announced,
            stop: AtomicBool::new(false),
            polls: AtomicU64::new(0),
            attending: AtomicU32::new(0),
            attends_since: AtomicU64::new(0),
            waits: AtomicU64::new(0),
            attended_ns: AtomicU64::new(0),
            told: OnceLock::new(),
        });
        let seen = shared.clone();
        let builder = thread::Builder::new().name("shmem-service".into());
        let thread = without_signals(|| builder.spawn(move || of_library(|| seen.run())))?;
        Ok(Service { shared, thread: Some(thread) })
    }

    /// Has `told` be told what the thread does.
    pub fn tell(&self, told: Told) {
        // The first stays.
        let _ = self.shared.told.set(told);
    }

    /// Tells that the calling thread waits, and polls again and again, until the result is dropped. The wait began at
    /// `since`, in nanoseconds of `CLOCK_MONOTONIC`.
    pub fn attend(&self, since: u64) -> Attending<'_, W> {
        self.shared.attends_since.store(since, Ordering::Relaxed);
        self.shared.attending.fetch_add(1, Ordering::Relaxed);
        self.shared.waits.fetch_add(1, Ordering::Relaxed);
        Attending { shared: &self.shared, since }
    }

    /// Tells that the calling thread does not poll any more, but sleeps: wakes the service thread if that rests.
    pub fn leave(&self, attending: Attending<'_, W>) {
        drop(attending);
        self.shared.wake();
    }

    /// Serves once, for a thread of the program that waits.
    #[inline]
    pub fn poll(&self) {
        let polls = self.shared.polls.load(Ordering::Relaxed);
        self.shared.polls.store(polls.wrapping_add(1), Ordering::Relaxed);
        self.shared.answer();
    }
}

/// See [`Service::attend`].
pub struct Attending<'a, W> {
    shared: &'a Shared<W>,
    since: u64,
}

impl<W> Drop for Attending<'_, W> {
    fn drop(&mut self) {
        let ns = monotonic_ns().saturating_sub(self.since);
        // In this order the thread may miss this wait for a moment, but does not count it twice.
        self.shared.attending.fetch_sub(1, Ordering::Relaxed);
        self.shared.attended_ns.fetch_add(ns, Ordering::Relaxed);
    }
}

impl<W: Wire + 'static> Drop for Service<W> {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.shared.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl<W: Wire> Shared<W> {
    fn bell(&self) -> &Bell {
        // SAFETY: mapped, by the contract of `Service::start`.
        unsafe { &*self.bell }
    }

    /// Ends a sleep of the thread on the bell.
    fn wake(&self) {
        let bell = self.bell();
        bell.rings.change();
        bell.rings.wake();
    }

    /// For how many nanoseconds threads of the program have waited up to now. Of waits that go on, only the one that
    /// began last counts. What is exact here would take a lock, and the thread only decides by it how long it rests.
    fn attended_ns(&self, now: u64) -> u64 {
        let over = self.attended_ns.load(Ordering::Relaxed);
        match self.attending.load(Ordering::Relaxed) {
            0 => over,
            _ => over + now.saturating_sub(self.attends_since.load(Ordering::Relaxed)),
        }
    }

    /// Answers requests, unless somebody else is at it.
    fn answer(&self) -> Answer {
        let Some(server) = &self.server else { return Answer::Idle };
        match server.try_lock() {
            Ok(mut server) => {
                if server.serve() {
                    Answer::Given
                } else {
                    Answer::Idle
                }
            }
            Err(_) => Answer::Taken,
        }
    }

    fn run(&self) {
        ask_for_short_turns();
        let Patience { spin_ns, rest: limits, polls_every, .. } = self.patience;
        let mut lull = Lull::new(spin_ns);
        let (mut seen, mut nap, mut left_alone) = (0, NAP[0], false);
        let (mut attended, mut waits) = (0, 0);
        let mut polled: Option<Polled> = None;
        let mut work = Work::new("service thread");
        loop {
            // Before anything it may announce is looked at: the end, or requests.
            let rings = self.bell().rings.load();
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            let polls = self.polls.load(Ordering::Relaxed);
            let lately = polls.wrapping_sub(seen);
            seen = polls;
            // Where PEs share processors, one that gives way between its polls makes few of them, and none if this
            // thread, which runs as soon as something arrives, always comes before it. If it does not get its
            // turn during a rest, the thread looks once.
            let is_attended = self.attending.load(Ordering::Relaxed) > 0 && !left_alone;
            left_alone = is_attended && lately == 0;
            if lately > RARELY || is_attended {
                // The program serves while it waits. One that sleeps between its looks does not.
                let now = monotonic_ns();
                let polled = polled.get_or_insert(Polled { since: now, looked: now });
                let until_now = self.attended_ns(now);
                let waits_now = self.waits.load(Ordering::Relaxed);
                let done = Done {
                    polls: lately,
                    waits: waits_now - std::mem::replace(&mut waits, waits_now),
                    waited: until_now.saturating_sub(std::mem::replace(&mut attended, until_now)),
                };
                let polled_ns = polled.look(now, done, polls_every);
                self.bell().rings.wait(rings, rest(polled_ns, limits));
                continue;
            }
            if !left_alone {
                polled = None;
            }
            let moved = self.transports.as_ref().is_some_and(|transports| transports.progress());
            let answer = self.answer();
            if answer == Answer::Given || moved {
                lull.end();
                nap = NAP[0];
                work.looked(true, self.told.get());
                if self.transports.as_ref().is_some_and(|transports| transports.is_taken()) {
                    // A program that issues one operation after the other: looking on would only take
                    // the processor from it, or from the target.
                    self.bell().rings.wait(rings, nap);
                }
                continue;
            }
            work.looked(false, self.told.get());
            match lull.next(monotonic_ns()) {
                Next::Look => std::hint::spin_loop(),
                Next::GiveWay(since) => {
                    thread::yield_now();
                    if lull.gave_way(since, monotonic_ns()) {
                        leave_processor();
                    }
                }
                // Who rang may have done so before this look.
                Next::Sleep if answer == Answer::Taken => self.nap(rings),
                Next::Sleep => {
                    if self.sleep(rings, nap) {
                        // Transfers that need nothing but polls come in several pieces as a rule.
                        lull.end();
                    }
                    nap = (nap * 2).min(NAP[1]);
                }
            }
        }
    }

    /// Sleeps for a moment, or until somebody rings.
    fn nap(&self, rings: u32) {
        if cfg!(loom) {
            // Sleep on the bell has no end of its own there.
            thread::yield_now();
        } else {
            self.bell().rings.wait(rings, NAP[0]);
        }
    }

    /// Sleeps until there may be work; says whether a descriptor tells of some.
    fn sleep(&self, rings: u32, nap: Duration) -> bool {
        let fds = self.transports.as_ref().map(|transports| transports.event_fds());
        let limit = match (&fds, self.announced) {
            (None | Some(Some(_)), Announced::ByBell) => SLEEP,
            _ => nap,
        };
        match fds.flatten() {
            Some(fds) if !fds.is_empty() => self.sleep_on(&fds, rings, limit),
            _ => {
                let bell = self.bell();
                bell.asleep.store(1, Ordering::SeqCst);
                // Sleeps only if nobody has rung since.
                bell.rings.wait(rings, limit);
                bell.asleep.store(0, Ordering::SeqCst);
                false
            }
        }
    }

    /// Sleeps on descriptors. The bell cannot end that, so it is not for long where requests are
    /// announced by the bell alone.
    fn sleep_on(&self, fds: &[RawFd], rings: u32, limit: Duration) -> bool {
        let armed = self.transports.as_ref().is_some_and(|transports| transports.arm());
        if !armed || self.bell().rings.load() != rings {
            return false;
        }
        let limit = if self.server.is_some() { limit.min(NAP[1]) } else { limit.min(SLEEP / 10) };
        await_fds(fds, limit)
    }
}

/// Sleeps until one of the descriptors is readable, no longer than the limit: whether one is.
pub fn await_fds(fds: &[RawFd], limit: Duration) -> bool {
    let poll = |fd: &RawFd| libc::pollfd { fd: *fd, events: libc::POLLIN, revents: 0 };
    let mut polled: Vec<libc::pollfd> = fds.iter().map(poll).collect();
    let limit = libc::timespec {
        tv_sec: limit.as_secs() as libc::time_t,
        tv_nsec: limit.subsec_nanos().into(),
    };
    // SAFETY: an array of that length and a valid time. Errors mean: look again.
    unsafe {
        libc::ppoll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, &limit, std::ptr::null()) > 0
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_thread_without_work_spins_gives_way_and_sleeps() {
        let mut lull = Lull::new(10_000);
        assert_eq!(lull.next(5), Next::Look);
        assert_eq!(lull.next(10_004), Next::Look);
        assert_eq!(lull.next(10_005), Next::GiveWay(10_005));
        lull.gave_way(10_005, 11_000);
        assert_eq!(lull.next(80_004), Next::GiveWay(80_004));
        assert_eq!(lull.next(80_005), Next::Sleep);
        lull.end();
        assert_eq!(lull.next(90_000), Next::Look);
    }

    #[test]
    fn a_thread_whose_processor_others_use_moves_and_then_sleeps_instead_of_giving_way() {
        let mut lull = Lull::new(10_000);
        assert_eq!((lull.next(0), lull.next(10_000)), (Next::Look, Next::GiveWay(10_000)));
        assert!(lull.gave_way(10_000, 20_001), "it moves");
        assert_eq!(lull.next(20_001), Next::GiveWay(20_001));
        assert!(!lull.gave_way(20_001, 25_000), "nobody else is there");
        assert_eq!(lull.next(25_000), Next::GiveWay(25_000));
        assert!(!lull.gave_way(25_000, 36_000), "it has moved lately");
        assert_eq!(lull.next(36_000), Next::GiveWay(36_000), "the other one did not compute");
        let kept = 36_001 + COMPUTES_NS;
        assert!(!lull.gave_way(36_000, kept), "it has moved lately");
        lull.end();
        assert_eq!((lull.next(kept), lull.next(kept + 10_000)), (Next::Look, Next::Sleep));
        // It tries again after a while.
        let later = kept + SHARED_NS;
        assert_eq!(lull.next(later - 1), Next::Sleep);
        lull.end();
        let begun = later + 10_000;
        assert_eq!((lull.next(later), lull.next(begun)), (Next::Look, Next::GiveWay(begun)));
        assert!(lull.gave_way(begun, begun + 10_001), "it moves again");
    }

    #[test]
    fn a_thread_rests_as_long_as_the_program_polled_and_an_eighth_of_long_times() {
        let limits = [20, 3_000].map(Duration::from_micros);
        let rest = |us: u64| rest(us * 1_000, limits).as_micros();
        assert_eq!([0, 100, 1_000, 8_000, 80_000].map(rest), [20, 100, 500, 1_000, 3_000]);
    }

    #[test]
    fn a_program_that_polls_rarely_does_something_else_meanwhile() {
        let every = Some(Duration::from_nanos(10));
        let done = |polls, waits, waited| Done { polls, waits, waited };
        let mut polled = Polled { since: 1_000, looked: 1_000 };
        assert_eq!(polled.look(1_000, done(0, 0, 0), every), 0);
        assert_eq!(polled.look(2_000, done(100, 0, 0), every), 1_000);
        assert_eq!(
            polled.look(3_000, done(99, 0, 500), every),
            2_000,
            "it waited for half of the time"
        );
        assert_eq!(polled.look(4_000, done(99, 6, 499), every), 0);
        assert_eq!(polled.look(5_000, done(0, 0, 0), None), 1_000);
        assert_eq!(polled.look(6_000, done(0, 10, 200), every), 2_000, "it soon waited again");
        assert_eq!(polled.look(7_000, done(0, 9, 200), every), 0);
    }

    #[test]
    fn asking_for_short_turns_leaves_policy_and_niceness_alone() {
        let asked = || {
            // SAFETY: fills one structure of the length that is stated.
            unsafe {
                let mut now: libc::sched_attr = std::mem::zeroed();
                let len = size_of::<libc::sched_attr>();
                assert_eq!(libc::syscall(libc::SYS_sched_getattr, 0, &raw mut now, len, 0), 0);
                (now.sched_policy, now.sched_nice, now.sched_flags, now.sched_runtime)
            }
        };
        // SAFETY: no memory is involved.
        unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 3) };
        let before = asked();
        ask_for_short_turns();
        let after = asked();
        assert_eq!((before.0, before.1, before.2), (after.0, after.1, after.2));
        assert_eq!(after.1, 3);
        // Kernels before 6.12 have no turns of a thread's own.
        assert!(after.3 == TURN_NS || after.3 == before.3, "{after:?}");
    }
}
