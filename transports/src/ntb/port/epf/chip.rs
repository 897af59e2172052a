// SPDX-License-Identifier: Apache-2.0
//! Commands, doorbells and scratchpads of the endpoint function.

use super::layout::*;
use crate::ntb::port::bridge::{Aperture, Chip, ChipLink, Device, Facts, News, chip_link, gone};
use crate::ntb::port::{DoorbellDelivery, PortError, Result};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long the firmware may take for a command.
const PATIENCE: Duration = Duration::from_secs(2);
/// Looks at a command's status before sleeping between them.
const QUICK_LOOKS: u32 = 1000;

pub struct EpfChip {
    device: Arc<dyn Device>,
    facts: Facts,
    spads: usize,
    /// By doorbell bit: where in its BAR, and what is written there.
    bells: Vec<(usize, u32)>,
}

impl EpfChip {
    /// Reads what the function has, and refuses what cannot be.
    pub fn new(device: Arc<dyn Device>) -> Result<EpfChip> {
        let read = |offset| device.read32(REGISTERS, offset);
        let registers = device.bar_size(REGISTERS);
        if registers < REGISTERS_SIZE {
            return Err(broken(&*device, format!("{registers} bytes of registers")));
        }
        let (windows, first) = (read(WINDOW_COUNT), read(FIRST_WINDOW));
        let (spads, count, step) = (read(SPADS), read(SPAD_COUNT), read(DOORBELL_STEP));
        if [windows, spads, count, step].iter().all(|word| *word == u32::MAX) {
            return Err(gone(&*device));
        }
        let end = u64::from(spads) + 8 * u64::from(count);
        if end > registers as u64 || !spads.is_multiple_of(4) {
            return Err(broken(&*device, format!("{count} scratchpads at {spads:#x}")));
        }
        let vectors = device.interrupts().len() as u32;
        if vectors < 2 {
            return Err(broken(
                &*device,
                format!(
                    "{vectors} interrupt vectors: one for the link and one for a doorbell are needed"
                ),
            ));
        }
        // The first vector tells of the link.
        let bells = (1..vectors.min(VECTORS)).map(|vector| {
            let register = |base| read(base + 4 * vector as usize);
            let at = u64::from(vector) * u64::from(step) + u64::from(register(DOORBELL_OFFSET));
            let inside = at.is_multiple_of(4) && at + 4 <= device.bar_size(DOORBELLS) as u64;
            let why = || broken(&*device, format!("a doorbell at {at:#x}"));
            inside.then_some((at as usize, register(DOORBELL_DATA))).ok_or_else(why)
        });
        let bells: Vec<(usize, u32)> = bells.collect::<Result<_>>()?;
        let apertures = WINDOWS.iter().take(windows as usize).enumerate();
        let apertures = apertures.map(|(index, &bar)| {
            let offset = if index == 0 { first as usize } else { 0 };
            let size = device.bar_size(bar).saturating_sub(offset) as u64;
            // What a power of two leaves is not used.
            let size = if size == 0 { 0 } else { 1 << size.ilog2() };
            Aperture { bar, offset, size, inbound: size }
        });
        let facts = Facts {
            name: "endpoint function (epf)",
            apertures: apertures.filter(|aperture| aperture.size > 0).collect(),
            doorbell_bits: bells.len() as u32,
            doorbell_vectors: bells.len() as u32,
            doorbell_delivery: DoorbellDelivery::PerBitVector,
            spads: count as usize,
            link_vectors: 1,
        };
        let chip = EpfChip { spads: spads as usize, device, facts, bells };
        let kind = if chip.device.has_msix() { WITH_MSIX } else { 0 };
        chip.command(CONFIGURE_DOORBELLS, kind | vectors.min(VECTORS))?;
        Ok(chip)
    }

    /// Has the firmware do something, and waits until it has.
    fn command(&self, command: u32, argument: u32) -> Result<()> {
        let device = &*self.device;
        device.write32(REGISTERS, ARGUMENT, argument);
        device.write32(REGISTERS, COMMAND, command);
        let begun = Instant::now();
        let mut looks = 0;
        loop {
            match device.read16(REGISTERS, STATUS) {
                DONE => break,
                FAILED => {
                    device.write16(REGISTERS, STATUS, 0);
                    return Err(PortError::Invalid(format!(
                        "{} refused command {command} with argument {argument:#x}",
                        device.describe()
                    )));
                }
                u16::MAX => return Err(gone(device)),
                _ if begun.elapsed() > PATIENCE => {
                    return Err(PortError::Busy(format!(
                        "{} does not end command {command}",
                        device.describe()
                    )));
                }
                _ => {}
            }
            looks += 1;
            if looks > QUICK_LOOKS {
                std::thread::sleep(Duration::from_micros(100));
            }
        }
        device.write16(REGISTERS, STATUS, 0);
        Ok(())
    }

    fn write64(&self, offset: usize, value: u64) {
        self.device.write32(REGISTERS, offset, value as u32);
        self.device.write32(REGISTERS, offset + 4, (value >> 32) as u32);
    }
}

fn broken(device: &dyn Device, what: String) -> PortError {
    PortError::Invalid(format!("{} has {what}", device.describe()))
}

impl Chip for EpfChip {
    fn facts(&self) -> Facts {
        self.facts.clone()
    }

    fn enable(&self, on: bool) -> Result<()> {
        self.command(if on { LINK_UP } else { LINK_DOWN }, 0)
    }

    fn aim(&self, window: usize, address: Option<u64>) -> Result<()> {
        let Some(address) = address else {
            return self.command(TEAR_DOWN_WINDOW, window as u32);
        };
        self.write64(ADDRESS, address);
        self.write64(SIZE, self.facts.apertures[window].size);
        self.command(CONFIGURE_WINDOW, window as u32)
    }

    fn link(&self) -> Option<ChipLink> {
        match self.device.read16(REGISTERS, LINK) {
            u16::MAX => None,
            status => chip_link(status & 1 == 1, self.device.trained()),
        }
    }

    /// The function keeps nothing: that there was an event is all that there is.
    fn take(&self, raised: u64) -> News {
        News { bells: raised >> 1, link: raised & 1 == 1 }
    }

    fn ring(&self, bits: u64) {
        for (bit, (offset, data)) in self.bells.iter().enumerate() {
            if bits >> bit & 1 == 1 {
                self.device.write32(DOORBELLS, *offset, *data);
            }
        }
    }

    fn spad(&self, index: usize) -> u32 {
        self.device.read32(REGISTERS, self.spads + 4 * index)
    }

    fn set_spad(&self, index: usize, value: u32) {
        self.device.write32(REGISTERS, self.spads + 4 * index, value);
    }

    fn peer_spad(&self, index: usize) -> u32 {
        self.spad(self.facts.spads + index)
    }

    fn set_peer_spad(&self, index: usize, value: u32) {
        self.set_spad(self.facts.spads + index, value);
    }
}

impl Drop for EpfChip {
    fn drop(&mut self) {
        if let Err(error) = self.command(TEAR_DOWN_DOORBELLS, 0) {
            tracing::info!(%error, "giving an NTB device back");
        }
    }
}
