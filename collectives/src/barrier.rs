//! Barriers by dissemination (Hensgen, Finkel, Manber: "Two algorithms for barrier synchronization",
//! 1988): in round r each member tells the one 2^r further that it, and all it has heard of, have
//! arrived. With 2^k members everybody has heard of everybody after k one-way trips.

use crate::active::ActiveSet;
use crate::schedule::{rounds, tells};
use std::sync::atomic::{AtomicU64, Ordering};
use tombolo_core::control;
use tombolo_core::ops::Mode;
use tombolo_core::transport::{Amo, AmoOp};
use tombolo_core::{Team, Waiting, World};

/// Over the flags of a team.
///
/// A flag holds the number of the last barrier in which its writer, always the same member, got to
/// that round. Numbers only grow, so nothing is reset and a writer that is one barrier ahead does
/// no harm: its reader waits for "at least".
pub fn of_team(world: &World, team: &Team, routine: &'static str) {
    let n = team.n_pes();
    let epoch = team.next_epoch();
    let waiting = Waiting { routine, argument: team.slot as u64 };
    for round in 0..rounds(n) {
        let flag: *mut AtomicU64 = {
            let offset = control::flag(team.slot, round);
            // SAFETY: a flag of the control area, with which the heap begins.
            unsafe { world.heap().base().add(offset).cast() }
        };
        tell(world, flag, epoch, team.world_pe(tells(team.me, round, n)), routine);
        // SAFETY: this PE's own flag, only ever accessed as a whole.
        let flag = unsafe { &*flag };
        world.wait(waiting, || flag.load(Ordering::Acquire) >= epoch);
    }
}

#[inline]
fn tell(world: &World, flag: *mut AtomicU64, epoch: u64, pe: usize, routine: &'static str) {
    let theirs = world.ptr(flag, pe);
    if theirs.is_null() {
        let (context, source) = (world.internal_context(), (&raw const epoch).cast());
        // SAFETY: a local word, reusable when a blocking put returns.
        unsafe { world.put(context, flag.cast(), source, 8, pe, Mode::Blocking, routine) };
    } else {
        // SAFETY: the peer's mapped flag. Release: with the flag it sees all this PE stored.
        unsafe { (*theirs).store(epoch, Ordering::Release) };
    }
}

/// Over the `pSync` array of an active set, which must be all zero again afterwards: flags are
/// counters, raised by the writer and lowered by the reader. A writer that is in the next barrier
/// already has raised one to two; it cannot be further ahead.
pub fn of_active_set(world: &World, set: ActiveSet, routine: &'static str) {
    let n = set.n_pes();
    let add = |operand: u64| Amo { op: AmoOp::Add, size: 8, operand, compare: 0 };
    for round in 0..rounds(n) {
        let counter = set.counter(round);
        let place = counter.as_ptr().cast();
        let pe = set.world_pe(tells(set.me(), round, n));
        // SAFETY: no result is asked for.
        unsafe { world.amo_nbi(world.internal_context(), None, place, add(1), pe, routine) };
        let waiting = Waiting { routine, argument: place as u64 };
        world.wait(waiting, || counter.load(Ordering::Acquire) > 0);
        // As an AMO, because the writer may raise the counter again meanwhile.
        world.amo_fetch(world.internal_context(), place, add(u64::MAX), world.pe(), routine);
    }
}
