//! The PCIe non-transparent bridge ring.

pub mod port;
