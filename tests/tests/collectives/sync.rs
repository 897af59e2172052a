// SPDX-License-Identifier: Apache-2.0
//! Barriers.

use super::support::{ROUTINE, array, everywhere, over, some_teams};
use std::sync::atomic::{AtomicU64, Ordering};
use tombolo_collectives::{self as coll, ActiveSet, active};
use tombolo_core::ops::Mode;
use tombolo_core::{Team, World};

/// Everybody writes the number of the round to its own word before the barrier; behind it nobody
/// may see an older one. Barriers follow each other with nothing between.
fn rounds(world: &World, members: &[usize], words: *mut u64, sync: impl Fn()) {
    // SAFETY: this PE's word, accessed whole by everybody.
    let mine = unsafe { &*words.cast::<AtomicU64>() };
    for round in 1..=200u64 {
        mine.store(round, Ordering::Relaxed);
        sync();
        for pe in members {
            let mut seen = 0u64;
            let context = world.context();
            let dest = (&raw mut seen).cast();
            // SAFETY: a local word, and the member's own.
            unsafe {
                world.get(context, dest, words.cast(), 8, *pe, Mode::Blocking, ROUTINE);
            }
            assert!(seen == round || seen == round + 1, "{seen} in round {round} from PE {pe}");
        }
    }
}

fn members(team: &Team) -> Vec<usize> {
    team.members.iter().map(|pe| *pe as usize).collect()
}

#[test]
fn nobody_leaves_a_barrier_before_all_have_come() {
    everywhere(|world| {
        // A word for each team, by slot, and one more.
        let words = array::<u64>(world, 8);
        for team in some_teams(world) {
            let words = words.wrapping_add(team.slot);
            rounds(world, &members(&team), words, || coll::sync(world, &team, ROUTINE));
        }
        let words = words.wrapping_add(7);
        rounds(world, &members(world.team()), words, || coll::barrier_all(world, ROUTINE));
        coll::sync_all(world, ROUTINE);
    });
}

#[test]
fn active_sets_meet_through_their_array_and_leave_it_as_it_was() {
    everywhere(|world| {
        let p_sync = array::<i64>(world, active::SYNC_SIZE);
        let words = array(world, 1);
        let n = world.n_pes() as i32;
        coll::sync_all(world, ROUTINE);
        for (start, log_stride, size) in [(0, 0, n), (n / 2, 0, n - n / 2), (0, 1, (n + 1) / 2)] {
            let pes: Vec<usize> = (0..size).map(|i| (start + (i << log_stride)) as usize).collect();
            let set = ActiveSet::new(world, start, log_stride, size, p_sync, ROUTINE);
            assert_eq!(set.is_some(), pes.contains(&world.pe()));
            if let Some(set) = set {
                // SAFETY: the array is used by this set alone until the sync below.
                rounds(world, &pes, words, || unsafe { active::barrier(world, set, ROUTINE) });
                // SAFETY: as above.
                unsafe { active::sync(world, set, ROUTINE) };
            }
            // The members have returned from their last call, so all arrays are restored.
            coll::sync_all(world, ROUTINE);
            let array = super::support::contents(p_sync, active::SYNC_SIZE);
            assert_eq!(array, [0; active::SYNC_SIZE]);
            coll::sync_all(world, ROUTINE);
        }
    });
}

#[test]
fn members_that_disagree_are_told() {
    for (name, mismatch) in [
        ("another routine", |world: &World, data: *mut u8| {
            let routine = if world.pe() == 1 { "shmem_one" } else { "shmem_other" };
            // SAFETY: symmetric arrays of the test.
            unsafe { coll::broadcast(world, world.team(), data, data, 8, 0, routine) };
        }),
        ("another root", |world: &World, data: *mut u8| {
            let root = i32::from(world.pe() == 1);
            // SAFETY: as above.
            unsafe { coll::broadcast(world, world.team(), data, data, 8, root, ROUTINE) };
        }),
        ("another length", |world: &World, data: *mut u8| {
            let len = 8 + world.pe();
            // SAFETY: as above.
            unsafe { coll::fcollect(world, world.team(), data, data, len, ROUTINE) };
        }),
        ("another address", |world: &World, data: *mut u8| {
            let source = data.wrapping_add(world.pe() * 8);
            // SAFETY: as above.
            unsafe { coll::alltoall(world, world.team(), data, source, 8, ROUTINE) };
        }),
    ] as [(&str, fn(&World, *mut u8)); 4]
    {
        over("shm", 2, &[("SHMEM_DEBUG", "1")], |world| {
            let data = array::<u8>(world, 256);
            coll::sync_all(world, ROUTINE);
            // The root of a broadcast may wait for nobody.
            let call = std::panic::AssertUnwindSafe(|| {
                mismatch(world, data);
                coll::sync_all(world, ROUTINE);
            });
            // The job of threads ends by a panic in every PE.
            let panic = std::panic::catch_unwind(call).expect_err(name);
            let said = panic.downcast_ref::<String>().expect("a message with a number");
            assert!(said.contains("ends the job with code 1"), "{name}: {said}");
        });
    }
}

#[test]
fn members_that_agree_are_not_stopped() {
    over("shm", 3, &[("SHMEM_DEBUG", "1")], |world| {
        let (dest, source) = (array::<u8>(world, 3 * 256), array::<u8>(world, 3 * 256));
        for call in 0..20 {
            let len = call * 8;
            // SAFETY: symmetric arrays of the test.
            unsafe {
                coll::broadcast(world, world.team(), dest, source, len, 1, ROUTINE);
                coll::fcollect(world, world.team(), dest, source, len, ROUTINE);
                // Lengths may differ.
                coll::collect(world, world.team(), dest, source, len + world.pe(), ROUTINE);
            }
        }
    });
}
