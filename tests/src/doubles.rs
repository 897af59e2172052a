// SPDX-License-Identifier: Apache-2.0
//! Transports that stand for real ones: one that fails or falls silent when told to, and one with a pace. The one that
//! delays and reorders within the contract is `unordered` of the back ends, since the library of test
//! builds has to have it.

mod paced;

pub use paced::{Link, Paced};

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use tombolo_core::transport::{
    Capabilities, Endpoint, Job, Mapping, Remote, Segment, SegmentKind, Status, Stream, Transport,
};

/// A transport without mapped memory that carries out operations in this process, and fails or
/// never completes when told to.
pub struct Faulty {
    name: &'static str,
    shared: &'static Faults,
}

/// What a [`Faulty`] is told, and what it saw.
#[derive(Default)]
pub struct Faults {
    /// Operations fail.
    pub failing: AtomicBool,
    /// Operations are accepted and never complete.
    pub silent: AtomicBool,
    /// So many operations are carried out; the next are accepted, and fail.
    pub lasts: AtomicUsize,
    /// A PE that is not reached; all are unless told otherwise.
    pub apart: AtomicUsize,
    /// Operations that were asked for.
    pub operations: AtomicUsize,
    /// Puts whose source stays as it is until they are complete.
    pub stable: AtomicUsize,
}

impl Faults {
    /// None yet. Lives as long as the process.
    pub fn none() -> &'static Faults {
        let [lasts, apart] = [usize::MAX; 2].map(AtomicUsize::new);
        Box::leak(Box::new(Faults { lasts, apart, ..Faults::default() }))
    }
}

impl Faulty {
    /// One that obeys `shared`.
    pub fn new(name: &'static str, shared: &'static Faults) -> Faulty {
        Faulty { name, shared }
    }
}

struct FaultyEndpoint {
    pe: u32,
    base: usize,
    len: usize,
    shared: &'static Faults,
}

impl Transport for Faulty {
    fn name(&self) -> &'static str {
        self.name
    }

    fn probe(&self, _: &Job<'_>) -> Result<(), String> {
        Ok(())
    }

    fn open(&mut self, _: &Job<'_>, segments: &[Segment<'_>]) -> tombolo_core::Result<Vec<u8>> {
        Ok(address(segments))
    }

    fn connect(
        &mut self,
        _: &Job<'_>,
        addresses: &[Vec<u8>],
    ) -> tombolo_core::Result<Vec<Result<Box<dyn Endpoint>, String>>> {
        let endpoint = |(pe, address): (usize, &Vec<u8>)| -> Result<Box<dyn Endpoint>, String> {
            if pe == self.shared.apart.load(Ordering::Relaxed) {
                return Err("apart".into());
            }
            let (base, len) = segment_at(address)?;
            Ok(Box::new(FaultyEndpoint { pe: pe as u32, base, len, shared: self.shared }))
        };
        Ok(addresses.iter().enumerate().map(endpoint).collect())
    }
}

/// What a PE tells the others of its heap.
fn address(segments: &[Segment<'_>]) -> Vec<u8> {
    let words = [segments[0].base as u64, segments[0].len as u64];
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// The place and length of the heap of the PE that told so.
fn segment_at(address: &[u8]) -> Result<(usize, usize), String> {
    let word = |at: usize| {
        let bytes = address.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
        bytes.map(|bytes| u64::from_le_bytes(bytes) as usize).ok_or("not an address")
    };
    Ok((word(0)?, word(8)?))
}

impl FaultyEndpoint {
    fn at(&self, remote: Remote, len: usize) -> Option<usize> {
        let inside = remote.segment == SegmentKind::Heap && remote.fits(len, self.len);
        inside.then(|| self.base + remote.offset)
    }

    fn operate(&self, stream: &Stream, copy: impl FnOnce()) -> Status {
        let before = self.shared.operations.fetch_add(1, Ordering::Relaxed);
        if before >= self.shared.lasts.load(Ordering::Relaxed) {
            stream.issued.fetch_add(1, Ordering::Relaxed);
            stream.fail(self.pe, false);
            return Status::Pending;
        }
        if self.shared.failing.load(Ordering::Relaxed) {
            return Status::Failed;
        }
        if self.shared.silent.load(Ordering::Relaxed) {
            stream.issued.fetch_add(1, Ordering::Relaxed);
            return Status::Pending;
        }
        copy();
        Status::Complete
    }
}

impl Endpoint for FaultyEndpoint {
    fn capabilities(&self, segment: SegmentKind) -> Capabilities {
        match segment {
            SegmentKind::Static => Capabilities::NONE,
            SegmentKind::Heap => Capabilities {
                put: true,
                get: true,
                whole_words: true,
                put_max: 4096,
                get_max: 4096,
                ..Capabilities::NONE
            },
        }
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
        self.shared.stable.fetch_add(usize::from(!blocking), Ordering::Relaxed);
        let Some(dest) = self.at(dest, len) else { return Status::Failed };
        let dest = dest as *mut u8;
        // SAFETY: PEs are threads of this process; the caller vouches for the ranges.
        self.operate(stream, || unsafe { tombolo_core::copy::cached(dest, source, len) })
    }

    unsafe fn get(&self, stream: &Stream, dest: *mut u8, source: Remote, len: usize) -> Status {
        let Some(source) = self.at(source, len) else { return Status::Failed };
        let source = source as *const u8;
        // SAFETY: as above.
        self.operate(stream, || unsafe { tombolo_core::copy::cached(dest, source, len) })
    }
}
