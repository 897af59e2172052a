// SPDX-License-Identifier: Apache-2.0
//! Concatenation of all members' blocks at all members.

use crate::group::Group;
use crate::letters::{Letters, SHORT_MAX, WITH_LENGTH_MAX, copy_bytes, long_max};
use crate::reduce::Block;
use crate::schedule::{others, rounds};
use crate::stream;
use crate::table::Call;
use tombolo_core::ops::Mode;
use tombolo_core::{Team, copy};

/// The arguments of an fcollect.
pub struct Gather {
    /// Where the concatenation goes.
    pub dest: *mut u8,
    /// This PE's block.
    pub source: *const u8,
    /// Its length in bytes.
    pub len: usize,
}

impl Gather {
    /// One to ask about, not to carry out.
    pub(crate) fn of_size(len: usize) -> Gather {
        Gather { dest: std::ptr::null_mut(), source: std::ptr::null(), len }
    }
}

impl Call for Gather {
    fn bytes(&self) -> usize {
        self.len
    }
}

/// The arguments of a collect, whose length each member knows of its own.
pub struct Collect(pub Gather);

impl Collect {
    /// One to ask about, not to carry out.
    pub(crate) fn of_size(len: usize) -> Collect {
        Collect(Gather::of_size(len))
    }
}

impl Call for Collect {
    fn bytes(&self) -> usize {
        0
    }
}

/// Blocks of equal length.
///
/// # Safety
/// The buffers are as `shmem_fcollect` promises.
pub unsafe fn fcollect(group: &Group<'_>, call: &Gather) {
    // SAFETY: the caller's promise.
    unsafe { put_to_all(group, call, group.me * call.len) };
    // My dest is complete when all members have sent. Nobody reads another's source, so no second
    // sync is needed.
    group.sync();
}

/// Blocks of equal length: every member's goes to memory of the team at all, and from there to dest.
///
/// # Safety
/// As [`fcollect`]; a block fits a message.
#[inline(always)]
pub unsafe fn exchanged(group: &Group<'_>, call: &Gather) {
    let Some(team) = group.with_memory() else { unreachable!("applies to teams with memory") };
    let letters = Letters::begin(group, team, call.len);
    let at = |member: usize| call.dest.wrapping_add(member * call.len);
    for member in others(group.me, group.n) {
        // SAFETY: the source holds `len` bytes.
        unsafe { letters.send(member, call.source, call.len, Mode::Blocking) };
    }
    // SAFETY: dest holds a block of each member.
    unsafe {
        copy_bytes(at(group.me), call.source, call.len);
        for member in others(group.me, group.n) {
            copy_bytes(at(member), letters.receive(member), call.len);
        }
    }
}

/// Blocks of equal length, each put to all with a signal.
///
/// # Safety
/// As [`fcollect`].
pub unsafe fn signalled(group: &Group<'_>, call: &Gather) {
    let Some(team) = group.with_memory() else { unreachable!("applies to teams with memory") };
    // SAFETY: the caller's promise.
    unsafe { put_with_signals(group, team, call, group.me * call.len) };
}

/// # Safety
/// As [`fcollect`]; `dest` has `call.len` bytes at `offset`.
pub(crate) unsafe fn put_with_signals(
    group: &Group<'_>,
    team: &Team,
    call: &Gather,
    offset: usize,
) {
    let letters = Letters::begin(group, team, 0);
    let dest = call.dest.wrapping_add(offset);
    for member in others(group.me, group.n) {
        // SAFETY: the source is not changed before the call has returned. Every member's dest is
        // ready before any of them calls.
        unsafe { letters.send_to(member, dest, call.source, call.len, Mode::NonBlocking) };
    }
    // SAFETY: as above.
    unsafe { call.source.copy_to(dest, call.len) };
    for member in others(group.me, group.n) {
        letters.receive(member);
    }
    letters.release();
}

/// Blocks of equal length, from neighbour to neighbour round the ring of members.
///
/// # Safety
/// As [`fcollect`].
pub unsafe fn round_the_ring(group: &Group<'_>, call: &Gather) {
    let Some(team) = group.with_memory() else { unreachable!("applies to teams with memory") };
    let range = |member: usize| member * call.len..(member + 1) * call.len;
    // SAFETY: the caller's promise.
    unsafe {
        call.source.copy_to(call.dest.add(group.me * call.len), call.len);
        stream::round_the_ring(group, team, call.dest, range);
    }
}

/// Whether [`by_neighbours`] can carry a call out: members have partners in pairs.
pub fn has_partners(group: &Group<'_>, _: &Gather) -> bool {
    group.with_memory().is_some() && group.n.is_multiple_of(2)
}

/// Blocks of equal length: neighbours in the ring of members first exchange their own blocks. In each round after that, a
/// member exchanges with its other neighbour, then again with the first one and so on, the two blocks that came last (Chen and others, "Performance evaluation of
/// allgather algorithms on terascale Linux cluster with Fast Ethernet", 2005).
///
/// Everybody's result depends on all. A member sends to the same one in every second round: the flags alone tell of
/// these messages, whose data go to places of their own.
///
/// # Safety
/// As [`fcollect`], where [`has_partners`].
pub unsafe fn by_neighbours(group: &Group<'_>, call: &Gather) {
    let Some(team) = group.with_memory() else { unreachable!("applies to teams with memory") };
    let Group { n, me, .. } = *group;
    let Gather { dest, source, len } = *call;
    let (right, left) = stream::neighbours(me, n);
    let (partner, other) = if me.is_multiple_of(2) { (right, left) } else { (left, right) };
    let stream = stream::Stream::begin(group, team, n / 2);
    let mut lends = false;
    // SAFETY: dest holds a block of each member.
    unsafe { source.copy_to(dest.add(me * len), len) };
    for round in 0..n / 2 {
        let letter = stream.letter(round);
        let (first, count) = if round == 0 { (me, 1) } else { (2 * pair_at(me, round, n), 2) };
        let to = if round.is_multiple_of(2) { partner } else { other };
        let at = dest.wrapping_add(first * len);
        // SAFETY: the caller's promise; nobody writes blocks that have arrived.
        unsafe { letter.send_to(to, at, at, count * len, Mode::NonBlocking) };
        lends |= letter.lends();
        letter.receive(to);
    }
    // The program may change its dest.
    if lends {
        (0..(n / 2).min(2)).for_each(|round| stream.letter(round).complete());
    }
}

/// The pair of blocks that a member sends in a round but the first: those that came in the round before. Members
/// 2p and 2p + 1 have pair p first. What comes in the rounds after that lies by turns on either side of it, always farther.
fn pair_at(me: usize, round: usize, n: usize) -> usize {
    let (pairs, own, came) = (n / 2, me / 2, round - 1);
    let away = came.div_ceil(2);
    // In odd rounds those with even numbers get what lies before their pair.
    let before = came.is_multiple_of(2) != me.is_multiple_of(2);
    if before { (own + pairs - away) % pairs } else { (own + away) % pairs }
}

/// Whether [`doubling`] can carry a call out: what a member sends in a round fits a block, which is copied where
/// it leaves.
pub fn fits_doubling(group: &Group<'_>, call: &Gather) -> bool {
    let most = (group.n / 2).saturating_mul(call.len);
    group.with_memory().is_some() && most <= Block::LEN.min(long_max(group.n))
}

/// Blocks of equal length: see [`double`].
///
/// # Safety
/// As [`fcollect`], where [`fits_doubling`]; dest may be private, as only its own member writes there.
pub unsafe fn doubling(group: &Group<'_>, call: &Gather) {
    let Some(team) = group.with_memory() else { unreachable!("applies to teams with memory") };
    let letters = Letters::begin(group, team, group.n / 2 * call.len);
    // SAFETY: the caller's promise.
    unsafe { double(group, &letters, call, |member| member * call.len) };
}

/// In each round a member sends all blocks it has to one that lacks them, at twice the distance of the round before
/// (Bruck and others, "Efficient algorithms for all-to-all communications in multiport message-passing systems",
/// 1997), here without turning blocks round afterwards, as each is copied to where it belongs. The block of a member
/// begins in dest where `start` says, and ends where that of the next begins.
///
/// Everybody's result depends on all. In no round does a member send to whom it has sent before.
///
/// # Safety
/// Dest holds the blocks of all; the blocks that a member sends in a round fit its messages, and [`Block::LEN`].
unsafe fn double(
    group: &Group<'_>,
    letters: &Letters<'_>,
    call: &Gather,
    start: impl Fn(usize) -> usize,
) {
    let Group { n, me, .. } = *group;
    let Gather { dest, source, len } = *call;
    let mut joined = Block::new();
    // SAFETY: dest holds a block of each member. What is sent are blocks that are here, as many as fit; a blocking
    // send lets go of them.
    unsafe {
        source.copy_to(dest.add(start(me)), len);
        for round in 0..rounds(n) {
            let distance = 1 << round;
            // Those of this member and of the ones behind it are here; as many are lacking at most.
            let count = distance.min(n - distance);
            let (to, from) = ((me + n - distance) % n, (me + distance) % n);
            // Before the end of dest, and from its begin on.
            let parts = |first: usize| {
                let end = first + count;
                (
                    dest.add(start(first)),
                    start(end.min(n)) - start(first),
                    start(end.saturating_sub(n)),
                )
            };
            let (mut blocks, before, after) = parts(me);
            if after > 0 {
                joined.at().copy_from_nonoverlapping(blocks, before);
                joined.at().add(before).copy_from_nonoverlapping(dest, after);
                blocks = joined.at();
            }
            letters.send(to, blocks, before + after, Mode::Blocking);
            let theirs = letters.receive(from);
            let (place, before, after) = parts(from);
            copy::claim(theirs, before + after);
            copy_bytes(place, theirs, before);
            copy_bytes(dest, theirs.add(before), after);
        }
    }
}

/// Bytes of a length.
const WORD: usize = size_of::<u64>();

/// Blocks of lengths that the members first send each other, with the blocks themselves where all of
/// them fit a line.
///
/// # Safety
/// As [`collect`].
#[inline(always)]
pub unsafe fn collect_by_signals(group: &Group<'_>, call: &Collect) {
    // SAFETY: the caller's promise.
    unsafe { collect_with_lengths(group, call, SHORT_MAX - WORD) };
}

/// Blocks of lengths that the members first send each other, with the blocks themselves where none is longer than
/// [`WITH_LENGTH_MAX`] and all fit memory of the team.
///
/// # Safety
/// As [`collect`].
pub unsafe fn collect_eagerly(group: &Group<'_>, call: &Collect) {
    let most = WITH_LENGTH_MAX.min(long_max(group.n) - WORD);
    // SAFETY: the caller's promise.
    unsafe { collect_with_lengths(group, call, most) };
}

/// Blocks of lengths that the members first send each other, with the blocks themselves where none is longer than
/// `most` bytes.
///
/// # Safety
/// As [`collect`].
#[inline(always)]
unsafe fn collect_with_lengths(group: &Group<'_>, Collect(call): &Collect, most: usize) {
    const FEW: usize = 8;
    const SOME: usize = 64;
    let Some(team) = group.with_memory() else { unreachable!("applies to teams with memory") };
    let short = if call.len <= most { call.len } else { 0 };
    let letters = Letters::begin(group, team, most + WORD);
    for member in others(group.me, group.n) {
        // SAFETY: the source holds so many bytes.
        unsafe { letters.send_with(member, call.len as u64, call.source, short) };
    }
    // Found out while messages are on their way.
    let room = group.world.room_at(call.dest);
    // No more words than few members need are cleared in calls that take as long as that does.
    let (mut few, mut some, mut many);
    let lens: &mut [usize] = match group.n {
        n if n <= FEW => {
            few = [0; FEW];
            &mut few
        }
        n if n <= SOME => {
            some = [0; SOME];
            &mut some
        }
        n => {
            many = vec![0; n];
            &mut many
        }
    };
    // Each is read once: what was checked does not change any more.
    let lens = &mut lens[..group.n];
    let (mut longest, mut all) = (0, 0usize);
    for (member, len) in lens.iter_mut().enumerate() {
        *len = match member == group.me {
            true => call.len,
            // SAFETY: a message of a word at least.
            false => unsafe { letters.receive(member).cast::<u64>().read() as usize },
        };
        longest = longest.max(*len);
        all = all.saturating_add(*len);
    }
    if longest > most || group.world.config().debug.0 {
        let offset = place(group, call, lens.iter().copied());
        if longest > most {
            // SAFETY: the caller's promise.
            return unsafe { put_with_signals(group, team, call, offset) };
        }
    }
    if all > room {
        no_room(group, call, all);
    }
    let mut at = call.dest;
    for (member, len) in lens.iter().enumerate() {
        let from = match member == group.me {
            true => call.source,
            // It came above.
            false => letters.bytes(member).cast_const().wrapping_add(WORD),
        };
        // SAFETY: dest holds the blocks of all, one after another, by the caller's promise; a message
        // has as many bytes.
        unsafe {
            if most > SHORT_MAX {
                copy::claim(from, *len);
            }
            copy_bytes(at, from, *len);
        }
        at = at.wrapping_add(*len);
    }
}

/// Where the blocks of all members begin in dest, and where the last one ends. Members send each other their lengths.
/// Ends the job if there is no room for all.
fn starts(group: &Group<'_>, team: &Team, call: &Gather) -> Vec<usize> {
    let letters = Letters::begin(group, team, WORD);
    for member in others(group.me, group.n) {
        // SAFETY: nothing is read.
        unsafe { letters.send_with(member, call.len as u64, call.source, 0) };
    }
    let mut starts = vec![0usize; group.n + 1];
    for member in 0..group.n {
        let len = match member == group.me {
            true => call.len,
            // SAFETY: a message of a word.
            false => unsafe { letters.receive(member).cast::<u64>().read() as usize },
        };
        starts[member + 1] = starts[member].saturating_add(len);
    }
    let all = starts[group.n];
    if group.world.config().debug.0 && all > 0 {
        group.world.check_range(group.routine, "dest", call.dest, all);
    }
    if all > group.world.room_at(call.dest) {
        no_room(group, call, all);
    }
    starts
}

/// Blocks of lengths that the members first send each other, from neighbour to neighbour round the ring of members.
///
/// # Safety
/// As [`collect`].
pub unsafe fn collect_round_the_ring(group: &Group<'_>, Collect(call): &Collect) {
    let Some(team) = group.with_memory() else { unreachable!("applies to teams with memory") };
    let starts = starts(group, team, call);
    // SAFETY: the caller's promise; dest holds the blocks of all.
    unsafe {
        call.source.copy_to(call.dest.add(starts[group.me]), call.len);
        let range = |member: usize| starts[member]..starts[member + 1];
        stream::round_the_ring(group, team, call.dest, range);
    }
}

/// Blocks of lengths that the members first send each other. Those that fit memory of the team together go as [`double`]
/// tells, and longer ones are put with signals.
///
/// # Safety
/// As [`collect`].
pub unsafe fn collect_by_doubling(group: &Group<'_>, Collect(call): &Collect) {
    let Some(team) = group.with_memory() else { unreachable!("applies to teams with memory") };
    let starts = starts(group, team, call);
    let most = Block::LEN.min(long_max(group.n));
    // SAFETY: the caller's promise; dest holds the blocks of all.
    unsafe {
        if starts[group.n] > most {
            return put_with_signals(group, team, call, starts[group.me]);
        }
        let letters = Letters::begin(group, team, most);
        double(group, &letters, call, |member| starts[member]);
    }
}

/// Ends the job: the blocks of all do not fit where they belong.
#[cold]
pub(crate) fn no_room(group: &Group<'_>, call: &Gather, all: usize) -> ! {
    let dest = call.dest;
    group.world.stop_job(
        group.routine,
        format_args!(
            "the blocks of all members have {all} bytes: they end outside of the symmetric memory \
             at dest = {dest:p}"
        ),
    )
}

/// Blocks of lengths that the members first tell each other.
///
/// # Safety
/// The buffers are as `shmem_collect` promises.
pub unsafe fn collect(group: &Group<'_>, Collect(call): &Collect) {
    group.publish(&[call.len as u64]);
    // Lengths can be read.
    group.sync();
    let len_of = |member| {
        let mut len = [0];
        group.published(member, &mut len);
        len[0] as usize
    };
    let offset = place(group, call, (0..group.n).map(len_of));
    // SAFETY: the caller's promise.
    unsafe { put_to_all(group, call, offset) };
    // My dest is complete when all members have sent.
    group.sync();
    group.retract(1);
}

/// Where this member's block begins in dest, after those of lengths that members tell; ends the job
/// where that leads out of the segment that dest is in.
pub(crate) fn place(group: &Group<'_>, call: &Gather, lens: impl Iterator<Item = usize>) -> usize {
    let (offset, all) = extent(lens, group.me);
    if group.world.config().debug.0 && all > 0 {
        // Puts would find it out as well, but at addresses that the program never passed.
        group.world.check_range(group.routine, "dest", call.dest, all);
    }
    // What others tell does not lead out of the segment that dest is in.
    let room = group.world.room_at(call.dest);
    if offset.checked_add(call.len).is_none_or(|end| end > 0 && end > room) {
        let (world, dest) = (group.world, call.dest);
        world.stop_job(
            group.routine,
            format_args!(
                "the blocks of the members before this one have {offset} bytes: with this one's {} \
                 they end outside of the symmetric memory at dest = {dest:p}",
                call.len
            ),
        );
    }
    offset
}

/// Bytes of the blocks of the members before `me`, and of all; the largest number where the sum has
/// no room in a word.
fn extent(lens: impl Iterator<Item = usize>, me: usize) -> (usize, usize) {
    let add = |(before, all): (usize, usize), (member, len): (usize, usize)| {
        let all = all.saturating_add(len);
        (if member < me { all } else { before }, all)
    };
    lens.enumerate().fold((0, 0), add)
}

/// # Safety
/// As [`fcollect`]; `dest` has `call.len` bytes at `offset`.
unsafe fn put_to_all(group: &Group<'_>, call: &Gather, offset: usize) {
    let dest = call.dest.wrapping_add(offset);
    for member in others(group.me, group.n) {
        // SAFETY: the source is not changed before the call has returned. Every member's dest is
        // ready before any of them calls.
        unsafe { group.put(dest, call.source, call.len, member, Mode::NonBlocking) };
    }
    // SAFETY: the caller's promise.
    unsafe { group.copy_own(dest, call.source, call.len) };
    group.complete();
}

#[cfg(test)]
mod tests {
    use super::{extent, pair_at};

    /// By the rounds of [`super::by_neighbours`], members as sets of blocks.
    #[test]
    fn neighbours_give_each_other_what_they_lack() {
        for n in (2..=64).step_by(2) {
            let mut has: Vec<Vec<usize>> = (0..n).map(|me| vec![me]).collect();
            for round in 0..n / 2 {
                let sent = |me: usize| match round {
                    0 => vec![me],
                    _ => [0, 1].map(|block| 2 * pair_at(me, round, n) + block).to_vec(),
                };
                let before = has.clone();
                for (me, blocks) in has.iter_mut().enumerate() {
                    let to_the_right = me.is_multiple_of(2) == round.is_multiple_of(2);
                    let from = if to_the_right { (me + 1) % n } else { (me + n - 1) % n };
                    let come = sent(from);
                    assert!(come.iter().all(|block| before[from].contains(block)), "{n} {round}");
                    assert!(come.iter().all(|block| !before[me].contains(block)), "{n} {round}");
                    blocks.extend(come);
                }
            }
            assert!(has.iter().all(|blocks| blocks.len() == n), "{n}");
        }
    }

    #[test]
    fn lengths_that_others_tell_add_up_without_overflow() {
        assert_eq!(extent([3, 4, 5].into_iter(), 0), (0, 12));
        assert_eq!(extent([3, 4, 5].into_iter(), 2), (7, 12));
        assert_eq!(extent([3, usize::MAX, 5].into_iter(), 2), (usize::MAX, usize::MAX));
    }
}
