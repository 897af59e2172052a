// SPDX-License-Identifier: Apache-2.0
//! Two functions of a bridge without hardware: a model plays their registers, and here are the buses
//! of the two machines that they are plugged into. For tests.

#[cfg(test)]
pub mod cases;

use super::BridgePort;
use super::device::{BARS, Device};
use crate::ntb::port::vfio::Trained;
use crate::ntb::port::{InboundMemory, NtbPort, Outbound, PcieGen, Result};
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::collections::{BTreeMap, VecDeque};
use std::fmt::{self, Debug};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Bytes of the largest write that is one TLP.
const TLP: usize = 64;

/// The registers of a link: two functions, by side. What a machine reads or writes is aligned and
/// lies inside of a BAR.
pub trait Model: Send + Sync + 'static {
    /// Bytes of the BARs of a side.
    fn bars(&self, side: usize) -> [usize; BARS];

    /// Interrupt vectors of a side; whether they are those of MSI-X.
    fn vectors(&self, side: usize) -> (usize, bool);

    /// Two bytes of configuration space.
    fn config16(&self, _side: usize, _offset: usize) -> u16 {
        0
    }

    /// What a side reads.
    fn read(&mut self, side: usize, bar: usize, offset: usize, bytes: usize) -> u64;

    /// What a side writes.
    fn write(&mut self, access: Access, value: u64, lines: &Lines);

    /// Where the bytes go that a side writes through a window: an address at the other side.
    fn route(&self, side: usize, bar: usize, offset: usize) -> Option<u64>;

    /// Whether the bridge lets functions beside it write through its windows: that of a requester number.
    fn admits(&self, _side: usize, _requester: u16) -> bool {
        true
    }

    /// A machine has reset the function of its side.
    fn reset(&mut self, side: usize, lines: &Lines);
}

/// What is written to.
#[derive(Clone, Copy, Debug)]
pub struct Access {
    /// By whom.
    pub side: usize,
    /// In which base address register.
    pub bar: usize,
    /// Where in it.
    pub offset: usize,
    /// How many.
    pub bytes: usize,
}

/// The interrupt lines to both machines.
pub struct Lines {
    /// By side and vector.
    own: [Vec<EventFd>; 2],
    /// Those that lead elsewhere.
    tied: Mutex<[Vec<Option<EventFd>>; 2]>,
}

impl Lines {
    fn new(own: [Vec<EventFd>; 2]) -> Lines {
        let none = |events: &Vec<EventFd>| events.iter().map(|_| None).collect();
        Lines { tied: Mutex::new([none(&own[0]), none(&own[1])]), own }
    }

    /// Interrupts the machine of a side.
    pub fn raise(&self, side: usize, vector: usize) {
        let tied = self.tied.lock().unwrap_or_else(PoisonError::into_inner);
        let tied = tied[side].get(vector).expect("a vector that there is");
        let event = tied.as_ref().unwrap_or(&self.own[side][vector]);
        event.write(1).expect("room in an event");
    }
}

/// The model and both machines.
pub struct Bench<M> {
    inner: RwLock<Inner<M>>,
    lines: Lines,
    free: AtomicU64,
    /// By side: what functions beside its bridge have posted.
    posted: [Mutex<VecDeque<Posted>>; 2],
    /// By side: what was written through the windows of its bridge and is held there.
    held: [Mutex<Vec<Held>>; 2],
}

struct Inner<M> {
    model: M,
    machines: [Machine; 2],
}

/// What the IOMMU of a machine lets its function reach.
#[derive(Default)]
struct Machine {
    /// By address.
    maps: BTreeMap<u64, Map>,
    /// Writes that met nothing.
    faults: AtomicU64,
    /// The function does not answer.
    gone: bool,
    /// Processes that were killed so far: their threads still run here, but reach nothing.
    killed: u32,
    /// The root complex does not pass on what one function writes to another.
    isolated: bool,
    /// The bridge holds what is written through its windows.
    holds: bool,
}

#[derive(Clone, Copy, Debug)]
struct Map {
    behind: Behind,
    len: usize,
}

/// What is behind an address.
#[derive(Clone, Copy, Debug)]
enum Behind {
    /// Memory of the machine.
    Memory(usize),
    /// A base address register of the bridge, and an offset there.
    Bar(usize, usize),
}

/// What a function beside the bridge has written into one of its windows, and has not arrived.
struct Posted {
    requester: u16,
    bar: usize,
    offset: usize,
    bytes: Vec<u8>,
}

/// What a bridge holds.
struct Held {
    bar: usize,
    offset: usize,
    bytes: Vec<u8>,
}

impl Machine {
    /// Where `len` bytes from `address` on are.
    fn at(&self, address: u64, len: usize) -> Option<*mut u8> {
        let (start, map) = self.maps.range(..=address).next_back()?;
        let within = (address - start) as usize;
        let inside = within.checked_add(len).is_some_and(|end| end <= map.len);
        match map.behind {
            Behind::Memory(base) if inside => Some((base as *mut u8).wrapping_add(within)),
            _ => None,
        }
    }

    /// Which part of the bridge `len` bytes from `address` on are.
    fn bar_at(&self, address: u64, len: usize) -> Option<(usize, usize)> {
        let (start, map) = self.maps.range(..=address).next_back()?;
        let within = (address - start) as usize;
        let inside = within.checked_add(len).is_some_and(|end| end <= map.len);
        match map.behind {
            Behind::Bar(bar, offset) if inside => Some((bar, offset + within)),
            _ => None,
        }
    }
}

impl<M: Model> Bench<M> {
    /// Plugs both functions in.
    pub fn new(model: M) -> Arc<Bench<M>> {
        let event = |_| EventFd::from_value_and_flags(0, EfdFlags::EFD_NONBLOCK).unwrap();
        let lines = [0, 1].map(|side| (0..model.vectors(side).0).map(event).collect());
        let inner = Inner { model, machines: Default::default() };
        Arc::new(Bench {
            inner: RwLock::new(inner),
            lines: Lines::new(lines),
            free: AtomicU64::new(1 << 32),
            posted: Default::default(),
            held: Default::default(),
        })
    }

    /// The function of a side, as a process that opens it has it.
    pub fn function(self: &Arc<Bench<M>>, side: usize) -> Arc<Function<M>> {
        let process = self.inner().machines[side].killed;
        Arc::new(Function { bench: self.clone(), side, process })
    }

    fn inner(&self) -> RwLockReadGuard<'_, Inner<M>> {
        self.inner.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn inner_mut(&self) -> RwLockWriteGuard<'_, Inner<M>> {
        self.inner.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something to the registers that no driver does.
    pub fn tamper<T>(&self, act: impl FnOnce(&mut M, &Lines) -> T) -> T {
        act(&mut self.inner_mut().model, &self.lines)
    }

    /// Has the function of a side stop answering.
    pub fn lose(&self, side: usize) {
        self.inner_mut().machines[side].gone = true;
    }

    /// The ranges that the function of a side can reach: address and length.
    pub fn reachable(&self, side: usize) -> Vec<(u64, usize)> {
        let inner = self.inner();
        inner.machines[side].maps.iter().map(|(address, map)| (*address, map.len)).collect()
    }

    /// Writes that reached nothing at a side.
    pub fn faults(&self, side: usize) -> u64 {
        self.inner().machines[side].faults.load(Ordering::Relaxed)
    }

    /// Has the root complex of a side pass on nothing that one function writes to another.
    pub fn isolate(&self, side: usize) {
        self.inner_mut().machines[side].isolated = true;
    }

    /// A function beside the bridge of a side, in a process of that number there, reads memory of the
    /// machine. False: the IOMMU lets it not.
    pub fn fetch(&self, (side, process): (usize, u32), address: u64, bytes: &mut [u8]) -> bool {
        let inner = self.inner();
        let machine = &inner.machines[side];
        let at = machine.at(address, bytes.len()).filter(|_| machine.killed == process);
        if let Some(at) = at {
            // SAFETY: mapped memory of this length; words are whole, as the processor writes them.
            unsafe { deliver(bytes.as_mut_ptr(), at, bytes.len()) };
        }
        at.is_some()
    }

    /// Such a function writes: to memory of the machine at once, through the bridge by and by. False: the
    /// IOMMU lets it not.
    pub fn post(
        &self,
        (side, process): (usize, u32),
        requester: u16,
        address: u64,
        bytes: &[u8],
    ) -> bool {
        let inner = self.inner();
        let machine = &inner.machines[side];
        if machine.killed != process {
            return false;
        }
        if let Some(at) = machine.at(address, bytes.len()) {
            // SAFETY: mapped memory of this length.
            unsafe { deliver(at, bytes.as_ptr(), bytes.len()) };
            return true;
        }
        let Some((bar, offset)) = machine.bar_at(address, bytes.len()) else { return false };
        if !machine.isolated {
            let posted = Posted { requester, bar, offset, bytes: bytes.to_vec() };
            self.posted(side).push_back(posted);
        }
        true
    }

    fn posted(&self, side: usize) -> MutexGuard<'_, VecDeque<Posted>> {
        self.posted[side].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What functions beside the bridge of a side have posted arrives: `most` of it.
    pub fn settle(&self, side: usize, most: usize) {
        self.arrive(&self.inner(), side, most);
    }

    fn arrive(&self, inner: &Inner<M>, side: usize, most: usize) {
        let mut posted = self.posted(side);
        for _ in 0..most {
            let Some(Posted { requester, bar, offset, bytes }) = posted.pop_front() else { return };
            let (own, peer) = (&inner.machines[side], &inner.machines[1 - side]);
            let admitted = inner.model.admits(side, requester) && !own.gone && !peer.gone;
            if admitted && own.holds {
                self.hold(side, bar, offset, bytes);
                continue;
            }
            let route = || inner.model.route(side, bar, offset);
            if let Some(address) = admitted.then(route).flatten() {
                match peer.at(address, bytes.len()) {
                    // SAFETY: mapped memory of this length.
                    Some(at) => unsafe { deliver(at, bytes.as_ptr(), bytes.len()) },
                    None => _ = peer.faults.fetch_add(1, Ordering::Relaxed),
                }
            }
        }
    }

    fn hold(&self, side: usize, bar: usize, offset: usize, bytes: Vec<u8>) {
        let mut held = self.held[side].lock().unwrap_or_else(PoisonError::into_inner);
        held.push(Held { bar, offset, bytes });
    }

    /// What the kernel does with the function of a process that was killed.
    pub fn kill(&self, side: usize) {
        let mut inner = self.inner_mut();
        inner.machines[side].maps.clear();
        inner.machines[side].killed += 1;
        inner.model.reset(side, &self.lines);
    }
}

/// What may happen to a link. Sides are those of its ports.
pub trait Cable: Send + Sync {
    /// Has the function of a side stop answering.
    fn lose(&self, side: usize);

    /// From now on nothing arrives that a side writes through its windows, and nothing tells so.
    fn hold(&self, side: usize);

    /// All of it arrives, and what is written from now on as well.
    fn release(&self, side: usize);
}

impl<M: Model> Cable for Bench<M> {
    fn lose(&self, side: usize) {
        Bench::lose(self, side);
    }

    fn hold(&self, side: usize) {
        self.inner_mut().machines[side].holds = true;
    }

    fn release(&self, side: usize) {
        let mut inner = self.inner_mut();
        inner.machines[side].holds = false;
        let mut held = self.held[side].lock().unwrap_or_else(PoisonError::into_inner);
        for Held { bar, offset, bytes } in held.drain(..) {
            let route = |at| inner.model.route(side, bar, offset + at);
            for (index, part) in bytes.chunks(8).enumerate() {
                let peer = &inner.machines[1 - side];
                match route(index * 8).and_then(|address| peer.at(address, part.len())) {
                    // SAFETY: mapped memory of this length.
                    Some(at) => unsafe { deliver(at, part.as_ptr(), part.len()) },
                    None => _ = peer.faults.fetch_add(1, Ordering::Relaxed),
                }
            }
        }
    }
}

/// For servers of functions to virtual machines.
#[cfg(feature = "testing")]
impl<M: Model> Bench<M> {
    /// Resets the function of a side.
    pub fn reset(&self, side: usize) {
        self.inner_mut().model.reset(side, &self.lines);
    }

    /// Has a vector of a side write to another event, or to that of the function again.
    pub fn tie(&self, side: usize, vector: usize, event: Option<EventFd>) {
        let mut tied = self.lines.tied.lock().unwrap_or_else(PoisonError::into_inner);
        tied[side][vector] = event;
    }
}

/// One function.
pub struct Function<M> {
    bench: Arc<Bench<M>>,
    side: usize,
    process: u32,
}

impl<M> Debug for Function<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "side {} of a model", self.side)
    }
}

impl<M: Model> Function<M> {
    /// Whether nothing answers the process.
    /// Which process of its machine has it.
    pub fn process(&self) -> (usize, u32) {
        (self.side, self.process)
    }

    /// The buses that it is plugged into.
    pub fn bench(&self) -> &Arc<Bench<M>> {
        &self.bench
    }

    fn is_gone(&self, inner: &Inner<M>) -> bool {
        let machine = &inner.machines[self.side];
        machine.gone || machine.killed != self.process
    }

    fn read(&self, bar: usize, offset: usize, bytes: usize) -> u64 {
        let mut inner = self.bench.inner_mut();
        if self.is_gone(&inner) {
            return u64::MAX;
        }
        let inside = offset + bytes <= inner.model.bars(self.side)[bar];
        assert!(
            inside && offset.is_multiple_of(bytes),
            "read of {bytes} at {offset:#x} of BAR {bar}"
        );
        inner.model.read(self.side, bar, offset, bytes)
    }

    fn write(&self, bar: usize, offset: usize, bytes: usize, value: u64) {
        let mut inner = self.bench.inner_mut();
        if self.is_gone(&inner) {
            return;
        }
        let inside = offset + bytes <= inner.model.bars(self.side)[bar];
        assert!(
            inside && offset.is_multiple_of(bytes),
            "write of {bytes} at {offset:#x} of BAR {bar}"
        );
        let access = Access { side: self.side, bar, offset, bytes };
        inner.model.write(access, value, &self.bench.lines);
    }

    /// Gives `act` the parts of a range that are a TLP each, with the memory that they go to.
    fn each(
        &self,
        bar: usize,
        offset: usize,
        len: usize,
        mut act: impl FnMut(usize, usize, *mut u8),
    ) {
        let inner = self.bench.inner();
        // Whoever has seen what a function wrote later comes after what it has posted before.
        self.bench.arrive(&inner, self.side, usize::MAX);
        let peer = &inner.machines[1 - self.side];
        let mut done = 0;
        while done < len {
            let at = offset + done;
            let part = (TLP - at % TLP).min(len - done);
            let inside = at + part <= inner.model.bars(self.side)[bar];
            assert!(inside, "{part} bytes at {at:#x} of BAR {bar}");
            let route = || inner.model.route(self.side, bar, at);
            let lost = self.is_gone(&inner) || peer.gone;
            if let Some(address) = (!lost).then(route).flatten() {
                match peer.at(address, part) {
                    Some(memory) => act(done, part, memory),
                    None => _ = peer.faults.fetch_add(1, Ordering::Relaxed),
                }
            }
            done += part;
        }
    }
}

/// Copies as a root complex does: aligned words are whole, and later ones are seen after earlier ones.
unsafe fn deliver(to: *mut u8, from: *const u8, len: usize) {
    let mut at = 0;
    while at < len {
        // SAFETY: the caller vouches for both ranges; words are read and written inside of them.
        unsafe {
            let (to, from) = (to.add(at), from.add(at));
            if to.addr().is_multiple_of(8) && len - at >= 8 {
                let word = from.cast::<u64>().read_unaligned();
                AtomicU64::from_ptr(to.cast()).store(word, Ordering::Release);
                at += 8;
            } else {
                AtomicU8::from_ptr(to).store(from.read(), Ordering::Release);
                at += 1;
            }
        }
    }
}

/// The accesses of a [`Device`] to registers, of all widths, by one `read` and one `write` that are told the width.
macro_rules! accesses_by_width {
    () => {
        fn read32(&self, bar: usize, offset: usize) -> u32 {
            self.read(bar, offset, 4) as u32
        }

        fn write32(&self, bar: usize, offset: usize, value: u32) {
            self.write(bar, offset, 4, value.into());
        }

        fn read64(&self, bar: usize, offset: usize) -> u64 {
            self.read(bar, offset, 8)
        }

        fn write64(&self, bar: usize, offset: usize, value: u64) {
            self.write(bar, offset, 8, value);
        }

        fn read16(&self, bar: usize, offset: usize) -> u16 {
            self.read(bar, offset, 2) as u16
        }

        fn write16(&self, bar: usize, offset: usize, value: u16) {
            self.write(bar, offset, 2, value.into());
        }

        fn read8(&self, bar: usize, offset: usize) -> u8 {
            self.read(bar, offset, 1) as u8
        }

        fn write8(&self, bar: usize, offset: usize, value: u8) {
            self.write(bar, offset, 1, value.into());
        }
    };
}
#[cfg(test)]
pub(in crate::ntb::port) use accesses_by_width;

impl<M: Model> Device for Function<M> {
    fn bar_size(&self, bar: usize) -> usize {
        self.bench.inner().model.bars(self.side)[bar]
    }

    accesses_by_width!();

    fn config16(&self, offset: usize) -> u16 {
        let inner = self.bench.inner();
        match self.is_gone(&inner) {
            true => u16::MAX,
            false => inner.model.config16(self.side, offset),
        }
    }

    fn set_config16(&self, _offset: usize, _value: u16) -> Result<()> {
        Ok(())
    }

    fn reset(&self) -> Result<()> {
        let mut inner = self.bench.inner_mut();
        inner.model.reset(self.side, &self.bench.lines);
        Ok(())
    }

    unsafe fn store(&self, bar: usize, offset: usize, source: *const u8, len: usize) {
        let inner = self.bench.inner();
        if inner.machines[self.side].holds && !self.is_gone(&inner) {
            self.bench.arrive(&inner, self.side, usize::MAX);
            // SAFETY: the caller's promise.
            let bytes = unsafe { std::slice::from_raw_parts(source, len) };
            return self.bench.hold(self.side, bar, offset, bytes.to_vec());
        }
        drop(inner);
        self.each(bar, offset, len, |done, part, memory| {
            // SAFETY: mapped memory of this length; the caller vouches for the source.
            unsafe { deliver(memory, source.add(done), part) };
        });
    }

    fn store_words(&self, bar: usize, offset: usize, words: &[u64]) {
        assert!(offset.is_multiple_of(8), "words at {offset:#x}");
        // SAFETY: a slice is readable for its length.
        unsafe { self.store(bar, offset, words.as_ptr().cast(), size_of_val(words)) };
    }

    unsafe fn load(&self, bar: usize, offset: usize, dest: *mut u8, len: usize) {
        // SAFETY: the caller's promise.
        unsafe { dest.write_bytes(0xff, len) };
        if self.bench.inner().machines[self.side].holds {
            // Nothing answers.
            return;
        }
        self.each(bar, offset, len, |done, part, memory| {
            // SAFETY: mapped memory of this length; the caller vouches for the destination.
            unsafe { deliver(dest.add(done), memory, part) };
        });
    }

    fn combines(&self) -> bool {
        false
    }

    fn drain(&self) {
        std::sync::atomic::fence(Ordering::SeqCst);
    }

    fn trained(&self) -> Trained {
        Trained { speed: PcieGen::Gen3, width: 8, max_payload: 256 }
    }

    fn interrupts(&self) -> &[EventFd] {
        &self.bench.lines.own[self.side]
    }

    fn has_msix(&self) -> bool {
        self.bench.inner().model.vectors(self.side).1
    }

    fn reserve(&self, len: u64, align: u64) -> Result<u64> {
        let take = |free: u64| Some(free.next_multiple_of(align) + len);
        let order = Ordering::Relaxed;
        let before = self.bench.free.fetch_update(order, order, take).expect("always some");
        Ok(before.next_multiple_of(align))
    }

    unsafe fn map(&self, address: u64, base: *mut u8, len: usize) -> Result<()> {
        let page = |number: usize| number.is_multiple_of(4096);
        assert!(
            page(address as usize) && page(base.addr()) && page(len) && len > 0,
            "{len:#x} at {address:#x}"
        );
        let maps = &mut self.bench.inner_mut().machines[self.side].maps;
        // Of those that start before its end, the last one reaches furthest.
        let before = maps.range(..address + len as u64).next_back();
        let apart = before.is_none_or(|(start, map)| start + map.len as u64 <= address);
        assert!(apart, "{address:#x} is mapped already");
        maps.insert(address, Map { behind: Behind::Memory(base.addr()), len });
        Ok(())
    }

    fn map_bar(&self, address: u64, bar: usize, offset: usize, len: usize) -> Result<()> {
        let mut inner = self.bench.inner_mut();
        let inside = offset + len <= inner.model.bars(self.side)[bar];
        assert!(inside && len.is_multiple_of(4096), "{len} bytes at {offset} of BAR {bar}");
        let map = Map { behind: Behind::Bar(bar, offset), len };
        let before = inner.machines[self.side].maps.insert(address, map);
        assert!(before.is_none(), "{address:#x} is mapped already");
        Ok(())
    }

    fn unmap(&self, address: u64, len: usize) {
        let machine = &mut self.bench.inner_mut().machines[self.side];
        if machine.killed != self.process {
            return;
        }
        if machine.maps.get(&address).is_some_and(|map| map.len == len) {
            machine.maps.remove(&address);
        }
    }

    fn describe(&self) -> String {
        format!("side {} of a model", self.side)
    }
}

/// Opens the first slot of a window to memory of `len` bytes.
pub fn opened(port: &BridgePort, window: usize, len: usize) -> InboundMemory {
    let memory = port.inbound_memory(window, 0, len).unwrap();
    let address = port.register(&memory.region()).unwrap();
    port.mw_set_trans(window, 0, address, memory.size() as u64).unwrap();
    memory
}

/// Opens a word of an outbound window and writes it.
pub fn store(window: &mut dyn Outbound, offset: usize, value: u64) -> Result<()> {
    window.open(offset, 8)?;
    // SAFETY: eight bytes of a local.
    unsafe { window.write(offset, (&raw const value).cast(), 8) };
    window.flush();
    Ok(())
}
