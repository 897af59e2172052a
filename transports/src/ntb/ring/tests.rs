// SPDX-License-Identifier: Apache-2.0
//! The protocol step by step: one host polls or one write arrives at a time, in any order.

mod histories;
mod interleavings;
mod late;
mod malformed;
mod starved;
mod world;

use tombolo_core::transport::{Amo, AmoOp, Remote, SegmentKind, Signal, SignalOp, Status};

use super::*;
use world::*;

fn config(chunk: usize, slots: u32) -> Config {
    let geometry = Geometry::new(chunk, [slots, slots, slots]).unwrap();
    Config {
        window: 4,
        operations: 16,
        gets: 4,
        retained_chunks: 16,
        split_bytes_min: 200,
        ..Config::simulated(geometry, false)
    }
}

fn target(host: u16, offset: usize) -> Target {
    Target { host, pe: 0, remote: Remote { segment: SegmentKind::Heap, offset } }
}

fn put(token: u64, target: Target, source: u64, len: usize) -> PutRequest {
    PutRequest { token, stream: 0, target, source, len, retain: false, signal: None }
}

fn fetch_add(token: u64, target: Target, result: u64) -> AmoRequest {
    let amo = Amo { op: AmoOp::Add, size: 8, operand: 1, compare: 0 };
    AmoRequest { stream: 0, token, target, amo, result: Some(result) }
}

#[test]
fn a_link_that_comes_back_is_not_written_to_while_an_engine_reads_what_came_before() {
    let mut world = World::moved_by(4, config(64, 4), Mover::Dma);
    let out = world.engines[0].way(2).unwrap().0;
    let relay = if out == Side::Right { 1 } else { 3 };
    assert_eq!(world.put(0, put(1, target(2, 0), 0, 64)), Status::Pending);
    world.poll(0);
    while world.move_on(0, out) {}
    while world.deliver(0, out) {}
    world.poll(relay);
    assert_eq!(world.sides[relay].engines.as_ref().unwrap()[out as usize].queue.len(), 2);
    for (host, side) in [(0, out), (relay, out.opposite())] {
        world.with(host, |engine, parts| {
            engine.link_event(side, false, 0, parts);
            engine.link_event(side, true, 0, parts);
        });
    }
    // Everything but the engine that relays.
    let pass = |world: &mut World| {
        for _ in 0..200 {
            world.now += 50_000;
            for host in 0..4 {
                world.poll(host);
                for side in Side::BOTH {
                    while (host != relay || side != out) && world.move_on(host, side) {}
                    while world.deliver(host, side) {}
                }
            }
        }
    };
    pass(&mut world);
    assert!(!world.engines[0].link_in_use(out), "its packets would take the slot that is read");
    while world.move_on(relay, out) {}
    pass(&mut world);
    assert!(world.engines[0].link_in_use(out));
    assert_eq!(world.sides[0].done.len(), 1);
}

#[test]
fn packets_that_leave_late_are_not_taken_for_lost() {
    let mut world = World::moved_by(2, config(64, 4), Mover::Dma);
    let out = world.engines[0].way(1).unwrap().0;
    assert_eq!(world.put(0, put(1, target(1, 0), 0, 64)), Status::Pending);
    // Everything but the engine, for longer than a packet may be missing.
    for _ in 0..600 {
        world.now += 50_000;
        for host in 0..2 {
            world.poll(host);
            for side in Side::BOTH {
                while world.deliver(host, side) {}
            }
        }
    }
    assert!(!world.sides[0].engines.as_ref().unwrap()[out as usize].queue.is_empty());
    assert_eq!(world.engines[1].stats().slots_lost, 0);
    world.settle();
    assert_eq!(world.sides[0].done.len(), 1);
}

#[test]
fn later_puts_of_a_stream_win_once_fenced() {
    let mut world = World::new(2, Config { split: true, ..config(64, 2) });
    let mut token = 0;
    for round in 1..=20u8 {
        world.sides[0].memory.local[..400].fill(round);
        let before = world.engines[0].fence(3, 1);
        assert!(before);
        token += 1;
        let long = PutRequest { stream: 3, ..put(token, target(1, 0), 0, 400) };
        assert_eq!(world.put(0, long), Status::Pending);
        assert!(!world.engines[0].fence(3, 1), "a put that goes both ways is not in order yet");
        assert!(world.engines[0].fence(4, 1), "other streams are not concerned");
        while !world.engines[0].fence(3, 1) {
            for host in 0..2 {
                world.poll(host);
                Side::BOTH.into_iter().for_each(|side| {
                    world.deliver(host, side);
                });
            }
        }
        assert!(world.segment(1)[..400].iter().all(|&byte| byte == round));
    }
}

#[test]
fn no_part_of_a_fenced_put_overtakes_what_was_before_the_fence() {
    let mut world = World::new(2, Config { split: true, ..config(64, 4) });
    for round in 1..=20u8 {
        let (early, late) = (2 * round, 2 * round + 1);
        world.sides[0].memory.local[..64].fill(early);
        let short = PutRequest { stream: 3, retain: true, ..put(1, target(1, 320), 0, 64) };
        assert_eq!(world.put(0, short), Status::Pending);
        assert!(world.engines[0].fence(3, 1), "what goes one way is in order");
        world.sides[0].memory.local[..400].fill(late);
        let long = PutRequest { stream: 3, ..put(2, target(1, 0), 0, 400) };
        assert_eq!(world.put(0, long), Status::Pending);
        // The other way round is faster than the short one.
        for side in [Side::BOTH[usize::from(round) % 2], Side::BOTH[1 - usize::from(round) % 2]] {
            for _ in 0..20 {
                world.poll(0);
                world.deliver(0, side);
                world.poll(1);
            }
        }
        world.settle();
        assert!(world.segment(1)[..400].iter().all(|&byte| byte == late), "round {round}");
    }
}

#[test]
fn between_two_hosts_a_put_takes_the_way_on_which_less_waits() {
    let long = |token| PutRequest { stream: 3, ..put(token, target(1, 0), 0, 1000) };
    let balanced = Config { split: true, split_bytes_min: 8192, ..config(512, 16) };
    for retain in [false, true] {
        let mut world = World::new(2, balanced);
        world.sides[0].memory.local[..1000].fill(1);
        for token in 1..=2 {
            let put = PutRequest { retain, ..long(token) };
            assert_eq!(world.put(0, put), Status::Pending);
        }
        assert!(!world.engines[0].fence(3, 1), "the second goes the other way");
        world.poll(0);
        let wires = world.sides[0].wires.each_ref().map(|wire| wire.len());
        assert!(wires[0].abs_diff(wires[1]) <= 2, "both ways carry the same: {wires:?}");
        world.settle();
        assert!(world.segment(1)[..1000].iter().all(|&byte| byte == 1));
        assert!(world.engines[0].fence(3, 1));
        // What follows a fence does not overtake what goes the first way.
        for token in 3..=4 {
            assert_eq!(world.put(0, long(token)), Status::Pending);
            assert!(world.engines[0].fence(3, 1), "both go the same way");
        }
        world.settle();
        assert_eq!(world.engines[0].outstanding(), 0);
    }
}

#[test]
fn a_signal_follows_its_data_on_the_way_on_which_less_waits() {
    let balanced = Config { split: true, split_bytes_min: 8192, ..config(512, 16) };
    let mut world = World::new(2, balanced);
    world.sides[0].memory.local[..900].fill(1);
    for (token, word) in [(1, 1000), (2, 1008)] {
        let signal = Signal { word: target(1, word).remote, op: SignalOp::Set, value: 5 };
        let put =
            PutRequest { stream: 3, signal: Some(signal), ..put(token, target(1, 0), 0, 900) };
        assert_eq!(world.put(0, put), Status::Pending);
    }
    assert!(!world.engines[0].fence(3, 1), "the second goes the other way");
    for _ in 0..50 {
        world.poll(0);
        world.deliver(0, Side::Left);
        world.poll(1);
    }
    assert_eq!((world.word(1, 1000), world.word(1, 1008)), (0, 5));
    assert!(world.segment(1)[..900].iter().all(|&byte| byte == 1));
    world.settle();
    assert_eq!((world.word(1, 1000), world.word(1, 1008)), (5, 5));
    assert!(world.engines[0].fence(3, 1));
    assert_eq!(world.engines[0].outstanding(), 0);
}

#[test]
fn what_is_alone_is_cut_into_pieces_and_what_follows_fills_its_slots() {
    let mut world = World::new(2, Config { handling_bytes: 600, ..config(2048, 4) });
    let before = world.engines[1].stats().delivered;
    for (token, fill) in [(1, 8), (2, 9)] {
        world.sides[0].memory.local[..1000].fill(fill);
        let put = PutRequest { retain: true, ..put(token, target(1, 0), 0, 1000) };
        assert_eq!(world.put(0, put), Status::Pending);
    }
    world.sides[0].memory.local[..1000].fill(0);
    world.settle();
    assert!(world.segment(1)[..1000].iter().all(|&byte| byte == 9));
    assert_eq!(world.engines[1].stats().delivered - before, 2 + 1);
    let get = GetRequest { stream: 0, token: 3, target: target(1, 0), dest: 0, len: 1000 };
    assert_eq!(world.engines[0].get(&get), Status::Pending);
    world.settle();
    assert_eq!(world.engines[1].stats().delivered - before, 2 + 1 + 2);
    assert!(world.sides[0].memory.local[..1000].iter().all(|&byte| byte == 9));
}

#[test]
fn retained_sources_may_be_reused_at_once() {
    let mut world = World::new(3, config(64, 2));
    world.sides[0].memory.local[..600].fill(7);
    let request = PutRequest { retain: true, ..put(1, target(2, 64), 0, 600) };
    assert_eq!(world.put(0, request), Status::Pending);
    assert_eq!(world.put(0, PutRequest { token: 2, ..request }), Status::Again);
    world.sides[0].memory.local[..600].fill(8);
    world.settle();
    assert!(world.segment(2)[64..664].iter().all(|&byte| byte == 7));
    assert_eq!(world.put(0, request), Status::Pending, "the chunks are free again");
}

/// Blocks that a packet holds: bytes of each, stride, how many.
const BLOCKS: [(usize, usize, usize); 8] = [
    (1, 2, 60),
    (3, 7, 21),
    (8, 24, 8),
    (5, 5, 12),
    (20, 33, 3),
    (64, 64, 1),
    (4, 9, 5),
    (8, 16, 3),
];

#[test]
fn blocks_are_spread_and_gathered_by_relays_too() {
    let movers =
        [(Mover::Cpu, false), (Mover::Cpu, true), (Mover::CpuInSteps, false), (Mover::Dma, false)];
    for (mover, crc) in movers {
        for (len, stride, count) in BLOCKS {
            let mut world = World::moved_by(4, Config { crc, ..config(64, 4) }, mover);
            for (at, byte) in world.sides[0].memory.local.iter_mut().enumerate() {
                *byte = at as u8 | 1;
            }
            let before = world.sides[0].memory.local.clone();
            let spread = Spread::new(len, stride).unwrap();
            let request = PutRequest { retain: true, ..put(1, target(2, 16), 3, len * count) };
            let put =
                |engine: &mut Engine, parts: &mut Parts| engine.put_blocks(&request, spread, parts);
            assert_eq!(world.with(0, put), Status::Pending);
            // The source may be reused at once.
            world.sides[0].memory.local[..100].fill(0);
            world.settle();
            let what = format!("{mover:?} {crc} {len} {stride} {count}");
            for (at, byte) in world.segment(2).iter().enumerate() {
                let (block, within) = (at.wrapping_sub(16) / stride, at.wrapping_sub(16) % stride);
                let is_put = at >= 16 && block < count && within < len;
                let expected = if is_put { before[3 + block * len + within] } else { 0 };
                assert_eq!(*byte, expected, "{what}, byte {at}");
            }
            let get = GetRequest {
                stream: 0,
                token: 2,
                target: target(2, 16),
                dest: 513,
                len: len * count,
            };
            assert_eq!(world.engines[0].get_blocks(&get, spread), Status::Pending);
            world.settle();
            assert_eq!(world.sides[0].done, [(1, Ended::Done), (2, Ended::Done)], "{what}");
            let local = &world.sides[0].memory.local;
            assert_eq!(local[513..513 + len * count], before[3..3 + len * count], "{what}");
            assert_eq!(local[513 + len * count..], before[513 + len * count..], "{what}");
        }
    }
}

#[test]
fn blocks_that_end_outside_are_refused_as_a_whole() {
    let mut world = World::new(3, config(64, 4));
    world.sides[0].memory.local.fill(7);
    // The last of four ends a byte behind the segment.
    let spread = Spread::new(9, 100).unwrap();
    let at = target(1, SEGMENT_BYTES - 308);
    let request = PutRequest { retain: true, ..put(1, at, 0, 36) };
    let put = |engine: &mut Engine, parts: &mut Parts| engine.put_blocks(&request, spread, parts);
    assert_eq!(world.with(0, put), Status::Pending);
    let get = GetRequest { stream: 0, token: 2, target: at, dest: 512, len: 36 };
    assert_eq!(world.engines[0].get_blocks(&get, spread), Status::Pending);
    world.settle();
    let mut done = world.sides[0].done.clone();
    done.sort_by_key(|&(token, _)| token);
    assert_eq!(done, [(1, Ended::Refused), (2, Ended::Refused)]);
    assert!(world.segment(1).iter().all(|&byte| byte == 0));
    assert_eq!(world.sides[0].memory.local[512..548], [7; 36]);
}

#[test]
fn what_the_target_refuses_fails_alone() {
    let mut world = World::new(3, config(64, 4));
    let bad = SEGMENT_BYTES - 10;
    let word = target(1, 8).remote;
    let signal = Some(Signal { word, op: SignalOp::Add, value: 1 });
    assert_eq!(
        world.put(0, PutRequest { signal, ..put(1, target(1, bad), 0, 200) }),
        Status::Pending
    );
    assert_eq!(world.engines[0].amo(&fetch_add(2, target(1, bad), 0)), Status::Pending);
    let get = GetRequest { stream: 0, token: 3, target: target(1, bad), dest: 0, len: 200 };
    assert_eq!(world.engines[0].get(&get), Status::Pending);
    assert_eq!(world.engines[0].amo(&fetch_add(4, target(1, 0), 0)), Status::Pending);
    world.settle();
    let mut done = world.sides[0].done.clone();
    done.sort_by_key(|&(token, _)| token);
    let refused = |token| (token, Ended::Refused);
    assert_eq!(done, [refused(1), refused(2), refused(3), (4, Ended::Done)]);
    assert_eq!((world.word(1, 0), world.word(1, 8)), (1, 0), "no signal without its data");
    assert_eq!(world.engines[0].outstanding(), 0);
}

#[test]
fn a_sleeper_is_rung_once_even_if_it_fell_asleep_too_late_to_be_seen() {
    let mut world = World::new(2, config(64, 4));
    let word = put(1, target(1, 0), 0, 8);
    assert_eq!(world.put(0, word), Status::Pending);
    world.poll(0);
    // Host 1 says that it sleeps before the packet arrives; host 0 had not heard of it.
    world.with(1, |engine, parts| engine.set_sleeping(true, parts));
    assert!(!world.poll(1));
    assert_eq!(world.sides[0].rings, 0);
    for side in Side::BOTH {
        while world.deliver(0, side) {}
        while world.deliver(1, side) {}
    }
    world.poll(0);
    assert_eq!(world.sides[0].rings, 1, "heard of it with a packet outstanding");
    world.with(1, |engine, parts| engine.set_sleeping(false, parts));
    world.settle();
    assert_eq!(world.sides[0].done, [(1, Ended::Done)]);
}

#[test]
fn a_host_that_stops_is_given_up_and_others_are_served() {
    let mut world = World::new(3, config(64, 4));
    let stop = 1;
    world.sides[0].memory.local[..8].fill(9);
    assert_eq!(world.put(0, put(1, target(1, 0), 0, 8)), Status::Pending);
    let mut put_late = false;
    for _ in 0..2000 {
        world.now += 50_000;
        for host in [0, 2] {
            world.poll(host);
            Side::BOTH.into_iter().for_each(|side| while world.deliver(host, side) {});
        }
        if world.now > 10_000_000 && !put_late {
            put_late = true;
            assert_eq!(world.put(0, put(2, target(2, 0), 0, 8)), Status::Pending);
        }
    }
    assert_eq!(world.sides[0].losses, [stop]);
    assert_eq!(world.sides[2].losses, [stop]);
    assert_eq!(world.sides[0].done, [(2, Ended::Done), (1, Ended::Lost)]);
    assert_eq!(world.put(0, put(3, target(stop, 0), 0, 8)), Status::Failed);
    assert_eq!(world.segment(2)[..8], [9; 8]);
}

/// Polls some hosts for `total_ns`; the others are stopped, their links stay up.
fn run_without(world: &mut World, running: &[usize], total_ns: u64) {
    let end = world.now + total_ns;
    while world.now < end {
        world.now += 50_000;
        for &host in running {
            world.poll(host);
            Side::BOTH.into_iter().for_each(|side| while world.deliver(host, side) {});
        }
    }
}

#[test]
fn a_process_that_was_stopped_does_not_blame_its_neighbours() {
    let mut world = World::new(3, config(64, 4));
    world.pass(2_000_000);
    // Nobody runs for an hour: nothing is known of anybody.
    world.now += 3_600_000_000_000;
    world.settle();
    world.pass(10_000_000);
    assert!(world.engines.iter().all(|engine| engine.is_whole()));
    assert!(world.sides.iter().all(|parts| parts.losses.is_empty() && parts.silent == 0));
}

#[test]
fn a_host_that_is_stopped_and_goes_on_is_not_lost() {
    let mut world = World::new(3, config(64, 4));
    world.sides[0].memory.local[..8].fill(9);
    assert_eq!(world.put(0, put(1, target(1, 0), 0, 8)), Status::Pending);
    // Longer than cut links are put up with, and less than silence.
    run_without(&mut world, &[0, 2], 22_000_000);
    assert_eq!((world.sides[0].silent, world.sides[2].silent), (1, 1));
    assert_eq!(world.put(0, put(2, target(2, 0), 0, 8)), Status::Pending);
    run_without(&mut world, &[0, 2], 500_000);
    assert_eq!(world.sides[0].done, [(2, Ended::Done)], "others are served meanwhile");
    world.pass(20_000_000);
    assert_eq!(world.sides[0].done, [(2, Ended::Done), (1, Ended::Done)]);
    assert!(world.engines.iter().all(|engine| engine.is_whole()));
    assert!(world.sides.iter().all(|parts| parts.losses.is_empty()));
}

/// What a stream puts keeps its order, and a signal follows its data, whatever other streams do.
#[test]
fn streams_take_turns_and_keep_their_own_order() {
    let mut world = World::new(2, config(64, 8));
    world.sides[0].memory.local[..600].fill(1);
    world.sides[0].memory.local[600..608].fill(2);
    let long = PutRequest { stream: 1, ..put(1, target(1, 0), 0, 600) };
    assert_eq!(
        world.put(0, PutRequest { stream: 2, ..put(9, target(1, 900), 0, 8) }),
        Status::Pending
    );
    assert_eq!(world.put(0, long), Status::Pending);
    let word = target(1, 800).remote;
    let signal = Some(Signal { word, op: SignalOp::Set, value: 5 });
    let over = PutRequest { stream: 1, signal, ..put(2, target(1, 592), 600, 8) };
    assert_eq!(world.put(0, over), Status::Pending);
    let short = PutRequest { stream: 2, ..put(3, target(1, 816), 600, 8) };
    assert_eq!(world.put(0, short), Status::Pending);
    for _ in 0..20_000 {
        world.poll(0);
        world.deliver(0, Side::Right);
        world.deliver(0, Side::Left);
        world.poll(1);
        Side::BOTH.into_iter().for_each(|side| while world.deliver(1, side) {});
        if world.word(1, 800) == 5 {
            // The later put of the same stream lies over the end of the earlier one.
            assert_eq!(world.segment(1)[592..600], [2; 8]);
        }
    }
    world.settle();
    let order: Vec<u64> = world.sides[0].done.iter().map(|&(token, _)| token).collect();
    let at = |token: u64| order.iter().position(|&ended| ended == token).unwrap();
    assert!(at(3) < at(1) && at(1) < at(2), "{order:?}");
    assert_eq!((world.word(1, 800), world.segment(1)[592]), (5, 2));
}

/// Long operations keep less under way only when a quick one of another stream needs them to: not for
/// barriers, whose streams alternate, and not for each other.
#[test]
fn streams_share_a_lane_only_where_one_has_quick_operations() {
    let shares_after = |puts: &[(u32, usize)]| {
        let mut world = World::new(2, config(64, 8));
        for (token, &(stream, len)) in puts.iter().enumerate() {
            let put = PutRequest { stream, ..put(token as u64, target(1, 0), 0, len) };
            assert_eq!(world.put(0, put), Status::Pending);
        }
        world.engines[0].shared_limit(1).is_some()
    };
    assert!(!shares_after(&[(1, 8), (2, 8), (1, 8)]));
    assert!(!shares_after(&[(1, 8), (2, 1 << 20), (1, 1 << 20), (2, 1 << 20)]));
    assert!(!shares_after(&[(1, 1 << 20), (1, 8)]));
    assert!(shares_after(&[(1, 1 << 20), (2, 8)]));
}

/// Each of several puts asks for an acknowledgement because it is the last at its time; those that
/// arrive together are acknowledged by one packet.
#[test]
fn short_packets_that_arrive_together_are_acknowledged_together() {
    let mut world = World::new(2, Config { burst: 8, ..config(64, 8) });
    let before = world.engines[1].stats().acks;
    for token in 0..4 {
        assert_eq!(world.put(0, put(token, target(1, 8 * token as usize), 0, 8)), Status::Pending);
        world.poll(0);
    }
    while world.deliver(0, Side::Right) {}
    while world.deliver(0, Side::Left) {}
    world.settle();
    assert_eq!(world.sides[0].done.len(), 4);
    assert_eq!(world.engines[1].stats().acks, before + 1);
}

/// A link that takes no stores is not used while there is another way, and used again when it does.
#[test]
fn a_link_that_holds_up_its_writer_is_rested() {
    let mut world = World::new(3, config(64, 4));
    world.sides[1].stuck = Some(Side::Right);
    world.pass(1_000_000);
    assert!(!world.engines[1].link_in_use(Side::Right));
    assert_eq!(world.engines[1].way(2), Some((Side::Left, 2)));
    assert_eq!((world.sides[1].rests, world.sides[1].losses.len()), (1, 0));
    assert_eq!(world.put(1, put(1, target(2, 64), 0, 200)), Status::Pending);
    world.pass(1_000_000);
    assert_eq!(world.sides[1].done, [(1, Ended::Done)]);
    world.sides[1].stuck = None;
    world.pass(20_000_000);
    assert_eq!(world.engines[1].way(2), Some((Side::Right, 1)));
    // With no other way, a bad one is better than none.
    world.sides[1].stuck = Some(Side::Right);
    for (host, side) in [(0, Side::Right), (1, Side::Left)] {
        let now = world.now;
        world.with(host, |engine, parts| engine.link_event(side, false, now, parts));
    }
    world.pass(1_000_000);
    assert!(world.engines[1].link_in_use(Side::Right));
}
