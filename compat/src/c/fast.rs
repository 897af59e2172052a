// SPDX-License-Identifier: Apache-2.0
//! The paths that decide about speed: an address and a PE become a mapped address, and the
//! operation is done there with the processor's own instructions. Nothing here calls, locks or
//! looks at the library's state; whatever these paths cannot do is left to [`super::slow`].
//!
//! The tables are empty before initialisation, after finalisation, while arguments are checked and
//! while what the program does is counted, so in all these cases every operation takes the slow path.

use super::handle::Ctx;
use super::slow;
use super::types::Word;
use super::wait;
use crate::profile;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Mutex, MutexGuard};
use tombolo_core::memory::Guarded;
use tombolo_core::ops::Mode;
use tombolo_core::route::{Channel, PeerRoutes};
use tombolo_core::table::Table;
use tombolo_core::transport::{AmoOp, SegmentKind};
use tombolo_core::{World, amo, copy};

/// The tables of this process, for the C routines.
///
/// No generic and no inline function of this crate may name it: then other crates cannot either, and
/// routines reach it relative to their own place, without a load of its address.
pub static TABLES: Tables = Tables {
    stores: Table::empty(),
    atomics: Table::empty(),
    cached_max: AtomicUsize::new(0),
    at_once_max: AtomicUsize::new(0),
    checking: AtomicBool::new(true),
    crowded: AtomicBool::new(false),
    peers: Mutex::new(Vec::new()),
};

/// The tables that take their place while what the program does is counted: for [`profile`] alone.
pub static COUNTED: Tables = Tables {
    stores: Table::empty(),
    atomics: Table::empty(),
    cached_max: AtomicUsize::new(0),
    at_once_max: AtomicUsize::new(0),
    checking: AtomicBool::new(true),
    crowded: AtomicBool::new(false),
    peers: Mutex::new(Vec::new()),
};

/// The same tables for [`crate::Context`], whose operations become part of programs.
#[inline(never)]
pub fn tables() -> &'static Tables {
    &TABLES
}

/// What the fast paths look at.
#[repr(C)]
pub struct Tables {
    /// Mapped peers, for loads, stores and copies: without those to which the routes of small
    /// operations lead elsewhere.
    pub stores: Table,
    /// Mapped peers, for atomics: empty where some other means of atomicity was chosen.
    pub atomics: Table,
    /// Longest copy for which loads and stores through the caches are the route on every context.
    pub cached_max: AtomicUsize,
    /// The same of what need not be complete before the next quiet: longer ones may go on by themselves.
    at_once_max: AtomicUsize,
    /// Whether routines that touch only local memory have to be checked first.
    checking: AtomicBool,
    /// Whether there are more PEs than processors.
    crowded: AtomicBool,
    /// What the rows of both tables point to.
    peers: Mutex<Vec<Guarded>>,
}

/// Longest operation whose route decides about `p` and `g`: no type is longer.
const SCALAR_MAX: usize = 32;

/// Opens the fast path, unless arguments are to be checked. To be called again when routes change.
/// Errors: the system's, for lack of memory; the fast path is closed then.
///
/// # Safety
/// No other thread is in a routine, and `world` lives until [`close`].
pub unsafe fn open(world: &World) -> nix::Result<()> {
    // SAFETY: by the caller's word.
    unsafe { close() };
    if world.config().debug.0 {
        return Ok(());
    }
    // While everything is counted these tables stay empty, and others are filled in their place.
    let counted = profile::on().is_some();
    let to = if counted { &COUNTED } else { &TABLES };
    let segment = |kind: SegmentKind| match kind {
        SegmentKind::Heap => Some((world.heap().base(), world.heap().len())),
        SegmentKind::Static => world.static_data().map(|data| (data.base(), data.len())),
    };
    let address = |pe: usize, kind: SegmentKind| {
        segment(kind).map_or(0, |(base, _)| world.ptr(base, pe) as usize)
    };
    let mapped = |pe: usize, kind: SegmentKind| address(pe, kind) != 0;
    let routes = world.routes();
    let stored = |pe: usize, kind: SegmentKind| {
        mapped(pe, kind) && routes.to(pe).all(|routes| stores(routes, kind))
    };
    let row = |kind: SegmentKind, wanted: &dyn Fn(usize, SegmentKind) -> bool| {
        let address = |pe| if wanted(pe, kind) { address(pe, kind) } else { 0 };
        Guarded::new(&(0..world.n_pes()).map(address).collect::<Vec<_>>())
    };
    let rows = |kind| Ok([row(kind, &stored)?, row(kind, &mapped)?]);
    let peers: [[Guarded; 2]; 2] = [rows(SegmentKind::Heap)?, rows(SegmentKind::Static)?];
    for (kind, [stores, atomics]) in SegmentKind::ALL.into_iter().zip(&peers) {
        let Some((base, len)) = segment(kind) else { continue };
        // SAFETY: nobody reads the tables yet; the world keeps the mappings, and `peers` the rows.
        unsafe {
            to.stores.fill(base, len, stores.as_ptr());
            if atomics_by_processor(&routes.peers, mapped) {
                to.atomics.fill(base, len, atomics.as_ptr());
            }
        }
    }
    to.rows().extend(peers.into_iter().flatten());
    let cached_max = routes.cached_max(stored);
    to.cached_max.store(cached_max, Ordering::Relaxed);
    let at_once_max = cached_max.min(world.later_least().saturating_sub(1));
    to.at_once_max.store(at_once_max, Ordering::Relaxed);
    to.crowded.store(!world.patience().may_be_alone(), Ordering::Relaxed);
    to.checking.store(counted, Ordering::Release);
    Ok(())
}

/// Closes the fast path.
///
/// # Safety
/// No other thread is in a routine.
pub unsafe fn close() {
    for tables in [&TABLES, &COUNTED] {
        tables.checking.store(true, Ordering::Release);
        tables.cached_max.store(0, Ordering::Relaxed);
        tables.at_once_max.store(0, Ordering::Relaxed);
        // SAFETY: by the caller's word.
        unsafe {
            tables.stores.clear();
            tables.atomics.clear();
        }
        tables.rows().clear();
    }
}

/// Whether scalars go to a mapped peer, and come from it, by stores and loads.
fn stores(routes: &PeerRoutes, kind: SegmentKind) -> bool {
    let by_processor = |channel| matches!(channel, Channel::Cached | Channel::Streaming);
    [&routes.put, &routes.get]
        .into_iter()
        .all(|steps| (1..=SCALAR_MAX).all(|len| by_processor(steps[kind as usize].choose(len))))
}

fn atomics_by_processor(
    routes: &[PeerRoutes],
    mapped: impl Fn(usize, SegmentKind) -> bool,
) -> bool {
    SegmentKind::ALL.into_iter().all(|kind| {
        routes.iter().enumerate().all(|(pe, routes)| {
            !mapped(pe, kind)
                || matches!(routes.amo[kind as usize], Channel::Cached | Channel::Streaming)
        })
    })
}

/// Where a signal goes and how it changes its word.
#[derive(Clone, Copy)]
pub struct Signal {
    /// `sig_addr`.
    pub word: *mut u64,
    /// `signal`.
    pub value: u64,
    /// `sig_op`.
    pub op: c_int,
}

impl Signal {
    /// Copies `len` bytes to mapped memory, and then changes the signal, which is mapped at `word`.
    ///
    /// # Safety
    /// The buffers are valid for `len` bytes, and `word` is valid.
    #[inline(always)]
    pub unsafe fn follow(self, to: *mut u8, from: *const u8, len: usize, word: *mut AtomicU64) {
        // SAFETY: by the caller's word.
        unsafe {
            copy::cached(to, from, len);
            fence(Ordering::Release);
            if self.op == crate::abi::SHMEM_SIGNAL_ADD {
                (*word).fetch_add(self.value, Ordering::SeqCst);
            } else {
                (*word).store(self.value, Ordering::Release);
            }
        }
    }
}

#[expect(clippy::too_many_arguments, reason = "the arguments of the C routines")]
impl Tables {
    /// The rows that both tables point to.
    fn rows(&self) -> MutexGuard<'_, Vec<Guarded>> {
        self.peers.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Whether a routine that touches only local memory has to be checked first.
    #[inline(always)]
    pub fn checking(&self) -> bool {
        self.checking.load(Ordering::Relaxed)
    }

    /// Where `address` of PE `pe` in `ctx` is mapped; null where it is not.
    ///
    /// # Safety
    /// As [`Ctx::world_pe`], unless the fast path is closed.
    #[inline(always)]
    pub unsafe fn remote<T>(&self, ctx: Ctx, address: *const T, pe: c_int) -> *mut T {
        // SAFETY: by the caller's word.
        unsafe { self.stores.remote_by(address, || ctx.world_pe(pe)) }
    }

    /// As [`Tables::remote`], for atomics.
    ///
    /// # Safety
    /// As [`Tables::remote`].
    #[inline(always)]
    pub unsafe fn remote_atomic<T>(&self, ctx: Ctx, address: *const T, pe: c_int) -> *mut T {
        // SAFETY: by the caller's word.
        unsafe { self.atomics.remote_by(address, || ctx.world_pe(pe)) }
    }

    /// Whether a copy of `len` bytes is done here: short ones are wherever memory is mapped.
    #[inline(always)]
    pub fn is_cached(&self, len: usize) -> bool {
        len <= SCALAR_MAX || len <= self.cached_max.load(Ordering::Relaxed)
    }

    /// The same in a mode.
    #[inline(always)]
    pub fn is_copied(&self, len: usize, mode: Mode) -> bool {
        match mode {
            Mode::Blocking => self.is_cached(len),
            Mode::NonBlocking => {
                len <= SCALAR_MAX || len <= self.at_once_max.load(Ordering::Relaxed)
            }
        }
    }

    /// `shmem_TYPE_p`.
    ///
    /// # Safety
    /// As the standard asks of callers; so for all operations below.
    #[inline(always)]
    pub unsafe fn p<T: Copy>(
        &self,
        routine: &'static str,
        ctx: Ctx,
        dest: *mut T,
        value: T,
        pe: c_int,
    ) {
        // SAFETY: mapped memory, aligned as its type asks.
        unsafe {
            let at = self.remote(ctx, dest, pe);
            if at.is_null() {
                return slow::p(dest, value, pe, ctx, routine);
            }
            at.write_volatile(value);
        }
    }

    /// `shmem_TYPE_g`.
    ///
    /// # Safety
    /// As [`Tables::p`].
    #[inline(always)]
    pub unsafe fn g<T: Copy>(
        &self,
        routine: &'static str,
        ctx: Ctx,
        source: *const T,
        pe: c_int,
    ) -> T {
        // SAFETY: mapped memory, aligned as its type asks.
        unsafe {
            let at = self.remote(ctx, source, pe);
            if at.is_null() {
                return slow::g(source, pe, ctx, routine);
            }
            let value = at.read_volatile();
            copy::then_read();
            value
        }
    }

    /// `shmem_put` of `len` bytes.
    ///
    /// # Safety
    /// As [`Tables::p`].
    #[inline(always)]
    pub unsafe fn put(
        &self,
        routine: &'static str,
        ctx: Ctx,
        dest: *mut u8,
        source: *const u8,
        len: usize,
        pe: c_int,
        mode: Mode,
    ) {
        // SAFETY: by the caller's word.
        unsafe {
            let copy = |to, from, len| copy::cached(to, from, len);
            self.put_by(copy, routine, ctx, dest, source, len, pe, mode);
        }
    }

    /// As [`Tables::put`] of a few bytes, whose number the compiler knows.
    ///
    /// # Safety
    /// As [`Tables::p`].
    #[inline(always)]
    pub unsafe fn put_known(
        &self,
        routine: &'static str,
        ctx: Ctx,
        dest: *mut u8,
        source: *const u8,
        len: usize,
        pe: c_int,
        mode: Mode,
    ) {
        // SAFETY: by the caller's word.
        unsafe {
            let copy = |to, from, len| copy::known(to, from, len);
            self.put_by(copy, routine, ctx, dest, source, len, pe, mode);
        }
    }

    /// A put whose bytes `copy` moves.
    ///
    /// # Safety
    /// As [`Tables::p`].
    #[inline(always)]
    unsafe fn put_by(
        &self,
        copy: impl Fn(*mut u8, *const u8, usize),
        routine: &'static str,
        ctx: Ctx,
        dest: *mut u8,
        source: *const u8,
        len: usize,
        pe: c_int,
        mode: Mode,
    ) {
        // SAFETY: mapped memory; the caller vouches for the source.
        unsafe {
            let at = self.remote(ctx, dest, pe);
            if at.is_null() || !self.is_copied(len, mode) {
                return slow::put(dest, source, len, pe, ctx, routine, mode);
            }
            copy(at, source, len);
        }
    }

    /// `shmem_get` of `len` bytes.
    ///
    /// # Safety
    /// As [`Tables::p`].
    #[inline(always)]
    pub unsafe fn get(
        &self,
        routine: &'static str,
        ctx: Ctx,
        dest: *mut u8,
        source: *const u8,
        len: usize,
        pe: c_int,
        mode: Mode,
    ) {
        // SAFETY: mapped memory; the caller vouches for the destination.
        unsafe {
            let at = self.remote(ctx, source, pe);
            if at.is_null() || !self.is_copied(len, mode) {
                return slow::get(dest, source, len, pe, ctx, routine, mode);
            }
            copy::cached(dest, at, len);
            if mode == Mode::Blocking {
                copy::then_read();
            }
        }
    }

    /// An AMO whose old value is returned.
    ///
    /// # Safety
    /// As [`Tables::p`].
    #[inline(always)]
    pub unsafe fn amo_fetch<T: Word>(
        &self,
        routine: &'static str,
        ctx: Ctx,
        op: AmoOp,
        variable: *mut T,
        [operand, compare]: [T; 2],
        pe: c_int,
    ) -> T {
        // SAFETY: mapped memory on which processor atomics are the chosen means.
        unsafe {
            let at = self.remote_atomic(ctx, variable, pe);
            if at.is_null() {
                return slow::amo_fetch(routine, ctx, op, variable, operand, compare, pe);
            }
            let found = amo::execute(at.cast(), T::amo(op, operand, compare));
            let changed = match op {
                AmoOp::Fetch => false,
                AmoOp::Set => found != operand.bits(),
                AmoOp::CompareSwap => found == compare.bits(),
                _ => true,
            };
            // Who does this again and again waits for another PE, which may need this processor.
            if !changed && self.crowded.load(Ordering::Relaxed) {
                wait::changed_nothing(at as usize, found);
            }
            T::from_bits(found)
        }
    }

    /// An AMO without a result.
    ///
    /// # Safety
    /// As [`Tables::p`].
    #[inline(always)]
    pub unsafe fn amo<T: Word>(
        &self,
        routine: &'static str,
        ctx: Ctx,
        op: AmoOp,
        variable: *mut T,
        operand: T,
        pe: c_int,
    ) {
        // SAFETY: mapped memory on which processor atomics are the chosen means.
        unsafe {
            let at = self.remote_atomic(ctx, variable, pe);
            if at.is_null() {
                let nobody = std::ptr::null_mut();
                return slow::amo(routine, ctx, op, nobody, variable, operand, operand, pe);
            }
            amo::update(at.cast(), T::amo(op, operand, operand));
        }
    }

    /// An AMO whose old value is in `fetch` after the next quiet.
    ///
    /// # Safety
    /// As [`Tables::p`].
    #[inline(always)]
    pub unsafe fn amo_nbi<T: Word>(
        &self,
        routine: &'static str,
        ctx: Ctx,
        op: AmoOp,
        fetch: *mut T,
        variable: *mut T,
        [operand, compare]: [T; 2],
        pe: c_int,
    ) {
        // SAFETY: mapped memory on which processor atomics are the chosen means; the caller vouches for
        // `fetch`.
        unsafe {
            let at = self.remote_atomic(ctx, variable, pe);
            if at.is_null() {
                return slow::amo(routine, ctx, op, fetch, variable, operand, compare, pe);
            }
            fetch.write(T::from_bits(amo::execute(at.cast(), T::amo(op, operand, compare))));
        }
    }

    /// `shmem_put_signal` of `len` bytes.
    ///
    /// # Safety
    /// As [`Tables::p`].
    #[inline(always)]
    pub unsafe fn put_signal(
        &self,
        routine: &'static str,
        ctx: Ctx,
        dest: *mut u8,
        source: *const u8,
        len: usize,
        signal: Signal,
        pe: c_int,
        mode: Mode,
    ) {
        // SAFETY: mapped memory; the caller vouches for the source.
        unsafe {
            let at = self.remote(ctx, dest, pe);
            let word = self.remote_atomic(ctx, signal.word, pe).cast::<AtomicU64>();
            if at.is_null() || word.is_null() || !self.is_cached(len) {
                return slow::put_signal(routine, ctx, dest, source, len, signal, pe, mode);
            }
            signal.follow(at, source, len, word);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tombolo_core::route::Steps;

    fn routes(put: Steps, get: Steps, amo: Channel) -> PeerRoutes {
        PeerRoutes { put: [put; 2], get: [get; 2], amo: [amo; 2], zero_copy: [usize::MAX; 2] }
    }

    #[test]
    fn scalars_are_stored_where_no_route_leads_elsewhere() {
        let [cached, other] = [Channel::Cached, Channel::Endpoint(0)].map(Steps::always);
        let large = Steps::split(Channel::Cached, 1000, Channel::Endpoint(0));
        let bypassing = Steps::split(Channel::Streaming, 1000, Channel::Endpoint(0));
        let short = Steps::split(Channel::Cached, 4, Channel::Endpoint(0));
        for (put, get, expected) in [
            (cached, cached, true),
            (large, bypassing, true),
            (other, cached, false),
            (cached, other, false),
            (cached, short, false),
        ] {
            let routes = routes(put, get, Channel::Cached);
            assert!(SegmentKind::ALL.iter().all(|kind| stores(&routes, *kind) == expected));
        }
    }

    #[test]
    fn processor_atomics_are_for_all_mapped_peers_or_none() {
        let all = Steps::always(Channel::Cached);
        let table = [routes(all, all, Channel::Cached), routes(all, all, Channel::Endpoint(1))];
        assert!(!atomics_by_processor(&table, |_, _| true));
        assert!(atomics_by_processor(&table, |pe, _| pe == 0));
    }
}
