// SPDX-License-Identifier: Apache-2.0
//! Registers of the endpoint function, and in which base address registers they are.

/// Registers and the scratchpads of both sides.
pub const REGISTERS: usize = 0;
/// Doorbells of the peer.
pub const DOORBELLS: usize = 2;
/// Windows, in order.
pub const WINDOWS: [usize; 2] = [4, 5];

/// What to do; written last, and 0 again when the firmware has taken it.
pub const COMMAND: usize = 0x00;
pub const ARGUMENT: usize = 0x04;
/// How the command ended, 16 bits.
pub const STATUS: usize = 0x08;
/// Bit 0 says that both sides are enabled; 16 bits.
pub const LINK: usize = 0x0a;
/// Where a window leads to, and how many bytes are open: each in two halves.
pub const ADDRESS: usize = 0x10;
pub const SIZE: usize = 0x18;
pub const WINDOW_COUNT: usize = 0x20;
/// Where the first window starts in its BAR.
pub const FIRST_WINDOW: usize = 0x24;
/// Where this side's scratchpads start; those of the peer follow them.
pub const SPADS: usize = 0x28;
pub const SPAD_COUNT: usize = 0x2c;
/// Bytes between two doorbells.
pub const DOORBELL_STEP: usize = 0x30;
/// What is written to ring a vector of the peer, by vector. The firmware sets it, and the offset, when the peer
/// [configures](CONFIGURE_DOORBELLS) its doorbells.
pub const DOORBELL_DATA: usize = 0x34;
/// Where a doorbell lies beyond its step, by vector.
pub const DOORBELL_OFFSET: usize = 0xb4;
/// Vectors that there are registers for.
pub const VECTORS: u32 = 32;
/// Bytes up to the end of them.
pub const REGISTERS_SIZE: usize = DOORBELL_OFFSET + 4 * VECTORS as usize;

/// Commands.
pub const CONFIGURE_DOORBELLS: u32 = 1;
pub const TEAR_DOWN_DOORBELLS: u32 = 2;
pub const CONFIGURE_WINDOW: u32 = 3;
pub const TEAR_DOWN_WINDOW: u32 = 4;
pub const LINK_UP: u32 = 5;
pub const LINK_DOWN: u32 = 6;

/// With [`CONFIGURE_DOORBELLS`]: the vectors are those of MSI-X.
pub const WITH_MSIX: u32 = 1 << 16;

/// How commands end.
pub const DONE: u16 = 1;
pub const FAILED: u16 = 2;
