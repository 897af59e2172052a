// SPDX-License-Identifier: Apache-2.0
//! Teams: ordered sets of PEs that communicate together.

use crate::control::TEAMS_MAX;
use crate::transport::Distance;
use crate::world::World;
use std::any::Any;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};

/// A team as one of its members sees it.
#[derive(Debug)]
pub struct Team {
    /// Number of the team's flags and words in the control area: the same on every member.
    pub slot: usize,
    /// World PE of each member, in team order.
    pub members: Box<[u32]>,
    /// This PE's number in the team.
    pub me: usize,
    /// Contexts that members may create from the team, as configured.
    pub num_contexts: i32,
    /// Barriers begun. Flags hold epochs, so nothing is ever reset.
    pub epoch: AtomicU64,
    /// Contexts alive that were created from this team.
    pub contexts: AtomicUsize,
    /// What collective operations remember of the team.
    pub notes: OnceLock<Box<dyn Any + Send + Sync>>,
    /// The address of the costs for which collective operations have chosen to synchronise the team by
    /// its flags, without a look at the notes; 0 for none.
    pub by_flags: AtomicUsize,
    extent: OnceLock<Distance>,
}

impl Team {
    /// A team over `members`, of which this PE is number `me`.
    pub fn new(slot: usize, members: Box<[u32]>, me: usize, num_contexts: i32) -> Team {
        let (epoch, contexts) = (AtomicU64::new(0), AtomicUsize::new(0));
        let (notes, extent) = (OnceLock::new(), OnceLock::new());
        let by_flags = AtomicUsize::new(0);
        Team { slot, members, me, num_contexts, epoch, contexts, notes, by_flags, extent }
    }

    /// The distance from the first member to the one farthest from it; see [`World::extent`].
    pub fn extent(&self, world: &World) -> Distance {
        *self.extent.get_or_init(|| world.extent(self.members.iter().map(|pe| *pe as usize)))
    }

    /// Number of members.
    pub fn n_pes(&self) -> usize {
        self.members.len()
    }

    /// World PE of member `pe`.
    pub fn world_pe(&self, pe: usize) -> usize {
        self.members[pe] as usize
    }

    /// Number in this team of a world PE.
    pub fn position(&self, world_pe: usize) -> Option<usize> {
        self.members.iter().position(|pe| *pe as usize == world_pe)
    }

    /// Starts the next barrier and gives its epoch, from 1. One caller at a time per team, which
    /// the standard asks of programs for collectives.
    pub fn next_epoch(&self) -> u64 {
        let epoch = self.epoch.load(Ordering::Relaxed) + 1;
        self.epoch.store(epoch, Ordering::Relaxed);
        epoch
    }
}

/// Which team slots this PE has free, as words of a bit mask.
pub type SlotMask = [u64; TEAMS_MAX / 64];

/// What a PE contributes to the agreement on a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proposal {
    /// Its free slots; none if it is not this split's turn.
    pub free: SlotMask,
    /// Whether it is this split's turn.
    pub real: bool,
    /// No flag of a free slot holds a later epoch than this.
    pub epoch: u64,
}

/// The team slots of one PE.
///
/// Members agree on a slot by a reduction over their free masks. Threads that split different teams
/// at the same time could choose the same slot; so only one at a time shows its mask, the one whose
/// parent has the lowest slot first, and the others show an empty mask and try again. A split is
/// announced only once all members of the parent have come to it, so whoever has its turn finishes.
///
/// Flags keep the epochs of the teams that used a slot before; a new team starts where the latest of
/// them stopped.
#[derive(Debug)]
pub struct TeamSlots {
    state: Mutex<Slots>,
}

#[derive(Debug)]
struct Slots {
    free: SlotMask,
    /// Largest epoch of all teams destroyed so far.
    epoch: u64,
    /// Parent slots of the splits under way.
    splitting: Vec<usize>,
    holder: Option<usize>,
}

impl TeamSlots {
    /// All slots free but the first `taken`.
    pub fn new(taken: usize) -> TeamSlots {
        let mut free = [u64::MAX; TEAMS_MAX / 64];
        for slot in 0..taken {
            free[slot / 64] &= !(1 << (slot % 64));
        }
        let state = Mutex::new(Slots { free, epoch: 0, splitting: Vec::new(), holder: None });
        TeamSlots { state }
    }

    /// Announces a split of the team in slot `parent`.
    pub fn begin(&self, parent: usize) {
        self.slots().splitting.push(parent);
    }

    /// What to contribute to the agreement.
    pub fn propose(&self, parent: usize) -> Proposal {
        let mut slots = self.slots();
        let first = slots.splitting.iter().min() == Some(&parent);
        if slots.holder.is_none() && first {
            slots.holder = Some(parent);
        }
        let real = slots.holder == Some(parent);
        let free = if real { slots.free } else { [0; TEAMS_MAX / 64] };
        Proposal { free, real, epoch: slots.epoch }
    }

    /// Ends one round of agreement: takes the slots that were agreed on.
    pub fn settle(&self, parent: usize, taken: &[usize], done: bool) {
        let mut slots = self.slots();
        for slot in taken {
            slots.free[slot / 64] &= !(1 << (slot % 64));
        }
        if slots.holder == Some(parent) {
            slots.holder = None;
        }
        if done && let Some(at) = slots.splitting.iter().position(|p| *p == parent) {
            slots.splitting.swap_remove(at);
        }
    }

    /// Gives back the slot of a team whose last barrier had number `epoch`.
    pub fn release(&self, slot: usize, epoch: u64) {
        let mut slots = self.slots();
        slots.free[slot / 64] |= 1 << (slot % 64);
        slots.epoch = slots.epoch.max(epoch);
    }

    fn slots(&self) -> std::sync::MutexGuard<'_, Slots> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// The lowest slot in a mask.
pub fn lowest(mask: &SlotMask) -> Option<usize> {
    let word = mask.iter().position(|word| *word != 0)?;
    Some(word * 64 + mask[word].trailing_zeros() as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_taken_and_given_back() {
        let slots = TeamSlots::new(2);
        slots.begin(0);
        let proposal = slots.propose(0);
        assert!(proposal.real);
        assert_eq!(lowest(&proposal.free), Some(2));
        slots.settle(0, &[2, 3], true);
        slots.begin(0);
        assert_eq!(lowest(&slots.propose(0).free), Some(4));
        slots.settle(0, &[], true);
        slots.release(2, 7);
        slots.begin(1);
        assert_eq!(lowest(&slots.propose(1).free), Some(2));
    }

    #[test]
    fn a_reused_slot_starts_after_the_latest_epoch() {
        let slots = TeamSlots::new(4);
        slots.release(3, 40);
        slots.release(2, 30);
        slots.begin(0);
        assert_eq!(slots.propose(0).epoch, 40);
    }

    #[test]
    fn only_the_split_with_the_lowest_parent_shows_its_mask() {
        let slots = TeamSlots::new(2);
        slots.begin(1);
        slots.begin(0);
        assert!(!slots.propose(1).real);
        assert!(slots.propose(0).real);
        slots.settle(0, &[2], true);
        assert!(slots.propose(1).real);
    }
}
