// SPDX-License-Identifier: Apache-2.0
//! Carries communication patterns out in the job, takes their time and checks what arrives.

use crate::clock::{Clock, Effort};
use std::time::Duration;
use tombolo::describe::Block as Memory;
use tombolo_core::World;
use tombolo_core::ops::Mode;
use tombolo_selector::data::Operation;
use tombolo_selector::pattern::schedule::{self, Area, Block, Layout, Transfer};
use tombolo_selector::pattern::{By, Pattern};

const ROUTINE: &str = "oshinfo --predict";

/// Before the first measurement: the operating system takes a while to find every thread of a new
/// job a processor.
const SETTLE: Duration = Duration::from_millis(300);
/// Before each.
const WARM_UP: Duration = Duration::from_millis(20);
/// What is measured for a figure.
const EFFORT: Effort = Effort {
    batch: Duration::from_millis(2),
    batches: 11,
    longest: Duration::from_millis(500),
    runs_max: 2_000,
};
/// The areas share no cache line.
const LINE: usize = 64;

/// Nanoseconds that a pattern takes, the same on all PEs.
///
/// Collective. Errors, the same on all PEs: the heap has no room; a PE received other bytes than it
/// was to receive.
pub fn measure(
    world: &World,
    layout: &Layout,
    pattern: Pattern,
    by: By,
    bytes: usize,
) -> Result<f64, String> {
    let run = Run::new(world, layout, pattern, by, bytes)?;
    run.fill(0);
    run.clock.warm_up(WARM_UP, || run.once());
    let ns = run.clock.time(EFFORT, || run.once());
    // With other contents, so that nothing of the runs before passes for received.
    run.fill(1);
    run.once();
    run.check(1)?;
    Ok(ns)
}

/// Keeps all PEs busy until the job runs evenly. Collective.
pub fn settle(world: &World, layout: &Layout) -> Result<(), String> {
    let run = Run::new(world, layout, Pattern::Alltoall, By::Get, LINE)?;
    run.fill(0);
    run.clock.warm_up(SETTLE, || run.once());
    Ok(())
}

/// A pattern in the memory of the job.
struct Run<'a> {
    world: &'a World,
    layout: &'a Layout,
    pattern: Pattern,
    phases: Vec<Vec<Transfer>>,
    bytes: usize,
    memory: Memory<'a>,
    clock: Clock<'a>,
}

impl<'a> Run<'a> {
    fn new(
        world: &'a World,
        layout: &'a Layout,
        pattern: Pattern,
        by: By,
        bytes: usize,
    ) -> Result<Run<'a>, String> {
        let blocks = 2 * layout.pes() + schedule::stage_blocks(layout, pattern, by);
        let total = blocks.checked_mul(bytes).and_then(|total| total.checked_add(3 * LINE));
        let total = total.ok_or_else(|| format!("{blocks} blocks of {bytes} bytes fit nowhere"))?;
        let memory = Memory::take(world, total).map_err(|e| e.to_string())?;
        let clock = Clock::new(world, ROUTINE).map_err(|e| e.to_string())?;
        let phases = schedule::phases(layout, pattern, by, world.pe());
        Ok(Run { world, layout, pattern, phases, bytes, memory, clock })
    }

    fn address(&self, (area, block): (Area, usize)) -> *mut u8 {
        let each = (self.layout.pes() * self.bytes).next_multiple_of(LINE);
        let start = match area {
            Area::Source => 0,
            Area::Result => each,
            Area::Stage => 2 * each,
        };
        self.memory.start.wrapping_add(start + block * self.bytes)
    }

    fn barrier(&self) {
        tombolo_collectives::barrier_all(self.world, ROUTINE);
    }

    /// Carries the pattern out once.
    fn once(&self) {
        let (world, context) = (self.world, self.world.context());
        for phase in &self.phases {
            for Transfer { operation, peer, from, to, blocks, .. } in phase {
                let (from, to, len) = (self.address(*from), self.address(*to), blocks * self.bytes);
                // SAFETY: both ranges lie in their areas, as the schedule's tests check, and in a
                // phase nobody writes what another PE reads.
                unsafe {
                    match operation {
                        Operation::Get => {
                            world.get(context, to, from, len, *peer, Mode::Blocking, ROUTINE);
                        }
                        _ => world.put(context, to, from, len, *peer, Mode::Blocking, ROUTINE),
                    }
                }
            }
            self.barrier();
        }
    }

    /// Writes what this PE has to give, for the `time`th time.
    fn fill(&self, time: usize) {
        for block in schedule::given(self.layout, self.pattern, self.world.pe()) {
            let first = self.address((Area::Source, block.index));
            for at in 0..self.bytes {
                // SAFETY: a block of this PE's memory, before or after all phases.
                unsafe { first.add(at).write(content(block, time, at)) };
            }
        }
        self.barrier();
    }

    /// Whether every PE has got what it was to get, after so many times.
    fn check(&self, time: usize) -> Result<(), String> {
        let wrong = schedule::wanted(self.layout, self.pattern, self.world.pe())
            .into_iter()
            .find(|block| {
                let first = self.address((Area::Result, block.index));
                // SAFETY: a block of this PE's memory, after a phase; written by other processes.
                let byte = |at| unsafe { first.add(at).read_volatile() };
                (0..self.bytes).any(|at| byte(at) != content(*block, time, at))
            })
            .map_or(u64::MAX, |block| block.origin as u64);
        let mut first = Ok(());
        for (pe, origin) in self.clock.gather(wrong).into_iter().enumerate() {
            if origin != u64::MAX && first.is_ok() {
                first = Err(format!(
                    "PE {pe} received other bytes from PE {origin} than were sent ({}, {} bytes)",
                    self.pattern, self.bytes
                ));
            }
        }
        first
    }
}

/// What byte `at` of a block holds the first time, the second time and so on.
fn content(block: Block, time: usize, at: usize) -> u8 {
    ((block.origin * 31 + block.target * 17 + time * 101 + at * 7 + at / 251) % 255) as u8
}
