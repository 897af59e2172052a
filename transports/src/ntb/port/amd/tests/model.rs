// SPDX-License-Identifier: Apache-2.0
//! The registers of a bridge in an EPYC processor: side 0 is the primary one, side 1 the secondary one,
//! which is behind the cable. Written from the descriptions of the chip alone: it has its own numbers,
//! and none of the driver's.

use crate::ntb::port::bridge::testing::{Access, Lines, Model};

/// What a chip may be.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub windows: [usize; 2],
    /// Interrupt vectors: of MSI-X, or a single one.
    pub vectors: usize,
    /// A reset of a function clears its registers, and the other side hears of it.
    pub resets: bool,
}

impl Shape {
    pub const FULL: Shape = Shape { windows: [1 << 20, 2 << 20], vectors: 24, resets: true };
    /// One vector for all that happens, and a chip that knows no reset of one side.
    pub const ONE_VECTOR: Shape = Shape { vectors: 1, resets: false, ..Shape::FULL };
    /// Events have no vectors.
    pub const DOORBELLS_ONLY: Shape = Shape { vectors: 16, ..Shape::FULL };
}

pub struct Epyc {
    shape: Shape,
    pub sides: [Side; 2],
    /// Shared by both: eight of each side.
    pub spads: [u32; 16],
    plugged: bool,
    /// Interrupts sent.
    pub fired: [u64; 2],
}

pub struct Side {
    control: u32,
    /// The driver has said that it is there.
    pub ready: bool,
    translation: [u64; 2],
    limit: [u64; 2],
    pub pending: u16,
    masked: u16,
    pub events: u32,
    events_masked: u32,
    pub acknowledged: u32,
}

const LINK_UP: u32 = 0x20;
const LINK_DOWN: u32 = 0x40;
const PEER_RESET: u32 = 0x2;

impl Side {
    fn new() -> Side {
        Side {
            control: 0x0001_0000,
            ready: false,
            translation: [0xdead_0000, 0x7_beef_0000],
            limit: [0; 2],
            pending: 0,
            masked: 0xffff,
            events: 0,
            events_masked: 0x7f,
            acknowledged: 0,
        }
    }

    /// Interrupts that are due, by vector of MSI-X.
    fn due(&self) -> u32 {
        u32::from(self.pending & !self.masked) | (self.events & !self.events_masked & 0x7f) << 16
    }
}

impl Epyc {
    pub fn new(shape: Shape) -> Epyc {
        Epyc {
            shape,
            sides: [Side::new(), Side::new()],
            spads: [0x1234_5678; 16],
            plugged: true,
            fired: [0; 2],
        }
    }

    /// Changes a side, and interrupts for what is newly due.
    pub fn change(&mut self, side: usize, lines: &Lines, act: impl FnOnce(&mut Side)) {
        let before = self.sides[side].due();
        act(&mut self.sides[side]);
        let now = self.sides[side].due();
        if self.shape.vectors == 1 {
            if before == 0 && now != 0 {
                self.fired[side] += 1;
                lines.raise(side, 0);
            }
            return;
        }
        let new = now & !before;
        for vector in (0..self.shape.vectors).filter(|vector| new >> vector & 1 == 1) {
            self.fired[side] += 1;
            lines.raise(side, vector);
        }
    }

    /// Puts the cable in, or takes it out. The secondary side then starts anew.
    pub fn plug(&mut self, plugged: bool, lines: &Lines) {
        self.plugged = plugged;
        if plugged {
            // What it says of itself was kept.
            self.sides[1] = Side { ready: self.sides[1].ready, ..Side::new() };
        }
        let event = if plugged { LINK_UP } else { LINK_DOWN };
        self.change(0, lines, |side| side.events |= event);
    }

    fn place(&self, side: usize, offset: usize) -> (usize, usize) {
        match offset {
            0x800..0xc00 => (1 - side, offset - 0x400),
            _ => (side, offset),
        }
    }
}

impl Model for Epyc {
    fn bars(&self, _side: usize) -> [usize; 6] {
        [0x1000, 0x1000, self.shape.windows[0], 0, self.shape.windows[1], 0]
    }

    fn vectors(&self, _side: usize) -> (usize, bool) {
        (self.shape.vectors, self.shape.vectors > 1)
    }

    fn read(&mut self, side: usize, bar: usize, offset: usize, bytes: usize) -> u64 {
        assert_eq!(bar, 0);
        if side == 1 && !self.plugged {
            return u64::MAX;
        }
        let (of, at) = self.place(side, offset);
        let own = &self.sides[of];
        match (at, bytes) {
            (0x200, 4) => own.control.into(),
            (0x210..0x250, 4) => self.spads[(at - 0x210) / 4].into(),
            (0x408, 4) => of as u64 | u64::from(own.ready) << 1,
            (0x418 | 0x420, 8) => own.limit[(at - 0x418) / 8],
            (0x438 | 0x440, 8) => own.translation[(at - 0x438) / 8],
            (0x45c, 2) => own.masked.into(),
            (0x460, 2) => own.pending.into(),
            (0x470, 4) => own.events_masked.into(),
            (0x474, 4) => own.events.into(),
            (0x4a0, 4) => own.acknowledged.into(),
            _ => panic!("read of {bytes} bytes at {offset:#x}"),
        }
    }

    fn write(&mut self, access: Access, value: u64, lines: &Lines) {
        let Access { side, bar, offset, bytes } = access;
        assert_eq!(bar, 0);
        if side == 1 && !self.plugged {
            return;
        }
        let (of, at) = self.place(side, offset);
        let own = &mut self.sides[of];
        match (at, bytes) {
            (0x200, 4) => own.control = value as u32,
            (0x210..0x250, 4) => self.spads[(at - 0x210) / 4] = value as u32,
            (0x408, 4) => own.ready = value & 2 != 0,
            (0x418 | 0x420, 8) => own.limit[(at - 0x418) / 8] = value,
            (0x438 | 0x440, 8) => {
                assert_eq!(value % 0x1000, 0, "translations are those of pages");
                own.translation[(at - 0x438) / 8] = value;
            }
            (0x454, 2) => {
                if self.plugged {
                    self.change(1 - of, lines, |peer| peer.pending |= value as u16);
                }
            }
            (0x45c, 2) => self.change(of, lines, |own| own.masked = value as u16),
            (0x460, 2) => self.change(of, lines, |own| own.pending &= !(value as u16)),
            (0x470, 4) => self.change(of, lines, |own| own.events_masked = value as u32),
            (0x474, 4) => self.change(of, lines, |own| own.events &= !(value as u32)),
            (0x4a0, 4) => own.acknowledged = value as u32,
            _ => panic!("write of {bytes} bytes at {offset:#x}"),
        }
    }

    fn route(&self, side: usize, bar: usize, offset: usize) -> Option<u64> {
        let window = (bar - 2) / 2;
        let (own, offset) = (&self.sides[side], offset as u64);
        let passes = self.plugged && self.sides[0].control & 0x30_0000 == 0x30_0000;
        (passes && offset < own.limit[window]).then_some(own.translation[window] + offset)
    }

    fn reset(&mut self, side: usize, lines: &Lines) {
        if self.shape.resets {
            self.sides[side] = Side::new();
            self.change(1 - side, lines, |peer| peer.events |= PEER_RESET);
        }
    }
}
