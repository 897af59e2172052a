// SPDX-License-Identifier: Apache-2.0
//! Registers of the bridges in Xeon processors, behind BAR 0 and in configuration space.

/// BAR of the registers.
pub const REGISTERS: usize = 0;
/// BARs of 64 bits that are windows.
pub const WINDOWS: [usize; 2] = [2, 4];

pub const CONFIG_DEVICE: usize = 0x02;
pub const CONFIG_BARS: usize = 0x10;
/// What the BIOS made of the bridge (generation 3): the lowest two bits tell what is at its far end.
pub const CONFIG_PORT: usize = 0xd4;
pub const PORT_KIND: u16 = 3;
pub const PORT_BACK_TO_BACK: u16 = 1;
pub const PORT_SPLIT: u16 = 0x40;
/// State of the link (generation 3).
pub const CONFIG_LINK: usize = 0x1a2;
/// Logarithms of the sizes of windows that a BIOS can have set.
pub const SIZE_LOGS: std::ops::RangeInclusive<u16> = 12..=51;

pub const CONTROL: usize = 0x00;
pub const CONFIG_LOCK: u32 = 1 << 0;
pub const DISABLE: u32 = 1 << 1;
/// Reads and writes of either window see caches. Between these bits are those that say that they do not
/// (generation 4).
pub const SNOOP: u32 = 1 << 2 | 1 << 4 | 1 << 6 | 1 << 8;

/// Where an inbound window leads, and where it ends; by window.
pub const INBOUND: [usize; 2] = [0x10, 0x20];
pub const INBOUND_LIMIT: [usize; 2] = [0x18, 0x28];
/// Where it is on the side of the link (EMBARx), and where it ends there (EMBARxXLMT; generation 3). EMBARxXBASE,
/// before the latter, is neither: it leads requests of this host.
pub const OUTER: [usize; 2] = [0x4518, 0x4520];
pub const OUTER_LIMIT: [usize; 2] = [0x4018, 0x4028];
/// The command register of the side of the link (SPCICMD, 16 bits; generation 3): it answers, and passes
/// requests on.
pub const OUTER_COMMAND: usize = 0x4504;
pub const OUTER_COMMAND_ON: u16 = 2 | 4;
/// The logarithm of its size, 16 bits (generation 4).
pub const SIZE_LOG: [usize; 2] = [0x74, 0x76];

/// Doorbells that are pending, and the change of the link; written ones clear.
pub const PENDING: usize = 0x40;
/// Those that do not interrupt.
pub const DISABLED: usize = 0x48;
pub const DOORBELLS: u32 = 32;
pub const LINK_CHANGED: u64 = 1 << 32;
/// Rings the peer: a register for each bit.
pub const RING: usize = 0x100;
pub const SPADS: usize = 0x80;
pub const SPAD_COUNT: usize = 16;
/// Vectors that work: the one of the link's own number does not.
pub const VECTORS: u32 = 32;

/// The link (generation 4), 16 bits each.
pub const LINK_CONTROL: usize = 0xb050;
pub const LINK_CONTROL_DISABLE: u16 = 1 << 4;
pub const LINK_STATUS: usize = 0xb052;
pub const SLOT_STATUS: usize = 0xb05a;
/// The link has changed; written, clears.
pub const SLOT_LINK_CHANGED: u16 = 1 << 8;
pub const PORT_0: usize = 0xb0d4;
pub const PORT_0_TRAIN: u32 = 1 << 3;
/// What the BIOS made of the bridge (generation 4), 32 bits.
pub const PORT_1: usize = 0xb4c0;
pub const PORT_1_KIND: u32 = 0x300;
pub const PORT_1_BACK_TO_BACK: u32 = 0x200;
/// In the status of a link: it is active.
pub const LINK_ACTIVE: u16 = 0x2000;

/// What differs between generations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Generation {
    Third,
    Fourth,
}

impl Generation {
    /// By the number of the device.
    pub fn of(device: u16) -> Option<Generation> {
        match device {
            0x201c => Some(Generation::Third),
            0x347e => Some(Generation::Fourth),
            _ => None,
        }
    }

    /// Whether a device is of generation 1, which has another chip.
    pub fn is_first(device: u16) -> bool {
        [0x3725, 0x3c0d, 0x0e0d, 0x2f0d, 0x6f0d].contains(&device)
    }

    pub fn name(self) -> &'static str {
        match self {
            Generation::Third => "Intel Xeon NTB, generation 3 (intel)",
            Generation::Fourth => "Intel Xeon NTB, generation 4 (intel)",
        }
    }

    /// Bytes of registers.
    pub fn registers(self) -> usize {
        match self {
            Generation::Third => 0x5000,
            Generation::Fourth => 0xc000,
        }
    }

    /// In configuration space: the logarithms of the sizes of both windows, a byte each, on this host's side
    /// and on that of the link.
    pub fn sizes_at(self) -> [usize; 2] {
        match self {
            Generation::Third => [0xd0, 0xd2],
            Generation::Fourth => [0xc4, 0xc6],
        }
    }

    /// The vector of each bit, a byte each, that of the link behind those of the doorbells.
    pub fn vectors_at(self) -> usize {
        match self {
            Generation::Third => 0xd0,
            Generation::Fourth => 0x50,
        }
    }

    /// Scratchpads of the peer.
    pub fn peer_spads(self) -> usize {
        match self {
            Generation::Third => 0x180,
            Generation::Fourth => 0x8080,
        }
    }
}
