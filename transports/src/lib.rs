//! Back ends of the transport contract in `tombolo_core::transport`.

pub mod ntb;
