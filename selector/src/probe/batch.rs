// SPDX-License-Identifier: Apache-2.0
//! Timing in batches, robust to what else the machine does.

use crate::data::Point;
use nix::sys::resource::{UsageWho, getrusage};
use std::time::{Duration, Instant};

/// Batches of one measurement.
const BATCHES: usize = 7;
/// Batches at most, when they disagree.
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

/// Batches that nothing interrupted make the result alone if there are so many of them.
const UNDISTURBED: usize = 3;

/// How often this thread lost its processor to another one so far.
fn interruptions() -> i64 {
    getrusage(UsageWho::RUSAGE_THREAD).map_or(0, |usage| usage.involuntary_context_switches())
}

/// Times `issue`, whose argument counts the calls, for at most `share` (the fewest calls
/// that tell anything may overrun it).
pub fn time<E>(
    bytes: u64,
    share: Duration,
    issue: impl FnMut(usize) -> Result<(), E>,
) -> Result<Point, E> {
    time_with(bytes, share, issue, interruptions)
}

/// The same, with another way to count interruptions.
fn time_with<E>(
    bytes: u64,
    share: Duration,
    mut issue: impl FnMut(usize) -> Result<(), E>,
    interruptions: impl Fn() -> i64,
) -> Result<Point, E> {
    let begun = Instant::now();
    let mut round = 0;
    let mut run = |repeats: u32| -> Result<f64, E> {
        let start = Instant::now();
        for _ in 0..repeats {
            issue(round)?;
            round += 1;
        }
        Ok(start.elapsed().as_nanos() as f64 / f64::from(repeats))
    };
    // The first call meets page faults and cold caches; the next ones tell how many make a batch.
    run(1)?;
    let once = run(1)?.max(1.0);
    let mut repeats = 1;
    if once < BATCH_NS {
        let guess = run(16)?.max(0.5);
        repeats = ((BATCH_NS / guess) as u32).clamp(1, REPEATS_MAX);
    }
    let mut times = Vec::with_capacity(BATCHES_MAX);
    let mut interrupted = Vec::new();
    let mut wanted = BATCHES;
    let mut seen = interruptions();
    loop {
        let time = run(repeats)?;
        let now = interruptions();
        if std::mem::replace(&mut seen, now) == now {
            times.push(time);
        } else {
            interrupted.push(time);
        }
        let done = times.len() + interrupted.len();
        if done >= wanted {
            let spread = if times.is_empty() { f32::INFINITY } else { summary(&mut times).1 };
            if spread <= SPREAD || wanted == BATCHES_MAX {
                break;
            }
            wanted = (wanted * 2).min(BATCHES_MAX);
        }
        let least = if bytes >= LARGE { LARGE_BATCHES } else { 1 };
        if begun.elapsed() >= share && done >= least {
            break;
        }
    }
    let batches = times.len() as u16;
    if times.len() < UNDISTURBED {
        times.append(&mut interrupted);
    }
    let (ns, spread) = summary(&mut times);
    Ok(Point { bytes, ns, spread, batches })
}

/// The median of the faster half, and how far it lies above the fastest, as a fraction: whatever
/// disturbs a batch makes it slower, never faster. Of few batches the second fastest stands for the
/// median, so that two that disagree are not taken for two that agree.
fn summary(times: &mut [f64]) -> (f32, f32) {
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

    #[test]
    fn outliers_do_not_count() {
        let mut times = vec![100.0, 101.0, 102.0, 103.0, 5000.0, 9000.0, 1e9];
        let (ns, spread) = summary(&mut times);
        assert_eq!(ns, 101.0);
        assert!((spread - 0.01).abs() < 1e-6);
        assert_eq!(summary(&mut [900.0, 100.0, 500.0]), (100.0, 4.0));
        assert_eq!(summary(&mut [7.0]), (7.0, 0.0));
    }

    #[test]
    fn interrupted_batches_count_only_where_there_are_no_others() {
        use std::cell::Cell;
        let slow = || {
            let until = Instant::now() + Duration::from_millis(2);
            while Instant::now() < until {}
        };
        // Calls 0 and 1 come before the batches; here each later call is a batch.
        let calls = Cell::new(0);
        let switches = Cell::new(0);
        let issue = |every: usize| {
            calls.set(0);
            move |calls: &Cell<usize>, switches: &Cell<i64>| {
                calls.set(calls.get() + 1);
                let until = Instant::now() + Duration::from_micros(20);
                while Instant::now() < until {}
                if calls.get().is_multiple_of(every) {
                    slow();
                    switches.set(switches.get() + 1);
                }
            }
        };
        let run = |every: usize| {
            let issue = issue(every);
            let issue = |_| {
                issue(&calls, &switches);
                Ok::<(), ()>(())
            };
            time_with(8, Duration::from_secs(1), issue, || switches.get()).unwrap()
        };
        let some = run(3);
        assert!(some.batches >= 3 && some.ns < 1e6, "{some:?}");
        let all = run(1);
        assert!(all.batches == 0 && all.ns >= 2e6, "{all:?}");
    }

    #[test]
    fn a_failure_ends_the_measurement() {
        let result = time(8, Duration::from_secs(1), |n| if n < 5 { Ok(()) } else { Err(n) });
        assert_eq!(result, Err(5));
    }

    #[test]
    fn the_share_of_time_is_kept() {
        let begun = Instant::now();
        let mut calls = 0;
        let point = time(8, Duration::from_millis(2), |_| {
            calls += 1;
            let until = Instant::now() + Duration::from_millis(1);
            while Instant::now() < until {}
            Ok::<(), ()>(())
        });
        assert!(point.unwrap().ns >= 1e6);
        assert!(calls <= 5, "{calls} calls in {:?}", begun.elapsed());
    }
}
