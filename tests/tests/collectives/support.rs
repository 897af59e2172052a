// SPDX-License-Identifier: Apache-2.0
//! Worlds to run in and data to move.

use std::sync::Arc;
use tombolo_collectives::teams;
pub use tombolo_core::random::Random;
use tombolo_core::{Team, World};
use tombolo_tests::ring::{self, Ring};
use tombolo_tests::run_job;

pub const ROUTINE: &str = "collectives test";
/// Seeds of the transport without order.
pub const SEEDS: u32 = 2;
pub const PES: [usize; 7] = [1, 2, 3, 4, 5, 7, 8];

/// Runs `body` in worlds of several sizes over mapped memory, over copying alone, and over links
/// between hosts, with some PEs sharing a host and with none, and over a transport that keeps the
/// contract and nothing more, within a host and between two.
pub fn everywhere(body: impl Fn(&World) + Sync) {
    for n_pes in PES {
        over("shm", n_pes, &[], &body);
    }
    for n_pes in [1, 2, 3, 5] {
        over("cma", n_pes, &[], &body);
    }
    for seed in 1..=SEEDS {
        let seed = seed.to_string();
        let seed = [("SHMEM_UNORDERED_SEED", &*seed)];
        over("unordered", 2, &seed, &body);
        across(ring::TWO_HOSTS_IN_BLOCKS, &["shm", "unordered"], 4, &seed, &body);
    }
    across(ring::TWO_HOSTS, &["shm", "ntb"], 3, &[], &body);
    across(ring::RING_ONLY, &["ntb"], 3, &[], &body);
}

/// Runs `body` in one world over one transport.
pub fn over(
    transport: &'static str,
    n_pes: usize,
    environment: &[(&str, &str)],
    body: impl Fn(&World) + Sync,
) {
    let make = move || vec![tombolo_transports::create(transport).expect("known")];
    run_job(n_pes, environment, &make, body);
}

/// Runs `body` in one world on emulated hosts.
pub fn across(
    ring: Ring,
    transports: &'static [&'static str],
    n_pes: usize,
    environment: &[(&str, &str)],
    body: impl Fn(&World) + Sync,
) {
    let make = || {
        let transports = transports.iter();
        transports.map(|name| tombolo_transports::create(name).expect("known")).collect()
    };
    ring.run_with(&ring.fabric(n_pes), n_pes, environment, &make, body);
}

/// An array of `len` elements of the heap, at the same place on every PE.
pub fn array<T>(world: &World, len: usize) -> *mut T {
    let place = world.heap().allocate((len * size_of::<T>()).max(64), 64);
    assert!(!place.is_null(), "room for {len} elements");
    place.cast()
}

pub fn fill<T: Copy>(at: *mut T, values: &[T]) {
    // SAFETY: an array of the test with room for them, in use by nobody else.
    unsafe { at.copy_from(values.as_ptr(), values.len()) };
}

pub fn contents<T: Copy>(at: *const T, len: usize) -> Vec<T> {
    // SAFETY: an array of the test of that length, which nobody writes now.
    unsafe { std::slice::from_raw_parts(at, len) }.to_vec()
}

/// What member `member` contributes to call number `call`.
pub fn values(member: usize, call: usize, len: usize) -> Vec<u64> {
    let mut random = Random::new((member * 1_000_003 + call) as u64);
    (0..len).map(|_| random.bits()).collect()
}

pub fn bytes(member: usize, call: usize, len: usize) -> Vec<u8> {
    values(member, call, len.div_ceil(8)).iter().flat_map(|v| v.to_le_bytes()).take(len).collect()
}

/// The world, its PEs in reverse order, and the odd ones among them, as far as this PE is a member.
pub fn some_teams(world: &World) -> Vec<Arc<Team>> {
    let n = world.n_pes() as i32;
    let split = |start, stride, size| {
        teams::split_strided(world, world.team(), start, stride, size, 0, ROUTINE)
            .expect("a team can be made")
    };
    let reversed = split(n - 1, -1, n);
    let odd = if n > 1 { split(1, 2, n / 2) } else { None };
    [Some(world.team().clone()), reversed, odd].into_iter().flatten().collect()
}
