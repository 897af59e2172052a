// SPDX-License-Identifier: Apache-2.0
//! What carries puts to neighbours by a transport that has several carriers: what was measured of each, and from which
//! sizes on each is taken.
//!
//! A carrier other than the one that is taken without measurements has to be clearly faster until its puts are complete,
//! and so for all longer ones that were measured. An engine for whose work nobody's processor is needed need not be
//! faster for non-blocking puts, only not slower: the program computes meanwhile.

use crate::class::Class;
use crate::data::{Buffer, Engine, Measurements, Operation, Point};
use crate::policy::{Decision, MARGIN_MAX, Step};
use tombolo_core::transport::{Carrier, CarrierChoice, Carriers, EngineChoice};

/// A carrier has to be faster or slower by this fraction, or by the spread of the measurements if that is more. More
/// than channels of different transports have to: few sizes are measured, in little time.
const MARGIN: f64 = 0.10;

/// The name of the channel by one carrier.
pub fn name(transport: &str, carrier: Carrier) -> String {
    format!("{transport} {carrier}")
}

/// The transport and the carrier of a channel, if it is one by one carrier.
pub fn parts(channel: &str) -> Option<(&str, Carrier)> {
    let (transport, word) = channel.rsplit_once(' ')?;
    let carrier = Carrier::ALL.into_iter().find(|carrier| carrier.name() == word)?;
    Some((transport, carrier))
}

/// The carriers that compete for puts, if several do.
pub fn rivals(choice: &CarrierChoice, operation: Operation) -> Vec<Carrier> {
    let (stores, engine) = match operation {
        Operation::Carried => (choice.non_blocking, choice.engine.is_some()),
        Operation::CarriedBlocking => (choice.blocking, false),
        _ => (false, false),
    };
    match (stores, engine) {
        (true, true) => Carrier::ALL.to_vec(),
        (true, false) => vec![Carrier::Stores, Carrier::Packets],
        // What the engine does not make goes by stores, as the user wants.
        (false, true) => vec![Carrier::Stores, Carrier::Engine],
        (false, false) => vec![],
    }
}

/// The carriers that are taken as long as nothing is measured.
pub fn expected(engine: Option<EngineChoice>) -> Carriers {
    let engine = engine.map_or(usize::MAX, |engine| engine.expected);
    Carriers { engine, ..Carriers::STORES }
}

/// How one carrier compares with another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Faster,
    Level,
    Slower,
}

/// The carriers of puts by a transport, by what was measured; none where nothing was.
pub fn choose(measured: &Measurements, class: Class, transport: &str) -> Option<Carriers> {
    let points = |operation, carrier| {
        let curve = measured.curve(class, operation, Buffer::Heap, &name(transport, carrier));
        curve.map_or(&[][..], |curve| &curve.points)
    };
    let any =
        |operation| Carrier::ALL.iter().any(|carrier| !points(operation, *carrier).is_empty());
    (any(Operation::Carried) || any(Operation::CarriedBlocking)).then_some(())?;
    let packets = |operation| {
        let stores = points(operation, Carrier::Stores);
        least(&compare(points(operation, Carrier::Packets), |_| stores), usize::MAX)
    };
    let (blocking_packets, packets) =
        (packets(Operation::CarriedBlocking), packets(Operation::Carried));
    let carried = |carrier| points(Operation::Carried, carrier);
    let others = |bytes: u64| match bytes >= packets as u64 {
        true => carried(Carrier::Packets),
        false => carried(Carrier::Stores),
    };
    let engine = engine(measured, class, transport).map_or(usize::MAX, |engine| {
        let mut verdicts = compare(carried(Carrier::Engine), others);
        for (_, verdict) in verdicts.iter_mut().filter(|_| engine.is_free) {
            if *verdict == Verdict::Level {
                *verdict = Verdict::Faster;
            }
        }
        least(&verdicts, usize::try_from(engine.expected).unwrap_or(usize::MAX))
    });
    Some(Carriers { blocking_packets, packets, engine })
}

/// What is known without measurements of the engine of a transport.
pub fn engine<'a>(measured: &'a Measurements, class: Class, transport: &str) -> Option<&'a Engine> {
    let mut engines = measured.engines.iter();
    engines.find(|engine| (engine.class, engine.transport.as_str()) == (class, transport))
}

/// How the carrier of `points` compares with that of `others`, which may be another one for every size, by size.
fn compare<'a>(points: &[Point], others: impl Fn(u64) -> &'a [Point]) -> Vec<(u64, Verdict)> {
    let verdict = |point: &Point| {
        let other = others(point.bytes).iter().find(|other| other.bytes == point.bytes)?;
        let spread = f64::from(point.spread + other.spread) / 2.0;
        let margin = spread.clamp(MARGIN, MARGIN_MAX);
        let ratio = f64::from(point.ns) / f64::from(other.ns);
        // What was seen once may have been luck.
        let seen = point.batches > 1 && other.batches > 1;
        let verdict = match ratio {
            _ if !seen => Verdict::Level,
            ratio if ratio < 1.0 - margin => Verdict::Faster,
            ratio if ratio > 1.0 / (1.0 - margin) => Verdict::Slower,
            _ => Verdict::Level,
        };
        Some((point.bytes, verdict))
    };
    points.iter().filter_map(verdict).collect()
}

/// Bytes from which on a carrier is taken that without measurements is taken from `expected` on: where it is neither
/// faster nor slower that remains. All longer puts that were measured have to agree.
fn least(verdicts: &[(u64, Verdict)], expected: usize) -> usize {
    let mut least = usize::MAX;
    for (bytes, verdict) in verdicts.iter().rev() {
        let bytes = usize::try_from(*bytes).unwrap_or(usize::MAX);
        let takes = match verdict {
            Verdict::Faster => true,
            Verdict::Level => bytes >= expected,
            Verdict::Slower => false,
        };
        if !takes {
            // Between what is refused and what is taken, nothing says more than the expectation.
            return if expected > bytes { expected.min(least) } else { least };
        }
        least = bytes;
    }
    least.min(expected)
}

/// The choices of all classes.
pub fn decisions(measured: &Measurements) -> Vec<Decision> {
    let classes = measured.classes().into_iter();
    let of = |class| {
        let operations = [Operation::CarriedBlocking, Operation::Carried].into_iter();
        operations.filter_map(move |operation| decision(measured, class, operation))
    };
    classes.flat_map(of).collect()
}

/// The choice by size, as far as sizes were measured.
pub fn decision(measured: &Measurements, class: Class, operation: Operation) -> Option<Decision> {
    let names = measured.channels(class, operation);
    let (transport, _) = names.iter().find_map(|name| parts(name))?;
    let chosen = choose(measured, class, transport)?;
    let (packets, engine) = match operation {
        Operation::CarriedBlocking => (chosen.blocking_packets, usize::MAX),
        _ => (chosen.packets, chosen.engine),
    };
    let mut steps = Vec::new();
    let mut from = |least: usize, carrier, before: &mut Carrier| {
        if least > 0 && least < usize::MAX {
            let channel = name(transport, *before);
            steps.push(Step { limit: least as u64 - 1, channel });
        }
        if least < usize::MAX {
            *before = carrier;
        }
    };
    let mut last = Carrier::Stores;
    if packets < engine {
        from(packets, Carrier::Packets, &mut last);
    }
    from(engine, Carrier::Engine, &mut last);
    steps.push(Step { limit: u64::MAX, channel: name(transport, last) });
    let default = name(transport, Carrier::Stores);
    Some(Decision { class, operation, remote: Buffer::Heap, default, steps })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{Curve, Key};

    const SIZES: [u64; 5] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];
    const NONE: usize = usize::MAX;

    fn curve(operation: Operation, carrier: Carrier, times: [f32; 5]) -> Curve {
        let channel = name("ntb", carrier);
        let key = Key { class: Class::Hops(1), operation, buffer: Buffer::Heap, channel };
        let point = |(bytes, ns)| Point { bytes, ns, spread: 0.02, batches: 7 };
        Curve { key, points: SIZES.into_iter().zip(times).map(point).collect(), checks: vec![] }
    }

    fn measured(curves: Vec<Curve>, engine: Option<(u64, bool)>) -> Measurements {
        let engine = engine.map(|(expected, is_free)| Engine {
            class: Class::Hops(1),
            transport: "ntb".to_owned(),
            expected,
            is_free,
        });
        let engines = engine.into_iter().collect();
        let mut measured = Measurements { curves, engines, ..Measurements::default() };
        measured.put_in_order();
        measured
    }

    fn chosen(measured: &Measurements) -> Carriers {
        choose(measured, Class::Hops(1), "ntb").unwrap()
    }

    /// From where on an engine makes puts that takes so many times as long as stores at each size.
    fn engine_from(ratios: [f32; 5], expected: u64, is_free: bool) -> usize {
        let stores = [10.0, 20.0, 40.0, 80.0, 160.0];
        let mut times = stores;
        times.iter_mut().zip(ratios).for_each(|(time, ratio)| *time *= ratio);
        let curves = vec![
            curve(Operation::Carried, Carrier::Stores, stores),
            curve(Operation::Carried, Carrier::Engine, times),
        ];
        chosen(&measured(curves, Some((expected, is_free)))).engine
    }

    #[test]
    fn names_of_carriers_are_read_back() {
        for carrier in Carrier::ALL {
            assert_eq!(parts(&name("ntb", carrier)), Some(("ntb", carrier)));
        }
        assert_eq!([parts("ntb"), parts("ntb doors")], [None, None]);
    }

    #[test]
    fn the_expected_size_stays_where_nothing_clearly_speaks_against_it() {
        let level = [1.05, 0.95, 1.05, 0.95, 1.05];
        for expected in [4 << 10, 40 << 10, 256 << 10, 1 << 20] {
            assert_eq!(engine_from(level, expected, false), expected as usize);
        }
        assert_eq!(engine_from(level, u64::MAX, false), NONE);
        // It lies between a size at which the engine is slower and one at which it is faster.
        assert_eq!(engine_from([2.0, 2.0, 0.5, 0.5, 0.5], 40 << 10, false), 40 << 10);
    }

    #[test]
    fn an_engine_is_taken_from_where_it_is_faster_and_not_where_it_is_slower() {
        let late = [2.0, 2.0, 2.0, 0.5, 0.5];
        assert_eq!(engine_from(late, 16 << 10, false), 256 << 10);
        assert_eq!(engine_from(late, u64::MAX, false), 256 << 10);
        assert_eq!(engine_from([0.5; 5], u64::MAX, false), 4 << 10);
        assert_eq!(engine_from([2.0; 5], 16 << 10, true), NONE);
        // Longer puts than were measured: the model alone says something.
        assert_eq!(engine_from([2.0; 5], 4 << 20, true), 4 << 20);
        // Faster at a size in the midst of others is not enough.
        assert_eq!(engine_from([2.0, 0.5, 2.0, 0.5, 0.5], u64::MAX, false), 256 << 10);
    }

    #[test]
    fn a_free_engine_that_is_as_fast_leaves_the_time_to_the_program() {
        let ratios = [2.0, 1.05, 1.05, 0.95, 1.05];
        assert_eq!(engine_from(ratios, 256 << 10, true), 16 << 10);
        assert_eq!(engine_from(ratios, 256 << 10, false), 256 << 10);
    }

    #[test]
    fn packets_take_the_place_of_stores_where_they_are_faster() {
        let (stores, packets) = ([1.0, 4.0, 16.0, 64.0, 256.0], [3.0, 9.0, 20.0, 40.0, 130.0]);
        let curves = vec![
            curve(Operation::CarriedBlocking, Carrier::Stores, stores),
            curve(Operation::CarriedBlocking, Carrier::Packets, packets),
            curve(Operation::Carried, Carrier::Stores, packets),
            curve(Operation::Carried, Carrier::Packets, stores),
            curve(Operation::Carried, Carrier::Engine, [9.0, 9.0, 9.0, 9.0, 9.0]),
        ];
        let measured = measured(curves, Some((u64::MAX, false)));
        // Short non-blocking puts in packets are faster here, but long ones are not.
        let expected = Carriers { blocking_packets: 256 << 10, packets: NONE, engine: 64 << 10 };
        assert_eq!(chosen(&measured), expected);
        let choice = |operation| {
            let decision = decision(&measured, Class::Hops(1), operation).unwrap();
            [8, 64 << 10, (256 << 10) - 1, 256 << 10].map(|n| decision.channel(n).to_owned())
        };
        let [stores, packets, engine] = Carrier::ALL.map(|carrier| name("ntb", carrier));
        let s = stores.as_str();
        assert_eq!(choice(Operation::CarriedBlocking), [s, s, s, &packets]);
        assert_eq!(choice(Operation::Carried), [s, &engine, &engine, &engine]);
    }

    #[test]
    fn an_engine_competes_with_what_would_carry_the_put_without_it() {
        let curves = vec![
            curve(Operation::Carried, Carrier::Stores, [100.0; 5]),
            curve(Operation::Carried, Carrier::Packets, [10.0; 5]),
            curve(Operation::Carried, Carrier::Engine, [50.0; 5]),
        ];
        let chosen = chosen(&measured(curves, Some((16 << 10, true))));
        let expected = Carriers { packets: 4 << 10, ..Carriers::STORES };
        assert_eq!(chosen, expected);
    }

    #[test]
    fn what_is_uncertain_or_seen_once_changes_nothing() {
        let mut curves = vec![
            curve(Operation::CarriedBlocking, Carrier::Stores, [10.0; 5]),
            curve(Operation::CarriedBlocking, Carrier::Packets, [8.0; 5]),
        ];
        assert_eq!(chosen(&measured(curves.clone(), None)).blocking_packets, 4 << 10);
        curves[1].points.iter_mut().for_each(|point| point.spread = 0.5);
        assert_eq!(chosen(&measured(curves.clone(), None)), Carriers::STORES);
        curves[1].points.iter_mut().for_each(|point| (point.spread, point.batches) = (0.0, 1));
        assert_eq!(chosen(&measured(curves, None)), Carriers::STORES);
    }

    #[test]
    fn nothing_is_chosen_where_nothing_was_measured() {
        assert_eq!(choose(&Measurements::default(), Class::Hops(1), "ntb"), None);
        let known = measured(vec![curve(Operation::Carried, Carrier::Stores, [1.0; 5])], None);
        assert_eq!(choose(&known, Class::Hops(2), "ntb"), None);
        assert_eq!(choose(&known, Class::Hops(1), "tcp"), None);
    }

    #[test]
    fn only_what_is_left_to_others_is_measured() {
        let none = CarrierChoice::default();
        let engine = Some(EngineChoice { expected: 1, is_free: true });
        let of =
            |choice| [Operation::CarriedBlocking, Operation::Carried].map(|op| rivals(&choice, op));
        assert_eq!(of(none), [vec![], vec![]]);
        assert_eq!(of(CarrierChoice { engine, ..none })[1], [Carrier::Stores, Carrier::Engine]);
        let [blocking, others] = of(CarrierChoice { blocking: true, non_blocking: true, engine });
        assert_eq!((blocking.len(), others.len()), (2, 3));
        assert_eq!(rivals(&CarrierChoice { engine, ..none }, Operation::Put), []);
    }
}
