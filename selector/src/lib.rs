// SPDX-License-Identifier: Apache-2.0
//! The self-tuning selector: measures every channel at start, routes every operation, explains
//! every choice.
//!
//! ```text
//! World::start ──> tune(&world) ──> tuning.apply(&world) ──> routes ──> fast path
//!                    │ cache or micro-benchmarks, the same on all PEs
//!                    └ model ── policy ── forced rules ── routes of this PE
//! ```
//!
//! - [`class`]: which pairs of PEs are alike. [`probe`]: measuring. [`data`]: what was measured.
//! - [`model`]: what sizes that were not measured cost. [`policy`]: which channel is taken.
//! - [`stripes`]: channels of two transports at the same time. [`either`]: of one of two, by their load. [`carriers`]: what
//!   carries puts within a transport.
//! - [`force`]: `SHMEM_ROUTE`. [`cache`]: tables that are kept. [`report`]: explanations. [`files`]: where results go.
//!   [`pattern`]: estimates of communication patterns. [`adaptive`]: corrections while a program runs.

pub mod adaptive;
pub mod cache;
pub mod carriers;
pub mod class;
mod costs;
pub mod data;
pub mod either;
pub mod files;
pub mod force;
pub mod model;
pub mod pattern;
pub mod policy;
pub mod probe;
pub mod report;
mod session;
pub mod stripes;
mod tuning;

pub use policy::Reuse;
pub use probe::COLD_AREA;
pub use tuning::{Origin, Tuning};

use tombolo_core::config::Tune;
use tombolo_core::{Result, World};

/// Collective: measures the channels, or finds out from the cache or a file what they do, as
/// `SHMEM_TUNE` says. Every PE calls it right after [`World::start`], and then
/// [`Tuning::apply`]. Without a need for other PEs (`SHMEM_TUNE=off` and no `SHMEM_ROUTE`, a job of
/// one PE) it does not communicate.
///
/// Errors: a value of `SHMEM_ROUTE` or a file of `SHMEM_TUNE` that cannot be used, or a lost job.
pub fn tune(world: &World) -> Result<Tuning> {
    session::tune(world, &world.config().tune)
}

/// Collective: measures again, whatever `SHMEM_TUNE` says and the cache holds. Nobody may use
/// symmetric memory meanwhile, other than as the program's own variables outside free heap memory.
pub fn retune(world: &World) -> Result<Tuning> {
    session::tune(world, &Tune::Always)
}
