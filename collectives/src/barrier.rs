// SPDX-License-Identifier: Apache-2.0
//! Barriers by dissemination (Hensgen, Finkel, Manber: "Two algorithms for barrier synchronization",
//! 1988): in round r each member tells the one 2^r further that it, and all it has heard of, have
//! arrived. With 2^k members everybody has heard of everybody after k one-way latencies.

use crate::active::ActiveSet;
use crate::group::Group;
use crate::letters::{Letters, TeamWord};
use crate::notes::Notes;
use crate::schedule::{others, rounds, tells};
use crate::table::Call;
use std::cell::Cell;
use std::sync::atomic::AtomicU64 as PlainU64;
use tombolo_core::control;
use tombolo_core::ops::Mode;
use tombolo_core::sync::{AtomicU64, Ordering, fence};
use tombolo_core::transport::{Amo, AmoOp};
use tombolo_core::wait::Reason;
use tombolo_core::{Team, Waiting, World};

/// How a member of a barrier reaches flags. `parity` is that of the barrier's number.
trait Flags {
    /// Its own flag of a round.
    fn own(&self, round: usize, parity: usize) -> &AtomicU64;

    /// The flag of whom it tells in a round, where that is mapped.
    fn theirs(&self, round: usize, parity: usize) -> Option<&AtomicU64>;

    /// Puts the number of the barrier to that flag where it is not mapped.
    fn put(&self, round: usize, parity: usize, epoch: u64);

    /// Orders everything put to flags of this parity before what is put to the same flags later.
    fn order(&self, parity: usize);

    /// Waits until `ready`.
    fn wait(&self, ready: impl FnMut() -> bool);
}

/// The rounds of barrier number `epoch`.
///
/// A flag holds the number of the last barrier in which its writer, always the same member, got to
/// that round. Numbers only grow, so nothing is reset and a writer that is one barrier ahead does
/// no harm: its reader waits for "at least".
///
/// What if two numbers arrive in the wrong order, or an old one again, as puts may until they are
/// complete? Barriers with even and with odd numbers have flags of their own. In barrier n + 1 a
/// writer may find its reader still waiting in barrier n, but that looks at the other flag. Between the
/// first number of a barrier and everything put to flags of its kind in others there is a fence: no
/// smaller number can arrive after it. (A transport that has to wait for that waits for barrier n - 2,
/// which is long over.) Within a barrier each flag is put to once.
fn by_flags(flags: &impl Flags, rounds: usize, epoch: u64) {
    let parity = (epoch & 1) as usize;
    let mut first = true;
    for round in 0..rounds {
        match flags.theirs(round, parity) {
            // Release: with the flag the peer sees all that this PE stored.
            Some(theirs) => theirs.store(epoch, Ordering::Release),
            None => {
                if std::mem::take(&mut first) {
                    flags.order(parity);
                }
                // The same for a flag that is put.
                fence(Ordering::Release);
                flags.put(round, parity, epoch);
            }
        }
        let own = flags.own(round, parity);
        flags.wait(|| own.load(Ordering::Acquire) >= epoch);
    }
}

/// The arguments of a sync: none.
pub struct Sync;

impl Call for Sync {
    fn bytes(&self) -> usize {
        0
    }
}

/// Of a group, by dissemination.
pub fn of_group(group: &Group<'_>) {
    match group.as_team() {
        Some(team) => of_team(group.world, team, group.routine),
        None => group.sync(),
    }
}

/// Over the flags of a team.
#[inline]
pub fn of_team(world: &World, team: &Team, routine: &'static str) {
    let flags = TeamFlags { world, team, routine };
    by_flags(&flags, rounds(team.n_pes()), team.next_epoch());
}

/// Members tell the first one of their host, these first ones meet by dissemination, and then tell
/// the members of their hosts: one one-way latency between hosts for each doubling of the hosts, and
/// two within. For teams with memory.
pub fn by_hosts(group: &Group<'_>) {
    let Some(team) = group.with_memory() else { return of_group(group) };
    let flags = HostFlags::next(group, team);
    let hosts = &flags.notes.hosts;
    let n = hosts.leaders.len();
    flags.meet(hosts.local.iter().map(|member| *member as usize), || {
        for round in 0..rounds(n) {
            let other = hosts.leaders[tells(hosts.mine, round, n)] as usize;
            flags.tell(other, TeamWord::round(round, flags.epoch));
            flags.hear(TeamWord::round(round, flags.epoch));
        }
    });
}

/// Members tell the first one, which tells all: two one-way latencies, and as few messages as there can be. For
/// teams with memory.
pub fn by_first(group: &Group<'_>) {
    let Some(team) = group.with_memory() else { return of_group(group) };
    HostFlags::next(group, team).meet(0..group.n, || ());
}

/// Everybody tells everybody: one one-way latency. For teams with memory.
pub fn by_all(group: &Group<'_>) {
    let Some(team) = group.with_memory() else { return of_group(group) };
    team.next_epoch();
    let letters = Letters::begin(group, team, 0);
    others(group.me, group.n).for_each(|member| letters.send_nothing(member));
    others(group.me, group.n).for_each(|member| _ = letters.receive(member));
}

/// Flags of a barrier in a team's memory. Each has one writer, so what holds for the rounds of [`by_flags`] holds for
/// all of them.
struct HostFlags<'a> {
    group: &'a Group<'a>,
    team: &'a Team,
    notes: &'a Notes,
    /// Number of the barrier.
    epoch: u64,
    /// Whether everything put to flags of this kind in older barriers is complete.
    ready: Cell<bool>,
}

impl<'a> HostFlags<'a> {
    /// Those of the next barrier.
    fn next(group: &'a Group<'a>, team: &'a Team) -> HostFlags<'a> {
        let notes = Notes::of(group.world, team);
        HostFlags { group, team, notes, epoch: team.next_epoch(), ready: Cell::new(false) }
    }

    /// Members, of which this one is one, tell the first of them; when all have, it does what is left to do, and
    /// tells them.
    fn meet(&self, members: impl Iterator<Item = usize> + Clone, left: impl FnOnce()) {
        let (me, epoch) = (self.group.me, self.epoch);
        let mut others = members;
        let first = others.next().unwrap_or(me);
        if me != first {
            self.tell(first, TeamWord::meet(me, epoch));
            self.hear(TeamWord::meet(first, epoch));
            return;
        }
        others.clone().for_each(|member| self.hear(TeamWord::meet(member, epoch)));
        left();
        others.for_each(|member| self.tell(member, TeamWord::meet(me, epoch)));
    }

    fn tell(&self, member: usize, place: TeamWord) {
        let Group { world, routine, .. } = *self.group;
        let epoch = self.epoch;
        // SAFETY: null, or the member's mapped flag, only ever accessed as a whole.
        if let Some(theirs) = unsafe { self.notes.word(member, place).as_ref() } {
            theirs.store(epoch, Ordering::Release);
            return;
        }
        let context = &world.sync_contexts()[(epoch & 1) as usize];
        if !self.ready.replace(true) && !context.is_quiet() {
            world.fence(context, routine);
        }
        fence(Ordering::Release);
        let (flag, pe) = (self.notes.word(self.group.me, place), self.group.pe(member));
        let source = (&raw const epoch).cast();
        // SAFETY: a local word, reusable when a blocking put returns.
        unsafe { world.put(context, flag.cast(), source, 8, pe, Mode::Blocking, routine) };
    }

    fn hear(&self, place: TeamWord) {
        // SAFETY: this PE's own flag, only ever accessed as a whole.
        let flag = unsafe { &*self.notes.word(self.group.me, place) };
        let Group { world, routine, .. } = *self.group;
        let waiting = Waiting { routine, argument: self.team.slot as u64, reason: Reason::Members };
        world.wait(waiting, || flag.load(Ordering::Acquire) >= self.epoch);
    }
}

/// Flags in the control area, with which the heap begins.
struct TeamFlags<'a> {
    world: &'a World,
    team: &'a Team,
    routine: &'static str,
}

impl TeamFlags<'_> {
    #[inline]
    fn at(&self, round: usize, parity: usize) -> *mut AtomicU64 {
        let offset = control::flag(self.team.slot, round, parity as u64);
        // SAFETY: a flag of the control area.
        unsafe { self.world.heap().base().add(offset).cast() }
    }

    #[inline]
    fn peer(&self, round: usize) -> usize {
        self.team.world_pe(tells(self.team.me, round, self.team.n_pes()))
    }
}

impl Flags for TeamFlags<'_> {
    #[inline]
    fn own(&self, round: usize, parity: usize) -> &AtomicU64 {
        // SAFETY: this PE's own flag, only ever accessed as a whole.
        unsafe { &*self.at(round, parity) }
    }

    #[inline]
    fn theirs(&self, round: usize, parity: usize) -> Option<&AtomicU64> {
        let theirs = self.world.ptr(self.at(round, parity), self.peer(round));
        // SAFETY: null, or the peer's mapped flag, only ever accessed as a whole.
        unsafe { theirs.as_ref() }
    }

    fn put(&self, round: usize, parity: usize, epoch: u64) {
        let context = &self.world.sync_contexts()[parity];
        let (flag, peer) = (self.at(round, parity).cast(), self.peer(round));
        let source = (&raw const epoch).cast();
        // SAFETY: a local word, reusable when a blocking put returns.
        unsafe { self.world.put(context, flag, source, 8, peer, Mode::Blocking, self.routine) };
    }

    fn order(&self, parity: usize) {
        let context = &self.world.sync_contexts()[parity];
        if !context.is_quiet() {
            self.world.fence(context, self.routine);
        }
    }

    #[inline]
    fn wait(&self, ready: impl FnMut() -> bool) {
        let waiting = Waiting {
            routine: self.routine,
            argument: self.team.slot as u64,
            reason: Reason::Members,
        };
        self.world.wait(waiting, ready);
    }
}

/// Over the `pSync` array of an active set, which must be all zero again afterwards.
pub fn of_active_set(world: &World, set: ActiveSet, routine: &'static str) {
    let tells = |round| set.world_pe(tells(set.me(), round, set.n_pes()));
    by_counters(world, set.n_pes(), |round| set.counter(round), tells, routine);
}

/// The last barrier of a team, after which its flags may serve another one with other members: all
/// members know that no number put to a flag is under way any more.
pub fn last_of_team(world: &World, team: &Team, routine: &'static str) {
    for context in world.sync_contexts().iter().chain(world.letter_contexts()) {
        world.quiet(context, routine);
    }
    let n = team.n_pes();
    let counter = |round| {
        let offset = control::counter(team.slot, round);
        // SAFETY: an aligned word of the control area, with which the heap begins.
        unsafe { &*world.heap().base().add(offset).cast::<PlainU64>() }
    };
    let tells = |round| team.world_pe(tells(team.me, round, n));
    by_counters(world, n, counter, tells, routine);
}

/// Over counters, all zero before and afterwards: the writer raises them and the reader lowers them.
/// A writer that is in the next barrier already has raised one to two; it cannot be further ahead.
/// Counts do not depend on the order in which they arrive, and each is executed once.
fn by_counters<'a>(
    world: &World,
    n: usize,
    counter: impl Fn(usize) -> &'a PlainU64,
    tells: impl Fn(usize) -> usize,
    routine: &'static str,
) {
    let add = |operand: u64| Amo { op: AmoOp::Add, size: 8, operand, compare: 0 };
    for round in 0..rounds(n) {
        let counter = counter(round);
        let place = counter.as_ptr().cast();
        // Who sees the count sees all that this PE stored, also where a transport carries the count.
        fence(Ordering::Release);
        // SAFETY: no result is asked for.
        unsafe {
            let context = world.internal_context();
            world.amo_nbi(context, None, place, add(1), tells(round), routine);
        }
        let waiting = Waiting { routine, argument: place as u64, reason: Reason::Members };
        world.wait(waiting, || counter.load(Ordering::Acquire) > 0);
        // As an AMO, because the writer may raise the counter again meanwhile.
        world.amo_fetch(world.internal_context(), place, add(u64::MAX), world.pe(), routine);
    }
}
