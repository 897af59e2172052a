// SPDX-License-Identifier: Apache-2.0
//! Set-up: who serves which lanes, what lies where in the windows, and who is reached how.

use super::advert::Advert;
use super::arrival::{Arrivals, By, Patience, Words};
use super::cabling::HostPorts;
use super::carriers::CarrierRules;
use super::closing::Requests;
use super::direct::{self, DirectPeer, Opening};
use super::dma::DmaWriter;
use super::endpoint::NtbEndpoint;
use super::failure;
use super::handshake::Greeting;
use super::hardware::Hardware;
use super::lane::Lane;
use super::links::{SidePlan, Translation};
use super::memory::Extent;
use super::packet_engine::PacketEngine;
use super::plan::{self, LanePlan, PlanInputs, RING_WINDOW, common_window};
use super::port_memory::{PortMemory, SideParts};
use crate::ntb::NtbSettings;
use crate::ntb::port::{Arrival, InboundMemory, NtbPort, PortError, Region};
use crate::ntb::ring::{self, Engine, LINE, Side};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use tombolo_core::Result;
use tombolo_core::transport::{Job, Segment, SegmentKind};

/// The window for direct access.
const DIRECT_WINDOW: usize = 1;
/// Whether these ports can carry this job, as far as this PE can tell; the error says to people why
/// not.
pub fn probe(
    hardware: &Hardware,
    job: &Job<'_>,
    settings: &NtbSettings,
) -> std::result::Result<(), String> {
    let inputs = PlanInputs::of(hardware, job, settings);
    let plan = LanePlan::new(hardware, job, &inputs, settings)?;
    if job.localities.iter().all(|place| place.host == job.localities[job.pe].host) {
        let ports = hardware.ports.each_ref().map(|port| port.describe());
        return Err(format!(
            "all PEs are on one host, number {} of {}; its ports are: {}; with one PE on each host, \
             {}",
            hardware.host,
            hardware.hosts,
            ports.join("; "),
            plan.describe().join("; ")
        ));
    }
    Ok(())
}

/// What this PE offers to the others.
pub struct Offer {
    pub hardware: Hardware,
    pub advert: Advert,
    /// By [`Side`].
    translations: [Vec<Translation>; 2],
    requests: Requests,
}

impl Offer {
    pub fn new(
        hardware: Hardware,
        job: &Job<'_>,
        settings: &NtbSettings,
        segments: &[Segment<'_>],
    ) -> Result<Offer> {
        // First: a link that is not enabled says nothing of its speed. Others may be slower to start; but the job's own
        // patience must not end here.
        let incarnation = random();
        let far = hardware.meet(incarnation, job.config.start_timeout / 4).map_err(failure)?;
        let inputs = PlanInputs::of(&hardware, job, settings);
        let pes_max = plan::pes_max(job);
        let local = job.localities[job.pe].local_index as usize;
        let alone = !(0..job.n_pes()).any(|pe| pe != job.pe && job.is_local(pe));
        let mut translations = [Vec::new(), Vec::new()];
        let place = settings.stores().then_some((local, pes_max));
        let direct = open_segments(&hardware, place, inputs.dma, segments, &mut translations)?;
        let extent = |kind: SegmentKind| {
            let segment = segments.iter().find(|segment| segment.kind == kind)?;
            // Other PEs of the host deliver to it, if there are any.
            let delivered = segment.file.is_some() || alone;
            delivered.then_some(Extent { len: segment.len as u64, layout: segment.layout })
        };
        let advert = Advert {
            host: hardware.host,
            hosts: hardware.hosts,
            incarnation,
            far,
            absent: hardware.absent(),
            segments: SegmentKind::ALL.map(extent),
            direct: direct.map(|opening| opening.map(|opening| opening.offset)),
            inputs,
        };
        Ok(Offer { hardware, advert, translations, requests: Requests::new(segments) })
    }

    /// Gives every host its place in the ring, where cables tell it.
    pub fn arrange(
        &mut self,
        job: &Job<'_>,
        adverts: &mut [std::result::Result<Advert, String>],
    ) -> std::result::Result<(), String> {
        let mut hosts: Vec<HostPorts> = (0..self.hardware.hosts)
            .map(|_| HostPorts {
                name: String::new(),
                incarnation: 0,
                far: [None; 2],
                absent: [false; 2],
            })
            .collect();
        // What cables tell is heard by the first PE of a host.
        let firsts =
            job.localities.iter().zip(&*adverts).filter(|(place, _)| place.local_index == 0);
        for (place, advert) in firsts {
            let Some(host) = hosts.get_mut(place.host_index as usize) else { continue };
            host.name.clone_from(&place.host_name);
            if let Ok(advert) = advert {
                (host.incarnation, host.far) = (advert.incarnation, advert.far);
                host.absent = advert.absent;
            }
        }
        let Some(places) = self.hardware.arrange(&hosts)? else { return Ok(()) };
        for (place, advert) in job.localities.iter().zip(adverts) {
            if let (Some(found), Ok(advert)) = (places.get(place.host_index as usize), advert) {
                advert.host = found.position;
            }
        }
        let own = places[job.localities[job.pe].host_index as usize];
        (self.hardware.host, self.advert.host) = (own.position, own.position);
        if own.swapped {
            self.hardware.ports.swap(0, 1);
            self.translations.swap(0, 1);
        }
        Ok(())
    }
}

/// This PE's side of the ring.
pub struct Opened {
    pub hardware: Hardware,
    pub advert: Advert,
    /// Lanes that this PE serves.
    pub lanes: Vec<Arc<Lane>>,
    /// Doorbell bit of each.
    pub lane_doorbells: Vec<u64>,
    /// All of them.
    pub doorbells: u64,
    own: Vec<Arc<Lane>>,
    plan: LanePlan,
    /// A host has one port alone.
    is_line: bool,
    crc: bool,
    /// Whether it may store directly to neighbours.
    stores: bool,
    /// By [`Side`].
    translations: [Vec<Translation>; 2],
    requests: Requests,
    patience: Patience,
    max_bytes: usize,
    speaks: bool,
    /// By [`Side`]: channels for direct puts.
    engines: [Option<Arc<DmaWriter>>; 2],
    carriers: CarrierRules,
}

impl Opened {
    /// Whether the hosts are a line, whose ends no link joins.
    pub fn is_line(&self) -> bool {
        self.is_line
    }

    /// The lanes that this PE sends on.
    pub fn own_lanes(&self) -> &[Arc<Lane>] {
        &self.own
    }

    /// Opens the lanes that follow from what all PEs offer.
    pub fn new(
        offer: Offer,
        job: &Job<'_>,
        settings: &NtbSettings,
        adverts: &[std::result::Result<Advert, String>],
    ) -> Result<Opened> {
        let Offer { hardware, advert, mut translations, requests } = offer;
        let inputs = adverts.iter().flatten().map(|advert| advert.inputs);
        let inputs = PlanInputs::of_all(inputs).map_err(failure)?;
        let plan = LanePlan::new(&hardware, job, &inputs, settings).map_err(failure)?;
        let local = job.localities[job.pe].local_index as usize;
        let pes = (0..job.n_pes()).filter(|pe| job.is_local(*pe)).count();
        let mut config = ring::Config::new(plan.geometry(), advert.incarnation);
        config.crc = settings.crc.0;
        config.silence_ns = settings.silence.as_nanos().min(u64::MAX.into()) as u64;
        config.handling_bytes = plan.choice.handling_bytes;
        let bits = plan.doorbells as usize;
        let (mut lanes, mut own, mut lane_doorbells) = (Vec::new(), Vec::new(), Vec::new());
        for number in plan.served(local, pes) {
            let doorbell = 1 << (number % bits);
            let lane = open_lane(&hardware, &plan, config, number, doorbell, &mut translations)?;
            let lane = Arc::new(lane);
            if plan.own(local).contains(&number) {
                own.push(lane.clone());
            }
            lanes.push(lane);
            lane_doorbells.push(doorbell);
        }
        let max_bytes = own.first().map_or(0, |lane| lane.retain_bytes_max());
        let dma_least = plan::dma_least(&hardware, &inputs, settings);
        let used = settings.stores() && dma_least.is_some();
        let is_free = !plan::takes_turns(&hardware, inputs.cores);
        let engines = Side::BOTH.map(|side| {
            let port = &*hardware.ports[side as usize];
            let engine = used.then(|| open_engine(port, DIRECT_WINDOW)).flatten()?;
            // Otherwise it is known to have arrived when a caller asks.
            engine.wake();
            Some(Arc::new(engine))
        });
        Ok(Opened {
            engines,
            carriers: CarrierRules::new(settings, dma_least, is_free, max_bytes),
            hardware,
            advert,
            doorbells: lane_doorbells.iter().fold(0, |all, bit| all | bit),
            lanes,
            lane_doorbells,
            own,
            plan,
            is_line: adverts.iter().flatten().any(|advert| advert.absent.contains(&true)),
            crc: config.crc,
            stores: settings.stores(),
            translations,
            requests,
            patience: Patience::new(&config),
            max_bytes,
            speaks: local == 0,
        })
    }

    /// The data path to a PE of another host; the error says why there is none.
    pub fn endpoint_to(
        &self,
        job: &Job<'_>,
        pe: usize,
        advert: &Advert,
    ) -> std::result::Result<NtbEndpoint, String> {
        let [own_heap, _] = self.advert.segments;
        let [heap, _] = advert.segments;
        let bytes = |extent: Option<Extent>| extent.map_or(0, |extent| extent.len);
        if heap != own_heap {
            return Err(format!(
                "PE {pe} has a symmetric heap of {} bytes, this PE one of {}",
                bytes(heap),
                bytes(own_heap)
            ));
        }
        let reached = SegmentKind::ALL.map(|kind| {
            let extent = advert.segments[kind as usize]?;
            // The layout of static data differs where another executable runs.
            let same = self.advert.segments[kind as usize].is_none_or(|own| own == extent);
            same.then_some(extent.len as usize)
        });
        let local = u8::try_from(job.localities[pe].local_index)
            .map_err(|_| "its host has more PEs than a packet can name".to_string())?;
        let direct = self.direct_to(job, advert, reached);
        let arrivals = |peer, by: By| {
            let words = Words { host: advert.host, local, n_pes: job.n_pes(), me: job.pe };
            Arc::new(Arrivals::new(by, peer, self.own[0].clone(), pe, words, self.patience))
        };
        let by_cpu = direct.clone().filter(|_| !self.arrives_at_once());
        let by_dma = direct.clone().filter(|peer| peer.has_engine());
        Ok(NtbEndpoint {
            lanes: self.own.clone(),
            pe,
            host: advert.host,
            local,
            lens: reached.map(|len| len.unwrap_or(0)),
            direct,
            arrivals: by_cpu.map(|peer| arrivals(peer, By::Cpu)),
            dma: by_dma.map(|peer| arrivals(peer, By::Dma)),
            max_bytes: self.max_bytes,
            blocks_max: self.plan.geometry().chunk_bytes(),
        })
    }

    fn direct_to(
        &self,
        job: &Job<'_>,
        advert: &Advert,
        reached: [Option<usize>; 2],
    ) -> Option<Arc<DirectPeer>> {
        let capable = self.hardware.ports[0].capabilities();
        if !self.stores || capable.write_combining {
            return None;
        }
        let Hardware { host, hosts, .. } = self.hardware;
        let mut ways: Vec<Side> = Side::BOTH
            .into_iter()
            .filter(|side| advert.host == neighbour(host, hosts, *side))
            .filter(|side| !self.hardware.ports[*side as usize].is_absent())
            .collect();
        if job.localities[job.pe].local_index % 2 == 1 {
            // Both links lead there: PEs take turns.
            ways.reverse();
        }
        let offers = SegmentKind::ALL.map(|kind| {
            let offset = advert.direct[kind as usize]?;
            Some((usize::try_from(offset).ok()?, reached[kind as usize]?))
        });
        // What tells of arrival is in the heap.
        let tells = offers[SegmentKind::Heap as usize].is_some();
        let told = self.arrives_at_once() || tells;
        let engines = match tells {
            true => self.engines.clone(),
            false => [None, None],
        };
        let any = !ways.is_empty() && offers.iter().any(Option::is_some) && told;
        any.then(|| Arc::new(DirectPeer::new(offers, ways, engines, self.carriers)))
    }

    /// Whether stores through windows have arrived when they are flushed.
    pub fn arrives_at_once(&self) -> bool {
        let ports = &self.hardware.ports;
        ports.iter().all(|port| port.capabilities().arrival == Arrival::AtFlush)
    }

    /// What neighbouring PEs ask of this one.
    pub fn requests(&self, job: &Job<'_>, pes_of: &[Vec<usize>]) -> Requests {
        let Hardware { host, hosts, .. } = self.hardware;
        let [right, left] =
            Side::BOTH.map(|side| &pes_of[usize::from(neighbour(host, hosts, side))]);
        // Both links may lead to one host.
        let others: &[usize] = if std::ptr::eq(right, left) { &[] } else { left };
        self.requests.of(right.iter().chain(others).copied(), job.n_pes())
    }

    /// What the keeper of the links must know.
    pub fn side_plans(
        &mut self,
        adverts: &[std::result::Result<Advert, String>],
        pes_of: &[Vec<usize>],
    ) -> [SidePlan; 2] {
        let Hardware { host, hosts, .. } = self.hardware;
        let epoch = |host: u16| {
            let first = pes_of[usize::from(host)].first();
            first.and_then(|pe| adverts[*pe].as_ref().ok()).map_or(0, |advert| advert.incarnation)
        };
        let greeting = |host: u16, side: Side| Greeting {
            host,
            hosts,
            side,
            window: (self.plan.window.size >> 10) as u32,
            doorbells: self.plan.doorbells,
            lanes: self.plan.lanes as u16,
            crc: self.crc,
            geometry: self.plan.geometry(),
            epoch: epoch(host),
        };
        let direct_window = common_window(&self.hardware, DIRECT_WINDOW).map(|_| DIRECT_WINDOW);
        Side::BOTH.map(|side| SidePlan {
            port: self.hardware.ports[side as usize].clone(),
            translations: self.translations[side as usize].clone(),
            greeting: self.speaks.then(|| greeting(host, side)),
            expected: greeting(neighbour(host, hosts, side), side.opposite()),
            direct_window,
        })
    }

    /// The ring as this host sees it, for people.
    pub fn describe(&self) -> String {
        let Hardware { host, hosts, .. } = self.hardware;
        format!(
            "host {host} of a {} of {hosts}, epoch {:#010x}, {}",
            if self.is_line { "line" } else { "ring" },
            self.advert.incarnation,
            if self.crc { "CRC32C" } else { "no CRC" }
        )
    }

    /// The lanes of the ring and why they are as they are, for people.
    pub fn describe_plan(&self) -> Vec<String> {
        self.plan.describe()
    }

    /// This PE's lanes and their threads, for people.
    pub fn describe_lanes(&self) -> String {
        format!(
            "lanes: serves {}, sends on {}, copies sources of up to {} bytes; service threads: {}; doorbells: \
             {:#x}",
            self.lanes.len(),
            self.own.len(),
            self.max_bytes,
            self.lanes.len() * Side::BOTH.len(),
            self.doorbells
        )
    }

    /// What DMA engines do, for people; none where no port has one.
    pub fn describe_engines(&self) -> Option<String> {
        if self.hardware.ports.iter().any(|port| port.leaves_engines()) {
            return Some(
                "DMA engines are used by the first PE of a host alone: the CPU copies".into(),
            );
        }
        self.hardware.ports[0].capabilities().dma?;
        let makes_puts = self.engines.iter().any(Option::is_some);
        let puts = makes_puts.then(|| "makes non-blocking direct puts".to_owned());
        let packets = self.plan.dma_least;
        let packets = packets.map(|least| format!("moves packets with at least {least} bytes"));
        let uses: Vec<String> = puts.into_iter().chain(packets).collect();
        let uses = if uses.is_empty() { "not used".into() } else { uses.join(", ") };
        Some(format!("DMA engine: {uses} (SHMEM_NTB_DMA)"))
    }

    /// What neighbours reach of this PE's memory by storing to it, for people.
    pub fn describe_openings(&self) -> String {
        let segments = [("heap", SegmentKind::Heap), ("static data", SegmentKind::Static)];
        let open: Vec<String> = segments
            .into_iter()
            .filter_map(|(segment, kind)| {
                let offset = self.advert.direct[kind as usize]?;
                Some(format!("{segment} at {} MiB of window {DIRECT_WINDOW}", offset >> 20))
            })
            .collect();
        if open.is_empty() { "nothing".into() } else { open.join(", ") }
    }
}

/// The PEs of each host of the ring; the error says why this is no ring of them.
pub fn pes_of_hosts(
    job: &Job<'_>,
    hardware: &Hardware,
    adverts: &[std::result::Result<Advert, String>],
) -> std::result::Result<Vec<Vec<usize>>, String> {
    let mut pes_of = vec![Vec::new(); usize::from(hardware.hosts)];
    for (pe, advert) in adverts.iter().enumerate() {
        let Ok(advert) = advert else { continue };
        if advert.hosts != hardware.hosts || advert.host >= hardware.hosts {
            return Err(format!(
                "PE {pe} is on host {} of a ring of {}, this PE on one of {}",
                advert.host, advert.hosts, hardware.hosts
            ));
        }
        if job.is_local(pe) != (advert.host == hardware.host) {
            return Err(format!("PE {pe} is on another host by its NTB ports than by its kernel"));
        }
        pes_of[usize::from(advert.host)].push(pe);
    }
    match pes_of.iter().position(Vec::is_empty) {
        Some(host) => Err(format!("there is no PE on host {host}, which the ring passes through")),
        None => Ok(pes_of),
    }
}

fn neighbour(host: u16, hosts: u16, side: Side) -> u16 {
    match side {
        Side::Right => (host + 1) % hosts,
        Side::Left => (host + hosts - 1) % hosts,
    }
}

/// A channel that writes through a window, if the port has a DMA engine.
fn open_engine(port: &dyn NtbPort, window: usize) -> Option<DmaWriter> {
    // One that is absent has what the other port has, but for this.
    let limits = port.capabilities().dma.filter(|_| !port.is_absent())?;
    match port.dma(window) {
        Ok(channel) => Some(DmaWriter::new(channel, limits)),
        Err(error) => {
            tracing::warn!(%error, "opening a DMA channel of an NTB port: the CPU copies");
            None
        }
    }
}

/// The engine that moves packets of at least `least` bytes to one side, from memory of this PE and
/// from what arrives at the other side. None: the CPU does.
fn open_packet_engine(to: &SideParts, from: &SideParts, least: usize) -> Option<PacketEngine> {
    let writer = open_engine(&*to.port, RING_WINDOW)?;
    let lines = InboundMemory::new(writer.descriptors() * LINE).ok()?;
    to.port.register(&lines.region()).ok()?;
    // Of what cannot be registered the CPU passes on.
    let _ = to.port.register(&from.inbound.region());
    Some(PacketEngine::new(writer, least, lines))
}

/// Memory behind both inbound windows, and the engine that reads it.
fn open_lane(
    hardware: &Hardware,
    plan: &LanePlan,
    config: ring::Config,
    number: usize,
    doorbell: u64,
    translations: &mut [Vec<Translation>; 2],
) -> Result<Lane> {
    let bad = |e: PortError| failure(e.to_string());
    let share = plan.window.share(number, plan.lanes);
    let start = share.start as u64 * plan.window.slot_size();
    let bytes = plan.geometry().region_bytes();
    let open = |side: Side| -> Result<(SideParts, Translation)> {
        let port: &Arc<dyn NtbPort> = &hardware.ports[side as usize];
        // The same offset is another slot where slots have another size.
        let window = port.capabilities().windows[RING_WINDOW];
        let slot = (start / window.slot_size()) as usize;
        let size = window.round_up(bytes as u64);
        let inbound = port.inbound_memory(RING_WINDOW, slot, size as usize).map_err(bad)?;
        let inbound = Arc::new(inbound);
        let address = port.register(&inbound.region()).map_err(bad)?;
        let outbound = port.outbound(RING_WINDOW).map_err(bad)?;
        let slots = size.div_ceil(window.slot_size()) as usize;
        let translation = Translation { window: RING_WINDOW, slot, slots, address, size };
        let parts = SideParts {
            port: port.clone(),
            inbound,
            outbound,
            engine: None,
            in_steps: plan.in_steps,
        };
        Ok((parts, translation))
    };
    let (mut right, mut left) = (open(Side::Right)?, open(Side::Left)?);
    if let Some(least) = plan.dma_least {
        right.0.engine = open_packet_engine(&right.0, &left.0, least);
        left.0.engine = open_packet_engine(&left.0, &right.0, least);
    }
    translations[Side::Right as usize].push(right.1);
    translations[Side::Left as usize].push(left.1);
    let lane = u8::try_from(number).map_err(|_| failure("too many lanes"))?;
    let engine = Engine::new(config, hardware.host, hardware.hosts, lane)
        .map_err(|e| failure(e.to_string()))?;
    let region = start as usize..start as usize + bytes;
    let host = PortMemory::new([right.0, left.0], region, doorbell, &config);
    Ok(Lane::new(engine, host))
}

/// Opens this PE's segments to both neighbours, as far as they fit in its share of the window: that of
/// the PE of that number, of so many. Where DMA engines are used, they are made known to them too.
fn open_segments(
    hardware: &Hardware,
    place: Option<(usize, usize)>,
    dma: bool,
    segments: &[Segment<'_>],
    translations: &mut [Vec<Translation>; 2],
) -> Result<[Option<Opening>; 2]> {
    // Segments cannot be moved into memory that a window brings along.
    let window = common_window(hardware, DIRECT_WINDOW).filter(|window| !window.fixed);
    let place = window.zip(place);
    if place.is_none() && !dma {
        return Ok([None; 2]);
    }
    let with_file = SegmentKind::ALL.map(|kind| {
        let segment = segments.iter().find(|segment| segment.kind == kind)?;
        Some((segment, segment.file?))
    });
    let lens = with_file.map(|found| found.map(|(segment, _)| segment.len as u64));
    let openings = place.map_or([None; 2], |(window, (local, pes_max))| {
        direct::plan(&window, local, pes_max, lens)
    });
    for (opening, found) in openings.iter().zip(with_file) {
        let Some((segment, file)) = found.filter(|_| dma || opening.is_some()) else { continue };
        let len = segment.len as u64;
        let file_offset = segment.file_offset as u64;
        let region = Region { base: segment.whole, len, file: Some(file), file_offset };
        for side in Side::BOTH {
            let port = &hardware.ports[side as usize];
            let address = port.register(&region).map_err(|e| failure(e.to_string()))?;
            let Some(opening) = opening else { continue };
            let slot_size = port.capabilities().windows[DIRECT_WINDOW].slot_size();
            let translation = Translation::of(opening, DIRECT_WINDOW, address, slot_size);
            translations[side as usize].push(translation);
        }
    }
    Ok(openings)
}

/// Not 0.
fn random() -> u32 {
    RandomState::new().hash_one(std::process::id()) as u32 | 1
}
