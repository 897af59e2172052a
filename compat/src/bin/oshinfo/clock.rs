// SPDX-License-Identifier: Apache-2.0
//! Takes the time of what all PEs of a job do together.

use std::time::{Duration, Instant};
use tombolo::describe::Block as Memory;
use tombolo_core::ops::Mode;
use tombolo_core::{Result, World};

/// What is close to the fastest batch.
const SPREAD: f64 = 0.25;

/// How much is measured for one figure.
#[derive(Clone, Copy)]
pub struct Effort {
    /// A batch lasts at least this long, so that reading the clock does not count.
    pub batch: Duration,
    /// Batches; the median of the faster half counts. While that is not close to the fastest there are
    /// more, up to four times as many.
    pub batches: usize,
    /// Runs of a batch at most.
    pub runs_max: u64,
}

/// Takes times, the same on all PEs. All functions are collective.
pub struct Clock<'a> {
    world: &'a World,
    routine: &'static str,
    /// Agreements between PEs.
    word: Memory<'a>,
}

impl<'a> Clock<'a> {
    /// Errors: the heap has no room.
    pub fn new(world: &'a World, routine: &'static str) -> Result<Clock<'a>> {
        Ok(Clock { world, routine, word: Memory::take(world, 64)? })
    }

    /// Keeps all PEs busy for a time.
    pub fn warm_up(&self, longest: Duration, once: impl Fn()) {
        let begun = Instant::now();
        while self.agree(begun.elapsed().as_nanos() as u64) < longest.as_nanos() as u64 {
            (0..10).for_each(|_| once());
        }
    }

    /// Nanoseconds that one run takes.
    pub fn time(&self, effort: Effort, once: impl Fn()) -> f64 {
        self.time_each(effort, 1, |_| once())[0]
    }

    /// Nanoseconds that one run takes of each of `count` things, which take turns: what else the machine
    /// does disturbs them alike.
    pub fn time_each(&self, effort: Effort, count: usize, once: impl Fn(usize)) -> Vec<f64> {
        let Effort { batches, .. } = effort;
        let runs: Vec<u64> = (0..count).map(|index| self.runs(effort, &|| once(index))).collect();
        let mut times = vec![Vec::new(); count];
        let middle = |times: &Vec<Duration>| times[times.len().div_ceil(2) / 2];
        loop {
            for _ in 0..batches {
                for (index, times) in times.iter_mut().enumerate() {
                    times.push(self.batch(runs[index], &|| once(index)));
                }
            }
            times.iter_mut().for_each(|times| times.sort_unstable());
            let close = |times: &Vec<Duration>| middle(times) <= times[0].mul_f64(1.0 + SPREAD);
            if times.iter().all(|times| close(times) || times.len() >= 4 * batches) {
                break;
            }
        }
        let ns = |(times, runs): (_, &u64)| middle(times).as_nanos() as f64 / *runs as f64;
        times.iter().zip(&runs).map(ns).collect()
    }

    /// Runs that fill a batch.
    fn runs(&self, effort: Effort, once: &impl Fn()) -> u64 {
        let Effort { batch, runs_max, .. } = effort;
        let mut runs = 1;
        loop {
            let took = self.batch(runs, once);
            if took >= batch || runs == runs_max {
                return runs;
            }
            let missing = batch.as_secs_f64() / took.as_secs_f64().max(1e-7);
            runs = ((runs as f64 * missing * 1.2) as u64).clamp(runs + 1, runs_max);
        }
    }

    /// The number of each PE.
    pub fn gather(&self, number: u64) -> Vec<u64> {
        let word = self.word.start.cast::<u64>();
        let read = |pe| {
            let mut result = 0u64;
            let (world, dest) = (self.world, (&raw mut result).cast());
            // SAFETY: a symmetric word that nobody writes until the next barrier, and a local one.
            unsafe {
                world.get(world.context(), dest, word.cast(), 8, pe, Mode::Blocking, self.routine);
            }
            result
        };
        self.barrier();
        // SAFETY: a word of this PE that nobody else uses between two barriers.
        unsafe { word.write_volatile(number) };
        self.barrier();
        let numbers = (0..self.world.n_pes()).map(read).collect();
        self.barrier();
        numbers
    }

    fn barrier(&self) {
        tombolo_collectives::barrier_all(self.world, self.routine);
    }

    /// The time PE 0 takes for so many runs.
    fn batch(&self, runs: u64, once: &impl Fn()) -> Duration {
        self.barrier();
        let begun = Instant::now();
        (0..runs).for_each(|_| once());
        Duration::from_nanos(self.agree(begun.elapsed().as_nanos() as u64))
    }

    /// The number that PE 0 has.
    fn agree(&self, number: u64) -> u64 {
        self.gather(number)[0]
    }
}
