// SPDX-License-Identifier: Apache-2.0
//! From the root straight to each member, by flags of pieces: nobody waits for members that are late.
//!
//! What [`super::chains`] says of members that come late holds here too: a flag has one writer, which writes
//! it again only when all that it sent with it is complete, so a number that is larger than the one
//! awaited says as much. The data go to a dest that is ready. Chains that come next wait for what went the same way
//! with the same flags, and a neighbour gets by either way what it gets from here.

use super::{Broadcast, HostTree};
use crate::group::Group;
use crate::letters::{Letters, Slot, Way};
use crate::schedule::others;
use tombolo_core::Team;
use tombolo_core::ops::Mode;

/// The number of a call.
#[inline(always)]
fn number(group: &Group<'_>, team: &Team) -> u64 {
    // Neither chains, which send to the same flags both ways round, nor calls of this kind wait until that has
    // arrived. A flag that is mapped is stored when all that goes with it is complete.
    if !group.notes().is_some_and(|notes| notes.all_mapped) {
        for way in [Way::Right, Way::Left] {
            Letters::piece(group, team, 0, Slot::of(0, way, true)).complete();
        }
    }
    // An even count of numbers: whether that of a later message is even does not depend on broadcasts.
    Letters::reserve(group, 2)
}

/// The flag of a call from the root to a member, as first one, and back, as second one.
#[inline(always)]
fn flag<'a>(group: &'a Group<'a>, team: &'a Team, number: u64, index: usize) -> Letters<'a> {
    Letters::piece(group, team, number, Slot::straight(index))
}

/// The root puts to each, with a flag.
///
/// # Safety
/// As [`super::root_puts`].
#[inline(always)]
pub unsafe fn root_signals(group: &Group<'_>, call: &Broadcast) {
    let Some(team) = group.with_memory() else { unreachable!("applies to teams with memory") };
    let there = flag(group, team, number(group, team), 0);
    if group.me != call.root {
        there.receive(call.root);
        return;
    }
    for member in others(group.me, group.n) {
        // SAFETY: the source is not changed before the call has returned, and every member's dest is ready
        // before any of them calls.
        unsafe { there.send_to(member, call.dest, call.source, call.len, Mode::NonBlocking) };
    }
    // SAFETY: the caller's promise.
    unsafe { call.keep(group) };
    there.release();
}

/// The root puts to one member of each host, by a tree of hosts, and each of these to the others of its host: as
/// [`root_signals`], for each sender has flags of its own.
///
/// # Safety
/// As [`super::root_puts`].
pub unsafe fn relay(group: &Group<'_>, call: &Broadcast) {
    let (Some(team), Some(notes)) = (group.with_memory(), group.notes()) else {
        unreachable!("applies to teams with memory")
    };
    let there = flag(group, team, number(group, team), 0);
    let tree = HostTree::of(notes, call.root);
    if group.me != tree.head() {
        there.receive(tree.head());
        return;
    }
    if let Some(parent) = tree.parent() {
        there.receive(parent);
    }
    for member in tree.children().chain(tree.others_here()) {
        let data = call.data(group);
        // SAFETY: the data stay as they are until they are released, and every member's dest is ready before any of
        // them calls.
        unsafe { there.send_to(member, call.dest, data, call.len, Mode::NonBlocking) };
    }
    // SAFETY: the caller's promise.
    unsafe { call.keep(group) };
    there.release();
}

/// The root tells each, which gets the data and tells the root.
///
/// # Safety
/// As [`super::root_puts`].
pub unsafe fn root_tells(group: &Group<'_>, call: &Broadcast) {
    let Some(team) = group.with_memory() else { unreachable!("applies to teams with memory") };
    let number = number(group, team);
    let [there, back] = [0, 1].map(|index| flag(group, team, number, index));
    if group.me != call.root {
        there.receive(call.root);
        // SAFETY: both buffers are symmetric and hold `len` bytes. The root waits for the answer.
        unsafe { group.get(call.dest, call.source, call.len, call.root, Mode::NonBlocking) };
        group.complete();
        back.send_nothing(call.root);
        back.complete();
        return;
    }
    others(group.me, group.n).for_each(|member| there.send_nothing(member));
    // SAFETY: the caller's promise.
    unsafe { call.keep(group) };
    others(group.me, group.n).for_each(|member| _ = back.receive(member));
    there.complete();
}
