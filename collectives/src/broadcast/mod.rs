// SPDX-License-Identifier: Apache-2.0
//! From one member to all.

use crate::group::Group;
use crate::letters::Letters;
use crate::notes::Notes;
use crate::schedule::{others, others_then_self, rounds, share};
use crate::stream;
use crate::table::Call;
use tombolo_core::ops::Mode;

mod chains;
mod flags;

pub use chains::{Halves, both_ways, chain, cut, halves};
pub use flags::{relay, root_signals, root_tells};

/// The arguments of a broadcast.
pub struct Broadcast {
    pub(crate) dest: *mut u8,
    source: *const u8,
    /// Bytes.
    pub len: usize,
    root: usize,
}

impl Broadcast {
    /// Checks the root, by which arrays are indexed.
    pub fn new(
        group: &Group<'_>,
        dest: *mut u8,
        source: *const u8,
        len: usize,
        root: i32,
    ) -> Broadcast {
        match usize::try_from(root) {
            Ok(root) if root < group.n => Broadcast { dest, source, len, root },
            _ => group.world.stop_job(
                group.routine,
                format_args!("PE_root = {root} is not a member: expected 0 to {}", group.n - 1),
            ),
        }
    }

    /// A broadcast to ask about, not to carry out.
    pub(crate) fn of_size(len: usize) -> Broadcast {
        Broadcast { dest: std::ptr::null_mut(), source: std::ptr::null(), len, root: 0 }
    }

    /// Whether `member` gets the data: all but, in active sets, the root; and nobody whose buffers
    /// are the same.
    fn reaches(&self, group: &Group<'_>, member: usize) -> bool {
        member != self.root || (!group.is_active_set() && !std::ptr::eq(self.dest, self.source))
    }
}

impl Call for Broadcast {
    fn bytes(&self) -> usize {
        self.len
    }
}

/// The root writes to all.
///
/// # Safety
/// The buffers are as `shmem_broadcast` promises.
pub unsafe fn root_puts(group: &Group<'_>, call: &Broadcast) {
    if group.me == call.root {
        for member in others_then_self(group.me, group.n) {
            if call.reaches(group, member) {
                // SAFETY: the source is not changed before the call has returned. Every member's
                // dest is ready before any of them calls.
                unsafe { group.put(call.dest, call.source, call.len, member, Mode::NonBlocking) };
            }
        }
        group.complete();
    }
    // The data is here when the root is known to have arrived.
    group.sync();
}

/// All read from the root.
///
/// # Safety
/// As [`root_puts`].
pub unsafe fn members_get(group: &Group<'_>, call: &Broadcast) {
    // The root's source is ready when the root has arrived.
    group.sync();
    if call.reaches(group, group.me) {
        // SAFETY: both buffers are symmetric and hold `len` bytes.
        unsafe { group.get(call.dest, call.source, call.len, call.root, Mode::NonBlocking) };
        group.complete();
    }
    // The root may change its source when all have read it.
    group.sync();
}

impl Broadcast {
    /// The number of a member as seen from the root, which is 0, or the member of a number.
    pub(crate) fn turned(&self, group: &Group<'_>, member: usize) -> usize {
        (member + group.n - self.root) % group.n
    }

    fn member(&self, group: &Group<'_>, number: usize) -> usize {
        (number + self.root) % group.n
    }

    /// Where this member's data are once it has them.
    pub(crate) fn data(&self, group: &Group<'_>) -> *const u8 {
        if group.me == self.root { self.source } else { self.dest }
    }

    /// At the root, a copy to its own dest.
    ///
    /// # Safety
    /// As [`root_puts`].
    pub(crate) unsafe fn keep(&self, group: &Group<'_>) {
        if group.me == self.root && self.reaches(group, group.me) {
            // SAFETY: the caller's promise.
            unsafe { self.source.copy_to(self.dest, self.len) };
        }
    }
}

/// Each member that has the data sends it on to one that has not, so that their number doubles.
///
/// # Safety
/// As [`root_puts`].
pub unsafe fn tree(group: &Group<'_>, call: &Broadcast) {
    let Some(team) = group.with_memory() else { unreachable!("applies to teams with memory") };
    let letters = Letters::begin(group, team, 0);
    let number = call.turned(group, group.me);
    let (parent, children) = binomial(number, group.n);
    if let Some(parent) = parent {
        letters.receive(call.member(group, parent));
    }
    for child in children {
        let (data, child) = (call.data(group), call.member(group, child));
        // SAFETY: the data stay as they are until the letters are released; the member's dest is
        // ready before any of them calls.
        unsafe { letters.send_to(child, call.dest, data, call.len, Mode::NonBlocking) };
    }
    // SAFETY: the caller's promise.
    unsafe { call.keep(group) };
    letters.release();
    // The root may not be ahead of members that have not come: see `letters`.
    group.sync();
}

/// A binomial tree of hosts. The root leads its host, which is the first one, and the first member each other host.
struct HostTree<'a> {
    notes: &'a Notes,
    root: usize,
}

impl<'a> HostTree<'a> {
    fn of(notes: &'a Notes, root: usize) -> HostTree<'a> {
        HostTree { notes, root }
    }

    fn count(&self) -> usize {
        self.notes.hosts.leaders.len()
    }

    /// The number of this member's host, from that of the root's.
    fn number(&self) -> usize {
        let (mine, of_root) = (self.notes.hosts.mine, self.notes.host_of(self.root));
        (mine + self.count() - of_root) % self.count()
    }

    /// Who leads the host of a number.
    fn leader(&self, number: usize) -> usize {
        match (number + self.notes.host_of(self.root)) % self.count() {
            _ if number == 0 => self.root,
            host => self.notes.hosts.leaders[host] as usize,
        }
    }

    /// Who leads this member's host.
    fn head(&self) -> usize {
        self.leader(self.number())
    }

    /// From whom who leads this host gets the data; nobody if it is the root.
    fn parent(&self) -> Option<usize> {
        binomial(self.number(), self.count()).0.map(|parent| self.leader(parent))
    }

    /// To whom of other hosts who leads this one sends them.
    fn children(&self) -> impl Iterator<Item = usize> {
        binomial(self.number(), self.count()).1.map(|child| self.leader(child))
    }

    /// The members of this host but for who leads it.
    fn others_here(&self) -> impl Iterator<Item = usize> {
        let here = self.notes.hosts.local.iter().map(|member| *member as usize);
        let head = self.head();
        here.filter(move |member| *member != head)
    }
}

/// The root sends to one member of each host, by a tree of hosts; the others get the data from the
/// one of their host.
///
/// # Safety
/// As [`root_puts`].
pub unsafe fn by_hosts(group: &Group<'_>, call: &Broadcast) {
    let (Some(team), Some(notes)) = (group.with_memory(), group.notes()) else {
        unreachable!("applies to teams with memory")
    };
    let tree = HostTree::of(notes, call.root);
    let head = tree.head();
    let letters = Letters::begin(group, team, 0);
    if group.me == head {
        if let Some(parent) = tree.parent() {
            letters.receive(parent);
        }
        for child in tree.children() {
            let data = call.data(group);
            // SAFETY: as in `tree`.
            unsafe { letters.send_to(child, call.dest, data, call.len, Mode::NonBlocking) };
        }
        tree.others_here().for_each(|member| letters.send_nothing(member));
        // SAFETY: the caller's promise.
        unsafe { call.keep(group) };
        letters.release();
    } else {
        letters.receive(head);
        let data = if head == call.root { call.source } else { call.dest };
        // SAFETY: symmetric buffers; nobody changes the other's before the sync.
        unsafe { group.get(call.dest, data, call.len, head, Mode::NonBlocking) };
        group.complete();
    }
    // The heads may change their data when all have read them.
    group.sync();
}

/// Whether every member's dest may be written, the root's too, and members can write to memory of the
/// team.
pub fn fills_all(group: &Group<'_>, _: &Broadcast) -> bool {
    group.with_memory().is_some() && !group.is_active_set()
}

/// The root sends each member a share, and the shares go round the ring of members.
///
/// # Safety
/// As [`root_puts`].
pub unsafe fn scatter(group: &Group<'_>, call: &Broadcast) {
    let Some(team) = group.with_memory() else { unreachable!("applies to teams with memory") };
    let range = |member: usize| share(member, group.n, call.len, LINE);
    let letters = Letters::begin(group, team, 0);
    if group.me == call.root {
        // SAFETY: the caller's promise.
        unsafe { call.keep(group) };
        for member in others(group.me, group.n) {
            let range = range(member);
            let (dest, data) =
                (call.dest.wrapping_add(range.start), call.source.wrapping_add(range.start));
            // SAFETY: as in `tree`.
            unsafe { letters.send_to(member, dest, data, range.len(), Mode::NonBlocking) };
        }
        letters.release();
    } else {
        letters.receive(call.root);
    }
    // Every dest is to have everything, the root's too, which is where it comes from.
    // SAFETY: the caller's promise; nobody leaves before all have come.
    unsafe { stream::round_the_ring(group, team, call.dest, range) };
}

const LINE: usize = 64;

/// The parent of a number in a binomial tree of `n`, and its children, those with the most children
/// of their own first.
fn binomial(number: usize, n: usize) -> (Option<usize>, impl Iterator<Item = usize>) {
    // A number's lowest bit leads to its parent; lower bits lead to its children.
    let bits = match number {
        0 => rounds(n),
        number => number.trailing_zeros() as usize,
    };
    let parent = (number > 0).then(|| number & (number - 1));
    let children = (0..bits).rev().map(move |bit| number + (1 << bit));
    (parent, children.filter(move |child| *child < n))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_but_the_root_is_the_child_of_its_parent() {
        for n in 1..=70 {
            let mut seen = vec![0; n];
            for number in 0..n {
                for child in binomial(number, n).1 {
                    seen[child] += 1;
                    assert_eq!(binomial(child, n).0, Some(number), "{child} of {n}");
                }
            }
            assert_eq!(seen[0], 0);
            assert!(seen[1..].iter().all(|seen| *seen == 1), "{n}: {seen:?}");
        }
    }
}
