// SPDX-License-Identifier: Apache-2.0
//! Translations: who is behind a slot, set by its owner, followed by the peer.

use super::layout::{LinkMemory, Side};
use super::link::Link;
use super::sys::{self, Processes, SharedMapping};
use super::words::{Contents, Translation};
use crate::ntb::port::{self, BusAddress, Event, PortError, Result, Window};
use std::ops::Range;
use std::os::fd::{AsFd, IntoRawFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use tombolo_core::memory::page_size;

/// First bus address given out.
const BUS_START: u64 = 1 << 40;

/// Memory known to the bus, and the slots of this handle that point to it.
#[derive(Debug, Default)]
pub struct Registry {
    regions: Vec<Registered>,
    next: u64,
    open: Vec<Open>,
}

/// A slot opened by this handle.
#[derive(Debug)]
struct Open {
    window: usize,
    slot: usize,
    region: BusAddress,
    generation: u64,
}

impl Open {
    fn is_at(&self, window: usize, slot: usize) -> bool {
        (self.window, self.slot) == (window, slot)
    }

    /// False when it was closed since, or set by another process of the host.
    fn is_current(&self, side: &Side) -> bool {
        let entry = &side.windows[self.window][self.slot];
        entry.generation.load(Ordering::SeqCst) == self.generation
    }
}

#[derive(Debug)]
struct Registered {
    address: BusAddress,
    /// Where it lies in this process.
    base: usize,
    len: u64,
    file: RegisteredFile,
    file_offset: u64,
}

/// A descriptor that peers find the memory by. A program that closes descriptors which are not its
/// own closes this one too: whoever needed it has opened it before.
#[derive(Debug)]
struct RegisteredFile {
    file: Option<OwnedFd>,
    inode: u64,
}

impl RegisteredFile {
    fn number(&self) -> u32 {
        self.file.as_ref().map_or(u32::MAX, sys::number_of)
    }
}

impl Drop for RegisteredFile {
    fn drop(&mut self) {
        let Some(file) = self.file.take() else { return };
        if sys::inode_of(&file).ok() != Some(self.inode) {
            // The number is nobody's, or somebody else's by now.
            let _ = file.into_raw_fd();
        }
    }
}

impl Registry {
    /// Registers `region` at an address aligned to `align` (a power of two).
    pub fn register(&mut self, region: &port::Region<'_>, align: u64) -> Result<BusAddress> {
        if region.len == 0 || !region.file_offset.is_multiple_of(page_size() as u64) {
            return Err(PortError::Invalid(format!(
                "memory of {} bytes at file offset {} cannot be registered: it must not be empty \
                 and must start on a page",
                region.len, region.file_offset
            )));
        }
        let file = region.file.ok_or(PortError::Unsupported("way to memory without a file"))?;
        let file = file.try_clone_to_owned();
        let file = file.map_err(|e| PortError::system("keeping registered memory open", e))?;
        let inode = sys::inode_of(&file)?;
        let file = RegisteredFile { file: Some(file), inode };
        let address = BusAddress(self.next.max(BUS_START).next_multiple_of(align));
        // A gap behind every region: an address just outside belongs to nobody.
        self.next = address.0 + region.len.next_multiple_of(4096) + 4096;
        let (len, file_offset) = (region.len, region.file_offset);
        let base = region.base.expose_provenance();
        self.regions.push(Registered { address, base, len, file, file_offset });
        Ok(address)
    }

    /// What is registered, by its addresses in this process.
    pub fn sources(&self) -> Vec<Range<usize>> {
        let range = |region: &Registered| region.base..region.base + region.len as usize;
        self.regions.iter().map(range).collect()
    }

    pub fn unregister(&mut self, address: BusAddress) -> Result<()> {
        let found = self.regions.iter().position(|region| region.address == address);
        let found = found.ok_or_else(|| {
            PortError::Invalid(format!("no memory is registered at {:#x}", address.0))
        })?;
        if let Some(open) = self.open.iter().find(|open| open.region == address) {
            return Err(PortError::Invalid(format!(
                "memory at {:#x} is still behind slot {} of window {}",
                address.0, open.slot, open.window
            )));
        }
        self.regions.swap_remove(found);
        Ok(())
    }

    /// Closes what this handle has opened and nobody has changed since.
    pub fn close_own(&mut self, link: &Link, side: usize) -> Result<()> {
        self.forget_closed(link.side(side));
        for open in self.open.drain(..) {
            close(link.side(side), open.window, open.slot);
        }
        link.drain(1 - side)
    }

    /// Sets the translations of `first_slot` and those after it, `size` bytes in all.
    pub fn set(
        &mut self,
        link: &Link,
        side: usize,
        window: usize,
        first_slot: usize,
        (address, size): (BusAddress, u64),
    ) -> Result<()> {
        let rules = &link.config.windows[window];
        check(rules, first_slot, address, size)?;
        let region = self.region_at(address)?;
        let region_address = region.address;
        let slot_size = rules.slot_size();
        for index in 0..size.div_ceil(slot_size) {
            let slot = first_slot + index as usize;
            let into_region = address.0 - region_address.0 + index * slot_size;
            let left = (size - index * slot_size).min(slot_size);
            let region = self.region_at(region_address)?;
            let contents = Contents {
                pid: std::process::id(),
                fd: region.file.number(),
                inode: region.file.inode,
                region_offset: region.file_offset,
                region_len: region.len,
                offset: into_region,
                size: region.len.saturating_sub(into_region).min(left),
            };
            let generation = open(link, side, window, slot, &contents)?;
            self.open.retain(|open| !open.is_at(window, slot));
            self.open.push(Open { window, slot, region: region_address, generation });
        }
        Ok(())
    }

    /// Closes slots, whoever has opened them.
    pub fn clear(
        &mut self,
        link: &Link,
        side: usize,
        window: usize,
        slots: Range<usize>,
    ) -> Result<()> {
        for slot in slots {
            close(link.side(side), window, slot);
            self.open.retain(|open| !open.is_at(window, slot));
        }
        link.drain(1 - side)
    }

    /// Forgets slots that a reset has closed or another process has set.
    pub fn forget_closed(&mut self, side: &Side) {
        self.open.retain(|open| open.is_current(side));
    }

    fn region_at(&self, address: BusAddress) -> Result<&Registered> {
        let holds = |region: &&Registered| {
            address >= region.address && address.0 - region.address.0 < region.len
        };
        self.regions.iter().find(holds).ok_or_else(|| {
            PortError::Invalid(format!("no memory is registered at {:#x}", address.0))
        })
    }
}

/// Checks a translation against the window's rules; the messages say what would be right.
fn check(rules: &Window, first_slot: usize, address: BusAddress, size: u64) -> Result<()> {
    let room = rules.size.saturating_sub(first_slot as u64 * rules.slot_size());
    let wrong = if first_slot >= rules.slots {
        format!("slot {first_slot} of {}", rules.slots)
    } else if size == 0 || size > room {
        format!("size {size}, and {room} bytes are left of the window")
    } else if !size.is_multiple_of(rules.size_align) {
        format!("size {size}, not a multiple of {}", rules.size_align)
    } else if !address.0.is_multiple_of(rules.addr_align) {
        format!("address {:#x}, not a multiple of {:#x}", address.0, rules.addr_align)
    } else if rules.size_aligned && !(size.is_power_of_two() && address.0.is_multiple_of(size)) {
        format!("size {size} at {:#x}: not a power of two aligned to itself", address.0)
    } else {
        return Ok(());
    };
    Err(PortError::Invalid(format!("this translation cannot be set: {wrong}")))
}

/// Points a slot to memory; gives the generation it then has.
fn open(link: &Link, side: usize, window: usize, slot: usize, contents: &Contents) -> Result<u64> {
    let entry = &link.side(side).windows[window][slot];
    claim(entry)?;
    let finished = (|| {
        if entry.is_open() {
            close(link.side(side), window, slot);
        }
        link.drain(1 - side)?;
        // Only whoever holds the claim does this.
        let generation = entry.open(contents);
        link.side(side).window_changes[window].fetch_add(1, Ordering::SeqCst);
        link.side(side).count(Event::TranslationsSet, 1);
        Ok(generation)
    })();
    entry.changing.store(0, Ordering::Release);
    finished
}

/// Closes a slot if it is open.
fn close(side: &Side, window: usize, slot: usize) {
    if side.windows[window][slot].close() {
        side.window_changes[window].fetch_add(1, Ordering::SeqCst);
        side.count(Event::TranslationsCleared, 1);
    }
}

/// Closes all slots of a side, as losing the link does on some chips.
pub fn reset(side: &Side, windows: usize) {
    for window in 0..windows {
        for slot in 0..side.windows[window].len() {
            close(side, window, slot);
        }
    }
}

/// Becomes the one process that changes `entry`; takes over from a dead one.
fn claim(entry: &Translation) -> Result<()> {
    let own = std::process::id();
    let order = (Ordering::Acquire, Ordering::Relaxed);
    match entry.changing.compare_exchange(0, own, order.0, order.1) {
        Ok(_) => Ok(()),
        Err(other) if other != own && !sys::is_alive(other) => {
            let taken = entry.changing.compare_exchange(other, own, order.0, order.1);
            taken.map(drop).map_err(busy)
        }
        Err(other) => Err(busy(other)),
    }
}

fn busy(pid: u32) -> PortError {
    PortError::Busy(format!("process {pid} is setting the same translation"))
}

/// What a slot was found to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    pub generation: u64,
    /// The registered memory as a whole.
    region: Region,
    /// Where in it the slot starts.
    pub offset: u64,
    /// Bytes open from the start of the slot.
    pub size: u64,
}

/// Registered memory, as its peer names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Region {
    pid: u32,
    fd: u32,
    inode: u64,
    file_offset: u64,
    len: u64,
}

impl Target {
    /// Whether `next`, the slot behind, goes on where this one of `slot_size` bytes ends.
    pub fn continues_in(&self, next: &Target, slot_size: u64) -> bool {
        self.region == next.region
            && self.size == slot_size
            && self.offset.checked_add(slot_size) == Some(next.offset)
    }
}

/// Reads what is behind a slot. None when it is closed or about to change.
pub fn look_up(memory: &LinkMemory, side: usize, window: usize, slot: usize) -> Option<Target> {
    let (generation, contents) = memory.sides[side].windows[window][slot].read()?;
    let Contents { pid, fd, inode, region_offset: file_offset, region_len: len, offset, size } =
        contents;
    let region = Region { pid, fd, inode, file_offset, len };
    Some(Target { generation, region, offset, size })
}

/// Mappings of the peer's memory, shared by the handles of a port. Registered memory is mapped as a
/// whole, when the first handle needs any of it, and stays mapped as long as one does: a translation
/// that is lost with the link and set again costs no system call, which might fail by then.
#[derive(Debug)]
pub struct MapCache {
    processes: Processes,
    maps: Mutex<Vec<(Region, Weak<SharedMapping>)>>,
}

impl MapCache {
    /// An empty one, of the processes that this one sees now.
    pub fn new() -> MapCache {
        MapCache { processes: Processes::find(), maps: Mutex::default() }
    }

    /// The memory of `target`. Less than was registered where the file ends before.
    pub fn mapping(&self, target: &Target) -> Result<Arc<SharedMapping>> {
        let mut cached = self.maps.lock().unwrap_or_else(PoisonError::into_inner);
        let found = cached.iter().find(|(region, _)| *region == target.region);
        if let Some(mapping) = found.and_then(|(_, mapping)| mapping.upgrade()) {
            return Ok(mapping);
        }
        let Region { pid, fd, inode, file_offset, len } = target.region;
        let file = self.processes.open_file_of(pid, fd, inode)?;
        let len = len.min(sys::len_of(&file)?.saturating_sub(file_offset));
        let mapping = Arc::new(SharedMapping::new(file.as_fd(), file_offset, len as usize)?);
        cached.retain(|(_, mapping)| mapping.strong_count() > 0);
        cached.push((target.region, Arc::downgrade(&mapping)));
        Ok(mapping)
    }
}
