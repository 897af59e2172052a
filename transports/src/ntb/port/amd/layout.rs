// SPDX-License-Identifier: Apache-2.0
//! Registers of the bridge, all of which lie behind BAR 0 of either function.

/// BAR of the registers.
pub const REGISTERS: usize = 0;
/// BARs of 64 bits that are windows. Older chips have a third one, BAR 1 with 32 bits.
pub const WINDOWS: [usize; 2] = [2, 4];

/// Registers of both sides. Control: the primary side lets requests of both sides pass.
pub const CONTROL: usize = 0x200;
pub const CONTROL_PASS: u32 = 1 << 20 | 1 << 21;
/// Scratchpads: the first half is that of the primary side.
pub const SPADS: usize = 0x210;
pub const SPADS_OF_SIDE: usize = 8;

/// Registers of this side start here; those of the other side, as much further on.
pub const PEER: usize = 0x400;
/// Which side this is, and whether its driver is there.
pub const SIDE: usize = 0x408;
pub const SIDE_SECONDARY: u32 = 1 << 0;
pub const SIDE_READY: u32 = 1 << 1;
/// Where writes of a side through a window go, 64 bits, and how many bytes of it are open; by window.
pub const LIMIT: [usize; 2] = [0x418, 0x420];
pub const TRANSLATION: [usize; 2] = [0x438, 0x440];
/// Doorbells, 16 bits each: rings the other side; those that do not interrupt; those that are
/// pending, of which written ones clear.
pub const RING: usize = 0x454;
pub const MASKED: usize = 0x45c;
pub const PENDING: usize = 0x460;
/// Doorbells of a side; the last one tells that the other side has changed its state.
pub const BELLS: u32 = 16;
pub const STATE_BELL: u32 = BELLS - 1;

/// Events: those that do not interrupt; those that are pending, of which written ones clear.
pub const EVENTS_MASKED: usize = 0x470;
pub const EVENTS: usize = 0x474;
pub const EVENTS_ALL: u32 = 0x7f;
/// Writes of the other side were flushed.
pub const FLUSHED: u32 = 1 << 0;
/// The other side was reset, went to sleep (D3), is about to be turned off, or lost its cable.
pub const PEER_LOST: u32 = 1 << 1 | 1 << 2 | 1 << 3 | 1 << 6;
/// Tells the firmware which events were taken.
pub const ACKNOWLEDGED: usize = 0x4a0;

/// Interrupt vectors: of doorbells, and of events behind them.
pub const VECTORS: u32 = 24;
