// SPDX-License-Identifier: Apache-2.0
//! Non-blocking transfers that take one of two transports, by what both have under way.

use super::common::run_job;
use super::{ROUTINE, both};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tombolo_core::World;
use tombolo_core::board::monotonic_ns;
use tombolo_core::ops::Mode;
use tombolo_core::route::{Channel, Steps};
use tombolo_core::transport::Transport;
use tombolo_selector::tune;
use tombolo_tests::doubles::{Faults, Link, Paced};
use tombolo_tests::run_job_of;

const LEN: usize = 256 << 10;
const COUNT: usize = 8;

/// Runs a job of two PEs, each with two links, which take so many nanoseconds for a KiB. `body` has to do with the
/// links of PE 0, which is the only one that communicates.
fn over_links(
    pace: [u64; 2],
    routes: &str,
    body: impl Fn(&World, &[Arc<Link>; 2], *mut u8) + Sync,
) {
    let links = pace.map(Link::new);
    let environment = |_| [("SHMEM_TUNE", "off"), ("SHMEM_ROUTE", routes)].into_iter().collect();
    let make = |pe| -> Vec<Box<dyn Transport>> {
        let links = if pe == 0 { links.clone() } else { pace.map(Link::new) };
        let [first, second] = links;
        vec![Box::new(Paced::new("first", first)), Box::new(Paced::new("second", second))]
    };
    run_job_of(2, &environment, &make, |world| {
        let tuning = tune(world).unwrap();
        tuning.apply(world);
        let place = world.heap().allocate(COUNT * LEN, 64);
        world.bootstrap().barrier().unwrap();
        if world.pe() == 0 {
            body(world, &links, place);
        }
        world.bootstrap().barrier().unwrap();
    });
}

/// Nanoseconds, by the clock of the links, that a series of puts and a series of gets take together. The data are
/// compared.
fn series(world: &World, links: &[Arc<Link>; 2], place: *mut u8, fill: usize) -> u64 {
    let data: Vec<u8> = (0..COUNT * LEN).map(|at| (at / 61 + fill) as u8).collect();
    let mut back = vec![0u8; COUNT * LEN];
    let context = world.context();
    let done = || links.iter().map(|link| link.free_at.load(Ordering::Relaxed)).max().unwrap_or(0);
    let mut took = 0;
    let mut begun = monotonic_ns();
    for at in (0..COUNT).map(|index| index * LEN) {
        // SAFETY: blocks of the heap and of vectors that live beyond the quiet.
        unsafe {
            world.put(
                context,
                place.add(at),
                data[at..].as_ptr(),
                LEN,
                1,
                Mode::NonBlocking,
                ROUTINE,
            );
        }
    }
    took += done() - begun;
    world.quiet(context, ROUTINE);
    begun = monotonic_ns();
    for at in (0..COUNT).map(|index| index * LEN) {
        // SAFETY: as above.
        unsafe {
            let (dest, from) = (back[at..].as_mut_ptr(), place.add(at));
            world.get(context, dest, from, LEN, 1, Mode::NonBlocking, ROUTINE);
        }
    }
    took += done() - begun;
    world.quiet(context, ROUTINE);
    assert!(back == data);
    took
}

/// The fastest of several series.
fn fastest(pace: [u64; 2], routes: &str) -> u64 {
    let least = std::sync::atomic::AtomicU64::new(u64::MAX);
    over_links(pace, routes, |world, links, place| {
        for fill in 0..5 {
            least.fetch_min(series(world, links, place, fill), Ordering::Relaxed);
        }
    });
    least.into_inner()
}

#[test]
fn series_over_two_links_take_half_the_time_of_one() {
    let alone = fastest([1000, 1000], "*=first");
    let shared = fastest([1000, 1000], "*=first/second");
    let least = 2 * 1000 * (COUNT * LEN / 1024) as u64;
    assert!(
        (least..least * 11 / 10).contains(&alone),
        "{alone} ns by the pace of the link, {least}"
    );
    assert!(shared < alone * 11 / 20, "{shared} ns of {alone}");
}

#[test]
fn links_take_their_parts_and_what_is_waited_for_takes_the_first() {
    over_links([1000, 1000], "*=first/second", |world, links, place| {
        let routes = &world.routes().peers[1];
        assert!(matches!(routes.put[0].choose(LEN), Channel::Either(_)), "{:?}", routes.put);
        let carried = || links.each_ref().map(|link| link.bytes.load(Ordering::Relaxed));
        let before = carried();
        series(world, links, place, 1);
        let after = carried();
        assert_eq!([0, 1].map(|n| after[n] - before[n]), [(COUNT * LEN) as u64; 2]);
        let given = world.loads().iter().map(|load| load.given());
        assert!(given.eq([(COUNT as u64, (COUNT * LEN) as u64); 2]));
        let data = vec![7u8; LEN];
        // SAFETY: a block of the heap, and a vector that outlives the call.
        unsafe {
            world.put(world.context(), place, data.as_ptr(), LEN, 1, Mode::Blocking, ROUTINE);
        }
        world.quiet(world.context(), ROUTINE);
        assert_eq!(carried()[1], after[1]);
        // What has nothing under way is as good as the other one, however much it has carried.
        for _ in 0..3 {
            // SAFETY: as above, until the quiet.
            unsafe {
                world.put(
                    world.context(),
                    place,
                    data.as_ptr(),
                    LEN,
                    1,
                    Mode::NonBlocking,
                    ROUTINE,
                );
            }
            world.quiet(world.context(), ROUTINE);
        }
        assert_eq!(carried()[1], after[1]);
    });
}

#[test]
fn fence_orders_what_takes_different_links() {
    // The second transfer would be complete long before the first one.
    over_links([4000, 4000], "put:>8=first/second,put:<=8=second", |world, links, place| {
        let (context, word) = (world.context(), 1u64.to_le_bytes());
        let data = vec![9u8; LEN];
        // SAFETY: blocks of the heap, and buffers that live beyond the quiet.
        unsafe {
            world.put(context, place, data.as_ptr(), LEN, 1, Mode::NonBlocking, ROUTINE);
            world.fence(context, ROUTINE);
            assert!(monotonic_ns() >= links[0].free_at.load(Ordering::Relaxed));
            let flag = place.add(COUNT * LEN - 8);
            world.put(context, flag, word.as_ptr(), 8, 1, Mode::NonBlocking, ROUTINE);
        }
        world.quiet(context, ROUTINE);
    });
}

#[test]
fn the_other_transport_goes_on_where_one_fails() {
    let (first, second) = (Faults::none(), Faults::none());
    let make = move |_| both(first, second);
    let environment = [("SHMEM_TUNE", "off"), ("SHMEM_ROUTE", "put=second/first,get=second/first")];
    run_job(2, &environment, &make, |world| {
        let tuning = tune(world).unwrap();
        tuning.apply(world);
        let other = 1 - world.pe();
        let put = || world.routes().peers[other].put[0].choose(LEN);
        assert!(matches!(put(), Channel::Either(_)), "{:?}", put());
        let place = world.heap().allocate(LEN, 64);
        for (mode, fill) in [(Mode::NonBlocking, 10), (Mode::NonBlocking, 20), (Mode::Blocking, 30)]
        {
            super::stripes::exchange(world, place, mode, fill);
            world.bootstrap().barrier().unwrap();
            second.failing.store(true, Ordering::Relaxed);
            world.bootstrap().barrier().unwrap();
        }
        assert_eq!(put(), Channel::Endpoint(0));
        assert!(first.operations.load(Ordering::Relaxed) > 0);
    });
}

/// What goes to a PE by one link while another one still carries what went before would overtake it.
#[test]
fn a_fence_orders_what_went_by_routes_that_are_in_force_no_more() {
    // A quarter of a second for the block.
    over_links([1_000_000, 1000], "*=first", |world, links, place| {
        links.iter().for_each(|link| link.in_order.store(true, Ordering::Relaxed));
        let context = world.context();
        let data = vec![7u8; LEN];
        // SAFETY: a block of the heap, and a vector that lives until it is complete.
        unsafe {
            world.put(context, place, data.as_ptr(), LEN, 1, Mode::NonBlocking, ROUTINE);
        }
        assert!(!context.is_quiet());
        let mut routes = world.routes().clone();
        for pe in 0..2 {
            routes.to_mut(pe).for_each(|to| to.put = [Steps::always(Channel::Endpoint(1)); 2]);
        }
        world.set_routes(routes);
        world.fence(context, ROUTINE);
        assert!(context.is_quiet(), "the next put would overtake it");
        world.quiet(context, ROUTINE);
    });
}
