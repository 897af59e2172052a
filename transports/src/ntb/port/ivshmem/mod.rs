// SPDX-License-Identifier: Apache-2.0
//! The `ivshmem-doorbell` device of QEMU: memory that two virtual machines share, and interrupts
//! between them. With two devices each, virtual machines form a ring.
//!
//! | of a bridge | here |
//! |---|---|
//! | inbound window | half of the shared memory; [fixed](super::Window::fixed): nothing is translated |
//! | translation | a word per slot in the shared memory; who writes keeps to it |
//! | doorbell | a latch in the shared memory, and an interrupt where it is not masked |
//! | scratchpad, link | words in the shared memory |
//!
//! - The device is no bridge: what one side writes is there at once, and nothing but its peer's driver
//!   keeps a side from writing where it should not. Nothing that is read there is believed: it is
//!   checked by whoever uses it.
//! - A link has two sides. Which one a device is follows from the number that the
//!   [`server`] gives it.
//! - A device belongs to one process, which may let others of its host use the port ([`client`]).
//! - A process that dies leaves its side enabled until another opens the device, as a bridge does; a
//!   virtual machine that ends does not: the [`server`] disables its side.

pub mod client;
mod device;
mod layout;
mod outbound;
pub mod server;
#[cfg(test)]
mod tests;

use super::listener::{self, Listener, Source, Waiters};
use super::shared::{Client, Share, Words};
use super::slots;
use super::vfio;
use super::{
    Arrival, BusAddress, Capabilities, Counters, DoorbellDelivery, Event, InboundMemory, LinkEvent,
    LinkState, NtbPort, Outbound, PortError, Region, Result, Wake, Window,
};
use device::{Device, PciDevice};
use layout::{Section, Shared};
use nix::sys::eventfd::EventFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Doorbell bits; they share the vectors of a device.
const BITS: u32 = 16;
/// How long closing waits for a write of the other side that does not end.
const PATIENCE: Duration = Duration::from_secs(1);
const PAGE: u64 = 4096;

/// One end of a link.
pub struct IvshmemPort {
    core: Arc<Core>,
    capabilities: Capabilities,
    waiters: Arc<Waiters>,
    _listener: Listener,
    /// Memory that was registered: offset in the window, and length.
    registered: Mutex<Vec<(u64, u64)>>,
    seen_generation: AtomicU64,
    /// Distinguishes what is behind a slot from what was.
    openings: AtomicU32,
}

/// What a port and what was made through it share.
struct Core {
    device: Arc<dyn Device>,
    shared: Shared,
    side: usize,
    /// Of which others see events and counts; all else is in the memory of the device.
    words: Arc<Words>,
    /// Others may have the port, and counters for writes.
    is_lent: AtomicBool,
}

impl IvshmemPort {
    /// Takes over a function.
    pub(super) fn open(device: vfio::Device) -> Result<IvshmemPort> {
        IvshmemPort::new(Arc::new(PciDevice::new(device)?))
    }

    /// Takes a device over: what was there before of its side is gone.
    fn new(device: Arc<dyn Device>) -> Result<IvshmemPort> {
        let side = match device.position() {
            side @ (0 | 1) => side as usize,
            other => {
                return Err(PortError::Invalid(format!(
                    "{} is number {other} on its link: a link has two sides, and its server must \
                     serve no more",
                    device.describe()
                )));
            }
        };
        let shared = Shared::new(device.clone())?;
        let words = Arc::new(Words::new(0)?);
        let is_lent = AtomicBool::new(false);
        let core = Core { device, shared, side, words, is_lent };
        core.own().take_over(core.device.interrupts().len() as u32);
        let core = Arc::new(core);
        let waiters = Arc::new(Waiters::default());
        let listener = Listener::start("shmem-ivshmem", core.clone(), waiters.clone())
            .map_err(|e| PortError::system("starting the thread of an ivshmem device", e))?;
        Ok(IvshmemPort {
            capabilities: capabilities(&core),
            waiters,
            _listener: listener,
            registered: Mutex::default(),
            seen_generation: AtomicU64::new(core.shared.generation()),
            openings: AtomicU32::new(0),
            core,
        })
    }

    fn window(&self) -> Window {
        self.capabilities.windows[0]
    }

    fn registered(&self) -> MutexGuard<'_, Vec<(u64, u64)>> {
        self.registered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Brings the count of this side to `enabled`, and tells both sides.
    fn change_link(&self, enabled: bool) {
        let count = &self.core.own().enabled;
        let turn = |count: u64| (count % 2 != u64::from(enabled)).then(|| count + 1);
        if count.fetch_update(Ordering::SeqCst, Ordering::SeqCst, turn).is_ok() {
            self.core.count(Event::LinkChanges, 1);
            self.core.interrupt(1);
            self.waiters.tell();
        }
    }

    fn check_slots(&self, window: usize, first_slot: usize, slots: u64) -> Result<()> {
        let all = self.window().slots;
        if window == 0 && first_slot < all && slots <= (all - first_slot) as u64 {
            return Ok(());
        }
        Err(PortError::Invalid(format!(
            "there are no {slots} slots from {first_slot} on in window {window}: the port has one \
             window of {all}"
        )))
    }

    /// Waits until no write of a side is on its way.
    fn await_writes(&self, side: usize) -> Result<()> {
        let begun = Instant::now();
        for writer in &self.core.shared.section(side).writers {
            while writer.0.load(Ordering::SeqCst) != 0 && self.core.shared.is_present(side) {
                if begun.elapsed() > PATIENCE {
                    return Err(PortError::Busy("a write into a window does not end".into()));
                }
                std::thread::yield_now();
            }
        }
        Ok(())
    }
}

impl Core {
    /// Whether the peer's registers can be reached; counts what is lost when not.
    fn reaches_peer(&self) -> bool {
        let up = self.shared.is_up();
        if !up {
            self.count(Event::Lost, 1);
        }
        up
    }

    fn own(&self) -> &Section {
        self.shared.section(self.side)
    }

    fn peer(&self) -> &Section {
        self.shared.section(1 - self.side)
    }

    fn count(&self, event: Event, amount: u64) {
        self.words.count(event, amount);
    }

    /// Raises the vectors of some bits at the peer.
    fn interrupt(&self, bits: u64) {
        let vectors = self.peer().vectors.load(Ordering::Relaxed).clamp(1, 64);
        let raised = (0..64).filter(|bit| bits >> bit & 1 == 1);
        let raised = raised.fold(0u64, |all, bit| all | 1 << (bit % vectors));
        for vector in (0..64).filter(|vector| raised >> vector & 1 == 1) {
            self.device.ring(1 - self.side as u16, vector);
        }
    }
}

impl Source for Core {
    fn interrupts(&self) -> &[EventFd] {
        self.device.interrupts()
    }

    fn attend(&self, raised: u64) {
        listener::take(self.interrupts(), raised);
    }
}

fn capabilities(core: &Core) -> Capabilities {
    Capabilities {
        name: "ivshmem",
        windows: vec![core.shared.window()],
        write_combining: false,
        // Memory that machines share is cached as any other.
        store_bytes: 64,
        arrival: Arrival::AtFlush,
        doorbell_bits: BITS,
        doorbell_vectors: core.device.interrupts().len() as u32,
        doorbell_delivery: DoorbellDelivery::PerBitVector,
        spads: layout::SPADS,
        resets_on_link_down: false,
        link_event: LinkEvent::Interrupt,
        dma: None,
        paced: false,
        modelled: false,
    }
}

impl NtbPort for IvshmemPort {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn link_enable(&self) -> Result<()> {
        self.change_link(true);
        Ok(())
    }

    fn link_disable(&self) -> Result<()> {
        self.change_link(false);
        self.await_writes(0)?;
        self.await_writes(1)
    }

    fn link_state(&self) -> LinkState {
        Client::link_state(&self.core)
    }

    fn link_event(&self) -> bool {
        let now = self.core.shared.generation();
        self.seen_generation.swap(now, Ordering::Relaxed) != now
    }

    fn inbound_memory(
        &self,
        window: usize,
        first_slot: usize,
        len: usize,
    ) -> Result<InboundMemory> {
        let size = (len as u64).max(1).next_multiple_of(PAGE);
        let slot_size = self.window().slot_size();
        self.check_slots(window, first_slot, size.div_ceil(slot_size))?;
        let offset = first_slot * slot_size as usize;
        let base = self.core.shared.window_base(self.core.side).wrapping_add(offset);
        let base = NonNull::new(base).ok_or(PortError::Unsupported("memory"))?;
        // SAFETY: inside this side's window, as was checked. The peer may write there only when the
        // slots are opened, and even then only what nobody takes for anything but bytes.
        unsafe { base.write_bytes(0, size as usize) };
        // SAFETY: the device keeps its memory mapped.
        Ok(unsafe { InboundMemory::of_device(self.core.device.clone(), base, size as usize) })
    }

    fn register(&self, region: &Region<'_>) -> Result<BusAddress> {
        let start = self.core.shared.window_base(self.core.side).addr();
        let offset = region.base.addr().wrapping_sub(start) as u64;
        let size = self.window().size;
        if offset >= size || region.len > size - offset {
            return Err(PortError::Unsupported("window onto memory of the program"));
        }
        self.registered().push((offset, region.len));
        Ok(BusAddress(offset))
    }

    fn unregister(&self, address: BusAddress) -> Result<()> {
        let mut registered = self.registered();
        let place = registered.iter().position(|(offset, _)| *offset == address.0);
        let place =
            place.ok_or_else(|| PortError::Invalid("no such memory is registered".into()))?;
        let (offset, len) = registered[place];
        let slot_size = self.window().slot_size();
        let slots = offset / slot_size..(offset + len).div_ceil(slot_size);
        let entries = &self.core.own().entries[slots.start as usize..slots.end as usize];
        if entries.iter().any(|entry| entry.load(Ordering::Relaxed) != 0) {
            return Err(PortError::Invalid("a window leads to this memory".into()));
        }
        registered.swap_remove(place);
        Ok(())
    }

    fn mw_set_trans(
        &self,
        window: usize,
        first_slot: usize,
        address: BusAddress,
        size: u64,
    ) -> Result<()> {
        let slot_size = self.window().slot_size();
        self.check_slots(window, first_slot, size.div_ceil(slot_size))?;
        if size == 0 || !size.is_multiple_of(PAGE) || !address.0.is_multiple_of(PAGE) {
            return Err(PortError::Invalid(format!(
                "{size} bytes at {:#x}: both are to be multiples of {PAGE}",
                address.0
            )));
        }
        let end = address.0.checked_add(size);
        let holds = |(offset, len): &(u64, u64)| {
            *offset <= address.0 && end.is_some_and(|end| end <= offset + len)
        };
        if !self.registered().iter().any(holds) || address.0 != first_slot as u64 * slot_size {
            return Err(PortError::Invalid(
                "only the memory that was made for these slots can be behind them".into(),
            ));
        }
        if !self.core.shared.is_up() {
            return Err(PortError::NotConnected);
        }
        let opening = self.openings.fetch_add(1, Ordering::Relaxed);
        let slots = size.div_ceil(slot_size);
        for slot in 0..slots {
            let limit = (size - slot * slot_size).min(slot_size);
            let entry = slots::entry(opening, limit as u32);
            self.core.own().entries[first_slot + slot as usize].store(entry, Ordering::SeqCst);
        }
        self.core.count(Event::TranslationsSet, slots);
        Ok(())
    }

    fn mw_clear_trans(&self, window: usize, first_slot: usize, slots: usize) -> Result<()> {
        self.check_slots(window, first_slot, slots as u64)?;
        for entry in &self.core.own().entries[first_slot..first_slot + slots] {
            if entry.swap(0, Ordering::SeqCst) != 0 {
                self.core.count(Event::TranslationsCleared, 1);
            }
        }
        self.await_writes(1 - self.core.side)
    }

    fn outbound(&self, window: usize) -> Result<Box<dyn Outbound>> {
        self.check_slots(window, 0, 1)?;
        Client::outbound(&self.core, window)
    }

    fn db_read(&self) -> u64 {
        self.core.pending() & self.db_valid_mask()
    }

    fn db_clear(&self, bits: u64) {
        self.core.clear(bits);
    }

    fn db_read_mask(&self) -> u64 {
        self.core.mask() & self.db_valid_mask()
    }

    fn db_set_mask(&self, bits: u64) {
        self.core.set_mask(bits);
    }

    fn db_clear_mask(&self, bits: u64) {
        self.core.own().mask.fetch_and(!bits, Ordering::SeqCst);
        self.waiters.tell();
    }

    fn peer_db_set(&self, bits: u64) {
        let bits = bits & self.db_valid_mask();
        if bits != 0 {
            self.core.ring(bits);
        }
    }

    fn db_wait(&self, bits: u64, timeout: Duration) -> Wake {
        let bits = bits & self.db_valid_mask();
        self.waiters.wait(timeout, || {
            let own = self.core.own();
            // The latch is read behind the mask: a ringer sets the one before it reads the other.
            let masked = own.mask.load(Ordering::SeqCst);
            let pending = own.pending.load(Ordering::SeqCst) & bits & !masked;
            let generation = self.core.shared.generation();
            let link_changed = generation != self.seen_generation.load(Ordering::Relaxed);
            let wake = Wake { pending, link_changed, transferred: false };
            (pending != 0 || link_changed, wake)
        })
    }

    fn spad_read(&self, index: usize) -> u32 {
        let spad = self.core.own().spads.get(index);
        spad.map_or(u32::MAX, |spad| spad.load(Ordering::Acquire))
    }

    fn spad_write(&self, index: usize, value: u32) {
        if let Some(spad) = self.core.own().spads.get(index) {
            spad.store(value, Ordering::Release);
        }
    }

    fn peer_spad_read(&self, index: usize) -> u32 {
        self.core.count(Event::Reads, 1);
        let spad = self.core.peer().spads.get(index).filter(|_| self.core.shared.is_up());
        spad.map_or(u32::MAX, |spad| spad.load(Ordering::Acquire))
    }

    fn peer_spad_write(&self, index: usize, value: u32) {
        if let Some(spad) = self.core.peer().spads.get(index).filter(|_| self.core.reaches_peer()) {
            spad.store(value, Ordering::Release);
        }
    }

    fn counters(&self) -> Counters {
        self.core.words.counters()
    }

    fn share(&self) -> Result<Share> {
        client::share(&self.core, &self.waiters)
    }

    fn describe(&self) -> String {
        format!(
            "{}, side {} of its link: {}, {} interrupt vectors here, {} there",
            self.core.device.describe(),
            self.core.side,
            if self.core.shared.is_up() { "up" } else { "down" },
            self.core.device.interrupts().len(),
            self.core.peer().vectors.load(Ordering::Relaxed)
        )
    }
}

impl Drop for IvshmemPort {
    /// Nothing of this process is behind the window any more. The link stays as it is: it belongs to
    /// the host.
    fn drop(&mut self) {
        for entry in &self.core.own().entries {
            entry.store(0, Ordering::SeqCst);
        }
    }
}
