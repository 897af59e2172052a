// SPDX-License-Identifier: Apache-2.0
//! OpenSHMEM for Rust programs: what the crate's root shows. The C routines and these types share
//! one data path, the module `c::fast`.

mod atomic;
mod collective;
mod context;
mod lock;
mod memory;
mod nonblocking;
mod panics;
#[cfg(doctest)]
mod refused;
mod strided;
mod team;
mod waiting;
mod world;

pub use atomic::{Atomic, AtomicInteger, SymmetricAtomic};
pub use context::{Context, SignalOp};
pub use lock::{Lock, LockGuard};
pub use memory::{AllocError, Source, Symmetric, SymmetricBox, SymmetricVec};
pub use nonblocking::NonBlocking;
pub use team::Team;
pub use waiting::Cmp;
pub use world::{World, init};
