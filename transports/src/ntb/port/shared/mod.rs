// SPDX-License-Identifier: Apache-2.0
//! Ports that several processes of a host use. One has the devices open, the *owner*; the others use them beside it.
//!
//! | of a port | in the other processes |
//! |---|---|
//! | outbound window, the peer's open slots | mapped, from the descriptor that the owner has passed ([`Client`]): nobody else takes part in a write |
//! | state of the link, doorbells that have rung, masks | [`Words`] in a memory file, which the owner's thread keeps when the device interrupts; who waits sleeps on one of them |
//! | ringing the peer | a register or memory, where the kind of port says which; else the owner does it, and is told by a message that is not answered |
//! | registered memory, translations, scratchpads, the link | requests to the owner, which a thread of it serves ([`Server`]) |
//! | DMA engines | none: they are the owner's |
//!
//! - The IOMMU opens memory of all to the device on behalf of the owner, which maps it from the memory file that it is
//!   given. So its limit of locked memory has to be as large as all of it.
//! - A process that ends, in whatever way: the owner closes its slots and lets go of its memory.
//! - An owner that ends: the others see the link go down for good, and let go of the device. When all have, the kernel
//!   resets it, as for one process.
//! - Processes are of one user and one job, who have met through the launcher. What they say is checked all the same: no
//!   request makes the owner touch memory that is not there, or close what is another's.

mod client;
mod introduction;
mod message;
mod owner;
mod server;
mod sharer;
#[cfg(test)]
pub mod tests;
mod words;

pub use client::{Client, DeviceShare, Given, Kind, Share};
pub use owner::ports;
pub use server::Server;
pub use words::{BELLS, PLACES, Words};

use super::listener::pause_between_looks;
use super::{
    BusAddress, Capabilities, Counters, InboundMemory, LinkState, NtbPort, Outbound, PortError,
    Region, Result, Wake,
};
use introduction::Accepted;
use message::{ARGUMENTS, Op};
use owner::{Owner, Watch};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tombolo_core::board::monotonic_ns;

/// Between looks at a link that the owner is asked for: it looks by itself more often.
const LOOK_NS: u64 = 10_000_000;

/// A port that another process has open.
pub struct SharedPort {
    /// Among those of the owner.
    index: usize,
    capabilities: Capabilities,
    has_engines: bool,
    words: Arc<Words>,
    client: Arc<dyn Client>,
    owner: Arc<Owner>,
    _watch: Arc<Watch>,
    seen_generation: AtomicU64,
    looked: AtomicU64,
}

impl SharedPort {
    fn new(index: usize, accepted: Accepted, owner: Arc<Owner>, watch: Arc<Watch>) -> SharedPort {
        let Accepted { capabilities, words, client, has_engines } = accepted;
        let (seen_generation, looked) = (AtomicU64::new(client.generation()), AtomicU64::new(0));
        let _watch = watch;
        SharedPort {
            index,
            capabilities,
            has_engines,
            words,
            client,
            owner,
            _watch,
            seen_generation,
            looked,
        }
    }

    fn ask(&self, op: Op, arguments: &[u64]) -> Result<(u64, String)> {
        let mut all = [0; ARGUMENTS];
        all[..arguments.len()].copy_from_slice(arguments);
        self.owner.ask(self.index, op, all, None)
    }

    fn check_slots(&self, window: usize, first_slot: usize, slots: u64) -> Result<()> {
        let all = self.capabilities.windows.get(window).map_or(0, |window| window.slots);
        if first_slot < all && slots <= (all - first_slot) as u64 {
            return Ok(());
        }
        Err(PortError::Invalid(format!(
            "there are no {slots} slots from {first_slot} on in window {window}: it has {all}"
        )))
    }

    /// Where memory is in the window that is fixed; none where it is elsewhere, or there is no such window.
    fn in_fixed(&self, region: &Region<'_>) -> Option<u64> {
        let window = self.capabilities.windows.first().filter(|window| window.fixed)?;
        let (base, _) = self.client.fixed(0)?;
        let offset = region.base.addr().wrapping_sub(base.as_ptr().addr()) as u64;
        let inside = offset < window.size && region.len <= window.size - offset;
        inside.then_some(offset)
    }

    fn is_fixed(&self) -> bool {
        self.capabilities.windows.iter().any(|window| window.fixed)
    }
}

impl NtbPort for SharedPort {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn leaves_engines(&self) -> bool {
        self.has_engines
    }

    fn link_enable(&self) -> Result<()> {
        self.ask(Op::LinkEnable, &[]).map(|_| ())
    }

    fn link_disable(&self) -> Result<()> {
        self.ask(Op::LinkDisable, &[]).map(|_| ())
    }

    fn link_state(&self) -> LinkState {
        let (now, before) = (monotonic_ns(), self.looked.load(Ordering::Relaxed));
        if now.saturating_sub(before) >= LOOK_NS {
            self.looked.store(now, Ordering::Relaxed);
            self.owner.tell(self.index, Op::Look);
        }
        self.client.link_state()
    }

    fn link_event(&self) -> bool {
        let now = self.client.generation();
        self.seen_generation.swap(now, Ordering::Relaxed) != now
    }

    fn inbound_memory(
        &self,
        window: usize,
        first_slot: usize,
        len: usize,
    ) -> Result<InboundMemory> {
        let shape = self.capabilities.windows.get(window);
        let (slot_size, page) = shape.map_or((1, 1), |it| (it.slot_size(), it.size_align));
        let size = (len as u64).max(1).next_multiple_of(page);
        self.check_slots(window, first_slot, size.div_ceil(slot_size))?;
        if !shape.is_some_and(|shape| shape.fixed) {
            return InboundMemory::new(len);
        }
        let fixed = self.client.fixed(first_slot * slot_size as usize);
        let (base, mapping) = fixed.ok_or(PortError::Unsupported("memory"))?;
        // SAFETY: inside this side's window, as was checked. The peer may write there only when the slots are opened,
        // and even then only what nobody takes for anything but bytes.
        unsafe { base.write_bytes(0, size as usize) };
        // SAFETY: the device keeps its memory mapped.
        Ok(unsafe { InboundMemory::of_device(mapping, base, size as usize) })
    }

    fn register(&self, region: &Region<'_>) -> Result<BusAddress> {
        let address = |(address, _): (u64, String)| BusAddress(address);
        if let Some(offset) = self.in_fixed(region) {
            return self.ask(Op::RegisterFixed, &[offset, region.len]).map(address);
        }
        let file = region.file.filter(|_| !self.is_fixed());
        let file = file.ok_or(PortError::Unsupported("window onto memory of the program"))?;
        let arguments = [region.file_offset, region.len, 0, 0];
        self.owner.ask(self.index, Op::Register, arguments, Some(file)).map(address)
    }

    fn unregister(&self, address: BusAddress) -> Result<()> {
        self.ask(Op::Unregister, &[address.0]).map(|_| ())
    }

    fn mw_set_trans(
        &self,
        window: usize,
        first_slot: usize,
        address: BusAddress,
        size: u64,
    ) -> Result<()> {
        if self.owner.is_gone() {
            return Err(PortError::NotConnected);
        }
        let arguments = [window as u64, first_slot as u64, address.0, size];
        self.ask(Op::SetTrans, &arguments).map(|_| ())
    }

    fn mw_clear_trans(&self, window: usize, first_slot: usize, slots: usize) -> Result<()> {
        self.check_slots(window, first_slot, slots as u64)?;
        let arguments = [window as u64, first_slot as u64, slots as u64];
        let done = self.ask(Op::ClearTrans, &arguments);
        // Nothing is open where there is no owner.
        if self.owner.is_gone() { Ok(()) } else { done.map(|_| ()) }
    }

    fn outbound(&self, window: usize) -> Result<Box<dyn Outbound>> {
        self.check_slots(window, 0, 1)?;
        self.client.outbound(window)
    }

    fn db_read(&self) -> u64 {
        self.client.pending() & self.db_valid_mask()
    }

    fn db_clear(&self, bits: u64) {
        self.client.clear(bits);
    }

    fn db_read_mask(&self) -> u64 {
        self.client.mask() & self.db_valid_mask()
    }

    fn db_set_mask(&self, bits: u64) {
        self.client.set_mask(bits);
    }

    fn db_clear_mask(&self, bits: u64) {
        self.client.clear_mask(bits);
    }

    fn peer_db_set(&self, bits: u64) {
        let bits = bits & self.db_valid_mask();
        if bits != 0 && !self.client.ring(bits) {
            // Whoever has found none there tells of all.
            if self.words.to_ring().fetch_or(bits, Ordering::SeqCst) == 0 {
                self.owner.tell(self.index, Op::Ring);
            }
        }
    }

    fn db_wait(&self, bits: u64, timeout: Duration) -> Wake {
        let bits = bits & self.db_valid_mask();
        let look = || {
            // In this order: a ringer sets the bit before it reads the mask.
            let masked = self.client.mask();
            let pending = self.client.pending() & bits & !masked;
            let link_changed =
                self.client.generation() != self.seen_generation.load(Ordering::Relaxed);
            let done = pending != 0 || link_changed;
            (done, (done, Wake { pending, link_changed, transferred: false }))
        };
        if !self.client.looks() {
            return self.words.wait(timeout, look).1;
        }
        let begun = Instant::now();
        loop {
            let waited = begun.elapsed();
            let left = timeout.saturating_sub(waited);
            let pause = pause_between_looks(waited);
            let (done, wake) = self.words.wait(left.min(pause), look);
            if done || left.is_zero() {
                return wake;
            }
        }
    }

    fn spad_read(&self, index: usize) -> u32 {
        self.ask(Op::SpadRead, &[index as u64]).map_or(u32::MAX, |(value, _)| value as u32)
    }

    fn spad_write(&self, index: usize, value: u32) {
        // As a register of a device that is gone.
        let _ = self.ask(Op::SpadWrite, &[index as u64, value.into()]);
    }

    fn peer_spad_read(&self, index: usize) -> u32 {
        self.ask(Op::PeerSpadRead, &[index as u64]).map_or(u32::MAX, |(value, _)| value as u32)
    }

    fn peer_spad_write(&self, index: usize, value: u32) {
        let _ = self.ask(Op::PeerSpadWrite, &[index as u64, value.into()]);
    }

    fn counters(&self) -> Counters {
        self.words.counters()
    }

    fn describe(&self) -> String {
        match self.ask(Op::Describe, &[]) {
            Ok((_, text)) => {
                format!("{text}; used beside the first PE of this host, which has it open")
            }
            Err(error) => error.to_string(),
        }
    }
}
