// SPDX-License-Identifier: Apache-2.0
//! Blocks from all to all: the same to each, or one for each.

use super::{Roles, hosts, together_max};
use crate::exchange::Alltoall;
use crate::gather::{self, Collect, Gather};
use crate::group::Group;
use crate::letters::{ELEMENT_MAX, GATHERED_MAX, Letters, copy_bytes};
use crate::notes::Hosts;
use crate::reduce_push::team;
use std::mem::MaybeUninit;
use tombolo_core::ops::Mode;

/// Longest block of a collect that the first members pass on: where one is longer, all members put theirs to all.
const BLOCK_MAX: usize = GATHERED_MAX;
/// Bytes of a length.
const WORD: usize = size_of::<u64>();

/// Whether [`gather`] and [`collect`] can carry out a call: blocks of a host lie side by side.
pub fn can_gather<A>(group: &Group<'_>, _: &A) -> bool {
    hosts(group).is_some_and(Hosts::are_consecutive)
}

/// Whether [`collect`] can carry out a call: the same, and the lengths of all fit a message.
pub fn can_collect<A>(group: &Group<'_>, call: &A) -> bool {
    can_gather(group, call) && group.n <= LENGTHS_MAX
}

/// Lengths that a message of the largest team holds.
const LENGTHS_MAX: usize = ELEMENT_MAX / WORD;

/// Whether [`alltoall`] can carry out a call: the blocks of a member for all, and those of a host for another, fit a
/// message.
pub fn can_exchange(group: &Group<'_>, call: &Alltoall) -> bool {
    let fits = |hosts: &Hosts| exchanged_len(group, hosts, call) <= together_max(group);
    hosts(group).is_some_and(fits)
}

/// Bytes of the longest message of an [`alltoall`].
fn exchanged_len(group: &Group<'_>, hosts: &Hosts, call: &Alltoall) -> usize {
    group.n.max(hosts.most * hosts.most).saturating_mul(call.len)
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
/// The buffers are as `shmem_collect` promises, and it [`can_collect`].
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
fn lengths(group: &Group<'_>, roles: &Roles<'_>, len: usize) -> [usize; LENGTHS_MAX] {
    let letters = Letters::begin(group, team(group), group.n * WORD);
    let (hosts, mut lens) = (&roles.notes.hosts, [0; LENGTHS_MAX]);
    let all = lens.as_mut_ptr().cast::<u8>();
    // SAFETY: words of messages that have as many, and of arrays that hold those of all members; a blocking send lets
    // go of them.
    unsafe {
        if !roles.is_first() {
            letters.send(roles.first(), (&raw const len).cast(), WORD, Mode::Blocking);
            copy_bytes(all, letters.receive(roles.first()), group.n * WORD);
            return lens;
        }
        let mut here = [len; LENGTHS_MAX];
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

/// A block of its own from each member to each.
///
/// # Safety
/// The buffers are as `shmem_alltoall` promises, and it [`can_exchange`].
pub unsafe fn alltoall(group: &Group<'_>, call: &Alltoall) {
    let (roles, len) = (Roles::of(group), call.len);
    let hosts = &roles.notes.hosts;
    let letters = Letters::begin(group, team(group), exchanged_len(group, hosts, call));
    let here = || hosts.local.iter().map(|member| *member as usize).enumerate();
    let mut together = MaybeUninit::<[u8; GATHERED_MAX]>::uninit();
    let together = together.as_mut_ptr().cast::<u8>();
    // SAFETY: all buffers hold a block for each, and there is room for what fits a message; a blocking send lets go of
    // what is sent. Every member's dest is ready before any of them calls, and only the first of its host writes to it.
    unsafe {
        if !roles.is_first() {
            letters.send(roles.first(), call.source, group.n * len, Mode::Blocking);
            letters.receive(roles.first());
            return;
        }
        for member in roles.others_here() {
            letters.receive(member);
        }
        // Blocks of a member of this host for all.
        let blocks_of = |member: usize| match member == roles.me {
            true => call.source,
            false => letters.bytes(member).cast_const(),
        };
        for first in roles.other_firsts() {
            let host = roles.notes.host_of(first);
            let mut end = together;
            for (_, from) in here() {
                for (to, ..) in roles.places().filter(|(_, of, _)| *of == host) {
                    copy_bytes(end, blocks_of(from).add(to * len), len);
                    end = end.add(len);
                }
            }
            letters.send(first, together, end.offset_from_unsigned(together), Mode::Blocking);
        }
        roles.other_firsts().for_each(|first| _ = letters.receive(first));
        for (place, to) in here() {
            for (from, host, theirs) in roles.places() {
                let block = match host == hosts.mine {
                    true => blocks_of(from).add(to * len),
                    false => letters
                        .bytes(hosts.leaders[host] as usize)
                        .cast_const()
                        .add((theirs * hosts.local.len() + place) * len),
                };
                copy_bytes(together.add(from * len), block, len);
            }
            match to == roles.me {
                true => copy_bytes(call.dest, together, group.n * len),
                false => letters.send_to(to, call.dest, together, group.n * len, Mode::Blocking),
            }
        }
    }
}
