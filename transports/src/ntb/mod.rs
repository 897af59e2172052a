// SPDX-License-Identifier: Apache-2.0
//! PCIe non-transparent bridges: hosts tied into a switchless ring.
//!
//! - [`port`]: what one end of a link can do, and the emulated bridge.
//! - [`ring`]: the protocol, a state machine without I/O or clock.
//! - [`drive`]: the transport: runs the protocol on ports.
//! - `sim`, with the feature `testing`: the protocol under virtual time.

pub mod drive;
pub mod port;
pub mod ring;
mod settings;
#[cfg(any(test, feature = "testing"))]
pub mod sim;

pub use settings::NtbSettings;
