// SPDX-License-Identifier: Apache-2.0
//! The bridges in Microchip (Microsemi) Switchtec switches of PCIe 3 (11f8:8531 and others): both hosts
//! are plugged into one switch, each into a partition of its own with a bridge in it.
//!
//! - Two windows, aligned to their size. They are opened and closed as a whole by the firmware, which
//!   first locks the partition of the *other* side, where they are set; the IOMMU opens parts of them.
//!   Windows of slots (LUT) are not used.
//! - A window of the other side that leads here says that this side is enabled: there is no link that
//!   could go up or down, and no other state. The last of 28 doorbells tells that it has changed.
//! - 64 doorbells are shared by all partitions, each of which sees all: the lower partition has the first
//!   half. They share one vector; whoever takes one takes all and looks again until there is none.
//! - There are no scratchpads; message registers are not used.
//! - Writes of requesters that are not in a table are rejected. The port lists the processors of its
//!   host.
//! - Two switches that are cabled to each other (crosslink) are not driven.

mod chip;
mod layout;
#[cfg(test)]
pub mod tests;

use super::bridge::{BridgePort, PciDevice};
use super::{Result, vfio};
use std::sync::Arc;

/// Takes over a function.
pub(super) fn open(device: vfio::Device) -> Result<BridgePort> {
    let device = Arc::new(PciDevice::new(device, layout::VECTORS)?);
    BridgePort::new(chip::SwitchtecChip::new(device.clone())?, device)
}
