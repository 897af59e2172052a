//! The world: everything one PE has while it takes part in a job.

use crate::board::{Board, State};
use crate::bootstrap::Bootstrap;
use crate::config::{Config, Shown, Static, Transports};
use crate::context::{Context, ContextOptions};
use crate::control;
use crate::cost::Costs;
use crate::error::{Error, Result, report};
use crate::loss::Losses;
use crate::memory::{Heap, StaticData};
use crate::reroute::{Dropped, Observer};
use crate::route::{Channel, Routes};
use crate::service::{Lines, Served, Service};
use crate::table::Table;
use crate::team::{Team, TeamSlots};
use crate::transport::{self, Endpoint, Job, Locality, Mapping, Segment, SegmentKind, Transport};
use crate::wait::{Patience, Waiting};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

mod exchange;

/// Slots of the predefined teams.
pub const WORLD_SLOT: usize = 0;
/// Slot of the team of PEs that share memory.
pub const SHARED_SLOT: usize = 1;

/// What a world is made from.
pub struct Setup {
    /// Communication before transports exist.
    pub bootstrap: Arc<dyn Bootstrap>,
    /// Where waits are published.
    pub board: Arc<Board>,
    /// The environment.
    pub config: Config,
    /// Back ends in order of preference; those that do not work are left out.
    pub transports: Vec<Box<dyn Transport>>,
    /// Whether static data of the executable is made symmetric. Threads that play PEs of one
    /// process share their static data and must say no.
    pub share_statics: bool,
}

/// One PE's part of a job.
pub struct World {
    pe: usize,
    config: Config,
    bootstrap: Arc<dyn Bootstrap>,
    board: Arc<Board>,
    localities: Vec<Locality>,
    heap: Heap,
    statics: Option<Statics>,
    table: Table,
    /// Addresses of peers' segments, by kind and PE; the table points into it.
    _mapped: [Box<[usize]>; 2],
    transports: Vec<Box<dyn Transport>>,
    /// By transport, then PE.
    endpoints: Vec<Vec<Option<Box<dyn Endpoint>>>>,
    unreachable: Vec<String>,
    progressing: bool,
    /// Number of hosts.
    hosts: u32,
    routes: AtomicPtr<Routes>,
    /// Replaced routes: other threads may still be reading them.
    #[expect(clippy::vec_box, reason = "readers hold the address")]
    retired: Mutex<Vec<Box<Routes>>>,
    /// Transports that have failed towards a PE.
    dropped: Mutex<Dropped>,
    losses: Losses,
    observer: OnceLock<Box<dyn Observer>>,
    patience: Patience,
    team_slots: TeamSlots,
    world_team: Arc<Team>,
    shared_team: Arc<Team>,
    context: Context,
    internal_context: Context,
    service: Option<Service>,
    /// Last ticket per target of the service protocol; the lock allows one request at a time.
    pub(crate) tickets: Mutex<Vec<u64>>,
}

enum Statics {
    Shared(&'static StaticData),
    Private(StaticData),
}

impl Statics {
    fn data(&self) -> &StaticData {
        match self {
            Statics::Shared(data) => data,
            Statics::Private(data) => data,
        }
    }
}

impl World {
    /// Collective: joins the job. On failure the error says what to change.
    pub fn start(setup: Setup) -> Result<World> {
        let Setup { bootstrap, board, config, mut transports, share_statics } = setup;
        let pe = bootstrap.pe();
        board.announce(pe, State::Starting);
        let statics = if share_statics { find_statics(&config) } else { Ok(None) };
        let statics = statics.map_err(|why| exchange::refuse(&*bootstrap, why))?;
        let localities = exchange::localities(&*bootstrap, &config, &transports)?;
        let job = Job { pe, localities: &localities, config: &config };
        let local: Vec<u32> =
            (0..job.n_pes()).filter(|pe| job.is_local(*pe)).map(|pe| pe as u32).collect();
        let heap = Heap::reserve(&config, control::len(job.n_pes()), local.len())?;

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
        let routes = default_routes(&endpoints, &mapped);
        let lost = routes.peers.iter().position(|r| r.put[0].choose(8) == Channel::Unreachable);
        let reached = match lost {
            None => Ok(()),
            Some(lost) => {
                let why = format!("{}{}", reasons[lost], left_out(&config));
                Err(Error::Unreachable { pe: lost as u32, why })
            }
        };
        let memory = memory_of(&local, &segments, &mapped);
        let mut deliver = || transports.iter_mut().try_for_each(|t| t.deliver_to(&memory));
        let reached = reached.and_then(|()| deliver().map_err(|why| why.with(left_out(&config))));

        let everyone: Box<[u32]> = (0..job.n_pes() as u32).collect();
        let world_team = Arc::new(Team::new(WORLD_SLOT, everyone, pe, i32::MAX));
        // PEs of other emulated hosts want the same processors.
        let crowd = if config.host.is_some() { job.n_pes() } else { local.len() };
        let patience = Patience::for_host(&config, crowd);
        // The standard wants `shmem_ptr` to work for its members: being on one host is not enough.
        let shared: Box<[u32]> =
            local.iter().copied().filter(|peer| mapped[0][*peer as usize] != 0).collect();
        let me = shared.iter().position(|peer| *peer as usize == pe).unwrap_or(0);
        let shared_team = Arc::new(Team::new(SHARED_SLOT, shared, me, i32::MAX));
        let context = Context::new(world_team.clone(), ContextOptions::default(), transports.len());
        let internal_context =
            Context::new(world_team.clone(), ContextOptions::default(), transports.len());
        let service = match routes.peers.iter().any(|r| r.amo.contains(&Channel::Service)) {
            true => start_service(&heap, statics.as_ref(), &mapped, job.n_pes()),
            false => Ok(None),
        };
        // Nobody may write to a PE that has not got this far.
        let service = exchange::agree(&*bootstrap, reached.and(service))?;
        Ok(World {
            pe,
            bootstrap,
            board,
            heap,
            statics,
            table,
            _mapped: mapped,
            endpoints,
            unreachable: reasons,
            progressing: transports.iter().any(|t| t.needs_progress()),
            transports,
            routes: AtomicPtr::new(Box::into_raw(Box::new(routes))),
            retired: Mutex::default(),
            dropped: Mutex::default(),
            losses: Losses::none(localities.len()),
            observer: OnceLock::new(),
            patience,
            team_slots: TeamSlots::new(2),
            world_team,
            shared_team,
            context,
            internal_context,
            service,
            tickets: Mutex::new(vec![0; localities.len()]),
            hosts: transport::hosts(&localities),
            localities,
            config,
        })
    }

    /// Collective, in place of [`World::start`]: a PE that cannot start tells the others why. Gives
    /// the error that all of them end with.
    pub fn refuse(bootstrap: &dyn Bootstrap, why: Error) -> Error {
        exchange::refuse(bootstrap, why)
    }

    /// The start is over, with all that PEs do together after [`World::start`]: from here on others
    /// may go on without this PE.
    pub fn announce_running(&self) {
        self.board.announce(self.pe, State::Running);
    }

    /// Collective: leaves the job. The caller has synchronised: nobody uses this PE's memory any
    /// more.
    pub fn stop(self) -> Result<()> {
        let result = self.bootstrap.barrier_at_end();
        self.board.announce(self.pe, State::Finished);
        result
    }

    /// Number of this PE.
    pub fn pe(&self) -> usize {
        self.pe
    }

    /// Number of PEs.
    pub fn n_pes(&self) -> usize {
        self.localities.len()
    }

    /// The environment.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Where every PE is.
    pub fn localities(&self) -> &[Locality] {
        &self.localities
    }

    /// The symmetric heap.
    pub fn heap(&self) -> &Heap {
        &self.heap
    }

    /// The static data, where it is symmetric.
    pub fn static_data(&self) -> Option<&StaticData> {
        self.statics.as_ref().map(Statics::data)
    }

    /// Communication with the launcher.
    pub fn bootstrap(&self) -> &Arc<dyn Bootstrap> {
        &self.bootstrap
    }

    /// The fast path's table.
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// The team of all PEs.
    pub fn team(&self) -> &Arc<Team> {
        &self.world_team
    }

    /// The team of PEs that share memory with this one.
    pub fn shared_team(&self) -> &Arc<Team> {
        &self.shared_team
    }

    /// Free team slots.
    pub fn team_slots(&self) -> &TeamSlots {
        &self.team_slots
    }

    /// The default context.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// The context of the runtime's own communication: collectives wait for what they sent, not for
    /// what the program has outstanding.
    pub fn internal_context(&self) -> &Context {
        &self.internal_context
    }

    /// A context over `team`.
    pub fn new_context(&self, team: Arc<Team>, options: ContextOptions) -> Context {
        Context::new(team, options, self.transports.len())
    }

    /// The transports in use.
    pub fn transports(&self) -> &[Box<dyn Transport>] {
        &self.transports
    }

    /// The endpoint of a transport, by index, for a PE.
    pub fn endpoint(&self, transport: usize, pe: usize) -> Option<&dyn Endpoint> {
        self.endpoints.get(transport)?.get(pe)?.as_deref()
    }

    /// Why transports do not reach a PE, for messages.
    pub fn why_unreachable(&self, pe: usize) -> &str {
        &self.unreachable[pe]
    }

    /// The routes in force.
    pub fn routes(&self) -> &Routes {
        // SAFETY: always a live box: replaced ones are kept until the world is dropped.
        unsafe { &*self.routes.load(Ordering::Acquire) }
    }

    /// What operations take, as far as is known: the same on all PEs.
    pub fn costs(&self) -> &Costs {
        &self.routes().costs
    }

    /// Number of hosts of the job.
    pub fn hosts(&self) -> u32 {
        self.hosts
    }

    /// The longest way from the first of `pes` to another, in hops between hosts: what is taken for
    /// the extent of a group, because all of its members find the same without much effort.
    pub fn reach(&self, pes: impl IntoIterator<Item = usize>) -> u32 {
        if self.hosts == 1 {
            return 0;
        }
        let mut hosts = pes.into_iter().map(|pe| self.localities()[pe].host_index);
        let Some(first) = hosts.next() else { return 0 };
        hosts.map(|host| transport::hops(first, host, self.hosts)).max().unwrap_or(0)
    }

    /// Replaces the routes; operations under way finish by the old ones. Channels that have failed
    /// stay out of use.
    pub fn set_routes(&self, routes: Routes) {
        assert_eq!(routes.peers.len(), self.n_pes(), "one row per PE");
        let dropped = self.dropped();
        self.swap_routes(self.without(&dropped, routes));
    }

    pub(crate) fn swap_routes(&self, routes: Routes) {
        let old = self.routes.swap(Box::into_raw(Box::new(routes)), Ordering::AcqRel);
        // SAFETY: the pointer came from a box, and only this swap took it.
        let old = unsafe { Box::from_raw(old) };
        self.retired.lock().unwrap_or_else(|e| e.into_inner()).push(old);
    }

    pub(crate) fn dropped(&self) -> MutexGuard<'_, Dropped> {
        self.dropped.lock().unwrap_or_else(|e| e.into_inner())
    }

    pub(crate) fn board(&self) -> &Board {
        &self.board
    }

    pub(crate) fn losses(&self) -> &Losses {
        &self.losses
    }

    /// Has `observer` watch operations from now on; false if there is one already.
    pub fn observe(&self, observer: Box<dyn Observer>) -> bool {
        self.observer.set(observer).is_ok()
    }

    /// The observer, if it wants to see the next operation.
    #[inline]
    pub(crate) fn observer(&self) -> Option<&dyn Observer> {
        self.observer.get().map(|observer| &**observer).filter(|observer| observer.wants())
    }

    /// Moves outstanding work of the transports on.
    #[inline]
    pub fn progress(&self) {
        if self.progressing {
            for transport in &self.transports {
                transport.progress();
            }
        }
    }

    /// How this PE waits.
    pub fn patience(&self) -> &Patience {
        &self.patience
    }

    /// Waits until `ready` says so, making progress. Shows on the status board while it lasts, and
    /// ends the process if the launcher is gone.
    #[inline]
    pub fn wait(&self, waiting: Waiting, mut ready: impl FnMut() -> bool) {
        for _ in 0..self.patience.checks {
            if ready() {
                return;
            }
            std::hint::spin_loop();
            self.progress();
        }
        self.wait_long(waiting, &mut ready);
    }

    #[cold]
    #[inline(never)]
    fn wait_long(&self, waiting: Waiting, ready: &mut dyn FnMut() -> bool) {
        let since = crate::board::monotonic_ns();
        self.board.enter(self.pe, waiting.routine, waiting.argument, since);
        let mut step = || {
            self.progress();
            ready()
        };
        self.patience.wait(&mut step, &mut || {
            if !self.bootstrap.is_alive() {
                self.stop_job(waiting.routine, "the launcher is gone");
            }
            self.check_losses(waiting.routine, since);
        });
        self.board.leave(self.pe);
    }

    /// Says what is wrong and ends the job with exit code 1.
    #[cold]
    pub fn stop_job(&self, routine: &str, what: impl std::fmt::Display) -> ! {
        report(format_args!("PE {}: {routine}: {what}", self.pe));
        end(&*self.bootstrap, 1)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // Threads of both work on the segments, which go away after this.
        self.service = None;
        for transport in &mut self.transports {
            transport.close();
        }
        // SAFETY: the last pointer, from a box; nobody reads it while the world is dropped.
        drop(unsafe { Box::from_raw(self.routes.load(Ordering::Acquire)) });
    }
}

/// Ends the job with exit code `code`: lets the program's output out, tells the launcher and leaves
/// without running exit handlers, which might wait for PEs that are gone.
pub fn end(bootstrap: &dyn Bootstrap, code: i32) -> ! {
    // SAFETY: flushing all streams is allowed at any time.
    unsafe { libc::fflush(std::ptr::null_mut()) };
    await_readers();
    bootstrap.abort(code);
    // SAFETY: ends the process.
    unsafe { libc::_exit(code) }
}

/// Waits, for a tenth of a second at most, until somebody has read what this process wrote to its
/// standard output and error. Hydra closes their pipes unread when it hears of an abort, and the
/// line that says why the job ends would be lost with them.
fn await_readers() {
    let unread = |fd: i32| {
        let mut bytes: libc::c_int = 0;
        // SAFETY: asks how many bytes lie in a pipe; fails on anything else.
        let asked = unsafe { libc::ioctl(fd, libc::FIONREAD, &raw mut bytes) };
        asked == 0 && bytes > 0
    };
    let is_pipe = |fd: &i32| {
        // SAFETY: all-zero is a valid value, and the call only fills it.
        unsafe {
            let mut stat: libc::stat = std::mem::zeroed();
            libc::fstat(*fd, &mut stat) == 0 && stat.st_mode & libc::S_IFMT == libc::S_IFIFO
        }
    };
    let pipes: Vec<i32> = [1, 2].into_iter().filter(is_pipe).collect();
    for _ in 0..100 {
        if !pipes.iter().any(|fd| unread(*fd)) {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn find_statics(config: &Config) -> Result<Option<Statics>> {
    match config.static_data {
        Static::Off => Ok(None),
        Static::Cma => Ok(Some(Statics::Private(StaticData::in_place()?))),
        Static::Remap => Ok(Some(Statics::Shared(StaticData::remap()?))),
        Static::Auto => match StaticData::remap() {
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
        file: Some(heap.file()),
        layout: heap.len() as u64,
    };
    let statics = statics.map(Statics::data).map(|data| Segment {
        kind: SegmentKind::Static,
        base: data.base(),
        len: data.len(),
        file: data.file(),
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

fn default_routes(endpoints: &exchange::Endpoints, mapped: &[Box<[usize]>; 2]) -> Routes {
    let n_pes = mapped[0].len();
    let peers = (0..n_pes)
        .map(|pe| {
            let of_pe: Vec<Option<&dyn Endpoint>> =
                endpoints.iter().map(|transport| transport[pe].as_deref()).collect();
            Routes::default_for(&of_pe, |kind| {
                mapped[kind as usize].get(pe).is_some_and(|address| *address != 0)
            })
        })
        .collect();
    Routes { peers, costs: Costs::default() }
}

/// Starts the service thread if some PE of this host may have to ask for atomics.
fn start_service(
    heap: &Heap,
    statics: Option<&Statics>,
    mapped: &[Box<[usize]>; 2],
    n_pes: usize,
) -> Result<Option<Service>> {
    let heap_mapped = mapped[0].iter().all(|address| *address != 0);
    let private = statics.map(Statics::data).filter(|data| data.file().is_none());
    if n_pes == 1 || (heap_mapped && private.is_none()) {
        return Ok(None);
    }
    let mut served =
        vec![Served { kind: SegmentKind::Heap, base: heap.base() as usize, len: heap.len() }];
    served.extend(statics.map(Statics::data).map(|data| Served {
        kind: SegmentKind::Static,
        base: data.base() as usize,
        len: data.len(),
    }));
    let nap = if heap_mapped { Duration::from_secs(1) } else { Duration::from_micros(100) };
    // SAFETY: both lie in the control area, which the heap holds and which is zero at first; the
    // world drops the service before the heap.
    let service = unsafe {
        let bell = heap.base().add(control::service_bell()).cast_const().cast();
        let first = heap.base().add(control::service_slot(0)).cast_const().cast();
        Service::start(Lines { bell, first, count: n_pes, nap }, served)
    };
    service.map(Some).map_err(|e| Error::system("starting the service thread", e))
}
