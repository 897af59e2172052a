// SPDX-License-Identifier: Apache-2.0
//! Scans in which members send their elements, so that nothing is read across a link.

use crate::group::Group;
use crate::letters::Letters;
use crate::reduce::{Block, Reduce, Scan};
use crate::reduce_push::{STEP, team};
use crate::schedule::{blocks, others};
use crate::table::Call;
use tombolo_core::copy;
use tombolo_core::ops::Mode;

/// Everybody sends its elements to those after it, which combine them in the order of the members, in
/// pieces that fit a message.
///
/// # Safety
/// The buffers are as `shmem_sum_inscan` promises.
pub unsafe fn exchanged(group: &Group<'_>, Scan { reduce: call, inclusive }: &Scan) {
    for part in call.parts(group.n) {
        // SAFETY: a part of the buffers, which fits a message.
        unsafe { piece_of(group, &part, *inclusive) };
    }
}

/// # Safety
/// As [`exchanged`]; the elements fit a message.
unsafe fn piece_of(group: &Group<'_>, call: &Reduce, inclusive: bool) {
    let (me, len, size) = (group.me, call.bytes(), call.reducer.size());
    let letters = Letters::begin(group, team(group), len);
    for member in others(me, group.n) {
        if member > me {
            // SAFETY: the source holds `len` bytes, and stays as it is until the letters are released.
            unsafe { letters.send(member, call.source, len, Mode::NonBlocking) };
        } else {
            letters.send_nothing(member);
        }
    }
    // The source may be the dest.
    letters.release();
    // From those after this member too: nobody leaves before all have come.
    others(me, group.n).for_each(|member| _ = letters.receive(member));
    let mut acc = Block::new();
    let last = if inclusive { me + 1 } else { me };
    for range in blocks(0..call.nelems, STEP / size) {
        let (at, len) = (call.offset(&range), call.len_of(&range));
        if last == 0 {
            // The sum of nothing: 0 of every type has all bits 0.
            // SAFETY: a block has room.
            unsafe { acc.at().write_bytes(0, len) };
        }
        for member in 0..last {
            let theirs = if member == me {
                call.source.wrapping_add(at)
            } else {
                let letter = letters.bytes(member).cast_const().wrapping_add(at);
                copy::claim(letter, len);
                letter
            };
            // SAFETY: both hold these elements, and `acc` is private.
            unsafe {
                call.reducer.accumulate(member == 0, acc.at(), theirs, range.len());
            }
        }
        // SAFETY: the dest holds the elements.
        unsafe { call.dest.add(at).copy_from_nonoverlapping(acc.at(), len) };
    }
}
