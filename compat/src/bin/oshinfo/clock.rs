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
        let Effort { batch, batches, runs_max } = effort;
        let mut runs = 1;
        loop {
            let took = self.batch(runs, &once);
            if took >= batch || runs == runs_max {
                break;
            }
            let missing = batch.as_secs_f64() / took.as_secs_f64().max(1e-7);
            runs = ((runs as f64 * missing * 1.2) as u64).clamp(runs + 1, runs_max);
        }
        let mut times = Vec::new();
        let middle = loop {
            times.extend((0..batches).map(|_| self.batch(runs, &once)));
            times.sort_unstable();
            let middle = times[times.len().div_ceil(2) / 2];
            if middle <= times[0].mul_f64(1.0 + SPREAD) || times.len() >= 4 * batches {
                break middle;
            }
        };
        middle.as_nanos() as f64 / runs as f64
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
