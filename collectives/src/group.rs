// SPDX-License-Identifier: Apache-2.0
//! A set of PEs in a collective call: a team or an active set. Algorithms see members by number and
//! do not know which of the two it is, nor how a member is reached.

use crate::active::ActiveSet;
use crate::algorithms::SYNC;
use crate::barrier::{self, Sync};
use crate::letters::COPIED_MAX;
use crate::notes::{Notes, costs};
use crate::table;
use std::sync::atomic::{AtomicU64, Ordering};
use tombolo_core::control::{self, WORDS_MAX};
use tombolo_core::ops::Mode;
use tombolo_core::transport::Distance;
use tombolo_core::{Team, World};

/// Words a member of a team can publish at once.
pub const PUBLISHED_MAX: usize = WORDS_MAX / 2;

/// The members of one collective call.
pub struct Group<'a> {
    /// This PE's part of the job.
    pub world: &'a World,
    /// The routine the program called.
    pub routine: &'static str,
    /// Number of members.
    pub n: usize,
    /// This PE's number among them.
    pub me: usize,
    kind: Kind<'a>,
    /// Whether the program named an active set.
    active_set: bool,
}

#[derive(Clone, Copy)]
enum Kind<'a> {
    Team(&'a Team, &'a Notes),
    Active(ActiveSet),
}

impl<'a> Group<'a> {
    /// The members of a team.
    #[inline(always)]
    pub fn team(world: &'a World, team: &'a Team, routine: &'static str) -> Group<'a> {
        let kind = Kind::Team(team, Notes::of(world, team));
        Group { world, routine, n: team.n_pes(), me: team.me, kind, active_set: false }
    }

    /// The members of an active set.
    ///
    /// All PEs meet as the team that they are, through memory of the team's own, which makes calls several
    /// times as fast as `pSync` does. Below `SHMEM_THREAD_MULTIPLE` a PE makes one call at a time, so all PEs make these
    /// calls in one order. Where a program has asked for that level they meet through `pSync` all the same: two arrays
    /// keep calls of two threads apart.
    pub fn active(world: &'a World, set: ActiveSet, routine: &'static str) -> Group<'a> {
        let everyone = set.world_pe(0) == 0 && set.n_pes() == world.n_pes();
        if everyone && !world.has_several_threads() {
            return Group { active_set: true, ..Group::team(world, world.team(), routine) };
        }
        let (n, me) = (set.n_pes(), set.me());
        Group { world, routine, n, me, kind: Kind::Active(set), active_set: true }
    }

    /// The team that the group is, if it has memory in which members can write to each other: the
    /// same answer at all members.
    #[inline]
    pub fn with_memory(&self) -> Option<&'a Team> {
        match self.kind {
            Kind::Team(team, notes) if notes.has_memory() => Some(team),
            _ => None,
        }
    }

    /// What is remembered of the team; nothing of active sets.
    #[inline]
    pub fn notes(&self) -> Option<&'a Notes> {
        match self.kind {
            Kind::Team(_, notes) => Some(notes),
            Kind::Active(_) => None,
        }
    }

    /// Whether a call of so many bytes goes by the algorithm that the operation's routine enters by itself: see
    /// [`crate::table::Operation::short`].
    #[inline(always)]
    pub fn is_short(&self, kind: usize, len: usize) -> bool {
        match self.kind {
            Kind::Team(_, notes) => notes.is_short(self.world, kind, len),
            Kind::Active(_) => false,
        }
    }

    /// Whether the group is the world team.
    pub fn is_world(&self) -> bool {
        matches!(self.kind, Kind::Team(team, _) if std::ptr::eq(team, &**self.world.team()))
    }

    /// Whether the program named an active set, which may be that of all PEs.
    pub fn is_active_set(&self) -> bool {
        self.active_set
    }

    /// The distance from the first member to the one farthest from it; see [`World::extent`].
    pub fn extent(&self) -> Distance {
        match self.kind {
            Kind::Team(team, _) => team.extent(self.world),
            Kind::Active(set) => self.world.extent((0..self.n).map(|member| set.world_pe(member))),
        }
    }

    /// World PE of a member.
    #[inline]
    pub fn pe(&self, member: usize) -> usize {
        match self.kind {
            Kind::Team(team, _) => team.world_pe(member),
            Kind::Active(set) => set.world_pe(member),
        }
    }

    /// The team, if it is one.
    pub fn as_team(&self) -> Option<&'a Team> {
        match self.kind {
            Kind::Team(team, _) => Some(team),
            Kind::Active(_) => None,
        }
    }

    /// Returns when all members have come here. What a member stored before, in its own memory or
    /// mapped memory of others, is visible to all afterwards; what it sent otherwise only if it
    /// called [`Group::complete`] before.
    #[inline]
    pub fn sync(&self) {
        match self.kind {
            // The usual choice, without a call through the table.
            Kind::Team(team, notes) if notes.choice(self.world, SYNC.number, 0) == Some(0) => {
                if !self.world.config().debug.0 {
                    team.by_flags.store(costs(self.world), Ordering::Relaxed);
                }
                barrier::of_team(self.world, team, self.routine);
            }
            // SAFETY: a sync has no buffers.
            Kind::Team(..) => unsafe { table::run(&SYNC, self, &Sync) },
            Kind::Active(set) => barrier::of_active_set(self.world, set, self.routine),
        }
    }

    /// Waits until what this PE has sent has arrived and what it has asked for is here.
    #[inline]
    pub fn complete(&self) {
        let context = self.world.internal_context();
        if !context.is_quiet() {
            self.world.quiet(context, self.routine);
        }
    }

    /// Sends `len` bytes to a member. `source` must stay as it is until [`Group::complete`] unless
    /// `mode` is blocking.
    ///
    /// # Safety
    /// `source` is readable for that long; `dest` is symmetric with `len` bytes.
    pub unsafe fn put(
        &self,
        dest: *mut u8,
        source: *const u8,
        len: usize,
        member: usize,
        mode: Mode,
    ) {
        if member == self.me && std::ptr::eq(dest, source) {
            return;
        }
        let (context, pe) = (self.world.internal_context(), self.pe(member));
        // SAFETY: the caller's promise.
        unsafe { self.world.put(context, dest, source, len, pe, mode, self.routine) };
    }

    /// Copies from this member to itself what is complete with [`Group::complete`]: a short block without
    /// a look at the routes.
    ///
    /// # Safety
    /// Both hold `len` bytes; `dest` is symmetric.
    #[inline]
    pub unsafe fn copy_own(&self, dest: *mut u8, source: *const u8, len: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            match len <= COPIED_MAX {
                true => source.copy_to(dest, len),
                false => self.put(dest, source, len, self.me, Mode::NonBlocking),
            }
        }
    }

    /// Fetches `len` bytes from a member.
    ///
    /// # Safety
    /// `dest` is writable for as long as `mode` says; `source` is symmetric with `len` bytes.
    pub unsafe fn get(
        &self,
        dest: *mut u8,
        source: *const u8,
        len: usize,
        member: usize,
        mode: Mode,
    ) {
        let (context, pe) = (self.world.internal_context(), self.pe(member));
        // SAFETY: the caller's promise.
        unsafe { self.world.get(context, dest, source, len, pe, mode, self.routine) };
    }

    /// Lets the members read `words` after the next sync, until this PE calls `publish` again after
    /// a further sync.
    ///
    /// A team has room for [`PUBLISHED_MAX`] words, in two halves used by turns: who publishes
    /// again in the same half has seen a sync that all members entered after reading it. An active
    /// set has room for [`ActiveSet::WORDS`] and needs [`Group::retract`] after its last sync.
    pub fn publish(&self, words: &[u64]) {
        match &self.kind {
            Kind::Team(team, _) => {
                let places = self.half(team, words.len(), 1);
                for (index, word) in words.iter().enumerate() {
                    // SAFETY: an aligned word of this PE's half, only ever accessed as a whole.
                    unsafe { (*places.add(index)).store(*word, Ordering::Relaxed) };
                }
            }
            Kind::Active(set) => {
                for (index, word) in words.iter().enumerate() {
                    set.word(index).store(*word, Ordering::Relaxed);
                }
            }
        }
    }

    /// What a member has published before the last sync.
    pub fn published(&self, member: usize, words: &mut [u64]) {
        match &self.kind {
            Kind::Team(team, _) => self.read(member, self.half(team, words.len(), 0), words),
            Kind::Active(set) => {
                for (index, word) in words.iter_mut().enumerate() {
                    self.read(member, set.word(index), std::slice::from_mut(word));
                }
            }
        }
    }

    /// Reads consecutive words of a member.
    fn read(&self, member: usize, places: *const AtomicU64, words: &mut [u64]) {
        let theirs = self.world.ptr(places, self.pe(member));
        if theirs.is_null() {
            let dest = words.as_mut_ptr().cast();
            // SAFETY: as many words as are asked for lie there, on every member.
            unsafe { self.get(dest, places.cast(), words.len() * 8, member, Mode::Blocking) };
            return;
        }
        for (index, word) in words.iter_mut().enumerate() {
            // SAFETY: an aligned word of the member's mapped memory.
            *word = unsafe { (*theirs.add(index)).load(Ordering::Relaxed) };
        }
    }

    /// Restores the `count` words an active set has published; nothing for teams.
    pub fn retract(&self, count: usize) {
        if let Kind::Active(set) = &self.kind {
            (0..count).for_each(|index| set.word(index).store(0, Ordering::Relaxed));
        }
    }

    /// This PE's words in the control area, room for `len`: the half that belongs to the sync
    /// `ahead` of the last one.
    fn half(&self, team: &Team, len: usize, ahead: u64) -> *mut AtomicU64 {
        assert!(len <= PUBLISHED_MAX, "{len} words of {PUBLISHED_MAX}");
        let half = ((team.epoch.load(Ordering::Relaxed) + ahead) & 1) as usize;
        let offset = control::word(team.slot, half * PUBLISHED_MAX);
        // SAFETY: the control area, with which the heap begins.
        unsafe { self.world.heap().base().add(offset).cast() }
    }
}
