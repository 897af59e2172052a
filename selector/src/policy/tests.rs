// SPDX-License-Identifier: Apache-2.0
use super::*;
use crate::data::{Key, Point, STREAMING};
use crate::probe::LADDER;
use proptest::prelude::*;

pub(crate) fn curve(channel: &str, buffer: Buffer, cost: impl Fn(u64) -> (f32, f32)) -> Curve {
    let point = |bytes: &u64| {
        let (ns, spread) = cost(*bytes);
        Point { bytes: *bytes, ns, spread, batches: 7 }
    };
    Curve {
        key: Key {
            class: Class::Cache,
            operation: Operation::Put,
            buffer,
            channel: channel.to_owned(),
        },
        points: LADDER.iter().map(point).collect(),
        checks: Vec::new(),
    }
}

fn measured(curves: Vec<Curve>) -> Measurements {
    let mut measured = Measurements { curves, rejected: Vec::new(), ..Measurements::default() };
    measured.put_in_order();
    measured
}

fn put(curves: Vec<Curve>) -> Decision {
    decide(&measured(curves), &["shm", "cma"], Reuse::Hot).remove(0)
}

#[test]
fn crossing_curves_switch_where_they_cross() {
    let decision = put(vec![
        curve(CACHED, Buffer::Heap, |n| (5.0 + n as f32, 0.0)),
        curve("cma", Buffer::Heap, |n| (100_005.0 + n as f32 * 0.5, 0.0)),
    ]);
    assert_eq!(decision.steps.len(), 2, "{decision:?}");
    assert_eq!((decision.channel(8), decision.channel(1 << 22)), (CACHED, "cma"));
    let limit = decision.steps[0].limit;
    assert!((190_000..=200_100).contains(&limit), "{limit}");
}

/// Curves of both copies on mapped memory, alone and with reading what they wrote.
fn copies(streaming: impl Fn(u64) -> f32, read_streaming: f32) -> Vec<Curve> {
    let with = |operation, channel: &str, cost: &dyn Fn(u64) -> (f32, f32)| {
        let mut curve = curve(channel, Buffer::Heap, cost);
        curve.key.operation = operation;
        curve
    };
    vec![
        with(Operation::Put, CACHED, &|n| (10.0 + n as f32, 0.0)),
        with(Operation::Put, STREAMING, &|n| (streaming(n) * n as f32, 0.0)),
        with(Operation::PutRead, CACHED, &|n| (2.0 * n as f32, 0.0)),
        with(Operation::PutRead, STREAMING, &|n| (read_streaming * n as f32, 0.0)),
    ]
}

#[test]
fn caches_are_bypassed_from_some_size_on_or_not_at_all() {
    let from = |n: u64| if n >= 1 << 20 { 0.6 } else { 3.0 };
    let window = |n: u64| if n >> 20 == 1 { 0.6 } else { 3.0 };
    assert_eq!(put(copies(from, 1.9)).channel(1 << 20), STREAMING);
    assert_eq!(put(copies(from, 1.9)).channel(1 << 30), STREAMING);
    assert_eq!(put(copies(window, 1.9)).channel(1 << 20), CACHED);
    let mut short = copies(from, 1.9);
    short.iter_mut().for_each(|curve| curve.points.retain(|point| point.bytes < HUGE));
    assert_eq!(put(short).channel(1 << 20), CACHED);
}

#[test]
fn caches_are_not_bypassed_where_reading_the_copy_then_takes_longer() {
    let faster = |_| 0.6;
    assert_eq!(put(copies(faster, 2.1)).steps, [step(u64::MAX, CACHED)]);
    let mut unread = copies(faster, 1.9);
    unread.truncate(2);
    assert_eq!(put(unread).steps, [step(u64::MAX, CACHED)]);
}

fn step(limit: u64, channel: &str) -> Step {
    Step { limit, channel: channel.to_owned() }
}

#[test]
fn copies_that_no_cache_holds_bypass_the_caches() {
    let with = |share, streaming: f32| {
        let mut measured = measured(copies(|_| streaming, 2.1));
        measured.cache_share = share;
        decide(&measured, &[], Reuse::Hot).remove(0).steps
    };
    let beyond = |limit| [step(limit, CACHED), step(u64::MAX, STREAMING)];
    assert_eq!(with(16 << 20, 1.0), beyond(12 << 20));
    // Up to the largest measured size the measurement decides.
    assert_eq!(with(1 << 20, 1.0), beyond(HUGE));
    assert_eq!(with(16 << 20, 1.5), [step(u64::MAX, CACHED)]);
    assert_eq!(with(0, 1.0), [step(u64::MAX, CACHED)]);
}

#[test]
fn equal_costs_stay_with_the_default() {
    let same = |n: u64| (10.0 + n as f32, 0.0);
    let decision = put(vec![
        curve("cma", Buffer::Heap, same),
        curve(CACHED, Buffer::Heap, same),
        curve(STREAMING, Buffer::Heap, same),
    ]);
    assert_eq!(decision.steps, [Step { limit: u64::MAX, channel: CACHED.into() }]);
}

#[test]
fn equal_challengers_are_taken_in_a_fixed_order() {
    let slow = |n: u64| (1000.0 + n as f32, 0.0);
    let fast = |n: u64| (10.0 + n as f32 / 2.0, 0.0);
    let curves = vec![
        curve("zeta", Buffer::Heap, fast),
        curve("alpha", Buffer::Heap, fast),
        curve(CACHED, Buffer::Heap, slow),
    ];
    assert_eq!(put(curves.clone()).channel(8), "alpha");
    assert_eq!(put(curves.into_iter().rev().collect()).channel(8), "alpha");
}

#[test]
fn a_gain_within_the_noise_changes_nothing() {
    let decision = put(vec![
        curve(CACHED, Buffer::Heap, |n| (100.0 + n as f32, 0.25)),
        curve("cma", Buffer::Heap, |n| (0.85 * (100.0 + n as f32), 0.25)),
    ]);
    assert_eq!(decision.steps.len(), 1);
    assert_eq!(decision.channel(4096), CACHED);
}

#[test]
fn one_lucky_size_is_not_believed() {
    let lucky = |n: u64| if n == 4096 { 0.9 } else { 1.0 };
    let decision = put(vec![
        curve(CACHED, Buffer::Heap, |n| (100.0 + n as f32, 0.0)),
        curve("cma", Buffer::Heap, |n| (lucky(n) * (101.0 + n as f32), 0.0)),
    ]);
    assert_eq!(decision.steps.len(), 1, "{decision:?}");
}

#[test]
fn sizes_a_channel_was_not_measured_at_are_not_given_to_it() {
    let mut short = curve("cma", Buffer::Heap, |_| (1.0, 0.0));
    short.points.truncate(4);
    let last = short.points[3].bytes;
    let decision = put(vec![curve(CACHED, Buffer::Heap, |n| (100.0 + n as f32, 0.0)), short]);
    assert_eq!((decision.channel(8), decision.channel(1 << 20)), ("cma", CACHED));
    assert!(decision.steps[0].limit >= last);
}

#[test]
fn without_mapped_memory_the_preferred_transport_is_to_be_beaten() {
    let curves = vec![
        curve("abc", Buffer::Heap, |n| (98.0 + n as f32, 0.0)),
        curve("cma", Buffer::Heap, |n| (100.0 + n as f32, 0.0)),
    ];
    assert_eq!(decide(&measured(curves), &["cma", "abc"], Reuse::Hot)[0].channel(8), "cma");
}

#[test]
fn cold_buffers_have_their_own_decision() {
    let all = measured(vec![
        curve(CACHED, Buffer::Heap, |n| (n as f32, 0.0)),
        curve(STREAMING, Buffer::Heap, |n| (2.0 * n as f32, 0.0)),
        curve(CACHED, Buffer::Cold, |n| (4.0 * n as f32, 0.0)),
        curve(STREAMING, Buffer::Cold, |n| (2.0 * n as f32, 0.0)),
    ]);
    assert_eq!(decide(&all, &[], Reuse::Hot)[0].channel(1 << 20), CACHED);
    assert_eq!(decide(&all, &[], Reuse::Cold)[0].channel(1 << 20), STREAMING);
}

#[test]
fn cold_buffers_of_both_kinds_count_together() {
    let mut all = measured(vec![
        curve(CACHED, Buffer::Cold, |n| (n as f32, 0.0)),
        curve(STREAMING, Buffer::Cold, |n| (1.1 * n as f32, 0.0)),
    ]);
    assert_eq!(decide(&all, &[], Reuse::Cold)[0].channel(4096), CACHED);
    all.curves.push(curve(CACHED, Buffer::ColdPrivate, |n| (2.0 * n as f32, 0.0)));
    all.curves.push(curve(STREAMING, Buffer::ColdPrivate, |n| (n as f32, 0.0)));
    all.put_in_order();
    assert_eq!(decide(&all, &[], Reuse::Cold)[0].channel(4096), STREAMING);
}

/// Blocking puts whose copies cost `per_byte` in a series of them.
fn over_a_ring(wait: f32, per_byte: f32, spread: f32) -> Option<u64> {
    let on_ring = |operation, cost: &dyn Fn(u64) -> (f32, f32)| {
        let mut curve = curve("ntb", Buffer::Heap, cost);
        (curve.key.class, curve.key.operation) = (Class::Hops(1), operation);
        curve
    };
    let puts = on_ring(Operation::ZeroCopy, &|n| (wait + n as f32 * 0.05, spread));
    let mut series = on_ring(Operation::Blocking, &|n| (100.0 + n as f32 * per_byte, spread));
    series.points.retain(|point| point.bytes >= 32768 && point.bytes <= 1 << 20);
    zero_copy(&measured(vec![puts, series]), Class::Hops(1), "ntb")
}

#[test]
fn sources_are_copied_until_waiting_is_faster_than_the_copy() {
    // The wait of 2000 ns outweighs a copy of 0.02 ns per byte from 95000 bytes on, and the margin.
    assert_eq!(over_a_ring(2000.0, 0.07, 0.0), Some(131_072));
    assert_eq!(over_a_ring(2000.0, 0.05, 0.0), None);
    assert_eq!(over_a_ring(0.0, 0.1, 0.0), Some(32768));
}

#[test]
fn a_gain_of_waiting_within_the_noise_is_not_believed() {
    assert_eq!(over_a_ring(0.0, 0.06, 0.0), Some(32768));
    assert_eq!(over_a_ring(0.0, 0.06, 0.25), None);
}

#[test]
fn one_slow_size_of_many_does_not_decide_whether_to_wait() {
    let cost = |slow: u64| move |n: u64| (if n == slow { 2.0 } else { 0.5 } * n as f32, 0.0);
    let of = |operation, cost: &dyn Fn(u64) -> (f32, f32)| {
        let mut curve = curve("ntb", Buffer::Heap, cost);
        curve.key.operation = operation;
        curve
    };
    let series = of(Operation::Blocking, &|n| (n as f32, 0.0));
    let with = |slow| {
        let all = measured(vec![of(Operation::ZeroCopy, &cost(slow)), series.clone()]);
        zero_copy(&all, Class::Cache, "ntb")
    };
    assert_eq!(with(65536), Some(8));
    assert_eq!(with(0), Some(8));
    // The largest one stands for all that are larger.
    assert_eq!(with(LADDER[LADDER.len() - 1]), None);
}

#[test]
fn channels_that_copy_no_sources_have_no_choice() {
    let all = measured(vec![curve("cma", Buffer::Heap, |n| (n as f32, 0.0))]);
    assert_eq!(zero_copy(&all, Class::Cache, "cma"), None);
    assert_eq!(zero_copy(&Measurements::default(), Class::Cache, "cma"), None);
}

#[test]
fn nothing_measured_decides_nothing() {
    assert_eq!(decide(&Measurements::default(), &["shm"], Reuse::Hot), []);
}

proptest! {
    /// Whatever was measured, at no measured size is the choice slower than the default, the table
    /// fits the data path, and every size has a channel.
    #[test]
    fn no_decision_is_worse_than_the_default(
        noise in proptest::collection::vec(0.2f32..5.0, 3 * 40), spread in 0.0f32..0.5,
        gaps in proptest::collection::vec(any::<bool>(), 40),
    ) {
        let of = |k: usize| {
            let noise = &noise;
            let index = |n: u64| LADDER.iter().position(|l| *l == n).unwrap();
            move |n: u64| ((50.0 + n as f32) * noise[k * 40 + index(n)], spread)
        };
        let mut curves = vec![
            curve(CACHED, Buffer::Heap, of(0)),
            curve(STREAMING, Buffer::Heap, of(1)),
            curve("cma", Buffer::Heap, of(2)),
        ];
        let mut index = 0;
        curves[1].points.retain(|_| { index += 1; gaps[index] });
        curves.retain(|c| !c.points.is_empty());
        let decision = put(curves.clone());
        prop_assert!(decision.steps.len() <= STEPS_MAX);
        prop_assert_eq!(decision.steps.last().unwrap().limit, u64::MAX);
        prop_assert!(decision.steps.windows(2).all(|w| w[0].limit < w[1].limit));
        let at = |name: &str, n| {
            let curve = curves.iter().find(|c| c.key.channel == name).unwrap();
            Interpolation::new(&curve.points).unwrap().at(n)
        };
        for n in LADDER {
            let chosen = at(decision.channel(*n), *n);
            prop_assert!(chosen <= at(CACHED, *n) * 1.0001, "{} at {n}", decision.channel(*n));
        }
    }
}

#[test]
fn two_transports_carry_what_they_carry_faster_together() {
    let endpoint = |name, start: f32, per_byte: f32| {
        let mut alone = curve(name, Buffer::Heap, |n| (start + n as f32 * per_byte, 0.0));
        alone.points.retain(|point| point.bytes < HUGE);
        alone
    };
    let decision = |together: f32| {
        let mut both = curve("ofi+ntb", Buffer::Heap, |n| (5000.0 + n as f32 * together, 0.0));
        both.points.retain(|point| [1 << 18, 1 << 20, 1 << 22].contains(&point.bytes));
        let curves = vec![endpoint("ntb", 500.0, 1.0), endpoint("ofi", 9000.0, 2.0), both];
        decide(&measured(curves), &["ntb", "ofi"], Reuse::Hot).remove(0)
    };
    let faster = decision(0.7);
    assert_eq!([1 << 16, 1 << 17, 1 << 20].map(|n| faster.channel(n)), ["ntb", "ntb", "ofi+ntb"]);
    assert_eq!(faster.channel(1 << 30), "ofi+ntb");
    for no_faster in [0.97, 1.5] {
        assert_eq!(decision(no_faster).steps, [step(u64::MAX, "ntb")]);
    }
}
