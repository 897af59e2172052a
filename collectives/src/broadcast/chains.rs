// SPDX-License-Identifier: Apache-2.0
//! Along chains of members, in pieces that each passes on.

use super::Broadcast;
use crate::group::Group;
use crate::letters::Way;
use crate::stream::{self, PAGE, Pieces};
use tombolo_core::cost::Costs;

const LINE: usize = 64;

/// What goes which way round the ring of members, which are numbered from the root, in numbered pieces.
#[derive(Clone, Copy)]
struct Ways {
    n: usize,
    /// Bytes of a piece, but for the last ones, and their number.
    piece: usize,
    count: usize,
    /// By way.
    parts: [Part; 2],
}

/// The pieces that go one way.
#[derive(Clone, Copy)]
struct Part {
    count: usize,
    /// Those of them that go first, all the way round. The others go both ways, half way round.
    around: usize,
}

impl Ways {
    /// To the right alone.
    fn chain(n: usize, len: usize, costs: &Costs) -> Ways {
        let (piece, count) = cut(len, n - 1, costs);
        let nothing = Part { count: 0, around: 0 };
        Ways { n, piece, count, parts: [Part { count, around: count }, nothing] }
    }

    /// Everything to the right half way round, and to the left for the rest.
    fn half_way(n: usize, len: usize, costs: &Costs) -> Ways {
        let (piece, count) = cut(len, n / 2, costs);
        Ways { n, piece, count, parts: [Part { count, around: 0 }; 2] }
    }

    /// Half of the data all the way round to the right, and half to the left, but for a middle part, which goes as
    /// with [`Ways::half_way`].
    fn halves(n: usize, len: usize, costs: &Costs) -> Ways {
        let Halves { piece, half, middle } = Halves::of(n, len, costs);
        let part = Part { count: half + middle, around: half - middle };
        Ways { n, piece, count: 2 * half, parts: [part; 2] }
    }

    /// Which piece goes this way as number `index`. What goes to the left alone is the end of the data.
    fn number(&self, way: Way, index: usize) -> usize {
        match way {
            Way::Left if index < self.parts[Way::Left as usize].around => self.count - 1 - index,
            _ => index,
        }
    }

    /// To how many members it comes, one after the other.
    fn reach(&self, way: Way, index: usize) -> usize {
        match way {
            _ if index < self.parts[way as usize].around => self.n - 1,
            Way::Right => self.n / 2,
            Way::Left => self.n - 1 - self.n / 2,
        }
    }
}

/// How the data are cut that go half each way.
pub struct Halves {
    /// Bytes of a piece.
    pub piece: usize,
    /// Pieces of half of the data.
    half: usize,
    /// Pieces of half of the middle part.
    middle: usize,
}

impl Halves {
    /// A middle part is more for the links at the root to carry, but passes half of the members only. It
    /// is so long that it arrives when what goes all the way round does.
    pub fn of(n: usize, len: usize, costs: &Costs) -> Halves {
        /// Bytes that a link carries while a member hands on a piece, beside twice those of the piece.
        const HOP: usize = 12_000;
        // Measured: from four members on shorter pieces are better, of which short ones go by turns.
        let links = if n > 3 { 4 * (n - 1) } else { n - 1 };
        let len = len.div_ceil(2).next_multiple_of(LINE);
        let (piece, half) = stream::cut_at_most(len, 4 * links, HALVES_MAX, costs);
        let hops = if costs.crowd > 1 { 0 } else { (n / 2).saturating_sub(1) };
        let middle = (hops * (HOP + 2 * piece)).div_ceil(2 * piece).min(half);
        Halves { piece, half, middle }
    }

    /// Bytes of the middle part.
    pub fn middle_bytes(&self) -> usize {
        2 * self.middle * self.piece
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
/// - A piece comes to a member from one side alone. Those that go all the way round are the first ones of a
///   way, so a member that gets no more of it, or passes no more on, has done with that way: what is behind
///   half way comes from the other side.
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
        let count = ways.parts[way as usize].count;
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
            let keeps = flow.way == Way::Right || flow.next < ways.parts[Way::Left as usize].around;
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

/// Half of the data each way all round the ring of members, but for a middle part, which goes both ways half
/// round: so large that all arrives at the same time.
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
        for n in 2..=64 {
            for len in [0, 8, 1000, 4 << 10, 100_000, 1 << 20, 4 << 20] {
                let cuts = [Ways::chain, Ways::half_way, Ways::halves];
                for ways in cuts.iter().flat_map(|cut| [&alone, &crowded].map(|c| cut(n, len, c))) {
                    assert!(ways.count * ways.piece >= len, "{len} bytes on {n}");
                    // By member: those that came.
                    let mut come = vec![vec![0; ways.count]; n];
                    for way in [Way::Right, Way::Left] {
                        for index in 0..ways.parts[way as usize].count {
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
    fn the_middle_part_grows_with_the_members() {
        let alone = &Costs::default();
        for n in [2, 3] {
            // No link carries more than half.
            assert_eq!(Halves::of(n, 1 << 20, alone).middle_bytes(), 0);
        }
        let parts = [4, 8, 16, 32, 64].map(|n| Halves::of(n, 1 << 20, alone).middle_bytes());
        assert!(parts.is_sorted() && parts[0] > 0 && parts[4] < 1 << 20, "{parts:?}");
        // Everything, where the data are short.
        let short = Halves::of(64, 64 << 10, alone);
        assert_eq!(short.middle, short.half);
    }
}
