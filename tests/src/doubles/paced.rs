// SPDX-License-Identifier: Apache-2.0
//! A transport whose link carries one transfer after another at a pace.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use tombolo_core::board::monotonic_ns;
use tombolo_core::transport::{
    Capabilities, Endpoint, Job, Mapping, Progress, Remote, Segment, SegmentKind, Status, Stream,
    Transport,
};

/// A transport without mapped memory for PEs that are threads of this process. Data are copied when the link has
/// carried them.
pub struct Paced {
    name: &'static str,
    link: Arc<Link>,
}

/// One PE's link.
pub struct Link {
    ns_per_kib: u64,
    /// Bytes of all transfers.
    pub bytes: AtomicU64,
    /// When it has carried all of them, by the clock of [`monotonic_ns`].
    pub free_at: AtomicU64,
    /// It claims to keep the order of all it carries.
    pub in_order: AtomicBool,
    under_way: Mutex<VecDeque<Transfer>>,
}

struct Transfer {
    done_at: u64,
    stream: *const Stream,
    dest: *mut u8,
    source: *const u8,
    len: usize,
}

// SAFETY: streams and buffers live until the operation is complete, which is what their owners wait for.
unsafe impl Send for Transfer {}

impl Link {
    /// A link that needs so long for a KiB.
    pub fn new(ns_per_kib: u64) -> Arc<Link> {
        Arc::new(Link {
            ns_per_kib,
            bytes: AtomicU64::new(0),
            free_at: AtomicU64::new(0),
            in_order: AtomicBool::new(false),
            under_way: Mutex::default(),
        })
    }

    fn take(&self, stream: &Stream, dest: *mut u8, source: *const u8, len: usize) -> Status {
        let mut under_way = self.under_way.lock().expect("nobody panicked");
        let begins_at = monotonic_ns().max(self.free_at.load(Ordering::Relaxed));
        let done_at = begins_at + ((len as u64 * self.ns_per_kib) >> 10);
        self.free_at.store(done_at, Ordering::Relaxed);
        self.bytes.fetch_add(len as u64, Ordering::Relaxed);
        stream.issued.fetch_add(1, Ordering::Relaxed);
        under_way.push_back(Transfer { done_at, stream, dest, source, len });
        Status::Pending
    }

    fn progress(&self) -> bool {
        let mut under_way = self.under_way.lock().expect("nobody panicked");
        let mut moved = false;
        while under_way.front().is_some_and(|first| first.done_at <= monotonic_ns())
            && let Some(Transfer { stream, dest, source, len, .. }) = under_way.pop_front()
        {
            // SAFETY: the caller of the operation vouches for all of it until it is complete, which is now.
            unsafe {
                tombolo_core::copy::cached(dest, source, len);
                (*stream).completed.fetch_add(1, Ordering::Release);
            }
            moved = true;
        }
        moved
    }
}

impl Paced {
    /// One over a link.
    pub fn new(name: &'static str, link: Arc<Link>) -> Paced {
        Paced { name, link }
    }
}

struct PacedEndpoint {
    base: usize,
    len: usize,
    link: Arc<Link>,
}

impl Transport for Paced {
    fn name(&self) -> &'static str {
        self.name
    }

    fn probe(&self, _: &Job<'_>) -> Result<(), String> {
        Ok(())
    }

    fn open(&mut self, _: &Job<'_>, segments: &[Segment<'_>]) -> tombolo_core::Result<Vec<u8>> {
        Ok(super::address(segments))
    }

    fn connect(
        &mut self,
        _: &Job<'_>,
        addresses: &[Vec<u8>],
    ) -> tombolo_core::Result<Vec<Result<Box<dyn Endpoint>, String>>> {
        let endpoint = |address: &Vec<u8>| -> Result<Box<dyn Endpoint>, String> {
            let (base, len) = super::segment_at(address)?;
            Ok(Box::new(PacedEndpoint { base, len, link: self.link.clone() }))
        };
        Ok(addresses.iter().map(endpoint).collect())
    }

    fn fence(&self, stream: &Stream) -> Status {
        if self.link.in_order.load(Ordering::Relaxed) {
            return Status::Complete;
        }
        self.quiet(stream)
    }

    fn quiet(&self, stream: &Stream) -> Status {
        self.link.progress();
        if stream.is_quiet() { Status::Complete } else { Status::Pending }
    }

    fn progress(&self) -> bool {
        self.link.progress()
    }

    fn progress_needed(&self) -> Progress {
        Progress::Waiting
    }
}

impl PacedEndpoint {
    fn at(&self, remote: Remote, len: usize) -> Option<*mut u8> {
        let inside = remote.segment == SegmentKind::Heap && remote.fits(len, self.len);
        inside.then(|| (self.base + remote.offset) as *mut u8)
    }
}

impl Endpoint for PacedEndpoint {
    fn capabilities(&self, segment: SegmentKind) -> Capabilities {
        match segment {
            SegmentKind::Static => Capabilities::NONE,
            SegmentKind::Heap => Capabilities {
                put: true,
                get: true,
                whole_words: true,
                put_max: usize::MAX,
                get_max: usize::MAX,
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
        let Some(dest) = self.at(dest, len) else { return Status::Failed };
        if blocking {
            // SAFETY: PEs are threads of this process; the caller vouches for the source.
            unsafe { tombolo_core::copy::cached(dest, source, len) };
            return Status::Complete;
        }
        self.link.take(stream, dest, source, len)
    }

    unsafe fn get(&self, stream: &Stream, dest: *mut u8, source: Remote, len: usize) -> Status {
        let Some(source) = self.at(source, len) else { return Status::Failed };
        self.link.take(stream, dest, source, len)
    }
}
