// SPDX-License-Identifier: Apache-2.0
//! What the fast path leaves: peers that are not mapped, sizes for which another channel is better,
//! checks, and calls in the wrong order. Everything is checked here that can be.

use super::fast::{self, Signal};
use super::handle::Ctx;
use super::types::Word;
use crate::abi::{SHMEM_SIGNAL_ADD, SHMEM_SIGNAL_SET};
use crate::library::{Library, library};
use crate::profile::{self, Kind};
use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, Ordering};
use tombolo_collectives::Strided;
use tombolo_core::ops::Mode;
use tombolo_core::transport::{AmoOp, SignalOp};
use tombolo_core::{Context, World};

/// A call that has been checked as far as its context and PE go.
pub struct Call {
    /// The initialised library.
    pub library: &'static Library,
    /// The context of the call.
    pub context: &'static Context,
    /// The world PE that is meant.
    pub pe: usize,
}

impl Call {
    /// Finds out what a call with these arguments means; ends the job if it means nothing.
    pub fn new(routine: &'static str, ctx: Ctx, pe: c_int) -> Call {
        let library = library(routine);
        let context = ctx.context(library, routine);
        let team = context.team();
        library.world.check_pe(routine, pe.into(), team.n_pes());
        Call { library, context, pe: team.world_pe(pe as usize) }
    }

    /// Does what the call is for, counted if anything is: it concerns so many bytes from an address of
    /// its PE on.
    pub fn counted<R>(
        &self,
        routine: &'static str,
        kind: Kind,
        remote: (*const u8, usize),
        work: impl FnOnce() -> R,
    ) -> R {
        match profile::on() {
            Some(state) => {
                let hint = self.context.hint();
                profile::other(state, routine, kind, hint, remote, self.pe, work)
            }
            None => work(),
        }
    }

    fn world(&self) -> &'static World {
        &self.library.world
    }

    /// Checks a pair of buffers, one here and one at the PE of the call.
    fn check_buffers(
        &self,
        routine: &'static str,
        dest: *const u8,
        source: *const u8,
        local: &str,
        len: usize,
    ) {
        if !self.library.checks() || len == 0 {
            return;
        }
        let here = if local == "source" { source } else { dest };
        check_not_null(self.world(), routine, local, here);
        if self.pe == self.world().pe() {
            self.world().check_overlap(routine, dest, source, len);
        }
    }
}

/// Ends the job if a pointer is null.
pub fn check_not_null<T>(world: &World, routine: &'static str, argument: &str, address: *const T) {
    if address.is_null() {
        world.stop_job(routine, format_args!("{argument} is a null pointer: expected an address"));
    }
}

/// Checks variables of this PE that the library reads atomically or writes for others, unless it is for counting alone
/// that this is called.
#[cold]
#[inline(never)]
pub fn check_variable<T>(routine: &'static str, argument: &str, variable: *const T, count: usize) {
    let library = library(routine);
    if !library.checks() && profile::on().is_some() {
        return;
    }
    let world = &library.world;
    if count == 0 {
        return;
    }
    if !variable.is_aligned() {
        world.stop_job(
            routine,
            format_args!("{argument} = {variable:p} is not aligned to {} bytes", align_of::<T>()),
        );
    }
    world.check_range(routine, argument, variable.cast(), bytes_of::<T>(count));
}

/// Checks the buffers of a collective on this PE, each with its length in bytes. Source and
/// destination may be the same buffer only where `in_place` says so.
pub fn check_buffers(
    library: &Library,
    routine: &'static str,
    (dest, dest_len): (*const u8, usize),
    (source, source_len): (*const u8, usize),
    in_place: bool,
) {
    if !library.checks() {
        return;
    }
    check_ranges(&library.world, routine, (dest, dest_len), (source, source_len));
    let distance = (dest as usize).abs_diff(source as usize);
    let reach = if dest < source { dest_len } else { source_len };
    if distance < reach && !(in_place && distance == 0) {
        overlap(&library.world, routine, dest, source);
    }
}

/// As [`check_buffers`], for `count` elements at distances, of which none of dest may share memory with one
/// of source: those of one may lie between those of the other.
pub fn check_strided(
    library: &Library,
    routine: &'static str,
    dest: *const u8,
    source: *const u8,
    strided: &Strided,
    count: usize,
) {
    if !library.checks() {
        return;
    }
    let size = strided.size;
    let [to, from] = [strided.dst, strided.sst].map(|stride| extent(stride, 1, count, size));
    check_ranges(&library.world, routine, (dest, to), (source, from));
    let apart = |stride: isize| stride.unsigned_abs().max(1).saturating_mul(size);
    let [dst, sst] = [strided.dst, strided.sst].map(apart);
    let (first, source_at) = (dest as usize, source as usize);
    if first < source_at + from && source_at < first + to {
        let shares = |at: usize| {
            // The last element of source that begins here or before, and the next one.
            let near = at.saturating_sub(source_at) / sst;
            (near..count.min(near + 2)).any(|i| at.abs_diff(source_at + i * sst) < size)
        };
        if (0..count).any(|i| shares(first + i * dst)) {
            overlap(&library.world, routine, dest, source);
        }
    }
}

/// Bytes of so many elements; the largest number where these have no room in a word. No buffer is so long, so that
/// checks find such a count.
#[inline(always)]
pub const fn bytes_of<T>(count: usize) -> usize {
    count.saturating_mul(size_of::<T>())
}

/// Bytes from the first of `nblocks` blocks to the end of the last. Blocks have `bsize` elements of `size` bytes and begin
/// `stride` elements apart. The largest number where the bytes have no room in a word; see [`bytes_of`].
pub fn extent(stride: isize, bsize: usize, nblocks: usize, size: usize) -> usize {
    match nblocks {
        0 => 0,
        _ => {
            let before = (nblocks - 1).saturating_mul(stride.unsigned_abs());
            before.saturating_add(bsize).saturating_mul(size)
        }
    }
}

fn check_ranges(
    world: &World,
    routine: &'static str,
    (dest, dest_len): (*const u8, usize),
    (source, source_len): (*const u8, usize),
) {
    if dest_len > 0 {
        world.check_range(routine, "dest", dest, dest_len);
    }
    if source_len > 0 {
        world.check_readable(routine, "source", source, source_len);
    }
}

#[cold]
fn overlap(world: &World, routine: &'static str, dest: *const u8, source: *const u8) -> ! {
    world.stop_job(
        routine,
        format_args!("dest = {dest:p} and source = {source:p} overlap: expected two buffers"),
    )
}

/// As [`check_buffers`] for a broadcast: the standard asks for two buffers, but programs that pass
/// one for both are common, and nothing happens to them. The root warns, once.
pub fn check_broadcast(
    library: &Library,
    routine: &'static str,
    (dest, source): (*const u8, *const u8),
    len: usize,
    is_root: bool,
) {
    static TOLD: AtomicBool = AtomicBool::new(false);
    check_buffers(library, routine, (dest, len), (source, len), true);
    let in_place = library.checks() && len > 0 && dest == source;
    if in_place && is_root && !TOLD.swap(true, Ordering::Relaxed) {
        tracing::warn!(
            "PE {}: {routine}: dest and source are one buffer, {dest:p}: it works here, but the \
             standard expects two",
            library.world.pe()
        );
    }
}

/// Checks the root of a collective over `n_pes` PEs.
pub fn check_root(library: &Library, routine: &'static str, root: c_int, n_pes: usize) {
    if !usize::try_from(root).is_ok_and(|root| root < n_pes) {
        let last = n_pes - 1;
        library.world.stop_job(
            routine,
            format_args!("PE_root = {root}: expected the number of a member, 0 to {last}"),
        );
    }
}

/// Not inlined, and with arguments in the order of the C routine, here and in [`g`], [`put`] and
/// [`get`]: on the fast path they then stay in the registers they came in.
///
/// # Safety
/// As `fast::p`; so for all operations below and their likes in [`super::fast`].
#[cold]
#[inline(never)]
pub unsafe fn p<T: Copy>(dest: *mut T, value: T, pe: c_int, ctx: Ctx, routine: &'static str) {
    let (source, len) = ((&raw const value).cast(), size_of::<T>());
    // SAFETY: by the caller's word; the source lives until the call returns, and the put blocks.
    unsafe {
        match profile::on() {
            None => {
                checked_put::<false>(dest.cast(), source, len, pe, ctx, routine, Mode::Blocking)
            }
            Some(state) if profile::p(state, routine, ctx, dest, value, pe) => {}
            _ => checked_put::<true>(dest.cast(), source, len, pe, ctx, routine, Mode::Blocking),
        }
    }
}

/// # Safety
/// See [`p`].
#[cold]
#[inline(never)]
pub unsafe fn g<T: Copy>(source: *const T, pe: c_int, ctx: Ctx, routine: &'static str) -> T {
    let mut value = MaybeUninit::<T>::uninit();
    let (dest, from, len) = (value.as_mut_ptr().cast(), source.cast(), size_of::<T>());
    // SAFETY: by the caller's word; the destination lives until the call returns, and the get blocks and
    // fills it.
    unsafe {
        match profile::on() {
            None => checked_get::<false>(dest, from, len, pe, ctx, routine, Mode::Blocking),
            Some(state) => match profile::g(state, routine, ctx, source, pe) {
                Some(value) => return value,
                None => checked_get::<true>(dest, from, len, pe, ctx, routine, Mode::Blocking),
            },
        }
        value.assume_init()
    }
}

/// # Safety
/// See [`p`].
#[cold]
pub unsafe fn put(
    dest: *mut u8,
    source: *const u8,
    len: usize,
    pe: c_int,
    ctx: Ctx,
    routine: &'static str,
    mode: Mode,
) {
    // SAFETY: by the caller's word.
    unsafe {
        match profile::on() {
            None => checked_put::<false>(dest, source, len, pe, ctx, routine, mode),
            Some(_) => counted_put(dest, source, len, pe, ctx, routine, mode),
        }
    }
}

/// Apart from [`put`], which then has nothing to keep over a call.
///
/// # Safety
/// See [`p`].
#[inline(never)]
unsafe fn counted_put(
    dest: *mut u8,
    source: *const u8,
    len: usize,
    pe: c_int,
    ctx: Ctx,
    routine: &'static str,
    mode: Mode,
) {
    // SAFETY: by the caller's word.
    unsafe {
        let at_once = fast::COUNTED.is_copied(len, mode);
        let counted = |state| at_once && profile::put(state, routine, ctx, dest, source, len, pe);
        if !profile::on().is_some_and(counted) {
            checked_put::<true>(dest, source, len, pe, ctx, routine, mode);
        }
    }
}

/// A put, counted if `COUNTED` says so. Apart from [`put`] and [`p`], whose arguments then stay in
/// registers.
///
/// # Safety
/// See [`p`].
#[inline(never)]
unsafe fn checked_put<const COUNTED: bool>(
    dest: *mut u8,
    source: *const u8,
    len: usize,
    pe: c_int,
    ctx: Ctx,
    routine: &'static str,
    mode: Mode,
) {
    let call = Call::new(routine, ctx, pe);
    call.check_buffers(routine, dest, source, "source", len);
    let work = || {
        let (world, context, pe) = (call.world(), call.context, call.pe);
        // SAFETY: the caller vouches for the source.
        unsafe {
            match mode {
                Mode::Blocking => world.put(context, dest, source, len, pe, mode, routine),
                Mode::NonBlocking => world.put_nbi(context, dest, source, len, pe, routine),
            }
        }
    };
    if COUNTED { call.counted(routine, Kind::Put, (dest, len), work) } else { work() }
}

/// # Safety
/// See [`p`].
#[cold]
pub unsafe fn get(
    dest: *mut u8,
    source: *const u8,
    len: usize,
    pe: c_int,
    ctx: Ctx,
    routine: &'static str,
    mode: Mode,
) {
    // SAFETY: by the caller's word.
    unsafe {
        match profile::on() {
            None => checked_get::<false>(dest, source, len, pe, ctx, routine, mode),
            Some(_) => counted_get(dest, source, len, pe, ctx, routine, mode),
        }
    }
}

/// Apart from [`get`], which then has nothing to keep over a call.
///
/// # Safety
/// See [`p`].
#[inline(never)]
unsafe fn counted_get(
    dest: *mut u8,
    source: *const u8,
    len: usize,
    pe: c_int,
    ctx: Ctx,
    routine: &'static str,
    mode: Mode,
) {
    // SAFETY: by the caller's word.
    unsafe {
        let at_once = fast::COUNTED.is_copied(len, mode);
        let counted = |state| at_once && profile::get(state, routine, ctx, dest, source, len, pe);
        if !profile::on().is_some_and(counted) {
            checked_get::<true>(dest, source, len, pe, ctx, routine, mode);
        }
    }
}

/// A get, counted if `COUNTED` says so. Apart from [`get`] and [`g`], whose arguments then stay in
/// registers.
///
/// # Safety
/// See [`p`].
#[inline(never)]
unsafe fn checked_get<const COUNTED: bool>(
    dest: *mut u8,
    source: *const u8,
    len: usize,
    pe: c_int,
    ctx: Ctx,
    routine: &'static str,
    mode: Mode,
) {
    let call = Call::new(routine, ctx, pe);
    call.check_buffers(routine, dest, source, "dest", len);
    let work = || {
        let (world, context, pe) = (call.world(), call.context, call.pe);
        // SAFETY: the caller vouches for the destination.
        unsafe {
            match mode {
                Mode::Blocking => world.get(context, dest, source, len, pe, mode, routine),
                Mode::NonBlocking => world.get_nbi(context, dest, source, len, pe, routine),
            }
        }
    };
    if COUNTED { call.counted(routine, Kind::Get, (source, len), work) } else { work() }
}

/// # Safety
/// See [`p`].
#[cold]
pub unsafe fn amo_fetch<T: Word>(
    routine: &'static str,
    ctx: Ctx,
    op: AmoOp,
    variable: *mut T,
    operand: T,
    compare: T,
    pe: c_int,
) -> T {
    if let Some(state) = profile::on() {
        let operands = [operand, compare];
        // SAFETY: by the caller's word.
        let old = unsafe { profile::amo_fetch(state, routine, ctx, op, variable, operands, pe) };
        if let Some(old) = old {
            return old;
        }
    }
    // SAFETY: by the caller's word.
    unsafe { checked_amo_fetch(routine, ctx, op, variable, operand, compare, pe) }
}

/// Apart from [`amo_fetch`], whose arguments then stay in registers while calls are counted.
///
/// # Safety
/// See [`p`].
#[inline(never)]
unsafe fn checked_amo_fetch<T: Word>(
    routine: &'static str,
    ctx: Ctx,
    op: AmoOp,
    variable: *mut T,
    operand: T,
    compare: T,
    pe: c_int,
) -> T {
    let call = Call::new(routine, ctx, pe);
    let amo = T::amo(op, operand, compare);
    let at = variable.cast();
    let old = call.counted(routine, Kind::Amo, (at, size_of::<T>()), || {
        call.world().amo_fetch(call.context, at, amo, call.pe, routine)
    });
    T::from_bits(old)
}

/// An AMO without result, if `fetch` is null, or with one that is complete after the next quiet.
///
/// # Safety
/// See [`p`].
#[cold]
#[expect(clippy::too_many_arguments, reason = "the arguments of shmem_atomic_compare_swap_nbi")]
pub unsafe fn amo<T: Word>(
    routine: &'static str,
    ctx: Ctx,
    op: AmoOp,
    fetch: *mut T,
    variable: *mut T,
    operand: T,
    compare: T,
    pe: c_int,
) {
    if let Some(state) = profile::on() {
        // SAFETY: by the caller's word.
        let done = unsafe {
            match fetch.is_null() {
                true => profile::amo(state, routine, ctx, op, variable, operand, pe),
                false => profile::amo_nbi(
                    state,
                    routine,
                    ctx,
                    op,
                    fetch,
                    variable,
                    [operand, compare],
                    pe,
                ),
            }
        };
        if done {
            return;
        }
    }
    // SAFETY: by the caller's word.
    unsafe { checked_amo(routine, ctx, op, fetch, variable, operand, compare, pe) }
}

/// Apart from [`amo`], whose arguments then stay in registers while calls are counted.
///
/// # Safety
/// See [`p`].
#[inline(never)]
#[expect(clippy::too_many_arguments, reason = "the arguments of the C routine")]
unsafe fn checked_amo<T: Word>(
    routine: &'static str,
    ctx: Ctx,
    op: AmoOp,
    fetch: *mut T,
    variable: *mut T,
    operand: T,
    compare: T,
    pe: c_int,
) {
    let call = Call::new(routine, ctx, pe);
    let amo = T::amo(op, operand, compare);
    let fetch = (!fetch.is_null()).then_some(fetch.cast());
    let at = variable.cast();
    call.counted(routine, Kind::Amo, (at, size_of::<T>()), || {
        // SAFETY: the caller vouches for `fetch`.
        unsafe { call.world().amo_nbi(call.context, fetch, at, amo, call.pe, routine) }
    })
}

/// # Safety
/// See [`p`].
#[cold]
#[expect(clippy::too_many_arguments, reason = "the arguments of shmem_putmem_signal")]
pub unsafe fn put_signal(
    routine: &'static str,
    ctx: Ctx,
    dest: *mut u8,
    source: *const u8,
    len: usize,
    signal: Signal,
    pe: c_int,
    mode: Mode,
) {
    if let Some(state) = profile::on()
        // SAFETY: by the caller's word.
        && unsafe { profile::put_signal(state, routine, ctx, dest, source, len, signal, pe) }
    {
        return;
    }
    // SAFETY: by the caller's word.
    unsafe { checked_put_signal(routine, ctx, dest, source, len, signal, pe, mode) }
}

/// Apart from [`put_signal`], whose arguments then stay in registers while calls are counted.
///
/// # Safety
/// See [`p`].
#[inline(never)]
#[expect(clippy::too_many_arguments, reason = "the arguments of the C routine")]
unsafe fn checked_put_signal(
    routine: &'static str,
    ctx: Ctx,
    dest: *mut u8,
    source: *const u8,
    len: usize,
    signal: Signal,
    pe: c_int,
    mode: Mode,
) {
    let call = Call::new(routine, ctx, pe);
    let world = call.world();
    call.check_buffers(routine, dest, source, "source", len);
    let op = match signal.op {
        SHMEM_SIGNAL_SET => SignalOp::Set,
        SHMEM_SIGNAL_ADD => SignalOp::Add,
        other => world.stop_job(
            routine,
            format_args!("sig_op = {other}: expected SHMEM_SIGNAL_SET or SHMEM_SIGNAL_ADD"),
        ),
    };
    let (word, value) = (signal.word, signal.value);
    if call.library.checks() && (word as usize).wrapping_sub(dest as usize) < len {
        world.stop_job(routine, format_args!("sig_addr = {word:p} lies inside dest"));
    }
    call.counted(routine, Kind::Put, (dest, len), || {
        let (context, pe) = (call.context, call.pe);
        // SAFETY: the caller vouches for the source.
        unsafe {
            world.put_signal(context, dest, source, len, word, value, op, pe, mode, routine);
        }
    })
}
