// SPDX-License-Identifier: Apache-2.0
//! Symmetric memory as types.

use super::world::World;
use crate::c::memory;
use bytemuck::Pod;
use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr::NonNull;
use std::thread;
use tombolo_core::memory::Placement;

/// One value of plain data in symmetric memory: this PE's instance of it, and the name by which
/// operations find the instances of other PEs.
///
/// There is no `&T` to be had from it by safe means, because any PE may change the value at any time.
/// [`read`](Symmetric::read) and [`write`](Symmetric::write) copy it. Slices of it, `[Symmetric<T>]`,
/// are sliced and split like any other: `&field[2..5]` names three elements at every PE.
///
/// `T` is plain data, [`bytemuck::Pod`]: every pattern of bits is a value. So a copy made while
/// another PE writes may mix old and new bytes, but is always a value of the type.
#[repr(transparent)]
pub struct Symmetric<T>(UnsafeCell<T>);

impl<T: Pod> Symmetric<T> {
    /// Copies this PE's instance.
    #[inline]
    pub fn read(&self) -> T {
        // SAFETY: live and aligned; any bits are a value.
        unsafe { self.0.get().read_volatile() }
    }

    /// Replaces this PE's instance.
    #[inline]
    pub fn write(&self, value: T) {
        // SAFETY: live and aligned, and no reference to the value exists that forbids it.
        unsafe { self.0.get().write_volatile(value) }
    }
}

/// Symmetric memory that all PEs have allocated together; it derefs to what was allocated, and is
/// freed by all of them together when it is dropped.
///
/// Made by the methods of [`World`]. **Dropping it is collective**: like every collective call, all
/// PEs must come to it, and in the same order among their other collective calls. A thread that
/// panics leaves it allocated; the job ends then anyway.
pub struct SymmetricBox<'w, S: ?Sized> {
    place: NonNull<S>,
    allocated: bool,
    _world: PhantomData<&'w World>,
}

/// An array of plain data in symmetric memory; its length does not change.
pub type SymmetricVec<'w, T> = SymmetricBox<'w, [Symmetric<T>]>;

/// The symmetric heap has no room (the same answer at every PE).
///
/// A program can free something, or do with less. `SHMEM_SYMMETRIC_SIZE` sets the size of the heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocError {
    /// Bytes that were asked for.
    pub bytes: usize,
}

impl fmt::Display for AllocError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the symmetric heap has no room for {} bytes; SHMEM_SYMMETRIC_SIZE sets its size",
            self.bytes
        )
    }
}

impl std::error::Error for AllocError {}

impl<'w, S> SymmetricBox<'w, [S]> {
    /// Collective: room for `len` elements of `value` at every PE.
    pub(super) fn filled<T: Copy>(
        _world: &'w World,
        len: usize,
        value: T,
        least_align: usize,
    ) -> Result<SymmetricBox<'w, [S]>, AllocError> {
        const { assert!(size_of::<S>() == size_of::<T>() && align_of::<S>() == align_of::<T>()) };
        let bytes = size_of::<T>().saturating_mul(len);
        let align = align_of::<T>().max(least_align);
        let fill = |block: *mut u8| {
            for i in 0..len {
                // SAFETY: a new block of `len` elements, aligned to one, unknown to other PEs.
                unsafe { block.cast::<T>().add(i).write(value) };
            }
        };
        let block = if bytes == 0 {
            NonNull::<T>::dangling().as_ptr().cast()
        } else {
            memory::allocate_filled("World::alloc", bytes, Placement::aligned(align), fill)
        };
        let slice = std::ptr::slice_from_raw_parts_mut(block.cast::<S>(), len);
        let place = NonNull::new(slice).ok_or(AllocError { bytes })?;
        Ok(SymmetricBox { place, allocated: bytes > 0, _world: PhantomData })
    }

    /// As its only element.
    pub(super) fn single(self) -> SymmetricBox<'w, S> {
        assert_eq!(self.len(), 1);
        let (place, allocated) = (self.place.cast(), self.allocated);
        std::mem::forget(self);
        SymmetricBox { place, allocated, _world: PhantomData }
    }
}

impl<T: Pod> SymmetricBox<'_, [Symmetric<T>]> {
    /// This PE's instance as a plain slice, at the speed of plain memory.
    ///
    /// # Safety
    /// While the slice lives no PE writes to these elements, this one included: a barrier, a signal or
    /// the like stands between the last write and the call, and between its last use and the next write.
    pub unsafe fn local(&self) -> &[T] {
        // SAFETY: live, aligned, transparent; nobody writes by the caller's word.
        unsafe { std::slice::from_raw_parts(self.place.cast::<T>().as_ptr(), self.place.len()) }
    }

    /// This PE's instance as a plain slice that can be written.
    ///
    /// # Safety
    /// While the slice lives no other PE reads or writes these elements; see
    /// [`local`](SymmetricBox::local).
    pub unsafe fn local_mut(&mut self) -> &mut [T] {
        let len = self.place.len();
        // SAFETY: live, aligned, transparent; nobody else has access by the caller's word.
        unsafe { std::slice::from_raw_parts_mut(self.place.cast::<T>().as_ptr(), len) }
    }
}

impl<S: ?Sized> Deref for SymmetricBox<'_, S> {
    type Target = S;

    #[inline]
    fn deref(&self) -> &S {
        // SAFETY: allocated, initialised and not freed before the box is dropped; all of it is
        // inside `UnsafeCell`s.
        unsafe { self.place.as_ref() }
    }
}

impl<S: ?Sized> Drop for SymmetricBox<'_, S> {
    fn drop(&mut self) {
        if self.allocated && !thread::panicking() {
            memory::free("drop of a SymmetricBox", self.place.as_ptr().cast::<c_void>());
        }
    }
}

impl<T: Pod + fmt::Debug> fmt::Debug for Symmetric<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.read().fmt(f)
    }
}

impl<S: ?Sized + fmt::Debug> fmt::Debug for SymmetricBox<'_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

/// What a put copies from: memory of this process, `[T]` and what owns it, or symmetric memory of
/// this PE.
pub trait Source<T>: sealed::Source<T> {}

impl<T, S: sealed::Source<T> + ?Sized> Source<T> for S {}

pub(super) mod sealed {
    use super::{Symmetric, SymmetricBox};

    pub trait Source<T> {
        /// Whether other PEs, or the same operation, may write to it.
        const SYMMETRIC: bool;

        /// Number of elements, where the type tells.
        const LEN: Option<usize> = None;

        fn parts(&self) -> (*const T, usize);
    }

    impl<T> Source<T> for [T] {
        const SYMMETRIC: bool = false;

        #[inline(always)]
        fn parts(&self) -> (*const T, usize) {
            (self.as_ptr(), self.len())
        }
    }

    impl<T, const N: usize> Source<T> for [T; N] {
        const SYMMETRIC: bool = false;
        const LEN: Option<usize> = Some(N);

        #[inline(always)]
        fn parts(&self) -> (*const T, usize) {
            (self.as_ptr(), N)
        }
    }

    impl<T> Source<T> for Vec<T> {
        const SYMMETRIC: bool = false;

        #[inline(always)]
        fn parts(&self) -> (*const T, usize) {
            (self.as_ptr(), self.len())
        }
    }

    impl<T> Source<T> for [Symmetric<T>] {
        const SYMMETRIC: bool = true;

        #[inline(always)]
        fn parts(&self) -> (*const T, usize) {
            (self.as_ptr().cast(), self.len())
        }
    }

    impl<T> Source<T> for SymmetricBox<'_, [Symmetric<T>]> {
        const SYMMETRIC: bool = true;

        #[inline(always)]
        fn parts(&self) -> (*const T, usize) {
            (self.as_ptr().cast(), self.len())
        }
    }
}
