// SPDX-License-Identifier: Apache-2.0
//! Collective operations over the operations of the core (OpenSHMEM 1.6, "Collective Routines",
//! "Team Management Routines", "Distributed Locking Routines").
//!
//! - The crate's root has the operations on teams; [`active`] has the deprecated ones on active
//!   sets, [`teams`] makes and destroys teams, [`locks`] has the distributed locks.
//! - Every operation is correct over any transport: memory of mapped peers is read and written
//!   directly, that of others through puts, gets and AMOs.
//! - Lengths are in bytes unless said otherwise. `routine`, the last argument everywhere, is the
//!   name of the routine the program called, for messages and hang reports.
//! - Failures of communication end the job with a message, so nothing here returns a status.
//!
//! Which algorithm runs is decided in [`table`], identically on all members.

pub mod active;
mod algorithms;
mod barrier;
mod both_ways;
mod broadcast;
mod by_hosts;
mod check;
mod estimate;
mod exchange;
mod gather;
mod group;
mod letters;
mod levels;
pub mod locks;
mod long_double;
mod notes;
mod operations;
mod reduce;
mod reduce_meet;
mod reduce_pairwise;
mod reduce_push;
mod reducer;
mod scan_push;
mod schedule;
mod stream;
mod strided;
pub mod table;
pub mod teams;

pub use active::ActiveSet;
pub use long_double::LongDouble;
pub use operations::{
    alltoall, alltoalls, barrier_all, broadcast, collect, exscan, fcollect, inscan, reduce, sync,
    sync_all,
};
pub use reducer::{And, Complex, Max, Min, Operator, Or, Prod, Reducer, Sum, Xor, reducer};
pub use strided::Strided;
