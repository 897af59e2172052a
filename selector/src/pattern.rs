// SPDX-License-Identifier: Apache-2.0
//! Estimates of communication patterns from the model, before any code is written: which way to
//! gather, to broadcast, to exchange.
//!
//! A pattern is a [`schedule`]: transfers of each PE in phases. The estimate adds up what the model
//! says of them, so that a measurement of the same schedule shows how far off it is.

mod estimate;
pub mod schedule;

pub use schedule::{Layout, Topology};

use crate::class::Class;
use crate::data::Operation;
use crate::model;
use crate::tuning::Tuning;
use estimate::{PatternCosts, estimate};
use std::str::FromStr;
use tombolo_core::named;

named! {
    /// What is communicated.
    Pattern {
        /// Every PE's bytes to PE 0.
        Gather = "gather",
        /// PE 0's bytes to every PE.
        Broadcast = "broadcast",
        /// From every PE to every PE.
        Alltoall = "alltoall",
        /// From every PE to the next one.
        RingShift = "ring-shift",
    }
}

named! {
    /// How it is communicated.
    By {
        /// Receivers get.
        Get = "get",
        /// Senders put.
        Put = "put",
        /// Through one PE of each host.
        Staged = "staged",
    }
}

macro_rules! found_by_name {
    ($ty:ident, $what:literal) => {
        impl FromStr for $ty {
            type Err = String;

            fn from_str(text: &str) -> Result<$ty, String> {
                $ty::ALL.into_iter().find(|value| value.name() == text).ok_or_else(|| {
                    let names = $ty::ALL.map($ty::name).join(", ");
                    format!("'{text}' is not a {}; expected one of {names}", $what)
                })
            }
        }
    };
}

found_by_name!(Pattern, "pattern");
found_by_name!(By, "method");
found_by_name!(Topology, "topology");

/// What a pattern is expected to take.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// Nanoseconds.
    pub ns: f64,
    /// In nine of ten cases it takes no less than the first and no more than the second; none where PEs
    /// outnumber processors, because how long they wait for one is not known.
    pub within: Option<[f64; 2]>,
}

/// Between which parts of what is known of them the times of a pattern's operations are, and of its barriers.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Range {
    operations: [f64; 2],
    meetings: [f64; 2],
}

/// How soon PEs meet changes while a machine runs, above all where processors are those of a
/// hypervisor, which moves them between cores that share more or less: to a third, and threefold.
const MEETINGS: [f64; 2] = [0.30, 3.50];

/// The ranges that nine of ten measurements were in, on one host, over links, and where PEs and the threads
/// that serve their links outnumber processors. benches/record/2026-11-21-patterns.md and
/// 2026-11-23-selector.md have the cases. More was missing there than was counted twice.
const ON_A_HOST: Range = Range { operations: [0.80, 1.25], meetings: MEETINGS };
const OVER_LINKS: Range = Range { operations: [0.75, 1.60], meetings: MEETINGS };
const CROWDED: Range = Range { operations: [0.40, 4.00], meetings: MEETINGS };

impl Range {
    /// `error`: how far off single operations are on average.
    fn of(layout: &Layout, error: f64) -> Option<Range> {
        let Range { operations: [low, high], meetings } = match () {
            () if layout.is_crowded() => return None,
            () if layout.lacks_processors_for_links() => CROWDED,
            () if layout.hosts() > 1 => OVER_LINKS,
            () => ON_A_HOST,
        };
        // Twice the mean is what nine of ten errors are below.
        let wider = 1.0 + 2.0 * error;
        Some(Range { operations: [low / wider, high * wider], meetings })
    }
}

impl Estimate {
    /// Whether a measurement is as expected; none if nothing was said.
    pub fn holds(&self, ns: f64) -> Option<bool> {
        self.within.map(|[low, high]| (low..=high).contains(&ns))
    }
}

/// Time that the pattern takes with `bytes` bytes per pair of PEs; none if a part of it was
/// never measured.
pub fn predict(
    tuning: &Tuning,
    layout: &Layout,
    pattern: Pattern,
    by: By,
    bytes: u64,
) -> Option<Estimate> {
    let local = [Class::Cache, Class::Node, Class::Host, Class::FarNode]
        .into_iter()
        .find(|class| tuning.predict(*class, Operation::Put, 8).is_some());
    let of = |class, operation, bytes| match operation {
        Operation::Pipeline => tuning.predict_pipelined(class, bytes),
        Operation::Meeting => tuning.meeting(class),
        _ if Operation::BEFORE_MEETINGS.contains(&operation) => {
            tuning.before_meeting(class, operation, bytes)
        }
        _ => tuning.predict(class, operation, bytes),
    };
    let costs = PatternCosts { of: &of, local, meetings: 1.0 };
    let ns = estimate(&costs, layout, pattern, by, bytes)?;
    let at = |operations: f64, meetings: f64| {
        let of = |class, operation, bytes| {
            let part = if operation == Operation::Meeting { meetings } else { operations };
            of(class, operation, bytes).map(|ns| part * ns)
        };
        estimate(&PatternCosts { of: &of, local, meetings }, layout, pattern, by, bytes)
    };
    let error = model::error(&tuning.measured().curves).map_or(0.0, |(error, _)| error);
    let within = Range::of(layout, error).and_then(|Range { operations, meetings }| {
        Some([at(operations[0], meetings[0])?, at(operations[1], meetings[1])?])
    });
    Some(Estimate { ns, within })
}

#[cfg(test)]
mod tests;
