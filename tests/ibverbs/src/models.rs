// SPDX-License-Identifier: Apache-2.0
//! The devices there are. Each is on a network of its own, to which every process has a port.

use crate::types::*;
use std::ffi::c_int;

/// A device.
pub struct Model {
    pub name: &'static str,
    pub network: u8,
    pub link: u8,
    /// Its data are in memory when they are acknowledged, but no word arrives whole.
    pub is_software: bool,
    /// What its atomic operations exclude.
    pub atomics: c_int,
    /// Longest data that can be posted with an operation.
    pub inline: usize,
    /// Reads and atomic operations that a connection may have under way.
    pub reads: c_int,
    /// Memory that can be registered: so many ranges.
    pub regions: usize,
}

impl Model {
    /// The local address of a port; of InfiniBand alone.
    pub fn lid(&self) -> u16 {
        if self.link == LINK_INFINIBAND { 1 + u16::from(self.network) } else { 0 }
    }

    pub fn gid(&self) -> Gid {
        let network = self.network;
        match self.link {
            LINK_INFINIBAND => [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 2, 0xc9, 0, 0, 0, 0, 1 + network],
            _ => [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 77, network, 1],
        }
    }
}

const CARD: Model = Model {
    name: "card0",
    network: 0,
    link: LINK_INFINIBAND,
    is_software: false,
    atomics: ATOMIC_HCA,
    inline: 220,
    reads: 16,
    regions: 4096,
};

/// See the module. The first is the one that is used if none is named.
pub static MODELS: [Model; 5] = [
    CARD,
    Model { name: "card1", network: 1, ..CARD },
    Model {
        name: "global0",
        network: 2,
        link: LINK_ETHERNET,
        atomics: ATOMIC_GLOB,
        inline: 64,
        reads: 1,
        ..CARD
    },
    // No atomic operations, nothing inline, and little memory.
    Model { name: "plain0", network: 3, atomics: 0, inline: 0, reads: 3, regions: 24, ..CARD },
    Model {
        name: "soft0",
        network: 4,
        link: LINK_ETHERNET,
        is_software: true,
        inline: 128,
        ..CARD
    },
];
