//! PCIe non-transparent bridges: hosts tied into a switchless ring.

pub mod ring;
pub mod sim;
