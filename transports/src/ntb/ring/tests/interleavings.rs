// SPDX-License-Identifier: Apache-2.0
//! Every interleaving of polls and arrivals of small worlds, as far as a bound allows.

use std::collections::HashSet;
use std::hash::{Hash, Hasher};

use super::*;

/// FNV-1a over words: fast, and good enough to tell states apart by 64 bits.
struct Fingerprint(u64);

impl Fingerprint {
    fn add(&mut self, word: u64) {
        self.0 = (self.0 ^ word).wrapping_mul(0x100_0000_01b3);
        self.0 ^= self.0 >> 29;
    }
}

impl Hasher for Fingerprint {
    // Most of a world is memory: these tests spend much of their time here.
    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks();
        for word in words {
            self.add(u64::from_le_bytes(*word));
        }
        for byte in rest {
            self.add(u64::from(*byte));
        }
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

fn fingerprint(world: &World) -> u64 {
    let mut hasher = Fingerprint(0xcbf2_9ce4_8422_2325);
    world.hash(&mut hasher);
    hasher.finish()
}

/// All states that follow from one by one poll or one arrival.
fn successors(world: &World) -> Vec<World> {
    let mut next = Vec::new();
    for host in 0..world.engines.len() {
        let mut polled = world.clone();
        polled.poll(host);
        next.push(polled);
        for side in Side::BOTH {
            let mut delivered = world.clone();
            if delivered.deliver(host, side) {
                next.push(delivered);
            }
            let mut moved = world.clone();
            if moved.move_on(host, side) {
                next.push(moved);
            }
        }
    }
    next
}

/// Walks through states depth first. Checks that every state in which nothing can happen is
/// complete, and, from a sample of states, that a fair schedule completes. Returns the number of
/// states and whether they were all.
fn explore(start: World, states_max: usize, complete: impl Fn(&World)) -> (usize, bool) {
    let mut seen = HashSet::from([fingerprint(&start)]);
    let mut open = vec![start];
    while let Some(world) = open.pop() {
        if seen.len() >= states_max {
            return (seen.len(), false);
        }
        let here = fingerprint(&world);
        let mut rest = true;
        for next in successors(&world) {
            let there = fingerprint(&next);
            rest &= there == here;
            if seen.insert(there) {
                open.push(next);
            }
        }
        if rest {
            complete(&world);
        } else if here.is_multiple_of(128) {
            let mut fair = world;
            fair.settle();
            complete(&fair);
        }
    }
    (seen.len(), true)
}

fn small() -> Config {
    Config { operations: 4, gets: 2, retained_chunks: 0, burst: 1, ..config(64, 2) }
}

fn complete(world: &World, operations: usize, counts: &[u64]) {
    for (host, parts) in world.sides.iter().enumerate() {
        assert_eq!(parts.done.len(), operations, "host {host} is stuck");
        assert!(parts.done.iter().all(|&(_, ended)| ended == Ended::Done));
        assert_eq!(world.word(host, 0), counts[host]);
    }
}

/// Host 0 puts more chunks than its ring has slots while host 1 adds to it and waits for the old
/// value: requests, replies, acknowledgements and credits, in all orders there are.
#[test]
fn two_hosts_with_two_slots_complete_under_every_interleaving() {
    let mut world = World::new(2, small());
    assert_eq!(world.put(0, put(1, target(1, 64), 64, 192)), Status::Pending);
    assert_eq!(world.engines[1].amo(&fetch_add(1, target(0, 0), 0)), Status::Pending);
    let (states, all) = explore(world, 200_000, |world| complete(world, 1, &[1, 0]));
    println!("{states} states");
    assert!(all, "not all of the more than {states} states were visited");
    assert!(states > 1000, "{states} states are too few to mean anything");
}

#[test]
fn three_hosts_with_two_slots_complete_as_far_as_the_bound_reaches() {
    let mut world = World::new(3, small());
    for host in 0..3 {
        let to = (host as u16 + 1) % 3;
        assert_eq!(world.put(host, put(1, target(to, 64), 64, 192)), Status::Pending);
        let get = GetRequest {
            stream: 0,
            token: 2,
            target: target((to + 1) % 3, 64),
            dest: 512,
            len: 100,
        };
        assert_eq!(world.engines[host].get(&get), Status::Pending);
    }
    let (states, _) = explore(world, 6_000, |world| complete(world, 2, &[0, 0, 0]));
    assert!(states >= 6_000, "the bound was not reached: explore all of them");
}

/// Four hosts, everything to the opposite host: all packets are in transit somewhere, and the
/// rings are as short as they may be. The order is drawn at random, many times.
#[test]
fn opposite_hosts_with_two_slots_complete_in_random_orders() {
    let mut random = crate::ntb::sim::Random::new(11);
    for round in 0..60 {
        let mut world = World::new(4, small());
        for host in 0..4 {
            let to = (host as u16 + 2) % 4;
            assert_eq!(world.put(host, put(1, target(to, 64), 64, 500)), Status::Pending);
            assert_eq!(world.engines[host].amo(&fetch_add(2, target(to, 0), 0)), Status::Pending);
        }
        for _ in 0..3000 {
            let host = random.below(4) as usize;
            match random.below(3) {
                0 => drop(world.poll(host)),
                1 => drop(world.deliver(host, Side::Right)),
                _ => drop(world.deliver(host, Side::Left)),
            }
        }
        world.settle();
        complete(&world, 2, &[1; 4]);
        assert_eq!(world.engines[0].stats().replayed, 0, "round {round}");
    }
}
