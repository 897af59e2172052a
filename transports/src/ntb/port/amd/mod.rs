// SPDX-License-Identifier: Apache-2.0
//! The bridges in AMD EPYC processors (1022:145b and later): the host with the processor sees the
//! primary side, the host at the other end of the cable the secondary side.
//!
//! - Two windows with limits: each is opened as a whole, and the IOMMU opens parts of it. One that is
//!   closed leads to addresses behind which there is nothing.
//! - 16 doorbells with a vector each, or with one vector for all and for events: whoever takes one takes
//!   all and looks again until there is none. The last one is the port's own.
//! - 16 scratchpads, half of them for each side.
//! - A side says in its side information that its driver is there, and rings the last doorbell when
//!   that changes. Nobody takes it back for a host that is reset or unplugged: the other side does. A
//!   side that finds itself taken back has lost what the chip knew, and sets everything again.
//! - Where the writes of a side go is in registers of that side, which its reset clears: the other side
//!   looks at them whenever it hears of a change.
//! - Two such bridges back to back do not exist: the chip has no way to connect them.

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
    BridgePort::new(chip::AmdChip::new(device.clone())?, device)
}
