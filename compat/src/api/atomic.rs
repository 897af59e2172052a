// SPDX-License-Identifier: Apache-2.0
//! Atomic memory operations (OpenSHMEM 1.6, "Atomic Memory Operations").

use super::context::Context;
use crate::c::types::{Watched, Word};
use bytemuck::Pod;
use std::cell::UnsafeCell;
use std::fmt;
use tombolo_core::transport::AmoOp;

/// A type of atomic variables: integers and floating point numbers of 4 and 8 bytes.
pub trait Atomic: Pod + Word {}
/// A type of atomic variables that can be counted with and waited for: integers of 4 and 8 bytes.
pub trait AtomicInteger: Atomic + Watched {}

macro_rules! atomic {
    ($($ty:ty),*: $($integer:ty),*) => {
        $(impl Atomic for $ty {})*
        $(impl Atomic for $integer {} impl AtomicInteger for $integer {})*
    };
}

atomic! {f32, f64: i32, u32, i64, u64, isize, usize}

/// A variable in symmetric memory that all PEs change atomically, by the operations of [`Context`].
///
/// Every access is atomic, so it can be shared by threads.
#[repr(transparent)]
pub struct SymmetricAtomic<T>(UnsafeCell<T>);

// SAFETY: all accesses are atomic.
unsafe impl<T: Atomic> Sync for SymmetricAtomic<T> {}

impl<T> SymmetricAtomic<T> {
    #[inline(always)]
    pub(super) fn as_ptr(&self) -> *mut T {
        self.0.get()
    }
}

impl<T: AtomicInteger> SymmetricAtomic<T> {
    /// This PE's instance, as [`Context::test`] sees it: what was written before its value is seen
    /// after the call (`shmem_signal_fetch`).
    #[inline]
    pub fn load(&self) -> T {
        // SAFETY: live and aligned; all accesses are atomic.
        unsafe { T::load(self.as_ptr()) }
    }
}

impl<T: AtomicInteger + fmt::Debug> fmt::Debug for SymmetricAtomic<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.load().fmt(f)
    }
}

/// Operations on atomic variables at a PE. Those with `fetch` in their names, `swap` and
/// `compare_swap` give the value before; the others return at once and are complete at the next
/// [`quiet`](Context::quiet).
///
/// ```
/// let world = tombolo::init()?;
/// let counter = world.alloc_atomic(0u64)?;
/// let ticket = world.atomic_fetch_add(&counter, 1, 0);
/// assert!(ticket < world.n_pes() as u64);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
impl Context<'_> {
    #[inline(always)]
    #[track_caller]
    pub(super) fn update<T: Atomic>(
        &self,
        routine: &'static str,
        op: AmoOp,
        variable: &SymmetricAtomic<T>,
        operand: T,
        pe: usize,
    ) {
        let pe = self.check_pe(pe);
        // SAFETY: symmetric and aligned, and a PE of the context.
        unsafe { self.tables().amo(routine, self.handle(), op, variable.as_ptr(), operand, pe) }
    }

    #[inline(always)]
    #[track_caller]
    fn fetch<T: Atomic>(
        &self,
        routine: &'static str,
        op: AmoOp,
        variable: &SymmetricAtomic<T>,
        operands: [T; 2],
        pe: usize,
    ) -> T {
        let pe = self.check_pe(pe);
        // SAFETY: as for `update`.
        unsafe {
            self.tables().amo_fetch(routine, self.handle(), op, variable.as_ptr(), operands, pe)
        }
    }

    /// The value (`shmem_atomic_fetch`).
    #[inline]
    #[track_caller]
    pub fn atomic_fetch<T: Atomic>(&self, variable: &SymmetricAtomic<T>, pe: usize) -> T {
        self.fetch("Context::atomic_fetch", AmoOp::Fetch, variable, [T::zeroed(); 2], pe)
    }

    /// Sets the variable (`shmem_atomic_set`).
    #[inline]
    #[track_caller]
    pub fn atomic_set<T: Atomic>(&self, variable: &SymmetricAtomic<T>, value: T, pe: usize) {
        self.update("Context::atomic_set", AmoOp::Set, variable, value, pe);
    }

    /// Sets the variable and gives its value before (`shmem_atomic_swap`).
    #[inline]
    #[track_caller]
    pub fn atomic_swap<T: Atomic>(&self, variable: &SymmetricAtomic<T>, value: T, pe: usize) -> T {
        self.fetch("Context::atomic_swap", AmoOp::Set, variable, [value; 2], pe)
    }

    /// Sets the variable to `value` if it is `condition`, and gives its value before
    /// (`shmem_atomic_compare_swap`).
    #[inline]
    #[track_caller]
    pub fn atomic_compare_swap<T: AtomicInteger>(
        &self,
        variable: &SymmetricAtomic<T>,
        condition: T,
        value: T,
        pe: usize,
    ) -> T {
        let operands = [value, condition];
        self.fetch("Context::atomic_compare_swap", AmoOp::CompareSwap, variable, operands, pe)
    }
}

macro_rules! arithmetic {
    ($($op:ident: $name:ident, $fetch_name:ident, $does:literal, $routine:literal;)*) => {
        impl Context<'_> { $(
            #[doc = concat!($does, " (`shmem_", stringify!($name), "`).")]
            #[inline]
            #[track_caller]
            pub fn $name<T: AtomicInteger>(
                &self,
                variable: &SymmetricAtomic<T>,
                value: T,
                pe: usize,
            ) {
                self.update(concat!("Context::", stringify!($name)), AmoOp::$op, variable, value, pe);
            }

            #[doc = concat!($does, " and gives the value before (`shmem_", $routine, "`).")]
            #[inline]
            #[track_caller]
            pub fn $fetch_name<T: AtomicInteger>(
                &self,
                variable: &SymmetricAtomic<T>,
                value: T,
                pe: usize,
            ) -> T {
                let routine = concat!("Context::", stringify!($fetch_name));
                self.fetch(routine, AmoOp::$op, variable, [value; 2], pe)
            }
        )* }
    };
}

arithmetic! {
    Add: atomic_add, atomic_fetch_add, "Adds to the variable, wrapping", "atomic_fetch_add";
    And: atomic_and, atomic_fetch_and, "Bitwise and", "atomic_fetch_and";
    Or: atomic_or, atomic_fetch_or, "Bitwise or", "atomic_fetch_or";
    Xor: atomic_xor, atomic_fetch_xor, "Bitwise exclusive or", "atomic_fetch_xor";
}
