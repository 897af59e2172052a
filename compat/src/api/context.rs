// SPDX-License-Identifier: Apache-2.0
//! Contexts and the blocking operations on remote memory.

use super::atomic::SymmetricAtomic;
use super::memory::{Source, Symmetric};
use super::nonblocking::NonBlocking;
use super::panics;
use crate::abi::{SHMEM_SIGNAL_ADD, SHMEM_SIGNAL_SET};
use crate::c::fast::{self, Signal, Tables};
use crate::c::handle::Ctx;
use crate::library::Library;
use bytemuck::Pod;
use std::cell::Cell;
use std::ffi::c_int;
use std::marker::PhantomData;
use std::thread;
use tombolo_core::ops::Mode;
use tombolo_core::transport::AmoOp;

/// Longest value that `p` and `g` handle themselves, in bytes.
const SCALAR_MAX: usize = 32;
/// Longest array, in bytes, that `put` copies without a call.
const SHORT_MAX: usize = 128;

/// Whether the type of a source tells that it is short.
const fn is_short<T>(len: Option<usize>) -> bool {
    match len {
        Some(len) => len.saturating_mul(size_of::<T>()) <= SHORT_MAX,
        None => false,
    }
}

/// How a signal changes its variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignalOp {
    /// It gets the signal's value.
    Set,
    /// The signal's value is added to it.
    Add,
}

/// A stream of operations on the memory of PEs, with completion of its own (OpenSHMEM 1.6,
/// "Communication Management Routines").
///
/// [`World`](crate::World) derefs to the default context; [`Team::context`](crate::Team::context)
/// makes others, in which PEs are numbered as in their team. One thread uses a context at a time; it
/// may be given to another (it is `Send`, but not `Sync`).
///
/// In the names of the standard: an operation `shmem_ctx_x(ctx, ...)` is `ctx.x(...)` here. Lengths
/// are those of slices, and where two slices must agree and do not, or a PE does not exist, the call
/// panics, as slice operations of the standard library do. When a put returns, its source may be
/// changed; it is visible at its PE after [`quiet`](Context::quiet) or
/// [`World::barrier_all`](crate::World::barrier_all).
pub struct Context<'w> {
    handle: Ctx,
    n_pes: usize,
    tables: &'static Tables,
    library: &'static Library,
    _team: PhantomData<&'w ()>,
    /// One thread at a time: not `Sync`.
    _thread: PhantomData<Cell<()>>,
}

impl<'w> Context<'w> {
    pub(super) fn new(handle: Ctx, n_pes: usize, library: &'static Library) -> Context<'w> {
        Context {
            handle,
            n_pes,
            tables: fast::tables(),
            library,
            _team: PhantomData,
            _thread: PhantomData,
        }
    }

    #[inline(always)]
    pub(super) fn handle(&self) -> Ctx {
        self.handle
    }

    #[inline(always)]
    pub(super) fn tables(&self) -> &'static Tables {
        self.tables
    }

    #[inline(always)]
    #[track_caller]
    pub(super) fn check_pe(&self, pe: usize) -> c_int {
        if pe >= self.n_pes {
            no_pe(pe, self.n_pes);
        }
        pe as c_int
    }

    /// Copies one value to PE `pe` (`shmem_p`).
    ///
    /// # Panics
    /// There is no such PE in the context's team; so for all operations.
    #[inline]
    #[track_caller]
    pub fn p<T: Pod>(&self, dest: &Symmetric<T>, value: T, pe: usize) {
        let pe = self.check_pe(pe);
        let dest = (&raw const *dest).cast::<T>().cast_mut();
        // SAFETY: symmetric, aligned, and a PE of the context.
        unsafe {
            if const { size_of::<T>() > SCALAR_MAX } {
                let source = (&raw const value).cast();
                let len = size_of::<T>();
                self.tables.put(
                    "Context::p",
                    self.handle,
                    dest.cast(),
                    source,
                    len,
                    pe,
                    Mode::Blocking,
                );
            } else {
                self.tables.p("Context::p", self.handle, dest, value, pe);
            }
        }
    }

    /// Copies one value from PE `pe` (`shmem_g`).
    #[inline]
    #[track_caller]
    pub fn g<T: Pod>(&self, source: &Symmetric<T>, pe: usize) -> T {
        let pe = self.check_pe(pe);
        let source = (&raw const *source).cast::<T>();
        // SAFETY: symmetric, aligned, and a PE of the context; any bits are a value.
        unsafe {
            if const { size_of::<T>() > SCALAR_MAX } {
                let mut value = T::zeroed();
                let (dest, len) = ((&raw mut value).cast(), size_of::<T>());
                let (ctx, source) = (self.handle, source.cast());
                self.tables.get("Context::g", ctx, dest, source, len, pe, Mode::Blocking);
                value
            } else {
                self.tables.g("Context::g", self.handle, source, pe)
            }
        }
    }

    /// Copies `source` to `dest` at PE `pe` (`shmem_put`). A short array, whose type tells its length, is
    /// copied without a call.
    ///
    /// # Panics
    /// The lengths differ; or `pe` is this PE, and `source` is symmetric memory that overlaps `dest`.
    #[inline]
    #[track_caller]
    pub fn put<T: Pod, S: Source<T> + ?Sized>(&self, dest: &[Symmetric<T>], source: &S, pe: usize) {
        // SAFETY: `source` is borrowed until the blocking put returns.
        unsafe { self.put_in_mode("Context::put", dest, source, pe, Mode::Blocking) }
    }

    /// # Safety
    /// `source` is there for as long as `mode` says.
    #[inline(always)]
    #[track_caller]
    pub(super) unsafe fn put_in_mode<T: Pod, S: Source<T> + ?Sized>(
        &self,
        routine: &'static str,
        dest: &[Symmetric<T>],
        source: &S,
        pe: usize,
        mode: Mode,
    ) {
        let (source, len) = self.pair(dest, source, pe);
        let pe = self.check_pe(pe);
        let dest = dest.as_ptr().cast_mut().cast();
        let source = source.cast();
        // SAFETY: `dest` is symmetric and as long as the source, which is valid by the caller's word.
        unsafe {
            if const { is_short::<T>(S::LEN) } {
                self.tables.put_known(routine, self.handle, dest, source, len, pe, mode);
            } else {
                self.tables.put(routine, self.handle, dest, source, len, pe, mode);
            }
        }
    }

    /// Copies `source` at PE `pe` to `dest` (`shmem_get`).
    ///
    /// # Panics
    /// The lengths differ.
    #[inline]
    #[track_caller]
    pub fn get<T: Pod>(&self, dest: &mut [T], source: &[Symmetric<T>], pe: usize) {
        // SAFETY: `dest` is borrowed until the blocking get returns.
        unsafe { self.get_in_mode("Context::get", dest, source, pe, Mode::Blocking) }
    }

    /// # Safety
    /// `dest` is there, and nobody else's, for as long as `mode` says.
    #[inline(always)]
    #[track_caller]
    pub(super) unsafe fn get_in_mode<T: Pod>(
        &self,
        routine: &'static str,
        dest: &mut [T],
        source: &[Symmetric<T>],
        pe: usize,
        mode: Mode,
    ) {
        check_lengths(dest.len(), source.len());
        let pe = self.check_pe(pe);
        let (dest, len) = (dest.as_mut_ptr().cast(), size_of_val(dest));
        let source = source.as_ptr().cast();
        // SAFETY: `source` is symmetric and as long as `dest`, which is valid by the caller's word.
        unsafe { self.tables.get(routine, self.handle, dest, source, len, pe, mode) }
    }

    /// As [`put`](Context::put), then changes `signal` at PE `pe`: whoever sees the signal there sees
    /// the data (`shmem_put_signal`).
    ///
    /// # Panics
    /// As [`put`](Context::put).
    #[inline]
    #[track_caller]
    pub fn put_signal<T: Pod, S: Source<T> + ?Sized>(
        &self,
        dest: &[Symmetric<T>],
        source: &S,
        signal: &SymmetricAtomic<u64>,
        (op, value): (SignalOp, u64),
        pe: usize,
    ) {
        // SAFETY: `source` is borrowed until the blocking put returns.
        unsafe {
            let routine = "Context::put_signal";
            self.signal_in_mode(routine, dest, source, signal, (op, value), pe, Mode::Blocking);
        }
    }

    /// # Safety
    /// `source` is there for as long as `mode` says.
    #[inline(always)]
    #[track_caller]
    #[expect(clippy::too_many_arguments, reason = "the arguments of shmem_put_signal")]
    pub(super) unsafe fn signal_in_mode<T: Pod, S: Source<T> + ?Sized>(
        &self,
        routine: &'static str,
        dest: &[Symmetric<T>],
        source: &S,
        signal: &SymmetricAtomic<u64>,
        (op, value): (SignalOp, u64),
        pe: usize,
        mode: Mode,
    ) {
        let (source, len) = self.pair(dest, source, pe);
        let pe = self.check_pe(pe);
        let op = match op {
            SignalOp::Set => SHMEM_SIGNAL_SET,
            SignalOp::Add => SHMEM_SIGNAL_ADD,
        };
        let (dest, signal) =
            (dest.as_ptr().cast_mut().cast(), Signal { word: signal.as_ptr(), value, op });
        // SAFETY: `dest` is symmetric and as long as the source, which is valid by the caller's word.
        unsafe {
            self.tables.put_signal(
                routine,
                self.handle,
                dest,
                source.cast(),
                len,
                signal,
                pe,
                mode,
            );
        }
    }

    /// Changes a signal variable at PE `pe`, without data (`shmem_signal_set`, `shmem_signal_add`).
    #[inline]
    #[track_caller]
    pub fn signal(&self, signal: &SymmetricAtomic<u64>, (op, value): (SignalOp, u64), pe: usize) {
        let op = match op {
            SignalOp::Set => AmoOp::Set,
            SignalOp::Add => AmoOp::Add,
        };
        self.update("Context::signal", op, signal, value, pe);
    }

    /// Waits until all operations of this context are complete: what was put is visible at its PE
    /// (`shmem_quiet`).
    pub fn quiet(&self) {
        let routine = "Context::quiet";
        self.library.world.quiet(self.handle.context(self.library, routine), routine);
    }

    /// As [`quiet`](Context::quiet), for operations on these PEs at least (`shmem_pe_quiet`).
    ///
    /// # Panics
    /// One of them is no PE of the context's team.
    #[track_caller]
    pub fn pe_quiet(&self, pes: &[usize]) {
        let routine = "Context::pe_quiet";
        for pe in pes {
            self.check_pe(*pe);
        }
        if !pes.is_empty() {
            let context = self.handle.context(self.library, routine);
            let pes = pes.iter().map(|pe| context.team().world_pe(*pe));
            self.library.world.pe_quiet(context, pes, routine);
        }
    }

    /// Operations on a PE issued before are delivered there before those issued after
    /// (`shmem_fence`).
    pub fn fence(&self) {
        let routine = "Context::fence";
        self.library.world.fence(self.handle.context(self.library, routine), routine);
    }

    /// Runs `issue`, which issues operations that do not block, and completes them.
    ///
    /// Buffers handed to these operations stay borrowed until all of them are complete, which is when
    /// this call returns, by a panic of `issue` too.
    ///
    /// ```
    /// let world = tombolo::init()?;
    /// let field = world.alloc_slice(4, 7u32)?;
    /// let (mut first, mut rest) = ([0; 1], [0; 3]);
    /// world.nonblocking(|ops| {
    ///     ops.get(&mut first, &field[..1], 0);
    ///     ops.get(&mut rest, &field[1..], 0);
    ///     // Both are under way; neither buffer can be used here.
    /// });
    /// assert_eq!((first, rest), ([7], [7, 7, 7]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// A buffer that does not outlive the operations is refused:
    ///
    /// ```compile_fail,E0597
    /// let world = tombolo::init()?;
    /// let field = world.alloc_slice(4, 7u32)?;
    /// world.nonblocking(|ops| {
    ///     let buffer = [1; 4];
    ///     ops.put(&field, &buffer, 0);
    /// });
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// So is one that is used while they are under way:
    ///
    /// ```compile_fail,E0499
    /// let world = tombolo::init()?;
    /// let field = world.alloc_slice(4, 7u32)?;
    /// let mut buffer = [0; 4];
    /// world.nonblocking(|ops| {
    ///     ops.get(&mut buffer, &field, 0);
    ///     ops.get(&mut buffer, &field, 0);
    /// });
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn nonblocking<'env, R>(&'env self, issue: impl FnOnce(&NonBlocking<'env>) -> R) -> R {
        // Completes on its way out, whatever that is.
        let operations = NonBlocking::new(self);
        issue(&operations)
    }

    /// The source of a put and its length in bytes, if it goes with the destination.
    #[inline(always)]
    #[track_caller]
    fn pair<T: Pod, S: Source<T> + ?Sized>(
        &self,
        dest: &[Symmetric<T>],
        source: &S,
        pe: usize,
    ) -> (*const T, usize) {
        let (from, count) = source.parts();
        check_lengths(dest.len(), count);
        let bytes = count * size_of::<T>();
        if S::SYMMETRIC {
            let distance = (dest.as_ptr() as usize).abs_diff(from as usize);
            if distance < bytes && self.is_myself(pe) {
                panic!("source and destination are the same memory of PE {pe}");
            }
        }
        (from, bytes)
    }

    fn is_myself(&self, pe: usize) -> bool {
        let team = self.handle.context(self.library, "Context::put").team();
        pe == team.me
    }
}

impl Drop for Context<'_> {
    fn drop(&mut self) {
        if self.handle == Ctx::DEFAULT {
            return;
        }
        if thread::panicking() {
            panics::end_the_job(self.library);
        }
        self.quiet();
        self.library.objects().remove_context(self.handle.0);
    }
}

#[cold]
#[inline(never)]
#[track_caller]
fn no_pe(pe: usize, n_pes: usize) -> ! {
    panic!("PE {pe} of a team of {n_pes}: expected 0 to {}", n_pes - 1)
}

#[inline(always)]
#[track_caller]
fn check_lengths(dest: usize, source: usize) {
    if dest != source {
        lengths_differ(dest, source);
    }
}

#[cold]
#[inline(never)]
#[track_caller]
pub(super) fn lengths_differ(dest: usize, source: usize) -> ! {
    panic!("the destination has {dest} elements, the source {source}")
}
