// SPDX-License-Identifier: Apache-2.0
//! The ring protocol under virtual time: many hosts in one thread, reproducible to the byte.
//!
//! - The engines are the real ones; memory is real memory and its contents are checked; only time
//!   and cables are modelled ([`LinkModel`], [`HostModel`]).
//! - One event queue, ordered by time and then by number: same seed, same run.
//! - A poll of a lane is simulated as a whole, so its last writes are put on the wire before earlier
//!   ones of another lane of the host. That wastes wire time: results with several loaded lanes per
//!   host are lower bounds.
//! - All results are modelled, not measured on hardware.

mod calls;
mod exact;
mod faults;
mod incidents;
pub mod live;
mod memory;
mod model;
mod network;
mod program;
mod prototype;
mod queue;
mod random;
mod report;
mod timed_memory;
mod verify;
mod world;

#[cfg(test)]
mod tests;

pub use faults::{Faults, Incident};
pub use memory::{LaneMemory, Symmetric, amo, line_bytes, sealed};
pub use model::{HostModel, LinkModel, Writer, costs, tlp_bytes};
pub use network::{Direction, Network, PostedWrite, WireTime, Writing};
pub use program::{Beside, Operation, Pattern, Workload};
pub use prototype::Prototype;
pub use random::Random;
pub use report::{Breakdown, Latency, LinkUse, Report};
pub use timed_memory::{CpuTime, TimedMemory};
pub use world::{SimError, Simulation, run};
