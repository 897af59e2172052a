// SPDX-License-Identifier: Apache-2.0
//! Shared memory within a host: every PE maps every other PE's segments.
//!
//! Segments are memory files. Their descriptors are passed over a Unix socket in the abstract name
//! space, so that nothing has a name in a file system and nothing is left behind. The lowest PE of
//! each host collects the descriptors of all and hands them out: n connections instead of n².
//!
//! What is mapped needs neither the target's CPU nor the kernel afterwards.

mod endpoint;
mod exchange;
mod sys;

use endpoint::{Map, ShmEndpoint};
use exchange::{Advert, Listener};
use tombolo_core::error::{Error, Result};
use tombolo_core::transport::{Endpoint, Job, Segment, SegmentKind, Transport};

const NAME: &str = "shm";

/// The shared-memory transport.
#[derive(Default)]
pub struct Shm {
    own: Vec<Own>,
    listener: Option<Listener>,
    /// Other PEs whose segments are mapped, by kind.
    mapped: [usize; SegmentKind::ALL.len()],
}

/// A segment of this PE, as registered.
struct Own {
    kind: SegmentKind,
    base: *mut u8,
    len: usize,
    layout: u64,
    file: Option<std::os::fd::OwnedFd>,
}

// SAFETY: the base addresses are only handed on, never dereferenced here.
unsafe impl Send for Shm {}
// SAFETY: as above.
unsafe impl Sync for Shm {}

impl Shm {
    /// A transport with nothing registered.
    pub fn new() -> Shm {
        Shm::default()
    }

    fn adverts(&self, pe: usize) -> Advert<'_> {
        let segments = self
            .own
            .iter()
            .filter_map(|own| Some((own.kind, own.len, own.layout, own.file.as_ref()?)))
            .collect();
        Advert { pe: pe as u32, segments }
    }

    fn endpoint_to_self(&self) -> ShmEndpoint {
        let mut endpoint = ShmEndpoint::default();
        for own in &self.own {
            // SAFETY: this PE's own segment, registered for as long as the transport is used.
            let map = unsafe { Map::borrowed(own.base, own.len) };
            endpoint.set(own.kind, map);
        }
        endpoint
    }

    /// Maps what a peer offers, as far as its layout is this PE's.
    fn endpoint_to(&self, offer: &exchange::Offer) -> std::result::Result<ShmEndpoint, String> {
        let mut endpoint = ShmEndpoint::default();
        for (segment, file) in &offer.segments {
            let Some(own) = self.own.iter().find(|own| own.kind == segment.kind) else { continue };
            if own.layout != segment.layout || own.len != segment.len {
                match segment.kind {
                    SegmentKind::Heap => {
                        return Err(format!(
                            "PE {} has a symmetric heap of {} bytes, this PE one of {}",
                            offer.pe, segment.len, own.len
                        ));
                    }
                    SegmentKind::Static => {
                        tracing::warn!(
                            "PE {} runs another executable: static data is not shared with it",
                            offer.pe
                        );
                        continue;
                    }
                }
            }
            let map = Map::of_file(file, segment.len)
                .map_err(|e| format!("mapping memory of PE {}: {e}", offer.pe))?;
            endpoint.set(segment.kind, map);
        }
        Ok(endpoint)
    }
}

impl Transport for Shm {
    fn name(&self) -> &'static str {
        NAME
    }

    fn probe(&self, _job: &Job<'_>) -> std::result::Result<(), String> {
        Listener::open().map(drop).map_err(|e| format!("no Unix sockets: {e}"))
    }

    fn open(&mut self, job: &Job<'_>, segments: &[Segment<'_>]) -> Result<Vec<u8>> {
        for segment in segments {
            let file = match segment.file {
                Some(file) => Some(
                    file.try_clone_to_owned()
                        .map_err(|e| Error::system("duplicating a descriptor", e))?,
                ),
                None => None,
            };
            self.own.push(Own {
                kind: segment.kind,
                base: segment.base,
                len: segment.len,
                layout: segment.layout,
                file,
            });
        }
        if job.localities[job.pe].local_index != 0 {
            return Ok(vec![0]);
        }
        let listener = Listener::open().map_err(|e| failure("opening a socket", e))?;
        let address = listener.address();
        self.listener = Some(listener);
        Ok(address)
    }

    fn connect(
        &mut self,
        job: &Job<'_>,
        addresses: &[Vec<u8>],
    ) -> Result<Vec<std::result::Result<Box<dyn Endpoint>, String>>> {
        let local: Vec<usize> = (0..job.n_pes()).filter(|pe| job.is_local(*pe)).collect();
        let mut offers = Vec::new();
        if local.len() > 1 {
            let leader = local[0];
            let advert = self.adverts(job.pe);
            let limit = job.config.start_timeout;
            offers = match &self.listener {
                Some(listener) => listener.exchange(&advert, local.len(), limit),
                None => exchange::exchange(&addresses[leader], &advert, local.len(), limit),
            }
            .map_err(|e| failure(&format!("exchanging memory with PE {leader}"), e))?;
        }
        self.listener = None;
        let mut endpoints: Vec<std::result::Result<Box<dyn Endpoint>, String>> =
            (0..job.n_pes()).map(|_| Err("not on this host".to_owned())).collect();
        for offer in offers.iter().filter(|offer| offer.pe as usize != job.pe) {
            if let Some(place) = endpoints.get_mut(offer.pe as usize) {
                let endpoint = self
                    .endpoint_to(offer)
                    .map_err(|what| Error::Transport { transport: NAME, what })?;
                for kind in SegmentKind::ALL {
                    self.mapped[kind as usize] += usize::from(endpoint.mapped(kind).is_some());
                }
                *place = Ok(Box::new(endpoint));
            }
        }
        endpoints[job.pe] = Ok(Box::new(self.endpoint_to_self()));
        // The mappings keep the memory alive; the descriptors are needed no more.
        for own in &mut self.own {
            own.file = None;
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
