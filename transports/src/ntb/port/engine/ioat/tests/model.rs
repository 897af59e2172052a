// SPDX-License-Identifier: Apache-2.0
//! A function of I/OAT with one channel, written from what drivers say of it: it has its own numbers, and none
//! of the driver's here.

use crate::ntb::port::Result;
use crate::ntb::port::bridge::Device;
use crate::ntb::port::engine::chip::Chip;
use crate::ntb::port::engine::ioat::chip::IoatEngine;
use crate::ntb::port::engine::testing::{Bus, Machinery};
use std::collections::VecDeque;
use std::sync::Arc;

/// Bytes of a write.
const PIECE: u64 = 64;
/// Descriptors whose data may leave in any order.
const AHEAD: usize = 6;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Is {
    Active = 0,
    Idle = 1,
    Suspended = 2,
    Halted = 3,
    Armed = 4,
}

pub struct Function {
    interrupts: u8,
    control: u16,
    suspends: bool,
    resets: bool,
    is: Is,
    /// The descriptor that was carried out last, and the one to be fetched next.
    last: u64,
    next: u64,
    completion: u64,
    errors: u32,
    /// Told and fetched so far.
    count: u16,
    fetched: u16,
    under_way: VecDeque<Work>,
}

struct Work {
    place: u64,
    control: u32,
    from: u64,
    to: u64,
    left: u64,
}

impl Function {
    fn status(&self) -> u64 {
        self.last | self.is as u64
    }

    fn tell(&mut self, bus: &mut Bus<'_>) {
        if self.interrupts & 1 == 1 && self.control & 1 == 1 {
            self.control &= !1;
            bus.interrupt();
        }
    }

    fn halt(&mut self, error: u32, bus: &mut Bus<'_>) {
        self.errors |= error;
        self.is = Is::Halted;
        self.under_way.clear();
        if self.control & 4 != 0 {
            bus.post(self.completion, &self.status().to_le_bytes());
        }
        if self.control & 0x10 != 0 {
            self.tell(bus);
        }
    }

    fn fetch(&mut self, bus: &mut Bus<'_>) {
        let mut bytes = [0; 64];
        if !bus.fetch(self.next, &mut bytes) {
            return self.halt(4, bus);
        }
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        let control = (word(0) >> 32) as u32;
        assert_eq!(control & !9, 0, "a copy");
        self.under_way.push_back(Work {
            place: self.next,
            control,
            from: word(8),
            to: word(16),
            left: word(0) & 0xffff_ffff,
        });
        self.next = word(24);
        self.fetched = self.fetched.wrapping_add(1);
    }
}

impl Machinery for Function {
    fn new() -> Function {
        Function {
            interrupts: 0,
            control: 0,
            suspends: false,
            resets: false,
            is: Is::Halted,
            last: 0,
            next: 0,
            completion: 0,
            errors: 0,
            count: 0,
            fetched: 0,
            under_way: VecDeque::new(),
        }
    }

    fn drive(device: Arc<dyn Device>) -> Result<Box<dyn Chip>> {
        Ok(Box::new(IoatEngine::new(device)?))
    }

    fn read(&mut self, offset: usize, bytes: usize) -> u64 {
        match (offset, bytes) {
            (0x01, 1) => 20,
            (0x03, 1) => self.interrupts.into(),
            (0x08, 1) => 0x32,
            (0x84, 1) => u64::from(self.resets) << 5,
            (0x88, 8) => self.status(),
            (0xa8, 4) => self.errors.into(),
            _ => panic!("read of {bytes} at {offset:#x}"),
        }
    }

    fn write(&mut self, offset: usize, bytes: usize, value: u64) {
        match (offset, bytes) {
            (0x03, 1) => self.interrupts = value as u8 & 9,
            (0x80, 2) => self.control = value as u16,
            (0x84, 1) => {
                self.suspends |= value & 4 != 0;
                self.resets |= value & 0x20 != 0;
            }
            (0x86, 2) => {
                // The driver cannot know of an error that has just halted the channel.
                let halted = self.is == Is::Halted && self.errors == 0;
                assert!(!halted, "a chain is needed first");
                self.count = value as u16;
            }
            (0x90, 4) => {
                assert!(value.is_multiple_of(64) && self.is == Is::Halted && self.errors == 0);
                self.next = value;
            }
            (0x94, 4) => {
                self.next |= value << 32;
                self.is = Is::Armed;
            }
            (0x98, 4) => {
                assert!(value.is_multiple_of(8));
                self.completion = value;
            }
            (0x9c, 4) => self.completion |= value << 32,
            (0xa8, 4) => self.errors &= !(value as u32),
            _ => panic!("write of {bytes} at {offset:#x}"),
        }
    }

    fn step(&mut self, bus: &mut Bus<'_>) -> bool {
        if bus.is_silent() {
            return false;
        }
        if self.resets {
            let Function { interrupts, errors, .. } = *self;
            *self = Function { interrupts, errors, ..Function::new() };
            return false;
        }
        if [Is::Halted, Is::Suspended].contains(&self.is) {
            return false;
        }
        let more = self.fetched != self.count && !self.suspends && !bus.manner.holds;
        if self.under_way.is_empty() && !more {
            if self.suspends {
                self.is = Is::Suspended;
            } else if self.is == Is::Active {
                self.is = Is::Idle;
            }
            return false;
        }
        self.is = Is::Active;
        if more && (bus.manner.fails || bus.manner.halts) {
            self.halt(0x100, bus);
            return false;
        }
        if more && self.under_way.len() < AHEAD {
            self.fetch(bus);
        }
        for _ in 0..bus.random(24) {
            let open: Vec<usize> =
                (0..self.under_way.len()).filter(|index| self.under_way[*index].left > 0).collect();
            if open.is_empty() {
                break;
            }
            let work = &mut self.under_way[open[bus.random(open.len())]];
            let len = (PIECE - work.to % PIECE).min(work.left);
            let mut piece = vec![0; len as usize];
            if !bus.fetch(work.from, &mut piece) {
                self.halt(1, bus);
                return false;
            }
            bus.post(work.to, &piece);
            (work.from, work.to, work.left) = (work.from + len, work.to + len, work.left - len);
        }
        // What is told has been carried out, and all before it.
        let mut told = None;
        while self.under_way.front().is_some_and(|work| work.left == 0) {
            let work = self.under_way.pop_front().expect("one is there");
            self.last = work.place;
            *bus.done += 1;
            told = Some(told.unwrap_or(false) | (work.control & 1 == 1));
        }
        if let Some(interrupts) = told {
            bus.post(self.completion, &self.status().to_le_bytes());
            if interrupts {
                self.tell(bus);
            }
        }
        true
    }
}
