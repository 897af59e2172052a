// SPDX-License-Identifier: Apache-2.0
//! Joining a job: from the environment to a world in which every PE can be reached.

use super::peers::{Peers, Polled};
use super::{
    InForce, SHARED_SLOT, Setup, Statics, WORLD_SLOT, World, domain, exchange, with_devices,
};
use crate::board::State;
use crate::bootstrap::Bootstrap;
use crate::bootstrap::slots::OnHost;
use crate::config::{Config, Least, Shown, Static, Transports};
use crate::context::{Context, ContextOptions};
use crate::control;
use crate::copier::{self, Copier};
use crate::error::{Error, Result};
use crate::load::{Load, Loads};
use crate::loss::{Losses, Neighbour, Watched};
use crate::memory::common::{self, Failure, Host, Need, Part, Parts};
use crate::memory::{Heap, StaticData};
use crate::ops::{ControlWire, Requesters};
use crate::route::{Channel, PeerRoutes, Routes};
use crate::service::{Announced, Served, Server, Service};
use crate::table::Table;
use crate::team::{Team, TeamSlots};
use crate::thread_queues::ThreadQueues;
use crate::transport::{Job, Locality, Mapping, Progress, Segment, SegmentKind};
use crate::wait::{self, Patience};
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

impl World {
    /// Collective: joins the job. On failure the error says what to change.
    pub fn start(setup: Setup) -> Result<World> {
        let Setup { bootstrap, board, config, transports, share_statics, several_threads } = setup;
        let pe = bootstrap.pe();
        board.announce(pe, State::Starting);
        let n_pes = bootstrap.n_pes();
        let refuse = |why| exchange::refuse(&*bootstrap, why);
        let host = Host::meet();
        let need = need(&config, n_pes, share_statics, host.address()).map_err(refuse)?;
        let (localities, needs, several_threads) =
            exchange::localities(&*bootstrap, &config, &transports, need, several_threads)?;
        let mut job = Job { pe, localities: &localities, config: &config, meeting: None };
        let local: Vec<u32> =
            (0..job.n_pes()).filter(|pe| job.is_local(*pe)).map(|pe| pe as u32).collect();
        let needs: Vec<&Need> = local.iter().map(|pe| &needs[*pe as usize]).collect();
        job.meeting = common::meeting(&needs);
        let parts = parts(&job, host, &needs).map_err(|failure| match failure {
            Failure::OfAll(why) => refuse(why),
            Failure::Own(why) => why,
        })?;
        let bootstrap: Arc<dyn Bootstrap> = match parts.slots {
            Some(slots) if local.len() == n_pes => Arc::new(OnHost::new(bootstrap, slots)),
            _ => bootstrap,
        };
        let memory = memory(&job, parts.heap, parts.statics, share_statics);
        let (heap, statics) = memory.map_err(|why| exchange::refuse(&*bootstrap, why))?;
        // Where the start fails, transports are dropped before the memory that they use.
        let mut transports = transports;

        let segments = describe(&heap, statics.as_ref());
        let (endpoints, reasons) =
            exchange::connect(&*bootstrap, &job, &segments, &mut transports)?;
        let mapped = SegmentKind::ALL.map(|kind| {
            let own = segments.iter().find(|segment| segment.kind == kind);
            own.map_or_else(Box::default, |own| addresses(own, pe, job.n_pes(), &endpoints))
        });
        let table = Table::empty();
        for segment in &segments {
            let peers = mapped[segment.kind as usize].as_ptr();
            // SAFETY: nobody else has the table yet; endpoints promise their mappings until the
            // world, which owns both, is dropped.
            unsafe { table.fill(segment.base, segment.len, peers) };
        }
        let memory = memory_of(&local, &segments, &mapped);
        let delivered = transports.iter_mut().try_for_each(|t| t.deliver_to(&memory));
        let peers = Arc::new(Peers::new(transports, endpoints));
        let routes = default_routes(&peers, &mapped);
        let lost = routes.peers.iter().position(|r| r.put[0].choose(8) == Channel::Unreachable);
        let reached = match lost {
            None => delivered.map_err(|why| why.with(left_out(&config))),
            Some(lost) => {
                let why = format!("{}{}", reasons[lost], left_out(&config));
                Err(Error::Unreachable { pe: lost as u32, why })
            }
        };

        let everyone: Box<[u32]> = (0..job.n_pes() as u32).collect();
        let world_team = Arc::new(Team::new(WORLD_SLOT, everyone, pe, i32::MAX));
        let (crowd, processors) = (wait::crowd(job.sharers()), wait::processors(job.sharers()));
        // The standard wants `shmem_ptr` to work for its members: being on one host is not enough.
        let shared: Box<[u32]> =
            local.iter().copied().filter(|peer| mapped[0][*peer as usize] != 0).collect();
        let me = shared.iter().position(|peer| *peer as usize == pe).unwrap_or(0);
        let shared_team = Arc::new(Team::new(SHARED_SLOT, shared, me, i32::MAX));
        let copier = copier(config.overlap, processors);
        let contexts = AtomicU32::new(0);
        let streams = peers.transports().len() + usize::from(copier.is_some());
        let loads: Arc<[Load]> = peers.transports().iter().map(|_| Load::default()).collect();
        let context = || {
            let (options, id) =
                (ContextOptions::default(), contexts.fetch_add(1, Ordering::Relaxed));
            let loads = Loads::new(loads.clone());
            Context::new(world_team.clone(), options, loads, streams, id)
        };
        let control_wire = ControlWire { heaps: mapped[0].clone().into(), peers: peers.clone() };
        let patience = Patience::for_crowd(crowd);
        let service =
            start_service(&heap, statics.as_ref(), &mapped, &config, &control_wire, pe, &patience);
        // Nobody may write to a PE that has not got this far.
        let kinds: Vec<SegmentKind> = segments.iter().map(|segment| segment.kind).collect();
        let is_mapped = |peer: usize| mapped[0][peer] != 0;
        let wishes = domain::wishes(&peers, pe, localities.len(), &kinds, is_mapped);
        let (service, wishes) = exchange::agree(&*bootstrap, reached.and(service), &wishes)?;
        let devices = domain::settled(&wishes, localities.len());
        domain::tell(&peers, &devices);
        let routes = with_devices(routes, &devices);
        Ok(World {
            pe,
            bootstrap,
            board,
            heap,
            statics,
            table,
            _mapped: mapped,
            unreachable: reasons,
            progressing: service.is_some() || peers.progress_needed() > Progress::None,
            routes: AtomicPtr::new(Box::into_raw(Box::new(InForce::new(
                routes,
                1,
                &peers,
                &Vec::new(),
            )))),
            retired: Mutex::default(),
            devices,
            dropped: Mutex::default(),
            losses: Losses::none(localities.len()),
            neighbour: Neighbour::of(pe, &localities, &config),
            watched: Watched::of(pe, &localities, &config),
            partings: AtomicU64::new(0),
            observer: OnceLock::new(),
            watcher: OnceLock::new(),
            patience,
            crowd,
            processors,
            copier,
            several_threads,
            thread_queues: ThreadQueues::default(),
            team_slots: TeamSlots::new(2),
            context: context(),
            internal_context: context(),
            sync_contexts: [context(), context()],
            letter_contexts: std::array::from_fn(|_| context()),
            contexts,
            loads,
            world_team,
            shared_team,
            service,
            control_wire,
            requesters: Requesters::new(localities.len()),
            peers,
            hosts: hosts(&localities),
            localities,
            config,
        })
    }
}

/// What carries out long copies beside the program, if something does.
fn copier(overlap: Least, processors: u32) -> Option<Copier> {
    /// By measurement: a thread that sleeps takes up to 50 us to begin, and the program 5 us to wake it.
    const AUTO: copier::Least = copier::Least { awake: 256 << 10, asleep: 4 << 20 };
    let least = match overlap {
        Least::Never => None,
        // Shorter ones are not worth a look.
        Least::From(bytes) => Some(copier::Least { awake: bytes.max(64), asleep: bytes.max(64) }),
        Least::Auto => (processors > 1).then_some(AUTO),
    };
    least.map(Copier::new)
}

/// What this PE needs of the memory of its host, and where it listens for who gets memory from it.
/// An error if its host has not so much: what a cgroup leaves it may differ from what it leaves others.
fn need(config: &Config, n_pes: usize, share_statics: bool, address: Vec<u8>) -> Result<Need> {
    Heap::check(config)?;
    let statics = match config.static_data {
        Static::Remap if share_statics => StaticData::need()?,
        Static::Auto if share_statics => StaticData::need().unwrap_or(0),
        _ => 0,
    };
    Ok(Need { heap: Heap::length(config, control::len(n_pes))?, statics, address })
}

/// Collective among the PEs of a host: the parts of this one in its memory files.
fn parts(job: &Job<'_>, host: Host, needs: &[&Need]) -> Result<Parts, Failure> {
    let me = job.localities[job.pe].local_index as usize;
    if me == 0 {
        Heap::warn_of_all(job.config, needs.len());
    }
    host.parts(needs, me, job.config.start_timeout)
}

/// The symmetric memory of this PE.
fn memory(
    job: &Job<'_>,
    heap: Part,
    statics: Option<Part>,
    share_statics: bool,
) -> Result<(Heap, Option<Statics>)> {
    let statics = if share_statics { find_statics(job.config, statics)? } else { None };
    Ok((Heap::of(heap, job.config, control::len(job.n_pes()))?, statics))
}

fn find_statics(config: &Config, part: Option<Part>) -> Result<Option<Statics>> {
    match config.static_data {
        Static::Off => Ok(None),
        Static::Cma => Ok(Some(Statics::Private(StaticData::in_place()?))),
        Static::Remap => Ok(Some(Statics::Shared(StaticData::remap(part)?))),
        Static::Auto => match StaticData::remap(part) {
            Ok(data) => Ok(Some(Statics::Shared(data))),
            Err(why) => {
                tracing::warn!("static data is reached by copying, not by mapping: {why}");
                Ok(StaticData::in_place().ok().map(Statics::Private))
            }
        },
    }
}

fn describe<'a>(heap: &'a Heap, statics: Option<&'a Statics>) -> Vec<Segment<'a>> {
    let heap = Segment {
        kind: SegmentKind::Heap,
        base: heap.base(),
        len: heap.len(),
        whole: heap.base(),
        file: Some(heap.file()),
        file_offset: heap.file_offset(),
        layout: heap.len() as u64,
    };
    let statics = statics.map(Statics::data).map(|data| Segment {
        kind: SegmentKind::Static,
        base: data.base(),
        len: data.len(),
        whole: data.whole(),
        file: data.file(),
        file_offset: data.file_offset(),
        layout: data.layout(),
    });
    std::iter::once(heap).chain(statics).collect()
}

/// For messages: that the user leaves transports out, and what to set.
fn left_out(config: &Config) -> String {
    let transports = Shown(&config.transports);
    match &config.transports {
        Transports::AllBut(none) if none.is_empty() => String::new(),
        _ => format!(
            "; SHMEM_TRANSPORTS={transports} leaves other transports out: \
             set SHMEM_TRANSPORTS=all"
        ),
    }
}

/// Where each PE's copy of a segment lies in this process, 0 where it does not.
fn addresses(
    own: &Segment<'_>,
    pe: usize,
    n_pes: usize,
    endpoints: &exchange::Endpoints,
) -> Box<[usize]> {
    (0..n_pes)
        .map(|peer| {
            if peer == pe {
                return own.base as usize;
            }
            let mapping = endpoints.iter().find_map(|transport| {
                let mapping = transport[peer].as_ref()?.mapped(own.kind)?;
                (mapping.load && mapping.atomic && mapping.len >= own.len).then_some(mapping)
            });
            mapping.map_or(0, |mapping| mapping.base as usize)
        })
        .collect()
}

/// The segments of `local` PEs as memory of this process.
fn memory_of(
    local: &[u32],
    segments: &[Segment<'_>],
    mapped: &[Box<[usize]>; 2],
) -> Vec<[Option<Mapping>; 2]> {
    let mapping = |kind: SegmentKind, pe: u32| {
        let own = segments.iter().find(|segment| segment.kind == kind)?;
        let address = mapped[kind as usize][pe as usize];
        let base = address as *mut u8;
        (address != 0).then_some(Mapping { base, len: own.len, load: true, atomic: true })
    };
    local.iter().map(|pe| SegmentKind::ALL.map(|kind| mapping(kind, *pe))).collect()
}

fn default_routes(peers: &Peers, mapped: &[Box<[usize]>; 2]) -> Routes {
    let is_mapped = |kind: usize, pe: usize| mapped[kind].get(pe).is_some_and(|at| *at != 0);
    let mut all: Vec<PeerRoutes> = Vec::with_capacity(mapped[0].len());
    for pe in 0..mapped[0].len() {
        // Most PEs are reached as the one before: working it out again takes much longer.
        let same = |before: usize| {
            peers.are_alike(before, pe)
                && [0, 1].iter().all(|kind| is_mapped(*kind, before) == is_mapped(*kind, pe))
        };
        let routes = match pe.checked_sub(1).filter(|before| same(*before)) {
            Some(before) => all[before],
            None => Routes::default_for(&peers.of(pe), |kind| is_mapped(kind as usize, pe)),
        };
        all.push(routes);
    }
    Routes { peers: all, hinted: Default::default(), costs: Arc::default() }
}

/// Number of hosts of a job.
fn hosts(localities: &[Locality]) -> u32 {
    localities.iter().map(|locality| locality.host_index).max().unwrap_or(0) + 1
}

/// Starts the service thread if some PE may have to ask this one for what it cannot do by itself, or
/// a transport needs it.
fn start_service(
    heap: &Heap,
    statics: Option<&Statics>,
    mapped: &[Box<[usize]>; 2],
    config: &Config,
    wire: &ControlWire,
    pe: usize,
    patience: &Patience,
) -> Result<Option<Service<ControlWire>>> {
    let n_pes = mapped[0].len();
    let heap_mapped = mapped[0].iter().all(|address| *address != 0);
    // Transports do the same in both directions: what this PE needs of another one, that one needs of
    // this.
    let asks = |(pe, address): (usize, &usize)| *address == 0 && !wire.peers.are_sufficient(pe);
    let asking = mapped[0].iter().enumerate().any(asks);
    let private = statics.map(Statics::data).filter(|data| data.file().is_none());
    // What is asked for depends on the routes of others; routes that are forced may be any.
    let asked = n_pes > 1 && (asking || private.is_some() || !config.route.is_empty());
    let polled = wire.peers.progress_needed() == Progress::Always;
    if !asked && !polled {
        return Ok(None);
    }
    let statics = statics.map(Statics::data).into_iter().flat_map(|data| {
        let (kind, base) = (SegmentKind::Static, data.base() as usize);
        data.ranges().map(move |offsets| Served { kind, base, offsets })
    });
    let (kind, base, offsets) = (SegmentKind::Heap, heap.base() as usize, 0..heap.len());
    let served = std::iter::once(Served { kind, base, offsets }).chain(statics).collect();
    // SAFETY: both lie in the control area, which the heap holds and which is zero at first; the
    // world drops the service before the heap.
    let service = unsafe {
        let bell = heap.base().add(control::service_bell()).cast_const().cast();
        let lines = heap.base().add(control::request_line(0, 0)).cast_const().cast();
        let server = asked.then(|| Server::new(wire.clone(), pe, n_pes, lines, served));
        let announced = if heap_mapped { Announced::ByBell } else { Announced::Silently };
        let transports = polled.then(|| Box::new(Polled(wire.peers.clone())) as _);
        Service::start(bell, server, announced, transports, patience)
    };
    service.map(Some).map_err(|e| Error::system("starting the service thread", e))
}
