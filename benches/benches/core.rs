// SPDX-License-Identifier: Apache-2.0
//! Micro-benchmarks of the core: the allocator, the table behind the fast path, copies, AMOs.
//!
//! `cargo bench -p tombolo-benches --bench core`

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use tombolo_core::memory::{Allocator, Placement};
use tombolo_core::table::Table;
use tombolo_core::transport::{Amo, AmoOp};
use tombolo_core::{amo, copy};

const HEAP: usize = 4 << 30;
const USUAL: Placement = Placement::aligned(64);

/// An allocator with `blocks` blocks of mixed sizes, every other one free again.
fn fragmented(blocks: usize) -> (Allocator, Vec<usize>) {
    let mut heap = Allocator::new(HEAP);
    let sizes = [64, 200, 4096, 70_000, 1000];
    let offsets: Vec<usize> = (0..blocks)
        .map(|k| heap.allocate(sizes[k % sizes.len()], USUAL).expect("the heap is large enough"))
        .collect();
    let (freed, kept): (Vec<_>, Vec<_>) = offsets.iter().enumerate().partition(|(k, _)| k % 2 == 0);
    for (_, offset) in freed {
        assert!(heap.free(*offset));
    }
    (heap, kept.into_iter().map(|(_, offset)| *offset).collect())
}

fn allocator(c: &mut Criterion) {
    let mut group = c.benchmark_group("allocator");
    for blocks in [10, 1000, 100_000] {
        let (mut heap, _) = fragmented(blocks);
        group.bench_function(BenchmarkId::new("allocate and free among", blocks), |b| {
            b.iter(|| {
                let offset = heap.allocate(black_box(500), USUAL).expect("the heap has room");
                assert!(heap.free(offset));
            });
        });
    }
    group.bench_function("free 500 blocks of a fragmented heap", |b| {
        b.iter_batched(
            || fragmented(1000),
            |(mut heap, kept)| {
                for offset in kept {
                    assert!(heap.free(offset));
                }
                assert_eq!(heap.largest_free(), HEAP);
            },
            BatchSize::SmallInput,
        );
    });
    group.finish();
}

fn table(c: &mut Criterion) {
    let mut heap = vec![0u64; 64];
    let mut data = vec![0u64; 64];
    let heap_peers = [heap.as_ptr() as usize; 4];
    let data_peers = [data.as_ptr() as usize; 4];
    let table = Table::empty();
    // SAFETY: both vectors and the peer lists outlive the table's last use, and no other thread
    // uses it.
    unsafe {
        table.fill(heap.as_mut_ptr().cast(), 512, heap_peers.as_ptr());
        table.fill(data.as_mut_ptr().cast(), 512, data_peers.as_ptr());
    }
    let outside = 0u64;
    let mut group = c.benchmark_group("table");
    let places = [
        ("heap", &raw const heap[5]),
        ("static", &raw const data[5]),
        ("elsewhere", &raw const outside),
    ];
    for (name, address) in places {
        group.bench_function(name, |b| {
            // SAFETY: PE 3 exists in both peer lists.
            b.iter(|| unsafe { table.remote(black_box(address), black_box(3)) });
        });
    }
    group.finish();
}

fn copies(c: &mut Criterion) {
    let mut group = c.benchmark_group("copy");
    for size in [1usize, 4, 8, 16, 64, 512, 4096, 65_536, 1 << 20, 4 << 20] {
        let source = vec![7u64; size.div_ceil(8)];
        let mut dest = vec![0u64; size.div_ceil(8)];
        let (from, to) = (source.as_ptr().cast::<u8>(), dest.as_mut_ptr().cast::<u8>());
        group.throughput(Throughput::Bytes(size as u64));
        group.bench_function(BenchmarkId::new("cached", size), |b| {
            // SAFETY: both vectors hold at least `size` bytes.
            b.iter(|| unsafe { copy::cached(black_box(to), black_box(from), black_box(size)) });
        });
        if size >= 4096 {
            group.bench_function(BenchmarkId::new("streaming", size), |b| {
                // SAFETY: as above.
                b.iter(|| unsafe { copy::streaming(black_box(to), black_box(from), size) });
            });
        }
        assert_eq!(dest[0] as u8, 7);
    }
    group.finish();
}

fn amos(c: &mut Criterion) {
    let variable = AtomicU64::new(0);
    let mut group = c.benchmark_group("amo");
    group.bench_function("lock xadd", |b| {
        b.iter(|| black_box(&variable).fetch_add(1, Ordering::SeqCst));
    });
    for (name, op) in
        [("add", AmoOp::Add), ("xor", AmoOp::Xor), ("compare-swap", AmoOp::CompareSwap)]
    {
        let amo = Amo { op, size: 8, operand: 1, compare: 0 };
        group.bench_function(name, |b| {
            // SAFETY: an aligned variable of 8 bytes.
            b.iter(|| unsafe { amo::execute(black_box(variable.as_ptr().cast()), black_box(amo)) });
        });
    }
    group.finish();
}

criterion_group! {
    name = core;
    config = Criterion::default()
        .warm_up_time(std::time::Duration::from_millis(200))
        .measurement_time(std::time::Duration::from_millis(800));
    targets = allocator, table, copies, amos
}
criterion_main!(core);
