// SPDX-License-Identifier: Apache-2.0
//! A block of its own from each member to each, whose elements may lie apart: put element by element, or sent in parts
//! through memory of the team, in which elements lie side by side.

use crate::exchange::Alltoall;
use crate::group::Group;
use crate::letters::{GATHERED_MAX, Letters, copy_bytes, long_max};
use crate::reduce_push::team;
use crate::schedule::{blocks, others, rounds};
use crate::table::Call;
use std::mem::MaybeUninit;
use std::ops::Range;
use tombolo_core::copy;
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

    /// Bytes from one element of `dest` to the next.
    fn dest_step(&self) -> usize {
        self.dst as usize * self.size
    }

    /// Bytes from one element of `source` to the next.
    fn source_step(&self) -> usize {
        self.sst as usize * self.size
    }
}

/// The arguments of an alltoalls.
pub struct Alltoalls {
    /// A block from each member.
    pub dest: *mut u8,
    /// A block for each member.
    pub source: *const u8,
    /// What a block is.
    pub blocks: Strided,
}

impl Alltoalls {
    /// One to ask about, not to carry out.
    pub(crate) fn of_size(len: usize) -> Alltoalls {
        let blocks = Strided { dst: 2, sst: 2, nelems: len / 8, size: 8 };
        Alltoalls { dest: std::ptr::null_mut(), source: std::ptr::null(), blocks }
    }

    /// Where an element of `member`'s block is.
    fn dest(&self, member: usize, element: usize) -> *mut u8 {
        let Strided { nelems, .. } = self.blocks;
        self.dest.wrapping_add((member * nelems + element) * self.blocks.dest_step())
    }

    /// Where an element of the block for `member` is.
    fn source(&self, member: usize, element: usize) -> *const u8 {
        let Strided { nelems, .. } = self.blocks;
        self.source.wrapping_add((member * nelems + element) * self.blocks.source_step())
    }

    /// The elements of a block in parts of at most so many bytes: one part at least, so that nobody leaves before all
    /// have come.
    pub(crate) fn parts(&self, most: usize) -> impl Iterator<Item = Range<usize>> {
        let Strided { nelems, size, .. } = self.blocks;
        let step = (most / size.max(1)).max(1);
        let none = (nelems == 0).then_some(0..0);
        blocks(0..nelems, step).chain(none)
    }

    /// Bytes of so many elements that lie side by side.
    pub(crate) fn len_of(&self, elements: &Range<usize>) -> usize {
        elements.len() * self.blocks.size
    }

    /// Whether parts of at most so many bytes hold an element.
    pub(crate) fn fits(&self, most: usize) -> bool {
        self.blocks.size <= most
    }

    /// Puts elements of the block for `member` side by side.
    ///
    /// # Safety
    /// The source is as `shmem_alltoalls` promises, and `to` has room.
    pub(crate) unsafe fn pack(&self, member: usize, elements: &Range<usize>, to: *mut u8) {
        let Strided { size, .. } = self.blocks;
        let from = self.source(member, elements.start);
        // SAFETY: the caller's promise.
        unsafe { copy_elements(to, size, from, self.blocks.source_step(), elements.len(), size) };
    }

    /// Takes elements of `member`'s block that lie side by side to where they belong.
    ///
    /// # Safety
    /// The dest is as `shmem_alltoalls` promises, and `from` holds as many elements.
    pub(crate) unsafe fn unpack(&self, member: usize, elements: &Range<usize>, from: *const u8) {
        let Strided { size, .. } = self.blocks;
        let to = self.dest(member, elements.start);
        // SAFETY: the caller's promise.
        unsafe { copy_elements(to, self.blocks.dest_step(), from, size, elements.len(), size) };
    }

    /// Copies this member's block for itself.
    ///
    /// # Safety
    /// The buffers are as `shmem_alltoalls` promises.
    pub(crate) unsafe fn copy_own(&self, group: &Group<'_>) {
        let Strided { nelems, size, .. } = self.blocks;
        let (to, from) = (self.dest(group.me, 0), self.source(group.me, 0));
        let steps = (self.blocks.dest_step(), self.blocks.source_step());
        // SAFETY: the caller's promise.
        unsafe { copy_elements(to, steps.0, from, steps.1, nelems, size) };
    }
}

impl From<&Alltoall> for Alltoalls {
    fn from(call: &Alltoall) -> Alltoalls {
        let Alltoall { dest, source, len } = *call;
        Alltoalls { dest, source, blocks: Strided { dst: 1, sst: 1, nelems: len, size: 1 } }
    }
}

impl Call for Alltoalls {
    fn bytes(&self) -> usize {
        self.blocks.nelems * self.blocks.size
    }
}

/// Everybody writes to everybody, element by element where a member's memory is not mapped.
///
/// # Safety
/// The buffers are as `shmem_alltoalls` promises; strides are at least 1.
pub unsafe fn put(group: &Group<'_>, call: &Alltoalls) {
    let Strided { nelems, size, .. } = call.blocks;
    let steps = (call.blocks.dest_step(), call.blocks.source_step());
    for member in others(group.me, group.n) {
        let (dest, source) = (call.dest(group.me, 0), call.source(member, 0));
        let mapped = group.world.ptr(dest, group.pe(member));
        // SAFETY: block `member` of my source and block `me` of its dest, which is ready before
        // anybody calls. The source is not changed before the call has returned.
        unsafe {
            if !mapped.is_null() {
                copy_elements(mapped, steps.0, source, steps.1, nelems, size);
                continue;
            }
            for element in 0..nelems {
                let dest = dest.wrapping_add(element * steps.0);
                let source = source.wrapping_add(element * steps.1);
                group.put(dest, source, size, member, Mode::NonBlocking);
            }
        }
    }
    // SAFETY: the caller's promise.
    unsafe { call.copy_own(group) };
    group.complete();
    group.sync();
}

/// Bytes of a block that go in one message of [`exchanged`].
pub fn exchanged_max(n: usize) -> usize {
    GATHERED_MAX.min(long_max(n))
}

/// Everybody's blocks go to memory of the team at each, and from there to dest.
///
/// # Safety
/// As [`put`].
pub unsafe fn exchanged(group: &Group<'_>, call: &Alltoalls) {
    let (me, n) = (group.me, group.n);
    let mut packed = MaybeUninit::<[u8; GATHERED_MAX]>::uninit();
    let packed = packed.as_mut_ptr().cast::<u8>();
    // SAFETY: the caller's promise.
    unsafe { call.copy_own(group) };
    for elements in call.parts(exchanged_max(n)) {
        let len = call.len_of(&elements);
        let letters = Letters::begin(group, team(group), len);
        for member in others(me, n) {
            // SAFETY: the caller's promise; there is room for a part, and a blocking send lets go of it.
            unsafe {
                call.pack(member, &elements, packed);
                letters.send(member, packed, len, Mode::Blocking);
            }
        }
        for member in others(me, n) {
            let theirs = letters.receive(member);
            copy::claim(theirs, len);
            // SAFETY: the caller's promise; a message has as many bytes.
            unsafe { call.unpack(member, &elements, theirs) };
        }
    }
}

/// Bytes of a block of which a message holds those for all others.
pub fn passed_max(n: usize) -> usize {
    whole_lines(long_max(n) / n.saturating_sub(1).max(1))
}

/// Bytes of a block that [`doubling`] sends at a time.
pub fn doubled_max(n: usize) -> usize {
    whole_lines((GATHERED_MAX / n).min(long_max(n) / (n / 2).max(1)))
}

/// So many bytes, cut to whole cache lines, or where there is none to whole elements of the standard's types.
fn whole_lines(len: usize) -> usize {
    const ELEMENT: usize = 16;
    match len / LINE * LINE {
        0 => len / ELEMENT * ELEMENT,
        lines => lines,
    }
}

const LINE: usize = 64;

/// In each round a member sends one other all blocks that have to go so far, its own and those that came to it before:
/// half of all, at twice the distance of the round before (Bruck and others, "Efficient algorithms for all-to-all
/// communications in multiport message-passing systems", 1997).
///
/// Everybody's result depends on all. In no round does a member send to whom it has sent before.
///
/// # Safety
/// As [`put`].
pub unsafe fn doubling(group: &Group<'_>, call: &Alltoalls) {
    let Group { n, me, .. } = *group;
    let mut buffers = MaybeUninit::<[[u8; GATHERED_MAX]; 2]>::uninit();
    let all = buffers.as_mut_ptr().cast::<u8>();
    let joined = all.wrapping_add(GATHERED_MAX);
    // SAFETY: the caller's promise.
    unsafe { call.copy_own(group) };
    for elements in call.parts(doubled_max(n)) {
        let len = call.len_of(&elements);
        let letters = Letters::begin(group, team(group), n / 2 * len);
        // SAFETY: the caller's promise. There is room for a part of a block of each member, and in a message for half of
        // them; a blocking send lets go of what is sent.
        unsafe {
            for distance in 1..n {
                call.pack((me + distance) % n, &elements, all.add(distance * len));
            }
            for round in 0..rounds(n) {
                let going = || (1..n).filter(|distance| distance >> round & 1 != 0);
                let mut end = joined;
                for distance in going() {
                    copy_bytes(end, all.add(distance * len), len);
                    end = end.add(len);
                }
                let count = end.offset_from_unsigned(joined);
                letters.send((me + (1 << round)) % n, joined, count, Mode::Blocking);
                let mut theirs = letters.receive((me + n - (1 << round)) % n);
                copy::claim(theirs, count);
                for distance in going() {
                    copy_bytes(all.add(distance * len), theirs, len);
                    theirs = theirs.add(len);
                }
            }
            // The block that has come so far.
            for distance in 1..n {
                call.unpack((me + n - distance) % n, &elements, all.add(distance * len));
            }
        }
    }
}

/// Copies elements of `size` bytes, so many bytes apart.
///
/// # Safety
/// Both hold them, and do not overlap.
unsafe fn copy_elements(
    dest: *mut u8,
    dest_step: usize,
    source: *const u8,
    source_step: usize,
    count: usize,
    size: usize,
) {
    if count == 0 {
        return;
    }
    // SAFETY: the caller's promise.
    unsafe {
        if dest_step == size && source_step == size {
            return std::ptr::copy_nonoverlapping(source, dest, count * size);
        }
        match size {
            1 => copy_each::<1>(dest, dest_step, source, source_step, count),
            2 => copy_each::<2>(dest, dest_step, source, source_step, count),
            4 => copy_each::<4>(dest, dest_step, source, source_step, count),
            8 => copy_each::<8>(dest, dest_step, source, source_step, count),
            16 => copy_each::<16>(dest, dest_step, source, source_step, count),
            _ => {
                for element in 0..count {
                    let (dest, source) =
                        (dest.add(element * dest_step), source.add(element * source_step));
                    std::ptr::copy_nonoverlapping(source, dest, size);
                }
            }
        }
    }
}

/// The same of elements of `SIZE` bytes.
///
/// # Safety
/// As [`copy_elements`].
unsafe fn copy_each<const SIZE: usize>(
    dest: *mut u8,
    dest_step: usize,
    source: *const u8,
    source_step: usize,
    count: usize,
) {
    for element in 0..count {
        // SAFETY: the caller's promise; arrays of bytes need no alignment.
        unsafe {
            let from = source.add(element * source_step).cast::<[u8; SIZE]>().read();
            dest.add(element * dest_step).cast::<[u8; SIZE]>().write(from);
        }
    }
}
