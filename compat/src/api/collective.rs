// SPDX-License-Identifier: Apache-2.0
//! Collective operations on teams (OpenSHMEM 1.6, "Collective Routines").

use super::context::lengths_differ;
use super::memory::Symmetric;
use super::team::Team;
use bytemuck::Pod;
use tombolo_collectives::{self as coll, Operator, Strided, Sum, reducer};
use tombolo_core::World as CoreWorld;

/// Collective operations: all members of the team call them, in the same order, with slices of the
/// same place and length. `dest` and `source` are different memory except where said.
///
/// When a call returns, this PE's `dest` has the result and its `source` may be changed. Lengths that
/// do not fit each other at this PE panic; that members disagree is found with `SHMEM_DEBUG=1` and
/// otherwise leaves wrong results in symmetric memory, or waits for ever.
///
/// ```
/// use tombolo::Sum;
///
/// let world = tombolo::init()?;
/// let (mine, total) = (world.alloc_slice(2, 1.5f64)?, world.alloc_slice(2, 0.0)?);
/// world.team().reduce(Sum, &total, &mine);
/// assert_eq!(total[1].read(), 1.5 * world.n_pes() as f64);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
impl Team<'_> {
    /// Waits for all members. Completes nothing: what was put may arrive later (`shmem_team_sync`).
    pub fn sync(&self) {
        coll::sync(self.all(), self.core(), "Team::sync");
    }

    /// Copies `source` of member `root` to `dest` of all (`shmem_broadcast`).
    #[track_caller]
    pub fn broadcast<T: Pod>(&self, dest: &[Symmetric<T>], source: &[Symmetric<T>], root: usize) {
        let buffers = Buffers::new(dest, source, (source.len(), 1), false);
        assert!(root < self.n_pes(), "root {root} of a team of {}", self.n_pes());
        let (dest, source, len) = buffers.raw();
        let root = root as i32;
        // SAFETY: symmetric, of this length, apart; so for all calls below.
        unsafe {
            coll::broadcast(self.all(), self.core(), dest, source, len, root, "Team::broadcast");
        }
    }

    /// Concatenates the `source` of all members, which are of one length, in `dest` of all
    /// (`shmem_fcollect`).
    #[track_caller]
    pub fn fcollect<T: Pod>(&self, dest: &[Symmetric<T>], source: &[Symmetric<T>]) {
        let (dest, source, len) =
            Buffers::new(dest, source, (source.len(), self.n_pes()), false).raw();
        // SAFETY: see `broadcast`.
        unsafe { coll::fcollect(self.all(), self.core(), dest, source, len, "Team::fcollect") }
    }

    /// Concatenates the `source` of all members, whose lengths may differ, in `dest` of all
    /// (`shmem_collect`).
    ///
    /// # Safety
    /// `dest` has room for the sum of all lengths: a PE knows its own only.
    #[track_caller]
    pub unsafe fn collect<T: Pod>(&self, dest: &[Symmetric<T>], source: &[Symmetric<T>]) {
        check_apart(dest, source);
        let (to, from, len) = (pointer(dest), pointer(source), size_of_val(source));
        // SAFETY: see `broadcast`; `dest` has room for all by the caller's word.
        unsafe { coll::collect(self.all(), self.core(), to, from, len, "Team::collect") }
    }

    /// Sends the i-th of as many equal parts of `source` as there are members to member i, which finds
    /// it in its `dest` as the part of this PE's number (`shmem_alltoall`).
    #[track_caller]
    pub fn alltoall<T: Pod>(&self, dest: &[Symmetric<T>], source: &[Symmetric<T>]) {
        let n_pes = self.n_pes();
        assert!(
            source.len().is_multiple_of(n_pes),
            "{} elements do not make {n_pes} equal parts",
            source.len()
        );
        let (dest, source, len) = Buffers::new(dest, source, (source.len(), 1), false).raw();
        let len = len / n_pes;
        // SAFETY: see `broadcast`.
        unsafe { coll::alltoall(self.all(), self.core(), dest, source, len, "Team::alltoall") }
    }

    /// As [`alltoall`](Team::alltoall) with parts of `count` elements, of which every
    /// `source_stride`-th of `source` is taken and every `dest_stride`-th of `dest` is set
    /// (`shmem_alltoalls`).
    #[track_caller]
    pub fn alltoalls<T: Pod>(
        &self,
        dest: &[Symmetric<T>],
        dest_stride: usize,
        source: &[Symmetric<T>],
        source_stride: usize,
        count: usize,
    ) {
        check_apart(dest, source);
        let elements = count.saturating_mul(self.n_pes());
        for (what, len, stride) in
            [("destination", dest.len(), dest_stride), ("source", source.len(), source_stride)]
        {
            assert!(stride > 0, "a stride of 0");
            let needed = elements.saturating_sub(1).saturating_mul(stride);
            assert!(elements == 0 || needed < len, "the {what} of {len} elements is too short");
        }
        let (dst, sst) = (dest_stride as isize, source_stride as isize);
        let strided = Strided { dst, sst, nelems: count, size: size_of::<T>() };
        let (dest, source) = (pointer(dest), pointer(source));
        // SAFETY: see `broadcast`; the strided elements lie inside.
        unsafe {
            coll::alltoalls(self.all(), self.core(), dest, source, strided, "Team::alltoalls");
        }
    }

    /// Combines the elements of all members, each with those of the same index, in `dest` of all
    /// (`shmem_sum_reduce` and its kin). All members get the same bits. `dest` and `source` may be the
    /// same slice.
    ///
    /// `operator` is one of [`Sum`], [`Prod`](crate::Prod), [`Min`](crate::Min), [`Max`](crate::Max),
    /// [`And`](crate::And), [`Or`](crate::Or), [`Xor`](crate::Xor), or one of the program's own, which
    /// must be associative and commutative. Its elements have 1 to 1792 bytes: with others a program does not
    /// compile.
    #[track_caller]
    pub fn reduce<O: Operator<T>, T: Pod>(
        &self,
        operator: O,
        dest: &[Symmetric<T>],
        source: &[Symmetric<T>],
    ) {
        let _ = operator;
        let count = source.len();
        let (dest, source, _) = Buffers::new(dest, source, (count, 1), true).raw();
        let reducer = const { reducer::<O, T>() };
        // SAFETY: see `broadcast`; the same or apart.
        unsafe {
            coll::reduce(self.all(), self.core(), dest, source, count, reducer, "Team::reduce");
        }
    }

    /// Gives each member the sum of its own elements and those of all members before it
    /// (`shmem_sum_inscan`). `dest` and `source` may be the same slice.
    #[track_caller]
    pub fn sum_inscan<T: Pod>(&self, dest: &[Symmetric<T>], source: &[Symmetric<T>])
    where
        Sum: Operator<T>,
    {
        let count = source.len();
        let (dest, source, _) = Buffers::new(dest, source, (count, 1), true).raw();
        let sum = const { reducer::<Sum, T>() };
        // SAFETY: as `reduce`.
        unsafe {
            coll::inscan(self.all(), self.core(), dest, source, count, sum, "Team::sum_inscan");
        }
    }

    /// Gives each member the sum of the elements of all members before it, the first member zeros
    /// (`shmem_sum_exscan`). `dest` and `source` may be the same slice.
    #[track_caller]
    pub fn sum_exscan<T: Pod>(&self, dest: &[Symmetric<T>], source: &[Symmetric<T>])
    where
        Sum: Operator<T>,
    {
        let count = source.len();
        let (dest, source, _) = Buffers::new(dest, source, (count, 1), true).raw();
        let sum = const { reducer::<Sum, T>() };
        // SAFETY: as `reduce`.
        unsafe {
            coll::exscan(self.all(), self.core(), dest, source, count, sum, "Team::sum_exscan");
        }
    }

    fn all(&self) -> &'static CoreWorld {
        &self.world().library().world
    }
}

/// Source and destination that fit each other.
struct Buffers<'a, T> {
    dest: &'a [Symmetric<T>],
    source: &'a [Symmetric<T>],
}

impl<'a, T: Pod> Buffers<'a, T> {
    /// `dest` has `parts` times as many elements as `len`.
    #[track_caller]
    fn new(
        dest: &'a [Symmetric<T>],
        source: &'a [Symmetric<T>],
        (len, parts): (usize, usize),
        in_place: bool,
    ) -> Buffers<'a, T> {
        if dest.len() != len.saturating_mul(parts) {
            lengths_differ(dest.len(), source.len());
        }
        if !(in_place && dest.as_ptr() == source.as_ptr()) {
            check_apart(dest, source);
        }
        Buffers { dest, source }
    }

    /// Destination, source and the length of the source in bytes.
    fn raw(self) -> (*mut u8, *const u8, usize) {
        (pointer(self.dest), pointer(self.source), size_of_val(self.source))
    }
}

fn pointer<T>(slice: &[Symmetric<T>]) -> *mut u8 {
    slice.as_ptr().cast_mut().cast()
}

#[track_caller]
fn check_apart<T>(dest: &[Symmetric<T>], source: &[Symmetric<T>]) {
    let (to, from) = (dest.as_ptr_range(), source.as_ptr_range());
    let apart = to.end <= from.start || from.end <= to.start;
    assert!(apart || dest.is_empty() || source.is_empty(), "source and destination overlap");
}
