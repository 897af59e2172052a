// SPDX-License-Identifier: Apache-2.0
//! Reductions for which hosts take turns: each host combines what the hosts before it have combined with the elements
//! of its members, and the last one has the result. So the elements are combined in the order of the members, as sums
//! of floating-point numbers require, and what goes from host to host is no longer than the elements of one member.
//! Nobody sends to another twice, and nobody leaves before all have come, because the result depends on all.

use super::Roles;
use crate::group::Group;
use crate::letters::{Letters, copy_bytes};
use crate::reduce::Reduce;
use crate::reduce_push::team;
use crate::table::Call;
use tombolo_core::ops::Mode;

/// The elements of all, combined by hosts in turn, in pieces that fit a message.
///
/// # Safety
/// The buffers are as `shmem_sum_reduce` promises, and the members of each host follow each other:
/// [`super::can_gather`].
pub unsafe fn reduce_in_turns(group: &Group<'_>, call: &Reduce) {
    let roles = Roles::of(group);
    for part in call.parts(group.n) {
        // SAFETY: a part of the buffers, which fits a message.
        unsafe { piece_in_turns(group, &roles, &part) };
    }
}

/// # Safety
/// As [`reduce_in_turns`]; the elements fit a message.
unsafe fn piece_in_turns(group: &Group<'_>, roles: &Roles<'_>, call: &Reduce) {
    let (hosts, len) = (&roles.notes.hosts, call.bytes());
    let letters = Letters::begin(group, team(group), len);
    let (mine, last) = (hosts.mine, hosts.leaders.len() - 1);
    let first_of = |host: usize| hosts.leaders[host] as usize;
    // SAFETY: all buffers hold the elements, and a blocking send lets go of them. Every member's dest is ready before
    // any of them calls, and nobody writes a result there before its member has sent its elements, which may lie in the
    // same place. What has come in a message may be written to.
    unsafe {
        if !roles.is_first() {
            letters.send(roles.first(), call.source, len, Mode::Blocking);
            letters.receive(roles.first());
            return;
        }
        let sum = match mine.checked_sub(1) {
            None => {
                copy_bytes(call.dest, call.source, len);
                call.dest
            }
            Some(before) => {
                let sum = letters.receive(first_of(before)).cast_mut();
                call.reducer.combine(sum, call.source, call.nelems);
                sum
            }
        };
        for member in roles.others_here() {
            call.reducer.combine(sum, letters.receive(member), call.nelems);
        }
        if mine < last {
            letters.send(first_of(mine + 1), sum, len, Mode::Blocking);
            letters.receive(first_of(last));
        } else {
            copy_bytes(call.dest, sum, len);
            for host in 0..last {
                letters.send_to(first_of(host), call.dest, call.dest, len, Mode::Blocking);
            }
        }
        for member in roles.others_here() {
            letters.send_to(member, call.dest, call.dest, len, Mode::NonBlocking);
        }
    }
    letters.release();
}
