// SPDX-License-Identifier: Apache-2.0
//! Making and destroying teams (OpenSHMEM 1.6, "Team Management Routines").

use crate::barrier;
use crate::check::{Arguments, check};
use crate::group::Group;
use crate::notes::Notes;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tombolo_core::control::TEAMS_MAX;
use tombolo_core::team::Proposal;
use tombolo_core::{Team, World};

/// More barriers than any team can have made. Numbers above would overflow at a later one.
const EPOCH_MAX: u64 = 1 << 62;
/// Words that say which slots are free.
const MASK: usize = TEAMS_MAX / 64;

/// Why no team was made. All members of the parent get the same answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SplitError {
    /// The arguments describe no team.
    Arguments,
    /// Too many teams are alive.
    NoSlot,
}

impl fmt::Display for SplitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SplitError::Arguments => f.write_str("the arguments describe no team"),
            SplitError::NoSlot => {
                write!(f, "more than {TEAMS_MAX} teams at one time; destroy some first")
            }
        }
    }
}

impl std::error::Error for SplitError {}

/// Collective over `parent`: makes a team of its members `start`, `start + stride`, ..., `size` of
/// them (`shmem_team_split_strided`). `stride` may be negative; 0 only with one member. Members of
/// the parent that are not in the new team get none.
pub fn split_strided(
    world: &World,
    parent: &Team,
    start: i32,
    stride: i32,
    size: i32,
    num_contexts: i32,
    routine: &'static str,
) -> Result<Option<Arc<Team>>, SplitError> {
    let group = Group::team(world, parent, routine);
    check(&group, || Arguments {
        values: vec![("start", start.into()), ("stride", stride.into()), ("size", size.into())],
        addresses: vec![],
    });
    let places = strided(parent.n_pes(), start, stride, size).ok_or(SplitError::Arguments)?;
    let me = places.iter().position(|place| *place == parent.me);
    let agreed = agree::<1>(&group, parent, me.is_some()).ok_or(SplitError::NoSlot)?;
    let members = places.iter().map(|place| parent.members[*place]).collect();
    Ok(me.map(|me| team(agreed.slots[0], members, me, num_contexts, agreed.epoch)))
}

/// Collective over `parent`: arranges its members in rows of `xrange` and makes a team of each row
/// and of each column (`shmem_team_split_2d`). Gives this PE's row and column.
pub fn split_2d(
    world: &World,
    parent: &Team,
    xrange: i32,
    x_contexts: i32,
    y_contexts: i32,
    routine: &'static str,
) -> Result<[Arc<Team>; 2], SplitError> {
    let group = Group::team(world, parent, routine);
    check(&group, || Arguments { values: vec![("xrange", xrange.into())], addresses: vec![] });
    let width = usize::try_from(xrange).ok().filter(|width| *width > 0);
    let width = width.ok_or(SplitError::Arguments)?.min(parent.n_pes());
    // Rows do not overlap, so one slot serves them all; so with columns.
    let agreed = agree::<2>(&group, parent, true).ok_or(SplitError::NoSlot)?;
    let (x, y) = (parent.me % width, parent.me / width);
    let row = parent.members.iter().skip(y * width).take(width).copied().collect();
    let column = parent.members.iter().skip(x).step_by(width).copied().collect();
    Ok([
        team(agreed.slots[0], row, x, x_contexts, agreed.epoch),
        team(agreed.slots[1], column, y, y_contexts, agreed.epoch),
    ])
}

/// Collective over `team`: gives its slot back (`shmem_team_destroy`). Its contexts have been
/// destroyed; it may not be used afterwards.
pub fn destroy(world: &World, team: &Team, routine: &'static str) {
    // Nobody may use the slot for another team while a member still reads its flags and words, or
    // while what was put there may still arrive.
    barrier::last_of_team(world, team, routine);
    // No flag of the slot shows a later number than the larger of the two.
    let epoch = team.epoch.load(Ordering::Relaxed).max(Notes::of(world, team).messages());
    world.team_slots().release(team.slot, epoch);
}

/// The number in `dest` of PE `pe` of `source` (`shmem_team_translate_pe`).
pub fn translate_pe(source: &Team, pe: i32, dest: &Team) -> Option<usize> {
    let world_pe = *source.members.get(usize::try_from(pe).ok()?)?;
    dest.position(world_pe as usize)
}

fn team(slot: usize, members: Box<[u32]>, me: usize, num_contexts: i32, epoch: u64) -> Arc<Team> {
    let team = Team::new(slot, members, me, num_contexts);
    team.epoch.store(epoch, Ordering::Relaxed);
    Arc::new(team)
}

/// The members that a triplet names, in the order of the new team.
fn strided(n: usize, start: i32, stride: i32, size: i32) -> Option<Vec<usize>> {
    if size < 1 || (stride == 0 && size > 1) {
        return None;
    }
    let (start, stride, size) = (i64::from(start), i64::from(stride), i64::from(size));
    let inside = |place: i64| usize::try_from(place).is_ok_and(|place| place < n);
    // Monotonic: if the first and the last are inside, all are.
    let valid = inside(start) && inside(start + stride * (size - 1));
    valid.then(|| (0..size).map(|i| (start + stride * i) as usize).collect())
}

/// What the members of a parent agree on.
struct Agreed<const N: usize> {
    slots: [usize; N],
    /// Number of the last barrier that any flag of the slots may show.
    epoch: u64,
}

/// Collective over `parent`: finds `N` slots that are free at all members for which `joins`. None if
/// there are not as many.
fn agree<const N: usize>(group: &Group<'_>, parent: &Team, joins: bool) -> Option<Agreed<N>> {
    let slots = group.world.team_slots();
    // Splits take turns by their parents' slots. If this PE took its turn while another member was
    // still busy with a split that waits for this PE to let others pass, neither would ever end;
    // so turns begin when all members are here and wait for nothing else.
    group.sync();
    if joins {
        slots.begin(parent.slot);
    }
    loop {
        let mine = if joins {
            slots.propose(parent.slot)
        } else {
            // Whoever will not be a member has no objections.
            Proposal { free: [u64::MAX; TEAMS_MAX / 64], real: true, epoch: 0 }
        };
        let all = combine(group, mine);
        let found = if all.real { lowest::<N>(all) } else { None };
        if joins {
            let taken = found.as_ref().map_or(&[][..], |found| &found.slots);
            slots.settle(parent.slot, taken, all.real);
        }
        if all.real {
            return found;
        }
    }
}

/// What all members of the group have in common: slots free everywhere, the latest epoch.
fn combine(group: &Group<'_>, mine: Proposal) -> Proposal {
    let mut words = [0; MASK + 2];
    words[..MASK].copy_from_slice(&mine.free);
    words[MASK] = mine.real.into();
    words[MASK + 1] = mine.epoch;
    group.publish(&words);
    // Proposals can be read. The next round's go to the other half of the published words, so none
    // is overwritten before it was read.
    group.sync();
    let mut all = mine;
    for member in 0..group.n {
        group.published(member, &mut words);
        if let Err(epoch) = meet(&mut all, &words) {
            let pe = group.pe(member);
            group.world.stop_job(
                group.routine,
                format_args!("PE {pe} tells of {epoch} barriers: its symmetric memory is damaged"),
            );
        }
    }
    all
}

/// Narrows `all` to what a member proposes as well; an error is an epoch that no team can have.
fn meet(all: &mut Proposal, words: &[u64; MASK + 2]) -> Result<(), u64> {
    for (all, theirs) in all.free.iter_mut().zip(words) {
        *all &= theirs;
    }
    all.real &= words[MASK] != 0;
    let epoch = words[MASK + 1];
    all.epoch = all.epoch.max(epoch);
    if epoch > EPOCH_MAX { Err(epoch) } else { Ok(()) }
}

/// The lowest `N` slots of a proposal.
fn lowest<const N: usize>(mut proposal: Proposal) -> Option<Agreed<N>> {
    let mut slots = [0; N];
    for slot in &mut slots {
        *slot = tombolo_core::team::lowest(&proposal.free)?;
        proposal.free[*slot / 64] &= !(1 << (*slot % 64));
    }
    Some(Agreed { slots, epoch: proposal.epoch })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_split_takes_what_is_free_everywhere_and_refuses_an_epoch_that_cannot_be() {
        let mut all = Proposal { free: [u64::MAX; MASK], real: true, epoch: 7 };
        let mut words = [!1; MASK + 2];
        (words[MASK], words[MASK + 1]) = (1, 5);
        assert_eq!(meet(&mut all, &words), Ok(()));
        assert_eq!((all.free, all.real, all.epoch), ([!1; MASK], true, 7));
        words[MASK + 1] = EPOCH_MAX;
        assert_eq!(meet(&mut all, &words), Ok(()));
        // A barrier later it would wrap around, and every flag would seem to be set.
        for damaged in [EPOCH_MAX + 1, u64::MAX] {
            words[MASK + 1] = damaged;
            assert_eq!(meet(&mut all, &words), Err(damaged));
        }
        words[MASK] = 0;
        let _ = meet(&mut all, &words);
        assert!(!all.real, "a member takes no part in this round");
    }

    #[test]
    fn triplets_name_members_in_order_or_nothing() {
        assert_eq!(strided(8, 1, 2, 3), Some(vec![1, 3, 5]));
        assert_eq!(strided(8, 7, -3, 3), Some(vec![7, 4, 1]));
        assert_eq!(strided(8, 4, 0, 1), Some(vec![4]));
        assert_eq!(strided(8, 4, 0, 2), None);
        assert_eq!(strided(8, 3, 3, 3), None, "wraps around");
        assert_eq!(strided(8, 1, -1, 3), None, "goes below zero");
        assert_eq!(strided(8, -1, 1, 2), None);
        assert_eq!(strided(8, 8, 1, 1), None);
        assert_eq!(strided(8, 0, 1, 0), None);
        assert_eq!(strided(8, 0, i32::MAX, i32::MAX), None);
    }

    #[test]
    fn translation_goes_through_world_numbers() {
        let odd = Team::new(2, [1, 3, 5].into(), 0, 0);
        let high = Team::new(3, [5, 4, 3].into(), 0, 0);
        assert_eq!(translate_pe(&odd, 1, &high), Some(2));
        assert_eq!(translate_pe(&odd, 0, &high), None);
        assert_eq!(translate_pe(&odd, 3, &high), None);
        assert_eq!(translate_pe(&odd, -1, &high), None);
    }

    #[test]
    fn the_lowest_free_slots_are_found_across_words() {
        let mut free = [0; TEAMS_MAX / 64];
        free[0] = 1 << 63;
        free[2] = 0b110;
        let proposal = Proposal { free, real: true, epoch: 9 };
        let found = lowest::<2>(proposal).expect("two are free");
        assert_eq!((found.slots, found.epoch), ([63, 129], 9));
        assert!(lowest::<4>(proposal).is_none());
    }
}
