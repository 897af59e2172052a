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
use crate::table::Call;
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

/// Of two members each sends the other its block in pieces, by turns to the right and to the left.
///
/// # Safety
/// The buffers are as `shmem_alltoall` promises, and there are two members.
pub unsafe fn swap(group: &Group<'_>, call: &Alltoall) {
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
