// SPDX-License-Identifier: Apache-2.0
//! Strided and block-strided remote memory access (OpenSHMEM 1.6, `shmem_iput`, `shmem_ibput`,
//! `shmem_iget`, `shmem_ibget`).

use super::fast::{TABLES, Tables};
use super::handle::Ctx;
use super::slow::{Call, extent};
use crate::profile::Kind;
use std::ffi::{c_int, c_void};
use tombolo_core::ops::Strided;

/// Where blocks lie: strides and block length in elements.
#[derive(Clone, Copy)]
pub struct Layout {
    /// Elements from block to block of the destination.
    pub dst: isize,
    /// Elements from block to block of the source.
    pub sst: isize,
    /// Elements of a block.
    pub bsize: usize,
    /// Number of blocks.
    pub nblocks: usize,
}

impl Layout {
    /// The same of elements of this type, in bytes.
    fn in_bytes<T>(self) -> Strided {
        let Layout { dst, sst, bsize, nblocks } = self;
        let bytes = |elements: isize| elements.wrapping_mul(size_of::<T>() as isize);
        Strided {
            len: bsize * size_of::<T>(),
            count: nblocks,
            dest: bytes(dst),
            source: bytes(sst),
        }
    }
}

macro_rules! strided {
    ($name:ident, $ty:ty) => {
        context_routines! {
            callers: "`dest` and `source` are valid at every element that strides and counts lead to, \
                the remote ones symmetric, and local ones stay until the call, or the next quiet \
                for `_nbi`, lets go of them: these elements alone are copied";
            [$name _iput](
                ctx; dest: *mut $ty, source: *const $ty, dst: isize, sst: isize, nelems: usize,
                pe: c_int,
            ) {
                put(&TABLES, ROUTINE, ctx, dest, source, Layout { dst, sst, bsize: 1, nblocks: nelems }, pe)
            }
            [$name _ibput](
                ctx; dest: *mut $ty, source: *const $ty, dst: isize, sst: isize, bsize: usize,
                nblocks: usize, pe: c_int,
            ) {
                put(&TABLES, ROUTINE, ctx, dest, source, Layout { dst, sst, bsize, nblocks }, pe)
            }
            [$name _iget](
                ctx; dest: *mut $ty, source: *const $ty, dst: isize, sst: isize, nelems: usize,
                pe: c_int,
            ) {
                get(&TABLES, ROUTINE, ctx, dest, source, Layout { dst, sst, bsize: 1, nblocks: nelems }, pe)
            }
            [$name _ibget](
                ctx; dest: *mut $ty, source: *const $ty, dst: isize, sst: isize, bsize: usize,
                nblocks: usize, pe: c_int,
            ) {
                get(&TABLES, ROUTINE, ctx, dest, source, Layout { dst, sst, bsize, nblocks }, pe)
            }
        }
    };
}

rma_pointer_types! {strided}

macro_rules! untyped {
    ($size:tt, $ty:ty) => {
        context_routines! {
            callers: "`dest` and `source` are valid at every element that strides and counts lead to, \
                the remote ones symmetric, and local ones stay until the call, or the next quiet \
                for `_nbi`, lets go of them: these elements alone are copied";
            [iput $size](
                ctx; dest: *mut c_void, source: *const c_void, dst: isize, sst: isize,
                nelems: usize, pe: c_int,
            ) {
                let layout = Layout { dst, sst, bsize: 1, nblocks: nelems };
                put(&TABLES, ROUTINE, ctx, dest.cast::<$ty>(), source.cast(), layout, pe)
            }
            [ibput $size](
                ctx; dest: *mut c_void, source: *const c_void, dst: isize, sst: isize,
                bsize: usize, nblocks: usize, pe: c_int,
            ) {
                let layout = Layout { dst, sst, bsize, nblocks };
                put(&TABLES, ROUTINE, ctx, dest.cast::<$ty>(), source.cast(), layout, pe)
            }
            [iget $size](
                ctx; dest: *mut c_void, source: *const c_void, dst: isize, sst: isize,
                nelems: usize, pe: c_int,
            ) {
                let layout = Layout { dst, sst, bsize: 1, nblocks: nelems };
                get(&TABLES, ROUTINE, ctx, dest.cast::<$ty>(), source.cast(), layout, pe)
            }
            [ibget $size](
                ctx; dest: *mut c_void, source: *const c_void, dst: isize, sst: isize,
                bsize: usize, nblocks: usize, pe: c_int,
            ) {
                let layout = Layout { dst, sst, bsize, nblocks };
                get(&TABLES, ROUTINE, ctx, dest.cast::<$ty>(), source.cast(), layout, pe)
            }
        }
    };
}

sizes! {untyped}

/// `shmem_iput` and `shmem_ibput`.
///
/// # Safety
/// As the standard asks of callers.
#[inline]
pub unsafe fn put<T: Copy>(
    tables: &Tables,
    routine: &'static str,
    ctx: Ctx,
    dest: *mut T,
    source: *const T,
    layout: Layout,
    pe: c_int,
) {
    // SAFETY: all blocks lie in the caller's objects, the remote ones where the first is mapped.
    unsafe {
        let at = tables.remote(ctx, dest, pe);
        if at.is_null() {
            return put_slowly(routine, ctx, dest, source, layout, pe);
        }
        copy(at, source, layout);
    }
}

/// `shmem_iget` and `shmem_ibget`.
///
/// # Safety
/// As the standard asks of callers.
#[inline]
pub unsafe fn get<T: Copy>(
    tables: &Tables,
    routine: &'static str,
    ctx: Ctx,
    dest: *mut T,
    source: *const T,
    layout: Layout,
    pe: c_int,
) {
    // SAFETY: as for `put`.
    unsafe {
        let at = tables.remote(ctx, source, pe);
        if at.is_null() {
            return get_slowly(routine, ctx, dest, source, layout, pe);
        }
        copy(dest, at, layout);
    }
    tombolo_core::copy::then_read();
}

/// # Safety
/// All blocks of both sides are valid. Elements need no alignment: the untyped routines take
/// structures that merely have the size.
#[inline]
unsafe fn copy<T: Copy>(dest: *mut T, source: *const T, layout: Layout) {
    let Layout { dst, sst, bsize, nblocks } = layout;
    // SAFETY: by the caller's word.
    unsafe {
        if bsize == 1 {
            for i in 0..nblocks as isize {
                let element = source.offset(i * sst).read_unaligned();
                dest.offset(i * dst).write_unaligned(element);
            }
            return;
        }
        for i in 0..nblocks as isize {
            let (to, from) = (dest.offset(i * dst).cast::<u8>(), source.offset(i * sst).cast());
            std::ptr::copy_nonoverlapping(from, to, bsize * size_of::<T>());
        }
    }
}

/// # Safety
/// See [`put`].
#[cold]
unsafe fn put_slowly<T>(
    routine: &'static str,
    ctx: Ctx,
    dest: *mut T,
    source: *const T,
    layout: Layout,
    pe: c_int,
) {
    let call = Call::new(routine, ctx, pe);
    check(&call, routine, layout, ("dest", dest.cast_const(), layout.dst));
    let strided = layout.in_bytes::<T>();
    call.counted(routine, Kind::Put, (dest.cast(), strided.len * strided.count), || {
        let (world, to, from) = (&call.library.world, dest.cast(), source.cast());
        // SAFETY: the caller vouches for the source.
        unsafe { world.put_blocks(call.context, to, from, strided, call.pe, routine) };
    })
}

/// # Safety
/// See [`get`].
#[cold]
unsafe fn get_slowly<T>(
    routine: &'static str,
    ctx: Ctx,
    dest: *mut T,
    source: *const T,
    layout: Layout,
    pe: c_int,
) {
    let call = Call::new(routine, ctx, pe);
    check(&call, routine, layout, ("source", source, layout.sst));
    let strided = layout.in_bytes::<T>();
    call.counted(routine, Kind::Get, (source.cast(), strided.len * strided.count), || {
        let (world, to, from) = (&call.library.world, dest.cast(), source.cast());
        // SAFETY: the caller vouches for the destination.
        unsafe { world.get_blocks(call.context, to, from, strided, call.pe, routine) };
    })
}

/// Checks strides, and the whole of the symmetric buffer with its stride: each block is checked when its turn comes,
/// and what is on this PE may end before one that is past the end.
fn check<T>(
    call: &Call,
    routine: &'static str,
    layout: Layout,
    (argument, symmetric, stride): (&str, *const T, isize),
) {
    let Layout { bsize, nblocks, .. } = layout;
    if !call.library.checks() || nblocks == 0 || bsize == 0 {
        return;
    }
    let world = &call.library.world;
    for (argument, stride) in [("dst", layout.dst), ("sst", layout.sst)] {
        if nblocks > 1 && !usize::try_from(stride).is_ok_and(|stride| stride >= bsize) {
            world.stop_job(
                routine,
                format_args!("{argument} = {stride}: expected a stride of at least {bsize}"),
            );
        }
    }
    // A constant is read from this PE, if it is one.
    if world.locate(symmetric.cast()).is_some() {
        let len = extent(stride, bsize, nblocks, size_of::<T>());
        world.check_range(routine, argument, symmetric.cast(), len);
    }
}
