// SPDX-License-Identifier: Apache-2.0
//! The registers of a bridge in a PLX switch: side 0 has the virtual interface, side 1 the link
//! interface. Written from the descriptions of the chip alone: it has its own numbers, and none of the
//! driver's.

use crate::ntb::port::bridge::testing::{Access, Lines, Model};

/// What an EEPROM may have configured.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Which of two bridges of the chip it is.
    pub second: bool,
    /// Bytes of BAR 2 and BAR 4, by side.
    pub windows: [[usize; 2]; 2],
    /// BARs of 64 bits.
    pub wide: bool,
}

impl Shape {
    pub const EVEN: Shape =
        Shape { second: false, windows: [[1 << 20, 2 << 20], [1 << 20, 2 << 20]], wide: true };
    /// Of different sizes, and with one window that only one side has.
    pub const UNEVEN: Shape =
        Shape { second: true, windows: [[2 << 20, 1 << 20], [1 << 20, 0]], wide: true };
}

pub struct Plx {
    shape: Shape,
    sides: [Interface; 2],
    /// Shared by both.
    pub spads: [u32; 8],
    /// Events of the link, and which of them do not interrupt.
    link_errors: u32,
    link_error_mask: u32,
    /// Doorbells that fired.
    pub fired: [u64; 2],
}

/// One interface.
struct Interface {
    /// Where writes through BAR 2 to BAR 5 go.
    translation: [u32; 4],
    /// Its own doorbells.
    pending: u32,
    mask: u32,
    /// Requesters that may write, two in each word.
    requesters: [u32; 16],
    /// The slots of the other interface's BAR 2 are in use; none of them is enabled.
    slots: bool,
}

impl Interface {
    fn new() -> Interface {
        Interface {
            translation: [0xdead_0000, 3, 0xbeef_0000, 7],
            pending: 0,
            mask: 0xffff,
            requesters: [0; 16],
            slots: true,
        }
    }
}

impl Plx {
    pub fn new(shape: Shape) -> Plx {
        Plx {
            shape,
            sides: [Interface::new(), Interface::new()],
            spads: [0x1234_5678; 8],
            link_errors: 0,
            link_error_mask: 0xf,
            fired: [0; 2],
        }
    }

    /// The cable was out: what the link interface had is lost; the scratchpads may not be.
    pub fn cable_out(&mut self, keeps_spads: bool, lines: &Lines) {
        self.sides[1] = Interface::new();
        if !keeps_spads {
            self.spads = [0; 8];
        }
        self.link_errors |= 4;
        if self.link_error_mask & 4 == 0 {
            self.fire(0, lines);
        }
    }

    fn fire(&mut self, side: usize, lines: &Lines) {
        self.fired[side] += 1;
        lines.raise(side, 0);
    }

    /// Changes doorbells of a side. A message is sent when the first unmasked one becomes pending.
    fn bells(&mut self, side: usize, lines: &Lines, change: impl Fn(&mut u32, &mut u32)) {
        let own = &mut self.sides[side];
        let before = own.pending & !own.mask;
        change(&mut own.pending, &mut own.mask);
        if before == 0 && own.pending & !own.mask != 0 {
            self.fire(side, lines);
        }
    }

    /// The page and the register of an offset.
    fn place(&self, offset: usize) -> (usize, usize) {
        let base = if self.shape.second { 0x3c000 } else { 0x3e000 };
        let at = offset.checked_sub(base).expect("a page of this bridge");
        assert!(at < 0x2000, "a page of this bridge");
        (at / 0x1000, at % 0x1000)
    }

    fn ids(&self, side: usize) -> u32 {
        let device: u32 = if side == 0 { 0x87b0 } else { 0x87a0 };
        (device + u32::from(self.shape.second)) << 16 | 0x10b5
    }
}

impl Model for Plx {
    fn bars(&self, side: usize) -> [usize; 6] {
        let [second, fourth] = self.shape.windows[side];
        [0x40000, 0, second, 0, fourth, 0]
    }

    fn vectors(&self, _side: usize) -> (usize, bool) {
        (1, false)
    }

    fn config16(&self, side: usize, offset: usize) -> u16 {
        match offset {
            0 => self.ids(side) as u16,
            2 => (self.ids(side) >> 16) as u16,
            _ => 0,
        }
    }

    fn read(&mut self, _side: usize, bar: usize, offset: usize, bytes: usize) -> u64 {
        assert_eq!((bar, bytes), (0, 4));
        if [0x3e000, 0x3c000].contains(&offset) {
            return self.ids(0).into();
        }
        let (page, at) = self.place(offset);
        let own = &self.sides[page];
        let value = match at {
            0 => self.ids(page),
            // Sizes of BAR 2 to BAR 5: the upper half goes with the lower one.
            0xe8..0xf8 => {
                let size = self.shape.windows[page][(at - 0xe8) / 8] as u64;
                let kind = if self.shape.wide { 0xc } else { 0x8 };
                let setup = if size == 0 { 0 } else { !(size - 1) | kind };
                (setup >> (at % 8 * 8)) as u32
            }
            0xc3c..0xc4c => own.translation[(at - 0xc3c) / 4],
            0xc4c | 0xc50 => self.sides[0].pending,
            0xc54 | 0xc58 => self.sides[0].mask,
            0xc5c | 0xc60 => self.sides[1].pending,
            0xc64 | 0xc68 => self.sides[1].mask,
            0xc6c..0xc8c => self.spads[(at - 0xc6c) / 4],
            0xc90 => 0x0300 + page as u32 * 0x400,
            0xc94 => u32::from(own.slots) << 28,
            0xfe0 if page == 0 => self.link_errors,
            0xfe4 if page == 0 => self.link_error_mask,
            _ => panic!("read of register {at:#x} of side {page}"),
        };
        value.into()
    }

    fn write(&mut self, access: Access, value: u64, lines: &Lines) {
        assert_eq!((access.bar, access.bytes), (0, 4));
        let (page, at) = self.place(access.offset);
        let value = value as u32;
        match at {
            0xc3c..0xc4c => self.sides[page].translation[(at - 0xc3c) / 4] = value,
            0xc4c => self.bells(0, lines, |pending, _| *pending |= value & 0xffff),
            0xc50 => self.bells(0, lines, |pending, _| *pending &= !value),
            0xc54 => self.bells(0, lines, |_, mask| *mask |= value & 0xffff),
            0xc58 => self.bells(0, lines, |_, mask| *mask &= !value),
            0xc5c => self.bells(1, lines, |pending, _| *pending |= value & 0xffff),
            0xc60 => self.bells(1, lines, |pending, _| *pending &= !value),
            0xc64 => self.bells(1, lines, |_, mask| *mask |= value & 0xffff),
            0xc68 => self.bells(1, lines, |_, mask| *mask &= !value),
            0xc6c..0xc8c => self.spads[(at - 0xc6c) / 4] = value,
            0xc94 => self.sides[page].slots = value >> 28 & 1 == 1,
            0xd94..0xdb4 if page == 0 => self.sides[0].requesters[(at - 0xd94) / 4] = value,
            0xdb4..0xdf4 if page == 1 => self.sides[1].requesters[(at - 0xdb4) / 4] = value,
            0xfe0 if page == 0 => self.link_errors &= !value,
            0xfe4 if page == 0 => self.link_error_mask = value,
            _ => panic!("write of register {at:#x} of side {page}"),
        }
    }

    fn route(&self, side: usize, bar: usize, offset: usize) -> Option<u64> {
        let own = &self.sides[side];
        // Requester 0:0 is the processor of the host.
        let listed = own.requesters.iter().flat_map(|pair| [pair & 0xffff, pair >> 16]);
        let allowed = listed.into_iter().any(|entry| entry & 1 == 1 && entry & 0xfff8 == 0);
        if !allowed || (bar == 2 && self.sides[1 - side].slots) {
            return None;
        }
        let [low, high] = [0, 1].map(|half| u64::from(own.translation[bar - 2 + half]));
        let size = self.bars(side)[bar] as u64;
        // The chip replaces the upper bits, whatever the lower ones are.
        Some((low | high << 32) & !(size - 1) | offset as u64)
    }

    fn admits(&self, side: usize, requester: u16) -> bool {
        let listed =
            self.sides[side].requesters.iter().flat_map(|pair| [pair & 0xffff, pair >> 16]);
        // Bus and device are compared; the lowest bit enables an entry.
        let mut entries = listed.filter(|entry| entry & 1 == 1);
        entries.any(|entry| entry >> 3 == u32::from(requester) >> 3)
    }

    /// The chip knows no reset of one side.
    fn reset(&mut self, _side: usize, _lines: &Lines) {}
}
