// SPDX-License-Identifier: Apache-2.0
//! The scheduler: threads, cables, faults and programs on one virtual clock.

use std::collections::BTreeSet;

use tombolo_core::transport::Status;

use super::exact::Exact;
use super::faults::{Faults, Incident};
use super::memory::{LaneMemory, Symmetric};
use super::model::{HostModel, LinkModel};
use super::network::{Network, PostedWrite};
use super::program::{Beside, Call, Part, PeId, Step, Workload, WorkloadPlan};
use super::queue::Queue;
use super::random::Random;
use super::report::Report;
use super::timed_memory::{CpuTime, TimedMemory};
use crate::ntb::ring::{Completion, Config, Engine, EngineError, Event, Side};

/// Marks tokens of transfers beside the workload; the rest is the PE.
const BESIDE: u64 = 1 << 63;

/// A run.
#[derive(Clone, Debug)]
pub struct Simulation {
    /// Hosts of the ring.
    pub hosts: u16,
    /// PEs of each host.
    pub pes: u16,
    /// Lanes of each PE, each with a service thread of its own.
    pub lanes: u16,
    /// Settings of the engines.
    pub config: Config,
    /// Links.
    pub link: LinkModel,
    /// CPUs.
    pub host: HostModel,
    /// Threads block when idle and wait for a doorbell, instead of polling.
    pub sleepers: bool,
    /// What the PEs do.
    pub workload: Workload,
    /// What they do beside that.
    pub beside: Option<Beside>,
    /// What goes wrong.
    pub faults: Faults,
    /// Each operation moves bytes of its own, some puts go to a place twice with a fence between, and all is looked
    /// at when it ends.
    pub exact: bool,
    /// Of everything random.
    pub seed: u64,
    /// Virtual time without any completion after which the run counts as stuck, in nanoseconds.
    pub patience_ns: u64,
}

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum SimError {
    /// The arguments make no sense together.
    #[error("{0}")]
    Argument(String),
    /// An engine cannot be made.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// Operations neither complete nor fail.
    #[error("stuck at {at_ns} ns (seed {seed}): {missing} operations outstanding; {detail}")]
    Stuck {
        /// When.
        at_ns: u64,
        /// To repeat it.
        seed: u64,
        /// How many.
        missing: u64,
        /// State of the lanes concerned.
        detail: String,
    },
    /// Data or counters are wrong.
    #[error("wrong result (seed {seed}): {what}")]
    Wrong {
        /// To repeat it.
        seed: u64,
        /// What is wrong.
        what: String,
    },
}

/// Runs a simulation to its end and checks the memory.
pub fn run(simulation: &Simulation) -> Result<Report, SimError> {
    let mut world = World::new(simulation)?;
    world.play()?;
    world.verify()?;
    Ok(Report::new(simulation, &world))
}

pub(super) enum What {
    Run(usize),
    Arrive(PostedWrite),
    Incident(Incident),
    Notice(u16, Side),
    Flap,
    Stall,
}

pub(super) struct Lane {
    pub engine: Engine,
    pub(super) memory: LaneMemory,
    pub(super) host: u16,
    pub(super) index: usize,
    /// Its thread is busy until then.
    pub(super) free_ps: u64,
    /// When it will run next.
    pub(super) wake_ps: u64,
    pub(super) asleep: bool,
    pub(super) whole: bool,
}

#[derive(Default)]
pub(super) struct Pe {
    pub(super) issued: u64,
    pub(super) ended: u64,
    pub(super) free_slots: Vec<usize>,
    /// A transfer beside the workload is outstanding.
    pub(super) beside: bool,
    /// Parts that an engine had no room for yet, by lane of the PE.
    pub(super) waiting: Vec<(u64, Call, u16)>,
}

#[derive(Clone, Copy)]
pub(super) struct Transfer {
    pe: usize,
    pub(super) from: PeId,
    pub(super) to: PeId,
    pub(super) step: Step,
    pub(super) slot: usize,
    /// The lane that it begins with.
    pub(super) lane: usize,
    /// A put that is followed by a second one.
    pub(super) second: bool,
    start_ps: u64,
    parts: u16,
    outcome: Completion,
}

pub(super) struct World<'a> {
    pub simulation: &'a Simulation,
    pub(super) plan: WorkloadPlan,
    pub lanes: Vec<Lane>,
    pub network: Network,
    pub(super) symmetric: Vec<Symmetric>,
    pub(super) pes: Vec<Pe>,
    /// Raised by whatever may end the run.
    pub(super) news: u64,
    pub(super) dead: Vec<bool>,
    pub(super) transfers: Vec<Transfer>,
    pub(super) queue: Queue<What>,
    pub(super) random: Random,
    pub cpu: CpuTime,
    pub events: Vec<(u64, u16, Event)>,
    pub(super) completions: Vec<(u64, Completion)>,
    pub start_ps: Option<u64>,
    pub end_ps: u64,
    pub(super) whole: usize,
    pub latencies_ps: Vec<u64>,
    pub failed: u64,
    /// The least that a PE had done when the first one ended, as a share of the mean.
    pub slowest_of_mean: Option<f64>,
    /// Bytes moved beside the workload.
    pub beside_bytes: u64,
    pub(super) wrong: Option<String>,
    /// Expected counters by PE number: fetching additions, other additions, signals.
    pub(super) expected: Vec<[u64; 3]>,
    /// Outcome unknown because the operation failed, by PE number.
    pub(super) uncertain: Vec<bool>,
    /// Puts that completed: target and source.
    pub(super) puts: BTreeSet<(PeId, PeId)>,
    /// By host: its threads do not run before.
    pub(super) stalled_ps: Vec<u64>,
    /// What is known where each operation is looked at.
    pub(super) exact: Exact,
}

impl<'a> World<'a> {
    fn new(simulation: &'a Simulation) -> Result<World<'a>, SimError> {
        let Simulation { hosts, pes, lanes: lanes_per_pe, workload, beside, .. } = *simulation;
        let plan = WorkloadPlan { workload, beside, hosts, pes, exact: simulation.exact };
        super::verify::check(simulation, &plan)?;
        let lanes_per_host = pes * lanes_per_pe;
        let mut random = Random::new(simulation.seed);
        let network_random = Random::new(random.bits());
        let mut lanes = Vec::new();
        for host in 0..hosts {
            for index in 0..lanes_per_host {
                let mut config = simulation.config;
                config.incarnation = random.bits() as u32 | 1;
                let mut memory = LaneMemory::new(&config, plan.local_bytes());
                let number = plan.number(PeId { host, pe: index / lanes_per_pe });
                plan.fill_local(number, &mut memory.local);
                lanes.push(Lane {
                    engine: Engine::new(config, host, hosts, index as u8)?,
                    memory,
                    host,
                    index: usize::from(index),
                    free_ps: 0,
                    wake_ps: u64::MAX,
                    asleep: false,
                    whole: false,
                });
            }
        }
        let segments = |host: u16| (0..pes).map(|pe| plan.segment(PeId { host, pe })).collect();
        let all = usize::from(hosts) * usize::from(pes);
        let slots = || (0..workload.depth).rev().collect();
        let mut world = World {
            simulation,
            plan,
            lanes,
            network: Network::new(
                simulation.link,
                hosts,
                simulation.faults.clone(),
                network_random,
            ),
            symmetric: (0..hosts).map(segments).collect(),
            pes: (0..all).map(|_| Pe { free_slots: slots(), ..Pe::default() }).collect(),
            news: 0,
            dead: vec![false; usize::from(hosts)],
            transfers: Vec::new(),
            queue: Queue::new(),
            random,
            cpu: CpuTime::default(),
            events: Vec::new(),
            completions: Vec::new(),
            start_ps: None,
            end_ps: 0,
            whole: 0,
            latencies_ps: Vec::new(),
            failed: 0,
            slowest_of_mean: None,
            beside_bytes: 0,
            wrong: None,
            expected: vec![[0; 3]; all],
            uncertain: vec![false; all],
            puts: BTreeSet::new(),
            stalled_ps: vec![0; usize::from(hosts)],
            exact: Exact::default(),
        };
        world.begin();
        Ok(world)
    }

    fn begin(&mut self) {
        for cable in 0..self.simulation.hosts {
            self.push(0, What::Incident(Incident::Link(cable, true)));
        }
        for lane in 0..self.lanes.len() {
            // Threads of different hosts do not start in step.
            let at_ps = self.random.below(1_000_000);
            self.wake(lane, at_ps);
        }
    }

    fn play(&mut self) -> Result<(), SimError> {
        let mut last_ps = 0;
        let mut news = self.news;
        while let Some((now_ps, what)) = self.queue.pop() {
            match what {
                What::Run(lane) if self.lanes[lane].wake_ps == now_ps => {
                    self.poll_lane(lane, now_ps)
                }
                What::Run(_) => {}
                What::Arrive(post) => self.arrive(post, now_ps),
                What::Incident(incident) => self.happen(incident, now_ps),
                What::Notice(host, side) => self.notice(host, side, now_ps),
                What::Flap => self.flap(now_ps),
                What::Stall => self.stall(now_ps),
            }
            if let Some(what) = self.wrong.take() {
                return Err(SimError::Wrong { seed: self.simulation.seed, what });
            }
            if news != self.news {
                (news, last_ps) = (self.news, now_ps);
                if self.is_done() {
                    return Ok(());
                }
            } else if now_ps - last_ps > self.simulation.patience_ns * 1000 {
                break;
            }
        }
        Err(self.stuck())
    }

    fn is_done(&self) -> bool {
        self.start_ps.is_some()
            && self.pes.iter().enumerate().all(|(number, pe)| {
                let id = self.pe_id(number);
                !self.plan.works(id)
                    || self.dead[usize::from(id.host)]
                    || pe.ended == self.plan.workload.count
            })
    }

    /// A lane's thread runs once.
    fn poll_lane(&mut self, at: usize, now_ps: u64) {
        self.lanes[at].wake_ps = u64::MAX;
        let host = self.lanes[at].host;
        if self.dead[usize::from(host)] {
            return;
        }
        if self.stalled_ps[usize::from(host)] > now_ps {
            let until_ps = self.stalled_ps[usize::from(host)];
            return self.wake(at, until_ps);
        }
        if self.start_ps.is_some() {
            self.work(at, now_ps);
        }
        let start_ps = now_ps.max(self.lanes[at].free_ps);
        let sleepers = self.simulation.sleepers;
        let mut busy = false;
        let mut until_ps = start_ps;
        self.with_host(at, start_ps, |engine, host| {
            if sleepers {
                engine.set_sleeping(false, host);
            }
            busy = engine.poll(host.now_ps / 1000, host);
            if sleepers && !busy {
                engine.set_sleeping(true, host);
                busy = engine.poll(host.now_ps / 1000, host);
            }
            until_ps = host.now_ps;
        });
        let lane = &mut self.lanes[at];
        lane.free_ps = until_ps;
        lane.asleep = sleepers && !busy;
        if !lane.whole && self.start_ps.is_none() && lane.engine.is_whole() {
            lane.whole = true;
            self.whole += 1;
            if self.whole == self.lanes.len() {
                self.start(until_ps);
            }
        }
        self.collect(until_ps);
        let next_ps = if busy {
            until_ps
        } else {
            (self.lanes[at].engine.next_deadline() * 1000).max(until_ps + 1)
        };
        self.wake(at, next_ps);
    }

    fn start(&mut self, now_ps: u64) {
        self.start_ps = Some(now_ps);
        self.news += 1;
        let simulation = self.simulation;
        for &(after_ns, incident) in &simulation.faults.incidents {
            self.push(now_ps + after_ns * 1000, What::Incident(incident));
        }
        if let Some(every_ns) = simulation.faults.flap_ns {
            let after_ps = self.random.below(every_ns * 2000);
            self.push(now_ps + after_ps, What::Flap);
        }
        if let Some(every_ns) = simulation.faults.stall_ns {
            let after_ps = self.random.below(every_ns * 2000);
            self.push(now_ps + after_ps, What::Stall);
        }
        for lane in 0..self.lanes.len() {
            self.wake(lane, now_ps);
        }
    }

    /// The program's part: hands in what may be outstanding.
    fn work(&mut self, at: usize, now_ps: u64) {
        let lanes_per_pe = usize::from(self.simulation.lanes);
        let Lane { host, index, .. } = self.lanes[at];
        let number = usize::from(host) * usize::from(self.simulation.pes) + index / lanes_per_pe;
        let id = self.pe_id(number);
        if !self.plan.works(id) {
            return;
        }
        if index.is_multiple_of(lanes_per_pe) {
            self.issue_beside(at, number, id);
            self.issue(number, id, now_ps);
        }
        let mine = (index % lanes_per_pe) as u16;
        let waiting = std::mem::take(&mut self.pes[number].waiting);
        let mut later = Vec::new();
        for (token, call, part_of) in waiting {
            let accepted =
                part_of == mine && later.is_empty() && self.hand_in(at, token, &call, now_ps);
            if !accepted {
                later.push((token, call, part_of));
            }
        }
        self.pes[number].waiting = later;
        for other in 0..lanes_per_pe {
            let lane = at - usize::from(mine) + other;
            if lane != at && self.pes[number].waiting.iter().any(|w| usize::from(w.2) == other) {
                let at_ps = self.lanes[lane].free_ps.max(now_ps);
                self.wake(lane, at_ps);
            }
        }
    }

    fn issue(&mut self, number: usize, from: PeId, now_ps: u64) {
        let lanes_per_pe = usize::from(self.simulation.lanes);
        let first =
            usize::from(from.host) * self.lanes_per_host() + usize::from(from.pe) * lanes_per_pe;
        while self.pes[number].issued < self.plan.workload.count {
            let Some(slot) = self.pes[number].free_slots.pop() else { return };
            let index = self.pes[number].issued;
            self.pes[number].issued += 1;
            let step = self.plan.step(index);
            let to = self.plan.target(from, index, &mut self.random);
            let token = self.transfers.len() as u64;
            let size = self.plan.len_of(token);
            let exact = self.plan.exact;
            let split = !exact && matches!(step, Step::Put | Step::Get) && self.is_split();
            let second = exact && step == Step::Put && !index.is_multiple_of(3);
            let (parts, calls) = match (split, second) {
                (true, _) => (lanes_per_pe, lanes_per_pe),
                (false, second) => (1, 1 + usize::from(second)),
            };
            let each = size.div_ceil(parts).next_multiple_of(64);
            let lane_of = |part: usize| if split { part } else { index as usize % lanes_per_pe };
            let transfer = Transfer {
                pe: number,
                from,
                to,
                step,
                slot,
                lane: first + lane_of(0),
                second,
                start_ps: now_ps,
                parts: calls as u16,
                outcome: Completion::Done,
            };
            if exact {
                self.note_made(&transfer, now_ps);
            }
            for call in 0..calls {
                let (second, part) = if split { (false, call) } else { (call == 1, 0) };
                let len = each.min(size.saturating_sub(part * each));
                let part_of = lane_of(part) as u16;
                let part = Part { from: part * each, len };
                let call = Call { step, from, to, slot, part, second };
                if exact {
                    let local = &mut self.lanes[transfer.lane].memory.local;
                    self.plan.fill_source(token, &call, local);
                }
                self.pes[number].waiting.push((token, call, part_of));
            }
            self.transfers.push(transfer);
        }
    }

    fn is_split(&self) -> bool {
        let chunk_bytes = self.simulation.config.geometry.chunk_bytes();
        self.plan.workload.size >= usize::from(self.simulation.lanes) * chunk_bytes
    }

    fn issue_beside(&mut self, at: usize, number: usize, from: PeId) {
        if self.plan.beside.is_none() || self.pes[number].beside {
            return;
        }
        let plan = self.plan;
        let to = plan.target(from, 0, &mut self.random);
        let start_ps = self.lanes[at].free_ps;
        let (mut status, mut until_ps) = (Status::Again, start_ps);
        self.with_host(at, start_ps, |engine, host| {
            host.now_ps += host.model.submit_ps;
            status = plan.submit_beside(engine, host, BESIDE | number as u64, to);
            until_ps = host.now_ps;
        });
        if status == Status::Pending {
            self.pes[number].beside = true;
            self.lanes[at].free_ps = until_ps;
        }
    }

    fn end_beside(&mut self, number: usize, outcome: Completion) {
        let from = self.pe_id(number);
        let to = self.plan.target(from, 0, &mut self.random);
        self.pes[number].beside = false;
        if outcome != Completion::Done {
            return;
        }
        self.beside_bytes += self.plan.beside.map_or(0, |beside| beside.size as u64);
        let lane = number * usize::from(self.simulation.lanes);
        let local = &mut self.lanes[lane].memory.local;
        let far = &mut self.symmetric[usize::from(to.host)][usize::from(to.pe)];
        if !self.plan.check_beside([from, to], local, far) {
            self.wrong = Some(format!("{from:?} moved other data beside its workload"));
        }
    }

    fn hand_in(&mut self, at: usize, token: u64, call: &Call, now_ps: u64) -> bool {
        let plan = self.plan;
        // A copy of what is kept may carry on with what is to be stored: not before now.
        let start_ps = self.lanes[at].free_ps.max(if plan.exact { now_ps } else { 0 });
        let mut status = Status::Again;
        let mut until_ps = start_ps;
        self.with_host(at, start_ps, |engine, host| {
            host.now_ps += host.model.submit_ps;
            status = plan.submit(engine, host, token, call);
            until_ps = host.now_ps;
        });
        match status {
            Status::Again => return false,
            Status::Pending => {}
            Status::Complete => self.completions.push((token, Completion::Done)),
            Status::Failed => self.completions.push((token, Completion::Lost)),
        }
        if plan.retains(token, call.second) && matches!(call.step, Step::Put | Step::PutSignal) {
            let at_source = plan.source(call.slot, call.second);
            self.lanes[at].memory.local[at_source..at_source + call.part.len].fill(0xee);
        }
        self.lanes[at].free_ps = until_ps;
        true
    }

    /// Takes in operations that ended and sends off what was written.
    pub(super) fn collect(&mut self, now_ps: u64) {
        for post in std::mem::take(&mut self.network.outbox) {
            self.push(post.at_ps, What::Arrive(post));
        }
        for (token, outcome) in std::mem::take(&mut self.completions) {
            if token & BESIDE != 0 {
                self.end_beside((token & !BESIDE) as usize, outcome);
                continue;
            }
            let transfer = &mut self.transfers[token as usize];
            transfer.parts -= 1;
            if outcome != Completion::Done {
                transfer.outcome = outcome;
            }
            if transfer.parts == 0 {
                self.end(token as usize, now_ps);
            }
        }
    }

    fn end(&mut self, token: usize, now_ps: u64) {
        let transfer = self.transfers[token];
        let Transfer { pe, to, step, slot, start_ps, outcome, .. } = transfer;
        self.pes[pe].ended += 1;
        self.news += 1;
        if self.slowest_of_mean.is_none() && self.pes[pe].ended == self.plan.workload.count {
            self.slowest_of_mean = Some(self.slowest_of_mean());
        }
        self.pes[pe].free_slots.push(slot);
        self.end_ps = self.end_ps.max(now_ps);
        let lanes_per_pe = usize::from(self.simulation.lanes);
        let first = pe / usize::from(self.simulation.pes) * self.lanes_per_host()
            + pe % usize::from(self.simulation.pes) * lanes_per_pe;
        let at_ps = self.lanes[first].free_ps.max(now_ps);
        self.wake(first, at_ps);
        let target = self.plan.number(to);
        if outcome != Completion::Done {
            self.failed += 1;
            self.uncertain[target] = true;
            if self.plan.exact {
                self.forget_failed(&transfer);
            }
            return;
        }
        self.latencies_ps.push(now_ps - start_ps);
        if self.plan.exact {
            self.check_ended(token as u64, &transfer, now_ps);
        }
        match step {
            _ if self.plan.exact && matches!(step, Step::Put | Step::Get) => {}
            Step::Put => self.note_put(to, pe),
            Step::PutSignal => {
                self.expected[target][2] += 1;
                if !self.plan.exact {
                    self.note_put(to, pe);
                }
            }
            Step::Fetch => self.expected[target][0] += 1,
            Step::Add => self.expected[target][1] += 1,
            Step::Get => self.check_get(first, to, slot, now_ps),
        }
    }

    fn slowest_of_mean(&self) -> f64 {
        let working = (0..self.pes.len()).filter(|&pe| self.plan.works(self.pe_id(pe)));
        let ended: Vec<u64> = working.map(|pe| self.pes[pe].ended).collect();
        let mean = ended.iter().sum::<u64>() as f64 / ended.len() as f64;
        ended.into_iter().min().unwrap_or(0) as f64 / mean
    }

    fn note_put(&mut self, to: PeId, pe: usize) {
        let from = self.pe_id(pe);
        self.puts.insert((to, from));
    }

    fn check_get(&mut self, first: usize, to: PeId, slot: usize, now_ps: u64) {
        let lanes_per_pe = usize::from(self.simulation.lanes);
        let size = self.plan.workload.size;
        let at = self.plan.dest(slot);
        let chunk = self.simulation.config.geometry.chunk_bytes();
        // Each lane has buffers of its own; a split get has a part in each.
        let split = size >= lanes_per_pe * chunk;
        let parts = if split { lanes_per_pe } else { 1 };
        let each = size.div_ceil(parts).next_multiple_of(64);
        let sound = (0..parts).all(|part| {
            let from = part * each;
            let part_bytes = Part { from, len: each.min(size.saturating_sub(from)) };
            let range = at + from..at + from + part_bytes.len;
            let candidates = if split { part..part + 1 } else { 0..lanes_per_pe };
            let mut lanes = candidates.map(|lane| &self.lanes[first + lane].memory.local);
            lanes.any(|local| self.plan.check_get(to, part_bytes, &local[range.clone()]))
        });
        for lane in first..first + lanes_per_pe {
            self.lanes[lane].memory.local[at..at + size].fill(0);
        }
        if !sound {
            self.wrong = Some(format!("a get from {to:?} brought other data at {now_ps} ps"));
        }
    }

    pub(super) fn with_host(
        &mut self,
        at: usize,
        now_ps: u64,
        call: impl FnOnce(&mut Engine, &mut TimedMemory<'_>),
    ) {
        let lane = &mut self.lanes[at];
        let mut host = TimedMemory {
            host: lane.host,
            lane: lane.index,
            now_ps,
            memory: &mut lane.memory,
            symmetric: &mut self.symmetric[usize::from(lane.host)],
            network: &mut self.network,
            model: &self.simulation.host,
            mps_bytes: u64::from(self.simulation.link.mps_bytes),
            cpu: &mut self.cpu,
            completions: &mut self.completions,
            events: &mut self.events,
        };
        call(&mut lane.engine, &mut host);
    }

    pub(super) fn wake(&mut self, lane: usize, at_ps: u64) {
        if at_ps < self.lanes[lane].wake_ps {
            self.lanes[lane].wake_ps = at_ps;
            self.push(at_ps, What::Run(lane));
        }
    }

    pub(super) fn push(&mut self, at_ps: u64, what: What) {
        self.queue.push(at_ps, what);
    }

    pub(super) fn pe_id(&self, number: usize) -> PeId {
        let pes = usize::from(self.simulation.pes);
        PeId { host: (number / pes) as u16, pe: (number % pes) as u16 }
    }

    pub(super) fn lanes_per_host(&self) -> usize {
        usize::from(self.simulation.pes) * usize::from(self.simulation.lanes)
    }
}
