// SPDX-License-Identifier: Apache-2.0
//! Back ends of Tombolo. Each is a folder of the same shape and implements the contract of
//! [`tombolo_core::transport`]; none knows another. What those over networks share is in `network`.
//!
//! `README.md` of this crate says how to write one; `examples/myself.rs` is the smallest.
//!
//! - [`shm`]: peers of the same host, by mapping their memory.
//! - [`cma`]: peers of the same host, by kernel copies.
//! - [`ntb`]: hosts tied together by PCIe non-transparent bridges.
//! - [`verbs`]: hosts with RDMA cards: InfiniBand, RoCE.
//! - [`tcp`]: hosts on a network of IP, with nothing but the operating system.
//! - [`ofi`]: hosts on a network that libfabric drives.
//! - `unordered`, with the feature `testing`: a transport that keeps the contract and nothing more.

pub mod cma;
mod network;
pub mod ntb;
pub mod ofi;
pub mod shm;
pub mod tcp;
#[cfg(feature = "testing")]
pub mod unordered;
pub mod verbs;

pub use network::alone::Alone;
use tombolo_core::transport::{Job, Transport};

/// Declares lists of back ends: their names, and what makes each.
macro_rules! back_ends {
    ($($(#[$about:meta])* $LIST:ident {
        $($(#[$condition:meta])? $name:literal = $new:expr,)*
    })*) => {
        $(
            $(#[$about])*
            pub const $LIST: &[&str] = &[$($(#[$condition])? $name),*];
        )*

        /// Makes the back end called `name`.
        pub fn create(name: &str) -> Option<Box<dyn Transport>> {
            match name {
                $($($(#[$condition])? $name => Some(Box::new($new)),)*)*
                _ => None,
            }
        }
    };
}

back_ends! {
    /// Names of all back ends, in the order of preference that is used unless `SHMEM_TRANSPORTS` says
    /// otherwise.
    NAMES {
        "shm" = shm::Shm::new(),
        "cma" = cma::Cma::new(),
        "ntb" = ntb::drive::Ntb::new(),
        "verbs" = verbs::Verbs::new(),
        "tcp" = tcp::Tcp::new(),
        "ofi" = ofi::Ofi::new(),
    }

    /// Names of back ends that are used only where `SHMEM_TRANSPORTS` asks for them.
    ON_REQUEST {
        #[cfg(feature = "testing")]
        "unordered" = unordered::Unordered::over(Box::new(shm::Shm::new())),
    }
}

/// Opens the network of the back end called `name` by itself, for puts and gets of up to `room` bytes; none where a back
/// end has no network of others. The error says why it cannot be used.
pub fn alone(name: &str, job: &Job<'_>, room: usize) -> Option<Result<Box<dyn Alone>, String>> {
    match name {
        "verbs" => Some(network::alone::open::<verbs::Cards>(job, room)),
        "ofi" => Some(network::alone::open::<ofi::Libfabric>(job, room)),
        _ => None,
    }
}
