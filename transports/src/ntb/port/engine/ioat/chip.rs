// SPDX-License-Identifier: Apache-2.0
//! The chain of descriptors of a channel.

use super::layout::*;
use crate::ntb::port::bridge::{Device, gone};
use crate::ntb::port::engine::chip::{
    self, Chip, Copy, DESCRIPTORS, Facts, Health, MAX_LEN, Shared,
};
use crate::ntb::port::{PortError, Result};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

/// How long the channel may take to stop, and to reset.
const PATIENCE: Duration = Duration::from_secs(1);

pub struct IoatEngine {
    device: Arc<dyn Device>,
    chain: Shared,
    /// What the channel writes when it has carried out something.
    status: Shared,
    max_len: usize,
    /// The number of the copy that was the first of the chain.
    first: u64,
    /// Copies that were put, and those that are known to have been carried out.
    put: u64,
    done: u64,
}

impl IoatEngine {
    pub fn new(device: Arc<dyn Device>) -> Result<IoatEngine> {
        let broken =
            |what: String| Err(PortError::Invalid(format!("{} has {what}", device.describe())));
        let registers = device.bar_size(REGISTERS);
        if registers < REGISTERS_SIZE {
            return broken(format!("{registers} bytes of registers"));
        }
        let version = device.read8(REGISTERS, VERSION);
        if version == u8::MAX {
            return Err(gone(&*device));
        }
        if version < VERSION_LEAST {
            return broken(format!(
                "version {}.{} of I/OAT: 3.0 is the first that is driven",
                version >> 4,
                version & 0xf
            ));
        }
        let max_len = match device.read8(REGISTERS, LONGEST) & LONGEST_BITS {
            0 => MAX_LEN,
            bits if bits < LONGEST_LEAST => return broken(format!("copies of 2^{bits} bytes")),
            bits => MAX_LEN.min(1 << bits),
        };
        let chain = Shared::new(&device, DESCRIPTORS * DESCRIPTOR, u64::MAX)?;
        let status = Shared::new(&device, 8, u64::MAX)?;
        let mut engine = IoatEngine { device, chain, status, max_len, first: 0, put: 0, done: 0 };
        if !engine.stop() {
            let device = engine.device.describe();
            return Err(PortError::Busy(format!("{device} works and does not stop")));
        }
        engine.start(0)?;
        Ok(engine)
    }

    fn state(&self) -> u64 {
        self.device.read64(REGISTERS, STATUS) & STATE
    }

    /// In two halves: as a whole it is not taken, says Linux.
    fn write_address(&self, at: usize, address: u64) {
        self.device.write32(REGISTERS, at, address as u32);
        self.device.write32(REGISTERS, at + 4, (address >> 32) as u32);
    }

    /// Where the descriptor of a copy is in the chain.
    fn place(&self, number: u64) -> usize {
        (number - self.first) as usize % DESCRIPTORS * DESCRIPTOR
    }

    /// Waits until the channel is as it should be.
    fn until(&self, is: impl Fn(&IoatEngine) -> bool) -> bool {
        let begun = Instant::now();
        while !is(self) {
            if begun.elapsed() > PATIENCE {
                return false;
            }
            std::thread::yield_now();
        }
        true
    }
}

impl Chip for IoatEngine {
    fn facts(&self) -> Facts {
        Facts {
            name: "Intel I/OAT (ioat)",
            max_len: self.max_len,
            descriptors: DESCRIPTORS,
            addresses: u64::MAX,
        }
    }

    fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    fn put(&mut self, number: u64, copy: &Copy) {
        let at = self.place(number);
        let tells = if copy.tells { INTERRUPT } else { 0 };
        let chain = &self.chain.memory;
        chain.store(at, u64::from(copy.len) | WRITE_STATUS | tells);
        chain.store(at + SOURCE, copy.from);
        chain.store(at + DESTINATION, copy.to);
        self.put = number + 1;
    }

    fn go(&mut self) {
        // Descriptors are in memory before the channel hears of them.
        fence(Ordering::SeqCst);
        self.device.write16(REGISTERS, COUNT, (self.put - self.first) as u16);
    }

    fn outcome(&mut self, number: u64) -> Option<bool> {
        if number >= self.done {
            let last =
                (self.status.memory.load(0) & DESCRIPTOR_BITS).checked_sub(self.chain.address);
            let index = last.map(|offset| offset / DESCRIPTOR as u64);
            if let Some(index) = index.filter(|index| *index < DESCRIPTORS as u64) {
                // The one after the last, counted from the first that is not known to have been carried out.
                let next = self.first + index + 1;
                let ahead = next.wrapping_sub(self.done) % DESCRIPTORS as u64;
                self.done = (self.done + ahead).min(self.put);
            }
        }
        (number < self.done).then_some(true)
    }

    fn look(&mut self) -> Health {
        match self.device.read64(REGISTERS, STATUS) {
            u64::MAX => Health::Gone,
            status if [HALTED, SUSPENDED].contains(&(status & STATE)) => Health::Halted,
            status if status & STATE == ACTIVE => Health::Working,
            _ => {
                self.go();
                Health::Working
            }
        }
    }

    fn attend(&mut self) {
        if !self.device.has_msix() {
            // With one vector for all, it is to be written back what has interrupted.
            let told = self.device.read8(REGISTERS, INTERRUPTS);
            self.device.write8(REGISTERS, INTERRUPTS, told);
        }
        let control = REARM | ERROR_COMPLETES | ERROR_ABORTS | ERROR_INTERRUPTS;
        self.device.write16(REGISTERS, CONTROL, control);
    }

    fn stop(&mut self) -> bool {
        let works = |engine: &IoatEngine| [ACTIVE, IDLE].contains(&engine.state());
        if works(self) {
            self.device.write8(REGISTERS, COMMAND, SUSPEND);
        }
        // What it has written is there before the answer that says that it does not work.
        let stopped = self.until(|engine| !works(engine));
        // All that has been carried out is known before the chain is another one.
        self.outcome(self.put);
        let errors = self.device.read32(REGISTERS, ERRORS);
        self.device.write32(REGISTERS, ERRORS, errors);
        self.device.write8(REGISTERS, COMMAND, RESET);
        let reset = |engine: &IoatEngine| {
            let command = engine.device.read8(REGISTERS, COMMAND);
            command & RESET == 0 || command == u8::MAX
        };
        stopped && self.until(reset) && self.device.read32(REGISTERS, ERRORS) != u32::MAX
    }

    fn start(&mut self, next: u64) -> Result<()> {
        chip::in_order(&*self.device)?;
        (self.first, self.put, self.done) = (next, next, next);
        for index in 0..DESCRIPTORS {
            let following = (index + 1) % DESCRIPTORS * DESCRIPTOR;
            let address = self.chain.address + following as u64;
            self.chain.memory.store(index * DESCRIPTOR + NEXT, address);
        }
        self.status.memory.store(0, 0);
        let by_vector = if self.device.has_msix() { INTERRUPTS_BY_VECTOR } else { 0 };
        self.device.write8(REGISTERS, INTERRUPTS, INTERRUPTS_ON | by_vector);
        self.write_address(COMPLETION, self.status.address);
        self.write_address(CHAIN, self.chain.address);
        self.attend();
        match self.device.read64(REGISTERS, STATUS) {
            u64::MAX => Err(gone(&*self.device)),
            _ => Ok(()),
        }
    }
}
