// SPDX-License-Identifier: Apache-2.0
//! Whether the route that is taken at a size is the fastest one.

use super::turns::Place;
use super::ways::Ways;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use tombolo_core::route::Routes;
use tombolo_selector::Reuse;
use tombolo_selector::data::{CACHED, STREAMING};

/// What the route that is taken may need, relative to the fastest one.
pub const GOAL: f64 = 1.05;
/// A size that misses the goal is measured so much longer before that is believed.
const LONGER: u32 = 4;

/// One size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Size {
    /// Bytes.
    pub bytes: u64,
    /// The route that is taken.
    pub taken: String,
    /// Nanoseconds by route.
    pub ns: Vec<(String, f64)>,
    /// How much longer copies past the caches take together with reading them than copies through the
    /// caches do; none where that decides nothing.
    pub read: Option<f64>,
    /// Time of the route that is taken, relative to the fastest one.
    pub ratio: f64,
}

/// Measures one size.
pub fn size(place: &Place<'_>, ways: &Ways, budget: Duration, reuse: Reuse) -> Size {
    let first = once(place, ways, budget, reuse);
    if first.ratio <= GOAL {
        return first;
    }
    once(place, ways, budget * LONGER, reuse)
}

fn once(place: &Place<'_>, ways: &Ways, budget: Duration, reuse: Reuse) -> Size {
    let all: Vec<&Routes> = ways.all.iter().map(|way| &way.routes).collect();
    let times = place.in_turns(&all, budget, false);
    let find = |name: &str| ways.all.iter().position(|way| way.name == name);
    let copies = find(CACHED).zip(find(STREAMING)).filter(|_| reuse == Reuse::Hot);
    // Only where bypassing the caches looks faster does it matter what its readers say.
    let read = copies.filter(|(cached, streaming)| times[*streaming] < times[*cached]);
    let read = read.map(|(cached, streaming)| {
        let both = place.in_turns(&[all[cached], all[streaming]], budget, true);
        both[1] / both[0]
    });
    Size {
        bytes: place.bytes as u64,
        taken: ways.all[ways.taken].name.clone(),
        ratio: ratio(&times, ways.taken, find(STREAMING), read),
        ns: ways.all.iter().map(|way| way.name.clone()).zip(times).collect(),
        read,
    }
}

/// Time of the route that is taken, relative to the fastest one. A copy past the caches whose reader loses
/// more than it gained is no gain: it does not count as the fastest, and taking it costs what the reader loses.
fn ratio(times: &[f64], taken: usize, streaming: Option<usize>, read: Option<f64>) -> f64 {
    let loses = read.is_some_and(|read| read > 1.0);
    let counts = |way: &usize| !(loses && Some(*way) == streaming);
    let least = (0..times.len()).filter(counts).map(|way| times[way]).fold(f64::INFINITY, f64::min);
    match read.filter(|_| !counts(&taken)) {
        Some(read) => read,
        None => times[taken] / least,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fastest_route_is_what_counts() {
        assert_eq!(ratio(&[100.0, 200.0, 50.0], 0, None, None), 2.0);
        assert_eq!(ratio(&[100.0, 200.0, 50.0], 2, None, None), 1.0);
    }

    #[test]
    fn copies_past_the_caches_count_where_their_readers_do_not_lose() {
        let taken = |taken, read| ratio(&[100.0, 80.0, 120.0], taken, Some(1), read);
        assert_eq!(taken(0, Some(0.9)), 1.25);
        assert_eq!(taken(0, Some(1.2)), 1.0);
        assert_eq!((taken(1, Some(0.9)), taken(1, Some(1.2))), (1.0, 1.2));
    }
}
