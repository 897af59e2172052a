// SPDX-License-Identifier: Apache-2.0
//! Decisions that are no channels by size, and what stands for what was not measured.

use super::{choice, describe, time};
use crate::class::Class;
use crate::data::{Buffer, Curve, Measurements, Operation};
use crate::model::Interpolation;
use crate::policy;
use crate::tuning::Tuning;
use crate::{carriers, either};
use tombolo_core::config::Reuse;
use tombolo_core::sizes::size;

/// All remarks.
pub fn of(tuning: &Tuning) -> Vec<String> {
    hints(tuning).into_iter().chain(by_class(tuning.measured())).collect()
}

/// Whom hints about buffers concern.
fn hints(tuning: &Tuning) -> Option<String> {
    let others = match tuning.reuse() {
        Reuse::Hot => "used again",
        Reuse::Cold => "used once",
    };
    tuning.hints_contexts().then(|| {
        format!(
            "contexts may have hints of their own: operations on those with the hint cold take the routes of buffers \
             that are used once, on those with the hint hot the routes of buffers that are used again; buffers of all \
             other operations are taken to be {others}"
        )
    })
}

/// What is to be said of each class.
fn by_class(measured: &Measurements) -> impl Iterator<Item = String> {
    let classes = measured.classes().into_iter();
    classes.flat_map(|class| {
        let carried = carried(measured, class).into_iter();
        carried
            .chain(sources(measured, class))
            .chain(series(measured, class))
            .chain(statics(measured, class))
    })
}

/// What carries puts within a transport that has several carriers, and why.
fn carried(measured: &Measurements, class: Class) -> Vec<String> {
    let peers = describe(class);
    let by = |(operation, what)| {
        let decision = carriers::decision(measured, class, operation)?;
        let (transport, _) = carriers::parts(&decision.default)?;
        let taken = choice(&decision).replace(&format!("{transport} "), "");
        let engine = carriers::engine(measured, class, transport);
        let engine = engine.filter(|_| operation == Operation::Carried).map(|engine| {
            let expected = match engine.expected {
                u64::MAX => "a model expects nothing of the engine".to_owned(),
                bytes => format!("a model expects the engine to be faster from {}", size(bytes)),
            };
            let tie = if engine.is_free {
                ", and at equal times it leaves the processor free"
            } else {
                ""
            };
            format!("; {expected}{tie}")
        });
        let engine = engine.unwrap_or_default();
        Some(format!("{what} to {peers} by {transport}, as measured: {taken}{engine}"))
    };
    let all = [
        (Operation::CarriedBlocking, "blocking puts and puts with a signal"),
        (Operation::Carried, "non-blocking puts"),
    ];
    all.into_iter().filter_map(by).collect()
}

/// Whether the sources of blocking puts are copied first.
fn sources(measured: &Measurements, class: Class) -> impl Iterator<Item = String> {
    let channels = measured.channels(class, Operation::Put);
    let (copying, others): (Vec<&str>, Vec<&str>) = channels.into_iter().partition(|channel| {
        measured.curve(class, Operation::Blocking, Buffer::Heap, channel).is_some()
    });
    let peers = describe(class);
    let nothing = (!others.is_empty()).then(|| {
        let others = others.join(", ");
        format!("blocking puts to {peers} by {others} never copy their source first")
    });
    let decided = copying.into_iter().map(move |channel| {
        let what = match policy::zero_copy(measured, class, channel) {
            Some(bytes) => format!(
                "below {} may copy their source first, and return before the data are sent; longer ones are sent \
                 without a copy and are waited for, which is faster",
                size(bytes)
            ),
            None => {
                "may copy their source first at every size; sending without a copy and waiting was faster at none"
                    .to_owned()
            }
        };
        format!("blocking puts to {} by {channel} {what}", describe(class))
    });
    nothing.into_iter().chain(decided)
}

/// Whether long non-blocking puts take either of two transports.
fn series(measured: &Measurements, class: Class) -> Option<String> {
    let either::Series { channel, ns, alone: (best, alone) } = either::faster(measured, class)?;
    Some(format!(
        "non-blocking puts to {} from {} on take that transport of {} which is expected to be done first: in a series \
         one put took {}, and by {best} alone {}",
        describe(class),
        size(either::SIZE),
        channel.replace('/', " and "),
        time(ns),
        time(alone)
    ))
}

/// What stands for puts to static data.
fn statics(measured: &Measurements, class: Class) -> Option<String> {
    let gets = |buffer| {
        let of = move |c: &&Curve| {
            (c.key.class, c.key.operation, c.key.buffer) == (class, Operation::Get, buffer)
        };
        measured.curves.iter().filter(of)
    };
    let names = |curves: &mut dyn Iterator<Item = &Curve>| -> Vec<String> {
        curves.map(|curve| curve.key.channel.clone()).collect()
    };
    let by = names(&mut gets(Buffer::Static));
    // Gets from static data go to private memory, and so do these.
    let heap_by = names(&mut gets(Buffer::Private));
    let peers = describe(class);
    let unmeasured = "are not measured, as that would overwrite the program's variables";
    if by.is_empty() {
        return None;
    }
    if by != heap_by {
        return Some(format!(
            "puts to static data of {peers} {unmeasured}; what reaches static data is {}, so puts \
             take the routes of the heap where they are among these, else the first of these that \
             is preferred",
            by.join(", ")
        ));
    }
    let ratios: Vec<f64> = gets(Buffer::Static)
        .zip(gets(Buffer::Private))
        .filter_map(|(from_static, from_heap)| {
            Some((from_static, Interpolation::new(&from_heap.points)?))
        })
        .flat_map(|(from_static, line)| {
            from_static.points.iter().map(move |p| f64::from(p.ns) / line.at(p.bytes))
        })
        .collect();
    let (mean, count) = (ratios.iter().sum::<f64>() / ratios.len().max(1) as f64, ratios.len());
    Some(format!(
        "puts to static data of {peers} {unmeasured}: they take the routes of the heap; gets, which \
         are measured, took {mean:.2} times as long as those from the heap, on average over {count} \
         measurements"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{CACHED, Engine, Key, Point};
    use tombolo_core::transport::Carrier;

    fn curve(operation: Operation, buffer: Buffer, channel: &str, per_byte: f32) -> Curve {
        let class = Class::Hops(1);
        let key = Key { class, operation, buffer, channel: channel.to_owned() };
        let point = |bytes: u64| Point {
            bytes,
            ns: 100.0 + bytes as f32 * per_byte,
            spread: 0.0,
            batches: 7,
        };
        let points = [1 << 16, 1 << 18, 1 << 20].map(point).to_vec();
        Curve { key, points, checks: vec![] }
    }

    fn remarks(curves: Vec<Curve>) -> Vec<String> {
        let mut measured = Measurements { curves, rejected: vec![], ..Measurements::default() };
        measured.put_in_order();
        by_class(&measured).collect()
    }

    #[test]
    fn the_size_is_named_from_which_sources_are_not_copied() {
        let with = |series| {
            remarks(vec![
                curve(Operation::Put, Buffer::Heap, "ntb", 1.0),
                curve(Operation::ZeroCopy, Buffer::Heap, "ntb", 1.0),
                curve(Operation::Blocking, Buffer::Heap, "ntb", series),
            ])
        };
        assert!(with(2.0)[0].contains("by ntb below 64 KiB may copy their source first"));
        assert!(with(1.0)[0].contains("faster at none"));
    }

    #[test]
    fn carriers_are_named_with_what_was_expected_of_the_engine() {
        let by = |operation, carrier, cost| {
            curve(operation, Buffer::Heap, &carriers::name("ntb", carrier), cost)
        };
        let curves = vec![
            by(Operation::CarriedBlocking, Carrier::Stores, 1.0),
            by(Operation::CarriedBlocking, Carrier::Packets, 0.5),
            by(Operation::Carried, Carrier::Stores, 1.0),
            by(Operation::Carried, Carrier::Engine, 2.0),
        ];
        let said = |is_free| {
            let class = Class::Hops(1);
            let engine = Engine { class, transport: "ntb".to_owned(), expected: 1 << 18, is_free };
            let mut measured = Measurements {
                curves: curves.clone(),
                engines: vec![engine],
                ..Measurements::default()
            };
            measured.put_in_order();
            carried(&measured, class)
        };
        let all = said(false);
        assert_eq!(all.len(), 2);
        assert!(
            all[0].ends_with("by ntb, as measured: stores below 64 KiB, packets above"),
            "{all:?}"
        );
        let engine = "stores at every size; a model expects the engine to be faster from 256 KiB";
        assert!(all[1].starts_with("non-blocking puts") && all[1].ends_with(engine), "{all:?}");
        assert!(said(true)[1].ends_with(", and at equal times it leaves the processor free"));
    }

    #[test]
    fn where_nothing_is_copied_there_is_no_choice() {
        let all = remarks(vec![curve(Operation::Put, Buffer::Heap, "cma", 1.0)]);
        assert_eq!(all.len(), 1);
        assert!(all[0].contains("by cma never copy their source first"), "{all:?}");
    }

    #[test]
    fn static_data_are_not_said_to_be_measured() {
        let get = |buffer, channel, cost| curve(Operation::Get, buffer, channel, cost);
        let same =
            remarks(vec![get(Buffer::Private, CACHED, 1.0), get(Buffer::Static, CACHED, 1.0)]);
        assert!(same[0].contains("1.00 times as long"), "{same:?}");
        assert!(same[0].contains("puts to static data") && same[0].contains("not measured"));
        let other =
            remarks(vec![get(Buffer::Private, CACHED, 1.0), get(Buffer::Static, "cma", 1.0)]);
        assert!(other[0].contains("what reaches static data is cma"), "{other:?}");
        assert!(remarks(vec![get(Buffer::Private, CACHED, 1.0)]).is_empty());
    }
}
