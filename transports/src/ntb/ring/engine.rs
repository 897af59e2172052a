// SPDX-License-Identifier: Apache-2.0
//! The engine: its parts, and how it is polled.

use super::bits::Bits;
use super::config::{Config, HOSTS_MAX};
use super::fair::{Sharing, shared_bytes};
use super::fetcher::Fetcher;
use super::health::RunClock;
use super::losses::Losses;
use super::memory::{Completion, Memory, Side, Transfer};
use super::ops::{Action, Ops};
use super::packet::Class;
use super::port::{Identity, Port};
use super::receiver::Receiver;
use super::repair::Timers;
use super::sender::Sender;
use super::stats::Stats;
use super::topology::Topology;
use tombolo_core::wait::Reason;

/// Why an engine cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// A ring needs two hosts, and a header has room for so many.
    #[error("a ring of {0} hosts: expected 2 to {HOSTS_MAX}")]
    Hosts(u16),
    /// The host is not one of the ring.
    #[error("host {0} is not one of the {1} of the ring")]
    Me(u16, u16),
    /// A setting makes no sense.
    #[error("{0}")]
    Setting(&'static str),
}

/// One lane of one host.
#[derive(Clone, Debug, Hash)]
pub struct Engine {
    pub(super) config: Config,
    pub(super) me: u16,
    pub(super) hosts: u16,
    pub(super) lane: u8,
    /// Time that this engine has run, nanoseconds; all its timers go by it.
    pub(super) now: u64,
    clock: RunClock,
    pub(super) timers: Timers,
    pub(super) ports: [Port; 2],
    pub(super) topology: Topology,
    /// Link states owed to the neighbours, by direction and origin.
    pub(super) news: [Bits; 2],
    pub(super) losses: Losses,
    pub(super) ops: Ops,
    pub(super) sender: Sender,
    pub(super) fetcher: Fetcher,
    pub(super) receiver: Receiver,
    pub(super) sharing: Sharing,
    /// Whether flows, and not gets, go first in a direction.
    pub(super) flows_first: [bool; 2],
    /// Nothing is to be done before something arrives, is handed in, or is due.
    pub(super) at_rest: bool,
    /// Something was handed in, and not all of it may have been sent.
    pub(super) handed_in: bool,
    pub(super) stats: Stats,
}

impl Engine {
    /// An engine for lane `lane` of host `me`, with both links down.
    pub fn new(config: Config, me: u16, hosts: u16, lane: u8) -> Result<Engine, EngineError> {
        if !(2..=HOSTS_MAX).contains(&hosts) {
            return Err(EngineError::Hosts(hosts));
        }
        if me >= hosts {
            return Err(EngineError::Me(me, hosts));
        }
        if !config.window.is_power_of_two() || config.window < 4 {
            return Err(EngineError::Setting("the window must be a power of two, 4 or more"));
        }
        if config.incarnation == 0 || config.burst == 0 {
            return Err(EngineError::Setting("the incarnation and the burst must not be 0"));
        }
        let topology = Topology::new(me, hosts, lane);
        let port = |side: Side| {
            let neighbour = topology.step(me, side);
            Port::new(side, Identity { me, neighbour, hosts, lane }, &config)
        };
        let news = || Bits::new(usize::from(hosts));
        Ok(Engine {
            ports: [port(Side::Right), port(Side::Left)],
            news: [news(), news()],
            losses: Losses::new(hosts),
            ops: Ops::new(config.operations),
            sender: Sender::new(&config, hosts),
            fetcher: Fetcher::new(&config, hosts),
            receiver: Receiver::new(&config, hosts),
            sharing: Sharing::default(),
            flows_first: [false; 2],
            at_rest: false,
            handed_in: false,
            now: 0,
            clock: RunClock::default(),
            timers: Timers::default(),
            stats: Stats::default(),
            config,
            me,
            hosts,
            lane,
            topology,
        })
    }

    /// The link at `side` came up or went down.
    pub fn link_event<M: Memory>(&mut self, side: Side, up: bool, now: u64, memory: &mut M) {
        self.now = self.clock.advance(now, self.config.step_ns);
        self.at_rest = false;
        let port = &mut self.ports[side as usize];
        match up {
            true if port.is_down() => port.greet(self.now, memory),
            false if !port.is_down() => port.drop_link(),
            // Link events carry no state of their own and may come twice.
            _ => return,
        }
        self.notice_ports(memory);
    }

    /// Takes in what has arrived and sends what may be sent. Returns whether anything was done:
    /// after `false`, nothing will happen before new input or [`next_deadline`](Self::next_deadline).
    pub fn poll<M: Memory>(&mut self, now: u64, memory: &mut M) -> bool {
        let now = self.clock.advance(now, self.config.step_ns);
        self.now = now;
        let arrivals = self.arrivals(memory);
        let has_work = !self.at_rest || self.handed_in || self.timers.are_due(now);
        if arrivals == 0 && !has_work {
            return false;
        }
        self.handed_in = false;
        let busy = self.poll_all(arrivals, memory) | memory.store_some();
        self.at_rest = !busy && !self.ports.iter().any(Port::is_read);
        busy
    }

    /// Where something has arrived: a bit for each side of each ring, [`arrived`], and for each side that
    /// has [`said`] something else.
    #[inline]
    fn arrivals<M: Memory>(&self, memory: &mut M) -> u8 {
        let mut arrivals = 0;
        for side in Side::BOTH {
            let port = &self.ports[side as usize];
            for class in Class::ALL {
                if port.has_packet(class, memory) {
                    arrivals |= arrived(side, class);
                }
            }
            if port.has_said(memory) {
                arrivals |= said(side);
            }
        }
        arrivals
    }

    /// Out of line, so that polls that find nothing stay short.
    #[inline(never)]
    fn poll_all<M: Memory>(&mut self, arrivals: u8, memory: &mut M) -> bool {
        let now = self.now;
        let mut busy = false;
        if arrivals & (said(Side::Right) | said(Side::Left)) != 0 {
            busy |= self.listen(memory);
        }
        if self.timers.are_due(now) {
            self.tick(memory);
        }
        let held = self.stats.held_transit;
        for class in [Class::Control, Class::Reply, Class::Request] {
            for side in Side::BOTH {
                if arrivals & arrived(side, class) != 0 {
                    busy |= self.take(side, class, memory);
                }
            }
        }
        // Transit that was held back goes on by itself after some polls.
        busy |= held != self.stats.held_transit;
        for side in Side::BOTH {
            busy |= self.send_control(side, memory);
            busy |= self.send_requests(side, memory);
        }
        for port in &mut self.ports {
            port.return_credits(memory, &mut self.stats);
        }
        busy
    }

    /// Takes in what the neighbours have said about the links and their rings.
    fn listen<M: Memory>(&mut self, memory: &mut M) -> bool {
        let state = |ports: &[Port; 2]| [0, 1].map(|at| (ports[at].is_up(), ports[at].flaps()));
        let (before, now) = (state(&self.ports), self.now);
        let mut busy = false;
        for port in &mut self.ports {
            busy |= port.listen(now, self.config.slow_ns, memory, &mut self.stats);
        }
        if state(&self.ports) != before {
            self.notice_ports(memory);
        }
        busy
    }

    /// Sends what was handed in, as far as that may be sent, before what has arrived is looked at.
    pub fn send<M: Memory>(&mut self, now: u64, memory: &mut M) {
        self.now = self.clock.advance(now, self.config.step_ns);
        for side in Side::BOTH {
            self.send_requests(side, memory);
        }
        self.handed_in = self.has_more_to_send() || memory.has_steps();
    }

    /// Whether packets wait to be sent, be it for room or for the next poll.
    #[inline]
    pub fn has_more_to_send(&self) -> bool {
        Side::BOTH.into_iter().any(|side| self.has_waiting(side))
    }

    /// The same in this direction.
    #[inline]
    pub(super) fn has_waiting(&self, side: Side) -> bool {
        self.sender.has_ready(side) || self.fetcher.has_ready(side)
    }

    /// What holds up operations of this engine's PE, as of the last poll.
    pub fn held_up_by(&self) -> Option<Reason> {
        if self.ops.outstanding() == 0 {
            return None;
        }
        let port = self.ports.iter().find_map(|port| port.held_up_by(Class::Request));
        let lacks_way = || self.sender.lacks_way() || self.fetcher.lacks_way();
        port.or_else(|| lacks_way().then_some(Reason::Link))
    }

    /// When `poll` must be called although nothing arrives.
    pub fn next_deadline(&self) -> u64 {
        self.clock.when(self.timers.next())
    }

    /// Whether what `stream` issues to `host` from now on follows what it issued before.
    pub fn fence(&mut self, stream: u32, host: u16) -> bool {
        self.sender.fence(stream, host)
    }

    /// Number of hosts in the ring.
    pub fn hosts(&self) -> u16 {
        self.hosts
    }

    /// Says whether this engine's thread will block, so that neighbours ring the doorbell. Poll
    /// once more after saying so, and block for a bounded time.
    pub fn set_sleeping<M: Memory>(&mut self, sleeping: bool, memory: &mut M) {
        for port in &mut self.ports {
            port.set_sleeping(sleeping, memory);
        }
    }

    /// Operations accepted and not completed.
    pub fn outstanding(&self) -> usize {
        self.ops.outstanding()
    }

    /// Whether an operation with that token is accepted and not completed.
    pub fn has(&self, token: u64) -> bool {
        self.ops.has(token)
    }

    /// Bytes of the longest put with `retain`.
    pub fn retain_bytes_max(&self) -> usize {
        self.config.retained_chunks * self.chunk_bytes()
    }

    /// Whether `host` has been given up.
    pub fn is_lost(&self, host: u16) -> bool {
        self.losses.is_lost(host)
    }

    /// The way to `host` at present: direction and links to pass.
    pub fn way(&self, host: u16) -> Option<(Side, u16)> {
        let side = self.topology.choose(host)?;
        Some((side, self.topology.distance(side, host)))
    }

    /// Whether all links of the ring are known to be in use.
    pub fn is_whole(&self) -> bool {
        self.topology.is_whole()
    }

    /// Whether a link is in use.
    pub fn link_in_use(&self, side: Side) -> bool {
        self.ports[side as usize].is_up()
    }

    /// Epochs of a link in use: of this side and of the neighbour.
    pub fn link_epochs(&self, side: Side) -> Option<(u32, u32)> {
        let port = &self.ports[side as usize];
        port.is_up().then(|| port.epochs())
    }

    /// Counters.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    pub(super) fn chunk_bytes(&self) -> usize {
        self.config.geometry.chunk_bytes()
    }

    /// The time, and the least time before something is sent again.
    pub(super) fn times(&self) -> (u64, u64) {
        (self.now, self.config.replay_ns)
    }

    /// Ends an operation and tells the submitter, unless that has been done.
    pub(super) fn finish<M: Memory>(&mut self, index: u32, outcome: Completion, memory: &mut M) {
        let op = self.ops.at(index);
        if matches!(op.action, Action::Put { .. }) && memory.has_steps() {
            // The program gets its buffer back, but a repetition that nobody needs any more, or a packet that
            // a broken peer has acknowledged too early, may still be to be stored from there.
            for side in Side::BOTH {
                let last = Transfer::Queued(op.queued[side as usize]);
                while !memory.has_left(side, last) && memory.store_some() {}
            }
        }
        if let Some(token) = op.token {
            memory.complete(token, if op.refused { Completion::Refused } else { outcome });
        }
        if let Some(stream) = op.split {
            self.sender.end_split(stream, op.host);
        }
        self.ops.remove(index);
    }

    /// Bytes that may be under way to a host in one flow; none: as much as its window allows.
    pub(super) fn shared_limit(&self, host: u16) -> Option<usize> {
        shared_limit(&self.sharing, &self.topology, self.now, host)
    }
}

/// The bit of a ring in [`Engine::arrivals`].
fn arrived(side: Side, class: Class) -> u8 {
    1 << (class as usize * 2 + side as usize)
}

/// The bit of the lines in which a neighbour tells of itself.
fn said(side: Side) -> u8 {
    1 << (Class::COUNT * 2 + side as usize)
}

/// As [`Engine::shared_limit`], without a borrow of the engine.
#[inline]
pub(super) fn shared_limit(
    sharing: &Sharing,
    topology: &Topology,
    now: u64,
    host: u16,
) -> Option<usize> {
    let hops = || topology.choose(host).map_or(1, |side| topology.distance(side, host));
    sharing.is_on(now).then(|| shared_bytes(hops()))
}
