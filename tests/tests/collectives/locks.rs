// SPDX-License-Identifier: Apache-2.0
//! Locks.

use super::support::{ROUTINE, Random, array, contents, everywhere, fill};
use tombolo_collectives::{self as coll, locks};
use tombolo_core::World;
use tombolo_core::ops::Mode;

/// Adds 1 to a word of PE 0 in two steps, which only a lock makes one.
fn add_one(world: &World, counter: *mut u64) {
    let mut value = 0u64;
    let (context, counter) = (world.context(), counter.cast());
    // SAFETY: a local word and one of PE 0.
    unsafe {
        let dest = (&raw mut value).cast();
        world.get(context, dest, counter, 8, 0, Mode::Blocking, ROUTINE);
        let more = value + 1;
        let source = (&raw const more).cast();
        world.put(context, counter, source, 8, 0, Mode::Blocking, ROUTINE);
    }
}

#[test]
fn nothing_is_lost_under_contention_and_free_locks_are_zero() {
    const LOCKS: usize = 3;
    const TIMES: usize = 100;
    everywhere(|world| {
        let (all, counters) = (array::<i64>(world, LOCKS), array::<u64>(world, LOCKS));
        fill(all, &[0; LOCKS]);
        fill(counters, &[0; LOCKS]);
        coll::barrier_all(world, ROUTINE);
        let mut random = Random::new(world.pe() as u64);
        let mut mine = [0; LOCKS];
        for _ in 0..TIMES {
            let which = random.below(LOCKS as u64) as usize;
            let lock = all.wrapping_add(which);
            // SAFETY: symmetric locks of the test.
            unsafe {
                if random.one_in(3) {
                    // Tried until it works: a waiter that does not queue.
                    while !locks::test(world, lock, ROUTINE) {
                        std::thread::yield_now();
                    }
                } else {
                    locks::set(world, lock, ROUTINE);
                }
                add_one(world, counters.wrapping_add(which));
                locks::clear(world, lock, ROUTINE);
            }
            mine[which] += 1u64;
        }
        let (total, source) = (array::<u64>(world, LOCKS), array::<u64>(world, LOCKS));
        fill(source, &mine);
        let sum = coll::reducer::<coll::Sum, u64>();
        // SAFETY: symmetric arrays of the test.
        unsafe {
            let (total, source) = (total.cast(), source.cast());
            coll::reduce(world, world.team(), total, source, LOCKS, sum, ROUTINE);
        }
        if world.pe() == 0 {
            assert_eq!(contents(counters, LOCKS), contents(total, LOCKS));
            assert_eq!(contents(total, LOCKS).iter().sum::<u64>(), (world.n_pes() * TIMES) as u64);
        }
        assert_eq!(contents(all, LOCKS), [0; LOCKS]);
    });
}

#[test]
fn a_set_lock_is_not_set_again() {
    everywhere(|world| {
        let lock = array::<i64>(world, 1);
        fill(lock, &[0]);
        coll::barrier_all(world, ROUTINE);
        let last = world.n_pes() - 1;
        // SAFETY: a symmetric lock of the test.
        unsafe {
            if world.pe() == last {
                assert!(locks::test(world, lock, ROUTINE));
            }
            coll::barrier_all(world, ROUTINE);
            if world.pe() != last {
                assert!(!locks::test(world, lock, ROUTINE));
            }
            coll::barrier_all(world, ROUTINE);
            if world.pe() == last {
                locks::clear(world, lock, ROUTINE);
            }
        }
        coll::barrier_all(world, ROUTINE);
        assert_eq!(contents(lock, 1), [0]);
    });
}
