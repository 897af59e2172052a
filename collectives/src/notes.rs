// SPDX-License-Identifier: Apache-2.0
//! What a team remembers for its collectives: algorithms chosen, its hosts, and how often its memory
//! was used.

use crate::letters::{SHORT_MAX, TeamWord};
use crate::table;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use tombolo_core::control;
use tombolo_core::transport::Distance;
use tombolo_core::{Team, World};

/// Sizes are told apart by the power of two that is next above them.
const CLASSES: usize = usize::BITS as usize + 1;

/// What one member remembers of a team. All members do the same with it in the same order, so that
/// numbers and choices are alike.
pub struct Notes {
    /// By kind of call and class of size: the algorithm's number plus one, 0 if not chosen yet.
    choices: [[AtomicU8; CLASSES]; table::KINDS],
    /// The costs by which they were chosen.
    costs: AtomicUsize,
    /// By kind of call, the lengths for which the algorithm chosen is that which the operation's routine
    /// enters by itself, as bits.
    short: [AtomicU64; table::KINDS],
    /// By member, where its team memory is in this process; 0 where it is not mapped. Empty if the team has
    /// none.
    memory: Box<[usize]>,
    /// Whether that of all members is mapped, if the team has memory.
    pub all_mapped: bool,
    /// Messages so far; see [`crate::letters`].
    messages: AtomicU64,
    /// Members to which a put was seen not to be complete when it returned, as bits: one for every 64th member.
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
    /// By member, how many members of its host come before it.
    before: Box<[u32]>,
}

impl Hosts {
    /// Of members on the given hosts, as member `me` sees them.
    fn new(hosts: &[u64], step: Distance, me: usize) -> Hosts {
        let mut leaders: Vec<u32> = Vec::new();
        let mut counts: Vec<usize> = Vec::new();
        let (mut of, mut before) = (Vec::new(), Vec::new());
        for (member, host) in hosts.iter().enumerate() {
            let known = leaders.iter().position(|leader| hosts[*leader as usize] == *host);
            of.push(known.unwrap_or(leaders.len()) as u32);
            match known {
                Some(known) => {
                    before.push(counts[known] as u32);
                    counts[known] += 1;
                }
                None => {
                    before.push(0);
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
            before: before.into(),
            step,
        }
    }

    /// Whether the members of each host follow each other.
    pub fn are_consecutive(&self) -> bool {
        self.of.is_sorted()
    }
}

impl Notes {
    /// Which of the hosts a member is on.
    pub fn host_of(&self, member: usize) -> usize {
        self.hosts.of[member] as usize
    }

    /// How many members of its host come before a member.
    pub fn place_of(&self, member: usize) -> usize {
        self.hosts.before[member] as usize
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
        let memory = memory(world, team);
        Notes {
            choices: std::array::from_fn(|_| std::array::from_fn(|_| AtomicU8::new(0))),
            costs: AtomicUsize::new(0),
            short: std::array::from_fn(|_| AtomicU64::new(0)),
            all_mapped: memory.iter().all(|at| *at != 0),
            memory,
            // Greater than all numbers that teams have left in this slot, and alike on all members,
            // who are all in the same call.
            messages: AtomicU64::new(team.epoch.load(Ordering::Relaxed)),
            slow: AtomicU64::new(0),
            forced: table::Forced::new(&world.config().coll),
            hosts: Hosts::new(&hosts, step(world, team), team.me),
        }
    }

    /// The number of the next message, from 1.
    #[inline(always)]
    pub fn next_message(&self) -> u64 {
        self.next_messages(1)
    }

    /// The first number of the next `count` messages. Collectives of one team are called by one thread at a
    /// time.
    #[inline(always)]
    pub fn next_messages(&self, count: usize) -> u64 {
        let last = self.messages.load(Ordering::Relaxed);
        self.messages.store(last + count as u64, Ordering::Relaxed);
        last + 1
    }

    /// Whether members can write to memory of the team: the same on all of them.
    #[inline(always)]
    pub fn has_memory(&self) -> bool {
        !self.memory.is_empty()
    }

    /// Whether puts to a member are complete when they return, as far as was seen.
    pub fn arrives_at_once(&self, member: usize) -> bool {
        self.slow.load(Ordering::Relaxed) >> (member % 64) & 1 == 0
    }

    /// A put to a member was not complete when it returned.
    pub fn does_not_arrive_at_once(&self, member: usize) {
        self.slow.fetch_or(1 << (member % 64), Ordering::Relaxed);
    }

    /// No flag of the team's memory holds a later number.
    pub fn messages(&self) -> u64 {
        self.messages.load(Ordering::Relaxed)
    }

    /// The algorithm chosen for a kind of call and a class of size; none if there is none yet.
    #[inline]
    pub fn choice(&self, world: &World, kind: usize, class: usize) -> Option<usize> {
        if self.costs.load(Ordering::Relaxed) != costs(world) {
            return None;
        }
        usize::from(self.choices[kind][class].load(Ordering::Relaxed)).checked_sub(1)
    }

    /// Whether a call of so many bytes goes by the algorithm that the operation's routine enters by itself:
    /// known from an earlier call.
    #[inline(always)]
    pub fn is_short(&self, world: &World, kind: usize, len: usize) -> bool {
        len <= SHORT_MAX
            && self.short[kind].load(Ordering::Relaxed) >> len & 1 != 0
            && self.costs.load(Ordering::Relaxed) == costs(world)
    }

    /// Remembers a choice, and forgets those made by other costs. `enters` says whether the operation's
    /// routine enters the algorithm by itself where bytes fit a line.
    pub fn choose(&self, world: &World, kind: usize, class: usize, algorithm: usize, enters: bool) {
        if self.costs.swap(costs(world), Ordering::Relaxed) != costs(world) {
            let all = self.choices.iter().flatten();
            all.for_each(|choice| choice.store(0, Ordering::Relaxed));
            self.short.iter().for_each(|short| short.store(0, Ordering::Relaxed));
        }
        self.choices[kind][class].store(algorithm as u8 + 1, Ordering::Relaxed);
        let (lens, short) = (short_lens(class), self.short[kind].load(Ordering::Relaxed));
        let short = if enters { short | lens } else { short & !lens };
        self.short[kind].store(short, Ordering::Relaxed);
    }

    /// A word of the team's memory at a member, as memory of this process; null where it is not mapped.
    ///
    /// The team must have memory.
    #[inline(always)]
    pub fn word(&self, member: usize, place: TeamWord) -> *mut AtomicU64 {
        match self.memory[member] {
            0 => std::ptr::null_mut(),
            memory => std::ptr::with_exposed_provenance_mut(memory + place.offset()),
        }
    }
}

/// Where the memory of the members of a team is in this process.
fn memory(world: &World, team: &Team) -> Box<[usize]> {
    let Some(offset) = control::memory(world.n_pes(), team.slot, team.n_pes()) else {
        return Box::default();
    };
    // The control area, with which the heap begins.
    let own = world.heap().base().wrapping_add(offset);
    let at = |member: usize| match member == team.me {
        true => own.expose_provenance(),
        false => world.ptr(own, team.world_pe(member)).expose_provenance(),
    };
    (0..team.n_pes()).map(at).collect()
}

/// The lengths of a class that fit a line, as bits.
fn short_lens(class: usize) -> u64 {
    let up_to = |len: usize| u64::MAX >> (63 - len.min(SHORT_MAX));
    match class {
        0 => up_to(1),
        1..=6 => up_to(1 << class) & !up_to(1 << (class - 1)),
        _ => 0,
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

/// Names the costs in force, which change on all PEs between the same calls. Replaced ones are kept, so no others have
/// their address. Routes change on one PE alone as well, and what is remembered must not: a call may fit algorithms
/// that an earlier one of its class, by which the others still go, did not fit.
#[inline]
pub fn costs(world: &World) -> usize {
    std::ptr::from_ref(world.costs()) as usize
}

/// The class of a size, and the largest size in it.
pub fn class(bytes: usize) -> (usize, usize) {
    match bytes.checked_next_power_of_two() {
        Some(most) => (most.trailing_zeros() as usize, most),
        None => (usize::BITS as usize, usize::MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_member_of_each_host_leads() {
        let hosts = Hosts::new(&[7, 3, 7, 3, 3, 9], Distance::Hops(2), 4);
        assert_eq!((&*hosts.leaders, hosts.mine, hosts.most), (&[0, 1, 5][..], 1, 3));
        assert_eq!((&*hosts.local, &*hosts.of), (&[1, 3, 4][..], &[0, 1, 0, 1, 1, 2][..]));
        assert_eq!(&*hosts.before, &[0, 0, 1, 1, 2, 0]);
        // The third of its host: no other host has a third one.
        assert_eq!(&*hosts.partners, &[0, 4, 5]);
        assert!(!hosts.are_consecutive());
        assert!(Hosts::new(&[3, 3, 7, 9, 9], Distance::Network, 4).are_consecutive());
        let second = Hosts::new(&[7, 3, 7, 3, 3, 9], Distance::Hops(2), 3);
        assert_eq!(&*second.partners, &[2, 3, 5]);
        let alone = Hosts::new(&[1], Distance::Myself, 0);
        assert_eq!((&*alone.leaders, &*alone.local, alone.most), (&[0][..], &[0][..], 1));
    }

    #[test]
    fn the_lengths_of_a_class_that_fit_a_line_are_those_in_it() {
        for class_of in 0..CLASSES {
            let of_class = |len: &usize| class(*len).0 == class_of;
            let lens = (0..=SHORT_MAX).filter(of_class).map(|len| 1u64 << len).sum::<u64>();
            assert_eq!(short_lens(class_of), lens, "class {class_of}");
        }
    }

    #[test]
    fn a_class_holds_the_sizes_up_to_a_power_of_two() {
        assert_eq!((class(0), class(1)), ((0, 1), (0, 1)));
        assert_eq!((class(255), class(256), class(257)), ((8, 256), (8, 256), (9, 512)));
        assert_eq!(class(usize::MAX), (64, usize::MAX));
    }
}
