//! A set of PEs in a collective call: a team or an active set. Algorithms see members by number and
//! do not know which of the two it is, nor how a member is reached.

use crate::active::ActiveSet;
use crate::barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use tombolo_core::control::{self, WORDS_MAX};
use tombolo_core::ops::Mode;
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
}

#[derive(Clone, Copy)]
enum Kind<'a> {
    Team(&'a Team),
    Active(ActiveSet),
}

impl<'a> Group<'a> {
    /// The members of a team.
    pub fn team(world: &'a World, team: &'a Team, routine: &'static str) -> Group<'a> {
        Group { world, routine, n: team.n_pes(), me: team.me, kind: Kind::Team(team) }
    }

    /// The members of an active set.
    pub fn active(world: &'a World, set: ActiveSet, routine: &'static str) -> Group<'a> {
        Group { world, routine, n: set.n_pes(), me: set.me(), kind: Kind::Active(set) }
    }

    /// Whether the group is an active set.
    pub fn is_active_set(&self) -> bool {
        matches!(self.kind, Kind::Active(_))
    }

    /// World PE of a member.
    #[inline]
    pub fn pe(&self, member: usize) -> usize {
        match self.kind {
            Kind::Team(team) => team.world_pe(member),
            Kind::Active(set) => set.world_pe(member),
        }
    }

    /// Returns when all members have come here. What a member stored before, in its own memory or
    /// mapped memory of others, is visible to all afterwards; what it sent otherwise only if it
    /// called [`Group::complete`] before.
    #[inline]
    pub fn sync(&self) {
        match self.kind {
            Kind::Team(team) => barrier::of_team(self.world, team, self.routine),
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
        for (index, word) in words.iter().enumerate() {
            self.word(index, 1).store(*word, Ordering::Relaxed);
        }
    }

    /// What a member has published before the last sync.
    pub fn published(&self, member: usize, words: &mut [u64]) {
        if words.is_empty() {
            return;
        }
        let pe = self.pe(member);
        if !self.world.ptr(self.word(0, 0), pe).is_null() {
            for (index, word) in words.iter_mut().enumerate() {
                let place = self.world.ptr(self.word(index, 0), pe);
                // SAFETY: an aligned word of the peer's mapped memory.
                *word = unsafe { (*place).load(Ordering::Relaxed) };
            }
            return;
        }
        match self.kind {
            Kind::Team(_) => {
                let source: *const AtomicU64 = self.word(0, 0);
                let dest = words.as_mut_ptr().cast();
                // SAFETY: the words of a team lie next to each other.
                unsafe { self.get(dest, source.cast(), words.len() * 8, member, Mode::Blocking) };
            }
            Kind::Active(_) => {
                for (index, word) in words.iter_mut().enumerate() {
                    let source: *const AtomicU64 = self.word(index, 0);
                    let dest = std::ptr::from_mut(word).cast();
                    // SAFETY: a word of the symmetric array.
                    unsafe { self.get(dest, source.cast(), 8, member, Mode::Blocking) };
                }
            }
        }
    }

    /// Restores the `count` words an active set has published; nothing for teams.
    pub fn retract(&self, count: usize) {
        if self.is_active_set() {
            for index in 0..count {
                self.word(index, 0).store(0, Ordering::Relaxed);
            }
        }
    }

    /// This PE's word number `index`, in the half that belongs to the sync `ahead` of the last one.
    fn word(&self, index: usize, ahead: u64) -> &AtomicU64 {
        match &self.kind {
            Kind::Team(team) => {
                assert!(index < PUBLISHED_MAX, "word {index} of {PUBLISHED_MAX}");
                let half = ((team.epoch.load(Ordering::Relaxed) + ahead) & 1) as usize;
                let offset = control::word(team.slot, half * PUBLISHED_MAX + index);
                // SAFETY: an aligned word of the control area, only ever accessed as a whole.
                unsafe { &*self.world.heap().base().add(offset).cast() }
            }
            Kind::Active(set) => set.word(index),
        }
    }
}
