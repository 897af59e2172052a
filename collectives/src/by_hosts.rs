// SPDX-License-Identifier: Apache-2.0
//! By way of the first member of each host: from each host one message goes to each other host, instead of one from
//! each member to each.
//!
//! Each member sends to the first one of its host, this one sends what its host has to each other first one, and
//! later the result to the members of its host: nobody sends to another twice. The result depends on all, so nobody
//! leaves before all have come.

use crate::gather::Gather;
use crate::group::Group;
use crate::letters::{COPIED_FAR_MAX, Letters, MEMBERS_MAX, copy_bytes, long_max};
use crate::notes::{Hosts, Notes};
use crate::reduce::{Block, Reduce};
use crate::reduce_push::{fits_block, team};
use crate::table::Call;
use std::mem::MaybeUninit;
use tombolo_core::ops::Mode;

/// Bytes of the elements of a host together: they are copied where they leave.
const TOGETHER_MAX: usize = COPIED_FAR_MAX;

/// The hosts, if there are several, one of them with several members, and the team has memory.
fn hosts<'a>(group: &Group<'a>) -> Option<&'a Hosts> {
    let hosts = group.with_memory().and(group.notes()).map(|notes| &notes.hosts);
    hosts.filter(|hosts| hosts.leaders.len() > 1 && hosts.most > 1)
}

/// Whether [`gather`] can carry out a call: blocks of a host lie side by side.
pub fn gathers(group: &Group<'_>, _: &Gather) -> bool {
    hosts(group).is_some_and(Hosts::are_consecutive)
}

/// Whether [`reduce`] can carry out a call: what the first members send each other fits a message.
pub fn reduces(group: &Group<'_>, call: &Reduce) -> bool {
    let fits = |hosts: &Hosts| {
        let len = message_len(hosts, call);
        len <= call.bytes() || len <= TOGETHER_MAX.min(long_max(group.n))
    };
    fits_block(group, call) && hosts(group).is_some_and(fits)
}

/// Bytes of the longest message that the first members send each other: what their hosts have combined, or, where the
/// order matters, the elements of all members.
fn message_len(hosts: &Hosts, call: &Reduce) -> usize {
    if call.reducer.is_exact() { call.bytes() } else { hosts.most.saturating_mul(call.bytes()) }
}

/// Who sends to whom.
struct Roles<'a> {
    me: usize,
    notes: &'a Notes,
}

impl<'a> Roles<'a> {
    fn of(group: &Group<'a>) -> Roles<'a> {
        let Some(notes) = group.notes() else { unreachable!("applies to teams") };
        Roles { me: group.me, notes }
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
}

/// Blocks of equal length, each of which goes to its place in the dest.
///
/// # Safety
/// The buffers are as `shmem_fcollect` promises, and it [`gathers`].
pub unsafe fn gather(group: &Group<'_>, call: &Gather) {
    let roles = Roles::of(group);
    let letters = Letters::begin(group, team(group), 0);
    let at = |member: usize| call.dest.wrapping_add(member * call.len);
    // SAFETY: every member's dest is ready before any of them calls, and has room for the blocks of all, each of which
    // one member writes. What is sent stays as it is until the release.
    unsafe {
        if !roles.is_first() {
            letters.send_to(roles.first(), at(group.me), call.source, call.len, Mode::NonBlocking);
            letters.receive(roles.first());
            return letters.release();
        }
        copy_bytes(at(group.me), call.source, call.len);
        roles.others_here().for_each(|member| _ = letters.receive(member));
        let here = roles.notes.hosts.local.len() * call.len;
        for first in roles.other_firsts() {
            letters.send_to(first, at(group.me), at(group.me), here, Mode::NonBlocking);
        }
        roles.other_firsts().for_each(|first| _ = letters.receive(first));
        for member in roles.others_here() {
            letters.send_to(member, call.dest, call.dest, group.n * call.len, Mode::NonBlocking);
        }
    }
    letters.release();
}

/// The elements of all, combined by the first member of each host: in the order of the members where that matters.
///
/// # Safety
/// The buffers are as `shmem_sum_reduce` promises, and it [`reduces`].
pub unsafe fn reduce(group: &Group<'_>, call: &Reduce) {
    let (roles, len) = (Roles::of(group), call.bytes());
    let letters = Letters::begin(group, team(group), message_len(&roles.notes.hosts, call));
    let mut result = Block::new();
    let result = result.at();
    // SAFETY: all buffers hold the elements, and a blocking send lets go of them.
    unsafe {
        if !roles.is_first() {
            letters.send(roles.first(), call.source, len, Mode::Blocking);
            return copy_bytes(call.dest, letters.receive(roles.first()), len);
        }
        match call.reducer.is_exact() {
            true => combine_hosts(&roles, call, &letters, result),
            false => combine_members(group, &roles, call, &letters, result),
        }
        for member in roles.others_here() {
            letters.send(member, result, len, Mode::Blocking);
        }
        copy_bytes(call.dest, result, len);
    }
}

/// At the first member of a host: combines the elements of the host, and then those of the other hosts.
///
/// # Safety
/// As [`reduce`]; there is room for the result.
unsafe fn combine_hosts(roles: &Roles<'_>, call: &Reduce, letters: &Letters<'_>, result: *mut u8) {
    // SAFETY: all hold the elements.
    unsafe {
        copy_bytes(result, call.source, call.bytes());
        for member in roles.others_here() {
            call.reducer.combine(result, letters.receive(member), call.nelems);
        }
        for first in roles.other_firsts() {
            letters.send(first, result, call.bytes(), Mode::Blocking);
        }
        for first in roles.other_firsts() {
            call.reducer.combine(result, letters.receive(first), call.nelems);
        }
    }
}

/// At the first member of a host: sends the elements of the host side by side, and combines those of all in the order
/// of the members.
///
/// # Safety
/// As [`combine_hosts`]; the elements of a host fit a message.
unsafe fn combine_members(
    group: &Group<'_>,
    roles: &Roles<'_>,
    call: &Reduce,
    letters: &Letters<'_>,
    result: *mut u8,
) {
    let (hosts, len) = (&roles.notes.hosts, call.bytes());
    let mut together = MaybeUninit::<[u8; TOGETHER_MAX]>::uninit();
    let together = together.as_mut_ptr().cast::<u8>();
    for (place, member) in hosts.local.iter().enumerate() {
        let theirs = match *member as usize {
            me if me == roles.me => call.source,
            other => letters.receive(other),
        };
        // SAFETY: there is room for what fits a message.
        unsafe { copy_bytes(together.add(place * len), theirs, len) };
    }
    for first in roles.other_firsts() {
        // SAFETY: so much was written there.
        unsafe { letters.send(first, together, hosts.local.len() * len, Mode::Blocking) };
    }
    roles.other_firsts().for_each(|first| _ = letters.receive(first));
    let mut combined = [0; MEMBERS_MAX];
    for member in 0..group.n {
        let host = roles.notes.host_of(member);
        let of_host = match host == hosts.mine {
            true => together.cast_const(),
            false => letters.bytes(hosts.leaders[host] as usize).cast_const(),
        };
        let theirs = of_host.wrapping_add(combined[host] * len);
        // SAFETY: all hold the elements.
        unsafe { call.reducer.accumulate(member == 0, result, theirs, call.nelems) };
        combined[host] += 1;
    }
}
