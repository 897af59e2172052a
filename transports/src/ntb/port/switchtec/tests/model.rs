// SPDX-License-Identifier: Apache-2.0
//! The registers of a switch with two hosts, each in a partition with a bridge. Written from the
//! descriptions of the switch alone: it has its own numbers, and none of the driver's.

use crate::ntb::port::bridge::testing::{Access, Lines, Model};

/// How a switch may be configured.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Partitions of both hosts, and how many there are.
    pub partitions: [usize; 2],
    pub count: u8,
    /// Whether each bridge is told where it leads.
    pub targets: bool,
    /// By side: bytes of BAR 2 and BAR 4.
    pub windows: [[usize; 2]; 2],
    /// The interrupt vector of events of the switch.
    pub event_vector: u16,
    pub vectors: usize,
    pub crosslink: bool,
    /// A reset of a function clears its partition.
    pub resets: bool,
    /// What is refused unlocks the partition.
    pub unlocks: bool,
}

impl Shape {
    pub const TWO: Shape = Shape {
        partitions: [0, 1],
        count: 2,
        targets: false,
        windows: [[1 << 20, 2 << 20]; 2],
        event_vector: 0,
        vectors: 4,
        crosslink: false,
        resets: false,
        unlocks: false,
    };
    /// The first host is in the higher partition, and there are others.
    pub const OF_SIX: Shape = Shape {
        partitions: [5, 2],
        count: 6,
        targets: true,
        event_vector: 3,
        resets: true,
        unlocks: true,
        ..Shape::TWO
    };
}

pub struct Switch {
    shape: Shape,
    sides: [Partition; 2],
    /// Doorbells that are pending, for all partitions.
    pub pending: u64,
    pub fired: [u64; 2],
    /// Reads that a step of the firmware lasts, and those before it begins.
    pub slow: u32,
    pub late: u32,
}

struct Partition {
    status: u32,
    /// What it says before a step begins, and how often.
    before: u32,
    stale: u32,
    /// Reads until the step under way is done.
    left: u32,
    bar_error: u32,
    /// What is set, and what is in force.
    set: Config,
    active: Config,
    ringable: u64,
    interrupting: u64,
    vector_map: [u8; 64],
}

#[derive(Clone, Copy)]
struct Config {
    /// By BAR: kind, size, where it leads.
    kind: [u32; 6],
    size_low: [u32; 6],
    size_high: [u32; 6],
    leads: [u64; 6],
    requesters: [u32; 8],
}

impl Partition {
    fn new() -> Partition {
        // BAR 2 is divided into slots of 64 KiB, as other drivers leave it.
        let kind = [0, 0, 1 | 0x20 | 16 << 8 | 3 << 14, 0, 1, 0];
        let config =
            Config { kind, size_low: [0; 6], size_high: [0; 6], leads: [0; 6], requesters: [0; 8] };
        Partition {
            status: 1,
            before: 1,
            stale: 0,
            left: 0,
            bar_error: 0,
            set: config,
            active: config,
            ringable: 0,
            interrupting: 0,
            vector_map: [0; 64],
        }
    }
}

impl Switch {
    pub fn new(shape: Shape) -> Switch {
        let sides = [Partition::new(), Partition::new()];
        Switch { shape, sides, pending: 0, fired: [0; 2], slow: 2, late: 3 }
    }

    /// What a host that is killed leaves, or one that was refused and did not take it back: a window
    /// of side `of` that looks as if it led to the other one, in a partition that is `locked`.
    pub fn abandon(&mut self, of: usize, locked: bool) {
        let other = self.shape.partitions[1 - of] as u64;
        let own = &mut self.sides[of];
        own.status = if locked { 2 } else { 0x10 };
        own.set.kind[2] = 0x11;
        own.set.size_low[2] = 0x10_0000 | 20;
        own.set.leads[2] = 0xf00_0000_0000 | other;
    }

    /// The same with a window that is larger than the BAR.
    pub fn abandon_too_large(&mut self, of: usize) {
        self.abandon(of, false);
        self.sides[of].set.size_low[2] = 0x8000_0000 | 31;
    }

    /// Registers list the requesters that each host has, but the firmware has not taken them.
    pub fn list_requesters(&mut self) {
        for (side, own) in self.sides.iter_mut().enumerate() {
            own.set.requesters[..2].copy_from_slice(&[1, (0x0200 + side as u32) << 16 | 1]);
        }
    }

    /// Whether the firmware has taken a window of a side.
    pub fn is_active(&self, of: usize) -> bool {
        self.sides[of].active.kind[2] & 0x10 != 0
    }

    fn due(&self, side: usize) -> u64 {
        self.pending & self.sides[side].interrupting
    }

    /// A side has one interrupt for all its doorbells, sent when the first becomes pending.
    pub fn change(&mut self, lines: &Lines, act: impl FnOnce(&mut Switch)) {
        let before = [self.due(0), self.due(1)];
        act(self);
        for (side, before) in before.into_iter().enumerate() {
            let now = self.due(side);
            if before == 0 && now != 0 {
                let vector = self.sides[side].vector_map[now.trailing_zeros() as usize];
                assert_ne!(u16::from(vector), self.shape.event_vector, "the vector of events");
                self.fired[side] += 1;
                lines.raise(side, vector.into());
            }
        }
    }

    fn side_of(&self, partition: usize) -> usize {
        let place = self.shape.partitions.iter().position(|known| *known == partition);
        place.expect("a partition of these hosts")
    }

    /// The firmware: a step takes a while.
    fn progress(&mut self, of: usize) -> u32 {
        let bars = self.bars(of);
        let own = &mut self.sides[of];
        if own.stale > 0 {
            own.stale -= 1;
            return own.before;
        }
        if own.left > 0 {
            own.left -= 1;
            return own.status;
        }
        match own.status {
            3 => own.status = 2,
            4 => {
                let wrong = (0..6).find(|&bar| {
                    let pos = own.set.size_low[bar] & 0x3f;
                    let size = u64::from(own.set.size_high[bar]) << 32
                        | u64::from(own.set.size_low[bar] & 0xffff_f000);
                    let low = (1u64 << pos) - 1;
                    let fits = pos >= 12 && size <= bars[bar] as u64 && size > 0;
                    let aligned = own.set.leads[bar] & low & !0xfff == 0;
                    own.set.kind[bar] & 0x10 != 0 && !(fits && aligned)
                });
                match wrong {
                    None => (own.status, own.active) = (1, own.set),
                    Some(bar) => {
                        // Registers keep what was refused.
                        own.status = 0x10;
                        own.bar_error = bar as u32 + 1;
                    }
                }
            }
            _ => {}
        }
        own.status
    }
}

impl Model for Switch {
    fn bars(&self, side: usize) -> [usize; 6] {
        let [second, fourth] = self.shape.windows[side];
        [0x40_0000, 0, second, 0, fourth, 0]
    }

    fn vectors(&self, _side: usize) -> (usize, bool) {
        (self.shape.vectors, true)
    }

    fn read(&mut self, side: usize, bar: usize, offset: usize, bytes: usize) -> u64 {
        assert_eq!(bar, 0);
        let own = self.shape.partitions[side];
        let map = self.shape.partitions.iter().fold(0u64, |all, partition| all | 1 << partition);
        match (offset, bytes) {
            (at, 2) if at == 0x4100 + 0x400 * own => self.shape.event_vector.into(),
            (0x10000, 4) => u64::from(self.shape.count) | (own as u64) << 8,
            (0x10004, 4) => map & 0xffff_ffff,
            (0x10008, 4) => map >> 32,
            (0x1000c, 2) => 0x0200 + side as u64,
            (0x10020..0x10320, 4) => {
                let (partition, at) = ((offset - 0x10020) / 16, (offset - 0x10020) % 16);
                let targets = if self.shape.targets && partition == own { map } else { 0 };
                match at {
                    0 => self.shape.crosslink.into(),
                    4 => targets & !(1 << own) & 0xffff_ffff,
                    8 => targets >> 32,
                    _ => panic!("read at {offset:#x}"),
                }
            }
            (0x14000..0x74000, _) => {
                let of = self.side_of((offset - 0x14000) / 0x2000);
                let at = offset % 0x2000;
                if (at, bytes) == (0, 4) {
                    return self.progress(of).into();
                }
                let own = &self.sides[of];
                let bar = at / 16 % 16;
                match (at, bytes) {
                    (0x10, 4) => own.bar_error.into(),
                    (0x1c, 2) => own.set.requesters.len() as u64,
                    (0x40..0xa0, 4) if at.is_multiple_of(16) => own.set.kind[bar - 4].into(),
                    (0x40..0xa0, 4) if at % 16 == 4 => own.set.size_low[bar - 4].into(),
                    (0x40..0xa0, 8) if at % 16 == 8 => own.set.leads[bar - 4],
                    (0xa0..0x100, 4) if at.is_multiple_of(16) => own.set.size_high[bar - 10].into(),
                    // The number by which the switch knows it is in the lower half.
                    (0x400..0x420, 4) => u64::from(own.set.requesters[(at - 0x400) / 4]) | 0x12,
                    _ => panic!("read of {bytes} bytes at {offset:#x}"),
                }
            }
            (at, 8) if at == 0x75010 + 0x4000 * own => self.pending,
            _ => panic!("read of {bytes} bytes at {offset:#x}"),
        }
    }

    fn write(&mut self, access: Access, value: u64, lines: &Lines) {
        let Access { side, bar, offset, bytes } = access;
        assert_eq!(bar, 0);
        if let 0x14000..0x74000 = offset {
            let of = self.side_of((offset - 0x14000) / 0x2000);
            let (at, slow, late) = (offset % 0x2000, self.slow, self.late);
            let unlocks = self.shape.unlocks;
            let own = &mut self.sides[of];
            if (at, bytes) == (4, 4) {
                (own.before, own.stale) = (own.status, late);
                own.status = match value {
                    1 => 3,
                    2 => 4,
                    _ => panic!("operation {value}"),
                };
                own.left = slow;
                return;
            }
            if own.status != 2 && (own.status != 0x10 || unlocks) {
                // Not locked: nothing is taken.
                return;
            }
            let bar = at / 16 % 16;
            match (at, bytes) {
                (0x40..0xa0, 4) if at.is_multiple_of(16) => own.set.kind[bar - 4] = value as u32,
                (0x40..0xa0, 4) if at % 16 == 4 => own.set.size_low[bar - 4] = value as u32,
                (0x40..0xa0, 8) if at % 16 == 8 => own.set.leads[bar - 4] = value,
                (0xa0..0x100, 4) if at.is_multiple_of(16) => {
                    own.set.size_high[bar - 10] = value as u32
                }
                (0x400..0x420, 4) => own.set.requesters[(at - 0x400) / 4] = value as u32,
                _ => panic!("write of {bytes} bytes at {offset:#x}"),
            }
            return;
        }
        let base = 0x74000 + 0x4000 * self.shape.partitions[side];
        let at = offset.checked_sub(base).expect("registers of this side");
        match (at, bytes) {
            (0x1000, 8) => {
                let rung = value & self.sides[side].ringable;
                self.change(lines, |switch| switch.pending |= rung);
            }
            (0x1008, 8) => self.sides[side].ringable = value,
            (0x1010, 8) => self.change(lines, |switch| switch.pending &= !value),
            (0x1018, 8) => {
                self.change(lines, |switch| switch.sides[side].interrupting = value);
            }
            (0x1020..0x1060, 4) => {
                let map = &mut self.sides[side].vector_map[at - 0x1020..at - 0x1020 + 4];
                map.copy_from_slice(&(value as u32).to_le_bytes());
            }
            _ => panic!("write of {bytes} bytes at {offset:#x}"),
        }
    }

    fn route(&self, side: usize, bar: usize, offset: usize) -> Option<u64> {
        let config = &self.sides[side].active;
        // Requester 0:0 is the processor of the host.
        let allowed = config.requesters.iter().any(|entry| entry & 0xffff_0001 == 1);
        let pos = config.size_low[bar] & 0x3f;
        let size =
            u64::from(config.size_high[bar]) << 32 | u64::from(config.size_low[bar] & 0xffff_f000);
        // Slots come first in a BAR that has them, and lead nowhere here.
        let open = config.kind[bar] & 0x31 == 0x11 && (offset as u64) < size;
        let low = (1u64 << pos) - 1;
        let leads = config.leads[bar];
        let there = leads & 0xff == self.shape.partitions[1 - side] as u64;
        (allowed && open && there).then_some(leads & !low & !0xfff | offset as u64 & low)
    }

    fn reset(&mut self, side: usize, _lines: &Lines) {
        if self.shape.resets {
            self.sides[side] = Partition::new();
        }
    }
}
