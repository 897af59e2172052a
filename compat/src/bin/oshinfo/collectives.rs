// SPDX-License-Identifier: Apache-2.0
//! Takes the times of the algorithms of collective operations in the job.

use crate::clock::{Clock, Effort};
use std::time::Duration;
use tombolo::describe::Block;
use tombolo::describe::{self, Section};
use tombolo_collectives::{Sum, reducer, table};
use tombolo_core::World;

const ROUTINE: &str = "oshinfo --collectives";
const EFFORT: Effort = Effort { batch: Duration::from_micros(500), batches: 5, runs_max: 10_000 };
/// The operating system takes a while to find every thread of a new job a processor.
const SETTLE: Duration = Duration::from_millis(100);

/// What all PEs choose among the algorithms, with the time that each was measured to take, the same on
/// all PEs. Collective. Errors: the heap has no room for an agreement between PEs.
pub fn measured(world: &World) -> tombolo_core::Result<Section> {
    let clock = Clock::new(world, ROUTINE)?;
    clock.warm_up(SETTLE, || tombolo_collectives::sync_all(world, ROUTINE));
    Ok(describe::choices(world, |operation, size, algorithms| {
        // Where the heap has no room on one PE it has none on all.
        let bytes = (world.n_pes() * size).next_multiple_of(64).max(64);
        let buffers = [Block::take(world, bytes).ok()?, Block::take(world, bytes).ok()?];
        let [dest, source] = buffers.each_ref().map(|buffer| buffer.start);
        // SAFETY: memory of this PE; any bytes make numbers.
        unsafe { source.write_bytes(1, bytes) };
        let once = |index: usize| {
            let (algorithm, reducer) = (algorithms[index], reducer::<Sum, i64>());
            let call = table::Trial { operation, algorithm, dest, source, size, reducer };
            // SAFETY: symmetric buffers with room for a block of each PE, used here alone.
            _ = unsafe { table::carry_out(world, world.team(), &call, ROUTINE) };
        };
        Some(clock.time_each(EFFORT, algorithms.len(), once))
    }))
}
