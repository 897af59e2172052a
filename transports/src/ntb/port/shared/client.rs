// SPDX-License-Identifier: Apache-2.0
//! What the owner of a device gives away, and what other processes make of it.

use super::Words;
#[cfg(any(test, feature = "testing"))]
use crate::ntb::port::PortError;
use crate::ntb::port::{LinkState, Outbound, Result};
#[cfg(any(test, feature = "testing"))]
use std::any::Any;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;

/// A port as a process of this host uses it that has not opened its device. Whoever made it has checked what the
/// numbers of the calls may be.
pub trait Client: Send + Sync {
    /// The link as it is now, by words that everybody sees.
    fn link_state(&self) -> LinkState;

    /// Its generation.
    fn generation(&self) -> u64;

    /// A handle on an outbound window.
    fn outbound(&self, window: usize) -> Result<Box<dyn Outbound>>;

    /// Pending doorbell bits of this side, after a look where nothing tells of them.
    fn pending(&self) -> u64;

    fn clear(&self, bits: u64);

    fn mask(&self) -> u64;

    fn set_mask(&self, bits: u64);

    fn clear_mask(&self, bits: u64);

    /// Whether nothing tells of doorbells: who waits looks.
    fn looks(&self) -> bool {
        false
    }

    /// Rings the peer, if its link is up. False: only the owner can.
    fn ring(&self, bits: u64) -> bool;

    /// Memory at an offset of the inbound window, where that is fixed, and what keeps it mapped.
    fn fixed(
        &self,
        _offset: usize,
    ) -> Option<(NonNull<u8>, Arc<dyn std::fmt::Debug + Send + Sync>)> {
        None
    }

    /// The owner has ended: the link is down, and the device is let go.
    fn abandon(&self);
}

/// The device itself, for another process.
pub enum DeviceShare {
    /// Its descriptor, and where it is, for people.
    File(OwnedFd, String),
    /// A double, for threads of this process that play others.
    #[cfg(any(test, feature = "testing"))]
    Here(Arc<dyn Any + Send + Sync>),
}

impl DeviceShare {
    /// The descriptor, if it is one.
    pub fn file(self) -> Result<(OwnedFd, String)> {
        match self {
            DeviceShare::File(file, address) => Ok((file, address)),
            #[cfg(any(test, feature = "testing"))]
            DeviceShare::Here(_) => Err(PortError::Unsupported("descriptor")),
        }
    }

    /// A double of that type, if it is one; otherwise the descriptor.
    pub fn here<T: Clone + 'static>(self) -> std::result::Result<T, DeviceShare> {
        match &self {
            #[cfg(any(test, feature = "testing"))]
            DeviceShare::Here(double) => double.downcast_ref::<T>().cloned().ok_or(self),
            DeviceShare::File(..) => Err(self),
        }
    }
}

/// Which kind of port other processes make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Kind {
    Bridge = 1,
    Ivshmem = 2,
}

impl Kind {
    pub fn from_word(word: u64) -> Option<Kind> {
        [Kind::Bridge, Kind::Ivshmem].into_iter().find(|kind| *kind as u64 == word)
    }
}

/// What other processes of a host need to use a port: see [`NtbPort::share`](crate::ntb::port::NtbPort::share).
pub struct Share {
    pub(in crate::ntb::port) kind: Kind,
    /// What the kind of port is told beyond the common.
    pub(in crate::ntb::port) details: Vec<u64>,
    pub(in crate::ntb::port) words: Arc<Words>,
    /// What the peer says, where that is a file.
    pub(in crate::ntb::port) page: Option<OwnedFd>,
    pub(in crate::ntb::port) device: DeviceShare,
    /// Where an inbound window that is fixed is in the owner.
    pub(in crate::ntb::port) fixed: Option<(usize, u64)>,
    /// Whether a slot of a window is open, whoever has opened it. Both are there.
    pub(in crate::ntb::port) is_open: Box<dyn Fn(usize, usize) -> bool + Send + Sync>,
    /// The process in a place has ended.
    pub(in crate::ntb::port) leave: Box<dyn Fn(usize) + Send + Sync>,
}

/// The same as another process has got it.
pub struct Given {
    pub details: Vec<u64>,
    pub words: Arc<Words>,
    pub page: Option<OwnedFd>,
    pub device: DeviceShare,
}
