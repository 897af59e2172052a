// SPDX-License-Identifier: Apache-2.0
//! Translations, doorbells and the state of a link on the chip.

use super::layout::*;
use crate::ntb::port::bridge::{
    Aperture, Bell, Chip, ChipLink, Device, Facts, News, broken, chip_link, gone,
};
use crate::ntb::port::{DoorbellDelivery, PortError, Result};
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What a side's state begins with in its scratchpad; the rest counts its changes.
const STATE: u32 = 0x5442_0000;
const COUNT: u32 = 0xffff;
/// Looks at doorbells that keep ringing, before others get their turn.
const LOOKS: u32 = 64;

pub struct PlxChip {
    device: Arc<dyn Device>,
    /// Whether this is the link side.
    link: bool,
    /// Pages of this side and of the other.
    own: usize,
    peer: usize,
    apertures: Vec<Aperture>,
    /// Where windows lead that lead nowhere.
    nowhere: Vec<u64>,
    state: Mutex<State>,
}

struct State {
    /// What this side says of itself: odd while it is enabled.
    count: u32,
    /// What the other side said last.
    heard: u32,
    /// Where the windows lead.
    aims: Vec<Option<u64>>,
    /// Entries of the table of requesters for engines, two in each register.
    engines: Vec<u32>,
}

impl PlxChip {
    pub fn new(device: Arc<dyn Device>) -> Result<PlxChip> {
        let registers = device.bar_size(REGISTERS);
        if registers < REGISTERS_SIZE {
            return Err(broken(&*device, format!("{registers} bytes of registers")));
        }
        if device.read32(REGISTERS, PAGES[0]) == u32::MAX {
            return Err(gone(&*device));
        }
        let number = device.config16(CONFIG_DEVICE);
        let link = match number & !1 {
            VIRTUAL => false,
            LINK => true,
            _ => return Err(broken(&*device, format!("device number {number:#x}"))),
        };
        let base = PAGES[usize::from(number & 1)];
        let page = |link: bool| if link { base + LINK_PAGE } else { base };
        let (own, peer) = (page(link), page(!link));
        let apertures = WINDOWS.iter().filter_map(|&bar| {
            let at = peer + BAR_SETUP + (bar - 2) * 4;
            let setup = [0, 4].map(|half| u64::from(device.read32(REGISTERS, at + half)));
            // The lowest bits tell what kind of BAR it is.
            let mask = (setup[0] | setup[1] << 32) & !0xf;
            let is_64_bit = setup[0] & 6 == 4;
            let (size, inbound) = (device.bar_size(bar) as u64, mask & mask.wrapping_neg());
            let there = size > 0 && inbound > 0 && is_64_bit;
            there.then_some(Aperture { bar, offset: 0, size, inbound })
        });
        let apertures: Vec<Aperture> = apertures.collect();
        if device.interrupts().is_empty() {
            return Err(broken(&*device, "no interrupt vectors".into()));
        }
        let nowhere = apertures.iter().map(|each| device.reserve(each.inbound, each.inbound));
        let state = State {
            count: (RandomState::new().hash_one(0) as u32) << 1,
            heard: 0,
            aims: vec![None; apertures.len()],
            engines: vec![],
        };
        let chip = PlxChip {
            nowhere: nowhere.collect::<Result<_>>()?,
            state: Mutex::new(state),
            link,
            own,
            peer,
            apertures,
            device,
        };
        if !link {
            // What has befallen the link before does not concern this process.
            chip.write(LINK_ERRORS, LINK_ERRORS_ALL);
        }
        chip.prepare(&chip.state());
        Ok(chip)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(&self, at: usize) -> u32 {
        self.device.read32(REGISTERS, self.own + at)
    }

    fn write(&self, at: usize, value: u32) {
        self.device.write32(REGISTERS, self.own + at, value);
    }

    fn own_bells(&self) -> &'static Bells {
        if self.link { &OF_LINK } else { &OF_VIRTUAL }
    }

    fn peer_bells(&self) -> &'static Bells {
        if self.link { &OF_VIRTUAL } else { &OF_LINK }
    }

    /// Everything that the chip may have forgotten, but for what this side says of itself.
    fn prepare(&self, state: &State) {
        // The processors of this host and the bridge itself may write, and engines.
        let requesters = self.read(OWN_REQUESTER) << 16 | REQUESTER_USED << 16 | REQUESTER_USED;
        let table = std::iter::once(requesters).chain(state.engines.iter().copied());
        for (index, pair) in table.enumerate() {
            self.write(self.own_bells().requesters + 4 * index, pair);
        }
        // The IOMMU divides the windows.
        self.write(SLOT_CONTROL, 0);
        for (window, aim) in state.aims.iter().enumerate() {
            self.lead(window, aim.unwrap_or(self.nowhere[window]));
        }
        if !self.link {
            self.write(LINK_ERROR_MASK, 0);
        }
        self.write(self.own_bells().unmask, (1 << BELLS) - 1);
    }

    /// There is no limit and no way to close a window: it always leads somewhere.
    fn lead(&self, window: usize, address: u64) {
        let at = self.peer + TRANSLATION + (self.apertures[window].bar - 2) * 4;
        self.device.write32(REGISTERS, at, address as u32);
        self.device.write32(REGISTERS, at + 4, (address >> 32) as u32);
        // The answer comes behind all that was on its way.
        self.device.read32(REGISTERS, at);
    }

    /// Scratchpads in which the sides say whether they are enabled.
    fn state_at(&self, own: bool) -> usize {
        SPADS + 4 * usize::from(self.link == own)
    }

    /// Says what this side is, and has the other look.
    fn say(&self, state: &State) {
        self.write(self.state_at(true), STATE | state.count & COUNT);
        self.read(self.state_at(true));
        self.write(self.peer_bells().set, 1 << STATE_BELL);
    }
}

fn is_on(word: u32) -> bool {
    word & !COUNT == STATE && word & 1 == 1
}

impl Chip for PlxChip {
    fn facts(&self) -> Facts {
        Facts {
            name: "PLX PEX87xx (plx)",
            apertures: self.apertures.clone(),
            doorbell_bits: STATE_BELL,
            doorbell_vectors: 1,
            // The chip fires when the first bit is set; `take` looks until none is.
            doorbell_delivery: DoorbellDelivery::AggregateLevel,
            // Eight, which both sides share, and which may be lost with the link.
            spads: 0,
            forgets: false,
            link_vectors: 1,
        }
    }

    fn enable(&self, on: bool) -> Result<()> {
        if self.read(IDS) == u32::MAX {
            return Err(gone(&*self.device));
        }
        let mut state = self.state();
        state.count = state.count.wrapping_add(2) & !1 | u32::from(on);
        self.prepare(&state);
        self.say(&state);
        Ok(())
    }

    fn aim(&self, window: usize, address: Option<u64>) -> Result<()> {
        self.state().aims[window] = address;
        self.lead(window, address.unwrap_or(self.nowhere[window]));
        Ok(())
    }

    fn link(&self) -> Option<ChipLink> {
        if self.read(IDS) == u32::MAX {
            return None;
        }
        let state = self.state();
        let own = self.read(self.state_at(true));
        if own != STATE | state.count & COUNT {
            // Somebody has cleared or changed it: everything again. The link is up when both sides have done so.
            self.prepare(&state);
            self.say(&state);
            return chip_link(false, self.device.trained());
        }
        chip_link(is_on(own) && is_on(self.read(self.state_at(false))), self.device.trained())
    }

    /// Takes all doorbells, whatever has told of them. The chip fires when the first becomes pending,
    /// and not again before none is: so it is looked at until then.
    fn take(&self, _raised: u64) -> News {
        let bells = self.own_bells();
        let mut rung = 0;
        for _ in 0..LOOKS {
            let pending = self.read(bells.set);
            if pending == 0 || pending == u32::MAX {
                break;
            }
            self.write(bells.clear, pending);
            rung |= pending;
        }
        let mut state = self.state();
        let said = self.read(self.state_at(false));
        let mut link = std::mem::replace(&mut state.heard, said) != said;
        let mut was_down = false;
        if !self.link {
            let errors = self.read(LINK_ERRORS);
            if errors != 0 && errors != u32::MAX {
                self.write(LINK_ERRORS, errors);
                was_down = errors & LINK_WAS_DOWN != 0;
            }
        }
        link |= was_down;
        if link {
            // What this side had set on the other one is lost with the link side, whether the scratchpads
            // are or not. The other side says something new when it has lost or found something, too.
            self.prepare(&state);
        }
        if was_down {
            // The link side is told of nothing, and may have lost what lets its doorbells interrupt: it
            // sees something new when it looks.
            state.count = state.count.wrapping_add(2);
            self.say(&state);
        }
        News { bells: u64::from(rung & ((1 << STATE_BELL) - 1)), link }
    }

    fn admit(&self, requesters: &[u16]) -> Result<()> {
        if requesters.len() > ENGINES_MAX {
            return Err(PortError::Exhausted(format!(
                "room for {ENGINES_MAX} DMA engines in the table of requesters"
            )));
        }
        let entry = |number: &u16| u32::from(number & REQUESTER) | REQUESTER_USED;
        let pair =
            |pair: &[u16]| entry(&pair[0]) | pair.get(1).map_or(0, |second| entry(second) << 16);
        let mut state = self.state();
        state.engines = requesters.chunks(2).map(pair).collect();
        self.prepare(&state);
        Ok(())
    }

    fn ring(&self, bits: u64) {
        self.write(self.peer_bells().set, bits as u32);
    }

    fn bell(&self, bit: u32) -> Option<Bell> {
        let offset = self.own + self.peer_bells().set;
        Some(Bell { bar: REGISTERS, offset, bytes: 4, value: 1 << bit })
    }
}

impl Drop for PlxChip {
    fn drop(&mut self) {
        self.write(self.own_bells().mask, (1 << BELLS) - 1);
    }
}
