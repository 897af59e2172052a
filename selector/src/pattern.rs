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
named!(Topology, "topology");

/// What a pattern is expected to take.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// Nanoseconds.
    pub ns: f64,
    /// In nine of ten cases it takes no less,
    pub low: f64,
    /// and no more.
    pub high: f64,
}

/// Parts of estimates between which measurements were in nine of ten cases, on one host and over links:
/// benches/record/2026-11-21-patterns.md has most of the cases. More was missing there than was counted twice.
const ON_A_HOST: [f64; 2] = [0.80, 1.25];
const OVER_LINKS: [f64; 2] = [0.75, 1.60];

impl Estimate {
    /// `error`: how far off single operations are on average, of which the estimate consists.
    fn new(ns: f64, hosts: usize, error: f64) -> Estimate {
        let [low, high] = if hosts > 1 { OVER_LINKS } else { ON_A_HOST };
        // Twice the mean is what nine of ten errors are below.
        let wider = 1.0 + 2.0 * error;
        Estimate { ns, low: ns * low / wider, high: ns * high * wider }
    }

    /// Whether a measurement is as expected.
    pub fn holds(&self, ns: f64) -> bool {
        (self.low..=self.high).contains(&ns)
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
        _ => tuning.predict(class, operation, bytes),
    };
    let costs = PatternCosts { of: &of, local };
    let ns = estimate(&costs, layout, pattern, by, bytes)?;
    let error = model::error(&tuning.measured().curves).map_or(0.0, |(error, _)| error);
    Some(Estimate::new(ns, layout.hosts(), error))
}

#[cfg(test)]
mod tests;
