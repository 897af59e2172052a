// SPDX-License-Identifier: Apache-2.0
//! Long reductions in which shares are exchanged through the result arrays, so that nothing is cut into pieces
//! that fit the team's memory.

use crate::group::Group;
use crate::letters::{Letters, long_max};
use crate::reduce::{Block, Reduce};
use crate::reduce_push::{combine_letters, scattered, team};
use crate::schedule::{blocks, others};
use crate::table::Call;
use std::ops::Range;
use tombolo_core::copy;
use tombolo_core::ops::Mode;

impl Reduce {
    /// Elements of each member's share: as many for all. Some of the elements are left over.
    fn even_share(&self, n: usize) -> usize {
        self.nelems / (n * self.grain()) * self.grain()
    }

    fn even_share_of(&self, n: usize, member: usize) -> Range<usize> {
        let len = self.even_share(n);
        member * len..(member + 1) * len
    }

    /// The elements that are left over.
    fn rest(&self, n: usize) -> Range<usize> {
        n * self.even_share(n)..self.nelems
    }
}

/// Whether there are shares, and what is left over fits a message.
pub fn applies(group: &Group<'_>, call: &Reduce) -> bool {
    let rest = group.n * call.grain() * call.reducer.size();
    group.with_memory().is_some() && rest <= long_max(group.n) && call.even_share(group.n) > 0
}

/// Each sends each member its share, combines its own share of all, in the order of the members, and sends the
/// result to all.
///
/// What a member sends goes to the part of the other's dest where that member's result comes later. So nobody
/// sends its result to a member before that one has told that it has combined all: with the elements that
/// are left over, which all combine for themselves.
///
/// This takes three messages from all to all. Why the third one may use the lines of the first: it is
/// sent when its receiver has told that it has got all of the first. Why the next collective may use those of the
/// second: who begins it has got a result from each member, who has read what came with the second before.
///
/// # Safety
/// The buffers are as `shmem_sum_reduce` promises.
pub unsafe fn pairwise(group: &Group<'_>, call: &Reduce) {
    if std::ptr::eq(call.dest, call.source) {
        // Elements that come would overwrite others that are still needed.
        // SAFETY: the caller's promise.
        return unsafe { scattered(group, call) };
    }
    let (me, n) = (group.me, group.n);
    let part = |member| call.even_share_of(n, member);
    let mine = part(me);
    let elements = Letters::begin(group, team(group), 0);
    let place = call.dest.wrapping_add(call.offset(&mine));
    for member in others(me, n) {
        let source = call.source.wrapping_add(call.offset(&part(member)));
        // SAFETY: a part of the source, which stays as it is, and of the member's dest, which is ready before
        // any of them calls.
        unsafe { elements.send_to(member, place, source, call.len_of(&mine), Mode::NonBlocking) };
    }
    for member in others(me, n) {
        elements.receive(member);
    }
    let mut acc = Block::new();
    for range in blocks(0..mine.len(), call.elements_per_step()) {
        for member in 0..n {
            let at = call.offset(&part(member)) + call.offset(&range);
            let theirs = match member == me {
                true => call.source.wrapping_add(at),
                false => call.dest.cast_const().wrapping_add(at),
            };
            if member != me {
                copy::claim(theirs, call.len_of(&range));
            }
            // SAFETY: all hold these elements, and `acc` is private.
            unsafe { call.reducer.accumulate(member == 0, acc.at(), theirs, range.len()) };
        }
        let to = place.wrapping_add(call.offset(&range));
        // SAFETY: the part of the dest to which nobody else writes.
        unsafe { to.copy_from_nonoverlapping(acc.at(), call.len_of(&range)) };
    }
    let rest = call.rest(n);
    let at = call.offset(&rest);
    let rest = Reduce {
        dest: call.dest.wrapping_add(at),
        source: call.source.wrapping_add(at),
        nelems: rest.len(),
        reducer: call.reducer,
    };
    let told = Letters::begin(group, team(group), rest.bytes());
    for member in others(me, n) {
        // SAFETY: a part of the source, which stays as it is.
        unsafe { told.send(member, rest.source, rest.bytes(), Mode::NonBlocking) };
    }
    // SAFETY: the caller's promise.
    unsafe { combine_letters(group, &rest, &told) };
    let results = Letters::begin(group, team(group), 0);
    for member in others(me, n) {
        // SAFETY: the same part of every dest; it stays as it is until the letters are complete.
        unsafe { results.send_to(member, place, place, call.len_of(&mine), Mode::NonBlocking) };
    }
    for member in others(me, n) {
        results.receive(member);
    }
    if elements.lends() || told.lends() || results.lends() {
        told.complete();
        results.complete();
    }
}
