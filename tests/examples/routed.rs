//! Compares the routed operation with every single channel, 8 B to 16 MiB, on this machine: two PEs
//! as threads over shared memory and CMA.
//!
//! ```text
//! cargo run --release -p tombolo-tests --example routed
//! ```

#[path = "../tests/tuning/common/mod.rs"]
mod common;

use std::time::Instant;
use tombolo_core::ops::Mode;
use tombolo_core::transport::{Remote, SegmentKind, Status, Stream};
use tombolo_core::{World, copy};
use tombolo_selector::{Tuning, tune};

const ROUTINE: &str = "routed";

fn main() {
    let environment = [("SHMEM_TUNE", "always"), ("SHMEM_SYMMETRIC_SIZE", "256m")];
    common::run_job(2, &environment, &common::local, |world| {
        let begun = Instant::now();
        let tuning = tune(world).expect("tuning");
        let took = begun.elapsed();
        tuning.apply(world);
        if world.pe() == 0 {
            println!("tuning took {took:?}; plain copies up to {} B", tuning.cached_max(world));
            for decision in tuning.decisions() {
                let steps: Vec<String> =
                    decision.steps.iter().map(|s| format!("<={} {}", s.limit, s.channel)).collect();
                let (class, operation) = (decision.class, decision.operation);
                println!("{class} {operation} {}: {}", decision.remote, steps.join(", "));
            }
            if let Some((error, count)) = tombolo_selector::model::error(&tuning.measured().curves)
            {
                println!("model error {:.1} % on average over {count} sizes", error * 100.0);
            }
            compare(world, &tuning);
        }
        world.bootstrap().barrier().expect("all PEs meet");
    });
}

/// The fastest of several batches of `operation`, in nanoseconds each.
fn time(bytes: usize, mut operation: impl FnMut()) -> f64 {
    let repeats = (200_000 / bytes.max(8)).clamp(1, 2000);
    operation();
    let batch = |_| {
        let begun = Instant::now();
        (0..repeats).for_each(|_| operation());
        begun.elapsed().as_nanos() as f64 / repeats as f64
    };
    (0..15).map(batch).fold(f64::INFINITY, f64::min)
}

fn compare(world: &World, tuning: &Tuning) {
    let heap = world.heap();
    let (there, here) = (heap.allocate(16 << 20, 4096), heap.allocate(16 << 20, 4096));
    let offset = there as usize - heap.base() as usize;
    let remote = Remote { segment: SegmentKind::Heap, offset };
    let cached_max = tuning.cached_max(world);
    let mapped = world.ptr(there, 1);
    let cma = world.transports().iter().position(|t| t.name() == "cma");
    let cma = cma.and_then(|index| world.endpoint(index, 1));
    let stream = Stream::new(0, true);
    let mut private = vec![1u8; 16 << 20];
    println!("operation local bytes routed_ns cached_ns streaming_ns cma_ns routed/best");
    let mut worst: (f64, String) = (0.0, String::new());
    for get in [false, true] {
        for (name, local) in [("heap", here), ("private", private.as_mut_ptr())] {
            // Powers of two, and the sizes half-way between the larger ones.
            let sizes = (3..=24).flat_map(|shift| {
                let between = (shift > 12 && shift < 24).then_some(3usize << (shift - 1));
                std::iter::once(1usize << shift).chain(between)
            });
            for bytes in sizes {
                let (dest, source) = if get { (local, mapped) } else { (mapped, local) };
                // SAFETY: all ranges lie inside the two blocks and the private buffer.
                let routed = time(bytes, || unsafe {
                    let (context, mode) = (world.context(), Mode::Blocking);
                    if bytes <= cached_max {
                        copy::cached(dest, source, bytes);
                    } else if get {
                        world.get(context, local, there, bytes, 1, mode, ROUTINE);
                    } else {
                        world.put(context, there, local, bytes, 1, mode, ROUTINE);
                    }
                });
                // SAFETY: as above.
                let cached = time(bytes, || unsafe { copy::cached(dest, source, bytes) });
                // SAFETY: as above.
                let streaming = time(bytes, || unsafe { copy::streaming(dest, source, bytes) });
                let by_cma = cma.map_or(f64::INFINITY, |cma| {
                    // SAFETY: as above.
                    time(bytes, || unsafe {
                        let status = match get {
                            true => cma.get(&stream, local, remote, bytes),
                            false => cma.put(&stream, remote, local, bytes, true),
                        };
                        assert_eq!(status, Status::Complete);
                    })
                });
                let ratio = routed / cached.min(streaming).min(by_cma);
                let what = if get { "get" } else { "put" };
                println!(
                    "{what} {name} {bytes} {routed:.0} {cached:.0} {streaming:.0} {by_cma:.0} \
                     {ratio:.3}"
                );
                if cached >= 20.0 && ratio > worst.0 {
                    worst = (ratio, format!("{what} {name} {bytes}"));
                }
            }
        }
    }
    // A few nanoseconds are beyond the clock: one more compare is a tenth of such a copy.
    println!("worst above 20 ns: {:.3} times the best channel ({})", worst.0, worst.1);
}
