// SPDX-License-Identifier: Apache-2.0
//! Transfers that two transports carry at the same time.

use super::common::run_job;
use super::{ROUTINE, both};
use std::sync::atomic::Ordering;
use tombolo_core::World;
use tombolo_core::ops::Mode;
use tombolo_core::route::Channel;
use tombolo_selector::class::Class;
use tombolo_selector::data::Operation;
use tombolo_selector::{either, stripes, tune};
use tombolo_tests::doubles::Faults;
use tombolo_tests::ring::{RING_ONLY, Ring};

const LEN: usize = 1 << 16;

/// Puts to the other PE and gets back, and compares.
pub fn exchange(world: &World, place: *mut u8, mode: Mode, fill: u8) {
    let other = 1 - world.pe();
    let data: Vec<u8> = (0..LEN).map(|at| (at / 61) as u8 ^ (fill + world.pe() as u8)).collect();
    let mut back = vec![0u8; LEN];
    world.bootstrap().barrier().unwrap();
    // SAFETY: a block of the heap on every PE, and vectors of the same length that live beyond the quiets.
    unsafe {
        let context = world.context();
        world.put(context, place, data.as_ptr(), LEN, other, mode, ROUTINE);
        world.quiet(context, ROUTINE);
        world.get(context, back.as_mut_ptr(), place, LEN, other, mode, ROUTINE);
        world.quiet(context, ROUTINE);
    }
    assert!(back == data, "{mode:?}, {fill}");
    world.bootstrap().barrier().unwrap();
}

#[test]
fn both_transports_carry_their_parts_and_one_of_them_may_fail() {
    // At once, and after it has accepted some of its part.
    for at_once in [true, false] {
        let (first, second) = (Faults::none(), Faults::none());
        let make = move |_| both(first, second);
        let environment = [("SHMEM_TUNE", "off"), ("SHMEM_ROUTE", "*=first+second")];
        run_job(2, &environment, &make, |world| {
            let tuning = tune(world).unwrap();
            tuning.apply(world);
            let other = 1 - world.pe();
            let put = || world.routes().peers[other].put[0].choose(LEN);
            assert!(matches!(put(), Channel::Striped(_)), "{:?}", put());
            let place = world.heap().allocate(LEN, 64);
            exchange(world, place, Mode::Blocking, 10);
            exchange(world, place, Mode::NonBlocking, 20);
            let [a, b] = [first, second].map(|faults| faults.operations.load(Ordering::Relaxed));
            assert!(a == b && a >= 2 * 2 * 2 * LEN / 2 / 4096, "{a} and {b} operations");
            world.bootstrap().barrier().unwrap();
            if at_once {
                second.failing.store(true, Ordering::Relaxed);
                exchange(world, place, Mode::NonBlocking, 30);
            } else if world.pe() == 0 {
                second.lasts.store(b + 3, Ordering::Relaxed);
            }
            exchange(world, place, Mode::Blocking, 40);
            exchange(world, place, Mode::Blocking, 50);
            assert_eq!(put(), Channel::Endpoint(0));
            let lost = second.operations.load(Ordering::Relaxed);
            world.bootstrap().barrier().unwrap();
            exchange(world, place, Mode::NonBlocking, 60);
            assert_eq!(second.operations.load(Ordering::Relaxed), lost);
        });
    }
}

#[test]
fn two_transports_between_hosts_are_measured_together_where_pes_have_two_processors() {
    for bound in ["off", "on"] {
        measured_together(bound);
    }
}

/// PEs that are bound have all processors of this machine as theirs.
fn measured_together(bound: &'static str) {
    let environment =
        [("SHMEM_TUNE", "always"), ("SHMEM_TUNE_BUDGET", "3000"), ("TOMBOLO_BOUND", bound)];
    let ring = Ring { environment: Box::leak(Box::new(environment)), ..RING_ONLY };
    let fabric = ring.fabric(2);
    let faults = [Faults::none(), Faults::none()];
    let make = move || both(faults[0], faults[1]);
    ring.run(&fabric, 2, &make, |world| {
        let tuning = tune(world).unwrap();
        let class = tuning.class_of(1 - world.pe());
        assert_eq!(class, Class::Network);
        for operation in [Operation::Put, Operation::Get] {
            let channels = tuning.measured().channels(class, operation);
            let together = channels.iter().find_map(|name| stripes::transports(name));
            assert_eq!(together.is_some(), world.processors() > 1, "{operation}: {channels:?}");
            if let Some(mut together) = together {
                together.sort_unstable();
                assert_eq!(together, ["first", "second"]);
            }
        }
        // So are series of puts of which each takes either.
        let series = tuning.measured().channels(class, Operation::Pipeline);
        let pairs = series.iter().filter(|name| either::transports(name).is_some()).count();
        assert_eq!(pairs, usize::from(world.processors() > 1), "{series:?}");
        world.bootstrap().barrier().unwrap();
    });
}
