// SPDX-License-Identifier: Apache-2.0
//! Shared memory within a host: every PE maps every other PE's segments.
//!
//! The segments of all PEs of a host lie in two memory files, which the core has handed out: one with
//! the heaps, one with static data. Each PE maps each file once, whole, so that mappings and descriptors
//! do not grow with the PEs. The files have no name in a file system: nothing is left behind.
//!
//! What is mapped needs neither the target's CPU nor the kernel afterwards.

mod address;
mod endpoint;
mod sys;

use address::Extent;
use endpoint::{Map, ShmEndpoint};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use tombolo_core::error::{Error, Result};
use tombolo_core::transport::{Endpoint, Job, Segment, SegmentKind, Transport};

const NAME: &str = "shm";
const KINDS: usize = SegmentKind::ALL.len();

/// The shared-memory transport.
#[derive(Default)]
pub struct Shm {
    /// By kind.
    own: [Option<Own>; KINDS],
    /// Other PEs whose segments are mapped, by kind.
    mapped: [usize; KINDS],
}

/// A segment of this PE, as registered.
struct Own {
    base: *mut u8,
    len: usize,
    shared: Option<Shared>,
}

/// A memory file, and where in it a segment of this PE lies.
struct Shared {
    extent: Extent,
    file: OwnedFd,
    size: u64,
}

// SAFETY: the base addresses are only handed on, never dereferenced here.
unsafe impl Send for Shm {}
// SAFETY: as above.
unsafe impl Sync for Shm {}

/// What a PE has told of its segments, by kind.
type Extents = [Option<Extent>; KINDS];

impl Shm {
    /// A transport with nothing registered.
    pub fn new() -> Shm {
        Shm::default()
    }

    fn endpoint_to_self(&self) -> ShmEndpoint {
        let mut endpoint = ShmEndpoint::default();
        for kind in SegmentKind::ALL {
            if let Some(own) = &self.own[kind as usize] {
                // SAFETY: this PE's own segment, registered for as long as the transport is used.
                let map = unsafe { Map::borrowed(own.base, own.len) };
                endpoint.set(kind, Arc::new(map), 0, own.len);
            }
        }
        endpoint
    }

    /// The segments of PE `pe` that lie in the files of this one and have the same layout, or why its
    /// heap does not. An error if the heap does and has another length.
    fn usable(&self, pe: usize, address: &[u8]) -> Result<std::result::Result<Extents, String>> {
        if address.is_empty() {
            return Ok(Err("not available there".into()));
        }
        let Some(mut theirs) = address::parse(address) else {
            return Ok(Err("its address cannot be read".into()));
        };
        let own = |kind: SegmentKind| self.own[kind as usize].as_ref()?.shared.as_ref();
        if let (Some(own), Some(their)) = (own(SegmentKind::Heap), theirs[0])
            && own.extent.len != their.len
        {
            let (their, own) = (their.len, own.extent.len);
            let what =
                format!("PE {pe} has a symmetric heap of {their} bytes, this PE one of {own}");
            return Err(Error::Transport { transport: NAME, what });
        }
        for kind in SegmentKind::ALL {
            let slot = &mut theirs[kind as usize];
            let (Some(their), Some(Shared { extent: own, size, .. })) = (*slot, own(kind)) else {
                *slot = None;
                continue;
            };
            let alike = (own.len, own.layout) == (their.len, their.layout);
            if kind == SegmentKind::Static && !alike {
                tracing::warn!(
                    "PE {pe} runs another executable: static data is not shared with it"
                );
            }
            // Touching what is beyond the end of the file would be fatal.
            if !alike || own.file != their.file || !their.lies_within(*size) {
                *slot = None;
            }
        }
        match theirs[SegmentKind::Heap as usize] {
            Some(_) => Ok(Ok(theirs)),
            None => Ok(Err("its memory cannot be mapped by other processes".into())),
        }
    }

    /// Maps the file with all PEs' segments of a kind, as far as somebody needs it.
    fn map(&self, kind: SegmentKind, all: &[(usize, Extents)]) -> Result<Option<Arc<Map>>> {
        let ends = all.iter().filter_map(|(_, extents)| extents[kind as usize].map(|it| it.end()));
        let Some((end, own)) = ends.max().zip(self.own[kind as usize].as_ref()) else {
            return Ok(None);
        };
        let Some(shared) = &own.shared else { return Ok(None) };
        let map = Map::of_file(&shared.file, end).map_err(|e| {
            let why = match e.raw_os_error() {
                Some(libc::ENOMEM) => {
                    "; the limit on address space (ulimit -v) or on mappings (sysctl \
                     vm.max_map_count) is reached, or SHMEM_SYMMETRIC_SIZE is too large for so \
                     many PEs"
                }
                _ => "",
            };
            let what = format!("mapping {end} bytes, the memory of this host's PEs: {e}{why}");
            Error::Transport { transport: NAME, what }
        })?;
        Ok(Some(Arc::new(map)))
    }
}

impl Transport for Shm {
    fn name(&self) -> &'static str {
        NAME
    }

    fn probe(&self, _job: &Job<'_>) -> std::result::Result<(), String> {
        // What can be mapped shows when it is.
        Ok(())
    }

    fn open(&mut self, _job: &Job<'_>, segments: &[Segment<'_>]) -> Result<Vec<u8>> {
        for segment in segments {
            let duplicated = |e| Error::system("duplicating a descriptor", e);
            let shared = match segment.file {
                Some(file) => {
                    let file = file.try_clone_to_owned().map_err(duplicated)?;
                    let (len, offset) = (segment.len as u64, segment.file_offset as u64);
                    let (id, size) = address::look_at(&file)
                        .map_err(|e| failure("looking at a memory file", e))?;
                    let extent = Extent { file: id, offset, len, layout: segment.layout };
                    Some(Shared { extent, file, size })
                }
                None => None,
            };
            let (base, len) = (segment.base, segment.len);
            self.own[segment.kind as usize] = Some(Own { base, len, shared });
        }
        let told = |own: &Option<Own>| Some(own.as_ref()?.shared.as_ref()?.extent);
        Ok(address::bytes(&self.own.each_ref().map(told)))
    }

    fn connect(
        &mut self,
        job: &Job<'_>,
        addresses: &[Vec<u8>],
    ) -> Result<Vec<std::result::Result<Box<dyn Endpoint>, String>>> {
        let mut endpoints: Vec<std::result::Result<Box<dyn Endpoint>, String>> =
            (0..job.n_pes()).map(|_| Err("the PEs are on different hosts".to_owned())).collect();
        let mut all: Vec<(usize, Extents)> = Vec::new();
        for pe in (0..job.n_pes()).filter(|pe| job.is_local(*pe) && *pe != job.pe) {
            let address = addresses.get(pe).map(Vec::as_slice).unwrap_or_default();
            match self.usable(pe, address)? {
                Ok(extents) => all.push((pe, extents)),
                Err(why) => endpoints[pe] = Err(why),
            }
        }
        let [heaps, statics] = SegmentKind::ALL;
        let maps = [self.map(heaps, &all)?, self.map(statics, &all)?];
        for (pe, extents) in all {
            let mut endpoint = ShmEndpoint::default();
            for kind in SegmentKind::ALL {
                let at = kind as usize;
                if let (Some(map), Some(extent)) = (&maps[at], extents[at]) {
                    endpoint.set(kind, map.clone(), extent.offset as usize, extent.len as usize);
                    self.mapped[at] += 1;
                }
            }
            endpoints[pe] = Ok(Box::new(endpoint));
        }
        endpoints[job.pe] = Ok(Box::new(self.endpoint_to_self()));
        // The mappings keep the memory alive; the descriptors are needed no more.
        for own in self.own.iter_mut().flatten() {
            own.shared = None;
        }
        Ok(endpoints)
    }

    fn describe_own(&self) -> Vec<String> {
        let [heaps, statics] = self.mapped;
        vec![format!("mapped of other PEs: {heaps} heaps, static data of {statics}")]
    }
}

fn failure(what: &str, e: std::io::Error) -> Error {
    Error::Transport { transport: NAME, what: format!("{what}: {e}") }
}
