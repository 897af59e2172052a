// SPDX-License-Identifier: Apache-2.0
//! Everything that synchronises PEs, in short jobs over the transport without order, each with a seed
//! of its own: thousands of them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use tombolo_collectives::{self as coll, locks};
use tombolo_core::ops::Mode;
use tombolo_core::transport::{Amo, AmoOp, SignalOp};
use tombolo_core::{Waiting, World};
use tombolo_tests::run_job;
use tombolo_tests::watchdog::Watchdog;

const ROUTINE: &str = "seeds";
/// Jobs of each test, unless `TOMBOLO_SEEDS` says otherwise. Together less than a minute on 2 idle cores.
const SEEDS: u64 = 700;
/// More than any job may take.
const LIMIT_SECONDS: u64 = 60;

fn seeds() -> u64 {
    let asked = std::env::var("TOMBOLO_SEEDS").ok();
    asked.map_or(SEEDS, |text| text.parse().expect("TOMBOLO_SEEDS is a number"))
}

fn over_seeds(name: &str, n_pes: usize, body: fn(&World)) {
    let (begun, seeds) = (Instant::now(), seeds());
    for seed in 1..=seeds {
        let seed = seed.to_string();
        let what = format!("{name} with SHMEM_UNORDERED_SEED={seed}");
        let _watched = Watchdog::start(what, LIMIT_SECONDS);
        let make = || vec![tombolo_transports::create("unordered").expect("known")];
        run_job(n_pes, &[("SHMEM_UNORDERED_SEED", &seed)], &make, body);
    }
    println!("{seeds} seeds in {:.1} s", begun.elapsed().as_secs_f64());
}

fn array<T>(world: &World, len: usize) -> *mut T {
    let place = world.heap().allocate(len * size_of::<T>(), 64);
    assert!(!place.is_null());
    place.cast()
}

fn load(place: *mut u64) -> u64 {
    // SAFETY: an aligned word of this PE's heap.
    unsafe { (*place.cast::<AtomicU64>()).load(Ordering::Acquire) }
}

fn wait_for(world: &World, word: *mut u64, value: u64) {
    let waiting = Waiting {
        routine: ROUTINE,
        argument: word as u64,
        reason: tombolo_core::wait::Reason::Variable,
    };
    world.wait(waiting, || load(word) >= value);
}

fn put(world: &World, dest: *mut u8, source: &[u8], pe: usize, mode: Mode) {
    // SAFETY: a slice that lives until the caller has called quiet.
    unsafe { world.put(world.context(), dest, source.as_ptr(), source.len(), pe, mode, ROUTINE) };
}

/// Barriers, with what each PE put before visible behind them, and atomic operations of all kinds that
/// lose nothing.
#[test]
fn barriers_and_atomic_operations() {
    const ROUNDS: u64 = 6;
    over_seeds("barriers_and_atomic_operations", 2, |world| {
        let (me, n) = (world.pe(), world.n_pes());
        let (seen, counters) = (array::<u64>(world, n), array::<u64>(world, 2));
        coll::sync_all(world, ROUTINE);
        for round in 1..=ROUNDS {
            let bytes = round.to_le_bytes();
            for pe in 0..n {
                put(world, seen.wrapping_add(me).cast(), &bytes, pe, Mode::NonBlocking);
            }
            let add = Amo { op: AmoOp::Add, size: 8, operand: 1, compare: 0 };
            let old = world.amo_fetch(world.context(), counters.cast(), add, 1, ROUTINE);
            assert!(old < round * n as u64);
            let mark =
                Amo { op: AmoOp::Or, size: 8, operand: 1 << (round * 3 + me as u64), compare: 0 };
            let marks = counters.wrapping_add(1).cast();
            // SAFETY: no result is asked for.
            unsafe { world.amo_nbi(world.context(), None, marks, mark, 1, ROUTINE) };
            coll::barrier_all(world, ROUTINE);
            for pe in 0..n {
                let number = load(seen.wrapping_add(pe));
                assert!(number == round || number == round + 1, "{number} in round {round}");
            }
            coll::sync_all(world, ROUTINE);
        }
        if me == 1 {
            assert_eq!(load(counters), ROUNDS * n as u64);
            let all = (1..=ROUNDS).flat_map(|round| (0..n as u64).map(move |pe| round * 3 + pe));
            assert_eq!(load(counters.wrapping_add(1)), all.map(|bit| 1 << bit).sum());
        }
        coll::sync_all(world, ROUTINE);
    });
}

/// Data before its flag, by fence and by signal; gets, at odd places and lengths.
#[test]
fn flags_signals_and_gets() {
    const LEN: usize = 203;
    over_seeds("flags_signals_and_gets", 2, |world| {
        let other = 1 - world.pe();
        let data = array::<u8>(world, LEN + 5).wrapping_add(5);
        let words = array::<u64>(world, 2);
        let own = array::<u8>(world, LEN);
        let bytes = |pe: usize, round: u64| -> Vec<u8> {
            (0..LEN).map(|i| (i * 7 + pe * 50) as u8 ^ round as u8).collect()
        };
        // SAFETY: this PE's own memory.
        unsafe { own.copy_from(bytes(world.pe(), 0).as_ptr(), LEN) };
        coll::sync_all(world, ROUTINE);
        for round in 1..=3u64 {
            let source = bytes(world.pe(), round);
            if round % 2 == 1 {
                put(world, data, &source, other, Mode::NonBlocking);
                world.fence(world.context(), ROUTINE);
                let number = round.to_le_bytes();
                put(world, words.cast(), &number, other, Mode::Blocking);
            } else {
                let (op, mode) = (SignalOp::Set, Mode::NonBlocking);
                let (context, at) = (world.context(), source.as_ptr());
                // SAFETY: the source lives until the quiet below.
                unsafe {
                    world
                        .put_signal(context, data, at, LEN, words, round, op, other, mode, ROUTINE);
                }
            }
            wait_for(world, words, round);
            // SAFETY: this PE's own memory, which nobody writes now.
            let got = unsafe { std::slice::from_raw_parts(data, LEN) };
            assert_eq!(got, bytes(other, round), "round {round}");
            world.quiet(world.context(), ROUTINE);
            coll::sync_all(world, ROUTINE);
        }
        for (at, len) in [(0, LEN), (1, 1), (3, 77), (8, 64)] {
            let mut got = vec![0u8; len];
            let (dest, source) = (got.as_mut_ptr(), own.wrapping_add(at));
            // SAFETY: the vector lives until the get is complete.
            unsafe {
                world.get(world.context(), dest, source, len, other, Mode::NonBlocking, ROUTINE);
            }
            world.quiet(world.context(), ROUTINE);
            assert_eq!(got, bytes(other, 0)[at..at + len]);
        }
        coll::sync_all(world, ROUTINE);
    });
}

/// A lock that makes two steps one, and collectives of few bytes.
#[test]
fn locks_and_collectives() {
    over_seeds("locks_and_collectives", 2, |world| {
        let (lock, counter) = (array::<i64>(world, 1), array::<u64>(world, 1));
        let (to, from) = (array::<u64>(world, 8), array::<u64>(world, 4));
        coll::barrier_all(world, ROUTINE);
        for _ in 0..3 {
            let mut value = 0u64;
            // SAFETY: a symmetric lock and counter, and local words.
            unsafe {
                locks::set(world, lock, ROUTINE);
                let (at, word) = (counter.cast(), (&raw mut value).cast());
                world.get(world.context(), word, at, 8, 0, Mode::Blocking, ROUTINE);
                put(world, at, &(value + 1).to_le_bytes(), 0, Mode::Blocking);
                locks::clear(world, lock, ROUTINE);
            }
        }
        let me = world.pe() as u64;
        // SAFETY: this PE's own array, which nobody writes.
        unsafe { from.copy_from([me, me + 10, me + 20, me + 30].as_ptr(), 4) };
        let sum = coll::reducer::<coll::Sum, u64>();
        // SAFETY: symmetric arrays of the job.
        unsafe { coll::reduce(world, world.team(), to.cast(), from.cast(), 4, sum, ROUTINE) };
        let sums = [1, 21, 41, 61];
        assert!((0..4).all(|index| load(to.wrapping_add(index)) == sums[index]));
        coll::barrier_all(world, ROUTINE);
        // SAFETY: as above.
        unsafe { coll::fcollect(world, world.team(), to.cast(), from.cast(), 32, ROUTINE) };
        let all = [0, 10, 20, 30, 1, 11, 21, 31];
        assert!((0..8).all(|index| load(to.wrapping_add(index)) == all[index]));
        if me == 0 {
            assert_eq!((load(counter), load(lock.cast())), (6, 0));
        }
        coll::barrier_all(world, ROUTINE);
    });
}
