// SPDX-License-Identifier: Apache-2.0
//! What the transfers of a pattern cost together.
//!
//! Single operations were measured while nothing else went on, on the same memory again and again.
//! In a pattern more is to be counted:
//!
//! - PEs work at the same time: a phase takes as long as its busiest PE, or as all of them on the
//!   processors there are, or as the transfers over one link. A barrier ends it.
//! - A get over the ring also keeps a PE of the target's host busy, and of the hosts on the way:
//!   each PE of a host serves the PEs of other hosts that have its position there.
//! - Who works in more memory than its caches hold pays per byte what a single operation on so much
//!   does; data that one PE wrote and another reads are never in the reader's caches.
//! - Puts over the ring that need no answer before the next one overlap.

use super::schedule::{self, Area, Layout, Transfer};
use super::{By, Pattern};
use crate::class::Class;
use crate::data::Operation;
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use tombolo_core::transport::Distance;

/// What single operations cost.
pub struct PatternCosts<'a> {
    /// Nanoseconds of an operation between PEs of a class, complete at the target.
    pub of: &'a dyn Fn(Class, Operation, u64) -> Option<f64>,
    /// The class of PEs of one host.
    pub local: Option<Class>,
    /// How many times as long as usual PEs take to meet, where that was not measured.
    pub meetings: f64,
}

/// What a meeting takes beside a put where it was not measured: the line that the other PE writes moves there and
/// back, and the one that waits has to come to it.
const MEETING_NS: f64 = 140.0;
/// A line that another processor has written, or is reading, a moment ago.
const CONTENDED_NS: f64 = 70.0;
/// Bytes of a line: who writes less shares it with the writers of the blocks beside.
const LINE: u64 = 64;
/// A copy of so many bytes works in memory that the caches of one processor do not hold: what it
/// takes per byte, data take that come from another processor.
const OUTSIDE: u64 = 1_572_864;
/// Part of a transfer by packets, but for its start, that it keeps its target busy, and each host
/// that passes it on: these read and write while the others do.
const SERVED: f64 = 0.8;
/// Packets of transfers from this length on go both ways round a ring if the longer way is longer
/// by one hop at most.
const SPLIT: u64 = 128 << 10;

/// Nanoseconds of a pattern; none if a part of it was never measured.
pub fn estimate(
    costs: &PatternCosts<'_>,
    layout: &Layout,
    pattern: Pattern,
    by: By,
    bytes: u64,
) -> Option<f64> {
    let plan = |pe| schedule::phases(layout, pattern, by, pe);
    let mut known = Known { costs, layout, bytes, of: RefCell::default(), rooms: Vec::new() };
    known.rooms = rooms(&known, plan)?;
    let lines_shared =
        matches!(pattern, Pattern::Gather | Pattern::Alltoall) && bytes < LINE && layout.pes() > 2;
    let mut loads: Vec<Load> = Vec::new();
    for pe in 0..layout.pes() {
        for (index, transfers) in plan(pe).iter().enumerate() {
            if loads.len() <= index {
                loads.push(Load::none(layout));
            }
            loads[index].add(&known, pe, transfers, lines_shared)?;
        }
    }
    let meeting = known.barrier()?;
    Some(loads.iter().map(|load| load.ns(layout) + meeting).sum())
}

/// The memory in which a PE works, as often as the pattern is repeated.
#[derive(Clone, Copy, Default)]
struct Room {
    /// Bytes of it.
    bytes: u64,
    /// Blocks that it reads or writes, and how many of them for the first time.
    blocks: usize,
    new: usize,
}

/// By PE. What a get over the ring reads, a PE of the target's host reads.
fn rooms(known: &Known<'_>, plan: impl Fn(usize) -> Vec<Vec<Transfer>>) -> Option<Vec<Room>> {
    let mut rooms = vec![Room::default(); known.layout.pes()];
    let mut touched = HashSet::new();
    for pe in 0..rooms.len() {
        for transfer in plan(pe).iter().flatten() {
            let Transfer { operation, peer, from, to, blocks, .. } = *transfer;
            let server = known.layout.beside(pe, known.layout.host(peer));
            let served = operation == Operation::Get && known.between(pe, peer)?.hops() > 0;
            let (reader, writer) =
                if operation == Operation::Get { (peer, pe) } else { (pe, peer) };
            let sides = [(if served { server } else { pe }, reader, from), (pe, writer, to)];
            for (worker, owner, (area, block)) in sides {
                let room = &mut rooms[worker];
                room.blocks += blocks;
                if touched.insert((worker, owner, area, block)) {
                    room.new += blocks;
                    room.bytes += known.bytes * blocks as u64;
                }
            }
        }
    }
    Some(rooms)
}

/// The pattern's surroundings. Looks up every cost once.
struct Known<'a> {
    costs: &'a PatternCosts<'a>,
    layout: &'a Layout,
    /// Bytes of a block.
    bytes: u64,
    of: RefCell<HashMap<(Class, Operation, u64), Option<f64>>>,
    rooms: Vec<Room>,
}

impl Known<'_> {
    fn get(&self, class: Class, operation: Operation, bytes: u64) -> Option<f64> {
        let mut known = self.of.borrow_mut();
        let entry = known.entry((class, operation, bytes));
        *entry.or_insert_with(|| (self.costs.of)(class, operation, bytes))
    }

    fn between(&self, a: usize, b: usize) -> Option<Class> {
        match self.layout.distance(a, b) {
            Distance::Myself => Some(Class::Own),
            Distance::Host => self.costs.local,
            Distance::Hops(hops) => Some(Class::Hops(hops)),
            Distance::Network => Some(Class::Network),
        }
    }

    /// What a transfer takes of its PE's time, in the memory that the PE works in.
    fn transfer(&self, pe: usize, transfer: &Transfer, overlaps: bool) -> Option<f64> {
        let Transfer { operation, peer, blocks, handed, .. } = *transfer;
        let (class, bytes) = (self.between(pe, peer)?, self.bytes * blocks as u64);
        let Room { bytes: room, blocks: all, new } = self.rooms[pe];
        // How long a single operation works in as much: a copy reads as much as it writes, while of
        // a get over the ring somebody else does the reading.
        let far_get = operation == Operation::Get && class.hops() > 0;
        let room = if far_get { room } else { room / 2 };
        let new = if handed { 1.0 } else { new as f64 / all.max(1) as f64 };
        let room = if handed { room.max(OUTSIDE) } else { room };
        if handed
            && class.hops() == 0
            && let Some(ns) = self.handed(bytes)
        {
            return Some(ns);
        }
        let whole = self.get(class, operation, bytes)?;
        let mut ns = self.met(class, operation, bytes).unwrap_or(whole);
        if overlaps && let Some(next) = self.get(class, Operation::Pipeline, bytes) {
            ns = ns.min(next);
        }
        if room > bytes {
            let crowded = self.get(class, operation, room)? * bytes as f64 / room as f64;
            ns += new * (crowded - whole).max(0.0);
        }
        if handed {
            ns = ns.max(self.written_elsewhere(bytes).unwrap_or(0.0)) + CONTENDED_NS;
        }
        Some(ns)
    }

    /// What an operation takes of its PE's time when PEs meet after it; none where that was not measured.
    fn met(&self, class: Class, operation: Operation, bytes: u64) -> Option<f64> {
        match operation {
            Operation::Put => self.get(class, Operation::MetPut, bytes),
            _ => self.get(class, Operation::MetGet, bytes),
        }
    }

    /// What it takes of the time of the PE that it is with: as much as both take longer when both do so. No more than it
    /// takes of its own PE's, since that one would wait.
    fn served(&self, class: Class, operation: Operation, bytes: u64) -> Option<f64> {
        let both = match operation {
            Operation::Put => Operation::BothPut,
            _ => Operation::BothGet,
        };
        let met = self.met(class, operation, bytes)?;
        Some((self.get(class, both, bytes)? - met).clamp(0.0, met))
    }

    /// What a copy takes on the host of data that a PE of another host has put there, and puts again.
    fn handed(&self, bytes: u64) -> Option<f64> {
        if self.layout.hosts() == 1 {
            return None;
        }
        let of = |class| self.get(class, Operation::Handed, bytes);
        of(Class::Hops(1)).or_else(|| of(Class::Network))
    }

    /// What the data take that a PE of another emulated host has written, or is about to read: they come from that
    /// PE's caches, as those of a get between the hosts do, which the other PE writes and this one reads. None
    /// where hosts are machines.
    fn written_elsewhere(&self, bytes: u64) -> Option<f64> {
        let get = |bytes| self.get(Class::Hops(1), Operation::Get, bytes);
        if !self.layout.is_emulated() || self.layout.hosts() == 1 {
            return None;
        }
        Some(get(bytes)? - get(8)?)
    }

    /// Whether puts are stores through a window: they are complete long before an answer could come.
    fn stores(&self, class: Class) -> Option<bool> {
        let (put, get) = (self.get(class, Operation::Put, 8)?, self.get(class, Operation::Get, 8)?);
        Some(put < get / 4.0)
    }

    /// Until two PEs have put a word to each other and seen it.
    fn meeting(&self, class: Class) -> Option<f64> {
        if let Some(ns) = self.get(class, Operation::Meeting, 8) {
            return Some(ns);
        }
        let word = self.get(class, Operation::Put, 8)?;
        // A packet has arrived long before its answer is back.
        let packet = class.hops() > 0 && !self.stores(class)?;
        Some(MEETING_NS * self.costs.meetings + if packet { word / 2.0 } else { word })
    }

    /// A barrier by dissemination: in each round every PE waits for a word of another.
    fn barrier(&self) -> Option<f64> {
        let n = self.layout.pes();
        let mut sum = 0.0;
        let mut step = 1;
        while step < n {
            let mut longest = 0.0f64;
            for pe in 0..n {
                let class = self.between(pe, (pe + step) % n)?;
                longest = longest.max(self.meeting(class)?);
            }
            sum += longest;
            step *= 2;
        }
        Some(sum)
    }
}

/// Nanoseconds that everything is busy during one phase.
struct Load {
    /// By PE.
    pes: Vec<f64>,
    /// By the hosts that send and receive on it, links and second links between the same hosts.
    links: [Vec<f64>; 2],
}

impl Load {
    fn none(layout: &Layout) -> Load {
        let links = || vec![0.0; layout.hosts() * layout.hosts()];
        Load { pes: vec![0.0; layout.pes()], links: [links(), links()] }
    }

    fn link(&mut self, layout: &Layout, second: usize, (from, to): (usize, usize)) -> &mut f64 {
        &mut self.links[second][from * layout.hosts() + to]
    }

    /// Adds what a PE does, and what that gives others to do.
    fn add(
        &mut self,
        known: &Known<'_>,
        pe: usize,
        transfers: &[Transfer],
        lines_shared: bool,
    ) -> Option<()> {
        let mut under_way = false;
        for transfer in transfers {
            let put = transfer.operation == Operation::Put;
            let class = known.between(pe, transfer.peer)?;
            let far = class.hops() > 0;
            self.pes[pe] += known.transfer(pe, transfer, put && far && under_way)?;
            under_way |= put && far;
            if put && lines_shared && transfer.to.0 == Area::Result {
                self.pes[pe] += CONTENDED_NS;
            }
            if far {
                self.travel(known, pe, transfer, class)?;
            }
        }
        Some(())
    }

    /// Adds what a transfer gives links to do and, if it goes by packets, the PEs that serve it and
    /// pass it on.
    fn travel(
        &mut self,
        known: &Known<'_>,
        pe: usize,
        transfer: &Transfer,
        class: Class,
    ) -> Option<()> {
        let Transfer { operation, peer, blocks, .. } = *transfer;
        let (layout, bytes) = (known.layout, known.bytes * blocks as u64);
        let start = known.get(class, operation, 8)?;
        let moving = (known.get(class, operation, bytes)? - start).max(0.0);
        let put = operation == Operation::Put;
        let packets = !(put && known.stores(class)?);
        let (here, there) = (layout.host(pe), layout.host(peer));
        let (from, to) = if put { (here, there) } else { (there, here) };
        let ways = match class {
            Class::Hops(_) => Way::all(layout, from, to),
            _ => Vec::new(),
        };
        let split = packets
            && bytes >= SPLIT
            && matches!(&ways[..], [way, other] if other.hops() <= way.hops() + 1);
        if ways.is_empty() {
            // Of a network no more is known than the links of its hosts.
            *self.link(layout, 0, (from, from)) += moving;
        }
        let (share, taken) = if split { (0.5, 2) } else { (1.0, 1) };
        for way in ways.iter().take(taken) {
            // An operation that goes both ways round takes as long as each of them.
            way.links().for_each(|link| *self.link(layout, way.second, link) += moving);
            if packets {
                let between = way.links().skip(1);
                between.for_each(|(host, _)| {
                    self.pes[layout.beside(pe, host)] += SERVED * moving * share;
                });
            }
        }
        let served = known.served(class, operation, bytes);
        self.pes[layout.beside(pe, there)] += served.unwrap_or(0.0);
        if packets {
            // Serving a get was measured at all sizes, serving a put at the shortest.
            if put || served.is_none() {
                self.pes[layout.beside(pe, there)] += SERVED * moving;
            }
            if put {
                // Packets are sent from a copy, since the program may reuse its own. The shortest put was measured with it.
                let copy = |bytes| known.get(Class::Own, Operation::Put, bytes);
                let counted = if served.is_some() { copy(8)? } else { 0.0 };
                self.pes[pe] += (copy(bytes)? - counted).max(0.0);
            }
        }
        Some(())
    }

    fn ns(&self, layout: &Layout) -> f64 {
        let most = |times: &[f64]| times.iter().copied().fold(0.0, f64::max);
        let mut of_host = vec![0.0; layout.hosts()];
        for (pe, busy) in self.pes.iter().enumerate() {
            of_host[if layout.is_emulated() { 0 } else { layout.host(pe) }] += busy;
        }
        let processors = most(&of_host) / layout.cpus() as f64;
        let links = match layout.has_slow_links() {
            true => most(&self.links[0]).max(most(&self.links[1])),
            false => 0.0,
        };
        most(&self.pes).max(processors).max(links)
    }
}

/// A way from one host to another over links.
struct Way {
    /// All of its hosts.
    hosts: Vec<usize>,
    /// It is the second of two ways between two hosts that are connected twice.
    second: usize,
}

impl Way {
    /// The way that packets take, as distances tell it, and the other one if hosts lie on a ring. Of two
    /// that are equally long the one to the next number from every second host, as the ring does.
    fn all(layout: &Layout, from: usize, to: usize) -> Vec<Way> {
        let count = layout.hosts();
        let one = |hosts: Vec<usize>, second| Way { hosts, second };
        if count == 2 {
            // Both links of two hosts lead to the other one.
            let first = from % 2;
            return vec![one(vec![from, to], first), one(vec![from, to], 1 - first)];
        }
        let neighbours = |host: usize| {
            let near = (1..count).map(move |step| (host + step) % count);
            near.filter(move |other| layout.hops(host, *other) == 1).collect::<Vec<_>>()
        };
        let mut hosts = vec![from];
        while let Some(&here) = hosts.last().filter(|here| **here != to) {
            let left = layout.hops(here, to);
            let mut nearer = neighbours(here);
            nearer.retain(|next| *next == to || layout.hops(*next, to) + 1 == left);
            let next =
                if here % 2 == 0 || hosts.len() > 1 { nearer.first() } else { nearer.last() };
            // Distances that no links explain: nothing is on the way.
            hosts.push(*next.unwrap_or(&to));
        }
        let mut other = vec![from];
        let mut before = hosts[1];
        while let Some(&here) = other.last().filter(|here| **here != to) {
            let mut on: Vec<usize> = neighbours(here);
            on.retain(|next| *next != before);
            match on[..] {
                [next] if other.len() <= count => other.push(next),
                _ => return vec![one(hosts, 0)],
            }
            before = here;
        }
        vec![one(hosts, 0), one(other, 0)]
    }

    fn hops(&self) -> usize {
        self.hosts.len() - 1
    }

    /// Links by the hosts at their ends; all but the first host pass something on.
    fn links(&self) -> impl Iterator<Item = (usize, usize)> {
        self.hosts.windows(2).map(|ends| (ends[0], ends[1]))
    }
}
