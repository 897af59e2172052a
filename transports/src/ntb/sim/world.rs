// SPDX-License-Identifier: Apache-2.0
//! The scheduler: threads, cables, faults and programs on one virtual clock. What the programs do is in `calls`.

use std::collections::BTreeSet;

use super::exact::Exact;
use super::faults::{Faults, Incident};
use super::memory::{LaneMemory, Symmetric};
use super::model::{HostModel, LinkModel};
use super::network::{Network, PostedWrite};
use super::program::{Beside, Call, PeId, Step, Workload, WorkloadPlan};
use super::queue::Queue;
use super::random::Random;
use super::report::Report;
use super::timed_memory::{CpuTime, TimedMemory};
use crate::ntb::ring::{Completion, Config, Engine, EngineError, Event, Side};

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
    pub(super) pe: usize,
    pub(super) from: PeId,
    pub(super) to: PeId,
    pub(super) step: Step,
    pub(super) slot: usize,
    /// The lane that it begins with.
    pub(super) lane: usize,
    /// A put that is followed by a second one.
    pub(super) second: bool,
    pub(super) start_ps: u64,
    pub(super) parts: u16,
    pub(super) outcome: Completion,
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
