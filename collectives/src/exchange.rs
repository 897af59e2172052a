// SPDX-License-Identifier: Apache-2.0
//! A block of its own from each member to each.

use crate::group::Group;
use crate::letters::{Letters, copy_bytes};
use crate::schedule::others;
use crate::stream::Stream;
use crate::table::Call;
use tombolo_core::ops::Mode;

/// The arguments of an alltoall.
pub struct Alltoall {
    /// A block from each member.
    pub dest: *mut u8,
    /// A block for each member.
    pub source: *const u8,
    /// Bytes of a block.
    pub len: usize,
}

impl Alltoall {
    /// One to ask about, not to carry out.
    pub(crate) fn of_size(len: usize) -> Alltoall {
        Alltoall { dest: std::ptr::null_mut(), source: std::ptr::null(), len }
    }
}

impl Call for Alltoall {
    fn bytes(&self) -> usize {
        self.len
    }
}

/// Everybody writes to everybody.
///
/// # Safety
/// The buffers are as `shmem_alltoall` promises.
pub unsafe fn alltoall(group: &Group<'_>, call: &Alltoall) {
    let dest = call.dest.wrapping_add(group.me * call.len);
    for member in others(group.me, group.n) {
        let source = call.source.wrapping_add(member * call.len);
        // SAFETY: block `member` of my source and block `me` of its dest, which is ready before
        // anybody calls. The source is not changed before the call has returned.
        unsafe { group.put(dest, source, call.len, member, Mode::NonBlocking) };
    }
    // SAFETY: both hold a block for each.
    unsafe { group.copy_own(dest, call.source.add(group.me * call.len), call.len) };
    group.complete();
    // My dest is complete when all members have sent. Nobody reads another's source, so no second
    // sync is needed.
    group.sync();
}

/// Everybody's blocks go to memory of the team at each, and from there to dest.
///
/// # Safety
/// As [`alltoall`]; blocks fit a message.
#[inline(always)]
pub unsafe fn exchanged(group: &Group<'_>, call: &Alltoall) {
    let Some(team) = group.with_memory() else { unreachable!("applies to teams with memory") };
    let len = call.len;
    let letters = Letters::begin(group, team, len);
    for member in others(group.me, group.n) {
        // SAFETY: the source holds a block for each.
        unsafe { letters.send(member, call.source.add(member * len), len, Mode::Blocking) };
    }
    // SAFETY: both hold a block for each.
    unsafe {
        copy_bytes(call.dest.add(group.me * len), call.source.add(group.me * len), len);
        for member in others(group.me, group.n) {
            copy_bytes(call.dest.add(member * len), letters.receive(member), len);
        }
    }
}

/// Everybody puts to everybody, with signals: by two messages, to members at an odd and at an even distance,
/// so that more lanes of a transport share the work.
///
/// # Safety
/// As [`alltoall`].
pub unsafe fn signalled(group: &Group<'_>, call: &Alltoall) {
    let Some(team) = group.with_memory() else { unreachable!("applies to teams with memory") };
    let (n, len) = (group.n, call.len);
    let messages = Stream::begin(group, team, 2);
    let both = [0, 1].map(|index| messages.letter(index));
    let letters = |from: usize, to: usize| &both[(to + n - from) % n % 2];
    let dest = call.dest.wrapping_add(group.me * len);
    for member in others(group.me, group.n) {
        let source = call.source.wrapping_add(member * len);
        // SAFETY: block `member` of my source and block `me` of its dest, which is ready before
        // anybody calls. The source is not changed before the call has returned.
        unsafe {
            let letter = letters(group.me, member);
            letter.send_to(member, dest, source, len, Mode::NonBlocking);
        }
    }
    // SAFETY: both hold a block for each.
    unsafe { call.source.add(group.me * len).copy_to(dest, len) };
    for member in others(group.me, group.n) {
        letters(member, group.me).receive(member);
    }
    both.iter().for_each(Letters::release);
}
