// SPDX-License-Identifier: Apache-2.0
//! Takes the times of the algorithms of collective operations in the job.

use crate::clock::{Clock, Effort};
use std::time::Duration;
use tombolo::describe::Block;
use tombolo::describe::{self, Section};
use tombolo_collectives::{Sum, reducer, table};
use tombolo_core::World;

/// The operation whose calls do not wait for each other.
const BROADCAST: &str = "broadcast";
/// The operation whose elements lie apart.
const ALLTOALLS: &str = "alltoalls";
const ROUTINE: &str = "oshinfo --collectives";
/// What is measured for the figures of an operation and a size.
const EFFORT: Effort = Effort {
    batch: Duration::from_micros(500),
    batches: 5,
    longest: Duration::from_millis(200),
    runs_max: 10_000,
};
/// The operating system takes a while to find every thread of a new job a processor.
const SETTLE: Duration = Duration::from_millis(100);

/// What is shown of a broadcast that is too short for the difference of two times, in nanoseconds.
const SHORTEST: f64 = 100.0;

/// What all PEs choose among the algorithms, with the time that each was measured to take, the same on
/// all PEs. Collective. Errors: the heap has no room for an agreement between PEs.
///
/// A PE may leave a broadcast before others have entered it, so that many calls in a row show how often
/// the root can send. A broadcast is therefore measured until all PEs have the data: a sync follows each
/// call, and what a sync takes alone is subtracted.
pub fn measured(world: &World) -> tombolo_core::Result<Section> {
    let clock = Clock::new(world, ROUTINE)?;
    let sync = || tombolo_collectives::sync_all(world, ROUTINE);
    clock.warm_up(SETTLE, sync);
    let mut section = describe::choices(world, |operation, size, algorithms| {
        // Where the heap has no room on one PE it has none on all.
        let spread = if operation == ALLTOALLS { 2 } else { 1 };
        let bytes = (world.n_pes() * size * spread).next_multiple_of(64).max(64);
        let buffers = [Block::take(world, bytes).ok()?, Block::take(world, bytes).ok()?];
        let [dest, source] = buffers.each_ref().map(|buffer| buffer.start);
        // SAFETY: memory of this PE; any bytes make numbers.
        unsafe { source.write_bytes(1, bytes) };
        let once = |algorithm| {
            let reducer = reducer::<Sum, i64>();
            let call = table::Trial { operation, algorithm, dest, source, size, reducer };
            // SAFETY: symmetric buffers with room for a block of each PE, with its gaps, used here alone.
            _ = unsafe { table::carry_out(world, world.team(), &call, ROUTINE) };
        };
        if operation != BROADCAST {
            return Some(
                clock.time_each(EFFORT, algorithms.len(), |index| once(algorithms[index])),
            );
        }
        // The sync alone takes its turn after the algorithms.
        let mut times = clock.time_each(EFFORT, algorithms.len() + 1, |index| {
            algorithms.get(index).copied().into_iter().for_each(&once);
            sync();
        });
        let alone = times.pop()?;
        Some(times.into_iter().map(|time| (time - alone).max(SHORTEST)).collect())
    });
    section.row(
        "measured",
        "a broadcast until all PEs have the data, other operations call after call",
    );
    Ok(section)
}
