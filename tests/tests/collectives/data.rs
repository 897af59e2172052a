// SPDX-License-Identifier: Apache-2.0
//! Collectives that move data.

use super::support::{
    ROUTINE, Random, array, bytes, contents, everywhere, fill, some_teams, values,
};
use std::sync::Arc;
use tombolo_collectives::{
    self as coll, ActiveSet, And, Complex, Max, Min, Or, Prod, Reducer, Strided, Sum, Xor, active,
    reducer,
};
use tombolo_core::{Team, World};

/// Largest number of bytes a member contributes.
const MOST: usize = 40_000;

/// A team or an active set, to run the same checks on both.
#[derive(Clone)]
pub enum Members {
    Team(Arc<Team>),
    Active { set: ActiveSet, me: usize, n: usize },
}

impl Members {
    pub fn me(&self) -> usize {
        match self {
            Members::Team(team) => team.me,
            Members::Active { me, .. } => *me,
        }
    }

    pub fn n(&self) -> usize {
        match self {
            Members::Team(team) => team.n_pes(),
            Members::Active { n, .. } => *n,
        }
    }
}

/// All groups to test in turn. Every PE goes through the same list, so that arrays are allocated
/// alike; it has nothing where it is no member.
pub fn all_members(world: &World) -> Vec<Members> {
    let n = world.n_pes();
    let mut all: Vec<Members> = some_teams(world).into_iter().map(Members::Team).collect();
    for (start, log_stride, size) in [(0, 0, n), (n / 2, 0, n - n / 2), (0, 1, n.div_ceil(2))] {
        let p_sync = array::<i64>(world, active::SYNC_SIZE);
        fill(p_sync, &[0; active::SYNC_SIZE]);
        let me = (0..size).find(|i| start + (i << log_stride) == world.pe());
        if let Some(me) = me {
            let (start, size) = (start as i32, size as i32);
            let set = ActiveSet::new(world, start, log_stride, size, p_sync, ROUTINE);
            let set = set.expect("this PE is a member");
            all.push(Members::Active { set, me, n: size as usize });
        }
    }
    coll::barrier_all(world, ROUTINE);
    all
}

/// Lengths around every limit of an algorithm, then random ones. The same for all members.
fn lengths(calls: usize) -> impl Iterator<Item = (usize, usize)> {
    let special = [0, 1, 3, 8, 63, 64, 255, 256, 257, 700, 1500, 4096, 8192, 8200, MOST];
    let special = if calls == SHORT.len() { &SHORT[..] } else { &special[..] };
    let special = special.to_vec();
    let mut random = Random::new(calls as u64);
    (0..calls).map(move |call| {
        let len = special.get(call).copied().unwrap_or_else(|| random.below(MOST as u64) as usize);
        (call, len)
    })
}

/// Lengths where an algorithm is asked for: what fits a line or not, and what
/// is combined in several steps.
const SHORT: [usize; 6] = [0, 8, 56, 57, 1500, 8200];

/// Calls of each kind; fewer where an algorithm is asked for, as there are many.
fn calls(world: &World) -> usize {
    if world.config().coll.0.is_empty() { 30 } else { SHORT.len() }
}

/// Two destinations in turn: a member may be in the next call, but not the one after it, while
/// another looks at its result. The source is overwritten at once after each call.
fn for_calls(
    world: &World,
    factor: impl Fn(usize) -> usize,
    check: impl Fn(&Members, usize, usize, *mut u8, *mut u8),
) {
    let most = MOST * factor(world.n_pes());
    let dests = [array::<u8>(world, most), array::<u8>(world, most)];
    let source = array::<u8>(world, most);
    for members in all_members(world) {
        for (call, len) in lengths(calls(world)) {
            check(&members, call, len, dests[call % 2], source);
        }
    }
    coll::barrier_all(world, ROUTINE);
}

#[test]
fn broadcast_reaches_all_from_every_root() {
    everywhere(broadcasts);
}

pub fn broadcasts(world: &World) {
    for_calls(
        world,
        |_| 1,
        |members, call, len, dest, source| {
            let root = call % members.n();
            let before = bytes(99, call, len);
            fill(dest, &before);
            // Every dest must be ready before anybody calls; a source only when its PE does.
            match members {
                Members::Team(team) => coll::sync(world, team, ROUTINE),
                // SAFETY: the array of the set.
                Members::Active { set, .. } => unsafe { active::sync(world, *set, ROUTINE) },
            }
            fill(source, &bytes(members.me(), call, len));
            let is_root = root == members.me();
            // SAFETY: symmetric arrays of the test.
            unsafe {
                match members {
                    Members::Team(team) => {
                        coll::broadcast(world, team, dest, source, len, root as i32, ROUTINE);
                    }
                    Members::Active { set, .. } => {
                        active::broadcast(world, *set, dest, source, len, root as i32, ROUTINE);
                    }
                }
            }
            fill(source, &vec![0xEE; len]);
            let untouched = is_root && matches!(members, Members::Active { .. });
            let expected = if untouched { before } else { bytes(root, call, len) };
            assert!(contents(dest, len) == expected, "{len} bytes from {root}");
        },
    );
}

#[test]
fn broadcast_in_place_leaves_the_root_as_it_is() {
    everywhere(broadcasts_in_place);
}

pub fn broadcasts_in_place(world: &World) {
    let data = array::<u8>(world, MOST);
    for (call, len) in lengths(20) {
        fill(data, &bytes(world.pe(), call, len));
        let root = call % world.n_pes();
        coll::sync_all(world, ROUTINE);
        // SAFETY: a symmetric array of the test.
        unsafe {
            coll::broadcast(world, world.team(), data, data, len, root as i32, ROUTINE);
        }
        assert!(contents(data, len) == bytes(root, call, len), "{len} bytes from {root}");
        coll::sync_all(world, ROUTINE);
    }
}

#[test]
fn fcollect_concatenates_blocks() {
    everywhere(fcollects);
}

pub fn fcollects(world: &World) {
    for_calls(
        world,
        |n| n,
        |members, call, len, dest, source| {
            fill(source, &bytes(members.me(), call, len));
            // SAFETY: symmetric arrays of the test.
            unsafe {
                match members {
                    Members::Team(team) => {
                        coll::fcollect(world, team, dest, source, len, ROUTINE);
                    }
                    Members::Active { set, .. } => {
                        active::fcollect(world, *set, dest, source, len, ROUTINE);
                    }
                }
            }
            fill(source, &vec![0xEE; len]);
            let expected: Vec<u8> = (0..members.n()).flat_map(|m| bytes(m, call, len)).collect();
            assert!(contents(dest, expected.len()) == expected, "{len} bytes each");
        },
    );
}

#[test]
fn collect_concatenates_blocks_of_different_lengths() {
    everywhere(collects);
}

pub fn collects(world: &World) {
    for_calls(
        world,
        |n| n,
        |members, call, most, dest, source| {
            // Every third member has nothing to say, in some calls all.
            let len = |member: usize| match (member + call) % 3 {
                0 => 0,
                _ => Random::new((member * 77 + call) as u64).below(most as u64 + 1) as usize,
            };
            fill(source, &bytes(members.me(), call, len(members.me())));
            let mine = len(members.me());
            // SAFETY: symmetric arrays of the test.
            unsafe {
                match members {
                    Members::Team(team) => {
                        coll::collect(world, team, dest, source, mine, ROUTINE);
                    }
                    Members::Active { set, .. } => {
                        active::collect(world, *set, dest, source, mine, ROUTINE);
                    }
                }
            }
            fill(source, &vec![0xEE; mine]);
            let expected: Vec<u8> = (0..members.n()).flat_map(|m| bytes(m, call, len(m))).collect();
            assert!(contents(dest, expected.len()) == expected, "up to {most} bytes each");
        },
    );
}

#[test]
fn alltoall_transposes_blocks() {
    everywhere(alltoalls_of_whole_blocks);
}

pub fn alltoalls_of_whole_blocks(world: &World) {
    for_calls(
        world,
        |n| n,
        |members, call, len, dest, source| {
            let (me, n) = (members.me(), members.n());
            let block = |from: usize, to: usize| bytes(from * 64 + to, call, len);
            let all: Vec<u8> = (0..n).flat_map(|to| block(me, to)).collect();
            fill(source, &all);
            // SAFETY: symmetric arrays of the test.
            unsafe {
                match members {
                    Members::Team(team) => {
                        coll::alltoall(world, team, dest, source, len, ROUTINE);
                    }
                    Members::Active { set, .. } => {
                        active::alltoall(world, *set, dest, source, len, ROUTINE);
                    }
                }
            }
            fill(source, &vec![0xEE; len * n]);
            let expected: Vec<u8> = (0..n).flat_map(|from| block(from, me)).collect();
            assert!(contents(dest, expected.len()) == expected, "{len} bytes each");
        },
    );
}

#[test]
fn alltoalls_transposes_blocks_and_leaves_the_gaps() {
    everywhere(|world| alltoalls_of_strided_blocks(world, 40));
}

pub fn alltoalls_of_strided_blocks(world: &World, calls: usize) {
    const STRIDED_MOST: usize = 2000;
    let room = STRIDED_MOST * 16 * world.n_pes();
    let dests = [array::<u8>(world, room), array::<u8>(world, room)];
    let source = array::<u8>(world, room);
    for members in all_members(world) {
        let (me, n) = (members.me(), members.n());
        let mut random = Random::new(7);
        for call in 0..calls {
            let size = [1, 2, 4, 8, 16, 3][call % 6];
            let mut below = |limit: usize| random.below(limit as u64) as usize;
            let (dst, sst) = (1 + below(3), 1 + below(3));
            let nelems = below(STRIDED_MOST / 48 * 16 / size);
            let dest = dests[call % 2];
            let element =
                |from: usize, to: usize, i: usize| bytes(from * 4096 + to * 64 + call, i, size);
            for to in 0..n {
                for i in 0..nelems {
                    let at = ((to * nelems + i) * sst) * size;
                    fill(source.wrapping_add(at), &element(me, to, i));
                }
            }
            let span = n * nelems * dst * size;
            fill(dest, &vec![0xAA; span]);
            let strided = Strided { dst: dst as isize, sst: sst as isize, nelems, size };
            // SAFETY: symmetric arrays of the test. Every dest must be ready before anybody
            // calls.
            unsafe {
                match &members {
                    Members::Team(team) => {
                        coll::sync(world, team, ROUTINE);
                        coll::alltoalls(world, team, dest, source, strided, ROUTINE);
                    }
                    Members::Active { set, .. } => {
                        active::sync(world, *set, ROUTINE);
                        active::alltoalls(world, *set, dest, source, strided, ROUTINE);
                    }
                }
            }
            let mut expected = vec![0xAA; span];
            for from in 0..n {
                for i in 0..nelems {
                    let at = ((from * nelems + i) * dst) * size;
                    expected[at..at + size].copy_from_slice(&element(from, me, i));
                }
            }
            assert!(contents(dest, span) == expected, "{strided:?}");
        }
    }
    coll::barrier_all(world, ROUTINE);
    for place in [dests[0], dests[1], source] {
        assert!(world.heap().free(place), "an array of the heap");
    }
}

/// A reduction's operator and its reference on single values.
pub struct Case<T> {
    pub reducer: Reducer,
    pub apply: fn(T, T) -> T,
}

pub fn reduce(
    world: &World,
    members: &Members,
    dest: *mut u8,
    source: *const u8,
    nelems: usize,
    reducer: Reducer,
) {
    // SAFETY: symmetric arrays of the test with room for the elements.
    unsafe {
        match members {
            Members::Team(team) => {
                coll::reduce(world, team, dest, source, nelems, reducer, ROUTINE);
            }
            Members::Active { set, .. } => {
                active::reduce(world, *set, dest, source, nelems, reducer, ROUTINE);
            }
        }
    }
}

/// Reduces apart and in place; the reference combines in the order of the members, so even sums of
/// floating-point numbers have to agree bit by bit.
fn reductions<T: Copy + PartialEq + std::fmt::Debug>(
    cases: &[Case<T>],
    element: impl Fn(u64) -> T + Sync,
) where
    Case<T>: Sync,
{
    everywhere(|world| reductions_of(world, cases, &element));
}

pub fn reductions_of<T: Copy + PartialEq + std::fmt::Debug>(
    world: &World,
    cases: &[Case<T>],
    element: &(impl Fn(u64) -> T + Sync),
) {
    {
        let of = |member: usize, call: usize, nelems: usize| -> Vec<T> {
            values(member, call, nelems).into_iter().map(element).collect()
        };
        for_calls(
            world,
            |_| 1,
            |members, call, len, dest, source| {
                let Case { reducer, apply } = &cases[call % cases.len()];
                let nelems = len / size_of::<T>();
                let mine = of(members.me(), call, nelems);
                let mut expected = of(0, call, nelems);
                for member in 1..members.n() {
                    let theirs = of(member, call, nelems);
                    expected.iter_mut().zip(theirs).for_each(|(e, t)| *e = apply(*e, t));
                }
                fill(source.cast(), &mine);
                reduce(world, members, dest, source, nelems, *reducer);
                assert!(contents(dest.cast::<T>(), nelems) == expected, "{nelems} elements");
                fill(source.cast(), &mine);
                reduce(world, members, source, source, nelems, *reducer);
                assert!(contents(source.cast::<T>(), nelems) == expected, "{nelems} in place");
            },
        );
    }
}

#[test]
fn reductions_of_integers() {
    reductions::<u64>(
        &[
            Case { reducer: reducer::<Sum, u64>(), apply: u64::wrapping_add },
            Case { reducer: reducer::<Prod, u64>(), apply: u64::wrapping_mul },
            Case { reducer: reducer::<And, u64>(), apply: |a, b| a & b },
            Case { reducer: reducer::<Or, u64>(), apply: |a, b| a | b },
            Case { reducer: reducer::<Xor, u64>(), apply: |a, b| a ^ b },
            Case { reducer: reducer::<Min, u64>(), apply: u64::min },
            Case { reducer: reducer::<Max, u64>(), apply: u64::max },
        ],
        |bits| bits,
    );
    reductions::<i8>(
        &[
            Case { reducer: reducer::<Sum, i8>(), apply: i8::wrapping_add },
            Case { reducer: reducer::<Min, i8>(), apply: i8::min },
            Case { reducer: reducer::<Max, i8>(), apply: i8::max },
        ],
        |bits| bits as i8,
    );
}

#[test]
fn reductions_of_floating_point_numbers_have_the_same_bits_everywhere() {
    let unit = |bits: u64| (bits >> 11) as f64 / (1u64 << 53) as f64 - 0.5;
    reductions::<f64>(
        &[
            Case { reducer: reducer::<Sum, f64>(), apply: |a, b| a + b },
            Case { reducer: reducer::<Prod, f64>(), apply: |a, b| a * b },
            Case { reducer: reducer::<Max, f64>(), apply: f64::max },
        ],
        unit,
    );
    reductions::<Complex<f64>>(
        &[Case {
            reducer: reducer::<Sum, Complex<f64>>(),
            apply: |a, b| Complex { re: a.re + b.re, im: a.im + b.im },
        }],
        move |bits| Complex { re: unit(bits), im: unit(bits.rotate_left(17)) },
    );
}

#[test]
fn scans_add_up_the_members_before() {
    everywhere(scans);
}

/// Inclusive and exclusive ones, apart and in place.
pub fn scans(world: &World) {
    for_calls(
        world,
        |_| 1,
        |members, call, len, dest, source| {
            // The standard has no scans on active sets.
            let Members::Team(team) = members else { return };
            let nelems = len / 8;
            let sum = reducer::<Sum, u64>();
            let before = (0..team.me).fold(vec![0u64; nelems], |sum, member| {
                let theirs = values(member, call, nelems);
                sum.iter().zip(theirs).map(|(a, b)| a.wrapping_add(b)).collect()
            });
            let mine = values(team.me, call, nelems);
            let with_mine: Vec<u64> =
                before.iter().zip(&mine).map(|(a, b)| a.wrapping_add(*b)).collect();
            for (inclusive, expected) in [(true, &with_mine), (false, &before)] {
                for dest in [dest, source] {
                    fill(source.cast(), &mine);
                    let scan = if inclusive { coll::inscan } else { coll::exscan };
                    // SAFETY: symmetric arrays of the test.
                    unsafe { scan(world, team, dest, source, nelems, sum, ROUTINE) };
                    assert!(
                        contents(dest.cast::<u64>(), nelems) == *expected,
                        "{nelems} elements, inclusive: {inclusive}"
                    );
                }
            }
        },
    );
}
