// SPDX-License-Identifier: Apache-2.0
//! What the owner of devices does for one other process, and takes back when that has ended.

use super::client::Share;
use super::message::{Op, Request};
use crate::ntb::port::{BusAddress, InboundMemory, NtbPort, PortError, Region, Result};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Ranges of memory that a process may have registered with a port: one for each lane, and its segments.
const REGIONS_MAX: usize = 1024;

/// A port that others use.
pub struct Lent {
    pub port: Arc<dyn NtbPort>,
    pub share: Share,
    /// By window: slots that processes have opened, and in which places these are.
    open: Mutex<Vec<Opening>>,
}

struct Opening {
    place: usize,
    window: usize,
    slots: Range<usize>,
}

impl Lent {
    /// The error says why nobody else can use the port.
    pub fn new(port: Arc<dyn NtbPort>) -> Result<Lent> {
        Ok(Lent { share: port.share()?, port, open: Mutex::default() })
    }

    fn open(&self) -> MutexGuard<'_, Vec<Opening>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One process, as far as one port is concerned.
pub struct Sharer {
    lent: Arc<Lent>,
    place: usize,
    registered: Vec<Registered>,
    /// The process itself has closed its end: it writes no more.
    has_left: bool,
}

struct Registered {
    address: BusAddress,
    len: u64,
    /// Mapped for as long as it is registered; none of a fixed window.
    _memory: Option<InboundMemory>,
}

impl Sharer {
    /// Gives it a place; none is left where that fails.
    pub fn new(lent: &Arc<Lent>) -> Result<Sharer> {
        let none = || PortError::Exhausted("too many processes of this host use a port".into());
        let place = lent.share.words.take_place().ok_or_else(none)?;
        Ok(Sharer { lent: lent.clone(), place, registered: vec![], has_left: false })
    }

    pub fn place(&self) -> usize {
        self.place
    }

    /// The process has ended, or does not use the port any more.
    pub fn leave(&mut self) {
        self.has_left = true;
    }

    /// Rings what the process wants rung.
    pub fn ring(&self) {
        let bits = self.lent.share.words.take_to_ring(self.place);
        if bits != 0 {
            self.lent.port.peer_db_set(bits);
        }
    }

    /// Does what is asked for.
    pub fn serve(&mut self, request: &Request, file: Option<OwnedFd>) -> Result<(u64, String)> {
        let port = &self.lent.port;
        let [a, b, c, d] = request.arguments;
        let none = |done: Result<()>| done.map(|()| (0, String::new()));
        match request.op {
            Op::Register => {
                let missing = || PortError::Invalid("memory without a file".into());
                self.register(file.ok_or_else(missing)?, a, b)
            }
            Op::RegisterFixed => self.register_fixed(a, b),
            Op::Unregister => none(self.unregister(BusAddress(a))),
            Op::SetTrans => none(self.set_trans(number(a)?, number(b)?, BusAddress(c), d)),
            Op::ClearTrans => none(self.clear_trans(number(a)?, number(b)?, number(c)?)),
            Op::LinkEnable => none(port.link_enable()),
            Op::LinkDisable => none(port.link_disable()),
            Op::SpadRead => Ok((port.spad_read(number(a)?).into(), String::new())),
            Op::PeerSpadRead => Ok((port.peer_spad_read(number(a)?).into(), String::new())),
            Op::SpadWrite => {
                port.spad_write(number(a)?, b as u32);
                none(Ok(()))
            }
            Op::PeerSpadWrite => {
                port.peer_spad_write(number(a)?, b as u32);
                none(Ok(()))
            }
            Op::Describe => Ok((0, port.describe())),
            Op::Ring => none(Ok(())),
            Op::Look => {
                port.link_state();
                none(Ok(()))
            }
        }
    }

    fn register(&mut self, file: OwnedFd, offset: u64, len: u64) -> Result<(u64, String)> {
        let page = tombolo_core::memory::page_size() as u64;
        // The bus has whole pages, and so has a file behind its last byte.
        let whole = usize::try_from(len.checked_next_multiple_of(page).unwrap_or(u64::MAX));
        let whole = whole.map_err(|_| PortError::Invalid(format!("{len} bytes of memory")))?;
        let memory = match InboundMemory::of_file(file, offset, whole)? {
            memory if len > 0 => memory,
            _ => return Err(PortError::Invalid("no bytes of memory".into())),
        };
        let region = Region { len, file_offset: offset, ..memory.region() };
        let address = self.lent.port.register_for_other(&region)?;
        // There may be many, and many processes: the mapping alone is used.
        self.keep(address, len, Some(memory.without_file()))
    }

    fn register_fixed(&mut self, offset: u64, len: u64) -> Result<(u64, String)> {
        let fixed = self.lent.share.fixed;
        let (base, size) = fixed.ok_or(PortError::Unsupported("fixed window"))?;
        if offset >= size || len > size - offset {
            return Err(PortError::Invalid(format!(
                "{len} bytes at {offset:#x} of a window with {size}"
            )));
        }
        let base = (base as *mut u8).wrapping_add(offset as usize);
        let address = self.lent.port.register(&Region { base, len, file: None, file_offset: 0 })?;
        self.keep(address, len, None)
    }

    fn keep(
        &mut self,
        address: BusAddress,
        len: u64,
        memory: Option<InboundMemory>,
    ) -> Result<(u64, String)> {
        if self.registered.len() >= REGIONS_MAX {
            let _ = self.lent.port.unregister(address);
            return Err(PortError::Exhausted("too much memory was registered".into()));
        }
        self.registered.push(Registered { address, len, _memory: memory });
        Ok((address.0, String::new()))
    }

    fn unregister(&mut self, address: BusAddress) -> Result<()> {
        let place = self.registered.iter().position(|known| known.address == address);
        let place =
            place.ok_or_else(|| PortError::Invalid("no such memory is registered".into()))?;
        self.lent.port.unregister(address)?;
        self.registered.swap_remove(place);
        Ok(())
    }

    fn set_trans(&self, window: usize, slot: usize, address: BusAddress, size: u64) -> Result<()> {
        let holds = |known: &Registered| {
            address >= known.address && address.0 - known.address.0 < known.len
        };
        if !self.registered.iter().any(holds) {
            return Err(PortError::Invalid(format!("no memory is registered at {:#x}", address.0)));
        }
        let slots = self.slots(window, slot, |slot_size| size.div_ceil(slot_size))?;
        let mut open = self.lent.open();
        self.check_others(&open, window, &slots)?;
        let own = |opening: &Opening| opening.place == self.place && opening.window == window;
        let had_some = open.iter().any(|opening| own(opening) && opening.meets(&slots));
        let set = self.lent.port.mw_set_trans(window, slot, address, size);
        // A link that is down may still have what was there before; of other slots nothing is open where that fails.
        if set.is_ok() || had_some {
            open.retain(|opening| !opening.is_in(self.place, window, &slots));
            open.push(Opening { place: self.place, window, slots });
        }
        set
    }

    fn clear_trans(&self, window: usize, slot: usize, count: usize) -> Result<()> {
        let slots = self.slots(window, slot, |_| count as u64)?;
        let mut open = self.lent.open();
        self.check_others(&open, window, &slots)?;
        self.lent.port.mw_clear_trans(window, slot, count)?;
        open.retain(|opening| !opening.is_in(self.place, window, &slots));
        Ok(())
    }

    /// A range of slots that there is.
    fn slots(
        &self,
        window: usize,
        first: usize,
        count: impl FnOnce(u64) -> u64,
    ) -> Result<Range<usize>> {
        let shape = self.lent.port.capabilities().windows.get(window);
        let slots = shape.and_then(|shape| {
            let count = usize::try_from(count(shape.slot_size())).ok()?;
            let end = first.checked_add(count).filter(|end| *end <= shape.slots)?;
            Some(first..end)
        });
        slots.ok_or_else(|| {
            PortError::Invalid(format!("no such slots from {first} on in window {window}"))
        })
    }

    fn check_others(&self, open: &[Opening], window: usize, slots: &Range<usize>) -> Result<()> {
        let taken = |opening: &&Opening| {
            opening.place != self.place && opening.window == window && opening.meets(slots)
        };
        if let Some(other) = open.iter().find(taken) {
            return Err(PortError::Invalid(format!(
                "slots {:?} of window {window} are those of another process",
                other.slots
            )));
        }
        // What is open and was opened for nobody is the owner's.
        let asked = |slot: &usize| {
            open.iter().any(|opening| opening.window == window && opening.slots.contains(slot))
        };
        let owners = |slot: &usize| !asked(slot) && (self.lent.share.is_open)(window, *slot);
        match slots.clone().find(owners) {
            None => Ok(()),
            Some(slot) => Err(PortError::Invalid(format!(
                "slot {slot} of window {window} is that of the process that has the device open"
            ))),
        }
    }
}

impl Opening {
    fn meets(&self, slots: &Range<usize>) -> bool {
        self.slots.start < slots.end && slots.start < self.slots.end
    }

    /// Whether it is the process's own and lies in these slots as a whole: of one that does not, some stay open.
    fn is_in(&self, place: usize, window: usize, slots: &Range<usize>) -> bool {
        let inside = slots.start <= self.slots.start && self.slots.end <= slots.end;
        self.place == place && self.window == window && inside
    }
}

impl Drop for Sharer {
    /// Nothing of the process is behind windows any more.
    fn drop(&mut self) {
        let mut open = self.lent.open();
        for opening in open.extract_if(.., |opening| opening.place == self.place) {
            let Opening { window, slots, .. } = opening;
            if let Err(error) = self.lent.port.mw_clear_trans(window, slots.start, slots.len()) {
                tracing::info!(%error, "closing an NTB window of a process that has ended");
            }
        }
        drop(open);
        for known in self.registered.drain(..) {
            if let Err(error) = self.lent.port.unregister(known.address) {
                tracing::warn!(%error, "memory of a process that has ended");
                // The device may still reach it.
                std::mem::forget(known);
            }
        }
        // The writes of one that was disconnected still end by themselves, and are counted until then.
        if self.has_left {
            (self.lent.share.leave)(self.place);
        }
    }
}

fn number(word: u64) -> Result<usize> {
    usize::try_from(word).map_err(|_| PortError::Invalid(format!("{word} is no index")))
}
