// SPDX-License-Identifier: Apache-2.0
//! Collectives on teams. Before each, with `SHMEM_DEBUG`, members compare their arguments.

use crate::algorithms::{ALLTOALL, ALLTOALLS, BROADCAST, COLLECT, FCOLLECT, REDUCE, SCAN};
use crate::barrier;
use crate::broadcast::{Broadcast, root_signals};
use crate::check::{Arguments, check};
use crate::exchange::{self, Alltoall};
use crate::gather::{self, Collect, Gather, collect_by_signals};
use crate::group::Group;
use crate::notes::costs;
use crate::reduce::{Reduce, Scan};
use crate::reduce_push;
use crate::reducer::Reducer;
use crate::strided::{Alltoalls, Strided};
use crate::table::{self, Call};
use std::sync::atomic::Ordering;
use tombolo_core::world::is_ending_here;
use tombolo_core::{Team, World};

/// Returns when all members have called it (`shmem_team_sync`). Stores to memory made before are
/// visible to all members; operations by other means need a quiet before.
pub fn sync(world: &World, team: &Team, routine: &'static str) {
    // Known from an earlier call; a look at the notes takes a tenth of the whole call.
    if team.by_flags.load(Ordering::Relaxed) == costs(world) {
        return barrier::of_team(world, team, routine);
    }
    let group = Group::team(world, team, routine);
    check(&group, Arguments::default);
    group.sync();
}

/// [`sync`] of all PEs (`shmem_sync_all`). Returns at once where the program has ended the job and runs
/// what it wants to be run at exit, which may well begin with this.
pub fn sync_all(world: &World, routine: &'static str) {
    if is_ending_here() {
        return;
    }
    sync(world, world.team(), routine);
}

/// Completes this PE's operations on the default context, then [`sync_all`] (`shmem_barrier_all`).
pub fn barrier_all(world: &World, routine: &'static str) {
    world.quiet(world.context(), routine);
    sync_all(world, routine);
}

/// Copies `len` bytes from `source` at member `root` to `dest` at all members (`shmem_broadcast`).
///
/// # Safety
/// `dest` and `source` are symmetric, hold `len` bytes and are used by nobody else during the call.
pub unsafe fn broadcast(
    world: &World,
    team: &Team,
    dest: *mut u8,
    source: *const u8,
    len: usize,
    root: i32,
    routine: &'static str,
) {
    let group = Group::team(world, team, routine);
    check(&group, move || Arguments {
        values: vec![("the length in bytes", len as i64), ("PE_root", root.into())],
        addresses: both(dest, source, len),
    });
    let call = Broadcast::new(&group, dest, source, len, root);
    // SAFETY: the caller's promise.
    unsafe {
        match group.is_short(BROADCAST.number, len) {
            true => root_signals(&group, &call),
            false => table::run(&BROADCAST, &group, &call),
        }
    }
}

/// Concatenates `len` bytes of each member, which may differ, to `dest` at all (`shmem_collect`).
///
/// # Safety
/// Both are symmetric and used by nobody else during the call; `source` holds `len` bytes, `dest`
/// the sum over all members.
pub unsafe fn collect(
    world: &World,
    team: &Team,
    dest: *mut u8,
    source: *const u8,
    len: usize,
    routine: &'static str,
) {
    let group = Group::team(world, team, routine);
    check(&group, move || Arguments { values: vec![], addresses: vec![("dest", dest)] });
    let call = Collect(Gather { dest, source, len });
    // SAFETY: the caller's promise.
    unsafe {
        match group.is_short(COLLECT.number, call.bytes()) {
            true => collect_by_signals(&group, &call),
            false => table::run(&COLLECT, &group, &call),
        }
    }
}

/// Concatenates `len` bytes of each member, the same for all, to `dest` at all (`shmem_fcollect`).
///
/// # Safety
/// As [`collect`].
pub unsafe fn fcollect(
    world: &World,
    team: &Team,
    dest: *mut u8,
    source: *const u8,
    len: usize,
    routine: &'static str,
) {
    let group = Group::team(world, team, routine);
    check(&group, move || Arguments {
        values: vec![("the length in bytes", len as i64)],
        addresses: both(dest, source, len),
    });
    let call = Gather { dest, source, len };
    // SAFETY: the caller's promise.
    unsafe {
        match group.is_short(FCOLLECT.number, len) {
            true => gather::exchanged(&group, &call),
            false => table::run(&FCOLLECT, &group, &call),
        }
    }
}

/// Sends block i of `source`, `len` bytes, to block `me` of `dest` at member i, for all i
/// (`shmem_alltoall`).
///
/// # Safety
/// Both are symmetric, hold a block per member and are used by nobody else during the call.
pub unsafe fn alltoall(
    world: &World,
    team: &Team,
    dest: *mut u8,
    source: *const u8,
    len: usize,
    routine: &'static str,
) {
    let group = Group::team(world, team, routine);
    check(&group, move || Arguments {
        values: vec![("the length of a block in bytes", len as i64)],
        addresses: both(dest, source, len),
    });
    let call = Alltoall { dest, source, len };
    // SAFETY: the caller's promise.
    unsafe {
        match group.is_short(ALLTOALL.number, len) {
            true => exchange::exchanged(&group, &call),
            false => table::run(&ALLTOALL, &group, &call),
        }
    }
}

/// As [`alltoall`], with blocks of strided elements (`shmem_alltoalls`).
///
/// # Safety
/// As [`alltoall`]; a block spans as many elements as `strided` says.
pub unsafe fn alltoalls(
    world: &World,
    team: &Team,
    dest: *mut u8,
    source: *const u8,
    strided: Strided,
    routine: &'static str,
) {
    let group = Group::team(world, team, routine);
    strided.check(&group);
    check(&group, move || Arguments {
        values: vec![
            ("dst", strided.dst as i64),
            ("sst", strided.sst as i64),
            ("nelems", strided.nelems as i64),
            ("the size of an element in bytes", strided.size as i64),
        ],
        addresses: both(dest, source, strided.nelems),
    });
    // SAFETY: the caller's promise.
    unsafe { blocks_to_all(&group, dest, source, strided) };
}

/// An alltoalls, or an alltoall where the elements of a block lie side by side.
///
/// # Safety
/// As [`alltoalls`].
pub(crate) unsafe fn blocks_to_all(
    group: &Group<'_>,
    dest: *mut u8,
    source: *const u8,
    blocks: Strided,
) {
    // SAFETY: the caller's promise.
    unsafe {
        if blocks.is_contiguous() {
            let len = blocks.nelems * blocks.size;
            return table::run(&ALLTOALL, group, &Alltoall { dest, source, len });
        }
        table::run(&ALLTOALLS, group, &Alltoalls { dest, source, blocks });
    }
}

/// Reduces `nelems` elements over all members (`shmem_and_reduce` and its kin). All members get the
/// same bits.
///
/// # Safety
/// `dest` and `source` are the same or disjoint, symmetric, hold `nelems` elements of the reducer's
/// type and are used by nobody else during the call.
pub unsafe fn reduce(
    world: &World,
    team: &Team,
    dest: *mut u8,
    source: *const u8,
    nelems: usize,
    reducer: Reducer,
    routine: &'static str,
) {
    let group = Group::team(world, team, routine);
    check(&group, move || elements(dest, source, nelems, "nreduce"));
    let call = Reduce { dest, source, nelems, reducer };
    // SAFETY: the caller's promise.
    unsafe {
        match group.is_short(REDUCE.kind(&call), call.bytes()) {
            true => reduce_push::exchanged(&group, &call),
            false => table::run(&REDUCE, &group, &call),
        }
    }
}

/// Gives each member the combination of its own elements and those of all members before it
/// (`shmem_sum_inscan`). The reducer is a sum.
///
/// # Safety
/// As [`reduce`].
pub unsafe fn inscan(
    world: &World,
    team: &Team,
    dest: *mut u8,
    source: *const u8,
    nelems: usize,
    reducer: Reducer,
    routine: &'static str,
) {
    let reduce = Reduce { dest, source, nelems, reducer };
    // SAFETY: the caller's promise.
    unsafe { scan(&Group::team(world, team, routine), Scan { reduce, inclusive: true }) };
}

/// Gives each member the sum of the elements of all members before it, the first member zeros
/// (`shmem_sum_exscan`). The reducer is a sum.
///
/// # Safety
/// As [`reduce`].
pub unsafe fn exscan(
    world: &World,
    team: &Team,
    dest: *mut u8,
    source: *const u8,
    nelems: usize,
    reducer: Reducer,
    routine: &'static str,
) {
    let reduce = Reduce { dest, source, nelems, reducer };
    // SAFETY: the caller's promise.
    unsafe { scan(&Group::team(world, team, routine), Scan { reduce, inclusive: false }) };
}

/// # Safety
/// As [`reduce`].
unsafe fn scan(group: &Group<'_>, call: Scan) {
    let Reduce { dest, source, nelems, .. } = call.reduce;
    check(group, move || elements(dest, source, nelems, "nelems"));
    // SAFETY: the caller's promise.
    unsafe { table::run(&SCAN, group, &call) };
}

fn elements(dest: *const u8, source: *const u8, nelems: usize, name: &'static str) -> Arguments {
    Arguments { values: vec![(name, nelems as i64)], addresses: both(dest, source, nelems) }
}

/// Both buffers, unless they are empty: then any address will do.
fn both(dest: *const u8, source: *const u8, len: usize) -> Vec<(&'static str, *const u8)> {
    if len == 0 { vec![] } else { vec![("dest", dest), ("source", source)] }
}
