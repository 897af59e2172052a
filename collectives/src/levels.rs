// SPDX-License-Identifier: Apache-2.0
//! Reductions by levels: members of a host combine what each other's memory holds, then each exchanges
//! its share with the members at its place on the other hosts, then members of a host give each other
//! the results. A link carries as many bytes as if each host had one member.

use crate::group::Group;
use crate::letters::{Letters, long_max};
use crate::notes::Hosts;
use crate::reduce::{Block, Reduce};
use crate::reduce_push::{STEP, team};
use crate::schedule::{blocks, share};
use std::ops::Range;
use tombolo_core::copy;
use tombolo_core::ops::Mode;

/// Whether the members are on several hosts, equally many of them, and several, on each.
pub fn are_even(group: &Group<'_>) -> bool {
    let even = |hosts: &Hosts| {
        let count = hosts.leaders.len();
        count > 1 && hosts.most > 1 && hosts.most * count == group.n
    };
    group.with_memory().is_some() && group.notes().is_some_and(|notes| even(&notes.hosts))
}

/// Who does what.
pub(crate) struct Places<'a> {
    pub(crate) hosts: &'a Hosts,
    /// This member's number among those of its host.
    place: usize,
}

impl<'a> Places<'a> {
    pub(crate) fn of(group: &Group<'a>) -> Places<'a> {
        let Some(notes) = group.notes() else { unreachable!("applies to teams") };
        let hosts = &notes.hosts;
        let place = hosts.local.iter().position(|member| *member as usize == group.me);
        Places { hosts, place: place.unwrap_or(0) }
    }

    /// The other members of this host.
    pub(crate) fn near(&self) -> impl Iterator<Item = usize> {
        let others = self.hosts.local.iter().enumerate().filter(|(at, _)| *at != self.place);
        others.map(|(_, member)| *member as usize)
    }

    /// The members at this one's place of the other hosts.
    fn far(&self) -> impl Iterator<Item = usize> {
        let others = self.hosts.partners.iter().enumerate();
        others.filter(|(host, _)| *host != self.hosts.mine).map(|(_, member)| *member as usize)
    }

    /// The elements that this member's place combines.
    pub(crate) fn share(&self, call: &Reduce) -> Range<usize> {
        share(self.place, self.hosts.local.len(), call.nelems, call.grain())
    }

    /// Piece number `piece` of the part of them that a host combines.
    fn part(&self, group: &Group<'_>, call: &Reduce, host: usize, piece: usize) -> Range<usize> {
        let mine = self.share(call);
        let part = share(host, self.hosts.partners.len(), mine.len(), call.grain());
        let step = call.elements_per_part(group.n);
        let start = part.end.min(part.start + piece * step);
        mine.start + start..mine.start + part.end.min(start + step)
    }

    /// Pieces of the longest part, the same at all members.
    fn pieces(&self, group: &Group<'_>, call: &Reduce) -> usize {
        let parts = self.hosts.local.len() * self.hosts.partners.len();
        // Shares of shares differ by a few grains at most.
        let most = call.nelems / parts + 4 * call.grain();
        most.div_ceil(call.elements_per_part(group.n))
    }
}

/// The elements of all, by levels: first in the order of the members of each host, then of the hosts.
///
/// A first message tells the members of a host that this one's elements are ready; then each piece takes
/// two among the hosts, and a last one brings the results to the members of the host. Numbers are left
/// out so that elements go to the half of memory that the collective before has not used, and then to
/// the halves by turns. Who sends elements of piece n + 2 has received the results of n + 1, which were
/// sent after reading the elements of n.
///
/// Nobody leaves before all have come: the last message of a member of the host comes after results of
/// all hosts, which their members sent when all there had come.
///
/// # Safety
/// The buffers are as `shmem_sum_reduce` promises, and [`are_even`] says so.
pub unsafe fn reduce(group: &Group<'_>, call: &Reduce) {
    let places = &Places::of(group);
    let team = team(group);
    let ready = Letters::begin(group, team, 0);
    places.near().for_each(|member| ready.send_nothing(member));
    places.near().for_each(|member| _ = ready.receive(member));
    Letters::reserve(group, 1);
    let pieces = places.pieces(group, call);
    for piece in 0..pieces {
        let letters = Letters::begin(group, team, long_max(group.n));
        // SAFETY: the caller's promise; the elements of this host's members are ready.
        unsafe { combine_and_send(group, call, places, piece, &letters) };
        // SAFETY: the same; what others of this place sent was written whole.
        unsafe { combine_hosts(group, call, places, piece, &letters) };
        let results = Letters::begin(group, team, 0);
        let mine = places.part(group, call, places.hosts.mine, piece);
        let (at, len) = (call.dest.wrapping_add(call.offset(&mine)), call.len_of(&mine));
        for member in places.far() {
            // SAFETY: the same part of every dest; it stays as it is until the letters are released.
            unsafe { results.send_to(member, at, at, len, Mode::NonBlocking) };
        }
        places.far().for_each(|member| _ = results.receive(member));
        if piece + 1 < pieces {
            Letters::reserve(group, 1);
        }
        letters.release();
        results.release();
    }
    let whole = Letters::begin(group, team, 0);
    let mine = places.share(call);
    let (at, len) = (call.dest.wrapping_add(call.offset(&mine)), call.len_of(&mine));
    for member in places.near() {
        // SAFETY: this place's share of the dest, which nobody else writes; the member has read the
        // elements that were there if it is the source as well, as it has sent its own parts.
        unsafe { whole.send_to(member, at, at, len, Mode::NonBlocking) };
    }
    places.near().for_each(|member| _ = whole.receive(member));
    whole.release();
}

/// Combines a piece of each host's part from the elements of this host's members, and sends them there.
///
/// # Safety
/// As [`reduce`].
unsafe fn combine_and_send(
    group: &Group<'_>,
    call: &Reduce,
    places: &Places<'_>,
    piece: usize,
    letters: &Letters<'_>,
) {
    let (mut acc, mut spare) = (Block::new(), Block::new());
    let size = call.reducer.size();
    for (host, member) in places.hosts.partners.iter().enumerate() {
        let part = places.part(group, call, host, piece);
        for range in blocks(part.clone(), STEP / size) {
            for (index, near) in places.hosts.local.iter().enumerate() {
                // SAFETY: all of this host hold these elements, and nobody writes this place's share
                // of their sources; blocks are private.
                unsafe {
                    let theirs = call.reach(group, &mut spare, &range, *near as usize);
                    call.reducer.accumulate(index == 0, acc.at(), theirs, range.len());
                }
            }
            let at = call.dest.wrapping_add(call.offset(&range));
            // SAFETY: this member's dest, which nobody else writes before it has what is sent here.
            unsafe { at.copy_from_nonoverlapping(acc.at(), range.len() * size) };
        }
        if host != places.hosts.mine {
            let at = call.dest.wrapping_add(call.offset(&part));
            // SAFETY: as long as a part of a message; the result overwrites it when it was read.
            unsafe { letters.send(*member as usize, at, call.len_of(&part), Mode::NonBlocking) };
        }
    }
}

/// Combines what the hosts have combined of this one's part, in their order, in the dest.
///
/// # Safety
/// As [`reduce`].
unsafe fn combine_hosts(
    group: &Group<'_>,
    call: &Reduce,
    places: &Places<'_>,
    piece: usize,
    letters: &Letters<'_>,
) {
    let mut acc = Block::new();
    let size = call.reducer.size();
    let mine = places.part(group, call, places.hosts.mine, piece);
    places.far().for_each(|member| _ = letters.receive(member));
    for range in blocks(mine.clone(), STEP / size) {
        let at = call.dest.wrapping_add(call.offset(&range));
        for (host, member) in places.hosts.partners.iter().enumerate() {
            let theirs = match host == places.hosts.mine {
                true => at.cast_const(),
                false => {
                    let letter = letters.bytes(*member as usize).cast_const();
                    let letter = letter.wrapping_add(call.offset(&range) - call.offset(&mine));
                    copy::claim(letter, range.len() * size);
                    letter
                }
            };
            // SAFETY: both hold these elements, and `acc` is private.
            unsafe {
                call.reducer.accumulate(host == 0, acc.at(), theirs, range.len());
            }
        }
        // SAFETY: a part of this member's dest.
        unsafe { at.copy_from_nonoverlapping(acc.at(), range.len() * size) };
    }
}
