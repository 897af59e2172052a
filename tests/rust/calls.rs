// SPDX-License-Identifier: Apache-2.0
//! Every operation of the Rust interface, on any number of PEs: each PE works on the memory of the next one.

use std::error::Error;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use tombolo::{And, Cmp, Max, Min, Operator, Or, Prod, SignalOp, Sum, Symmetric, Team, World, Xor};

type Outcome = Result<(), Box<dyn Error>>;

fn main() -> Outcome {
    let world = tombolo::init()?;
    copies(&world)?;
    blocks(&world)?;
    variables(&world)?;
    signals(&world)?;
    waits(&world)?;
    several_under_way(&world)?;
    locks(&world)?;
    teams(&world)?;
    let all = world.team();
    let reversed = all.split_strided(all.n_pes() - 1, -1, all.n_pes())?;
    for team in [&all, reversed.as_ref().ok_or("every PE is a member")?] {
        data_of_teams(&world, team)?;
        results_of_teams(&world, team)?;
    }
    refusals(&world)?;
    world.barrier_all();
    if world.my_pe() == 0 {
        println!("all calls are right");
    }
    Ok(())
}

/// This PE, the next one and the one before.
fn places(world: &World) -> (usize, usize, usize) {
    let (me, n) = (world.my_pe(), world.n_pes());
    (me, (me + 1) % n, (me + n - 1) % n)
}

fn read(field: &[Symmetric<u64>]) -> Vec<u64> {
    field.iter().map(Symmetric::read).collect()
}

fn copies(world: &World) -> Outcome {
    let (me, next, previous) = places(world);
    let (field, long) = (world.alloc_slice(10, 0u64)?, world.alloc([0u64; 8])?);
    let flag = world.alloc_atomic(0u64)?;
    [8, 9].iter().for_each(|at| field[*at].write((10 * at + me) as u64));
    world.p(&field[0], me as u64 + 1, next);
    world.p(&long, [me as u64; 8], next);
    world.put(&field[1..4], &[11, 12, me as u64], next);
    world.put(&field[4..6], &vec![14, 15], next);
    world.put(&field[6..8], &field[8..], next);
    world.barrier_all();
    let before = previous as u64;
    assert_eq!(read(&field[..8]), [before + 1, 11, 12, before, 14, 15, 80 + before, 90 + before]);
    assert_eq!(long.read(), [before; 8]);
    assert_eq!((world.g(&field[0], next), world.g(&long, next)), (me as u64 + 1, [me as u64; 8]));
    let mut got = [0; 3];
    world.get(&mut got, &field[1..4], next);
    assert_eq!(got, [11, 12, me as u64]);
    // SAFETY: nobody writes before the next barrier.
    unsafe {
        assert_eq!(field.local()[1], 11);
        let theirs = world.ptr(&field[3..], next);
        assert!(theirs.is_none_or(|theirs| theirs.read_volatile() == me as u64));
    }
    assert!(world.ptr(&field, me).is_some() && !world.is_lost(next));
    world.barrier_all();
    world.put(&field[1..4], &[21, 22, 23], next);
    world.fence();
    world.atomic_set(&flag, 1, next);
    world.wait_until(&flag, Cmp::Eq, 1);
    assert_eq!(read(&field[1..4]), [21, 22, 23]);
    world.p(&field[0], 7, next);
    world.pe_quiet(&[next]);
    world.sync_all();
    assert_eq!(field[0].read(), 7);
    world.sync_all();
    world.p(&field[0], 8, next);
    world.quiet();
    world.sync_all();
    assert_eq!(field[0].read(), 8);
    Ok(())
}

fn blocks(world: &World) -> Outcome {
    let (me, next, previous) = places(world);
    let field = world.alloc_slice(24, 0u64)?;
    let source: Vec<u64> = (1..=24).map(|number| (100 * me + number) as u64).collect();
    world.iput(&field, 3, &source, 2, 4, next);
    world.ibput(&field[12..], 4, &source, 5, (2, 3), next);
    world.barrier_all();
    let mut expected = [0; 24];
    for (at, number) in
        [(0, 1), (3, 3), (6, 5), (9, 7), (12, 1), (13, 2), (16, 6), (17, 7), (20, 11), (21, 12)]
    {
        expected[at] = (100 * previous + number) as u64;
    }
    assert_eq!(read(&field), expected);
    let (mut one, mut two) = ([0; 7], [0; 7]);
    world.iget(&mut one, 2, &field, 3, 4, next);
    world.ibget(&mut two, 5, &field[12..], 4, (2, 2), next);
    let mine = |numbers: [usize; 7]| {
        numbers.map(|number| if number == 0 { 0 } else { (100 * me + number) as u64 })
    };
    assert_eq!((one, two), (mine([1, 0, 3, 0, 5, 0, 7]), mine([1, 2, 0, 0, 0, 6, 7])));
    Ok(())
}

fn variables(world: &World) -> Outcome {
    let (_, next, _) = places(world);
    let (word, real) = (world.alloc_atomic(5i64)?, world.alloc_atomic(1.5f32)?);
    assert_eq!(world.atomic_fetch(&word, next), 5);
    world.atomic_set(&word, 6, next);
    world.quiet();
    assert_eq!(world.atomic_swap(&word, 7, next), 6);
    assert_eq!(world.atomic_compare_swap(&word, 6, 1, next), 7);
    assert_eq!(world.atomic_compare_swap(&word, 7, 12, next), 7);
    assert_eq!(world.atomic_fetch_add(&word, 3, next), 12);
    assert_eq!(world.atomic_fetch_and(&word, 11, next), 15);
    assert_eq!(world.atomic_fetch_or(&word, 4, next), 11);
    assert_eq!(world.atomic_fetch_xor(&word, 5, next), 15);
    let left = |expected| {
        world.quiet();
        assert_eq!(world.atomic_fetch(&word, next), expected);
    };
    world.atomic_add(&word, 2, next);
    left(12);
    world.atomic_and(&word, 8, next);
    left(8);
    world.atomic_or(&word, 1, next);
    left(9);
    world.atomic_xor(&word, 3, next);
    left(10);
    assert_eq!((world.atomic_swap(&real, 2.5, next), world.atomic_fetch(&real, next)), (1.5, 2.5));
    world.barrier_all();
    assert_eq!(word.load(), 10);
    Ok(())
}

fn signals(world: &World) -> Outcome {
    let (me, next, previous) = places(world);
    let (data, signal) = (world.alloc_slice(3, 0u64)?, world.alloc_atomic(0u64)?);
    world.put_signal(&data, &[1, 2, me as u64], &signal, (SignalOp::Set, 40), next);
    assert_eq!(world.wait_until(&signal, Cmp::Ne, 0), 40);
    assert_eq!(read(&data), [1, 2, previous as u64]);
    world.barrier_all();
    world.put_signal(&data, &[4, 5, 6], &signal, (SignalOp::Add, 2), next);
    assert_eq!(world.wait_until(&signal, Cmp::Gt, 40), 42);
    assert_eq!(read(&data), [4, 5, 6]);
    world.barrier_all();
    world.signal(&signal, (SignalOp::Add, 3), next);
    assert_eq!(world.wait_until(&signal, Cmp::Ge, 43), 45);
    world.barrier_all();
    world.signal(&signal, (SignalOp::Set, 1), next);
    assert_eq!(world.wait_until(&signal, Cmp::Lt, 45), 1);
    assert_eq!(world.wait_until(&signal, Cmp::Le, 1), 1);
    assert!(world.test(&signal, Cmp::Eq, 1) && !world.test(&signal, Cmp::Ne, 1));
    Ok(())
}

fn waits(world: &World) -> Outcome {
    let (_, next, _) = places(world);
    let flags = world.alloc_atomics(4, 0i32)?;
    assert_eq!(world.test_any(&flags, Cmp::Eq, 9), None);
    assert!(world.test_some(&flags, Cmp::Eq, 9).is_empty() && !world.test_all(&flags, Cmp::Eq, 9));
    world.barrier_all();
    world.atomic_set(&flags[2], 9, next);
    assert_eq!(world.wait_until_any(&flags, Cmp::Eq, 9), Some(2));
    assert_eq!(world.wait_until_some(&flags, Cmp::Eq, 9), [2]);
    assert_eq!(world.test_any(&flags, Cmp::Eq, 9), Some(2));
    world.barrier_all();
    [0, 1, 3].iter().for_each(|at| world.atomic_set(&flags[*at], 9, next));
    world.wait_until_all(&flags, Cmp::Eq, 9);
    assert!(world.test_all(&flags, Cmp::Eq, 9) && !world.test_all(&flags, Cmp::Ne, 9));
    assert_eq!(world.test_some(&flags, Cmp::Eq, 9), [0, 1, 2, 3]);
    assert_eq!(world.wait_until_any(&flags[..0], Cmp::Eq, 9), None);
    Ok(())
}

fn several_under_way(world: &World) -> Outcome {
    let (me, next, previous) = places(world);
    let (field, signal) = (world.alloc_slice(4, 0u64)?, world.alloc_atomic(0u64)?);
    let counter = world.alloc_atomic(10u64)?;
    let source = [me as u64 + 3; 2];
    world.nonblocking(|ops| {
        ops.put(&field[..2], &source, next);
        ops.put_signal(&field[2..], &source, &signal, (SignalOp::Add, 6), next);
    });
    world.barrier_all();
    assert_eq!((read(&field), signal.load()), (vec![previous as u64 + 3; 4], 6));
    let mut got = [0; 4];
    world.nonblocking(|ops| ops.get(&mut got, &field, next));
    assert_eq!(got, [me as u64 + 3; 4]);
    let mut old = [0; 7];
    world.nonblocking(|ops| ops.atomic_fetch(&mut old[0], &counter, next));
    world.nonblocking(|ops| ops.atomic_fetch_add(&mut old[1], &counter, 5, next));
    world.nonblocking(|ops| ops.atomic_swap(&mut old[2], &counter, 12, next));
    world.nonblocking(|ops| ops.atomic_compare_swap(&mut old[3], &counter, 12, 6, next));
    world.nonblocking(|ops| ops.atomic_fetch_and(&mut old[4], &counter, 3, next));
    world.nonblocking(|ops| ops.atomic_fetch_or(&mut old[5], &counter, 5, next));
    world.nonblocking(|ops| ops.atomic_fetch_xor(&mut old[6], &counter, 1, next));
    assert_eq!((old, world.atomic_fetch(&counter, next)), ([10, 10, 15, 12, 6, 2, 7], 6));
    Ok(())
}

/// Whether a call panics, without the message.
fn panics(call: impl FnOnce()) -> bool {
    let hook = take_hook();
    set_hook(Box::new(|_| {}));
    let outcome = catch_unwind(AssertUnwindSafe(call));
    set_hook(hook);
    outcome.is_err()
}

fn locks(world: &World) -> Outcome {
    let (lock, total) = (world.alloc_lock()?, world.alloc(0u64)?);
    for _ in 0..20 {
        let _held = lock.lock();
        let sum = world.g(&total, 0);
        world.p(&total, sum + 1, 0);
    }
    world.barrier_all();
    assert_eq!(world.g(&total, 0), 20 * world.n_pes() as u64);
    world.barrier_all();
    let held = if world.my_pe() == 0 { lock.try_lock() } else { None };
    assert_eq!(held.is_some(), world.my_pe() == 0);
    if held.is_some() {
        assert!(panics(|| drop(lock.try_lock())));
    }
    world.barrier_all();
    if world.my_pe() > 0 {
        assert!(lock.try_lock().is_none());
    }
    world.barrier_all();
    drop(held);
    Ok(())
}

fn teams(world: &World) -> Outcome {
    let ((me, next, previous), n) = (places(world), world.n_pes());
    let all = world.team();
    let reversed = all.split_strided(n - 1, -1, n)?.ok_or("every PE is a member")?;
    assert_eq!((reversed.my_pe(), reversed.n_pes()), (n - 1 - me, n));
    assert_eq!([0, n].map(|pe| reversed.translate_pe(pe, &all)), [Some(n - 1), None]);
    let even = all.split_strided(0, 2, n.div_ceil(2))?;
    assert_eq!(even.as_ref().map(Team::my_pe), (me % 2 == 0).then_some(me / 2));
    if let Some(even) = even {
        let last = even.n_pes() - 1;
        assert_eq!(even.translate_pe(last, &all), Some(2 * last));
        assert_eq!([0, 1].map(|pe| all.translate_pe(pe, &even)), [Some(0), None]);
    }
    let [row, column] = all.split_2d(2)?;
    let width = n.min(2);
    assert_eq!((row.my_pe(), column.my_pe()), (me % width, me / width));
    assert!(all.split_strided(0, 1, n + 1).is_err());
    let shared = world.shared_team();
    assert_eq!(shared.translate_pe(shared.my_pe(), &all), Some(me));
    // Contexts number PEs as their teams do.
    let word = world.alloc(0u64)?;
    let context = reversed.context();
    context.p(&word, me as u64 + 1, n - 1 - next);
    drop(context);
    reversed.sync();
    assert_eq!(word.read(), previous as u64 + 1);
    Ok(())
}

fn data_of_teams(world: &World, team: &Team<'_>) -> Outcome {
    let (me, n) = (team.my_pe(), team.n_pes());
    let (dest, source) = (world.alloc_slice(6 * n, 0u64)?, world.alloc_slice(4 * n, 0u64)?);
    let number = |member: usize, at: usize| (1000 * member + at) as u64;
    source.iter().enumerate().for_each(|(at, element)| element.write(number(me, at)));
    team.sync();
    team.broadcast(&dest[..4], &source[..4], n - 1);
    assert_eq!(read(&dest[..4]), [0, 1, 2, 3].map(|at| number(n - 1, at)));
    team.sync();
    team.fcollect(&dest[..2 * n], &source[..2]);
    let pairs = |pair: &dyn Fn(usize) -> usize| -> Vec<u64> {
        (0..2 * n).map(|at| number(at / 2, pair(at % 2))).collect()
    };
    assert_eq!(read(&dest[..2 * n]), pairs(&|at| at));
    team.sync();
    // SAFETY: there is room for two elements of each.
    unsafe { team.collect(&dest, &source[..me % 3]) };
    let all: Vec<u64> = (0..n).flat_map(|m| (0..m % 3).map(move |at| number(m, at))).collect();
    assert_eq!(read(&dest[..all.len()]), all);
    team.sync();
    team.alltoall(&dest[..2 * n], &source[..2 * n]);
    assert_eq!(read(&dest[..2 * n]), pairs(&|at| 2 * me + at));
    team.sync();
    team.alltoalls(&dest, 3, &source, 2, 2);
    let third: Vec<u64> = read(&dest).into_iter().step_by(3).collect();
    assert_eq!(third, pairs(&|at| 2 * (2 * me + at)));
    team.sync();
    Ok(())
}

fn results_of_teams(world: &World, team: &Team<'_>) -> Outcome {
    let (me, n) = (team.my_pe(), team.n_pes());
    let (dest, source) = (world.alloc_slice(3, 0u64)?, world.alloc_slice(3, 0u64)?);
    let given = |member: usize| [0, 1, 2].map(|at| (7 * member + at + 2) as u64);
    let combined = |members: std::ops::Range<usize>, apply: fn(u64, u64) -> u64| {
        let all = members.map(given);
        all.reduce(|a, b| [0, 1, 2].map(|at| apply(a[at], b[at]))).unwrap_or([0; 3])
    };
    let give = || source.iter().zip(given(me)).for_each(|(element, value)| element.write(value));
    fn check<O: Operator<u64>>(
        team: &Team<'_>,
        operator: O,
        buffers: (&[Symmetric<u64>], &[Symmetric<u64>]),
        expected: [u64; 3],
    ) {
        team.reduce(operator, buffers.0, buffers.1);
        assert_eq!(read(buffers.0), expected);
        team.sync();
    }
    give();
    let both = (&*dest, &*source);
    check(team, Sum, both, combined(0..n, u64::wrapping_add));
    check(team, Prod, both, combined(0..n, u64::wrapping_mul));
    check(team, Min, both, combined(0..n, u64::min));
    check(team, Max, both, combined(0..n, u64::max));
    check(team, And, both, combined(0..n, |a, b| a & b));
    check(team, Or, both, combined(0..n, |a, b| a | b));
    check(team, Xor, both, combined(0..n, |a, b| a ^ b));
    check(team, Sum, (&*source, &*source), combined(0..n, u64::wrapping_add));
    give();
    team.sum_inscan(&dest, &source);
    assert_eq!(read(&dest), combined(0..me + 1, u64::wrapping_add));
    team.sync();
    team.sum_exscan(&dest, &source);
    assert_eq!(read(&dest), combined(0..me, u64::wrapping_add));
    team.sync();
    Ok(())
}

/// What a slice of the standard library would refuse, and what makes no sense.
fn refusals(world: &World) -> Outcome {
    let (field, flag) = (world.alloc_slice(4, 0u64)?, world.alloc_atomic(0u64)?);
    let ((me, ..), n, team) = (places(world), world.n_pes(), world.team());
    let calls: [&dyn Fn(); 12] = [
        &|| world.p(&field[0], 1, n),
        &|| _ = world.g(&field[0], n),
        &|| world.atomic_set(&flag, 1, n),
        &|| world.pe_quiet(&[n]),
        &|| world.put(&field[..2], &[1, 2, 3], me),
        &|| world.get(&mut [0; 2], &field[..3], me),
        &|| world.put(&field[..2], &field[1..3], me),
        &|| world.iput(&field, 0, &[1, 2], 1, 2, me),
        &|| world.iput(&field, 2, &[1, 2, 3], 1, 3, me),
        &|| world.ibget(&mut [0; 4], 1, &field, 2, (2, 2), me),
        &|| team.broadcast(&field[..2], &field[2..], n),
        &|| team.reduce(Sum, &field[..1], &field[2..]),
    ];
    for (number, call) in calls.into_iter().enumerate() {
        assert!(panics(call), "call {number} is not refused");
    }
    assert!(tombolo::init().is_err(), "there is a world already");
    assert!(world.alloc_slice(usize::MAX, 0u64).is_err());
    let lock = world.alloc_lock()?;
    if me == 0 {
        let _held = lock.lock();
        assert!(panics(|| drop(lock.lock())));
    }
    world.barrier_all();
    assert_eq!(read(&field), [0; 4]);
    Ok(())
}
