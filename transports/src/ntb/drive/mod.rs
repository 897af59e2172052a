// SPDX-License-Identifier: Apache-2.0
//! The NTB transport: runs the ring protocol on real ports.
//!
//! ```text
//! endpoint --- direct window ------------------------------> neighbour's memory
//!     |
//!     +-- lane: engine + memory (windows, symmetric memory), lock
//!            ^        ^
//!            |        +-- service threads: doorbells, timers
//!            +-- links: translations, handshake, mappings
//! ```
//!
//! - A PE has a lane of its own on the whole ring (more where processors are left, or with
//!   `SHMEM_NTB_LANES`). It sends on it, and serves what arrives on it for any PE of its host, whose
//!   memory it has mapped. Where hosts have different numbers of PEs, those of the smaller hosts serve several lanes, so that
//!   every lane goes all the way round.
//! - AMOs are applied by the target host's CPU, so that they are atomic with those of its PEs.
//! - Progress: the service threads of a lane poll it while the program computes ([`service`] says why a
//!   lane has threads of its own). A direct put needs none.

mod advert;
mod arrival;
mod cabling;
mod carriers;
mod closing;
mod describe;
#[cfg(test)]
pub mod device_tests;
mod direct;
mod dma;
mod endpoint;
mod handshake;
mod hardware;
mod jam;
mod lane;
mod links;
mod memory;
mod packet_engine;
mod plan;
mod port_memory;
mod report;
mod service;
mod setup;
mod sharing;
mod token;

use advert::Advert;
use arrival::Arrivals;
use direct::DirectPeer;
use hardware::Hardware;
pub use hardware::PortFacts;
use lane::ServiceTiming;
use links::{Links, name};
use memory::HostMemory;
use report::Reporter;
use service::{ServiceThread, ServiceThreads};
use setup::{Offer, Opened};
use sharing::{Place, Sharing};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tombolo_core::config::Table;
use tombolo_core::error::{Error, Result};
use tombolo_core::transport::{
    Distance, Endpoint, Job, Mapping, Progress, Segment, SegmentKind, Status, Stream, Told,
    Transport,
};
use tombolo_core::wait::Reason;

use super::NtbSettings;
#[cfg(test)]
use super::port::NtbPort;
use super::ring::Side;

const NAME: &str = "ntb";
/// How long the start waits for the second link when the first is in use.
const SECOND_LINK: Duration = Duration::from_secs(1);

/// How long it waits while neither link can be used for a reason that is known: a neighbour that is
/// only late is none.
const TROUBLE: Duration = Duration::from_secs(5);

/// How long it waits for direct windows, without which there is only less speed.
const MAPPINGS: Duration = Duration::from_millis(20);

type Connected = Vec<std::result::Result<Box<dyn Endpoint>, String>>;

/// The NTB ring transport.
#[derive(Default)]
pub struct Ntb {
    /// Read when the transport is probed.
    settings: OnceLock<NtbSettings>,
    offer: Option<Offer>,
    opened: Option<Opened>,
    running: Option<Running>,
    threads: Option<ServiceThreads>,
    /// Ports that a test has made: they learn of their cables as those of a machine do.
    #[cfg(test)]
    ports: Option<TestPorts>,
    /// With other PEs of the host.
    sharing: Sharing,
}

/// Where a test has the ports of a PE from.
#[cfg(test)]
enum TestPorts {
    Made([Arc<dyn NtbPort>; 2]),
    /// The first PE of the host.
    Borrowed,
}

/// What exists once the PEs know each other.
struct Running {
    links: Arc<Links>,
    reporter: Arc<Reporter>,
    direct: Vec<Arc<DirectPeer>>,
    arrivals: Vec<Arc<Arrivals>>,
    local_pes: Vec<usize>,
}

impl Ntb {
    /// What figures over the links of this host depend on; none before they are in use.
    pub fn ports(&self) -> Option<PortFacts> {
        Some(self.opened.as_ref()?.hardware.facts())
    }

    /// A transport with nothing open.
    pub fn new() -> Ntb {
        Ntb::default()
    }

    fn hardware(
        &self,
        job: &Job<'_>,
        settings: &NtbSettings,
    ) -> std::result::Result<Hardware, String> {
        #[cfg(test)]
        if let Some(TestPorts::Made(ports)) = &self.ports {
            return Hardware::with(ports.clone(), job);
        }
        match Place::of(job, settings) {
            Place::Beside => Hardware::borrowed(job),
            Place::Alone | Place::First => Hardware::find(job, settings),
        }
    }

    /// Whether a host with several PEs has devices at all.
    fn check(&self, job: &Job<'_>, settings: &NtbSettings) -> std::result::Result<(), String> {
        #[cfg(test)]
        if self.ports.is_some() {
            return Ok(());
        }
        Hardware::check(job, settings)
    }

    fn settings_of(&self, job: &Job<'_>) -> Result<&NtbSettings> {
        if let Some(settings) = self.settings.get() {
            return Ok(settings);
        }
        let settings = NtbSettings::read(job.config.environment())?;
        Ok(self.settings.get_or_init(|| settings))
    }

    /// Waits until the links are in use: both, or one of them if the other does not come.
    fn settle(&self, opened: &Opened, running: &Running, limit: Duration) -> Result<()> {
        let begun = Instant::now();
        let (mut first_at, mut troubled_at) = (None, None);
        loop {
            running.links.tend();
            opened.lanes.iter().for_each(|lane| _ = lane.progress());
            let in_use = |side| opened.lanes.iter().all(|lane| lane.link_in_use(side));
            let present = || {
                Side::BOTH.into_iter().filter(|s| !opened.hardware.ports[*s as usize].is_absent())
            };
            let count = present().filter(|side| in_use(*side)).count();
            if count > 0 {
                first_at.get_or_insert_with(Instant::now);
            }
            let waited = first_at.map_or(Duration::ZERO, |at| at.elapsed());
            let mapped = present().all(|side| running.links.is_mapped(side));
            if (count == present().count() && (mapped || waited > MAPPINGS)) || waited > SECOND_LINK
            {
                return Ok(());
            }
            let troubled = present().all(|side| running.links.is_troubled(side));
            troubled_at = troubled.then(|| troubled_at.unwrap_or_else(Instant::now));
            let hopeless = troubled_at.is_some_and(|at: Instant| at.elapsed() > TROUBLE);
            if hopeless || begun.elapsed() > limit {
                let why: Vec<String> = present()
                    .map(|side| {
                        let trouble = running.links.trouble(side);
                        let trouble = trouble.unwrap_or_else(|| "no answer".into());
                        let port = opened.hardware.ports[side as usize].describe();
                        format!("{}: {trouble} ({port})", name(side))
                    })
                    .collect();
                return Err(failure(format!(
                    "no link of host {} came into use within {:.1?} (SHMEM_START_TIMEOUT): {}",
                    opened.hardware.host,
                    begun.elapsed(),
                    why.join("; ")
                )));
            }
            std::thread::sleep(Duration::from_micros(50));
        }
    }
}

impl Transport for Ntb {
    fn name(&self) -> &'static str {
        NAME
    }

    fn settings(&self) -> Table {
        NtbSettings::TABLE
    }

    fn probe(&self, job: &Job<'_>) -> std::result::Result<(), String> {
        let settings = self.settings_of(job).map_err(|e| e.to_string())?;
        let place = Place::of(job, settings);
        if place != Place::Alone {
            // All PEs of a host find the same, so that none waits for another where there are no devices.
            self.check(job, settings)?;
        }
        match place {
            // Whether ports can be used is tried by the first PE, which tells when they are opened.
            Place::Beside => return Ok(()),
            Place::First => self.sharing.begin(job)?,
            Place::Alone => {}
        }
        let hardware = self.hardware(job, settings);
        self.sharing.tell(hardware.and_then(|found| setup::probe(&found, job, settings)))
    }

    fn open(&mut self, job: &Job<'_>, segments: &[Segment<'_>]) -> Result<Vec<u8>> {
        let settings = self.settings_of(job)?;
        let hardware = self.hardware(job, settings).map_err(failure);
        let offer = hardware.and_then(|found| Offer::new(found, job, settings, segments));
        let offer = self.sharing.tell(offer)?;
        self.sharing.lend(&offer.hardware).map_err(failure)?;
        let address = offer.advert.encode();
        self.offer = Some(offer);
        Ok(address)
    }

    fn connect(&mut self, job: &Job<'_>, addresses: &[Vec<u8>]) -> Result<Connected> {
        let mut offer = self.offer.take().ok_or_else(|| failure("it was not opened"))?;
        let mut adverts: Vec<std::result::Result<Advert, String>> =
            addresses.iter().map(|bytes| Advert::decode(bytes)).collect();
        offer.arrange(job, &mut adverts).map_err(failure)?;
        let opened = Opened::new(offer, job, self.settings_of(job)?, &adverts)?;
        let opened = self.opened.insert(opened);
        let pes_of = setup::pes_of_hosts(job, &opened.hardware, &adverts).map_err(failure)?;
        let me = opened.hardware.host;
        let speaks = job.localities[job.pe].local_index == 0;
        let (mut direct, mut arrivals, mut transfers) = (Vec::new(), Vec::new(), Vec::new());
        let mut endpoints: Connected = Vec::with_capacity(adverts.len());
        for (pe, advert) in adverts.iter().enumerate() {
            endpoints.push(match advert {
                _ if job.is_local(pe) => Err("the PEs are on the same host".into()),
                Err(why) => Err(why.clone()),
                Ok(advert) => opened.endpoint_to(job, pe, advert).map(|endpoint| {
                    direct.extend(endpoint.direct.clone());
                    arrivals.extend(endpoint.arrivals.clone());
                    transfers.extend(endpoint.dma.clone());
                    Box::new(endpoint) as Box<dyn Endpoint>
                }),
            });
        }
        arrivals.extend(transfers.iter().cloned());
        let transfers: Arc<[_]> = transfers.into();
        let plans = opened.side_plans(&adverts, &pes_of);
        let requests = opened.requests(job, &pes_of);
        let lanes = opened.lanes.clone();
        let links = Links::new(plans, lanes, opened.doorbells, direct.clone(), requests);
        let links = Arc::new(links.map_err(|e| failure(e.to_string()))?);
        let local_pes = pes_of[usize::from(me)].clone();
        let reporter = Arc::new(Reporter::new(me, pes_of, opened.is_line(), speaks));
        let timing = ServiceTiming::new(job.n_pes(), opened.lanes.len());
        let lanes = opened.lanes.iter().zip(&opened.lane_doorbells).enumerate();
        let threads_to_start = lanes.flat_map(|(index, (lane, doorbell))| {
            Side::BOTH.map(|side| ServiceThread {
                leads: index == 0,
                lane: lane.clone(),
                links: links.clone(),
                reporter: reporter.clone(),
                port: opened.hardware.ports[side as usize].clone(),
                side,
                doorbell: *doorbell,
                timing,
                transfers: transfers.clone(),
            })
        });
        let threads = ServiceThreads::start(threads_to_start.collect());
        self.threads = Some(threads.map_err(|e| Error::system("starting NTB service threads", e))?);
        let running = Running { links, reporter, direct, arrivals, local_pes };
        self.running = Some(running);
        if let (Some(opened), Some(running)) = (&self.opened, &self.running) {
            self.settle(opened, running, job.config.start_timeout)?;
        }
        Ok(endpoints)
    }

    fn deliver_to(&mut self, memory: &[[Option<Mapping>; SegmentKind::ALL.len()]]) -> Result<()> {
        let (Some(opened), Some(running)) = (&self.opened, &self.running) else { return Ok(()) };
        let unmapped = memory.iter().position(|pe| pe[SegmentKind::Heap as usize].is_none());
        if let Some(local) = unmapped {
            return Err(failure(format!(
                "what arrives over the NTB ring for PE {} cannot be delivered: this PE is on the same \
                 host and must be able to map its memory, which no transport in use does",
                running.local_pes.get(local).copied().unwrap_or_default()
            )));
        }
        // SAFETY: mapped until `close` has returned, by contract; no lane is polled after that.
        let memory = unsafe { HostMemory::new(memory) };
        opened.lanes.iter().for_each(|lane| lane.deliver_to(memory.clone()));
        Ok(())
    }

    fn distance(&self, a: usize, b: usize) -> Option<Distance> {
        match self.running.as_ref()?.reporter.hops(a, b)? {
            0 => None,
            hops => Some(Distance::Hops(hops)),
        }
    }

    fn fence(&self, stream: &Stream) -> Status {
        let (Some(opened), Some(running)) = (&self.opened, &self.running) else {
            return Status::Complete;
        };
        // A direct put overtakes every packet. A stream with nothing outstanding needs no lane's lock.
        let ordered = match running.direct.is_empty() {
            _ if stream.is_quiet() => true,
            false => false,
            true => endpoint::lane(opened.own_lanes(), stream).fence(stream.id),
        };
        if ordered { Status::Complete } else { Status::Pending }
    }

    fn progress(&self) -> bool {
        let Some(opened) = &self.opened else { return false };
        let polled = opened.lanes.iter().map(|lane| lane.progress());
        let moved = polled.filter(|polled| *polled == lane::Polled::Busy).count() > 0;
        if let Some(running) = &self.running {
            running.arrivals.iter().for_each(|arrivals| arrivals.progress());
        }
        moved
    }

    fn progress_needed(&self) -> Progress {
        // Service threads would do it, at the price of a switch to them.
        Progress::Waiting
    }

    fn held_up_by(&self) -> Option<Reason> {
        self.opened.as_ref()?.own_lanes().iter().find_map(|lane| lane.held_up_by())
    }

    fn tell(&self, told: Told) {
        if let Some(running) = &self.running {
            running.reporter.tell_to(told);
        }
    }

    fn first_unreachable(&self) -> Option<usize> {
        self.running.as_ref()?.reporter.lost()
    }

    fn has_given_up(&self, pe: usize) -> bool {
        let (Some(opened), Some(running)) = (&self.opened, &self.running) else { return false };
        let host = running.reporter.host_of(pe);
        host.is_some_and(|host| opened.lanes.iter().any(|lane| lane.has_lost(host)))
    }

    fn medium(&self) -> Option<&str> {
        let opened = self.opened.as_ref()?;
        Some(opened.hardware.ports[Side::Right as usize].capabilities().name)
    }

    fn describe(&self) -> Vec<String> {
        self.opened.as_ref().map_or_else(Vec::new, describe::host)
    }

    fn describe_own(&self) -> Vec<String> {
        let own = |opened: &Opened| describe::own(opened, self.running.as_ref());
        self.opened.as_ref().map_or_else(Vec::new, own)
    }

    fn close(&mut self) {
        self.threads = None;
        if let Some(running) = &self.running {
            running.links.close();
            if let Some(opened) = &self.opened {
                opened.lanes.iter().for_each(|lane| lane.close_engines());
            }
            running.direct.iter().for_each(|peer| peer.close());
        }
        self.sharing.end();
    }
}

fn failure(what: impl Into<String>) -> Error {
    Error::Transport { transport: NAME, what: what.into() }
}
