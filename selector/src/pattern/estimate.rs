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

/// Nanoseconds of a pattern; none if a part of it was never measured.
pub fn estimate(
    costs: &Costs<'_>,
    layout: &Layout,
    pattern: Pattern,
    by: By,
    bytes: u64,
) -> Option<f64> {
    let known = Known { costs, of: RefCell::default() };
    let mut loads: Vec<Load> = Vec::new();
    for pe in 0..layout.pes() {
        for (index, transfers) in schedule::phases(layout, pattern, by, pe).iter().enumerate() {
            if loads.len() <= index {
                loads.push(Load::none(layout));
            }
            loads[index].add(&known, layout, pe, transfers, bytes)?;
        }
    }
    let meeting = barrier(&known, layout)?;
    Some(loads.iter().map(|load| load.ns(layout) + meeting).sum())
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

    fn add(
        &mut self,
        known: &Known<'_>,
        layout: &Layout,
        pe: usize,
        transfers: &[Transfer],
        bytes: u64,
    ) -> Option<()> {
        let mut busy = 0.0;
        for transfer in transfers {
            let class = known.between(layout, pe, transfer.peer)?;
            busy += known.get(class, transfer.operation, bytes * transfer.blocks as u64)?;
        }
        self.longest = self.longest.max(busy);
        self.processors[layout.host(pe)] += busy;
        Some(())
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
