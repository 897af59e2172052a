// SPDX-License-Identifier: Apache-2.0
//! `SHMEM_TUNE=adaptive`: samples operations of the running program and corrects the measurements
//! where they have drifted, because the machine is busier, or quieter, than it was at start.
//!
//! Only operations off the fast path are seen, one in [`SAMPLE`] is timed, and what counts is the
//! fastest of [`BLOCK`] of them: whatever disturbs single operations is no drift. Each PE corrects
//! its own routes; what PEs have to agree on, the costs that collectives are chosen by, stays.

use crate::class::Class;
use crate::data::{Buffer, Measurements, Operation};
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

/// Corrections of one run: replaced routes are kept until the end.
const CORRECTIONS_MAX: u32 = 64;

/// What drifts: a channel between PEs of a class, in a range of sizes.
type BlockKey = (Class, Operation, Channel, u32);

/// Watches one PE's operations.
pub struct Adaptive {
    count: AtomicU32,
    /// What is in force, whoever put it there.
    tuning: Arc<Mutex<Tuning>>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Samples so far and the least time relative to the model.
    blocks: HashMap<BlockKey, (u32, f64)>,
    corrections: u32,
}

impl Adaptive {
    /// Corrects `tuning`, which others may replace or change as well.
    pub fn new(tuning: Arc<Mutex<Tuning>>) -> Adaptive {
        Adaptive { count: AtomicU32::new(0), tuning, state: Mutex::default() }
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
        let expected = buffers
            .iter()
            .filter_map(|b| {
                Interpolation::new(&tuning.measured().curve(class, operation, *b, &name)?.points)
            })
            .map(|line| line.at(bytes))
            .fold(0.0, f64::max);
        if expected <= 0.0 || self.corrections >= CORRECTIONS_MAX {
            return;
        }
        let place = (class, operation, seen.channel, bytes.ilog2() / 2);
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
        self.corrections += 1;
        let factor = ratio.clamp(1.0 / STEP_MAX, STEP_MAX);
        let mut measured = tuning.measured().clone();
        scale(&mut measured, (class, operation, buffers, &name), bytes, factor);
        tuning.correct(world, measured);
        if tuning.routes() != world.routes() {
            tracing::info!(
                "{operation} to PE {} by {name}, {bytes} bytes, takes {ratio:.2} times what was \
                 measured: routes are corrected",
                seen.pe
            );
            tuning.apply(world);
        }
    }
}

/// Scales the points of a channel around a size.
fn scale(
    measured: &mut Measurements,
    (class, operation, buffers, channel): (Class, Operation, &[Buffer], &str),
    bytes: u64,
    factor: f64,
) {
    let near = bytes / 4..=bytes.saturating_mul(4);
    let curves = measured.curves.iter_mut().filter(|curve| {
        let key = &curve.key;
        (key.class, key.operation) == (class, operation)
            && buffers.contains(&key.buffer)
            && key.channel == channel
    });
    for point in curves.flat_map(|curve| &mut curve.points).filter(|p| near.contains(&p.bytes)) {
        point.ns = (f64::from(point.ns) * factor) as f32;
    }
}
