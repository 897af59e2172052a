// SPDX-License-Identifier: Apache-2.0
//! Channels of two transports of which each transfer takes one, by what both have under way: their names, such as
//! `ofi/ntb`, what is expected of each transport, and where they are taken.

use crate::class::Class;
use crate::data::{Buffer, Curve, Measurements, Operation};
use crate::model::Interpolation;
use crate::policy::{Decision, MARGIN, MARGIN_MAX, Step};
use tombolo_core::route::STEPS_MAX;

/// The size that a channel is measured at and taken from: for shorter transfers, which fabric has more under way
/// makes little difference.
pub const SIZE: u64 = 256 << 10;

/// The size by whose times transports are compared where series were not measured.
const LARGE: u64 = 1 << 20;

/// The name of the channel of which blocking transfers take `first`.
pub fn name(first: &str, second: &str) -> String {
    format!("{first}/{second}")
}

/// The transports of a channel, if it is one of either of two of them.
pub fn transports(channel: &str) -> Option<[&str; 2]> {
    channel.split_once('/').map(|(first, second)| [first, second])
}

/// The channel of blocking transfers.
pub fn waited(channel: &str) -> &str {
    transports(channel).map_or(channel, |[first, _]| first)
}

/// Nanoseconds that each of two transports needs for a KiB of long transfers; as long as the other one where that was
/// not measured.
pub fn ns_per_kib(
    measured: &Measurements,
    class: Class,
    operation: Operation,
    both: [&str; 2],
) -> [u16; 2] {
    let known = |operation, bytes: u64| {
        let times = both.map(|name| {
            let curve = measured.curve(class, operation, Buffer::Heap, name)?;
            let last = curve.points.last().filter(|point| point.bytes >= bytes)?;
            Some(Interpolation::new(&curve.points)?.at(bytes.min(last.bytes)) / bytes as f64)
        });
        Some([times[0]?, times[1]?])
    };
    let series = (operation == Operation::Put).then(|| known(Operation::Pipeline, SIZE)).flatten();
    let [first, second] = series.or_else(|| known(operation, LARGE)).unwrap_or([1.0; 2]);
    [first, second].map(|ns| (ns * 1024.0).round().clamp(1.0, f64::from(u16::MAX)) as u16)
}

/// What series of puts took.
pub struct Series<'a> {
    /// The channel of either of two transports.
    pub channel: &'a str,
    /// Nanoseconds of a put by it.
    pub ns: f64,
    /// The faster one of both transports alone, and nanoseconds of a put by it.
    pub alone: (&'a str, f64),
}

/// The channel whose series of non-blocking puts were faster than by its transports alone, by more than the margin
/// and the spread of their times.
pub fn faster(measured: &Measurements, class: Class) -> Option<Series<'_>> {
    let series = |channel: &str| {
        let curve = measured.curve(class, Operation::Pipeline, Buffer::Heap, channel)?;
        let point = curve.points.iter().find(|point| point.bytes == SIZE)?;
        // More threads work for two transports than for one, so that a lucky time tells little.
        (point.batches > 1).then_some((f64::from(point.ns), f64::from(point.spread)))
    };
    let of = |curve: &'_ Curve| -> Option<(f64, f64, usize, f64)> {
        let both = transports(&curve.key.channel)?;
        let (ns, spread) = series(&curve.key.channel)?;
        let times = [series(both[0])?, series(both[1])?];
        let faster = usize::from(times[1].0 < times[0].0);
        let margin = ((spread + times[faster].1) / 2.0).clamp(MARGIN, MARGIN_MAX);
        (ns < times[faster].0 * (1.0 - margin)).then_some((ns, times[faster].0, faster, spread))
    };
    let curves = measured.curves.iter();
    let curves = curves.filter(|c| (c.key.class, c.key.operation) == (class, Operation::Pipeline));
    curves
        .filter_map(|curve| {
            let (ns, alone, faster, _) = of(curve)?;
            let channel = curve.key.channel.as_str();
            Some(Series { channel, ns, alone: (transports(channel)?[faster], alone) })
        })
        .min_by(|a, b| a.ns.total_cmp(&b.ns))
}

/// Has long non-blocking puts take either of two transports where series of them were faster so. Where puts take one
/// of them, blocking ones still do.
pub fn lay_over(decision: &mut Decision, measured: &Measurements) {
    let found = (decision.operation == Operation::Put).then(|| faster(measured, decision.class));
    let Some(both) = found.flatten().and_then(|series| transports(series.channel)) else { return };
    let replaced = |channel: &str| match () {
        () if channel == both[0] => name(both[0], both[1]),
        () if channel == both[1] => name(both[1], both[0]),
        () => channel.to_owned(),
    };
    let mut steps = Vec::new();
    let mut before = 0;
    for Step { limit, channel } in &decision.steps {
        let long = replaced(channel);
        if *limit < SIZE || long == *channel {
            steps.push(Step { limit: *limit, channel: channel.clone() });
        } else {
            if before < SIZE - 1 {
                steps.push(Step { limit: SIZE - 1, channel: channel.clone() });
            }
            steps.push(Step { limit: *limit, channel: long });
        }
        before = *limit;
    }
    if steps.len() <= STEPS_MAX {
        decision.steps = steps;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{Key, Point};
    use crate::policy::{Reuse, decide};

    fn curve(operation: Operation, channel: &str, spread: f32, points: &[(u64, f32)]) -> Curve {
        let (class, buffer) = (Class::Network, Buffer::Heap);
        let key = Key { class, operation, buffer, channel: channel.to_owned() };
        let point = |(bytes, ns): &(u64, f32)| Point { bytes: *bytes, ns: *ns, spread, batches: 7 };
        Curve { key, points: points.iter().map(point).collect(), checks: vec![] }
    }

    /// Puts by `a` and `b`, of which `b` is better for long ones, and series of 256 KiB.
    fn measured(series: [(&str, f32); 3], spread: f32) -> Measurements {
        let mut curves = vec![
            curve(Operation::Put, "a", 0.0, &[(8, 1e3), (1 << 14, 2e3), (1 << 20, 2e5)]),
            curve(Operation::Put, "b", 0.0, &[(8, 5e3), (1 << 14, 6e3), (1 << 20, 1e5)]),
        ];
        let pipeline = |(channel, ns)| curve(Operation::Pipeline, channel, spread, &[(SIZE, ns)]);
        curves.extend(series.map(pipeline));
        let mut measured = Measurements { curves, ..Measurements::default() };
        measured.put_in_order();
        measured
    }

    fn routes(measured: &Measurements) -> Vec<String> {
        let decisions = decide(measured, &["a", "b"], Reuse::Hot);
        let puts = decisions.iter().find(|d| d.operation == Operation::Put).unwrap();
        [8, SIZE - 1, SIZE, 1 << 30].map(|bytes| puts.channel(bytes).to_owned()).to_vec()
    }

    #[test]
    fn long_puts_take_either_only_where_series_of_them_were_faster() {
        let faster = measured([("a", 4e4), ("a/b", 2e4), ("b", 3e4)], 0.0);
        assert_eq!(routes(&faster), ["a", "b", "b/a", "b/a"]);
        let series = super::faster(&faster, Class::Network).unwrap();
        assert_eq!((series.channel, series.alone), ("a/b", ("b", 3e4)));
        for (both, spread) in [(2.9e4, 0.0), (3.5e4, 0.0), (2.5e4, 0.25)] {
            let not = measured([("a", 4e4), ("a/b", both), ("b", 3e4)], spread);
            assert_eq!(routes(&not), ["a", "b", "b", "b"], "{both}, {spread}");
        }
    }

    #[test]
    fn transports_are_compared_by_series_else_by_single_transfers() {
        let series = measured([("a", 4e4), ("a/b", 2e4), ("b", 3e4)], 0.0);
        let cost = |operation, both| ns_per_kib(&series, Class::Network, operation, both);
        assert_eq!(cost(Operation::Put, ["b", "a"]), [117, 156]);
        let mut single = series.clone();
        single.curves.retain(|curve| curve.key.operation == Operation::Put);
        let cost_single = |both| ns_per_kib(&single, Class::Network, Operation::Put, both);
        assert_eq!(cost_single(["a", "b"]), [195, 98]);
        // Nothing is known of one of them.
        let unknown = cost(Operation::Get, ["a", "b"]);
        assert_eq!(unknown[0], unknown[1]);
        assert_eq!(transports(&name("a", "b")), Some(["a", "b"]));
        assert_eq!([waited("a/b"), waited("a")], ["a", "a"]);
    }
}
