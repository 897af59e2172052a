// SPDX-License-Identifier: Apache-2.0
//! Reductions for which hosts take turns: each host combines what the hosts before it have combined with the elements
//! of its members, and the last one has the result. So the elements are combined in the order of the members, as sums
//! of floating-point numbers require, and what goes from host to host is no longer than the elements of one member.
//! Nobody leaves before all have come, because the result depends on all.
//!
//! Short arrays are combined by the first member of each host. Of long ones each member combines a share, which comes
//! from the member at its place of the host before and goes to that of the next one.

use super::Roles;
use crate::group::Group;
use crate::letters::{Letters, copy_bytes, long_max};
use crate::levels::{Places, are_even};
use crate::reduce::{Block, Reduce};
use crate::reduce_push::{STEP, team};
use crate::schedule::{blocks, share};
use crate::stream::Stream;
use crate::table::Call;
use std::ops::Range;
use tombolo_core::ops::Mode;

/// Bytes of the pieces in which shares go from host to host.
const PIECE: usize = 32 << 10;
/// The same where PEs share processors, and each piece costs changes of processes: measured on two and four hosts.
const PIECE_CROWDED: usize = 128 << 10;

/// The elements of all, combined by hosts in turn.
///
/// # Safety
/// The buffers are as `shmem_sum_reduce` promises, and the members of each host follow each other:
/// [`super::can_gather`].
pub unsafe fn reduce_in_turns(group: &Group<'_>, call: &Reduce) {
    if by_shares(group, call) {
        // SAFETY: the caller's promise.
        return unsafe { shares_in_turns(group, call) };
    }
    let roles = Roles::of(group);
    for part in call.parts(group.n) {
        // SAFETY: a part of the buffers, which fits a message.
        unsafe { piece_in_turns(group, &roles, &part) };
    }
}

/// Whether each member combines a share. In place, what comes from another host would overwrite elements that are
/// still needed.
fn by_shares(group: &Group<'_>, call: &Reduce) -> bool {
    has_shares(group, call.bytes()) && !std::ptr::eq(call.dest, call.source)
}

/// Whether so many bytes are combined by shares, if they are not in place: what is longer than a message.
pub fn has_shares(group: &Group<'_>, bytes: usize) -> bool {
    bytes > long_max(group.n) && are_even(group)
}

/// The shares of this member's place, in pieces.
struct Shares {
    mine: Range<usize>,
    /// Elements of a piece.
    step: usize,
    /// Pieces of the longest share, the same at all members.
    count: usize,
}

impl Shares {
    fn of(group: &Group<'_>, places: &Places<'_>, call: &Reduce) -> Shares {
        let piece = if group.world.costs().crowd > 1 { PIECE_CROWDED } else { PIECE };
        let (grain, members) = (call.grain(), places.hosts.local.len());
        let step = (piece / call.reducer.size()).next_multiple_of(grain);
        let lens = (0..members).map(|place| share(place, members, call.nelems, grain).len());
        let count = lens.max().unwrap_or(0).div_ceil(step);
        Shares { mine: places.share(call), step, count }
    }

    fn piece(&self, number: usize) -> Range<usize> {
        let start = self.mine.end.min(self.mine.start + number * self.step);
        start..self.mine.end.min(start + self.step)
    }
}

/// A first message tells the members of a host that this one's elements are ready. What the hosts so far have combined
/// of a piece goes to the dest of the member at the same place of the next host, and the result back from host to host,
/// to the same place of every dest. A last message brings a share to the other members of the host.
///
/// Why nothing is overwritten that is still to be read: the result of a piece comes from the host to which this member has
/// sent what it combined, and depends on it, so it was read. Nobody else writes to this place's share of a dest on
/// this host before the last message, and the dest holds no elements that others need.
///
/// # Safety
/// As [`reduce_in_turns`], and [`by_shares`].
unsafe fn shares_in_turns(group: &Group<'_>, call: &Reduce) {
    let (places, team) = (&Places::of(group), team(group));
    let ready = Letters::begin(group, team, 0);
    places.near().for_each(|member| ready.send_nothing(member));
    places.near().for_each(|member| _ = ready.receive(member));
    let shares = Shares::of(group, places, call);
    let stream = || Stream::begin(group, team, shares.count);
    let (sums, results) = (stream(), stream());
    let at_my_place = |host: usize| places.hosts.partners[host] as usize;
    let (host, last) = (places.hosts.mine, places.hosts.partners.len() - 1);
    let mut lends = false;
    let mut send = |letter: &Letters<'_>, to: usize, range: &Range<usize>| {
        let at = call.dest.wrapping_add(call.offset(range));
        // SAFETY: the same part of every dest, ready before any of them calls; it stays as it is until it was read.
        unsafe { letter.send_to(to, at, at, call.len_of(range), Mode::NonBlocking) };
        lends |= letter.lends();
    };
    for number in 0..shares.count {
        let range = shares.piece(number);
        if host > 0 {
            sums.letter(number).receive(at_my_place(host - 1));
        }
        // SAFETY: the caller's promise; the elements of this host's members are ready, and the sum of those before.
        unsafe { add_host(group, call, places, &range) };
        match host == last {
            true => send(&results.letter(number), at_my_place(host - 1), &range),
            false => send(&sums.letter(number), at_my_place(host + 1), &range),
        }
    }
    for number in (0..shares.count).filter(|_| host < last) {
        let letter = results.letter(number);
        letter.receive(at_my_place(host + 1));
        if host > 0 {
            send(&letter, at_my_place(host - 1), &shares.piece(number));
        }
    }
    let whole = Letters::begin(group, team, 0);
    places.near().for_each(|member| send(&whole, member, &shares.mine));
    places.near().for_each(|member| _ = whole.receive(member));
    // The program may change its dest. Two numbers that follow each other have all contexts.
    if lends {
        (0..2).for_each(|index| sums.letter(index).complete());
    }
}

/// Combines elements with those of the members of this host, in the dest.
///
/// # Safety
/// As [`shares_in_turns`]; on all hosts but the first the dest has what was combined before.
unsafe fn add_host(group: &Group<'_>, call: &Reduce, places: &Places<'_>, range: &Range<usize>) {
    let mut spare = Block::new();
    for block in blocks(range.clone(), STEP / call.reducer.size()) {
        let sum = call.dest.wrapping_add(call.offset(&block));
        for (index, member) in places.hosts.local.iter().enumerate() {
            let first = index == 0 && places.hosts.mine == 0;
            // SAFETY: all of this host hold these elements; nobody else uses this part of the dest now.
            unsafe {
                let theirs = call.reach(group, &mut spare, &block, *member as usize);
                call.reducer.accumulate(first, sum, theirs, block.len());
            }
        }
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
