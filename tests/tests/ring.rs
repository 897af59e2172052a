// SPDX-License-Identifier: Apache-2.0
//! The NTB transport over emulated rings inside one process: what the conformance suite does not
//! see from outside.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use tombolo_core::ops::Mode;
use tombolo_core::transport::{Amo, AmoOp, Carrier, Carriers, Job, Locality, SignalOp, Transport};
use tombolo_core::wait::Reason;
use tombolo_core::{Config, Waiting, World};
use tombolo_tests::MakeTransports;
use tombolo_tests::ring::{
    DIRECT, DMA, DMA_MODELLED, DMA_PACKETS, MODELLED, RING_ONLY, Ring, SMALL, TWO_HOSTS,
    check_counters,
};
use tombolo_transports::create;
use tombolo_transports::ntb::port::emulated::{Fabric, FabricSpec, Fault, Speed};
use tombolo_transports::ntb::port::{Event, LinkTiming};

const ROUTINE: &str = "ring";

fn ntb() -> Vec<Box<dyn Transport>> {
    vec![create("ntb").expect("known")]
}

fn shm_and_ntb() -> Vec<Box<dyn Transport>> {
    ["shm", "ntb"].map(|name| create(name).expect("known")).into()
}

/// Starts a put; `bytes` stay what they are until the next `quiet`.
fn start_put(world: &World, dest: *mut u8, bytes: &[u8], pe: usize) {
    let (source, len) = (bytes.as_ptr(), bytes.len());
    // SAFETY: the callers keep the slice until they have waited.
    unsafe { world.put(world.context(), dest, source, len, pe, Mode::NonBlocking, ROUTINE) };
}

/// Waits until all neighbouring PEs are reached through windows: should mapping take long, the job
/// begins without.
fn await_direct_windows(world: &World, neighbours: usize) {
    let all = format!("direct windows: {neighbours} of {neighbours}");
    let open = |line: &String| line.contains(&all);
    let waiting = Waiting { routine: ROUTINE, argument: 0, reason: Reason::Variable };
    world.wait(waiting, || world.transports()[0].describe_own().iter().any(open));
}

fn put(world: &World, dest: *mut u8, bytes: &[u8], pe: usize) {
    let (source, len) = (bytes.as_ptr(), bytes.len());
    // SAFETY: a slice, reused only after the put has returned.
    unsafe { world.put(world.context(), dest, source, len, pe, Mode::Blocking, ROUTINE) };
}

fn fetch_add(world: &World, counter: *mut u8, pe: usize) -> u64 {
    let add = Amo { op: AmoOp::Add, size: 8, operand: 1, compare: 0 };
    world.amo_fetch(world.context(), counter, add, pe, ROUTINE)
}

fn word(at: *mut u8) -> u64 {
    // SAFETY: an aligned word of this PE's heap.
    unsafe { (*at.cast::<AtomicU64>()).load(Ordering::Acquire) }
}

fn tlps(fabric: &Fabric) -> u64 {
    let sides = (0..fabric.hosts()).flat_map(|link| fabric.counters(link).expect("a link"));
    sides.map(|side| side[Event::Tlps]).sum()
}

/// All PEs put 1 MiB to their right neighbour; gives the TLPs that crossed the links.
fn tlps_of_neighbour_puts(ring: &Ring, direct: bool) -> u64 {
    const LEN: usize = 1 << 20;
    let fabric = ring.fabric(3);
    ring.run(&fabric, 3, &ntb, |world| {
        let space = world.heap().allocate(LEN, 64);
        world.bootstrap().barrier().expect("all PEs meet");
        if direct {
            await_direct_windows(world, 2);
        }
        let right = (world.pe() + 1) % 3;
        put(world, space, &vec![world.pe() as u8 + 1; LEN], right);
        world.quiet(world.context(), ROUTINE);
        world.bootstrap().barrier().expect("all PEs meet");
        let left = (world.pe() + 2) % 3;
        // SAFETY: inside this PE's heap, and its writer is done.
        let sum = (0..LEN).map(|i| u64::from(unsafe { space.add(i).read_volatile() })).sum::<u64>();
        assert_eq!(sum, (left as u64 + 1) * LEN as u64);
        world.bootstrap().barrier().expect("all PEs meet");
    });
    check_counters(&fabric);
    tlps(&fabric)
}

#[test]
fn direct_windows_carry_neighbour_puts_past_the_rings() {
    let payload = 3 * (1 << 20) / 64;
    let direct = tlps_of_neighbour_puts(&DIRECT, true);
    let small = tlps_of_neighbour_puts(&SMALL, false);
    assert!(direct < payload / 10, "{direct} TLPs although the window is large enough");
    assert!(small >= payload, "{small} TLPs cannot have carried {payload} of payload");
}

#[test]
fn quiet_waits_until_direct_puts_have_arrived_and_asks_once() {
    const PUTS: usize = 32;
    const LEN: usize = 4096;
    const ROUNDS: u64 = 3;
    // So long a way that what has only left cannot have arrived.
    let timing = LinkTiming { propagation_ns: 3_000_000, ..LinkTiming::default() };
    let spec = FabricSpec { speed: Speed::Modelled, timing, ..FabricSpec::new(2) };
    let fabric = Fabric::create(&spec).expect("a fabric");
    let spaces = [AtomicUsize::new(0), AtomicUsize::new(0)];
    MODELLED.run(&fabric, 2, &ntb, |world| {
        let space = world.heap().allocate(PUTS * LEN, 64);
        spaces[world.pe()].store(space.expose_provenance(), Ordering::Release);
        world.bootstrap().barrier().expect("all PEs meet");
        if world.pe() == 0 {
            await_direct_windows(world, 1);
            let there: *const u8 =
                std::ptr::with_exposed_provenance(spaces[1].load(Ordering::Acquire));
            for round in 1..=ROUNDS {
                let bytes = [round as u8; LEN];
                for at in 0..PUTS {
                    start_put(world, space.wrapping_add(at * LEN), &bytes, 1);
                }
                world.quiet(world.context(), ROUTINE);
                for at in 0..PUTS * LEN {
                    // SAFETY: inside the heap of PE 1, a thread of this process which only waits.
                    let byte = unsafe { there.add(at).read_volatile() };
                    assert_eq!(byte, round as u8, "byte {at} in round {round}");
                }
            }
            let lines = world.transports()[0].describe_own().join("\n");
            let all = format!("{} direct puts in {ROUNDS} questions", PUTS as u64 * ROUNDS);
            assert!(lines.contains(&all), "no '{all}' in:\n{lines}");
        }
        world.bootstrap().barrier().expect("all PEs meet");
    });
    check_counters(&fabric);
}

/// A link flaps while PEs count at each other; nothing is lost or applied twice.
fn flaps(ring: &Ring, n_pes: usize, make: &MakeTransports) {
    flaps_with(ring, n_pes, make, |_, _| ());
}

/// The same; `before` is called before the operations of a round.
fn flaps_with(
    ring: &Ring,
    n_pes: usize,
    make: &MakeTransports,
    before: impl Fn(&World, u64) + Sync,
) {
    let fabric = flapping(ring, n_pes, make, 0, before);
    let changes = (0..fabric.hosts())
        .map(|link| fabric.counters(link).expect("a link")[0][Event::LinkChanges])
        .sum::<u64>();
    assert!(changes >= 6 + u64::from(fabric.hosts()), "only {changes} link changes");
}

/// The same; of a million transfers of DMA engines `dma_errors` fail.
fn flapping(
    ring: &Ring,
    n_pes: usize,
    make: &MakeTransports,
    dma_errors: u32,
    before: impl Fn(&World, u64) + Sync,
) -> Fabric {
    const ROUNDS: u64 = 600;
    // What takes its time, and what engines make, goes through windows only if it is waited for.
    let waits = ring.speed == Speed::Modelled || ring.environment.contains(&("SHMEM_NTB_DMA", "1"));
    let fabric = ring.fabric(n_pes);
    for link in 0..fabric.hosts() {
        fabric.inject(Fault::DmaErrors { link, ppm: dma_errors }).expect("a fault");
    }
    ring.run(&fabric, n_pes, make, |world| {
        let counter = world.heap().allocate(8, 8);
        let data = world.heap().allocate(4096 * n_pes, 64);
        // An engine reads no private memory.
        let source = world.heap().allocate(4096, 64);
        world.bootstrap().barrier().expect("all PEs meet");
        let mut last = vec![None; n_pes];
        for round in 0..ROUNDS {
            if world.pe() == 0 && round % 100 == 50 {
                let link = (round / 200) as u32 % fabric.hosts();
                let down = round % 200 < 100;
                let fault = if down { Fault::LinkDown { link } } else { Fault::LinkUp { link } };
                fabric.inject(fault).expect("a fault");
            }
            before(world, round);
            for (pe, last) in last.iter_mut().enumerate() {
                let place = data.wrapping_add(4096 * world.pe());
                // SAFETY: this PE's alone, and nothing reads it after the wait below.
                let bytes = unsafe {
                    source.write_bytes(round as u8, 4096);
                    std::slice::from_raw_parts(source, 4096)
                };
                if waits {
                    start_put(world, place, bytes, pe);
                    world.quiet(world.context(), ROUTINE);
                } else {
                    put(world, place, bytes, pe);
                }
                let old = fetch_add(world, counter, pe);
                assert!(*last < Some(old), "round {round}: from {last:?} to {old}");
                *last = Some(old);
            }
        }
        world.quiet(world.context(), ROUTINE);
        world.bootstrap().barrier().expect("all PEs meet");
        assert_eq!(word(counter), ROUNDS * n_pes as u64);
        for i in 0..4096 * n_pes {
            // SAFETY: inside this PE's heap, and its writers are done.
            assert_eq!(unsafe { data.add(i).read_volatile() }, (ROUNDS - 1) as u8, "byte {i}");
        }
        world.bootstrap().barrier().expect("all PEs meet");
    });
    check_counters(&fabric);
    fabric
}

/// Transfers of all DMA engines, and those that failed.
fn dma_transfers(fabric: &Fabric) -> (u64, u64) {
    let sides = (0..fabric.hosts()).flat_map(|link| fabric.counters(link).expect("a link"));
    sides.fold((0, 0), |(all, failed), side| {
        (all + side[Event::DmaTransfers], failed + side[Event::DmaErrors])
    })
}

#[test]
fn a_flapping_link_loses_nothing_over_direct_windows() {
    flaps(&DIRECT, 3, &ntb);
}

#[test]
fn a_flapping_link_loses_nothing_over_direct_windows_that_take_their_time() {
    flaps(&MODELLED, 3, &ntb);
}

#[test]
fn a_flapping_link_and_dma_transfers_that_fail_lose_nothing() {
    let rings = [&DMA, &DMA_MODELLED, &DMA_PACKETS];
    for (ring, errors) in rings.iter().flat_map(|ring| [(ring, 0), (ring, 50_000)]) {
        let (all, failed) = dma_transfers(&flapping(ring, 3, &ntb, errors, |_, _| ()));
        assert!(all > 200, "only {all} transfers by DMA");
        assert!((errors == 0) == (failed == 0), "{failed} transfers failed");
    }
}

#[test]
fn without_the_setting_engines_make_long_puts_where_links_are_slower_than_memory() {
    const LEN: usize = 1 << 20;
    for (ring, expected) in [(DIRECT, false), (MODELLED, true)] {
        let fabric = ring.fabric(2);
        ring.run(&fabric, 2, &ntb, |world| {
            let [from, to] = [(); 2].map(|()| world.heap().allocate(LEN, 64));
            world.bootstrap().barrier().expect("all PEs meet");
            if world.pe() == 0 {
                await_direct_windows(world, 1);
                // SAFETY: this PE's memory, which is not written before the wait.
                let bytes = unsafe { std::slice::from_raw_parts(from, LEN) };
                start_put(world, to, &bytes[..1024], 1);
                world.quiet(world.context(), ROUTINE);
                assert_eq!(dma_transfers(&fabric).0, 0, "short puts are the CPU's");
                start_put(world, to, bytes, 1);
                world.quiet(world.context(), ROUTINE);
            }
            world.bootstrap().barrier().expect("all PEs meet");
        });
        assert_eq!(dma_transfers(&fabric).0 > 0, expected, "{:?}", ring.speed);
    }
}

/// Has all puts of a PE carried by one carrier, as far as that is possible.
fn carry_by(world: &World, carrier: Carrier) {
    let endpoints = (0..world.n_pes()).filter_map(|pe| world.endpoint(0, pe));
    endpoints.for_each(|endpoint| endpoint.set_carriers(Carriers::only(carrier)));
}

#[test]
fn a_flapping_link_loses_nothing_while_puts_change_their_carrier() {
    let change = |world: &World, round| carry_by(world, Carrier::ALL[round as usize % 3]);
    for ring in [DIRECT, MODELLED] {
        flaps_with(&ring, 3, &ntb, change);
    }
}

/// TLPs and transfers of engines for 1 MiB that PE 0 puts to PE 1 without waiting for it, by one carrier if it may.
fn carried(ring: &Ring, carrier: Carrier) -> (u64, u64) {
    const LEN: usize = 1 << 20;
    let fabric = ring.fabric(2);
    ring.run(&fabric, 2, &ntb, |world| {
        let [from, to] = [(); 2].map(|()| world.heap().allocate(LEN, 64));
        world.bootstrap().barrier().expect("all PEs meet");
        if world.pe() == 0 {
            if !ring.environment.contains(&("SHMEM_NTB_DIRECT", "off")) {
                await_direct_windows(world, 1);
            }
            carry_by(world, carrier);
            // SAFETY: this PE's memory, which is not written before the wait.
            start_put(world, to, unsafe { std::slice::from_raw_parts(from, LEN) }, 1);
            world.quiet(world.context(), ROUTINE);
        }
        world.bootstrap().barrier().expect("all PEs meet");
    });
    let (transfers, _) = dma_transfers(&fabric);
    (tlps(&fabric), transfers)
}

#[test]
fn puts_take_the_carrier_that_was_chosen_unless_the_user_has_chosen() {
    let payload = (1 << 20) / 64;
    let with = |ring: Ring, environment| Ring { environment, ..ring };
    for (ring, carrier, in_packets, by_engine) in [
        (DIRECT, Carrier::Stores, false, false),
        (DIRECT, Carrier::Packets, true, false),
        // No engine is used on such links.
        (DIRECT, Carrier::Engine, false, false),
        (with(DIRECT, &[("SHMEM_NTB_DIRECT", "on")]), Carrier::Packets, false, false),
        (with(DIRECT, &[("SHMEM_NTB_DIRECT", "off")]), Carrier::Stores, true, false),
        (with(DIRECT, &[("SHMEM_NTB_DMA", "64k")]), Carrier::Stores, false, true),
        (with(MODELLED, &[("SHMEM_NTB_DMA", "off")]), Carrier::Engine, false, false),
    ] {
        let (tlps, transfers) = carried(&ring, carrier);
        let what = format!("{:?} {carrier}: {tlps} TLPs, {transfers} transfers", ring.environment);
        // What the CPU stores to a link with the pace of hardware is counted as well.
        if ring.speed == Speed::Direct {
            assert_eq!(tlps >= payload, in_packets, "{what}");
        }
        assert_eq!(transfers > 0, by_engine, "{what}");
    }
    assert!(carried(&MODELLED, Carrier::Engine).1 > 0);
    assert_eq!(carried(&MODELLED, Carrier::Stores).1, 0);
}

#[test]
fn order_and_signals_hold_between_puts_of_different_carriers() {
    const ROUNDS: u64 = 60;
    const LENS: [usize; 4] = [8, 4096, 70_000, 300_000];
    for ring in [DIRECT, MODELLED] {
        let fabric = ring.fabric(2);
        ring.run(&fabric, 2, &ntb, |world| {
            let longest = LENS[LENS.len() - 1];
            let [from, older, to, beside] = [(); 4].map(|()| world.heap().allocate(longest, 64));
            let signal = world.heap().allocate(8, 8);
            world.bootstrap().barrier().expect("all PEs meet");
            if world.pe() == 0 {
                await_direct_windows(world, 1);
            }
            for round in 1..=ROUNDS {
                let at = round as usize;
                let len = LENS[at % LENS.len()];
                let [first, second, third] = [at, at / 3, at / 9].map(|n| Carrier::ALL[n % 3]);
                if world.pe() == 0 {
                    // SAFETY: this PE's memory; all that reads it has completed.
                    let [bytes, stale] = [(from, 0), (older, 100)].map(|(at, more)| unsafe {
                        at.write_bytes(round as u8 + more, len);
                        std::slice::from_raw_parts(at, len)
                    });
                    carry_by(world, first);
                    start_put(world, to, stale, 1);
                    world.fence(world.context(), ROUTINE);
                    carry_by(world, second);
                    start_put(world, to, bytes, 1);
                    world.quiet(world.context(), ROUTINE);
                    carry_by(world, third);
                    let (word, set, mode) = (signal.cast(), SignalOp::Set, Mode::NonBlocking);
                    // SAFETY: the source stays until the next `quiet`.
                    unsafe {
                        let (from, context) = (bytes.as_ptr(), world.context());
                        world.put_signal(
                            context, beside, from, len, word, round, set, 1, mode, ROUTINE,
                        );
                    }
                } else {
                    let waiting =
                        Waiting { routine: ROUTINE, argument: 0, reason: Reason::Variable };
                    world.wait(waiting, || word(signal) == round);
                    for (place, at) in
                        [to, beside].iter().flat_map(|p| (0..len).map(move |at| (p, at)))
                    {
                        // SAFETY: inside this PE's heap; its writers are done.
                        let byte = unsafe { place.add(at).read_volatile() };
                        assert_eq!(
                            byte, round as u8,
                            "round {round}, byte {at}: {first} {second} {third}"
                        );
                    }
                }
                world.quiet(world.context(), ROUTINE);
                world.bootstrap().barrier().expect("all PEs meet");
            }
        });
        check_counters(&fabric);
    }
}

#[test]
fn a_flapping_link_loses_nothing_over_rings() {
    flaps(&RING_ONLY, 3, &ntb);
}

#[test]
fn a_flapping_link_loses_nothing_between_hosts_with_several_pes() {
    flaps(&TWO_HOSTS, 5, &shm_and_ntb);
}

#[test]
fn a_target_that_sleeps_is_woken() {
    let fabric = SMALL.fabric(2);
    SMALL.run(&fabric, 2, &ntb, |world| {
        let counter = world.heap().allocate(8, 8);
        world.bootstrap().barrier().expect("all PEs meet");
        if world.pe() == 0 {
            for round in 0..200 {
                assert_eq!(fetch_add(world, counter, 1), round);
                // Long enough for service threads to fall asleep now and then.
                let begun = std::time::Instant::now();
                while begun.elapsed().as_micros() < round as u128 * 2 {
                    std::hint::spin_loop();
                }
            }
        }
        // PE 1 has only waited for the launcher meanwhile.
        world.bootstrap().barrier().expect("all PEs meet");
    });
    // An event is what wakes a sleeper: it is raised at the target, host 1, and not for a doorbell
    // that is masked or still pending.
    let woken = fabric.counters(0).expect("a link")[1][Event::DoorbellEvents]
        + fabric.counters(1).expect("a link")[0][Event::DoorbellEvents];
    assert!(woken > 0, "nobody slept, or nobody was woken");
}

#[test]
fn oshinfo_lines_name_ports_links_windows_epoch_and_counters() {
    let fabric = DIRECT.fabric(2);
    DIRECT.run(&fabric, 2, &ntb, |world| {
        let ntb = &world.transports()[0];
        let check = |text: &str, parts: &[&str]| {
            for part in parts {
                assert!(text.contains(part), "no '{part}' in:\n{text}");
            }
        };
        check(
            &ntb.describe().join("\n"),
            &[
                " of a ring of 2, epoch 0x",
                "lanes: 1 in all",
                "why: 64 packets of 16384 bytes suit CPU copies",
                "window 0 of each port: 64 MiB in 128 slots of 512 KiB; addresses at multiples",
                "doorbells: 16 bits, interrupt vectors: 1",
                "right: emulated plx8749 link",
                "right: link up, Gen3 x",
                "left: link up, Gen3 x",
                "left: counters bytes=",
            ],
        );
        check(
            &ntb.describe_own().join("\n"),
            &["lanes in use: right 1 of 1", "direct windows:", "heap at 0 MiB", "ring: packets"],
        );
        world.bootstrap().barrier().expect("all PEs meet");
    });
}

#[test]
fn without_a_fabric_the_reason_is_said() {
    let localities = [0, 1].map(Locality::alone_on);
    let why = |environment: &[(&str, &str)]| {
        let environment = environment.iter().copied().collect();
        let config = Config::from_environment(environment).expect("a valid environment");
        let job = Job { pe: 0, localities: &localities, config: &config, meeting: None };
        create("ntb").expect("known").probe(&job).expect_err("no ports")
    };
    assert!(why(&[]).contains("no NTB port on this machine"), "{}", why(&[]));
    let unreadable = why(&[("TOMBOLO_NTB_FD", "5"), ("TOMBOLO_HOST", "0")]);
    assert!(unreadable.contains("TOMBOLO_NTB_FD='5'"), "{unreadable}");
    let closed = why(&[("TOMBOLO_NTB_FD", "100000,100001"), ("TOMBOLO_HOST", "0")]);
    assert!(closed.contains("opening the emulated NTB port"), "{closed}");
}
