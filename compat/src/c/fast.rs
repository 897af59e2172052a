//! The paths that decide about speed: an address and a PE become a mapped address, and the
//! operation is done there with the processor's own instructions. Nothing here calls, locks or
//! looks at the library's state; whatever these paths cannot do is left to [`super::slow`].
//!
//! The tables are empty before initialisation, after finalisation and while arguments are checked,
//! so in all these cases every operation takes the slow path.

use super::handle::Ctx;
use super::slow;
use super::types::Word;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use tombolo_core::ops::Mode;
use tombolo_core::route::{Channel, PeerRoutes};
use tombolo_core::table::Table;
use tombolo_core::transport::{AmoOp, SegmentKind};
use tombolo_core::{World, amo, copy};

/// Mapped peers, for loads, stores and copies.
static TABLE: Table = Table::empty();
/// Mapped peers, for atomics: empty where some other means of atomicity was chosen.
static ATOMICS: Table = Table::empty();
/// Longest copy for which loads and stores through the caches are the route.
static CACHED_MAX: AtomicUsize = AtomicUsize::new(0);
/// Whether routines that touch only local memory have to be checked first.
static CHECKING: AtomicBool = AtomicBool::new(true);

/// Opens the fast path, unless arguments are to be checked. To be called again when routes change.
///
/// # Safety
/// No other thread is in a routine, and `world` lives until [`close`].
pub unsafe fn open(world: &World) {
    if world.config().debug.0 {
        return;
    }
    let mapped = |pe: usize, kind: SegmentKind| {
        let base = match kind {
            SegmentKind::Heap => world.heap().base(),
            SegmentKind::Static => world.static_data().map_or(std::ptr::null_mut(), |d| d.base()),
        };
        !base.is_null() && !world.ptr(base, pe).is_null()
    };
    let routes = &world.routes().peers;
    // SAFETY: nobody reads the tables yet, and the world keeps what they point to.
    unsafe {
        TABLE.copy_from(world.table());
        if atomics_by_processor(routes, mapped) {
            ATOMICS.copy_from(world.table());
        }
    }
    CACHED_MAX.store(cached_max(routes, mapped), Ordering::Relaxed);
    CHECKING.store(false, Ordering::Release);
}

/// Closes the fast path.
///
/// # Safety
/// No other thread is in a routine.
pub unsafe fn close() {
    CHECKING.store(true, Ordering::Release);
    CACHED_MAX.store(0, Ordering::Relaxed);
    // SAFETY: by the caller's word.
    unsafe {
        TABLE.clear();
        ATOMICS.clear();
    }
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

fn cached_max(routes: &[PeerRoutes], mapped: impl Fn(usize, SegmentKind) -> bool) -> usize {
    let mut max = usize::MAX;
    for (pe, routes) in routes.iter().enumerate() {
        for kind in SegmentKind::ALL.into_iter().filter(|kind| mapped(pe, *kind)) {
            max = max.min(routes.cached_max(kind));
        }
    }
    max
}

/// Whether a routine that touches only local memory has to be checked first.
#[inline(always)]
pub fn checking() -> bool {
    CHECKING.load(Ordering::Relaxed)
}

/// Where `address` of PE `pe` in `ctx` is mapped; null where it is not.
///
/// # Safety
/// As [`Ctx::world_pe`], unless the fast path is closed.
#[inline(always)]
pub unsafe fn remote<T>(ctx: Ctx, address: *const T, pe: c_int) -> *mut T {
    // SAFETY: by the caller's word.
    unsafe { TABLE.remote_by(address, || ctx.world_pe(pe)) }
}

/// As [`remote`], for atomics.
///
/// # Safety
/// As [`remote`].
#[inline(always)]
pub unsafe fn remote_atomic<T>(ctx: Ctx, address: *const T, pe: c_int) -> *mut T {
    // SAFETY: by the caller's word.
    unsafe { ATOMICS.remote_by(address, || ctx.world_pe(pe)) }
}

/// Longest copy that is done here.
#[inline(always)]
pub fn cached_limit() -> usize {
    CACHED_MAX.load(Ordering::Relaxed)
}

/// `shmem_TYPE_p`.
///
/// # Safety
/// As the standard asks of callers; so for all operations below.
#[inline(always)]
pub unsafe fn p<T: Copy>(routine: &'static str, ctx: Ctx, dest: *mut T, value: T, pe: c_int) {
    // SAFETY: mapped memory, aligned as its type asks.
    unsafe {
        let at = remote(ctx, dest, pe);
        if at.is_null() {
            return slow::p(dest, value, pe, ctx, routine);
        }
        at.write_volatile(value);
    }
}

/// `shmem_TYPE_g`.
///
/// # Safety
/// As [`p`].
#[inline(always)]
pub unsafe fn g<T: Copy>(routine: &'static str, ctx: Ctx, source: *const T, pe: c_int) -> T {
    // SAFETY: mapped memory, aligned as its type asks.
    unsafe {
        let at = remote(ctx, source, pe);
        if at.is_null() {
            return slow::g(source, pe, ctx, routine);
        }
        at.read_volatile()
    }
}

/// `shmem_put` of `len` bytes.
///
/// # Safety
/// As [`p`].
#[inline(always)]
pub unsafe fn put(
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
        let at = remote(ctx, dest, pe);
        if at.is_null() || (len != 8 && len > cached_limit()) {
            return slow::put(dest, source, len, pe, ctx, routine, mode);
        }
        copy::cached(at, source, len);
    }
}

/// `shmem_get` of `len` bytes.
///
/// # Safety
/// As [`p`].
#[inline(always)]
pub unsafe fn get(
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
        let at = remote(ctx, source, pe);
        if at.is_null() || (len != 8 && len > cached_limit()) {
            return slow::get(dest, source, len, pe, ctx, routine, mode);
        }
        copy::cached(dest, at, len);
    }
}

/// An AMO whose old value is returned.
///
/// # Safety
/// As [`p`].
#[inline(always)]
pub unsafe fn amo_fetch<T: Word>(
    routine: &'static str,
    ctx: Ctx,
    op: AmoOp,
    variable: *mut T,
    [operand, compare]: [T; 2],
    pe: c_int,
) -> T {
    // SAFETY: mapped memory on which processor atomics are the chosen means.
    unsafe {
        let at = remote_atomic(ctx, variable, pe);
        if at.is_null() {
            return slow::amo_fetch(routine, ctx, op, variable, operand, compare, pe);
        }
        T::from_bits(amo::execute(at.cast(), T::amo(op, operand, compare)))
    }
}

/// An AMO without a result.
///
/// # Safety
/// As [`p`].
#[inline(always)]
pub unsafe fn amo<T: Word>(
    routine: &'static str,
    ctx: Ctx,
    op: AmoOp,
    variable: *mut T,
    operand: T,
    pe: c_int,
) {
    // SAFETY: mapped memory on which processor atomics are the chosen means.
    unsafe {
        let at = remote_atomic(ctx, variable, pe);
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
/// As [`p`].
#[inline(always)]
pub unsafe fn amo_nbi<T: Word>(
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
        let at = remote_atomic(ctx, variable, pe);
        if at.is_null() {
            return slow::amo(routine, ctx, op, fetch, variable, operand, compare, pe);
        }
        fetch.write(T::from_bits(amo::execute(at.cast(), T::amo(op, operand, compare))));
    }
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

/// `shmem_put_signal` of `len` bytes.
///
/// # Safety
/// As [`p`].
#[inline(always)]
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
    // SAFETY: mapped memory; the caller vouches for the source.
    unsafe {
        let at = remote(ctx, dest, pe);
        let word = remote_atomic(ctx, signal.word, pe).cast::<AtomicU64>();
        if at.is_null() || word.is_null() || len > cached_limit() {
            return slow::put_signal(routine, ctx, dest, source, len, signal, pe, mode);
        }
        copy::cached(at, source, len);
        fence(Ordering::Release);
        if signal.op == crate::abi::SHMEM_SIGNAL_ADD {
            (*word).fetch_add(signal.value, Ordering::SeqCst);
        } else {
            (*word).store(signal.value, Ordering::Release);
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
    fn the_shortest_cached_range_of_all_mapped_peers_is_the_limit() {
        let all = Steps::always(Channel::Cached);
        let some = Steps::split(Channel::Cached, 100, Channel::Streaming);
        let none = Steps::always(Channel::Endpoint(0));
        let table = [routes(all, some, Channel::Cached), routes(none, none, Channel::Service)];
        assert_eq!(cached_max(&table[..1], |_, _| true), 100);
        assert_eq!(cached_max(&table, |_, _| true), 0);
        assert_eq!(cached_max(&table, |pe, _| pe == 0), 100);
        assert_eq!(cached_max(&table, |_, _| false), usize::MAX);
    }

    #[test]
    fn processor_atomics_are_for_all_mapped_peers_or_none() {
        let all = Steps::always(Channel::Cached);
        let table = [routes(all, all, Channel::Cached), routes(all, all, Channel::Endpoint(1))];
        assert!(!atomics_by_processor(&table, |_, _| true));
        assert!(atomics_by_processor(&table, |pe, _| pe == 0));
    }
}
