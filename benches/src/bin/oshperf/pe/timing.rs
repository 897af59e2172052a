// SPDX-License-Identifier: Apache-2.0
//! Taking times within a budget.

use crate::stats::{quantile, sorted};
use nix::time::{ClockId, clock_gettime};
use std::time::{Duration, Instant};

/// Operations that take less are timed in groups, so that reading the clock does not count.
const GROUP: Duration = Duration::from_micros(1);
const GROUP_MAX: u64 = 100;
const SAMPLES: (u64, u64) = (3, 2000);
/// What the length of an operation is estimated from.
const ESTIMATE: Duration = Duration::from_micros(50);
/// Quantiles that stand for all samples of a round.
const KEPT: usize = 32;
/// Quantiles of the samples that the last of these stands for: 99 % lies among them.
const TAIL: usize = 16;

/// Times of one operation, in nanoseconds.
#[derive(Clone, Debug, Default)]
pub struct Times {
    /// In increasing order.
    values: Vec<f64>,
    /// Time of the processors that this process took, per operation.
    pub cpu_ns: Option<f64>,
}

impl Times {
    /// Of at least one value.
    pub fn new(values: Vec<f64>, cpu_ns: Option<f64>) -> Times {
        Times { values: sorted(values), cpu_ns }
    }

    /// The middle.
    pub fn median(&self) -> f64 {
        quantile(&self.values, 0.5)
    }

    /// The times of one of so many parts.
    pub fn divided(self, parts: f64) -> Times {
        let values = self.values.into_iter().map(|value| value / parts).collect();
        Times { values, cpu_ns: self.cpu_ns.map(|ns| ns / parts) }
    }

    /// What 99 of 100 are below.
    pub fn p99(&self) -> f64 {
        quantile(&self.values, 0.99)
    }

    /// A few values that are spread as all of them are.
    pub fn kept(&self) -> Vec<f64> {
        if self.values.len() <= KEPT {
            return self.values.clone();
        }
        self.spread(KEPT, 0.0)
    }

    /// A few values that are spread as those are that the last of [`Times::kept`] stands for.
    pub fn tail(&self) -> Vec<f64> {
        if self.values.len() <= KEPT {
            return vec![];
        }
        self.spread(TAIL, (KEPT - 1) as f64 / KEPT as f64)
    }

    /// So many values that are spread as all above a quantile are.
    fn spread(&self, count: usize, from: f64) -> Vec<f64> {
        let part = |k: usize| from + (1.0 - from) * (k as f64 + 0.5) / count as f64;
        (0..count).map(|k| quantile(&self.values, part(k))).collect()
    }
}

/// How many groups of how many operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sampling {
    /// Operations timed together.
    pub group: u64,
    /// Times taken.
    pub samples: u64,
}

impl Sampling {
    /// For operations that take so long.
    pub fn new(budget: Duration, each: Duration) -> Sampling {
        let each = each.as_nanos().max(1) as u64;
        let group = (GROUP.as_nanos() as u64 / each).clamp(1, GROUP_MAX);
        let samples = budget.as_nanos() as u64 / (each * group);
        Sampling { group, samples: samples.clamp(SAMPLES.0, SAMPLES.1) }
    }
}

/// About how long one operation takes; carries out some.
pub fn estimate(mut operation: impl FnMut()) -> Duration {
    operation();
    let mut count = 1;
    loop {
        let begun = Instant::now();
        (0..count).for_each(|_| operation());
        let took = begun.elapsed();
        if took >= ESTIMATE || count >= 4096 {
            return took / count;
        }
        count *= 2;
    }
}

/// Carries an operation out as planned and takes the times.
pub fn run(plan: Sampling, mut operation: impl FnMut()) -> Times {
    let mut values = Vec::with_capacity(plan.samples as usize);
    let before = cpu();
    for _ in 0..plan.samples {
        let begun = Instant::now();
        (0..plan.group).for_each(|_| operation());
        values.push(begun.elapsed().as_nanos() as f64 / plan.group as f64);
    }
    let operations = (plan.samples * plan.group) as f64;
    Times::new(values, Some((cpu() - before).as_nanos() as f64 / operations))
}

/// Both, for operations that this PE carries out alone.
pub fn alone(budget: Duration, mut operation: impl FnMut()) -> Times {
    let each = estimate(&mut operation);
    run(Sampling::new(budget, each), operation)
}

/// Processor time of pieces of work, without that of looking at the clock.
pub struct Meter {
    look: Duration,
    sum: Duration,
}

impl Meter {
    /// Of nothing so far.
    pub fn new() -> Meter {
        let look = || {
            let before = cpu();
            cpu() - before
        };
        let look = (0..16).map(|_| look()).min().unwrap_or_default();
        Meter { look, sum: Duration::ZERO }
    }

    /// Adds what was taken since [`cpu`] was this.
    pub fn add_since(&mut self, before: Duration) {
        self.sum += cpu().saturating_sub(before).saturating_sub(self.look);
    }

    /// Nanoseconds for each of so many operations.
    pub fn ns_of(&self, operations: u64) -> f64 {
        self.sum.as_nanos() as f64 / operations.max(1) as f64
    }
}

/// Processor time of all threads of this process.
pub fn cpu() -> Duration {
    clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_operations_are_timed_in_groups() {
        let plan = |each| Sampling::new(Duration::from_millis(1), Duration::from_nanos(each));
        assert_eq!(plan(2), Sampling { group: 100, samples: 2000 });
        assert_eq!(plan(500), Sampling { group: 2, samples: 1000 });
        assert_eq!(plan(2_000_000), Sampling { group: 1, samples: 3 });
    }

    #[test]
    fn work_takes_processor_time() {
        let (mut meter, before) = (Meter::new(), cpu());
        while cpu() - before < Duration::from_millis(2) {}
        meter.add_since(before);
        assert!(meter.ns_of(2) >= 0.9e6, "{}", meter.ns_of(2));
        assert!(Meter::new().ns_of(0) == 0.0);
    }

    #[test]
    fn few_values_stand_for_many() {
        let times = Times::new((0..1000).map(f64::from).collect(), None);
        let kept = times.kept();
        assert_eq!(kept.len(), KEPT);
        assert!(kept.is_sorted() && kept[0] > 0.0 && kept[KEPT - 1] < 999.0);
        assert!((quantile(&kept, 0.5) - times.median()).abs() < 1.0);
        let tail = times.tail();
        assert_eq!(tail.len(), TAIL);
        assert!(tail.is_sorted() && tail[0] > kept[KEPT - 2] && tail[TAIL - 1] < 999.0);
        assert!(tail[0] < times.p99() && times.p99() < tail[TAIL - 1]);
        assert!(Times::new(vec![1.0; KEPT], None).tail().is_empty());
    }
}
