// SPDX-License-Identifier: Apache-2.0
//! Collectives on active sets, deprecated by the standard (OpenSHMEM 1.6, "Active-set-based
//! collectives").
//!
//! Members meet through the program's `pSync` array alone and leave it as they found it, all
//! `SHMEM_SYNC_VALUE` (0). The same array may be used again at once by the same set. `pWrk` is not
//! needed.

use crate::algorithms::{ALLTOALL, BROADCAST, COLLECT, FCOLLECT, REDUCE};
use crate::broadcast::Broadcast;
use crate::exchange::Alltoall;
use crate::gather::{Collect, Gather};
use crate::group::Group;
use crate::operations::blocks_to_all;
use crate::reduce::Reduce;
use crate::reducer::Reducer;
use crate::strided::Strided;
use crate::table;
use std::sync::atomic::AtomicU64;
use tombolo_core::World;

/// Length of every kind of `pSync` array, in `long`s.
pub const SYNC_SIZE: usize = 64;

/// PEs `start`, `start + 2^log_stride`, ... and the `pSync` array through which they meet.
#[derive(Clone, Copy, Debug)]
pub struct ActiveSet {
    start: usize,
    stride: usize,
    size: usize,
    me: usize,
    p_sync: *mut u64,
}

impl ActiveSet {
    /// Words that a member can publish.
    pub(crate) const WORDS: usize = 32;

    /// The active set of a call, or nothing on a PE that is not in it. A set that is impossible and
    /// an array that is not symmetric end the job with a message.
    pub fn new(
        world: &World,
        start: i32,
        log_stride: i32,
        size: i32,
        p_sync: *mut i64,
        routine: &'static str,
    ) -> Option<ActiveSet> {
        let n_pes = world.n_pes();
        let Some((start, stride, size)) = Self::extent(n_pes, start, log_stride, size) else {
            world.stop_job(
                routine,
                format_args!(
                    "the active set PE_start = {start}, logPE_stride = {log_stride}, PE_size = \
                     {size} is not one of {n_pes} PEs"
                ),
            );
        };
        let me = Self::position(world.pe(), start, stride, size)?;
        let last = p_sync.cast::<u8>().wrapping_add(SYNC_SIZE * 8 - 1);
        let symmetric = match (world.locate(p_sync.cast()), world.locate(last)) {
            (Some(first), Some(last)) => first.segment == last.segment,
            _ => false,
        };
        if !symmetric || !p_sync.is_aligned() {
            world.stop_job(
                routine,
                format_args!(
                    "pSync = {p_sync:p} is not a symmetric array of {SYNC_SIZE} elements of type \
                     long"
                ),
            );
        }
        Some(ActiveSet { start, stride, size, me, p_sync: p_sync.cast() })
    }

    /// Start, stride and size of a set of `n_pes` PEs, if they make sense.
    fn extent(
        n_pes: usize,
        start: i32,
        log_stride: i32,
        size: i32,
    ) -> Option<(usize, usize, usize)> {
        let start = usize::try_from(start).ok()?;
        let stride = 1usize.checked_shl(u32::try_from(log_stride).ok()?)?;
        let size = usize::try_from(size).ok().filter(|size| *size > 0)?;
        // A set of one member may have any stride.
        let last = (size - 1).checked_mul(stride)?.checked_add(start)?;
        (last < n_pes).then_some((start, stride, size))
    }

    /// Which member of the set `pe` is.
    fn position(pe: usize, start: usize, stride: usize, size: usize) -> Option<usize> {
        let distance = pe.checked_sub(start)?;
        let member = distance.is_multiple_of(stride) && distance / stride < size;
        member.then_some(distance / stride)
    }

    pub(crate) fn n_pes(&self) -> usize {
        self.size
    }

    pub(crate) fn me(&self) -> usize {
        self.me
    }

    pub(crate) fn world_pe(&self, member: usize) -> usize {
        self.start + member * self.stride
    }

    /// The counter of a barrier's round. The first columns of the array as a matrix of eight cache
    /// lines: consecutive rounds have different writers and share no line.
    pub(crate) fn counter(&self, round: usize) -> &AtomicU64 {
        self.element(round % 8 * 8 + round / 8)
    }

    /// A word for publishing: the last four columns.
    pub(crate) fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < Self::WORDS, "word {index} of {}", Self::WORDS);
        self.element(index / 4 * 8 + 4 + index % 4)
    }

    fn element(&self, index: usize) -> &AtomicU64 {
        assert!(index < SYNC_SIZE, "element {index} of pSync");
        // SAFETY: the array was located and its alignment checked by `new`; while a collective
        // uses it everybody accesses its elements whole.
        unsafe { &*self.p_sync.add(index).cast() }
    }
}

/// Returns when all members have called it (`shmem_sync` on an active set).
///
/// # Safety
/// Nobody accesses the `pSync` array but the set's collectives; so for all functions here.
pub unsafe fn sync(world: &World, set: ActiveSet, routine: &'static str) {
    Group::active(world, set, routine).sync();
}

/// As [`sync`], after completing this PE's operations on the default context (`shmem_barrier`).
///
/// # Safety
/// As [`sync`].
pub unsafe fn barrier(world: &World, set: ActiveSet, routine: &'static str) {
    world.quiet(world.context(), routine);
    Group::active(world, set, routine).sync();
}

/// Copies `len` bytes from `source` at member `root` to `dest` at all other members; the root's
/// `dest` is not touched.
///
/// # Safety
/// As [`sync`]; `dest` and `source` are symmetric and hold `len` bytes.
pub unsafe fn broadcast(
    world: &World,
    set: ActiveSet,
    dest: *mut u8,
    source: *const u8,
    len: usize,
    root: i32,
    routine: &'static str,
) {
    let group = Group::active(world, set, routine);
    let call = Broadcast::new(&group, dest, source, len, root);
    // SAFETY: the caller's promise.
    unsafe { table::run(&BROADCAST, &group, &call) };
}

/// Concatenates `len` bytes of each member, which may differ, to `dest` at all.
///
/// # Safety
/// As [`sync`]; `source` holds `len` bytes, `dest` the sum of all; both are symmetric.
pub unsafe fn collect(
    world: &World,
    set: ActiveSet,
    dest: *mut u8,
    source: *const u8,
    len: usize,
    routine: &'static str,
) {
    let group = Group::active(world, set, routine);
    // SAFETY: the caller's promise.
    unsafe { table::run(&COLLECT, &group, &Collect(Gather { dest, source, len })) };
}

/// Concatenates `len` bytes of each member, the same for all, to `dest` at all.
///
/// # Safety
/// As [`collect`].
pub unsafe fn fcollect(
    world: &World,
    set: ActiveSet,
    dest: *mut u8,
    source: *const u8,
    len: usize,
    routine: &'static str,
) {
    let group = Group::active(world, set, routine);
    // SAFETY: the caller's promise.
    unsafe { table::run(&FCOLLECT, &group, &Gather { dest, source, len }) };
}

/// Sends block i of `source`, `len` bytes, to block `me` of `dest` at member i, for all i.
///
/// # Safety
/// As [`sync`]; both are symmetric and hold a block per member.
pub unsafe fn alltoall(
    world: &World,
    set: ActiveSet,
    dest: *mut u8,
    source: *const u8,
    len: usize,
    routine: &'static str,
) {
    let group = Group::active(world, set, routine);
    let call = Alltoall { dest, source, len };
    // SAFETY: the caller's promise.
    unsafe { table::run(&ALLTOALL, &group, &call) };
}

/// As [`alltoall`], with blocks of strided elements.
///
/// # Safety
/// As [`alltoall`].
pub unsafe fn alltoalls(
    world: &World,
    set: ActiveSet,
    dest: *mut u8,
    source: *const u8,
    strided: Strided,
    routine: &'static str,
) {
    let group = Group::active(world, set, routine);
    strided.check(&group);
    // SAFETY: the caller's promise.
    unsafe { blocks_to_all(&group, dest, source, strided) };
}

/// Reduces `nelems` elements over all members, `source` and `dest` being the same or disjoint.
///
/// # Safety
/// As [`sync`]; both are symmetric and hold `nelems` elements of the reducer's type.
pub unsafe fn reduce(
    world: &World,
    set: ActiveSet,
    dest: *mut u8,
    source: *const u8,
    nelems: usize,
    reducer: Reducer,
    routine: &'static str,
) {
    let group = Group::active(world, set, routine);
    // SAFETY: the caller's promise.
    unsafe { table::run(&REDUCE, &group, &Reduce { dest, source, nelems, reducer }) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_found_and_impossible_sets_refused() {
        let set = |start, log, size| ActiveSet::extent(8, start, log, size);
        assert_eq!(set(1, 1, 4), Some((1, 2, 4)));
        assert_eq!(set(7, 3, 1), Some((7, 8, 1)));
        assert_eq!(set(1, 1, 5), None, "past the last PE");
        assert_eq!(set(0, -1, 2), None, "a negative stride");
        assert_eq!(set(0, 64, 1), None, "a stride that does not fit");
        assert_eq!(set(0, 0, 0), None, "nobody");
        assert_eq!(set(-1, 0, 2), None, "a negative start");
        assert_eq!(ActiveSet::position(5, 1, 2, 4), Some(2));
        assert_eq!(ActiveSet::position(7, 7, 8, 1), Some(0));
        assert_eq!(ActiveSet::position(4, 1, 2, 4), None, "between members");
        assert_eq!(ActiveSet::position(0, 1, 2, 4), None, "before the first");
        assert_eq!(ActiveSet::position(5, 1, 1, 4), None, "after the last");
    }

    #[test]
    fn counters_and_words_never_share_an_element() {
        let mut array = vec![0u64; SYNC_SIZE];
        let p_sync = array.as_mut_ptr();
        let set = ActiveSet { start: 0, stride: 1, size: 1, me: 0, p_sync };
        let mut places: Vec<usize> = (0..tombolo_core::control::ROUNDS_MAX)
            .map(|round| set.counter(round).as_ptr() as usize)
            .chain((0..ActiveSet::WORDS).map(|index| set.word(index).as_ptr() as usize))
            .collect();
        places.sort_unstable();
        places.dedup();
        assert_eq!(places.len(), tombolo_core::control::ROUNDS_MAX + ActiveSet::WORDS);
    }
}
