// SPDX-License-Identifier: Apache-2.0
//! Registers of generation 1: those of this host's side of the bridge (primary), and those of the side of
//! the link (secondary), all behind BAR 0. Names in parentheses are those of the data sheets.

/// Bytes of registers that are used.
pub const REGISTERS_SIZE: usize = 0x506;

/// In configuration space: the logarithms of the sizes of both windows, a byte each, on this host's side
/// (PBAR23SZ, PBAR45SZ) and on that of the link (SBAR23SZ, SBAR45SZ).
pub const CONFIG_OWN_SIZES: usize = 0xd0;
pub const CONFIG_LINK_SIZES: usize = 0xd2;

/// Where this host's window ends (PBARxLMT), and where it leads on the link (PBARxXLAT); by window. A
/// limit of 0 is none.
pub const OUT_LIMIT: [usize; 2] = [0x00, 0x08];
pub const OUT: [usize; 2] = [0x10, 0x18];
/// Where a window on the link ends (SBARxLMT), where it leads in this host (SBARxXLAT), and where it is
/// (SBARxBASE).
pub const IN_LIMIT: [usize; 2] = [0x20, 0x28];
pub const IN: [usize; 2] = [0x30, 0x38];
pub const IN_AT: [usize; 2] = [0x48, 0x50];
/// Where these registers are on the link (SBAR0BASE). **Nobody may touch them there.**
pub const REGISTERS_AT: usize = 0x40;
/// The command register of the side of the link (SPCICMD): it answers, and passes requests on.
pub const COMMAND: usize = 0x504;
pub const COMMAND_ON: u16 = 2 | 4;

pub const CONTROL: usize = 0x58;
/// Doorbells that are pending, 16 bits, of which written ones clear; and those that do not interrupt. The
/// last one tells that the link has changed.
pub const PENDING: usize = 0x60;
pub const MASKED: usize = 0x62;
pub const LINK_CHANGED: u16 = 1 << 15;

/// Vectors that the doorbells share.
pub const VECTORS: u32 = 4;

/// Addresses on the link: registers, and both windows. Each side has it to itself what is at an address, so
/// that both use the same.
pub const ADDRESS_OF_REGISTERS: u64 = 0x1000_0000_0000_0000;
pub const ADDRESSES: [u64; 2] = [0x2000_0000_0000_0000, 0x4000_0000_0000_0000];
