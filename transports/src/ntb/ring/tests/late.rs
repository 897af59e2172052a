// SPDX-License-Identifier: Apache-2.0
//! Writes and answers that come late: PCI Express says in which order writes of a requester arrive, not when.

use super::*;

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
