//! The algorithms: which there are, when each applies, what it is expected to cost.
//!
//! All members choose for themselves and must choose alike: whether an algorithm applies and what
//! it costs may depend only on what all of them know to be equal: the number of members, the
//! lengths, the kind of group, the extent of the group, and the costs of single operations
//! ([`tombolo_core::cost`]), which the selector measures.

use crate::broadcast::{self, Broadcast};
use crate::exchange::{self, Alltoall};
use crate::gather::{self, Gather};
use crate::group::Group;
use crate::reduce::{self, Reduce, Scan};
use crate::reducer::{Sum, reducer};
use crate::schedule::rounds;
use tombolo_core::cost::LINE_NS;
use tombolo_core::{Team, World};

/// One way to carry out a collective call with arguments `A`.
pub(crate) struct Algorithm<A> {
    name: &'static str,
    applies: fn(&Group<'_>, &A) -> bool,
    cost_ns: fn(&Group<'_>, &A) -> u64,
    run: unsafe fn(&Group<'_>, &A),
}

/// All algorithms: the operation and a name, for listings.
pub fn listing() -> Vec<(&'static str, &'static str)> {
    fn names<A>(
        operation: &'static str,
        table: &'static [Algorithm<A>],
    ) -> impl Iterator<Item = (&'static str, &'static str)> {
        table.iter().map(move |algorithm| (operation, algorithm.name))
    }
    std::iter::once(("sync", "dissemination"))
        .chain(names("broadcast", &BROADCAST))
        .chain(names("collect", &COLLECT))
        .chain(names("fcollect", &FCOLLECT))
        .chain(names("alltoall", &ALLTOALL))
        .chain(names("reduce", &REDUCE))
        .chain(names("scan", &SCAN))
        .collect()
}

/// What a team chooses among several algorithms: the operation, and up to which size in bytes which of
/// them is taken; the last has no limit. Reductions are sums of 8-byte integers.
pub fn choices(world: &World, team: &Team) -> Vec<(&'static str, Vec<(usize, &'static str)>)> {
    let group = Group::team(world, team, "");
    let reduce = |bytes: usize| Reduce {
        dest: std::ptr::null_mut(),
        source: std::ptr::null(),
        nelems: bytes / 8,
        reducer: reducer::<Sum, i64>(),
    };
    vec![
        ("broadcast", steps(&BROADCAST, &group, Broadcast::of_size)),
        ("reduce", steps(&REDUCE, &group, reduce)),
    ]
}

/// The largest of the sizes looked at, powers of two, for which each algorithm is chosen.
fn steps<A>(
    table: &'static [Algorithm<A>],
    group: &Group<'_>,
    call: impl Fn(usize) -> A,
) -> Vec<(usize, &'static str)> {
    let mut steps: Vec<(usize, &str)> = Vec::new();
    for size in (3..=24).map(|shift| 1 << shift) {
        let name = best(table, group, &call(size)).name;
        match steps.last_mut() {
            Some(last) if last.1 == name => last.0 = size,
            _ => steps.push((size, name)),
        }
    }
    steps
}

/// Cost of the algorithm where there is no choice.
fn only<A>(_: &Group<'_>, _: &A) -> u64 {
    0
}

fn always<A>(_: &Group<'_>, _: &A) -> bool {
    true
}

/// From one member to all.
pub(crate) static BROADCAST: [Algorithm<Broadcast>; 2] = [
    // The root copies for all; one sync.
    Algorithm {
        name: "root puts",
        applies: always,
        cost_ns: |group, call| {
            let (costs, extent) = (group.world.costs(), group.extent());
            // Across hosts the root also waits for the last to have arrived.
            let arrival = if extent.is_remote() { 2 * costs.latency_ns(extent) } else { 0 };
            group.n as u64 * costs.put_ns(extent, call.len) + arrival + sync_ns(group)
        },
        run: broadcast::root_puts,
    },
    // On one host all copy at the same time, across hosts the root's host serves them one after
    // another; two syncs.
    Algorithm {
        name: "members get",
        applies: always,
        cost_ns: |group, call| {
            let (costs, extent) = (group.world.costs(), group.extent());
            let served = if extent.is_remote() {
                group.n as u64 * costs.put_ns(extent, call.len)
            } else {
                0
            };
            costs.get_ns(extent, call.len).max(served) + 2 * sync_ns(group)
        },
        run: broadcast::members_get,
    },
];

/// From all members to all, blocks of different lengths.
pub(crate) static COLLECT: [Algorithm<Gather>; 1] = [Algorithm {
    name: "exchange lengths, put to all",
    applies: always,
    cost_ns: only,
    run: gather::collect,
}];

/// From all members to all, blocks of equal length.
pub(crate) static FCOLLECT: [Algorithm<Gather>; 1] =
    [Algorithm { name: "put to all", applies: always, cost_ns: only, run: gather::fcollect }];

/// A block of its own from each member to each.
pub(crate) static ALLTOALL: [Algorithm<Alltoall>; 1] =
    [Algorithm { name: "put to each", applies: always, cost_ns: only, run: exchange::alltoall }];

/// Reductions.
pub(crate) static REDUCE: [Algorithm<Reduce>; 2] = [
    // Everybody shows its elements in the control area and combines all of them; one sync.
    Algorithm {
        name: "publish, combine everywhere",
        applies: reduce::fits_words,
        cost_ns: |group, call| {
            let (costs, extent) = (group.world.costs(), group.extent());
            let bytes = call.nelems * call.reducer.size();
            let one = match extent.is_remote() {
                // The reads of several members' lines overlap.
                false => bytes.div_ceil(64) as u64 * u64::from(LINE_NS) / 2,
                true => costs.get_ns(extent, bytes),
            };
            group.n as u64 * one + sync_ns(group)
        },
        run: reduce::published,
    },
    // Everybody combines a share of the elements and puts the result to all; two syncs.
    Algorithm {
        name: "combine a share, put to all",
        applies: always,
        cost_ns: |group, call| {
            let (costs, extent) = (group.world.costs(), group.extent());
            // Short arrays have fewer shares than members.
            let share = (call.nelems * call.reducer.size()).div_ceil(group.n).max(64);
            let one = costs.get_ns(extent, share) + costs.put_ns(extent, share);
            group.n as u64 * one + 2 * sync_ns(group)
        },
        run: reduce::shared,
    },
];

/// Prefix sums.
pub(crate) static SCAN: [Algorithm<Scan>; 1] = [Algorithm {
    name: "scan a share, put to each",
    applies: always,
    cost_ns: only,
    run: reduce::scan,
}];

fn sync_ns(group: &Group<'_>) -> u64 {
    group.world.costs().latency_ns(group.extent()) * rounds(group.n) as u64
}

/// Carries out a call with the cheapest algorithm that applies.
///
/// # Safety
/// The call's buffers are as its routine promises.
pub(crate) unsafe fn run<A>(table: &[Algorithm<A>], group: &Group<'_>, call: &A) {
    // SAFETY: the caller's promise.
    unsafe { (best(table, group, call).run)(group, call) }
}

fn best<'t, A>(table: &'t [Algorithm<A>], group: &Group<'_>, call: &A) -> &'t Algorithm<A> {
    let candidates = table.iter().filter(|algorithm| (algorithm.applies)(group, call));
    let Some(best) = candidates.min_by_key(|algorithm| (algorithm.cost_ns)(group, call)) else {
        unreachable!("every table has an algorithm that always applies");
    };
    best
}
