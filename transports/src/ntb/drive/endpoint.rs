// SPDX-License-Identifier: Apache-2.0
//! The data path to a PE of another host.

use super::arrival::Arrivals;
use super::carriers::Limits;
use super::direct::DirectPeer;
use super::lane::Lane;
use super::token::token;
use crate::ntb::ring::{AmoRequest, GetRequest, PutRequest, Spread, Target};
use std::sync::Arc;
use tombolo_core::transport::{
    Amo, AmoSet, Blocks, Capabilities, CarrierChoice, Carriers, Endpoint, Mapping, Remote,
    SegmentKind, Signal, Status, Stream,
};

/// One peer behind the ring.
pub struct NtbEndpoint {
    /// Lanes of this PE; a stream keeps to one.
    pub(super) lanes: Vec<Arc<Lane>>,
    pub(super) pe: usize,
    /// Position of its host in the ring.
    pub(super) host: u16,
    /// The PE, counted within its host.
    pub(super) local: u8,
    /// Bytes of its segments, 0 where one is not reached.
    pub(super) lens: [usize; SegmentKind::ALL.len()],
    /// For a PE of a neighbouring host.
    pub(super) direct: Option<Arc<DirectPeer>>,
    /// Where direct stores are under way for a while.
    pub(super) arrivals: Option<Arc<Arrivals>>,
    /// Where the port's DMA engine makes long direct puts.
    pub(super) dma: Option<Arc<Arrivals>>,
    pub(super) max_bytes: usize,
    /// Most bytes of blocks in a packet.
    pub(super) blocks_max: usize,
}

impl NtbEndpoint {
    fn holds(&self, remote: Remote, len: usize) -> bool {
        remote.fits(len, self.lens[remote.segment as usize])
    }

    /// How packets tell of blocks; none if these do not lie inside their segment, or do not fit a packet.
    fn spread(&self, blocks: &Blocks) -> Option<Spread> {
        let fit = blocks.fit(self.lens[blocks.at.segment as usize]);
        let spread = Spread::new(blocks.len, blocks.stride);
        spread.filter(|_| fit && blocks.bytes() <= self.blocks_max)
    }

    fn lane(&self, stream: &Stream) -> &Lane {
        lane(&self.lanes, stream)
    }

    fn target(&self, remote: Remote) -> Target {
        Target { host: self.host, pe: self.local, remote }
    }

    /// The limits of the carriers of blocking puts, or of others; none where stores reach nothing.
    #[inline]
    fn limits(&self, blocking: bool) -> Option<&Limits> {
        self.direct.as_deref().map(|direct| direct.carriers().of(blocking))
    }

    /// # Safety
    /// As `Endpoint::put`, and the range was checked.
    #[inline]
    unsafe fn put_directly(&self, dest: Remote, source: *const u8, len: usize) -> bool {
        // SAFETY: the caller's promise.
        self.direct
            .as_deref()
            .filter(|_| self.arrivals.is_none())
            .is_some_and(|d| unsafe { d.put(dest.segment, dest.offset, source, len) })
    }

    /// A put that stores did not complete, or that is not left to them. Apart from `put`, which has little to keep
    /// then.
    ///
    /// # Safety
    /// As `Endpoint::put`, and the range was checked.
    #[inline(never)]
    unsafe fn put_otherwise(
        &self,
        stream: &Stream,
        dest: Remote,
        source: *const u8,
        len: usize,
        blocking: bool,
    ) -> Status {
        let limits = self.limits(blocking);
        let by_engine = !blocking && len > 0 && limits.is_some_and(|limits| limits.by_engine(len));
        let stored = limits.is_some_and(|limits| limits.rather_stores(len));
        if let Some(dma) = self.dma.as_ref().filter(|_| by_engine) {
            // SAFETY: by the caller's word; the source stays until the put has completed.
            if let Some(status) = unsafe { dma.put(stream, dest, source, len) } {
                return status;
            }
            // SAFETY: as above.
            if stored && unsafe { self.put_directly(dest, source, len) } {
                return Status::Complete;
            }
        }
        if let Some(arrivals) = self.arrivals.as_ref().filter(|_| stored && !blocking && len > 0) {
            // SAFETY: as above.
            if let Some(status) = unsafe { arrivals.put(stream, dest, source, len) } {
                return status;
            }
        }
        let put = self.put_request(stream, dest, source, len, blocking);
        stream.counted(|| self.lane(stream).submit(|engine, host| engine.put(&put, host)))
    }

    fn put_request(
        &self,
        stream: &Stream,
        dest: Remote,
        source: *const u8,
        len: usize,
        retain: bool,
    ) -> PutRequest {
        PutRequest {
            token: token(stream, self.pe),
            stream: stream.id,
            target: self.target(dest),
            source: source as u64,
            len,
            retain,
            signal: None,
        }
    }
}

/// The lane that a stream keeps to.
pub(super) fn lane<'a>(lanes: &'a [Arc<Lane>], stream: &Stream) -> &'a Lane {
    &lanes[stream.id as usize % lanes.len()]
}

impl Endpoint for NtbEndpoint {
    fn capabilities(&self, segment: SegmentKind) -> Capabilities {
        match self.lens[segment as usize] {
            0 => Capabilities::NONE,
            _ => Capabilities {
                put: true,
                get: true,
                amos: AmoSet::ALL,
                signals: AmoSet::SIGNALS,
                whole_words: true,
                needs_target_cpu: true,
                put_max: self.max_bytes,
                get_max: self.max_bytes,
                blocks_max: self.blocks_max,
                ..Capabilities::NONE
            },
        }
    }

    fn is_quiet(&self, stream: &Stream) -> bool {
        // In this order: direct puts that are lost are repeated on a lane, and never the other way round.
        let direct = [&self.arrivals, &self.dma].into_iter().flatten().any(|puts| puts.has(stream));
        let token = token(stream, self.pe);
        !direct && !self.lanes.iter().any(|lane| lane.has(token))
    }

    fn mapped(&self, _segment: SegmentKind) -> Option<Mapping> {
        // Windows are for stores only, and may close at any time.
        None
    }

    fn carrier_choice(&self) -> CarrierChoice {
        let direct = self.direct.as_ref().filter(|direct| direct.is_open(SegmentKind::Heap));
        direct.map_or_else(CarrierChoice::default, |direct| {
            direct.carriers().choice(self.arrivals.is_none())
        })
    }

    fn set_carriers(&self, carriers: Carriers) {
        if let Some(direct) = &self.direct {
            direct.carriers().set(carriers);
        }
    }

    unsafe fn put(
        &self,
        stream: &Stream,
        dest: Remote,
        source: *const u8,
        len: usize,
        blocking: bool,
    ) -> Status {
        if !self.holds(dest, len) {
            return Status::Failed;
        }
        let stored = self.limits(blocking).is_some_and(|limits| limits.by_stores(len));
        // SAFETY: the range was checked; the caller vouches for the source.
        if stored && unsafe { self.put_directly(dest, source, len) } {
            return Status::Complete;
        }
        // SAFETY: as above.
        unsafe { self.put_otherwise(stream, dest, source, len, blocking) }
    }

    unsafe fn get(&self, stream: &Stream, dest: *mut u8, source: Remote, len: usize) -> Status {
        if !self.holds(source, len) {
            return Status::Failed;
        }
        let (token, target) = (token(stream, self.pe), self.target(source));
        let get = GetRequest { token, stream: stream.id, target, dest: dest as u64, len };
        stream.counted(|| self.lane(stream).submit(|engine, _| engine.get(&get)))
    }

    unsafe fn amo(
        &self,
        stream: &Stream,
        target: Remote,
        amo: Amo,
        result: Option<*mut u8>,
    ) -> Status {
        if !self.holds(target, amo.size.into()) {
            return Status::Failed;
        }
        let request = AmoRequest {
            token: token(stream, self.pe),
            stream: stream.id,
            target: self.target(target),
            amo,
            result: result.map(|at| at as u64),
        };
        stream.counted(|| self.lane(stream).submit(|engine, _| engine.amo(&request)))
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
        if !self.holds(dest, len) || !self.holds(signal.word, 8) {
            return Status::Failed;
        }
        // Non-blocking ones too: their data precede their signal, so an engine's would have to be waited for.
        let stored = self.limits(true).is_some_and(|limits| limits.by_stores(len));
        // SAFETY: the range was checked; the caller vouches for the source.
        if stored && unsafe { self.put_directly(dest, source, len) } {
            // The data have arrived. If there is no room for the signal now, both are repeated.
            // SAFETY: no result is asked for.
            return unsafe { self.amo(stream, signal.word, signal.amo(), None) };
        }
        let put = self.put_request(stream, dest, source, len, blocking).with_signal(signal);
        stream.counted(|| self.lane(stream).submit(|engine, host| engine.put(&put, host)))
    }

    unsafe fn put_blocks(&self, stream: &Stream, dest: Blocks, source: *const u8) -> Status {
        let Some(spread) = self.spread(&dest) else { return Status::Failed };
        let directly = |number: usize| {
            let at = Remote { offset: dest.at.offset + number * dest.stride, ..dest.at };
            // SAFETY: the range was checked; the caller vouches for the source.
            unsafe { self.put_directly(at, source.add(number * dest.len), dest.len) }
        };
        if (0..dest.count).all(directly) {
            return Status::Complete;
        }
        let put = self.put_request(stream, dest.at, source, dest.bytes(), true);
        stream.counted(|| {
            self.lane(stream).submit(|engine, host| engine.put_blocks(&put, spread, host))
        })
    }

    unsafe fn get_blocks(&self, stream: &Stream, dest: *mut u8, source: Blocks) -> Status {
        let Some(spread) = self.spread(&source) else { return Status::Failed };
        let (token, target) = (token(stream, self.pe), self.target(source.at));
        let len = source.bytes();
        let get = GetRequest { token, stream: stream.id, target, dest: dest as u64, len };
        stream.counted(|| self.lane(stream).submit(|engine, _| engine.get_blocks(&get, spread)))
    }
}
