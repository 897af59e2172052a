// SPDX-License-Identifier: Apache-2.0
//! Elements of all that are combined: reductions and scans.

use super::{Roles, hosts, together_max};
use crate::group::Group;
use crate::letters::{GATHERED_MAX, Letters, copy_bytes};
use crate::notes::Hosts;
use crate::reduce::{Block, Reduce, Scan};
use crate::reduce_push::{fits_block, team};
use crate::table::Call;
use std::mem::MaybeUninit;
use tombolo_core::ops::Mode;

/// Whether [`reduce`] can carry out a call: what the first members send each other fits a message.
pub fn can_reduce(group: &Group<'_>, call: &Reduce) -> bool {
    let fits =
        |hosts: &Hosts| call.reducer.is_exact() || message_len(hosts, call) <= together_max(group);
    fits_block(group, call) && hosts(group).is_some_and(fits)
}

/// Whether [`scan`] can carry out a call: the elements of a host fit a message.
pub fn can_scan(group: &Group<'_>, Scan { reduce: call, .. }: &Scan) -> bool {
    let fits = |hosts: &Hosts| hosts.most.saturating_mul(call.bytes()) <= together_max(group);
    fits_block(group, call) && hosts(group).is_some_and(fits)
}

/// Bytes of the longest message that the first members send each other in a reduction: what the members of a host have
/// combined, or, where the order matters, the elements of all of them.
fn message_len(hosts: &Hosts, call: &Reduce) -> usize {
    let parts = if call.reducer.is_exact() { 1 } else { hosts.most };
    parts.saturating_mul(call.bytes())
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

/// At the first member of a host: combines the elements of all in the order of the members.
///
/// # Safety
/// As [`combine_hosts`]; the elements of a host fit a message.
unsafe fn combine_members(
    roles: &Roles<'_>,
    call: &Reduce,
    letters: &Letters<'_>,
    result: *mut u8,
) {
    // SAFETY: the caller's promise; all hold the elements.
    unsafe {
        in_order(roles, call, letters, |member, theirs| {
            call.reducer.accumulate(member == 0, result, theirs, call.nelems);
        });
    }
}

/// At the first member of a host: sends the elements of the host side by side, and hands on those of all, member by
/// member, once they are here.
///
/// # Safety
/// The elements of a host fit a message.
unsafe fn in_order(
    roles: &Roles<'_>,
    call: &Reduce,
    letters: &Letters<'_>,
    mut take: impl FnMut(usize, *const u8),
) {
    let (hosts, len) = (&roles.notes.hosts, call.bytes());
    let mut together = MaybeUninit::<[u8; GATHERED_MAX]>::uninit();
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
        take(member, of_host.wrapping_add(place * len));
    }
}

/// The sum of the elements of each member and those before it, made by the first member of its host in the order of the
/// members.
///
/// # Safety
/// The buffers are as `shmem_sum_inscan` promises, and it [`can_scan`].
pub unsafe fn scan(group: &Group<'_>, Scan { reduce: call, inclusive }: &Scan) {
    let (roles, len) = (Roles::of(group), call.bytes());
    let letters = Letters::begin(group, team(group), roles.notes.hosts.most * len);
    // SAFETY: all buffers hold the elements, and a blocking send lets go of them.
    unsafe {
        if !roles.is_first() {
            letters.send(roles.first(), call.source, len, Mode::Blocking);
            return copy_bytes(call.dest, letters.receive(roles.first()), len);
        }
        let mut sum = Block::new();
        let sum = sum.at();
        // The sum of nothing: 0 of every type has all bits 0.
        sum.write_bytes(0, len);
        in_order(&roles, call, &letters, |member, theirs| {
            let add = || call.reducer.accumulate(member == 0, sum, theirs, call.nelems);
            if *inclusive {
                add();
            }
            // The elements were copied before, so that the dest may be the source.
            match member {
                me if me == roles.me => copy_bytes(call.dest, sum, len),
                other if roles.notes.is_near(other) => {
                    letters.send(other, sum, len, Mode::Blocking);
                }
                _ => {}
            }
            if !*inclusive {
                add();
            }
        });
    }
}
