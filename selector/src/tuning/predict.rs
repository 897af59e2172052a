// SPDX-License-Identifier: Apache-2.0
//! What operations and meetings of PEs are expected to take, by what was measured.

use super::Tuning;
use crate::class::Class;
use crate::data::{Buffer, Curve, Key, Operation, Point};
use crate::model::Interpolation;
use crate::{either, stripes};

/// How much longer than alone each further byte may take when PEs meet, at least and at most. What is beyond was
/// disturbed.
const FURTHER: [f64; 2] = [0.5, 3.0];

impl Tuning {
    /// Nanoseconds that the model expects of an operation by the chosen channel; none where
    /// nothing is known.
    pub fn predict(&self, class: Class, operation: Operation, bytes: u64) -> Option<f64> {
        self.predicted(class, operation, operation, bytes)
    }

    /// The same for one of several puts that are under way together.
    pub fn predict_pipelined(&self, class: Class, bytes: u64) -> Option<f64> {
        self.predicted(class, Operation::Pipeline, Operation::Put, bytes)
    }

    /// Nanoseconds until two PEs have put a word to each other and seen it; none where that is not known.
    pub fn meeting(&self, class: Class) -> Option<f64> {
        let of = |class| match self.met(class, Operation::Meeting, 8) {
            // On one host both have put data before it, as they would have without it.
            None if class.hops() == 0 => {
                let both = self.met(class, Operation::BothPut, 8)?;
                Some((both - self.predict(class, Operation::Put, 8)?).max(both / 2.0))
            }
            known => known,
        };
        of(class).or_else(|| match class {
            // Over more links than were measured it takes as much longer as there are more of them.
            Class::Hops(hops) => of(Class::Hops(1)).map(|ns| ns * f64::from(hops)),
            _ => None,
        })
    }

    /// Nanoseconds that a put or a get takes when a meeting follows, or that both take when both PEs do so, without the
    /// meeting; for [`Operation::Handed`] the copy alone. None where that was not measured.
    ///
    /// It is the time of the shortest one, and for each further byte what it takes alone, times as much as that was
    /// at the sizes that were measured. Times of long operations alone were taken more often.
    pub fn before_meeting(&self, class: Class, operation: Operation, bytes: u64) -> Option<f64> {
        let alone = match operation {
            Operation::MetPut | Operation::BothPut => Operation::Put,
            Operation::MetGet | Operation::BothGet => Operation::Get,
            _ => {
                let both = self.before_meeting(class, Operation::BothPut, bytes)?;
                let meeting = self.met(class, Operation::Meeting, 8)?;
                return Some((self.met(class, operation, bytes)? - meeting - both).max(0.0));
            }
        };
        let shortest = self.met(class, operation, 8)?;
        let further =
            |bytes| Some(self.predict(class, alone, bytes)? - self.predict(class, alone, 8)?);
        let mut times = Vec::new();
        for point in self.met_curve(class, operation)?.points.iter().filter(|p| p.bytes > 8) {
            let times_as_long = (f64::from(point.ns) - shortest) / further(point.bytes)?.max(1.0);
            let ns = times_as_long.clamp(FURTHER[0], FURTHER[1]) as f32;
            times.push(Point { ns, ..*point });
        }
        let last = times.last().map_or(0, |point| point.bytes);
        let times_as_long = Interpolation::new(&times).map_or(1.0, |line| line.at(bytes.min(last)));
        let start = (shortest - self.met(class, Operation::Meeting, 8)?).max(0.0);
        Some(start + times_as_long * further(bytes)?.max(0.0))
    }

    fn met_curve(&self, class: Class, operation: Operation) -> Option<&Curve> {
        let mut curves = self.measured.curves.iter();
        curves.find(|c| (c.key.class, c.key.operation) == (class, operation))
    }

    /// A meeting, and what is done before it, by whatever channels were in force.
    fn met(&self, class: Class, operation: Operation, bytes: u64) -> Option<f64> {
        Some(Interpolation::new(&self.met_curve(class, operation)?.points)?.at(bytes))
    }

    /// An operation by the channel that is chosen for `routed`.
    fn predicted(
        &self,
        class: Class,
        operation: Operation,
        routed: Operation,
        bytes: u64,
    ) -> Option<f64> {
        let decision = self.decision(class, routed, Buffer::Heap);
        // Between distances that were measured and ones that were not, channels are the same.
        let decision = decision.or_else(|| self.decision(Class::Hops(1), routed, Buffer::Heap))?;
        let mut channel = either::waited(decision.channel(bytes));
        if operation != routed && stripes::transports(channel).is_some() {
            // Several at the same time were not measured so.
            channel = &decision.default;
        }
        let channel = channel.to_owned();
        let key = Key { class, operation, buffer: Buffer::Heap, channel };
        self.model().predict(&self.measured, &key, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{CACHED, Measurements};
    use crate::tuning::Origin;

    fn tuning(class: Class, channel: &str, times: &[(Operation, &[(u64, f32)])]) -> Tuning {
        let curve = |(operation, points): &(Operation, &[(u64, f32)])| {
            let (buffer, channel) = (Buffer::Heap, channel.to_owned());
            let key = Key { class, operation: *operation, buffer, channel };
            let point = |(bytes, ns): &(u64, f32)| Point {
                bytes: *bytes,
                ns: *ns,
                spread: 0.0,
                batches: 7,
            };
            Curve { key, points: points.iter().map(point).collect(), checks: Vec::new() }
        };
        let mut measured =
            Measurements { curves: times.iter().map(curve).collect(), ..Measurements::default() };
        measured.put_in_order();
        Tuning::without_job(Origin::Measured, String::new(), measured, &["ntb"])
    }

    #[test]
    fn operations_before_meetings_are_known_without_the_meeting() {
        let class = Class::Hops(1);
        let known = tuning(
            class,
            "ntb",
            &[
                (Operation::Put, &[(8, 100.0), (1 << 20, 100.0 + 1048568.0)]),
                (Operation::Get, &[(8, 1000.0), (1 << 20, 1000.0 + 1048568.0)]),
                (Operation::Meeting, &[(8, 300.0)]),
                (Operation::MetPut, &[(8, 350.0)]),
                (Operation::BothPut, &[(8, 370.0)]),
                // Each further byte takes twice as long as alone, then three times, which is as far as it goes.
                (Operation::MetGet, &[(8, 1500.0), (1008, 3500.0), (9008, 36_500.0)]),
                (Operation::Handed, &[(8, 470.0), (1008, 2470.0)]),
            ],
        );
        let before = |operation, bytes| known.before_meeting(class, operation, bytes).unwrap();
        let near = |found: f64, expected: f64| {
            assert!((found / expected - 1.0).abs() < 1e-3, "{found} instead of {expected}");
        };
        assert_eq!(known.meeting(class), Some(300.0));
        near(before(Operation::MetPut, 8), 50.0);
        near(before(Operation::BothPut, 1008), 70.0 + 1000.0);
        near(before(Operation::MetGet, 8), 1200.0);
        near(before(Operation::MetGet, 508), 1200.0 + 2.0 * 500.0);
        near(before(Operation::MetGet, 5008), 1200.0 + 2.5 * 5000.0);
        near(before(Operation::MetGet, 1_000_008), 1200.0 + 3.0 * 1e6);
        near(before(Operation::Handed, 8), 100.0);
        near(before(Operation::Handed, 1008), 2470.0 - 370.0 - 1000.0);
        assert_eq!(known.before_meeting(class, Operation::BothGet, 8), None);
        assert_eq!(known.before_meeting(Class::Network, Operation::MetPut, 8), None);
    }

    #[test]
    fn on_one_host_a_meeting_is_known_from_one_after_puts_of_both() {
        let of = |both| {
            let times: [(Operation, &[(u64, f32)]); 2] =
                [(Operation::Put, &[(8, 10.0)]), (Operation::BothPut, &[(8, both)])];
            tuning(Class::Cache, CACHED, &times).meeting(Class::Cache)
        };
        assert_eq!(of(110.0), Some(100.0));
        // A put that was disturbed leaves half of it.
        assert_eq!(of(12.0), Some(6.0));
    }
}
