// SPDX-License-Identifier: Apache-2.0
//! The DMA channels in PLX switches (PEX87xx, 10b5:87d0): each is a PCI function of its own, beside the
//! bridge.
//!
//! - It works off a ring of descriptors in memory of the host, from where it is to the first that is not
//!   valid, and writes back what became of each. Descriptors are fetched ahead, four at a time.
//! - What is known of it is what Linux does with it (`plx_dma`): nothing says what it does after an error,
//!   nor whether a start is heard while it is about to stop. So one that stands still while there is
//!   something to do is started again.

mod chip;
mod layout;
#[cfg(test)]
pub mod tests;

use super::chip::Chip;
use crate::ntb::port::bridge::PciDevice;
use crate::ntb::port::{Result, vfio};
use std::sync::Arc;

/// Takes over a function.
pub(super) fn open(device: vfio::Device) -> Result<Box<dyn Chip>> {
    Ok(Box::new(chip::PlxEngine::new(Arc::new(PciDevice::new(device, 1)?))?))
}
