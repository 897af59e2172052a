//! Small operations through the Rust types against the C routines, in one process and interleaved:
//! `oshrun -n 2 target/release/rustperf`. PE 0 works on memory of PE 1.

use std::ffi::{c_int, c_long};
use std::hint::black_box;
use std::time::Instant;
use tombolo::{Symmetric, SymmetricAtomic, World};

const WORDS: usize = 64;
const CALLS: usize = 20_000;
const BATCHES: usize = 41;

// The library is linked in, and with it its C routines.
unsafe extern "C" {
    fn shmem_long_p(dest: *mut c_long, value: c_long, pe: c_int);
    fn shmem_long_g(source: *const c_long, pe: c_int) -> c_long;
    fn shmem_long_put(dest: *mut c_long, source: *const c_long, nelems: usize, pe: c_int);
    fn shmem_long_get(dest: *mut c_long, source: *const c_long, nelems: usize, pe: c_int);
    fn shmem_long_atomic_inc(dest: *mut c_long, pe: c_int);
    fn shmem_long_atomic_fetch_add(dest: *mut c_long, value: c_long, pe: c_int) -> c_long;
}

// One function for each operation, not inlined, so that their instructions can be compared:
// objdump -d --disassemble=rust_p target/release/rustperf

#[unsafe(no_mangle)]
#[inline(never)]
extern "Rust" fn rust_p(world: &World, dest: &Symmetric<c_long>, value: c_long, pe: usize) {
    world.p(dest, value, pe);
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "Rust" fn rust_g(world: &World, source: &Symmetric<c_long>, pe: usize) -> c_long {
    world.g(source, pe)
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "Rust" fn rust_put(world: &World, dest: &[Symmetric<c_long>], source: &[c_long], pe: usize) {
    world.put(dest, source, pe);
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "Rust" fn rust_get(
    world: &World,
    dest: &mut [c_long],
    source: &[Symmetric<c_long>],
    pe: usize,
) {
    world.get(dest, source, pe);
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "Rust" fn rust_add(world: &World, dest: &SymmetricAtomic<c_long>, pe: usize) {
    world.atomic_add(dest, 1, pe);
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "Rust" fn rust_fetch_add(
    world: &World,
    dest: &SymmetricAtomic<c_long>,
    pe: usize,
) -> c_long {
    world.atomic_fetch_add(dest, 1, pe)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let world = tombolo::init()?;
    assert!(world.n_pes() > 1, "start it with oshrun -n 2");
    let area = world.alloc_slice::<c_long>(WORDS, 0)?;
    let counter = world.alloc_atomic::<c_long>(0)?;
    if world.my_pe() == 0 {
        let place = (&raw const area[0]).cast::<c_long>().cast_mut();
        let variable = (&raw const *counter).cast::<c_long>().cast_mut();
        let (values, mut room) = ([7; WORDS], [0; WORDS]);
        let to = black_box(place);
        // SAFETY: symmetric memory of this many words, and a PE of the job.
        unsafe {
            compare(
                "p",
                |i| rust_p(&world, &area[i % WORDS], i as c_long, 1),
                |i| {
                    shmem_long_p(to.add(i % WORDS), i as c_long, 1);
                },
            );
            compare(
                "g",
                |i| drop(black_box(rust_g(&world, &area[i % WORDS], 1))),
                |i| drop(black_box(shmem_long_g(to.add(i % WORDS), 1))),
            );
            for words in [1, 8, 64] {
                compare(
                    &format!("put of {words} words"),
                    |_| rust_put(&world, &area[..words], &values[..words], 1),
                    |_| shmem_long_put(to, values.as_ptr(), words, 1),
                );
                let mut other = [0; WORDS];
                compare(
                    &format!("get of {words} words"),
                    |_| rust_get(&world, &mut room[..words], &area[..words], 1),
                    |_| shmem_long_get(other.as_mut_ptr(), to, words, 1),
                );
            }
            compare(
                "atomic add",
                |_| rust_add(&world, &counter, 1),
                |_| shmem_long_atomic_inc(variable, 1),
            );
            compare(
                "atomic fetch and add",
                |_| drop(black_box(rust_fetch_add(&world, &counter, 1))),
                |_| drop(black_box(shmem_long_atomic_fetch_add(variable, 1, 1))),
            );
        }
    }
    world.barrier_all();
    Ok(())
}

/// Prints what an operation takes in each way: medians of batches that take turns.
fn compare(name: &str, mut rust: impl FnMut(usize), mut c: impl FnMut(usize)) {
    let mut times = [[0.0; BATCHES]; 2];
    for batch in 0..BATCHES {
        times[0][batch] = each(&mut rust);
        times[1][batch] = each(&mut c);
    }
    let [rust, c] = times.map(|mut batches| {
        batches.sort_by(f64::total_cmp);
        batches[BATCHES / 2]
    });
    println!("{name:22} {rust:8.2} ns in Rust {c:8.2} ns in C   ratio {:.2}", rust / c);
}

fn each(operation: &mut impl FnMut(usize)) -> f64 {
    let begun = Instant::now();
    (0..CALLS).for_each(&mut *operation);
    begun.elapsed().as_nanos() as f64 / CALLS as f64
}
