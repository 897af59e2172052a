// SPDX-License-Identifier: Apache-2.0
//! What operations are timed by, and what tells that the thread lost its processor meanwhile.

use nix::sys::resource::{UsageWho, getrusage};
use nix::time::{ClockId, clock_gettime};
use std::cell::Cell;
use std::time::{Duration, Instant};

/// What a measurement reads before and after a batch.
pub trait Clock {
    /// Nanoseconds that went by.
    fn now(&self) -> u64;
    /// Nanoseconds in which this thread had a processor.
    fn own(&self) -> u64;
    /// How often this thread lost its processor to another one.
    fn switches(&self) -> i64;
}

/// The operating system's clocks.
pub struct System(Instant);

impl System {
    /// Begins at 0.
    pub fn start() -> System {
        System(Instant::now())
    }
}

impl Clock for System {
    fn now(&self) -> u64 {
        self.0.elapsed().as_nanos() as u64
    }

    fn own(&self) -> u64 {
        // Without this clock the thread seems to have had no gap.
        let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID);
        let had = time.map_or_else(|_| self.now(), |time| Duration::from(time).as_nanos() as u64);
        had + GIVEN.get().ns
    }

    fn switches(&self) -> i64 {
        switches() - GIVEN.get().switches
    }
}

fn switches() -> i64 {
    getrusage(UsageWho::RUSAGE_THREAD).map_or(0, |usage| usage.involuntary_context_switches())
}

/// What a thread lost by giving way.
#[derive(Clone, Copy, Default)]
struct Given {
    ns: u64,
    switches: i64,
}

thread_local! {
    static GIVEN: Cell<Given> = const { Cell::new(Given { ns: 0, switches: 0 }) };
}

/// Lets others have the processor, because what this thread waits for may be up to them: that is part of
/// the operation, and no gap.
pub fn give_way() {
    let (begun, before) = (Instant::now(), switches());
    std::thread::yield_now();
    let more = switches() - before;
    let Given { ns, switches } = GIVEN.get();
    // The time of the call itself counts twice, which is less than any gap.
    let ns = ns + if more > 0 { begun.elapsed().as_nanos() as u64 } else { 0 };
    GIVEN.set(Given { ns, switches: switches + more });
}

/// Both clocks may differ by this much, and by a hundredth, without a gap: they are read one after the
/// other, and run at slightly different rates.
const GAP_NS: u64 = 2_000;

/// What was read between two batches.
#[derive(Clone, Copy)]
pub struct Reading {
    own: u64,
    switches: i64,
}

impl Reading {
    /// Now.
    pub fn of(clock: &impl Clock) -> Reading {
        Reading { own: clock.own(), switches: clock.switches() }
    }

    /// Whether the thread was without its processor since an earlier reading, between which and this one
    /// a batch of `took` nanoseconds lies.
    pub fn shows_gap(&self, earlier: &Reading, took: u64) -> bool {
        let own = self.own.saturating_sub(earlier.own);
        self.switches != earlier.switches || took.saturating_sub(own) > GAP_NS + took / 100
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn giving_way_is_no_gap() {
        let clock = System::start();
        // Another thread takes this one's processor whenever it is given.
        let done = std::sync::atomic::AtomicBool::new(false);
        let seen = || {
            let before = Reading::of(&clock);
            let begun = clock.now();
            (0..50).for_each(|_| give_way());
            !Reading::of(&clock).shows_gap(&before, clock.now() - begun)
        };
        std::thread::scope(|scope| {
            let threads = std::thread::available_parallelism().map_or(2, |count| count.get());
            for _ in 0..threads {
                scope.spawn(|| {
                    while !done.load(std::sync::atomic::Ordering::Relaxed) {
                        std::thread::yield_now();
                    }
                });
            }
            // The processor may be taken away besides, but not every time.
            let found = (0..200).any(|_| seen());
            done.store(true, std::sync::atomic::Ordering::Relaxed);
            assert!(found);
        });
    }
}
