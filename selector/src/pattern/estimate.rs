//! What the transfers of a pattern cost together.

use super::schedule::{self, Layout, Transfer};
use super::{By, Pattern};
use crate::class::Class;
use crate::data::Operation;
use std::cell::RefCell;
use std::collections::HashMap;

/// What single operations cost.
pub struct Costs<'a> {
    /// Nanoseconds of an operation between PEs of a class, complete at the target.
    pub of: &'a dyn Fn(Class, Operation, u64) -> Option<f64>,
    /// The class of PEs of one host.
    pub local: Option<Class>,
}

/// Until a PE that waits sees a word which another processor has written: the line moves there and
/// back, and the one that waits has to come to it.
const NOTICE_NS: f64 = 150.0;
/// A store to a line that another processor has written a moment ago.
const CONTENDED_NS: f64 = 70.0;
/// Bytes of a line: who writes less shares it with the writers of the blocks beside.
const LINE: u64 = 64;
/// A copy of so many bytes works in memory that the caches of one processor do not hold: what it
/// takes per byte, data take that come from another processor.
const OUTSIDE: u64 = 1_572_864;

/// Nanoseconds of a pattern; none if a part of it was never measured.
pub fn estimate(
    costs: &Costs<'_>,
    layout: &Layout,
    pattern: Pattern,
    by: By,
    bytes: u64,
) -> Option<f64> {
    let known = Known { costs, of: RefCell::default() };
    let crowded_lines = matches!(pattern, Pattern::Gather | Pattern::Alltoall)
        && by == By::Put
        && bytes < LINE
        && layout.pes() > 2;
    let mut loads: Vec<Load> = Vec::new();
    for pe in 0..layout.pes() {
        let phases = schedule::phases(layout, pattern, by, pe);
        let busy =
            Busy { known: &known, layout, pe, bytes, room: room(&phases, bytes), crowded_lines };
        for (index, transfers) in phases.iter().enumerate() {
            if loads.len() <= index {
                loads.push(Load::none(layout));
            }
            loads[index].add(layout.host(pe), busy.ns(transfers)?);
        }
    }
    let meeting = barrier(&known, layout)?;
    Some(loads.iter().map(|load| load.ns(layout) + meeting).sum())
}

/// Bytes that a PE copies when it goes through all phases: half of the memory it works in, for what
/// is copied several times is read once.
fn room(phases: &[Vec<Transfer>], bytes: u64) -> u64 {
    let all = || phases.iter().flatten();
    let written: usize = all().map(|transfer| transfer.blocks).sum();
    let again = all().zip(all().skip(1)).filter(|(one, next)| {
        one.operation == Operation::Put && next.operation == Operation::Put && one.from == next.from
    });
    let read = written - again.map(|(_, next)| next.blocks).sum::<usize>();
    (written + read) as u64 * bytes / 2
}

/// Looks up every cost once.
struct Known<'a> {
    costs: &'a Costs<'a>,
    of: RefCell<HashMap<(Class, Operation, u64), Option<f64>>>,
}

impl Known<'_> {
    fn get(&self, class: Class, operation: Operation, bytes: u64) -> Option<f64> {
        let mut known = self.of.borrow_mut();
        let entry = known.entry((class, operation, bytes));
        *entry.or_insert_with(|| (self.costs.of)(class, operation, bytes))
    }

    fn between(&self, layout: &Layout, a: usize, b: usize) -> Option<Class> {
        match layout.hops(a, b) {
            _ if a == b => Some(Class::Own),
            0 => self.costs.local,
            hops => Some(Class::Ring(hops)),
        }
    }
}

/// What keeps whom busy during one phase, in nanoseconds.
struct Load {
    /// The PE that is busy longest.
    longest: f64,
    /// Processors of each host, all together.
    processors: Vec<f64>,
}

impl Load {
    fn none(layout: &Layout) -> Load {
        Load { longest: 0.0, processors: vec![0.0; layout.hosts()] }
    }

    fn add(&mut self, host: usize, busy: f64) {
        self.longest = self.longest.max(busy);
        self.processors[host] += busy;
    }

    fn ns(&self, layout: &Layout) -> f64 {
        let cpus = layout.cpus() as f64;
        let busiest = match layout.is_emulated() {
            true => self.processors.iter().sum::<f64>(),
            false => self.processors.iter().copied().fold(0.0, f64::max),
        };
        self.longest.max(busiest / cpus)
    }
}

/// What transfers take of one PE's time.
struct Busy<'a> {
    known: &'a Known<'a>,
    layout: &'a Layout,
    pe: usize,
    /// Bytes of a block.
    bytes: u64,
    /// See [`room`].
    room: u64,
    /// Several PEs write to the same lines.
    crowded_lines: bool,
}

impl Busy<'_> {
    fn ns(&self, transfers: &[Transfer]) -> Option<f64> {
        transfers.iter().map(|transfer| self.one(transfer)).sum()
    }

    /// Single operations were measured on the same memory again and again. A PE that works in more
    /// memory pays per byte what an operation on so much would; data that another PE wrote or reads
    /// are never in its own caches.
    fn one(&self, transfer: &Transfer) -> Option<f64> {
        let Transfer { operation, peer, blocks, handed, .. } = *transfer;
        let class = self.known.between(self.layout, self.pe, peer)?;
        let bytes = self.bytes * blocks as u64;
        let alone = self.known.get(class, operation, bytes)?;
        let room = if handed { self.room.max(OUTSIDE) } else { self.room };
        let mut ns = alone;
        if room > bytes {
            ns = ns.max(self.known.get(class, operation, room)? * bytes as f64 / room as f64);
        }
        Some(if self.crowded_lines { ns + CONTENDED_NS } else { ns })
    }
}

/// A barrier by dissemination: in each round every PE waits for a word of another.
fn barrier(known: &Known<'_>, layout: &Layout) -> Option<f64> {
    let n = layout.pes();
    let mut sum = 0.0;
    let mut step = 1;
    while step < n {
        let mut longest = 0.0f64;
        for pe in 0..n {
            let class = known.between(layout, pe, (pe + step) % n)?;
            longest = longest.max(known.get(class, Operation::Put, 8)?);
        }
        sum += longest + NOTICE_NS;
        step *= 2;
    }
    Some(sum)
}
