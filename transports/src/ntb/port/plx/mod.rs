// SPDX-License-Identifier: Apache-2.0
//! The bridges in PLX switches (PEX8713, 8717, 8725, 8733, 8749): a board in one host, which sees the
//! virtual side of the bridge, and a cable to another host, which sees its link side.
//!
//! - A window is as large as its base address register says, and always open as a whole: the chip has
//!   no limits. One that is closed leads to addresses behind which the IOMMU has nothing.
//! - 16 doorbells on one vector, which fires only when the first of them becomes pending: whoever takes
//!   one takes all and looks again until there is none. The last one is the port's own.
//! - Both sides share 8 scratchpads, too few for a handshake, and the chip may forget them when the
//!   link is down, or keep what is stale. In two of them the sides say whether they are enabled; for users there
//!   are words in memory.
//! - When the cable's link was down, the chip has forgotten its link side: what leads that side's windows, its
//!   table of requesters, and the mask of its doorbells. The virtual side is told, sets everything again, and
//!   says something new in its scratchpad; the link side sees that when it looks, and does the same. Either side
//!   does so as well where its own scratchpad was lost.
//! - Writes of requesters that are not in a table are rejected. The port lists the processors of its
//!   host, and the DMA engines that write through it.
//! - Two boards whose link sides are cabled to each other (back to back) are not driven: their hosts
//!   hear nothing of each other.

mod chip;
mod layout;
#[cfg(test)]
pub mod tests;

use super::bridge::{BridgePort, PciDevice};
use super::{Result, vfio};
use std::sync::Arc;

/// Takes over a function.
pub(super) fn open(device: vfio::Device) -> Result<BridgePort> {
    let device = Arc::new(PciDevice::new(device, 1)?);
    BridgePort::new(chip::PlxChip::new(device.clone())?, device)
}
