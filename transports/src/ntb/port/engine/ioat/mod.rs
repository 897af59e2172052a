// SPDX-License-Identifier: Apache-2.0
//! The DMA engines in Intel Xeon processors (I/OAT, also called CBDMA): each function has a channel or
//! more, of which the first is used.
//!
//! - It works off a chain of descriptors in memory of the host, tied to a ring, as many as it is told there are.
//!   When it has carried out one it writes where that is; all before it have been carried out then.
//! - An error ends what it does. It is reset and given a new chain, and what it had not carried out has
//!   failed.
//! - What is known of it is what Linux (`ioat`) and SPDK do with it, and device numbers are theirs. Those of
//!   Atom processors and of Xeon D (8086:0c50 to 0c53, 6f50 to 6f53) are left out: a reset takes their
//!   interrupt vectors away, says Linux.

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
    Ok(Box::new(chip::IoatEngine::new(Arc::new(PciDevice::new(device, 1)?))?))
}
