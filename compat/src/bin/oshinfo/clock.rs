// SPDX-License-Identifier: Apache-2.0
//! Takes the time of what all PEs of a job do together.

use std::cell::Cell;
use std::time::{Duration, Instant};
use tombolo::describe::Block as Memory;
use tombolo_core::ops::Mode;
use tombolo_core::{Result, World};

/// What is close to the fastest batch.
const SPREAD: f64 = 0.25;
/// A batch that takes so many times its intended length has waited for a processor.
const OVERLONG: u32 = 4;

/// How much is measured for one figure.
#[derive(Clone, Copy)]
pub struct Effort {
    /// A batch lasts at least this long, so that reading the clock does not count.
    pub batch: Duration,
    /// Batches; the median of the faster half counts. While that is not close to the fastest there are
    /// more, up to four times as many.
    pub batches: usize,
    /// No batch begins after this time, even if there were fewer than `batches`: on a busy machine PEs
    /// wait for each other much longer than batches last. There is at least one batch of each thing.
    pub longest: Duration,
    /// Runs of a batch at most.
    pub runs_max: u64,
}

/// Takes times, the same on all PEs. All functions are collective, and so is to drop it.
pub struct Clock<'a> {
    world: &'a World,
    routine: &'static str,
    /// Two words in which PEs tell each other numbers.
    words: Memory<'a>,
    /// The word that was written last.
    turn: Cell<usize>,
}

impl<'a> Clock<'a> {
    /// Errors: the heap has no room.
    pub fn new(world: &'a World, routine: &'static str) -> Result<Clock<'a>> {
        let words = Memory::take(world, 64)?;
        Ok(Clock { world, routine, words, turn: Cell::new(0) })
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
        let Effort { batches, longest, .. } = effort;
        let begun = Instant::now();
        let mut runs: Vec<u64> =
            (0..count).map(|index| self.runs(effort, &|| once(index))).collect();
        let mut times = vec![Vec::new(); count];
        let middle = |times: &Vec<f64>| times[times.len().div_ceil(2) / 2];
        let close = |times: &Vec<f64>| middle(times) <= times[0] * (1.0 + SPREAD);
        loop {
            for (index, (times, runs)) in times.iter_mut().zip(&mut runs).enumerate() {
                let took = self.batch(*runs, &|| once(index));
                times.push(took.as_nanos() as f64 / *runs as f64);
                times.sort_unstable_by(f64::total_cmp);
                // A batch whose PEs had to wait for a processor shows nothing more by being long.
                if took > OVERLONG * effort.batch {
                    *runs = fitting(*runs, effort.batch, took).clamp(1, *runs);
                }
            }
            let enough = |times: &Vec<f64>| match times.len() {
                taken if taken < batches => false,
                taken => close(times) || taken >= 4 * batches,
            };
            let over = self.agree(begun.elapsed().as_nanos() as u64) > longest.as_nanos() as u64;
            if over || times.iter().all(enough) {
                return times.iter().map(middle).collect();
            }
        }
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
            runs = fitting(runs, batch.mul_f64(1.2), took).clamp(runs + 1, runs_max);
        }
    }

    /// The number of each PE.
    pub fn gather(&self, number: u64) -> Vec<u64> {
        let word = self.tell(number);
        (0..self.world.n_pes()).map(|pe| self.told(word, pe)).collect()
    }

    /// The number that PE 0 has.
    fn agree(&self, number: u64) -> u64 {
        self.told(self.tell(number), 0)
    }

    /// Has all PEs read a number of this one, in the word that is returned. The words take turns: when one
    /// is written again, all PEs have read it, or else they would not have entered the barrier of the
    /// other.
    fn tell(&self, number: u64) -> *mut u64 {
        self.turn.set(1 - self.turn.get());
        let word = self.words.start.cast::<u64>().wrapping_add(self.turn.get());
        // SAFETY: a word of this PE that nobody reads before the barrier.
        unsafe { word.write_volatile(number) };
        self.barrier();
        word
    }

    /// What a PE told.
    fn told(&self, word: *const u64, pe: usize) -> u64 {
        let mut number = 0u64;
        let (world, dest) = (self.world, (&raw mut number).cast());
        // SAFETY: a symmetric word that nobody writes now, and a local one.
        unsafe {
            world.get(world.context(), dest, word.cast(), 8, pe, Mode::Blocking, self.routine)
        };
        number
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
}

impl Drop for Clock<'_> {
    /// Waits until all PEs have read what this one told last, because its memory may be used again then.
    fn drop(&mut self) {
        self.barrier();
    }
}

/// The runs that last so long, where `runs` took another time.
fn fitting(runs: u64, long: Duration, took: Duration) -> u64 {
    (runs as f64 * long.as_secs_f64() / took.as_secs_f64().max(1e-7)) as u64
}
