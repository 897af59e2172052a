// SPDX-License-Identifier: Apache-2.0
//! A function of a model, as the process that has opened it uses it.

use super::machines::{Behind, Inner, Map, deliver};
use super::{Access, Bench, Model, accesses_by_width};
use crate::ntb::port::Result;
use crate::ntb::port::bridge::device::Device;
use crate::ntb::port::shared::DeviceShare;
use crate::ntb::port::vfio::Trained;
use nix::sys::eventfd::EventFd;
use std::fmt::{self, Debug};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Bytes of the largest write that is one TLP.
const TLP: usize = 64;

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
    /// That of a side, as the process of that number has it.
    pub(super) fn new(bench: Arc<Bench<M>>, side: usize, process: u32) -> Function<M> {
        Function { bench, side, process }
    }

    /// Which process of its machine has it.
    pub fn process(&self) -> (usize, u32) {
        (self.side, self.process)
    }

    /// The buses that it is plugged into.
    pub fn bench(&self) -> &Arc<Bench<M>> {
        &self.bench
    }

    /// Whether nothing answers the process.
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

    fn share(&self) -> Result<DeviceShare> {
        let Function { bench, side, process } = self;
        let twin: Arc<dyn Device> = Arc::new(Function::new(bench.clone(), *side, *process));
        Ok(DeviceShare::Here(Arc::new(twin)))
    }

    fn trained(&self) -> Trained {
        self.bench.inner().model.trained(self.side)
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
