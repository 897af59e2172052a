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
            about: "in round k each member signals the member 2^k places on",
            taken: Taken::ByCost,
            applies: always,
            cost_ns: |group, _| estimate::sync_by_dissemination(group),
            run: |group, _| barrier::of_group(group),
        },
        Algorithm {
            name: "hosts",
            about: "members signal the first one of their host; these first ones run dissemination, then signal their hosts",
            taken: Taken::ByCost,
            applies: with_memory,
            cost_ns: |group, _| estimate::sync_by_hosts(group),
            run: |group, _| barrier::by_hosts(group),
        },
        Algorithm {
            name: "first",
            about: "all members signal the first one, which then signals all",
            taken: Taken::ByCost,
            applies: with_memory,
            cost_ns: |group, _| estimate::sync_by_first(group),
            run: |group, _| barrier::by_first(group),
        },
        Algorithm {
            name: "exchange",
            about: "each member signals every other one",
            taken: Taken::ByCost,
            applies: with_memory,
            cost_ns: |group, _| estimate::sync_by_all(group),
            run: |group, _| barrier::by_all(group),
        },
        Algorithm {
            name: "both",
            about: "in n/2 steps each member signals both its neighbours in the ring of members",
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
            about: "the root puts to every member, then a barrier",
            taken: Taken::ByCost,
            applies: always,
            cost_ns: estimate::broadcast_put,
            run: broadcast::root_puts,
        },
        Algorithm {
            name: "get",
            about: "a barrier, every member gets from the root, a barrier",
            taken: Taken::ByCost,
            applies: always,
            cost_ns: estimate::broadcast_get,
            run: broadcast::members_get,
        },
        Algorithm {
            name: "signal",
            about: "the root puts to each member with a signal",
            taken: Taken::ByCost,
            applies: with_memory,
            cost_ns: estimate::broadcast_signal,
            run: broadcast::root_signals,
        },
        Algorithm {
            name: "tell",
            about: "the root signals each member, which gets from the root and signals back",
            taken: Taken::ByCost,
            applies: with_memory,
            cost_ns: estimate::broadcast_tell,
            run: broadcast::root_tells,
        },
        Algorithm {
            name: "tree",
            about: "binomial tree: members that have the data send it on, so that their number doubles in each round",
            taken: Taken::OnRequest,
            applies: with_memory,
            cost_ns: estimate::broadcast_tree,
            run: broadcast::tree,
        },
        Algorithm {
            name: "hosts",
            about: "binomial tree of hosts; one member of each host receives the data, and the others get it from there",
            taken: Taken::ByCost,
            applies: with_memory,
            cost_ns: estimate::broadcast_by_hosts,
            run: broadcast::by_hosts,
        },
        Algorithm {
            name: "relay",
            about: "binomial tree of hosts; one member of each host receives the data, and puts it to the others",
            taken: Taken::ByCost,
            applies: with_memory,
            cost_ns: estimate::broadcast_relay,
            run: broadcast::relay,
        },
        Algorithm {
            name: "chain",
            about: "pipelined chain: from member to member in pieces",
            taken: Taken::ByCost,
            applies: with_memory,
            cost_ns: estimate::chain,
            run: broadcast::chain,
        },
        Algorithm {
            name: "both",
            about: "two pipelined chains from the root, each half way round the ring of members",
            taken: Taken::ByCost,
            applies: with_memory,
            cost_ns: estimate::broadcast_both_ways,
            run: broadcast::both_ways,
        },
        Algorithm {
            name: "halves",
            about: "two pipelined chains in opposite directions: first pieces go mostly right, last ones mostly left",
            taken: Taken::ByCost,
            applies: with_memory,
            cost_ns: estimate::broadcast_halves,
            run: broadcast::halves,
        },
        Algorithm {
            name: "scatter",
            about: "the root sends a share to each member, then the shares go round the ring of members",
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
            about: "members publish lengths, a barrier, each member puts to every other one, a barrier",
            taken: Taken::ByCost,
            applies: always,
            cost_ns: |group, _| estimate::collect_put(group),
            run: gather::collect,
        },
        Algorithm {
            name: "signal",
            about: "members send each other their lengths, with blocks that are short; long ones are put with signals",
            taken: Taken::ByCost,
            applies: with_memory,
            cost_ns: |group, _| estimate::collect_signal(group),
            run: gather::collect_by_signals,
        },
        Algorithm {
            name: "eager",
            about: "members send each other their lengths, with blocks of up to 16 KiB; longer ones are put with signals",
            taken: Taken::ByCost,
            applies: with_memory,
            cost_ns: |group, _| estimate::collect_eager(group),
            run: gather::collect_eagerly,
        },
        Algorithm {
            name: "ring",
            about: "members send each other their lengths, then blocks go from neighbour to neighbour round the ring of members",
            taken: Taken::OnRequest,
            applies: with_memory,
            cost_ns: |_, _| u64::MAX,
            run: gather::collect_round_the_ring,
        },
        Algorithm {
            name: "doubling",
            about: "members send each other their lengths, then Bruck's algorithm where all blocks together fit 8 KiB; longer ones are put with signals",
            taken: Taken::OnRequest,
            applies: with_memory,
            cost_ns: |_, _| u64::MAX,
            run: gather::collect_by_doubling,
        },
        Algorithm {
            name: "hosts",
            about: "members send to the first one of their host; these first ones exchange the blocks of their hosts",
            taken: Taken::ByCost,
            applies: by_hosts::can_collect,
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
            about: "each member puts to every other one, then a barrier",
            taken: Taken::ByCost,
            applies: always,
            cost_ns: estimate::all_put,
            run: gather::fcollect,
        },
        Algorithm {
            name: "exchange",
            about: "each member sends its block to the team's buffer at every other one",
            taken: Taken::ByCost,
            applies: |group, call| in_letters(group, call.len),
            cost_ns: estimate::letters,
            run: gather::exchanged,
        },
        Algorithm {
            name: "signal",
            about: "each member puts to every other one with a signal",
            taken: Taken::ByCost,
            applies: with_memory,
            cost_ns: estimate::signals,
            run: gather::signalled,
        },
        Algorithm {
            name: "ring",
            about: "blocks go from neighbour to neighbour round the ring of members",
            taken: Taken::ByCost,
            applies: with_memory,
            cost_ns: estimate::gather_ring,
            run: gather::round_the_ring,
        },
        Algorithm {
            name: "both",
            about: "blocks go from neighbour to neighbour both ways, half way round the ring of members",
            taken: Taken::ByCost,
            applies: with_memory,
            cost_ns: estimate::both_ways,
            run: both_ways::gather,
        },
        Algorithm {
            name: "neighbours",
            about: "neighbour exchange: members of an even number exchange by turns with both neighbours the two blocks that came last",
            taken: Taken::OnRequest,
            applies: gather::has_partners,
            cost_ns: |_, _| u64::MAX,
            run: gather::by_neighbours,
        },
        Algorithm {
            name: "doubling",
            about: "Bruck's algorithm: in round k each member sends up to 2^k blocks to the member 2^k places back",
            taken: Taken::ByCost,
            applies: gather::fits_doubling,
            cost_ns: estimate::gather_doubling,
            run: gather::doubling,
        },
        Algorithm {
            name: "hosts",
            about: "members send to the first one of their host; these first ones exchange the blocks of their hosts",
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
            about: "each member puts to every other one, then a barrier",
            taken: Taken::ByCost,
            applies: always,
            cost_ns: estimate::all_put,
            run: exchange::alltoall,
        },
        Algorithm {
            name: "exchange",
            about: "each member sends its blocks to the team's buffers at the others",
            taken: Taken::ByCost,
            applies: |group, call| in_letters(group, call.len),
            cost_ns: estimate::letters,
            run: exchange::exchanged,
        },
        Algorithm {
            name: "signal",
            about: "each member puts to every other one with a signal",
            taken: Taken::ByCost,
            applies: with_memory,
            cost_ns: estimate::blocks_by_signals,
            run: exchange::signalled,
        },
        Algorithm {
            name: "both",
            about: "blocks go from neighbour to neighbour both ways round the ring of members; each member takes its own",
            taken: Taken::ByCost,
            applies: with_memory,
            cost_ns: estimate::exchange_both_ways,
            run: both_ways::blocks,
        },
        Algorithm {
            name: "doubling",
            about: "Bruck's algorithm: log2(n) rounds, each with half of all blocks",
            taken: Taken::OnRequest,
            applies: with_memory,
            cost_ns: estimate::exchange_doubling,
            // SAFETY: the caller's promise.
            run: |group, call| unsafe { strided::doubling(group, &call.into()) },
        },
        Algorithm {
            name: "hosts",
            about: "members send to the first one of their host; these first ones exchange the blocks of their hosts",
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
            about: "each member puts to every other one, element by element where memory is not mapped, then a barrier",
            taken: Taken::ByCost,
            applies: always,
            cost_ns: estimate::put_elements,
            run: strided::put,
        },
        Algorithm {
            name: "exchange",
            about: "each member sends its blocks to the team's buffers at the others, in parts",
            taken: Taken::ByCost,
            applies: |group, call| in_parts(group, call, strided::exchanged_max),
            cost_ns: estimate::exchange_in_parts,
            run: strided::exchanged,
        },
        Algorithm {
            name: "both",
            about: "blocks go from neighbour to neighbour both ways round the ring of members; each member takes its own",
            taken: Taken::ByCost,
            applies: |group, call| in_parts(group, call, strided::passed_max),
            cost_ns: estimate::pass_in_parts,
            run: both_ways::exchange,
        },
        Algorithm {
            name: "doubling",
            about: "Bruck's algorithm: log2(n) rounds, each with half of all blocks",
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
            about: "members publish their elements, a barrier, then each member combines those of all",
            taken: Taken::ByCost,
            applies: reduce::fits_words,
            cost_ns: estimate::publish,
            run: reduce::published,
        },
        Algorithm {
            name: "share",
            about: "a barrier, each member combines a share and puts the result to all, a barrier",
            taken: Taken::ByCost,
            applies: always,
            cost_ns: estimate::share,
            run: reduce::shared,
        },
        Algorithm {
            name: "exchange",
            about: "each member sends its elements to all others, and combines those of all",
            taken: Taken::ByCost,
            applies: |group, call| in_letters(group, call.bytes()),
            cost_ns: estimate::reduce_exchange,
            run: reduce_push::exchanged,
        },
        Algorithm {
            name: "doubling",
            about: "recursive doubling: in round k each member exchanges what it has combined with the one 2^k places away",
            taken: Taken::ByCostIfExact,
            applies: reduce_push::fits_block,
            cost_ns: estimate::reduce_doubling,
            run: reduce_push::doubling,
        },
        Algorithm {
            name: "gather",
            about: "each member gathers the elements of all by Bruck's algorithm, and combines them in order",
            taken: Taken::ByCost,
            applies: reduce_push::fits_gathered,
            cost_ns: estimate::reduce_gathered,
            run: reduce_push::gathered,
        },
        Algorithm {
            name: "scatter",
            about: "each member receives a share of the elements of all, combines it, and sends the result to all",
            taken: Taken::ByCost,
            applies: with_memory,
            cost_ns: estimate::reduce_scatter,
            run: reduce_push::scattered,
        },
        Algorithm {
            name: "pairwise",
            about: "as scatter, in one piece, through the result arrays",
            taken: Taken::ByCost,
            applies: reduce_pairwise::applies,
            cost_ns: estimate::reduce_pairwise,
            run: reduce_pairwise::pairwise,
        },
        Algorithm {
            name: "ring",
            about: "shares are combined from neighbour to neighbour round the ring of members, then the results go round",
            taken: Taken::ByCostIfExact,
            applies: with_memory,
            cost_ns: estimate::reduce_ring,
            run: reduce_push::ring,
        },
        Algorithm {
            name: "meet",
            about: "shares go both ways to the member that owns them, combined on the way; the results go back the same ways",
            taken: Taken::ByCostIfExact,
            applies: with_memory,
            cost_ns: estimate::reduce_meet,
            run: reduce_meet::meet,
        },
        Algorithm {
            name: "both",
            about: "elements go from neighbour to neighbour both ways round the ring, and each member combines those of all",
            taken: Taken::ByCost,
            applies: |group, call| in_letters(group, call.bytes()),
            cost_ns: estimate::reduce_both_ways,
            run: both_ways::reduce,
        },
        Algorithm {
            name: "levels",
            about: "members of a host combine a share each, then with the member at the same place of each other host",
            taken: Taken::ByCostIfExact,
            applies: |group, _| levels::are_even(group),
            cost_ns: estimate::reduce_by_levels,
            run: levels::reduce,
        },
        Algorithm {
            name: "hosts",
            about: "members send to the first one of their host; these first ones combine the elements of all",
            taken: Taken::ByCost,
            applies: by_hosts::can_reduce,
            cost_ns: estimate::reduce_by_hosts,
            run: by_hosts::reduce,
        },
        Algorithm {
            name: "turns",
            about: "one host after another combines its elements with the result of the one before; the result goes back",
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
            about: "each member adds up a share of the elements of all, and puts each prefix sum to its member",
            taken: Taken::ByCost,
            applies: always,
            cost_ns: estimate::share,
            run: reduce::scan,
        },
        Algorithm {
            name: "exchange",
            about: "each member sends its elements to all later members, and adds up those of the earlier ones",
            taken: Taken::ByCost,
            applies: with_memory,
            cost_ns: estimate::scan_exchange,
            run: scan_push::exchanged,
        },
        Algorithm {
            name: "hosts",
            about: "members send to the first one of their host; these first ones add up the elements of all",
            taken: Taken::ByCost,
            applies: by_hosts::can_scan,
            cost_ns: estimate::scan_by_hosts,
            run: by_hosts::scan,
        },
    ],
};
