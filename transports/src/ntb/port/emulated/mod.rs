// SPDX-License-Identifier: Apache-2.0
//! Emulated NTB hardware: processes of one machine play hosts of a ring.
//!
//! Processes of different hosts share nothing but the memory of their link (registers, and nothing
//! that data passes through) and what is registered behind windows. Rules follow a [`Profile`];
//! time is left alone ([`Speed::Direct`]) or modelled on the clock of the wall
//! ([`Speed::Modelled`], see `pace.rs` for how and for what it gets wrong).
//!
//! What happens when:
//!
//! - **A process is killed**: nothing. As with hardware its host's registers, scratchpads and
//!   translations stay, writes into its memory still land where a peer has it mapped, and fault where
//!   none has yet. Only protocols above notice. Places and claims it held are taken over.
//! - **A host dies** ([`Fault::HostDie`]) or **a link goes down**: writes on their way are cut at a
//!   TLP and lost, reads give all ones, doorbells and scratchpad writes to the peer vanish. With the
//!   PLX profile translations and doorbell registers of both ends are reset, scratchpads are not.
//! - **A handle is dropped**: translations set through it are closed.
//!
//! What can lose a posted write without a word, and how the protocol notices:
//!
//! | cause | notice |
//! |---|---|
//! | the link goes down, a host dies: before the write or while it is under way | everything written later through the same handle is lost as well, until it opens its range again; drivers do so under a new epoch, in which packets of the old one are not seen and are repeated |
//! | the peer closes a slot or points it elsewhere, or loses it with the link | the same |
//! | the peer has not opened the slot yet | opening the range fails: no hello line, no link |
//! | the memory behind it cannot be mapped: no descriptor, address space or rights left, no `/proc` | opening the range fails, and people are told why the link is not used; nothing is mapped later |
//! | the end of a window, of a translation, of memory | rings lie inside of what is opened, or opening fails |
//! | the writing process ends with writes under way, or between payload and header | its heartbeats end: peers repeat, then give it up |
//! | payload is lost and its header is not, whatever the reason | the seal behind the payload is not that of the packet: dropped and repeated |
//! | a stray bit ([`Fault::Corrupt`]) | CRC32C, where it is switched on; else not at all |
//! | direct puts: link or translation change meanwhile | [`WindowMapping::write`] says so, or the number behind them does not arrive: repeated over the ring |
//! | a doorbell or scratchpad write | sleepers look every millisecond; greetings are repeated |
//!
//! Several processes of a host open the same link and share all registers: each takes its own
//! doorbell bits and its own slots. When a range is opened, its memory is reached through `/proc`, which the kernel
//! allows between processes with the same credentials; there is no name and no socket, and nothing
//! to clean up. The descriptors are not needed after that.
//!
//! [`WindowMapping::write`]: super::WindowMapping::write

mod config;
mod dma;
mod doorbell;
mod fabric;
mod fault;
mod flight;
mod layout;
mod link;
mod outbound;
mod pace;
mod posted;
mod profile;
mod random;
mod requester;
mod sys;
#[cfg(test)]
mod tests;
mod translation;
mod wire;
mod words;
mod writer;

pub use config::{LinkConfig, WINDOW_BYTES};
pub use fabric::{Fabric, FabricSpec, HOSTS, HostPorts};
pub use fault::{Fault, FaultPlan};
#[cfg(any(test, feature = "testing"))]
pub(crate) use fault::{Subject, parse_clause, parse_time};
pub use profile::{Profile, Speed, WriteCombining};

use super::{
    BusAddress, Capabilities, Counters, DmaChannel, Event, InboundMemory, LinkState, NtbPort,
    Outbound, PortError, Region, Result, Wake,
};
use layout::Side;
use link::Link;
use posted::Posted;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use translation::{MapCache, Registry};
use wire::{Keeper, Wire};
use words::Need;

/// One end of an emulated link, as one process has it open.
pub struct EmulatedPort {
    link: Arc<Link>,
    side: usize,
    capabilities: Capabilities,
    registry: Arc<Mutex<Registry>>,
    maps: Arc<MapCache>,
    /// Where time is modelled; the thread ends first.
    wire: Option<(Keeper, Arc<Wire>)>,
    seen_generation: AtomicU64,
    /// Channels have carried out what was queued.
    transferred: Arc<AtomicBool>,
}

impl EmulatedPort {
    /// Opens the end of a link at `host`. The descriptor is not needed afterwards.
    pub fn open(link: impl AsFd, host: u32) -> Result<EmulatedPort> {
        let link = Link::open(link)?;
        let hosts = link.config.hosts_of_sides();
        let side = hosts.iter().position(|end| *end == host).ok_or_else(|| {
            PortError::Invalid(format!(
                "link {} ties hosts {} and {}, not host {host}",
                link.config.link, hosts[0], hosts[1]
            ))
        })?;
        let config = &link.config;
        let combining = config.write_combining == WriteCombining::Adversarial;
        let windows = config.windows.clone();
        let capabilities = config.profile.capabilities(windows, link.is_modelled(), combining);
        let link = Arc::new(link);
        let wire = match link.is_modelled() {
            false => None,
            true => {
                let delivery = capabilities.doorbell_delivery;
                let wire = Wire::new(Arc::clone(&link), side, delivery);
                let keeper = wire.keep();
                let failed = |e| PortError::system("starting the thread of an NTB link", e);
                Some((keeper.map_err(failed)?, wire))
            }
        };
        Ok(EmulatedPort {
            seen_generation: AtomicU64::new(link.word().generation()),
            link,
            wire,
            side,
            capabilities,
            registry: Arc::default(),
            maps: Arc::new(MapCache::new()),
            transferred: Arc::default(),
        })
    }

    /// How the link was made.
    pub fn config(&self) -> &LinkConfig {
        &self.link.config
    }

    /// Host at the other end.
    pub fn peer_host(&self) -> u32 {
        self.link.config.hosts_of_sides()[1 - self.side]
    }

    fn local(&self) -> &Side {
        self.link.side(self.side)
    }

    fn peer(&self) -> &Side {
        self.link.side(1 - self.side)
    }

    fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check_window(&self, window: usize) -> Result<()> {
        if window < self.capabilities.windows.len() {
            return Ok(());
        }
        Err(PortError::Invalid(format!(
            "there is no window {window}: the port has {}",
            self.capabilities.windows.len()
        )))
    }

    fn posted(&self, window: usize) -> Result<Posted> {
        self.check_window(window)?;
        let wire = self.wire.as_ref().map(|(_, wire)| Arc::clone(wire));
        Posted::new(Arc::clone(&self.link), Arc::clone(&self.maps), wire, self.side, window)
    }

    fn own_need(&self) -> Need {
        if self.side == 0 { Need::Enabled0 } else { Need::Enabled1 }
    }

    /// True when a posted register write gets through; counts it as lost when not.
    fn reaches_peer(&self) -> bool {
        let up = self.link.word().is_up();
        if !up {
            self.local().count(Event::Lost, 1);
        }
        up
    }
}

impl NtbPort for EmulatedPort {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn link_enable(&self) -> Result<()> {
        self.link.change(self.own_need(), true);
        Ok(())
    }

    fn link_disable(&self) -> Result<()> {
        self.link.change(self.own_need(), false);
        self.link.drain(0)?;
        self.link.drain(1)
    }

    fn link_state(&self) -> LinkState {
        let mut state = true_state(&self.link);
        let stuck = self.link.memory().faults.stuck_belief.load(Ordering::Relaxed);
        state.up |= stuck >> self.side & 1 == 1;
        state
    }

    fn link_event(&self) -> bool {
        let now = self.link.word().generation();
        self.seen_generation.swap(now, Ordering::Relaxed) != now
    }

    fn inbound_memory(&self, window: usize, _slot: usize, len: usize) -> Result<InboundMemory> {
        self.check_window(window)?;
        InboundMemory::new(len)
    }

    fn register(&self, region: &Region<'_>) -> Result<BusAddress> {
        let largest = self.capabilities.windows.iter().map(|window| window.size).max();
        self.registry().register(region, largest.unwrap_or(4096))
    }

    fn unregister(&self, address: BusAddress) -> Result<()> {
        let mut registry = self.registry();
        registry.forget_closed(self.local());
        registry.unregister(address)
    }

    fn mw_set_trans(
        &self,
        window: usize,
        first_slot: usize,
        address: BusAddress,
        size: u64,
    ) -> Result<()> {
        self.check_window(window)?;
        if !self.link.word().is_up() {
            return Err(PortError::NotConnected);
        }
        self.registry().set(&self.link, self.side, window, first_slot, (address, size))
    }

    fn mw_clear_trans(&self, window: usize, first_slot: usize, slots: usize) -> Result<()> {
        self.check_window(window)?;
        let all = self.capabilities.windows[window].slots;
        if first_slot > all || slots > all - first_slot {
            return Err(PortError::Invalid(format!(
                "slots {first_slot} to {} of a window with {all}",
                first_slot.saturating_add(slots)
            )));
        }
        self.registry().clear(&self.link, self.side, window, first_slot..first_slot + slots)
    }

    fn outbound(&self, window: usize) -> Result<Box<dyn Outbound>> {
        Ok(Box::new(outbound::EmulatedOutbound::new(self.posted(window)?, Arc::clone(&self.maps))))
    }

    fn db_read(&self) -> u64 {
        pace::register_read(&self.link);
        doorbell::read(&self.link, self.side) & self.db_valid_mask()
    }

    fn db_clear(&self, bits: u64) {
        doorbell::clear(self.local(), bits);
    }

    fn db_read_mask(&self) -> u64 {
        doorbell::read_mask(self.local()) & self.db_valid_mask()
    }

    fn db_set_mask(&self, bits: u64) {
        doorbell::set_mask(self.local(), bits & self.db_valid_mask());
    }

    fn db_clear_mask(&self, bits: u64) {
        let delivery = self.capabilities.doorbell_delivery;
        doorbell::clear_mask(self.local(), delivery, bits & self.db_valid_mask());
    }

    fn peer_db_set(&self, bits: u64) {
        let arrival_ps = pace::register_write(&self.link, self.side);
        let bits = bits & self.db_valid_mask();
        if let Some((_, wire)) = self.wire.as_ref().filter(|_| bits != 0) {
            wire.ring(bits, arrival_ps + writer::delay_ps(self.link.memory()));
        } else if bits != 0 && self.reaches_peer() {
            self.local().count(Event::DoorbellsRung, 1);
            doorbell::ring(self.peer(), self.capabilities.doorbell_delivery, bits, arrival_ps);
        }
    }

    fn db_wait(&self, bits: u64, timeout: Duration) -> Wake {
        let bits = bits & self.db_valid_mask();
        doorbell::wait(&self.link, self.side, bits, timeout, || {
            let seen = self.seen_generation.load(Ordering::Relaxed);
            let link_changed = self.link.word().generation() != seen;
            let transferred = self.transferred.swap(false, Ordering::SeqCst);
            Wake { link_changed, transferred, ..Wake::default() }
        })
    }

    fn poll(&self) {
        if let Some((_, wire)) = &self.wire {
            wire.poll();
        }
    }

    fn rest(&self) {
        if let Some((_, wire)) = &self.wire {
            wire.rest();
        }
    }

    fn spad_read(&self, index: usize) -> u32 {
        pace::register_read(&self.link);
        self.spad(self.local(), index).unwrap_or(u32::MAX)
    }

    fn spad_write(&self, index: usize, value: u32) {
        self.set_spad(self.local(), index, value);
    }

    fn peer_spad_read(&self, index: usize) -> u32 {
        self.local().count(Event::Reads, 1);
        pace::remote_read(&self.link);
        if !self.link.word().is_up() {
            return u32::MAX;
        }
        self.spad(self.peer(), index).unwrap_or(u32::MAX)
    }

    fn peer_spad_write(&self, index: usize, value: u32) {
        let arrival_ps = pace::register_write(&self.link, self.side);
        pace::wait_until(&self.link, arrival_ps);
        if self.reaches_peer() {
            self.set_spad(self.peer(), index, value);
        }
    }

    fn dma(&self, window: usize) -> Result<Box<dyn DmaChannel>> {
        let limits = self.capabilities.dma.ok_or(PortError::Unsupported("DMA engine"))?;
        let posted = self.posted(window)?;
        let (registry, transferred) = (Arc::clone(&self.registry), Arc::clone(&self.transferred));
        Ok(Box::new(dma::EmulatedDma::new(posted, limits, registry, transferred)?))
    }

    fn counters(&self) -> Counters {
        self.local().counters()
    }

    fn describe(&self) -> String {
        let config = &self.link.config;
        let timing = &config.timing;
        let state = if self.link_state().up { "up" } else { "down" };
        let pace = if self.link.is_modelled() {
            format!(
                "modelled {} x{}, payload {} B, ceiling {:.2} GB/s by CPU",
                timing.speed,
                timing.width,
                timing.max_payload,
                timing.ceiling_bytes_per_s(64) / 1e9
            )
        } else {
            "direct speed".into()
        };
        format!(
            "emulated {} link {} to host {}: {state}, {pace}",
            config.profile,
            config.link,
            self.peer_host()
        )
    }
}

impl EmulatedPort {
    fn spad(&self, side: &Side, index: usize) -> Option<u32> {
        let spads = &side.spads[..self.capabilities.spads];
        spads.get(index).map(|spad| spad.load(Ordering::Acquire))
    }

    fn set_spad(&self, side: &Side, index: usize, value: u32) {
        if let Some(spad) = side.spads[..self.capabilities.spads].get(index) {
            spad.store(value, Ordering::Release);
        }
    }
}

impl Drop for EmulatedPort {
    /// Closes the translations set through this handle: its memory is about to go away.
    fn drop(&mut self) {
        let closed = self.registry().close_own(&self.link, self.side);
        if let Err(error) = closed {
            tracing::warn!(%error, "closing windows on the way out");
        }
    }
}

/// The link as it is, whatever its ends believe.
fn true_state(link: &Link) -> LinkState {
    let word = link.word();
    let timing = &link.config.timing;
    LinkState {
        up: word.is_up(),
        speed: timing.speed,
        width: timing.width,
        max_payload: timing.max_payload,
        generation: word.generation(),
    }
}
