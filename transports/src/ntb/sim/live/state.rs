// SPDX-License-Identifier: Apache-2.0
//! Everything but the threads: lanes, links and PEs on one clock.

use std::sync::atomic::Ordering;

use tombolo_core::transport::Stream;

use super::super::incidents::LOOK_ROUND_PS;
use super::super::memory::{LaneMemory, Symmetric};
use super::super::network::{Network, PostedWrite};
use super::super::queue::Queue;
use super::super::random::Random;
use super::super::timed_memory::{CpuTime, TimedMemory};
use super::super::{Faults, SimError};
use super::LiveSetup;
use super::memory::{Delivered, Heap, LiveMemory};
use crate::ntb::ring::{Completion, Config, Engine, Event, Side};

/// After so long a PE that waits sees data that came without a word.
const LATER_PS: u64 = 5_000_000;

enum What {
    Run(usize),
    Arrive(PostedWrite),
    Notice(u16, Side),
    Resume(usize),
    Look(usize),
}

pub struct Lane {
    pub engine: Engine,
    memory: LaneMemory,
    /// Its thread is busy until then.
    pub free_ps: u64,
    /// When it will run next.
    wake_ps: u64,
}

#[derive(Clone, Copy, Default)]
pub struct Pe {
    pub heap: Heap,
    pub now_ps: u64,
    /// When something that it may wait for was delivered or completed last.
    news_ps: u64,
    /// It goes on when there is news.
    pub waits: bool,
    /// There was news, and it may not have looked for it: the core makes progress twice before it looks.
    pub fresh: bool,
    /// An engine had no room for its last operation.
    pub refused: bool,
    /// It looks again soon.
    looks: bool,
}

pub struct State {
    pub lanes: Vec<Lane>,
    network: Network,
    queue: Queue<What>,
    cpu: CpuTime,
    events: Vec<(u64, u16, Event)>,
    completions: Vec<(u64, Completion)>,
    /// Operations under way, by token.
    operations: Vec<Option<(*const Stream, usize, u32)>>,
    free_tokens: Vec<usize>,
    pub pes: Vec<Pe>,
    /// Whose turn it is.
    pub turn: Option<usize>,
    pub entered: usize,
    pub left: usize,
    /// PEs that wait for all others.
    pub aligned: usize,
    /// Why nothing goes on any more.
    pub broken: Option<String>,
}

// SAFETY: streams live until what was issued on them is complete, and heaps until their PEs have left; the
// lock lets one thread at a time use them.
unsafe impl Send for State {}

impl State {
    /// Hosts whose links come up with the first events.
    pub fn new(setup: &LiveSetup) -> Result<State, SimError> {
        let LiveSetup { hosts, lanes: per_pe, link, seed, .. } = *setup;
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
                let memory = LaneMemory::new(&config, 0);
                let engine = Engine::new(config, host, hosts, index as u8)?;
                lanes.push(Lane { engine, memory, free_ps: 0, wake_ps: u64::MAX });
            }
        }
        let mut state = State {
            lanes,
            network,
            queue: Queue::new(),
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
                state.queue.push(at_ps, What::Notice(host, side));
            }
        }
        Ok(state)
    }

    /// The time of the next event.
    pub fn next_ps(&self) -> Option<u64> {
        self.queue.next_ps()
    }

    /// It will be a PE's turn at that time.
    pub fn resume(&mut self, pe: usize, at_ps: u64) {
        self.queue.push(at_ps, What::Resume(pe));
    }

    /// All PEs go on at that time.
    pub fn resume_all(&mut self, at_ps: u64) {
        (0..self.pes.len()).for_each(|pe| self.resume(pe, at_ps));
    }

    /// A lane runs at that time, if not before.
    pub fn wake(&mut self, lane: usize, at_ps: u64) {
        if at_ps < self.lanes[lane].wake_ps {
            self.lanes[lane].wake_ps = at_ps;
            self.queue.push(at_ps, What::Run(lane));
        }
    }

    /// A name for an operation on a stream of PE `from`.
    pub fn token(&mut self, stream: &Stream, from: usize, to: usize) -> usize {
        let token = self.free_tokens.pop().unwrap_or_else(|| {
            self.operations.push(None);
            self.operations.len() - 1
        });
        self.operations[token] = Some((stream, from, to as u32));
        token
    }

    /// The operation was not taken.
    pub fn give_back(&mut self, token: usize) {
        self.operations[token] = None;
        self.free_tokens.push(token);
    }

    /// The next event happens; gives its time.
    pub fn step(&mut self, setup: &LiveSetup) -> u64 {
        let Some((now_ps, what)) = self.queue.pop() else {
            unreachable!("lanes always look again")
        };
        match what {
            What::Run(lane) if self.lanes[lane].wake_ps == now_ps => self.poll(setup, lane, now_ps),
            What::Run(_) => {}
            What::Arrive(post) => self.arrive(setup, post, now_ps),
            What::Notice(host, side) => self.notice(setup, host, side, now_ps),
            What::Resume(at) => {
                let pe = &mut self.pes[at];
                // A poll has brought it at once; it is there only when the poll would have.
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
    pub fn with_lane(
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
        let heap = self.pes[pe].heap;
        let mut host = LiveMemory { timed, heap, delivered: Delivered::default() };
        call(&mut lane.engine, &mut host);
        let (until_ps, delivered) = (host.timed.now_ps, host.delivered);
        for post in std::mem::take(&mut self.network.outbox) {
            self.queue.push(post.at_ps, What::Arrive(post));
        }
        if let Some(at_ps) = delivered.alone_ps() {
            self.news(pe, at_ps, setup);
        } else if delivered.any_payload() && !std::mem::replace(&mut self.pes[pe].looks, true) {
            self.queue.push(until_ps + LATER_PS, What::Look(pe));
        }
        for (token, outcome) in std::mem::take(&mut self.completions) {
            self.complete(setup, token as usize, outcome, until_ps);
        }
        until_ps
    }

    fn complete(&mut self, setup: &LiveSetup, token: usize, outcome: Completion, now_ps: u64) {
        let ended = self.operations[token].take();
        self.free_tokens.push(token);
        let Some((stream, from, to)) = ended else { unreachable!("completed once") };
        // SAFETY: it was alive when the operation was issued, and stays so until it is complete.
        let stream = unsafe { &*stream };
        match outcome {
            Completion::Done => _ = stream.completed.fetch_add(1, Ordering::Release),
            outcome => stream.fail(to, outcome == Completion::Refused),
        }
        if stream.is_quiet() || self.pes[from].refused {
            self.news(from, now_ps, setup);
        }
    }

    /// Something that a PE may wait for is there.
    fn news(&mut self, at: usize, at_ps: u64, setup: &LiveSetup) {
        let pe = &mut self.pes[at];
        pe.news_ps = pe.news_ps.max(at_ps);
        if std::mem::take(&mut pe.waits) {
            let at_ps = at_ps.max(pe.now_ps) + setup.host.detect_ps;
            self.resume(at, at_ps);
        }
    }
}
