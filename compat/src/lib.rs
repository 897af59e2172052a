// SPDX-License-Identifier: Apache-2.0
#![doc = include_str!("../rust.md")]

pub mod abi;
mod api;
mod c;
pub mod describe;
mod ending;
mod library;
mod logging;
mod main_thread;
mod objects;
mod process;
mod profile;
pub mod tools;
pub mod transports;
pub mod variables;

pub use api::*;
pub use tombolo_collectives::teams::SplitError;
pub use tombolo_collectives::{And, Max, Min, Operator, Or, Prod, Sum, Xor};
pub use tombolo_core::{Error, Result};
