//! From one member to all.

use crate::group::Group;
use tombolo_core::ops::Mode;

/// The arguments of a broadcast.
pub struct Broadcast {
    dest: *mut u8,
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

/// The root writes to all.
///
/// # Safety
/// The buffers are as `shmem_broadcast` promises.
pub unsafe fn root_puts(group: &Group<'_>, call: &Broadcast) {
    if group.me == call.root {
        for member in crate::schedule::others_then_self(group.me, group.n) {
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
