// SPDX-License-Identifier: Apache-2.0
//! Commands, doorbells and scratchpads of the endpoint function.

use super::layout::*;
use crate::ntb::port::bridge::{
    Aperture, Chip, ChipLink, Device, Facts, News, broken, chip_link, gone,
};
use crate::ntb::port::{DoorbellDelivery, PortError, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long the firmware may take for a command.
const PATIENCE: Duration = Duration::from_secs(2);
/// Looks at a command's status before sleeping between them.
const QUICK_LOOKS: u32 = 1000;

pub struct EpfChip {
    device: Arc<dyn Device>,
    facts: Facts,
    spads: usize,
    /// Bytes between two doorbells of the peer.
    step: u32,
    /// By window: the firmware leads it somewhere.
    led: [AtomicBool; WINDOWS.len()],
    /// A doorbell of the peer that is nowhere was told.
    misled: AtomicBool,
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
        let vectors = vectors.min(VECTORS);
        // The first vector tells of the link.
        let bells = vectors - 1;
        let last = u64::from(bells) * u64::from(step);
        if last + 4 > device.bar_size(DOORBELLS) as u64 || !step.is_multiple_of(4) {
            return Err(broken(&*device, format!("{step} bytes between two doorbells")));
        }
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
            doorbell_bits: bells,
            doorbell_vectors: bells,
            doorbell_delivery: DoorbellDelivery::PerBitVector,
            spads: count as usize,
            forgets: false,
            link_vectors: 1,
        };
        let (led, misled) = (Default::default(), AtomicBool::new(false));
        let chip = EpfChip { spads: spads as usize, step, device, facts, led, misled };
        chip.clear_away(windows)?;
        let kind = if chip.device.has_msix() { WITH_MSIX } else { 0 };
        chip.command(CONFIGURE_DOORBELLS, kind | vectors)?;
        Ok(chip)
    }

    /// A process that was killed leaves windows and doorbells, for which the firmware has taken resources that
    /// it does not give back by itself. Where there are none, it may refuse.
    fn clear_away(&self, windows: u32) -> Result<()> {
        self.carry_out(TEAR_DOWN_DOORBELLS, 0)?;
        for window in (0..windows).take(WINDOWS.len()) {
            self.carry_out(TEAR_DOWN_WINDOW, window)?;
        }
        Ok(())
    }

    /// Has the firmware do something, and waits until it has.
    fn command(&self, command: u32, argument: u32) -> Result<()> {
        if self.carry_out(command, argument)? {
            return Ok(());
        }
        Err(PortError::Invalid(format!(
            "{} refused command {command} with argument {argument:#x}",
            self.device.describe()
        )))
    }

    /// The same; says whether the firmware has done it, or has refused.
    fn carry_out(&self, command: u32, argument: u32) -> Result<bool> {
        let device = &*self.device;
        // A process that was killed may have left a command that is not taken yet, and the status of the one
        // before it.
        self.wait_for(command, || match device.read32(REGISTERS, COMMAND) {
            u32::MAX => Some(Err(gone(device))),
            pending => (pending == 0).then_some(Ok(())),
        })?;
        device.write16(REGISTERS, STATUS, 0);
        device.write32(REGISTERS, ARGUMENT, argument);
        device.write32(REGISTERS, COMMAND, command);
        let done = self.wait_for(command, || match device.read16(REGISTERS, STATUS) {
            DONE => Some(Ok(true)),
            FAILED => Some(Ok(false)),
            u16::MAX => Some(Err(gone(device))),
            _ => None,
        })?;
        device.write16(REGISTERS, STATUS, 0);
        Ok(done)
    }

    /// Looks until there is something to see, for as long as the firmware may take for a command.
    fn wait_for<T>(&self, command: u32, look: impl Fn() -> Option<Result<T>>) -> Result<T> {
        let begun = Instant::now();
        let mut looks = 0;
        loop {
            if let Some(seen) = look() {
                return seen;
            }
            if begun.elapsed() > PATIENCE {
                let device = self.device.describe();
                return Err(PortError::Busy(format!("{device} does not end command {command}")));
            }
            looks += 1;
            if looks > QUICK_LOOKS {
                std::thread::sleep(Duration::from_micros(100));
            }
        }
    }

    /// Where a vector of the peer is rung, and what is written there. The firmware says so when the peer
    /// configures its doorbells: every process there does, and at another time than this one.
    fn bell(&self, vector: u32) -> Option<(usize, u32)> {
        let read = |base| self.device.read32(REGISTERS, base + 4 * vector as usize);
        let (offset, data) = (read(DOORBELL_OFFSET), read(DOORBELL_DATA));
        let at = u64::from(vector) * u64::from(self.step) + u64::from(offset);
        let inside = at.is_multiple_of(4) && at + 4 <= self.device.bar_size(DOORBELLS) as u64;
        if !inside && offset != u32::MAX && !self.misled.swap(true, Ordering::Relaxed) {
            let error = broken(&*self.device, format!("a doorbell at {at:#x}"));
            tracing::warn!(%error, "the peer looks for what is sent to it once a millisecond only");
        }
        inside.then_some((at as usize, data))
    }

    fn write64(&self, offset: usize, value: u64) {
        self.device.write32(REGISTERS, offset, value as u32);
        self.device.write32(REGISTERS, offset + 4, (value >> 32) as u32);
    }
}

impl Chip for EpfChip {
    fn facts(&self) -> Facts {
        self.facts.clone()
    }

    fn enable(&self, on: bool) -> Result<()> {
        if on {
            return self.command(LINK_UP, 0);
        }
        // The firmware takes the link down, and then fails where it cannot interrupt the other host, whose
        // vector may be masked or not be there.
        if !self.carry_out(LINK_DOWN, 0)? {
            tracing::debug!("{} has not told the peer of the link", self.device.describe());
        }
        Ok(())
    }

    fn aim(&self, window: usize, address: Option<u64>) -> Result<()> {
        if self.led[window].swap(false, Ordering::Relaxed) || address.is_none() {
            self.command(TEAR_DOWN_WINDOW, window as u32)?;
        }
        let Some(address) = address else { return Ok(()) };
        self.write64(ADDRESS, address);
        self.write64(SIZE, self.facts.apertures[window].size);
        self.command(CONFIGURE_WINDOW, window as u32)?;
        self.led[window].store(true, Ordering::Relaxed);
        Ok(())
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
        for bit in (0..self.facts.doorbell_bits).filter(|bit| bits >> bit & 1 == 1) {
            if let Some((at, data)) = self.bell(bit + 1) {
                self.device.write32(DOORBELLS, at, data);
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
