// SPDX-License-Identifier: Apache-2.0
//! Making and destroying teams.

use super::support::{ROUTINE, array, everywhere, over};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tombolo_collectives::{self as coll, teams, teams::SplitError};
use tombolo_core::control::TEAMS_MAX;
use tombolo_core::{Team, World};

fn split(
    world: &World,
    parent: &Team,
    start: usize,
    stride: i32,
    size: usize,
) -> Option<Arc<Team>> {
    teams::split_strided(world, parent, start as i32, stride, size as i32, 0, ROUTINE)
        .expect("a team can be made")
}

/// Sums up everybody's number in the team, which involves all members.
fn works(world: &World, team: &Team, data: *mut u64) {
    // SAFETY: an array of the test with two words.
    unsafe {
        *data = team.me as u64 + 1;
        let (dest, sum) = (data.add(1).cast(), coll::reducer::<coll::Sum, u64>());
        coll::reduce(world, team, dest, data.cast(), 1, sum, ROUTINE);
        let n = team.n_pes() as u64;
        assert_eq!(*data.add(1), n * (n + 1) / 2, "{team:?}");
    }
}

#[test]
fn strided_teams_have_the_members_asked_for_in_order() {
    everywhere(|world| {
        let (n, me) = (world.n_pes(), world.pe());
        let data = array(world, 2);
        for start in 0..n {
            for stride in -3..=3i32 {
                for size in 1..=n {
                    let places = (0..size).map(|i| start as i64 + i64::from(stride) * i as i64);
                    let places: Vec<i64> = places.collect();
                    let (start, size) = (start as i32, size as i32);
                    let team =
                        teams::split_strided(world, world.team(), start, stride, size, 5, ROUTINE);
                    let possible = places.iter().all(|p| (0..n as i64).contains(p))
                        && (stride != 0 || size == 1);
                    if !possible {
                        assert_eq!(team.err(), Some(SplitError::Arguments));
                        continue;
                    }
                    let team = team.expect("a team can be made");
                    let mine = places.iter().position(|p| *p == me as i64);
                    assert_eq!(team.as_ref().map(|team| team.me), mine);
                    let Some(team) = team else { continue };
                    assert_eq!(team.num_contexts, 5);
                    assert!(team.members.iter().map(|pe| i64::from(*pe)).eq(places));
                    works(world, &team, data);
                    teams::destroy(world, &team, ROUTINE);
                }
            }
        }
    });
}

#[test]
fn rows_and_columns_of_teams_of_teams() {
    everywhere(|world| {
        let (n, me) = (world.n_pes(), world.pe());
        let data = array(world, 2);
        for width in 1..=n + 1 {
            let [x, y] = teams::split_2d(world, world.team(), width as i32, 1, 2, ROUTINE)
                .expect("teams can be made");
            let width = width.min(n);
            assert_eq!((x.me, y.me), (me % width, me / width));
            assert_eq!((x.num_contexts, y.num_contexts), (1, 2));
            let row: Vec<u32> =
                (0..n).filter(|p| p / width == me / width).map(|p| p as u32).collect();
            let column: Vec<u32> =
                (0..n).filter(|p| p % width == me % width).map(|p| p as u32).collect();
            assert_eq!((&*x.members, &*y.members), (&row[..], &column[..]));
            works(world, &x, data);
            works(world, &y, data);
            // Rows have halves; a row's PEs split while other rows do the same.
            let half = split(world, &x, 0, 1, x.n_pes().div_ceil(2));
            if let Some(half) = half {
                works(world, &half, data);
                assert_eq!(teams::translate_pe(&half, 0, world.team()), Some(x.world_pe(0)));
                teams::destroy(world, &half, ROUTINE);
            }
            teams::destroy(world, &y, ROUTINE);
            teams::destroy(world, &x, ROUTINE);
        }
        let refused = teams::split_2d(world, world.team(), 0, 0, 0, ROUTINE);
        assert_eq!(refused.err(), Some(SplitError::Arguments));
    });
}

#[test]
fn slots_run_out_for_all_and_come_back() {
    for n in [1, 3, 4] {
        over("shm", n, &[], |world| {
            let data = array(world, 2);
            for _ in 0..2 {
                let mut all = Vec::new();
                let refused = loop {
                    match teams::split_strided(
                        world,
                        world.team(),
                        0,
                        1,
                        world.n_pes() as i32,
                        0,
                        ROUTINE,
                    ) {
                        Ok(team) => all.push(team.expect("everybody is a member")),
                        Err(refused) => break refused,
                    }
                };
                assert_eq!(refused, SplitError::NoSlot);
                // All but those of the world and of the PEs that share memory.
                assert_eq!(all.len(), TEAMS_MAX - 2);
                assert!(teams::split_2d(world, world.team(), 1, 0, 0, ROUTINE).is_err());
                all.iter().for_each(|team| works(world, team, data));
                all.iter().for_each(|team| teams::destroy(world, team, ROUTINE));
            }
        });
    }
}

#[test]
fn members_without_free_slots_do_not_hinder_others() {
    over("shm", 3, &[], |world| {
        // PE 0 alone uses up its slots.
        let alone = split(world, world.team(), 0, 1, 1);
        if let Some(alone) = &alone {
            while teams::split_strided(world, alone, 0, 1, 1, 0, ROUTINE).is_ok() {}
        }
        let others = split(world, world.team(), 1, 1, 2);
        assert_eq!(others.is_some(), world.pe() > 0);
        let all = teams::split_strided(world, world.team(), 0, 1, 3, 0, ROUTINE);
        assert_eq!(all.err(), Some(SplitError::NoSlot));
    });
}

/// Two teams use the same slot for different numbers of barriers; then a team of members of both
/// takes it over. A flag left from before must not open a barrier of the new team.
#[test]
fn a_reused_slot_does_not_remember() {
    for n in [4, 5, 8] {
        over("shm", n, &[], |world| {
            let words = array::<u64>(world, 1);
            // SAFETY: this PE's word, accessed whole by everybody.
            let mine = unsafe { &*words.cast::<AtomicU64>() };
            let mut value = 0;
            for turn in 0..20usize {
                let [row, column] = teams::split_2d(world, world.team(), 2, 0, 0, ROUTINE)
                    .expect("teams can be made");
                let syncs = (world.pe() / 2 * 37 + turn * 11) % 101;
                (0..syncs).for_each(|_| coll::sync(world, &row, ROUTINE));
                teams::destroy(world, &row, ROUTINE);
                teams::destroy(world, &column, ROUTINE);
                let mixed = split(world, world.team(), 1, 1, n - 1);
                let Some(mixed) = mixed else { continue };
                for _ in 0..50 {
                    value += 1;
                    mine.store(value, Ordering::Relaxed);
                    coll::sync(world, &mixed, ROUTINE);
                    for pe in &mixed.members {
                        // SAFETY: the PE's word, mapped.
                        let theirs =
                            unsafe { &*world.ptr(words, *pe as usize).cast::<AtomicU64>() };
                        assert!(theirs.load(Ordering::Relaxed) >= value);
                    }
                    coll::sync(world, &mixed, ROUTINE);
                }
                teams::destroy(world, &mixed, ROUTINE);
            }
        });
    }
}

/// Threads of a PE split different teams at the same time, and some PEs do one after the other, in
/// the opposite order.
#[test]
fn threads_split_different_teams_at_the_same_time() {
    for n in [2, 3, 4] {
        over("shm", n, &[], |world| {
            let parents: Vec<Arc<Team>> = (0..3)
                .map(|_| split(world, world.team(), 0, 1, n).expect("everybody is a member"))
                .collect();
            let data = array::<u64>(world, 2 * parents.len());
            let splits = |which: usize, turns: std::ops::Range<usize>| {
                for _ in turns {
                    let team = split(world, &parents[which], 0, 1, n).expect("a member");
                    works(world, &team, data.wrapping_add(2 * which));
                    teams::destroy(world, &team, ROUTINE);
                }
            };
            if world.pe() == 0 {
                std::thread::scope(|scope| {
                    for which in 0..parents.len() {
                        let splits = &splits;
                        // SAFETY of sharing: each thread uses its own team and words.
                        let splits = Shared(splits);
                        scope.spawn(move || splits.get()(which, 0..40));
                    }
                });
            } else {
                for turn in 0..40 {
                    for which in (0..parents.len()).rev() {
                        splits(which, turn..turn + 1);
                    }
                }
            }
        });
    }
}

/// A reference that other threads may use.
struct Shared<'a, F>(&'a F);

impl<'a, F> Shared<'a, F> {
    fn get(&self) -> &'a F {
        self.0
    }
}

// SAFETY: what is shared captures a raw pointer into symmetric memory, of which each thread uses a
// part of its own, and a world, which is `Sync`.
unsafe impl<F> Send for Shared<'_, F> {}
