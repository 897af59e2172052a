// SPDX-License-Identifier: Apache-2.0
//! Collectives by way of the first member of each host: from each host one message goes to each other host, instead of
//! one from each member to each.
//!
//! Each member sends to the first member of its host. The first members send each other what their hosts have, wait for
//! what all others of them send, and then send the results to the other members of their hosts. So nobody sends to
//! another twice, and nobody leaves before all have come: [`crate::letters`] requires both. Reductions in [`turns`] go from
//! host to host instead, long ones by all members.

use crate::group::Group;
use crate::letters::{GATHERED_MAX, long_max};
use crate::notes::{Hosts, Notes};

mod blocks;
mod elements;
mod turns;

pub use blocks::{alltoall, can_collect, can_exchange, can_gather, collect, gather};
pub use elements::{can_reduce, can_scan, reduce, scan};
pub use turns::{has_shares, reduce_in_turns};

/// The hosts, if there are several, one of them with several members, and the team has memory.
fn hosts<'a>(group: &Group<'a>) -> Option<&'a Hosts> {
    let hosts = group.with_memory().and(group.notes()).map(|notes| &notes.hosts);
    hosts.filter(|hosts| hosts.leaders.len() > 1 && hosts.most > 1)
}

/// Bytes that a first member can put side by side and send in one message.
fn together_max(group: &Group<'_>) -> usize {
    GATHERED_MAX.min(long_max(group.n))
}

/// Who sends to whom.
struct Roles<'a> {
    n: usize,
    me: usize,
    notes: &'a Notes,
}

impl<'a> Roles<'a> {
    fn of(group: &Group<'a>) -> Roles<'a> {
        let Some(notes) = group.notes() else { unreachable!("applies to teams") };
        Roles { n: group.n, me: group.me, notes }
    }

    /// The first member of this host.
    fn first(&self) -> usize {
        self.notes.hosts.local[0] as usize
    }

    fn is_first(&self) -> bool {
        self.first() == self.me
    }

    /// The other members of this host, as the first one sees them.
    fn others_here(&self) -> impl Iterator<Item = usize> {
        self.notes.hosts.local[1..].iter().map(|member| *member as usize)
    }

    /// The first members of other hosts, as one of them sees them.
    fn other_firsts(&self) -> impl Iterator<Item = usize> {
        let firsts = self.notes.hosts.leaders.iter().map(|first| *first as usize);
        firsts.filter(|first| *first != self.me)
    }

    /// All members, each with its host and its number among those of it.
    fn places(&self) -> impl Iterator<Item = (usize, usize, usize)> {
        let Roles { n, notes, .. } = *self;
        (0..n).map(|member| (member, notes.host_of(member), notes.place_of(member)))
    }
}
