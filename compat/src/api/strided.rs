// SPDX-License-Identifier: Apache-2.0
//! Strided and block-strided operations.

use super::context::Context;
use super::memory::Symmetric;
use crate::c::strided::{self, Layout};
use bytemuck::Pod;

impl Context<'_> {
    /// Copies `count` elements, the first of `source` and every `source_stride`-th after it, to PE
    /// `pe`: to the first of `dest` and every `dest_stride`-th after it (`shmem_iput`).
    ///
    /// # Panics
    /// A slice is too short for `count` elements, or a stride is 0.
    #[track_caller]
    pub fn iput<T: Pod>(
        &self,
        dest: &[Symmetric<T>],
        dest_stride: usize,
        source: &[T],
        source_stride: usize,
        count: usize,
        pe: usize,
    ) {
        let strides = (dest_stride, source_stride);
        self.put_blocks("Context::iput", dest, source, strides, (1, count), pe);
    }

    /// As [`iput`](Context::iput), in the other direction (`shmem_iget`).
    ///
    /// # Panics
    /// As [`iput`](Context::iput).
    #[track_caller]
    pub fn iget<T: Pod>(
        &self,
        dest: &mut [T],
        dest_stride: usize,
        source: &[Symmetric<T>],
        source_stride: usize,
        count: usize,
        pe: usize,
    ) {
        let strides = (dest_stride, source_stride);
        self.get_blocks("Context::iget", dest, source, strides, (1, count), pe);
    }

    /// As [`iput`](Context::iput) of whole blocks: `(len, count)` says how many elements a block has, and
    /// how many blocks there are. Strides lead from the beginning of a block to that of the next
    /// (`shmem_ibput`).
    ///
    /// ```
    /// let world = tombolo::init()?;
    /// // The left half of four rows, into rows of six.
    /// let rows = world.alloc_slice(4 * 6, 0u32)?;
    /// let square: Vec<u32> = (0..16).collect();
    /// world.ibput(&rows, 6, &square, 4, (2, 4), world.my_pe());
    /// world.quiet();
    /// assert_eq!([rows[6].read(), rows[7].read(), rows[8].read()], [4, 5, 0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Panics
    /// A slice is too short for all blocks, or a stride is shorter than a block.
    #[track_caller]
    pub fn ibput<T: Pod>(
        &self,
        dest: &[Symmetric<T>],
        dest_stride: usize,
        source: &[T],
        source_stride: usize,
        blocks: (usize, usize),
        pe: usize,
    ) {
        let strides = (dest_stride, source_stride);
        self.put_blocks("Context::ibput", dest, source, strides, blocks, pe);
    }

    /// As [`ibput`](Context::ibput), in the other direction (`shmem_ibget`).
    ///
    /// # Panics
    /// As [`ibput`](Context::ibput).
    #[track_caller]
    pub fn ibget<T: Pod>(
        &self,
        dest: &mut [T],
        dest_stride: usize,
        source: &[Symmetric<T>],
        source_stride: usize,
        blocks: (usize, usize),
        pe: usize,
    ) {
        let strides = (dest_stride, source_stride);
        self.get_blocks("Context::ibget", dest, source, strides, blocks, pe);
    }

    #[track_caller]
    fn put_blocks<T: Pod>(
        &self,
        routine: &'static str,
        dest: &[Symmetric<T>],
        source: &[T],
        strides: (usize, usize),
        blocks: (usize, usize),
        pe: usize,
    ) {
        let layout = layout((dest.len(), source.len()), strides, blocks);
        let (dest, pe) = (dest.as_ptr().cast::<T>().cast_mut(), self.check_pe(pe));
        let (tables, ctx, source) = (self.tables(), self.handle(), source.as_ptr());
        // SAFETY: both hold all elements; the call blocks.
        unsafe { strided::put(tables, routine, ctx, dest, source, layout, pe) }
    }

    #[track_caller]
    fn get_blocks<T: Pod>(
        &self,
        routine: &'static str,
        dest: &mut [T],
        source: &[Symmetric<T>],
        strides: (usize, usize),
        blocks: (usize, usize),
        pe: usize,
    ) {
        let layout = layout((dest.len(), source.len()), strides, blocks);
        let (source, pe) = (source.as_ptr().cast::<T>(), self.check_pe(pe));
        let (tables, ctx, dest) = (self.tables(), self.handle(), dest.as_mut_ptr());
        // SAFETY: both hold all elements; the call blocks.
        unsafe { strided::get(tables, routine, ctx, dest, source, layout, pe) }
    }
}

#[track_caller]
fn layout(
    (dest, source): (usize, usize),
    (dest_stride, source_stride): (usize, usize),
    (len, count): (usize, usize),
) -> Layout {
    let all = [("destination", dest, dest_stride), ("source", source, source_stride)];
    for (what, room, stride) in all {
        assert!(stride >= len.max(1), "a stride of {stride} for blocks of {len}");
        let needed = match count {
            0 => 0,
            _ => (count - 1).saturating_mul(stride).saturating_add(len),
        };
        assert!(needed <= room, "the {what} has {room} elements, but {needed} are spanned");
    }
    // Strides of a single block lead nowhere, and may be of any size.
    let [dst, sst] = [dest_stride, source_stride].map(|s| isize::try_from(s).unwrap_or(isize::MAX));
    Layout { dst, sst, bsize: len, nblocks: count }
}
