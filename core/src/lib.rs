//! The model of Tombolo: PEs, symmetric memory, contexts, teams, ordering, and the contract that
//! transports fulfil. Nothing here names a back end or a C type.

pub mod board;
pub mod config;
pub mod error;
pub mod transport;

pub use config::Config;
pub use error::{Error, Result};
