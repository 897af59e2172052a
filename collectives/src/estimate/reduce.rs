// SPDX-License-Identifier: Apache-2.0
//! Reductions and scans.

use super::{
    CACHED_MAX, LINE, both_links, both_steps, by_hosts, copied, costs, gather_doubling, handing_on,
    handing_on_to_all, here_and_back, hosts, is_ring, led_hosts, letter, next, others, passed_on,
    pipeline, published, put, read, request, ring, share_of, shares, step, sync, to_all,
};
use crate::by_hosts::has_shares;
use crate::group::Group;
use crate::letters::{SHORT_MAX, long_max};
use crate::reduce::Block;
use crate::schedule::rounds;
use crate::stream::{piece_of, piece_of_shares};
use tombolo_core::control::BLOCK_MEMBERS;
use tombolo_core::transport::Distance;

/// Elements go both ways round the ring of members, and all are combined.
pub fn reduce_both_ways(group: &Group<'_>, bytes: usize) -> u64 {
    // On more than two hosts long ones are read while others are still under way.
    let meanwhile = is_ring(group) && group.n > 2 && bytes > SHORT_MAX;
    let read = if meanwhile { 0 } else { read(bytes) };
    let work = others(group) * (read + copied(group, bytes));
    let handing_on = group.n as u64 / 2 * handing_on(group, bytes);
    both_steps(group, bytes) + handing_on + costs(group).shared_ns(work)
}

/// Elements are shown, and combined by all.
pub fn publish(group: &Group<'_>, bytes: usize) -> u64 {
    costs(group).shared_ns(published(group, bytes)) + sync(group)
}

/// Each combines a share, which it gets from all and puts to all.
pub fn share(group: &Group<'_>, bytes: usize) -> u64 {
    let share = share_of(group, bytes);
    let gets = match group.extent().is_remote() {
        false => others(group) * copied(group, share),
        // Each block is waited for.
        true => {
            let block = share.min(Block::LEN);
            others(group) * share.div_ceil(block) as u64 * request(group, block)
        }
    };
    let puts = others(group) * put(group, share) + copied(group, share);
    // Blocks of this size take longer than others where the caches do not hold the arrays.
    let puts = if bytes > CACHED_MAX { 2 * puts } else { puts };
    costs(group).shared_ns(gets + puts) + 2 * sync(group)
}

/// Each sends its elements to all and combines those of all.
pub fn reduce_exchange(group: &Group<'_>, bytes: usize) -> u64 {
    let work = to_all(group, bytes) + others(group) * (read(bytes) + copied(group, bytes));
    costs(group).shared_ns(work) + step(group) + handing_on_to_all(group, bytes)
}

/// Twice as many elements are combined in each round.
pub fn reduce_doubling(group: &Group<'_>, bytes: usize) -> u64 {
    let work = letter(group, bytes) + copied(group, bytes) + LINE;
    let wait = step(group) + handing_on_to_all(group, bytes);
    rounds(group.n) as u64 * (costs(group).shared_ns(work) + wait)
}

/// The elements of all are gathered by doubling, and combined by each.
pub fn reduce_gathered(group: &Group<'_>, bytes: usize) -> u64 {
    let combined = costs(group).shared_ns(group.n as u64 * copied(group, bytes));
    gather_doubling(group, bytes).saturating_add(combined)
}

/// Pieces of a share that go through memory of the team one after another.
fn pieces(group: &Group<'_>, bytes: usize) -> u64 {
    share_of(group, bytes).div_ceil(long_max(group.n)) as u64
}

/// Each sends each its share and the result of its own. Over networks shares of more than one piece are left to
/// [`reduce_pairwise`], which took as long or less on two to four hosts. For many members that share processors this promises
/// too much: 128 PEs on two took twice as long as by [`publish`].
pub fn reduce_scatter(group: &Group<'_>, bytes: usize) -> u64 {
    if group.n > BLOCK_MEMBERS && costs(group).crowd > 1 {
        return u64::MAX;
    }
    if group.extent() == Distance::Network && pieces(group, bytes) > 1 {
        return u64::MAX;
    }
    let share = share_of(group, bytes);
    // Members of a host read each other's elements where they are.
    let near = hosts(group).map_or(0, |hosts| hosts.most as u64 - 1);
    let sent = (others(group) - near) * letter(group, share) + others(group) * copied(group, share);
    // Results are copied to the dest once more than they are sent.
    let work = sent + shares(group, bytes) + 2 * copied(group, share) + 2 * passed_on(group);
    let steps = 2 * pieces(group, bytes);
    costs(group).shared_ns(work) + steps * (step(group) + handing_on_to_all(group, share))
}

/// The same in one piece, and a message between the two. It was measured over networks.
pub fn reduce_pairwise(group: &Group<'_>, bytes: usize) -> u64 {
    if group.extent() != Distance::Network {
        return u64::MAX;
    }
    let (others, share) = (others(group), share_of(group, bytes));
    let sent = 2 * shares(group, bytes) + others * put(group, 8);
    costs(group).shared_ns(sent + (others + 1) * copied(group, share)) + 3 * step(group)
}

/// Shares go round the ring of members and are combined on the way, then results.
pub fn reduce_ring(group: &Group<'_>, bytes: usize) -> u64 {
    let (costs, share) = (costs(group), share_of(group, bytes));
    if costs.crowd > 1 {
        let combined = others(group) * (copied(group, share) + read(share));
        let waits = (pieces(group, bytes) - 1) * others(group) * costs.switch_ns();
        return 2 * ring(group, bytes) + costs.shared_ns(combined) + waits;
    }
    let sent = 2 * others(group) * costs.put_ns(next(group), share);
    let combined = others(group) * copied(group, share);
    let ways = if group.n == 2 { 1 } else { 2 };
    let links = 2 * group.n - 2;
    let part = share.div_ceil(ways);
    let piece = part.min(piece_of(part, links, costs));
    let handing_on = links as u64 * handing_on(group, piece);
    costs.shared_ns(sent + combined) + pipeline(group, part, links) + handing_on
}

/// Elements of shares come to a member from both sides of the ring, and the results go back: each member
/// sends and combines as much as with [`reduce_ring`], and goes on with other shares while it waits for a
/// piece. It was measured on five hosts and more, where each has a share of a line or more, and takes less on
/// four if shares are short.
pub fn reduce_meet(group: &Group<'_>, bytes: usize) -> u64 {
    let (costs, next, share) = (costs(group), next(group), share_of(group, bytes));
    let least = if share <= 16 << 10 { 4 } else { 5 };
    let few = hosts(group).is_none_or(|hosts| hosts.leaders.len() < least);
    if few || costs.crowd > 1 || bytes < 64 * group.n {
        return u64::MAX;
    }
    let sent = both_links(group, 2 * others(group), share);
    let combined = others(group) * copied(group, share);
    let piece = piece_of_shares(bytes, share, costs).min(share);
    let hops = group.n as u64 * (costs.notice_ns(next) + handing_on(group, piece));
    sent + combined + hops + 4 * costs.put_ns(next, piece)
}

/// By the members of each host, then by those at the same place of all hosts.
pub fn reduce_by_levels(group: &Group<'_>, bytes: usize) -> u64 {
    let Some(hosts) = hosts(group) else { return u64::MAX };
    let (near, far) = (hosts.most as u64 - 1, hosts.leaders.len() as u64 - 1);
    let (costs, part) = (costs(group), share_of(group, bytes));
    let share = bytes.div_ceil(hosts.most).max(64);
    // A member's share is read from others of its host, combined, sent, and written to them again, in
    // passes of their own.
    let passes = if bytes < CACHED_MAX { 7 } else { 5 };
    let here = near * passes * copied(group, share);
    let among = far * (letter(group, part) + copied(group, part) + put(group, part));
    let steps = 2 * costs.notice_ns(Distance::Host) + 2 * pieces(group, bytes) * step(group);
    costs.shared_ns(here + among) + steps
}

/// First members send each other what their hosts have combined, and give the other members the result.
pub fn reduce_by_hosts(group: &Group<'_>, bytes: usize) -> u64 {
    let most = hosts(group).map_or(0, |hosts| hosts.most as u64);
    by_hosts(group, bytes).saturating_add(2 * most * copied(group, bytes))
}

/// Hosts combine one after another, by shares or, in pieces, by their first members.
pub fn reduce_in_turns(group: &Group<'_>, bytes: usize) -> u64 {
    let Some(hosts) = led_hosts(group) else { return u64::MAX };
    let (count, most) = (hosts.leaders.len() as u64, hosts.most as u64);
    if has_shares(group, bytes) {
        let share = bytes.div_ceil(hosts.most);
        let work = 2 * put(group, share) + 2 * most * copied(group, share);
        let steps = 2 * (count - 1) * step(group) + 2 * costs(group).notice_ns(Distance::Host);
        return costs(group).shared_ns(work) + steps;
    }
    let piece = bytes.min(long_max(group.n));
    let pieces = bytes.div_ceil(long_max(group.n)).max(1) as u64;
    let turns = count * (letter(group, piece) + step(group));
    pieces * (here_and_back(group, hosts) + turns + 2 * most * copied(group, piece))
}

/// As [`reduce_exchange`], in pieces.
pub fn scan_exchange(group: &Group<'_>, bytes: usize) -> u64 {
    let most = long_max(group.n);
    let pieces = bytes.div_ceil(most) as u64;
    pieces.max(1) * reduce_exchange(group, bytes.min(most))
}

/// First members send each other the elements of their hosts, and add up those of all.
pub fn scan_by_hosts(group: &Group<'_>, bytes: usize) -> u64 {
    let most = hosts(group).map_or(0, |hosts| hosts.most);
    let copies = (2 * most + group.n) as u64 * copied(group, bytes);
    by_hosts(group, most * bytes).saturating_add(copies)
}
