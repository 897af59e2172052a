// SPDX-License-Identifier: Apache-2.0
//! The policy: from measurements to the channel for every size. Pure and deterministic: PEs that
//! hold the same measurements reach the same decisions.
//!
//! One channel is the default of its class: mapped memory with cached copies where there is mapped
//! memory, else the transport people prefer. Another channel takes over at sizes where it was
//! measured to be faster by a margin that noise does not reach, so that no decision makes an
//! operation slower than the default.
//!
//! Copies that bypass the caches are taken for buffers that are used again only where copying and then
//! reading the copy is not slower either, and for copies that a processor's share of the last-level
//! cache cannot hold.

use crate::class::Class;
use crate::data::{Buffer, CACHED, Curve, Measurements, Operation, Point, SERVICE, STREAMING};
use crate::either;
use crate::model::Interpolation;
use crate::probe::HUGE;
pub use tombolo_core::config::Reuse;
use tombolo_core::route::STEPS_MAX;

/// A challenger has to be faster by this fraction, or by the spread of the measurements if that is
/// more.
pub const MARGIN: f64 = 0.05;

/// Beyond this spread nothing more is asked: the measurement then says little about anything.
pub(crate) const MARGIN_MAX: f64 = 0.30;

/// No size counts as more than so many times faster or slower where several decide together.
const CREDIT: f64 = 1.5;

/// Copies longer than this part of a processor's share of the last-level cache leave nothing in it that
/// is used again: C libraries bypass the caches from here on, too.
const SHARE: (u64, u64) = (3, 4);

/// Copies beyond the share bypass the caches unless that was measured to take longer by this factor.
const BEYOND_MAX: f64 = 1.25;

/// One channel for sizes up to a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Largest size in bytes; `u64::MAX` for the last step.
    pub limit: u64,
    /// The channel.
    pub channel: String,
}

/// The channels for one operation between PEs of a class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Between which PEs.
    pub class: Class,
    /// Doing what.
    pub operation: Operation,
    /// [`Buffer::Heap`] or [`Buffer::Static`]: where the remote buffer lies.
    pub remote: Buffer,
    /// The channel others have to beat.
    pub default: String,
    /// Channels by rising size; at least one, at most [`STEPS_MAX`].
    pub steps: Vec<Step>,
}

impl Decision {
    /// The channel for `bytes` bytes.
    pub fn channel(&self, bytes: u64) -> &str {
        let step = self.steps.iter().find(|step| bytes <= step.limit);
        step.map_or(self.default.as_str(), |step| step.channel.as_str())
    }
}

/// Decides everything that was measured. `preference` names the transports in the order in which
/// the user wants them.
pub fn decide(measured: &Measurements, preference: &[&str], reuse: Reuse) -> Vec<Decision> {
    let mut decisions = Vec::new();
    for class in measured.classes() {
        for operation in [Operation::Put, Operation::Get, Operation::Amo] {
            for remote in [Buffer::Heap, Buffer::Static] {
                let candidates = Candidates::of(measured, class, operation, remote, reuse);
                if let Some(mut decision) = candidates.decide(preference) {
                    either::lay_over(&mut decision, measured);
                    decisions.push(decision);
                }
            }
        }
    }
    decisions
}

/// Bytes from which blocking puts by a channel are carried without a copy of their source and waited for one by
/// one; none if their sources are better copied first at every size, or never are.
///
/// A copy lets the next put begin while this one is under way, and costs its time. So what counts is
/// several blocking puts one after another: where waiting for each of them is faster nevertheless, the copy
/// is not worth its time for a single one either. Of all sizes to begin at the one is taken from which on most is
/// gained, all larger sizes together, if that is more than the margin asks of each: single sizes are measured
/// too unevenly, since both sides' threads may just sleep, to decide by themselves. (Puts to several PEs in turn
/// are not measured; non-blocking ones are for programs that overlap those.)
pub fn zero_copy(measured: &Measurements, class: Class, channel: &str) -> Option<u64> {
    let curve = |operation| measured.curve(class, operation, Buffer::Heap, channel);
    let (copied, waited) = (curve(Operation::Blocking)?, curve(Operation::ZeroCopy)?);
    let at = |point: &Point| waited.points.iter().find(|other| other.bytes == point.bytes).copied();
    let (mut gain, mut needed, mut best) = (0.0, 0.0, None);
    for (copied, waited) in
        copied.points.iter().rev().filter_map(|point| Some((*point, at(point)?)))
    {
        let faster = f64::from(copied.ns / waited.ns).ln();
        if faster < 0.0 && gain == 0.0 {
            // What was measured last stands for all that is larger.
            return None;
        }
        let spread = f64::from(copied.spread + waited.spread) / 2.0;
        needed -= (1.0 - spread.clamp(MARGIN, MARGIN_MAX)).ln();
        gain += faster.clamp(-CREDIT.ln(), CREDIT.ln());
        if gain > needed && best.is_none_or(|(most, _)| gain > most) {
            best = Some((gain, copied.bytes));
        }
    }
    best.map(|(_, bytes)| bytes)
}

/// Curves that compete for one decision.
struct Candidates<'a> {
    measured: &'a Measurements,
    class: Class,
    operation: Operation,
    remote: Buffer,
    reuse: Reuse,
    /// In the order in which ties are broken: the channel, and its curves by buffer.
    channels: Vec<(&'a str, Vec<(Buffer, &'a Curve)>)>,
}

impl<'a> Candidates<'a> {
    fn of(
        measured: &'a Measurements,
        class: Class,
        operation: Operation,
        remote: Buffer,
        reuse: Reuse,
    ) -> Candidates<'a> {
        let curves = |channel: &'a str, buffers: &[Buffer]| -> Vec<(Buffer, &'a Curve)> {
            let curve = |b: &Buffer| Some((*b, measured.curve(class, operation, *b, channel)?));
            buffers.iter().filter_map(curve).collect()
        };
        let names = measured.channels(class, operation);
        let of = |buffers: &[Buffer]| {
            let all = names.iter().map(|name| (*name, curves(name, buffers)));
            all.filter(|(_, curves)| !curves.is_empty()).collect::<Vec<_>>()
        };
        let hot: &[Buffer] = match remote {
            Buffer::Static => &[Buffer::Static],
            _ => &[Buffer::Heap, Buffer::Private],
        };
        let mut channels = of(hot);
        if reuse == Reuse::Cold && remote == Buffer::Heap {
            let cold = of(&[Buffer::Cold, Buffer::ColdPrivate]);
            if !cold.is_empty() {
                channels = cold;
            }
        }
        Candidates { measured, class, operation, remote, reuse, channels }
    }

    fn decide(&self, preference: &[&str]) -> Option<Decision> {
        let default = self.default_channel(preference)?;
        let sizes = self.sizes();
        let mut choice: Vec<usize> = sizes.iter().map(|n| self.choose(default, *n)).collect();
        self.simplify(default, &sizes, &mut choice);
        let mut steps: Vec<Step> = Vec::new();
        for (i, &channel) in choice.iter().enumerate() {
            let name = self.channels[channel].0;
            if steps.last().is_some_and(|step| step.channel == name) {
                continue;
            }
            if i > 0 {
                let limit = self.crossing(choice[i - 1], channel, sizes[i - 1], sizes[i]);
                if let Some(step) = steps.last_mut() {
                    step.limit = limit;
                }
            }
            steps.push(Step { limit: u64::MAX, channel: name.to_owned() });
        }
        if let Some(limit) = self.beyond_caches(default, &steps) {
            if let Some(step) = steps.last_mut() {
                step.limit = limit;
            }
            steps.push(Step { limit: u64::MAX, channel: STREAMING.to_owned() });
        }
        Some(Decision {
            class: self.class,
            operation: self.operation,
            remote: self.remote,
            default: self.channels[default].0.to_owned(),
            steps,
        })
    }

    fn default_channel(&self, preference: &[&str]) -> Option<usize> {
        let place = |name: &str| match name {
            CACHED => 0,
            SERVICE => usize::MAX,
            _ => preference.iter().position(|p| *p == name).map_or(usize::MAX - 1, |p| p + 1),
        };
        (0..self.channels.len()).min_by_key(|index| place(self.channels[*index].0))
    }

    /// All measured sizes, rising.
    fn sizes(&self) -> Vec<u64> {
        let curves = self.channels.iter().flat_map(|(_, curves)| curves);
        let points = curves.flat_map(|(_, curve)| &curve.points);
        let mut sizes: Vec<u64> = points.map(|p| p.bytes).collect();
        sizes.sort_unstable();
        sizes.dedup();
        sizes
    }

    /// The fastest channel at a size, if it beats the default by the margin.
    fn choose(&self, default: usize, bytes: u64) -> usize {
        let gain = |channel: &usize| {
            let (ratio, margin) = self.compare(*channel, default, bytes)?;
            let wins = ratio < 1.0 - margin && self.suits_readers(*channel, default, bytes);
            wins.then_some((ratio, *channel))
        };
        let best = (0..self.channels.len())
            .filter(|channel| *channel != default)
            .filter_map(|channel| gain(&channel))
            .reduce(|best, next| if next.0 < best.0 { next } else { best });
        best.map_or(default, |(_, channel)| channel)
    }

    /// Whether a copy by `channel` and reading its result are together as fast as by `other`. The result
    /// of a copy that bypasses the caches has to be fetched from memory.
    fn suits_readers(&self, channel: usize, other: usize, bytes: u64) -> bool {
        if self.channels[channel].0 != STREAMING || self.reuse == Reuse::Cold {
            return true;
        }
        let operation = match self.operation {
            Operation::Get => Operation::GetRead,
            _ => Operation::PutRead,
        };
        let time = |channel: usize| {
            let name = self.channels[channel].0;
            let curve = self.measured.curve(self.class, operation, Buffer::Heap, name)?;
            Some(Interpolation::new(&curve.points)?.at(bytes))
        };
        matches!((time(channel), time(other)), (Some(mine), Some(theirs)) if mine <= theirs)
    }

    /// The size from which copies bypass the caches because these cannot hold them, if `steps` end with
    /// copies through the caches. Sizes that were measured are left as they were decided.
    fn beyond_caches(&self, default: usize, steps: &[Step]) -> Option<u64> {
        let cached = |name: &str| name == CACHED;
        let applies = self.reuse == Reuse::Hot
            && self.operation != Operation::Amo
            && self.measured.cache_share > 0
            && steps.len() < STEPS_MAX
            && cached(self.channels[default].0)
            && steps.last().is_some_and(|step| cached(&step.channel))
            && self.measured_at(default, HUGE);
        let streaming = self.channels.iter().position(|(name, _)| *name == STREAMING);
        let streaming = streaming.filter(|_| applies)?;
        let (ratio, _) = self.compare(streaming, default, HUGE)?;
        let share = self.measured.cache_share / SHARE.1 * SHARE.0;
        (ratio < BEYOND_MAX).then_some(share.max(HUGE))
    }

    /// Time of `channel` relative to `other`, and the margin that their noise asks for, over the
    /// buffers on which both were measured around this size.
    fn compare(&self, channel: usize, other: usize, bytes: u64) -> Option<(f64, f64)> {
        let (mut mine, mut theirs, mut spread) = (0.0, 0.0, 0.0f64);
        for (buffer, curve) in &self.channels[channel].1 {
            let covers = |c: &Curve| {
                c.points.first().is_some_and(|p| p.bytes <= bytes)
                    && c.points.last().is_some_and(|p| p.bytes >= bytes)
            };
            let rival = self.channels[other].1.iter().find(|(b, _)| b == buffer);
            let Some((_, rival)) = rival.filter(|(_, c)| covers(c) && covers(curve)) else {
                continue;
            };
            mine += Interpolation::new(&curve.points)?.at(bytes);
            theirs += Interpolation::new(&rival.points)?.at(bytes);
            spread = spread.max((spread_at(curve, bytes) + spread_at(rival, bytes)) / 2.0);
        }
        (theirs > 0.0).then(|| (mine / theirs, spread.clamp(MARGIN, MARGIN_MAX)))
    }

    /// Returns stretches to the default, those that gain least first, until the table holds what is
    /// left; and a single size in the midst of others is noise unless it gains a lot.
    ///
    /// Bypassing the caches pays from some size on, or not at all: on buffers that are used again it
    /// has to pay at a size no cache of a core holds.
    fn simplify(&self, default: usize, sizes: &[u64], choice: &mut [usize]) {
        const LONE_GAIN: f64 = 0.25;
        loop {
            let stretches = stretches(choice);
            let gain = |range: &std::ops::Range<usize>| -> f64 {
                let channel = choice[range.start];
                range
                    .clone()
                    .filter_map(|i| self.compare(channel, default, sizes[i]))
                    .map(|(ratio, _)| 1.0 - ratio)
                    .sum()
            };
            let proven = self.reuse == Reuse::Cold || self.measured_at(default, HUGE);
            let passing = |r: &std::ops::Range<usize>| {
                self.channels[choice[r.start]].0 == STREAMING && (r.end < choice.len() || !proven)
            };
            let inner = |r: &std::ops::Range<usize>| r.start > 0 && r.end < choice.len();
            let weakest = stretches
                .iter()
                .filter(|range| choice[range.start] != default)
                .filter(|range| {
                    stretches.len() > STEPS_MAX
                        || passing(range)
                        || (range.len() == 1 && inner(range) && gain(range) < LONE_GAIN)
                })
                .min_by(|a, b| gain(a).total_cmp(&gain(b)))
                .cloned();
            match weakest {
                Some(range) => choice[range].fill(default),
                None => return,
            }
        }
    }

    fn measured_at(&self, channel: usize, bytes: u64) -> bool {
        let mut curves = self.channels[channel].1.iter();
        curves.any(|(_, curve)| curve.points.iter().any(|point| point.bytes == bytes))
    }

    /// The largest size up to which `before` is not slower than `after`, between two measured ones.
    fn crossing(&self, before: usize, after: usize, low: u64, high: u64) -> u64 {
        let after_wins = |bytes: u64| {
            self.suits_readers(after, before, bytes)
                && self.compare(after, before, bytes).is_none_or(|(ratio, _)| ratio < 1.0)
        };
        let (mut low, mut high) = (low, high);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if after_wins(middle) { high = middle } else { low = middle }
        }
        low
    }
}

/// Runs of equal values.
fn stretches(choice: &[usize]) -> Vec<std::ops::Range<usize>> {
    let mut ranges: Vec<std::ops::Range<usize>> = Vec::new();
    for (i, channel) in choice.iter().enumerate() {
        match ranges.last_mut() {
            Some(range) if choice[range.start] == *channel => range.end = i + 1,
            _ => ranges.push(i..i + 1),
        }
    }
    ranges
}

fn spread_at(curve: &Curve, bytes: u64) -> f64 {
    let after = curve.points.partition_point(|p| p.bytes < bytes).min(curve.points.len() - 1);
    f64::from(curve.points[after].spread)
}

#[cfg(test)]
mod tests;
