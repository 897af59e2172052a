// SPDX-License-Identifier: Apache-2.0
//! The registers of two bridges of Xeon processors, back to back. Written from the descriptions of the
//! chips alone: it has its own numbers, and none of the driver's.

use crate::ntb::port::PcieGen;
use crate::ntb::port::bridge::testing::{Access, Lines, Model};
use crate::ntb::port::vfio::Trained;

/// What a BIOS may have configured.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub fourth: bool,
    pub windows: [usize; 2],
    pub vectors: usize,
    /// The register that tells what is at the far end.
    pub port: u16,
    /// Windows of side 1 are so many times smaller, as a logarithm.
    pub smaller: u32,
    /// So are those of the side of the link, on both sides.
    pub outer_smaller: u32,
    /// The register that tells what is at the far end, of generation 4.
    pub port_1: u32,
    /// The link can be trained (generation 4).
    pub trains: bool,
    /// What says where windows lead is not taken while the link is down, and lost when it trains.
    pub forgets: bool,
}

impl Shape {
    pub const SKYLAKE: Shape = Shape {
        fourth: false,
        windows: [1 << 20; 2],
        vectors: 33,
        port: 0x11,
        smaller: 0,
        outer_smaller: 0,
        port_1: 0x1200,
        trains: true,
        forgets: false,
    };
    pub const ICE_LAKE: Shape = Shape { fourth: true, ..Shape::SKYLAKE };
    pub const FORGETFUL_SKYLAKE: Shape = Shape { forgets: true, ..Shape::SKYLAKE };
    pub const FORGETFUL_ICE_LAKE: Shape = Shape { forgets: true, ..Shape::ICE_LAKE };
    /// A host that gave few vectors.
    pub const FEW_VECTORS: Shape = Shape { vectors: 3, ..Shape::ICE_LAKE };
}

pub struct Xeon {
    shape: Shape,
    pub sides: [Side; 2],
    up: bool,
    /// The cable is in.
    plugged: bool,
}

pub struct Side {
    control: u32,
    xbase: [u64; 2],
    limit: [u64; 2],
    /// Bits of the limits on the side of the link that cannot be set.
    pub fixed: u64,
    outer_limit: [u64; 2],
    outer_command: u16,
    size_log: [u16; 2],
    pending: u64,
    disabled: u64,
    pub spads: [u32; 16],
    vectors: [u8; 33],
    link_control: u16,
    slot_status: u16,
    ppd0: u32,
}

/// Where the windows of a host are, and where those of its peer end up.
const BAR_AT: [u64; 2] = [0x38_0000_0000, 0x39_0000_0000];
const OUTER_AT: [u64; 2] = [0x1000_0000_0000, 0x2000_0000_0000];
/// What the host's own requests are led to: nothing that anybody has to know.
const OUTER_XBASE: [u64; 2] = [0x5000_0000_0000, 0x0400_0000_0000];

impl Side {
    fn new(fourth: bool) -> Side {
        Side {
            // Disabled and locked. In generation 4 caches are ignored as well.
            control: if fourth { 3 | 0x2a8 } else { 3 },
            xbase: [0; 2],
            limit: [0; 2],
            fixed: 0,
            outer_limit: OUTER_AT,
            outer_command: 0,
            size_log: [0; 2],
            pending: 0,
            disabled: 0,
            spads: [0x7777; 16],
            vectors: std::array::from_fn(|bit| bit as u8),
            link_control: 0x10,
            slot_status: 0,
            ppd0: 0,
        }
    }
}

impl Xeon {
    pub fn new(shape: Shape) -> Xeon {
        let side = || Side::new(shape.fourth);
        Xeon { shape, sides: [side(), side()], up: false, plugged: true }
    }

    /// Puts the cable in, or takes it out.
    pub fn plug(&mut self, plugged: bool, lines: &Lines) {
        self.plugged = plugged;
        self.train(lines);
    }

    fn is_enabled(&self, side: usize) -> bool {
        let own = &self.sides[side];
        match self.shape.fourth {
            true => own.link_control & 0x10 == 0 && own.ppd0 & 8 != 0 && own.control & 3 == 0,
            false => own.control & 3 == 0,
        }
    }

    fn train(&mut self, lines: &Lines) {
        let up = self.plugged && (0..2).all(|side| self.is_enabled(side));
        if up == self.up {
            return;
        }
        self.up = up;
        for side in 0..2 {
            if up && self.shape.forgets {
                let (own, new) = (&mut self.sides[side], Side::new(self.shape.fourth));
                (own.xbase, own.limit, own.outer_limit) = (new.xbase, new.limit, new.outer_limit);
                (own.outer_command, own.size_log) = (new.outer_command, new.size_log);
            }
            // Generation 4 tells of no second change before the first is acknowledged.
            let told = self.shape.fourth && self.sides[side].slot_status & 0x100 != 0;
            self.sides[side].slot_status |= 0x100;
            if !told {
                self.raise(side, 1 << 32, lines);
            }
        }
    }

    fn raise(&mut self, side: usize, bits: u64, lines: &Lines) {
        let own = &mut self.sides[side];
        let new = bits & !own.pending;
        own.pending |= bits;
        self.interrupt(side, new, lines);
    }

    fn interrupt(&self, side: usize, bits: u64, lines: &Lines) {
        let own = &self.sides[side];
        for bit in (0..33).filter(|bit| (bits & !own.disabled) >> bit & 1 == 1) {
            let vector = usize::from(own.vectors[bit]);
            // The last vector does not work.
            if vector < self.shape.vectors.min(32) {
                lines.raise(side, vector);
            }
        }
    }

    /// Bytes of a window of a side.
    fn size(&self, side: usize, window: usize) -> usize {
        self.shape.windows[window] >> (self.shape.smaller * side as u32)
    }

    fn link_status(&self) -> u16 {
        if self.up { 0x2083 } else { 0 }
    }

    fn vectors_at(&self) -> usize {
        if self.shape.fourth { 0x50 } else { 0xd0 }
    }

    fn peer_spads(&self) -> usize {
        if self.shape.fourth { 0x8080 } else { 0x180 }
    }
}

impl Model for Xeon {
    fn bars(&self, side: usize) -> [usize; 6] {
        [0x10000, 0, self.size(side, 0), 0, self.size(side, 1), 0]
    }

    fn vectors(&self, _side: usize) -> (usize, bool) {
        (self.shape.vectors, true)
    }

    /// Part of the processor: there is no link between that could have a speed.
    fn trained(&self, _side: usize) -> Trained {
        Trained { speed: PcieGen::Gen1, width: 1, max_payload: 256 }
    }

    fn config16(&self, side: usize, offset: usize) -> u16 {
        let log = |window| match self.size(side, window) {
            0 => 0,
            size => size.ilog2() as u16,
        };
        let logs = log(0) | log(1) << 8;
        match offset {
            0 => 0x8086,
            2 if self.shape.fourth => 0x347e,
            2 => 0x201c,
            0x18..0x28 => {
                let bar = (offset - 0x18) / 8;
                ((BAR_AT[bar] | 0xc) >> (offset % 8 * 8)) as u16
            }
            0xd0 if !self.shape.fourth => logs,
            0xd2 if !self.shape.fourth => logs - self.shape.outer_smaller as u16,
            0xc4 if self.shape.fourth => logs,
            0xc6 if self.shape.fourth => logs - self.shape.outer_smaller as u16,
            0xd4 if !self.shape.fourth => self.shape.port,
            0x1a2 if !self.shape.fourth => self.link_status(),
            _ => panic!("configuration at {offset:#x}"),
        }
    }

    fn read(&mut self, side: usize, bar: usize, offset: usize, bytes: usize) -> u64 {
        assert_eq!(bar, 0);
        let (fourth, peer_spads) = (self.shape.fourth, self.peer_spads());
        let own = &self.sides[side];
        match (offset, bytes) {
            (0, 4) => own.control.into(),
            (0x10 | 0x20, 8) => own.xbase[offset / 0x10 - 1],
            (0x18 | 0x28, 8) => own.limit[offset / 0x10 - 1],
            (0x40, 8) => own.pending,
            (0x80..0xc0, 4) => own.spads[(offset - 0x80) / 4].into(),
            (0x4010 | 0x4020, 8) if !fourth => OUTER_XBASE[(offset - 0x4000) / 0x10 - 1],
            (0x4018 | 0x4028, 8) if !fourth => own.outer_limit[(offset - 0x4000) / 0x10 - 1],
            (0x4518 | 0x4520, 8) if !fourth => OUTER_AT[(offset - 0x4518) / 8] | 0xc,
            (0xb050, 2) if fourth => own.link_control.into(),
            (0xb052, 2) if fourth => self.link_status().into(),
            (0xb0d4, 4) if fourth => own.ppd0.into(),
            (0xb4c0, 4) if fourth => self.shape.port_1.into(),
            (at, 4) if (peer_spads..peer_spads + 64).contains(&at) => match self.up {
                true => self.sides[1 - side].spads[(at - peer_spads) / 4].into(),
                false => u64::MAX,
            },
            _ => panic!("read of {bytes} bytes at {offset:#x}"),
        }
    }

    fn write(&mut self, access: Access, value: u64, lines: &Lines) {
        let Access { side, bar, offset, bytes } = access;
        assert_eq!(bar, 0);
        let (fourth, vectors, peer_spads) =
            (self.shape.fourth, self.vectors_at(), self.peer_spads());
        let taken = self.up || !self.shape.forgets;
        let trains = self.shape.trains;
        let own = &mut self.sides[side];
        match (offset, bytes) {
            (0x10 | 0x18 | 0x20 | 0x28, 8) if !taken => {}
            (0x74 | 0x76, 2) if fourth && !taken => {}
            (0x4018 | 0x4028, 8) | (0x4504, 2) if !fourth && !taken => {}
            (0, 4) => {
                own.control = value as u32;
                self.train(lines);
            }
            (0x10 | 0x20, 8) => own.xbase[offset / 0x10 - 1] = value,
            (0x18 | 0x28, 8) => own.limit[offset / 0x10 - 1] = value,
            (0x40, 8) => own.pending &= !value,
            (0x48, 8) => {
                let freed = own.disabled & !value & own.pending;
                own.disabled = value;
                self.interrupt(side, freed, lines);
            }
            (0x74 | 0x76, 2) if fourth => own.size_log[(offset - 0x74) / 2] = value as u16,
            (0x80..0xc0, 4) => own.spads[(offset - 0x80) / 4] = value as u32,
            (0x100..0x180, 4) => {
                assert_eq!(value, 1);
                if self.up {
                    self.raise(1 - side, 1 << ((offset - 0x100) / 4), lines);
                }
            }
            (0x4018 | 0x4028, 8) if !fourth => {
                own.outer_limit[(offset - 0x4000) / 0x10 - 1] = value & !own.fixed
            }
            (0x4504, 2) if !fourth => own.outer_command = value as u16,
            (0xb050, 2) if fourth => {
                own.link_control = value as u16;
                self.train(lines);
            }
            (0xb05a, 2) if fourth => own.slot_status &= !(value as u16),
            (0xb0d4, 4) if fourth => {
                own.ppd0 = value as u32 & if trains { !0 } else { !8 };
                self.train(lines);
            }
            (at, 1) if (vectors..vectors + 33).contains(&at) => {
                own.vectors[at - vectors] = value as u8
            }
            (at, 4) if (peer_spads..peer_spads + 64).contains(&at) => {
                if self.up {
                    self.sides[1 - side].spads[(at - peer_spads) / 4] = value as u32;
                }
            }
            _ => panic!("write of {bytes} bytes at {offset:#x}"),
        }
    }

    fn route(&self, side: usize, bar: usize, offset: usize) -> Option<u64> {
        let window = (bar - 2) / 2;
        let peer = &self.sides[1 - side];
        let (size, offset) = (self.size(1 - side, window) as u64, offset as u64);
        let sized = match self.shape.fourth {
            true => 1 << peer.size_log[window] == size,
            // Nothing beyond the limit, and no limit outside of the window.
            false => {
                let open = OUTER_AT[window]..peer.outer_limit[window];
                let fits = (OUTER_AT[window]..=OUTER_AT[window] + size).contains(&open.end);
                peer.outer_command & 6 == 6 && fits && open.contains(&(OUTER_AT[window] + offset))
            }
        };
        // All windows see caches, or a driver has forgotten something.
        let snoops =
            peer.control & 0x154 == 0x154 && (!self.shape.fourth || peer.control & 0x2a8 == 0);
        let inside = BAR_AT[window] + offset < peer.limit[window];
        (self.up && sized && snoops && inside).then_some(peer.xbase[window] & !(size - 1) | offset)
    }

    /// The function is disabled, as when the host starts.
    fn reset(&mut self, side: usize, lines: &Lines) {
        self.sides[side] = Side::new(self.shape.fourth);
        self.train(lines);
    }
}
