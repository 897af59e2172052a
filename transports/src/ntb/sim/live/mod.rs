// SPDX-License-Identifier: Apache-2.0
//! Programs on the simulated ring: threads play PEs, one for each host, and run what real PEs run, while
//! time is virtual.
//!
//! - [`LiveRing::transport`] gives each PE a transport whose packets go over simulated links. Everything
//!   above it is the real thing: the core, collectives, a program.
//! - One thread runs at a time: the PE whose clock is behind those of all others and all events. It runs
//!   on until it issues an operation or waits, and then lets the events before its own time happen. So
//!   the same program gives the same times.
//! - What a PE does between two calls of the transport takes no time but what it says by [`spend_ns`].
//! - A PE that waits looks again when a word was written to its memory, when all operations of a stream of
//!   its own are complete, and a while after bytes were: it waits for flags, as a rule, and not for data.

mod endpoint;
mod memory;
#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use tombolo_core::transport::{Status, Stream, Transport};

use super::incidents::LOOK_ROUND_PS;
use super::memory::{LaneMemory, Symmetric};
use super::model::{HostModel, LinkModel};
use super::network::{Network, PostedWrite};
use super::random::Random;
use super::timed_memory::{CpuTime, TimedMemory};
use super::{Faults, SimError};
use crate::ntb::ring::{Completion, Config, Engine, Event, Side};
use endpoint::LiveTransport;
use memory::{Delivered, Heap, LiveMemory};

/// Virtual time in which nothing wakes a PE, after which nothing will.
const PATIENCE_PS: u64 = 1_000_000_000_000;

/// After so long a PE that waits sees data that came without a word.
const LATER_PS: u64 = 5_000_000;

thread_local! {
    static SPENT_PS: Cell<u64> = const { Cell::new(0) };
}

/// The PE of this thread has been busy for so long, in virtual time.
pub fn spend_ns(ns: f64) {
    SPENT_PS.set(SPENT_PS.get() + (ns * 1000.0) as u64);
}

/// Hosts, and how they are tied together.
#[derive(Clone, Copy, Debug)]
pub struct LiveSetup {
    /// Hosts of the ring, each with one PE.
    pub hosts: u16,
    /// Lanes of each PE, each with a service thread of its own.
    pub lanes: u16,
    /// Settings of the engines.
    pub config: Config,
    /// Links.
    pub link: LinkModel,
    /// CPUs.
    pub host: HostModel,
    /// Of everything random.
    pub seed: u64,
}

/// A ring on which threads of this process play PEs.
#[derive(Clone)]
pub struct LiveRing(Arc<Shared>);

struct Shared {
    setup: LiveSetup,
    state: Mutex<State>,
    /// By PE: it is its turn.
    turns: Vec<Condvar>,
}

enum What {
    Run(usize),
    Arrive(PostedWrite),
    Notice(u16, Side),
    Resume(usize),
    Look(usize),
}

struct Lane {
    engine: Engine,
    memory: LaneMemory,
    /// Its thread is busy until then.
    free_ps: u64,
    /// When it will run next.
    wake_ps: u64,
}

#[derive(Clone, Copy, Default)]
struct Pe {
    heap: Heap,
    now_ps: u64,
    /// When something was delivered or completed last.
    news_ps: u64,
    /// It goes on when there is news.
    waits: bool,
    /// There was news, and it may not have looked for it: the core makes progress twice before it looks.
    fresh: bool,
    /// An engine had no room for its last operation.
    refused: bool,
    /// It looks again soon.
    looks: bool,
}

struct State {
    lanes: Vec<Lane>,
    network: Network,
    queue: BTreeMap<(u64, u64), What>,
    number: u64,
    cpu: CpuTime,
    events: Vec<(u64, u16, Event)>,
    completions: Vec<(u64, Completion)>,
    /// Operations under way, by token.
    operations: Vec<Option<(*const Stream, usize, u32)>>,
    free_tokens: Vec<usize>,
    pes: Vec<Pe>,
    /// Whose turn it is.
    turn: Option<usize>,
    entered: usize,
    left: usize,
    /// PEs that wait for all others.
    aligned: usize,
    /// Why nothing goes on any more.
    broken: Option<String>,
}

// SAFETY: streams live until what was issued on them is complete, and heaps until their PEs have left; the
// lock lets one thread at a time use them.
unsafe impl Send for State {}

impl LiveRing {
    /// Hosts whose links come up when all PEs have entered.
    pub fn new(setup: LiveSetup) -> Result<LiveRing, SimError> {
        let LiveSetup { hosts, lanes: per_pe, link, seed, .. } = setup;
        if hosts < 2 || per_pe == 0 {
            let what = format!("{hosts} hosts with {per_pe} lanes each: expected 2 and 1 or more");
            return Err(SimError::Argument(what));
        }
        let mut random = Random::new(seed);
        let network = Network::new(link, hosts, Faults::default(), Random::new(random.bits()));
        let mut lanes = Vec::new();
        for host in 0..hosts {
            for index in 0..per_pe {
                let incarnation = random.bits() as u32 | 1;
                let config = Config { incarnation, ..setup.config };
                let region = config.geometry.region_bytes();
                let memory = LaneMemory::new(region, config.retained_bytes(), 0);
                let engine = Engine::new(config, host, hosts, index as u8)?;
                lanes.push(Lane { engine, memory, free_ps: 0, wake_ps: u64::MAX });
            }
        }
        let mut state = State {
            lanes,
            network,
            queue: BTreeMap::new(),
            number: 0,
            cpu: CpuTime::default(),
            events: Vec::new(),
            completions: Vec::new(),
            operations: Vec::new(),
            free_tokens: Vec::new(),
            pes: vec![Pe::default(); usize::from(hosts)],
            turn: None,
            entered: 0,
            left: 0,
            aligned: 0,
            broken: None,
        };
        for cable in 0..hosts {
            state.network.set_physical(cable, true);
            for (host, side) in state.network.ends(cable) {
                let at_ps = random.below(1_000_000);
                state.push(at_ps, What::Notice(host, side));
            }
        }
        let turns = (0..hosts).map(|_| Condvar::new()).collect();
        Ok(LiveRing(Arc::new(Shared { setup, state: Mutex::new(state), turns })))
    }

    /// The transport of a PE, which is on the host of its number.
    pub fn transport(&self, pe: usize) -> Box<dyn Transport> {
        Box::new(LiveTransport::new(self.0.clone(), pe))
    }

    /// The PE of this thread lives in virtual time from here on: all have to come, before any of them
    /// communicates.
    pub fn enter(&self, pe: usize) {
        let shared = &*self.0;
        let mut state = shared.lock();
        state.entered += 1;
        if state.entered == state.pes.len() {
            while !state.lanes.iter().all(|lane| lane.engine.is_whole()) {
                state.step(&shared.setup);
            }
            let now_ps = state.lanes.iter().map(|lane| lane.free_ps).max().unwrap_or(0);
            state.resume_all(now_ps);
            shared.pass_on(&mut state);
        }
        SPENT_PS.set(0);
        drop(shared.until_my_turn(state, pe));
    }

    /// The PE of this thread does nothing any more.
    pub fn leave(&self, pe: usize) {
        let mut state = self.0.at_my_time(pe);
        state.left += 1;
        state.turn = None;
        if state.left < state.pes.len() {
            self.0.pass_on(&mut state);
        }
    }

    /// Waits for all PEs, which takes no time but that of the last one.
    pub fn align(&self, pe: usize) {
        let mut state = self.0.at_my_time(pe);
        state.aligned += 1;
        if state.aligned == state.pes.len() {
            state.aligned = 0;
            let latest = state.pes.iter().map(|pe| pe.now_ps).max().unwrap_or(0);
            state.resume_all(latest);
        }
        drop(self.0.let_others_run(state, pe));
    }

    /// The clock of a PE.
    pub fn now_ns(&self, pe: usize) -> f64 {
        self.0.at_my_time(pe).pes[pe].now_ps as f64 / 1000.0
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Everything before this PE's time has happened.
    fn at_my_time(&self, pe: usize) -> MutexGuard<'_, State> {
        let mut state = self.lock();
        assert_eq!(state.turn, Some(pe), "PE {pe} communicates outside of virtual time");
        state.pes[pe].now_ps += SPENT_PS.take();
        let now_ps = state.pes[pe].now_ps;
        if state.queue.first_key_value().is_some_and(|((at_ps, _), _)| *at_ps < now_ps) {
            state.push(now_ps, What::Resume(pe));
            return self.let_others_run(state, pe);
        }
        state
    }

    /// Lets time go on until it is this PE's turn again.
    fn let_others_run<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        pe: usize,
    ) -> MutexGuard<'a, State> {
        self.pass_on(&mut state);
        self.until_my_turn(state, pe)
    }

    /// Lets things happen until it is some PE's turn.
    fn pass_on(&self, state: &mut State) {
        state.turn = None;
        let begun_ps = state.queue.first_key_value().map_or(0, |((at_ps, _), _)| *at_ps);
        while state.turn.is_none() && state.broken.is_none() {
            let at_ps = state.step(&self.setup);
            if at_ps > begun_ps + PATIENCE_PS {
                let waiting = state.pes.iter().filter(|pe| pe.waits).count();
                state.broken = Some(format!("{waiting} PEs wait for nothing at {at_ps} ps"));
            }
        }
        match state.turn {
            Some(pe) => self.turns[pe].notify_one(),
            None => self.turns.iter().for_each(Condvar::notify_one),
        }
    }

    fn until_my_turn<'a>(
        &'a self,
        state: MutexGuard<'a, State>,
        pe: usize,
    ) -> MutexGuard<'a, State> {
        let others = |state: &mut State| state.turn != Some(pe) && state.broken.is_none();
        let state = self.turns[pe].wait_while(state, others);
        let state = state.unwrap_or_else(PoisonError::into_inner);
        if let Some(why) = state.broken.clone() {
            drop(state);
            panic!("the simulated ring stands still: {why}");
        }
        state
    }

    /// A PE's thread is lost: the others would wait for it.
    fn give_up(&self, pe: usize) {
        let mut state = self.lock();
        state.broken.get_or_insert_with(|| format!("PE {pe} has failed"));
        self.turns.iter().for_each(Condvar::notify_one);
    }

    /// Waits for news since this PE looked last: what happens before its own time counts too.
    fn wait(&self, pe: usize) {
        let mut state = self.lock();
        assert_eq!(state.turn, Some(pe), "PE {pe} waits outside of virtual time");
        if std::mem::take(&mut state.pes[pe].fresh) {
            return;
        }
        state.pes[pe].now_ps += SPENT_PS.take();
        state.pes[pe].waits = true;
        let mut state = self.let_others_run(state, pe);
        state.pes[pe].fresh = true;
    }

    /// Hands an operation on PE `to` to the engine of the lane that the stream keeps to.
    fn submit(
        &self,
        pe: usize,
        to: usize,
        stream: &Stream,
        act: impl FnOnce(u64, &mut Engine, &mut LiveMemory<'_>) -> Status,
    ) -> Status {
        let mut state = self.at_my_time(pe);
        let at = self.lane(pe, stream);
        let token = state.token(stream, pe, to);
        let start_ps = state.pes[pe].now_ps.max(state.lanes[at].free_ps);
        let mut status = Status::Again;
        let until_ps = state.with_lane(&self.setup, at, start_ps, |engine, host| {
            host.timed.now_ps += host.timed.model.submit_ps;
            status = act(token as u64, engine, host);
        });
        state.lanes[at].free_ps = until_ps;
        state.pes[pe].now_ps = until_ps;
        state.wake(at, until_ps);
        state.pes[pe].refused = status == Status::Again;
        if status != Status::Pending {
            state.operations[token] = None;
            state.free_tokens.push(token);
        }
        status
    }

    fn fence(&self, pe: usize, stream: &Stream) -> bool {
        let mut state = self.at_my_time(pe);
        let at = self.lane(pe, stream);
        let engine = &mut state.lanes[at].engine;
        (0..self.setup.hosts).fold(true, |ordered, host| engine.fence(stream.id, host) & ordered)
    }

    fn lane(&self, pe: usize, stream: &Stream) -> usize {
        let lanes = usize::from(self.setup.lanes);
        pe * lanes + stream.id as usize % lanes
    }
}

impl State {
    fn push(&mut self, at_ps: u64, what: What) {
        self.number += 1;
        self.queue.insert((at_ps, self.number), what);
    }

    fn resume_all(&mut self, at_ps: u64) {
        for pe in 0..self.pes.len() {
            self.push(at_ps, What::Resume(pe));
        }
    }

    fn wake(&mut self, lane: usize, at_ps: u64) {
        if at_ps < self.lanes[lane].wake_ps {
            self.lanes[lane].wake_ps = at_ps;
            self.push(at_ps, What::Run(lane));
        }
    }

    fn token(&mut self, stream: &Stream, from: usize, to: usize) -> usize {
        let token = self.free_tokens.pop().unwrap_or_else(|| {
            self.operations.push(None);
            self.operations.len() - 1
        });
        self.operations[token] = Some((stream, from, to as u32));
        token
    }

    /// The next event happens; gives its time.
    fn step(&mut self, setup: &LiveSetup) -> u64 {
        let Some(((now_ps, _), what)) = self.queue.pop_first() else {
            unreachable!("lanes always look again")
        };
        match what {
            What::Run(lane) if self.lanes[lane].wake_ps == now_ps => self.poll(setup, lane, now_ps),
            What::Run(_) => {}
            What::Arrive(post) => self.arrive(setup, post, now_ps),
            What::Notice(host, side) => self.notice(setup, host, side, now_ps),
            What::Resume(at) => {
                let pe = &mut self.pes[at];
                // What a poll has brought is there only when the poll has ended.
                pe.now_ps = now_ps.max(pe.news_ps);
                self.turn = Some(at);
            }
            What::Look(at) => {
                self.pes[at].looks = false;
                self.news(at, now_ps, setup);
            }
        }
        now_ps
    }

    fn poll(&mut self, setup: &LiveSetup, at: usize, now_ps: u64) {
        self.lanes[at].wake_ps = u64::MAX;
        let start_ps = now_ps.max(self.lanes[at].free_ps);
        let mut busy = false;
        let until_ps = self.with_lane(setup, at, start_ps, |engine, host| {
            busy = engine.poll(start_ps / 1000, host);
        });
        let lane = &mut self.lanes[at];
        lane.free_ps = until_ps;
        let idle_ps = (lane.engine.next_deadline() * 1000).max(until_ps + 1);
        self.wake(at, if busy { until_ps } else { idle_ps });
    }

    fn arrive(&mut self, setup: &LiveSetup, post: PostedWrite, now_ps: u64) {
        if !self.network.arrives(&post) {
            return;
        }
        let at = usize::from(post.host) * usize::from(setup.lanes) + post.lane;
        let lane = &mut self.lanes[at];
        lane.memory.arrive(post.side, post.offset, &post.bytes, now_ps);
        let at_ps = lane.free_ps.max(now_ps + LOOK_ROUND_PS);
        self.wake(at, at_ps);
    }

    fn notice(&mut self, setup: &LiveSetup, host: u16, side: Side, now_ps: u64) {
        self.network.enable(host, side);
        let lanes = usize::from(setup.lanes);
        for at in usize::from(host) * lanes..usize::from(host + 1) * lanes {
            let until_ps = self.with_lane(setup, at, now_ps, |engine, host| {
                engine.link_event(side, true, now_ps / 1000, host);
            });
            self.lanes[at].free_ps = until_ps;
            self.wake(at, until_ps);
        }
    }

    /// Has a lane do something; gives when it has done it.
    fn with_lane(
        &mut self,
        setup: &LiveSetup,
        at: usize,
        now_ps: u64,
        call: impl FnOnce(&mut Engine, &mut LiveMemory<'_>),
    ) -> u64 {
        let lanes = usize::from(setup.lanes);
        let pe = at / lanes;
        let lane = &mut self.lanes[at];
        let timed = TimedMemory {
            host: pe as u16,
            lane: at % lanes,
            now_ps,
            memory: &mut lane.memory,
            symmetric: &mut Symmetric::new(),
            network: &mut self.network,
            model: &setup.host,
            mps_bytes: u64::from(setup.link.mps_bytes),
            cpu: &mut self.cpu,
            completions: &mut self.completions,
            events: &mut self.events,
        };
        let mut host = LiveMemory { timed, heap: self.pes[pe].heap, delivered: Delivered::Nothing };
        call(&mut lane.engine, &mut host);
        let (until_ps, delivered) = (host.timed.now_ps, host.delivered);
        for post in std::mem::take(&mut self.network.outbox) {
            self.push(post.at_ps, What::Arrive(post));
        }
        match delivered {
            Delivered::Nothing => {}
            Delivered::Word => self.news(pe, until_ps, setup),
            Delivered::Bytes => {
                self.pes[pe].news_ps = until_ps.max(self.pes[pe].news_ps);
                if !std::mem::replace(&mut self.pes[pe].looks, true) {
                    self.push(until_ps + LATER_PS, What::Look(pe));
                }
            }
        }
        for (token, outcome) in std::mem::take(&mut self.completions) {
            let ended = self.operations[token as usize].take();
            self.free_tokens.push(token as usize);
            let Some((stream, from, to)) = ended else { unreachable!("completed once") };
            // SAFETY: it was alive when the operation was issued, and stays so until it is complete.
            let stream = unsafe { &*stream };
            match outcome {
                Completion::Done => {
                    stream.completed.fetch_add(1, std::sync::atomic::Ordering::Release);
                }
                outcome => stream.fail(to, outcome == Completion::Refused),
            }
            if stream.is_quiet() || self.pes[from].refused {
                self.news(from, until_ps, setup);
            }
        }
        until_ps
    }

    /// Something that a PE may wait for is there.
    fn news(&mut self, at: usize, at_ps: u64, setup: &LiveSetup) {
        let pe = &mut self.pes[at];
        pe.news_ps = pe.news_ps.max(at_ps);
        if std::mem::take(&mut pe.waits) {
            let at_ps = at_ps.max(pe.now_ps) + setup.host.detect_ps;
            self.push(at_ps, What::Resume(at));
        }
    }
}
