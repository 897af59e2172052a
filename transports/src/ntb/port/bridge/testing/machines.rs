// SPDX-License-Identifier: Apache-2.0
//! The two machines that the functions of a model are plugged into: what their IOMMUs map, what their root complexes
//! pass on, and what may happen to them.

use super::{Function, Lines, Model};
use crate::ntb::port::bridge::device::parts;
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// The model and both machines.
pub struct Bench<M> {
    inner: RwLock<Inner<M>>,
    pub(super) lines: Lines,
    /// Where addresses begin that were not reserved yet.
    pub(super) free: AtomicU64,
    /// By side: what functions beside its bridge have posted.
    posted: [Mutex<VecDeque<Posted>>; 2],
    /// By side: what was written through the windows of its bridge and is held there.
    held: [Mutex<Vec<Held>>; 2],
}

pub(super) struct Inner<M> {
    pub(super) model: M,
    pub(super) machines: [Machine; 2],
}

/// What the IOMMU of a machine lets its function reach.
#[derive(Default)]
pub(super) struct Machine {
    /// By address.
    pub(super) maps: BTreeMap<u64, Map>,
    /// Writes that met nothing.
    pub(super) faults: AtomicU64,
    /// The function does not answer.
    pub(super) gone: bool,
    /// Processes that were killed so far: their threads still run here, but reach nothing.
    pub(super) killed: u32,
    /// The root complex does not pass on what one function writes to another.
    isolated: bool,
    /// The bridge holds what is written through its windows.
    pub(super) holds: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Map {
    pub(super) behind: Behind,
    pub(super) len: usize,
}

/// What is behind an address.
#[derive(Clone, Copy, Debug)]
pub(super) enum Behind {
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
    pub(super) fn at(&self, address: u64, len: usize) -> Option<*mut u8> {
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
        Arc::new(Function::new(self.clone(), side, process))
    }

    pub(super) fn inner(&self) -> RwLockReadGuard<'_, Inner<M>> {
        self.inner.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn inner_mut(&self) -> RwLockWriteGuard<'_, Inner<M>> {
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

    pub(super) fn arrive(&self, inner: &Inner<M>, side: usize, most: usize) {
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

    pub(super) fn hold(&self, side: usize, bar: usize, offset: usize, bytes: Vec<u8>) {
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
            for (at, len) in parts(offset, bytes.len()) {
                let peer = &inner.machines[1 - side];
                match route(at).and_then(|address| peer.at(address, len)) {
                    // SAFETY: mapped memory of this length.
                    Some(to) => unsafe { deliver(to, bytes[at..].as_ptr(), len) },
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

/// Copies as a processor and a root complex do: [`parts`] are whole, and later ones are seen after earlier ones.
///
/// # Safety
/// `from` is readable and `to` writable for `len` bytes.
pub(super) unsafe fn deliver(to: *mut u8, from: *const u8, len: usize) {
    let release = Ordering::Release;
    for (at, bytes) in parts(to.addr(), len) {
        // SAFETY: the caller vouches for both ranges; parts are inside of them and aligned.
        unsafe {
            let (to, from) = (to.add(at), from.add(at));
            match bytes {
                8 => AtomicU64::from_ptr(to.cast())
                    .store(from.cast::<u64>().read_unaligned(), release),
                4 => AtomicU32::from_ptr(to.cast())
                    .store(from.cast::<u32>().read_unaligned(), release),
                2 => AtomicU16::from_ptr(to.cast())
                    .store(from.cast::<u16>().read_unaligned(), release),
                _ => AtomicU8::from_ptr(to).store(from.read(), release),
            }
        }
    }
}
