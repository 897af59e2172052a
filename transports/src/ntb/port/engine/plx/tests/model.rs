// SPDX-License-Identifier: Apache-2.0
//! A DMA channel in a PLX switch, written from what its driver in Linux says of it: it has its own numbers,
//! and none of the driver's here.

use crate::ntb::port::Result;
use crate::ntb::port::bridge::Device;
use crate::ntb::port::engine::chip::Chip;
use crate::ntb::port::engine::plx::chip::PlxEngine;
use crate::ntb::port::engine::testing::{Bus, Machinery};
use std::sync::Arc;

/// Bytes of a write.
const PIECE: u64 = 256;

pub struct Channel {
    ring: u64,
    next: u32,
    count: u32,
    fetch_limit: u32,
    control: u32,
    interrupts: u16,
    /// It is about to stop: the start that comes now is not heard.
    stops: bool,
    under_way: Vec<Work>,
}

/// A descriptor that was fetched.
struct Work {
    place: u64,
    flags: u32,
    from: u64,
    to: u64,
    left: u64,
}

impl Channel {
    /// The next descriptor, if there is a valid one. It is read as the host may just be writing it.
    fn fetch(&mut self, bus: &mut Bus<'_>) -> Option<Work> {
        let place = self.ring & !0xffff_ffff | u64::from(self.next);
        let mut bytes = [0; 16];
        if self.count == 0 || !bus.fetch(place, &mut bytes) || bus.manner.halts {
            self.interrupts |= 1;
            return None;
        }
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        let half = |at: usize| u64::from(u16::from_le_bytes(bytes[at..at + 2].try_into().unwrap()));
        let flags = word(0);
        if flags >> 31 == 0 {
            return None;
        }
        let index = (u64::from(self.next) - (self.ring & 0xffff_ffff)) / 16;
        let following = (index + 1) % u64::from(self.count);
        self.next = ((self.ring & 0xffff_ffff) + following * 16) as u32;
        Some(Work {
            place,
            flags,
            to: half(4) << 32 | u64::from(word(8)),
            from: half(6) << 32 | u64::from(word(12)),
            left: u64::from(flags & 0x07ff_ffff),
        })
    }

    fn write_back(&mut self, bus: &mut Bus<'_>, work: &Work, result: u32) {
        bus.post(work.place, &(result | work.left as u32).to_le_bytes());
        *bus.done += 1;
        if work.flags >> 30 & 1 == 1 {
            self.interrupts |= 4;
            bus.interrupt();
        }
    }
}

impl Machinery for Channel {
    fn new() -> Channel {
        Channel {
            ring: 0,
            next: 0,
            count: 0,
            fetch_limit: 0,
            control: 0,
            interrupts: 0,
            stops: false,
            under_way: vec![],
        }
    }

    fn drive(device: Arc<dyn Device>) -> Result<Box<dyn Chip>> {
        Ok(Box::new(PlxEngine::new(device)?))
    }

    fn read(&mut self, offset: usize, bytes: usize) -> u64 {
        match (offset, bytes) {
            (0x214, 4) => self.ring & 0xffff_ffff,
            (0x218, 4) => self.ring >> 32,
            (0x21c, 4) => self.next.into(),
            (0x220, 4) => self.count.into(),
            (0x234, 4) => self.fetch_limit.into(),
            (0x238, 4) => self.control.into(),
            (0x238, 2) => u64::from(self.control & 0xffff),
            (0x23e, 2) => self.interrupts.into(),
            _ => panic!("read of {bytes} at {offset:#x}"),
        }
    }

    fn write(&mut self, offset: usize, bytes: usize, value: u64) {
        match (offset, bytes) {
            (0x214, 4) => self.ring = self.ring >> 32 << 32 | value,
            (0x218, 4) => self.ring = self.ring & 0xffff_ffff | value << 32,
            (0x21c, 4) => self.next = value as u32,
            (0x220, 4) => self.count = value as u32,
            (0x234, 4) => self.fetch_limit = value as u32,
            (0x238, 2 | 4) => {
                let value = value as u32;
                // What has happened is cleared by ones; what it is to do is as written.
                let happened = self.control & 0x1700 & !value;
                let works = self.control & 0x4000_0000;
                self.control = works | happened | value & 0x65;
                if value & 8 != 0 && works == 0 && !self.stops {
                    assert_eq!(value & 0x64, 0x44, "write-back, descriptors in memory");
                    self.control |= 0x4000_0000;
                }
            }
            (0x23e, 2) => self.interrupts &= !(value as u16),
            _ => panic!("write of {bytes} at {offset:#x}"),
        }
    }

    fn step(&mut self, bus: &mut Bus<'_>) -> bool {
        if bus.is_silent() {
            return false;
        }
        if std::mem::take(&mut self.stops) {
            // It says that it has met a descriptor that is not valid.
            self.control = self.control & !0x4000_0000 | 0x100;
        }
        let pauses = self.control & 1 != 0;
        if self.under_way.is_empty() {
            if pauses {
                self.control = self.control & !0x4000_0000 | 0x200;
                return false;
            }
            if self.control & 0x4000_0000 == 0 || bus.manner.holds {
                return false;
            }
            for _ in 0..self.fetch_limit / 2 {
                let Some(work) = self.fetch(bus) else { break };
                self.under_way.push(work);
            }
            if self.under_way.is_empty() {
                self.stops = true;
            }
            return true;
        }
        // A piece of any of those that were fetched: none waits for another.
        for _ in 0..1 + bus.random(16) {
            if self.under_way.is_empty() {
                break;
            }
            let index = bus.random(self.under_way.len());
            let Work { from, to, left, .. } = self.under_way[index];
            let len = (PIECE - to % PIECE).min(left);
            let mut bytes = vec![0; len as usize];
            let result = match bus.fetch(from, &mut bytes) {
                _ if bus.manner.fails => Some(0x1000_0000),
                false => Some(0x2000_0000),
                true => {
                    bus.post(to, &bytes);
                    let work = &mut self.under_way[index];
                    (work.from, work.to, work.left) = (from + len, to + len, left - len);
                    (work.left == 0).then_some(0x4000_0000)
                }
            };
            if let Some(result) = result {
                let work = self.under_way.swap_remove(index);
                self.write_back(bus, &work, result);
            }
        }
        true
    }
}
