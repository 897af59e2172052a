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
    let (offset, all) = extent((0..group.n).map(len_of), group.me);
    if group.world.config().debug.0 {
        // Puts would find it out as well, but at addresses that the program never passed.
        group.world.check_range(group.routine, "dest", call.dest, all);
    }
    // What others tell does not lead out of the segment that dest is in.
    let room = group.world.room_at(call.dest);
    if offset.checked_add(call.len).is_none_or(|end| end > 0 && end > room) {
        let (world, dest) = (group.world, call.dest);
        world.stop_job(
            group.routine,
            format_args!(
                "the blocks of the members before this one have {offset} bytes: with this one's {} \
                 they end outside of the symmetric memory at dest = {dest:p}",
                call.len
            ),
        );
    }
    // SAFETY: the caller's promise.
    unsafe { put_to_all(group, call, offset) };
    // My dest is complete when all members have sent.
    group.sync();
    group.retract(1);
}

/// Bytes of the blocks of the members before `me`, and of all; the largest number where the sum has
/// no room in a word.
fn extent(lens: impl Iterator<Item = usize>, me: usize) -> (usize, usize) {
    let add = |(before, all): (usize, usize), (member, len): (usize, usize)| {
        let all = all.saturating_add(len);
        (if member < me { all } else { before }, all)
    };
    lens.enumerate().fold((0, 0), add)
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

#[cfg(test)]
mod tests {
    use super::extent;

    #[test]
    fn lengths_that_others_tell_add_up_without_overflow() {
        assert_eq!(extent([3, 4, 5].into_iter(), 0), (0, 12));
        assert_eq!(extent([3, 4, 5].into_iter(), 2), (7, 12));
        assert_eq!(extent([3, usize::MAX, 5].into_iter(), 2), (usize::MAX, usize::MAX));
    }
}
