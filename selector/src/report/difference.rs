// SPDX-License-Identifier: Apache-2.0
//! What differs between two saved tables.

use super::{choice, describe, time};
use crate::carriers;
use crate::data::{Curve, Grade, Point};
use crate::policy::{Decision, MARGIN, MARGIN_MAX};
use crate::tuning::Tuning;
use std::fmt::Write as _;
use tombolo_core::sizes::size;

/// Times that differ by more than their spreads, and channels that are taken by one table only, for a
/// terminal.
pub fn text(first: &Tuning, second: &Tuning) -> String {
    let mut text = format!("First: {}\nSecond: {}\n", first.origin(), second.origin());
    if first.machine() != second.machine() {
        let _ = writeln!(
            text,
            "They are of different machines:\n  {}\n  {}",
            first.machine(),
            second.machine()
        );
    }
    for (which, tuning) in [("first", first), ("second", second)] {
        let grade = tuning.measured().grade();
        if grade != Grade::Good {
            let _ = writeln!(text, "The {which} is {grade}");
        }
    }
    let _ = writeln!(text, "\nTimes");
    let (mut same, mut changed) = (0, 0);
    for curve in &first.measured().curves {
        let key = &curve.key;
        for (old, new) in
            counterpart(curve, second).into_iter().flat_map(|other| pairs(curve, other))
        {
            if !differ(old, new) {
                same += 1;
                continue;
            }
            changed += 1;
            let _ = writeln!(
                text,
                "  {} to {}, {} buffers, by {}, {}: {} became {}, {:.2} times",
                key.operation,
                describe(key.class),
                key.buffer,
                key.channel,
                size(old.bytes),
                time(f64::from(old.ns)),
                time(f64::from(new.ns)),
                new.ns / old.ns,
            );
        }
    }
    let alone = alone(first, second) + alone(second, first);
    let _ = writeln!(text, "  {changed} differ, {same} do not, {alone} are in one table only");
    let _ = writeln!(text, "\nChannels");
    let mut changed = 0;
    let place = |d: &Decision| (d.class, d.operation, d.remote);
    let all = |tuning: &Tuning| -> Vec<Decision> {
        let carried = carriers::decisions(tuning.measured());
        tuning.decisions().iter().cloned().chain(carried).collect()
    };
    let tables = [all(first), all(second)];
    let of = |table: &[Decision], wanted| {
        let found = table.iter().find(|d| place(d) == wanted);
        found.map_or_else(|| "not measured".to_owned(), choice)
    };
    let mut places: Vec<_> = tables.iter().flatten().map(place).collect();
    places.sort_unstable();
    places.dedup();
    for wanted @ (class, operation, remote) in places {
        let (old, new) = (of(&tables[0], wanted), of(&tables[1], wanted));
        if old == new {
            continue;
        }
        changed += 1;
        let _ = writeln!(
            text,
            "  {operation} to {}, {remote} buffers: {old}; in the second table: {new}",
            describe(class),
        );
    }
    if changed == 0 {
        text.push_str("  both take the same ones\n");
    }
    text
}

/// The curve of a table about the same as one of another table.
fn counterpart<'a>(curve: &Curve, other: &'a Tuning) -> Option<&'a Curve> {
    let key = &curve.key;
    other.measured().curve(key.class, key.operation, key.buffer, &key.channel)
}

/// Times of a table that another one does not have.
fn alone(tuning: &Tuning, other: &Tuning) -> usize {
    let both = |curve| counterpart(curve, other).map_or(0, |other| pairs(curve, other).count());
    tuning.measured().curves.iter().map(|curve| curve.points.len() - both(curve)).sum()
}

/// Points of sizes that both curves have.
fn pairs<'a>(a: &'a Curve, b: &'a Curve) -> impl Iterator<Item = (&'a Point, &'a Point)> {
    a.points.iter().filter_map(|old| {
        let at = b.points.binary_search_by_key(&old.bytes, |point| point.bytes).ok()?;
        Some((old, &b.points[at]))
    })
}

/// Whether two times differ by more than twice the margin of decisions and more than their spreads. Of a time that was
/// taken once the spread is not known: any that decisions still ask for may be it.
fn differ(old: &Point, new: &Point) -> bool {
    let spread = |point: &Point| match point.batches {
        0 | 1 => f64::from(point.spread).max(MARGIN_MAX),
        _ => f64::from(point.spread),
    };
    let allowed = 1.0 + (spread(old) + spread(new)).max(2.0 * MARGIN);
    let ratio = f64::from(new.ns) / f64::from(old.ns);
    ratio > allowed || ratio < 1.0 / allowed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::class::Class;
    use crate::data::{Buffer, CACHED, Key, Measurements, Operation};
    use crate::tuning::Origin;

    fn tuning(cma: f32, spread: f32) -> Tuning {
        let curve = |channel: &str, ns: f32| Curve {
            key: Key {
                class: Class::Cache,
                operation: Operation::Put,
                buffer: Buffer::Heap,
                channel: channel.to_owned(),
            },
            points: [8u64, 4096]
                .map(|bytes| Point { bytes, ns: ns * bytes as f32, spread, batches: 7 })
                .to_vec(),
            checks: vec![],
        };
        let curves = vec![curve(CACHED, 2.0), curve("cma", cma)];
        let mut measured = Measurements { curves, ..Measurements::default() };
        measured.put_in_order();
        Tuning::without_job(Origin::Measured, "a machine".into(), measured, &["cma"])
    }

    #[test]
    fn what_differs_is_told_and_noise_is_not() {
        let changed = text(&tuning(4.0, 0.02), &tuning(1.0, 0.02));
        assert!(
            changed.contains("by cma, 4 KiB: 16.38 us became 4.10 us, 0.25 times"),
            "{changed}"
        );
        assert!(changed.contains("2 differ, 2 do not, 0 are in one table only"), "{changed}");
        let routes = "cached at every size; in the second table: cma at every size";
        assert!(changed.contains(routes), "{changed}");
        let noise = text(&tuning(4.0, 0.2), &tuning(5.0, 0.2));
        assert!(noise.contains("0 differ, 4 do not"), "{noise}");
        assert!(noise.contains("both take the same ones"), "{noise}");
    }

    #[test]
    fn times_that_were_taken_once_differ_only_by_much() {
        let once = |tuning: Tuning| {
            let mut measured = tuning.measured().clone();
            let points = measured.curves.iter_mut().flat_map(|curve| &mut curve.points);
            points.for_each(|point| point.batches = 1);
            Tuning::without_job(Origin::Measured, "a machine".into(), measured, &["cma"])
        };
        let (first, second) = (tuning(4.0, 0.0), tuning(5.0, 0.0));
        assert!(text(&first, &second).contains("2 differ, 2 do not"));
        let a_little = text(&first, &once(second));
        assert!(a_little.contains("0 differ, 4 do not"), "{a_little}");
        let much = text(&first, &once(tuning(6.0, 0.0)));
        assert!(much.contains("2 differ, 2 do not"), "{much}");
    }

    #[test]
    fn what_one_table_alone_knows_is_told_whichever_it_is() {
        let (all, none) = (tuning(4.0, 0.0), Measurements::default());
        let none = Tuning::without_job(Origin::Measured, "a machine".into(), none, &["cma"]);
        for (text, said) in [
            (text(&all, &none), "cached at every size; in the second table: not measured"),
            (text(&none, &all), "not measured; in the second table: cached at every size"),
        ] {
            assert!(text.contains("0 differ, 0 do not, 4 are in one table only"), "{text}");
            assert!(text.contains(said) && !text.contains("same ones"), "{text}");
        }
    }
}
