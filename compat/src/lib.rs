//! OpenSHMEM 1.6 for C, C++ and Rust programs.
//!
//! C programs see the headers in `include` and the symbols that the private module `c` exports.
//! Rust programs join the same job through [`init`] and work with the [`World`] they get:
//!
//! ```
//! use std::sync::atomic::{AtomicU64, Ordering};
//!
//! let world = tombolo::init()?;
//! // Every PE makes the same allocations, so every PE gets the same offset.
//! let counter = world.heap().allocate(8, 8).cast::<AtomicU64>();
//! tombolo::barrier_all(&world);
//! let at_pe_0 = world.ptr(counter, 0);
//! // SAFETY: allocated above, zero at first, and mapped: null only where PE 0 is on another host.
//! let before = unsafe { (*at_pe_0).fetch_add(1, Ordering::SeqCst) };
//! assert!(before < world.n_pes() as u64);
//! // Dropping it leaves the job, like `shmem_finalize`.
//! drop(world);
//! # Ok::<(), tombolo::Error>(())
//! ```

pub mod abi;
mod c;
pub mod describe;
mod logging;
mod process;
pub mod transports;
pub mod variables;

pub use process::{Session, init};
pub use tombolo_core::{Config, Context, ContextOptions, Error, Result, Team, World};

/// Collective: completes what this PE has issued on the default context and waits for all PEs
/// (OpenSHMEM 1.6, `shmem_barrier_all`).
pub fn barrier_all(world: &World) {
    tombolo_collectives::barrier_all(world, "barrier_all");
}
