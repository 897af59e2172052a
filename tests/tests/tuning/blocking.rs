// SPDX-License-Identifier: Apache-2.0
//! Blocking puts without a copy of their source.

use super::common::run_job;
use super::directory::Directory;
use super::{ROUTINE, both};
use std::sync::atomic::Ordering;
use tombolo_core::World;
use tombolo_core::ops::Mode;
use tombolo_selector::tune;
use tombolo_tests::doubles::Faults;
use tombolo_tests::ring::{RING_ONLY, Ring};

/// A table in which waiting for blocking puts over the ring is faster than copying from 64 KiB on.
const TABLE: &str = r#"{"format":4,"machine":"made up","digest":"","curves":[
{"class":"ring-1","operation":"put","buffer":"heap","channel":"ntb",
 "points":[[8,600,0,7],[65536,6000,0,7],[1048576,60000,0,7]]},
{"class":"ring-1","operation":"blocking","buffer":"heap","channel":"ntb",
 "points":[[32768,3000,0,7],[65536,7000,0,7],[1048576,90000,0,7]]},
{"class":"ring-1","operation":"zero-copy","buffer":"heap","channel":"ntb",
 "points":[[32768,4000,0,7],[65536,6000,0,7],[1048576,60000,0,7]]}]}"#;

fn put(world: &World, dest: *mut u8, source: &[u8], pe: usize) {
    let (source, len) = (source.as_ptr(), source.len());
    // SAFETY: a slice, which outlives the blocking put.
    unsafe { world.put(world.context(), dest, source, len, pe, Mode::Blocking, ROUTINE) };
}

/// Byte `at` of the block for a PE.
fn pattern(pe: usize, at: usize) -> u8 {
    (at / 4096 + at * 7 + pe * 31) as u8
}

#[test]
fn a_zero_copy_put_over_a_ring_has_arrived_when_it_returns() {
    const LEN: usize = (1 << 20) + 13;
    let directory = Directory::new();
    let path = directory.0.join("table.json");
    std::fs::write(&path, TABLE).unwrap();
    let table: &'static str = String::leak(path.to_str().unwrap().to_owned());
    let environment = [("SHMEM_TUNE", table), ("SHMEM_NTB_DIRECT", "off")];
    let ring = Ring { environment: Box::leak(Box::new(environment)), ..RING_ONLY };
    let fabric = ring.fabric(2);
    let ntb = || vec![tombolo_transports::create("ntb").expect("known")];
    ring.run(&fabric, 2, &ntb, |world| {
        tune(world).unwrap().apply(world);
        let (me, other) = (world.pe(), 1 - world.pe());
        // Threads have no static data of their own.
        assert_eq!(world.routes().peers[other].zero_copy, [65536, usize::MAX]);
        assert_eq!(world.routes().peers[me].zero_copy, [usize::MAX; 2]);
        let place = world.heap().allocate(LEN, 64);
        world.bootstrap().barrier().unwrap();
        let mut source: Vec<u8> = (0..LEN).map(|at| pattern(me, at)).collect();
        put(world, place, &source, other);
        assert!(world.context().is_quiet(), "nothing is left for quiet to wait for");
        source.fill(0);
        world.bootstrap().barrier().unwrap();
        // SAFETY: a block of this PE's heap; the barrier follows the other PE's put.
        let wrong =
            (0..LEN).find(|at| unsafe { place.add(*at).read_volatile() } != pattern(other, *at));
        assert_eq!(wrong, None);
        world.bootstrap().barrier().unwrap();
    });
}

#[test]
fn pieces_go_without_a_copy_from_the_size_on_and_a_failing_channel_gives_way() {
    const LEN: usize = 16384;
    let (first, second) = (Faults::none(), Faults::none());
    let make = move |_| both(first, second);
    let environment = [("SHMEM_TUNE", "off"), ("SHMEM_ROUTE", "*=first")];
    run_job(2, &environment, &make, |world| {
        tune(world).unwrap().apply(world);
        let (me, other) = (world.pe(), 1 - world.pe());
        let mut routes = world.routes().clone();
        assert_eq!(routes.peers[other].zero_copy, [usize::MAX; 2], "nothing was measured");
        routes.peers[other].zero_copy = [8192; 2];
        world.set_routes(routes);
        let place = world.heap().allocate(LEN, 64);
        let exchange = |fill: u8, len: usize| {
            world.bootstrap().barrier().unwrap();
            put(world, place, &vec![fill + me as u8; len], other);
            world.bootstrap().barrier().unwrap();
            // SAFETY: a block of this PE's heap; the barrier follows the other PE's put.
            let byte = |at| unsafe { place.add(at).read_volatile() };
            assert!((0..len).all(|at| byte(at) == fill + other as u8));
        };
        exchange(10, 8191);
        assert_eq!(first.stable.load(Ordering::Relaxed), 0);
        exchange(20, LEN);
        // The transport takes 4096 bytes at once.
        assert_eq!(first.stable.load(Ordering::Relaxed), 2 * LEN / 4096);
        world.bootstrap().barrier().unwrap();
        first.failing.store(true, Ordering::Relaxed);
        exchange(30, LEN);
        assert_eq!(second.stable.load(Ordering::Relaxed), 2 * LEN / 4096);
    });
}
