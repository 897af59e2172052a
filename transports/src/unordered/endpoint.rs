//! The data path to one peer.

use super::network::{Action, Network, Place};
use std::sync::Arc;
use tombolo_core::transport::{
    Amo, Capabilities, Endpoint, Mapping, Remote, SegmentKind, Signal, Status, Stream,
};

/// One peer, through memory that is hidden from everybody else.
pub struct UnorderedEndpoint {
    pub(super) pe: usize,
    /// Holds the mappings.
    pub(super) inner: Box<dyn Endpoint>,
    pub(super) maps: [Option<Mapping>; SegmentKind::ALL.len()],
    pub(super) can: Capabilities,
    pub(super) network: Arc<Network>,
}

// SAFETY: plain shared memory; access goes through the network's lock, in single accesses.
unsafe impl Send for UnorderedEndpoint {}
// SAFETY: as above.
unsafe impl Sync for UnorderedEndpoint {}

impl UnorderedEndpoint {
    /// The address of `len` bytes at `remote`; none if they are not all there.
    fn at(&self, remote: Remote, len: usize) -> Option<Place> {
        let map = self.maps[remote.segment as usize]?;
        let end = remote.offset.checked_add(len)?;
        (end <= map.len).then(|| Place(map.base.wrapping_add(remote.offset)))
    }

    fn submit(&self, stream: &Stream, action: impl FnOnce() -> Action) -> Status {
        match self.network.has_room() {
            true => stream.counted(|| {
                self.network.submit(stream, self.pe, action());
                Status::Pending
            }),
            false => Status::Again,
        }
    }

    /// What a put carries: the bytes, or where they will be.
    ///
    /// # Safety
    /// As `Endpoint::put`.
    unsafe fn source(
        &self,
        source: *const u8,
        len: usize,
        blocking: bool,
    ) -> super::network::Source {
        if !blocking {
            return super::network::Source::Later(Place(source.cast_mut()));
        }
        // SAFETY: by the caller's word.
        let bytes = unsafe { std::slice::from_raw_parts(source, len) };
        super::network::Source::Now(bytes.into())
    }
}

impl Endpoint for UnorderedEndpoint {
    fn capabilities(&self, segment: SegmentKind) -> Capabilities {
        if self.inner.capabilities(segment).reach() { self.can } else { Capabilities::NONE }
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
        self.submit(stream, || {
            // SAFETY: the caller vouches for the source.
            let from = unsafe { self.source(source, len, blocking) };
            Action::Put { from, to, len, whole_words: self.can.whole_words, signal: None }
        })
    }

    unsafe fn get(&self, stream: &Stream, dest: *mut u8, source: Remote, len: usize) -> Status {
        let aligned = source.offset.is_multiple_of(self.can.get_align)
            && len.is_multiple_of(self.can.get_align);
        let Some(from) = self.at(source, len).filter(|_| aligned && len <= self.can.get_max) else {
            return Status::Failed;
        };
        self.submit(stream, || Action::Get { from, to: Place(dest), len })
    }

    unsafe fn amo(
        &self,
        stream: &Stream,
        target: Remote,
        amo: Amo,
        result: Option<*mut u8>,
    ) -> Status {
        let able = self.can.amos.has(amo.op, amo.size);
        let Some(at) = self.at(target, amo.size.into()).filter(|_| able) else {
            return Status::Failed;
        };
        self.submit(stream, || Action::Amo { at, amo, result: result.map(Place) })
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
        self.submit(stream, || {
            // SAFETY: the caller vouches for the source.
            let from = unsafe { self.source(source, len, blocking) };
            let signal = Some((word, amo));
            Action::Put { from, to, len, whole_words: self.can.whole_words, signal }
        })
    }
}
