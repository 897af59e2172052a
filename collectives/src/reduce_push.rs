// SPDX-License-Identifier: Apache-2.0
//! Reductions in which members send their elements, so that nothing is read across a link.

use crate::gather::{self, Gather};
use crate::group::Group;
use crate::letters::{ELEMENT_MAX, GATHERED_MAX, Letters, SHORT_MAX, Way, copy_bytes, long_max};
use crate::reduce::{Block, Reduce};
use crate::schedule::{blocks, others, share};
use crate::stream::{self, Pieces, Stream, neighbours};
use crate::table::Call;
use std::mem::{MaybeUninit, swap};
use std::ops::Range;
use tombolo_core::ops::Mode;
use tombolo_core::{Team, copy};

/// Turns between two hops of a piece round the ring: what has to come in one turn was sent in the one
/// before the last.
pub(crate) const AHEAD: usize = 2;
/// Bytes combined at a time. From 8 KiB on the C library copies with a string instruction, which takes
/// several times as long on some processors and addresses.
pub(crate) const STEP: usize = 4 << 10;
const _: () = assert!(ELEMENT_MAX <= STEP && STEP <= Block::LEN, "an element fits a step");

/// The group's team, which has memory.
#[inline(always)]
pub(crate) fn team<'a>(group: &Group<'a>) -> &'a Team {
    match group.with_memory() {
        Some(team) => team,
        None => unreachable!("applies to teams with memory"),
    }
}

impl Reduce {
    /// Member `member`'s share of the elements.
    fn share_of(&self, group: &Group<'_>, member: usize) -> Range<usize> {
        share(member, group.n, self.nelems, self.grain())
    }

    pub(crate) fn elements_per_step(&self) -> usize {
        STEP / self.reducer.size()
    }

    /// Elements that fit a part of the team's memory, at least one.
    pub(crate) fn elements_per_part(&self, n: usize) -> usize {
        let part = long_max(n) / self.reducer.size();
        (part / self.grain() * self.grain()).max(1)
    }

    /// The elements in parts that fit a message, one after another: one part at least, so that nobody leaves before all
    /// have come.
    pub(crate) fn parts(&self, n: usize) -> impl Iterator<Item = Reduce> {
        let step = self.elements_per_part(n);
        (0..self.nelems.div_ceil(step).max(1)).map(move |part| {
            let range = part * step..self.nelems.min((part + 1) * step);
            let at = self.offset(&range);
            Reduce {
                dest: self.dest.wrapping_add(at),
                source: self.source.wrapping_add(at),
                nelems: range.len(),
                reducer: self.reducer,
            }
        })
    }

    /// Pieces in which every share goes through a part of the team's memory.
    fn pieces(&self, group: &Group<'_>) -> usize {
        let most = (0..group.n).map(|member| self.share_of(group, member).len()).max();
        most.unwrap_or(0).div_ceil(self.elements_per_part(group.n))
    }

    /// Piece number `piece` of a member's share.
    fn piece(&self, group: &Group<'_>, member: usize, piece: usize) -> Range<usize> {
        let (share, step) = (self.share_of(group, member), self.elements_per_part(group.n));
        let start = share.end.min(share.start + piece * step);
        start..share.end.min(start + step)
    }

    pub(crate) fn offset(&self, elements: &Range<usize>) -> usize {
        elements.start * self.reducer.size()
    }

    pub(crate) fn len_of(&self, elements: &Range<usize>) -> usize {
        elements.len() * self.reducer.size()
    }
}

/// Everybody sends its elements to all and combines those of all, in blocks.
///
/// # Safety
/// The buffers are as `shmem_sum_reduce` promises, and the elements fit a message.
#[inline(always)]
pub unsafe fn exchanged(group: &Group<'_>, call: &Reduce) {
    let len = call.bytes();
    let letters = Letters::begin(group, team(group), len);
    for member in others(group.me, group.n) {
        // SAFETY: the source holds `len` bytes, and stays as it is until the letters are released.
        unsafe { letters.send(member, call.source, len, Mode::NonBlocking) };
    }
    // The source may be the dest.
    letters.release();
    // SAFETY: the caller's promise.
    unsafe {
        if len <= SHORT_MAX {
            combine_lines(group, call, &letters);
        } else {
            combine_letters(group, call, &letters);
        }
    }
}

/// Combines the elements that come from all, in the order of the members, where a line holds them.
///
/// # Safety
/// As [`exchanged`].
#[inline(always)]
unsafe fn combine_lines(group: &Group<'_>, call: &Reduce, letters: &Letters<'_>) {
    let (mut acc, len) = ([0; SHORT_MAX], call.bytes());
    for member in 0..group.n {
        let theirs = if member == group.me { call.source } else { letters.receive(member) };
        // SAFETY: all have `len` bytes, and `acc` is private.
        unsafe {
            match member {
                0 => copy_bytes(acc.as_mut_ptr(), theirs, len),
                _ => call.reducer.combine(acc.as_mut_ptr(), theirs, call.nelems),
            }
        }
    }
    // SAFETY: the dest holds `len` bytes.
    unsafe { copy_bytes(call.dest, acc.as_ptr(), len) };
}

/// Combines the elements that come from all, in the order of the members.
///
/// # Safety
/// As [`exchanged`]; messages have as many bytes.
pub(crate) unsafe fn combine_letters(group: &Group<'_>, call: &Reduce, letters: &Letters<'_>) {
    let size = call.reducer.size();
    let mut acc = Block::new();
    for range in blocks(0..call.nelems, call.elements_per_step()) {
        let at = call.offset(&range);
        for member in 0..group.n {
            let theirs = if member == group.me {
                call.source
            } else {
                let letter = letters.receive(member);
                copy::claim(letter.wrapping_add(at), range.len() * size);
                letter
            };
            // SAFETY: all have `len` bytes, and `acc` is private.
            unsafe {
                call.reducer.accumulate(member == 0, acc.at(), theirs.add(at), range.len());
            }
        }
        // SAFETY: the dest holds `len` bytes.
        unsafe { call.dest.add(at).copy_from_nonoverlapping(acc.at(), range.len() * size) };
    }
    if call.nelems == 0 {
        others(group.me, group.n).for_each(|member| _ = letters.receive(member));
    }
}

/// Everybody sends its elements to one other, then what it has combined to one that has combined as
/// many, and so on. Members beyond a power of two join another one first and get the result from it.
/// No two members send to each other twice, and every result depends on all.
///
/// # Safety
/// As [`exchanged`]; the elements fit a block.
pub unsafe fn doubling(group: &Group<'_>, call: &Reduce) {
    let (me, n, len) = (group.me, group.n, call.bytes());
    let letters = Letters::begin(group, team(group), len);
    let (mut one, mut other) = (Block::new(), Block::new());
    let (mut acc, mut next) = (&mut one, &mut other);
    let power = 1 << n.ilog2();
    // Of the first members every second one joins the one before it.
    let joining = 2 * (n - power);
    // SAFETY: the buffers hold `len` bytes, blocks too, and a blocking send lets go of them.
    unsafe {
        if me < joining && me % 2 == 1 {
            letters.send(me - 1, call.source, len, Mode::Blocking);
            call.dest.copy_from(letters.receive(me - 1), len);
            return;
        }
        acc.at().copy_from_nonoverlapping(call.source, len);
        if me < joining {
            call.reducer.combine(acc.at(), letters.receive(me + 1), call.nelems);
        }
        let number = if me < joining { me / 2 } else { me - joining / 2 };
        let member = |number: usize| {
            if number < joining / 2 { 2 * number } else { number + joining / 2 }
        };
        for round in 0..power.trailing_zeros() {
            let partner = member(number ^ 1 << round);
            letters.send(partner, acc.at(), len, Mode::Blocking);
            let theirs = letters.receive(partner);
            if partner > me {
                call.reducer.combine(acc.at(), theirs, call.nelems);
            } else {
                // Both combine in the same order, and get the same bits.
                next.at().copy_from_nonoverlapping(theirs, len);
                call.reducer.combine(next.at(), acc.at(), call.nelems);
                swap(&mut acc, &mut next);
            }
        }
        if me < joining {
            letters.send(me + 1, acc.at(), len, Mode::Blocking);
        }
        call.dest.copy_from_nonoverlapping(acc.at(), len);
    }
}

/// Whether a reduction's elements fit a block, and memory of the team.
pub fn fits_block(group: &Group<'_>, call: &Reduce) -> bool {
    group.with_memory().is_some() && call.bytes() <= Block::LEN.min(long_max(group.n))
}

/// Whether [`gathered`] can carry out a call: the elements of all members fit a buffer of its own.
pub fn fits_gathered(group: &Group<'_>, call: &Reduce) -> bool {
    let len = call.bytes();
    gather::fits_doubling(group, &Gather::of_size(len)) && group.n * len <= GATHERED_MAX
}

/// Everybody gathers the elements of all members and combines them in the order of the members.
///
/// # Safety
/// As [`exchanged`], where [`fits_gathered`].
pub unsafe fn gathered(group: &Group<'_>, call: &Reduce) {
    let len = call.bytes();
    let mut all = MaybeUninit::<[u8; GATHERED_MAX]>::uninit();
    let all = all.as_mut_ptr().cast::<u8>();
    // SAFETY: there is room for the elements of all. Doubling writes to memory of the team at others, and to its dest only
    // here. The source is read before the dest, which may be the same, is written.
    unsafe {
        gather::doubling(group, &Gather { dest: all, source: call.source, len });
        for member in 0..group.n {
            let theirs = all.add(member * len);
            call.reducer.accumulate(member == 0, call.dest, theirs, call.nelems);
        }
    }
}

/// Everybody sends each member its share, combines its own share of all, in the order of the members,
/// and sends the result to all. Elements of members on the same host are read where they are.
///
/// Each piece of the shares takes two messages from all to all: one with elements, and one with
/// results. A third number is left out, so that elements go to the halves by turns. Who sends elements
/// of piece n + 2 has received those of n + 1 from everybody, who sent them after reading those of n.
///
/// # Safety
/// As [`exchanged`], without a limit.
pub unsafe fn scattered(group: &Group<'_>, call: &Reduce) {
    let (me, n, size) = (group.me, group.n, call.reducer.size());
    let (mut acc, mut spare) = (Block::new(), Block::new());
    // By what both know: that the other's memory is mapped here does not say that this one's is there.
    let near = |member: usize| group.notes().is_some_and(|notes| notes.is_near(member));
    let mut lends = false;
    for piece in 0..call.pieces(group).max(1) {
        let letters = Letters::begin(group, team(group), long_max(n));
        for member in others(me, n) {
            let range = call.piece(group, member, piece);
            let len = if near(member) { 0 } else { call.len_of(&range) };
            let source = call.source.wrapping_add(call.offset(&range));
            // SAFETY: a part of the source. It stays as it is until the member has combined it:
            // in place, the result comes afterwards.
            unsafe { letters.send(member, source, len, Mode::NonBlocking) };
        }
        let mine = call.piece(group, me, piece);
        for member in others(me, n) {
            letters.receive(member);
        }
        for range in blocks(mine.clone(), call.elements_per_step()) {
            let at = call.offset(&range);
            for member in 0..n {
                // SAFETY: all hold these elements; blocks are private. In place, nobody writes this
                // part of a member's source before the results are sent.
                unsafe {
                    let theirs = if member == me {
                        call.source.add(at)
                    } else if near(member) {
                        call.reach(group, &mut spare, &range, member)
                    } else {
                        let letter = letters.receive(member).add(at - call.offset(&mine));
                        copy::claim(letter, range.len() * size);
                        letter
                    };
                    call.reducer.accumulate(member == 0, acc.at(), theirs, range.len());
                }
            }
            // SAFETY: a part of the dest that is this member's to write.
            unsafe {
                call.dest.add(at).copy_from_nonoverlapping(acc.at(), range.len() * size);
            }
        }
        let results = Letters::begin(group, team(group), 0);
        let at = call.dest.wrapping_add(call.offset(&mine));
        for member in others(me, n) {
            // SAFETY: the same part of every dest; it stays as it is until the letters are complete.
            unsafe { results.send_to(member, at, at, call.len_of(&mine), Mode::NonBlocking) };
        }
        Letters::reserve(group, 1);
        lends |= letters.lends() || results.lends();
        // Each flag says that all older messages of its kind from the same member have arrived: those of the
        // last results say it of all.
        if piece + 1 >= call.pieces(group) {
            for member in others(me, n) {
                results.receive(member);
            }
            if lends {
                letters.complete();
                results.complete();
            }
        }
    }
}

/// Shares go round the ring of members, each of which adds its elements, and the results go round
/// once more: half of the elements to the right, and half to the left.
///
/// What others have combined goes to the dest of the next member, where the result comes later, in pieces. A
/// member lets a piece go on, and begins with the next ones, before it goes on with the pieces that it
/// has to wait for.
///
/// Why a result is not overwritten by what was sent to its place before: both come from the same neighbour, who
/// sends the second when the first is complete. That the first is sent from the place to which the result
/// comes does not matter: when that comes, the receiver has read what was sent.
///
/// # Safety
/// As [`scattered`].
pub unsafe fn ring(group: &Group<'_>, call: &Reduce) {
    let (me, n) = (group.me, group.n);
    if n == 1 {
        // SAFETY: both hold the elements, and may be the same.
        return unsafe { call.dest.copy_from(call.source, call.bytes()) };
    }
    // Where PEs share processors each piece that is waited for costs a change of processes.
    if std::ptr::eq(call.dest, call.source) || group.world.costs().crowd > 1 {
        // SAFETY: the caller's promise.
        return unsafe { ring_by_memory(group, call) };
    }
    let cut = share(0, 2, call.nelems, call.grain()).end;
    let part = |way, elements: Range<usize>| {
        let (start, len) = (elements.start, elements.len());
        Part { way, start, len, grain: call.grain(), n, me }
    };
    let parts = [part(Way::Right, 0..cut), part(Way::Left, cut..call.nelems)];
    let longest = parts.iter().map(Part::longest).max().unwrap_or(0);
    let size = call.reducer.size();
    // Measured: between two members with processors for both links longer ones were slower.
    let costs = group.world.costs();
    let most = if n == 2 && costs.processors > 2 { 24 << 10 } else { usize::MAX };
    let (piece, _) = stream::cut_at_most(longest * size, 2 * n - 2, most, costs);
    let piece = (piece / size).max(1).next_multiple_of(call.grain());
    let count = longest.div_ceil(piece).max(1);
    // In a turn each piece that is under way takes its next hop. The last hop brings the last result.
    let (hops, turns) = (2 * n - 1, count + (2 * n - 2) * AHEAD);
    let begin = |way| Pieces::begin(group, team(group), way, count * (hops - 1));
    let pieces = [Way::Right, Way::Left].map(begin);
    let ways = || parts.iter().zip(&pieces);
    let first = |turn: usize| (turn + 1).saturating_sub(count).div_ceil(AHEAD);
    let end = |turn: usize, hops: usize| hops.min(turn / AHEAD + 1);
    let (mut sent, mut received, mut before) = (0, 0, 0);
    for turn in 0..turns {
        // The turn in which each piece went to the place where its result goes now.
        let old = turn.checked_sub(n * AHEAD);
        for hop in first(turn)..end(turn, hops) {
            if let Some(old) = old.filter(|_| (n..hops - 1).contains(&hop)) {
                let at = before + hop - n - first(old);
                ways().for_each(|(_, pieces)| pieces.settle(at));
            }
            for (part, pieces) in ways() {
                let range = part.piece(hop, turn - hop * AHEAD, piece);
                let at = call.offset(&range);
                let (dest, source) = (call.dest.wrapping_add(at), call.source.wrapping_add(at));
                if hop > 0 {
                    pieces.receive(received);
                }
                if (1..n).contains(&hop) {
                    // SAFETY: both hold these elements; nobody else uses them now.
                    unsafe { call.reducer.combine(dest, source, range.len()) };
                }
                if hop + 1 < hops {
                    let from = if hop == 0 { source } else { dest };
                    // SAFETY: a place of the neighbour's dest that waits for this; what is sent
                    // stays as it is for as long as anybody reads it.
                    unsafe { pieces.send(sent, dest, from, call.len_of(&range)) };
                }
            }
            received += usize::from(hop > 0);
            sent += usize::from(hop + 1 < hops);
        }
        if let Some(old) = old {
            before += end(old, hops - 1).saturating_sub(first(old));
        }
    }
    ways().for_each(|(_, pieces)| pieces.release());
}

/// A part of the elements that goes round the ring of members.
#[derive(Clone, Copy)]
struct Part {
    way: Way,
    /// The first of the elements, and how many there are.
    start: usize,
    len: usize,
    grain: usize,
    n: usize,
    me: usize,
}

impl Part {
    /// Elements of the longest share.
    fn longest(&self) -> usize {
        (0..self.n).map(|share| self.share(share).len()).max().unwrap_or(0)
    }

    fn share(&self, number: usize) -> Range<usize> {
        share(number, self.n, self.len, self.grain)
    }

    /// The piece of that number of the share that this member gets with one hop and sends with the
    /// next one. It begins its way with the share of the member before this one, and ends with that of the
    /// member behind it.
    fn piece(&self, hop: usize, number: usize, len: usize) -> Range<usize> {
        let Part { n, me, .. } = *self;
        let steps = (hop + 1) % n;
        let steps = if self.way == Way::Right { n - steps } else { steps };
        let share = self.share((me + steps) % n);
        let start = share.end.min(share.start + number * len);
        self.start + start..self.start + share.end.min(start + len)
    }
}

/// As [`ring`], one way alone, and through memory of the team: for a source that is the dest, where nothing of
/// the others has room.
///
/// Pieces of shares go through the part that the left neighbour has in the halves, by turns. Who sends
/// a piece has been told that the one before the last was read; of the first ones it is told that its
/// neighbour has come, which has read everything older then.
///
/// # Safety
/// As [`scattered`].
unsafe fn ring_by_memory(group: &Group<'_>, call: &Reduce) {
    let (me, n) = (group.me, group.n);
    let (right, left) = neighbours(me, n);
    let pieces = call.pieces(group);
    // Two more numbers at the start, in which members only tell that they have come.
    let stream = Stream::begin(group, team(group), 2 + pieces * (n - 1));
    (0..2).for_each(|index| stream.letter(index).tell_back(left));
    for piece in 0..pieces {
        for step in 0..n - 1 {
            let index = piece * (n - 1) + step;
            let letter = stream.letter(2 + index).in_half();
            let range = call.piece(group, (me + 2 * n - step - 1) % n, piece);
            let source = match step {
                0 => call.source.wrapping_add(call.offset(&range)),
                // What was combined in the last step.
                _ => stream.letter(1 + index).in_half().receive(left),
            };
            stream.letter(index).read_by(right);
            // SAFETY: a piece fits, and stays as it is until it is released.
            unsafe { letter.send(right, source, call.len_of(&range), Mode::NonBlocking) };
            if step > 0 {
                letter.release();
                stream.letter(1 + index).tell_back(left);
            }
            let range = call.piece(group, (me + 2 * n - step - 2) % n, piece);
            let (theirs, at) = (letter.receive(left).cast_mut(), call.offset(&range));
            // SAFETY: the part of the left neighbour is this member's until it tells that it was
            // read; the source and the dest hold the range, which nobody else writes now.
            unsafe {
                call.reducer.combine(theirs, call.source.wrapping_add(at), range.len());
                if step == n - 2 {
                    call.dest.add(at).copy_from_nonoverlapping(theirs, call.len_of(&range));
                    letter.tell_back(left);
                }
            }
        }
    }
    (0..2 + pieces.min(2)).for_each(|index| stream.letter(index).complete());
    let share = |member: usize| {
        let range = call.share_of(group, member);
        call.offset(&range)..call.offset(&range) + call.len_of(&range)
    };
    // SAFETY: the dest is ready where its elements were combined, and this member's share is there.
    unsafe { stream::round_the_ring(group, team(group), call.dest, share) };
}
