// SPDX-License-Identifier: Apache-2.0
//! The world: everything one PE has while it takes part in a job.

use crate::board::{Board, State};
use crate::bootstrap::Bootstrap;
use crate::config::Config;
use crate::context::{Context, ContextOptions};
use crate::copier::Copier;
use crate::cost::Costs;
use crate::error::Error;
use crate::load::{Load, Loads};
use crate::loss::{LAUNCHER_GONE, LongWait, Losses, Neighbour, Watched};
use crate::memory::{Heap, StaticData};
use crate::ops::{ControlWire, Requesters};
use crate::reroute::{Dropped, Observer};
use crate::route::{Channel, PeerRoutes, Routes};
use crate::service::Service;
use crate::table::Table;
use crate::team::{Team, TeamSlots};
use crate::thread_queues::ThreadQueues;
use crate::transport::{Distance, Endpoint, Locality, Progress, SegmentKind, Told, Transport};
use crate::wait::{Look, Moment, Patience, Reason, Waited, Waiting, Watcher};
use peers::{Peer, Peers, Polled};
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

mod domain;
mod end;
mod exchange;
mod leave;
pub use exchange::Reasons;
pub mod peers;
mod start;

pub use end::{await_end, begin_ending, end, ending_code, flush_and_abort, is_ending_here};

/// Slots of the predefined teams.
pub const WORLD_SLOT: usize = 0;
/// Slot of the team of PEs that share memory.
pub const SHARED_SLOT: usize = 1;

/// Checks of a wait before the service thread is told of it, where there is one: telling takes a part of the time of
/// the shortest waits.
const UNCOUNTED: u32 = 1;

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
    /// Whether the program may call collective operations from several threads at the same time.
    pub several_threads: bool,
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
    peers: Arc<Peers>,
    unreachable: Vec<Reasons>,
    progressing: bool,
    /// Number of hosts.
    hosts: u32,
    routes: AtomicPtr<InForce>,
    /// Replaced routes, from boxes: other threads may still be reading them.
    retired: Mutex<Vec<Retired>>,
    /// By PE, the devices that carry out all atomic operations on its variables.
    pub(crate) devices: Box<[domain::Devices]>,
    /// Transports that have failed towards a PE.
    dropped: Mutex<Dropped>,
    losses: Losses,
    pub(crate) neighbour: Option<Neighbour>,
    pub(crate) watched: Option<Watched>,
    /// How many times PEs have left together, or begun to.
    partings: AtomicU64,
    observer: OnceLock<Box<dyn Observer>>,
    watcher: OnceLock<Watcher>,
    patience: Patience,
    /// How many PEs share a processor of this one.
    crowd: u32,
    processors: u32,
    /// Carries out long copies beside the program; none where no processor is free for it.
    pub(crate) copier: Option<Copier>,
    several_threads: bool,
    thread_queues: ThreadQueues,
    /// By transport, what it was given by its load.
    loads: Arc<[Load]>,
    team_slots: TeamSlots,
    world_team: Arc<Team>,
    shared_team: Arc<Team>,
    /// Contexts made so far, by which their streams are numbered.
    contexts: AtomicU32,
    context: Context,
    internal_context: Context,
    sync_contexts: [Context; 2],
    letter_contexts: [Context; 8],
    service: Option<Service<ControlWire>>,
    pub(crate) control_wire: ControlWire,
    pub(crate) requesters: Requesters,
}

/// Routes and what follows from them.
struct InForce {
    routes: Routes,
    /// From 1 on: how many there have been.
    number: u64,
    /// Bit n: what goes to a PE by transport n goes there by no other channel.
    sole: u64,
}

/// Routes that were replaced.
struct Retired(*mut InForce);

// SAFETY: a box that nobody but the world frees.
unsafe impl Send for Retired {}

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

    /// Whether the static data are in memory that PEs of a host share.
    pub(crate) fn shares_static_data(&self) -> bool {
        matches!(self.statics, Some(Statics::Shared(_)))
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

    /// Barriers of all PEs that this one has begun.
    pub fn barriers(&self) -> u64 {
        self.world_team.epoch.load(Ordering::Relaxed)
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

    /// Two contexts for the flags of barriers with an even and with an odd number: a flag of either
    /// kind is known to have arrived before the next of its kind is sent.
    pub fn sync_contexts(&self) -> &[Context; 2] {
        &self.sync_contexts
    }

    /// Contexts for what members of a team write to each other's memory for collectives: four by turns with
    /// four others, like those of barriers, so that several lanes of a transport do the work.
    pub fn letter_contexts(&self) -> &[Context; 8] {
        &self.letter_contexts
    }

    /// A context over `team`.
    pub fn new_context(&self, team: Arc<Team>, options: ContextOptions) -> Context {
        let id = self.contexts.fetch_add(1, Ordering::Relaxed);
        let loads = Loads::new(self.loads.clone());
        let context = Context::new(team, options, loads, self.streams(), id);
        context.note_routes(self.in_force().number);
        context
    }

    /// Streams of a context: one for each transport, and one for the copier.
    fn streams(&self) -> usize {
        self.transports().len() + usize::from(self.copier.is_some())
    }

    /// The transports in use.
    pub fn transports(&self) -> &[Box<dyn Transport>] {
        self.peers.transports()
    }

    /// By transport, what was given to it because of its load.
    pub fn loads(&self) -> &[Load] {
        &self.loads
    }

    /// All ways to all PEs.
    pub fn peers(&self) -> &Peers {
        &self.peers
    }

    /// The way of a transport, by index, to a PE.
    #[inline]
    pub fn peer(&self, transport: usize, pe: usize) -> Option<&Peer> {
        self.peers.get(transport, pe)
    }

    /// The endpoint of a transport, by index, for a PE.
    pub fn endpoint(&self, transport: usize, pe: usize) -> Option<&dyn Endpoint> {
        self.peer(transport, pe).map(|peer| &*peer.endpoint)
    }

    /// Where a segment of this PE lies; null where there is none.
    #[inline]
    pub fn base(&self, segment: SegmentKind) -> *mut u8 {
        match segment {
            SegmentKind::Heap => self.heap.base(),
            SegmentKind::Static => {
                self.static_data().map_or(std::ptr::null_mut(), StaticData::base)
            }
        }
    }

    /// Why transports do not reach a PE, for messages.
    pub fn why_unreachable(&self, pe: usize) -> &Reasons {
        &self.unreachable[pe]
    }

    /// The routes in force.
    #[inline]
    pub fn routes(&self) -> &Routes {
        &self.in_force().routes
    }

    #[inline]
    fn in_force(&self) -> &InForce {
        // SAFETY: always a live box: replaced ones are kept until the world is dropped.
        unsafe { &*self.routes.load(Ordering::Acquire) }
    }

    /// The number of the routes in force; and, bit n, whether what goes to any PE by transport n goes there by no
    /// other channel, so that the transport's own fence orders all of it, if nothing has gone by other routes.
    pub(crate) fn sole(&self) -> (u64, u64) {
        let InForce { number, sole, .. } = self.in_force();
        (*number, *sole)
    }

    /// What operations take, as far as is known: the same on all PEs.
    #[inline]
    pub fn costs(&self) -> &Costs {
        &self.routes().costs
    }

    /// Number of hosts of the job.
    pub fn hosts(&self) -> u32 {
        self.hosts
    }

    /// How far apart two PEs are: the same whichever PE asks.
    pub fn distance(&self, a: usize, b: usize) -> Distance {
        match () {
            () if a == b => Distance::Myself,
            () if self.localities[a].host == self.localities[b].host => Distance::Host,
            () => self.peers.distance(a, b).unwrap_or(Distance::Network),
        }
    }

    /// The distance from the first of `pes` to the one that is farthest from it: what is taken for
    /// the extent of a group, because all of its members find the same without much effort.
    pub fn extent(&self, pes: impl IntoIterator<Item = usize>) -> Distance {
        let mut pes = pes.into_iter();
        let Some(first) = pes.next() else { return Distance::Myself };
        if self.hosts == 1 {
            return Distance::Host;
        }
        pes.map(|pe| self.distance(first, pe)).max().unwrap_or(Distance::Myself)
    }

    /// Replaces the routes; operations under way finish by the old ones. Channels that have failed
    /// stay out of use.
    pub fn set_routes(&self, routes: Routes) {
        assert_eq!(routes.peers.len(), self.n_pes(), "one row per PE");
        let hinted = |peers: &Vec<PeerRoutes>| peers.is_empty() || peers.len() == self.n_pes();
        assert!(routes.hinted.iter().all(hinted), "one row per PE, or none");
        let dropped = self.dropped();
        self.swap_routes(self.without(&dropped, routes), &dropped);
    }

    pub(crate) fn swap_routes(&self, routes: Routes, dropped: &Dropped) {
        let routes = with_devices(routes, &self.devices);
        // Whoever has `dropped` is the only one here.
        let number = self.in_force().number + 1;
        let next = InForce::new(routes, number, &self.peers, dropped);
        let old = self.routes.swap(Box::into_raw(Box::new(next)), Ordering::AcqRel);
        self.retired.lock().unwrap_or_else(|e| e.into_inner()).push(Retired(old));
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

    /// Has `watcher` be told about waits from now on, and `news` about what transports and service
    /// threads do; false if there is a watcher already.
    pub fn watch(&self, watcher: Watcher, news: Option<Told>) -> bool {
        if self.watcher.set(watcher).is_err() {
            return false;
        }
        if let Some(told) = news {
            self.transports().iter().for_each(|transport| transport.tell(told));
            self.service.iter().for_each(|service| service.tell(told));
        }
        true
    }

    /// Moves outstanding work of the transports on; true if this PE had something to do, as [`Look::Moved`] has it.
    #[inline]
    pub fn progress(&self) -> bool {
        self.progressing && self.progress_all()
    }

    /// Whether something moved by this thread's doing.
    fn progress_all(&self) -> bool {
        let mut moved = false;
        for transport in self.transports() {
            // A transport that a service thread polls as well tells of what that one moves.
            moved |= transport.progress() && transport.progress_needed() == Progress::Waiting;
        }
        if let Some(service) = &self.service {
            service.poll();
        }
        moved
    }

    /// Sleeps for a moment, or until a transport has something, in a wait beside threads that compute. False, at once,
    /// where no descriptor tells of that.
    pub fn nap(&self) -> bool {
        Polled(self.peers.clone()).nap()
    }

    /// How this PE waits.
    pub fn patience(&self) -> &Patience {
        &self.patience
    }

    /// Has this PE wait in another way from now on, whatever shares its processors.
    pub fn wait_by(&mut self, patience: Patience) {
        self.patience = patience;
    }

    /// Whether collective operations may be called from several threads of some PE at the same time: all
    /// PEs have the same answer.
    pub fn has_several_threads(&self) -> bool {
        self.several_threads
    }

    /// Where threads of this PE queue for locks.
    pub fn thread_queues(&self) -> &ThreadQueues {
        &self.thread_queues
    }

    /// How many PEs share a processor of this one, rounded up.
    pub fn crowd(&self) -> u32 {
        self.crowd
    }

    /// How many processors this PE has, if those are dealt out that it shares with others; at least 1.
    pub fn processors(&self) -> u32 {
        self.processors
    }

    /// Waits until `ready` says so, making progress. Shows on the status board while it lasts, and
    /// ends the process if the launcher is gone.
    #[inline]
    pub fn wait(&self, waiting: Waiting, mut ready: impl FnMut() -> bool) {
        let checks = match &self.service {
            None => self.patience.checks,
            Some(_) => self.patience.checks.min(UNCOUNTED),
        };
        if !self.check(checks, &mut ready) {
            self.wait_long(&self.patience, self.patience.checks - checks, waiting, &mut ready);
        }
    }

    /// Checks so many times whether `ready` says so, making progress.
    #[inline]
    fn check(&self, checks: u32, mut ready: impl FnMut() -> bool) -> bool {
        for _ in 0..checks {
            if ready() {
                return true;
            }
            std::hint::spin_loop();
            self.progress();
        }
        false
    }

    /// As [`World::wait`], for what the service thread of another PE does, perhaps on this processor:
    /// gives way to it soon.
    pub(crate) fn wait_for_service(&self, waiting: Waiting, ready: &mut dyn FnMut() -> bool) {
        self.wait_long(&self.patience.for_service(), 0, waiting, ready);
    }

    #[cold]
    #[inline(never)]
    fn wait_long(
        &self,
        patience: &Patience,
        checks: u32,
        waiting: Waiting,
        ready: &mut dyn FnMut() -> bool,
    ) {
        let since = crate::board::monotonic_ns();
        let mut attending = self.service.as_ref().map(|service| service.attend(since));
        if self.check(checks, &mut *ready) {
            return;
        }
        if matches!(waiting.reason, Reason::Members | Reason::Variable | Reason::Lock)
            && is_ending_here()
        {
            // What runs at exit would wait until it is killed. The code is the one asked for.
            end(&*self.bootstrap, 1);
        }
        self.board.enter(self.pe, waiting.routine, waiting.argument, since);
        let mut step = || match self.progress() {
            _ if ready() => Look::Ready,
            true => Look::Moved,
            false => Look::Nothing,
        };
        let mut long = LongWait::new(since);
        let mut check = || {
            if !self.bootstrap.is_alive() {
                self.stop_job(waiting.routine, LAUNCHER_GONE);
            }
            self.check_losses(waiting.routine, &mut long);
        };
        let mut wait = |step: &mut dyn FnMut() -> Look| {
            if !patience.look(step, &mut || self.nap()) {
                if let Some((service, attending)) = self.service.as_ref().zip(attending.take()) {
                    service.leave(attending);
                }
                patience.sleep(step, &mut check);
            }
        };
        match self.watcher.get() {
            None => wait(&mut step),
            Some(watcher) => {
                let mut waited = Waited::new(since, waiting.reason);
                watcher(&waiting, &waited, Moment::Begin);
                let mut step = || {
                    let look = step();
                    let reason = self.held_up_by(waiting.reason);
                    if waited.step(crate::board::monotonic_ns(), reason) {
                        watcher(&waiting, &waited, Moment::Turn);
                    }
                    look
                };
                wait(&mut step);
                watcher(&waiting, &waited, Moment::End);
            }
        }
        self.board.leave(self.pe);
    }

    /// What is waited for at this moment in a wait for `reason`.
    fn held_up_by(&self, reason: Reason) -> Reason {
        let by_transport = matches!(reason, Reason::Room | Reason::Completion);
        let transports = self.transports().iter().filter(|_| by_transport);
        transports.filter_map(|transport| transport.held_up_by()).next().unwrap_or(reason)
    }
}

/// Routes in which no atomic operation leaves the domain of its variable.
fn with_devices(mut routes: Routes, devices: &[domain::Devices]) -> Routes {
    for (pe, devices) in devices.iter().enumerate() {
        // Variables of the other size are told apart with each operation.
        if let Some(device) = devices.iter().flatten().next() {
            routes.to_mut(pe).for_each(|peer| peer.amo = [Channel::Endpoint(*device); 2]);
        }
    }
    routes
}

impl InForce {
    fn new(routes: Routes, number: u64, peers: &Peers, dropped: &Dropped) -> InForce {
        let sole = |transport: &usize| {
            let failed = dropped.iter().any(|(index, _)| usize::from(*index) == *transport);
            let apart = |(pe, routes): (usize, &PeerRoutes)| {
                routes.keeps_apart(*transport, peers.get(*transport, pe))
            };
            let tables = [&routes.peers].into_iter().chain(&routes.hinted);
            !failed && tables.flat_map(|peers| peers.iter().enumerate()).all(apart)
        };
        let sole = (0..peers.transports().len().min(64))
            .filter(sole)
            .fold(0, |bits, index| bits | 1 << index);
        InForce { routes, number, sole }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // Threads work on the segments, which go away after this.
        self.service = None;
        self.copier = None;
        self.control_wire.peers = Arc::default();
        if let Some(peers) = Arc::get_mut(&mut self.peers) {
            peers.transports_mut().iter_mut().for_each(|transport| transport.close());
        }
        let last = Retired(self.routes.load(Ordering::Acquire));
        let retired = self.retired.get_mut().unwrap_or_else(|e| e.into_inner());
        for Retired(routes) in retired.drain(..).chain([last]) {
            // SAFETY: from a box; nobody reads it while the world is dropped.
            drop(unsafe { Box::from_raw(routes) });
        }
    }
}
