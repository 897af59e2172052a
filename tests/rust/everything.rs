// SPDX-License-Identifier: Apache-2.0
//! Each operation of the crate `tombolo` once, with its result.

use std::error::Error;
use tombolo::{And, Cmp, Max, Min, Operator, Or, Prod, SignalOp, Sum, World, Xor, init};

/// A copy of all elements of a slice.
macro_rules! all {
    ($slice:expr) => {
        $slice.iter().map(|element| element.read()).collect::<Vec<_>>()
    };
}

fn main() -> Result<(), Box<dyn Error>> {
    let world = init()?;
    assert!(init().is_err(), "one world at a time");
    memory(&world)?;
    strided(&world)?;
    nonblocking(&world)?;
    atomics(&world)?;
    waiting(&world)?;
    collectives(&world)?;
    teams(&world)?;
    threads(&world)?;
    locks(&world)?;
    nothing(&world)?;
    world.barrier_all();
    if world.my_pe() == 0 {
        println!("all right");
    }
    Ok(())
}

/// The PE that this one writes to, and the one that writes to this.
fn neighbours(world: &World) -> (usize, usize) {
    let (me, n) = (world.my_pe(), world.n_pes());
    ((me + 1) % n, (me + n - 1) % n)
}

/// Longer than what goes by a register, and of a length of its own.
type Long = [u16; 25];

fn memory(world: &World) -> Result<(), Box<dyn Error>> {
    let (me, (right, left)) = (world.my_pe(), neighbours(world));
    let one = world.alloc(7u8)?;
    let long = world.alloc([0u16; 25] as Long)?;
    let field = world.alloc_slice(1000, me as f64)?;
    assert_eq!(world.g(&one, right), 7);
    world.p(&one, me as u8, right);
    world.p(&long, [me as u16; 25], right);
    let source: Vec<f64> = (0..1000).map(|i| (me * 1000 + i) as f64).collect();
    world.barrier_all();
    world.put(&field[..500], &source[..500], right);
    world.put(&field[500..503], &[0.5, 1.5, 2.5], right);
    world.fence();
    world.put(&field[503..], &source[503..], right);
    world.pe_quiet(&[right]);
    world.barrier_all();
    assert_eq!((one.read(), long.read()), (left as u8, [left as u16; 25]));
    let mut expected: Vec<f64> = (0..1000).map(|i| (left * 1000 + i) as f64).collect();
    expected[500..503].copy_from_slice(&[0.5, 1.5, 2.5]);
    assert_eq!(all!(field), expected);
    let mut got = vec![0.0; 400];
    world.get(&mut got, &field[600..], left);
    let before = (left + world.n_pes() - 1) % world.n_pes();
    assert!(got.iter().enumerate().all(|(i, x)| *x == (before * 1000 + 600 + i) as f64));
    assert_eq!(world.g(&long, me), [left as u16; 25]);
    // Symmetric memory as a source, and the memory of others where it is mapped.
    let copy = world.alloc_slice(1000, 0.0)?;
    world.put(&copy, &field, me);
    world.quiet();
    assert_eq!(all!(copy), expected);
    if let Some(theirs) = world.ptr(std::slice::from_ref(&*one), right) {
        // SAFETY: nobody writes.
        assert_eq!(unsafe { theirs.read_volatile() }, me as u8);
    }
    let mut copy = copy;
    world.barrier_all();
    // SAFETY: nobody else uses this PE's instance between the barriers.
    unsafe {
        copy.local_mut().fill(3.0);
        assert_eq!(copy.local().iter().sum::<f64>(), 3000.0);
    }
    world.barrier_all();
    assert!(world.alloc_slice(1 << 50, 0u8).is_err() && !world.is_lost(right));
    Ok(())
}

fn strided(world: &World) -> Result<(), Box<dyn Error>> {
    let (right, left) = neighbours(world);
    let field = world.alloc_slice(40, 0u32)?;
    let source: Vec<u32> = (0..40).map(|i| (world.my_pe() * 100 + i) as u32).collect();
    let of = |pe: usize, i: usize| (pe * 100 + i) as u32;
    world.iput(&field, 3, &source, 2, 5, right);
    world.ibput(&field[20..], 5, &source, 4, (3, 4), right);
    world.barrier_all();
    for i in 0..5 {
        assert_eq!(field[3 * i].read(), of(left, 2 * i));
    }
    for i in 0..12 {
        assert_eq!(field[20 + i / 3 * 5 + i % 3].read(), of(left, i / 3 * 4 + i % 3));
    }
    let (mut dest, mut blocks) = ([0; 9], [0; 20]);
    world.iget(&mut dest, 2, &field, 3, 5, left);
    world.ibget(&mut blocks, 5, &field[20..], 5, (3, 4), left);
    let before = (left + world.n_pes() - 1) % world.n_pes();
    assert!((0..5).all(|i| dest[2 * i] == of(before, 2 * i)) && dest[1] == 0);
    assert!((0..12).all(|i| blocks[i / 3 * 5 + i % 3] == of(before, i / 3 * 4 + i % 3)));
    Ok(())
}

fn nonblocking(world: &World) -> Result<(), Box<dyn Error>> {
    let (me, (right, left)) = (world.my_pe(), neighbours(world));
    let (field, flag) = (world.alloc_slice(600_000, 0u64)?, world.alloc_atomic(0u64)?);
    let counters = world.alloc_atomics(7, 0u32)?;
    let source: Vec<u64> = (0..300_000).map(|i| (me * 1_000_000 + i) as u64).collect();
    let mut old = [u32::MAX; 7];
    world.nonblocking(|ops| {
        ops.put(&field[..100_000], &source[..100_000], right);
        ops.put_signal(
            &field[100_000..300_000],
            &source[100_000..],
            &flag,
            (SignalOp::Add, 3),
            right,
        );
        let [a, b, c, d, e, f, g] = &mut old;
        ops.atomic_fetch(a, &counters[0], right);
        ops.atomic_fetch_add(b, &counters[1], 5, right);
        ops.atomic_swap(c, &counters[2], 6, right);
        ops.atomic_compare_swap(d, &counters[3], 0, 7, right);
        ops.atomic_fetch_and(e, &counters[4], 0, right);
        ops.atomic_fetch_or(f, &counters[5], 12, right);
        ops.atomic_fetch_xor(g, &counters[6], 10, right);
    });
    assert_eq!(old, [0; 7]);
    world.wait_until(&flag, Cmp::Eq, 3);
    world.barrier_all();
    assert!((0..300_000).all(|i| field[i].read() == (left * 1_000_000 + i) as u64));
    let values: Vec<u32> = counters.iter().map(|counter| counter.load()).collect();
    assert_eq!(values, [0, 5, 6, 7, 0, 12, 10]);
    let mut got = vec![0; 300_000];
    let (first, rest) = got.split_at_mut(1000);
    let answer = world.nonblocking(|ops| {
        ops.get(first, &field[..1000], left);
        ops.get(rest, &field[1000..300_000], left);
        42
    });
    let before = (left + world.n_pes() - 1) % world.n_pes();
    assert!((0..300_000).all(|i| got[i] == (before * 1_000_000 + i) as u64) && answer == 42);
    Ok(())
}

fn atomics(world: &World) -> Result<(), Box<dyn Error>> {
    let n = world.n_pes() as u64;
    let sums = world.alloc_atomics(4, 0u64)?;
    let (signed, real) = (world.alloc_atomic(-5i32)?, world.alloc_atomic(0.5f64)?);
    for _ in 0..100 {
        world.atomic_add(&sums[0], 1, 0);
    }
    let ticket = world.atomic_fetch_add(&sums[1], 1, 0);
    world.atomic_or(&sums[2], 1 << world.my_pe(), 0);
    world.atomic_xor(&sums[3], 1 << world.my_pe(), 0);
    world.barrier_all();
    assert!(ticket < n && world.atomic_fetch(&sums[0], 0) == 100 * n);
    let bits = world.atomic_fetch_or(&sums[2], 0, 0);
    assert_eq!((bits, world.atomic_fetch_xor(&sums[3], 0, 0)), ((1 << n) - 1, (1 << n) - 1));
    world.barrier_all();
    world.atomic_and(&sums[2], !(1 << world.my_pe()), 0);
    let me = world.my_pe();
    assert_eq!(world.atomic_compare_swap(&signed, -5, 9, me), -5);
    assert_eq!(world.atomic_compare_swap(&signed, -5, 8, me), 9);
    assert_eq!(world.atomic_fetch_and(&signed, 8, me), 9);
    assert_eq!(world.atomic_swap(&real, 1.5, me), 0.5);
    world.atomic_set(&real, 2.5, me);
    assert_eq!((world.atomic_fetch(&real, me), signed.load()), (2.5, 8));
    world.barrier_all();
    assert_eq!(world.atomic_fetch(&sums[2], 0), 0);
    Ok(())
}

fn waiting(world: &World) -> Result<(), Box<dyn Error>> {
    let (me, n) = (world.my_pe(), world.n_pes());
    let flags = world.alloc_atomics(n, 0i64)?;
    let (data, signal) = (world.alloc_slice(3, 0u8)?, world.alloc_atomic(0u64)?);
    assert!(!world.test(&flags[0], Cmp::Ne, 0) && !world.test_all(&flags, Cmp::Gt, 0));
    assert_eq!(world.test_any(&flags, Cmp::Lt, 0), None);
    assert!(world.test_some(&flags, Cmp::Ge, 1).is_empty());
    world.barrier_all();
    for pe in 0..n {
        world.atomic_set(&flags[me], me as i64 + 1, pe);
    }
    assert_eq!(world.wait_until(&flags[0], Cmp::Ne, 0), 1);
    assert_eq!(world.wait_until_any(&flags, Cmp::Eq, n as i64), Some(n - 1));
    assert!(world.wait_until_some(&flags, Cmp::Ge, 1).contains(&(n - 1)));
    world.wait_until_all(&flags, Cmp::Gt, 0);
    assert_eq!(world.test_some(&flags, Cmp::Le, n as i64), (0..n).collect::<Vec<_>>());
    assert!(
        world.test_all(&flags, Cmp::Lt, n as i64 + 1)
            && world.test_any(&flags, Cmp::Eq, 1) == Some(0)
    );
    let (right, left) = neighbours(world);
    world.put_signal(&data, &[me as u8; 3], &signal, (SignalOp::Set, 5), right);
    assert_eq!(world.wait_until(&signal, Cmp::Ge, 5), 5);
    assert_eq!(all!(data), [left as u8; 3]);
    world.barrier_all();
    world.signal(&signal, (SignalOp::Add, 2), right);
    world.wait_until(&signal, Cmp::Eq, 7);
    world.sync_all();
    Ok(())
}

/// Of pairs the sum and the maximum.
struct Both;

impl Operator<[u32; 2]> for Both {
    const EXACT: bool = true;

    fn apply(left: [u32; 2], right: [u32; 2]) -> [u32; 2] {
        [left[0] + right[0], left[1].max(right[1])]
    }
}

/// Between two calls all are told that this PE has read what the first one has written.
fn collectives(world: &World) -> Result<(), Box<dyn Error>> {
    let (me, n, team) = (world.my_pe() as u64, world.n_pes(), world.team());
    for len in [1, 5, 3000] {
        let mine = world.alloc_slice(len, me + 1)?;
        let result = world.alloc_slice(len, 0)?;
        let count = n as u64;
        team.sync();
        team.reduce(Sum, &result, &mine);
        assert_eq!(all!(result), vec![count * (count + 1) / 2; len]);
        team.sync();
        team.reduce(Prod, &result, &mine);
        assert_eq!(all!(result), vec![(1..=count).product::<u64>(); len]);
        team.sync();
        team.reduce(Max, &result, &mine);
        assert_eq!(all!(result), vec![count; len]);
        team.sync();
        team.reduce(Min, &result, &mine);
        assert_eq!(all!(result), vec![1; len]);
        let folded = |f: fn(u64, u64) -> u64| vec![(1..=count).reduce(f).unwrap_or(0); len];
        team.sync();
        team.reduce(And, &result, &mine);
        assert_eq!(all!(result), folded(|a, b| a & b));
        team.sync();
        team.reduce(Or, &result, &mine);
        assert_eq!(all!(result), folded(|a, b| a | b));
        team.sync();
        team.reduce(Xor, &result, &mine);
        assert_eq!(all!(result), folded(|a, b| a ^ b));
        team.sync();
        team.sum_inscan(&result, &mine);
        assert_eq!(all!(result), vec![(me + 1) * (me + 2) / 2; len]);
        team.sync();
        team.sum_exscan(&result, &mine);
        assert_eq!(all!(result), vec![me * (me + 1) / 2; len]);
        team.sync();
        team.broadcast(&result, &mine, n - 1);
        assert_eq!(all!(result), vec![count; len]);
        let many = world.alloc_slice(len * n, 0)?;
        let blocks = |pe: u64| (0..len as u64 * count).map(move |i| (i / len as u64) * 10 + pe);
        team.sync();
        team.fcollect(&many, &mine);
        assert!(all!(many).into_iter().eq((0..len * n).map(|i| (i / len) as u64 + 1)));
        let source = world.alloc_slice(len * n, 0)?;
        source.iter().zip(blocks(me)).for_each(|(to, value)| to.write(value));
        team.sync();
        team.alltoall(&many, &source);
        assert!(all!(many).into_iter().eq((0..len * n).map(|i| me * 10 + (i / len) as u64)));
        let wide = world.alloc_slice(2 * len * n, 0)?;
        team.sync();
        team.alltoalls(&wide, 2, &source, 1, len);
        assert!((0..len * n).all(|i| wide[2 * i].read() == me * 10 + (i / len) as u64));
        // As many elements as the number of the PE.
        let room = world.alloc_slice(n * n, 0)?;
        // SAFETY: all blocks fit.
        unsafe { team.collect(&room, &mine[..len.min(me as usize)]) };
        let expected = (0..n as u64).flat_map(|pe| vec![pe + 1; len.min(pe as usize)]);
        assert!(room.iter().map(|element| element.read()).zip(expected).all(|(a, b)| a == b));
    }
    let pairs = world.alloc_slice(700, [1, me as u32])?;
    team.reduce(Both, &pairs, &pairs);
    assert!(pairs.iter().all(|pair| pair.read() == [n as u32, n as u32 - 1]));
    team.sync();
    Ok(())
}

fn teams(world: &World) -> Result<(), Box<dyn Error>> {
    let (me, n, all) = (world.my_pe(), world.n_pes(), world.team());
    assert_eq!((all.my_pe(), all.n_pes()), (me, n));
    let shared = world.shared_team();
    assert_eq!(shared.translate_pe(shared.my_pe(), &all), Some(me));
    let total = world.alloc_slice(1, 0u64)?;
    let mine = world.alloc_slice(1, 1u64)?;
    let even = all.split_strided(0, 2, n.div_ceil(2))?;
    assert_eq!(even.is_some(), me % 2 == 0);
    if let Some(team) = &even {
        team.reduce(Sum, &total, &mine);
        assert_eq!(total[0].read(), team.n_pes() as u64);
        team.sync();
        let context = team.context();
        let last = team.n_pes() - 1;
        context.p(&mine[0], 8, last);
        context.quiet();
        assert_eq!(context.g(&mine[0], last), 8);
    }
    let back = all.split_strided(n - 1, -1, n)?.expect("all are members");
    assert_eq!(back.translate_pe(0, &all), Some(n - 1));
    let [row, column] = all.split_2d(2)?;
    assert_eq!((row.my_pe(), column.my_pe()), (me % 2, me / 2));
    assert!(all.split_strided(0, 1, n + 1).is_err());
    Ok(())
}

fn threads(world: &World) -> Result<(), Box<dyn Error>> {
    let (counters, team) = (world.alloc_atomics(3, 0u64)?, world.team());
    let n = world.n_pes();
    std::thread::scope(|threads| {
        for counter in counters.iter() {
            let context = team.context();
            threads.spawn(move || {
                for pe in 0..n {
                    context.atomic_add(counter, 1, pe);
                }
                context.quiet();
                context.wait_until(counter, Cmp::Ge, 1);
            });
        }
    });
    world.barrier_all();
    assert!(counters.iter().all(|counter| counter.load() == n as u64));
    Ok(())
}

fn locks(world: &World) -> Result<(), Box<dyn Error>> {
    let (lock, count) = (world.alloc_lock()?, world.alloc(0u64)?);
    for _ in 0..50 {
        let _held = lock.lock();
        let before = world.g(&count, 0);
        world.p(&count, before + 1, 0);
    }
    loop {
        let Some(_held) = lock.try_lock() else { continue };
        let before = world.g(&count, 0);
        world.p(&count, before + 1, 0);
        break;
    }
    world.barrier_all();
    assert_eq!(world.g(&count, 0), 51 * world.n_pes() as u64);
    Ok(())
}

/// Slices without elements.
fn nothing(world: &World) -> Result<(), Box<dyn Error>> {
    let (a, b) = (world.alloc_slice(0, 0u64)?, world.alloc_slice(0, 0u64)?);
    let (field, signal) = (world.alloc_slice(3, 0u64)?, world.alloc_atomic(0u64)?);
    let (right, team) = (neighbours(world).0, world.team());
    world.put(&a, &[], right);
    world.put(&a, &b, right);
    world.put(&field[3..], &a, right);
    world.get(&mut [], &a, right);
    world.iput(&a, 1, &[], 1, 0, right);
    world.iget(&mut [], 1, &a, 1, 0, right);
    world.put_signal(&a, &b, &signal, (SignalOp::Set, 1), right);
    world.wait_until(&signal, Cmp::Eq, 1);
    world.nonblocking(|ops| {
        ops.put(&a, &b, right);
        ops.get(&mut [], &a, right);
    });
    team.broadcast(&a, &b, 0);
    team.fcollect(&a, &b);
    team.alltoall(&a, &b);
    team.alltoalls(&a, 1, &b, 1, 0);
    team.reduce(Sum, &a, &b);
    team.reduce(Sum, &a, &a);
    team.sum_inscan(&a, &b);
    team.sum_exscan(&a, &b);
    let none = world.alloc_atomics(0, 0u64)?;
    world.wait_until_all(&none, Cmp::Eq, 1);
    assert!(world.test_all(&none, Cmp::Eq, 1) && world.test_any(&none, Cmp::Eq, 1).is_none());
    assert!(world.wait_until_any(&none, Cmp::Eq, 1).is_none());
    assert!(world.wait_until_some(&none, Cmp::Eq, 1).is_empty() && world.ptr(&a, right).is_none());
    Ok(())
}
