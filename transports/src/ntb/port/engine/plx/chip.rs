// SPDX-License-Identifier: Apache-2.0
//! The ring of descriptors of a channel.

use super::layout::*;
use crate::ntb::port::bridge::{Device, gone};
use crate::ntb::port::engine::chip::{
    self, Chip, Copy, DESCRIPTORS, Facts, Health, MAX_LEN, Shared,
};
use crate::ntb::port::{PortError, Result};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

/// How long the channel may take to stop.
const PATIENCE: Duration = Duration::from_secs(1);

pub struct PlxEngine {
    device: Arc<dyn Device>,
    ring: Shared,
    /// The number of the copy that was the first of the ring.
    first: u64,
    /// An interrupt has told of an error since it began.
    erred: bool,
}

impl PlxEngine {
    pub fn new(device: Arc<dyn Device>) -> Result<PlxEngine> {
        let registers = device.bar_size(REGISTERS);
        if registers < REGISTERS_SIZE {
            return Err(PortError::Invalid(format!(
                "{} has {registers} bytes of registers",
                device.describe()
            )));
        }
        let ring = Shared::new(&device, DESCRIPTORS * DESCRIPTOR, ADDRESSES)?;
        let mut engine = PlxEngine { device, ring, first: 0, erred: false };
        match engine.read(CONTROL) {
            u32::MAX => return Err(gone(&*engine.device)),
            control if control & WORKS != 0 && !engine.stop() => {
                let device = engine.device.describe();
                return Err(PortError::Busy(format!("{device} works and does not stop")));
            }
            _ => {}
        }
        engine.start(0)?;
        Ok(engine)
    }

    fn read(&self, at: usize) -> u32 {
        self.device.read32(REGISTERS, at)
    }

    fn write(&self, at: usize, value: u32) {
        self.device.write32(REGISTERS, at, value);
    }

    /// Where a descriptor is in the ring.
    fn place(&self, number: u64) -> usize {
        (number - self.first) as usize % DESCRIPTORS * DESCRIPTOR
    }
}

impl Chip for PlxEngine {
    fn facts(&self) -> Facts {
        Facts {
            name: "DMA channel of a PLX switch (plx)",
            max_len: MAX_LEN.min(SIZE_MAX),
            descriptors: DESCRIPTORS,
            addresses: ADDRESSES,
        }
    }

    fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    fn put(&mut self, number: u64, copy: &Copy) {
        let at = self.place(number);
        let low = |address: u64| address & u64::from(u32::MAX);
        let tells = if copy.tells { INTERRUPT } else { 0 };
        let head = u64::from(copy.len | VALID | tells);
        let upper = copy.to >> 32 << 32 | copy.from >> 32 << 48;
        self.ring.memory.store(at + 8, low(copy.to) | low(copy.from) << 32);
        // Valid when all else is there.
        self.ring.memory.store(at, head | upper);
    }

    fn go(&mut self) {
        // Descriptors are in memory before the channel hears of them.
        fence(Ordering::SeqCst);
        let start = CLEAR | WRITE_BACK | RING_IN_MEMORY | START;
        self.device.write16(REGISTERS, CONTROL, start as u16);
    }

    fn outcome(&mut self, number: u64) -> Option<bool> {
        let head = self.ring.memory.load(self.place(number)) as u32;
        (head & VALID == 0).then_some(head & SUCCESS != 0)
    }

    fn look(&mut self) -> Health {
        let control = self.read(CONTROL);
        if control == u32::MAX {
            return Health::Gone;
        }
        self.attend();
        match control & WORKS {
            0 if self.erred => return Health::Halted,
            0 => self.go(),
            _ => {}
        }
        Health::Working
    }

    fn attend(&mut self) {
        let told = self.device.read16(REGISTERS, INTERRUPTS);
        self.device.write16(REGISTERS, INTERRUPTS, told);
        self.erred |= told & ERROR != 0;
    }

    fn stop(&mut self) -> bool {
        let begun = Instant::now();
        let control = self.read(CONTROL);
        if control != u32::MAX && control & !PAUSE != 0 {
            self.write(CONTROL, CLEAR | PAUSE);
            while self.read(CONTROL) & PAUSED == 0 {
                if begun.elapsed() > PATIENCE {
                    return false;
                }
                std::thread::yield_now();
            }
            self.write(CONTROL, CLEAR | PAUSE);
        }
        for register in [RING_COUNT, RING, RING + 4, RING_NEXT] {
            self.write(register, 0);
        }
        // The answer comes behind what was written back.
        self.read(CONTROL) != u32::MAX
    }

    fn start(&mut self, next: u64) -> Result<()> {
        chip::in_order(&*self.device)?;
        (self.first, self.erred) = (next, false);
        for word in (0..DESCRIPTORS * DESCRIPTOR).step_by(8) {
            self.ring.memory.store(word, 0);
        }
        let (low, high) = (self.ring.address as u32, (self.ring.address >> 32) as u32);
        self.write(CONTROL, CLEAR);
        self.write(RING, low);
        self.write(RING + 4, high);
        self.write(RING_NEXT, low);
        self.write(RING_COUNT, DESCRIPTORS as u32);
        self.write(FETCH_LIMIT, FETCH_FOUR);
        match self.read(CONTROL) {
            u32::MAX => Err(gone(&*self.device)),
            _ => Ok(()),
        }
    }
}
