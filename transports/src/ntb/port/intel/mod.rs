// SPDX-License-Identifier: Apache-2.0
//! The bridges in Intel Xeon processors of generation 3 (Skylake, 8086:201c) and 4 (Ice Lake and later,
//! 8086:347e), back to back with another one.
//!
//! - Two windows, aligned to their size and with limits: each is opened as a whole, and the IOMMU
//!   opens parts of it. One that is closed leads to addresses behind which there is nothing.
//! - 32 doorbells and the change of the link, each with a vector; the vector of the link's own number
//!   is lost by the chip, so it shares that of the last doorbell.
//! - 16 scratchpads.
//! - In generation 4 the change of the link is acknowledged before its interrupt is cleared.
//! - Generation 1 has other registers, and errata: see `first`.

mod chip;
mod first;
mod layout;
#[cfg(test)]
pub mod tests;

use super::bridge::{BridgePort, PciDevice};
use super::{Result, vfio};
use std::sync::Arc;

/// Takes over a function.
pub(super) fn open(device: vfio::Device) -> Result<BridgePort> {
    if layout::Generation::is_first(device.config16(layout::CONFIG_DEVICE)) {
        let device = Arc::new(PciDevice::new(device, first::VECTORS)?);
        return BridgePort::new(first::FirstChip::new(device.clone())?, device);
    }
    let device = Arc::new(PciDevice::new(device, layout::VECTORS)?);
    BridgePort::new(chip::IntelChip::new(device.clone())?, device)
}
