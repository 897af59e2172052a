// SPDX-License-Identifier: Apache-2.0
//! Both ways round the ring of members: blocks are passed on from neighbour to neighbour, to the right
//! half way round and to the left for the rest. Nothing is sent further than to a neighbour, and it
//! takes half as many steps as one way round.
//!
//! # Why members may write into places of others
//!
//! What a member passes on goes where the one that it comes from would have written: its line and its
//! part of a half, but for the flag. Otherwise only that one writes there ([`crate::letters`]), so the two must not be
//! under way at the same time.
//!
//! - Everything that a member sent with older numbers of this kind is complete before its block sets
//!   out, also if it does not send the block far itself.
//! - Everything that a member passes on is complete when it leaves. Who sends in collective n + 2 has
//!   left n + 1, so all have left n.

use crate::exchange::Alltoall;
use crate::gather::Gather;
use crate::group::Group;
use crate::letters::{Letters, Way};
use crate::reduce::Reduce;
use crate::reduce_push::{combine_letters, team};
use crate::stream::{self, Pieces, Stream, neighbours};
use crate::strided::{Alltoalls, passed_max};
use crate::table::Call;
use tombolo_core::copy;
use tombolo_core::ops::Mode;

/// Who meets whom: in each step members tell both neighbours that they, and all they have heard of, have
/// come.
pub fn sync(group: &Group<'_>) {
    let (right, left) = neighbours(group.me, group.n);
    let team = team(group);
    team.next_epoch();
    let steps = Stream::begin(group, team, group.n / 2);
    for step in 0..group.n / 2 {
        let letter = steps.letter(step);
        letter.send_nothing(right);
        if left != right {
            letter.send_nothing(left);
        }
        letter.receive(left);
        letter.receive(right);
    }
}

/// Sends this member's block both ways, and passes on those of the others. `send` sends the block of a
/// member to a neighbour.
///
/// Nobody leaves before all have come: all have the blocks of all.
fn pass_on(group: &Group<'_>, letters: &Letters<'_>, send: impl Fn(usize, usize)) {
    let Group { n, me, .. } = *group;
    let (right, left) = neighbours(me, n);
    letters.prepare_for_all();
    for step in 0..n / 2 {
        // The blocks that came with the last step.
        send(right, (me + n - step) % n);
        let both = step < (n - 1) / 2;
        if both {
            send(left, (me + step) % n);
        }
        letters.receive((me + n - step - 1) % n);
        if both {
            letters.receive((me + step + 1) % n);
        }
    }
    letters.complete();
}

/// Blocks of equal length, which go both ways round the ring of members.
///
/// # Safety
/// The buffers are as `shmem_fcollect` promises.
pub unsafe fn gather(group: &Group<'_>, call: &Gather) {
    // SAFETY: dest holds a block of each member; the caller's promise.
    unsafe {
        let own = call.dest.add(group.me * call.len);
        call.source.copy_to(own, call.len);
        spread(group, call.dest, own, call.len);
    }
}

/// Blocks go both ways round the ring of members, from two members in pieces.
///
/// # Safety
/// The buffers are as `shmem_alltoall` promises.
pub unsafe fn blocks(group: &Group<'_>, call: &Alltoall) {
    // SAFETY: the caller's promise.
    unsafe {
        match group.n {
            2 => swap(group, call),
            _ => exchange(group, &call.into()),
        }
    }
}

/// Of two members each sends the other its block in pieces, by turns to the right and to the left.
///
/// # Safety
/// The buffers are as `shmem_alltoall` promises, and there are two members.
unsafe fn swap(group: &Group<'_>, call: &Alltoall) {
    let (me, len) = (group.me, call.len);
    // SAFETY: both hold a block for each; the caller's promise.
    unsafe {
        call.source.add(me * len).copy_to(call.dest.add(me * len), len);
        spread(group, call.dest, call.source.add((1 - me) * len), len);
    }
}

/// Everybody's block of `len` bytes goes both ways round the ring of members, from `own` to its place in the `dest`
/// of all others, in pieces that each member passes on as they come. Of an even number of members the pieces of
/// the opposite one come by turns one way and the other.
///
/// Nobody leaves before all have come: all have the blocks of all.
///
/// # Safety
/// `dest` is symmetric, ready at all members, and holds a block of each; `own` holds one.
unsafe fn spread(group: &Group<'_>, dest: *mut u8, own: *const u8, len: usize) {
    let Group { n, me, .. } = *group;
    let hops = n / 2;
    let (piece, count) = stream::cut(len, hops, group.world.costs());
    let begin = |way| Pieces::begin(group, team(group), way, hops * count);
    let ways = [Way::Right, Way::Left].map(|way| (way, begin(way)));
    // Whether a piece goes so many hops this way, and one more.
    let goes = |way: Way, hop: usize, number: usize| {
        n % 2 == 1 || hop + 1 < hops || number.is_multiple_of(2) == (way == Way::Right)
    };
    // Piece after piece of this member's block, then of those that came, in the order in which they did.
    for step in 0..(hops + 1) * count {
        let (hop, number) = (step / count, step % count);
        for (way, pieces) in &ways {
            if hop > 0 && goes(*way, hop - 1, number) {
                pieces.receive(step - count);
            }
            if hop < hops && goes(*way, hop, number) {
                let member = match way {
                    Way::Right => (me + n - hop) % n,
                    Way::Left => (me + hop) % n,
                };
                let start = len.min(number * piece);
                let bytes = len.min(start + piece) - start;
                let there = dest.wrapping_add(member * len + start);
                let here = if hop == 0 { own.wrapping_add(start) } else { there };
                // SAFETY: bytes that are here, and are not written any more before all is complete; every
                // member's dest is ready before any of them calls.
                unsafe { pieces.send(step, there, here, bytes) };
            }
        }
    }
    ways.iter().for_each(|(_, pieces)| pieces.release());
}

/// Everybody's blocks for others go both ways round the ring of members, in one message each way: who gets it takes the
/// first block, and passes on the others.
///
/// Blocks go in parts. Who sends blocks of part n + 2 has those of n + 1 of all, which have set out when their members
/// had sent on, and taken out, all of n.
///
/// # Safety
/// The buffers are as `shmem_alltoalls` promises.
pub unsafe fn exchange(group: &Group<'_>, call: &Alltoalls) {
    let Group { n, me, .. } = *group;
    let (right, left) = neighbours(me, n);
    // Members on the right, and on the left, to which this one's blocks go that way.
    let hops = (n / 2, (n - 1) / 2);
    // SAFETY: the caller's promise.
    unsafe { call.copy_own(group) };
    for elements in call.parts(passed_max(n)) {
        let len = call.len_of(&elements);
        let letters = Letters::begin(group, team(group), (n - 1) * len).lent().passed();
        letters.prepare_for_all();
        // Nobody else writes to this member's own part: blocks for members on the right, then on the left, in the order
        // in which they get them.
        let own = letters.bytes(me);
        let packed = |blocks: usize| own.wrapping_add(blocks * len);
        for distance in 1..=hops.0 {
            // SAFETY: the caller's promise; there is room for a block of each other member.
            unsafe { call.pack((me + distance) % n, &elements, packed(distance - 1)) };
        }
        for distance in 1..=hops.1 {
            // SAFETY: the same.
            unsafe { call.pack((me + n - distance) % n, &elements, packed(hops.0 + distance - 1)) };
        }
        // Sends a neighbour so many blocks of member `from`: those that are still on their way.
        let pass = |to: usize, from: usize, here: *const u8, blocks: usize| {
            let there = letters.bytes(from);
            // SAFETY: blocks that lie here, and stay until all is complete; the member's part of a message has room.
            unsafe { letters.pass_to(to, from, there, here, blocks * len, Mode::NonBlocking) };
        };
        let rest = |from: usize| letters.bytes(from).wrapping_add(len).cast_const();
        let take = |from: usize| {
            let theirs = letters.bytes(from);
            copy::claim(theirs, len);
            // SAFETY: the caller's promise; the first block is for this member.
            unsafe { call.unpack(from, &elements, theirs) };
        };
        for step in 0..=hops.0 {
            let (behind, ahead) = ((me + n - step) % n, (me + step) % n);
            let here =
                |from: usize, own: *mut u8| if step == 0 { own.cast_const() } else { rest(from) };
            if step < hops.0 {
                pass(right, behind, here(behind, packed(0)), hops.0 - step);
            }
            if step < hops.1 {
                pass(left, ahead, here(ahead, packed(hops.0)), hops.1 - step);
            }
            if step > 0 {
                take(behind);
                if step <= hops.1 {
                    take(ahead);
                }
            }
            if step < hops.0 {
                letters.receive((me + n - step - 1) % n);
            }
            if step < hops.1 {
                letters.receive((me + step + 1) % n);
            }
        }
        letters.complete();
    }
}

/// Everybody's elements come to all, which combine them in the order of the members.
///
/// # Safety
/// The buffers are as `shmem_sum_reduce` promises, and the elements fit a message.
pub unsafe fn reduce(group: &Group<'_>, call: &Reduce) {
    let letters = Letters::begin(group, team(group), call.bytes()).lent().passed();
    pass_on(group, &letters, |to, from| {
        let here = if from == group.me { call.source } else { letters.bytes(from) };
        // SAFETY: the source holds so many bytes, and so does what came from others, which stays until
        // all is complete.
        unsafe {
            let there = letters.bytes(from);
            letters.pass_to(to, from, there, here, call.bytes(), Mode::NonBlocking);
        }
    });
    // SAFETY: the caller's promise.
    unsafe { combine_letters(group, call, &letters) };
}
