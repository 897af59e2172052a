// SPDX-License-Identifier: Apache-2.0
//! A block of its own from each member to each.

use crate::group::Group;
use crate::letters::{Letters, copy_bytes};
use crate::schedule::{others, others_then_self};
use crate::stream::Stream;
use crate::table::Call;
use tombolo_core::ops::Mode;

/// Blocks of `nelems` elements of `size` bytes, `dst` and `sst` elements apart at the destination
/// and at the source.
#[derive(Clone, Copy, Debug)]
pub struct Strided {
    /// Stride of `dest` in elements, at least 1.
    pub dst: isize,
    /// Stride of `source` in elements, at least 1.
    pub sst: isize,
    /// Elements for each member.
    pub nelems: usize,
    /// Bytes of an element.
    pub size: usize,
}

impl Strided {
    /// A block of `len` bytes.
    pub fn contiguous(len: usize) -> Strided {
        Strided { dst: 1, sst: 1, nelems: len, size: 1 }
    }

    /// Whether the elements of a block lie one after another.
    pub fn is_contiguous(&self) -> bool {
        self.dst == 1 && self.sst == 1
    }

    /// Ends the job with a message if a stride is not positive.
    pub fn check(&self, group: &Group<'_>) {
        for (name, stride) in [("dst", self.dst), ("sst", self.sst)] {
            if stride < 1 {
                group.world.stop_job(
                    group.routine,
                    format_args!("{name} = {stride} is not a stride: expected at least 1"),
                );
            }
        }
    }

    /// Bytes from one block of `dest` to the next.
    fn dest_block(&self) -> usize {
        self.dst as usize * self.nelems * self.size
    }

    /// Bytes from one block of `source` to the next.
    fn source_block(&self) -> usize {
        self.sst as usize * self.nelems * self.size
    }
}

/// The arguments of an alltoall or alltoalls.
pub struct Alltoall {
    /// A block from each member.
    pub dest: *mut u8,
    /// A block for each member.
    pub source: *const u8,
    /// What a block is.
    pub blocks: Strided,
}

impl Alltoall {
    /// One to ask about, not to carry out.
    pub(crate) fn of_size(len: usize) -> Alltoall {
        let blocks = Strided::contiguous(len);
        Alltoall { dest: std::ptr::null_mut(), source: std::ptr::null(), blocks }
    }
}

impl Call for Alltoall {
    fn bytes(&self) -> usize {
        self.blocks.nelems * self.blocks.size
    }
}

/// Everybody writes to everybody.
///
/// # Safety
/// The buffers are as `shmem_alltoall` promises; strides are at least 1.
pub unsafe fn alltoall(group: &Group<'_>, call: &Alltoall) {
    let blocks = &call.blocks;
    let dest = call.dest.wrapping_add(group.me * blocks.dest_block());
    for member in others_then_self(group.me, group.n) {
        let source = call.source.wrapping_add(member * blocks.source_block());
        // SAFETY: block `member` of my source and block `me` of its dest, which is ready before
        // anybody calls. The source is not changed before the call has returned.
        unsafe { put_block(group, dest, source, blocks, member) };
    }
    group.complete();
    // My dest is complete when all members have sent. Nobody reads another's source, so no second
    // sync is needed.
    group.sync();
}

/// Everybody's blocks go to memory of the team at each, and from there to dest.
///
/// # Safety
/// As [`alltoall`]; blocks are contiguous and fit a message.
#[inline(always)]
pub unsafe fn exchanged(group: &Group<'_>, call: &Alltoall) {
    let Some(team) = group.with_memory() else { unreachable!("applies to teams with memory") };
    let len = call.bytes();
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
/// As [`alltoall`]; blocks are contiguous.
pub unsafe fn signalled(group: &Group<'_>, call: &Alltoall) {
    let Some(team) = group.with_memory() else { unreachable!("applies to teams with memory") };
    let (n, len) = (group.n, call.bytes());
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

/// # Safety
/// Both hold a block; `source` stays as it is until [`Group::complete`].
unsafe fn put_block(
    group: &Group<'_>,
    dest: *mut u8,
    source: *const u8,
    blocks: &Strided,
    member: usize,
) {
    let Strided { dst, sst, nelems, size } = *blocks;
    if blocks.is_contiguous() && member == group.me {
        // SAFETY: a contiguous block of each.
        return unsafe { group.copy_own(dest, source, nelems * size) };
    }
    if blocks.is_contiguous() {
        // SAFETY: as above.
        unsafe { group.put(dest, source, nelems * size, member, Mode::NonBlocking) };
        return;
    }
    let (to, from) = (dst as usize * size, sst as usize * size);
    let mapped = group.world.ptr(dest, group.pe(member));
    if mapped.is_null() {
        for i in 0..nelems {
            let (dest, source) = (dest.wrapping_add(i * to), source.wrapping_add(i * from));
            // SAFETY: an element of each block.
            unsafe { group.put(dest, source, size, member, Mode::NonBlocking) };
        }
        return;
    }
    // SAFETY: the member's block, mapped; sizes match.
    unsafe {
        match size {
            1 => copy::<1>(mapped, source, to, from, nelems),
            2 => copy::<2>(mapped, source, to, from, nelems),
            4 => copy::<4>(mapped, source, to, from, nelems),
            8 => copy::<8>(mapped, source, to, from, nelems),
            16 => copy::<16>(mapped, source, to, from, nelems),
            _ => {
                for i in 0..nelems {
                    let (dest, source) = (mapped.add(i * to), source.add(i * from));
                    std::ptr::copy_nonoverlapping(source, dest, size);
                }
            }
        }
    }
}

/// Copies `nelems` elements of `SIZE` bytes, `to` and `from` bytes apart.
///
/// # Safety
/// Both hold that many.
unsafe fn copy<const SIZE: usize>(
    dest: *mut u8,
    source: *const u8,
    to: usize,
    from: usize,
    nelems: usize,
) {
    for i in 0..nelems {
        // SAFETY: the caller's promise; arrays of bytes need no alignment.
        unsafe {
            let element = source.add(i * from).cast::<[u8; SIZE]>().read();
            dest.add(i * to).cast::<[u8; SIZE]>().write(element);
        }
    }
}
