// SPDX-License-Identifier: Apache-2.0
//! What algorithms are expected to take, in nanoseconds, by the times of single operations.
//!
//! - A *step* is one in which members wait for what others send at the same time: a one-way latency,
//!   and where PEs share processors, waiting for one.
//! - Work that all members do at the same time takes as many times as long as PEs share a processor.

use crate::group::Group;
use crate::letters::{COPIED_MAX, SHORT_MAX};
use crate::notes::Hosts;
use crate::schedule::rounds;
use crate::stream::{HANDING_ON, piece_of};
use crate::strided::{doubled_max, exchanged_max, passed_max};
use tombolo_core::control::BLOCK_MEMBERS;
use tombolo_core::cost::{Costs, LINE_NS};
use tombolo_core::transport::Distance;

mod broadcast;
mod reduce;

pub use broadcast::*;
pub use reduce::*;

const LINE: u64 = LINE_NS as u64;
/// Up to this size what others write to memory of the team stays in the nearest cache.
const NEAR_MAX: usize = 8 << 10;
/// Bytes that travel in the header of a packet.
const INLINE: usize = 24;
/// What passing a message on takes a host that is on its way.
const RELAY: u64 = 130;
/// See [`woken`].
const WOKEN: u64 = 5000;
/// Bytes that the caches of a processor hold.
const CACHED_MAX: usize = 1 << 20;

fn costs<'a>(group: &Group<'a>) -> &'a Costs {
    group.world.costs()
}

fn hosts<'a>(group: &Group<'a>) -> Option<&'a Hosts> {
    group.notes().map(|notes| &notes.hosts)
}

fn others(group: &Group<'_>) -> u64 {
    group.n as u64 - 1
}

/// All wait for messages that all send.
fn step(group: &Group<'_>) -> u64 {
    costs(group).notice_ns(group.extent())
}

/// The largest distance between members that follow each other.
fn next(group: &Group<'_>) -> Distance {
    hosts(group).map_or(group.extent(), |hosts| hosts.step)
}

/// All meet, as they would by themselves.
fn sync(group: &Group<'_>) -> u64 {
    let dissemination = sync_by_dissemination(group);
    if group.with_memory().is_none() {
        return dissemination;
    }
    let others = [sync_by_all, sync_both_ways, sync_by_first, sync_by_hosts];
    others.into_iter().fold(dissemination, |least, by| least.min(by(group)))
}

/// All meet by dissemination. Sending a flag counts where PEs wait for each other's processors.
pub fn sync_by_dissemination(group: &Group<'_>) -> u64 {
    let (costs, rounds) = (costs(group), rounds(group.n) as u64);
    let flags = if costs.crowd > 1 { rounds * (put(group, 8) + LINE) } else { 0 };
    step(group) * rounds + costs.shared_ns(flags)
}

/// Whether members meet over a network while they share processors, as those of several hosts on one machine do.
fn shares_over_network(group: &Group<'_>) -> bool {
    costs(group).crowd > 1 && group.extent() == Distance::Network
}

/// All tell the first, which tells all: where messages take time of processors that PEs share, as it was measured
/// there. Each takes that of the first one for at least half of the time that it is under way.
pub fn sync_by_first(group: &Group<'_>) -> u64 {
    if !shares_over_network(group) {
        return u64::MAX;
    }
    let (costs, others) = (costs(group), others(group));
    let flag = (put(group, 8) + LINE).max(costs.latency_ns(Distance::Network) / 2);
    let of_all = costs.shared_ns(2 * others * flag) / group.n as u64;
    2 * step(group) + of_all.max(others * flag)
}

/// Each tells all. For more members than a block of memory has places for this promises too much: 128 PEs on two
/// processors took 1.4 times as long as by dissemination, 96 of them 0.6 times.
pub fn sync_by_all(group: &Group<'_>) -> u64 {
    if group.n > BLOCK_MEMBERS {
        return u64::MAX;
    }
    let flags = others(group) * (put(group, 8) + LINE) + passed_on(group);
    costs(group).shared_ns(flags) + step(group)
}

/// Each tells its neighbours, in so many steps.
pub fn sync_both_ways(group: &Group<'_>) -> u64 {
    both_steps(group, 8)
}

/// Steps of going round the ring of members both ways with so many bytes. Who waits is woken once for what comes from
/// both sides.
fn both_steps(group: &Group<'_>, len: usize) -> u64 {
    let (costs, next) = (costs(group), next(group));
    let half = group.n as u64 / 2;
    let message = costs.put_ns(next, len) + LINE + woken(group) / 2;
    half * costs.notice_ns(next) + costs.shared_ns(others(group) * message)
}

/// Blocks go both ways round the ring of members, in pieces.
pub fn both_ways(group: &Group<'_>, len: usize) -> u64 {
    let messages = both_links(group, others(group), len) + others(group) * woken(group) / 2;
    let work = costs(group).shared_ns(messages);
    let links = group.n / 2;
    let way = match is_ring(group) {
        true => {
            let piece = piece_of(len, links, costs(group));
            passing_on_by(group, len, links, piece) + last_put(group)
        }
        false => pipeline(group, len, links),
    };
    work + copied(group, len) + way + flags(group)
}

/// So many puts to neighbours, half of what they carry each way: what is the processor's of a put takes
/// as long. Between two hosts puts may use both links by themselves.
fn both_links(group: &Group<'_>, puts: u64, len: usize) -> u64 {
    let (costs, next) = (costs(group), next(group));
    let (whole, short) = (costs.put_ns(next, len), costs.put_ns(next, len.min(8)));
    let carried = whole.saturating_sub(short);
    // More than a half, because members take in and send at the same time.
    puts * if is_ring(group) { short + carried * 5 / 8 } else { whole }
}

/// Whether members send both ways at the same time: on three hosts or more, where each has a processor, and
/// on two where each of two members has one for itself and one for each of the two links.
fn is_ring(group: &Group<'_>) -> bool {
    let (hosts, costs) = (hosts(group).map_or(1, |hosts| hosts.leaders.len()), costs(group));
    let two = hosts == 2 && group.n == 2 && matches!(group.extent(), Distance::Hops(_));
    hosts > 2 && costs.crowd <= 1 || two && costs.processors > 2
}

/// Two members send each other a block in pieces. More pass blocks on, in parts.
pub fn exchange_both_ways(group: &Group<'_>, len: usize) -> u64 {
    /// Where members have processors for both links, signals took less time on 4 to 24 simulated hosts.
    const MEMBERS_MIN: usize = 32;
    match group.n {
        2 if is_ring(group) => both_ways(group, len),
        2 => u64::MAX,
        n if n < MEMBERS_MIN && is_ring(group) => u64::MAX,
        _ => pass_in_parts(group, len),
    }
}

/// Each sends its blocks for others both ways round the ring of members, in parts, and each takes its own: across hosts.
pub fn pass_in_parts(group: &Group<'_>, len: usize) -> u64 {
    if !group.extent().is_remote() {
        return u64::MAX;
    }
    let (costs, next, n) = (costs(group), next(group), group.n);
    let (right, left) = (n / 2, (n - 1) / 2);
    // Blocks in all messages of a member.
    let blocks = right * (right + 1) / 2 + left * (left + 1) / 2;
    let part = |len: usize| {
        let short = costs.put_ns(next, 8);
        let carried = costs.put_ns(next, blocks * len).saturating_sub(short);
        let carried = if is_ring(group) { carried * 5 / 8 } else { carried };
        let messages = others(group) * (short + LINE + woken(group) / 2);
        let copies = 2 * copied(group, (n - 1) * len);
        let waits = right as u64 * (costs.notice_ns(next) + handing_on(group, right * len));
        costs.shared_ns(messages + carried + copies) + waits
    };
    in_parts(len, passed_max(n), part)
}

/// What `part` tells of so many bytes, for each of the parts of at most so many bytes.
fn in_parts(len: usize, most: usize, part: impl Fn(usize) -> u64) -> u64 {
    let most = most.max(1);
    let whole = (len / most) as u64;
    let rest = if !len.is_multiple_of(most) || len == 0 { part(len % most) } else { 0 };
    whole.saturating_mul(part(most)).saturating_add(rest)
}

/// Half of all blocks, to one at twice the distance in each round.
pub fn exchange_doubling(group: &Group<'_>, len: usize) -> u64 {
    let n = group.n;
    let part = |len: usize| {
        let half = n / 2 * len;
        let work = letter(group, half) + 2 * copied(group, half) + LINE;
        let wait = step(group) + handing_on_to_all(group, half);
        let packed = 2 * copied(group, (n - 1) * len);
        costs(group).shared_ns(packed + rounds(n) as u64 * work) + rounds(n) as u64 * wait
    };
    in_parts(len, doubled_max(n), part)
}

/// Blocks whose elements lie apart, in parts by memory of the team.
pub fn exchange_in_parts(group: &Group<'_>, len: usize) -> u64 {
    let part = |len: usize| {
        // On one host what does not fit a line takes longer than a put to where it belongs, as it was measured.
        let line = if len > SHORT_MAX && !group.extent().is_remote() { LINE } else { 0 };
        let packed = 2 * others(group) * (copied(group, len) + line);
        letters(group, len) + costs(group).shared_ns(packed)
    };
    in_parts(len, exchanged_max(group.n), part)
}

/// Each puts such blocks to each by itself, elements of 8 bytes, and all meet.
pub fn put_elements(group: &Group<'_>, len: usize) -> u64 {
    if !group.extent().is_remote() {
        return all_put(group, len);
    }
    let elements = others(group).saturating_mul(len as u64 / 8);
    costs(group).shared_ns(elements.saturating_mul(put(group, 8))) + all_put(group, 8)
}

/// Pieces of so many bytes go along so many links, one piece after the other: what goes on beside the work
/// of sending all of them.
fn pipeline(group: &Group<'_>, len: usize, links: usize) -> u64 {
    pipeline_of(group, len, links, piece_of(len, links, costs(group)))
}

/// The same in pieces of so many bytes.
fn pipeline_of(group: &Group<'_>, len: usize, links: usize, piece: usize) -> u64 {
    let (costs, next) = (costs(group), next(group));
    let first = costs.notice_ns(next) + costs.put_ns(next, len.min(piece));
    let waits = len.div_ceil(piece).max(1) as u64 - 1;
    links as u64 * first + waits * (LINE + costs.switch_ns())
}

/// What handing a piece on takes each member beside the time of the piece on the link: counted where
/// members send both ways, as it was measured there.
fn handing_on(group: &Group<'_>, piece: usize) -> u64 {
    if !is_ring(group) {
        return 0;
    }
    let (costs, next) = (costs(group), next(group));
    // Something short sets out at once.
    let late = costs.put_ns(next, HANDING_ON.min(16 * piece));
    LINE + late.saturating_sub(costs.put_ns(next, 8))
}

/// The same on the way to the farthest member, for something that hosts pass on.
fn handing_on_to_all(group: &Group<'_>, len: usize) -> u64 {
    let hops = match group.extent() {
        Distance::Hops(hops) => u64::from(hops),
        _ => 1,
    };
    hops * handing_on(group, len)
}

/// The same in pieces of so many bytes, where members send both ways. One piece is among the work of
/// sending all.
fn passing_on_by(group: &Group<'_>, len: usize, links: usize, piece: usize) -> u64 {
    let (piece, costs) = (len.min(piece), costs(group));
    let late = links as u64 * handing_on(group, piece);
    let way = pipeline_of(group, len, links, piece.max(1)) + late;
    way.saturating_sub(costs.put_ns(next(group), piece))
}

/// Whether so many PEs share a processor that those that wait for messages over links sleep, and are woken for each:
/// from three to four the time of an exchange of each with each grew eightfold.
fn is_crowd(group: &Group<'_>) -> bool {
    costs(group).crowd > 3 && matches!(group.extent(), Distance::Hops(_))
}

/// What it takes the processor of such a PE to be woken.
fn woken(group: &Group<'_>) -> u64 {
    if is_crowd(group) { WOKEN } else { 0 }
}

/// The hosts of members where one of them has at least so many over networks; over links at least four, and a crowd,
/// as it was measured on two, three and four hosts.
fn crowded_hosts<'a>(group: &Group<'a>, least: usize) -> Option<&'a Hosts> {
    let least = match group.extent() {
        Distance::Network => least,
        _ if is_crowd(group) => 4,
        _ => return None,
    };
    hosts(group).filter(|hosts| hosts.most >= least)
}

/// Each member of a host tells the first, which tells each. Where they share processors over a network, all of them tell
/// it, and see that they are told, while it waits for its turn.
fn here_and_back(group: &Group<'_>, hosts: &Hosts) -> u64 {
    let waits = if shares_over_network(group) { 2 } else { 2 + hosts.most as u64 };
    waits * costs(group).notice_ns(Distance::Host)
}

/// Members of a host come to one and are told by it; these meet by dissemination.
pub fn sync_by_hosts(group: &Group<'_>) -> u64 {
    let Some(hosts) = led_hosts(group) else { return u64::MAX };
    here_and_back(group, hosts) + step(group) * rounds(hosts.leaders.len()) as u64
}

/// The hosts of members whose first ones send for all. Over networks taken where hosts have more than two
/// members, or two that share a processor, as it was measured.
fn led_hosts<'a>(group: &Group<'a>) -> Option<&'a Hosts> {
    crowded_hosts(group, if costs(group).crowd > 1 { 2 } else { 3 })
}

/// The first members of hosts send each other so many bytes.
fn by_hosts(group: &Group<'_>, bytes: usize) -> u64 {
    let Some(hosts) = led_hosts(group) else { return u64::MAX };
    let others = hosts.leaders.len() as u64 - 1;
    here_and_back(group, hosts) + others * letter(group, bytes) + step(group)
}

/// First members send each other the blocks of their hosts, and write those of all to the other members.
pub fn gather_by_hosts(group: &Group<'_>, len: usize) -> u64 {
    let most = hosts(group).map_or(1, |hosts| hosts.most);
    let copies = (most as u64 - 1) * copied(group, group.n * len) + copied(group, len);
    by_hosts(group, most * len).saturating_add(copies)
}

/// The same with lengths first: with two members on each host it took longer than [`collect_eager`].
pub fn collect_by_hosts(group: &Group<'_>) -> u64 {
    match crowded_hosts(group, 3) {
        Some(_) => gather_by_hosts(group, 8).saturating_mul(2),
        None => u64::MAX,
    }
}

/// First members send each other what the members of their hosts have for those of another, and give each member what
/// all have for it.
pub fn exchange_by_hosts(group: &Group<'_>, len: usize) -> u64 {
    let most = hosts(group).map_or(1, |hosts| hosts.most);
    // In from each member, out to other hosts, and both together to each member.
    let copies = 3 * most as u64 * copied(group, group.n * len);
    by_hosts(group, most * most * len).saturating_add(copies)
}

/// A put to one that waits for it.
fn put(group: &Group<'_>, bytes: usize) -> u64 {
    costs(group).put_ns(group.extent(), bytes) + woken(group)
}

/// Elements that are combined, or bytes that are copied within a host.
fn copied(group: &Group<'_>, bytes: usize) -> u64 {
    costs(group).get_ns(Distance::Host, bytes)
}

/// What puts take to arrive after they have returned.
fn arrival(group: &Group<'_>) -> u64 {
    costs(group).arrival_ns(group.extent())
}

/// What flags take that come in lines of their own, after data: across hosts each is one more put, counted where
/// it was measured.
fn flags(group: &Group<'_>) -> u64 {
    match group.extent().is_remote() {
        false => LINE / 2,
        true if is_pair(group) => LINE,
        true => 0,
    }
}

/// Whether the members are two on two hosts, each with a processor that makes its puts.
fn is_pair(group: &Group<'_>) -> bool {
    let by_links = matches!(group.extent(), Distance::Hops(_));
    group.n == 2 && by_links && costs(group).crowd <= 1 && !is_ring(group)
}

/// A get from a PE of another host, whose processor takes part in it: while it waits for others, or does
/// as much for them, that takes longer than it was measured alone.
fn request(group: &Group<'_>, len: usize) -> u64 {
    3 * costs(group).get_ns(group.extent(), len) + 4 * costs(group).switch_ns()
}

/// Lengths first, then as [`all_put`].
pub fn collect_put(group: &Group<'_>) -> u64 {
    2 * sync(group) + published(group, 8)
}

/// All read what all have published.
fn published(group: &Group<'_>, bytes: usize) -> u64 {
    match group.extent().is_remote() {
        // After a flag was read; the reads of several members' lines overlap.
        false => LINE / 2 + others(group) * bytes.div_ceil(64) as u64 * LINE / 2,
        true => others(group) * request(group, bytes),
    }
}

/// Each puts so many bytes to each, and all meet. Across hosts they wait until all have arrived, while each
/// copies its own.
pub fn all_put(group: &Group<'_>, len: usize) -> u64 {
    let own = copied(group, len);
    let late = arrival(group).saturating_sub(own).max(last_put(group));
    let work = costs(group).shared_ns(to_all(group, len) + own);
    work + late + handing_on_to_all(group, len) + sync(group) + flags(group)
}

/// Each puts so many bytes to each, with signals. These are on their way while each goes on, last with its own
/// bytes: so it was measured with one PE on each of two hosts, and on one host up to 16 KiB, not with 64 KiB.
pub fn signals(group: &Group<'_>, len: usize) -> u64 {
    signals_after(group, len, LINE, last_put(group))
}

/// The same of blocks, by two messages: where members send both ways short ones go by more lanes, and nobody waits for
/// what was copied.
pub fn blocks_by_signals(group: &Group<'_>, len: usize) -> u64 {
    match is_ring(group) && len <= COPIED_MAX {
        true => signals_after(group, len, LINE / 2, 0),
        false => signals(group, len),
    }
}

/// The same with what a flag takes, and the wait for the last put.
fn signals_after(group: &Group<'_>, len: usize, flag: u64, last: u64) -> u64 {
    let (costs, own) = (costs(group), copied(group, len));
    let here = costs.crowd <= 1 && !group.extent().is_remote() && len <= 2 * NEAR_MAX;
    let alone = here || is_pair(group);
    let (flag, meanwhile) = if alone { (flags(group), own.min(step(group))) } else { (flag, 0) };
    let work = to_all(group, len) + others(group) * flag + own;
    let wait = step(group) + last + handing_on_to_all(group, len);
    costs.shared_ns(work) + wait - meanwhile
}

/// Non-blocking puts to neighbours are waited for at the end: counted where members send both ways.
fn last_put(group: &Group<'_>) -> u64 {
    if is_ring(group) { costs(group).latency_ns(next(group)) } else { 0 }
}

/// Each puts so many bytes to each, which on a ring of hosts pass half of them on the way to the farthest:
/// either the processor of each is busy for longest, or a link.
fn to_all(group: &Group<'_>, len: usize) -> u64 {
    let (costs, n) = (costs(group), group.n as u64);
    let carried = match group.extent() {
        Distance::Hops(2..) => {
            costs.put_ns(next(group), len).saturating_sub(costs.put_ns(next(group), 8))
        }
        _ => 0,
    };
    (others(group) * put(group, len)).max(n * n / 8 * carried) + passed_on(group)
}

/// What all send each passes on a ring of hosts, for the processor of a member.
fn passed_on(group: &Group<'_>) -> u64 {
    let (Some(hosts), Distance::Hops(2..)) = (hosts(group), group.extent()) else { return 0 };
    let links = group.n as u64 * hosts.leaders.len() as u64 / 4;
    links.saturating_sub(group.n as u64 - hosts.most as u64) * RELAY
}

/// Messages to all go by two lanes, with signals by four: what hosts pass on is late by so much. Long ones wait
/// for other things as well.
fn by_two(group: &Group<'_>, len: usize) -> u64 {
    match is_ring(group) {
        true if len <= INLINE => passed_on(group),
        true => passed_on(group) / 4,
        false => 0,
    }
}

/// A message of so many bytes from each to each.
pub fn letters(group: &Group<'_>, len: usize) -> u64 {
    let remote = group.extent().is_remote();
    // What is short is read with its flag.
    let read = match len <= SHORT_MAX && (!remote || is_pair(group)) {
        true => 0,
        false => read(len) + if remote { flags(group) } else { 0 },
    };
    let work = to_all(group, len) + others(group) * read + copied(group, len);
    costs(group).shared_ns(work) + step(group) + handing_on_to_all(group, len) + by_two(group, len)
}

/// A message among others, written and read.
fn letter(group: &Group<'_>, bytes: usize) -> u64 {
    put(group, bytes) + read(bytes)
}

/// Bytes read from memory of the team that another PE has just written.
fn read(bytes: usize) -> u64 {
    let lines = bytes.div_ceil(64) as u64;
    if bytes <= SHORT_MAX {
        // Lines are fetched from others' caches, several at a time.
        LINE / 2
    } else if bytes <= NEAR_MAX {
        lines * LINE / 6
    } else if bytes <= 4 * NEAR_MAX {
        lines * LINE / 8
    } else {
        lines * LINE / 5
    }
}

/// Each sends each its share of so many bytes.
fn shares(group: &Group<'_>, bytes: usize) -> u64 {
    others(group) * put(group, share_of(group, bytes))
}

/// Short arrays have fewer shares than members.
fn share_of(group: &Group<'_>, bytes: usize) -> usize {
    bytes.div_ceil(group.n).max(64)
}

/// Shares of so many bytes go round the ring of members.
fn ring(group: &Group<'_>, bytes: usize) -> u64 {
    let (costs, next) = (costs(group), next(group));
    let share = share_of(group, bytes);
    let work = costs.shared_ns(costs.put_ns(next, share) + LINE + woken(group));
    others(group) * (costs.notice_ns(next) + work + handing_on(group, share))
}

/// Blocks go round the ring of members.
pub fn gather_ring(group: &Group<'_>, len: usize) -> u64 {
    ring(group, len * group.n) + costs(group).shared_ns(copied(group, len)) + last_put(group)
}

/// Lengths to all, with the blocks where all of them are short; otherwise these follow.
pub fn collect_signal(group: &Group<'_>) -> u64 {
    letters(group, 8) + step(group) / 2
}

/// Lengths to all with the blocks: taken across hosts, as it was measured there, but not by two members that wait for
/// nobody's processor.
pub fn collect_eager(group: &Group<'_>) -> u64 {
    let taken = group.extent().is_remote() && !is_pair(group);
    if taken { letters(group, 8) } else { u64::MAX }
}

/// All that a member has to one that lacks it: taken over networks where PEs share processors, as it was measured
/// there.
pub fn gather_doubling(group: &Group<'_>, len: usize) -> u64 {
    let costs = costs(group);
    if costs.crowd <= 1 || group.extent() != Distance::Network {
        return u64::MAX;
    }
    let message = |round: usize| {
        let distance = 1usize << round;
        let bytes = distance.min(group.n - distance) * len;
        letter(group, bytes) + copied(group, bytes) + LINE
    };
    let rounds = rounds(group.n);
    costs.shared_ns((0..rounds).map(message).sum()) + rounds as u64 * step(group)
}
