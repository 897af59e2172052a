// SPDX-License-Identifier: Apache-2.0
//! Registers of the chip, all of which lie behind BAR 0 of either function.

/// BAR of the registers, and how many bytes of them there are.
pub const REGISTERS: usize = 0;
pub const REGISTERS_SIZE: usize = 256 << 10;
/// 64-bit BARs that can be windows.
pub const WINDOWS: [usize; 2] = [2, 4];

/// The pages of a bridge: that of its virtual side, and behind it that of its link side.
pub const PAGES: [usize; 2] = [0x3e000, 0x3c000];
pub const LINK_PAGE: usize = 0x1000;

/// Where the number of a function is in configuration space; in a page, behind its vendor.
pub const CONFIG_DEVICE: usize = 2;
/// Device numbers begin so; the last bit tells which of two bridges of a chip it is.
pub const VIRTUAL: u16 = 0x87b0;
pub const LINK: u16 = 0x87a0;

/// Vendor and device of a page's function.
pub const IDS: usize = 0x000;
/// The size of BAR 2, as a mask of address bits in two halves; those of others follow.
pub const BAR_SETUP: usize = 0x0e8;
/// Where writes through BAR 2 go, in two halves; those of others follow.
pub const TRANSLATION: usize = 0xc3c;
/// Scratchpads; both sides have the same.
pub const SPADS: usize = 0xc6c;
/// The requester number that the chip has seen of its own host.
pub const OWN_REQUESTER: usize = 0xc90;
/// Divides BAR 2 of the other side into slots (A-LUT).
pub const SLOT_CONTROL: usize = 0xc94;
/// What has befallen the link, in the page of the virtual side; and what of it does not interrupt.
pub const LINK_ERRORS: usize = 0xfe0;
pub const LINK_ERROR_MASK: usize = 0xfe4;
/// The link was down: the chip has forgotten its link side.
pub const LINK_WAS_DOWN: u32 = 1 << 2;
pub const LINK_ERRORS_ALL: u32 = 0xf;

/// Registers of a side's doorbells, and where its table of requesters is.
pub struct Bells {
    /// Read: pending bits. Written: rings.
    pub set: usize,
    pub clear: usize,
    pub mask: usize,
    pub unmask: usize,
    pub requesters: usize,
}

pub const OF_VIRTUAL: Bells =
    Bells { set: 0xc4c, clear: 0xc50, mask: 0xc54, unmask: 0xc58, requesters: 0xd94 };
pub const OF_LINK: Bells =
    Bells { set: 0xc5c, clear: 0xc60, mask: 0xc64, unmask: 0xc68, requesters: 0xdb4 };

/// Doorbells of a side; the last one tells that the other side has changed its state.
pub const BELLS: u32 = 16;
pub const STATE_BELL: u32 = BELLS - 1;
/// Says that an entry of the table of requesters is used; two entries are in a register. The others of its
/// bits are bus and device of the requester.
pub const REQUESTER_USED: u32 = 1;
pub const REQUESTER: u16 = 0xfff8;
/// Engines that are listed, behind the entries for the host.
pub const ENGINES_MAX: usize = 8;
