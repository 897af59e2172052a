// SPDX-License-Identifier: Apache-2.0
//! The bridges of generation 1: Xeon C3500 and C5500 (8086:3725), E5 (3c0d), E5 v2 (0e0d), E5 v3 (2f0d) and
//! E5 v4 (6f0d), back to back with another one.
//!
//! By its errata a host can hang
//!
//! - when somebody writes SDOORBELL or B2BDOORBELL while requests from the link reach registers of the
//!   bridge (SDOORBELL_LOCKUP, all of them), and
//! - when requests from the link reach registers of the bridge at all, while data passes in both directions
//!   (SB01BASE_LOCKUP, from E5 v2 on).
//!
//! Every doorbell and scratchpad of the peer is such a register, also the copies on this side
//! (B2BDOORBELL, B2BSPAD), which write through. So the port uses none: only windows cross the link.
//! Doorbells and scratchpads are words in memory, and whoever waits for a doorbell looks at it. The change of
//! the link interrupts: the chip itself sets that bit.

mod chip;
mod layout;
#[cfg(test)]
pub mod tests;

pub use chip::FirstChip;
pub use layout::VECTORS;
