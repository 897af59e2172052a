// SPDX-License-Identifier: Apache-2.0
//! Numbers of messages that follow each other round a ring of members, or along a chain of them.

use crate::group::Group;
use crate::letters::Letters;
use tombolo_core::Team;

/// Messages from each member to the next one, in order.
pub struct Stream<'a> {
    group: &'a Group<'a>,
    team: &'a Team,
    first: u64,
}

impl<'a> Stream<'a> {
    /// The next `count` messages of a team with memory; all members begin them.
    pub fn begin(group: &'a Group<'a>, team: &'a Team, count: usize) -> Stream<'a> {
        Stream { group, team, first: Letters::reserve(group, team, count) }
    }

    /// A message of them.
    pub fn letter(&self, index: usize) -> Letters<'a> {
        Letters::numbered(self.group, self.team, self.first + index as u64)
    }
}

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
    for step in 0..n - 1 {
        // Here since the last step.
        let block = range((me + n - step) % n);
        let at = dest.wrapping_add(block.start);
        let letter = stream.letter(step);
        // SAFETY: the caller's promise; nobody writes a block that has arrived.
        unsafe { letter.send_to(right, at, at, block.len(), Mode::NonBlocking) };
        letter.receive(left);
    }
    // The program may change its dest.
    (0..n.min(3) - 1).for_each(|step| stream.letter(step).complete());
}
