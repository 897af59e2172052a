// SPDX-License-Identifier: Apache-2.0
//! Operations that return before they are complete.

use super::atomic::{Atomic, AtomicInteger, SymmetricAtomic};
use super::context::{Context, SignalOp};
use super::memory::{Source, Symmetric};
use bytemuck::Pod;
use std::marker::PhantomData;
use tombolo_core::ops::Mode;
use tombolo_core::transport::AmoOp;

/// Issues operations that do not block; see [`Context::nonblocking`]. Their buffers are borrowed for
/// `'env`, which lasts until they are complete.
pub struct NonBlocking<'env> {
    context: &'env Context<'env>,
    /// Invariant: a closure must not take `'env` for a shorter time.
    _env: PhantomData<&'env mut &'env ()>,
}

impl<'env> NonBlocking<'env> {
    pub(super) fn new(context: &'env Context<'_>) -> NonBlocking<'env> {
        NonBlocking { context, _env: PhantomData }
    }

    /// As [`Context::put`]; the source is not copied (`shmem_put_nbi`).
    #[inline]
    #[track_caller]
    pub fn put<T: Pod, S: Source<T> + ?Sized>(
        &self,
        dest: &'env [Symmetric<T>],
        source: &'env S,
        pe: usize,
    ) {
        let routine = "NonBlocking::put";
        // SAFETY: the source is borrowed until the operations are complete.
        unsafe { self.context.put_in_mode(routine, dest, source, pe, Mode::NonBlocking) }
    }

    /// As [`Context::get`] (`shmem_get_nbi`).
    #[inline]
    #[track_caller]
    pub fn get<T: Pod>(&self, dest: &'env mut [T], source: &'env [Symmetric<T>], pe: usize) {
        let routine = "NonBlocking::get";
        // SAFETY: the destination is borrowed until the operations are complete.
        unsafe { self.context.get_in_mode(routine, dest, source, pe, Mode::NonBlocking) }
    }

    /// As [`Context::put_signal`] (`shmem_put_signal_nbi`).
    #[inline]
    #[track_caller]
    pub fn put_signal<T: Pod, S: Source<T> + ?Sized>(
        &self,
        dest: &'env [Symmetric<T>],
        source: &'env S,
        signal: &'env SymmetricAtomic<u64>,
        how: (SignalOp, u64),
        pe: usize,
    ) {
        let (context, routine) = (self.context, "NonBlocking::put_signal");
        // SAFETY: the source is borrowed until the operations are complete.
        unsafe {
            context.signal_in_mode(routine, dest, source, signal, how, pe, Mode::NonBlocking);
        }
    }

    #[inline(always)]
    #[track_caller]
    fn amo<T: Atomic>(
        &self,
        routine: &'static str,
        op: AmoOp,
        fetch: &'env mut T,
        variable: &'env SymmetricAtomic<T>,
        operands: [T; 2],
        pe: usize,
    ) {
        let (ctx, pe) = (self.context.handle(), self.context.check_pe(pe));
        // SAFETY: symmetric and aligned; `fetch` is borrowed until the operations are complete.
        unsafe {
            self.context.tables().amo_nbi(routine, ctx, op, fetch, variable.as_ptr(), operands, pe)
        }
    }

    /// Reads a variable (`shmem_atomic_fetch_nbi`).
    #[track_caller]
    pub fn atomic_fetch<T: Atomic>(
        &self,
        fetch: &'env mut T,
        variable: &'env SymmetricAtomic<T>,
        pe: usize,
    ) {
        let routine = "NonBlocking::atomic_fetch";
        self.amo(routine, AmoOp::Fetch, fetch, variable, [T::zeroed(); 2], pe);
    }

    /// Adds to a variable; `fetch` gets its value before (`shmem_atomic_fetch_add_nbi`).
    #[track_caller]
    pub fn atomic_fetch_add<T: AtomicInteger>(
        &self,
        fetch: &'env mut T,
        variable: &'env SymmetricAtomic<T>,
        value: T,
        pe: usize,
    ) {
        let routine = "NonBlocking::atomic_fetch_add";
        self.amo(routine, AmoOp::Add, fetch, variable, [value; 2], pe);
    }

    /// Sets a variable; `fetch` gets its value before (`shmem_atomic_swap_nbi`).
    #[track_caller]
    pub fn atomic_swap<T: Atomic>(
        &self,
        fetch: &'env mut T,
        variable: &'env SymmetricAtomic<T>,
        value: T,
        pe: usize,
    ) {
        self.amo("NonBlocking::atomic_swap", AmoOp::Set, fetch, variable, [value; 2], pe);
    }

    /// As [`Context::atomic_compare_swap`] (`shmem_atomic_compare_swap_nbi`).
    #[track_caller]
    pub fn atomic_compare_swap<T: AtomicInteger>(
        &self,
        fetch: &'env mut T,
        variable: &'env SymmetricAtomic<T>,
        condition: T,
        value: T,
        pe: usize,
    ) {
        let operands = [value, condition];
        let routine = "NonBlocking::atomic_compare_swap";
        self.amo(routine, AmoOp::CompareSwap, fetch, variable, operands, pe);
    }
}

macro_rules! bitwise {
    ($($op:ident: $name:ident, $does:literal;)*) => {
        impl<'env> NonBlocking<'env> { $(
            #[doc = concat!($does, "; `fetch` gets its value before (`shmem_", stringify!($name), "_nbi`).")]
            #[track_caller]
            pub fn $name<T: AtomicInteger>(
                &self,
                fetch: &'env mut T,
                variable: &'env SymmetricAtomic<T>,
                value: T,
                pe: usize,
            ) {
                let routine = concat!("NonBlocking::", stringify!($name));
                self.amo(routine, AmoOp::$op, fetch, variable, [value; 2], pe);
            }
        )* }
    };
}

bitwise! {
    And: atomic_fetch_and, "Bitwise and with a variable";
    Or: atomic_fetch_or, "Bitwise or with a variable";
    Xor: atomic_fetch_xor, "Bitwise exclusive or with a variable";
}

impl Drop for NonBlocking<'_> {
    fn drop(&mut self) {
        self.context.quiet();
    }
}
