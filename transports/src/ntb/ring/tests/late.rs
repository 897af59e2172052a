// SPDX-License-Identifier: Apache-2.0
//! Writes and answers that come late: PCI Express says in which order writes of a requester arrive, not when.

use super::*;

/// Everything but what the DMA engine of host 0 has written to `out` arrives, for a while.
fn hold_back(world: &mut World, out: Side, total_ns: u64) {
    let end = world.now + total_ns;
    while world.now < end {
        world.now += 50_000;
        for host in 0..world.engines.len() {
            world.poll(host);
            for side in Side::BOTH {
                while world.move_on(host, side) {}
                while world.deliver_stored(host, side) {}
                while (host, side) != (0, out) && world.deliver_posted(host, side) {}
            }
        }
    }
}

#[test]
fn what_an_engine_wrote_in_one_epoch_spoils_no_packet_of_the_next() {
    let mut world = World::moved_by(2, config(64, 4), Mover::Dma);
    world.sides[0].memory.local[..64].fill(1);
    world.sides[0].memory.local[64..128].fill(2);
    let out = world.engines[0].way(1).unwrap().0;
    assert_eq!(world.put(0, put(1, target(1, 0), 0, 64)), Status::Pending);
    world.poll(0);
    while world.move_on(0, out) {}
    // The link begins anew, and was never down.
    world.with(0, |engine, parts| {
        engine.ports[out as usize].greet(engine.now, parts);
        engine.notice_ports(parts);
    });
    hold_back(&mut world, out, 3_000_000);
    assert_eq!(world.sides[0].done, [(1, Ended::Done)], "the other way round");
    // The CPU moves what is kept.
    let kept = PutRequest { retain: true, ..put(2, target(1, 64), 64, 64) };
    assert_eq!(world.put(0, kept), Status::Pending);
    world.poll(0);
    for side in Side::BOTH {
        while world.deliver_stored(0, side) {}
    }
    world.deliver_posted(0, out);
    for _ in 0..4 {
        world.poll(1);
    }
    world.pass(10_000_000);
    assert_eq!(world.sides[0].done, [(1, Ended::Done), (2, Ended::Done)]);
    assert_eq!(world.segment(1)[..128], world.sides[0].memory.local[..128]);
    assert!(world.engines.iter().all(|engine| engine.is_whole()));
}

#[test]
fn a_slot_that_an_engine_has_written_is_not_given_up_before_that_has_arrived() {
    let mut world = World::moved_by(2, config(64, 4), Mover::Dma);
    let out = world.engines[0].way(1).unwrap().0;
    assert_eq!(world.put(0, put(1, target(1, 0), 0, 64)), Status::Pending);
    // For longer than a packet may be missing.
    hold_back(&mut world, out, 30_000_000);
    assert_eq!(world.engines[1].stats().slots_lost, 0);
    world.settle();
    assert_eq!(world.sides[0].done, [(1, Ended::Done)]);
    // What is really lost is found.
    assert_eq!(world.put(0, put(2, target(1, 0), 0, 64)), Status::Pending);
    world.poll(0);
    while world.move_on(0, out) {}
    world.sides[0].engines.as_mut().unwrap()[out as usize].posted.clear();
    world.pass(30_000_000);
    assert!(world.engines[1].stats().slots_lost > 0);
    assert_eq!(world.sides[0].done, [(1, Ended::Done), (2, Ended::Done)]);
}

/// Tags of earlier requests differ in all 64 bits, which travel in two places.
#[test]
fn an_answer_to_an_earlier_request_ends_no_later_one() {
    let mut world = World::new(2, config(64, 4));
    world.sides[1].symmetric[0][..8].fill(5);
    let get = GetRequest { stream: 0, token: 1, target: target(1, 0), dest: 512, len: 8 };
    assert_eq!(world.engines[0].get(&get), Status::Pending);
    assert_eq!(world.engines[0].amo(&fetch_add(2, target(1, 64), 520)), Status::Pending);
    for host in 0..2 {
        for _ in 0..8 {
            world.poll(host);
        }
        for side in Side::BOTH {
            while host == 0 && world.deliver(0, side) {}
        }
    }
    let mut answers = 0;
    for side in Side::BOTH {
        for (offset, line) in &mut world.sides[1].wires[side as usize] {
            if *offset >= 4096 && [Kind::GetReply as u8, Kind::AmoReply as u8].contains(&line[0]) {
                // The upper half of the tag.
                line[16] ^= 1;
                answers += 1;
            }
        }
    }
    assert_eq!(answers, 2);
    world.settle();
    assert!(world.sides[0].done.is_empty());
    assert_eq!(world.engines[0].stats().duplicates, 2);
    world.pass(20_000_000);
    let mut done = world.sides[0].done.clone();
    done.sort_by_key(|ended| ended.0);
    assert_eq!(done, [(1, Ended::Done), (2, Ended::Done)], "by answers to repetitions");
    assert_eq!(
        world.sides[0].memory.local[512..528],
        [5, 5, 5, 5, 5, 5, 5, 5, 0, 0, 0, 0, 0, 0, 0, 0]
    );
    assert_eq!(world.word(1, 64), 1);
}

#[test]
fn a_host_that_was_given_up_while_it_runs_takes_no_bytes_of_later_puts() {
    let mut world = World::moved_by(3, config(64, 4), Mover::CpuInSteps);
    world.sides[0].memory.local[..128].fill(1);
    world.sides[0].memory.local[128..256].fill(2);
    let kept = |token, host, source| PutRequest {
        retain: true,
        ..put(token, target(host, 0), source, 128)
    };
    assert_eq!(world.put(0, kept(1, 1, 0)), Status::Pending);
    let now = world.now;
    world.with(0, |engine, parts| engine.send(now, parts));
    assert!(world.sides[0].has_steps(), "both packets are still to be stored");
    world.with(0, |engine, parts| engine.give_up(1, parts));
    assert_eq!(world.put(0, kept(2, 2, 128)), Status::Pending);
    world.settle();
    assert_eq!(world.sides[0].done, [(1, Ended::Lost), (2, Ended::Done)]);
    assert_eq!(world.segment(2)[..128], [2; 128]);
    assert!(
        world.segment(1)[..128].iter().all(|byte| *byte != 2),
        "{:?}",
        &world.segment(1)[..128]
    );
}

#[test]
fn a_put_to_a_host_that_was_given_up_ends_when_no_engine_reads_its_source_any_more() {
    let mut world = World::moved_by(3, config(64, 4), Mover::Dma);
    let out = world.engines[0].way(1).unwrap().0;
    assert_eq!(world.put(0, put(1, target(1, 0), 0, 64)), Status::Pending);
    world.poll(0);
    world.with(0, |engine, parts| engine.give_up(1, parts));
    assert!(world.sides[0].done.is_empty(), "the program would use the source again");
    assert_eq!(world.put(0, put(2, target(1, 0), 0, 64)), Status::Failed);
    while world.move_on(0, out) {}
    world.pass(1_000_000);
    assert_eq!(world.sides[0].done, [(1, Ended::Lost)]);
    assert_eq!(world.engines[0].outstanding(), 0);
}
