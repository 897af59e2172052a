// SPDX-License-Identifier: Apache-2.0
//! Timing in batches, robust to what else the machine does.
//!
//! A batch during which the thread lost its processor is discarded, and another one takes its place. That
//! shows in three ways: the operating system counted a switch; the time that the thread had falls behind the
//! clock; or, where a hypervisor takes the processor away and no clock of the guest tells, the clock jumped by
//! much more than in the fastest batch.

use super::clock::{Clock, Reading, System};
use crate::data::Point;
use std::time::Duration;

/// Batches of one measurement.
const BATCHES: usize = 7;
/// Batches at most, when they disagree or are discarded.
const BATCHES_MAX: usize = 28;
/// Batches that disagree by more are repeated.
const SPREAD: f32 = 0.15;
/// Large copies are repeated at least so often, whatever it takes: their time depends on where the
/// caches have what they copy, and settles only after a while.
const LARGE_BATCHES: usize = 3;
/// What is large, in bytes.
const LARGE: u64 = 1 << 20;
/// A batch lasts at least this long, so that reading the clock does not count.
const BATCH_NS: f64 = 3_000.0;
/// Operations of a batch at most.
const REPEATS_MAX: u32 = 2_000;
/// Operations from whose time the length of a batch follows.
const GUESSED_BY: u32 = 16;
/// Batches that nothing interrupted make the result alone if there are so many of them.
const UNDISTURBED: usize = 3;
/// A batch that takes twice as long as the fastest one and so much longer met a jump of the clock.
const JUMP_NS: u64 = 20_000;

/// What a measurement found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Timed {
    /// The time, and the batches that count.
    pub point: Point,
    /// Batches that were discarded.
    pub discarded: u32,
}

/// Times `issue`, whose argument counts the calls, for at most `share` (the fewest calls
/// that tell anything may overrun it).
pub fn time<E>(
    bytes: u64,
    share: Duration,
    issue: impl FnMut(usize) -> Result<(), E>,
) -> Result<Timed, E> {
    time_by(&System::start(), bytes, share, issue)
}

/// The same by another clock.
fn time_by<E>(
    clock: &impl Clock,
    bytes: u64,
    share: Duration,
    mut issue: impl FnMut(usize) -> Result<(), E>,
) -> Result<Timed, E> {
    let begun = clock.now();
    let mut round = 0;
    let mut run = |repeats: u32| -> Result<u64, E> {
        let start = clock.now();
        for _ in 0..repeats {
            issue(round)?;
            round += 1;
        }
        Ok(clock.now() - start)
    };
    // The first call meets page faults and cold caches; the next ones tell how many make a batch. The
    // better of two counts: a jump of the clock must not pass for a long operation.
    run(1)?;
    let mut once = run(1)? as f64;
    if once >= BATCH_NS && bytes < LARGE {
        once = once.min(run(1)? as f64);
    }
    let mut repeats = 1;
    if once < BATCH_NS {
        let guess = run(GUESSED_BY)?.min(run(GUESSED_BY)?) as f64 / f64::from(GUESSED_BY);
        repeats = ((BATCH_NS / guess.max(0.5)) as u32).clamp(1, REPEATS_MAX);
    }
    let mut batches = Vec::with_capacity(BATCHES_MAX);
    let mut wanted = BATCHES;
    let mut before = Reading::of(clock);
    loop {
        let took = run(repeats)?;
        let after = Reading::of(clock);
        let interrupted = after.shows_gap(&before, took);
        before = after;
        batches.push(Batch { took, interrupted });
        let counting = counting(&batches, repeats);
        if counting.len() >= wanted {
            if summary(&mut counting.clone()).1 <= SPREAD {
                break;
            }
            wanted = (wanted * 2).min(BATCHES_MAX);
        }
        let least = if bytes >= LARGE { LARGE_BATCHES } else { 1 };
        let late = clock.now() - begun >= share.as_nanos() as u64;
        if batches.len() == BATCHES_MAX || late && batches.len() >= least {
            break;
        }
    }
    let mut times = counting(&batches, repeats);
    let counted = times.len();
    if counted < UNDISTURBED {
        times = batches.iter().map(|batch| batch.each(repeats)).collect();
    }
    let (ns, spread) = summary(&mut times);
    let point = Point { bytes, ns, spread, batches: counted as u16 };
    Ok(Timed { point, discarded: (batches.len() - counted) as u32 })
}

/// One batch.
struct Batch {
    /// Nanoseconds of all its operations.
    took: u64,
    /// The thread lost its processor meanwhile, as far as the operating system knows.
    interrupted: bool,
}

impl Batch {
    /// Nanoseconds of one operation.
    fn each(&self, repeats: u32) -> f64 {
        self.took as f64 / f64::from(repeats)
    }
}

/// Nanoseconds of an operation in the batches that nothing interrupted.
fn counting(batches: &[Batch], repeats: u32) -> Vec<f64> {
    let undisturbed = || batches.iter().filter(|batch| !batch.interrupted);
    let least = undisturbed().map(|batch| batch.took).min().unwrap_or(0);
    let whole = undisturbed().filter(|batch| batch.took <= 2 * least + JUMP_NS);
    whole.map(|batch| batch.each(repeats)).collect()
}

/// The median of the faster half, and how far it lies above the fastest, as a fraction: whatever
/// disturbs a batch makes it slower, never faster. Of few batches the second fastest stands for the
/// median, so that two that disagree are not taken for two that agree.
pub fn summary(times: &mut [f64]) -> (f32, f32) {
    times.sort_unstable_by(f64::total_cmp);
    let half = times.len().div_ceil(2);
    let (least, middle) = (times[0].max(0.01), times[(half - 1) / 2].max(0.01));
    let typical = times[((half - 1) / 2).max(1).min(times.len() - 1)];
    // Three digits and a half: more would be noise, and text stays short.
    let round = |x: f64| {
        let unit = 10f64.powf(x.log10().floor() - 3.0);
        ((x / unit).round() * unit) as f32
    };
    let spread = (typical / least - 1.0).max(0.0);
    (round(middle), ((spread * 1000.0).round() / 1000.0) as f32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn outliers_do_not_count() {
        let mut times = vec![100.0, 101.0, 102.0, 103.0, 5000.0, 9000.0, 1e9];
        let (ns, spread) = summary(&mut times);
        assert_eq!(ns, 101.0);
        assert!((spread - 0.01).abs() < 1e-6);
        assert_eq!(summary(&mut [900.0, 100.0, 500.0]), (100.0, 4.0));
        assert_eq!(summary(&mut [7.0]), (7.0, 0.0));
    }

    /// A clock that the test moves.
    #[derive(Default)]
    struct Fake {
        now: Cell<u64>,
        own: Cell<u64>,
        switches: Cell<i64>,
    }

    impl Clock for Fake {
        fn now(&self) -> u64 {
            self.now.get()
        }

        fn own(&self) -> u64 {
            self.own.get()
        }

        fn switches(&self) -> i64 {
            self.switches.get()
        }
    }

    impl Fake {
        fn work(&self, ns: u64) {
            self.now.set(self.now.get() + ns);
            self.own.set(self.own.get() + ns);
        }

        fn lose(&self, how: Loss) {
            let ns = 5_000_000;
            self.now.set(self.now.get() + ns);
            match how {
                Loss::Switch => self.switches.set(self.switches.get() + 1),
                Loss::Gap => {}
                // No clock of the guest tells.
                Loss::Hypervisor => self.own.set(self.own.get() + ns),
            }
        }
    }

    /// How a thread loses its processor.
    #[derive(Clone, Copy, Debug)]
    enum Loss {
        Switch,
        Gap,
        Hypervisor,
    }

    const LOSSES: [Loss; 3] = [Loss::Switch, Loss::Gap, Loss::Hypervisor];

    /// Times operations of `each` nanoseconds; the processor is lost in those calls that `lost` names.
    fn timed(each: u64, how: Loss, lost: impl Fn(usize) -> bool) -> Timed {
        let clock = Fake::default();
        let issue = |call: usize| {
            clock.work(each);
            if lost(call) {
                clock.lose(how);
            }
            Ok::<(), ()>(())
        };
        time_by(&clock, 8, Duration::from_secs(1), issue).unwrap()
    }

    #[test]
    fn a_batch_in_which_the_processor_was_lost_is_repeated() {
        for how in LOSSES {
            // Each call is a batch, after a few calls that tell how many make one.
            let seen = timed(10_000, how, |call| call >= 3 && call % 3 == 0);
            assert_eq!(seen.point.ns, 10_000.0, "{how:?}");
            assert_eq!(seen.point.spread, 0.0, "{how:?}");
            assert_eq!(seen.point.batches as usize, BATCHES, "{how:?}: {seen:?}");
            assert!(seen.discarded >= 3, "{how:?}: {seen:?}");
        }
    }

    #[test]
    fn undisturbed_batches_are_all_kept() {
        let seen = timed(10_000, Loss::Gap, |_| false);
        assert_eq!((seen.point.batches as usize, seen.discarded), (BATCHES, 0));
        // What takes its time without losing the processor counts as it is.
        let clock = Fake::default();
        let uneven = |call: usize| {
            clock.work(if call.is_multiple_of(2) { 10_000 } else { 11_000 });
            Ok::<(), ()>(())
        };
        let seen = time_by(&clock, 8, Duration::from_secs(1), uneven).unwrap();
        assert_eq!((seen.point.batches as usize, seen.discarded), (BATCHES, 0));
    }

    #[test]
    fn a_jump_before_the_batches_does_not_make_them_short() {
        let calls_with = |lost: &dyn Fn(usize) -> bool| {
            let calls = Cell::new(0);
            let counted = |call: usize| {
                calls.set(call + 1);
                lost(call)
            };
            assert_eq!(timed(5, Loss::Hypervisor, counted).point.ns, 5.0);
            calls.get()
        };
        let calm = calls_with(&|_| false);
        for at in 1..20 {
            let calls = calls_with(&|call| call == at);
            assert!(calls >= calm, "{calls} calls instead of {calm} after a jump in call {at}");
        }
    }

    #[test]
    fn what_was_never_seen_undisturbed_says_so() {
        for how in [Loss::Switch, Loss::Gap] {
            let seen = timed(10_000, how, |_| true);
            assert_eq!((seen.point.batches, seen.discarded as usize), (0, BATCHES_MAX), "{how:?}");
            assert!(seen.point.ns >= 5e6, "{how:?}: {seen:?}");
        }
    }

    #[test]
    fn the_system_counts_time_without_a_processor_as_a_gap() {
        let clock = System::start();
        let gap = |work: &dyn Fn()| {
            let before = Reading::of(&clock);
            let begun = clock.now();
            work();
            let took = clock.now() - begun;
            Reading::of(&clock).shows_gap(&before, took)
        };
        assert!(gap(&|| std::thread::sleep(Duration::from_millis(2))));
        let work = || assert!((0..200u64).map(std::hint::black_box).sum::<u64>() > 0);
        // Another process may take the processor away once, not a hundred times in a row.
        assert!((0..100).any(|_| !gap(&work)));
    }

    #[test]
    fn a_failure_ends_the_measurement() {
        let result = time(8, Duration::from_secs(1), |n| if n < 5 { Ok(()) } else { Err(n) });
        assert_eq!(result, Err(5));
    }

    #[test]
    fn the_share_of_time_is_kept() {
        let calls = Cell::new(0);
        let clock = Fake::default();
        let timed = time_by(&clock, 8, Duration::from_millis(2), |_| {
            calls.set(calls.get() + 1);
            clock.work(1_000_000);
            Ok::<(), ()>(())
        });
        assert_eq!(timed.unwrap().point.ns, 1e6);
        assert!(calls.get() <= 5, "{} calls", calls.get());
    }
}
