// SPDX-License-Identifier: Apache-2.0
//! Windows, doorbells, scratchpads and the link of the bridge.

use super::layout::*;
use crate::ntb::port::bridge::{
    Aperture, Bell, Chip, ChipLink, Device, Facts, News, broken, chip_link, gone,
};
use crate::ntb::port::vfio::Trained;
use crate::ntb::port::{DoorbellDelivery, PortError, Result};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub struct IntelChip {
    device: Arc<dyn Device>,
    generation: Generation,
    apertures: Vec<Aperture>,
    /// Where windows lead that lead nowhere.
    nowhere: Vec<u64>,
    /// Where the windows lead.
    aims: Mutex<Vec<Option<u64>>>,
}

impl IntelChip {
    pub fn new(device: Arc<dyn Device>) -> Result<IntelChip> {
        let number = device.config16(CONFIG_DEVICE);
        if number == u16::MAX {
            return Err(gone(&*device));
        }
        let generation = Generation::of(number)
            .ok_or_else(|| broken(&*device, format!("device number {number:#x}")))?;
        let registers = device.bar_size(REGISTERS);
        if registers < generation.registers() {
            return Err(broken(&*device, format!("{registers} bytes of registers")));
        }
        if device.read32(REGISTERS, CONTROL) == u32::MAX {
            return Err(gone(&*device));
        }
        check_set_up(&*device, generation)?;
        if device.interrupts().is_empty() || !device.has_msix() {
            return Err(broken(&*device, "no MSI-X vectors".into()));
        }
        let apertures = WINDOWS.iter().filter_map(|&bar| {
            let size = device.bar_size(bar) as u64;
            // The peer's may be another size, but the limits let no more pass than this.
            (size > 0).then_some(Aperture { bar, offset: 0, size, inbound: size })
        });
        let apertures: Vec<Aperture> = apertures.collect();
        let nowhere = apertures.iter().map(|each| device.reserve(each.inbound, each.inbound));
        let chip = IntelChip {
            nowhere: nowhere.collect::<Result<_>>()?,
            aims: Mutex::new(vec![None; apertures.len()]),
            generation,
            apertures,
            device,
        };
        chip.device.write64(REGISTERS, DISABLED, u64::MAX);
        chip.assign_vectors();
        chip.lead_all(&chip.aims())?;
        chip.device.write64(REGISTERS, PENDING, u64::MAX);
        chip.device.write64(REGISTERS, DISABLED, 0);
        Ok(chip)
    }

    fn aims(&self) -> MutexGuard<'_, Vec<Option<u64>>> {
        self.aims.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Every doorbell has a vector of its own, as far as there are any; the link has the last one,
    /// since a vector with its own number would be lost.
    fn assign_vectors(&self) {
        let there = (self.device.interrupts().len() as u32).min(VECTORS);
        let vector = |bit: u32| match bit {
            DOORBELLS => there - 1,
            bit => bit % there,
        };
        // Registers of a byte each, and nothing that is known behind them.
        for bit in 0..=DOORBELLS {
            let at = self.generation.vectors_at() + bit as usize;
            self.device.write8(REGISTERS, at, vector(bit) as u8);
        }
    }

    fn lead_all(&self, aims: &[Option<u64>]) -> Result<()> {
        for (window, aim) in aims.iter().enumerate() {
            self.lead(window, aim.unwrap_or(self.nowhere[window]))?;
        }
        if self.generation == Generation::Third {
            self.device.write16(REGISTERS, OUTER_COMMAND, OUTER_COMMAND_ON);
        }
        Ok(())
    }

    /// Opens a window as a whole: parts of it are closed by the IOMMU. What is written while the link is down
    /// may not be taken, or be lost when it trains: so it is written again when the link has come up, and
    /// only then it has to be there.
    fn lead(&self, window: usize, address: u64) -> Result<()> {
        let Aperture { bar, size, .. } = self.apertures[window];
        let at = CONFIG_BARS + bar * 4;
        let words = [0, 2, 4, 6].map(|offset| u64::from(self.device.config16(at + offset)));
        let start = words.iter().rev().fold(0, |all, word| all << 16 | word) & !0xf;
        let place = WINDOWS.iter().position(|known| *known == bar).unwrap_or(0);
        let up = self.status().is_some_and(|status| status & LINK_ACTIVE != 0);
        let set = |at, value, what| self.set(at, value, up.then_some(what));
        set(INBOUND[place], address, "where the window leads")?;
        set(INBOUND_LIMIT[place], start.wrapping_add(size), "where the window ends")?;
        match self.generation {
            Generation::Third => {
                let outer = self.device.read64(REGISTERS, OUTER[place]) & !0xf;
                let end = outer.wrapping_add(size);
                set(OUTER_LIMIT[place], end, "where the window ends on the link")?;
            }
            Generation::Fourth => {
                self.device.write16(REGISTERS, SIZE_LOG[place], size.ilog2() as u16);
            }
        }
        // The answer comes behind all that was on its way.
        self.device.read64(REGISTERS, INBOUND[place]);
        Ok(())
    }

    /// Sets a register, which says afterwards what it has taken; it has to have taken that where `what` it is
    /// for is given.
    fn set(&self, at: usize, value: u64, what: Option<&str>) -> Result<()> {
        self.device.write64(REGISTERS, at, value);
        match (self.device.read64(REGISTERS, at), what) {
            (taken, _) if taken == value => Ok(()),
            (_, None) => Ok(()),
            (u64::MAX, _) => Err(gone(&*self.device)),
            (taken, Some(what)) => Err(broken(
                &*self.device,
                format!("a register {at:#x} ({what}) that takes {taken:#x} for {value:#x}"),
            )),
        }
    }

    /// The status of the link; none when the device does not answer.
    fn status(&self) -> Option<u16> {
        let status = match self.generation {
            Generation::Third => self.device.config16(CONFIG_LINK),
            Generation::Fourth => self.device.read16(REGISTERS, LINK_STATUS),
        };
        (status != u16::MAX).then_some(status)
    }

    fn write_control(&self, change: impl Fn(u32) -> u32) {
        let control = self.device.read32(REGISTERS, CONTROL);
        self.device.write32(REGISTERS, CONTROL, change(control));
        self.device.read32(REGISTERS, CONTROL);
    }
}

const NOT_BACK_TO_BACK: &str =
    "the bridge is not set to have another bridge at its far end (NTB to NTB)";

/// What only the BIOS can change.
fn refused<T>(device: &dyn Device, what: &str) -> Result<T> {
    let device = device.describe();
    Err(PortError::Invalid(format!("{device}: {what}, to be changed in the BIOS of this host")))
}

/// Refuses what the BIOS has not made two bridges back to back.
pub fn check_port(device: &dyn Device) -> Result<()> {
    let port = device.config16(CONFIG_PORT);
    if port & PORT_KIND != PORT_BACK_TO_BACK {
        return refused(device, NOT_BACK_TO_BACK);
    }
    if port & PORT_SPLIT != 0 {
        return refused(device, "its second window is split into two of 32 bits");
    }
    Ok(())
}

/// Refuses windows that have another size on the side of the link than on that of the host; `names` are those
/// of the sizes in a BIOS.
pub fn check_sizes(device: &dyn Device, [own, link]: [u16; 2], names: &str) -> Result<()> {
    if own == link {
        return Ok(());
    }
    let logs = |sizes: u16| format!("{} and {}", sizes & 0xff, sizes >> 8);
    Err(broken(
        device,
        format!(
            "windows of 2^({}) bytes, and of 2^({}) on the side of the link: they are to be as large, to be \
             changed in the BIOS of this host ({names})",
            logs(own),
            logs(link)
        ),
    ))
}

/// Refuses what a BIOS may have made of a bridge of generation 3 or 4 and does not work.
fn check_set_up(device: &dyn Device, generation: Generation) -> Result<()> {
    let sizes = generation.sizes_at().map(|at| device.config16(at));
    match generation {
        Generation::Third => check_port(device)?,
        Generation::Fourth => {
            let port = device.read32(REGISTERS, PORT_1);
            if port & PORT_1_KIND != PORT_1_BACK_TO_BACK {
                return refused(device, NOT_BACK_TO_BACK);
            }
            // Nobody is known to read these registers there: only what cannot be but sizes counts.
            let logs = sizes.iter().flat_map(|sizes| [sizes & 0xff, sizes >> 8]);
            if !logs.into_iter().all(|log| log == 0 || SIZE_LOGS.contains(&log))
                || sizes.contains(&0)
            {
                return Ok(());
            }
        }
    }
    check_sizes(device, sizes, "Imbar1, Imbar2, Embar1 and Embar2 Size")
}

impl Chip for IntelChip {
    fn facts(&self) -> Facts {
        let vectors = self.device.interrupts().len();
        Facts {
            name: self.generation.name(),
            apertures: self.apertures.clone(),
            doorbell_bits: DOORBELLS,
            doorbell_vectors: (vectors as u32).min(VECTORS),
            doorbell_delivery: DoorbellDelivery::PerBitVector,
            spads: SPAD_COUNT,
            forgets: true,
            // That of the link is one of a doorbell, too: all are taken from one register.
            link_vectors: 1 << (vectors.min(VECTORS as usize) - 1),
        }
    }

    fn enable(&self, on: bool) -> Result<()> {
        if self.device.read32(REGISTERS, CONTROL) == u32::MAX {
            return Err(gone(&*self.device));
        }
        if on {
            self.lead_all(&self.aims())?;
        }
        match (self.generation, on) {
            (Generation::Third, true) => {
                self.write_control(|control| control & !(DISABLE | CONFIG_LOCK) | SNOOP);
            }
            (Generation::Third, false) => {
                self.write_control(|control| control & !SNOOP | DISABLE | CONFIG_LOCK);
            }
            (Generation::Fourth, on) => {
                // The other bits that are known lock the bridge, disable it, or have it ignore caches.
                self.write_control(|control| if on { SNOOP } else { control & !SNOOP });
                let link = self.device.read16(REGISTERS, LINK_CONTROL) & !LINK_CONTROL_DISABLE;
                let disable = if on { 0 } else { LINK_CONTROL_DISABLE };
                self.device.write16(REGISTERS, LINK_CONTROL, link | disable);
                let port = self.device.read32(REGISTERS, PORT_0) & !PORT_0_TRAIN;
                let train = if on { PORT_0_TRAIN } else { 0 };
                self.device.write32(REGISTERS, PORT_0, port | train);
                let taken = self.device.read32(REGISTERS, PORT_0);
                if on && taken & PORT_0_TRAIN == 0 {
                    let what = format!("a link that does not begin to train (PPD0 is {taken:#x})");
                    return Err(broken(&*self.device, what));
                }
            }
        }
        Ok(())
    }

    fn risen(&self) -> Result<()> {
        self.lead_all(&self.aims())
    }

    fn aim(&self, window: usize, address: Option<u64>) -> Result<()> {
        self.aims()[window] = address;
        self.lead(window, address.unwrap_or(self.nowhere[window]))
    }

    fn link(&self) -> Option<ChipLink> {
        if self.device.read32(REGISTERS, CONTROL) == u32::MAX {
            return None;
        }
        let status = self.status()?;
        let own = self.device.trained();
        // The largest payload is that of the function.
        let trained = Trained::of_status(status);
        let trained = trained.map_or(own, |line| Trained { max_payload: own.max_payload, ..line });
        chip_link(status & LINK_ACTIVE != 0, trained)
    }

    fn take(&self, _raised: u64) -> News {
        let pending = self.device.read64(REGISTERS, PENDING);
        if pending == 0 || pending == u64::MAX {
            return News::default();
        }
        let link = pending & LINK_CHANGED != 0;
        if link && self.generation == Generation::Fourth {
            // Before the interrupt is cleared, or the next change raises none.
            self.device.write16(REGISTERS, SLOT_STATUS, SLOT_LINK_CHANGED);
        }
        self.device.write64(REGISTERS, PENDING, pending);
        News { bells: pending & (LINK_CHANGED - 1), link }
    }

    fn ring(&self, bits: u64) {
        for bit in (0..DOORBELLS as usize).filter(|bit| bits >> bit & 1 == 1) {
            self.device.write32(REGISTERS, RING + 4 * bit, 1);
        }
    }

    fn bell(&self, bit: u32) -> Option<Bell> {
        let offset = RING + 4 * bit as usize;
        Some(Bell { bar: REGISTERS, offset, bytes: 4, value: 1 })
    }

    fn spad(&self, index: usize) -> u32 {
        self.device.read32(REGISTERS, SPADS + 4 * index)
    }

    fn set_spad(&self, index: usize, value: u32) {
        self.device.write32(REGISTERS, SPADS + 4 * index, value);
    }

    fn peer_spad(&self, index: usize) -> u32 {
        self.device.read32(REGISTERS, self.generation.peer_spads() + 4 * index)
    }

    fn set_peer_spad(&self, index: usize, value: u32) {
        self.device.write32(REGISTERS, self.generation.peer_spads() + 4 * index, value);
    }
}

impl Drop for IntelChip {
    fn drop(&mut self) {
        self.device.write64(REGISTERS, DISABLED, u64::MAX);
    }
}
