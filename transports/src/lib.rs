//! Back ends of Tombolo: the ways in which one PE reaches another.
//!
//! - [`ntb`]: hosts tied together by PCIe non-transparent bridges.

pub mod ntb;
