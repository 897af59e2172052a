// SPDX-License-Identifier: Apache-2.0
//! `SHMEM_TUNE=adaptive`: samples operations of the running program and corrects the measurements
//! where they have drifted, because the machine is busier, or quieter, than it was at start.
//!
//! Only operations off the fast path are seen, one in [`SAMPLE`] is timed, and what counts is the
//! fastest of [`BLOCK`] of them: whatever disturbs single operations is no drift. Each PE corrects
//! its own routes; what PEs have to agree on, the costs that collectives are chosen by, stays.
//!
//! A channel that was left because it was slow is not seen any more. So that it is not left for good, corrections
//! are taken back after a while, longer each time: what is still slow is corrected again.

use crate::class::Class;
use crate::data::{Buffer, Measurements, Operation, Point};
use crate::model::Interpolation;
use crate::report;
use crate::tuning::Tuning;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use tombolo_core::World;
use tombolo_core::reroute::{Observation, Observer};
use tombolo_core::route::Channel;
use tombolo_core::transport::SegmentKind;

/// One operation in so many is timed.
pub const SAMPLE: u32 = 32;

/// Samples that are judged together.
pub const BLOCK: u32 = 8;

/// Drift below this factor, either way, changes nothing.
const DRIFT: f64 = 1.25;

/// Largest correction at once.
const STEP_MAX: f64 = 4.0;

/// Corrections of one run, those that are taken back included: replaced routes are kept until the end.
const CORRECTIONS_MAX: u32 = 64;

/// Samples after which corrections are taken back for the first time.
pub const LASTING: u32 = 256;

/// What drifts: a channel between PEs of a class, in a range of sizes.
type BlockKey = (Class, Operation, Channel, u32);

/// Watches one PE's operations.
pub struct Adaptive {
    count: AtomicU32,
    /// What is in force, whoever put it there.
    tuning: Arc<Mutex<Tuning>>,
    state: Mutex<State>,
}

struct State {
    /// Samples so far and the least time relative to the model.
    blocks: HashMap<BlockKey, (u32, f64)>,
    corrections: u32,
    /// Samples since the last correction, and how many of them take corrections back.
    since: u32,
    lasting: u32,
}

impl Adaptive {
    /// Corrects `tuning`, which others may replace or change as well.
    pub fn new(tuning: Arc<Mutex<Tuning>>) -> Adaptive {
        let state = State { blocks: HashMap::new(), corrections: 0, since: 0, lasting: LASTING };
        Adaptive { count: AtomicU32::new(0), tuning, state: Mutex::new(state) }
    }
}

impl Observer for Adaptive {
    fn wants(&self) -> bool {
        self.count.fetch_add(1, Ordering::Relaxed).is_multiple_of(SAMPLE)
    }

    fn saw(&self, world: &World, seen: Observation) {
        // Another thread is at it: there will be other samples.
        let (Ok(mut state), Ok(mut tuning)) = (self.state.try_lock(), self.tuning.try_lock())
        else {
            return;
        };
        state.saw(&mut tuning, world, seen);
    }
}

impl State {
    fn saw(&mut self, tuning: &mut Tuning, world: &World, seen: Observation) {
        let name = report::name(seen.channel, |index| world.transports()[index].name());
        let class = tuning.class_of(seen.pe);
        let operation = if seen.get { Operation::Get } else { Operation::Put };
        let buffers: &[Buffer] = match seen.segment {
            SegmentKind::Heap => &[Buffer::Heap, Buffer::Private],
            SegmentKind::Static => &[Buffer::Static],
        };
        let bytes = seen.bytes as u64;
        if self.corrections >= CORRECTIONS_MAX {
            return;
        }
        self.since = self.since.saturating_add(1);
        if self.since > self.lasting && tuning.take_back(world) {
            self.corrections += 1;
            self.lasting = self.lasting.saturating_mul(2);
            self.begin_anew(tuning, world);
            return;
        }
        let expected = buffers
            .iter()
            .filter_map(|b| {
                Interpolation::new(&tuning.measured().curve(class, operation, *b, &name)?.points)
            })
            .map(|line| line.at(bytes))
            .fold(0.0, f64::max);
        if expected <= 0.0 {
            return;
        }
        let place = (class, operation, seen.channel, range(bytes));
        let block = self.blocks.entry(place).or_insert((0, f64::INFINITY));
        block.0 += 1;
        block.1 = block.1.min(seen.ns.max(1) as f64 / expected);
        let (count, ratio) = *block;
        if count < BLOCK {
            return;
        }
        self.blocks.remove(&place);
        // A local buffer that suits the channel better than those measured is no drift.
        if (1.0 / (2.0 * DRIFT)..=DRIFT).contains(&ratio) {
            return;
        }
        let factor = ratio.clamp(1.0 / STEP_MAX, STEP_MAX);
        let mut measured = tuning.measured().clone();
        if !scale(&mut measured, (class, operation, buffers, &name), bytes, factor) {
            return;
        }
        self.corrections += 1;
        tracing::info!(
            "{operation} to PE {} by {name}, {bytes} bytes, takes {ratio:.2} times what was measured",
            seen.pe
        );
        tuning.correct(world, measured);
        self.begin_anew(tuning, world);
    }

    /// Puts the routes into force if they have changed. What was seen so far was compared with something else.
    fn begin_anew(&mut self, tuning: &Tuning, world: &World) {
        self.blocks.clear();
        self.since = 0;
        if tuning.routes() != world.routes() {
            tracing::info!("routes are corrected");
            tuning.apply(world);
        }
    }
}

/// The range of sizes that are judged, and corrected, together: each ends at four times its beginning.
fn range(bytes: u64) -> u32 {
    bytes.max(1).ilog2() / 2
}

/// Scales the times of a channel in the range of a size, and of that size itself where it lies between two that were
/// measured. Other ranges are left alone: they would have to be corrected back. False if there is nothing to scale.
fn scale(
    measured: &mut Measurements,
    (class, operation, buffers, channel): (Class, Operation, &[Buffer], &str),
    bytes: u64,
    factor: f64,
) -> bool {
    let scaled = |ns: f64| (ns * factor) as f32;
    let curves = measured.curves.iter_mut().filter(|curve| {
        let key = &curve.key;
        (key.class, key.operation) == (class, operation)
            && buffers.contains(&key.buffer)
            && key.channel == channel
    });
    let mut any = false;
    for points in curves.map(|curve| &mut curve.points) {
        let new = match points.binary_search_by_key(&bytes, |point| point.bytes) {
            Err(at) if at > 0 && at < points.len() => {
                let ns = scaled(Interpolation::new(points).map_or(0.0, |line| line.at(bytes)));
                Some((at, Point { bytes, ns, ..points[at] }))
            }
            _ => None,
        };
        for point in points.iter_mut().filter(|point| range(point.bytes) == range(bytes)) {
            point.ns = scaled(point.ns.into());
            any = true;
        }
        if let Some((at, point)) = new {
            points.insert(at, point);
            any = true;
        }
    }
    any
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{CACHED, Curve, Key};

    fn measured() -> Measurements {
        let (class, operation, buffer) = (Class::Network, Operation::Get, Buffer::Heap);
        let key = Key { class, operation, buffer, channel: CACHED.to_owned() };
        let point = |bytes: u64| Point { bytes, ns: bytes as f32, spread: 0.0, batches: 7 };
        let points = [8, 1024, 16384, 32768, 131_072].map(point).to_vec();
        let curves = vec![Curve { key, points, checks: vec![] }];
        Measurements { curves, ..Measurements::default() }
    }

    #[test]
    fn a_correction_holds_for_its_range_of_sizes_and_for_no_other() {
        let place = (Class::Network, Operation::Get, &[Buffer::Heap][..], CACHED);
        for bytes in [9, 100, 1000, 4095, 16384, 20_000, 60_000, 131_071] {
            let mut corrected = measured();
            assert!(scale(&mut corrected, place, bytes, 4.0), "{bytes}");
            assert_eq!(corrected.check(), Ok(()), "{bytes}");
            let line = Interpolation::new(&corrected.curves[0].points).unwrap();
            let ratio = line.at(bytes) / bytes as f64;
            assert!((3.99..4.01).contains(&ratio), "{bytes}: {ratio}");
            let others = measured().curves[0].points.clone();
            for other in others.iter().filter(|other| range(other.bytes) != range(bytes)) {
                assert_eq!(line.at(other.bytes), f64::from(other.ns), "{bytes}, {}", other.bytes);
            }
        }
        // Nothing is known there.
        for bytes in [0, 1, 1 << 30] {
            let mut same = measured();
            assert!(!scale(&mut same, place, bytes, 4.0), "{bytes}");
            assert_eq!(same, measured());
        }
    }
}
