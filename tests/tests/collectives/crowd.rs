// SPDX-License-Identifier: Apache-2.0
//! More members than a block of memory has places for, by every algorithm.

use super::forced::settings;
use super::support::{ROUTINE, across, array, contents, fill, over};
use tombolo_collectives::{self as coll, Sum, reducer, table, teams};
use tombolo_core::World;
use tombolo_core::control::BLOCK_MEMBERS;
use tombolo_tests::ring;

/// Members of two blocks, of which the second is not full.
const MEMBERS: usize = BLOCK_MEMBERS + 3;

/// Elements of a call: one, what fits a line, a part of a half, and more than that.
const LENS: [usize; 4] = [1, 7, 150, 900];

/// What member `member` has at `index` in call number `call`.
fn value(member: usize, call: usize, index: usize) -> u64 {
    (member * 1_000_000 + call * 10_000 + index) as u64
}

fn block(member: usize, call: usize, len: usize) -> Vec<u64> {
    (0..len).map(|index| value(member, call, index)).collect()
}

/// Calls of all operations, each more than once with even and with odd numbers.
fn all_operations(world: &World) {
    let (team, n, me) = (world.team(), world.n_pes(), world.pe());
    let sum = reducer::<Sum, u64>();
    let most = LENS[LENS.len() - 1];
    let source = array::<u64>(world, n.max(most));
    let dests = [0; 2].map(|_| array::<u64>(world, n * LENS[2]));
    coll::barrier_all(world, ROUTINE);
    for call in 0..LENS.len() + 1 {
        let (len, dest) = (LENS[call % LENS.len()], dests[call % 2]);
        fill(source, &block(me, call, len));
        // SAFETY: symmetric arrays of the test; a PE may be one call ahead, which has another dest.
        unsafe { coll::reduce(world, team, dest.cast(), source.cast(), len, sum, ROUTINE) };
        let expected: Vec<u64> =
            (0..len).map(|index| (0..n).map(|pe| value(pe, call, index)).sum()).collect();
        assert!(contents(dest, len) == expected, "sums of {len}");
        coll::barrier_all(world, ROUTINE);

        let root = call * 31 % n;
        // SAFETY: as above.
        unsafe {
            coll::broadcast(world, team, dest.cast(), source.cast(), len * 8, root as i32, ROUTINE);
        }
        assert!(contents(dest, len) == block(root, call, len), "{len} from {root}");
        coll::barrier_all(world, ROUTINE);

        let len = len.min(LENS[2]);
        // SAFETY: as above.
        unsafe { coll::fcollect(world, team, dest.cast(), source.cast(), len * 8, ROUTINE) };
        let expected: Vec<u64> = (0..n).flat_map(|pe| block(pe, call, len)).collect();
        assert!(contents(dest, n * len) == expected, "blocks of {len}");
        coll::barrier_all(world, ROUTINE);

        let len_of = |pe: usize| (pe + call) % 3 * len / 2;
        // SAFETY: as above.
        unsafe { coll::collect(world, team, dest.cast(), source.cast(), len_of(me) * 8, ROUTINE) };
        let expected: Vec<u64> = (0..n).flat_map(|pe| block(pe, call, len_of(pe))).collect();
        assert!(contents(dest, expected.len()) == expected, "blocks of up to {len}");
        coll::barrier_all(world, ROUTINE);

        fill(source, &block(me, call, n));
        // SAFETY: as above.
        unsafe { coll::alltoall(world, team, dest.cast(), source.cast(), 8, ROUTINE) };
        let expected: Vec<u64> = (0..n).map(|pe| value(pe, call, me)).collect();
        assert!(contents(dest, n) == expected, "words for all");
        coll::barrier_all(world, ROUTINE);

        fill(source, &[value(me, call, 0)]);
        // SAFETY: as above.
        unsafe { coll::inscan(world, team, dest.cast(), source.cast(), 1, sum, ROUTINE) };
        let expected: u64 = (0..=me).map(|pe| value(pe, call, 0)).sum();
        assert_eq!(contents(dest, 1), [expected], "a sum of the members before");
        coll::barrier_all(world, ROUTINE);
    }
}

#[test]
fn every_algorithm_on_many_pes() {
    for (asked, _) in settings() {
        // Shown if the test fails.
        println!("SHMEM_COLL={asked}");
        over("shm", MEMBERS, &[("SHMEM_COLL", &asked)], all_operations);
    }
}

#[test]
fn many_pes_have_memory_for_collectives() {
    let asked = [("SHMEM_COLL", "sync:first+dissemination,reduce:exchange+publish")];
    over("shm", MEMBERS, &asked, |world| {
        let taken = |operation| table::taken(world, world.team(), operation, 8);
        assert_eq!(["sync", "reduce"].map(taken), [Some("first"), Some("exchange")]);
    });
}

#[test]
fn many_pes_on_two_hosts() {
    let ring = ring::TWO_HOSTS_IN_BLOCKS;
    across(ring, &["shm", "ntb"], MEMBERS, &[], all_operations);
    across(ring, &["shm", "unordered"], MEMBERS, &[("SHMEM_UNORDERED_SEED", "1")], all_operations);
    // Where the first members of hosts do it for all.
    let hosts = "sync:hosts,broadcast:hosts,collect:hosts+put,fcollect:hosts+put,alltoall:hosts+put,\
                 reduce:hosts+share,scan:hosts+share";
    let turns = "broadcast:relay,reduce:turns+levels+share,fcollect:both+put";
    for (asked, members) in [(hosts, MEMBERS), (turns, MEMBERS + 1)] {
        across(ring, &["shm", "ntb"], members, &[("SHMEM_COLL", asked)], all_operations);
    }
}

#[test]
fn small_teams_among_many_pes_have_memory_too() {
    let asked = [("SHMEM_COLL", "sync:first+dissemination")];
    over("shm", MEMBERS, &asked, |world| {
        let half = (MEMBERS / 2) as i32;
        let split = |start, size| {
            teams::split_strided(world, world.team(), start, 1, size, 0, ROUTINE).expect("a team")
        };
        for team in [split(0, half), split(half, MEMBERS as i32 - half)].into_iter().flatten() {
            assert_eq!(table::taken(world, &team, "sync", 0), Some("first"));
            coll::sync(world, &team, ROUTINE);
        }
    });
}
