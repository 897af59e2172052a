// SPDX-License-Identifier: Apache-2.0
//! The data path to one peer.

use super::engine::{CHUNK, TheirSegment};
use super::message::{MESSAGE, Record, data_max};
use super::port::Port;
use super::{Atomics, Network};
use std::ptr::null_mut;
use std::sync::Arc;
use tombolo_core::transport::{
    Amo, AmoSet, Blocks, Capabilities, Endpoint, Mapping, Remote, SegmentKind, Signal, Status,
    Stream,
};

/// What goes in messages, for the target's processor to carry out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Served {
    /// Longest put and get in bytes; 0 where the network itself keeps words whole.
    pub max: usize,
    /// Longest put in bytes that shares a message with its signal.
    pub signalled_max: usize,
}

impl Served {
    /// Short puts and gets too: of a network whose RMA does not keep words whole.
    pub const WORDS: Served = Served { max: Capabilities::WHOLE, ..Served::BY_DEVICE };
    /// Nothing but short puts with signals: of a network whose RMA needs no processor of the target.
    pub const BY_DEVICE: Served = Served { max: 0, signalled_max: 512 };

    /// All that gains by it where the target's processor carries out RMA too, by messages of up to `message`
    /// bytes. The data are copied twice, but many operations share a message, and a target that has waited
    /// for long notices a message sooner than a read. Over TCP puts and gets of more than 8 KiB took as long
    /// by RMA, but not puts with signals: by RMA each is two messages and an acknowledgement.
    pub fn by_processor(message: usize) -> Served {
        let data = data_max(message);
        Served { max: data.min(8 << 10), signalled_max: data }
    }
}

/// Most bytes of blocks in a message of at most `message` bytes. Of longer ones the target would take one after
/// the other.
pub fn blocks_max(message: usize) -> usize {
    data_max(message.min(MESSAGE)).min(8 << 10)
}

/// A peer.
pub struct NetworkEndpoint<N: Network> {
    pub(super) port: Arc<Port<N>>,
    pub(super) pe: u32,
    pub(super) segments: [TheirSegment; SegmentKind::ALL.len()],
    /// What goes in messages.
    pub(super) served: Served,
    /// Longest operation in bytes.
    pub(super) piece: usize,
    /// Most bytes of blocks in a message.
    pub(super) blocks_max: usize,
    /// What the network carries out.
    pub(super) atomics: Atomics,
    /// It is this PE's way to itself, which AMOs of the network take.
    pub(super) is_self: bool,
}

impl<N: Network> NetworkEndpoint<N> {
    fn holds(&self, remote: Remote, len: usize) -> bool {
        remote.fits(len, self.segments[remote.segment as usize].len)
    }

    fn holds_blocks(&self, blocks: &Blocks) -> bool {
        blocks.fit(self.segments[blocks.at.segment as usize].len)
            && blocks.bytes() <= self.blocks_max
    }
}

impl<N: Network> Endpoint for NetworkEndpoint<N> {
    fn capabilities(&self, segment: SegmentKind) -> Capabilities {
        if self.segments[segment as usize].len == 0 {
            return Capabilities::NONE;
        }
        if self.is_self {
            return Capabilities { device_amos: self.atomics.of_device(), ..Capabilities::NONE };
        }
        Capabilities {
            put: true,
            get: true,
            amos: AmoSet::ALL,
            device_amos: self.atomics.of_device(),
            signals: AmoSet::SIGNALS,
            whole_words: true,
            // Requests and RMA overtake each other.
            ordered: false,
            // At least for AMOs.
            needs_target_cpu: true,
            put_max: self.piece,
            get_max: self.piece,
            inline_max: CHUNK,
            blocks_max: self.blocks_max,
            ..Capabilities::NONE
        }
    }

    fn is_quiet(&self, stream: &Stream) -> bool {
        self.port.is_quiet_to(self.pe, stream)
    }

    fn mapped(&self, _segment: SegmentKind) -> Option<Mapping> {
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
        if !self.holds(dest, len) {
            return Status::Failed;
        }
        if len <= self.served.max {
            // SAFETY: the caller vouches for the source.
            let data = unsafe { std::slice::from_raw_parts(source, len) };
            let put = Record::Put { at: dest, data };
            // SAFETY: there is no result.
            return self.port.issue(|e| unsafe { e.request(stream, self.pe, &put, null_mut()) });
        }
        // SAFETY: the caller vouches for the source.
        self.port.issue(|e| unsafe { e.write(stream, self.pe, dest, source, len, blocking, None) })
    }

    unsafe fn get(&self, stream: &Stream, dest: *mut u8, source: Remote, len: usize) -> Status {
        if !self.holds(source, len) {
            return Status::Failed;
        }
        if len <= self.served.max {
            let get = Record::Get { at: source, len: len as u32 };
            // SAFETY: the caller vouches for the destination.
            return self.port.issue(|e| unsafe { e.request(stream, self.pe, &get, dest) });
        }
        // SAFETY: as above.
        self.port.issue(|e| unsafe { e.read(stream, self.pe, dest, source, len) })
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
        if self.atomics.of_processor().has(amo.op, amo.size) {
            // SAFETY: the caller vouches for the place of the result.
            return unsafe { self.device_amo(stream, target, amo, result) };
        }
        let record = Record::Amo { at: target, amo, fetch: result.is_some() };
        let result = result.unwrap_or(null_mut());
        // SAFETY: the caller vouches for the place of the result.
        self.port.issue(|e| unsafe { e.request(stream, self.pe, &record, result) })
    }

    unsafe fn device_amo(
        &self,
        stream: &Stream,
        target: Remote,
        amo: Amo,
        result: Option<*mut u8>,
    ) -> Status {
        if !self.holds(target, amo.size.into()) {
            return Status::Failed;
        }
        let result = result.unwrap_or(null_mut());
        // SAFETY: the caller vouches for the place of the result.
        self.port.issue(|e| unsafe { e.amo(stream, self.pe, target, amo, result) })
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
        let amo = signal.amo();
        if len <= self.served.signalled_max {
            // SAFETY: the caller vouches for the source.
            let data = unsafe { std::slice::from_raw_parts(source, len) };
            let put = Record::Put { at: dest, data };
            let then = Record::Amo { at: signal.word, amo, fetch: false };
            return self.port.issue(|e| e.request_with_signal(stream, self.pe, &put, &then));
        }
        let then = Some((signal.word, amo));
        // SAFETY: as above.
        self.port.issue(|e| unsafe { e.write(stream, self.pe, dest, source, len, blocking, then) })
    }
    unsafe fn put_blocks(&self, stream: &Stream, dest: Blocks, source: *const u8) -> Status {
        if !self.holds_blocks(&dest) {
            return Status::Failed;
        }
        // SAFETY: the caller vouches for the source.
        let data = unsafe { std::slice::from_raw_parts(source, dest.bytes()) };
        let put = Record::PutBlocks { to: dest, data };
        // SAFETY: there is no result.
        self.port.issue(|e| unsafe { e.request(stream, self.pe, &put, null_mut()) })
    }

    unsafe fn get_blocks(&self, stream: &Stream, dest: *mut u8, source: Blocks) -> Status {
        if !self.holds_blocks(&source) {
            return Status::Failed;
        }
        let get = Record::GetBlocks { from: source };
        // SAFETY: the caller vouches for the destination.
        self.port.issue(|e| unsafe { e.request(stream, self.pe, &get, dest) })
    }
}
