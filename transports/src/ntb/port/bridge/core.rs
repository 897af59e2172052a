// SPDX-License-Identifier: Apache-2.0
//! What a port, its thread and the windows made through it share: the state of the link, doorbells
//! that have rung, and what is behind the slots.

use super::chip::{Aperture, Chip, ChipLink, Facts};
use super::device::{self, Device};
use super::engines::Engines;
use super::layout::{self, Page, SLOTS, first_slot, word_at};
use super::reach::Reach;
use crate::ntb::port::listener::{self, Source, Waiters};
use crate::ntb::port::shared::Words;
use crate::ntb::port::slots::entry;
use crate::ntb::port::vfio::Trained;
use crate::ntb::port::{Event, PcieGen, PortError, Result, Window};
use nix::sys::eventfd::EventFd;
use std::hash::{BuildHasher, RandomState};
use std::ops::Deref;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long closing waits for a write of this host that does not end.
const PATIENCE: Duration = Duration::from_secs(1);
/// Between greetings that are not answered, at least; and between looks of the port's own thread for those of the
/// peer.
const GREETING_PAUSE: Duration = Duration::from_millis(1);
const LISTENING_MS: u8 = 20;

pub struct Core {
    pub chip: Box<dyn Chip>,
    pub facts: Facts,
    /// What other processes of the host may have as well. The generation of the link is changed under the lock of the
    /// state.
    pub reach: Arc<Reach>,
    pub waiters: Arc<Waiters>,
    /// What DMA engines use.
    pub engines: Engines,
    state: Mutex<State>,
}

impl Deref for Core {
    type Target = Reach;

    fn deref(&self) -> &Reach {
        &self.reach
    }
}

pub struct State {
    pub enabled: bool,
    /// The link is being taken down, or that has failed half-way.
    leaving: bool,
    /// The chip's link is up, and its windows are set since.
    pub risen: bool,
    pub up: bool,
    /// Of a link that is up.
    pub generation: u64,
    /// Why a link is not used that is up.
    pub trouble: Option<String>,
    /// What the peer is greeted with, and when it was.
    greeting: u64,
    greeted: Instant,
    /// The peer has answered: what is written reaches it, and it has said all that it has to say.
    pub reached: bool,
    /// The greeting of the peer that was answered.
    answered: u64,
    pub trained: Trained,
    /// The device does not answer any more.
    pub gone: bool,
    /// Addresses that the inbound windows lead to.
    addresses: Vec<u64>,
    /// By window and slot: what is open.
    slots: Vec<[Option<Slot>; SLOTS]>,
    /// Distinguishes what is behind a slot from what was.
    openings: u32,
}

/// An open slot.
#[derive(Clone, Copy, Debug)]
struct Slot {
    /// What the peer is told.
    entry: u64,
    /// Where the memory starts, and how much of it is mapped.
    base: usize,
    len: usize,
}

/// Memory for slots: as much as there is, from `base` on.
#[derive(Clone, Copy, Debug)]
pub struct Behind {
    pub base: *mut u8,
    /// Bytes of the translation, and of the memory.
    pub size: u64,
    pub len: u64,
}

impl Core {
    /// Takes a device over. Its windows lead nowhere but to the port's own page; its link is down.
    pub fn new(chip: Box<dyn Chip>, device: Arc<dyn Device>) -> Result<Core> {
        let facts = chip.facts();
        let apertures: Vec<Aperture> =
            facts.apertures.iter().copied().take(layout::WINDOWS).collect();
        let windows = apertures.iter().enumerate();
        let windows: Vec<Window> = windows
            .map(|(index, aperture)| layout::window_of(index, aperture))
            .collect::<Result<_>>()?;
        if windows.is_empty() {
            let device = device.describe();
            return Err(PortError::Invalid(format!("{device} has 0 windows: one is needed")));
        }
        let addresses =
            apertures.iter().map(|aperture| device.reserve(aperture.inbound, aperture.inbound));
        let addresses: Vec<u64> = addresses.collect::<Result<_>>()?;
        let page = Page::new()?;
        chip.enable(false)?;
        // SAFETY: the page lives as long as the value, which takes it back when dropped.
        unsafe { device.map(addresses[0], page.base(), page.mapped())? };
        let state = State {
            enabled: false,
            leaving: false,
            risen: false,
            up: false,
            generation: 0,
            trouble: None,
            greeting: 0,
            greeted: Instant::now(),
            reached: false,
            answered: 0,
            trained: Trained { speed: PcieGen::Gen1, width: 1, max_payload: 128 },
            gone: false,
            addresses,
            slots: vec![[None; SLOTS]; windows.len()],
            openings: RandomState::new().hash_one(0) as u32,
        };
        // Another process than the one before does not go on with its values.
        let first = RandomState::new().hash_one(1);
        let words = Arc::new(Words::new(first)?);
        let doorbell_bits = facts.doorbell_bits;
        let reach = Reach { device, apertures, windows, page, words, doorbell_bits };
        let core = Core {
            chip,
            facts,
            reach: Arc::new(reach),
            waiters: Arc::default(),
            engines: Engines::default(),
            state: Mutex::new(state),
        };
        // Whatever has rung before was not meant for this process.
        core.news(&mut core.state(), u64::MAX);
        drop(core.look());
        Ok(core)
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at the link, and takes what its interrupts have told.
    pub fn look(&self) -> MutexGuard<'_, State> {
        let mut state = self.state();
        self.news(&mut state, self.facts.link_vectors);
        state
    }

    /// Takes all doorbells that have rung.
    pub fn collect(&self) {
        self.news(&mut self.state(), u64::MAX);
    }

    /// Takes the events of some vectors, and what registers say of them.
    fn news(&self, state: &mut State, vectors: u64) {
        let raised = listener::take(self.device.interrupts(), vectors);
        let mut news = self.chip.take(raised);
        if !self.has_bells() {
            news.bells = self.heard();
        }
        let bells =
            if state.enabled && !state.leaving { news.bells & self.valid_bits() } else { 0 };
        if bells != 0 {
            self.latch(bells);
        }
        let changed = self.follow(state, news.link);
        if bells != 0 || changed {
            self.waiters.tell();
        }
    }

    /// Rings the peer, behind all that this thread has stored.
    pub fn ring(&self, bits: u64) {
        self.device.drain();
        match self.has_bells() {
            true => self.chip.ring(bits),
            false => self.ring_words(bits),
        }
    }

    /// Follows the link; `told` that it may have changed, which it may have more than once.
    fn follow(&self, state: &mut State, told: bool) -> bool {
        let link = if state.gone { None } else { self.chip.link() };
        if link.is_none() && !state.gone {
            state.gone = true;
            tracing::warn!("{}", device::gone(&*self.device));
        }
        let line = state.enabled && !state.leaving && link.is_some_and(|link| link.up);
        state.trained = link.map_or(state.trained, |link| link.trained);
        self.words.set_trained(state.trained);
        let new = line && (told || !state.risen);
        state.risen = line && (!new || self.rise(state));
        if new && state.risen {
            // The peer may be another process than before. It may also not have set its windows yet: then
            // all of this is lost, until it greets.
            state.greeting = RandomState::new().hash_one(Instant::now()) | 1;
            state.reached = false;
            state.answered = self.page.greeting();
            self.publish_all(state);
        } else {
            self.greet(state);
        }
        let up = state.risen && (state.reached || !self.facts.forgets);
        let known = if state.up { Some(state.generation) } else { None };
        // Another process may have spoilt what all see.
        let spoilt = self.words.up_generation() != known;
        if up == state.up && !(new && up) && !spoilt {
            return false;
        }
        state.up = up;
        state.generation = self.words.follow(up);
        self.count(Event::LinkChanges, 1);
        true
    }

    /// Has the chip set what it takes or keeps only while the link is up; says whether it has.
    fn rise(&self, state: &mut State) -> bool {
        let trouble = self.chip.risen().err().map(|error| error.to_string());
        if let Some(error) = trouble.as_ref().filter(|_| trouble != state.trouble) {
            tracing::warn!(%error, "an NTB link is up and cannot be used");
        }
        state.trouble = trouble;
        state.trouble.is_none()
    }

    /// Tells the peer what it has missed. A greeting arrives when this side's link is up and the windows of the
    /// peer are set: so whoever is greeted says all again, and who is answered knows that he is heard.
    fn greet(&self, state: &mut State) {
        if !state.risen {
            return;
        }
        let peers = self.page.greeting();
        if peers != state.answered {
            state.answered = peers;
            self.publish_all(state);
        }
        state.reached |= self.page.answer() == state.greeting;
        if !state.reached && state.greeted.elapsed() > GREETING_PAUSE {
            state.greeted = Instant::now();
            let Aperture { bar, offset, .. } = self.apertures[0];
            self.device.store_words(bar, offset + layout::GREETING_AT, &[state.greeting]);
            self.device.drain();
        }
    }

    /// Lets the link train, or takes it down.
    pub fn enable(&self, on: bool) -> Result<()> {
        let mut state = self.look();
        if state.gone {
            return Err(device::gone(&*self.device));
        }
        if state.enabled == on && !state.leaving {
            return Ok(());
        }
        let done = if on {
            // What has rung meanwhile is lost, as with the link.
            self.news(&mut state, u64::MAX);
            let aim = |(window, address): (usize, &u64)| self.chip.aim(window, Some(*address));
            let done = state.addresses.iter().enumerate().try_for_each(aim);
            let done = done.and_then(|()| self.chip.enable(true));
            if done.is_ok() {
                (state.enabled, state.leaving) = (true, false);
            }
            done
        } else {
            self.withdraw(&mut state);
            state.leaving = true;
            self.words.set_up(None);
            // Whatever fails, the rest is done all the same, and all of it again when asked again.
            let mut done = self.await_writes();
            for window in 0..state.addresses.len() {
                done = done.and(self.chip.aim(window, None));
            }
            done = done.and(self.chip.enable(false));
            if done.is_ok() {
                (state.enabled, state.leaving) = (false, false);
            }
            done
        };
        self.words.listen(state.enabled && !state.leaving);
        self.news(&mut state, self.facts.link_vectors);
        done
    }

    /// Waits until no write of this host is on its way.
    fn await_writes(&self) -> Result<()> {
        let begun = Instant::now();
        for writer in self.words.writers() {
            while writer.load(Ordering::SeqCst) != 0 {
                if begun.elapsed() > PATIENCE {
                    return Err(PortError::Busy("a write into a window does not end".into()));
                }
                std::thread::yield_now();
            }
        }
        self.engines.settle();
        Ok(())
    }

    /// Whether a slot, counted from the first that is for users, is open.
    pub fn is_open(&self, window: usize, slot: usize) -> bool {
        self.state().slots[window][slot + first_slot(window)].is_some()
    }

    /// Puts memory behind slots, counted from the first that is for users.
    pub fn open_slots(
        &self,
        state: &mut State,
        window: usize,
        slot: usize,
        memory: Behind,
    ) -> Result<()> {
        let slot_size = self.windows[window].slot_size();
        let slots = memory.size.div_ceil(slot_size) as usize;
        self.close_slots(state, window, slot, slots);
        state.openings = state.openings.wrapping_add(1);
        let first = slot + first_slot(window);
        for index in 0..slots {
            let from = index as u64 * slot_size;
            let limit = (memory.size - from).min(slot_size);
            // Bytes beyond the end of memory stay closed, though the peer may try them.
            let len = memory.len.saturating_sub(from).min(limit);
            let len = len.next_multiple_of(layout::page()) as usize;
            let base = memory.base.wrapping_add(from as usize);
            let address = state.addresses[window] + (first + index) as u64 * slot_size;
            if len > 0 {
                // SAFETY: memory that was registered, whose owner keeps it until it is closed here.
                if let Err(error) = unsafe { self.device.map(address, base, len) } {
                    self.close_slots(state, window, slot, slots);
                    return Err(error);
                }
            }
            let entry = entry(state.openings, limit as u32);
            state.slots[window][first + index] = Some(Slot { entry, base: base.addr(), len });
        }
        self.publish(state, window, first, slots);
        self.count(Event::TranslationsSet, slots as u64);
        Ok(())
    }

    /// Takes away what is behind slots. On return no write of the peer to it is on its way.
    pub fn close_slots(&self, state: &mut State, window: usize, slot: usize, slots: usize) {
        let first = slot + first_slot(window);
        let range = first..first + slots;
        let open: Vec<(usize, Slot)> = range
            .clone()
            .filter_map(|index| Some((index, state.slots[window][index].take()?)))
            .collect();
        if open.is_empty() {
            return;
        }
        // First the peer is told: what it goes on to write is lost, and it must not take what it
        // writes after that for more.
        self.publish(state, window, first, slots);
        self.await_published(state, window, first);
        for (index, slot) in &open {
            if slot.len > 0 {
                let slot_size = self.windows[window].slot_size();
                let address = state.addresses[window] + *index as u64 * slot_size;
                self.device.unmap(address, slot.len);
            }
        }
        self.count(Event::TranslationsCleared, open.len() as u64);
    }

    /// Whether a slot leads into this memory.
    pub fn leads_to(&self, state: &State, base: *mut u8, len: u64) -> bool {
        let range = base.addr()..base.addr().saturating_add(len as usize);
        state.slots.iter().flatten().flatten().any(|slot| range.contains(&slot.base))
    }

    /// Tells the peer of some slots.
    fn publish(&self, state: &State, window: usize, first: usize, slots: usize) {
        if !state.risen {
            return;
        }
        let slots = &state.slots[window][first..first + slots];
        let words: Vec<u64> = slots.iter().map(|slot| slot.map_or(0, |slot| slot.entry)).collect();
        let Aperture { bar, offset, .. } = self.apertures[0];
        self.device.store_words(bar, offset + word_at(window, first), &words);
        self.device.drain();
    }

    fn publish_all(&self, state: &State) {
        if state.risen {
            let Aperture { bar, offset, .. } = self.apertures[0];
            let sizes: Vec<u64> = self.apertures.iter().map(layout::size_of).collect();
            self.device.store_words(bar, offset + layout::size_at(0), &sizes);
        }
        for window in 0..self.windows.len() {
            self.publish(state, window, 0, SLOTS);
        }
        if state.risen {
            let Aperture { bar, offset, .. } = self.apertures[0];
            let words = [state.greeting, state.answered];
            self.device.store_words(bar, offset + layout::GREETING_AT, &words);
            self.device.drain();
        }
    }

    /// Waits until the peer has what was published: what is read follows what was written.
    fn await_published(&self, state: &State, window: usize, slot: usize) {
        if state.risen {
            let Aperture { bar, offset, .. } = self.apertures[0];
            let mut word = [0; 8];
            // SAFETY: a local of this length.
            unsafe {
                self.device.load(bar, offset + word_at(window, slot), word.as_mut_ptr(), 8);
            }
            self.count(Event::Reads, 1);
        }
    }

    pub fn spads(&self) -> usize {
        if self.facts.spads > 0 { self.facts.spads } else { layout::SPADS }
    }

    pub fn spad(&self, index: usize) -> u32 {
        if self.facts.spads > 0 { self.chip.spad(index) } else { self.page.spad(index) }
    }

    pub fn set_spad(&self, index: usize, value: u32) {
        match self.facts.spads {
            0 => self.page.set_spad(index, value),
            _ => self.chip.set_spad(index, value),
        }
    }

    pub fn peer_spad(&self, index: usize) -> u32 {
        if self.facts.spads > 0 {
            return self.chip.peer_spad(index);
        }
        let Aperture { bar, offset, .. } = self.apertures[0];
        let mut word = [0xff; 8];
        // SAFETY: a local of this length.
        unsafe {
            self.device.load(bar, offset + layout::spad_at(index), word.as_mut_ptr(), 8);
        }
        u64::from_ne_bytes(word) as u32
    }

    pub fn set_peer_spad(&self, index: usize, value: u32) {
        if self.facts.spads > 0 {
            return self.chip.set_peer_spad(index, value);
        }
        let Aperture { bar, offset, .. } = self.apertures[0];
        self.device.store_words(bar, offset + layout::spad_at(index), &[value.into()]);
        self.device.drain();
    }

    /// Tells the peer that all slots are closed, while it can still be told.
    fn withdraw(&self, state: &mut State) {
        let slots = std::mem::replace(&mut state.slots, vec![[None; SLOTS]; self.windows.len()]);
        self.publish_all(state);
        self.await_published(state, 0, 0);
        state.slots = slots;
        // They are open again when the link comes back, but as other ones.
        state.openings = state.openings.wrapping_add(1);
        let opening = state.openings;
        for slot in state.slots.iter_mut().flatten().flatten() {
            slot.entry = entry(opening, slot.entry as u32);
        }
    }
}

impl Source for Core {
    fn interrupts(&self) -> &[EventFd] {
        self.device.interrupts()
    }

    fn attend(&self, raised: u64) {
        self.news(&mut self.state(), raised);
    }

    /// What the peer says in memory interrupts nobody, also when it waits for an answer.
    fn patience_ms(&self) -> Option<u8> {
        (self.facts.forgets || !self.state().reached).then_some(LISTENING_MS)
    }
}

impl Drop for Core {
    /// Nothing of this process is behind the windows any more.
    fn drop(&mut self) {
        if let Err(error) = self.enable(false) {
            tracing::info!(%error, "taking an NTB link down");
        }
        let mut state = self.state();
        for window in 0..self.windows.len() {
            self.close_slots(&mut state, window, 0, self.windows[window].slots);
        }
        self.device.unmap(state.addresses[0], self.page.mapped());
        self.engines.close(&*self.device);
    }
}

/// The link of a chip that is up or not, and is no more than that.
pub fn chip_link(up: bool, trained: Trained) -> Option<ChipLink> {
    Some(ChipLink { up, trained })
}
