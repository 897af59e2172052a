//! The algorithms: which there are, when each applies, what it is expected to cost.
//!
//! All members choose for themselves and must choose alike: whether an algorithm applies and what
//! it costs may depend only on what all of them know to be equal, the number of members, the
//! lengths, and the kind of group.

use crate::broadcast::{self, Broadcast};
use crate::exchange::{self, Alltoall};
use crate::gather::{self, Gather};
use crate::group::Group;
use crate::reduce::{self, Reduce, Scan};
use crate::schedule::rounds;

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
        cost_ns: |group, call| group.n as u64 * copy_ns(call.len) + sync_ns(group),
        run: broadcast::root_puts,
    },
    // All copy at the same time; two syncs.
    Algorithm {
        name: "members get",
        applies: always,
        cost_ns: |group, call| copy_ns(call.len) + 2 * sync_ns(group),
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
            let lines = (call.nelems * call.reducer.size()).div_ceil(64) as u64;
            // The reads of several members' lines overlap.
            group.n as u64 * lines * LINE_NS / 2 + sync_ns(group)
        },
        run: reduce::published,
    },
    // Everybody combines a share of the elements and puts the result to all; two syncs.
    Algorithm {
        name: "combine a share, put to all",
        applies: always,
        cost_ns: |group, call| {
            // Short arrays have fewer shares than members.
            let share = (call.nelems * call.reducer.size()).div_ceil(group.n).max(64);
            2 * group.n as u64 * copy_ns(share) + 2 * sync_ns(group)
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

/// One cache line from another core. Only the ratios of the costs matter.
const LINE_NS: u64 = 60;

/// A copy within the caches, where the sizes are at which the choice is open.
fn copy_ns(bytes: usize) -> u64 {
    bytes as u64 / 64
}

fn sync_ns(group: &Group<'_>) -> u64 {
    2 * LINE_NS * rounds(group.n) as u64
}

/// Carries out a call with the cheapest algorithm that applies.
///
/// # Safety
/// The call's buffers are as its routine promises.
pub(crate) unsafe fn run<A>(table: &[Algorithm<A>], group: &Group<'_>, call: &A) {
    let candidates = table.iter().filter(|algorithm| (algorithm.applies)(group, call));
    let Some(best) = candidates.min_by_key(|algorithm| (algorithm.cost_ns)(group, call)) else {
        unreachable!("every table has an algorithm that always applies");
    };
    // SAFETY: the caller's promise.
    unsafe { (best.run)(group, call) }
}
