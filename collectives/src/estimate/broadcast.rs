// SPDX-License-Identifier: Apache-2.0
//! Broadcasts.

use super::{
    CACHED_MAX, LINE, arrival, both_links, copied, costs, flags, handing_on_to_all, hosts, is_ring,
    next, others, passing_on_by, pipeline, put, request, ring, shares, shares_over_network, step,
    sync,
};
use crate::broadcast::{self, Halves};
use crate::group::Group;
use crate::notes::Hosts;
use crate::schedule::rounds;
use crate::stream::piece_of;
use tombolo_core::transport::Distance;

/// What goes on in a broadcast in pieces that go along so many links, beside the work of sending all.
fn passing_on(group: &Group<'_>, len: usize, links: usize) -> u64 {
    if !is_ring(group) {
        let way = pipeline(group, len, links);
        let first = costs(group).put_ns(next(group), len.min(piece_of(len, links, costs(group))));
        // The first piece is among the work of sending all. Where there is no network, the two together were
        // measured to be right.
        return if group.extent() == Distance::Network { way - first } else { way };
    }
    let (piece, _) = broadcast::cut(len, links, costs(group));
    passing_on_by(group, len, links, piece)
}

/// Along two chains that begin at the root.
pub fn broadcast_both_ways(group: &Group<'_>, len: usize) -> u64 {
    let costs = costs(group);
    // The root sends both ways.
    let two = if group.n > 2 { 2 } else { 1 };
    let whole = costs.put_ns(next(group), len);
    let whole = match is_ring(group) {
        true if group.n > 2 => both_links(group, two, len),
        // Of two members a piece goes by one of the two links.
        true => whole,
        // While the root is busy with one way, the other one is idle.
        false => (two - 1) * whole + costs.shared_ns(whole),
    };
    whole + copied(group, len) + passing_on(group, len, group.n / 2)
}

/// Half along each of two chains, but for what goes along both, half as far. One of the two is the last to
/// arrive.
pub fn broadcast_halves(group: &Group<'_>, len: usize) -> u64 {
    // A line is not worth cutting.
    if !is_ring(group) || len <= 64 {
        return u64::MAX;
    }
    let halves = Halves::of(group.n, len, costs(group));
    let busiest = halves.busiest().min(len);
    both_links(group, 1, 2 * busiest)
        + passing_on_by(group, busiest, 1, halves.piece)
        + copied(group, len)
}

/// The root puts to each, to itself too. Those that sleep are woken at the same time, which is not counted.
fn root_puts(group: &Group<'_>, len: usize) -> u64 {
    let puts = others(group) * costs(group).put_ns(group.extent(), len);
    let all = puts + copied(group, len);
    // One PE goes through the memory of all.
    let beyond = !group.extent().is_remote() && group.n * len >= CACHED_MAX;
    if beyond { 2 * all } else { all }
}

/// The root puts to each with a signal.
pub fn broadcast_signal(group: &Group<'_>, len: usize) -> u64 {
    // Round a ring of 8 and 16 hosts members that hand it on were faster, by 1 to 2 %; of 4 slower, by a quarter.
    if is_ring(group) && matches!(group.extent(), Distance::Hops(3..)) {
        return u64::MAX;
    }
    // Over a network between hosts that share processors the root alone took one and a half to twice as long where hosts
    // have several members. With one on each of four it took a sixth longer, with what follows; short messages 3 to 10 %
    // longer, but most members less.
    let took_longer = |hosts: &Hosts| hosts.most > 1 || hosts.leaders.len() > 3 && len > 512;
    if shares_over_network(group) && hosts(group).is_some_and(took_longer) {
        return u64::MAX;
    }
    root_puts(group, len) + step(group) + handing_on_to_all(group, len)
}

/// Members of the root's host get from it, and tell it. Across hosts this was not measured.
pub fn broadcast_tell(group: &Group<'_>, len: usize) -> u64 {
    let costs = costs(group);
    match group.extent() {
        extent if extent.is_remote() => u64::MAX,
        extent => costs.shared_ns(costs.get_ns(extent, len)) + 2 * step(group),
    }
}

/// The root puts to each, to itself too, and all meet.
pub fn broadcast_put(group: &Group<'_>, len: usize) -> u64 {
    let all = root_puts(group, len);
    // Of the wait for a neighbour only half is counted: with all of it, two hosts would take a slower
    // algorithm from 16 KiB (seen on the simulator).
    let waits = if matches!(group.extent(), Distance::Hops(..2)) { 1 } else { 2 };
    all + waits * arrival(group) + handing_on_to_all(group, len) + sync(group) + flags(group)
}

/// On one host all copy at the same time, across hosts the root's host serves them one after another.
pub fn broadcast_get(group: &Group<'_>, len: usize) -> u64 {
    let (costs, extent) = (costs(group), group.extent());
    let get = costs.shared_ns(costs.get_ns(extent, len));
    let served = if extent.is_remote() { others(group) * request(group, len) } else { 0 };
    get.max(served) + 2 * sync(group)
}

/// The root puts to one, both to others, and so on.
pub fn broadcast_tree(group: &Group<'_>, len: usize) -> u64 {
    let round = put(group, len) + step(group) + handing_on_to_all(group, len);
    rounds(group.n) as u64 * round + copied(group, len) + sync(group)
}

/// By a tree of so many hosts.
fn tree_of(group: &Group<'_>, hosts: usize, len: usize) -> u64 {
    match hosts {
        1 => 0,
        count => {
            let round = put(group, len) + step(group) + handing_on_to_all(group, len);
            rounds(count) as u64 * round + copied(group, len)
        }
    }
}

/// By a tree of hosts, then from one member of each to the others: taken over networks, as it was measured there.
pub fn broadcast_relay(group: &Group<'_>, len: usize) -> u64 {
    let Some(hosts) = hosts(group).filter(|_| group.extent() == Distance::Network) else {
        return u64::MAX;
    };
    let others = hosts.most as u64 - 1;
    let local = costs(group).notice_ns(Distance::Host) + others * (copied(group, len) + LINE);
    tree_of(group, hosts.leaders.len(), len) + if others > 0 { local } else { 0 }
}

/// By a tree of hosts, then within each.
pub fn broadcast_by_hosts(group: &Group<'_>, len: usize) -> u64 {
    let Some(hosts) = hosts(group) else { return u64::MAX };
    let tree = tree_of(group, hosts.leaders.len(), len);
    let costs = costs(group);
    let local = costs.notice_ns(Distance::Host) + costs.shared_ns(copied(group, len));
    tree + if hosts.most > 1 { local } else { 0 } + sync(group)
}

/// Along the chain of members. On two hosts there is nobody to send at the same time.
pub fn chain(group: &Group<'_>, len: usize) -> u64 {
    let costs = costs(group);
    let few = hosts(group).is_none_or(|hosts| hosts.leaders.len() < 3);
    if few || len <= piece_of(len, group.n - 1, costs) {
        return u64::MAX;
    }
    let work = costs.shared_ns(costs.put_ns(next(group), len)) + copied(group, len);
    work + passing_on(group, len, group.n - 1)
}

/// A share to each, then the shares go round the ring.
pub fn broadcast_scatter(group: &Group<'_>, len: usize) -> u64 {
    shares(group, len) + step(group) + ring(group, len)
}
