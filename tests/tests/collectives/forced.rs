// SPDX-License-Identifier: Apache-2.0
//! Every algorithm, by asking for it, against the same references; where it cannot carry out a call, as
//! on active sets, others of its operation stand in.

use super::data::{
    Case, Members, all_members, alltoalls_of_strided_blocks, alltoalls_of_whole_blocks, broadcasts,
    broadcasts_in_place, collects, fcollects, reduce, reductions_of, scans,
};
use super::support::{ROUTINE, Random, SEEDS, across, array, contents, fill, over, values};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tombolo_collectives::table::{self, check, listing};
use tombolo_collectives::{self as coll, Max, Prod, Strided, Sum, reducer};
use tombolo_core::World;
use tombolo_core::config::{Algorithms, Value};
use tombolo_core::ops::Mode;
use tombolo_tests::ring::{self, Ring};

/// Elements of 8 bytes: more than one piece for each of three to five PEs, and along a chain.
const LONG: usize = 16_000;

/// Settings that together ask for every algorithm, one of each operation at a time, with all others of
/// the operation behind it; with the operations that are asked for an algorithm of theirs for the first time.
pub fn settings() -> Vec<(String, Vec<&'static str>)> {
    let mut operations: Vec<(&'static str, Vec<&str>)> = Vec::new();
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
        let new = operations.iter().filter(|(_, names)| turn < names.len());
        (asked.collect::<Vec<String>>().join(","), new.map(|(operation, _)| *operation).collect())
    };
    (0..most).map(turned).collect()
}

/// Operations, and what tries them.
type Part = (&'static [&'static str], fn(&World));

/// What is run with a setting, each where one of these operations is asked for an algorithm of theirs for the first
/// time: the same order of algorithms once more would show nothing new.
const PARTS: [Part; 12] = [
    (&["broadcast"], broadcasts),
    (&["broadcast"], broadcasts_in_place),
    (&["fcollect"], fcollects),
    (&["collect"], collects),
    (&["alltoall"], alltoalls_of_whole_blocks),
    (&["alltoalls"], strided_blocks),
    (&["reduce"], reductions),
    (&["scan"], scans),
    (&["reduce"], sums_have_the_same_bits),
    (&["broadcast", "reduce", "scan"], more_than_one_piece),
    (&["fcollect", "alltoall"], long_blocks),
    (&["sync"], barriers_wait_for_all),
];

/// Runs all operations with every setting.
fn every_algorithm(run: impl Fn(&[(&str, &str)], &(dyn Fn(&World) + Sync))) {
    let settings = settings();
    // A name that no operation has would leave its part out.
    let mut named: Vec<&str> =
        PARTS.iter().flat_map(|(operations, _)| *operations).copied().collect();
    let mut all = settings[0].1.clone();
    named.sort();
    named.dedup();
    all.sort();
    assert_eq!(named, all, "operations of which a part is run, and those that there are");
    for (asked, new) in settings {
        // Shown if the test fails.
        println!("SHMEM_COLL={asked}");
        check(&Algorithms::parse(&asked).expect("well formed")).expect("known");
        run(&[("SHMEM_COLL", &asked)], &|world| {
            for (operations, part) in PARTS {
                if operations.iter().any(|operation| new.contains(operation)) {
                    part(world);
                }
            }
        });
    }
}

#[test]
fn every_algorithm_over_mapped_memory() {
    every_algorithm(|asked, body| over("shm", 5, asked, body));
}

#[test]
fn every_algorithm_by_copying_between_processes() {
    every_algorithm(|asked, body| over("cma", 3, asked, body));
}

/// Between all PEs, and between those of two hosts, which share memory within.
#[test]
fn every_algorithm_over_tcp() {
    let named = |transports| ("SHMEM_TRANSPORTS", transports);
    every_algorithm(|asked, body| {
        over("tcp", 3, &[asked[0], named("tcp")], body);
        let asked = [asked[0], named("shm,tcp")];
        across(ring::TWO_HOSTS_IN_BLOCKS, &["shm", "tcp"], 4, &asked, body);
    });
}

#[test]
fn every_algorithm_over_a_transport_without_order() {
    every_algorithm(|asked, body| {
        over("unordered", 3, &[asked[0], ("SHMEM_UNORDERED_SEED", "1")], body);
    });
}

/// PEs of a host that follow each other, on two and three hosts, and PEs that are dealt to hosts in turn.
#[test]
fn every_algorithm_on_several_hosts_without_order() {
    let in_blocks = ring::TWO_HOSTS_IN_BLOCKS;
    let three = Ring { hosts_max: 3, ..in_blocks };
    for (ring, n_pes, seed) in [(in_blocks, 5, "1"), (ring::TWO_HOSTS, 4, "2"), (three, 5, "4")] {
        every_algorithm(|asked, body| {
            let asked = [asked[0], ("SHMEM_UNORDERED_SEED", seed)];
            across(ring, &["shm", "unordered"], n_pes, &asked, body);
        });
    }
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

/// Runs `body` on hosts with links between them, and with a network that keeps the contract and nothing more.
fn on_hosts(ring: Ring, n_pes: usize, asked: (&str, &str), body: impl Fn(&World) + Sync) {
    across(ring, &["shm", "ntb"], n_pes, &[asked], &body);
    for seed in 1..=SEEDS {
        let asked = [asked, ("SHMEM_UNORDERED_SEED", &seed.to_string())];
        across(ring, &["shm", "unordered"], n_pes, &asked, &body);
    }
}

/// Two PEs on each of two hosts, where reductions may go by levels: all operators, floating-point
/// numbers, and more than one piece.
#[test]
fn reductions_by_levels() {
    let asked = ("SHMEM_COLL", "reduce:levels+share");
    on_hosts(ring::TWO_HOSTS, 4, asked, |world| {
        let choices = table::choices(world, world.team());
        let reduce = choices.iter().find(|choice| choice.operation == "reduce");
        let taken = reduce.map(|choice| choice.taken.iter().all(|name| *name == Some("levels")));
        assert_eq!(taken, Some(true), "two PEs on each of two hosts");
        reductions(world);
        sums_have_the_same_bits(world);
        more_than_one_piece(world);
    });
}

/// Three PEs on one host and two on another: those of a host follow each other, or do not.
#[test]
fn by_way_of_the_first_member_of_each_host() {
    let all = "alltoall:hosts+put,collect:hosts+put,fcollect:hosts+put,reduce:hosts+share,scan:hosts+share";
    let asked = ("SHMEM_COLL", all);
    for (ring, gather) in [(ring::TWO_HOSTS_IN_BLOCKS, "hosts"), (ring::TWO_HOSTS, "put")] {
        on_hosts(ring, 5, asked, |world| {
            let taken = |operation| table::taken(world, world.team(), operation, 8);
            let any = Some("hosts");
            let expected = [any, Some(gather), Some(gather), any, any];
            assert_eq!(["alltoall", "collect", "fcollect", "reduce", "scan"].map(taken), expected);
            alltoalls_of_whole_blocks(world);
            fcollects(world);
            collects(world);
            reductions(world);
            scans(world);
            sums_have_the_same_bits(world);
            long_blocks(world);
            barriers_wait_for_all(world);
        });
    }
    let asked = ("SHMEM_COLL", "broadcast:relay+put,reduce:turns+share");
    for (ring, reduce) in [(ring::TWO_HOSTS_IN_BLOCKS, "turns"), (ring::TWO_HOSTS, "share")] {
        on_hosts(ring, 5, asked, |world| {
            let taken = |operation| table::taken(world, world.team(), operation, 8);
            assert_eq!(["broadcast", "reduce"].map(taken), [Some("relay"), Some(reduce)]);
            broadcasts(world);
            broadcasts_in_place(world);
            reductions(world);
            sums_have_the_same_bits(world);
            more_than_one_piece(world);
        });
    }
}

/// Two PEs on each of two and of three hosts, each of which combines a share of what is longer than a message.
#[test]
fn reductions_in_turns_by_shares() {
    for (hosts_max, n_pes) in [(2, 4), (3, 6)] {
        let ring = Ring { hosts_max, ..ring::TWO_HOSTS_IN_BLOCKS };
        on_hosts(ring, n_pes, ("SHMEM_COLL", "reduce:turns+share"), |world| {
            assert_eq!(table::taken(world, world.team(), "reduce", 1 << 20), Some("turns"));
            sums_of_many_lengths(world, 40_000);
            more_than_one_piece(world);
            sums_in_order(world, 40_000);
        });
    }
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

/// A member that has left a reduction whose elements are passed on may be at the second message of the next
/// collective, which goes straight to a member that still waits for its elements.
#[test]
fn elements_passed_on_before_messages_that_go_straight() {
    for others in ["alltoall:signal", "broadcast:tree,sync:exchange"] {
        let asked = format!("reduce:both,{others}");
        for seed in 1..=4 * SEEDS {
            let seed = seed.to_string();
            let asked = [("SHMEM_COLL", &asked[..]), ("SHMEM_UNORDERED_SEED", &seed)];
            over("unordered", 5, &asked, sums_between_others);
            across(
                ring::TWO_HOSTS_IN_BLOCKS,
                &["shm", "unordered"],
                5,
                &asked,
                sums_between_others,
            );
        }
    }
}

fn sums_between_others(world: &World) {
    const LEN: usize = 300;
    let (team, n) = (world.team(), world.n_pes());
    let sum = reducer::<Sum, u64>();
    let sums = [0; 2].map(|_| array::<u64>(world, LEN));
    let others = [0; 2].map(|_| array::<u64>(world, n));
    let [source, blocks] = [LEN, n].map(|len| array::<u64>(world, len));
    let by_alltoall = table::taken(world, team, "alltoall", 8) == Some("signal");
    for call in 0..60 {
        // A line, and a part of a half.
        let len = if call % 2 == 0 { 1 } else { LEN };
        fill(source, &values(world.pe(), call, len));
        fill(blocks, &vec![(call * n + world.pe()) as u64; n]);
        let (to, dest) = (others[call % 2], sums[call % 2]);
        // SAFETY: symmetric arrays of the test.
        unsafe {
            coll::reduce(world, team, dest.cast(), source.cast(), len, sum, ROUTINE);
            match by_alltoall {
                true => coll::alltoall(world, team, to.cast(), blocks.cast(), 8, ROUTINE),
                false => coll::broadcast(world, team, to.cast(), blocks.cast(), 8, 0, ROUTINE),
            }
        }
        let mut expected = values(0, call, len);
        for pe in 1..n {
            let theirs = values(pe, call, len);
            expected.iter_mut().zip(theirs).for_each(|(sum, value)| *sum = sum.wrapping_add(value));
        }
        assert!(contents(dest, len) == expected, "call {call} of {len} elements");
        let from = if by_alltoall { n } else { 1 };
        let came: Vec<u64> = (0..from).map(|pe| (call * n + pe) as u64).collect();
        assert_eq!(contents(to, from), came, "call {call}");
    }
}

/// Members may be many broadcasts ahead of others, and of collectives between them that use the team's memory.
#[test]
fn broadcasts_without_anything_between_them() {
    let by_memory = "fcollect:exchange,reduce:exchange";
    let by_ring = "fcollect:both+signal,reduce:both+meet";
    let all = [
        ("chain", by_ring),
        ("both", by_memory),
        ("halves", by_memory),
        ("signal", by_memory),
        ("relay", by_memory),
        ("tell", by_ring),
    ];
    for (broadcast, others) in all {
        // A root that lets others get the data waits for them.
        let ahead = |world: &World| {
            if broadcast != "tell" {
                broadcasts_that_nobody_has_entered(world);
            }
        };
        let all = format!("broadcast:{broadcast},{others}");
        let asked = [("SHMEM_COLL", &all[..]), ("SHMEM_UNORDERED_SEED", "1")];
        for n_pes in [2, 3, 5] {
            over("shm", n_pes, &asked[..1], |world| broadcasts_in_a_row(world, 40_000));
            over("shm", n_pes, &asked[..1], ahead);
        }
        for (n_pes, seed) in [(2, "4"), (3, "1"), (3, "6"), (4, "2"), (5, "3")] {
            let asked = [asked[0], ("SHMEM_UNORDERED_SEED", seed)];
            over("unordered", n_pes, &asked, |world| broadcasts_in_a_row(world, 1_500));
        }
        over("unordered", 3, &asked, ahead);
        across(ring::RING_ONLY, &["ntb"], 3, &asked[..1], |world| {
            broadcasts_in_a_row(world, 40_000);
            ahead(world);
        });
    }
}

/// On four members and more `halves` has pieces that go all the way round and some that come from either side: both
/// here, and more of them than there are flags.
#[test]
fn halves_that_go_both_ways() {
    let asked = ("SHMEM_COLL", "broadcast:halves,fcollect:both+signal,reduce:both+meet");
    for (n_pes, seed) in [(4, "2"), (5, "3"), (6, "8")] {
        let unordered = [asked, ("SHMEM_UNORDERED_SEED", seed)];
        over("unordered", n_pes, &unordered, |world| broadcasts_in_a_row(world, 20_000));
    }
    for n_pes in [4, 7] {
        over("shm", n_pes, &[asked], |world| broadcasts_in_a_row(world, 40_000));
    }
    across(ring::RING_ONLY, &["ntb"], 5, &[asked], |world| broadcasts_in_a_row(world, 40_000));
}

/// Broadcasts that write the same flags by turns: straight from the root, along chains that begin with both of its
/// neighbours, and by way of a member of each host.
#[test]
fn broadcasts_by_several_algorithms_in_a_row() {
    for (n_pes, seed) in [(2, "4"), (3, "1"), (4, "2"), (5, "3"), (5, "7")] {
        let asked = [("SHMEM_UNORDERED_SEED", seed)];
        over("unordered", n_pes, &asked, broadcasts_by_turns);
        over("shm", n_pes, &[], broadcasts_by_turns);
    }
    across(ring::RING_ONLY, &["ntb"], 4, &[], broadcasts_by_turns);
    for seed in ["2", "6"] {
        let asked = [("SHMEM_UNORDERED_SEED", seed)];
        across(ring::TWO_HOSTS_IN_BLOCKS, &["shm", "unordered"], 5, &asked, broadcasts_by_turns);
        across(ring::TWO_HOSTS, &["shm", "unordered"], 4, &asked, broadcasts_by_turns);
    }
}

fn broadcasts_by_turns(world: &World) {
    const CALLS: usize = 48;
    let algorithms =
        ["signal", "halves", "relay", "both", "signal", "relay", "chain", "signal", "tell"];
    let length = |call: usize| [1, 5, 7, 700, 600, 1_200][call % 6];
    let start = |call: usize| (0..call).map(length).sum::<usize>();
    let [source, dest] = [0; 2].map(|_| array::<u64>(world, start(CALLS)));
    for call in 0..CALLS {
        fill(source.wrapping_add(start(call)), &values(0, call, length(call)));
    }
    coll::barrier_all(world, ROUTINE);
    for call in 0..CALLS {
        let (dest, source) = (dest.wrapping_add(start(call)), source.wrapping_add(start(call)));
        let trial = table::Trial {
            operation: "broadcast",
            algorithm: algorithms[call % algorithms.len()],
            dest: dest.cast(),
            source: source.cast(),
            size: length(call) * 8,
            reducer: reducer::<Sum, u64>(),
        };
        // SAFETY: symmetric arrays of the test, another part for each call.
        assert!(unsafe { table::carry_out(world, world.team(), &trial, ROUTINE) });
        assert!(contents(dest, length(call)) == values(0, call, length(call)), "call {call}");
    }
    coll::barrier_all(world, ROUTINE);
}

/// The root returns from several before the others call the first one.
fn broadcasts_that_nobody_has_entered(world: &World) {
    const CALLS: usize = 20;
    let [source, dest, word] = [0; 3].map(|_| array::<u64>(world, CALLS));
    let mine: Vec<u64> = (0..CALLS as u64).collect();
    fill(source, &mine);
    fill(word, &[0]);
    coll::barrier_all(world, ROUTINE);
    // SAFETY: a word of the test's array, only ever accessed as a whole.
    let has_left = unsafe { AtomicU64::from_ptr(word) };
    let begun = Instant::now();
    while world.pe() > 0 && has_left.load(Ordering::Acquire) == 0 {
        assert!(begun.elapsed() < Duration::from_secs(20), "the root waits for others");
        std::thread::yield_now();
    }
    for call in 0..CALLS {
        let (team, at) = (world.team(), |array: *mut u64| array.wrapping_add(call).cast());
        // SAFETY: symmetric arrays of the test, another word for each call.
        unsafe { coll::broadcast(world, team, at(dest), at(source), 8, 0, ROUTINE) };
    }
    for pe in 1..if world.pe() == 0 { world.n_pes() } else { 1 } {
        let one = 1u64;
        let (word, one) = (word.cast(), (&raw const one).cast());
        // SAFETY: a word of each.
        unsafe { world.put(world.context(), word, one, 8, pe, Mode::Blocking, ROUTINE) };
    }
    assert!(contents(dest, CALLS) == mine);
    coll::barrier_all(world, ROUTINE);
}

/// Broadcasts from changing roots, of changing lengths, some of which take more pieces than there are flags, with other
/// collectives between some of them. PEs come late by turns, and change their buffers as soon as they may.
fn broadcasts_in_a_row(world: &World, most: usize) {
    const CALLS: usize = 32;
    /// Elements of the other collectives: more than go beside a flag.
    const FEW: usize = 12;
    let (n, me, sum) = (world.n_pes(), world.pe(), reducer::<Sum, u64>());
    let length = |call: usize| [1, 300, 0, 1_000, 1, most, 9, 8][call % 8];
    let start = |call: usize| (0..call).map(length).sum::<usize>();
    let [source, dest] = [0; 2].map(|_| array::<u64>(world, start(CALLS)));
    let [own, sums] = [0; 2].map(|_| array::<u64>(world, CALLS * FEW));
    let all = array::<u64>(world, CALLS * FEW * n);
    let at = |array: *mut u64, call: usize| array.wrapping_add(start(call));
    (0..CALLS).for_each(|call| fill(at(source, call), &values(me, call, length(call))));
    coll::barrier_all(world, ROUTINE);
    for call in 0..CALLS {
        // One is late at a time, and others run ahead of it until they need it.
        if call / 3 % n == me {
            std::thread::sleep(Duration::from_millis(3));
        }
        let (root, len) = (call / 5 % n, length(call));
        let (team, to, from) = (world.team(), at(dest, call), at(source, call));
        // SAFETY: symmetric arrays of the test, another part for each call.
        unsafe {
            coll::broadcast(world, team, to.cast(), from.cast(), len * 8, root as i32, ROUTINE);
        }
        assert!(contents(to, len) == values(root, call, len), "call {call}");
        fill(from, &vec![!0; len]);
        fill(to, &vec![call as u64; len]);
        // Two of them, so that members that are ahead use the same memory again.
        if call % 4 < 2 {
            let own = own.wrapping_add(call * FEW);
            fill(own, &values(me, call, FEW));
            let (all, sums) = (all.wrapping_add(call * FEW * n), sums.wrapping_add(call * FEW));
            let expected: Vec<u64> = (0..n).flat_map(|pe| values(pe, call, FEW)).collect();
            // SAFETY: as above; the source is this PE's alone when a call has returned.
            unsafe {
                if call % 4 == 0 {
                    coll::fcollect(world, team, all.cast(), own.cast(), FEW * 8, ROUTINE);
                    assert!(contents(all, FEW * n) == expected, "fcollect after {call}");
                } else {
                    coll::reduce(world, team, sums.cast(), own.cast(), FEW, sum, ROUTINE);
                    let of = |index| {
                        let theirs = (0..n).map(|pe| expected[pe * FEW + index]);
                        theirs.fold(0, u64::wrapping_add)
                    };
                    let expected: Vec<u64> = (0..FEW).map(of).collect();
                    assert!(contents(sums, FEW) == expected, "sum after {call}");
                }
            }
            fill(own, &[!0; FEW]);
        }
    }
    coll::barrier_all(world, ROUTINE);
    for call in 0..CALLS {
        let expected = vec![call as u64; length(call)];
        assert!(contents(at(dest, call), length(call)) == expected, "written after call {call}");
    }
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

/// A number from -0.5 to 0.5.
fn unit(bits: u64) -> f64 {
    (bits >> 11) as f64 / (1u64 << 53) as f64 - 0.5
}

/// Floating-point numbers are added in the order of the PEs, to the last bit.
fn sums_in_order(world: &World, nelems: usize) {
    let [source, dest] = [0; 2].map(|_| array::<f64>(world, nelems));
    let of = |pe: usize| values(pe, 0, nelems).into_iter().map(unit).collect::<Vec<f64>>();
    let mut expected = of(0);
    for pe in 1..world.n_pes() {
        expected.iter_mut().zip(of(pe)).for_each(|(sum, value)| *sum += value);
    }
    fill(source, &of(world.pe()));
    let (team, sum) = (world.team(), reducer::<Sum, f64>());
    // SAFETY: symmetric arrays of the test.
    unsafe { coll::reduce(world, team, dest.cast(), source.cast(), nelems, sum, ROUTINE) };
    assert!(contents(dest, nelems) == expected, "apart");
    // SAFETY: as above.
    unsafe { coll::reduce(world, team, source.cast(), source.cast(), nelems, sum, ROUTINE) };
    assert!(contents(source, nelems) == expected, "in place");
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

/// Fewer where each element is a put of its own, of which thousands take long on some transports.
fn strided_blocks(world: &World) {
    if table::taken(world, world.team(), "alltoalls", 8) == Some("put") {
        return alltoalls_of_strided_blocks(world, 6);
    }
    alltoalls_of_strided_blocks(world, 18);
    long_strided_blocks(world);
}

/// More than one part of each algorithm, and gaps that stay as they are.
fn long_strided_blocks(world: &World) {
    const NELEMS: usize = 3_000;
    let (n, me) = (world.n_pes(), world.pe());
    let [source, dest] = [0; 2].map(|_| array::<u64>(world, 3 * n * NELEMS));
    for (call, (dst, sst)) in [(2, 3), (1, 2), (3, 1)].into_iter().enumerate() {
        let of = |pe: usize, to: usize| values(pe * n + to, call, NELEMS);
        let apart = |blocks: Vec<u64>, stride: usize| -> Vec<u64> {
            blocks
                .into_iter()
                .flat_map(|word| (0..stride).map(move |gap| if gap == 0 { word } else { 7 }))
                .collect()
        };
        fill(source, &apart((0..n).flat_map(|to| of(me, to)).collect(), sst));
        fill(dest, &vec![7; n * NELEMS * dst]);
        coll::sync_all(world, ROUTINE);
        let blocks = Strided { dst: dst as isize, sst: sst as isize, nelems: NELEMS, size: 8 };
        // SAFETY: symmetric arrays of the test.
        unsafe {
            coll::alltoalls(world, world.team(), dest.cast(), source.cast(), blocks, ROUTINE);
        }
        let expected = apart((0..n).flat_map(|pe| of(pe, me)).collect(), dst);
        assert!(contents(dest, n * NELEMS * dst) == expected, "strides {dst} and {sst}");
        coll::sync_all(world, ROUTINE);
    }
    for place in [source, dest] {
        assert!(world.heap().free(place.cast()), "an array of the heap");
    }
}

/// Blocks that members pass on, in one part and in several, between messages that go straight with the same numbers.
#[test]
fn blocks_passed_on_between_messages_that_go_straight() {
    let all = [
        "alltoall:both,fcollect:exchange,reduce:exchange",
        "alltoall:both,fcollect:signal,reduce:both",
        "alltoall:doubling,fcollect:exchange,reduce:doubling",
    ];
    for asked in all {
        for (n_pes, seed) in [(3, 1), (4, 2), (5, 3), (6, 4), (7, 5)] {
            let seed = (seed * SEEDS).to_string();
            let asked = [("SHMEM_COLL", asked), ("SHMEM_UNORDERED_SEED", &seed)];
            over("unordered", n_pes, &asked, blocks_between_others);
            let ring = Ring { hosts_max: 3, ..ring::TWO_HOSTS_IN_BLOCKS };
            across(ring, &["shm", "unordered"], n_pes, &asked, blocks_between_others);
        }
        across(ring::RING_ONLY, &["ntb"], 4, &[("SHMEM_COLL", asked)], blocks_between_others);
    }
}

fn blocks_between_others(world: &World) {
    const MOST: usize = 4_000;
    let (team, n, me) = (world.team(), world.n_pes(), world.pe());
    let sum = reducer::<Sum, u64>();
    let [source, all] = [0; 2].map(|_| array::<u64>(world, n * MOST));
    let dests = [0; 2].map(|_| array::<u64>(world, n * MOST));
    let sums = array::<u64>(world, 1);
    for call in 0..24 {
        // A line, a part of a half, and several parts.
        let len = [1, 60, MOST, 3][call % 4];
        let of = |pe: usize, to: usize| values(pe * n + to, call, len);
        fill(source, &(0..n).flat_map(|to| of(me, to)).collect::<Vec<u64>>());
        let dest = dests[call % 2];
        // SAFETY: symmetric arrays of the test.
        unsafe {
            coll::alltoall(world, team, dest.cast(), source.cast(), len * 8, ROUTINE);
            match call % 3 {
                0 => coll::fcollect(world, team, all.cast(), dest.cast(), 8, ROUTINE),
                1 => coll::reduce(world, team, sums.cast(), dest.cast(), 1, sum, ROUTINE),
                _ => {}
            }
        }
        let expected: Vec<u64> = (0..n).flat_map(|pe| of(pe, me)).collect();
        assert!(contents(dest, n * len) == expected, "call {call} of {len} words");
        let firsts: Vec<u64> = (0..n).map(|pe| of(0, pe)[0]).collect();
        match call % 3 {
            0 => assert_eq!(contents(all, n), firsts, "call {call}"),
            1 => assert_eq!(
                contents(sums, 1)[0],
                firsts.iter().fold(0, |a: u64, b| a.wrapping_add(*b)),
                "call {call}"
            ),
            _ => {}
        }
    }
}

/// Each algorithm has one order in which it adds: the same bits on all PEs and in every run.
fn sums_have_the_same_bits(world: &World) {
    const MOST: usize = 1200;
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
    let mut late = Random::new(world.pe() as u64);
    for round in 1..=50 {
        if late.one_in(8) {
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
