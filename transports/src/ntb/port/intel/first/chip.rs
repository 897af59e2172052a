// SPDX-License-Identifier: Apache-2.0
//! Windows and the link of the bridge: nothing else of it can be used.

use super::layout::*;
use crate::ntb::port::bridge::{
    Aperture, Chip, ChipLink, Device, Facts, News, broken, chip_link, gone,
};
use crate::ntb::port::intel::chip::{check_port, check_sizes};
use crate::ntb::port::intel::layout::{
    CONFIG_LINK, CONFIG_LOCK, DISABLE, LINK_ACTIVE, REGISTERS, SNOOP, WINDOWS,
};
use crate::ntb::port::vfio::Trained;
use crate::ntb::port::{DoorbellDelivery, Result};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub struct FirstChip {
    device: Arc<dyn Device>,
    apertures: Vec<Aperture>,
    /// Where windows lead that lead nowhere.
    nowhere: Vec<u64>,
    /// Where the windows lead.
    aims: Mutex<Vec<Option<u64>>>,
}

impl FirstChip {
    pub fn new(device: Arc<dyn Device>) -> Result<FirstChip> {
        let registers = device.bar_size(REGISTERS);
        if registers < REGISTERS_SIZE {
            return Err(broken(&*device, format!("{registers} bytes of registers")));
        }
        let [own, link] = [CONFIG_OWN_SIZES, CONFIG_LINK_SIZES].map(|at| device.config16(at));
        if device.config16(CONFIG_LINK) == u16::MAX {
            return Err(gone(&*device));
        }
        check_port(&*device)?;
        check_sizes(&*device, [own, link], "PBARSZ and SBARSZ")?;
        let apertures = WINDOWS.iter().filter_map(|&bar| {
            let size = device.bar_size(bar) as u64;
            (size > 0).then_some(Aperture { bar, offset: 0, size, inbound: size })
        });
        let apertures: Vec<Aperture> = apertures.collect();
        let nowhere = apertures.iter().map(|each| device.reserve(each.inbound, each.inbound));
        let chip = FirstChip {
            nowhere: nowhere.collect::<Result<_>>()?,
            aims: Mutex::new(vec![None; apertures.len()]),
            apertures,
            device,
        };
        chip.prepare(&chip.aims())?;
        Ok(chip)
    }

    fn aims(&self) -> MutexGuard<'_, Vec<Option<u64>>> {
        self.aims.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Everything that a reset may have cleared, but for what enables the link.
    fn prepare(&self, aims: &[Option<u64>]) -> Result<()> {
        let write = |at, value| self.device.write64(REGISTERS, at, value);
        write(REGISTERS_AT, ADDRESS_OF_REGISTERS);
        for (window, aim) in aims.iter().enumerate() {
            let place = self.place(window);
            // Windows are open as a whole: parts of them are closed by the IOMMU.
            write(IN_AT[place], ADDRESSES[place]);
            write(IN_LIMIT[place], 0);
            write(OUT_LIMIT[place], 0);
            write(OUT[place], ADDRESSES[place]);
            self.lead(window, aim.unwrap_or(self.nowhere[window]))?;
        }
        self.device.write16(REGISTERS, COMMAND, COMMAND_ON);
        self.device.write16(REGISTERS, MASKED, !LINK_CHANGED);
        self.device.write16(REGISTERS, PENDING, u16::MAX);
        Ok(())
    }

    /// Which of the chip's windows one of the port's is.
    fn place(&self, window: usize) -> usize {
        WINDOWS.iter().position(|bar| *bar == self.apertures[window].bar).unwrap_or(0)
    }

    fn lead(&self, window: usize, address: u64) -> Result<()> {
        let at = IN[self.place(window)];
        self.device.write64(REGISTERS, at, address);
        // The answer comes behind all that was on its way.
        match self.device.read64(REGISTERS, at) {
            taken if taken == address => Ok(()),
            u64::MAX => Err(gone(&*self.device)),
            _ => Err(broken(&*self.device, format!("a window that does not lead to {address:#x}"))),
        }
    }
}

impl Chip for FirstChip {
    fn facts(&self) -> Facts {
        let vectors = self.device.interrupts().len().min(VECTORS as usize);
        Facts {
            name: "Intel Xeon NTB, generation 1 (intel)",
            apertures: self.apertures.clone(),
            // Nothing of the peer's registers may be touched.
            doorbell_bits: 0,
            doorbell_vectors: 0,
            doorbell_delivery: DoorbellDelivery::AggregateLevel,
            spads: 0,
            forgets: false,
            link_vectors: (1 << vectors) - 1,
        }
    }

    fn enable(&self, on: bool) -> Result<()> {
        if self.device.config16(CONFIG_LINK) == u16::MAX {
            return Err(gone(&*self.device));
        }
        if on {
            self.prepare(&self.aims())?;
        }
        let control = self.device.read32(REGISTERS, CONTROL);
        let control = match on {
            true => control & !(DISABLE | CONFIG_LOCK) | SNOOP,
            false => control & !SNOOP | DISABLE | CONFIG_LOCK,
        };
        self.device.write32(REGISTERS, CONTROL, control);
        self.device.read32(REGISTERS, CONTROL);
        Ok(())
    }

    fn aim(&self, window: usize, address: Option<u64>) -> Result<()> {
        self.aims()[window] = address;
        self.lead(window, address.unwrap_or(self.nowhere[window]))
    }

    fn link(&self) -> Option<ChipLink> {
        let status = self.device.config16(CONFIG_LINK);
        if status == u16::MAX {
            return None;
        }
        let own = self.device.trained();
        // The largest payload is that of the function.
        let trained = Trained::of_status(status);
        let trained = trained.map_or(own, |line| Trained { max_payload: own.max_payload, ..line });
        chip_link(status & LINK_ACTIVE != 0, trained)
    }

    fn take(&self, raised: u64) -> News {
        if raised == 0 {
            return News::default();
        }
        let pending = self.device.read16(REGISTERS, PENDING);
        let link = pending != u16::MAX && pending & LINK_CHANGED != 0;
        if link {
            self.device.write16(REGISTERS, PENDING, LINK_CHANGED);
        }
        News { bells: 0, link }
    }
}

impl Drop for FirstChip {
    fn drop(&mut self) {
        self.device.write16(REGISTERS, MASKED, u16::MAX);
    }
}
