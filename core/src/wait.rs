// SPDX-License-Identifier: Apache-2.0
//! Waiting that is considerate: spin briefly, then yield, then sleep.
//!
//! A PE with a processor of its own spins long enough to see what a running peer does next, and after
//! each thing it has done for others meanwhile: giving way takes longer than answering them. Where
//! PEs outnumber the processors the process may use, spinning only keeps the awaited PE from
//! running, so it yields almost at once.

use crate::board::monotonic_ns;
use crate::named;
use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

mod beside;
mod turns;

use beside::Beside;
pub use beside::COMPUTES_NS;
use turns::{ANOTHER_RAN_NS, Attempt, Turns, may_find_room};

/// Longest spin for a service thread.
const SERVICE_SPIN_NS: u64 = 3_000;

/// Shortest and longest [`Patience::rest`] beside a PE that has a processor alone.
const SHORT_REST: Duration = Duration::from_micros(50);
const LONG_REST: Duration = Duration::from_millis(5);
/// [`Patience::polls_every`] of a PE that has a processor alone.
const POLLS_EVERY: Duration = Duration::from_micros(6);

/// Time between two looks if what a program waits for can still come.
const CHECK_EVERY_NS: u64 = 100_000_000;

/// What a PE is waiting for, shown when the job hangs.
#[derive(Clone, Copy, Debug)]
pub struct Waiting {
    /// Name of the routine the program called.
    pub routine: &'static str,
    /// Team number, address or peer.
    pub argument: u64,
    /// What has to happen.
    pub reason: Reason,
}

named! {
    /// What a wait is for; named as it is said behind "waiting for".
    #[repr(u8)]
    Reason {
        /// A transport takes no further operation: its queue is full.
        Room = "room in the queue",
        /// Operations of this PE are not complete yet.
        Completion = "completion",
        /// Another PE has to carry out a request.
        Answer = "the target's processor",
        /// Other PEs have not come to this call yet.
        Members = "other PEs to arrive",
        /// A variable has not got its value yet.
        Variable = "a variable",
        /// Another PE has the lock.
        Lock = "a lock",
        /// The next receiver on the way has no room for what a transport is to send.
        Credit = "credits of the next host",
        /// What a transport passes on for others takes the room that the next receiver has.
        Relay = "packets being relayed",
        /// No way leads to the target at present.
        Link = "a link",
    }
}

impl Reason {
    /// Number of them.
    pub const COUNT: usize = Reason::ALL.len();
}

/// Told about a wait that is longer than its spinning, by the thread that waits.
pub type Watcher = fn(&Waiting, &Waited, Moment);

/// When a [`Watcher`] is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// The wait has outlasted its spinning.
    Begin,
    /// Something else holds it up from now on.
    Turn,
    /// It is over.
    End,
}

/// A wait up to now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waited {
    /// Begin, nanoseconds of `CLOCK_MONOTONIC`.
    pub since: u64,
    /// End, or when it was looked at last.
    pub until: u64,
    /// The time between them by what was waited for. Where a transport tells what holds it up, that is
    /// not [`Waiting::reason`] all the time.
    pub ns: [u64; Reason::COUNT],
    /// What is waited for from `until` on.
    pub now: Reason,
}

impl Waited {
    /// A wait that begins.
    pub(crate) fn new(since: u64, reason: Reason) -> Waited {
        Waited { since, until: since, ns: [0; Reason::COUNT], now: reason }
    }

    /// Time has passed, and from now on `reason` is waited for. Whether that is another one.
    pub(crate) fn step(&mut self, now: u64, reason: Reason) -> bool {
        self.ns[self.now as usize] += now.saturating_sub(self.until);
        self.until = now.max(self.until);
        std::mem::replace(&mut self.now, reason) != reason
    }
}

/// What a thread that waits finds when it looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// What it waits for.
    Ready,
    /// It had something to do, for itself or for others: more is likely to follow, and whoever sent it may wait
    /// for an answer.
    Moved,
    /// Nothing.
    Nothing,
}

/// How long to do what. Times in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// Checks before the clock is looked at for the first time.
    pub checks: u32,
    /// Spin at least this long, and after everything that moves.
    pub spin_ns: u64,
    /// Then yield this long.
    pub yield_ns: u64,
    /// Longest sleep afterwards.
    pub sleep_max: Duration,
    /// While a PE polls, it serves others itself: how long its service thread rests, at least and at most, before it
    /// looks whether the PE still polls.
    pub rest: [Duration; 2],
    /// A PE that waits polls at least once in this time. None where so many PEs share a processor that one may not get
    /// a turn for long.
    pub polls_every: Option<Duration>,
}

impl Patience {
    /// Looks again and again, for a PE whose transport itself waits whenever it is to make progress: that
    /// lives in virtual time.
    pub const UNENDING: Patience = Patience {
        checks: 1,
        spin_ns: u64::MAX,
        yield_ns: 0,
        sleep_max: Duration::ZERO,
        rest: [SHORT_REST, LONG_REST],
        polls_every: None,
    };

    /// Where so many PEs share a processor.
    pub fn for_crowd(crowd: u32) -> Patience {
        if crowd <= 1 {
            Patience {
                checks: 200,
                // Longer than most awaited peers take, and shorter than anything a scheduler does:
                // where other jobs keep the processors busy, spinning holds up the peer itself.
                spin_ns: 10_000,
                yield_ns: 5_000_000,
                sleep_max: Duration::from_micros(500),
                rest: [SHORT_REST, LONG_REST],
                polls_every: Some(POLLS_EVERY),
            }
        } else {
            let few = crowd.min(20);
            Patience {
                // The awaited PE does nothing as long as this one has the processor.
                checks: 1,
                spin_ns: 0,
                yield_ns: 20_000_000 * u64::from(naps(crowd).div_ceil(4).min(5)),
                sleep_max: Duration::from_millis(naps(crowd).into()),
                // Among n PEs that give way to each other, each polls once in n turns, and n threads that look take
                // turns from them.
                rest: [SHORT_REST * few.pow(2), LONG_REST * few],
                polls_every: if few < 4 { Some(POLLS_EVERY * few.pow(2)) } else { None },
            }
        }
    }

    /// For what the service thread of a PE does, which may have to run on this very processor. Not
    /// shorter than what a message to it takes where it runs already.
    pub fn for_service(&self) -> Patience {
        Patience { spin_ns: self.spin_ns.min(SERVICE_SPIN_NS), ..*self }
    }

    /// Looks until `look` says that it is over: spins, then lets others run between two looks, and sleeps by `nap`,
    /// unless that says that it cannot, where one of them computes on this processor. False if that took as long as it may, whatever moves, since who
    /// sends may not be who is waited for: then it is time to [`Patience::sleep`].
    /// In a virtual machine the clock of a thread that moves to another processor may go back a little.
    pub fn look(&self, look: &mut dyn FnMut() -> Look, nap: &mut dyn FnMut() -> bool) -> bool {
        let begun = monotonic_ns();
        let (mut moved_at, mut another_ran) = (begun, false);
        let mut beside = BESIDE.get();
        let mut gave_way_at = None;
        loop {
            let now = monotonic_ns();
            if let Some(at) = gave_way_at.take() {
                beside.gave_way(at, now);
            }
            if now.saturating_sub(begun) >= self.spin_ns + self.yield_ns {
                return false;
            }
            let spinning = now.saturating_sub(moved_at) < self.spin_ns;
            let mut moved = false;
            for _ in 0..if spinning { 32 } else { 1 } {
                match look() {
                    Look::Ready => {
                        self.ended(another_ran);
                        BESIDE.set(beside.ended(now));
                        return true;
                    }
                    Look::Moved => moved = true,
                    Look::Nothing => {}
                }
                std::hint::spin_loop();
            }
            if moved {
                moved_at = monotonic_ns();
            }
            let sleeps = beside.sleeps(now);
            if spinning || moved && (self.spin_ns > 0 || sleeps) {
                continue;
            }
            if !(sleeps && nap()) {
                // What moves may take long. Where many PEs share a processor, their turns at looking add up to as much
                // as one that computes.
                let looked = if moved { moved_at } else { now };
                gave_way_at = self.polls_every.is_some().then_some(looked);
                another_ran |= self.give_way();
            }
        }
    }

    /// Sleeps between two looks until `look` says that it is over; calls `every_so_often` about ten times a second.
    pub fn sleep(&self, look: &mut dyn FnMut() -> Look, every_so_often: &mut dyn FnMut()) {
        let mut nap = Duration::from_micros(20);
        let mut checked = monotonic_ns();
        while look() != Look::Ready {
            std::thread::sleep(nap);
            nap = (nap * 2).min(self.sleep_max);
            let now = monotonic_ns();
            if now.saturating_sub(checked) > CHECK_EVERY_NS {
                checked = now;
                every_so_often();
            }
        }
    }

    /// Lets others run. Returns whether one did, where this thread may get a processor alone: if that is so again and
    /// again, it tries to.
    fn give_way(&self) -> bool {
        if !self.may_be_alone() {
            // Reading the clock takes a good part of the time of a look.
            std::thread::yield_now();
            return false;
        }
        let (another_ran, now) = let_others_run();
        if another_ran {
            try_to_be_alone(now);
        }
        another_ran
    }

    /// A wait is over before it slept.
    fn ended(&self, another_ran: bool) {
        if self.may_be_alone() {
            let mut turns = TURNS.get();
            turns.ended(another_ran);
            TURNS.set(turns);
        }
    }

    /// Whether there are as many processors as PEs, so that each may have one for itself.
    pub fn may_be_alone(&self) -> bool {
        self.spin_ns > 0
    }
}

/// Lets others run, for a thread that only polls: each time is a wait. Where another thread runs again and again,
/// this one tries to get a processor alone.
pub fn give_way_polling() {
    let (another_ran, now) = let_others_run();
    let mut turns = TURNS.get();
    turns.ended(another_ran);
    TURNS.set(turns);
    if another_ran {
        try_to_be_alone(now);
    }
}

/// Moves this thread to another processor of its node, if it may use one and may find room there. Where all are taken by
/// threads that compute, Linux 6.18 with autogroups was seen to leave one that had given way many times, and then moved,
/// without a turn for up to 0.9 s.
pub fn leave_processor() {
    if may_find_room() {
        Attempt::Move.make();
    }
}

/// Whether another thread ran, and when that was over.
fn let_others_run() -> (bool, u64) {
    let before = monotonic_ns();
    std::thread::yield_now();
    let now = monotonic_ns();
    (now.saturating_sub(before) > ANOTHER_RAN_NS, now)
}

/// Moves this thread, if that is due.
fn try_to_be_alone(now: u64) {
    let mut turns = TURNS.get();
    if let Some(attempt) = turns.due(now, nix::unistd::gettid().as_raw().cast_unsigned()) {
        TURNS.set(turns);
        attempt.make();
    }
}

thread_local! {
    static TURNS: Cell<Turns> = const { Cell::new(Turns::NONE) };
    static BESIDE: Cell<Beside> = const { Cell::new(Beside::NONE) };
}

/// How many milliseconds PEs sleep at most before they look again, where `crowd` share a processor:
/// each looking once in a millisecond would keep it busy by that. While all of them yield, a PE gets its
/// turn less often in the same way, so they do that longer as well.
fn naps(crowd: u32) -> u32 {
    /// PEs for each processor that may look every millisecond.
    const FEW: u32 = 16;
    (crowd / FEW).clamp(1, 20)
}

/// How many of `pes` PEs that share the processors of this process share one, rounded up.
pub fn crowd(pes: usize) -> u32 {
    pes.div_ceil(usable_cpus()).try_into().unwrap_or(u32::MAX)
}

/// How many processors each of `pes` PEs that share those of this process has, at least 1.
pub fn processors(pes: usize) -> u32 {
    (usable_cpus() / pes.max(1)).clamp(1, u32::MAX as usize) as u32
}

/// Counts how often a program has polled in vain, and lets others run when that gets long: a program
/// that tests in a loop of its own waits no less than one in a waiting call.
#[derive(Debug, Default)]
pub struct Polls {
    /// Polls in vain since one that was not.
    in_a_row: AtomicU64,
    /// All polls in vain, so that also programs that find one thing while they wait for another are
    /// checked.
    in_vain: AtomicU64,
    /// When the program was last checked, 0 before the first time.
    checked: AtomicU64,
}

impl Polls {
    /// Nothing polled yet.
    pub const fn new() -> Polls {
        Polls {
            in_a_row: AtomicU64::new(0),
            in_vain: AtomicU64::new(0),
            checked: AtomicU64::new(0),
        }
    }

    /// The program found what it polled for.
    #[inline]
    pub fn found(&self) {
        if self.in_a_row.load(Ordering::Relaxed) != 0 {
            self.in_a_row.store(0, Ordering::Relaxed);
        }
    }

    /// The program polled in vain. A poll takes a nanosecond at least, so after `spin_ns` of them it
    /// has spun as long as a waiting call does before it yields: `give_way` is to do that, and is told whether
    /// it is the first time in a row.
    pub fn in_vain(&self, patience: &Patience, give_way: impl FnOnce(bool)) {
        // Threads that poll at the same time may lose counts; it is only a measure.
        let polls = self.in_a_row.load(Ordering::Relaxed);
        self.in_a_row.store(polls + 1, Ordering::Relaxed);
        let spins = patience.spin_ns.max(patience.checks.into());
        if polls >= spins {
            give_way(polls == spins);
        }
    }

    /// For each poll in vain: whether it is time to look if what the program polls for can still come. That
    /// is at most once in the time between two looks of a waiting call, and the clock is read so rarely that polls
    /// hardly take longer for it.
    pub fn is_check_due(&self, clock: impl FnOnce() -> u64) -> bool {
        /// Polls for each reading of the clock.
        const EVERY: u64 = 16;
        let polls = self.in_vain.load(Ordering::Relaxed).wrapping_add(1);
        self.in_vain.store(polls, Ordering::Relaxed);
        if !polls.is_multiple_of(EVERY) {
            return false;
        }
        let (now, checked) = (clock(), self.checked.load(Ordering::Relaxed));
        let is_due = now.saturating_sub(checked) > CHECK_EVERY_NS;
        if is_due {
            self.checked.store(now, Ordering::Relaxed);
        }
        // The first time a program may just have begun.
        is_due && checked != 0
    }
}

/// Processors this process may use: its affinity mask, or less where a cgroup has a quota. As it was when
/// this was asked first: finding out takes a dozen system calls.
pub fn usable_cpus() -> usize {
    static FOUND: OnceLock<usize> = OnceLock::new();
    // The standard library counts the affinity mask and the cgroup quota.
    *FOUND.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sched::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
    use nix::unistd::Pid;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn the_time_of_a_wait_is_that_of_what_was_waited_for_meanwhile() {
        let mut waited = Waited::new(100, Reason::Completion);
        assert!(waited.step(110, Reason::Credit));
        assert!(!waited.step(140, Reason::Credit));
        assert!(waited.step(141, Reason::Completion));
        assert!(!waited.step(150, Reason::Completion));
        assert_eq!((waited.since, waited.until), (100, 150));
        let [completion, credit] =
            [Reason::Completion, Reason::Credit].map(|r| waited.ns[r as usize]);
        assert_eq!((completion, credit, waited.ns.iter().sum::<u64>()), (19, 31, 50));
        assert!(Reason::ALL.into_iter().enumerate().all(|(at, reason)| reason as usize == at));
    }

    #[test]
    fn where_time_is_virtual_nobody_sleeps() {
        let begun = monotonic_ns();
        // Longer than anybody looks before sleeping.
        let mut look = || match monotonic_ns() - begun > 150_000_000 {
            true => Look::Ready,
            false => Look::Nothing,
        };
        assert!(Patience::UNENDING.look(&mut look, &mut || false), "it sleeps");
    }

    #[test]
    fn a_wait_in_which_something_always_moves_comes_to_its_sleep() {
        let patience = Patience {
            checks: 1,
            spin_ns: 1_000,
            yield_ns: 1_000,
            sleep_max: Duration::from_millis(1),
            rest: [SHORT_REST, LONG_REST],
            polls_every: None,
        };
        assert!(!patience.look(&mut || Look::Moved, &mut || false));
    }

    #[test]
    fn a_wait_naps_in_place_of_giving_way_while_another_thread_computes() {
        // As long as this thread may be without a processor.
        let patience = Patience { spin_ns: 0, yield_ns: 1 << 40, ..Patience::for_crowd(1) };
        let naps_of_a_wait = || {
            let (mut looks, mut naps) = (0, 0);
            let mut look = || {
                looks += 1;
                if looks > 10 { Look::Ready } else { Look::Nothing }
            };
            let mut nap = || {
                naps += 1;
                true
            };
            assert!(patience.look(&mut look, &mut nap));
            naps
        };
        BESIDE.set(Beside::NONE);
        assert_eq!(naps_of_a_wait(), 0);
        BESIDE.set(Beside::until(u64::MAX));
        assert_eq!(naps_of_a_wait(), 10);
    }

    #[test]
    fn a_thread_that_polls_leaves_a_processor_that_another_one_keeps() {
        let me = Pid::from_raw(0);
        let (all, here) = (sched_getaffinity(me).unwrap(), sched_getcpu().unwrap());
        let mut one = CpuSet::new();
        one.set(here).unwrap();
        sched_setaffinity(me, &one).unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            // It may use the same processor alone as who starts it.
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
            sched_setaffinity(me, &all).unwrap();
            // On a busy machine it stays, and how busy that is changes: only looks at which it might find room count.
            let (mut looks, mut left, end) = (0, false, monotonic_ns() + 20_000_000_000);
            while !left && looks < 1_000 && monotonic_ns() < end {
                looks += u32::from(may_find_room());
                give_way_polling();
                left = sched_getcpu() != Ok(here);
            }
            stop.store(true, Ordering::Relaxed);
            let others = (0..CpuSet::count()).any(|cpu| cpu != here && all.is_set(cpu) == Ok(true));
            assert!(!left || others);
            assert!(left || !others || looks < 1_000);
        });
    }

    #[test]
    fn polls_in_vain_are_checked_ten_times_a_second_and_seldom_read_the_clock() {
        let (polls, mut readings) = (Polls::new(), 0);
        // One in a millisecond, of a program that finds something else each time.
        let checks = (1..=10_000u64).filter(|ms| {
            polls.found();
            polls.is_check_due(|| {
                readings += 1;
                ms * 1_000_000
            })
        });
        let checks: Vec<u64> = checks.collect();
        assert!((80..100).contains(&checks.len()), "{checks:?}");
        assert!(checks.windows(2).all(|pair| pair[1] - pair[0] > 100));
        assert_eq!(readings, 10_000 / 16);
    }

    #[test]
    fn naps_grow_with_the_pes_for_each_processor() {
        assert_eq!([0, 2, 16, 31, 32, 256, 50_000].map(naps), [1, 1, 1, 1, 2, 16, 20]);
    }

    #[test]
    fn more_pes_than_processors_share_them() {
        let cpus = usable_cpus();
        assert_eq!([0, 1, cpus, cpus + 1, 3 * cpus].map(crowd), [0, 1, 1, 2, 3]);
        assert_eq!([0, 1, cpus, 3 * cpus].map(processors), [cpus as u32, cpus as u32, 1, 1]);
        let [alone, sharing] = [1, 2].map(Patience::for_crowd);
        assert!(alone.spin_ns > 0 && sharing.spin_ns == 0);
    }
}
