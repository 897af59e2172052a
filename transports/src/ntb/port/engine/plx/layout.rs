// SPDX-License-Identifier: Apache-2.0
//! Registers of a channel, behind BAR 0 of its function, and its descriptors.

/// BAR of the registers, and how many bytes of them are used.
pub const REGISTERS: usize = 0;
pub const REGISTERS_SIZE: usize = 0x240;

/// Where the ring of descriptors is, in two halves.
pub const RING: usize = 0x214;
/// The lower half of the address of the descriptor that is next.
pub const RING_NEXT: usize = 0x21c;
/// How many descriptors the ring has.
pub const RING_COUNT: usize = 0x220;
/// How many descriptors are fetched ahead, and the value for four.
pub const FETCH_LIMIT: usize = 0x234;
pub const FETCH_FOUR: u32 = 8;

/// What the channel is to do, and what it has done. Bits of the latter are cleared by writing them.
pub const CONTROL: usize = 0x238;
pub const PAUSE: u32 = 1 << 0;
pub const WRITE_BACK: u32 = 1 << 2;
pub const START: u32 = 1 << 3;
/// Descriptors are in memory of the host.
pub const RING_IN_MEMORY: u32 = 2 << 5;
pub const MET_INVALID: u32 = 1 << 8;
pub const PAUSED: u32 = 1 << 9;
pub const ABORTED: u32 = 1 << 10;
pub const PAUSED_AT_ONCE: u32 = 1 << 12;
pub const WORKS: u32 = 1 << 30;
pub const CLEAR: u32 = MET_INVALID | PAUSED | ABORTED | PAUSED_AT_ONCE;

/// What interrupts have to tell: 16 bits, cleared by writing them.
pub const INTERRUPTS: usize = 0x23e;
pub const ERROR: u16 = 1 << 0;

/// Bytes of a descriptor: two words. The first has the size and flags in its lower half, then 16 upper
/// bits of each address: that of the destination, that of the source. The second has their lower halves.
pub const DESCRIPTOR: usize = 16;
pub const SIZE_MAX: usize = 0x7ff_ffff;
/// The channel may carry it out; it clears this when it writes back what became of it.
pub const VALID: u32 = 1 << 31;
/// As written: it interrupts. As written back: it was carried out.
pub const INTERRUPT: u32 = 1 << 30;
pub const SUCCESS: u32 = 1 << 30;
/// Addresses have 48 bits.
pub const ADDRESSES: u64 = 1 << 48;
