// SPDX-License-Identifier: Apache-2.0
use super::*;
use proptest::prelude::*;
use tombolo_core::transport::Distance;

/// 100 ns and 0.1 ns per byte on a host; 10 us per hop and 1 ns per byte over the ring, a tenth of
/// the start for one of several puts.
fn cost(class: Class, operation: Operation, bytes: u64) -> Option<f64> {
    if operation == Operation::Meeting || Operation::BEFORE_MEETINGS.contains(&operation) {
        return None;
    }
    let start = if operation == Operation::Pipeline { 1e3 } else { 1e4 };
    match class {
        Class::Own | Class::Cache => Some(100.0 + bytes as f64 * 0.1),
        Class::Hops(hops) => Some(start * f64::from(hops) + bytes as f64),
        Class::Network => Some(10.0 * start + bytes as f64),
        _ => None,
    }
}

fn predicted(layout: &Layout, pattern: Pattern, by: By, bytes: u64) -> f64 {
    let costs = PatternCosts { of: &cost, local: Some(Class::Cache), meetings: 1.0 };
    estimate(&costs, layout, pattern, by, bytes).unwrap()
}

/// Without the barrier at the end, which takes 241 ns a round on one host.
fn on_a_host(pattern: Pattern, by: By, bytes: u64, cpus: usize) -> f64 {
    predicted(&Layout::regular(1, 4, cpus, Topology::Ring), pattern, by, bytes)
        - 2.0 * (140.0 + 100.8)
}

fn assert_near(found: f64, expected: f64) {
    assert!((found - expected).abs() < 1e-6 * expected, "{found} instead of {expected}");
}

#[test]
fn the_root_alone_is_slower_than_all_at_once() {
    assert_near(on_a_host(Pattern::Gather, By::Get, 1000, 4), 600.0);
    assert_near(on_a_host(Pattern::Gather, By::Put, 1000, 4), 200.0);
    assert_near(on_a_host(Pattern::Gather, By::Put, 1000, 1), 600.0);
}

#[test]
fn words_of_several_pes_in_one_line_cost_more() {
    assert_near(on_a_host(Pattern::Gather, By::Put, 8, 4), 100.8 + 70.0);
    assert_near(on_a_host(Pattern::Gather, By::Put, 64, 4), 106.4);
    assert_near(on_a_host(Pattern::RingShift, By::Put, 8, 4), 100.8);
}

#[test]
fn staging_pays_where_starting_up_dominates() {
    let ring = Layout::regular(3, 4, 4, Topology::Ring);
    let by = |by| predicted(&ring, Pattern::Gather, by, 8);
    assert!(by(By::Staged) < by(By::Get) * 0.6, "{} {}", by(By::Staged), by(By::Get));
}

#[test]
fn who_gives_while_it_gets_takes_longer() {
    let pair = Layout::regular(2, 1, 4, Topology::Ring);
    let by = |pattern| predicted(&pair, pattern, By::Get, 65536);
    assert!(by(Pattern::RingShift) > by(Pattern::Gather) + 0.5 * 65536.0);
}

#[test]
fn a_link_carries_one_thing_at_a_time() {
    let hosts = [0, 0, 1, 1];
    let emulated = Layout::new(hosts.into_iter(), 8, true, |_, _| Distance::Hops(1));
    let time = |layout: &Layout| predicted(layout, Pattern::Gather, By::Put, 65536);
    let (fast, slow) = (time(&emulated), time(&emulated.clone().with_slow_links()));
    assert!(slow > fast + 0.7 * 65536.0, "{slow} {fast}");
}

#[test]
fn puts_over_the_ring_overlap() {
    let star = Layout::regular(5, 1, 4, Topology::Ring);
    let puts = predicted(&star, Pattern::Broadcast, By::Put, 8);
    let gets = predicted(&star, Pattern::Gather, By::Get, 8);
    assert!(puts < gets / 1.5, "{puts} {gets}");
}

/// The same jobs, with hosts on a network, or on a ring in another order than that of their numbers.
#[test]
fn estimates_go_by_the_distances_asked_for() {
    let alltoall = |layout: &Layout| predicted(layout, Pattern::Alltoall, By::Get, 65536);
    let network = Layout::regular(5, 1, 4, Topology::Network);
    let ring = Layout::regular(5, 1, 4, Topology::Ring);
    assert!(alltoall(&network) > alltoall(&ring) + 3.0 * 9e4, "each of the gets starts later");
    let order = [0, 3, 1, 4, 2];
    let apart = |a: usize, b: usize| {
        let forth = (order[a] + 5 - order[b]) % 5;
        Distance::Hops(forth.min(5 - forth) as u32)
    };
    let mixed = Layout::new(0..5, 4, false, apart);
    // The same but for the barrier, two of whose three rounds lead over two links in place of one.
    assert_near(alltoall(&mixed), alltoall(&ring) + 5_000.0);
    let shift = |layout: &Layout| predicted(layout, Pattern::RingShift, By::Put, 65536);
    assert!(shift(&mixed) > shift(&ring) + 9_000.0, "the next number is two links away");
}

#[test]
fn an_estimate_says_how_far_it_may_be_off() {
    let range =
        |hosts, cpus, error| Range::of(&Layout::regular(hosts, 1, cpus, Topology::Ring), error);
    let on_a_host = range(1, 2, 0.0).unwrap();
    assert_eq!(on_a_host.operations, [0.80, 1.25]);
    let vague = range(1, 2, 0.1).unwrap();
    assert!(vague.operations[0] < 0.67 && vague.operations[1] > 1.49, "{vague:?}");
    let width = |range: Option<Range>| range.map(|r| r.operations[1] / r.operations[0]).unwrap();
    assert!(width(range(2, 2, 0.0)) > width(Some(on_a_host)));
    // A thread for the links and no processor for it.
    assert!(width(range(2, 1, 0.0)) > width(range(2, 2, 0.0)));
    let crowded = Layout::regular(1, 3, 2, Topology::Ring);
    assert_eq!(Range::of(&crowded, 0.0), None, "PEs that wait for processors");
    let estimate = Estimate { ns: 1000.0, within: Some([800.0, 1250.0]) };
    let holds = [799.0, 800.0, 1250.0, 1251.0].map(|ns| estimate.holds(ns).unwrap());
    assert_eq!(holds, [false, true, true, false]);
    assert_eq!(Estimate { within: None, ..estimate }.holds(1000.0), None);
}

#[test]
fn a_barrier_takes_what_was_measured_where_meetings_were() {
    let met = |class: Class, operation: Operation, bytes: u64| match operation {
        Operation::Meeting => Some(if class.hops() > 0 { 3000.0 } else { 90.0 }),
        _ => cost(class, operation, bytes),
    };
    let costs = PatternCosts { of: &met, local: Some(Class::Cache), meetings: 1.0 };
    let layout = Layout::regular(1, 4, 4, Topology::Ring);
    let time = |by| estimate(&costs, &layout, Pattern::RingShift, by, 64).unwrap();
    assert_near(time(By::Put), 106.4 + 2.0 * 90.0);
    let pair = Layout::regular(2, 1, 4, Topology::Ring);
    let over_a_link = estimate(&costs, &pair, Pattern::Gather, By::Put, 8).unwrap();
    let without = predicted(&pair, Pattern::Gather, By::Put, 8);
    assert_near(without - over_a_link, 5004.0 + 140.0 - 3000.0);
}

#[test]
fn what_was_measured_between_meetings_counts_over_links() {
    let met = |class: Class, operation: Operation, bytes: u64| match operation {
        Operation::Meeting => Some(3000.0),
        _ if class.hops() == 0 => cost(class, operation, bytes),
        Operation::MetPut => Some(2000.0),
        Operation::BothPut => Some(2500.0),
        Operation::MetGet => Some(7000.0),
        // More than twice as long: no PE serves longer than the other one waits.
        Operation::BothGet => Some(20_000.0),
        Operation::Handed => Some(400.0),
        _ => cost(class, operation, bytes),
    };
    let costs = PatternCosts { of: &met, local: Some(Class::Cache), meetings: 1.0 };
    let pair = Layout::regular(2, 1, 4, Topology::Ring).with_slow_links();
    let time = |pattern, by| estimate(&costs, &pair, pattern, by, 8).unwrap();
    assert_near(time(Pattern::Gather, By::Put), 3000.0 + 2000.0);
    assert_near(time(Pattern::Gather, By::Get), 3000.0 + 7000.0);
    assert_near(time(Pattern::RingShift, By::Get), 3000.0 + 7000.0 + 7000.0);
    let put = 2000.0 + 500.0;
    assert_near(time(Pattern::RingShift, By::Put), 3000.0 + put);
    // Its stage lies on the PE itself, which a copy takes 100.8 ns to.
    assert_near(time(Pattern::RingShift, By::Staged), 3.0 * 3000.0 + 100.8 + put + 400.0);
}

#[test]
fn what_was_not_measured_is_not_guessed() {
    let costs = PatternCosts { of: &|_, _, _| None, local: None, meetings: 1.0 };
    let ring = Layout::regular(3, 4, 4, Topology::Ring);
    assert_eq!(estimate(&costs, &ring, Pattern::Gather, By::Put, 8), None);
}

proptest! {
    #[test]
    fn more_bytes_never_take_less(
        hosts in 1usize..5,
        pes in 1usize..5,
        cpus in 1usize..5,
        bytes in 64u64..(1 << 24),
        more in 0u64..(1 << 20),
    ) {
        let layout = Layout::regular(hosts, pes, cpus, Topology::Ring);
        for pattern in Pattern::ALL {
            for by in By::ALL {
                let less = predicted(&layout, pattern, by, bytes);
                let more = predicted(&layout, pattern, by, bytes + more);
                // Longer transfers may go both ways round, which spreads their load.
                let split = hosts > 1 && bytes < (128 << 10);
                prop_assert!(split || more >= less * (1.0 - 1e-9), "{} {}", pattern, by);
            }
        }
    }
}
