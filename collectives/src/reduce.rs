// SPDX-License-Identifier: Apache-2.0
//! Reductions and scans.
//!
//! Elements are always combined in the order of the members and each result is computed once, or
//! everywhere by the same steps, so that all members get the same bits and a run can be repeated.

use crate::group::{Group, PUBLISHED_MAX};
use crate::reducer::{Reducer, Sum, reducer};
use crate::schedule::{blocks, others_then_self, share};
use crate::table::Call;
use std::mem::{MaybeUninit, swap};
use std::ops::Range;
use tombolo_core::ops::Mode;

/// The arguments of a reduction.
pub struct Reduce {
    /// The result.
    pub dest: *mut u8,
    /// This PE's elements: the same as `dest` or disjoint.
    pub source: *const u8,
    /// How many.
    pub nelems: usize,
    /// Of what type, and what to do with them.
    pub reducer: Reducer,
}

/// The arguments of a scan.
pub struct Scan {
    /// As for a reduction.
    pub reduce: Reduce,
    /// Whether a member's own elements are part of its result.
    pub inclusive: bool,
}

impl Reduce {
    /// A sum to ask about, not to carry out.
    pub(crate) fn of_size(bytes: usize) -> Reduce {
        let reducer = reducer::<Sum, i64>();
        let (dest, source) = (std::ptr::null_mut(), std::ptr::null());
        Reduce { dest, source, nelems: bytes / reducer.size(), reducer }
    }
}

impl Call for Reduce {
    fn bytes(&self) -> usize {
        self.nelems * self.reducer.size()
    }

    fn is_exact(&self) -> bool {
        self.reducer.is_exact()
    }
}

impl Scan {
    /// One to ask about, not to carry out.
    pub(crate) fn of_size(bytes: usize) -> Scan {
        Scan { reduce: Reduce::of_size(bytes), inclusive: true }
    }
}

impl Call for Scan {
    fn bytes(&self) -> usize {
        self.reduce.bytes()
    }
}

/// Bytes combined at a time: three blocks stay in the first-level cache and on any thread's stack.
const BLOCK: usize = 8 << 10;
const LINE: usize = 64;

/// A private buffer, of which only the part in use is ever touched.
#[repr(C, align(64))]
pub(crate) struct Block(MaybeUninit<[u8; BLOCK]>);

impl Block {
    pub(crate) const LEN: usize = BLOCK;

    pub(crate) const fn new() -> Block {
        Block(MaybeUninit::uninit())
    }

    pub(crate) fn at(&mut self) -> *mut u8 {
        self.0.as_mut_ptr().cast()
    }
}

impl Reduce {
    pub(crate) fn elements_per_block(&self) -> usize {
        BLOCK / self.reducer.size()
    }

    /// Elements of a cache line: shares are cut at multiples of it.
    pub(crate) fn grain(&self) -> usize {
        (LINE / self.reducer.size()).max(1)
    }

    /// The part of the elements this PE is responsible for, in blocks.
    fn my_blocks(&self, group: &Group<'_>) -> impl Iterator<Item = Range<usize>> {
        blocks(share(group.me, group.n, self.nelems, self.grain()), self.elements_per_block())
    }

    /// Copies elements of a member to `into`.
    ///
    /// # Safety
    /// The source is as promised and `into` has room for the range, at most a block.
    unsafe fn fetch(
        &self,
        group: &Group<'_>,
        into: &mut Block,
        range: &Range<usize>,
        member: usize,
    ) {
        let size = self.reducer.size();
        let source = self.source.wrapping_add(range.start * size);
        // SAFETY: the caller's promise.
        unsafe { group.get(into.at(), source, range.len() * size, member, Mode::Blocking) };
    }

    /// Elements of a member: in its memory where that is mapped, else in `spare`.
    ///
    /// # Safety
    /// As [`Reduce::fetch`].
    pub(crate) unsafe fn reach(
        &self,
        group: &Group<'_>,
        spare: &mut Block,
        range: &Range<usize>,
        member: usize,
    ) -> *const u8 {
        let source = self.source.wrapping_add(range.start * self.reducer.size());
        let source = group.world.ptr(source, group.pe(member)).cast_const();
        if source.is_null() {
            // SAFETY: the caller's promise.
            unsafe { self.fetch(group, spare, range, member) };
            return spare.at();
        }
        source
    }

    /// Combines elements of a member into `acc`.
    ///
    /// # Safety
    /// As [`Reduce::fetch`].
    unsafe fn add(
        &self,
        group: &Group<'_>,
        acc: &mut Block,
        spare: &mut Block,
        range: &Range<usize>,
        member: usize,
    ) {
        // SAFETY: the caller's promise. Both hold the range's elements; `acc` is private, so they do
        // not overlap.
        unsafe {
            let source = self.reach(group, spare, range, member);
            self.reducer.combine(acc.at(), source, range.len());
        }
    }

    /// Writes a block of results to a member.
    ///
    /// # Safety
    /// The dest is as promised and the range at most a block.
    unsafe fn put(&self, group: &Group<'_>, block: &mut Block, range: &Range<usize>, to: usize) {
        let size = self.reducer.size();
        let dest = self.dest.wrapping_add(range.start * size);
        // SAFETY: the caller's promise; the block may change when a blocking put returns.
        unsafe { group.put(dest, block.at(), range.len() * size, to, Mode::Blocking) };
    }
}

/// Whether a reduction's elements fit the words a member can publish.
pub fn fits_words(group: &Group<'_>, call: &Reduce) -> bool {
    group.as_team().is_some() && call.nelems <= PUBLISHED_MAX * 8 / call.reducer.size()
}

/// Everybody publishes its elements and combines those of all.
///
/// # Safety
/// The buffers are as `shmem_sum_reduce` promises, and [`fits_words`].
pub unsafe fn published(group: &Group<'_>, call: &Reduce) {
    #[repr(align(16))]
    struct Words([u64; PUBLISHED_MAX]);
    let (mut acc, mut theirs) = (Words([0; PUBLISHED_MAX]), Words([0; PUBLISHED_MAX]));
    let len = call.nelems * call.reducer.size();
    let words = len.div_ceil(8);
    // SAFETY: the source holds `len` bytes, which fit.
    unsafe { std::ptr::copy_nonoverlapping(call.source, theirs.0.as_mut_ptr().cast(), len) };
    group.publish(&theirs.0[..words]);
    // All elements can be read. Nobody reads another's source or writes another's dest, so no
    // second sync is needed.
    group.sync();
    group.published(0, &mut acc.0[..words]);
    for member in 1..group.n {
        group.published(member, &mut theirs.0[..words]);
        let (into, from) = (acc.0.as_mut_ptr().cast(), theirs.0.as_ptr().cast());
        // SAFETY: two separate arrays that hold the elements.
        unsafe { call.reducer.combine(into, from, call.nelems) };
    }
    // SAFETY: the dest holds `len` bytes.
    unsafe { std::ptr::copy_nonoverlapping(acc.0.as_ptr().cast(), call.dest, len) };
}

/// Everybody combines a share of the elements of all members and writes it to all.
///
/// # Safety
/// The buffers are as `shmem_sum_reduce` promises.
pub unsafe fn shared(group: &Group<'_>, call: &Reduce) {
    let (mut acc, mut spare) = (Block::new(), Block::new());
    // Every member's source is ready, and its dest too.
    group.sync();
    for range in call.my_blocks(group) {
        // SAFETY: a part of the buffers. In place it is read from all before it is written, and
        // nobody else touches it.
        unsafe {
            call.fetch(group, &mut acc, &range, 0);
            for member in 1..group.n {
                call.add(group, &mut acc, &mut spare, &range, member);
            }
            for member in others_then_self(group.me, group.n) {
                call.put(group, &mut acc, &range, member);
            }
        }
    }
    group.complete();
    // My dest is complete and my source no longer read when all have done their share.
    group.sync();
}

/// Everybody adds up a share of the elements member by member and writes the intermediate results
/// to the members they belong to. As much work for each as in a reduction, whatever its number.
///
/// # Safety
/// The buffers are as `shmem_sum_inscan` promises.
pub unsafe fn scan(group: &Group<'_>, call: &Scan) {
    let reduce = &call.reduce;
    let (mut one, mut other, mut spare) = (Block::new(), Block::new(), Block::new());
    let (mut sum, mut next) = (&mut one, &mut other);
    // Every member's source is ready, and its dest too.
    group.sync();
    for range in reduce.my_blocks(group) {
        let len = range.len() * reduce.reducer.size();
        // SAFETY: a part of the buffers. In place a member's part is read before it is written,
        // and nobody else touches it.
        unsafe {
            reduce.fetch(group, next, &range, 0);
            // The sum of nothing: 0 of every type has all bits 0.
            sum.at().write_bytes(0, len);
            for member in 0..group.n {
                // `sum` is over the members before this one, `next` over this one too.
                if member > 0 {
                    next.at().copy_from_nonoverlapping(sum.at(), len);
                    reduce.add(group, next, &mut spare, &range, member);
                }
                let result = if call.inclusive { &mut *next } else { &mut *sum };
                reduce.put(group, result, &range, member);
                swap(&mut sum, &mut next);
            }
        }
    }
    group.complete();
    // My dest is complete and my source no longer read when all have done their share.
    group.sync();
}
