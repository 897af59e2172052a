// SPDX-License-Identifier: Apache-2.0
//! Counting what a program does, for `oshrun --profile` and `oshrun --trace`.
//!
//! While nothing is counted none of this runs. While it is, the tables of [`crate::c::fast`] are empty
//! and [`library::direct`] gives nothing, so that all routines take the paths that they take when
//! arguments are checked.
//!
//! - All calls and bytes are counted. Long calls are always timed. Of the short ones of each kind, the
//!   first [`FIRST`] are timed, and then one in [`SAMPLE`], which stands for the others.
//! - The time of a wait belongs to the call that waits. Where a routine is not counted otherwise, each of its
//!   waits is counted as a call.
//! - The wait that a thread is in, and the call, if its time is being taken, are in the counters as well: a PE may
//!   end there.
//! - Counters are in memory that `oshrun` has given: see [`tombolo_core::profile`].

mod operations;
mod slot;

pub use operations::{amo, amo_fetch, amo_nbi, g, get, other, p, put, put_signal};

use crate::c::tune;
use crate::library::{self, Library};
use slot::{Around, ByThread, Cells, Slot, slot};
use std::collections::HashMap;
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock};
use tombolo_core::board::monotonic_ns;
use tombolo_core::config::Reuse;
use tombolo_core::load::Load;
use tombolo_core::profile::{Area, Cell, EVENT, Head, ROWS, event};
use tombolo_core::route::Channel;
use tombolo_core::transport::{News, SegmentKind, Told};
use tombolo_core::wait::{Moment, Reason, Waited, usable_cpus};
use tombolo_core::{Waiting, World};
use tombolo_selector::report;

/// One short call in so many is timed; a power of two.
const SAMPLE: u64 = 64;
/// So many first calls of each kind are timed.
const FIRST: u64 = 8;
/// A short call that works for longer has lost its processor, and stands for no other one.
const LOST_NS: u64 = 100_000;
/// Shorter calls are no events.
const EVENT_NS: u64 = 1000;
/// Longest operation on mapped memory of which only samples are timed.
const SHORT: usize = 4096;

/// Ways of what stays in the PE, of what happens to links, of the work of service threads, and of waits:
/// the distances of a way are its low 4 bits.
const LOCAL: u8 = 0xe0;
const LINK: u8 = 0xe1;
const WORK: u8 = 0xe2;
const FAILOVER: u8 = 0xe3;
const WAITS: u8 = 0xf0;
const DISTANCES: usize = 16;
const ENDPOINTS: usize = 9;
/// The way of what takes one of two transports.
const EITHER: u8 = 4 + ENDPOINTS as u8;

/// What is counted by, from one initialisation of the library to the next finalisation.
pub struct State {
    world: &'static World,
    recorder: &'static Recorder,
    /// The distance of each PE.
    distance: Box<[u8]>,
    distances: Vec<String>,
}

/// What there is once in a process.
struct Recorder {
    area: Area,
    rows: Mutex<HashMap<(usize, u8), u16>>,
    slots: AtomicUsize,
    /// Slots of threads that have ended.
    free: Mutex<Vec<&'static Slot>>,
    threads: ByThread,
    /// The process that counts: its `fork` children do not.
    process: u32,
    /// What taking the time adds to it.
    clock_ns: u64,
    traces: bool,
}

static RECORDER: OnceLock<Option<Recorder>> = OnceLock::new();
static STATE: AtomicPtr<State> = AtomicPtr::new(std::ptr::null_mut());

/// What is counted by, if anything is counted.
#[inline(always)]
pub fn on() -> Option<&'static State> {
    // SAFETY: null, or a value that is never freed.
    unsafe { STATE.load(Ordering::Acquire).as_ref() }
}

/// Begins to count, if `oshrun` has given memory for it. To be called before the fast path is opened.
///
/// # Safety
/// No other thread is in a routine, and `world` lives until [`close`].
pub unsafe fn open(world: &World) {
    let recorder = RECORDER.get_or_init(|| match Recorder::new(world) {
        Ok(recorder) => recorder,
        Err(why) => {
            tracing::warn!("PE {}: nothing is counted: {why}", world.pe());
            None
        }
    });
    let Some(recorder) = recorder else { return };
    // SAFETY: by the caller's word; nobody uses it after `close`.
    let world: &'static World = unsafe { &*std::ptr::from_ref(world) };
    let class = |pe| tune::current().map(|tuning| report::describe(tuning.class_of(pe)));
    let mut distances: Vec<String> = Vec::new();
    let mut distance_of = |pe| {
        let words = class(pe).unwrap_or_else(|| "unknown".to_owned());
        let at = distances.iter().position(|known| *known == words).unwrap_or_else(|| {
            distances.push(words);
            distances.len() - 1
        });
        at.min(DISTANCES - 1) as u8
    };
    let distance = (0..world.n_pes()).map(&mut distance_of).collect();
    let state = Box::new(State { world, recorder, distance, distances });
    let local =
        world.localities().iter().filter(|place| place.host == world.localities()[world.pe()].host);
    let head = |head, value: u64| recorder.area.head(head).store(value, Ordering::Relaxed);
    let local = local.count();
    head(Head::Local, local as u64);
    head(Head::Processors, processors(local, world.crowd() as usize, usable_cpus()) as u64);
    head(Head::Ended, 0);
    if recorder.area.head(Head::Began).load(Ordering::Relaxed) == 0 {
        head(Head::Began, monotonic_ns());
    }
    world.watch(waited, recorder.traces.then_some(told as Told));
    // Never freed: threads of the program may be looking at it when the library is finalised.
    STATE.store(Box::into_raw(state), Ordering::Release);
}

/// Processors for `local` PEs of a host of which `crowd` share one, as seen by a PE that may use `usable` itself: one
/// that is bound sees no other's.
fn processors(local: usize, crowd: usize, usable: usize) -> usize {
    usable.max(local.div_ceil(crowd.max(1)))
}

/// Notes that the program ends the job from this PE.
pub fn exits() {
    if let Some(state) = on() {
        state.recorder.area.head(Head::Exited).store(monotonic_ns(), Ordering::Relaxed);
    }
}

/// Ends counting. To be called after the fast path is closed, before the world goes.
pub fn close() {
    let Some(state) = on() else { return };
    STATE.store(std::ptr::null_mut(), Ordering::Release);
    let area = &state.recorder.area;
    area.head(Head::Ended).store(monotonic_ns(), Ordering::Relaxed);
    let lines = state.world.transports().iter().flat_map(|transport| {
        let name = transport.name();
        transport.describe_own().into_iter().map(move |line| format!("{name}: {line}\n"))
    });
    let given = state.world.loads().iter().map(Load::given).zip(state.world.transports());
    let given = given.filter(|((transfers, _), _)| *transfers > 0).map(|((transfers, bytes), transport)| {
        let name = transport.name();
        format!("{name}: took {transfers} transfers, {bytes} bytes, of those that take either of two transports\n")
    });
    area.set_text(&lines.chain(given).collect::<String>());
}

impl Recorder {
    /// None if nothing is to be counted.
    fn new(world: &World) -> tombolo_core::Result<Option<Recorder>> {
        let Some(descriptor) = world.config().profile_fd else { return Ok(None) };
        // SAFETY: opened by the launcher for this process alone, and taken once. Programs that this one
        // starts have no use for it.
        let fd = unsafe {
            if libc::fcntl(descriptor.0, libc::F_SETFD, libc::FD_CLOEXEC) < 0 {
                let error = std::io::Error::last_os_error();
                return Err(tombolo_core::Error::system("TOMBOLO_PROFILE_FD", error));
            }
            OwnedFd::from_raw_fd(descriptor.0)
        };
        let area = Area::open(fd, world.n_pes())?;
        let traces = area.capacity() > 0;
        let mut between: Vec<u64> = (0..101)
            .map(|_| {
                let first = monotonic_ns();
                monotonic_ns() - first
            })
            .collect();
        between.sort_unstable();
        Ok(Some(Recorder {
            area,
            rows: Mutex::default(),
            slots: AtomicUsize::new(0),
            free: Mutex::default(),
            threads: ByThread::new(),
            process: std::process::id(),
            clock_ns: between[50],
            traces,
        }))
    }

    fn free(&self) -> MutexGuard<'_, Vec<&'static Slot>> {
        self.free.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn rows(&self) -> MutexGuard<'_, HashMap<(usize, u8), u16>> {
        self.rows.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl State {
    /// The row of a routine by a way, made at the first time.
    fn row(&self, routine: &'static str, way: u8) -> u16 {
        let mut rows = self.recorder.rows();
        let count = rows.len();
        *rows.entry((routine.as_ptr() as usize, way)).or_insert_with(|| {
            let row = count.min(ROWS - 1);
            let (by, distance) = self.words(way);
            let name = if row == ROWS - 1 { "others" } else { routine };
            self.recorder.area.name(row, [name, by, distance]);
            self.recorder.area.head(Head::Rows).store(row as u64 + 1, Ordering::Release);
            row as u16
        })
    }

    fn words(&self, way: u8) -> (&str, &str) {
        if way >= WAITS {
            let reason = Reason::ALL.get(usize::from(way - WAITS));
            return (reason.map_or("", |reason| reason.name()), "");
        }
        match way {
            LINK => return ("", event::LINK),
            WORK => return ("", event::WORK),
            FAILOVER => return ("", event::FAILOVER),
            LOCAL.. => return ("", ""),
            _ => {}
        }
        let distance = self.distances.get(usize::from(way & 15)).map_or("", String::as_str);
        let by = match way >> 4 {
            0 => "mapped memory",
            1 => "mapped memory past the caches",
            2 => "the target's processor",
            3 => "no way",
            EITHER => "either of two transports",
            index => {
                let transports = self.world.transports();
                transports.get(usize::from(index) - 4).map_or("", |transport| transport.name())
            }
        };
        (by, distance)
    }

    /// The number of a way to a PE.
    #[inline(always)]
    fn way(&self, channel: Channel, pe: usize) -> u8 {
        let by = match channel {
            Channel::Cached => 0,
            Channel::Streaming => 1,
            Channel::Service => 2,
            Channel::Unreachable => 3,
            Channel::Endpoint(index) => 4 + index.min(ENDPOINTS as u8 - 1),
            // Among the calls of the transport that carries the first part.
            Channel::Striped(stripes) => 4 + stripes.transports[0].min(ENDPOINTS as u8 - 1),
            // Which one is for the operation to find.
            Channel::Either(_) => EITHER,
        };
        by << 4 | self.distance[pe]
    }

    /// The channel of an operation off the fast path, on a context with this hint; none if its address is not symmetric.
    fn channel(
        &self,
        hint: Option<Reuse>,
        (address, len): (*const u8, usize),
        pe: usize,
        kind: Kind,
    ) -> Channel {
        let Some(place) = self.world.locate(address) else { return Channel::Unreachable };
        let routes = self.world.routes().by_hint(hint).get(pe);
        let Some(routes) = routes else { return Channel::Unreachable };
        let segment: SegmentKind = place.segment;
        match kind {
            Kind::Put => routes.put[segment as usize].choose(len),
            Kind::Get => routes.get[segment as usize].choose(len),
            Kind::Amo => routes.amo[segment as usize],
        }
    }
}

/// What is exchanged with a PE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A put.
    Put,
    /// A get.
    Get,
    /// An atomic operation or a signal.
    Amo,
}

/// A call to be counted.
#[derive(Clone, Copy)]
struct Call {
    routine: &'static str,
    way: u8,
    len: usize,
    /// The PE operated on.
    peer: Option<usize>,
    /// It is timed always.
    long: bool,
    /// It may wait for something.
    waits: bool,
    /// It may be one of very many in vain, and is an event only if it lost its processor.
    polls: bool,
}

impl Call {
    /// 1 and the PE operated on, or 0.
    #[inline(always)]
    fn peer(self) -> u64 {
        self.peer.map_or(0, |pe| pe as u64 + 1)
    }

    /// One that concerns this PE alone, or all of them.
    #[inline(always)]
    fn local(routine: &'static str, len: usize, long: bool) -> Call {
        Call { routine, way: LOCAL, len, peer: None, long, waits: true, polls: false }
    }
}

/// A call whose time is being taken.
struct Begun {
    at: u64,
    /// What the thread had waited until then.
    blocked: u64,
    /// The call around this one.
    before: *const Cells,
    /// The same, as the area has it; none if the area is not told of this one.
    around: Option<Around>,
}

impl State {
    /// Counts a call and does what it is for.
    ///
    /// What takes a few nanoseconds is counted in as few more: only functions that are rarely called take a
    /// whole [`Call`], so that it is in registers and not in memory.
    #[inline(always)]
    fn count<R>(&self, call: Call, kind: Option<Kind>, work: impl FnOnce() -> R) -> R {
        let slot = slot(self.recorder);
        let cell = slot.cell(self, call.routine, call.way, call.len);
        let count = cell[Cell::Count as usize].load(Ordering::Relaxed);
        let tally = || {
            slot.add(&cell[Cell::Count as usize], 1);
            slot.add(&cell[Cell::Bytes as usize], call.len as u64);
            if let (Some(kind), Some(pe)) = (kind, call.peer) {
                slot.exchange(kind, pe, call.len);
            }
        };
        let known = call.waits || call.long;
        if known {
            // It may never return.
            tally();
        }
        let exact = call.long || count < FIRST || self.recorder.traces;
        let result = if exact || count & (SAMPLE - 1) == 0 {
            self.timed(slot, cell, call, exact, work)
        } else if call.waits {
            let before = slot.enter(cell);
            let result = work();
            slot.enter(before);
            result
        } else {
            work()
        };
        if !known {
            // An atomic instruction would wait for the stores to the counters before it.
            tally();
        }
        result
    }

    #[inline(always)]
    fn timed<R>(
        &self,
        slot: &Slot,
        cell: &'static Cells,
        call: Call,
        exact: bool,
        work: impl FnOnce() -> R,
    ) -> R {
        let begun = begin(slot, cell, call.waits || call.long, call.peer(), call.len);
        let result = work();
        self.end(slot, cell, begun, (call, exact));
        result
    }

    #[cold]
    #[inline(never)]
    fn end(&self, slot: &Slot, cell: &Cells, begun: Begun, (call, exact): (Call, bool)) {
        let ended = monotonic_ns();
        slot.enter(begun.before);
        if let Some(around) = begun.around {
            slot.end(around);
        }
        let took = (ended - begun.at).saturating_sub(self.recorder.clock_ns);
        let blocked = slot.blocked() - begun.blocked;
        let worked = took.saturating_sub(blocked);
        let (number, sum) = match exact || worked > LOST_NS {
            true => (Cell::Exact, Cell::ExactNs),
            false => (Cell::Samples, Cell::SampleNs),
        };
        slot.add(&cell[number as usize], 1);
        slot.add(&cell[sum as usize], worked);
        cell[Cell::LongestNs as usize].fetch_max(took, Ordering::Relaxed);
        let least = if call.polls { LOST_NS } else { EVENT_NS };
        if self.recorder.traces && (took >= least || call.long) {
            let row = u64::from(self.row(call.routine, call.way)) | slot.bits();
            self.event([begun.at, ended, row, call.peer(), call.len as u64]);
        }
    }

    fn event(&self, words: [u64; EVENT - 1]) {
        self.recorder.area.event(words);
    }
}

/// Begins to take the time of a call. `known` says that it is counted already, and the area is told of it.
#[cold]
#[inline(never)]
fn begin(slot: &Slot, cell: &Cells, known: bool, peer: u64, len: usize) -> Begun {
    let (before, blocked) = (slot.enter(cell), slot.blocked());
    let (at, around) = match known {
        true => {
            let (at, around) = slot.begin(cell, peer, len);
            (at, Some(around))
        }
        false => (monotonic_ns(), None),
    };
    Begun { at, blocked, before, around }
}

/// Told about each wait that is longer than its spinning.
fn waited(waiting: &Waiting, waited: &Waited, moment: Moment) {
    let Some(state) = on() else { return };
    let slot = slot(state.recorder);
    match moment {
        Moment::Begin => slot.begin_wait(state, waiting, waited),
        Moment::Turn => slot.turn_wait(waited),
        Moment::End => {
            slot.end_wait();
            has_waited(state, slot, waiting, waited);
        }
    }
}

fn has_waited(state: &'static State, slot: &Slot, waiting: &Waiting, waited: &Waited) {
    let Waited { since, until, ns, .. } = *waited;
    for (reason, ns) in ns.into_iter().enumerate().filter(|(_, ns)| *ns > 0) {
        let [number, sum] = state.recorder.area.waits(slot.number(), reason);
        slot.add(number, 1);
        slot.add(sum, ns);
    }
    let whole = until.saturating_sub(since);
    let cell = slot.current().unwrap_or_else(|| {
        let cell = slot.cell(state, waiting.routine, LOCAL, 0);
        [Cell::Count, Cell::Exact].into_iter().for_each(|word| {
            slot.add(&cell[word as usize], 1);
        });
        cell[Cell::LongestNs as usize].fetch_max(whole, Ordering::Relaxed);
        cell
    });
    slot.block(cell, whole);
    if state.recorder.traces {
        // Named by what took most of it.
        let most = Reason::ALL.into_iter().max_by_key(|reason| ns[*reason as usize]);
        let reason = most.unwrap_or(waiting.reason);
        let row = state.row(waiting.routine, WAITS + reason as u8);
        let row = u64::from(row) | slot.bits();
        state.event([since, until, row, awaited(waiting), 0]);
    }
}

/// 1 and the PE that is waited for, or 0.
fn awaited(waiting: &Waiting) -> u64 {
    match waiting.reason {
        Reason::Room | Reason::Answer => waiting.argument + 1,
        _ => 0,
    }
}

/// Told what transports and service threads do.
fn told(news: &News) {
    let Some(state) = on() else { return };
    let slot = slot(state.recorder);
    let now = monotonic_ns();
    let (what, way, since, until, number) = match *news {
        News::Link { what, link } => (what, LINK, now, now, link.into()),
        News::Failover { flows } => ("traffic changes direction", FAILOVER, now, now, flows),
        News::Work { what, since, until, turns } => (what, WORK, since, until, turns),
    };
    let row = u64::from(state.row(what, way)) | slot.bits();
    state.event([since, until, row, 0, number]);
}

/// Counts a call of a routine that exchanges nothing with a single PE, such as a collective or a quiet,
/// and does what it is for with the library.
#[inline(always)]
pub fn within<R>(routine: &'static str, len: usize, work: impl FnOnce(&'static Library) -> R) -> R {
    match library::direct() {
        Some(library) => work(library),
        None => counted(routine, len, true, work),
    }
}

/// As [`within`], for calls that often have nothing to do: their times are samples.
#[inline(always)]
pub fn shortly<R>(routine: &'static str, work: impl FnOnce(&'static Library) -> R) -> R {
    match library::direct() {
        Some(library) => work(library),
        None => counted(routine, 0, false, work),
    }
}

/// Not inlined, and marked as cold: where nothing is counted it runs only to find that the library is
/// not initialised.
#[cold]
#[inline(never)]
fn counted<R>(
    routine: &'static str,
    len: usize,
    long: bool,
    work: impl FnOnce(&'static Library) -> R,
) -> R {
    let library = library::library(routine);
    match on() {
        Some(state) => {
            // The time of what is long anyway is taken; quiet and fence may be next to nothing.
            state.count(Call::local(routine, len, long), None, || work(library))
        }
        None => work(library),
    }
}

/// A call that looks at variables of this PE and whose time is being taken.
pub struct Looking {
    slot: &'static Slot,
    cell: &'static Cells,
    begun: Begun,
    exact: bool,
}

impl State {
    /// Counts a call that looks at variables of this PE. Most calls are not timed, and give none.
    #[cold]
    #[inline(never)]
    pub fn look(&self, routine: &'static str) -> Option<Looking> {
        let slot = slot(self.recorder);
        let cell = slot.cell(self, routine, LOCAL, 0);
        let count = slot.add(&cell[Cell::Count as usize], 1);
        let exact = count < FIRST || self.recorder.traces;
        if !exact && count & (SAMPLE - 1) != 0 {
            return None;
        }
        let begun = begin(slot, cell, true, 0, 0);
        Some(Looking { slot, cell, begun, exact })
    }

    /// The call has looked, and returns.
    #[cold]
    #[inline(never)]
    pub fn looked(&self, routine: &'static str, looking: Looking) {
        let Looking { slot, cell, begun, exact } = looking;
        let call = Call { polls: true, ..Call::local(routine, 0, false) };
        self.end(slot, cell, begun, (call, exact));
    }

    /// The call has looked in vain, and waits until `ready` says so. All waits are timed.
    #[cold]
    #[inline(never)]
    pub fn wait(
        &self,
        looking: Option<Looking>,
        waiting: Waiting,
        ready: &mut dyn FnMut() -> bool,
    ) {
        let call = Call::local(waiting.routine, 0, true);
        let Looking { slot, cell, begun, .. } = looking.unwrap_or_else(|| {
            let slot = slot(self.recorder);
            let cell = slot.cell(self, call.routine, call.way, call.len);
            Looking { slot, cell, begun: begin(slot, cell, true, 0, 0), exact: true }
        });
        self.world.wait(waiting, ready);
        self.end(slot, cell, begun, (call, true));
    }
}

/// Lets others run, for a call of `routine` that has found nothing, as many before it: their spinning is over, so that
/// this is time blocked. `first` says that none of them has done so before.
pub fn give_way(routine: &'static str, reason: Reason, first: bool) {
    let Some(state) = on() else { return std::thread::yield_now() };
    let slot = slot(state.recorder);
    let since = monotonic_ns();
    std::thread::yield_now();
    let ns = monotonic_ns().saturating_sub(since);
    let [number, sum] = state.recorder.area.waits(slot.number(), reason as usize);
    slot.add(number, first.into());
    slot.add(sum, ns);
    slot.block(slot.cell(state, routine, LOCAL, 0), ns);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pes_that_are_bound_take_no_turns() {
        assert_eq!(processors(2, 1, 1), 2, "one processor for each");
        assert_eq!(processors(8, 1, 2), 8, "two for each, as some launchers bind");
        assert_eq!(processors(8, 2, 2), 4, "two groups of four");
        assert_eq!(processors(9, 3, 4), 4, "not bound, and too many");
        assert_eq!(processors(2, 1, 4), 4);
    }
}
