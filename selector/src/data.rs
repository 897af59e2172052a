// SPDX-License-Identifier: Apache-2.0
//! What was measured: a plain value that is exchanged between PEs, cached, saved and replayed.

use crate::class::Class;
use serde::{Deserialize, Serialize};
use std::fmt;
use tombolo_core::named;
use tombolo_core::transport::SegmentKind;

/// Name of the channel of stores and loads on mapped memory.
pub const CACHED: &str = "cached";
/// Name of the same with stores that bypass the caches.
pub const STREAMING: &str = "streaming";
/// Name of execution by the target from its request queue.
pub const SERVICE: &str = "service";

named! {
    /// What is measured and routed.
    #[derive(PartialOrd, Ord, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    Operation {
        /// A put, complete at the target.
        Put = "put",
        /// A blocking get.
        Get = "get",
        /// A fetching add of 8 bytes.
        Amo = "amo",
        /// One of sixteen non-blocking puts that complete together.
        Pipeline = "pipeline",
        /// One of four blocking puts, one after another, that complete together. Their sources are
        /// free on return, for which a transport may have to copy them first.
        Blocking = "blocking",
        /// One of the same four, zero-copy: read from its source, and complete before the next.
        ZeroCopy = "zero-copy",
        /// A put by plain copies, and then reading what it wrote, once.
        PutRead = "put-read",
        /// A get by plain copies, and then reading what it brought, once.
        GetRead = "get-read",
        /// Two PEs complete their puts, put a word to each other and wait for the other one's.
        Meeting = "meeting",
        /// One of two PEs puts, and both meet.
        MetPut = "met-put",
        /// One of two PEs gets from the other, and both meet.
        MetGet = "met-get",
        /// Each of two PEs puts to the other, and both meet.
        BothPut = "both-put",
        /// Each of two PEs gets from the other, and both meet.
        BothGet = "both-get",
        /// Each of two PEs puts to the other, both meet, and each copies what it got.
        Handed = "handed",
        /// A non-blocking put by one of the carriers of its transport, complete at the target.
        Carried = "carried",
        /// One of four blocking puts by one of the carriers, one after another, that complete together.
        CarriedBlocking = "carried-blocking",
    }
}

named! {
    /// Where the two buffers lie.
    #[derive(PartialOrd, Ord, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    Buffer {
        /// Both in the symmetric heap, aligned.
        Heap = "heap",
        /// Remote in the heap, local in private memory.
        Private = "private",
        /// Remote in the heap, local private; neither aligned to a word.
        Unaligned = "unaligned",
        /// Remote in static data.
        Static = "static",
        /// As heap, on memory that was not used a moment ago.
        Cold = "cold",
        /// As private, on memory that was not used a moment ago.
        ColdPrivate = "cold-private",
    }
}

impl Operation {
    /// What one or both of two PEs do before they meet.
    pub const BEFORE_MEETINGS: [Operation; 5] = [
        Operation::MetPut,
        Operation::BothPut,
        Operation::MetGet,
        Operation::BothGet,
        Operation::Handed,
    ];

    /// Whether the carriers of one transport are compared by it.
    pub fn compares_carriers(self) -> bool {
        matches!(self, Operation::Carried | Operation::CarriedBlocking)
    }
}

impl Buffer {
    /// Whether operations are on memory that was not used a moment ago.
    pub fn is_cold(self) -> bool {
        matches!(self, Buffer::Cold | Buffer::ColdPrivate)
    }

    /// The segment of the remote side.
    pub fn segment(self) -> SegmentKind {
        if self == Buffer::Static { SegmentKind::Static } else { SegmentKind::Heap }
    }
}

/// One size.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(into = "(u64, f32, f32, u16)", from = "(u64, f32, f32, u16)")]
pub struct Point {
    /// Payload in bytes.
    pub bytes: u64,
    /// Time of one operation in nanoseconds: the median of the faster half of the batches.
    pub ns: f32,
    /// How far that lies above the fastest batch, as a fraction; 0 if there was one batch only.
    pub spread: f32,
    /// Batches that nothing interrupted; 0 if the processor was taken away during each of them.
    pub batches: u16,
}

impl From<(u64, f32, f32, u16)> for Point {
    fn from((bytes, ns, spread, batches): (u64, f32, f32, u16)) -> Point {
        Point { bytes, ns, spread, batches }
    }
}

impl From<Point> for (u64, f32, f32, u16) {
    fn from(point: Point) -> (u64, f32, f32, u16) {
        (point.bytes, point.ns, point.spread, point.batches)
    }
}

/// What a curve is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Key {
    /// Between which PEs.
    #[serde(with = "as_text")]
    pub class: Class,
    /// Doing what.
    pub operation: Operation,
    /// On which buffers.
    pub buffer: Buffer,
    /// By which channel: [`CACHED`], [`STREAMING`], [`SERVICE`], the name of a transport, or that of one of its
    /// [`carriers`](crate::carriers).
    pub channel: String,
}

mod as_text {
    use crate::class::Class;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub fn serialize<S: Serializer>(class: &Class, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(class)
    }

    pub fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<Class, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

/// Times of one channel by size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Curve {
    /// About what.
    #[serde(flatten)]
    pub key: Key,
    /// Measured, by rising size; the model is made from these.
    pub points: Vec<Point>,
    /// Measured apart, at other sizes; the model is judged by these.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub checks: Vec<Point>,
}

/// A channel that is not used between PEs of a class.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Rejected {
    /// Between which PEs.
    #[serde(with = "as_text")]
    pub class: Class,
    /// Which channel.
    pub channel: String,
    /// Why, for people.
    pub why: String,
    /// It failed while it was measured, which may not happen again: a PE may have been stopped.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub failed: bool,
}

/// What is known without measurements of an engine that may carry puts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Engine {
    /// Between which PEs.
    #[serde(with = "as_text")]
    pub class: Class,
    /// By which transport.
    pub transport: String,
    /// Bytes of non-blocking puts that a model expects it to be faster for; `u64::MAX` for none.
    pub expected: u64,
    /// It leaves the processors of PEs to these.
    pub is_free: bool,
}

/// How undisturbed the measuring was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Batches {
    /// Batches of operations that were timed.
    pub taken: u64,
    /// Those of them that do not count, because the processor was taken away or the clock jumped.
    pub discarded: u64,
}

impl Batches {
    /// The part that was discarded.
    pub fn share_discarded(self) -> f64 {
        self.discarded as f64 / self.taken.max(1) as f64
    }
}

/// How far measurements can be relied on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Grade {
    /// Nothing speaks against them.
    Good,
    /// The machine was busy, but what it disturbed was left out: the reason, for people.
    Disturbed(String),
    /// They cannot be relied on: the reason, for people.
    Doubtful(String),
}

/// Everything that was measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Measurements {
    /// By key, in key order.
    pub curves: Vec<Curve>,
    /// In order.
    #[serde(default)]
    pub rejected: Vec<Rejected>,
    /// In order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub engines: Vec<Engine>,
    /// Bytes of the last-level cache for each processor that shares it, the least of all PEs that
    /// measured; 0 if unknown.
    #[serde(default)]
    pub cache_share: u64,
    /// How undisturbed the measuring was.
    #[serde(default)]
    pub batches: Batches,
}

impl Measurements {
    /// The curve of a channel.
    pub fn curve(
        &self,
        class: Class,
        operation: Operation,
        buffer: Buffer,
        channel: &str,
    ) -> Option<&Curve> {
        let wanted = (class, operation, buffer, channel);
        let of = |c: &Curve| (c.key.class, c.key.operation, c.key.buffer);
        let at = self
            .curves
            .binary_search_by(|c| {
                (of(c), c.key.channel.as_str()).cmp(&((wanted.0, wanted.1, wanted.2), wanted.3))
            })
            .ok()?;
        Some(&self.curves[at])
    }

    /// Classes with curves, in order.
    pub fn classes(&self) -> Vec<Class> {
        let mut classes: Vec<Class> = self.curves.iter().map(|c| c.key.class).collect();
        classes.dedup();
        classes
    }

    /// Channels measured for an operation between PEs of a class, in the order in which ties are
    /// broken: cached, streaming, then by name.
    pub fn channels(&self, class: Class, operation: Operation) -> Vec<&str> {
        let mut names: Vec<&str> = self
            .curves
            .iter()
            .filter(|c| c.key.class == class && c.key.operation == operation)
            .map(|c| c.key.channel.as_str())
            .collect();
        names.sort_unstable_by_key(|name| (rank(name), *name));
        names.dedup();
        names
    }

    /// Adds what another PE measured; for a class both know, the other's curves replace these.
    pub fn merge(&mut self, other: Measurements) {
        let newer = other.classes();
        self.curves.retain(|curve| !newer.contains(&curve.key.class));
        self.rejected.retain(|r| !newer.contains(&r.class));
        self.engines.retain(|engine| !newer.contains(&engine.class));
        self.curves.extend(other.curves);
        self.rejected.extend(other.rejected);
        self.engines.extend(other.engines);
        let shares = [self.cache_share, other.cache_share].into_iter();
        self.cache_share = shares.filter(|share| *share > 0).min().unwrap_or(0);
        self.batches.taken += other.batches.taken;
        self.batches.discarded += other.batches.discarded;
        self.put_in_order();
    }

    /// Sorts what was added in any order; curves of one key become one, with the best time of each
    /// size.
    pub fn put_in_order(&mut self) {
        self.curves.sort_by(|a, b| a.key.cmp(&b.key));
        self.curves.dedup_by(|later, first| {
            let same = later.key == first.key;
            if same {
                first.points.append(&mut later.points);
                first.checks.append(&mut later.checks);
            }
            same
        });
        for curve in &mut self.curves {
            for points in [&mut curve.points, &mut curve.checks] {
                // Of several times for one size the best counts.
                points.sort_by(|a, b| a.bytes.cmp(&b.bytes).then(a.ns.total_cmp(&b.ns)));
                points.dedup_by_key(|p| p.bytes);
            }
        }
        self.rejected.sort();
        self.rejected.dedup();
        self.engines.sort();
        self.engines.dedup();
    }

    /// Whether the numbers can be used: finite, positive, in order. Says what is wrong.
    pub fn check(&self) -> Result<(), String> {
        for curve in &self.curves {
            for points in [&curve.points, &curve.checks] {
                let sane = points.iter().all(|p| {
                    p.ns.is_finite() && p.ns > 0.0 && p.spread.is_finite() && p.spread >= 0.0
                });
                let rising = points.windows(2).all(|w| w[0].bytes < w[1].bytes);
                if !sane || !rising {
                    return Err(format!("the curve {} has impossible points", curve.key));
                }
            }
            if curve.points.is_empty() {
                return Err(format!("the curve {} has no points", curve.key));
            }
        }
        if !self.curves.windows(2).all(|w| w[0].key < w[1].key) {
            return Err("the curves are not in order".into());
        }
        Ok(())
    }

    /// How far the measurements can be relied on.
    ///
    /// Measurements on a busy machine tell the time that others took. They are told by the processor
    /// being taken away during them, and by a model that does not fit a second set of measurements. What was
    /// measured once, or has no second set, does not tell how busy the machine was. A channel that failed is
    /// worth another trial.
    pub fn grade(&self) -> Grade {
        /// Part of the sizes during each of whose batches the processor was taken away.
        const INTERRUPTED: f64 = 0.25;
        /// Part of the sizes of which there is one batch, or none that counts.
        const ONCE: f64 = 0.5;
        /// Part of the batches that were discarded: what was left says little, or something.
        const DISCARDED: [f64; 2] = [0.5, 0.05];
        /// Mean error of the model, likewise.
        const ERROR: [f64; 2] = [0.25, 0.12];
        // What is uncertain of carriers changes nothing.
        let routes = || self.curves.iter().filter(|c| !c.key.operation.compares_carriers());
        let points = || routes().flat_map(|c| c.points.iter().chain(&c.checks));
        let share_of = |batches: u16| {
            let few = points().filter(|point| point.batches <= batches).count();
            few as f64 / points().count().max(1) as f64
        };
        let share = share_of(0);
        if share > INTERRUPTED {
            return Grade::Doubtful(format!(
                "other processes took the processor away during {:.0} % of the measurements",
                share * 100.0
            ));
        }
        if let Some(lost) = self.rejected.iter().find(|rejected| rejected.failed) {
            let Rejected { class, channel, why, .. } = lost;
            let peers = crate::report::describe(*class);
            return Grade::Doubtful(format!("{channel} to {peers} is left out: {why}"));
        }
        let once = share_of(1);
        if once > ONCE {
            return Grade::Doubtful(format!(
                "{:.0} % of the sizes were measured once at most; a larger SHMEM_TUNE_BUDGET gives more time",
                once * 100.0
            ));
        }
        let discarded = self.batches.share_discarded();
        let taken_away = || {
            format!(
                "{:.0} % of the batches were discarded, because the processor was taken away or the \
                 clock jumped",
                discarded * 100.0
            )
        };
        let known = crate::model::error(&self.curves);
        let error = known.map_or(0.0, |(error, _)| error);
        // A PE and itself get no second set.
        let unknown = known.is_none() && self.curves.iter().any(|c| c.key.class != Class::Own);
        let off = || {
            format!(
                "a second set of measurements differs by {:.0} % on average from what the first predicts",
                error * 100.0
            )
        };
        match () {
            () if discarded > DISCARDED[0] => Grade::Doubtful(taken_away()),
            () if error > ERROR[0] => Grade::Doubtful(off()),
            () if discarded > DISCARDED[1] => Grade::Disturbed(taken_away()),
            () if error > ERROR[1] => Grade::Disturbed(off()),
            () if unknown => {
                Grade::Disturbed("there was no time to measure a second set of sizes".to_owned())
            }
            () => Grade::Good,
        }
    }

    /// Why the measurements cannot be relied on, for people; none if they can.
    pub fn doubt(&self) -> Option<String> {
        match self.grade() {
            Grade::Doubtful(why) => Some(why),
            Grade::Good | Grade::Disturbed(_) => None,
        }
    }

    /// A number that changes with any measured value.
    pub fn digest(&self) -> u64 {
        let mut digest = Digest::default();
        for curve in &self.curves {
            digest.text(&curve.key.to_string());
            for point in curve.points.iter().chain(&curve.checks) {
                digest.number(point.bytes);
                digest.number(u64::from(point.ns.to_bits()));
                digest.number(u64::from(point.spread.to_bits()));
                digest.number(u64::from(point.batches));
            }
        }
        for rejected in &self.rejected {
            digest.text(&rejected.class.to_string());
            digest.text(&rejected.channel);
            digest.text(&rejected.why);
            digest.number(rejected.failed.into());
        }
        for Engine { class, transport, expected, is_free } in &self.engines {
            digest.text(&format!("{class} {transport}"));
            digest.number(*expected);
            digest.number((*is_free).into());
        }
        digest.number(self.cache_share);
        digest.number(self.batches.taken);
        digest.number(self.batches.discarded);
        digest.0
    }
}

/// Order of preference between channels that cost the same.
pub fn rank(channel: &str) -> u8 {
    match channel {
        CACHED => 0,
        STREAMING => 1,
        SERVICE => 3,
        _ => 2,
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {} {}", self.class, self.operation, self.buffer, self.channel)
    }
}

impl fmt::Display for Grade {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Grade::Good => f.write_str("good"),
            Grade::Disturbed(why) => write!(f, "disturbed: {why}"),
            Grade::Doubtful(why) => write!(f, "doubtful: {why}"),
        }
    }
}

/// FNV-1a, 64 bits: the same on every machine and in every version of the compiler.
pub struct Digest(pub u64);

impl Default for Digest {
    fn default() -> Digest {
        Digest(0xcbf2_9ce4_8422_2325)
    }
}

impl Digest {
    /// Takes in some bytes and an end mark.
    pub fn text(&mut self, text: &str) {
        for byte in text.bytes().chain([0xff]) {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    /// Takes in a number.
    pub fn number(&mut self, number: u64) {
        for byte in number.to_le_bytes() {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(taken: u64, discarded: u64, checked_ns: f32) -> Measurements {
        let key = Key {
            class: Class::Cache,
            operation: Operation::Put,
            buffer: Buffer::Heap,
            channel: CACHED.to_owned(),
        };
        let point = |bytes, ns| Point { bytes, ns, spread: 0.0, batches: 7 };
        let points = vec![point(8, 100.0), point(24, 100.0)];
        let curves = vec![Curve { key, points, checks: vec![point(16, checked_ns)] }];
        Measurements { curves, batches: Batches { taken, discarded }, ..Measurements::default() }
    }

    #[test]
    fn batches_that_were_discarded_lower_the_grade() {
        let grade = |discarded| measured(1000, discarded, 100.0).grade();
        assert_eq!(grade(40), Grade::Good);
        let disturbed = grade(200);
        assert!(matches!(disturbed, Grade::Disturbed(_)), "{disturbed}");
        assert!(disturbed.to_string().starts_with("disturbed: 20 % of the batches were discarded"));
        assert!(measured(1000, 200, 100.0).doubt().is_none());
        assert!(measured(1000, 600, 100.0).doubt().is_some_and(|why| why.starts_with("60 %")));
        assert_eq!(measured(0, 0, 100.0).grade(), Grade::Good);
    }

    #[test]
    fn a_channel_that_failed_is_measured_again_and_one_that_is_not_there_is_not() {
        let with = |failed| {
            let mut measured = measured(1000, 0, 100.0);
            let (class, channel) = (Class::Hops(1), "ntb".to_owned());
            let why = "an operation did not complete within 2s".to_owned();
            measured.rejected.push(Rejected { class, channel, why, failed });
            measured
        };
        assert_eq!(with(false).doubt(), None);
        let why = with(true).doubt().unwrap();
        assert!(why.starts_with("ntb to PEs of a neighbouring host is left out: an oper"), "{why}");
        let text = serde_json::to_string(&with(true)).unwrap();
        assert_eq!(serde_json::from_str::<Measurements>(&text).unwrap(), with(true));
    }

    #[test]
    fn a_model_that_does_not_fit_lowers_the_grade() {
        assert_eq!(measured(1000, 0, 95.0).grade(), Grade::Good);
        assert!(matches!(measured(1000, 0, 85.0).grade(), Grade::Disturbed(_)));
        assert!(matches!(measured(1000, 0, 50.0).grade(), Grade::Doubtful(_)));
    }

    #[test]
    fn what_was_measured_once_is_not_relied_on() {
        let with = |once: usize| {
            let mut measured = measured(1000, 0, 100.0);
            let curve = &mut measured.curves[0];
            let points = curve.points.iter_mut().chain(&mut curve.checks);
            points.take(once).for_each(|point| point.batches = 1);
            measured
        };
        assert_eq!(with(1).grade(), Grade::Good);
        let why = with(2).doubt().unwrap();
        assert!(why.starts_with("67 % of the sizes were measured once at most"), "{why}");
    }

    #[test]
    fn carriers_that_were_measured_once_do_not_make_routes_doubtful() {
        let mut measured = measured(1000, 0, 100.0);
        let mut carried = measured.curves[0].clone();
        carried.key.operation = Operation::Carried;
        carried.checks.clear();
        let points = (1..20).map(|n| Point { bytes: n, ns: 1.0, spread: 0.0, batches: 1 });
        carried.points = points.collect();
        measured.curves.push(carried);
        assert_eq!(measured.grade(), Grade::Good);
    }

    #[test]
    fn engines_are_kept_with_the_measurements_of_their_class() {
        let with = |expected| {
            let class = Class::Cache;
            let engine = Engine { class, transport: "ntb".to_owned(), expected, is_free: false };
            Measurements { engines: vec![engine], ..measured(1000, 0, 100.0) }
        };
        let mut both = with(4096);
        let text = serde_json::to_string(&both).unwrap();
        assert_eq!(serde_json::from_str::<Measurements>(&text).unwrap(), both);
        assert_ne!(both.digest(), with(8192).digest());
        both.merge(with(8192));
        assert_eq!(both.engines, with(8192).engines);
    }

    #[test]
    fn without_a_second_set_nothing_is_known_of_the_model() {
        let of = |class| {
            let mut measured = measured(1000, 0, 100.0);
            measured.curves[0].key.class = class;
            measured.curves[0].checks.clear();
            measured.grade()
        };
        assert!(matches!(of(Class::Cache), Grade::Disturbed(_)));
        // A PE and itself get no second set.
        assert_eq!(of(Class::Own), Grade::Good);
        assert_eq!(Measurements::default().grade(), Grade::Good);
    }

    #[test]
    fn merged_measurements_count_the_batches_of_both() {
        let mut both = measured(100, 10, 100.0);
        both.merge(measured(50, 1, 100.0));
        assert_eq!(both.batches, Batches { taken: 150, discarded: 11 });
        assert_ne!(both.digest(), measured(100, 10, 100.0).digest());
    }

    #[test]
    fn newer_measurements_of_a_class_replace_the_older_ones() {
        let with = |share, ns| {
            let mut measured = measured(100, 0, 100.0);
            measured.curves[0].points.iter_mut().for_each(|point| point.ns = ns);
            Measurements { cache_share: share, ..measured }
        };
        let merged = |older: u64, newer: u64| {
            let mut both = with(older, 100.0);
            both.merge(with(newer, 200.0));
            assert_eq!(both.curves, with(newer, 200.0).curves);
            both.cache_share
        };
        assert_eq!([merged(5, 7), merged(7, 5), merged(0, 5), merged(5, 0)], [5; 4]);
    }
}
