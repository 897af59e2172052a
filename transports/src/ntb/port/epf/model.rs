// SPDX-License-Identifier: Apache-2.0
//! The registers of both functions of an endpoint-function bridge, as its hosts see them. Written from
//! the descriptions of the function alone: it has its own numbers, and none of the driver's.

use crate::ntb::port::bridge::testing::{Access, Lines, Model};

/// What a firmware may have chosen.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Bytes of their BARs.
    pub windows: [usize; 2],
    /// Bytes before the first window in its BAR.
    pub first_window: usize,
    /// Scratchpads of a side, and where they start.
    pub spads: u32,
    /// See `spads`.
    pub spads_at: u32,
    /// Interrupt vectors, and whether they are those of MSI-X.
    pub vectors: usize,
    /// See `vectors`.
    pub msix: bool,
    /// Bytes between two doorbells.
    pub doorbell_step: u32,
    /// Hosts can reset their functions.
    pub resets: bool,
}

impl Shape {
    /// As Linux's own function is.
    pub const LINUX: Shape = Shape {
        windows: [1 << 20, 1 << 20],
        first_window: 0,
        spads: 64,
        spads_at: 0x200,
        vectors: 17,
        msix: true,
        doorbell_step: 4,
        resets: true,
    };

    /// What was set stays whatever becomes of the process that has set it.
    pub const NO_RESET: Shape = Shape { resets: false, ..Shape::LINUX };

    /// One window, few vectors, and everything in another place.
    pub const SMALL: Shape = Shape {
        windows: [2 << 20, 0],
        first_window: 1 << 20,
        spads: 8,
        spads_at: 0x180,
        vectors: 4,
        msix: false,
        doorbell_step: 64,
        resets: true,
    };
}

/// How a firmware misbehaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ills {
    /// It does not.
    None,
    /// Commands of this number are refused.
    Refuses(u32),
    /// No command ends.
    Hangs,
    /// Commands wait until it [works](Epf::work).
    Waits,
}

/// The link.
pub struct Epf {
    /// What there is.
    pub shape: Shape,
    /// Both functions.
    pub sides: [Side; 2],
    /// What goes wrong.
    pub ills: Ills,
    /// Windows that were configured and not torn down before they were configured again.
    pub leaks: u32,
}

/// What one host sees, and what it has set.
pub struct Side {
    /// As bytes.
    pub registers: Vec<u8>,
    /// Where the peer's writes go: address and length.
    pub windows: [Option<(u64, u64)>; 2],
    /// Vectors that were configured, and how often.
    doorbells: u32,
    rounds: u32,
    enabled: bool,
}

impl Side {
    fn new(shape: &Shape) -> Side {
        let registers = vec![0; 0x1000];
        let windows = shape.windows.iter().filter(|size| **size > 0).count();
        let mut side =
            Side { registers, windows: [None; 2], doorbells: 0, rounds: 0, enabled: false };
        side.put(0x20, windows as u32);
        side.put(0x24, shape.first_window as u32);
        side.put(0x28, shape.spads_at);
        side.put(0x2c, shape.spads);
        side.put(0x30, shape.doorbell_step);
        side
    }

    /// A register.
    pub fn get(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.registers[at..at + 4].try_into().unwrap())
    }

    /// Sets a register.
    pub fn put(&mut self, at: usize, value: u32) {
        self.registers[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }

    /// What is to be written to ring a vector of this side.
    fn data(&self, vector: u32) -> u32 {
        self.rounds << 16 | 0xd000 | vector
    }

    fn put16(&mut self, at: usize, value: u16) {
        self.registers[at..at + 2].copy_from_slice(&value.to_le_bytes());
    }
}

impl Epf {
    /// A link that is down.
    pub fn new(shape: Shape) -> Epf {
        let sides = [0, 1].map(|_| Side::new(&shape));
        Epf { shape, sides, ills: Ills::None, leaks: 0 }
    }

    /// Carries out commands that wait.
    pub fn work(&mut self, lines: &Lines) {
        (0..2).for_each(|side| self.take(side, lines));
    }

    fn take(&mut self, side: usize, lines: &Lines) {
        let own = &mut self.sides[side];
        let (number, argument) = (own.get(0), own.get(4));
        if number != 0 {
            own.put(0, 0);
            own.put(4, 0);
            self.command(side, number, argument, lines);
        }
    }

    /// Says how a side is rung, in the registers of the other.
    fn tell_doorbells(&mut self, side: usize) {
        self.sides[side].rounds += 1;
        for vector in 0..self.sides[side].doorbells {
            let data = self.sides[side].data(vector);
            self.sides[1 - side].put(0x34 + 4 * vector as usize, data);
            self.sides[1 - side].put(0xb4 + 4 * vector as usize, 0x20);
        }
    }

    /// Whose register it is: scratchpads of the peer follow those of a side.
    fn place(&self, side: usize, offset: usize) -> (usize, usize) {
        let bytes = 4 * self.shape.spads as usize;
        let peers = self.shape.spads_at as usize + bytes;
        match (peers..peers + bytes).contains(&offset) {
            true => (1 - side, offset - bytes),
            false => (side, offset),
        }
    }

    fn link(&mut self, side: usize, enabled: bool, lines: &Lines) {
        self.sides[side].enabled = enabled;
        let up = u16::from(self.sides.iter().all(|side| side.enabled));
        for side in 0..2 {
            if self.sides[side].get(8) >> 16 & 1 != u32::from(up) {
                self.sides[side].put16(0x0a, up);
                if self.sides[side].doorbells > 0 {
                    lines.raise(side, 0);
                }
            }
        }
    }

    fn command(&mut self, side: usize, number: u32, argument: u32, lines: &Lines) {
        let refused = self.ills == Ills::Refuses(number);
        let own = &mut self.sides[side];
        let window = argument as usize;
        let is_window = self.shape.windows.get(window).is_some_and(|size| *size > 0);
        let wide = |at: usize| u64::from(own.get(at)) | u64::from(own.get(at + 4)) << 32;
        let (address, size) = (wide(0x10), wide(0x18));
        let room = is_window.then(|| match window {
            0 => self.shape.windows[0] - self.shape.first_window,
            _ => self.shape.windows[1],
        });
        let good = match number {
            1 => {
                let (vectors, msix) = (argument & 0xffff, argument >> 16 == 1);
                let good = vectors as usize <= self.shape.vectors && msix == self.shape.msix;
                own.doorbells = if good && !refused { vectors } else { 0 };
                self.tell_doorbells(side);
                good
            }
            2 => {
                own.doorbells = 0;
                true
            }
            3 => {
                let good = room.is_some_and(|room| size > 0 && size <= room as u64)
                    && address.is_multiple_of(1 << 16)
                    && !refused;
                if good {
                    let before = own.windows[window].replace((address, size));
                    self.leaks += u32::from(before.is_some());
                }
                good
            }
            4 if is_window => {
                own.windows[window] = None;
                true
            }
            // Even if it is said to have failed: who cannot be told of it has it all the same.
            5 | 6 => {
                self.link(side, number == 5, lines);
                true
            }
            _ => false,
        };
        if self.ills != Ills::Hangs {
            self.sides[side].put16(8, if good && !refused { 1 } else { 2 });
        }
    }
}

impl Model for Epf {
    fn bars(&self, _side: usize) -> [usize; 6] {
        [0x1000, 0, 0x1000, 0, self.shape.windows[0], self.shape.windows[1]]
    }

    fn vectors(&self, _side: usize) -> (usize, bool) {
        (self.shape.vectors, self.shape.msix)
    }

    fn read(&mut self, side: usize, bar: usize, offset: usize, bytes: usize) -> u64 {
        assert_eq!(bar, 0, "doorbells and windows are not read as registers");
        let (side, at) = self.place(side, offset);
        let registers = &self.sides[side].registers[at..at + bytes];
        registers.iter().rev().fold(0, |all, byte| all << 8 | u64::from(*byte))
    }

    fn write(&mut self, access: Access, value: u64, lines: &Lines) {
        let Access { side, bar, offset, bytes } = access;
        if bar == 2 {
            let step = self.shape.doorbell_step as usize;
            let vector = offset.saturating_sub(0x20) / step;
            let peer = &self.sides[1 - side];
            if vector < peer.doorbells as usize {
                assert_eq!(offset, 0x20 + vector * step, "between two doorbells");
                assert_eq!(value as u32, peer.data(vector as u32), "what is to be written there");
                lines.raise(1 - side, vector);
            }
            return;
        }
        assert_eq!(bar, 0, "windows are not written as registers");
        let (place, at) = self.place(side, offset);
        self.sides[place].registers[at..at + bytes].copy_from_slice(&value.to_le_bytes()[..bytes]);
        if offset == 0 && self.ills != Ills::Waits {
            self.take(side, lines);
        }
    }

    fn route(&self, side: usize, bar: usize, offset: usize) -> Option<u64> {
        let window = bar.checked_sub(4)?;
        let start = if window == 0 { self.shape.first_window } else { 0 };
        let within = offset.checked_sub(start)? as u64;
        let (address, size) = self.sides[1 - side].windows[window]?;
        (within < size).then(|| address + within)
    }

    fn reset(&mut self, side: usize, lines: &Lines) {
        if !self.shape.resets {
            return;
        }
        self.sides[side].doorbells = 0;
        self.sides[side].windows = [None; 2];
        self.link(side, false, lines);
    }
}
