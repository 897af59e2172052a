// SPDX-License-Identifier: Apache-2.0
//! The cost model: what an operation of any size costs, from the sizes that were measured.
//!
//! - Per channel and class a piecewise-linear curve through the measured points ([`Interpolation`]).
//! - Across ring distances a multilevel model ([`stages::Stages`]): start-up, hops, and packets that
//!   overlap on their way, after the packet formula of the published self-tuning library.
//!
//! The error of the model is its distance from a second set of measurements, taken at other sizes.

use crate::data::{Buffer, Curve, Key, Measurements, Operation, Point};

pub mod stages;

use stages::{Observation, Stages};

/// Time of one operation by size, linear between measured points.
#[derive(Clone, Copy, Debug)]
pub struct Interpolation<'a> {
    points: &'a [Point],
}

impl<'a> Interpolation<'a> {
    /// A line through points of rising size; none if there are no points.
    pub fn new(points: &'a [Point]) -> Option<Interpolation<'a>> {
        (!points.is_empty()).then_some(Interpolation { points })
    }

    /// Nanoseconds of an operation on `bytes` bytes. Below the first point as that point, beyond
    /// the last one as the last stretch goes on (and never falling).
    pub fn at(&self, bytes: u64) -> f64 {
        let points = self.points;
        let above = points.partition_point(|p| p.bytes < bytes);
        if above == 0 {
            return f64::from(points[0].ns);
        }
        let last = points.len() - 1;
        let (low, high) = if above <= last {
            (points[above - 1], points[above])
        } else if last > 0 {
            (points[last - 1], points[last])
        } else {
            return f64::from(points[0].ns);
        };
        let width = (high.bytes - low.bytes) as f64;
        let slope = (f64::from(high.ns) - f64::from(low.ns)) / width;
        if above > last {
            let beyond = (bytes - high.bytes) as f64;
            // Two noisy neighbours must not decide the slope alone: nothing gets cheaper by size.
            let average = f64::from(high.ns) / high.bytes.max(1) as f64;
            return f64::from(high.ns) + beyond * slope.clamp(average * 0.5, average * 2.0);
        }
        f64::from(low.ns) + (bytes - low.bytes) as f64 * slope
    }
}

/// The model over all that was measured.
#[derive(Clone, Debug, Default)]
pub struct Model {
    /// Multilevel models of channels measured over several distances of a ring.
    stages: Vec<(Key, Stages)>,
}

impl Model {
    /// Fits the model.
    pub fn fit(measured: &Measurements) -> Model {
        let mut groups: Vec<(Key, Vec<Observation>)> = Vec::new();
        for curve in measured.curves.iter().filter(|c| c.key.class.hops() > 0) {
            let key = Key { class: curve.key.class.modelled(), ..curve.key.clone() };
            let seen = curve.points.iter().map(|p| Observation {
                bytes: p.bytes,
                hops: curve.key.class.hops(),
                ns: f64::from(p.ns),
            });
            match groups.iter_mut().find(|(known, _)| *known == key) {
                Some((_, all)) => all.extend(seen),
                None => groups.push((key, seen.collect())),
            }
        }
        let fit = |(key, seen): (Key, Vec<Observation>)| Some((key, Stages::fit(&seen)?));
        Model { stages: groups.into_iter().filter_map(fit).collect() }
    }

    /// The multilevel model of a channel to other hosts.
    pub fn stages(&self, operation: Operation, buffer: Buffer, channel: &str) -> Option<&Stages> {
        self.stages
            .iter()
            .find(|(key, _)| {
                key.operation == operation && key.buffer == buffer && key.channel == channel
            })
            .map(|(_, stages)| stages)
    }

    /// Channels with a multilevel model, with what they do.
    pub fn all_stages(&self) -> impl Iterator<Item = (&Key, &Stages)> {
        self.stages.iter().map(|(key, stages)| (key, stages))
    }

    /// Nanoseconds of an operation by a channel; none where nothing was measured that tells.
    pub fn predict(&self, measured: &Measurements, key: &Key, bytes: u64) -> Option<f64> {
        let curve = measured.curve(key.class, key.operation, key.buffer, &key.channel);
        if let Some(line) = curve.and_then(|c| Interpolation::new(&c.points)) {
            return Some(line.at(bytes));
        }
        let hops = key.class.hops();
        (hops > 0).then_some(())?;
        Some(self.stages(key.operation, key.buffer, &key.channel)?.at(bytes, hops))
    }
}

/// Mean relative distance of predictions from the second set of measurements, and how many there
/// were; none if there is no second set.
pub fn error<'a>(curves: impl IntoIterator<Item = &'a Curve>) -> Option<(f64, usize)> {
    let (mut sum, mut count) = (0.0, 0);
    for curve in curves {
        let Some(line) = Interpolation::new(&curve.points) else { continue };
        for check in &curve.checks {
            let seen = f64::from(check.ns);
            sum += (line.at(check.bytes) - seen).abs() / seen;
            count += 1;
        }
    }
    (count > 0).then(|| (sum / count as f64, count))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn points(of: &[(u64, f32)]) -> Vec<Point> {
        of.iter().map(|&(bytes, ns)| Point { bytes, ns, spread: 0.0, batches: 7 }).collect()
    }

    #[test]
    fn a_line_passes_through_its_points_and_goes_on() {
        let points = points(&[(8, 10.0), (1000, 100.0), (2000, 200.0)]);
        let line = Interpolation::new(&points).unwrap();
        assert_eq!([line.at(1), line.at(8), line.at(1500), line.at(2000)], [10., 10., 150., 200.]);
        assert_eq!(line.at(4000), 400.0);
    }

    #[test]
    fn falling_last_points_do_not_make_large_transfers_free() {
        let points = points(&[(1000, 200.0), (2000, 100.0)]);
        assert!(Interpolation::new(&points).unwrap().at(1 << 30) > 100.0 * (1 << 18) as f64 * 0.4);
    }

    proptest! {
        /// A channel that costs start-up plus bytes is predicted exactly wherever it is measured.
        #[test]
        fn affine_costs_are_recovered(
            startup in 1.0f32..1e5, per_byte in 0.001f32..10.0, at in 8u64..(64 << 20)
        ) {
            let cost = |bytes: u64| startup + per_byte * bytes as f32;
            // Beyond the ladder a slope is believed only where bytes, not the start-up, make up
            // most of the last point's time.
            let last = crate::probe::LADDER[crate::probe::LADDER.len() - 1];
            prop_assume!(at <= last || per_byte * last as f32 >= startup);
            let measured: Vec<Point> = crate::probe::LADDER
                .iter()
                .map(|&bytes| Point { bytes, ns: cost(bytes), spread: 0.0, batches: 7 })
                .collect();
            let line = Interpolation::new(&measured).unwrap();
            let predicted = line.at(at);
            prop_assert!((predicted / f64::from(cost(at)) - 1.0).abs() < 0.01);
        }
    }
}
