//! Barriers by dissemination (Hensgen, Finkel, Manber: "Two algorithms for barrier synchronization",
//! 1988): in round r each member tells the one 2^r further that it, and all it has heard of, have
//! arrived. With 2^k members everybody has heard of everybody after k one-way latencies.

use crate::active::ActiveSet;
use crate::schedule::{rounds, tells};
use std::sync::atomic::{AtomicU64, Ordering, fence};
use tombolo_core::control;
use tombolo_core::ops::Mode;
use tombolo_core::transport::{Amo, AmoOp};
use tombolo_core::{Context, Team, Waiting, World};

/// Over the flags of a team.
///
/// A flag holds the number of the last barrier in which its writer, always the same member, got to
/// that round. Numbers only grow, so nothing is reset and a writer that is one barrier ahead does
/// no harm: its reader waits for "at least".
///
/// What if two numbers arrive in the wrong order, or an old one again, as puts may until they are
/// complete? Barriers with even and with odd numbers have flags of their own. In barrier n + 1 a
/// writer may find its reader still waiting in barrier n, but that looks at the other flag. Before a
/// number is put, everything put to flags of its kind is complete: no smaller number can arrive after
/// it. (That wait is for barrier n - 2, which is long over.)
pub fn of_team(world: &World, team: &Team, routine: &'static str) {
    let n = team.n_pes();
    let epoch = team.next_epoch();
    let context = &world.sync_contexts()[(epoch & 1) as usize];
    let waiting = Waiting { routine, argument: team.slot as u64 };
    for round in 0..rounds(n) {
        let flag: *mut AtomicU64 = {
            let offset = control::flag(team.slot, round, epoch);
            // SAFETY: a flag of the control area, with which the heap begins.
            unsafe { world.heap().base().add(offset).cast() }
        };
        tell(world, context, flag, epoch, team.world_pe(tells(team.me, round, n)), routine);
        // SAFETY: this PE's own flag, only ever accessed as a whole.
        let flag = unsafe { &*flag };
        world.wait(waiting, || flag.load(Ordering::Acquire) >= epoch);
    }
}

#[inline]
fn tell(
    world: &World,
    context: &Context,
    flag: *mut AtomicU64,
    epoch: u64,
    pe: usize,
    routine: &'static str,
) {
    let theirs = world.ptr(flag, pe);
    if theirs.is_null() {
        if !context.is_quiet() {
            world.quiet(context, routine);
        }
        // With the flag the peer sees all that this PE stored.
        fence(Ordering::Release);
        let source = (&raw const epoch).cast();
        // SAFETY: a local word, reusable when a blocking put returns.
        unsafe { world.put(context, flag.cast(), source, 8, pe, Mode::Blocking, routine) };
    } else {
        // SAFETY: the peer's mapped flag. Release: with the flag it sees all this PE stored.
        unsafe { (*theirs).store(epoch, Ordering::Release) };
    }
}

/// Over the `pSync` array of an active set, which must be all zero again afterwards.
pub fn of_active_set(world: &World, set: ActiveSet, routine: &'static str) {
    let tells = |round| set.world_pe(tells(set.me(), round, set.n_pes()));
    by_counters(world, set.n_pes(), |round| set.counter(round), tells, routine);
}

/// The last barrier of a team, after which its flags may serve another one with other members: all
/// members know that no number put to a flag is under way any more.
pub fn last_of_team(world: &World, team: &Team, routine: &'static str) {
    for context in world.sync_contexts() {
        world.quiet(context, routine);
    }
    let n = team.n_pes();
    let counter = |round| {
        let offset = control::counter(team.slot, round);
        // SAFETY: an aligned word of the control area, with which the heap begins.
        unsafe { &*world.heap().base().add(offset).cast::<AtomicU64>() }
    };
    let tells = |round| team.world_pe(tells(team.me, round, n));
    by_counters(world, n, counter, tells, routine);
}

/// Over counters, all zero before and afterwards: the writer raises them and the reader lowers them.
/// A writer that is in the next barrier already has raised one to two; it cannot be further ahead.
/// Counts do not depend on the order in which they arrive, and each is executed once.
fn by_counters<'a>(
    world: &World,
    n: usize,
    counter: impl Fn(usize) -> &'a AtomicU64,
    tells: impl Fn(usize) -> usize,
    routine: &'static str,
) {
    let add = |operand: u64| Amo { op: AmoOp::Add, size: 8, operand, compare: 0 };
    for round in 0..rounds(n) {
        let counter = counter(round);
        let place = counter.as_ptr().cast();
        // SAFETY: no result is asked for.
        unsafe {
            let context = world.internal_context();
            world.amo_nbi(context, None, place, add(1), tells(round), routine);
        }
        let waiting = Waiting { routine, argument: place as u64 };
        world.wait(waiting, || counter.load(Ordering::Acquire) > 0);
        // As an AMO, because the writer may raise the counter again meanwhile.
        world.amo_fetch(world.internal_context(), place, add(u64::MAX), world.pe(), routine);
    }
}
