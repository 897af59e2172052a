// SPDX-License-Identifier: Apache-2.0
//! Registers of the switch that concern its bridges, all of which lie behind BAR 0. Every host sees those of
//! all partitions.

/// BAR of the registers.
pub const REGISTERS: usize = 0;
/// BARs of 64 bits that are windows.
pub const WINDOWS: [usize; 2] = [2, 4];
/// Partitions that a switch may have.
pub const PARTITIONS: usize = 48;

/// A partition's own settings: 1 KiB each. Which interrupt vector tells of events (16 bits).
const SETTINGS: usize = 0x4000;
pub const fn event_vector(partition: usize) -> usize {
    SETTINGS + 0x400 * partition + 0x100
}

/// How many partitions there are (8 bits), and which is that of this host (8 bits).
pub const PARTITION: usize = 0x1_0000;
/// The partitions that have a bridge, 64 bits in two halves.
pub const BRIDGES: usize = 0x1_0004;
/// The requester number of this host, 16 bits.
pub const REQUESTER: usize = 0x1_000c;
/// Whether a partition is one between two switches; and where its bridge leads, 64 bits in two halves.
pub const fn crosslink(partition: usize) -> usize {
    0x1_0020 + 0x10 * partition
}
pub const fn targets(partition: usize) -> usize {
    crosslink(partition) + 4
}

/// The windows and requesters of a partition: 8 KiB each.
pub const fn control(partition: usize) -> usize {
    0x1_4000 + 0x2000 * partition
}
/// What the firmware does with a partition (the lower 16 bits), and what it is to do.
pub const STATUS: usize = 0x00;
pub const OPERATION: usize = 0x04;
/// Why it has refused windows.
pub const BAR_ERROR: usize = 0x10;
/// Entries of the table of requesters, 16 bits.
pub const REQUESTERS_SIZE: usize = 0x1c;
/// The table of requesters: the number in the upper half, and whether the entry is used.
pub const REQUESTERS: usize = 0x400;
pub const REQUESTER_USED: u32 = 1;

/// A window, by BAR: its kind, the lower half of its size, and where it leads, 64 bits; and elsewhere
/// the upper half of its size.
pub const fn window(bar: usize) -> usize {
    0x40 + 0x10 * bar
}
pub const WINDOW_SIZE: usize = 4;
pub const WINDOW_LEADS: usize = 8;
pub const fn size_high(bar: usize) -> usize {
    0xa0 + 0x10 * bar
}
/// The BAR can be a window; it leads as a whole; it is divided into slots (LUT).
pub const VALID: u32 = 1 << 0;
pub const WHOLE: u32 = 1 << 4;
pub const SLOTS: u32 = 1 << 5;

/// A step of the firmware: what is written, and what it then is until it is done, and afterwards.
pub struct Step {
    pub operation: u32,
    pub under_way: u32,
    pub done: u32,
}
pub const LOCK: Step = Step { operation: 1, under_way: 3, done: 2 };
pub const CONFIGURE: Step = Step { operation: 2, under_way: 4, done: 1 };

/// The doorbells of a partition: 16 KiB each. All partitions share 64.
pub const fn doorbells(partition: usize) -> usize {
    0x7_4000 + 0x4000 * partition
}
/// Rings; and which may be rung. 64 bits each.
pub const RING: usize = 0x1000;
pub const RINGABLE: usize = 0x1008;
/// Those that are pending, of which written ones clear; and those that interrupt.
pub const PENDING: usize = 0x1010;
pub const INTERRUPTING: usize = 0x1018;
/// The interrupt vector of each, a byte.
pub const VECTOR_MAP: usize = 0x1020;
pub const VECTOR_MAP_SIZE: usize = 64;
/// Doorbells of a side: the first half of all is that of the lower partition. The last four of each
/// half are left to messages.
pub const BELLS: u32 = 28;
pub const HALF: u32 = 32;
/// The last one tells that the other side has changed its state.
pub const STATE_BELL: u32 = BELLS - 1;

/// Vectors that the function has.
pub const VECTORS: u32 = 4;
