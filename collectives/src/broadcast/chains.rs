// SPDX-License-Identifier: Apache-2.0
//! Along chains of members, in pieces that each passes on.

use super::Broadcast;
use crate::group::Group;
use crate::letters::Way;
use crate::stream::{self, PAGE, Pieces};
use tombolo_core::cost::Costs;

const LINE: usize = 64;

/// What goes which way round the ring of members, which are numbered from the root, in numbered pieces.
///
/// A piece comes to some members from their left, and to all others from their right. No piece goes farther than those
/// that set out before it the same way.
#[derive(Clone, Copy)]
struct Ways {
    n: usize,
    /// Bytes of a piece, but for the last ones, and their number.
    piece: usize,
    count: usize,
    /// How many pieces go to the right, and to the left.
    parts: [usize; 2],
    reach: Reach,
}

/// How far pieces go to the right.
#[derive(Clone, Copy)]
enum Reach {
    /// All to so many members.
    All(usize),
    /// See [`Halves`].
    Halves(Halves),
}

impl Ways {
    /// To the right alone.
    fn chain(n: usize, len: usize, costs: &Costs) -> Ways {
        let (piece, count) = cut(len, n - 1, costs);
        Ways { n, piece, count, parts: [count, 0], reach: Reach::All(n - 1) }
    }

    /// Everything to the right half way round, and to the left for the rest.
    fn half_way(n: usize, len: usize, costs: &Costs) -> Ways {
        let (piece, count) = cut(len, n / 2, costs);
        Ways { n, piece, count, parts: [count; 2], reach: Reach::All(n / 2) }
    }

    /// As far each way as makes everything arrive at the same time.
    fn halves(n: usize, len: usize, costs: &Costs) -> Ways {
        let halves = Halves::of(n, len, costs);
        let Halves { piece, count, .. } = halves;
        let parts = match n {
            // Nothing goes anywhere.
            1 => [count, 0],
            // All but those that go all the way round to the right.
            _ => [halves.going(1), count - halves.going(n - 1)],
        };
        Ways { n, piece, count, parts, reach: Reach::Halves(halves) }
    }

    /// To how many members a piece goes to the right.
    fn rightward(&self, piece: usize) -> usize {
        match self.reach {
            Reach::All(members) => members,
            Reach::Halves(halves) => halves.rightward(piece),
        }
    }

    /// Which piece goes this way as number `index`.
    fn number(&self, way: Way, index: usize) -> usize {
        match (way, self.reach) {
            (Way::Left, Reach::Halves(_)) => self.count - 1 - index,
            _ => index,
        }
    }

    /// To how many members it comes, one after the other.
    fn reach(&self, way: Way, index: usize) -> usize {
        let right = self.rightward(self.number(way, index));
        if way == Way::Right { right } else { self.n - 1 - right }
    }
}

/// Pieces that set out to the right from the first one on, and to the left from the last one on, each as far as there is
/// time.
///
/// A *hop* is the time in which a member receives a piece and hands it on. A piece that sets out a hop later goes to one
/// member fewer, so that all arrive at the same time. A piece at `p`, in hops from the beginning of data that take a link `d`
/// hops, goes to `(d + n - 1) / 2 - p` members to the right, and to the other ones of `n - 1` to the left. With such hops
/// no less time is possible: the last piece that the root sends goes to its neighbour alone.
#[derive(Clone, Copy)]
pub struct Halves {
    n: usize,
    /// Bytes of a piece.
    pub piece: usize,
    /// Number of pieces.
    count: usize,
    /// Bytes that a link carries in the time of a hop.
    hop: usize,
}

impl Halves {
    /// For so many members and bytes.
    pub fn of(n: usize, len: usize, costs: &Costs) -> Halves {
        /// Bytes that a link carries while a member hands on a piece, beside twice those of the piece.
        const HOP: usize = 14_000;
        // Measured: from four members on shorter pieces are better, of which short ones go by turns.
        let links = if n > 3 { 4 * (n - 1) } else { n - 1 };
        let half = len.div_ceil(2).next_multiple_of(LINE);
        let (piece, half) = stream::cut_at_most(half, 4 * links, HALVES_MAX, costs);
        // Where members share processors, a link has nothing to do most of the time.
        let hop = if costs.crowd > 1 { 1 } else { HOP + 2 * piece };
        Halves { n, piece, count: 2 * half, hop }
    }

    /// Twice the time until all have arrived, in bytes that a link carries.
    fn twice(&self) -> usize {
        self.count * self.piece + (self.n - 1) * self.hop
    }

    /// To how many members a piece goes to the right: so many hops are left when half of it has been sent.
    fn rightward(&self, piece: usize) -> usize {
        let left = self.twice().saturating_sub((2 * piece + 1) * self.piece);
        ((left + self.hop) / (2 * self.hop)).min(self.n - 1)
    }

    /// How many pieces go to the right to so many members or more: at least one.
    fn going(&self, members: usize) -> usize {
        let sent = self.twice().saturating_sub((2 * members - 1) * self.hop);
        (sent / self.piece).div_ceil(2).min(self.count)
    }

    /// Bytes that a link at the root carries.
    pub fn busiest(&self) -> usize {
        self.going(1) * self.piece
    }
}

/// Length and number of the pieces in which so many bytes go along so many links.
pub fn cut(len: usize, links: usize, costs: &Costs) -> (usize, usize) {
    // What is passed on and not combined takes a processor a quarter of the time.
    stream::cut(len, 4 * links, costs)
}

/// The longest pieces of halves: from three hosts on longer ones were slower, by up to a half.
const HALVES_MAX: usize = 8 << 10;

/// What goes one way, at a member.
struct Flow<'a> {
    way: Way,
    pieces: Pieces<'a>,
    /// All pieces that go this way.
    count: usize,
    /// How many members a piece has come to when it has come to this one: none at the root.
    place: usize,
    /// The next piece.
    next: usize,
}

/// From member to member in pieces, so that all send at the same time. A member leaves when it has all
/// pieces and may change those that it passed on: others may not have entered yet.
///
/// Why a member that comes late, while its neighbours are many calls ahead, finds what it waits for:
///
/// - The data go to its dest. The program has it ready before the root calls, and until this member has
///   returned: the standard asks that of callers. Of the team's memory only flags of pieces are used.
/// - Each flag has one writer, which sends the next piece with the same flag only when all that it sent
///   with that flag is complete, in this broadcast and in earlier ones: numbers in a flag grow, whatever the
///   order in which puts arrive. So a number that is larger than the one awaited comes from the same
///   neighbour and says as much: the piece is complete, which means visible here.
/// - A piece comes to a member from one side alone. No piece goes farther than those that went before it the
///   same way, so a member that gets no more of a way, or passes no more on, has done with it: the rest comes from
///   the other side.
/// - Nothing is written once a member has left. A piece is not written again after its flag was seen, with
///   which `put_signal` and fences follow the data, and not after it was complete, of which a later flag
///   tells. The program may change its dest.
/// - What a member passed on has been read when it is complete, and what was copied where it left before.
///   The program may change the source at the root, and the dest elsewhere.
///
/// What this means for the collectives before and after is said in [`crate::letters`].
///
/// # Safety
/// As [`super::root_puts`].
unsafe fn along(group: &Group<'_>, call: &Broadcast, ways: Ways) {
    let Some(team) = group.with_memory() else { unreachable!("applies to teams with memory") };
    let number = call.turned(group, group.me);
    let flow = |way: Way, place: usize| {
        let count = ways.parts[way as usize];
        let pieces = Pieces::begin(group, team, way, count).by_turns(ways.piece <= PAGE);
        Flow { way, pieces, count, place, next: 0 }
    };
    // To the left the root is behind the last member.
    let mut flows = [flow(Way::Right, number), flow(Way::Left, (group.n - number) % group.n)];
    let comes = |flow: &Flow<'_>| (1..=ways.reach(flow.way, flow.next)).contains(&flow.place);
    let lacks = |flow: &Flow<'_>| comes(flow) && !flow.pieces.has_come(flow.next);
    // What comes one way does not wait for what comes the other way, which may have more links to pass.
    while flows.iter().any(|flow| flow.next < flow.count) {
        if flows.iter().all(|flow| flow.next == flow.count || lacks(flow)) {
            let awaited =
                |flow: &Flow<'_>| flow.next < flow.count && flow.pieces.has_come(flow.next);
            flows[0].pieces.wait(|| flows.iter().any(awaited));
        }
        for flow in flows.iter_mut().filter(|flow| flow.next < flow.count && !lacks(flow)) {
            let piece = ways.number(flow.way, flow.next);
            let start = call.len.min(piece * ways.piece);
            let len = call.len.min(start + ways.piece) - start;
            let (dest, data) =
                (call.dest.wrapping_add(start), call.data(group).wrapping_add(start));
            if flow.place < ways.reach(flow.way, flow.next) {
                // SAFETY: the data stay as they are until the pieces are released; the member's dest is
                // ready before any of them calls.
                unsafe { flow.pieces.send(flow.next, dest, data, len) };
            }
            // The root's copies, while the piece is in the cache: once of what goes both ways.
            let keeps = flow.way == Way::Right || piece >= ways.parts[Way::Right as usize];
            if keeps && group.me == call.root && call.reaches(group, group.me) {
                // SAFETY: the caller's promise.
                unsafe { data.copy_to(dest, len) };
            }
            flow.next += 1;
        }
    }
    flows.iter().for_each(|flow| flow.pieces.release());
}

/// From member to member, to the right.
///
/// # Safety
/// As [`super::root_puts`].
pub unsafe fn chain(group: &Group<'_>, call: &Broadcast) {
    // SAFETY: the caller's promise.
    unsafe { along(group, call, Ways::chain(group.n, call.len, group.world.costs())) };
}

/// To the right half way round the ring of members, and to the left for the rest.
///
/// # Safety
/// As [`super::root_puts`].
pub unsafe fn both_ways(group: &Group<'_>, call: &Broadcast) {
    // SAFETY: the caller's promise.
    unsafe { along(group, call, Ways::half_way(group.n, call.len, group.world.costs())) };
}

/// The beginning of the data to the right round the ring of members, and the end to the left. What would arrive late so
/// goes a part of the way from either side: see [`Halves`].
///
/// # Safety
/// As [`super::root_puts`].
pub unsafe fn halves(group: &Group<'_>, call: &Broadcast) {
    // SAFETY: the caller's promise.
    unsafe { along(group, call, Ways::halves(group.n, call.len, group.world.costs())) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_piece_comes_to_every_member_once() {
        let (alone, crowded) = (Costs::default(), Costs { crowd: 2, ..Costs::default() });
        for n in 1..=64 {
            for len in [0, 8, 1000, 4 << 10, 100_000, 1 << 20, 4 << 20] {
                let cuts = [Ways::chain, Ways::half_way, Ways::halves];
                for ways in cuts.iter().flat_map(|cut| [&alone, &crowded].map(|c| cut(n, len, c))) {
                    assert!(ways.count * ways.piece >= len, "{len} bytes on {n}");
                    // By member: those that came.
                    let mut come = vec![vec![0; ways.count]; n];
                    for way in [Way::Right, Way::Left] {
                        let goes = |piece| {
                            let right = ways.rightward(piece);
                            if way == Way::Right { right > 0 } else { right < n - 1 }
                        };
                        let going = (0..ways.count).filter(|piece| goes(*piece)).count();
                        assert!(going <= ways.parts[way as usize], "{len} bytes on {n}");
                        let far = |index| ways.reach(way, index);
                        assert!(
                            (0..ways.parts[way as usize]).is_sorted_by(|a, b| far(*a) >= far(*b))
                        );
                        for index in 0..ways.parts[way as usize] {
                            for place in 1..=ways.reach(way, index) {
                                let member = if way == Way::Right { place } else { n - place };
                                come[member][ways.number(way, index)] += 1;
                            }
                        }
                    }
                    let once = |pieces: &Vec<i32>| pieces.iter().all(|times| *times == 1);
                    assert!(come[1..].iter().all(once), "{len} bytes on {n}: {come:?}");
                    assert!(come[0].iter().all(|times| *times == 0));
                }
            }
        }
    }

    #[test]
    fn what_goes_both_ways_grows_with_the_members() {
        let alone = &Costs::default();
        // What a link at the root carries beyond half of the data.
        let more = |n, len: usize| Halves::of(n, len, alone).busiest().saturating_sub(len / 2);
        assert_eq!(more(2, 1 << 20), 0, "one link is enough");
        let parts = [3, 4, 8, 16, 32, 64].map(|n| more(n, 1 << 20));
        assert!(parts.is_sorted() && parts[0] > 0 && parts[5] < 1 << 20, "{parts:?}");
        // Everything, where the data are short.
        assert!(more(64, 64 << 10) >= 32 << 10);
    }

    #[test]
    fn everything_arrives_within_a_hop_of_the_bound() {
        let halves = Halves::of(16, 4 << 20, &Costs::default());
        let arrival =
            |index: usize, members: usize| (index + 1) * halves.piece + members * halves.hop;
        let ways = Ways::halves(16, 4 << 20, &Costs::default());
        let last = |way: Way| {
            let index = 0..ways.parts[way as usize];
            index.map(|index| arrival(index, ways.reach(way, index))).max().unwrap_or(0)
        };
        let bound = (halves.count * halves.piece + 15 * halves.hop) / 2;
        for way in [Way::Right, Way::Left] {
            assert!(last(way) <= bound + halves.hop, "{way:?}: {} of {bound}", last(way));
        }
    }
}
