// SPDX-License-Identifier: Apache-2.0
//! Communication patterns as transfers: what each PE does in which phase.
//!
//! The estimate adds up what these transfers cost; a measurement carries the same ones out. A way
//! consists of phases. In a phase a PE carries out its transfers one after the other, by blocking
//! puts and gets; all PEs do so at the same time, and meet in a barrier at the end of each phase.
//!
//! Blocks are numbered in the order of hosts: those of the first host's PEs first ([`Layout::rank`]).

use super::{By, Pattern};
use crate::data::Operation;
use tombolo_core::named;
use tombolo_core::transport::Distance;

/// Which PE is on which host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// PEs by host.
    hosts: Vec<Vec<usize>>,
    /// How far apart hosts are, by their numbers.
    apart: Vec<Vec<Distance>>,
    /// Host of each PE and its position there.
    at: Vec<(usize, usize)>,
    /// Number of the first block of each host.
    first: Vec<usize>,
    /// Processors for the PEs of a host, or of all hosts if they are emulated on one machine.
    cpus: usize,
    emulated: bool,
    slow_links: bool,
}

impl Layout {
    /// As many PEs on every host, each host with its own `cpus` processors.
    pub fn regular(hosts: usize, pes_per_host: usize, cpus: usize, topology: Topology) -> Layout {
        let host = |pe| pe / pes_per_host;
        let of_pe = (0..hosts * pes_per_host).map(host);
        Layout::new(of_pe, cpus, false, |a, b| topology.between(hosts, host(a), host(b)))
    }

    /// PE by PE its host; hosts are numbered from 0 and none is without PE. `emulated` hosts share
    /// `cpus` processors. `distance` tells how far apart PEs of two hosts are.
    pub fn new(
        of_pe: impl Iterator<Item = usize>,
        cpus: usize,
        emulated: bool,
        distance: impl Fn(usize, usize) -> Distance,
    ) -> Layout {
        let (mut hosts, mut at): (Vec<Vec<usize>>, _) = (Vec::new(), Vec::new());
        for (pe, host) in of_pe.enumerate() {
            hosts.resize(hosts.len().max(host + 1), Vec::new());
            at.push((host, hosts[host].len()));
            hosts[host].push(pe);
        }
        let first = |host: usize| hosts[..host].iter().map(Vec::len).sum();
        let first = (0..hosts.len()).map(first).collect();
        let of = |a: &Vec<usize>| hosts.iter().map(|b| distance(a[0], b[0])).collect();
        let (apart, cpus) = (hosts.iter().map(of).collect(), cpus.max(1));
        Layout { hosts, apart, at, first, cpus, emulated, slow_links: !emulated }
    }

    /// Number of PEs.
    pub fn pes(&self) -> usize {
        self.at.len()
    }

    /// Number of hosts.
    pub fn hosts(&self) -> usize {
        self.hosts.len()
    }

    /// Host of a PE.
    pub fn host(&self, pe: usize) -> usize {
        self.at[pe].0
    }

    /// Number of the PE's block among all.
    pub fn rank(&self, pe: usize) -> usize {
        let (host, position) = self.at[pe];
        self.first[host] + position
    }

    /// Links between two hosts; 0 for a host and itself, and where distances are none of links.
    pub fn hops(&self, a: usize, b: usize) -> u32 {
        match self.apart[a][b] {
            Distance::Hops(hops) if a != b => hops,
            _ => 0,
        }
    }

    /// How far apart two PEs are.
    pub fn distance(&self, a: usize, b: usize) -> Distance {
        match (self.host(a), self.host(b)) {
            _ if a == b => Distance::Myself,
            (a, b) if a == b => Distance::Host,
            (a, b) => self.apart[a][b],
        }
    }

    /// Processors of each host; of all of them together if they are emulated.
    pub fn cpus(&self) -> usize {
        self.cpus
    }

    /// The same with emulated links that keep the pace of hardware.
    pub fn with_slow_links(self) -> Layout {
        Layout { slow_links: true, ..self }
    }

    /// Whether links, and not the processors, limit what goes over them.
    pub fn has_slow_links(&self) -> bool {
        self.slow_links
    }

    /// Whether a host, or the machine of emulated hosts, has more PEs than processors.
    pub fn is_crowded(&self) -> bool {
        self.cpus < self.pes_of_processors()
    }

    /// Whether it has more PEs and threads that serve their links, one each, than processors.
    pub fn lacks_processors_for_links(&self) -> bool {
        self.hosts() > 1 && self.cpus < 2 * self.pes_of_processors()
    }

    /// PEs that one set of processors has to run.
    fn pes_of_processors(&self) -> usize {
        if self.emulated { self.pes() } else { most_pes(self) }
    }

    /// Whether one set of processors serves all hosts.
    pub fn is_emulated(&self) -> bool {
        self.emulated
    }

    /// The PE of another host that serves, and passes on, what this one sends by packets: the one at
    /// the same position, as far as there is one.
    pub fn beside(&self, pe: usize, host: usize) -> usize {
        let others = &self.hosts[host];
        others[self.at[pe].1 % others.len()]
    }

    /// The PE of a host through which staged ways go: its first.
    fn lead(&self, host: usize) -> usize {
        self.hosts[host][0]
    }
}

named! {
    /// What connects the hosts of a job that is not running.
    Topology {
        /// A ring in the order of their numbers.
        Ring = "ring",
        /// A network, in which all are equally far apart.
        Network = "network",
    }
}

impl Topology {
    fn between(self, hosts: usize, a: usize, b: usize) -> Distance {
        let forth = (b + hosts - a) % hosts;
        match (forth.min(hosts - forth), self) {
            (0, _) => Distance::Host,
            (hops, Topology::Ring) => Distance::Hops(hops as u32),
            (_, Topology::Network) => Distance::Network,
        }
    }
}

/// Symmetric memory that a pattern works in; each area is of [`Layout::pes`] blocks, the stage of
/// [`stage_blocks`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Area {
    /// What a PE has to give.
    Source,
    /// What passes through.
    Stage,
    /// What it gets.
    Result,
}

/// One blocking put or get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// `Put` from here to the peer, or `Get` from there.
    pub operation: Operation,
    /// The other side; the PE itself for what only moves from one area to another.
    pub peer: usize,
    /// Area and number of the first block to read.
    pub from: (Area, usize),
    /// The same to write.
    pub to: (Area, usize),
    /// Blocks.
    pub blocks: usize,
    /// It reads what another PE has written in an earlier phase, or writes what another PE reads in
    /// a later one.
    pub handed: bool,
}

impl Transfer {
    fn handed(self) -> Transfer {
        Transfer { handed: true, ..self }
    }
}

fn put(peer: usize, from: (Area, usize), to: (Area, usize), blocks: usize) -> Transfer {
    Transfer { operation: Operation::Put, peer, from, to, blocks, handed: false }
}

fn get(peer: usize, from: (Area, usize), to: (Area, usize), blocks: usize) -> Transfer {
    Transfer { operation: Operation::Get, peer, from, to, blocks, handed: false }
}

/// Blocks of the stage: room for what a host sends away, and behind it for what it gets.
pub fn stage_blocks(layout: &Layout, pattern: Pattern, by: By) -> usize {
    match pattern {
        _ if by != By::Staged || layout.hosts() == 1 => 0,
        Pattern::Alltoall => 2 * most_pes(layout) * layout.pes(),
        _ => 2 * layout.pes(),
    }
}

/// PEs of the largest host.
fn most_pes(layout: &Layout) -> usize {
    layout.hosts.iter().map(Vec::len).max().unwrap_or(0)
}

/// A block that a PE has at first or must have at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Its number in [`Area::Source`] or [`Area::Result`].
    pub index: usize,
    /// PE it comes from.
    pub origin: usize,
    /// PE it is for; 0 where it is for everybody.
    pub target: usize,
}

/// What a PE has to give.
pub fn given(layout: &Layout, pattern: Pattern, pe: usize) -> Vec<Block> {
    let one = |target| vec![Block { index: 0, origin: pe, target }];
    match pattern {
        Pattern::Gather => one(0),
        Pattern::Broadcast => {
            if pe == 0 {
                one(0)
            } else {
                Vec::new()
            }
        }
        Pattern::RingShift => one((pe + 1) % layout.pes()),
        Pattern::Alltoall => (0..layout.pes())
            .map(|target| Block { index: layout.rank(target), origin: pe, target })
            .collect(),
    }
}

/// What a PE must have got from others.
pub fn wanted(layout: &Layout, pattern: Pattern, pe: usize) -> Vec<Block> {
    let n = layout.pes();
    let from_all = || (0..n).filter(move |origin| *origin != pe);
    let ranked = |origin| Block { index: layout.rank(origin), origin, target: pe };
    match pattern {
        Pattern::Gather if pe == 0 => from_all().map(ranked).collect(),
        Pattern::Broadcast if pe != 0 => vec![Block { index: 0, origin: 0, target: 0 }],
        Pattern::Alltoall => from_all().map(ranked).collect(),
        Pattern::RingShift if n > 1 => {
            vec![Block { index: 0, origin: (pe + n - 1) % n, target: pe }]
        }
        _ => Vec::new(),
    }
}

/// What PE `pe` does, phase by phase; as many phases for every PE.
///
/// - Gather, put: every PE but 0 puts its block to PE 0. Get: PE 0 gets every other PE's block in
///   turn. Staged: on every host but that of PE 0 the first PE gets the blocks of its host; then
///   it puts them to PE 0 as one. PE 0 itself gets those of its own host.
/// - Broadcast, put: PE 0 puts to every other PE in turn. Get: every other PE gets from PE 0. Staged:
///   PE 0 puts to the first PE of every other host; then the other PEs of each host get from there.
/// - Alltoall, put (get): every PE puts to (gets from) the next one, the one after that, and so on.
///   Staged: every PE puts to the PEs of its own host, and for each other host puts what is for
///   it to the first PE of its own; these exchange it, a put for each other host; then every PE
///   gets its blocks, one by one, from the first of its host.
/// - Ring shift, put: every PE puts to the next one. Get: every PE gets from the one before. Staged:
///   a PE whose next one is on its host puts there, the others put to the first PE of their host;
///   that one puts each block on to the first PE of the host it is for; the PEs get it from there.
pub fn phases(layout: &Layout, pattern: Pattern, by: By, pe: usize) -> Vec<Vec<Transfer>> {
    let n = layout.pes();
    let mine = (Area::Result, layout.rank(pe));
    let next = (pe + 1) % n;
    let before = (pe + n - 1) % n;
    let (source, result) = ((Area::Source, 0), (Area::Result, 0));
    let others = move || (1..n).map(move |step| (pe + step) % n);
    match (pattern, by) {
        (Pattern::Gather, By::Put) if pe != 0 => vec![vec![put(0, source, mine, 1)]],
        (Pattern::Gather, By::Get) if pe == 0 => {
            let from = |pe| get(pe, source, (Area::Result, layout.rank(pe)), 1);
            vec![others().map(from).collect()]
        }
        (Pattern::Broadcast, By::Put) if pe == 0 => {
            vec![others().map(|pe| put(pe, source, result, 1)).collect()]
        }
        (Pattern::Broadcast, By::Get) if pe != 0 => vec![vec![get(0, source, result, 1)]],
        (Pattern::Gather | Pattern::Broadcast, By::Put | By::Get) => vec![Vec::new()],
        (Pattern::Alltoall, By::Put) => {
            let to = |pe| put(pe, (Area::Source, layout.rank(pe)), mine, 1);
            vec![others().map(to).collect()]
        }
        (Pattern::Alltoall, By::Get) => {
            let from = |other| {
                let there = (Area::Source, layout.rank(pe));
                get(other, there, (Area::Result, layout.rank(other)), 1)
            };
            vec![others().map(from).collect()]
        }
        (Pattern::RingShift, By::Put | By::Get) if n == 1 => vec![Vec::new()],
        (Pattern::RingShift, By::Put) => vec![vec![put(next, source, result, 1)]],
        (Pattern::RingShift, By::Get) => vec![vec![get(before, source, result, 1)]],
        (Pattern::Gather, By::Staged) => staged_gather(layout, pe),
        (Pattern::Broadcast, By::Staged) => staged_broadcast(layout, pe),
        (Pattern::Alltoall, By::Staged) => staged_alltoall(layout, pe),
        (Pattern::RingShift, By::Staged) => staged_shift(layout, pe),
    }
}

fn staged_gather(layout: &Layout, pe: usize) -> Vec<Vec<Transfer>> {
    let (host, root) = (layout.host(pe), layout.host(0));
    let mut phases = vec![Vec::new(), Vec::new()];
    if layout.hosts() == 1 {
        phases.truncate(1);
    }
    if layout.lead(host) != pe {
        return phases;
    }
    let area = if host == root { Area::Result } else { Area::Stage };
    let wanted = layout.hosts[host].iter().filter(|member| **member != 0);
    phases[0] = wanted
        .map(|member| get(*member, (Area::Source, 0), (area, layout.rank(*member)), 1))
        .collect();
    if host != root {
        let first = layout.first[host];
        let (from, to) = ((Area::Stage, first), (Area::Result, first));
        phases[1] = vec![put(0, from, to, layout.hosts[host].len())];
    }
    phases
}

fn staged_broadcast(layout: &Layout, pe: usize) -> Vec<Vec<Transfer>> {
    let host = layout.host(pe);
    let (source, result) = ((Area::Source, 0), (Area::Result, 0));
    let mut over = Vec::new();
    if pe == 0 {
        let abroad = (0..layout.hosts()).filter(|other| *other != host);
        over.extend(abroad.map(|other| {
            let over = put(layout.lead(other), source, result, 1);
            Transfer { handed: layout.hosts[other].len() > 1, ..over }
        }));
    }
    let lead = layout.lead(host);
    let within = match lead {
        _ if pe == lead => Vec::new(),
        0 => vec![get(0, source, result, 1)],
        _ => vec![get(lead, result, result, 1).handed()],
    };
    if layout.hosts() == 1 { vec![within] } else { vec![over, within] }
}

/// The stage of a first PE: for each host that it sends to, by sender and then receiver; behind it,
/// for each host that it gets from, by sender and then receiver.
fn staged_alltoall(layout: &Layout, pe: usize) -> Vec<Vec<Transfer>> {
    let (host, position) = layout.at[pe];
    let own = &layout.hosts[host];
    let lead = layout.lead(host);
    let abroad = || (0..layout.hosts()).filter(move |other| *other != host);
    let inbound = |to: usize, from: usize| {
        most_pes(layout) * layout.pes() + layout.first[from] * layout.hosts[to].len()
    };
    let near = own.iter().filter(|member| **member != pe).map(|member| {
        let mine = (Area::Result, layout.rank(pe));
        put(*member, (Area::Source, layout.rank(*member)), mine, 1)
    });
    let collect = abroad().map(|other| {
        let theirs = layout.hosts[other].len();
        let place = layout.first[other] * own.len() + position * theirs;
        let over = put(lead, (Area::Source, layout.first[other]), (Area::Stage, place), theirs);
        Transfer { handed: pe != lead, ..over }
    });
    let first: Vec<Transfer> = near.chain(collect).collect();
    if layout.hosts() == 1 {
        return vec![first];
    }
    let exchange = abroad().filter(|_| pe == lead).map(|other| {
        let blocks = own.len() * layout.hosts[other].len();
        let from = (Area::Stage, layout.first[other] * own.len());
        let over = put(layout.lead(other), from, (Area::Stage, inbound(other, host)), blocks);
        Transfer { handed: own.len() > 1, ..over }
    });
    let spread = abroad().flat_map(|other| {
        layout.hosts[other].iter().enumerate().map(move |(sender, origin)| {
            let place = inbound(host, other) + sender * own.len() + position;
            get(lead, (Area::Stage, place), (Area::Result, layout.rank(*origin)), 1).handed()
        })
    });
    vec![first, exchange.collect(), spread.collect()]
}

fn staged_shift(layout: &Layout, pe: usize) -> Vec<Vec<Transfer>> {
    let n = layout.pes();
    let host = layout.host(pe);
    let lead = layout.lead(host);
    let next = |pe: usize| (pe + 1) % n;
    let leaves = |pe: usize| layout.host(pe) != layout.host(next(pe));
    let (source, result) = ((Area::Source, 0), (Area::Result, 0));
    if layout.hosts() == 1 {
        return phases(layout, Pattern::RingShift, By::Put, pe);
    }
    let first = match leaves(pe) {
        true => {
            let over = put(lead, source, (Area::Stage, pe), 1);
            Transfer { handed: pe != lead, ..over }
        }
        false => put(next(pe), source, result, 1),
    };
    let arrived = |pe: usize| (Area::Stage, n + pe);
    let leaving = layout.hosts[host].iter().copied().filter(|member| leaves(*member));
    let over = leaving.filter(|_| pe == lead).map(|member| {
        let there = layout.lead(layout.host(next(member)));
        Transfer { handed: member != lead, ..put(there, (Area::Stage, member), arrived(member), 1) }
    });
    let before = (pe + n - 1) % n;
    let last = leaves(before).then(|| get(lead, arrived(before), result, 1).handed());
    vec![vec![first], over.collect(), last.into_iter().collect()]
}

#[cfg(test)]
mod tests;
