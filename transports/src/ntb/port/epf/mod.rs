// SPDX-License-Identifier: Apache-2.0
//! The endpoint function of Linux as a bridge: two hosts are plugged into one system on a chip, whose
//! firmware shows each of them a function (`ntb_hw_epf` drives it in the kernel; 1957:0809).
//!
//! - Everything that is set is set by a command: argument, command, then a status that is waited for.
//! - The function keeps no doorbells: a doorbell is an interrupt of the peer and nothing more, the
//!   first vector tells of the link, and each other one is a doorbell. How the peer is rung is in
//!   registers that the firmware sets when the peer takes its function over.
//! - Many of these functions cannot be reset: what a process leaves there, the next one clears away.
//! - Its link says that both sides were enabled. It stops nothing, so this port takes its windows down
//!   with it, and drops doorbells that come while it is not enabled.
//! - Scratchpads of both sides lie behind each other and keep their values.

mod chip;
mod layout;
#[cfg(any(test, feature = "testing"))]
pub mod model;
#[cfg(test)]
pub mod tests;

use super::bridge::{BridgePort, PciDevice};
use super::{Result, vfio};
use std::sync::Arc;

/// Takes over a function.
pub(super) fn open(device: vfio::Device) -> Result<BridgePort> {
    let device = Arc::new(PciDevice::new(device, layout::VECTORS)?);
    BridgePort::new(chip::EpfChip::new(device.clone())?, device)
}
