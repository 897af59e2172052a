// SPDX-License-Identifier: Apache-2.0
//! Reductions in which the elements of a share come to one member from both sides of the ring of members.

use crate::group::Group;
use crate::letters::Way;
use crate::reduce::Reduce;
use crate::reduce_push::{AHEAD, ring, team};
use crate::stream::{self, PAGE, Pieces};
use crate::table::Call;
use std::ops::Range;

const WAYS: [Way; 2] = [Way::Right, Way::Left];

/// Who sends what when.
///
/// Each member *owns* a share. The elements of a share begin their way at the two members that are farthest from
/// its owner, one on either side; each member on the way adds its own, and the owner what came from both
/// sides. The result goes back the same ways. Steps from member to member are *hops*; the hops of the
/// elements and of the result are numbered from 0, alike for all shares.
#[derive(Clone, Copy)]
struct Plan {
    n: usize,
    me: usize,
    /// Members whose elements come to an owner from its left, and on whose left the result comes back.
    right: usize,
    /// Those on its right: as many, or one fewer.
    left: usize,
    /// Elements of all shares, and of each but the last one, which may be shorter.
    nelems: usize,
    each: usize,
}

impl Plan {
    /// None where there are too few members or elements: see [`meet`].
    fn new(n: usize, me: usize, nelems: usize, grain: usize) -> Option<Plan> {
        let each = nelems.div_ceil(n).max(1).next_multiple_of(grain);
        let (alike, full) = (n * each == nelems, (n - 1) * each <= nelems);
        let plan = Plan { n, me, right: n / 2, left: (n - 1) / 2, nelems, each };
        (n >= 5 && full || n == 4 && alike).then_some(plan)
    }

    /// The last hop has nothing to send.
    fn hops(&self) -> usize {
        2 * self.right + 1
    }

    /// Hops of the elements that go this way.
    fn inwards(&self, way: Way) -> usize {
        if way == Way::Right { self.right } else { self.left }
    }

    /// The share of which a member sends pieces this way in a hop: elements, then results.
    fn sends(&self, way: Way, hop: usize) -> Option<usize> {
        let Plan { n, me, right, left, .. } = *self;
        let outwards = if way == Way::Right { left } else { right };
        let inwards = self.inwards(way);
        // How much farther this way its owner is.
        let ahead = match hop {
            hop if hop < inwards => inwards - hop,
            hop if (right..right + outwards).contains(&hop) => n - (hop - right),
            _ => return None,
        };
        Some(if way == Way::Right { me + ahead } else { me + n - ahead } % n)
    }

    /// Whether a member gets pieces that go this way in a hop: those that were sent in the one before.
    fn receives(&self, way: Way, hop: usize) -> bool {
        hop > 0 && self.sends(way, hop - 1).is_some()
    }

    /// Hops and numbers of pieces, `count` of each share, in the order in which a member takes them.
    fn steps(&self, count: usize) -> impl Iterator<Item = (usize, usize)> {
        let hops = self.hops();
        // In a turn each piece that is under way takes its next hop.
        (0..count + (hops - 1) * AHEAD).flat_map(move |turn| {
            let first = (turn + 1).saturating_sub(count).div_ceil(AHEAD);
            (first..hops.min(turn / AHEAD + 1)).map(move |hop| (hop, turn - hop * AHEAD))
        })
    }

    fn share(&self, number: usize) -> Range<usize> {
        self.nelems.min(number * self.each)..self.nelems.min((number + 1) * self.each)
    }

    /// The share in whose place in the dest the owner of a share gets what comes from its right: one whose
    /// elements begin their way at this owner. Of the two, one is not the last, which may be shorter.
    fn beside(&self, owner: usize) -> usize {
        let (far, other) = ((owner + self.right) % self.n, (owner + self.n - self.left) % self.n);
        if self.share(far).len() >= self.share(owner).len() { far } else { other }
    }

    /// In which share's place what is sent arrives.
    fn place(&self, way: Way, hop: usize, share: usize) -> usize {
        if way == Way::Left && hop + 1 == self.left { self.beside(share) } else { share }
    }

    /// Piece number `piece` of a share, of so many elements.
    fn piece(&self, share: usize, piece: usize, len: usize) -> Range<usize> {
        let share = self.share(share);
        let start = share.end.min(share.start + piece * len);
        start..share.end.min(start + len)
    }
}

/// Every share is combined by the member that owns it, half way round the ring of members: elements come to
/// it from both sides, each member on the way adds its own, and the result goes back the same ways. Each
/// link carries as much as with [`ring`], in half as many hops.
///
/// As with [`ring`], what others have combined goes to the dest of the next member, in pieces, and a member
/// lets other pieces go on before it goes on with those that it has to wait for.
///
/// Why nothing is overwritten that is still to be read, in whatever order puts arrive:
///
/// - A piece that was seen is not written again ([`crate::letters`]): a member adds its elements where
///   those of others arrived.
/// - Elements arrive in the place to which the result comes later. That comes from the member to which the
///   elements went on, and depends on them: it has read them.
/// - An owner gets pieces from both sides. What comes from its right goes to the place of another share,
///   whose elements begin at this owner, in its source: nothing but the result comes to that place. This
///   result comes from a neighbour that sends it after it has received this owner's result of the same
///   piece, which the owner sends after it has read both. The neighbour gets the owner's result with the first hop of the
///   results, and passes the other one on with the last but one; with the same hop, which it is on four
///   members, and on six for the nearer of the two places, it receives before it sends. On four members the nearer
///   place is not free in time.
///
/// Nobody leaves before all have come: the result depends on all.
///
/// Other calls go by [`ring`]: in place, on fewer members, where PEs share processors, and where more than the
/// last share would be shorter than others.
///
/// # Safety
/// As [`ring`].
pub unsafe fn meet(group: &Group<'_>, call: &Reduce) {
    let (n, costs, size) = (group.n, group.world.costs(), call.reducer.size());
    let plan = Plan::new(n, group.me, call.nelems, call.grain());
    let apart = !std::ptr::eq(call.dest, call.source) && costs.crowd <= 1;
    let Some(plan) = plan.filter(|_| apart) else {
        // SAFETY: the caller's promise.
        return unsafe { ring(group, call) };
    };
    let (piece, _) = stream::cut_shares(call.bytes(), plan.each * size, costs);
    let piece = (piece / size).max(1).next_multiple_of(call.grain());
    let count = plan.each.div_ceil(piece);
    let hops = |way| (0..plan.hops()).filter(|hop| plan.sends(way, *hop).is_some()).count();
    // Measured: on many members the next piece is always coming.
    let by_turns = piece * size < PAGE || n > 32;
    let pieces = WAYS
        .map(|way| Pieces::begin(group, team(group), way, count * hops(way)).by_turns(by_turns));
    let ways = || WAYS.into_iter().zip(&pieces);
    let (mut sent, mut received) = ([0; 2], [0; 2]);
    for (hop, number) in plan.steps(count) {
        for (way, pieces) in ways().filter(|(way, _)| plan.receives(*way, hop)) {
            pieces.receive(received[way as usize]);
            received[way as usize] += 1;
        }
        // A piece of this member's dest, in the place of another share too, and of its source.
        let at = |share: usize, place: usize| {
            let range = plan.piece(share, number, piece);
            let here = call.dest.wrapping_add(call.offset(&range));
            let moved = range.start - plan.share(share).start + plan.share(place).start;
            let there = call.dest.wrapping_add(moved * size);
            (here, there, call.source.wrapping_add(call.offset(&range)), range)
        };
        if hop == plan.right {
            let (dest, other, source, range) = at(plan.me, plan.beside(plan.me));
            // SAFETY: all hold these elements; nobody else uses them now.
            unsafe {
                call.reducer.combine(dest, source, range.len());
                call.reducer.combine(dest, other, range.len());
            }
        }
        for (way, pieces) in ways() {
            let Some(share) = plan.sends(way, hop) else { continue };
            let (dest, place, source, range) = at(share, plan.place(way, hop, share));
            if (1..plan.inwards(way)).contains(&hop) {
                // SAFETY: as above.
                unsafe { call.reducer.combine(dest, source, range.len()) };
            }
            let from = if hop == 0 { source } else { dest };
            // SAFETY: a place of the neighbour's dest that waits for this; what is sent stays as it is
            // for as long as anybody reads it.
            unsafe { pieces.send(sent[way as usize], place, from, call.len_of(&range)) };
            sent[way as usize] += 1;
        }
    }
    pieces.iter().for_each(Pieces::release);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::neighbours;

    /// Members whose elements a piece contains.
    type Members = u32;

    /// A member, and what is in its dest, by share and piece.
    struct Member {
        plan: Plan,
        steps: Vec<(usize, usize)>,
        dest: Vec<Vec<Members>>,
        /// Of both ways: pieces sent, and by number those that are here.
        sent: [usize; 2],
        received: [usize; 2],
        here: [Vec<bool>; 2],
    }

    /// A piece under way: it is read and written when it arrives.
    struct Flight {
        to: usize,
        way: Way,
        number: usize,
        /// Where it is read; the source of a member, if there is none.
        from: (usize, Option<usize>),
        place: usize,
        piece: usize,
    }

    /// Some number below `bound`.
    fn below(random: &mut u64, bound: usize) -> usize {
        *random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*random >> 33) as usize % bound
    }

    fn add(to: &mut Members, more: Members) {
        assert_eq!(*to & more, 0, "the same elements twice");
        *to |= more;
    }

    /// One step of a member; false if it has to wait.
    fn step(members: &mut [Member], me: usize, flights: &mut Vec<Flight>) -> bool {
        let n = members.len();
        let Member { plan, steps, dest, sent, received, here } = &mut members[me];
        let (hop, piece) = steps[0];
        let comes = |way: &Way| plan.receives(*way, hop);
        let lacks = |way: &Way| comes(way) && !here[*way as usize][received[*way as usize]];
        if WAYS.iter().any(lacks) {
            return false;
        }
        WAYS.iter().filter(|way| comes(way)).for_each(|way| received[*way as usize] += 1);
        if hop == plan.right {
            let other = dest[plan.beside(me)][piece];
            add(&mut dest[me][piece], 1 << me);
            add(&mut dest[me][piece], other);
        }
        for way in WAYS {
            let Some(share) = plan.sends(way, hop) else { continue };
            if (1..plan.inwards(way)).contains(&hop) {
                add(&mut dest[share][piece], 1 << me);
            }
            let (right, left) = neighbours(me, n);
            let to = if way == Way::Right { right } else { left };
            let from = (me, (hop > 0).then_some(share));
            let (number, place) = (sent[way as usize], plan.place(way, hop, share));
            flights.push(Flight { to, way, number, from, place, piece });
            sent[way as usize] += 1;
        }
        steps.remove(0);
        true
    }

    /// All members in some order, and puts that arrive in some order.
    fn play(n: usize, nelems: usize, count: usize, seed: u64) {
        let member = |me| {
            let plan = Plan::new(n, me, nelems, 8).expect("applies");
            let (steps, dest) = (plan.steps(count).collect(), vec![vec![0; count]; n]);
            let here = [0; 2].map(|_| vec![false; 2 * n * count]);
            Member { plan, steps, dest, sent: [0; 2], received: [0; 2], here }
        };
        let mut members: Vec<Member> = (0..n).map(member).collect();
        let (mut flights, mut random) = (Vec::new(), seed);
        // Some members and some puts are slow.
        let slow = below(&mut random, n);
        while members.iter().any(|member| !member.steps.is_empty()) || !flights.is_empty() {
            let ready: Vec<usize> = (0..n).filter(|me| !members[*me].steps.is_empty()).collect();
            let mut moved = false;
            if !ready.is_empty() {
                let me = ready[below(&mut random, ready.len())];
                if me != slow || below(&mut random, 50) == 0 {
                    moved = step(&mut members, me, &mut flights);
                }
            }
            if !flights.is_empty() && (!moved || below(&mut random, 2) == 0) {
                let flight = flights.swap_remove(below(&mut random, flights.len()));
                let bytes = match flight.from {
                    (from, None) => 1 << from,
                    (from, Some(share)) => members[from].dest[share][flight.piece],
                };
                let to = &mut members[flight.to];
                to.dest[flight.place][flight.piece] = bytes;
                to.here[flight.way as usize][flight.number] = true;
            }
        }
        for (me, member) in members.iter().enumerate() {
            for (share, pieces) in member.dest.iter().enumerate() {
                let all = (1 << n) - 1;
                assert!(
                    pieces.iter().all(|piece| *piece == all),
                    "share {share} of {n} at {me}, seed {seed}"
                );
            }
        }
    }

    /// In whatever order members go on and puts arrive, every member's elements are in every result once.
    #[test]
    fn nothing_is_overwritten_before_it_was_read() {
        for n in 4..=12 {
            for seed in 0..100 {
                play(n, n * 64, 1 + seed as usize % 5, seed);
            }
        }
        // The last share is shorter, and what comes from the right goes to the other place.
        for n in 5..=12 {
            for seed in 0..100 {
                play(n, n * 64 - 40, 1 + seed as usize % 5, seed);
            }
        }
    }

    #[test]
    fn places_have_room() {
        for n in 4..=64 {
            for nelems in
                [n * 8, n * 64, n * 64 - 1, n * 64 - 40, n * n * 8, n * n * 8 + 3, 1_000_003]
            {
                let Some(plan) = Plan::new(n, 0, nelems, 8) else { continue };
                assert_eq!((0..n).map(|share| plan.share(share).len()).sum::<usize>(), nelems);
                for owner in 0..n {
                    let place = plan.beside(owner);
                    assert!(plan.share(place).len() >= plan.share(owner).len(), "{owner} of {n}");
                    assert_ne!(place, owner);
                }
            }
            assert!(n == 4 || Plan::new(n, 0, n * n * 8 + 1, 8).is_some(), "{n}");
        }
        assert!(Plan::new(3, 0, 3 << 10, 8).is_none());
        assert!(Plan::new(9, 0, 9, 8).is_none());
    }

    /// Both ways carry as many pieces, no more than round the ring.
    #[test]
    fn links_carry_all_but_a_share_twice() {
        for n in 4..=64 {
            let plan = Plan::new(n, 1, n * 64, 8).expect("applies");
            for way in WAYS {
                let sent: Vec<usize> =
                    (0..plan.hops()).filter_map(|hop| plan.sends(way, hop)).collect();
                assert_eq!(sent.len(), n - 1, "{way:?} of {n}");
                assert!(!plan.receives(way, 0) && plan.sends(way, plan.hops() - 1).is_none());
            }
        }
    }
}
