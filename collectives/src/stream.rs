// SPDX-License-Identifier: Apache-2.0
//! Numbers of messages that follow each other round a ring of members, or along a chain of them.

use crate::group::Group;
use crate::letters::{Letters, SLOTS, Slot, Way};
use std::cell::Cell;
use tombolo_core::Team;
use tombolo_core::cost::Costs;
use tombolo_core::ops::Mode;

/// Messages from each member to the next one, in order.
pub struct Stream<'a> {
    group: &'a Group<'a>,
    team: &'a Team,
    first: u64,
}

impl<'a> Stream<'a> {
    /// The next `count` messages of a team with memory; all members begin them.
    pub fn begin(group: &'a Group<'a>, team: &'a Team, count: usize) -> Stream<'a> {
        Stream { group, team, first: Letters::reserve(group, count) }
    }

    /// A message of them.
    pub fn letter(&self, index: usize) -> Letters<'a> {
        Letters::numbered(self.group, self.team, self.first + index as u64)
    }
}

/// Pieces of something long, from each member to its neighbour on one side: many are under way at the same
/// time. Piece number i to the right and piece number i to the left have the same flag at different
/// members, or for different senders. Each goes to a place of its own.
pub struct Pieces<'a> {
    group: &'a Group<'a>,
    team: &'a Team,
    way: Way,
    first: u64,
    /// Each piece takes another lane than the one before.
    by_turns: bool,
    /// Batches that were begun: so many pieces are sent without waiting for the arrival of others.
    begun: Cell<usize>,
    /// Whether something was sent from where it is.
    lends: Cell<bool>,
}

/// Pieces whose completion is asked for at once.
const BATCH: usize = SLOTS / 2;

impl<'a> Pieces<'a> {
    /// The next `count` pieces of a team with memory, which go one way; all members begin them.
    ///
    /// They take an even count of message numbers: whether the number of a later message is even does not
    /// depend on them.
    pub fn begin(group: &'a Group<'a>, team: &'a Team, way: Way, count: usize) -> Pieces<'a> {
        let first = Letters::reserve(group, count.next_multiple_of(2));
        let (begun, lends) = (Cell::new(0), Cell::new(false));
        Pieces { group, team, way, first, by_turns: false, begun, lends }
    }

    /// Whether each piece takes another lane than the one before, if all are sent and passed on. So when a
    /// member passes a piece on, the next one comes in by another lane, for which it would have to wait. Long
    /// pieces are better in pairs: a transport may cut up what finds its lane idle.
    pub fn by_turns(self, by_turns: bool) -> Pieces<'a> {
        Pieces { by_turns: by_turns && self.group.n > 2, ..self }
    }

    fn letter(&self, index: usize) -> Letters<'a> {
        let slot = Slot::of(index, self.way, self.by_turns);
        Letters::piece(self.group, self.team, self.first + index as u64, slot)
    }

    /// The neighbour to which they go, and the one from which they come.
    fn neighbours(&self) -> (usize, usize) {
        let (right, left) = neighbours(self.group.me, self.group.n);
        match self.way {
            Way::Right => (right, left),
            Way::Left => (left, right),
        }
    }

    /// Sends a piece to symmetric `dest` of the neighbour. Numbers grow.
    ///
    /// # Safety
    /// `source` is readable, and stays as it is until [`Pieces::release`]; the neighbour's `dest` is
    /// ready.
    pub unsafe fn send(&self, index: usize, dest: *mut u8, source: *const u8, len: usize) {
        let letter = self.letter(index);
        let batch = index / BATCH;
        if self.begun.get() <= batch {
            self.begun.set(batch + 1);
            // Flags of the batch before the last one are used again, or those of an earlier collective.
            letter.complete();
        }
        // SAFETY: the caller's promise.
        unsafe {
            letter.send_to(self.neighbours().0, dest, source, len, Mode::NonBlocking);
        }
        self.lends.set(self.lends.get() || letter.lends());
    }

    /// Waits for a piece.
    pub fn receive(&self, index: usize) {
        self.letter(index).receive(self.neighbours().1);
    }

    /// Whether a piece is here.
    pub fn has_come(&self, index: usize) -> bool {
        self.letter(index).has_come(self.neighbours().1)
    }

    /// Waits until `ready` says so: for what other members send.
    pub fn wait(&self, ready: impl FnMut() -> bool) {
        self.letter(0).wait(ready);
    }

    /// All pieces up to number `index` are complete. Those of batches before the last two are.
    pub fn settle(&self, index: usize) {
        let begun = self.begun.get();
        for batch in begun.saturating_sub(2)..begun.min(index / BATCH + 1) {
            self.letter(batch * BATCH).complete();
        }
    }

    /// Everything that was sent may be changed where it was sent from.
    pub fn release(&self) {
        if self.lends.get() {
            self.settle((self.begun.get() * BATCH).saturating_sub(1));
        }
    }
}

/// Bytes that a link carries in the time in which a piece is noticed and handed on.
pub const HANDING_ON: usize = 10_000;

/// What pipelines along so many links are cut into, in bytes, but for the last pieces: the time of a piece on a
/// link is then about what its handing on costs, shared among all pieces. Where PEs share processors,
/// handing on costs a change of processes.
pub fn piece_of(len: usize, links: usize, costs: &Costs) -> usize {
    /// Pieces stay in the nearest caches of both members.
    const MOST: usize = 32 << 10;
    if costs.crowd > 1 {
        return 2 * MOST;
    }
    // The power of two nearest to the root.
    let square = (len / links.max(1)).saturating_mul(HANDING_ON);
    let best = 1 << square.max(1).ilog2().div_ceil(2);
    best.clamp(PAGE, MOST)
}

/// Length and number of the pieces of so many bytes that go along so many links. They are alike: a short one
/// among long ones would pass for something urgent.
pub fn cut(len: usize, links: usize, costs: &Costs) -> (usize, usize) {
    alike(len, piece_of(len, links, costs))
}

/// The same in pieces of at most so many bytes, where each PE has a processor.
pub fn cut_at_most(len: usize, links: usize, most: usize, costs: &Costs) -> (usize, usize) {
    let piece = piece_of(len, links, costs);
    alike(len, if costs.crowd > 1 { piece } else { piece.min(most) })
}

/// The same of each of the shares of `len` bytes, all of which are on their way round the ring of members at the
/// same time.
pub fn cut_shares(len: usize, share: usize, costs: &Costs) -> (usize, usize) {
    alike(share, piece_of_shares(len, share, costs))
}

/// What [`cut_shares`] cuts shares into. A member goes on with another share while it waits for a piece: the
/// time of a piece counts only while few are under way, first and last, and what handing on costs is
/// that of a processor alone. With fewer than four pieces of each share a member may wait all the same: then
/// they may be half as long as others, but not shorter, which the processor would not keep up with.
pub fn piece_of_shares(len: usize, share: usize, costs: &Costs) -> usize {
    /// So many links would have bytes cut alike that go along them one after the other: measured.
    const LINKS: usize = 40;
    piece_of(len, LINKS, costs).min(share / 4).max(PAGE / 2)
}

/// Length and number of pieces of about so many bytes.
fn alike(len: usize, piece: usize) -> (usize, usize) {
    let count = len.div_ceil(piece).max(1);
    let piece = len.div_ceil(count).next_multiple_of(LINE).max(LINE);
    (piece, len.div_ceil(piece).max(1))
}

const LINE: usize = 64;
/// The shortest pieces, but for those of shares.
pub const PAGE: usize = 4 << 10;

/// The members to the right and to the left.
pub fn neighbours(me: usize, n: usize) -> (usize, usize) {
    ((me + 1) % n, (me + n - 1) % n)
}

/// Everybody's block goes round the ring, from `dest` to the next member's `dest`, until all have
/// all. `range` gives where a member's block lies; this member's is in place.
///
/// Nobody leaves before all have come: the last block that arrives began its way at the member on the
/// right.
///
/// # Safety
/// `dest` is symmetric, ready at all members, and holds every range.
pub unsafe fn round_the_ring(
    group: &Group<'_>,
    team: &Team,
    dest: *mut u8,
    range: impl Fn(usize) -> std::ops::Range<usize>,
) {
    use tombolo_core::ops::Mode;
    let Group { n, me, .. } = *group;
    let (right, left) = neighbours(me, n);
    let stream = Stream::begin(group, team, n - 1);
    let mut lends = false;
    for step in 0..n - 1 {
        // Here since the last step.
        let block = range((me + n - step) % n);
        let at = dest.wrapping_add(block.start);
        let letter = stream.letter(step);
        // SAFETY: the caller's promise; nobody writes a block that has arrived.
        unsafe { letter.send_to(right, at, at, block.len(), Mode::NonBlocking) };
        lends |= letter.lends();
        letter.receive(left);
    }
    // The program may change its dest.
    if lends {
        (0..n.min(3) - 1).for_each(|step| stream.letter(step).complete());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longer_ways_have_shorter_pieces() {
        let alone = &Costs::default();
        assert_eq!(piece_of(0, 0, alone), PAGE);
        assert_eq!(piece_of(4 << 20, 1, alone), 32 << 10);
        let lens = [1, 3, 31, 63].map(|links| piece_of(512 << 10, links, alone));
        assert!(lens.is_sorted_by(|a, b| a >= b) && lens[0] > lens[3], "{lens:?}");
        assert!(lens.iter().all(|len| len.is_multiple_of(PAGE) && *len > 0));
        assert!(piece_of(usize::MAX, 1, alone) <= 32 << 10);
        for len in [0, 1, 4096, 4097, 131_072, 1_000_001] {
            let (piece, count) = cut(len, 7, alone);
            assert!(piece * count >= len && piece * (count - 1) <= len, "{count} of {piece}");
            // The last one is hardly shorter.
            assert!(len < PAGE || len - piece * (count - 1) >= piece / 2, "{count} of {piece}");
        }
        // Four pieces of each share, or more.
        for len in [64 << 10, 1 << 20, 4 << 20] {
            for n in [5, 8, 16, 64] {
                let (piece, count) = cut_shares(len, len / n, alone);
                assert!(count >= 4 || piece <= PAGE / 2 + LINE, "{count} of {piece}");
                assert!(piece * count >= len / n && piece <= 32 << 10, "{count} of {piece}");
            }
        }
        let (piece, count) = cut_at_most(2 << 20, 12, 8 << 10, alone);
        assert_eq!((piece, count), (8 << 10, 256));
        let crowded = &Costs { crowd: 2, ..Costs::default() };
        assert!(piece_of(512 << 10, 31, crowded) > lens[0]);
        assert_eq!(cut_at_most(2 << 20, 12, 8 << 10, crowded), cut(2 << 20, 12, crowded));
    }
}
