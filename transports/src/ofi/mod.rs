// SPDX-License-Identifier: Apache-2.0
//! libfabric: TCP between any hosts, and whatever else its providers drive.
//!
//! ```text
//! endpoint -> port (lock) -> engine: RMA, requests and answers -> rdm: libfabric's objects -> sys
//! choose, trial: which provider on which interface
//! ```
//!
//! - The library is loaded at run time; without it the transport says so and is not used.
//! - A provider is taken when it has worked in a trial of puts, gets and messages, not because of
//!   what it lists.
//! - Long transfers are RMA; words, short puts and AMOs are carried out by the target's processor.
//! - Addresses of peers are entered at start; connections are made when they are first used.

mod address;
mod choose;
mod endpoint;
mod engine;
mod message;
mod port;
mod rdm;
mod settings;
mod sys;
mod trial;

use address::{Address, Told};
use choose::{Candidate, Offers, Wish};
use endpoint::OfiEndpoint;
use engine::{ENTRIES, Engine, Lost, Own, Theirs};
use port::Port;
use rdm::{Access, Rdm, Region};
use settings::OfiSettings;
use std::io::Read;
use std::os::fd::RawFd;
use std::ptr::null_mut;
use std::sync::{Arc, Mutex};
use sys::Library;
use tombolo_core::config::{Table, Transports};
use tombolo_core::error::{Error, Result};
use tombolo_core::transport::{
    Distance, Endpoint, Job, Progress, Segment, SegmentKind, Status, Stream, Transport,
};

const NAME: &str = "ofi";
/// Longest operation that is issued: a peer that takes one at a time over a slow network must not
/// seem silent meanwhile.
const PIECE: usize = 1 << 20;

type Connected = Vec<std::result::Result<Box<dyn Endpoint>, String>>;

/// The libfabric transport.
#[derive(Default)]
pub struct Ofi {
    /// Set by `probe`.
    chosen: Mutex<Option<Chosen>>,
    opened: Option<Opened>,
}

/// The provider that works.
struct Chosen {
    library: &'static Library,
    offers: Offers,
    candidate: Candidate,
    /// What was tried before and does not work, and why.
    failed: Vec<String>,
}

/// What is open on this PE.
struct Opened {
    port: Arc<Port>,
    told: [Told; SegmentKind::ALL.len()],
    description: Vec<String>,
    software: bool,
    /// Longest operation in bytes.
    max_len: usize,
}

impl Ofi {
    /// A transport with nothing open.
    pub fn new() -> Ofi {
        Ofi::default()
    }
}

/// What the settings and the job ask for.
fn wish(job: &Job<'_>) -> Result<Wish> {
    let OfiSettings { provider, domain, interface } = OfiSettings::read(job.config.environment())?;
    let first = job.localities[0].host;
    let emulated = job.config.host.is_some();
    let one_machine = emulated || job.localities.iter().all(|l| l.host == first);
    Ok(Wish { provider, domain, interface, one_machine })
}

/// Whether the transport is wanted at all: not where there is another way to all PEs, unless it is
/// named.
fn is_wanted(job: &Job<'_>, wish: &Wish) -> bool {
    let named = match &job.config.transports {
        Transports::Only(names) => names.iter().any(|name| name == NAME),
        Transports::AllBut(_) => false,
    };
    named || !wish.one_machine
}

fn choose(wish: &Wish) -> std::result::Result<Chosen, String> {
    let library = Library::get()?;
    let offers = Offers::find(library, wish)?;
    let mut failed = Vec::new();
    for candidate in offers.candidates.clone() {
        match trial::run(library, &offers, &candidate) {
            Ok(()) => return Ok(Chosen { library, offers, candidate, failed }),
            Err(why) => failed.push(format!("{}: {why}", candidate.describe())),
        }
    }
    Err(format!("no provider of libfabric works: {}", failed.join("; ")))
}

impl Transport for Ofi {
    fn name(&self) -> &'static str {
        NAME
    }

    fn settings(&self) -> Table {
        OfiSettings::TABLE
    }

    fn probe(&self, job: &Job<'_>) -> std::result::Result<(), String> {
        let wish = wish(job).map_err(|e| e.to_string())?;
        if !is_wanted(job, &wish) {
            return Err("all PEs are on this machine; it is used there if it is named in \
                        SHMEM_TRANSPORTS"
                .into());
        }
        *self.chosen.lock().unwrap_or_else(|e| e.into_inner()) = Some(choose(&wish)?);
        Ok(())
    }

    fn open(&mut self, job: &Job<'_>, segments: &[Segment<'_>]) -> Result<Vec<u8>> {
        let chosen = self.chosen.get_mut().unwrap_or_else(|e| e.into_inner()).take();
        let chosen = chosen.ok_or_else(|| failure("it was not probed"))?;
        let (opened, address) = Opened::new(&chosen, job, segments)?;
        self.opened = Some(opened);
        Ok(address.encode())
    }

    fn connect(&mut self, job: &Job<'_>, addresses: &[Vec<u8>]) -> Result<Connected> {
        let opened = self.opened.as_ref().ok_or_else(|| failure("it was not opened"))?;
        let (theirs, endpoints) = opened.meet(job, addresses);
        opened.port.meet(theirs);
        Ok(endpoints)
    }

    fn distance(&self, _a: usize, _b: usize) -> Option<Distance> {
        Some(Distance::Network)
    }

    fn fence(&self, stream: &Stream) -> Status {
        self.opened.as_ref().map_or(Status::Complete, |opened| opened.port.fence(stream))
    }

    fn progress(&self) -> bool {
        self.opened.as_ref().is_some_and(|opened| opened.port.progress())
    }

    fn progress_needed(&self) -> Progress {
        // Providers are asked to make none by themselves, and requests are carried out here.
        Progress::Always
    }

    fn event_fd(&self) -> Option<RawFd> {
        self.opened.as_ref()?.port.wait_fd()
    }

    fn arm(&self) -> bool {
        self.opened.as_ref().is_none_or(|opened| opened.port.arm())
    }

    fn first_unreachable(&self) -> Option<usize> {
        self.opened.as_ref()?.port.lost().first()
    }

    fn has_given_up(&self, pe: usize) -> bool {
        self.opened.as_ref().is_some_and(|opened| opened.port.lost().has(pe))
    }

    fn describe(&self) -> Vec<String> {
        self.opened.as_ref().map_or_else(Vec::new, |opened| opened.description.clone())
    }

    fn describe_own(&self) -> Vec<String> {
        let own = |opened: &Opened| {
            let it = opened.port.counters();
            vec![format!(
                "{} RMA operations, {} operations in {} requests; {} requests of others served, \
                 {} messages of strangers dropped",
                it.rma, it.records, it.requests, it.served, it.strangers
            )]
        };
        self.opened.as_ref().map_or_else(Vec::new, own)
    }

    fn close(&mut self) {
        if let Some(opened) = &self.opened {
            opened.port.close();
        }
    }
}

impl Opened {
    fn new(chosen: &Chosen, job: &Job<'_>, segments: &[Segment<'_>]) -> Result<(Opened, Address)> {
        let info = chosen.offers.info(&chosen.candidate);
        // SAFETY: of the offers, which are only read.
        let rdm = unsafe { Rdm::open(chosen.library, info, job.n_pes(), ENTRIES) };
        let mut rdm = rdm.map_err(failure)?;
        let none = Region { desc: null_mut(), key: 0, base: 0 };
        let mut own = [Own { base: null_mut(), len: 0, region: none }; SegmentKind::ALL.len()];
        let mut told = [Told::default(); SegmentKind::ALL.len()];
        for segment in segments {
            let (base, len) = (segment.base, segment.len);
            // SAFETY: segments stay until `close` has returned. Keys are as good as secret.
            let registered = unsafe { rdm.register(base, len, Access::Remote, random()?) };
            let (region, _) = registered.map_err(failure)?;
            let kind = segment.kind as usize;
            own[kind] = Own { base, len, region };
            told[kind] = Told::of(&own[kind], segment.layout);
        }
        let name = rdm.name().map_err(failure)?;
        let (token, wait_fd) = (random()?, rdm.wait_fd());
        let description = describe(chosen, &rdm);
        let max_len = rdm.max_len;
        let lost = Arc::new(Lost::none(job.n_pes()));
        let engine = Engine::new(rdm, job.pe, token, own, lost.clone()).map_err(failure)?;
        let port = Arc::new(Port::new(engine, lost, wait_fd));
        let provider = chosen.candidate.provider.clone();
        let software = choose::is_software(&provider);
        let address = Address { provider, name, token, told };
        Ok((Opened { port, told, description, software, max_len }, address))
    }

    /// Enters the peers' addresses, and makes an endpoint for each that can be reached.
    fn meet(&self, job: &Job<'_>, addresses: &[Vec<u8>]) -> (Vec<Option<Theirs>>, Connected) {
        let mine = Address::decode(&addresses[job.pe]);
        let provider = mine.map(|mine| mine.provider).unwrap_or_default();
        let meet = |pe: usize| -> std::result::Result<Theirs, String> {
            let bytes = addresses.get(pe).map(Vec::as_slice).unwrap_or_default();
            if bytes.is_empty() {
                return Err("not available there".into());
            }
            let peer = Address::decode(bytes).ok_or("its address cannot be read")?;
            if peer.provider != provider {
                return Err(format!(
                    "it uses provider {} and this PE {provider}: set SHMEM_OFI_PROVIDER",
                    peer.provider
                ));
            }
            let mut segments = SegmentKind::ALL.map(|kind| peer.told[kind as usize].segment);
            for kind in SegmentKind::ALL.map(|kind| kind as usize) {
                let (own, theirs) = (&self.told[kind], &peer.told[kind]);
                if own.segment.len != theirs.segment.len || own.layout != theirs.layout {
                    segments[kind].len = 0;
                }
            }
            let address = self.port.insert(&peer.name)?;
            Ok(Theirs { address, token: peer.token, segments })
        };
        let met: Vec<_> = (0..job.n_pes()).map(meet).collect();
        let endpoint = |(pe, met): (usize, &std::result::Result<Theirs, String>)| {
            let theirs = met.clone()?;
            if pe == job.pe {
                return Err("this PE itself".into());
            }
            let endpoint = OfiEndpoint {
                port: self.port.clone(),
                pe: pe as u32,
                segments: theirs.segments,
                software: self.software,
                piece: self.max_len.min(PIECE),
            };
            Ok(Box::new(endpoint) as Box<dyn Endpoint>)
        };
        let endpoints = met.iter().enumerate().map(endpoint).collect();
        (met.into_iter().map(std::result::Result::ok).collect(), endpoints)
    }
}

fn describe(chosen: &Chosen, rdm: &Rdm) -> Vec<String> {
    let (major, minor) = chosen.library.version();
    let mut lines = vec![format!(
        "libfabric {major}.{minor}, provider {}: the first that worked when tried",
        chosen.candidate.describe()
    )];
    lines.extend(chosen.failed.iter().map(|why| format!("failed: {why}")));
    lines.extend(chosen.offers.left_out.iter().map(|why| format!("left out, {why}")));
    let order = if rdm.ordered { "in the order issued" } else { "in any order" };
    let local = if rdm.needs_local_registration() { "must" } else { "need not" };
    lines.push(format!("puts arrive {order}; local buffers {local} be registered"));
    lines
}

fn random() -> Result<u64> {
    let mut bytes = [0; 8];
    std::fs::File::open("/dev/urandom")
        .and_then(|mut source| source.read_exact(&mut bytes))
        .map_err(|e| Error::system("making a token", e))?;
    Ok(u64::from_le_bytes(bytes))
}

fn failure(what: impl Into<String>) -> Error {
    Error::Transport { transport: NAME, what: what.into() }
}
