// SPDX-License-Identifier: Apache-2.0
//! How soon PEs meet, and what they do before it takes: both PEs of a pair take part, pair by pair.

use super::TuningSession;
use crate::class::Class;
use crate::data::{Buffer, Curve, Key, Measurements, Operation, Point};
use crate::probe::{Scratch, meeting};
use std::time::Duration;
use tombolo_core::error::{Error, Result};

/// Part of the budget that goes to meetings of PEs of different hosts, out of that.
const MEETING: f64 = 0.1;

/// For how long PEs of one host meet at most.
const NEAR: Duration = Duration::from_millis(3);

/// What a PE tells of a meeting: the class in words, what was done before it, the channel, the time.
type Seen = (String, Operation, String, Point);

impl TuningSession<'_> {
    /// The part of the budget that meetings take, which those on one host do not notice.
    pub(super) fn part_of_meetings(&self, pairs: &[(Class, usize, usize)]) -> f64 {
        let far = pairs.iter().any(|(class, ..)| class.hops() > 0);
        if far && !self.crowded { MEETING } else { 0.0 }
    }

    /// How soon PEs meet: both PEs of a pair take part, pair by pair.
    pub(super) fn measure_meetings(
        &self,
        pairs: &[(Class, usize, usize)],
        scratch: &mut Scratch,
        measured: &mut Measurements,
    ) -> Result<()> {
        let world = self.world;
        // Told by all, because PEs that were given different processors would not agree.
        if self.crowded {
            return Ok(());
        }
        let me = world.pe();
        let far = pairs.iter().filter(|(class, ..)| class.hops() > 0).count();
        let longest = self.config().tune_budget.0.mul_f64(MEETING) / far.max(1) as u32;
        let mut found: Vec<(Class, Operation, String, Point)> = Vec::new();
        for (class, from, to) in pairs.iter().copied().filter(|(_, from, to)| from != to) {
            // Nobody writes any more what the PEs of this pair empty, and then both begin at the same time.
            world.bootstrap().barrier()?;
            let mine = from == me || to == me;
            if mine {
                meeting::clear(scratch);
            }
            world.bootstrap().barrier()?;
            let other = if from == me { to } else { from };
            // A channel that dropped out is not taken again: both PEs know that.
            let channel =
                mine.then(|| meeting::channel(world, other)).flatten().filter(|channel| {
                    let of = |c: &Curve| c.key.class == class && c.key.channel == *channel;
                    measured.curves.iter().any(of)
                });
            match channel {
                Some(channel) if from == me => {
                    let tasks = meeting::plan(class, scratch.capacity());
                    let longest = if class.hops() == 0 { NEAR } else { longest };
                    let points = meeting::lead(world, scratch, to, &tasks, longest);
                    let of = |(operation, point)| (class, operation, channel.clone(), point);
                    found.extend(points.into_iter().map(of));
                }
                Some(_) => {
                    let tasks = meeting::plan(class, scratch.capacity());
                    meeting::follow(world, scratch, from, &tasks);
                }
                None => {}
            }
        }
        let told: Vec<Seen> = found
            .into_iter()
            .map(|(class, operation, channel, point)| {
                (class.to_string(), operation, channel, point)
            })
            .collect();
        let told = serde_json::to_vec(&told)
            .map_err(|e| Error::Bootstrap(format!("measurements cannot be sent: {e}")))?;
        for (pe, text) in world.bootstrap().allgather(&told)?.iter().enumerate() {
            let unreadable = |e: String| {
                Error::Bootstrap(format!("PE {pe} sent measurements that cannot be read: {e}"))
            };
            let told: Vec<Seen> =
                serde_json::from_slice(text).map_err(|e| unreadable(e.to_string()))?;
            for (class, operation, channel, point) in told {
                let class = class.parse().map_err(unreadable)?;
                let key = Key { class, operation, buffer: Buffer::Heap, channel };
                measured.curves.push(Curve { key, points: vec![point], checks: Vec::new() });
            }
        }
        measured.put_in_order();
        Ok(())
    }
}
