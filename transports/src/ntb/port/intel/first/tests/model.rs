// SPDX-License-Identifier: Apache-2.0
//! The registers of two bridges of generation 1, back to back. Written from the descriptions of the chips
//! alone: it has its own numbers, and none of the driver's. What can hang a host panics.

use crate::ntb::port::PcieGen;
use crate::ntb::port::bridge::testing::{Access, Lines, Model};
use crate::ntb::port::vfio::Trained;

/// What a BIOS may have configured.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub device: u16,
    pub windows: [usize; 2],
    pub vectors: usize,
    /// The register that tells what is at the far end.
    pub port: u16,
    /// Windows of the side of the link are so many times smaller, as a logarithm.
    pub smaller: u32,
}

impl Shape {
    pub const SANDY_BRIDGE: Shape =
        Shape { device: 0x3c0d, windows: [1 << 20, 2 << 20], vectors: 4, port: 0x11, smaller: 0 };
    pub const BROADWELL: Shape = Shape { device: 0x6f0d, port: 0x01, ..Shape::SANDY_BRIDGE };
    pub const ONE_VECTOR: Shape = Shape { device: 0x3725, vectors: 1, ..Shape::SANDY_BRIDGE };

    fn sizes(&self, smaller: u32) -> u16 {
        let log = |window: usize| match self.windows[window] {
            0 => 0,
            size => (size.ilog2() - smaller) as u16,
        };
        log(0) | log(1) << 8
    }
}

pub struct Xeon {
    shape: Shape,
    sides: [Side; 2],
    up: bool,
    /// The cable is in.
    plugged: bool,
}

struct Side {
    control: u32,
    out_limit: [u64; 2],
    out: [u64; 2],
    in_limit: [u64; 2],
    inward: [u64; 2],
    /// Of the registers and of both windows.
    base: [u64; 3],
    command: u16,
    pending: u16,
    masked: u16,
}

impl Side {
    fn new() -> Side {
        Side {
            control: 3,
            out_limit: [0x1000; 2],
            out: [0; 2],
            in_limit: [0x1000; 2],
            inward: [0xdead << 32, 0xbeef << 32],
            // As a careless BIOS leaves it: the registers are in the way of a window.
            base: [0x2000_0000_0000_0000, 0, 0],
            command: 0,
            pending: 0x0123,
            masked: 0,
        }
    }
}

impl Xeon {
    pub fn new(shape: Shape) -> Xeon {
        Xeon { shape, sides: [Side::new(), Side::new()], up: false, plugged: true }
    }

    /// Puts the cable in, or takes it out.
    pub fn plug(&mut self, plugged: bool, lines: &Lines) {
        self.plugged = plugged;
        self.train(lines);
    }

    fn train(&mut self, lines: &Lines) {
        let enabled = |side: &Side| side.control & 3 == 0;
        let up = self.plugged && self.sides.iter().all(enabled);
        if up == self.up {
            return;
        }
        self.up = up;
        for side in 0..2 {
            let own = &mut self.sides[side];
            let first = own.pending & 0x8000 == 0;
            own.pending |= 0x8000;
            if first && own.masked & 0x8000 == 0 {
                // Five doorbells on each of four vectors.
                lines.raise(side, if self.shape.vectors == 4 { 3 } else { 0 });
            }
        }
    }

    fn link_status(&self) -> u16 {
        if self.up { 0x2082 } else { 0 }
    }
}

impl Model for Xeon {
    fn bars(&self, _side: usize) -> [usize; 6] {
        [0x10000, 0, self.shape.windows[0], 0, self.shape.windows[1], 0]
    }

    fn vectors(&self, _side: usize) -> (usize, bool) {
        (self.shape.vectors, self.shape.vectors > 1)
    }

    /// Part of the processor: there is no link between that could have a speed.
    fn trained(&self, _side: usize) -> Trained {
        Trained { speed: PcieGen::Gen1, width: 1, max_payload: 256 }
    }

    fn config16(&self, _side: usize, offset: usize) -> u16 {
        match offset {
            0 => 0x8086,
            2 => self.shape.device,
            0xd0 => self.shape.sizes(0),
            0xd2 => self.shape.sizes(self.shape.smaller),
            0xd4 => self.shape.port,
            0x1a2 => self.link_status(),
            _ => panic!("configuration at {offset:#x}"),
        }
    }

    fn read(&mut self, side: usize, bar: usize, offset: usize, bytes: usize) -> u64 {
        assert_eq!(bar, 0);
        let own = &self.sides[side];
        match (offset, bytes) {
            (0x30 | 0x38, 8) => own.inward[(offset - 0x30) / 8],
            (0x58, 4) => own.control.into(),
            (0x60, 2) => own.pending.into(),
            _ => panic!("read of {bytes} bytes at {offset:#x}"),
        }
    }

    fn write(&mut self, access: Access, value: u64, lines: &Lines) {
        let Access { side, bar, offset, bytes } = access;
        assert_eq!(bar, 0);
        let own = &mut self.sides[side];
        match (offset, bytes) {
            (0x00 | 0x08, 8) => own.out_limit[offset / 8] = value,
            (0x10 | 0x18, 8) => own.out[(offset - 0x10) / 8] = value,
            (0x20 | 0x28, 8) => own.in_limit[(offset - 0x20) / 8] = value,
            (0x30 | 0x38, 8) => own.inward[(offset - 0x30) / 8] = value,
            (0x40 | 0x48 | 0x50, 8) => own.base[(offset - 0x40) / 8] = value,
            (0x58, 4) => {
                own.control = value as u32;
                self.train(lines);
            }
            (0x60, 2) => own.pending &= !(value as u16),
            (0x62, 2) => own.masked = value as u16,
            (0x504, 2) => own.command = value as u16,
            (0x64 | 0x100..0x150, _) => {
                panic!("the peer's registers through {offset:#x}: it hangs")
            }
            _ => panic!("write of {bytes} bytes at {offset:#x}"),
        }
    }

    fn route(&self, side: usize, bar: usize, offset: usize) -> Option<u64> {
        let window = (bar - 2) / 2;
        let (own, peer) = (&self.sides[side], &self.sides[1 - side]);
        let address = own.out[window] + offset as u64;
        let shut = own.out_limit[window] != 0 || peer.command & 6 != 6;
        if !self.up || shut {
            return None;
        }
        let inside = |base: u64, size: u64| address >= base && address - base < size;
        assert!(!inside(peer.base[0], 0x8000), "the peer's registers through a window: it hangs");
        // All windows see caches, or a driver has forgotten something.
        assert_eq!(peer.control & 0x154, 0x154);
        (0..2).find_map(|at| {
            let size = self.shape.windows[at] as u64 >> self.shape.smaller;
            let limit = peer.in_limit[at];
            let open = inside(peer.base[1 + at], size) && (limit == 0 || address < limit);
            open.then(|| peer.inward[at] & !(size - 1) | (address - peer.base[1 + at]))
        })
    }

    /// The function is disabled, as when the host starts.
    fn reset(&mut self, side: usize, lines: &Lines) {
        self.sides[side] = Side::new();
        self.train(lines);
    }
}
