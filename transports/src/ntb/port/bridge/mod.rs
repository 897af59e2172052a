// SPDX-License-Identifier: Apache-2.0
//! What the ports on real bridges have in common: all but the registers of their [`Chip`]s.
//!
//! | of a port | here |
//! |---|---|
//! | inbound window | the chip leads it, as a whole, to a range of addresses that are its own |
//! | translation | the IOMMU puts memory behind a slot of that range; what no slot leads to, no peer can reach |
//! | outbound window | a base address register, mapped into this process |
//! | open slots | the peer's port writes them into a page of this host, behind the first slot of window 0; and the sizes of its windows, which are to be those of this host |
//! | doorbell | taken from the chip by a thread of this process and kept in its memory; so are masks: a masked bit still interrupts, but wakes nobody. A word behind the first slot of window 0 where those of the chip cannot be used: whoever waits looks at it |
//! | scratchpad | a register; a word behind the first slot of window 0 where the chip has too few |
//!
//! - A device belongs to one process, which may let others of its host use the port ([`client`]). When all
//!   have ended, however they did, the kernel resets the device, and the peer sees the link go down.
//! - A process without an IOMMU before its device cannot open a window and is refused: the bridge
//!   would lead its peer to all memory of the machine.
//! - Registers of a device that was taken away or reset read as all ones. The port then says that its
//!   link is down, for good, and [`PortError::Gone`] to whoever asks for more.
//! - Nothing that the peer writes is believed: of what it says of its slots only numbers are used that
//!   lie inside of the window, and where it lies about them, its own host loses data.

mod chip;
pub mod client;
mod core;
mod device;
mod engines;
mod layout;
mod outbound;
mod reach;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use chip::{Aperture, Bell, Chip, ChipLink, Facts, News};
pub use core::chip_link;
pub use device::{Device, PciDevice, broken, gone};
pub use engines::Offer;

use self::core::{Behind, Core};
use super::engine::{Attendant, Engine, PER_HANDLE};
use super::listener::{Listener, pause_between_looks};
use super::shared::Share;
use super::slots::SlottedOutbound;
use super::{
    Arrival, BusAddress, Capabilities, Counters, DmaCapability, DmaChannel, Event, InboundMemory,
    LinkEvent, LinkState, NtbPort, Outbound, PortError, Region, Result, Wake,
};
use layout::page;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Between looks at a link whose interrupt may have been lost.
const LINK_POLL_MS: u32 = 1;
/// A first guess of what it costs to have an engine begin.
const START_NS: u64 = 1000;

/// One end of a link of a bridge.
pub struct BridgePort {
    core: Arc<Core>,
    capabilities: Capabilities,
    _listener: Listener,
    engines: Vec<(Arc<Engine>, Listener)>,
    /// Why engines that were offered are not used.
    refused: Option<String>,
    registered: Mutex<Registered>,
    seen_generation: AtomicU64,
}

/// Memory that was registered. Addresses are names: the IOMMU gives memory one of its own for every
/// slot that leads to it.
#[derive(Default)]
struct Registered {
    regions: Vec<Registration>,
    /// The last unit of names that was given out.
    last: u64,
}

struct Registration {
    name: u64,
    base: usize,
    len: u64,
}

impl BridgePort {
    /// Takes over the device of a chip: what was there before is gone.
    pub fn new(chip: impl Chip, device: Arc<dyn Device>) -> Result<BridgePort> {
        let core = Arc::new(Core::new(Box::new(chip), device)?);
        let listener = Listener::start("shmem-ntb-device", core.clone(), core.waiters.clone())
            .map_err(|e| PortError::system("starting the thread of an NTB device", e))?;
        let generation = core.words.generation();
        Ok(BridgePort {
            capabilities: capabilities(&core),
            _listener: listener,
            engines: vec![],
            refused: None,
            registered: Mutex::default(),
            seen_generation: AtomicU64::new(generation),
            core,
        })
    }

    /// Has engines write through the windows, before anything is registered. Where they cannot, the CPU
    /// copies, and people are told why.
    pub fn with_engines(mut self, offers: Vec<Offer>) -> BridgePort {
        if offers.is_empty() {
            return self;
        }
        match self.employ(offers) {
            Ok(engines) => self.engines = engines,
            Err(error) => {
                tracing::warn!(%error, "DMA engines beside {}: the CPU copies", self.describe());
                self.refused = Some(error.to_string());
            }
        }
        let facts = self.engines.iter().map(|(engine, _)| engine.facts().max_len);
        self.capabilities.dma = facts.min().map(|max_len| DmaCapability {
            channels: self.engines.len() as u32,
            max_len,
            descriptors: PER_HANDLE,
            start_ns: START_NS,
            needs_processor: false,
        });
        self
    }

    fn employ(&self, offers: Vec<Offer>) -> Result<Vec<(Arc<Engine>, Listener)>> {
        let engines = self.core.employ(offers)?;
        let attended = engines.into_iter().map(|engine| {
            let attendant = Arc::new(Attendant(engine.clone()));
            let listener = Listener::start("shmem-ntb-dma", attendant, self.core.waiters.clone());
            let listener =
                listener.map_err(|e| PortError::system("starting the thread of a DMA engine", e));
            Ok((engine, listener?))
        });
        attended.collect()
    }

    fn registered(&self) -> MutexGuard<'_, Registered> {
        self.registered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check_slots(&self, window: usize, first_slot: usize, slots: u64) -> Result<()> {
        let all = self.core.windows.get(window).map_or(0, |window| window.slots);
        if first_slot < all && slots <= (all - first_slot) as u64 {
            return Ok(());
        }
        Err(PortError::Invalid(format!(
            "there are no {slots} slots from {first_slot} on in window {window}: it has {all}"
        )))
    }

    /// Names are multiples of the size of every window.
    fn unit(&self) -> u64 {
        let sizes = self.capabilities.windows.iter().map(|window| window.size);
        sizes.fold(1, |all, size| all / common_divisor(all, size) * size)
    }

    /// Whether the peer can be reached; counts what is lost when not.
    fn reaches_peer(&self) -> bool {
        let up = self.core.words.up_generation().is_some();
        if !up {
            self.core.count(Event::Lost, 1);
        }
        up
    }
}

fn common_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { common_divisor(b, a % b) }
}

fn capabilities(core: &Core) -> Capabilities {
    Capabilities {
        name: core.facts.name,
        windows: core.windows.clone(),
        write_combining: core.device.combines(),
        store_bytes: if core.device.combines() { 64 } else { 8 },
        arrival: Arrival::Later,
        doorbell_bits: core.doorbell_bits(),
        doorbell_vectors: core.facts.doorbell_vectors,
        doorbell_delivery: core.facts.doorbell_delivery,
        spads: core.spads(),
        // The port sets everything again.
        resets_on_link_down: false,
        link_event: LinkEvent::PollMs(LINK_POLL_MS),
        dma: None,
        paced: true,
        modelled: false,
    }
}

impl NtbPort for BridgePort {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn link_enable(&self) -> Result<()> {
        self.core.enable(true)
    }

    fn link_disable(&self) -> Result<()> {
        self.core.enable(false)
    }

    fn link_state(&self) -> LinkState {
        let state = self.core.look();
        LinkState {
            up: state.up,
            speed: state.trained.speed,
            width: state.trained.width,
            max_payload: state.trained.max_payload,
            generation: self.core.words.generation(),
        }
    }

    fn link_event(&self) -> bool {
        drop(self.core.look());
        let now = self.core.words.generation();
        self.seen_generation.swap(now, Ordering::Relaxed) != now
    }

    fn inbound_memory(
        &self,
        window: usize,
        first_slot: usize,
        len: usize,
    ) -> Result<InboundMemory> {
        let slot_size =
            self.capabilities.windows.get(window).map_or(1, |window| window.slot_size());
        self.check_slots(window, first_slot, (len as u64).div_ceil(slot_size))?;
        InboundMemory::new(len)
    }

    fn register(&self, region: &Region<'_>) -> Result<BusAddress> {
        let address = self.register_for_other(region)?;
        self.core.engines.add_source(&*self.core.device, region.base, region.len);
        Ok(address)
    }

    fn register_for_other(&self, region: &Region<'_>) -> Result<BusAddress> {
        let base = region.base.addr();
        if region.len == 0 || !(base as u64).is_multiple_of(page()) {
            return Err(PortError::Invalid(format!(
                "{} bytes of memory at {base:#x}: it must start at a page",
                region.len
            )));
        }
        let unit = self.unit();
        let mut registered = self.registered();
        let name = (registered.last + 1).checked_mul(unit);
        let end = name.and_then(|name| name.checked_add(region.len));
        let (Some(name), Some(end)) = (name, end) else {
            return Err(PortError::Exhausted("too much memory was registered".into()));
        };
        registered.last = end.div_ceil(unit);
        registered.regions.push(Registration { name, base, len: region.len });
        Ok(BusAddress(name))
    }

    fn unregister(&self, address: BusAddress) -> Result<()> {
        let mut registered = self.registered();
        let place = registered.regions.iter().position(|region| region.name == address.0);
        let place =
            place.ok_or_else(|| PortError::Invalid("no such memory is registered".into()))?;
        let Registration { base, len, .. } = registered.regions[place];
        if self.core.leads_to(&self.core.state(), base as *mut u8, len) {
            return Err(PortError::Invalid("a window leads to this memory".into()));
        }
        registered.regions.swap_remove(place);
        self.core.engines.remove_source(&*self.core.device, base);
        Ok(())
    }

    fn mw_set_trans(
        &self,
        window: usize,
        first_slot: usize,
        address: BusAddress,
        size: u64,
    ) -> Result<()> {
        let slot_size =
            self.capabilities.windows.get(window).map_or(1, |window| window.slot_size());
        self.check_slots(window, first_slot, size.div_ceil(slot_size))?;
        let page = page();
        if size == 0 || !size.is_multiple_of(page) || !address.0.is_multiple_of(page) {
            return Err(PortError::Invalid(format!(
                "{size} bytes at {:#x}: both are to be multiples of {page}",
                address.0
            )));
        }
        let registered = self.registered();
        let holds = |region: &&Registration| {
            address.0 >= region.name && address.0 - region.name < region.len
        };
        let region = registered.regions.iter().find(holds).ok_or_else(|| {
            PortError::Invalid(format!("no memory is registered at {:#x}", address.0))
        })?;
        let from = address.0 - region.name;
        let base = (region.base as *mut u8).wrapping_add(from as usize);
        let memory = Behind { base, size, len: region.len - from };
        let mut state = self.core.look();
        // The peer learns of it when it is reached.
        match state.risen {
            true => self.core.open_slots(&mut state, window, first_slot, memory),
            false if state.gone => Err(gone(&*self.core.device)),
            false => Err(PortError::NotConnected),
        }
    }

    fn mw_clear_trans(&self, window: usize, first_slot: usize, slots: usize) -> Result<()> {
        self.check_slots(window, first_slot, slots as u64)?;
        let mut state = self.core.look();
        self.core.close_slots(&mut state, window, first_slot, slots);
        Ok(())
    }

    fn outbound(&self, window: usize) -> Result<Box<dyn Outbound>> {
        self.check_slots(window, 0, 1)?;
        Ok(Box::new(SlottedOutbound::new(outbound::Target::new(&self.core, window))))
    }

    fn db_valid_mask(&self) -> u64 {
        self.core.valid_bits()
    }

    fn db_read(&self) -> u64 {
        self.core.collect();
        self.core.words.pending().load(Ordering::SeqCst)
    }

    fn db_clear(&self, bits: u64) {
        self.core.words.pending().fetch_and(!bits, Ordering::SeqCst);
    }

    fn db_read_mask(&self) -> u64 {
        self.core.words.mask().load(Ordering::SeqCst) & self.core.valid_bits()
    }

    fn db_set_mask(&self, bits: u64) {
        self.core.words.mask().fetch_or(bits, Ordering::SeqCst);
    }

    fn db_clear_mask(&self, bits: u64) {
        self.core.words.mask().fetch_and(!bits, Ordering::SeqCst);
        self.core.waiters.tell();
    }

    fn peer_db_set(&self, bits: u64) {
        let bits = bits & self.core.valid_bits();
        if bits == 0 || !self.reaches_peer() {
            return;
        }
        self.core.count(Event::DoorbellsRung, 1);
        self.core.ring(bits);
    }

    fn db_wait(&self, bits: u64, timeout: Duration) -> Wake {
        let look = || {
            let masked = self.core.words.mask().load(Ordering::SeqCst);
            let pending = self.core.words.pending().load(Ordering::SeqCst) & bits & !masked;
            let generation = self.core.words.generation();
            let link_changed = generation != self.seen_generation.load(Ordering::Relaxed);
            let told = &self.core.engines.transferred;
            let transferred = told.load(Ordering::SeqCst) && told.swap(false, Ordering::SeqCst);
            let done = pending != 0 || link_changed || transferred;
            (done, (done, Wake { pending, link_changed, transferred }))
        };
        if self.core.has_bells() {
            return self.core.waiters.wait(timeout, look).1;
        }
        let begun = Instant::now();
        loop {
            self.core.collect();
            let waited = begun.elapsed();
            let left = timeout.saturating_sub(waited);
            let pause = pause_between_looks(waited);
            let (done, wake) = self.core.waiters.wait(left.min(pause), look);
            if done || left.is_zero() {
                return wake;
            }
        }
    }

    fn dma(&self, window: usize) -> Result<Box<dyn DmaChannel>> {
        if self.engines.is_empty() {
            return Err(PortError::Unsupported("DMA engine"));
        }
        self.check_slots(window, 0, 1)?;
        self.core.dma(window)
    }

    fn spad_read(&self, index: usize) -> u32 {
        let there = index < self.core.spads();
        if there { self.core.spad(index) } else { u32::MAX }
    }

    fn spad_write(&self, index: usize, value: u32) {
        if index < self.core.spads() {
            self.core.set_spad(index, value);
        }
    }

    fn peer_spad_read(&self, index: usize) -> u32 {
        self.core.count(Event::Reads, 1);
        let there = index < self.core.spads() && self.core.look().up;
        if there { self.core.peer_spad(index) } else { u32::MAX }
    }

    fn peer_spad_write(&self, index: usize, value: u32) {
        if index >= self.core.spads() {
            return;
        }
        match self.core.look().up {
            true => self.core.set_peer_spad(index, value),
            false => self.core.count(Event::Lost, 1),
        }
    }

    fn counters(&self) -> Counters {
        self.core.words.counters()
    }

    fn share(&self) -> Result<Share> {
        client::share(&self.core)
    }

    fn describe(&self) -> String {
        let state = self.core.look();
        let link = match (state.gone, state.up) {
            (true, _) => "does not answer any more".into(),
            (_, true) => format!(
                "up, {} x{}, payloads of {} bytes",
                state.trained.speed, state.trained.width, state.trained.max_payload
            ),
            _ => match &state.trouble {
                Some(trouble) => format!("down: {trouble}"),
                None if state.risen => "down: the neighbour's port does not answer".into(),
                None => "down".into(),
            },
        };
        let (name, device) = (self.core.facts.name, self.core.device.describe());
        let vectors = self.core.facts.doorbell_vectors;
        let mut text = format!("{name}, {device}: {link}, {vectors} interrupt vectors");
        for (engine, _) in &self.engines {
            text += &format!("; {}", engine.describe());
        }
        if let Some(why) = &self.refused {
            text += &format!("; its DMA engines are not used: {why}");
        }
        text
    }
}
