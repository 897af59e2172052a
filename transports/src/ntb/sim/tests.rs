// SPDX-License-Identifier: Apache-2.0
//! Simulated worlds: contents, order of magnitude, faults, determinism.

use super::*;
use crate::ntb::port::emulated::Profile;
use crate::ntb::ring::{Config, Geometry};

const OPERATIONS: [Operation; 4] =
    [Operation::Put, Operation::Get, Operation::Amo, Operation::Mixed];

/// A world with defaults for tests.
fn simulation(hosts: u16, pattern: Pattern, operation: Operation) -> Simulation {
    let geometry = Geometry::new(8192, [16, 16, 64]).unwrap();
    Simulation {
        hosts,
        pes: 1,
        lanes: 1,
        config: Config::simulated(geometry, false),
        link: Profile::Plx8749.link(),
        host: HostModel::desktop(Writer::Cpu),
        sleepers: false,
        workload: Workload { pattern, operation, size: 64, count: 40, depth: 4 },
        beside: None,
        faults: Faults::default(),
        exact: false,
        seed: 1,
        patience_ns: 100_000_000,
    }
}

/// Rings of two slots of 64 bytes: the least that the bubble rule works with.
fn tight(hosts: u16, pattern: Pattern, seed: u64) -> Simulation {
    let geometry = Geometry::new(64, [2, 2, 2]).unwrap();
    let mut tight = simulation(hosts, pattern, Operation::Mixed);
    tight.config = Config { window: 16, ..Config::simulated(geometry, false) };
    tight.workload = Workload {
        size: 200,
        count: u64::from(hosts).max(8) + 4,
        depth: 8,
        pattern,
        ..tight.workload
    };
    tight.seed = seed;
    tight
}

fn faulty(hosts: u16, faults: &str, seed: u64) -> Simulation {
    let mut faulty = simulation(hosts, Pattern::Alltoall, Operation::Mixed);
    faulty.faults = faults.parse().unwrap();
    faulty.config = Config {
        crc: faulty.faults.needs_crc(),
        ..Config::simulated(Geometry::new(1024, [8, 8, 32]).unwrap(), true)
    };
    faulty.workload.size = 3000;
    faulty.workload.count = 120;
    faulty.seed = seed;
    faulty
}

#[test]
fn every_pattern_and_operation_completes_with_the_right_contents() {
    for hosts in [2, 3, 5] {
        for pattern in
            [Pattern::Neighbour(1), Pattern::Alltoall, Pattern::Uniform, Pattern::Hotspot]
        {
            for operation in OPERATIONS {
                for (size, split) in [(1, false), (24, false), (25, false), (30_000, true)] {
                    let mut case = simulation(hosts, pattern, operation);
                    case.workload.size = size;
                    case.config.split = split;
                    case.config.split_bytes_min = 16 << 10;
                    let report = run(&case).unwrap();
                    let senders = if pattern == Pattern::Hotspot { hosts - 1 } else { hosts };
                    assert_eq!(report.completed, u64::from(senders) * 40);
                    assert_eq!((report.failed, report.stats.replayed), (0, 0));
                }
            }
        }
    }
}

#[test]
fn several_pes_and_threads_share_the_links() {
    for operation in OPERATIONS {
        let mut case = simulation(3, Pattern::Alltoall, operation);
        (case.pes, case.lanes) = (2, 2);
        case.workload.size = 50_000;
        assert_eq!(run(&case).unwrap().completed, 240);
    }
}

#[test]
fn the_same_seed_gives_the_same_report_and_another_one_another() {
    let case = faulty(4, "flap 300us; loss 0.0005; corrupt 0.0005; delay 0.001 3us", 7);
    let first = run(&case).unwrap();
    assert_eq!(first, run(&case).unwrap());
    assert_ne!(first, run(&Simulation { seed: 8, ..case }).unwrap());
}

#[test]
fn two_slot_rings_never_deadlock() {
    for hosts in [2, 3, 4, 5, 8, 13, 32, 64] {
        for seed in 0..if hosts > 8 { 1 } else { 10 } {
            for pattern in [Pattern::Alltoall, Pattern::Hotspot] {
                let report = run(&tight(hosts, pattern, seed)).unwrap();
                assert_eq!(report.failed, 0);
            }
        }
    }
}

/// A ring in which all slots but one are taken moves one packet at a time. Injection must not let
/// it come to that.
#[test]
fn a_large_ring_under_load_does_not_crawl() {
    let mut case = simulation(32, Pattern::Alltoall, Operation::Put);
    case.workload = Workload { size: 8192, count: 64, depth: 32, ..case.workload };
    let share = run(&case).unwrap().of_ceiling.unwrap();
    assert!(share > 0.25, "{share} of the raw links");
}

#[test]
fn hosts_get_the_same_of_a_link_that_is_full() {
    let mut fair = simulation(8, Pattern::Hotspot, Operation::Put);
    fair.config = Config::simulated(Geometry::new(4096, [32, 32, 64]).unwrap(), false);
    fair.workload = Workload { size: 4096, count: 800, depth: 64, ..fair.workload };
    // Four hosts send to one side of the target and three to the other: seven eighths is the most.
    let report = run(&fair).unwrap();
    assert!(report.slowest_of_mean > 0.65, "{}", report.slowest_of_mean);
}

/// With few puts outstanding nothing is full, but who is far from the target has more relays on its way, and the
/// target has acknowledgements for several hosts to send whenever it may send one.
#[test]
fn hosts_far_from_a_target_get_their_share() {
    for writer in [Writer::Cpu, Writer::Dma] {
        for (depth, least) in [(2, 0.5), (4, 0.7)] {
            let mut case = simulation(8, Pattern::Hotspot, Operation::Put);
            case.host = HostModel::desktop(writer);
            case.config = Config::simulated(Geometry::new(16384, [32, 32, 64]).unwrap(), false);
            case.workload = Workload { size: 4096, count: 800, depth, ..case.workload };
            let share = run(&case).unwrap().slowest_of_mean;
            assert!(share > least, "{writer:?}, {depth} outstanding: {share}");
        }
    }
}

/// Acknowledgements must come while there is still something to send, or a program with a few puts
/// outstanding waits for each lot of them.
#[test]
fn a_few_small_puts_outstanding_keep_the_link_busy() {
    for (writer, hops, least) in
        [(Writer::Cpu, 1, 0.95), (Writer::Cpu, 3, 0.93), (Writer::Dma, 1, 0.94)]
    {
        let mut case = simulation(7, Pattern::Pair(hops), Operation::Put);
        case.host = HostModel::desktop(writer);
        case.workload = Workload { size: 4096, count: 2000, depth: 16, ..case.workload };
        let share = run(&case).unwrap().of_ceiling.unwrap() * 2.0;
        assert!(share > least, "{writer:?} over {hops} hops: {share} of the raw link");
    }
}

#[test]
fn large_puts_over_both_directions_take_at_most_three_quarters_of_the_time() {
    let mut case = simulation(2, Pattern::Pair(1), Operation::Put);
    case.host = HostModel::desktop(Writer::Dma);
    case.config.split = false;
    case.workload = Workload { size: 1 << 20, count: 10, depth: 1, ..case.workload };
    let one_way = run(&case).unwrap().latency.mean_ns;
    case.config.split = true;
    let both_ways = run(&case).unwrap().latency.mean_ns;
    assert!(both_ways * 4 < one_way * 3, "{both_ways} ns against {one_way} ns");
}

#[test]
fn operations_take_effect_exactly_once_under_flaps_and_loss() {
    for seed in 0..8 {
        for faults in
            ["flap 400us", "loss 0.002", "corrupt 0.002", "flap 700us; loss 0.0005; corrupt 0.0005"]
        {
            for hosts in [2, 3, 5] {
                let report = run(&faulty(hosts, faults, seed)).unwrap();
                assert_eq!(report.failed, 0, "{faults}, {hosts} hosts, seed {seed}");
            }
        }
    }
}

#[test]
fn a_link_that_goes_down_for_good_costs_nothing_but_time() {
    for seed in 0..4 {
        let report = run(&faulty(5, "link 1 down at 100us", seed)).unwrap();
        assert_eq!((report.failed, report.completed), (0, 600));
        assert!(report.stats.rerouted > 0 && report.stats.replayed > 0);
    }
}

#[test]
fn a_link_that_comes_back_is_used_again() {
    let mut case = faulty(3, "link 0 down at 100us; link 0 up at 300us", 3);
    case.workload.count = 600;
    let report = run(&case).unwrap();
    assert_eq!(report.failed, 0);
    let says = |what: &str| report.events.iter().filter(|line| line.contains(what)).count();
    assert_eq!((says("is down"), says("is in use")), (2, 2), "{:?}", report.events);
}

#[test]
fn a_dead_host_is_named_and_the_survivors_go_on() {
    let report = run(&faulty(5, "host 2 die at 200us", 5)).unwrap();
    assert!(report.failed > 0);
    let named = report.events.iter().filter(|line| line.contains("host 2 is dead")).count();
    assert_eq!(named, 4, "{:?}", report.events);
}

#[test]
fn a_split_ring_names_the_unreachable_hosts() {
    let report = run(&faulty(6, "link 0 down at 200us; link 3 down at 250us", 5)).unwrap();
    assert!(report.failed > 0);
    let says = |what: &str| report.events.iter().any(|line| line.contains(what));
    assert!(says("3 hosts from 1 on") && says("3 hosts from 4 on"), "{:?}", report.events);
}

#[test]
fn sleepers_are_woken_by_doorbells_and_pollers_need_none() {
    let mut case = simulation(3, Pattern::Alltoall, Operation::Mixed);
    assert_eq!(run(&case).unwrap().doorbells, 0);
    case.sleepers = true;
    let report = run(&case).unwrap();
    assert!(report.doorbells > 0 && report.failed == 0);
}

#[test]
fn impossible_worlds_are_refused_in_words() {
    let base = simulation(3, Pattern::Neighbour(1), Operation::Put);
    let mut cases = vec![base.clone(); 6];
    cases[0].workload.pattern = Pattern::Neighbour(3);
    cases[1].workload.size = 1 << 30;
    cases[2].faults = "loss 0.1".parse().unwrap();
    cases[3].faults = "host 3 die at 1us".parse().unwrap();
    cases[4].workload.size = usize::MAX;
    cases[5].workload.depth = usize::MAX;
    for case in cases {
        assert!(matches!(run(&case), Err(SimError::Argument(_))));
    }
}

/// Contexts are independent: what one has outstanding hardly holds up another that uses the same link, with
/// short slots and with long ones, whoever copies.
#[test]
fn small_operations_do_not_wait_for_large_ones_of_another_stream() {
    for (writer, chunk) in [(Writer::Cpu, 8192), (Writer::Cpu, 16_384), (Writer::Dma, 16_384)] {
        for operation in [Operation::Put, Operation::Get, Operation::Amo] {
            let mut case = simulation(3, Pattern::Pair(1), operation);
            case.host = HostModel::desktop(writer);
            case.config = Config::simulated(Geometry::new(chunk, [16, 16, 64]).unwrap(), false);
            case.config.split = false;
            case.workload = Workload { size: 8, count: 2000, depth: 1, ..case.workload };
            let alone = run(&case).unwrap().latency.p50_ns;
            for beside in [Operation::Put, Operation::Get] {
                case.beside = Some(Beside { operation: beside, size: 8 << 20 });
                let report = run(&case).unwrap();
                let what = format!("{operation:?} beside {beside:?}, {writer:?}, slots of {chunk}");
                let took = report.latency;
                assert!(took.p50_ns <= alone * 3, "{what}: {took:?}, alone {alone}");
                // The first long one fills the way before it is known that somebody else is there.
                assert!(took.p99_ns <= alone * 8, "{what}: {took:?}, alone {alone}");
                // Nor is the large one held up.
                assert!(report.beside_gbs > 2.5, "{what}: {} GB/s", report.beside_gbs);
            }
        }
    }
}

/// What is moved beside a workload arrives whole, too, when links flap.
#[test]
fn two_streams_lose_nothing_under_flaps() {
    for seed in 0..6 {
        let mut case = simulation(4, Pattern::Pair(2), Operation::Mixed);
        case.config = Config::simulated(Geometry::new(1024, [8, 8, 32]).unwrap(), true);
        case.workload = Workload { size: 3000, count: 400, depth: 4, ..case.workload };
        let operation = [Operation::Put, Operation::Get][seed as usize % 2];
        case.beside = Some(Beside { operation, size: 200_000 });
        case.faults = "flap 400us".parse().unwrap();
        case.seed = seed;
        let report = run(&case).unwrap();
        assert_eq!((report.failed, report.completed), (0, 400));
        assert!(report.beside_gbs > 0.0);
    }
}

/// A link that damages or delays what it carries is given a rest, and tried again later.
#[test]
fn links_in_poor_health_are_rested_while_there_is_another_way() {
    for (fault, seeds) in [("link 1 corrupt 30000", 4), ("link 1 delay 2ms", 2)] {
        for seed in 0..seeds {
            let mut case = faulty(4, fault, seed);
            case.config.crc = true;
            case.workload.count = 6000;
            let report = run(&case).unwrap();
            assert_eq!(report.failed, 0, "{fault}, seed {seed}");
            let says = |what: &str| report.events.iter().filter(|line| line.contains(what)).count();
            assert!(says("poor health") > 0, "{fault}, seed {seed}: {:?}", report.events);
            let others = report.events.iter().filter(|line| line.contains("poor health"));
            let at_its_ends = |line: &&String| {
                line.contains("host 1: link on the right")
                    || line.contains("host 2: link on the left")
            };
            assert!(others.clone().all(|line| at_its_ends(&line)), "{:?}", report.events);
        }
    }
}

#[test]
fn a_link_that_has_recovered_is_used_again() {
    let mut case = faulty(4, "link 1 corrupt 60000; link 1 corrupt 0 at 4ms", 2);
    case.config.crc = true;
    case.workload.count = 12_000;
    let report = run(&case).unwrap();
    let last = |what: &str| report.events.iter().rposition(|line| line.contains(what));
    let used = |line: &str| last(line).is_some_and(|at| Some(at) > last("poor health"));
    assert!(last("poor health").is_some(), "{:?}", report.events);
    assert!(used("host 1: link on the right is in use"), "{:?}", report.events);
}

/// What crosses a link after a second is as good as lost: it is not used, and nobody is given up.
#[test]
fn a_link_that_delays_by_a_second_ends_no_job() {
    for hosts in [3, 5] {
        let mut case = faulty(hosts, "link 1 delay 1s", 3);
        case.workload.count = 6000;
        let report = run(&case).unwrap();
        assert_eq!(report.failed, 0, "{hosts} hosts: {:?}", report.events);
        let unused = |line: &String| line.contains("is down") || line.contains("poor health");
        assert!(report.events.iter().any(unused), "{hosts} hosts: {:?}", report.events);
    }
}

/// As rough as ports allow, with whatever else goes wrong: each operation is looked at.
fn rough(seed: u64) -> Simulation {
    const FAULTS: [&str; 10] = [
        "rough",
        "rough; flap 400us",
        "rough; loss 0.002",
        "rough; corrupt 0.002",
        "rough; delay 0.01 20us",
        "rough; stall 400us",
        "rough; stall 9ms; flap 700us",
        "rough; flap 700us; loss 0.0005; corrupt 0.0005; delay 0.001 10us; stall 1ms",
        "rough; host 1 die at 200us; flap 900us",
        "rough; host 0 die at 500us; loss 0.001; stall 300us",
    ];
    const PATTERNS: [Pattern; 4] =
        [Pattern::Alltoall, Pattern::Uniform, Pattern::Hotspot, Pattern::Neighbour(1)];
    const RINGS: [(usize, [u32; 3]); 4] =
        [(64, [2, 2, 2]), (1024, [8, 8, 32]), (4096, [2, 4, 2]), (256, [16, 4, 8])];
    let number = seed as usize;
    let operation = if seed.is_multiple_of(3) { Operation::Put } else { Operation::Mixed };
    let mut case = simulation(2 + (seed % 7) as u16, PATTERNS[number / 5 % 4], operation);
    case.faults = FAULTS[number % FAULTS.len()].parse().unwrap();
    let writer = if (seed / 2).is_multiple_of(2) { Writer::Cpu } else { Writer::Dma };
    case.host = HostModel::desktop(writer);
    let (chunk_bytes, slots) = RINGS[number / 3 % RINGS.len()];
    case.config = Config {
        crc: case.faults.needs_crc(),
        split: seed % 4 < 2,
        split_bytes_min: if seed.is_multiple_of(4) { 512 } else { 2048 },
        window: if seed.is_multiple_of(2) { 16 } else { 128 },
        burst: 1 + (seed % 8) as u32,
        ..Config::simulated(Geometry::new(chunk_bytes, slots).unwrap(), true)
    };
    case.sleepers = seed % 3 == 1;
    (case.pes, case.lanes) = [(1, 1), (2, 1), (1, 2), (2, 2)][number / 7 % 4];
    case.exact = true;
    let size = if chunk_bytes == 64 { 300 } else { 3000 };
    let depth = 1 + number % 6;
    case.workload = Workload { size, count: 60, depth, ..case.workload };
    case.seed = seed;
    case
}

#[test]
fn each_operation_does_what_it_should_where_links_are_as_rough_as_ports_allow() {
    for seed in 0..60 {
        let case = rough(seed);
        let dies =
            case.faults.incidents.iter().any(|(_, what)| matches!(what, faults::Incident::Die(_)));
        let report = run(&case);
        let report = report.unwrap_or_else(|error| panic!("{:?}: {error}", case.faults));
        assert!(report.failed == 0 || dies, "{:?}, seed {seed}", case.faults);
    }
}
