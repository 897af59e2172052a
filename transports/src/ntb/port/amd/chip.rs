// SPDX-License-Identifier: Apache-2.0
//! Translations, doorbells, scratchpads and the state of a link on the chip.

use super::layout::*;
use crate::ntb::port::bridge::{
    Aperture, Bell, Chip, ChipLink, Device, Facts, News, broken, chip_link, gone,
};
use crate::ntb::port::{DoorbellDelivery, Result};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Looks at doorbells that keep ringing, before others get their turn.
const LOOKS: u32 = 64;

pub struct AmdChip {
    device: Arc<dyn Device>,
    secondary: bool,
    apertures: Vec<Aperture>,
    /// Where windows lead that lead nowhere.
    nowhere: Vec<u64>,
    state: Mutex<State>,
}

struct State {
    enabled: bool,
    /// Where the windows lead.
    aims: Vec<Option<u64>>,
}

impl AmdChip {
    pub fn new(device: Arc<dyn Device>) -> Result<AmdChip> {
        let registers = device.bar_size(REGISTERS);
        if registers < PEER + TRANSLATION[1] + 8 {
            return Err(broken(&*device, format!("{registers} bytes of registers")));
        }
        let side = device.read32(REGISTERS, SIDE);
        if side == u32::MAX {
            return Err(gone(&*device));
        }
        let vectors = device.interrupts().len();
        if vectors == 0 || (device.has_msix() && vectors < BELLS as usize) {
            return Err(broken(&*device, format!("{vectors} interrupt vectors")));
        }
        let apertures = WINDOWS.iter().filter_map(|&bar| {
            let size = device.bar_size(bar) as u64;
            // The peer's may be another size, but the limits let no more pass than this.
            (size > 0).then_some(Aperture { bar, offset: 0, size, inbound: size })
        });
        let apertures: Vec<Aperture> = apertures.collect();
        let nowhere = apertures.iter().map(|each| device.reserve(each.inbound, each.inbound));
        let state = State { enabled: false, aims: vec![None; apertures.len()] };
        let chip = AmdChip {
            nowhere: nowhere.collect::<Result<_>>()?,
            state: Mutex::new(state),
            secondary: side & SIDE_SECONDARY != 0,
            apertures,
            device,
        };
        chip.prepare(&chip.state())?;
        Ok(chip)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(&self, at: usize) -> u32 {
        self.device.read32(REGISTERS, at)
    }

    fn write(&self, at: usize, value: u32) {
        self.device.write32(REGISTERS, at, value);
    }

    /// Everything that the chip may have forgotten, but for what this side says of itself.
    fn prepare(&self, state: &State) -> Result<()> {
        for (window, aim) in state.aims.iter().enumerate() {
            self.lead(window, aim.unwrap_or(self.nowhere[window]))?;
        }
        if !self.secondary {
            self.write(CONTROL, self.read(CONTROL) | CONTROL_PASS);
        }
        self.device.write16(REGISTERS, MASKED, 0);
        self.write(EVENTS_MASKED, self.read(EVENTS_MASKED) & !EVENTS_ALL);
        Ok(())
    }

    /// Registers that lead a window, and what they are to be. It is open as a whole: parts of it are
    /// closed by the IOMMU. Where the peer's writes go is in the peer's registers.
    fn leading(&self, window: usize, address: u64) -> [(usize, u64); 2] {
        let Aperture { bar, size, .. } = self.apertures[window];
        let place = WINDOWS.iter().position(|known| *known == bar).unwrap_or(0);
        [(PEER + TRANSLATION[place], address), (PEER + LIMIT[place], size)]
    }

    fn lead(&self, window: usize, address: u64) -> Result<()> {
        for (at, value) in self.leading(window, address) {
            self.device.write64(REGISTERS, at, value);
            // The answer comes behind all that was on its way.
            if self.device.read64(REGISTERS, at) != value {
                let answers = self.read(SIDE) != u32::MAX;
                let what = format!("a register {at:#x} that does not take {value:#x}");
                return Err(if answers {
                    broken(&*self.device, what)
                } else {
                    gone(&*self.device)
                });
            }
        }
        Ok(())
    }

    /// Leads the windows again if a reset of the other side has cleared them, and has it look: what
    /// it wrote meanwhile is lost.
    fn restore(&self) {
        let state = self.state();
        let lost = state.aims.iter().enumerate().any(|(window, aim)| {
            let address = aim.unwrap_or(self.nowhere[window]);
            let leading = self.leading(window, address);
            leading.iter().any(|(at, value)| self.device.read64(REGISTERS, *at) != *value)
        });
        if lost && self.prepare(&state).is_ok() {
            self.say(&state);
        }
    }

    /// Says whether this side is enabled, and has the other look.
    fn say(&self, state: &State) {
        let side = self.read(SIDE) & !SIDE_READY;
        self.write(SIDE, side | if state.enabled { SIDE_READY } else { 0 });
        self.read(SIDE);
        self.device.write16(REGISTERS, RING, 1 << STATE_BELL);
    }

    /// Takes what has befallen the other side.
    fn attend(&self, events: u32) {
        let lasting = events & !FLUSHED;
        if lasting != 0 {
            self.write(ACKNOWLEDGED, self.read(ACKNOWLEDGED) | lasting);
        }
        if events & PEER_LOST != 0 {
            // Nobody else takes back that it was ready. If it is again, it says so again.
            let side = self.read(PEER + SIDE);
            if is_ready(side) {
                self.write(PEER + SIDE, side & !SIDE_READY);
            }
        }
        self.write(EVENTS, events);
    }

    fn spad_at(&self, own: bool, index: usize) -> usize {
        let half = if self.secondary == own { SPADS_OF_SIDE } else { 0 };
        SPADS + 4 * (half + index)
    }
}

fn is_ready(side: u32) -> bool {
    side != u32::MAX && side & SIDE_READY != 0
}

impl Chip for AmdChip {
    fn facts(&self) -> Facts {
        let vectors = self.device.interrupts().len() as u32;
        let own_vectors = self.device.has_msix();
        Facts {
            name: "AMD NTB (amd)",
            apertures: self.apertures.clone(),
            doorbell_bits: STATE_BELL,
            doorbell_vectors: if own_vectors { STATE_BELL } else { 1 },
            doorbell_delivery: match own_vectors {
                true => DoorbellDelivery::PerBitVector,
                // `take` looks until nothing is pending.
                false => DoorbellDelivery::AggregateLevel,
            },
            spads: SPADS_OF_SIDE,
            forgets: false,
            // That of the last doorbell, and those of events.
            link_vectors: match own_vectors {
                true => ((1 << vectors.min(VECTORS)) - 1) & !((1 << STATE_BELL) - 1),
                false => 1,
            },
        }
    }

    fn enable(&self, on: bool) -> Result<()> {
        if self.read(SIDE) == u32::MAX {
            return Err(gone(&*self.device));
        }
        let mut state = self.state();
        state.enabled = on;
        self.prepare(&state)?;
        self.say(&state);
        Ok(())
    }

    fn aim(&self, window: usize, address: Option<u64>) -> Result<()> {
        self.state().aims[window] = address;
        self.lead(window, address.unwrap_or(self.nowhere[window]))
    }

    fn link(&self) -> Option<ChipLink> {
        let own = self.read(SIDE);
        if own == u32::MAX {
            return None;
        }
        let state = self.state();
        if state.enabled && !is_ready(own) {
            // The other side or the chip took it back: everything again.
            if self.prepare(&state).is_ok() {
                self.say(&state);
            }
            return chip_link(false, self.device.trained());
        }
        let up = is_ready(own) && is_ready(self.read(PEER + SIDE));
        chip_link(up, self.device.trained())
    }

    /// Takes all doorbells and events, whatever has told of them: with one vector for all, nothing
    /// tells of the next one before none is pending.
    fn take(&self, _raised: u64) -> News {
        let mut news = News::default();
        for _ in 0..LOOKS {
            let events = self.read(EVENTS);
            if events == u32::MAX {
                break;
            }
            let rung = self.device.read16(REGISTERS, PENDING);
            let events = events & EVENTS_ALL;
            if events == 0 && rung == 0 {
                break;
            }
            if rung != 0 {
                self.device.write16(REGISTERS, PENDING, rung);
            }
            if events != 0 {
                self.attend(events);
            }
            news.bells |= u64::from(rung & !(1 << STATE_BELL));
            news.link |= events != 0 || rung >> STATE_BELL & 1 == 1;
        }
        if news.link {
            self.restore();
        }
        news
    }

    fn ring(&self, bits: u64) {
        self.device.write16(REGISTERS, RING, bits as u16);
    }

    fn bell(&self, bit: u32) -> Option<Bell> {
        Some(Bell { bar: REGISTERS, offset: RING, bytes: 2, value: 1 << bit })
    }

    fn spad(&self, index: usize) -> u32 {
        self.read(self.spad_at(true, index))
    }

    fn set_spad(&self, index: usize, value: u32) {
        self.write(self.spad_at(true, index), value);
    }

    fn peer_spad(&self, index: usize) -> u32 {
        self.read(self.spad_at(false, index))
    }

    fn set_peer_spad(&self, index: usize, value: u32) {
        self.write(self.spad_at(false, index), value);
    }
}

impl Drop for AmdChip {
    fn drop(&mut self) {
        self.device.write16(REGISTERS, MASKED, u16::MAX);
        self.write(EVENTS_MASKED, self.read(EVENTS_MASKED) | EVENTS_ALL);
    }
}
