// SPDX-License-Identifier: Apache-2.0
//! DMA engines that write through the windows of a port.

use super::core::Core;
use super::device::Device;
use super::layout;
use super::outbound::Target;
use crate::ntb::port::engine::{self, Channel, Engine, PATTERN, Source};
use crate::ntb::port::slots::{Face, SlottedOutbound};
use crate::ntb::port::{DmaChannel, Event, Outbound, PortError, Result};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

/// An engine's function that a port may use.
pub struct Offer {
    pub chip: Box<dyn engine::chip::Chip>,
    /// Under which number its writes travel.
    pub requester: u16,
}

/// What a port has for engines. Nothing, until there are any.
#[derive(Default)]
pub struct Engines {
    all: OnceLock<All>,
    /// What they may read, with the ranges that are mapped for it.
    sources: Mutex<Vec<Source>>,
    /// One of them has carried out all that a channel had queued.
    pub transferred: AtomicBool,
}

struct All {
    /// Their threads and channels have them.
    engines: Vec<Weak<Engine>>,
    /// By window: where functions reach what is behind its base address register, and how much.
    windows: Vec<(u64, usize)>,
    /// Channels that were opened: they are given to engines in turn.
    channels: AtomicUsize,
}

impl Engines {
    fn sources(&self) -> MutexGuard<'_, Vec<Source>> {
        self.sources.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until none of them has anything under way.
    pub fn settle(&self) {
        let all = self.all.get().into_iter().flat_map(|all| &all.engines);
        all.filter_map(Weak::upgrade).for_each(|engine| engine.settle());
    }

    /// Has engines read memory. Where that is refused they do not, and the CPU copies from there.
    pub fn add_source(&self, device: &dyn Device, base: *mut u8, len: u64) {
        if self.all.get().is_none() {
            return;
        }
        let len = len.next_multiple_of(layout::page()) as usize;
        let mapped = device.reserve(len as u64, layout::page()).and_then(|address| {
            // SAFETY: registered memory, whose owner keeps it until it takes it back; engines only read it.
            unsafe { device.map(address, base, len) }.map(|()| address)
        });
        match mapped {
            Ok(address) => self.sources().push(Source { base: base.addr(), len, address }),
            Err(error) => {
                tracing::warn!(%error, "memory of {len} bytes is not read by DMA engines");
            }
        }
    }

    /// Takes memory back that was added.
    pub fn remove_source(&self, device: &dyn Device, base: usize) {
        let mut sources = self.sources();
        let place = sources.iter().position(|source| source.base == base);
        if let Some(source) = place.map(|place| sources.swap_remove(place)) {
            device.unmap(source.address, source.len);
        }
    }

    /// Nothing is reached through them any more.
    pub fn close(&self, device: &dyn Device) {
        for source in self.sources().drain(..) {
            device.unmap(source.address, source.len);
        }
        for (address, len) in self.all.get().into_iter().flat_map(|all| &all.windows) {
            device.unmap(*address, *len);
        }
    }
}

impl Core {
    /// Takes engines over, which the bridge has to let pass.
    pub fn employ(self: &Arc<Core>, offers: Vec<Offer>) -> Result<Vec<Arc<Engine>>> {
        let requesters: Vec<u16> = offers.iter().map(|offer| offer.requester).collect();
        let limit = offers.iter().map(|offer| offer.chip.facts().addresses).min().unwrap_or(0);
        let mut windows = Vec::new();
        let mut map = |window: usize| {
            let aperture = self.apertures[window];
            let address = self.device.reserve(aperture.size, aperture.size)?;
            if address > limit || limit - address < aperture.size {
                return Err(PortError::Exhausted(format!(
                    "the engine does not reach the address {address:#x}"
                )));
            }
            let len = aperture.size as usize;
            self.device.map_bar(address, aperture.bar, aperture.offset, len)?;
            windows.push((address, len));
            Ok(())
        };
        let mapped = (0..self.windows.len()).try_for_each(&mut map);
        let engines = mapped.and_then(|()| {
            let engine = |(number, offer): (usize, Offer)| {
                Engine::new(offer.chip, self.clone(), number).map(Arc::new)
            };
            offers.into_iter().enumerate().map(engine).collect::<Result<Vec<_>>>()
        });
        // Last, so that none is let through that is not used.
        let admitted = engines.and_then(|engines| {
            let state = self.state();
            let admitted = self.chip.admit(&requesters);
            drop(state);
            admitted.map(|()| engines)
        });
        match admitted {
            Ok(engines) => {
                let weak = engines.iter().map(Arc::downgrade).collect();
                let all = All { engines: weak, windows, channels: AtomicUsize::new(0) };
                // There is no other: a port takes engines once.
                let _ = self.engines.all.set(all);
                Ok(engines)
            }
            Err(error) => {
                windows.iter().for_each(|(address, len)| self.device.unmap(*address, *len));
                Err(error)
            }
        }
    }

    /// A channel to a window, of the next engine in turn.
    pub fn dma(self: &Arc<Core>, window: usize) -> Result<Box<dyn DmaChannel>> {
        let all = self.engines.all.get().filter(|all| !all.engines.is_empty());
        let all = all.ok_or(PortError::Unsupported("DMA engine"))?;
        let turn = all.channels.fetch_add(1, Ordering::Relaxed) % all.engines.len();
        let engine = all.engines[turn].upgrade().ok_or(PortError::Unsupported("DMA engine"))?;
        let target = Target::new(self, window);
        let behind = target.start() - self.apertures[window].offset;
        let address = all.windows[window].0 + behind as u64;
        let window = SlottedOutbound::new(target);
        Ok(Box::new(Channel::new(engine, Box::new(Way { window, address }))?))
    }
}

impl engine::Host for Core {
    fn refresh(&self) -> Option<u64> {
        let state = self.look();
        // A trial is not to fail because the peer's windows are not set yet.
        (state.up && state.reached).then_some(state.generation)
    }

    fn sources(&self) -> Vec<Source> {
        self.engines.sources().clone()
    }

    fn trial_address(&self, engine: usize) -> u64 {
        let first = self.engines.all.get().and_then(|all| all.windows.first());
        first.map_or(0, |(address, _)| address + layout::trial_at(engine) as u64)
    }

    fn read_trial(&self, engine: usize) -> [u64; PATTERN / 8] {
        let aperture = self.apertures[0];
        let mut words = [0u64; PATTERN / 8];
        // SAFETY: a local of this length.
        unsafe {
            let at = aperture.offset + layout::trial_at(engine);
            self.device.load(aperture.bar, at, words.as_mut_ptr().cast(), PATTERN);
        }
        self.count(Event::Reads, words.len() as u64);
        words
    }

    fn tell(&self) {
        self.engines.transferred.store(true, Ordering::SeqCst);
        self.waiters.tell();
    }
}

/// A window as a channel has it.
struct Way {
    window: SlottedOutbound<Target>,
    address: u64,
}

impl engine::Window for Way {
    fn open(&mut self, offset: usize, len: usize) -> Result<()> {
        self.window.open_as_told(offset, len)
    }

    fn permitted(&mut self, offset: usize, len: usize) -> usize {
        self.window.permitted(offset, len)
    }

    fn store_flag(&mut self, offset: usize, value: u64) {
        // SAFETY: eight bytes of a local.
        unsafe { self.window.write(offset, (&raw const value).cast(), 8) };
        self.window.flush();
    }

    fn address(&self) -> u64 {
        self.address
    }

    fn generation(&self) -> u64 {
        self.window.face().up_generation().unwrap_or(0)
    }

    fn count(&self, event: Event) {
        self.window.face().count(event, 1);
    }
}
