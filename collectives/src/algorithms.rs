// SPDX-License-Identifier: Apache-2.0
//! The algorithms: which there are, when each applies, what it is expected to cost.

use crate::barrier::{self, Sync};
use crate::both_ways;
use crate::broadcast::{self, Broadcast};
use crate::by_hosts;
use crate::estimate;
use crate::exchange::{self, Alltoall};
use crate::gather::{self, Collect, Gather};
use crate::group::Group;
use crate::letters::{SHORT_MAX, long_max};
use crate::levels;
use crate::reduce::{self, Reduce, Scan};
use crate::reduce_meet;
use crate::reduce_pairwise;
use crate::reduce_push;
use crate::scan_push;
use crate::strided::{self, Alltoalls};
use crate::table::{Algorithm, Call, Operation, Taken};

fn always<A>(_: &Group<'_>, _: &A) -> bool {
    true
}

/// Members can write to memory of the team.
fn with_memory<A>(group: &Group<'_>, _: &A) -> bool {
    group.with_memory().is_some()
}

/// The same, and a member's part of a message fits.
fn in_letters(group: &Group<'_>, len: usize) -> bool {
    group.with_memory().is_some() && len <= SHORT_MAX.max(long_max(group.n))
}

/// Members can write to memory of the team, parts of a message of at most so many bytes of a block.
fn in_parts(group: &Group<'_>, call: &Alltoalls, most: fn(usize) -> usize) -> bool {
    group.with_memory().is_some() && call.fits(most(group.n))
}

/// Barriers among the PEs of a team, which complete no puts.
pub(crate) static SYNC: Operation<Sync> = Operation {
    number: 0,
    name: "sync",
    short: None,
    algorithms: &[
        Algorithm {
            name: "dissemination",
            about: "in each round the distance to whom a member tells doubles",
            taken: Taken::ByCost,
            applies: always,
            cost_ns: |group, _| estimate::sync_by_dissemination(group),
            run: |group, _| barrier::of_group(group),
        },
        Algorithm {
            name: "hosts",
            about: "members of a host meet, then hosts by dissemination",
            taken: Taken::ByCost,
            applies: with_memory,
            cost_ns: |group, _| estimate::sync_by_hosts(group),
            run: |group, _| barrier::by_hosts(group),
        },
        Algorithm {
            name: "first",
            about: "members tell the first one, which tells all",
            taken: Taken::ByCost,
            applies: with_memory,
            cost_ns: |group, _| estimate::sync_by_first(group),
            run: |group, _| barrier::by_first(group),
        },
        Algorithm {
            name: "exchange",
            about: "each tells all",
            taken: Taken::ByCost,
            applies: with_memory,
            cost_ns: |group, _| estimate::sync_by_all(group),
            run: |group, _| barrier::by_all(group),
        },
        Algorithm {
            name: "both",
            about: "each member notifies its neighbours in the ring, then forwards their notifications",
            taken: Taken::ByCost,
            applies: with_memory,
            cost_ns: |group, _| estimate::sync_both_ways(group),
            run: |group, _| both_ways::sync(group),
        },
    ],
};

/// From one member to all.
pub(crate) static BROADCAST: Operation<Broadcast> = Operation {
    number: 1,
    name: "broadcast",
    short: Some("signal"),
    algorithms: &[
        Algorithm {
            name: "put",
            about: "the root puts to all, then all meet",
            taken: Taken::ByCost,
            applies: always,
            cost_ns: estimate::broadcast_put,
            run: broadcast::root_puts,
        },
        Algorithm {
            name: "get",
            about: "all meet, get from the root, and meet again",
            taken: Taken::ByCost,
            applies: always,
            cost_ns: estimate::broadcast_get,
            run: broadcast::members_get,
        },
        Algorithm {
            name: "signal",
            about: "the root puts to each with a signal",
            taken: Taken::ByCost,
            applies: with_memory,
            cost_ns: estimate::broadcast_signal,
            run: broadcast::root_signals,
        },
        Algorithm {
            name: "tell",
            about: "the root tells each, which gets from the root and tells it",
            taken: Taken::ByCost,
            applies: with_memory,
            cost_ns: estimate::broadcast_tell,
            run: broadcast::root_tells,
        },
        Algorithm {
            name: "tree",
            about: "members that have the data send them on, so that their number doubles",
            taken: Taken::OnRequest,
            applies: with_memory,
            cost_ns: estimate::broadcast_tree,
            run: broadcast::tree,
        },
        Algorithm {
            name: "hosts",
            about: "a tree of hosts; on each one member gets the data, and the others from it",
            taken: Taken::ByCost,
            applies: with_memory,
            cost_ns: estimate::broadcast_by_hosts,
            run: broadcast::by_hosts,
        },
        Algorithm {
            name: "relay",
            about: "a tree of hosts; on each one member gets the data, and puts them to the others",
            taken: Taken::ByCost,
            applies: with_memory,
            cost_ns: estimate::broadcast_relay,
            run: broadcast::relay,
        },
        Algorithm {
            name: "chain",
            about: "from member to member in pieces",
            taken: Taken::ByCost,
            applies: with_memory,
            cost_ns: estimate::chain,
            run: broadcast::chain,
        },
        Algorithm {
            name: "both",
            about: "from member to member in pieces, both ways round the ring of members",
            taken: Taken::ByCost,
            applies: with_memory,
            cost_ns: estimate::broadcast_both_ways,
            run: broadcast::both_ways,
        },
        Algorithm {
            name: "halves",
            about: "from member to member in pieces, half of the data each way round, and what is between them half way",
            taken: Taken::ByCost,
            applies: with_memory,
            cost_ns: estimate::broadcast_halves,
            run: broadcast::halves,
        },
        Algorithm {
            name: "scatter",
            about: "a share to each member, then the shares go round the ring of members",
            taken: Taken::OnRequest,
            applies: broadcast::fills_all,
            cost_ns: estimate::broadcast_scatter,
            run: broadcast::scatter,
        },
    ],
};

/// From all members to all, blocks of different lengths.
pub(crate) static COLLECT: Operation<Collect> = Operation {
    number: 2,
    name: "collect",
    short: Some("signal"),
    algorithms: &[
        Algorithm {
            name: "put",
            about: "members publish lengths and meet, then each puts to all, and all meet",
            taken: Taken::ByCost,
            applies: always,
            cost_ns: |group, _| estimate::collect_put(group),
            run: gather::collect,
        },
        Algorithm {
            name: "signal",
            about: "members send all their lengths, with blocks that are short; long ones are put with signals",
            taken: Taken::ByCost,
            applies: with_memory,
            cost_ns: |group, _| estimate::collect_signal(group),
            run: gather::collect_by_signals,
        },
        Algorithm {
            name: "eager",
            about: "members send all their lengths with blocks of up to 16 KiB; longer ones are put with signals",
            taken: Taken::ByCost,
            applies: with_memory,
            cost_ns: |group, _| estimate::collect_eager(group),
            run: gather::collect_eagerly,
        },
        Algorithm {
            name: "hosts",
            about: "members send to the first of their host, and these exchange the blocks of their hosts",
            taken: Taken::ByCost,
            applies: by_hosts::can_gather,
            cost_ns: |group, _| estimate::collect_by_hosts(group),
            run: by_hosts::collect,
        },
    ],
};

/// From all members to all, blocks of equal length.
pub(crate) static FCOLLECT: Operation<Gather> = Operation {
    number: 3,
    name: "fcollect",
    short: Some("exchange"),
    algorithms: &[
        Algorithm {
            name: "put",
            about: "each puts to all, then all meet",
            taken: Taken::ByCost,
            applies: always,
            cost_ns: estimate::all_put,
            run: gather::fcollect,
        },
        Algorithm {
            name: "exchange",
            about: "each sends its block to the team's buffer at every member",
            taken: Taken::ByCost,
            applies: |group, call| in_letters(group, call.len),
            cost_ns: estimate::letters,
            run: gather::exchanged,
        },
        Algorithm {
            name: "signal",
            about: "each puts to all with signals",
            taken: Taken::ByCost,
            applies: with_memory,
            cost_ns: estimate::signals,
            run: gather::signalled,
        },
        Algorithm {
            name: "ring",
            about: "blocks go round the ring of members",
            taken: Taken::ByCost,
            applies: with_memory,
            cost_ns: estimate::gather_ring,
            run: gather::round_the_ring,
        },
        Algorithm {
            name: "both",
            about: "blocks go both ways round the ring of members",
            taken: Taken::ByCost,
            applies: with_memory,
            cost_ns: estimate::both_ways,
            run: both_ways::gather,
        },
        Algorithm {
            name: "doubling",
            about: "members send what they have to others that lack it, so that it doubles (Bruck)",
            taken: Taken::ByCost,
            applies: gather::fits_doubling,
            cost_ns: estimate::gather_doubling,
            run: gather::doubling,
        },
        Algorithm {
            name: "hosts",
            about: "members send to the first of their host, and these exchange the blocks of their hosts",
            taken: Taken::ByCost,
            applies: by_hosts::can_gather,
            cost_ns: estimate::gather_by_hosts,
            run: by_hosts::gather,
        },
    ],
};

/// A block of its own from each member to each.
pub(crate) static ALLTOALL: Operation<Alltoall> = Operation {
    number: 4,
    name: "alltoall",
    short: Some("exchange"),
    algorithms: &[
        Algorithm {
            name: "put",
            about: "each puts to each, then all meet",
            taken: Taken::ByCost,
            applies: always,
            cost_ns: estimate::all_put,
            run: exchange::alltoall,
        },
        Algorithm {
            name: "exchange",
            about: "each sends each its block to memory of the team",
            taken: Taken::ByCost,
            applies: |group, call| in_letters(group, call.len),
            cost_ns: estimate::letters,
            run: exchange::exchanged,
        },
        Algorithm {
            name: "signal",
            about: "each puts to each with signals",
            taken: Taken::ByCost,
            applies: with_memory,
            cost_ns: estimate::blocks_by_signals,
            run: exchange::signalled,
        },
        Algorithm {
            name: "both",
            about: "blocks go both ways round the ring of members, and each takes its own",
            taken: Taken::ByCost,
            applies: with_memory,
            cost_ns: estimate::exchange_both_ways,
            run: both_ways::blocks,
        },
        Algorithm {
            name: "doubling",
            about: "half of all blocks go to one other member, those of others too, at twice the distance each time (Bruck)",
            taken: Taken::OnRequest,
            applies: with_memory,
            cost_ns: estimate::exchange_doubling,
            // SAFETY: the caller's promise.
            run: |group, call| unsafe { strided::doubling(group, &call.into()) },
        },
        Algorithm {
            name: "hosts",
            about: "members send to the first of their host, and these exchange the blocks of their hosts",
            taken: Taken::ByCost,
            applies: by_hosts::can_exchange,
            cost_ns: estimate::exchange_by_hosts,
            run: by_hosts::alltoall,
        },
    ],
};

/// The same, with elements that lie apart.
pub(crate) static ALLTOALLS: Operation<Alltoalls> = Operation {
    number: 7,
    name: "alltoalls",
    short: None,
    algorithms: &[
        Algorithm {
            name: "put",
            about: "each puts to each, element by element where memory is not mapped, then all meet",
            taken: Taken::ByCost,
            applies: always,
            cost_ns: estimate::put_elements,
            run: strided::put,
        },
        Algorithm {
            name: "exchange",
            about: "each sends each its block to memory of the team, in parts",
            taken: Taken::ByCost,
            applies: |group, call| in_parts(group, call, strided::exchanged_max),
            cost_ns: estimate::exchange_in_parts,
            run: strided::exchanged,
        },
        Algorithm {
            name: "both",
            about: "blocks go both ways round the ring of members, and each takes its own",
            taken: Taken::ByCost,
            applies: |group, call| in_parts(group, call, strided::passed_max),
            cost_ns: estimate::pass_in_parts,
            run: both_ways::exchange,
        },
        Algorithm {
            name: "doubling",
            about: "half of all blocks go to one other member, those of others too, at twice the distance each time (Bruck)",
            taken: Taken::OnRequest,
            applies: |group, call| in_parts(group, call, strided::doubled_max),
            cost_ns: estimate::exchange_doubling,
            run: strided::doubling,
        },
    ],
};

/// Reductions.
pub(crate) static REDUCE: Operation<Reduce> = Operation {
    number: 5,
    name: "reduce",
    short: Some("exchange"),
    algorithms: &[
        Algorithm {
            name: "publish",
            about: "members show their elements and meet, then each combines those of all",
            taken: Taken::ByCost,
            applies: reduce::fits_words,
            cost_ns: estimate::publish,
            run: reduce::published,
        },
        Algorithm {
            name: "share",
            about: "all meet, each combines a share and puts it to all, and all meet again",
            taken: Taken::ByCost,
            applies: always,
            cost_ns: estimate::share,
            run: reduce::shared,
        },
        Algorithm {
            name: "exchange",
            about: "each sends its elements to all, and combines those of all",
            taken: Taken::ByCost,
            applies: |group, call| in_letters(group, call.bytes()),
            cost_ns: estimate::reduce_exchange,
            run: reduce_push::exchanged,
        },
        Algorithm {
            name: "doubling",
            about: "members send to one other, and what they have combined to one at twice the distance",
            taken: Taken::ByCostIfExact,
            applies: reduce_push::fits_block,
            cost_ns: estimate::reduce_doubling,
            run: reduce_push::doubling,
        },
        Algorithm {
            name: "gather",
            about: "members gather the elements of all by doubling, and each combines them in order",
            taken: Taken::ByCost,
            applies: reduce_push::fits_gathered,
            cost_ns: estimate::reduce_gathered,
            run: reduce_push::gathered,
        },
        Algorithm {
            name: "scatter",
            about: "each sends each its share, combines its own, and sends the result to all",
            taken: Taken::ByCost,
            applies: with_memory,
            cost_ns: estimate::reduce_scatter,
            run: reduce_push::scattered,
        },
        Algorithm {
            name: "pairwise",
            about: "as scatter, in one piece, by way of the result arrays",
            taken: Taken::ByCost,
            applies: reduce_pairwise::applies,
            cost_ns: estimate::reduce_pairwise,
            run: reduce_pairwise::pairwise,
        },
        Algorithm {
            name: "ring",
            about: "shares go round the ring of members and are combined on the way, then results",
            taken: Taken::ByCostIfExact,
            applies: with_memory,
            cost_ns: estimate::reduce_ring,
            run: reduce_push::ring,
        },
        Algorithm {
            name: "meet",
            about: "shares are combined by a member half way round the ring, to which elements come from both sides",
            taken: Taken::ByCostIfExact,
            applies: with_memory,
            cost_ns: estimate::reduce_meet,
            run: reduce_meet::meet,
        },
        Algorithm {
            name: "both",
            about: "elements go both ways round the ring of members, and all combine those of all",
            taken: Taken::ByCost,
            applies: |group, call| in_letters(group, call.bytes()),
            cost_ns: estimate::reduce_both_ways,
            run: both_ways::reduce,
        },
        Algorithm {
            name: "levels",
            about: "members of a host combine, then those at the same place of each host, for all",
            taken: Taken::ByCostIfExact,
            applies: |group, _| levels::are_even(group),
            cost_ns: estimate::reduce_by_levels,
            run: levels::reduce,
        },
        Algorithm {
            name: "hosts",
            about: "members send to the first of their host, and these combine the elements of all",
            taken: Taken::ByCost,
            applies: by_hosts::can_reduce,
            cost_ns: estimate::reduce_by_hosts,
            run: by_hosts::reduce,
        },
        Algorithm {
            name: "turns",
            about: "hosts combine one after another, by their first members or by shares, and the result goes back",
            taken: Taken::ByCost,
            applies: by_hosts::can_gather,
            cost_ns: estimate::reduce_in_turns,
            run: by_hosts::reduce_in_turns,
        },
    ],
};

/// Prefix sums.
pub(crate) static SCAN: Operation<Scan> = Operation {
    number: 6,
    name: "scan",
    short: None,
    algorithms: &[
        Algorithm {
            name: "share",
            about: "each adds up a share member by member and puts each sum to whom it belongs",
            taken: Taken::ByCost,
            applies: always,
            cost_ns: estimate::share,
            run: reduce::scan,
        },
        Algorithm {
            name: "exchange",
            about: "each sends its elements to those after it, and adds up those before it",
            taken: Taken::ByCost,
            applies: with_memory,
            cost_ns: estimate::scan_exchange,
            run: scan_push::exchanged,
        },
        Algorithm {
            name: "hosts",
            about: "members send to the first of their host, and these add up the elements of all",
            taken: Taken::ByCost,
            applies: by_hosts::can_scan,
            cost_ns: estimate::scan_by_hosts,
            run: by_hosts::scan,
        },
    ],
};
