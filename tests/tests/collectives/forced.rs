// SPDX-License-Identifier: Apache-2.0
//! Every algorithm, by asking for it, against the same references; where it cannot carry out a call, as
//! on active sets, others of its operation stand in.

use super::data::{
    Case, Members, all_members, alltoalls_of_whole_blocks, broadcasts, broadcasts_in_place,
    collects, fcollects, reduce, reductions_of, scans,
};
use super::support::{ROUTINE, Random, across, array, contents, fill, over, values};
use tombolo_collectives::table::{self, check, listing};
use tombolo_collectives::{self as coll, Max, Prod, Sum, reducer};
use tombolo_core::World;
use tombolo_core::config::{Algorithms, Value};
use tombolo_core::ops::Mode;
use tombolo_tests::ring;

/// Elements of 8 bytes: more than one piece for each of three to five PEs, and along a chain.
const LONG: usize = 16_000;

/// Settings that together ask for every algorithm, one of each operation at a time, with all others of
/// the operation behind it.
fn settings() -> Vec<String> {
    let mut operations: Vec<(&str, Vec<&str>)> = Vec::new();
    for row in listing() {
        match operations.last_mut() {
            Some((operation, names)) if *operation == row.operation => names.push(row.name),
            _ => operations.push((row.operation, vec![row.name])),
        }
    }
    let most = operations.iter().map(|(_, names)| names.len()).max().expect("operations");
    let turned = |turn: usize| {
        let asked = operations.iter().map(|(operation, names)| {
            let mut names = names.clone();
            let first = names.remove(turn % names.len());
            names.insert(0, first);
            format!("{operation}:{}", names.join("+"))
        });
        asked.collect::<Vec<String>>().join(",")
    };
    (0..most).map(turned).collect()
}

/// Runs all operations with every setting.
fn every_algorithm(run: impl Fn(&[(&str, &str)], &(dyn Fn(&World) + Sync))) {
    for asked in settings() {
        // Shown if the test fails.
        println!("SHMEM_COLL={asked}");
        check(&Algorithms::parse(&asked).expect("well formed")).expect("known");
        run(&[("SHMEM_COLL", &asked)], &|world| {
            broadcasts(world);
            broadcasts_in_place(world);
            fcollects(world);
            collects(world);
            alltoalls_of_whole_blocks(world);
            reductions(world);
            scans(world);
            sums_have_the_same_bits(world);
            more_than_one_piece(world);
            long_blocks(world);
            barriers_wait_for_all(world);
        });
    }
}

#[test]
fn every_algorithm_over_mapped_memory() {
    every_algorithm(|asked, body| over("shm", 5, asked, body));
}

#[test]
fn every_algorithm_over_a_transport_without_order() {
    every_algorithm(|asked, body| {
        over("unordered", 3, &[asked[0], ("SHMEM_UNORDERED_SEED", "1")], body);
    });
}

#[test]
fn every_algorithm_on_two_hosts_with_several_pes() {
    every_algorithm(|asked, body| across(ring::TWO_HOSTS, &["shm", "ntb"], 5, asked, body));
}

#[test]
fn every_algorithm_through_windows_to_neighbours() {
    every_algorithm(|asked, body| across(ring::DIRECT, &["ntb"], 4, asked, body));
}

#[test]
fn every_algorithm_by_packets_alone() {
    every_algorithm(|asked, body| across(ring::RING_ONLY, &["ntb"], 3, asked, body));
}

/// Each of two members has the other on both sides.
#[test]
fn every_algorithm_between_two() {
    every_algorithm(|asked, body| {
        over("unordered", 2, &[asked[0], ("SHMEM_UNORDERED_SEED", "3")], body);
        across(ring::RING_ONLY, &["ntb"], 2, asked, body);
    });
}

/// Two PEs on each of two hosts, where reductions may go by levels: all operators, floating-point
/// numbers, and more than one piece.
#[test]
fn reductions_by_levels() {
    let asked = [("SHMEM_COLL", "reduce:levels+share")];
    across(ring::TWO_HOSTS, &["shm", "ntb"], 4, &asked, |world| {
        let choices = table::choices(world, world.team());
        let reduce = choices.iter().find(|choice| choice.operation == "reduce");
        let taken = reduce.map(|choice| choice.taken.iter().all(|name| *name == Some("levels")));
        assert_eq!(taken, Some(true), "two PEs on each of two hosts");
        reductions(world);
        sums_have_the_same_bits(world);
        more_than_one_piece(world);
    });
}

/// On two and three PEs another algorithm does it, on four one that has no last share which is shorter.
#[test]
fn reductions_that_meet_half_way() {
    let asked = ("SHMEM_COLL", "reduce:meet+share");
    let taken = |world: &World| table::taken(world, world.team(), "reduce", 64 << 10);
    for n_pes in 2..=9 {
        over("shm", n_pes, &[asked], |world| {
            assert_eq!(taken(world), Some("meet"));
            reductions(world);
            sums_have_the_same_bits(world);
            more_than_one_piece(world);
            sums_of_many_lengths(world, 24_000);
        });
    }
    for n_pes in [4, 5, 6, 9] {
        let seed = n_pes.to_string();
        let unordered = [asked, ("SHMEM_UNORDERED_SEED", &seed)];
        over("unordered", n_pes, &unordered, |world| sums_of_many_lengths(world, 5_000));
    }
    across(ring::RING_ONLY, &["ntb"], 5, &[asked], |world| sums_of_many_lengths(world, 24_000));
}

/// Shares of equal and of different lengths, in one piece and in several, one call after the other without
/// anything between them.
fn sums_of_many_lengths(world: &World, most: usize) {
    let (n, sum) = (world.n_pes(), reducer::<Sum, u64>());
    let source = array::<u64>(world, most);
    let dests = [0; 2].map(|_| array::<u64>(world, most));
    let lengths = [n * 8, n * 400, n * 400 - 1, n * 400 - 60, n * n * 8 + 5, most - 7, most];
    for (call, nelems) in lengths.into_iter().enumerate() {
        let mut expected = vec![0u64; nelems];
        for pe in 0..n {
            let theirs = values(pe, call, nelems);
            expected.iter_mut().zip(theirs).for_each(|(sum, value)| *sum = sum.wrapping_add(value));
        }
        fill(source, &values(world.pe(), call, nelems));
        let dest = dests[call % 2];
        // SAFETY: symmetric arrays of the test.
        unsafe {
            let team = world.team();
            coll::reduce(world, team, dest.cast(), source.cast(), nelems, sum, ROUTINE);
        }
        fill(source, &vec![0; nelems]);
        assert!(contents(dest, nelems) == expected, "{nelems} numbers on {n} PEs");
    }
    coll::barrier_all(world, ROUTINE);
}

fn reductions(world: &World) {
    let cases = [
        Case { reducer: reducer::<Sum, u32>(), apply: u32::wrapping_add },
        Case { reducer: reducer::<Prod, u32>(), apply: u32::wrapping_mul },
        Case { reducer: reducer::<Max, u32>(), apply: u32::max },
    ];
    reductions_of(world, &cases, &|bits| bits as u32);
}

/// More than goes along a chain, or through memory of the team, at a time.
fn more_than_one_piece(world: &World) {
    let n = world.n_pes();
    let sum = reducer::<Sum, u64>();
    let [source, dest] = [0; 2].map(|_| array::<u64>(world, LONG));
    let root = 1.min(n - 1);
    let mine = values(world.pe(), root, LONG);
    let mut expected = values(0, root, LONG);
    for pe in 1..n {
        let theirs = values(pe, root, LONG);
        expected.iter_mut().zip(theirs).for_each(|(sum, value)| *sum = sum.wrapping_add(value));
    }
    fill(source, &mine);
    coll::sync_all(world, ROUTINE);
    let bytes = LONG * 8;
    // SAFETY: symmetric arrays of the test.
    unsafe {
        let (team, root) = (world.team(), root as i32);
        coll::broadcast(world, team, dest.cast(), source.cast(), bytes, root, ROUTINE);
    }
    assert!(contents(dest, LONG) == values(root, root, LONG), "from {root}");
    coll::sync_all(world, ROUTINE);
    // SAFETY: as above.
    unsafe {
        let team = world.team();
        coll::reduce(world, team, dest.cast(), source.cast(), LONG, sum, ROUTINE);
        coll::reduce(world, team, source.cast(), source.cast(), LONG, sum, ROUTINE);
    }
    assert!(contents(dest, LONG) == expected, "apart");
    assert!(contents(source, LONG) == expected, "in place");
    fill(source, &mine);
    coll::sync_all(world, ROUTINE);
    // SAFETY: as above.
    unsafe {
        coll::inscan(world, world.team(), dest.cast(), source.cast(), LONG, sum, ROUTINE);
    }
    let mut before = vec![0u64; LONG];
    for pe in 0..=world.pe() {
        let theirs = values(pe, root, LONG);
        before.iter_mut().zip(theirs).for_each(|(sum, value)| *sum = sum.wrapping_add(value));
    }
    assert!(contents(dest, LONG) == before, "of those before");
}

/// Blocks that go round the ring of members in more than one piece, twice, so that what is left of the first
/// call is seen.
fn long_blocks(world: &World) {
    let (n, me) = (world.n_pes(), world.pe());
    let [source, dest] = [0; 2].map(|_| array::<u64>(world, n * LONG));
    for call in 0..2 {
        let of = |pe: usize, to: usize| values(pe * n + to, call, LONG);
        let mine: Vec<u64> = (0..n).flat_map(|to| of(me, to)).collect();
        fill(source, &mine);
        fill(dest, &vec![0; n * LONG]);
        coll::sync_all(world, ROUTINE);
        // SAFETY: symmetric arrays of the test.
        unsafe {
            let (dest, source) = (dest.cast(), source.cast());
            coll::fcollect(world, world.team(), dest, source, LONG * 8, ROUTINE);
        }
        let expected: Vec<u64> = (0..n).flat_map(|pe| of(pe, 0)).collect();
        assert!(contents(dest, n * LONG) == expected, "fcollect, call {call}");
        fill(dest, &vec![0; n * LONG]);
        coll::sync_all(world, ROUTINE);
        // SAFETY: as above.
        unsafe {
            let (dest, source) = (dest.cast(), source.cast());
            coll::alltoall(world, world.team(), dest, source, LONG * 8, ROUTINE);
        }
        let expected: Vec<u64> = (0..n).flat_map(|pe| of(pe, me)).collect();
        assert!(contents(dest, n * LONG) == expected, "alltoall, call {call}");
    }
}

/// Each algorithm has one order in which it adds: the same bits on all PEs and in every run.
fn sums_have_the_same_bits(world: &World) {
    const MOST: usize = 1200;
    let unit = |bits: u64| (bits >> 11) as f64 / (1u64 << 53) as f64 - 0.5;
    let [source, dest, again] = [0; 3].map(|_| array::<f64>(world, MOST));
    let all = array::<u64>(world, MOST * world.n_pes());
    for members in all_members(world) {
        let Members::Team(team) = &members else { continue };
        for (call, nelems) in [1, 8, 31, 500, MOST].into_iter().enumerate() {
            let of = |member: usize| values(member, call, nelems).into_iter().map(unit);
            fill(source, &of(members.me()).collect::<Vec<_>>());
            for dest in [dest, again] {
                let (dest, source) = (dest.cast(), source.cast());
                reduce(world, &members, dest, source, nelems, reducer::<Sum, f64>());
            }
            let result = contents(dest, nelems);
            let mut expected = vec![0.0; nelems];
            for member in 0..members.n() {
                expected.iter_mut().zip(of(member)).for_each(|(sum, value)| *sum += value);
            }
            let close = |(a, b): (&f64, &f64)| (a - b).abs() < 1e-12;
            assert!(result.iter().zip(&expected).all(close), "{nelems} numbers");
            let bits = contents(dest.cast::<u64>(), nelems);
            assert!(contents(again.cast::<u64>(), nelems) == bits, "{nelems} numbers once more");
            // SAFETY: symmetric arrays of the test.
            unsafe { coll::fcollect(world, team, all.cast(), dest.cast(), nelems * 8, ROUTINE) };
            for member in 0..members.n() {
                let theirs = contents(all.wrapping_add(member * nelems), nelems);
                assert!(theirs == bits, "{nelems} numbers at member {member}");
            }
            coll::sync(world, team, ROUTINE);
        }
    }
    coll::barrier_all(world, ROUTINE);
}

fn barriers_wait_for_all(world: &World) {
    let place = array::<u64>(world, world.n_pes());
    let mine = place.wrapping_add(world.pe());
    let mut late = Random(world.pe() as u64);
    for round in 1..=50 {
        if late.below(8) == 0 {
            std::thread::yield_now();
        }
        for pe in 0..world.n_pes() {
            let source = (&raw const round).cast();
            // SAFETY: a word of the test's array, and a local one.
            unsafe {
                world.put(world.context(), mine.cast(), source, 8, pe, Mode::Blocking, ROUTINE);
            }
        }
        coll::barrier_all(world, ROUTINE);
        let all = contents(place, world.n_pes());
        assert!(all.iter().all(|number| *number == round), "round {round}: {all:?}");
        coll::sync_all(world, ROUTINE);
    }
}
