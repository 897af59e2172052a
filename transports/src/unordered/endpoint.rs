// SPDX-License-Identifier: Apache-2.0
//! The data path to one peer.

use super::hosts::Map;
use super::local::Local;
use super::network::{Action, Far, Network, Pointer, Source, Words};
use std::sync::Arc;
use tombolo_core::transport::{
    Amo, Blocks, Capabilities, Endpoint, Mapping, Remote, SegmentKind, Signal, Status, Stream,
};

/// One peer, through memory that is hidden from everybody else.
pub struct UnorderedEndpoint {
    pub(super) pe: usize,
    pub(super) maps: [Option<Mapping>; SegmentKind::ALL.len()],
    pub(super) can: Capabilities,
    pub(super) network: Arc<Network>,
    pub(super) _held: Held,
}

/// What holds the mappings.
#[allow(dead_code, reason = "held until the endpoint is dropped")]
pub enum Held {
    /// An endpoint of the transport below.
    Endpoint(Box<dyn Endpoint>),
    /// Mappings of another host's memory.
    Maps([Option<Map>; SegmentKind::ALL.len()]),
}

// SAFETY: plain shared memory; access goes through the network's lock, in single accesses.
unsafe impl Send for UnorderedEndpoint {}
// SAFETY: as above.
unsafe impl Sync for UnorderedEndpoint {}

/// Memory of this process that an operation reads or writes.
struct Buffer {
    at: *mut u8,
    len: usize,
    is_source: bool,
}

impl UnorderedEndpoint {
    /// The address of `len` bytes at `remote`; none if they are not all there.
    fn at(&self, remote: Remote, len: usize) -> Option<Pointer> {
        let map = self.maps[remote.segment as usize]?;
        remote.fits(len, map.len).then(|| Pointer(map.base.wrapping_add(remote.offset)))
    }

    /// Where blocks are; none if they are not all there, or more than the endpoint takes.
    fn at_blocks(&self, blocks: Blocks) -> Option<Far> {
        let map = self.maps[blocks.at.segment as usize]?;
        let taken = blocks.fit(map.len) && blocks.bytes() <= self.can.blocks_max;
        taken.then(|| Far::Blocks(Pointer(map.base.wrapping_add(blocks.at.offset)), blocks))
    }

    /// Submits what `action` makes of a local buffer, if there is room.
    ///
    /// # Safety
    /// The buffer is valid for its length until the operation is complete.
    unsafe fn submit(
        &self,
        stream: &Stream,
        buffer: Option<Buffer>,
        action: impl FnOnce(Option<Local>) -> Action,
    ) -> Status {
        if !self.network.has_room() {
            return Status::Again;
        }
        let (mut local, mut lent) = (None, None);
        if let Some(Buffer { at, len, is_source }) = buffer {
            // SAFETY: by the caller's word.
            match unsafe { self.network.lend(at, len, is_source) } {
                Some(both) => (local, lent) = (Some(both.0), Some(both.1)),
                None => return Status::Again,
            }
        }
        stream.counted(|| {
            self.network.submit(stream, self.pe, action(local), lent);
            Status::Pending
        })
    }

    /// A put, perhaps with a signal. Blocking ones leave at once, with their bytes.
    ///
    /// # Safety
    /// As `Endpoint::put`.
    unsafe fn submit_put(
        &self,
        stream: &Stream,
        to: Far,
        (source, len): (*const u8, usize),
        signal: Option<(Pointer, Amo)>,
        blocking: bool,
    ) -> Status {
        let buffer = (!blocking).then_some(Buffer { at: source.cast_mut(), len, is_source: true });
        let words = Words { whole: self.can.whole_words, end_last: self.can.ends_last };
        let put = |local: Option<Local>| {
            // SAFETY: the caller vouches for the source.
            let bytes = || unsafe { std::slice::from_raw_parts(source, len) };
            let from = local.map_or_else(|| Source::Now(bytes().into()), Source::Later);
            Action::Put { from, to, len, words, signal }
        };
        // SAFETY: by the caller's word.
        unsafe { self.submit(stream, buffer, put) }
    }

    /// # Safety
    /// As `Endpoint::get`.
    unsafe fn submit_get(&self, stream: &Stream, dest: *mut u8, from: Far, len: usize) -> Status {
        let buffer = Buffer { at: dest, len, is_source: false };
        // SAFETY: the caller vouches for the destination.
        unsafe {
            self.submit(stream, Some(buffer), |to| {
                let to = to.expect("lent");
                Action::Get { from, to, len }
            })
        }
    }
}

impl Endpoint for UnorderedEndpoint {
    fn capabilities(&self, segment: SegmentKind) -> Capabilities {
        if self.maps[segment as usize].is_some() { self.can } else { Capabilities::NONE }
    }

    fn is_quiet(&self, stream: &Stream) -> bool {
        self.network.is_quiet_to(self.pe, stream)
    }

    fn mapped(&self, _: SegmentKind) -> Option<Mapping> {
        None
    }

    unsafe fn put(
        &self,
        stream: &Stream,
        dest: Remote,
        source: *const u8,
        len: usize,
        blocking: bool,
    ) -> Status {
        let aligned = dest.offset.is_multiple_of(self.can.put_align)
            && len.is_multiple_of(self.can.put_align);
        let inline = !blocking || len <= self.can.inline_max;
        let Some(to) = self.at(dest, len).filter(|_| aligned && inline && len <= self.can.put_max)
        else {
            return Status::Failed;
        };
        // SAFETY: the caller vouches for the source.
        unsafe { self.submit_put(stream, Far::Place(to), (source, len), None, blocking) }
    }

    unsafe fn get(&self, stream: &Stream, dest: *mut u8, source: Remote, len: usize) -> Status {
        let aligned = source.offset.is_multiple_of(self.can.get_align)
            && len.is_multiple_of(self.can.get_align);
        let Some(from) = self.at(source, len).filter(|_| aligned && len <= self.can.get_max) else {
            return Status::Failed;
        };
        // SAFETY: the caller vouches for the destination.
        unsafe { self.submit_get(stream, dest, Far::Place(from), len) }
    }

    unsafe fn amo(
        &self,
        stream: &Stream,
        target: Remote,
        amo: Amo,
        result: Option<*mut u8>,
    ) -> Status {
        // What is atomic with the CPU will do for a device as well.
        let able =
            [self.can.amos, self.can.device_amos].iter().any(|set| set.has(amo.op, amo.size));
        let Some(at) = self.at(target, amo.size.into()).filter(|_| able) else {
            return Status::Failed;
        };
        let buffer = result.map(|to| Buffer { at: to, len: amo.size.into(), is_source: false });
        // SAFETY: the caller vouches for the result.
        unsafe { self.submit(stream, buffer, |result| Action::Amo { at, amo, result }) }
    }

    unsafe fn device_amo(
        &self,
        stream: &Stream,
        target: Remote,
        amo: Amo,
        result: Option<*mut u8>,
    ) -> Status {
        // SAFETY: by the caller's word.
        unsafe { self.amo(stream, target, amo, result) }
    }

    unsafe fn put_signal(
        &self,
        stream: &Stream,
        dest: Remote,
        source: *const u8,
        len: usize,
        signal: Signal,
        blocking: bool,
    ) -> Status {
        let amo = signal.amo();
        let able = self.can.signals.has(amo.op, 8) && len <= self.can.put_max;
        let places = self.at(dest, len).zip(self.at(signal.word, 8)).filter(|_| able);
        let Some((to, word)) = places else { return Status::Failed };
        // SAFETY: the caller vouches for the source.
        unsafe {
            let signal = Some((word, amo));
            self.submit_put(stream, Far::Place(to), (source, len), signal, blocking)
        }
    }
    unsafe fn put_blocks(&self, stream: &Stream, dest: Blocks, source: *const u8) -> Status {
        let Some(to) = self.at_blocks(dest) else { return Status::Failed };
        // SAFETY: the caller vouches for the source.
        unsafe { self.submit_put(stream, to, (source, dest.bytes()), None, true) }
    }

    unsafe fn get_blocks(&self, stream: &Stream, dest: *mut u8, source: Blocks) -> Status {
        let Some(from) = self.at_blocks(source) else { return Status::Failed };
        // SAFETY: the caller vouches for the destination.
        unsafe { self.submit_get(stream, dest, from, source.bytes()) }
    }
}
