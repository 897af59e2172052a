// SPDX-License-Identifier: Apache-2.0
//! Registers of a function and of its first channel, behind BAR 0, and its descriptors.

/// BAR of the registers, and how many bytes of them are used.
pub const REGISTERS: usize = 0;
pub const REGISTERS_SIZE: usize = 0xb0;

/// The longest copy, as a power of two, in the lower 5 bits; 0 for 4 GiB and more. 8 bits, as the two that
/// follow.
pub const LONGEST: usize = 0x01;
pub const LONGEST_BITS: u8 = 0x1f;
pub const LONGEST_LEAST: u8 = 12;
/// Whether the function interrupts, and by which vectors.
pub const INTERRUPTS: usize = 0x03;
pub const INTERRUPTS_ON: u8 = 1 << 0;
pub const INTERRUPTS_BY_VECTOR: u8 = 1 << 3;
/// Version of the function: the first that is driven.
pub const VERSION: usize = 0x08;
pub const VERSION_LEAST: u8 = 0x30;

/// How the channel behaves, 16 bits: it may interrupt once more, at errors as well; an error ends what it
/// does, and is written like a completion.
pub const CONTROL: usize = 0x80;
pub const REARM: u16 = 1 << 0;
pub const ERROR_COMPLETES: u16 = 1 << 2;
pub const ERROR_ABORTS: u16 = 1 << 3;
pub const ERROR_INTERRUPTS: u16 = 1 << 4;
/// What it is told to do, 8 bits. The reset reads as set until it is done.
pub const COMMAND: usize = 0x84;
pub const SUSPEND: u8 = 1 << 2;
pub const RESET: u8 = 1 << 5;
/// How many descriptors there have been since the start of the chain, 16 bits.
pub const COUNT: usize = 0x86;
/// Where the last descriptor is that it has carried out, and in the lowest bits its state; 64 bits.
pub const STATUS: usize = 0x88;
pub const STATE: u64 = 7;
pub const ACTIVE: u64 = 0;
pub const IDLE: u64 = 1;
pub const SUSPENDED: u64 = 2;
pub const HALTED: u64 = 3;
pub const DESCRIPTOR_BITS: u64 = !0x3f;
/// Where the chain of descriptors starts, and where the channel writes its status when it has carried out
/// one; two halves.
pub const CHAIN: usize = 0x90;
pub const COMPLETION: usize = 0x98;
/// Errors, cleared by writing them; 32 bits.
pub const ERRORS: usize = 0xa8;

/// Bytes of a descriptor, of which four words are used. The first has the size and, in its upper half,
/// what is to be done; then addresses of source, destination, and the next descriptor.
pub const DESCRIPTOR: usize = 64;
pub const SOURCE: usize = 8;
pub const DESTINATION: usize = 16;
pub const NEXT: usize = 24;
/// It interrupts; its status is written. Nothing else is a copy.
pub const INTERRUPT: u64 = 1 << 32;
pub const WRITE_STATUS: u64 = 1 << 35;
