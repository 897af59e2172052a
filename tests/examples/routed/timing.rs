// SPDX-License-Identifier: Apache-2.0
//! Timing of several ways to do the same thing, in turns.

use std::time::{Duration, Instant};

/// Rounds at least and at most, and for how long to go on between the two.
const ROUNDS: (usize, usize) = (7, 41);
const LASTING: Duration = Duration::from_millis(50);
/// A batch lasts about this long, so that reading the clock does not count.
const BATCH_NS: f64 = 20_000.0;
const REPEATS_MAX: f64 = 2_000.0;
/// Operations before a batch: a cache that another way left full of other things needs a few.
const UNTIMED: usize = 3;

/// Nanoseconds of one operation in each of the ways: the median of the faster half of the batches,
/// whose disturbances make them slower and never faster. Every batch follows operations of its own way
/// that are not timed, which find the caches as another way left them; which one that was changes.
pub fn in_turns(ways: usize, mut perform: impl FnMut(usize)) -> Vec<f64> {
    let repeats: Vec<u32> = (0..ways)
        .map(|way| {
            perform(way);
            let begun = Instant::now();
            perform(way);
            perform(way);
            let once = begun.elapsed().as_nanos() as f64 / 2.0;
            (BATCH_NS / once.max(1.0)).clamp(1.0, REPEATS_MAX) as u32
        })
        .collect();
    let mut times = vec![Vec::new(); ways];
    let begun = Instant::now();
    for round in 0..ROUNDS.1 {
        if round >= ROUNDS.0 && begun.elapsed() > LASTING {
            break;
        }
        for way in order(ways, round) {
            (0..UNTIMED).for_each(|_| perform(way));
            let begun = Instant::now();
            (0..repeats[way]).for_each(|_| perform(way));
            times[way].push(begun.elapsed().as_nanos() as f64 / f64::from(repeats[way]));
        }
    }
    times.iter_mut().map(|times| summary(times)).collect()
}

/// All ways, in an order that is another one in every round.
fn order(ways: usize, round: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..ways).collect();
    // Numerical Recipes' linear congruential generator: any mixture will do.
    let mut random = round as u32;
    for left in (1..ways).rev() {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        order.swap(left, (random >> 16) as usize % (left + 1));
    }
    order
}

fn summary(times: &mut [f64]) -> f64 {
    times.sort_unstable_by(f64::total_cmp);
    times[times.len().div_ceil(2) / 2]
}
