// SPDX-License-Identifier: Apache-2.0
//! Operations of the Rust API beside the C routines that do the same, on memory of this PE.
//!
//! `cargo bench -p tombolo-benches --bench api`

use criterion::{Criterion, criterion_group, criterion_main};
use std::ffi::{c_int, c_void};
use std::hint::black_box;
use tombolo::{Symmetric, World};

unsafe extern "C" {
    fn pshmem_long_p(dest: *mut i64, value: i64, pe: c_int);
    fn pshmem_long_g(source: *const i64, pe: c_int) -> i64;
    fn pshmem_putmem(dest: *mut c_void, source: *const c_void, nelems: usize, pe: c_int);
    fn pshmem_long_atomic_fetch_add(dest: *mut i64, value: i64, pe: c_int) -> i64;
    fn pshmem_long_atomic_add(dest: *mut i64, value: i64, pe: c_int);
}

fn api(c: &mut Criterion) {
    let world = tombolo::init().expect("a job of one PE");
    scalars(c, &world);
    puts(c, &world);
    atomics(c, &world);
}

fn scalars(c: &mut Criterion, world: &World) {
    let cell = world.alloc(0i64).expect("the heap has room");
    let address = (&raw const *cell).cast::<i64>().cast_mut();
    let mut group = c.benchmark_group("scalar");
    group.bench_function("p in Rust", |b| b.iter(|| world.p(&cell, black_box(7), black_box(0))));
    group.bench_function("p in C", |b| {
        // SAFETY: symmetric memory of this PE; so below.
        b.iter(|| unsafe { pshmem_long_p(black_box(address), black_box(7), black_box(0)) });
    });
    group.bench_function("g in Rust", |b| b.iter(|| world.g(black_box(&*cell), black_box(0))));
    group.bench_function("g in C", |b| {
        // SAFETY: as above.
        b.iter(|| unsafe { pshmem_long_g(black_box(address), black_box(0)) });
    });
    group.finish();
}

/// A call, as that of the C routine is one.
#[inline(never)]
fn called(world: &World, dest: &[Symmetric<u8>], source: &[u8], pe: usize) {
    world.put(dest, source, pe);
}

fn puts(c: &mut Criterion, world: &World) {
    let field = world.alloc_slice(1024, 0u8).expect("the heap has room");
    let address = field.as_ptr().cast::<c_void>().cast_mut();
    let source = vec![7u8; 1024];
    for len in [8, 32, 256, 1024].map(black_box) {
        let (to, from) = (&field[..len], &source[..len]);
        let mut group = c.benchmark_group(format!("put of {len} bytes"));
        group.bench_function("in Rust", |b| b.iter(|| world.put(to, from, black_box(0))));
        group.bench_function("in Rust, by a call", |b| {
            b.iter(|| called(world, to, from, black_box(0)));
        });
        group.bench_function("in Rust, both slices cut for it", |b| {
            b.iter(|| {
                let len = black_box(len);
                world.put(&field[..len], &source[..len], black_box(0));
            });
        });
        group.bench_function("in C", |b| {
            let source = source.as_ptr().cast();
            // SAFETY: both have at least so many bytes.
            b.iter(|| unsafe { pshmem_putmem(address, source, len, black_box(0)) });
        });
        group.bench_function("in C, another length each time", |b| {
            let source = source.as_ptr().cast();
            // SAFETY: as above.
            b.iter(|| unsafe { pshmem_putmem(address, source, black_box(len), black_box(0)) });
        });
        group.finish();
    }
    let mut group = c.benchmark_group("put of an array of 32 bytes");
    group.bench_function("in Rust", |b| {
        b.iter(|| world.put(&field[..32], black_box(&[7u8; 32]), black_box(0)));
    });
    group.bench_function("in C", |b| {
        b.iter(|| {
            let source = black_box(&[7u8; 32]).as_ptr().cast();
            // SAFETY: as above.
            unsafe { pshmem_putmem(address, source, 32, black_box(0)) }
        });
    });
    group.finish();
}

fn atomics(c: &mut Criterion, world: &World) {
    let counter = world.alloc_atomic(0i64).expect("the heap has room");
    let address = (&raw const *counter).cast::<i64>().cast_mut();
    let mut group = c.benchmark_group("atomic");
    group.bench_function("fetch_add in Rust", |b| {
        b.iter(|| world.atomic_fetch_add(&counter, black_box(1), black_box(0)));
    });
    group.bench_function("fetch_add in C", |b| {
        // SAFETY: a symmetric variable that only atomic operations change.
        b.iter(|| unsafe { pshmem_long_atomic_fetch_add(address, black_box(1), black_box(0)) });
    });
    group.bench_function("add in Rust", |b| {
        b.iter(|| world.atomic_add(&counter, black_box(1), black_box(0)));
    });
    group.bench_function("add in C", |b| {
        // SAFETY: as above.
        b.iter(|| unsafe { pshmem_long_atomic_add(address, black_box(1), black_box(0)) });
    });
    group.finish();
}

criterion_group!(benches, api);
criterion_main!(benches);
