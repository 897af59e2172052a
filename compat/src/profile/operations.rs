// SPDX-License-Identifier: Apache-2.0
//! Operations on remote memory, counted. Each does what its like in [`crate::c::fast`] does where the
//! memory is mapped, and what its like in `slow` does elsewhere.

use super::{Call, Kind, SHORT, State};
use crate::c::fast::{COUNTED, Signal};
use crate::c::handle::Ctx;
use crate::c::types::Word;
use std::ffi::c_int;
use tombolo_core::config::Reuse;
use tombolo_core::route::Channel;
use tombolo_core::table::Table;
use tombolo_core::transport::AmoOp;
use tombolo_core::{amo as atomic, copy};

impl State {
    /// Where `address` of a PE is mapped by `table`, and what an operation on `len` bytes there counts
    /// as; none if another path has to do it.
    ///
    /// # Safety
    /// As [`Ctx::world_pe`].
    #[inline(always)]
    unsafe fn mapped<T>(
        &self,
        table: &Table,
        routine: &'static str,
        (ctx, pe): (Ctx, c_int),
        address: *const T,
        len: usize,
    ) -> Option<(*mut T, Call)> {
        let last = self.distance.len() - 1;
        let mut member = 0;
        // SAFETY: by the caller's word; the table has an entry for the last PE.
        let at = unsafe {
            table.remote_by(address, || {
                member = ctx.world_pe(pe);
                member.min(last)
            })
        };
        if at.is_null() || member > last {
            return None;
        }
        let (way, long) = (self.way(Channel::Cached, member), len > SHORT);
        let peer = Some(member);
        Some((at, Call { routine, way, len, peer, long, waits: false, polls: false }))
    }
}

/// `shmem_TYPE_p`; false if it has to be done by another path. So for all that follow, but for their
/// results.
///
/// # Safety
/// As the standard asks of callers; so for all that follow.
pub unsafe fn p<T: Copy>(
    state: &State,
    routine: &'static str,
    ctx: Ctx,
    dest: *mut T,
    value: T,
    pe: c_int,
) -> bool {
    // SAFETY: mapped memory, aligned as its type asks.
    unsafe {
        let mapped = state.mapped(&COUNTED.stores, routine, (ctx, pe), dest, size_of::<T>());
        let Some((at, call)) = mapped else { return false };
        state.count(call, Some(Kind::Put), || at.write_volatile(value));
        true
    }
}

/// `shmem_TYPE_g`.
///
/// # Safety
/// See [`p`].
pub unsafe fn g<T: Copy>(
    state: &State,
    routine: &'static str,
    ctx: Ctx,
    source: *const T,
    pe: c_int,
) -> Option<T> {
    // SAFETY: mapped memory, aligned as its type asks.
    unsafe {
        let (at, call) =
            state.mapped(&COUNTED.stores, routine, (ctx, pe), source, size_of::<T>())?;
        Some(state.count(call, Some(Kind::Get), || {
            let value = at.read_volatile();
            copy::then_read();
            value
        }))
    }
}

/// A copy of `len` bytes to or from a PE, as `kind` says: `remote` is the address there, `local` the one
/// here. False as for [`p`].
///
/// # Safety
/// See [`p`].
#[inline(always)]
unsafe fn transfer(
    state: &State,
    routine: &'static str,
    ctx: Ctx,
    kind: Kind,
    (remote, local, len): (*const u8, *mut u8, usize),
    pe: c_int,
) -> bool {
    // SAFETY: mapped memory; the caller vouches for the local buffer.
    unsafe {
        if !COUNTED.is_cached(len) {
            return false;
        }
        let mapped = state.mapped(&COUNTED.stores, routine, (ctx, pe), remote, len);
        let Some((at, call)) = mapped else { return false };
        state.count(call, Some(kind), || match kind {
            Kind::Get => {
                copy::cached(local, at, len);
                copy::then_read();
            }
            _ => copy::cached(at, local, len),
        });
        true
    }
}

/// `shmem_put`.
///
/// # Safety
/// See [`p`].
pub unsafe fn put(
    state: &State,
    routine: &'static str,
    ctx: Ctx,
    dest: *mut u8,
    source: *const u8,
    len: usize,
    pe: c_int,
) -> bool {
    // SAFETY: by the caller's word.
    unsafe { transfer(state, routine, ctx, Kind::Put, (dest, source.cast_mut(), len), pe) }
}

/// `shmem_get`.
///
/// # Safety
/// See [`p`].
pub unsafe fn get(
    state: &State,
    routine: &'static str,
    ctx: Ctx,
    dest: *mut u8,
    source: *const u8,
    len: usize,
    pe: c_int,
) -> bool {
    // SAFETY: by the caller's word.
    unsafe { transfer(state, routine, ctx, Kind::Get, (source, dest, len), pe) }
}

/// An AMO whose old value is returned.
///
/// # Safety
/// See [`p`].
pub unsafe fn amo_fetch<T: Word>(
    state: &State,
    routine: &'static str,
    ctx: Ctx,
    op: AmoOp,
    variable: *mut T,
    [operand, compare]: [T; 2],
    pe: c_int,
) -> Option<T> {
    // SAFETY: mapped memory on which processor atomics are the chosen means.
    unsafe {
        let (at, call) =
            state.mapped(&COUNTED.atomics, routine, (ctx, pe), variable, size_of::<T>())?;
        let work = || T::from_bits(atomic::execute(at.cast(), T::amo(op, operand, compare)));
        Some(state.count(call, Some(Kind::Amo), work))
    }
}

/// An AMO without a result.
///
/// # Safety
/// See [`p`].
pub unsafe fn amo<T: Word>(
    state: &State,
    routine: &'static str,
    ctx: Ctx,
    op: AmoOp,
    variable: *mut T,
    operand: T,
    pe: c_int,
) -> bool {
    // SAFETY: as above.
    unsafe {
        let mapped = state.mapped(&COUNTED.atomics, routine, (ctx, pe), variable, size_of::<T>());
        let Some((at, call)) = mapped else { return false };
        let work = || atomic::update(at.cast(), T::amo(op, operand, operand));
        state.count(call, Some(Kind::Amo), work);
        true
    }
}

/// An AMO whose old value is in `fetch` after the next quiet.
///
/// # Safety
/// See [`p`].
#[expect(clippy::too_many_arguments, reason = "the arguments of shmem_atomic_compare_swap_nbi")]
pub unsafe fn amo_nbi<T: Word>(
    state: &State,
    routine: &'static str,
    ctx: Ctx,
    op: AmoOp,
    fetch: *mut T,
    variable: *mut T,
    operands: [T; 2],
    pe: c_int,
) -> bool {
    // SAFETY: the caller vouches for `fetch`.
    unsafe {
        let old = amo_fetch(state, routine, ctx, op, variable, operands, pe);
        old.map(|old| fetch.write(old)).is_some()
    }
}

/// `shmem_put_signal`.
///
/// # Safety
/// See [`p`].
#[expect(clippy::too_many_arguments, reason = "the arguments of shmem_putmem_signal")]
pub unsafe fn put_signal(
    state: &State,
    routine: &'static str,
    ctx: Ctx,
    dest: *mut u8,
    source: *const u8,
    len: usize,
    signal: Signal,
    pe: c_int,
) -> bool {
    // SAFETY: mapped memory; the caller vouches for the source.
    unsafe {
        if !COUNTED.is_cached(len) {
            return false;
        }
        let whom = (ctx, pe);
        let word = state.mapped(&COUNTED.atomics, routine, whom, signal.word, size_of::<u64>());
        let Some((word, _)) = word else { return false };
        let mapped = state.mapped(&COUNTED.stores, routine, whom, dest, len);
        let Some((at, call)) = mapped else { return false };
        state.count(call, Some(Kind::Put), || signal.follow(at, source, len, word.cast()));
        true
    }
}

/// Counts an operation on PE `pe` of the world, on a context with this hint, that the checked path carries
/// out.
pub fn other<R>(
    state: &State,
    routine: &'static str,
    kind: Kind,
    hint: Option<Reuse>,
    (address, len): (*const u8, usize),
    pe: usize,
    work: impl FnOnce() -> R,
) -> R {
    let channel = state.channel(hint, (address, len), pe, kind);
    let way = state.way(channel, pe);
    // What goes through a transport may be short as well: a put that returns early.
    let long = len > SHORT || matches!(channel, Channel::Cached | Channel::Streaming);
    let call = Call { routine, way, len, peer: Some(pe), long, waits: true, polls: false };
    state.count(call, Some(kind), work)
}
