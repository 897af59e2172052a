// SPDX-License-Identifier: Apache-2.0
//! Hosts that get a processor only now and then, as among dozens of busy processes: a link is judged by
//! what it does while its ends run.

use super::*;

const MS: u64 = 1_000_000;
/// How long a host runs when it gets a processor.
const TURN: u64 = 4 * MS;
/// Between polls of a host that runs.
const STEP: u64 = 50_000;

/// Three hosts that wait for a processor by turns, each time for another time.
struct Starved {
    world: World,
    /// When each host gets a processor, and when it loses it again.
    turns: [(u64, u64); 3],
    longest_wait: u64,
    state: u64,
    /// Writes over the link to the right of this host are lost.
    broken: Option<usize>,
}

impl Starved {
    fn new(longest_wait: u64, seed: u64) -> Starved {
        let geometry = Geometry::new(64, [4, 4, 4]).unwrap();
        // As jobs have it: the patience that is used with threads that others hold up.
        let config = Config { operations: 16, gets: 4, ..Config::new(geometry, 1) };
        let world = World::new(3, config);
        let now = world.now;
        let mut starved = Starved {
            world,
            turns: [(now, now + TURN); 3],
            longest_wait,
            state: seed,
            broken: None,
        };
        for host in 0..3 {
            starved.wait(host);
        }
        starved
    }

    /// The host loses its processor until its next turn.
    fn wait(&mut self, host: usize) {
        self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let from = self.turns[host].1 + (self.state >> 33) * self.longest_wait / (1 << 31);
        self.turns[host] = (from, from + TURN);
    }

    fn run(&mut self, total_ns: u64) {
        let end = self.world.now + total_ns;
        while self.world.now < end {
            let next = self.turns.iter().map(|turn| turn.0).min().expect("three hosts");
            self.world.now = (self.world.now + STEP).max(next);
            for host in 0..3 {
                let (from, until) = self.turns[host];
                if self.world.now >= until {
                    self.wait(host);
                } else if self.world.now >= from {
                    self.world.poll(host);
                }
                self.deliver(host);
            }
        }
    }

    /// What is written arrives, whoever runs.
    fn deliver(&mut self, host: usize) {
        for side in Side::BOTH {
            let lost = match self.broken {
                Some(broken) => {
                    (host, side) == (broken, Side::Right)
                        || (host, side) == ((broken + 1) % 3, Side::Left)
                }
                None => false,
            };
            if lost {
                self.world.sides[host].wires[side as usize].clear();
            }
            while self.world.deliver(host, side) {}
        }
    }

    fn links_in_use(&self) -> bool {
        let engines = &self.world.engines;
        engines.iter().all(|engine| Side::BOTH.into_iter().all(|side| engine.link_in_use(side)))
    }
}

#[test]
fn nobody_is_blamed_for_waiting_for_a_processor() {
    for seed in 0..4 {
        // Far longer than links that fail are believed in, which is half a second.
        let mut starved = Starved::new(1_500 * MS, seed);
        for round in 1..=60 {
            let (from, to) = (round as usize % 3, (round as usize + 1) % 3);
            assert_eq!(
                starved.world.put(from, put(round, target(to as u16, 0), 0, 200)),
                Status::Pending
            );
            starved.run(2_000 * MS);
            assert!(starved.links_in_use(), "seed {seed}, second {}", 2 * round);
        }
        starved.run(20_000 * MS);
        for parts in &starved.world.sides {
            assert_eq!((parts.silent, parts.rests, parts.losses.len()), (0, 0, 0), "seed {seed}");
            assert!(parts.done.len() == 20 && parts.done.iter().all(|one| one.1 == Ended::Done));
        }
    }
}

/// The same patience does not hide a link that fails.
#[test]
fn a_link_that_fails_is_found_among_hosts_that_wait() {
    for seed in 0..4 {
        let mut starved = Starved::new(100 * MS, seed);
        starved.run(5_000 * MS);
        assert!(starved.links_in_use());
        starved.broken = Some(1);
        starved.run(30_000 * MS);
        let world = &mut starved.world;
        assert!(!world.engines[1].link_in_use(Side::Right), "seed {seed}");
        assert!(!world.engines[2].link_in_use(Side::Left), "seed {seed}");
        assert_eq!(world.put(1, put(1, target(2, 64), 0, 200)), Status::Pending);
        starved.run(10_000 * MS);
        assert_eq!(starved.world.sides[1].done, [(1, Ended::Done)], "the other way round");
        assert!(starved.world.sides.iter().all(|parts| parts.losses.is_empty()));
    }
}
