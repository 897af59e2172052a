//! Concatenation of all members' blocks at all members.

use crate::group::Group;
use crate::schedule::others_then_self;
use tombolo_core::ops::Mode;

/// The arguments of a collect or fcollect.
pub struct Gather {
    /// Where the concatenation goes.
    pub dest: *mut u8,
    /// This PE's block.
    pub source: *const u8,
    /// Its length in bytes.
    pub len: usize,
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

/// Blocks of lengths that the members first tell each other.
///
/// # Safety
/// The buffers are as `shmem_collect` promises.
pub unsafe fn collect(group: &Group<'_>, call: &Gather) {
    group.publish(&[call.len as u64]);
    // Lengths can be read.
    group.sync();
    let len_of = |member| {
        let mut len = [0];
        group.published(member, &mut len);
        len[0] as usize
    };
    let offset: usize = (0..group.me).map(len_of).sum();
    if group.world.config().debug.0 {
        // Puts would find it out as well, but at addresses that the program never passed.
        let all = offset + (group.me..group.n).map(len_of).sum::<usize>();
        group.world.check_range(group.routine, "dest", call.dest, all);
    }
    // SAFETY: the caller's promise.
    unsafe { put_to_all(group, call, offset) };
    // My dest is complete when all members have sent.
    group.sync();
    group.retract(1);
}

/// # Safety
/// As [`fcollect`]; `dest` has `call.len` bytes at `offset`.
unsafe fn put_to_all(group: &Group<'_>, call: &Gather, offset: usize) {
    for member in others_then_self(group.me, group.n) {
        let dest = call.dest.wrapping_add(offset);
        // SAFETY: the source is not changed before the call has returned. Every member's dest is
        // ready before any of them calls.
        unsafe { group.put(dest, call.source, call.len, member, Mode::NonBlocking) };
    }
    group.complete();
}
