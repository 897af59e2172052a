// SPDX-License-Identifier: Apache-2.0
//! Tuning in whole jobs: PEs as threads, real shared memory and CMA, and a channel that fails.

mod blocking;
mod carriers;
mod common;
#[path = "common/directory.rs"]
mod directory;
mod either;
mod stripes;

use common::{local, run_job};
use directory::Directory;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tombolo_core::cost::Costs;
use tombolo_core::ops::Mode;
use tombolo_core::route::Channel;
use tombolo_core::transport::{Remote, SegmentKind, Status, Transport};
use tombolo_core::{ContextOptions, Error};
use tombolo_selector::class::Class;
use tombolo_selector::data::{Buffer, CACHED, Operation, STREAMING};
use tombolo_selector::{Origin, Reuse, Tuning, retune, tune};
use tombolo_tests::doubles::{Faults, Faulty};
use tombolo_tests::run_job_of;
use tombolo_tests::watchdog::Watchdog;
use tombolo_transports::create;

const ROUTINE: &str = "test";

#[test]
fn all_pes_decide_alike_and_routes_are_symmetric() {
    let seen = Mutex::new(Vec::new());
    run_job(4, &[("SHMEM_TUNE", "always"), ("SHMEM_TUNE_BUDGET", "1000")], &local, |world| {
        let before = world.heap().free_bytes();
        let mut tuning = tune(world).unwrap();
        tuning.apply(world);
        assert_eq!(world.heap().free_bytes(), before, "tuning leaves the heap as it was");
        assert_eq!(tuning.origin(), &Origin::Measured);
        let view: Vec<_> =
            (0..4).map(|pe| (tuning.class_of(pe), world.routes().peers[pe])).collect();
        // Algorithms of collectives are chosen by the costs, whatever a PE was told of its buffers.
        tuning.set_reuse(world, if world.pe() == 1 { Reuse::Cold } else { Reuse::Hot });
        tuning.apply(world);
        assert_ne!(*world.costs(), Costs::default(), "nothing was measured");
        let costs = world.costs().clone();
        tuning.set_reuse(world, Reuse::Hot);
        let all = (tuning.measured().clone(), tuning.decisions().to_vec(), costs);
        seen.lock().unwrap().push((world.pe(), all, view));
    });
    let mut seen = seen.into_inner().unwrap();
    seen.sort_by_key(|(pe, ..)| *pe);
    for (_, all, _) in &seen {
        assert_eq!(*all, seen[0].1);
    }
    for a in 0..4 {
        for b in 0..4 {
            assert_eq!(seen[a].2[b], seen[b].2[a], "the route from {a} to {b}");
        }
    }
    let (measured, ..) = &seen[0].1;
    assert!(measured.curves.iter().any(|c| c.key.channel == "cma"), "CMA was measured");
    assert!(measured.curves.iter().any(|c| c.key.channel == CACHED));
}

#[test]
fn the_use_of_buffers_can_be_told_by_the_environment() {
    let environment =
        [("SHMEM_TUNE", "always"), ("SHMEM_TUNE_BUDGET", "1000"), ("SHMEM_TUNE_HINT", "cold")];
    run_job(2, &environment, &local, |world| {
        let before = world.heap().free_bytes();
        let mut tuning = tune(world).unwrap();
        assert_eq!(world.heap().free_bytes(), before, "tuning leaves the heap as it was");
        assert_eq!(tuning.reuse(), Reuse::Cold);
        for buffer in [Buffer::Cold, Buffer::ColdPrivate] {
            let curves = tuning.measured().curves.iter();
            let once: Vec<&str> = curves
                .filter(|curve| curve.key.buffer == buffer)
                .map(|curve| curve.key.channel.as_str())
                .collect();
            assert!(once.contains(&CACHED) && once.contains(&STREAMING), "{buffer}: {once:?}");
        }
        let told = tuning.decisions().to_vec();
        tuning.set_reuse(world, Reuse::Cold);
        assert_eq!(tuning.decisions(), told);
        world.bootstrap().barrier().unwrap();
    });
}

#[test]
fn scratch_memory_is_zero_again() {
    run_job(2, &[("SHMEM_TUNE", "always"), ("SHMEM_TUNE_BUDGET", "60")], &local, |world| {
        tune(world).unwrap();
        let heap = world.heap();
        let (_, largest, _) = heap.free_bytes();
        let place = heap.allocate(largest, 64);
        // SAFETY: a block of this length, which nobody else uses.
        let bytes = unsafe { std::slice::from_raw_parts(place, largest) };
        assert!(bytes.iter().all(|byte| *byte == 0));
        world.bootstrap().barrier().unwrap();
    });
}

#[test]
fn the_budget_is_kept_even_when_pes_outnumber_processors() {
    let n_pes = 3 * tombolo_core::wait::usable_cpus();
    let environment =
        [("SHMEM_TUNE", "always"), ("SHMEM_TUNE_BUDGET", "150"), ("SHMEM_SYMMETRIC_SIZE", "1m")];
    run_job(n_pes, &environment, &local, |world| {
        // The processor's time for this PE, because the rest is up to what else the machine does.
        let begun = processor_time();
        let tuning = tune(world).unwrap();
        let taken = processor_time() - begun;
        assert!(taken < Duration::from_millis(2 * 150), "{taken:?}");
        assert_eq!(tuning.origin(), &Origin::Measured);
        let measured = tuning.measured();
        assert!(measured.curves.iter().all(|c| c.points.len() <= 5), "only the coarse tier");
        tuning.apply(world);
    });
}

#[test]
fn pes_know_how_many_share_a_processor_whatever_way_they_reach_each_other() {
    let cpus = tombolo_core::wait::usable_cpus();
    for transport in ["shm", "cma"] {
        let transports = |_| vec![create(transport).expect("known")];
        for (n_pes, bound, expected) in
            [(1, "off", 1), (cpus, "off", 1), (2 * cpus + 1, "off", 3), (2 * cpus + 1, "on", 1)]
        {
            let environment =
                [("SHMEM_TUNE", "off"), ("SHMEM_SYMMETRIC_SIZE", "1m"), ("TOMBOLO_BOUND", bound)];
            run_job(n_pes, &environment, &transports, |world| {
                assert_eq!(world.crowd(), expected, "{n_pes} PEs, bound {bound}");
            });
        }
    }
}

/// Time that processors have spent on this thread.
fn processor_time() -> Duration {
    use nix::time::{ClockId, clock_gettime};
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).expect("Linux has this clock").into()
}

#[test]
fn a_heap_without_room_is_no_error() {
    run_job(2, &[("SHMEM_TUNE", "always"), ("SHMEM_SYMMETRIC_SIZE", "8k")], &local, |world| {
        let before = world.routes().clone();
        let tuning = tune(world).unwrap();
        assert_eq!(tuning.origin(), &Origin::NoRoom);
        tuning.apply(world);
        assert_eq!(world.routes(), &before);
    });
}

#[test]
fn off_changes_no_route() {
    run_job(2, &[("SHMEM_TUNE", "off")], &local, |world| {
        let before = world.routes().clone();
        let tuning = tune(world).unwrap();
        assert_eq!(tuning.origin(), &Origin::Off);
        assert_eq!(tuning.routes(), &before);
    });
}

#[test]
fn the_second_job_finds_what_the_first_measured() {
    let cache = Directory::new();
    let environment = [("SHMEM_TUNE_CACHE", cache.text()), ("SHMEM_TUNE_BUDGET", "1000")];
    let first = Mutex::new(None);
    run_job(2, &environment, &local, |world| {
        let tuning = tune(world).unwrap();
        assert_eq!(tuning.origin(), &Origin::Measured);
        first.lock().unwrap().replace(tuning.measured().clone());
    });
    let files: Vec<_> = std::fs::read_dir(&cache.0).unwrap().map(|f| f.unwrap().path()).collect();
    assert_eq!(files.len(), 1);
    run_job(2, &environment, &local, |world| {
        let tuning = tune(world).unwrap();
        assert_eq!(tuning.origin(), &Origin::Cache(files[0].clone()));
        assert_eq!(Some(tuning.measured()), first.lock().unwrap().as_ref());
    });
    // A damaged file is measured anew and replaced.
    std::fs::write(&files[0], "{\"format\":1,").unwrap();
    run_job(2, &environment, &local, |world| {
        assert_eq!(tune(world).unwrap().origin(), &Origin::Measured);
    });
    run_job(2, &environment, &local, |world| {
        assert_eq!(tune(world).unwrap().origin(), &Origin::Cache(files[0].clone()));
    });
}

/// The environment of a PE that keeps its measurements in `cache`, with time to measure everything.
fn remembering(cache: &Directory) -> [(&str, &str); 3] {
    let room = ("SHMEM_SYMMETRIC_SIZE", "16m");
    [("SHMEM_TUNE_CACHE", cache.text()), ("SHMEM_TUNE_BUDGET", "1000"), room]
}

#[test]
fn hosts_that_are_not_alike_have_measurements_of_their_own() {
    let cache = Directory::new();
    run_job(2, &remembering(&cache), &local, |world| {
        assert_eq!(tune(world).unwrap().origin(), &Origin::Measured);
    });
    // What PE 1 is told changes what is measured.
    let unlike = |pe: usize| {
        let more = (pe == 1).then_some(("SHMEM_TUNE_HINT", "cold"));
        remembering(&cache).into_iter().chain(more).collect()
    };
    let digests = Mutex::new(BTreeSet::new());
    for found in [false, true] {
        run_job_of(2, &unlike, &local, |world| {
            let tuning = tune(world).unwrap();
            let machine = tuning.machine();
            assert!(machine.starts_with("hosts that are not alike; "), "{machine}");
            assert_eq!(matches!(tuning.origin(), Origin::Cache(_)), found, "{:?}", tuning.origin());
            digests.lock().unwrap().insert(tuning.measured().digest());
        });
    }
    assert_eq!(digests.into_inner().unwrap().len(), 1, "measured once, for all PEs of both jobs");
}

/// The digests of the measurements that two PEs use if each keeps its own in one of these directories.
fn used(caches: [&Directory; 2]) -> [u64; 2] {
    let environment = |pe: usize| remembering(caches[pe]).into_iter().collect();
    let digests = [const { AtomicU64::new(0) }; 2];
    run_job_of(2, &environment, &local, |world| {
        let tuning = tune(world).unwrap();
        digests[world.pe()].store(tuning.measured().digest(), Ordering::Relaxed);
    });
    digests.map(AtomicU64::into_inner)
}

#[test]
fn pes_that_remember_different_measurements_use_those_of_the_first() {
    let (first, second, none) = (Directory::new(), Directory::new(), Directory::new());
    let [of_first, _] = used([&first, &first]);
    let [of_second, _] = used([&second, &second]);
    assert_ne!(of_first, of_second, "two measurements are hardly the same");
    assert_eq!(used([&first, &second]), [of_first; 2]);
    assert_eq!(used([&second, &first]), [of_second; 2]);
    // One that remembers nothing has nothing to say.
    assert_eq!(used([&none, &second]), [of_second; 2]);
}

#[test]
fn jobs_with_less_room_do_not_tell_others_what_to_do() {
    let cache = Directory::new();
    let environment = |size| [("SHMEM_TUNE_CACHE", cache.text()), ("SHMEM_SYMMETRIC_SIZE", size)];
    let largest = |tuning: &Tuning| {
        let points = tuning.measured().curves.iter().flat_map(|curve| &curve.points);
        points.map(|point| point.bytes).max().unwrap()
    };
    let short = AtomicUsize::new(0);
    run_job(2, &environment("1m"), &local, |world| {
        let tuning = tune(world).unwrap();
        assert_eq!(tuning.origin(), &Origin::Measured);
        short.store(largest(&tuning) as usize, Ordering::Relaxed);
    });
    run_job(2, &environment("16m"), &local, |world| {
        let tuning = tune(world).unwrap();
        assert_eq!(tuning.origin(), &Origin::Measured, "{}", tuning.machine());
        assert!(largest(&tuning) as usize > short.load(Ordering::Relaxed));
    });
}

#[test]
fn emulated_hosts_are_not_taken_for_machines() {
    let machine = |emulated: bool| {
        let seen = Mutex::new(String::new());
        let environment = |pe: usize| {
            let host = ["0", "1"][pe];
            let fixed = [("SHMEM_TUNE_CACHE", "off"), ("SHMEM_TUNE_BUDGET", "1")];
            let emulation = emulated.then_some(("TOMBOLO_HOST", host));
            fixed.into_iter().chain(emulation).collect()
        };
        run_job_of(2, &environment, &link, |world| {
            let tuning = tune(world).unwrap();
            *seen.lock().unwrap() = tuning.machine().to_owned();
            world.bootstrap().barrier().unwrap();
        });
        seen.into_inner().unwrap()
    };
    assert!(machine(true).contains("; 2 emulated hosts, one PE each; "), "{}", machine(true));
    assert!(machine(false).contains("; 1 host, several PEs each; "), "{}", machine(false));
}

/// One transport, which reaches PEs of all hosts.
fn link(_pe: usize) -> Vec<Box<dyn Transport>> {
    vec![Box::new(Faulty::new("link", Faults::none()))]
}

#[test]
fn a_saved_table_is_replayed() {
    let directory = Directory::new();
    let path = directory.0.join("table.json");
    let saved = Mutex::new(None);
    run_job(2, &[("SHMEM_TUNE", "always"), ("SHMEM_TUNE_BUDGET", "1000")], &local, |world| {
        let tuning = tune(world).unwrap();
        if world.pe() == 0 {
            tuning.save(&path).unwrap();
            saved.lock().unwrap().replace((tuning.measured().clone(), tuning.routes().clone()));
        }
    });
    let (measured, routes) = saved.into_inner().unwrap().unwrap();
    run_job(2, &[("SHMEM_TUNE", path.to_str().unwrap())], &local, |world| {
        let tuning = tune(world).unwrap();
        assert_eq!(tuning.origin(), &Origin::File(path.clone()));
        assert_eq!(tuning.measured(), &measured);
        if world.pe() == 0 {
            assert_eq!(tuning.routes(), &routes);
        }
    });
    run_job(2, &[("SHMEM_TUNE", "/nowhere/table.json")], &local, |world| {
        let error = tune(world).unwrap_err().to_string();
        assert!(error.contains("SHMEM_TUNE='/nowhere/table.json'"), "{error}");
    });
}

#[test]
fn forced_routes_are_taken_and_wrong_ones_named() {
    let forced = [("SHMEM_ROUTE", "put:heap:>=64K=cma"), ("SHMEM_TUNE", "off")];
    run_job(2, &forced, &local, |world| {
        let tuning = tune(world).unwrap();
        tuning.apply(world);
        let other = 1 - world.pe();
        let cma = world.transports().iter().position(|t| t.name() == "cma").unwrap();
        let routes = world.routes().peers[other];
        assert_eq!(routes.put[0].choose(65535), Channel::Cached);
        assert_eq!(routes.put[0].choose(65536), Channel::Endpoint(cma as u8));
        assert_eq!(routes.get[0].choose(1 << 20), Channel::Cached);
        let place = world.heap().allocate(1 << 17, 64);
        let data = vec![world.pe() as u8 + 1; 1 << 17];
        // SAFETY: a block of the heap on every PE, and a vector of the same length.
        unsafe {
            world.put(
                world.context(),
                place,
                data.as_ptr(),
                1 << 17,
                other,
                Mode::Blocking,
                ROUTINE,
            )
        };
        world.bootstrap().barrier().unwrap();
        // SAFETY: the barrier follows the other PE's put.
        assert_eq!(unsafe { place.add(99_999).read_volatile() }, other as u8 + 1);
    });
    run_job(1, &[("SHMEM_ROUTE", "put:heep=cma")], &local, |world| {
        let Err(Error::Config { name, why, .. }) = tune(world) else { panic!("accepted") };
        assert!(name == "SHMEM_ROUTE" && why.contains("'heep'"), "{why}");
    });
}

#[test]
fn tuning_again_measures_again() {
    run_job(2, &[("SHMEM_TUNE", "off"), ("SHMEM_TUNE_BUDGET", "1000")], &local, |world| {
        let used = world.heap().allocate(1000, 64);
        // SAFETY: a block of this length.
        unsafe { used.write_bytes(7, 1000) };
        let tuning = retune(world).unwrap();
        assert_eq!(tuning.origin(), &Origin::Measured);
        // SAFETY: as above.
        assert!((0..1000).all(|i| unsafe { used.add(i).read_volatile() } == 7));
        let other = tuning.class_of(1 - world.pe());
        let expected = tuning.predict(other, Operation::Put, 4096).unwrap();
        assert!(expected > 0.0 && expected < 1e9, "{expected}");
        assert_eq!(tuning.class_of(world.pe()), Class::Own);
        world.bootstrap().barrier().unwrap();
    });
}

#[test]
fn pes_that_disagree_whether_they_outnumber_processors_measure_together() {
    let _watched = Watchdog::start("PEs with different processors", 120);
    let n_pes = 1 + tombolo_core::wait::usable_cpus();
    // The first PE has a processor of its own; those of the others are shared, as they see it.
    let environment = |pe| {
        let own = if pe == 0 { "on" } else { "off" };
        let tune = [("SHMEM_TUNE", "always"), ("SHMEM_TUNE_CACHE", "off"), ("TOMBOLO_BOUND", own)];
        tune.into_iter().collect()
    };
    run_job_of(n_pes, &environment, &local, |world| {
        assert_eq!(tune(world).unwrap().origin(), &Origin::Measured);
        world.bootstrap().barrier().unwrap();
    });
}

/// Two transports that reach the same.
fn both(first: &'static Faults, second: &'static Faults) -> Vec<Box<dyn Transport>> {
    vec![Box::new(Faulty::new("first", first)), Box::new(Faulty::new("second", second))]
}

#[test]
fn a_channel_that_fails_at_run_time_gives_way_to_the_next() {
    for hint in [None, Some(Reuse::Cold)] {
        fails_at_run_time(hint);
    }
}

/// On a context with this hint, which has routes of its own.
fn fails_at_run_time(hint: Option<Reuse>) {
    let (first, second) = (Faults::none(), Faults::none());
    let make = move |_| both(first, second);
    let environment = [("SHMEM_TUNE", "off"), ("SHMEM_ROUTE", "*=first")];
    run_job(2, &environment, &make, |world| {
        let tuning = tune(world).unwrap();
        let apply = || {
            let mut routes = tuning.routes().clone();
            routes.hinted[Reuse::Cold as usize] = routes.peers.clone();
            world.set_routes(routes);
        };
        apply();
        let options = ContextOptions { hint, ..ContextOptions::default() };
        let context = &world.new_context(world.team().clone(), options);
        let place = world.heap().allocate(1 << 16, 64);
        let other = 1 - world.pe();
        let exchange = |fill: u8| {
            let data = vec![fill + world.pe() as u8; 1 << 16];
            let mut back = vec![0u8; 1 << 16];
            world.bootstrap().barrier().unwrap();
            // SAFETY: a block of the heap on every PE, and vectors of the same length.
            unsafe {
                let mode = Mode::Blocking;
                world.put(context, place, data.as_ptr(), 1 << 16, other, mode, ROUTINE);
                world.quiet(context, ROUTINE);
                world.get(context, back.as_mut_ptr(), place, 1 << 16, other, mode, ROUTINE);
            }
            assert_eq!(back, data);
            world.bootstrap().barrier().unwrap();
        };
        exchange(10);
        assert!(first.operations.load(Ordering::Relaxed) >= 64);
        assert_eq!(second.operations.load(Ordering::Relaxed), 0);
        world.bootstrap().barrier().unwrap();
        first.failing.store(true, Ordering::Relaxed);
        exchange(20);
        assert!(second.operations.load(Ordering::Relaxed) > 0);
        let routes = world.routes().by_hint(hint);
        assert_eq!(routes[other].put[0].choose(8), Channel::Endpoint(1));
        // What failed stays out of use, whatever routes are set.
        apply();
        let calls = first.operations.load(Ordering::Relaxed);
        exchange(30);
        assert_eq!(first.operations.load(Ordering::Relaxed), calls);
    });
}

#[test]
fn a_quiet_for_a_pe_waits_for_no_transport_that_does_not_reach_it() {
    let (first, second) = (Faults::none(), Faults::none());
    first.apart.store(2, Ordering::Relaxed);
    let make = move |_| both(first, second);
    run_job(3, &[("SHMEM_TUNE", "off")], &make, |world| {
        let context = &world.new_context(world.team().clone(), ContextOptions::default());
        let (stream, source) = (&context.streams()[0], [7u8; 8]);
        world.bootstrap().barrier().unwrap();
        first.silent.store(true, Ordering::Relaxed);
        let dest = Remote { segment: SegmentKind::Heap, offset: 0 };
        let next = world.endpoint(0, 1).unwrap();
        // SAFETY: it is never carried out.
        let status = unsafe { next.put(stream, dest, source.as_ptr(), source.len(), false) };
        assert_eq!(status, Status::Pending);
        world.pe_quiet(context, [2].into_iter(), ROUTINE);
        assert!(!stream.is_quiet());
        stream.completed.fetch_add(1, Ordering::Release);
        world.pe_quiet(context, [2, 1].into_iter(), ROUTINE);
        assert!(context.is_quiet());
        world.bootstrap().barrier().unwrap();
        first.silent.store(false, Ordering::Relaxed);
        world.bootstrap().barrier().unwrap();
    });
}

#[test]
fn a_channel_that_fails_or_hangs_while_measured_is_no_candidate() {
    for (failing, silent) in [(true, false), (false, true)] {
        let (bad, good) = (Faults::none(), Faults::none());
        bad.failing.store(failing, Ordering::Relaxed);
        bad.silent.store(silent, Ordering::Relaxed);
        let make = move |_| -> Vec<Box<dyn Transport>> {
            vec![Box::new(Faulty::new("good", good)), Box::new(Faulty::new("bad", bad))]
        };
        let environment = [("SHMEM_TUNE", "always"), ("SHMEM_TUNE_BUDGET", "2000")];
        run_job(2, &environment, &make, |world| {
            let before = world.heap().free_bytes();
            let tuning = tune(world).unwrap();
            let measured = tuning.measured();
            assert!(measured.curves.iter().all(|c| c.key.channel != "bad"));
            let rejected = measured.rejected.iter().find(|r| r.channel == "bad").unwrap();
            // Which may not happen again.
            assert!(rejected.failed && tuning.measured().doubt().is_some());
            assert!(rejected.why.contains(if silent { "complete" } else { "failed" }));
            let class = tuning.class_of(1 - world.pe());
            let decision = tuning.decision(class, Operation::Put, Buffer::Heap).unwrap();
            assert_eq!(decision.channel(1024), "good");
            // Memory that a hanging operation may still write to is not handed out again.
            assert_eq!(world.heap().free_bytes() == before, !silent);
            // The hanging operations were counted on a stream of their own.
            world.quiet(world.context(), ROUTINE);
        });
    }
}

/// A table in which streaming is the better copy from 64 KiB on.
const TABLE: &str = r#"{"format":4,"machine":"made up","digest":"","curves":[
{"class":"cache","operation":"put","buffer":"heap","channel":"cached",
 "points":[[8,10,0,7],[65536,10000,0,7],[262144,40000,0,7],[1048576,160000,0,7],
  [8388608,1280000,0,7]]},
{"class":"cache","operation":"put","buffer":"heap","channel":"streaming",
 "points":[[8,500,0,7],[65536,5000,0,7],[262144,20000,0,7],[1048576,80000,0,7],[8388608,640000,0,7]]},
{"class":"cache","operation":"put-read","buffer":"heap","channel":"cached",
 "points":[[8,10,0,7],[8388608,2000000,0,7]]},
{"class":"cache","operation":"put-read","buffer":"heap","channel":"streaming",
 "points":[[8,10,0,7],[8388608,1500000,0,7]]}]}"#;

#[test]
fn drift_is_corrected_and_disturbances_are_not() {
    use tombolo_core::reroute::{Observation, Observer};
    use tombolo_selector::adaptive::{Adaptive, BLOCK, LASTING};
    let directory = Directory::new();
    let path = directory.0.join("table.json");
    let class = Mutex::new(Class::Cache);
    run_job(2, &[("SHMEM_TUNE", "off")], &local, |world| {
        *class.lock().unwrap() = tune(world).unwrap().class_of(1 - world.pe());
    });
    // The table speaks of PEs that are as far apart as these.
    let class = format!(r#""class":"{}""#, class.into_inner().unwrap());
    std::fs::write(&path, TABLE.replace(r#""class":"cache""#, &class)).unwrap();
    run_job(2, &[("SHMEM_TUNE", path.to_str().unwrap())], &local, |world| {
        let tuning = tune(world).unwrap();
        tuning.apply(world);
        let pe = 1 - world.pe();
        let chosen = || world.routes().peers[pe].put[0].choose(262_144);
        assert_eq!(chosen(), Channel::Streaming);
        let shared = Arc::new(Mutex::new(tuning.clone()));
        let adaptive = Adaptive::new(shared.clone());
        let costs = world.costs().clone();
        let see = |ns| {
            let (segment, channel) = (SegmentKind::Heap, Channel::Streaming);
            let seen = Observation { get: false, segment, pe, bytes: 262_144, channel, ns };
            adaptive.saw(world, seen);
        };
        // Seven slow ones and one as measured: somebody was in the way.
        (1..BLOCK).for_each(|_| see(900_000));
        see(20_500);
        assert_eq!(chosen(), Channel::Streaming);
        (0..BLOCK).for_each(|_| see(70_000));
        assert_eq!(chosen(), Channel::Cached);
        assert_eq!(*world.costs(), costs, "all PEs choose algorithms by these");
        // Tuned anew by somebody else: that is what is watched and corrected from now on.
        *shared.lock().unwrap() = tuning.clone();
        tuning.apply(world);
        assert_eq!(chosen(), Channel::Streaming);
        (0..BLOCK).for_each(|_| see(70_000));
        assert_eq!(chosen(), Channel::Cached);
        assert_eq!(shared.lock().unwrap().routes(), world.routes());
        // What it was left for does as measured. The other one, which nobody sees, gets another chance.
        let see = |channel, ns| {
            let segment = SegmentKind::Heap;
            adaptive
                .saw(world, Observation { get: false, segment, pe, bytes: 262_144, channel, ns });
        };
        (0..LASTING).for_each(|_| see(Channel::Cached, 40_000));
        assert_eq!(chosen(), Channel::Cached);
        see(Channel::Cached, 40_000);
        assert_eq!(chosen(), Channel::Streaming);
        // It is still slow: this time it is left for longer.
        (0..BLOCK).for_each(|_| see(Channel::Streaming, 70_000));
        assert_eq!(chosen(), Channel::Cached);
        (0..LASTING + 1).for_each(|_| see(Channel::Cached, 40_000));
        assert_eq!(chosen(), Channel::Cached);
        (0..LASTING).for_each(|_| see(Channel::Cached, 40_000));
        assert_eq!(chosen(), Channel::Streaming);
    });
}

#[test]
fn the_observer_sees_slow_path_operations() {
    use tombolo_core::reroute::{Observation, Observer};
    struct Counter(&'static AtomicUsize);
    impl Observer for Counter {
        fn wants(&self) -> bool {
            true
        }
        fn saw(&self, _: &tombolo_core::World, seen: Observation) {
            assert!(seen.bytes == 512 && seen.channel == Channel::Cached);
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let count: &'static AtomicUsize = Box::leak(Box::default());
    run_job(1, &[], &local, |world| {
        assert!(world.observe(Box::new(Counter(count))));
        assert!(!world.observe(Box::new(Counter(count))));
        let place = world.heap().allocate(512, 64);
        let data = [3u8; 512];
        // SAFETY: a block of the heap and an array of the same length.
        unsafe {
            world.put(world.context(), place, data.as_ptr(), 512, 0, Mode::Blocking, ROUTINE)
        };
    });
    assert_eq!(count.load(Ordering::Relaxed), 1);
}
