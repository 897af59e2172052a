// SPDX-License-Identifier: Apache-2.0
//! Collectives by way of the first member of each host: from each host one message goes to each other host, instead of
//! one from each member to each.
//!
//! Each member sends to the first member of its host. The first members send each other what their hosts have, and then
//! send the result to the other members of their hosts. So nobody sends to another twice, and nobody leaves before all
//! have come, because the result depends on all: [`crate::letters`] requires both.

use crate::gather::{self, Collect, Gather};
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
/// Longest block of a collect that the first members pass on: where one is longer, all members put theirs to all.
const BLOCK_MAX: usize = COPIED_FAR_MAX;
/// Bytes of a length.
const WORD: usize = size_of::<u64>();

/// The hosts, if there are several, one of them with several members, and the team has memory.
fn hosts<'a>(group: &Group<'a>) -> Option<&'a Hosts> {
    let hosts = group.with_memory().and(group.notes()).map(|notes| &notes.hosts);
    hosts.filter(|hosts| hosts.leaders.len() > 1 && hosts.most > 1)
}

/// Whether [`gather`] and [`collect`] can carry out a call: blocks of a host lie side by side.
pub fn can_gather<A>(group: &Group<'_>, _: &A) -> bool {
    hosts(group).is_some_and(Hosts::are_consecutive)
}

/// Whether [`reduce`] can carry out a call: what the first members send each other fits a message.
pub fn can_reduce(group: &Group<'_>, call: &Reduce) -> bool {
    let fits = |hosts: &Hosts| {
        call.reducer.is_exact() || message_len(hosts, call) <= TOGETHER_MAX.min(long_max(group.n))
    };
    fits_block(group, call) && hosts(group).is_some_and(fits)
}

/// Bytes of the longest message that the first members send each other: what the members of a host have combined, or,
/// where the order matters, the elements of all of them.
fn message_len(hosts: &Hosts, call: &Reduce) -> usize {
    let parts = if call.reducer.is_exact() { 1 } else { hosts.most };
    parts.saturating_mul(call.bytes())
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
        let mut before = [0; MEMBERS_MAX];
        (0..self.n).map(move |member| {
            let host = self.notes.host_of(member);
            before[host] += 1;
            (member, host, before[host] - 1)
        })
    }
}

/// Blocks of equal length.
///
/// # Safety
/// The buffers are as `shmem_fcollect` promises, and it [`can_gather`].
pub unsafe fn gather(group: &Group<'_>, call: &Gather) {
    // SAFETY: the caller's promise.
    unsafe { send_blocks(group, &Roles::of(group), call, |member| member * call.len) };
}

/// Blocks of lengths that the members first tell each other.
///
/// # Safety
/// The buffers are as `shmem_collect` promises, and it [`can_gather`].
pub unsafe fn collect(group: &Group<'_>, Collect(call): &Collect) {
    let roles = &Roles::of(group);
    let lens = &lengths(group, roles, call.len)[..group.n];
    let offset = gather::place(group, call, lens.iter().copied());
    if lens.iter().any(|len| *len > BLOCK_MAX) {
        // SAFETY: the caller's promise.
        return unsafe { gather::put_with_signals(group, team(group), call, offset) };
    }
    let before = |member: usize| lens[..member].iter().sum::<usize>();
    if before(group.n) > group.world.room_at(call.dest) {
        gather::no_room(group, call, before(group.n));
    }
    // SAFETY: the caller's promise; no sum of so short lengths overflows.
    unsafe { send_blocks(group, roles, call, before) };
}

/// The lengths that all members say their blocks have.
fn lengths(group: &Group<'_>, roles: &Roles<'_>, len: usize) -> [usize; MEMBERS_MAX] {
    let letters = Letters::begin(group, team(group), group.n * WORD);
    let (hosts, mut lens) = (&roles.notes.hosts, [0; MEMBERS_MAX]);
    let all = lens.as_mut_ptr().cast::<u8>();
    // SAFETY: words of messages that have as many, and of arrays that hold those of all members; a blocking send lets
    // go of them.
    unsafe {
        if !roles.is_first() {
            letters.send(roles.first(), (&raw const len).cast(), WORD, Mode::Blocking);
            copy_bytes(all, letters.receive(roles.first()), group.n * WORD);
            return lens;
        }
        let mut here = [len; MEMBERS_MAX];
        for (place, member) in roles.others_here().enumerate() {
            here[1 + place] = letters.receive(member).cast::<usize>().read();
        }
        for first in roles.other_firsts() {
            let len = hosts.local.len() * WORD;
            letters.send(first, here.as_ptr().cast(), len, Mode::Blocking);
        }
        roles.other_firsts().for_each(|first| _ = letters.receive(first));
        for (member, host, place) in roles.places() {
            lens[member] = match host == hosts.mine {
                true => here[place],
                false => {
                    let theirs = letters.bytes(hosts.leaders[host] as usize);
                    theirs.cast_const().cast::<usize>().add(place).read()
                }
            };
        }
        for member in roles.others_here() {
            letters.send(member, lens.as_ptr().cast(), group.n * WORD, Mode::Blocking);
        }
    }
    lens
}

/// Brings each block to its place in the dest of all: `before` says how many bytes those of the members before have.
///
/// # Safety
/// Dests have room for the blocks of all, this member's own is the source of the call, and it [`can_gather`].
unsafe fn send_blocks(
    group: &Group<'_>,
    roles: &Roles<'_>,
    call: &Gather,
    before: impl Fn(usize) -> usize,
) {
    let letters = Letters::begin(group, team(group), 0);
    let own = call.dest.wrapping_add(before(group.me));
    // SAFETY: every member's dest is ready before any of them calls, and has room for the blocks of all, each of which
    // one member writes. What is sent stays as it is until the release.
    unsafe {
        if !roles.is_first() {
            letters.send_to(roles.first(), own, call.source, call.len, Mode::NonBlocking);
            letters.receive(roles.first());
            return letters.release();
        }
        copy_bytes(own, call.source, call.len);
        roles.others_here().for_each(|member| _ = letters.receive(member));
        let here = before(group.me + roles.notes.hosts.local.len()) - before(group.me);
        for first in roles.other_firsts() {
            letters.send_to(first, own, own, here, Mode::NonBlocking);
        }
        roles.other_firsts().for_each(|first| _ = letters.receive(first));
        for member in roles.others_here() {
            letters.send_to(member, call.dest, call.dest, before(group.n), Mode::NonBlocking);
        }
    }
    letters.release();
}

/// The elements of all, combined by the first member of each host: in the order of the members where that matters.
///
/// # Safety
/// The buffers are as `shmem_sum_reduce` promises, and it [`can_reduce`].
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
            false => combine_members(&roles, call, &letters, result),
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
    for (member, host, place) in roles.places() {
        let of_host = match host == hosts.mine {
            true => together.cast_const(),
            false => letters.bytes(hosts.leaders[host] as usize).cast_const(),
        };
        let theirs = of_host.wrapping_add(place * len);
        // SAFETY: all hold the elements.
        unsafe { call.reducer.accumulate(member == 0, result, theirs, call.nelems) };
    }
}
