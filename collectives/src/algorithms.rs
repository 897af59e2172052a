// SPDX-License-Identifier: Apache-2.0
//! The algorithms: which there are, when each applies, what it is expected to cost.

use crate::barrier::{self, Sync};
use crate::broadcast::{self, Broadcast};
use crate::exchange::{self, Alltoall};
use crate::gather::{self, Collect, Gather};
use crate::group::Group;
use crate::letters::{SHORT_MAX, long_max};
use crate::reduce::{self, Reduce, Scan};
use crate::reduce_push;
use crate::schedule::rounds;
use crate::table::{Algorithm, Call, Operation, Taken};
use tombolo_core::cost::LINE_NS;
use tombolo_core::transport::Distance;

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

/// The same, for blocks that lie in one piece.
fn is_plain(group: &Group<'_>, call: &Alltoall) -> bool {
    group.with_memory().is_some() && call.blocks.is_contiguous()
}

/// Cost of the algorithm where there is no choice.
fn only(_: &Group<'_>, _: usize) -> u64 {
    0
}

/// Meeting.
pub(crate) static SYNC: Operation<Sync> = Operation {
    number: 0,
    name: "sync",
    algorithms: &[
        Algorithm {
            name: "dissemination",
            about: "in each round the distance to whom a member tells doubles",
            taken: Taken::ByCost,
            applies: always,
            cost_ns: |group, _| latency_ns(group) * rounds(group.n) as u64,
            run: |group, _| barrier::of_group(group),
        },
        Algorithm {
            name: "hosts",
            about: "members of a host meet, then hosts by dissemination",
            taken: Taken::OnRequest,
            applies: with_memory,
            cost_ns: |group, _| {
                let Some(hosts) = group.notes().map(|notes| &notes.hosts) else { return u64::MAX };
                let here = group.world.costs().latency_ns(Distance::Host);
                // A host's members come to and are told by one.
                let local = if hosts.most > 1 { (2 + hosts.most as u64) * here } else { 0 };
                local + latency_ns(group) * rounds(hosts.leaders.len()) as u64
            },
            run: |group, _| barrier::by_hosts(group),
        },
    ],
};

/// From one member to all.
pub(crate) static BROADCAST: Operation<Broadcast> = Operation {
    number: 1,
    name: "broadcast",
    algorithms: &[
        Algorithm {
            name: "put",
            about: "the root puts to all, then all meet",
            taken: Taken::ByCost,
            applies: always,
            cost_ns: |group, len| {
                let (costs, extent) = (group.world.costs(), group.extent());
                // Across hosts the root also waits for the last to have arrived.
                let arrival = if extent.is_remote() { 2 * costs.latency_ns(extent) } else { 0 };
                group.n as u64 * costs.put_ns(extent, len) + arrival + sync_ns(group)
            },
            run: broadcast::root_puts,
        },
        // On one host all copy at the same time, across hosts the root's host serves them one after
        // another.
        Algorithm {
            name: "get",
            about: "all meet, get from the root, and meet again",
            taken: Taken::ByCost,
            applies: always,
            cost_ns: |group, len| {
                let (costs, extent) = (group.world.costs(), group.extent());
                let served =
                    if extent.is_remote() { group.n as u64 * costs.put_ns(extent, len) } else { 0 };
                costs.get_ns(extent, len).max(served) + 2 * sync_ns(group)
            },
            run: broadcast::members_get,
        },
        Algorithm {
            name: "tree",
            about: "members that have the data send them on, so that their number doubles",
            taken: Taken::OnRequest,
            applies: with_memory,
            cost_ns: |group, len| {
                rounds(group.n) as u64 * (put_ns(group, len) + latency_ns(group)) + sync_ns(group)
            },
            run: broadcast::tree,
        },
        Algorithm {
            name: "hosts",
            about: "a tree of hosts; on each one member gets the data, and the others from it",
            taken: Taken::OnRequest,
            applies: with_memory,
            cost_ns: hosts_ns,
            run: broadcast::by_hosts,
        },
        Algorithm {
            name: "chain",
            about: "from member to member in pieces",
            taken: Taken::ByCost,
            applies: with_memory,
            cost_ns: chain_ns,
            run: broadcast::chain,
        },
        Algorithm {
            name: "scatter",
            about: "a share to each member, then the shares go round the ring of members",
            taken: Taken::OnRequest,
            applies: with_memory,
            cost_ns: |group, len| shares_ns(group, len) + ring_ns(group, len) + latency_ns(group),
            run: broadcast::scatter,
        },
    ],
};

/// From all members to all, blocks of different lengths.
pub(crate) static COLLECT: Operation<Collect> = Operation {
    number: 2,
    name: "collect",
    algorithms: &[
        Algorithm {
            name: "put",
            about: "members publish lengths and meet, then each puts to all, and all meet",
            taken: Taken::ByCost,
            applies: always,
            cost_ns: |group, _| 2 * sync_ns(group) + group.n as u64 * published_ns(group, 8),
            run: gather::collect,
        },
        Algorithm {
            name: "signal",
            about: "members send all their lengths, with blocks that are short; long ones are put with signals",
            taken: Taken::ByCost,
            applies: with_memory,
            cost_ns: |group, _| letters_ns(group, 8) + latency_ns(group),
            run: gather::collect_by_signals,
        },
    ],
};

/// From all members to all, blocks of equal length.
pub(crate) static FCOLLECT: Operation<Gather> = Operation {
    number: 3,
    name: "fcollect",
    algorithms: &[
        Algorithm {
            name: "put",
            about: "each puts to all, then all meet",
            taken: Taken::ByCost,
            applies: always,
            cost_ns: all_put_ns,
            run: gather::fcollect,
        },
        Algorithm {
            name: "exchange",
            about: "each sends its block to memory of the team at all",
            taken: Taken::ByCost,
            applies: |group, call| in_letters(group, call.len),
            cost_ns: letters_ns,
            run: gather::exchanged,
        },
        Algorithm {
            name: "signal",
            about: "each puts to all with signals",
            taken: Taken::ByCost,
            applies: with_memory,
            cost_ns: signals_ns,
            run: gather::signalled,
        },
        Algorithm {
            name: "ring",
            about: "blocks go round the ring of members",
            taken: Taken::ByCost,
            applies: with_memory,
            cost_ns: |group, len| ring_ns(group, len * group.n),
            run: gather::round_the_ring,
        },
        Algorithm {
            name: "doubling",
            about: "members send what they have to others that lack it, so that it doubles (Bruck)",
            taken: Taken::OnRequest,
            applies: with_memory,
            cost_ns: |group, len| {
                rounds(group.n) as u64 * latency_ns(group)
                    + (group.n as u64 - 1) * put_ns(group, len)
            },
            run: gather::doubling,
        },
    ],
};

/// A block of its own from each member to each.
pub(crate) static ALLTOALL: Operation<Alltoall> = Operation {
    number: 4,
    name: "alltoall",
    algorithms: &[
        Algorithm {
            name: "put",
            about: "each puts to each, then all meet",
            taken: Taken::ByCost,
            applies: always,
            cost_ns: all_put_ns,
            run: exchange::alltoall,
        },
        Algorithm {
            name: "exchange",
            about: "each sends each its block to memory of the team",
            taken: Taken::ByCost,
            applies: |group, call| is_plain(group, call) && in_letters(group, call.bytes()),
            cost_ns: letters_ns,
            run: exchange::exchanged,
        },
        Algorithm {
            name: "signal",
            about: "each puts to each with signals",
            taken: Taken::ByCost,
            applies: is_plain,
            cost_ns: signals_ns,
            run: exchange::signalled,
        },
    ],
};

/// Reductions.
pub(crate) static REDUCE: Operation<Reduce> = Operation {
    number: 5,
    name: "reduce",
    algorithms: &[
        Algorithm {
            name: "publish",
            about: "members show their elements and meet, then each combines those of all",
            taken: Taken::ByCost,
            applies: reduce::fits_words,
            cost_ns: |group, bytes| group.n as u64 * published_ns(group, bytes) + sync_ns(group),
            run: reduce::published,
        },
        Algorithm {
            name: "share",
            about: "all meet, each combines a share and puts it to all, and all meet again",
            taken: Taken::ByCost,
            applies: always,
            cost_ns: |group, bytes| {
                let (costs, extent) = (group.world.costs(), group.extent());
                // Short arrays have fewer shares than members.
                let share = bytes.div_ceil(group.n).max(64);
                let get = match extent.is_remote() {
                    false => costs.get_ns(extent, share),
                    // Each block of a share is waited for.
                    true => {
                        let block = share.min(reduce::Block::LEN);
                        share.div_ceil(block) as u64 * costs.get_ns(extent, block)
                    }
                };
                group.n as u64 * (get + costs.put_ns(extent, share)) + 2 * sync_ns(group)
            },
            run: reduce::shared,
        },
        Algorithm {
            name: "exchange",
            about: "each sends its elements to all, and combines those of all",
            taken: Taken::ByCost,
            applies: |group, call| in_letters(group, call.bytes()),
            cost_ns: letters_ns,
            run: reduce_push::exchanged,
        },
        Algorithm {
            name: "doubling",
            about: "members send to one other, and what they have combined to one at twice the distance",
            taken: Taken::ByCostIfExact,
            applies: reduce_push::fits_block,
            cost_ns: |group, bytes| {
                rounds(group.n) as u64
                    * (letter_ns(group, bytes) + latency_ns(group) + u64::from(LINE_NS))
            },
            run: reduce_push::doubling,
        },
        Algorithm {
            name: "scatter",
            about: "each sends each its share, combines its own, and sends the result to all",
            taken: Taken::ByCost,
            applies: with_memory,
            cost_ns: |group, bytes| {
                2 * latency_ns(group) + 2 * shares_ns(group, bytes) + read_ns(bytes / 2)
            },
            run: reduce_push::scattered,
        },
        Algorithm {
            name: "ring",
            about: "shares go round the ring of members and are combined on the way, then results",
            taken: Taken::ByCostIfExact,
            applies: with_memory,
            cost_ns: |group, bytes| 2 * ring_ns(group, bytes) + read_ns(bytes / 8),
            run: reduce_push::ring,
        },
    ],
};

/// Prefix sums.
pub(crate) static SCAN: Operation<Scan> = Operation {
    number: 6,
    name: "scan",
    algorithms: &[Algorithm {
        name: "share",
        about: "each adds up a share member by member and puts each sum to whom it belongs",
        taken: Taken::ByCost,
        applies: always,
        cost_ns: only,
        run: reduce::scan,
    }],
};

fn latency_ns(group: &Group<'_>) -> u64 {
    group.world.costs().latency_ns(group.extent())
}

fn sync_ns(group: &Group<'_>) -> u64 {
    latency_ns(group) * rounds(group.n) as u64
}

/// Reading what another member has published.
fn published_ns(group: &Group<'_>, bytes: usize) -> u64 {
    match group.extent().is_remote() {
        // The reads of several members' lines overlap.
        false => bytes.div_ceil(64) as u64 * u64::from(LINE_NS) / 2,
        true => group.world.costs().get_ns(group.extent(), bytes),
    }
}

/// A message of so many bytes from each member to each.
fn letters_ns(group: &Group<'_>, bytes: usize) -> u64 {
    (group.n as u64 - 1) * letter_ns(group, bytes) + latency_ns(group)
}

/// A message of so many bytes among others.
fn letter_ns(group: &Group<'_>, bytes: usize) -> u64 {
    match group.extent().is_remote() {
        // The lines are fetched from others' caches, several at a time.
        false if bytes <= SHORT_MAX => u64::from(LINE_NS) / 2,
        // Long ones are written to memory that the reader's cache has.
        false => (8 + bytes).div_ceil(64) as u64 * u64::from(LINE_NS),
        true => put_ns(group, bytes) + read_ns(bytes),
    }
}

fn put_ns(group: &Group<'_>, bytes: usize) -> u64 {
    group.world.costs().put_ns(group.extent(), bytes)
}

/// Each puts so many bytes to each, and all meet. Across hosts they wait until all have arrived.
fn all_put_ns(group: &Group<'_>, bytes: usize) -> u64 {
    let arrival = if group.extent().is_remote() { latency_ns(group) } else { 0 };
    (group.n as u64 - 1) * put_ns(group, bytes) + arrival + sync_ns(group)
}

/// Each puts so many bytes to each, with signals.
fn signals_ns(group: &Group<'_>, bytes: usize) -> u64 {
    let signals = (group.n as u64 - 1) * u64::from(LINE_NS);
    (group.n as u64 - 1) * put_ns(group, bytes) + signals + latency_ns(group)
}

/// Each sends each its share of so many bytes.
fn shares_ns(group: &Group<'_>, bytes: usize) -> u64 {
    (group.n as u64 - 1) * put_ns(group, bytes.div_ceil(group.n).max(64))
}

/// So many bytes read that another PE has just written. Reading and writing them in place, as round a
/// ring, takes a fraction of it.
fn read_ns(bytes: usize) -> u64 {
    if bytes <= SHORT_MAX { 0 } else { bytes.div_ceil(64) as u64 * u64::from(LINE_NS) / 3 }
}

/// Shares of so many bytes go round the ring of members.
fn ring_ns(group: &Group<'_>, bytes: usize) -> u64 {
    let costs = group.world.costs();
    let step = group.notes().map_or(group.extent(), |notes| notes.hosts.step);
    let one = costs.latency_ns(step) + costs.put_ns(step, bytes.div_ceil(group.n).max(64));
    (group.n as u64 - 1) * (one + u64::from(LINE_NS))
}

/// A broadcast along the chain of members, in pieces. With one piece nobody sends while others do; on
/// two hosts there is nobody to send at the same time. With three a few pieces were measured to take
/// longer than puts of the root, though two send at a time.
fn chain_ns(group: &Group<'_>, len: usize) -> u64 {
    let costs = group.world.costs();
    let Some(hosts) = group.notes().map(|notes| &notes.hosts) else { return u64::MAX };
    let least = match hosts.leaders.len() {
        0..3 => return u64::MAX,
        3 => 8 * broadcast::PIECE,
        _ => broadcast::PIECE,
    };
    if len <= least {
        return u64::MAX;
    }
    let step = hosts.step;
    let piece = costs.latency_ns(step) + costs.put_ns(step, broadcast::PIECE);
    costs.put_ns(step, len) + (group.n as u64 - 1) * piece + sync_ns(group)
}

/// A broadcast by a tree of hosts, then within each.
fn hosts_ns(group: &Group<'_>, len: usize) -> u64 {
    let Some(hosts) = group.notes().map(|notes| &notes.hosts) else { return u64::MAX };
    let tree = rounds(hosts.leaders.len()) as u64 * (put_ns(group, len) + latency_ns(group));
    let costs = group.world.costs();
    tree + costs.latency_ns(Distance::Host) + costs.get_ns(Distance::Host, len) + sync_ns(group)
}
