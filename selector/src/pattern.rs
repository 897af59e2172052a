//! Estimates of communication patterns from the model, before any code is written: which way to
//! gather, to broadcast, to exchange.
//!
//! Copies between PEs of a host run on the processors of the PEs that carry them out, at the same
//! time. Between hosts, start-ups of different PEs overlap, while bytes share the links of a ring
//! that carries both directions. What waits for something else is added, what overlaps counts once.

use crate::class::Class;
use crate::data::Operation;
use crate::tuning::Tuning;
use std::fmt;
use std::str::FromStr;

/// What is communicated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// Every PE's bytes to PE 0.
    Gather,
    /// PE 0's bytes to every PE.
    Broadcast,
    /// From every PE to every PE.
    Alltoall,
    /// From every PE to the next one.
    RingShift,
}

/// How it is communicated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// Receivers get.
    Get,
    /// Senders put.
    Put,
    /// Through one PE of each host.
    Staged,
}

impl Pattern {
    /// All, with their names.
    pub const ALL: [(&str, Pattern); 4] = [
        ("gather", Pattern::Gather),
        ("broadcast", Pattern::Broadcast),
        ("alltoall", Pattern::Alltoall),
        ("ring-shift", Pattern::RingShift),
    ];
}

impl By {
    /// All, with their names.
    pub const ALL: [(&str, By); 3] = [("get", By::Get), ("put", By::Put), ("staged", By::Staged)];
}

macro_rules! named {
    ($ty:ident, $what:literal) => {
        impl FromStr for $ty {
            type Err = String;

            fn from_str(text: &str) -> Result<$ty, String> {
                let found = $ty::ALL.iter().find(|(name, _)| *name == text);
                let names: Vec<&str> = $ty::ALL.iter().map(|(name, _)| *name).collect();
                found.map(|(_, value)| *value).ok_or_else(|| {
                    format!("'{text}' is no {}; there are {}", $what, names.join(", "))
                })
            }
        }

        impl fmt::Display for $ty {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let found = $ty::ALL.iter().find(|(_, value)| value == self);
                f.write_str(found.map_or("", |(name, _)| name))
            }
        }
    };
}

named!(Pattern, "pattern");
named!(By, "way to communicate");

/// PEs, as many on every host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Hosts on the ring.
    pub hosts: u32,
    /// PEs of each.
    pub pes_per_host: u32,
    /// Processors of each: so many copies run at the same time.
    pub cpus_per_host: u32,
}

/// Nanoseconds that the pattern takes with `bytes` bytes per pair of PEs; none if a part of it was
/// never measured.
pub fn predict(
    tuning: &Tuning,
    layout: Layout,
    pattern: Pattern,
    by: By,
    bytes: u64,
) -> Option<f64> {
    let local = [Class::Cache, Class::Node, Class::Host, Class::FarNode]
        .into_iter()
        .find(|class| tuning.predict(*class, Operation::Put, 8).is_some());
    estimate(
        &Costs { of: &|class, operation, bytes| tuning.predict(class, operation, bytes), local },
        layout,
        pattern,
        by,
        bytes,
    )
}

/// What single operations cost.
struct Costs<'a> {
    of: &'a dyn Fn(Class, Operation, u64) -> Option<f64>,
    /// The class of PEs of one host.
    local: Option<Class>,
}

impl Costs<'_> {
    /// Between PEs of a host.
    fn near(&self, operation: Operation, bytes: u64) -> Option<f64> {
        (self.of)(self.local?, operation, bytes)
    }

    /// Over the ring.
    fn far(&self, operation: Operation, hops: u32, bytes: u64) -> Option<f64> {
        (self.of)(Class::Ring(hops), operation, bytes)
    }

    /// The part of [`Costs::far`] that other transfers over the same link have to wait for.
    fn on_the_link(&self, operation: Operation, hops: u32, bytes: u64) -> Option<f64> {
        Some((self.far(operation, hops, bytes)? - self.far(operation, hops, 8)?).max(0.0))
    }
}

impl Layout {
    /// Distances of the other hosts from host 0.
    fn distances(self) -> impl Iterator<Item = u32> {
        (1..self.hosts).map(move |host| host.min(self.hosts - host))
    }

    /// Rounds in which `copies` copies of one host are done.
    fn rounds(self, copies: u32) -> f64 {
        f64::from(copies.div_ceil(self.cpus_per_host.max(1)))
    }
}

fn estimate(
    costs: &Costs<'_>,
    layout: Layout,
    pattern: Pattern,
    by: By,
    bytes: u64,
) -> Option<f64> {
    let operation = if by == By::Get { Operation::Get } else { Operation::Put };
    match (pattern, by) {
        (Pattern::Gather, By::Get) | (Pattern::Broadcast, By::Put) => {
            one_after_the_other(costs, layout, operation, bytes)
        }
        (Pattern::Gather, By::Put) | (Pattern::Broadcast, By::Get) => {
            all_at_once(costs, layout, operation, bytes)
        }
        (Pattern::Gather | Pattern::Broadcast, By::Staged) => staged(costs, layout, pattern, bytes),
        (Pattern::Alltoall, By::Get | By::Put) => alltoall(costs, layout, operation, bytes),
        (Pattern::Alltoall, By::Staged) => staged_alltoall(costs, layout, bytes),
        (Pattern::RingShift, By::Get | By::Put) => ring_shift(costs, layout, operation, bytes),
        (Pattern::RingShift, By::Staged) => {
            // In from the last PE of a host, over the link, and on to the first of the next.
            let over = if layout.hosts > 1 { costs.far(Operation::Put, 1, bytes)? } else { 0.0 };
            Some(2.0 * costs.near(Operation::Put, bytes)? + over)
        }
    }
}

/// PE 0 communicates with every other PE in turn.
fn one_after_the_other(
    costs: &Costs<'_>,
    layout: Layout,
    operation: Operation,
    bytes: u64,
) -> Option<f64> {
    let mut sum = 0.0;
    if layout.pes_per_host > 1 {
        sum += f64::from(layout.pes_per_host - 1) * costs.near(operation, bytes)?;
    }
    for hops in layout.distances() {
        sum += f64::from(layout.pes_per_host) * costs.far(operation, hops, bytes)?;
    }
    Some(sum)
}

/// Every other PE communicates with PE 0 at the same time.
fn all_at_once(costs: &Costs<'_>, layout: Layout, operation: Operation, bytes: u64) -> Option<f64> {
    let mut near = 0.0;
    if layout.pes_per_host > 1 {
        near = layout.rounds(layout.pes_per_host - 1) * costs.near(operation, bytes)?;
    }
    // Half of the hosts come in over each of the two links of PE 0's host.
    let (mut links, mut longest) = (0.0, 0.0f64);
    for hops in layout.distances() {
        links += f64::from(layout.pes_per_host) * costs.on_the_link(operation, 1, bytes)? / 2.0;
        longest = longest.max(costs.far(operation, hops, bytes)?);
    }
    if layout.hosts == 2 {
        // Two hosts are neighbours over one link only.
        links *= 2.0;
    }
    let startup = if layout.hosts > 1 { costs.far(operation, 1, 8)? } else { 0.0 };
    Some(near.max(longest).max(startup + links))
}

/// One PE of each host collects, or spreads, for the others.
fn staged(costs: &Costs<'_>, layout: Layout, pattern: Pattern, bytes: u64) -> Option<f64> {
    let (operation, carried) = match pattern {
        Pattern::Gather => (Operation::Get, bytes * u64::from(layout.pes_per_host)),
        _ => (Operation::Put, bytes),
    };
    let mut sum = 0.0;
    if layout.pes_per_host > 1 {
        sum += f64::from(layout.pes_per_host - 1) * costs.near(operation, bytes)?;
    }
    for hops in layout.distances() {
        sum += costs.far(operation, hops, carried)?;
    }
    Some(sum)
}

fn alltoall(costs: &Costs<'_>, layout: Layout, operation: Operation, bytes: u64) -> Option<f64> {
    let pes = layout.pes_per_host;
    let mut near = 0.0;
    if pes > 1 {
        near = layout.rounds(pes) * f64::from(pes - 1) * costs.near(operation, bytes)?;
    }
    // Transfers over d hops load d links; a ring of H hosts has 2 H directed links.
    let (mut startups, mut links) = (0.0, 0.0);
    for hops in layout.distances() {
        startups += f64::from(pes) * costs.far(operation, hops, 8)?;
        links += f64::from(hops * pes * pes) * costs.on_the_link(operation, 1, bytes)? / 2.0;
    }
    if layout.hosts == 2 {
        links *= 2.0;
    }
    Some(near + startups + links)
}

/// Collect on each host, exchange between hosts, spread on each host.
fn staged_alltoall(costs: &Costs<'_>, layout: Layout, bytes: u64) -> Option<f64> {
    let pes = layout.pes_per_host;
    if layout.hosts < 2 {
        return alltoall(costs, layout, Operation::Put, bytes);
    }
    let abroad = bytes * u64::from(pes) * u64::from(layout.hosts - 1);
    let mut sum = alltoall(costs, Layout { hosts: 1, ..layout }, Operation::Put, bytes)?;
    if pes > 1 {
        let moves = costs.near(Operation::Get, abroad)? + costs.near(Operation::Put, abroad)?;
        sum += f64::from(pes - 1) * moves;
    }
    let between = Layout { pes_per_host: 1, ..layout };
    Some(sum + alltoall(costs, between, Operation::Put, bytes * u64::from(pes * pes))?)
}

fn ring_shift(costs: &Costs<'_>, layout: Layout, operation: Operation, bytes: u64) -> Option<f64> {
    let mut longest = 0.0f64;
    if layout.pes_per_host > 1 {
        longest = layout.rounds(layout.pes_per_host) * costs.near(operation, bytes)?;
    }
    if layout.hosts > 1 {
        longest = longest.max(costs.far(operation, 1, bytes)?);
    }
    Some(longest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// 100 ns and 0.1 ns per byte on a host; 10 us per hop and 1 ns per byte over the ring.
    fn cost(class: Class, _: Operation, bytes: u64) -> Option<f64> {
        match class {
            Class::Cache => Some(100.0 + bytes as f64 * 0.1),
            Class::Ring(hops) => Some(1e4 * f64::from(hops) + bytes as f64),
            _ => None,
        }
    }

    fn predicted(layout: Layout, pattern: Pattern, by: By, bytes: u64) -> f64 {
        let costs = Costs { of: &cost, local: Some(Class::Cache) };
        estimate(&costs, layout, pattern, by, bytes).unwrap()
    }

    const HOST: Layout = Layout { hosts: 1, pes_per_host: 4, cpus_per_host: 4 };
    const RING: Layout = Layout { hosts: 3, pes_per_host: 4, cpus_per_host: 4 };

    #[test]
    fn the_root_alone_is_slower_than_all_at_once() {
        assert_eq!(predicted(HOST, Pattern::Gather, By::Get, 1000), 600.0);
        assert_eq!(predicted(HOST, Pattern::Gather, By::Put, 1000), 200.0);
        let crowded = Layout { cpus_per_host: 1, ..HOST };
        assert_eq!(predicted(crowded, Pattern::Gather, By::Put, 1000), 600.0);
    }

    #[test]
    fn staging_pays_where_starting_up_dominates() {
        let by = |by, bytes| predicted(RING, Pattern::Gather, by, bytes);
        assert!(by(By::Staged, 8) < by(By::Get, 8) / 3.0);
        assert_eq!(by(By::Staged, 8), 3.0 * 100.8 + 2.0 * (1e4 + 32.0));
    }

    #[test]
    fn what_was_not_measured_is_not_guessed() {
        let costs = Costs { of: &|_, _, _| None, local: None };
        assert_eq!(estimate(&costs, RING, Pattern::Gather, By::Put, 8), None);
    }

    proptest! {
        #[test]
        fn more_bytes_never_take_less(
            hosts in 1u32..9, pes in 1u32..9, cpus in 1u32..9, bytes in 8u64..(1 << 24), more in 0u64..(1 << 20)
        ) {
            let layout = Layout { hosts, pes_per_host: pes, cpus_per_host: cpus };
            for (_, pattern) in Pattern::ALL {
                for (_, by) in By::ALL {
                    let less = predicted(layout, pattern, by, bytes);
                    prop_assert!(predicted(layout, pattern, by, bytes + more) >= less);
                }
            }
        }
    }
}
