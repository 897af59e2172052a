// SPDX-License-Identifier: Apache-2.0
//! The transport of a PE on the simulated ring. What it can do is what the real one can without windows
//! to neighbours.

use std::sync::Arc;

use tombolo_core::error::Result;
use tombolo_core::transport::{
    Amo, AmoSet, Capabilities, Distance, Endpoint, Job, Mapping, Progress, Remote, Segment,
    SegmentKind, Signal, Status, Stream, Transport,
};

use super::Shared;
use super::memory::Heap;
use crate::ntb::ring::{AmoRequest, GetRequest, PutRequest, Target};

/// See the module.
pub struct LiveTransport {
    shared: Arc<Shared>,
    pe: usize,
}

impl LiveTransport {
    pub fn new(shared: Arc<Shared>, pe: usize) -> LiveTransport {
        LiveTransport { shared, pe }
    }

    fn hops(&self, a: usize, b: usize) -> u32 {
        let apart = a.abs_diff(b);
        apart.min(usize::from(self.shared.setup.hosts) - apart) as u32
    }
}

impl Drop for LiveTransport {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.shared.give_up(self.pe);
        }
    }
}

impl Transport for LiveTransport {
    fn name(&self) -> &'static str {
        "simulated"
    }

    fn probe(&self, job: &Job<'_>) -> std::result::Result<(), String> {
        let hosts = usize::from(self.shared.setup.hosts);
        let apart = (0..job.n_pes()).all(|pe| pe == job.pe || !job.is_local(pe));
        match job.n_pes() == hosts && apart {
            true => Ok(()),
            false => Err(format!("a simulated ring of {hosts} hosts needs one PE on each")),
        }
    }

    fn open(&mut self, _: &Job<'_>, segments: &[Segment<'_>]) -> Result<Vec<u8>> {
        let heap = segments.iter().find(|segment| segment.kind == SegmentKind::Heap);
        if let Some(heap) = heap {
            self.shared.lock().pes[self.pe].heap = Heap { base: heap.base, len: heap.len };
        }
        Ok(vec![1])
    }

    fn connect(
        &mut self,
        job: &Job<'_>,
        _: &[Vec<u8>],
    ) -> Result<Vec<std::result::Result<Box<dyn Endpoint>, String>>> {
        let shared = self.shared.lock();
        let heap = shared.pes[self.pe].heap;
        let max_bytes = shared.lanes[0].engine.retain_bytes_max();
        drop(shared);
        let endpoint = |to: usize| -> std::result::Result<Box<dyn Endpoint>, String> {
            let own = (to == self.pe).then_some(heap);
            Ok(Box::new(LiveEndpoint {
                shared: self.shared.clone(),
                from: self.pe,
                to,
                own,
                len: heap.len,
                max_bytes,
            }))
        };
        Ok((0..job.n_pes()).map(endpoint).collect())
    }

    fn distance(&self, a: usize, b: usize) -> Option<Distance> {
        Some(Distance::Hops(self.hops(a, b)))
    }

    fn fence(&self, stream: &Stream) -> Status {
        let ordered = stream.is_quiet() || self.shared.fence(self.pe, stream);
        if ordered { Status::Complete } else { Status::Pending }
    }

    fn progress(&self) -> bool {
        self.shared.wait(self.pe);
        true
    }

    fn progress_needed(&self) -> Progress {
        Progress::Waiting
    }
}

struct LiveEndpoint {
    shared: Arc<Shared>,
    from: usize,
    to: usize,
    /// For the PE itself.
    own: Option<Heap>,
    len: usize,
    max_bytes: usize,
}

impl LiveEndpoint {
    fn target(&self, remote: Remote) -> Target {
        Target { host: self.to as u16, pe: 0, remote }
    }

    fn put_with(
        &self,
        stream: &Stream,
        (dest, source, len): (Remote, *const u8, usize),
        signal: Option<Signal>,
        retain: bool,
    ) -> Status {
        let target = self.target(dest);
        stream.counted(|| {
            self.shared.submit(self.from, self.to, stream, |token, engine, host| {
                let source = source as u64;
                let put =
                    PutRequest { token, stream: stream.id, target, source, len, retain, signal };
                engine.put(&put, host)
            })
        })
    }
}

impl Endpoint for LiveEndpoint {
    fn capabilities(&self, segment: SegmentKind) -> Capabilities {
        match segment {
            SegmentKind::Static => Capabilities::NONE,
            SegmentKind::Heap => Capabilities {
                put: true,
                get: true,
                amos: AmoSet::ALL,
                signals: AmoSet::SIGNALS,
                whole_words: true,
                needs_target_cpu: true,
                put_max: self.max_bytes,
                get_max: self.max_bytes,
                ..Capabilities::NONE
            },
        }
    }

    fn mapped(&self, segment: SegmentKind) -> Option<Mapping> {
        let heap = self.own.filter(|_| segment == SegmentKind::Heap)?;
        Some(Mapping { base: heap.base, len: heap.len, load: true, atomic: true })
    }

    unsafe fn put(
        &self,
        stream: &Stream,
        dest: Remote,
        source: *const u8,
        len: usize,
        blocking: bool,
    ) -> Status {
        if !dest.fits(len, self.len) {
            return Status::Failed;
        }
        self.put_with(stream, (dest, source, len), None, blocking)
    }

    unsafe fn get(&self, stream: &Stream, dest: *mut u8, source: Remote, len: usize) -> Status {
        if !source.fits(len, self.len) {
            return Status::Failed;
        }
        let target = self.target(source);
        stream.counted(|| {
            self.shared.submit(self.from, self.to, stream, |token, engine, _| {
                let get = GetRequest { token, stream: stream.id, target, dest: dest as u64, len };
                engine.get(&get)
            })
        })
    }

    unsafe fn amo(
        &self,
        stream: &Stream,
        target: Remote,
        amo: Amo,
        result: Option<*mut u8>,
    ) -> Status {
        if !target.fits(amo.size.into(), self.len) {
            return Status::Failed;
        }
        let target = self.target(target);
        let result = result.map(|at| at as u64);
        stream.counted(|| {
            self.shared.submit(self.from, self.to, stream, |token, engine, _| {
                engine.amo(&AmoRequest { token, stream: stream.id, target, amo, result })
            })
        })
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
        if !dest.fits(len, self.len) || !signal.word.fits(8, self.len) {
            return Status::Failed;
        }
        self.put_with(stream, (dest, source, len), Some(signal), blocking)
    }
}
