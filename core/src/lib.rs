// SPDX-License-Identifier: Apache-2.0
//! The model of Tombolo: PEs, symmetric memory, contexts, teams, ordering, and the contract that
//! transports fulfil. Nothing here names a back end or a C type.
//!
//! - [`transport`]: what a back end provides.
//! - [`World`]: one PE's part of a job; its operations are in [`ops`].
//! - [`table`]: the fast path from a symmetric address to a mapped one.
//! - [`bootstrap`], [`board`], [`config`]: how a PE gets to know its job.

pub mod amo;
pub mod board;
pub mod bootstrap;
mod check;
pub mod config;
pub mod context;
pub mod control;
mod copier;
pub mod copy;
pub mod cost;
pub mod error;
pub mod interfaces;
pub mod library;
pub mod load;
pub mod loss;
pub mod memory;
mod named;
pub mod ops;
pub mod passing;
pub mod process;
pub mod profile;
pub mod random;
pub mod registration;
pub mod reroute;
pub mod route;
pub mod service;
pub mod sizes;
pub mod sync;
pub mod table;
pub mod team;
pub mod thread_queues;
pub mod threads;
pub mod transport;
pub mod wait;
pub mod world;

pub use config::Config;
pub use context::{Context, ContextOptions};
pub use error::{Error, Result};
pub use team::Team;
pub use wait::Waiting;
pub use world::{Setup, World};
