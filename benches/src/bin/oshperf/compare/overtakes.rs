// SPDX-License-Identifier: Apache-2.0
//! Where one way overtakes another.

use super::report::Series;
use crate::catalogue::Axis;
use crate::sizes;

/// Differences below this are none.
const CLOSE: f64 = 1.05;

/// A stretch of sizes over which one way is the best.
#[derive(Debug, PartialEq)]
pub struct Stretch<'a> {
    /// The way.
    pub way: &'a str,
    /// First and last size.
    pub sizes: (u64, u64),
}

/// Which way is the best from which size to which. A way that is the best so far stays so until
/// another one is clearly better.
pub fn best<'a>(all: &[&'a Series]) -> Vec<Stretch<'a>> {
    let mut stretches: Vec<Stretch<'a>> = Vec::new();
    let mut sizes: Vec<u64> = all.iter().flat_map(|s| s.points.iter().map(|p| p.x)).collect();
    sizes.sort_unstable();
    sizes.dedup();
    for size in sizes {
        let cost = |series: &Series| cost(series, size);
        let known = all.iter().filter_map(|series| Some((series.way.as_str(), cost(series)?)));
        let Some((way, least)) = known.min_by(|a, b| a.1.total_cmp(&b.1)) else { continue };
        let before = stretches.last_mut();
        let of_before = before.as_ref().and_then(|stretch| {
            all.iter().find(|series| series.way == stretch.way).and_then(|series| cost(series))
        });
        match (before, of_before) {
            (Some(stretch), Some(cost)) if cost <= CLOSE * least => stretch.sizes.1 = size,
            _ => stretches.push(Stretch { way, sizes: (size, size) }),
        }
    }
    stretches
}

/// Sizes from which on `b` is better than `a` after `a` was better than `b`, or the other way round:
/// the way that is better from there on, and the size.
pub fn between<'a>(a: &'a Series, b: &'a Series) -> Vec<(&'a str, u64)> {
    let mut found = Vec::new();
    let mut leader = None;
    for point in &a.points {
        let (Some(of_a), Some(of_b)) = (cost(a, point.x), cost(b, point.x)) else { continue };
        let now = match () {
            () if of_a * CLOSE < of_b => a,
            () if of_b * CLOSE < of_a => b,
            () => continue,
        };
        if leader.replace(&now.way).is_some_and(|before| *before != now.way) {
            found.push((now.way.as_str(), point.x));
        }
    }
    found
}

/// The median, or what is the less the better.
fn cost(series: &Series, x: u64) -> Option<f64> {
    let median = series.points.iter().find(|point| point.x == x)?.summary.median;
    Some(if series.kind.less_is_better() { median } else { 1.0 / median })
}

/// All that is to be said of a test, a sentence per line.
pub fn sentences(all: &[&Series]) -> Vec<String> {
    let mut lines = Vec::new();
    if all.len() < 2 || all[0].axis != Axis::Size {
        return lines;
    }
    let stretches =
        best(all).into_iter().map(|Stretch { way, sizes: (from, to) }| match from == to {
            true => format!("{way} at {}", sizes::show(from)),
            false => format!("{way} from {} to {}", sizes::show(from), sizes::show(to)),
        });
    lines.push(format!("Best: {}", stretches.collect::<Vec<_>>().join(", ")));
    for (index, a) in all.iter().enumerate() {
        for b in &all[index + 1..] {
            for (winner, size) in between(a, b) {
                let other = if winner == a.way { &b.way } else { &a.way };
                lines.push(format!("{winner} overtakes {other} at {}", sizes::show(size)));
            }
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::tests::series;

    #[test]
    fn overtaking_is_found_where_it_happens() {
        let a = series("put", "a", &[(8, 1.0), (64, 2.0), (512, 10.0), (4096, 40.0)]);
        let b = series("put", "b", &[(8, 3.0), (64, 2.05), (512, 5.0), (4096, 20.0)]);
        assert_eq!(between(&a, &b), [("b", 512)]);
        let best = best(&[&a, &b]);
        assert_eq!(best[0], Stretch { way: "a", sizes: (8, 64) });
        assert_eq!(best[1], Stretch { way: "b", sizes: (512, 4096) });
        let lines = sentences(&[&a, &b]);
        assert_eq!(lines, ["Best: a from 8 to 64, b from 512 to 4K", "b overtakes a at 512"]);
    }

    #[test]
    fn of_bandwidths_the_larger_is_better() {
        let a = series("rate", "a", &[(8, 10.0), (64, 10.0)]);
        let b = series("rate", "b", &[(8, 20.0), (64, 5.0)]);
        assert_eq!(between(&a, &b), [("a", 64)]);
    }
}
