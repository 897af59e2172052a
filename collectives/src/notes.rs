// SPDX-License-Identifier: Apache-2.0
//! What a team remembers for its collectives: algorithms chosen, its hosts, and how often its memory
//! was used.

use crate::letters::MEMBERS_MAX;
use crate::table;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use tombolo_core::control::{MEMORY_TEAMS, TEAMS_MAX};
use tombolo_core::transport::Distance;
use tombolo_core::{Team, World};

const _: () = assert!(MEMORY_TEAMS <= TEAMS_MAX && MEMBERS_MAX <= 64);
/// Sizes are told apart by the power of two that is next above them.
const CLASSES: usize = usize::BITS as usize + 1;

/// What one member remembers of a team. All members do the same with it in the same order, so that
/// numbers and choices are alike.
pub struct Notes {
    /// By kind of call and class of size: the algorithm's number plus one, 0 if not chosen yet.
    choices: [[AtomicU8; CLASSES]; table::KINDS],
    /// The routes, with costs, by which they were chosen.
    routes: AtomicUsize,
    /// Messages so far; see [`crate::letters`].
    messages: AtomicU64,
    /// Members to which a put was seen not to be complete when it returned, as bits.
    slow: AtomicU64,
    /// Algorithms that the user asks for, by operation.
    pub forced: table::Forced,
    /// Where the members are.
    pub hosts: Hosts,
}

/// The hosts of a team's members.
#[derive(Debug, PartialEq, Eq)]
pub struct Hosts {
    /// The first member of each host, in the order of these members.
    pub leaders: Box<[u32]>,
    /// Which of them is this member's.
    pub mine: usize,
    /// The members on this member's host, the leader first.
    pub local: Box<[u32]>,
    /// By host, the member that has as many before it there as this one has here; the leader where
    /// there is none.
    pub partners: Box<[u32]>,
    /// The largest number of members on one host.
    pub most: usize,
    /// The largest distance between a member and the next one.
    pub step: Distance,
    /// By member, which host it is on.
    of: Box<[u32]>,
}

impl Hosts {
    /// Of members on the given hosts, as member `me` sees them.
    fn new(hosts: &[u64], step: Distance, me: usize) -> Hosts {
        let mut leaders: Vec<u32> = Vec::new();
        let mut counts: Vec<usize> = Vec::new();
        let mut of = Vec::new();
        for (member, host) in hosts.iter().enumerate() {
            let known = leaders.iter().position(|leader| hosts[*leader as usize] == *host);
            of.push(known.unwrap_or(leaders.len()) as u32);
            match known {
                Some(known) => counts[known] += 1,
                None => {
                    leaders.push(member as u32);
                    counts.push(1);
                }
            }
        }
        let mine = leaders.iter().position(|leader| hosts[*leader as usize] == hosts[me]);
        let here = |member: &u32| hosts[*member as usize] == hosts[me];
        let local: Box<[u32]> = (0..hosts.len() as u32).filter(here).collect();
        let place = local.iter().position(|member| *member as usize == me).unwrap_or(0);
        let partner = |leader: &u32| {
            let there = |member: &usize| hosts[*member] == hosts[*leader as usize];
            (0..hosts.len()).filter(there).nth(place).map_or(*leader, |member| member as u32)
        };
        Hosts {
            mine: mine.unwrap_or(0),
            partners: leaders.iter().map(partner).collect(),
            local,
            most: counts.into_iter().max().unwrap_or(0),
            leaders: leaders.into(),
            of: of.into(),
            step,
        }
    }
}

impl Notes {
    /// Which of the hosts a member is on.
    pub fn host_of(&self, member: usize) -> usize {
        self.hosts.of[member] as usize
    }

    /// Whether a member is on this member's host.
    pub fn is_near(&self, member: usize) -> bool {
        self.host_of(member) == self.hosts.mine
    }

    /// What this PE remembers of `team`, nothing at first.
    #[inline]
    pub fn of<'a>(world: &World, team: &'a Team) -> &'a Notes {
        let notes = &**team.notes.get_or_init(|| Box::new(Notes::new(world, team)));
        debug_assert!(notes.is::<Notes>(), "nobody else keeps notes");
        // SAFETY: what is there was made above: nobody else keeps notes. A look at the type takes a tenth of a
        // short call.
        unsafe { &*std::ptr::from_ref(notes).cast::<Notes>() }
    }

    fn new(world: &World, team: &Team) -> Notes {
        let hosts: Vec<u64> =
            team.members.iter().map(|pe| world.localities()[*pe as usize].host).collect();
        Notes {
            choices: std::array::from_fn(|_| std::array::from_fn(|_| AtomicU8::new(0))),
            routes: AtomicUsize::new(0),
            // Greater than all numbers that teams have left in this slot, and alike on all members,
            // who are all in the same call.
            messages: AtomicU64::new(team.epoch.load(Ordering::Relaxed)),
            slow: AtomicU64::new(0),
            forced: table::Forced::new(&world.config().coll),
            hosts: Hosts::new(&hosts, step(world, team), team.me),
        }
    }

    /// The number of the next message, from 1.
    pub fn next_message(&self) -> u64 {
        next(&self.messages)
    }

    /// Whether puts to a member are complete when they return, as far as was seen.
    pub fn arrives_at_once(&self, member: usize) -> bool {
        self.slow.load(Ordering::Relaxed) >> (member % MEMBERS_MAX) & 1 == 0
    }

    /// A put to a member was not complete when it returned.
    pub fn does_not_arrive_at_once(&self, member: usize) {
        self.slow.fetch_or(1 << (member % MEMBERS_MAX), Ordering::Relaxed);
    }

    /// No flag of the team's memory holds a later number.
    pub fn messages(&self) -> u64 {
        self.messages.load(Ordering::Relaxed)
    }

    /// The algorithm chosen for a kind of call and a class of size; none if there is none yet.
    #[inline]
    pub fn choice(&self, world: &World, kind: usize, class: usize) -> Option<usize> {
        if self.routes.load(Ordering::Relaxed) != routes(world) {
            return None;
        }
        usize::from(self.choices[kind][class].load(Ordering::Relaxed)).checked_sub(1)
    }

    /// Remembers a choice, and forgets those made by other costs.
    pub fn choose(&self, world: &World, kind: usize, class: usize, algorithm: usize) {
        if self.routes.swap(routes(world), Ordering::Relaxed) != routes(world) {
            let all = self.choices.iter().flatten();
            all.for_each(|choice| choice.store(0, Ordering::Relaxed));
        }
        self.choices[kind][class].store(algorithm as u8 + 1, Ordering::Relaxed);
    }
}

/// The largest distance between a member and the next one, with the first one after the last.
fn step(world: &World, team: &Team) -> Distance {
    if world.hosts() == 1 {
        return Distance::Host;
    }
    let n = team.n_pes();
    let pairs = (0..n).map(|member| (team.world_pe(member), team.world_pe((member + 1) % n)));
    pairs.map(|(a, b)| world.distance(a, b)).max().unwrap_or(Distance::Myself)
}

/// Names the routes in force: replaced ones are kept, so no others have their address.
#[inline]
pub fn routes(world: &World) -> usize {
    std::ptr::from_ref(world.routes()) as usize
}

/// The class of a size, and the largest size in it.
pub fn class(bytes: usize) -> (usize, usize) {
    match bytes.checked_next_power_of_two() {
        Some(most) => (most.trailing_zeros() as usize, most),
        None => (usize::BITS as usize, usize::MAX),
    }
}

/// Collectives of one team are called by one thread at a time.
fn next(number: &AtomicU64) -> u64 {
    let next = number.load(Ordering::Relaxed) + 1;
    number.store(next, Ordering::Relaxed);
    next
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_member_of_each_host_leads() {
        let hosts = Hosts::new(&[7, 3, 7, 3, 3, 9], Distance::Hops(2), 4);
        assert_eq!((&*hosts.leaders, hosts.mine, hosts.most), (&[0, 1, 5][..], 1, 3));
        assert_eq!((&*hosts.local, &*hosts.of), (&[1, 3, 4][..], &[0, 1, 0, 1, 1, 2][..]));
        // The third of its host: no other host has a third one.
        assert_eq!(&*hosts.partners, &[0, 4, 5]);
        let second = Hosts::new(&[7, 3, 7, 3, 3, 9], Distance::Hops(2), 3);
        assert_eq!(&*second.partners, &[2, 3, 5]);
        let alone = Hosts::new(&[1], Distance::Myself, 0);
        assert_eq!((&*alone.leaders, &*alone.local, alone.most), (&[0][..], &[0][..], 1));
    }

    #[test]
    fn a_class_holds_the_sizes_up_to_a_power_of_two() {
        assert_eq!((class(0), class(1)), ((0, 1), (0, 1)));
        assert_eq!((class(255), class(256), class(257)), ((8, 256), (8, 256), (9, 512)));
        assert_eq!(class(usize::MAX), (64, usize::MAX));
    }
}
