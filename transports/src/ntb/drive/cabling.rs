// SPDX-License-Identifier: Apache-2.0
//! How hosts are cabled: who is at the far end of each port, and the ring that follows.
//!
//! Emulated hosts are told their places. Others learn them: each host says through both of its ports
//! who it is, and hears who is there. What all have heard is exchanged with their addresses, and each
//! makes the same ring of it, or says in the same words why there is none.

use super::handshake::{WORDS, check};
use crate::ntb::port::NtbPort;
use crate::ntb::ring::Side;
use std::sync::Arc;
use std::time::{Duration, Instant};

const MAGIC: u32 = 0x5442_4301;
const CHECK: usize = WORDS - 1;
/// Between looks at the scratchpads.
const LOOK: Duration = Duration::from_millis(1);

/// What was heard at a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Far {
    /// Position in the job of the host at the other end.
    pub host: u16,
    /// Which of its ports the cable is in.
    pub port: Side,
    /// Its random number for this start.
    pub incarnation: u32,
}

impl Far {
    /// As a word for the address of a PE; 0 stands for nobody.
    pub fn to_word(far: Option<Far>) -> u64 {
        far.map_or(0, |far| {
            u64::from(far.incarnation) << 32 | (far.port as u64) << 16 | u64::from(far.host)
        })
    }

    /// Reads it back.
    pub fn from_word(word: u64) -> Option<Far> {
        let port = if word >> 16 & 1 == 0 { Side::BOTH[0] } else { Side::BOTH[1] };
        let incarnation = (word >> 32) as u32;
        (incarnation != 0).then_some(Far { host: word as u16, port, incarnation })
    }
}

/// Tells the neighbours who this is, `host` of the job, and hears who they are: nobody, if nothing
/// is heard within `limit`. Scratchpads keep what was said in jobs before; so each repeats what it
/// hears, and believes those who repeat its own number.
pub fn meet(
    ports: &[Arc<dyn NtbPort>; 2],
    host: u16,
    incarnation: u32,
    limit: Duration,
) -> Result<[Option<Far>; 2], String> {
    for port in ports {
        port.link_enable().map_err(|e| e.to_string())?;
    }
    let begun = Instant::now();
    let mut known = [None; 2];
    loop {
        for side in Side::BOTH {
            let port = &*ports[side as usize];
            if !port.link_state().up {
                continue;
            }
            let heard = hear(port);
            let echo = heard.map_or(0, |(far, _)| far.incarnation);
            say(port, &Far { host, port: side, incarnation }, echo);
            let fresh = heard.filter(|(_, echo)| *echo == incarnation);
            known[side as usize] = fresh.map(|(far, _)| far).or(known[side as usize]);
        }
        let is_known =
            |side: Side| known[side as usize].is_some() || ports[side as usize].is_absent();
        if Side::BOTH.into_iter().all(is_known) || begun.elapsed() > limit {
            return Ok(known);
        }
        std::thread::sleep(LOOK);
    }
}

fn say(port: &dyn NtbPort, own: &Far, echo: u32) {
    let place = u32::from(own.host) | (own.port as u32) << 16;
    let mut words = [MAGIC, place, own.incarnation, echo, 0, 0, 0, 0];
    words[CHECK] = check(&words);
    for (index, word) in words.into_iter().enumerate() {
        port.peer_spad_write(index, word);
    }
}

/// Who is there, and the number that it has heard.
fn hear(port: &dyn NtbPort) -> Option<(Far, u32)> {
    let words: [u32; WORDS] = std::array::from_fn(|index| port.spad_read(index));
    if words[0] != MAGIC || words[CHECK] != check(&words) {
        return None;
    }
    let place = u64::from(words[2]) << 32 | u64::from(words[1]);
    Far::from_word(place).map(|far| (far, words[3]))
}

/// What is known of a host.
#[derive(Clone, Debug)]
pub struct HostPorts {
    /// What people call it.
    pub name: String,
    /// Random number of this start; 0 where the host has no ports.
    pub incarnation: u32,
    /// By [`Side`].
    pub far: [Option<Far>; 2],
    /// By [`Side`]: there is no port.
    pub absent: [bool; 2],
}

impl HostPorts {
    fn lacks(&self, side: Side) -> bool {
        self.absent[side as usize]
    }
}

/// A host's place in the ring, or in the line, which is a ring without one of its links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingPosition {
    pub position: u16,
    /// What it took for its right port is its left one.
    pub swapped: bool,
}

/// The ring of all hosts of a job: starts at the first, and goes on at its right. Where hosts have one port alone they
/// are a line, which starts at the first of its ends. The error says to people which cable is wrong.
pub fn arrange(hosts: &[HostPorts]) -> Result<Vec<RingPosition>, String> {
    if let Some(HostPorts { name, .. }) = hosts.iter().find(|host| host.incarnation == 0) {
        return Err(format!(
            "host {name} has no NTB ports that it can use: oshinfo there tells why"
        ));
    }
    for (index, host) in hosts.iter().enumerate() {
        check_host(hosts, index, host)?;
    }
    let mut places: Vec<Option<RingPosition>> = vec![None; hosts.len()];
    // The side on which the line does not go on.
    let end = |host: &HostPorts| Side::BOTH.into_iter().find(|side| host.lacks(*side));
    let first = hosts.iter().enumerate().find_map(|(at, host)| Some((at, end(host)?.opposite())));
    let (mut at, mut leaves) = first.unwrap_or((0, Side::Right));
    for position in 0..hosts.len() {
        let swapped = leaves == Side::Left;
        if places[at].is_some() {
            return Err(short_ring(hosts, &places));
        }
        places[at] = Some(RingPosition { position: position as u16, swapped });
        let Some(far) = hosts[at].far[leaves as usize].filter(|_| !hosts[at].lacks(leaves)) else {
            break;
        };
        (at, leaves) = (usize::from(far.host), far.port.opposite());
    }
    let all: Option<Vec<RingPosition>> = places.iter().copied().collect();
    all.ok_or_else(|| short_ring(hosts, &places))
}

fn check_host(hosts: &[HostPorts], index: usize, host: &HostPorts) -> Result<(), String> {
    let name = &host.name;
    if host.absent == [true; 2] {
        return Err(format!("host {name} has no NTB port"));
    }
    for side in Side::BOTH.into_iter().filter(|side| !host.lacks(*side)) {
        let port = match host.absent {
            [false, false] => format!("the {} NTB port of host {name}", super::links::name(side)),
            _ => format!("the NTB port of host {name}"),
        };
        let Some(far) = host.far[side as usize] else {
            return Err(format!(
                "nobody answers at {port}: its cable leads to a host outside of this job, to one whose \
                 port is not in use, or nowhere (SHMEM_NTB_PORTS with one address leaves the other port of a host out)"
            ));
        };
        let there = hosts.get(usize::from(far.host));
        let Some(there) = there.filter(|there| there.incarnation == far.incarnation) else {
            return Err(format!("{port} leads to a host that runs another job"));
        };
        if usize::from(far.host) == index {
            return Err(format!("both NTB ports of host {name} are tied to each other"));
        }
        let back = there.far[far.port as usize];
        let is_me = |back: Far| usize::from(back.host) == index && back.port == side;
        if !back.is_some_and(is_me) {
            return Err(format!(
                "{port} leads to host {}, whose port at that end is connected elsewhere",
                there.name
            ));
        }
    }
    match host.far {
        [Some(right), Some(left)] if right.host == left.host && hosts.len() > 2 => Err(format!(
            "both NTB ports of host {name} lead to host {}: in a ring of {} hosts each port leads to \
             another one",
            hosts[usize::from(right.host)].name,
            hosts.len()
        )),
        _ => Ok(()),
    }
}

fn short_ring(hosts: &[HostPorts], places: &[Option<RingPosition>]) -> String {
    let names = |inside: bool| {
        let chosen = hosts.iter().zip(places).filter(|(_, place)| place.is_some() == inside);
        chosen.map(|(host, _)| host.name.as_str()).collect::<Vec<_>>().join(", ")
    };
    format!(
        "the NTB cables do not connect all hosts: they connect {}, without {}",
        names(true),
        names(false)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ntb::port::emulated::{Fabric, FabricSpec};
    use proptest::prelude::*;

    /// Hosts with cables between (host, port) pairs.
    fn cabled(count: usize, cables: &[[(u16, Side); 2]]) -> Vec<HostPorts> {
        let incarnation = |host: usize| 100 + host as u32;
        let host = |index: usize| HostPorts {
            name: format!("n{index}"),
            incarnation: incarnation(index),
            far: [None; 2],
            absent: [false; 2],
        };
        let mut hosts: Vec<HostPorts> = (0..count).map(host).collect();
        for [a, b] in cables {
            for (near, far) in [(a, b), (b, a)] {
                let incarnation = incarnation(usize::from(far.0));
                hosts[usize::from(near.0)].far[near.1 as usize] =
                    Some(Far { host: far.0, port: far.1, incarnation });
            }
        }
        hosts
    }

    const L: Side = Side::Left;
    const R: Side = Side::Right;

    fn places(hosts: &[HostPorts]) -> Vec<(u16, bool)> {
        let places = arrange(hosts).unwrap();
        places.iter().map(|place| (place.position, place.swapped)).collect()
    }

    #[test]
    fn a_ring_is_found_whatever_is_called_left() {
        let ring = cabled(3, &[[(0, R), (1, L)], [(1, R), (2, L)], [(2, R), (0, L)]]);
        assert_eq!(places(&ring), [(0, false), (1, false), (2, false)]);
        let mixed = cabled(3, &[[(0, R), (2, R)], [(2, L), (1, L)], [(1, R), (0, L)]]);
        assert_eq!(places(&mixed), [(0, false), (2, false), (1, true)]);
        let two = cabled(2, &[[(0, R), (1, R)], [(0, L), (1, L)]]);
        assert_eq!(places(&two), [(0, false), (1, true)]);
    }

    /// Ports without a cable are not there.
    fn line(count: usize, cables: &[[(u16, Side); 2]]) -> Vec<HostPorts> {
        let mut hosts = cabled(count, cables);
        hosts.iter_mut().for_each(|host| host.absent = host.far.map(|far| far.is_none()));
        hosts
    }

    #[test]
    fn hosts_with_one_port_are_the_ends_of_a_line() {
        // What is right or left of a single port nobody knows.
        assert_eq!(places(&line(2, &[[(0, R), (1, R)]])), [(0, false), (1, true)]);
        let three = line(3, &[[(2, R), (0, L)], [(0, R), (1, R)]]);
        assert_eq!(places(&three), [(1, true), (0, false), (2, true)]);
        let refused = |hosts: &[HostPorts], words: &[&str]| {
            let why = arrange(hosts).unwrap_err();
            assert!(words.iter().all(|word| why.contains(word)), "{why}");
        };
        let pairs = [[(0, R), (2, R)], [(1, R), (3, R)]];
        refused(&line(4, &pairs), &["do not connect all", "n0, n2", "n1, n3"]);
        let beside =
            [vec![[(0, R), (1, R)]], vec![[(2, R), (3, L)], [(3, R), (4, L)], [(4, R), (2, L)]]];
        refused(&line(5, &beside.concat()), &["do not connect all", "n0, n1", "n2, n3, n4"]);
        let mut deaf = line(2, &[[(0, R), (1, R)]]);
        deaf[1].far[R as usize] = None;
        refused(&deaf, &["the NTB port of host n0", "connected elsewhere"]);
        refused(&line(2, &[]), &["n0 has no NTB port"]);
    }

    fn far() -> impl Strategy<Value = Option<Far>> {
        let word = (0u64..6, 0u64..2, 99u64..106);
        word.prop_map(|(host, port, number)| Far::from_word(host | port << 16 | number << 32))
    }

    proptest! {
        /// Whatever hosts say that they have heard: each has a place of its own in one ring, or
        /// there is none.
        #[test]
        fn garbage_about_cables_does_no_harm(
            heard in prop::collection::vec([far(), far()], 0..6),
            absent in any::<[[bool; 2]; 6]>(),
            word: u64,
        ) {
            let _ = Far::from_word(word);
            let mut hosts = cabled(heard.len(), &[]);
            for ((host, far), absent) in hosts.iter_mut().zip(heard).zip(absent) {
                (host.far, host.absent) = (far, absent);
            }
            if let Ok(places) = arrange(&hosts) {
                let mut positions: Vec<u16> = places.iter().map(|place| place.position).collect();
                positions.sort_unstable();
                prop_assert!(positions.into_iter().eq(0..hosts.len() as u16));
            }
        }
    }

    #[test]
    fn wrong_cables_are_told_in_words() {
        let refused = |hosts: &[HostPorts], words: &[&str]| {
            let why = arrange(hosts).unwrap_err();
            assert!(words.iter().all(|word| why.contains(word)), "{why}");
        };
        let ring = [[(0, R), (1, L)], [(1, R), (2, L)], [(2, R), (0, L)]];
        refused(&cabled(3, &ring[..2]), &["nobody answers", "left NTB port of host n0"]);
        let mut other = cabled(3, &ring);
        other[1].far[R as usize] = Some(Far { host: 2, port: L, incarnation: 9 });
        refused(&other, &["right NTB port of host n1", "another job"]);
        other[1].far[R as usize] = Some(Far { host: 77, port: L, incarnation: 9 });
        refused(&other, &["another job"]);
        let pairs = [[(0, R), (1, L)], [(0, L), (1, R)], [(2, R), (3, L)], [(2, L), (3, R)]];
        refused(&cabled(4, &pairs), &["both NTB ports of host n0", "n1", "ring of 4"]);
        refused(&cabled(2, &[[(0, R), (0, L)], [(1, R), (1, L)]]), &["n0", "tied to each other"]);
        let triangle =
            |a: u16| [[(a, R), (a + 1, L)], [(a + 1, R), (a + 2, L)], [(a + 2, R), (a, L)]];
        let two_rings = [triangle(0), triangle(3)].concat();
        refused(&cabled(6, &two_rings), &["do not connect all", "n0, n1, n2", "n3, n4, n5"]);
        let mut without = cabled(3, &ring);
        without[2].incarnation = 0;
        refused(&without[..], &["n2 has no NTB ports"]);
        let mut deaf = cabled(3, &ring);
        deaf[0].far[R as usize] = Some(Far { host: 1, port: R, incarnation: 101 });
        refused(&deaf, &["leads to host n1, whose port at that end is connected elsewhere"]);
    }

    #[test]
    fn neighbours_meet_over_stale_scratchpads() {
        let fabric = Fabric::create(&FabricSpec::new(3)).unwrap();
        let ports = |host: u32| -> [Arc<dyn NtbPort>; 2] {
            let pair = fabric.ports(host).unwrap();
            [pair.right, pair.left]
        };
        for start in [10, 20] {
            let met: Vec<_> = std::thread::scope(|scope| {
                let hosts = (0..3u16).map(|host| {
                    let (ports, number) = (ports(host.into()), start + u32::from(host));
                    let limit = Duration::from_secs(20);
                    scope.spawn(move || meet(&ports, host, number, limit).unwrap())
                });
                let hosts: Vec<_> = hosts.collect();
                hosts.into_iter().map(|host| host.join().unwrap()).collect()
            });
            for (host, far) in met.iter().enumerate() {
                let next = (host as u16 + 1) % 3;
                let incarnation = start + u32::from(next);
                assert_eq!(far[0], Some(Far { host: next, port: L, incarnation }), "start {start}");
                assert_eq!(Far::from_word(Far::to_word(far[1])), far[1]);
            }
        }
        let alone = meet(&ports(0), 0, 30, Duration::from_millis(5)).unwrap();
        assert_eq!(alone, [None, None], "what was said before is not believed");
        assert_eq!(Far::from_word(Far::to_word(None)), None);
    }
}
