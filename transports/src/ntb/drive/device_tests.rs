// SPDX-License-Identifier: Apache-2.0
//! Jobs over bridges of all kinds, on models of their registers: hosts learn their cables, put, get and
//! add, and go on when a device is gone.

mod troubled;

use super::{Ntb, TestPorts, Transport};
use crate::ntb::port::bridges::Cable;
use crate::ntb::port::{
    AbsentPort, Event, LinkTiming, NtbPort, PcieGen, amd, engine, epf, intel, plx, switchtec,
};
use crate::ntb::ring::choose::LinkCosts;
use std::any::Any;
use std::sync::{Arc, Mutex};
use tombolo_core::board::Board;
use tombolo_core::bootstrap::Threads;
use tombolo_core::config::Environment;
use tombolo_core::ops::Mode;
use tombolo_core::transport::{Amo, AmoOp, Distance, Job, Locality, Meeting};
use tombolo_core::{Config, Setup, World};

/// Bytes of a put.
const BYTES: usize = 100_000;

/// Both ends of a link, and what may happen to it.
pub type Link = ([Arc<dyn NtbPort>; 2], Arc<dyn Cable>);

/// What a PE writes to another in a round.
fn pattern(from: usize, to: usize, round: usize) -> Vec<u8> {
    (0..BYTES).map(|at| (at * 7 + from * 31 + to * 57 + round * 101) as u8).collect()
}

/// Where PEs write.
#[derive(Clone, Copy)]
struct Places {
    /// A part for each PE.
    parts: *mut u8,
    counter: *mut u8,
    /// Symmetric memory as long as the parts, to put from without waiting; none: puts block.
    sources: Option<*mut u8>,
}

impl Places {
    fn new(world: &World, hosts: usize, with_sources: bool) -> Places {
        let parts = || world.heap().allocate(hosts * BYTES, 64);
        Places {
            parts: parts(),
            counter: world.heap().allocate(8, 8),
            sources: with_sources.then(parts),
        }
    }
}

/// Everybody writes to everybody, reads it back, and counts.
fn exchange(world: &World, hosts: usize, places: Places, round: usize) {
    let (me, context) = (world.pe(), world.context());
    let Places { parts, counter, sources } = places;
    let meet = || world.bootstrap().barrier().expect("all PEs meet");
    let others = || (0..hosts).filter(|pe| *pe != me);
    let part = |pe: usize| parts.wrapping_add(pe * BYTES);
    for pe in others() {
        let bytes = pattern(me, pe, round);
        let (source, mode) = match sources {
            None => (bytes.as_ptr(), Mode::Blocking),
            Some(sources) => {
                let source = sources.wrapping_add(pe * BYTES);
                // SAFETY: a part of the heap that nobody writes to but this.
                unsafe { source.copy_from(bytes.as_ptr(), BYTES) };
                (source.cast_const(), Mode::NonBlocking)
            }
        };
        // SAFETY: the source is as long, and the put blocks or the source stays until it has completed.
        unsafe { world.put(context, part(me), source, BYTES, pe, mode, "put") };
    }
    world.quiet(context, "quiet");
    meet();
    for pe in others() {
        // SAFETY: inside of the heap; nobody writes there now.
        let here = unsafe { std::slice::from_raw_parts(part(pe), BYTES) };
        assert!(here == pattern(pe, me, round), "round {round}: from {pe} to {me}");
        let mut back = vec![0; BYTES];
        // SAFETY: the destination is as long, and the get blocks.
        unsafe {
            world.get(context, back.as_mut_ptr(), part(me), BYTES, pe, Mode::Blocking, "get")
        };
        assert!(back == pattern(me, pe, round), "round {round}: read back by {me} from {pe}");
        let add = Amo { op: AmoOp::Add, size: 8, operand: 1, compare: 0 };
        world.amo_fetch(context, counter, add, pe, "add");
    }
    meet();
    // SAFETY: an aligned word of the heap; all have added.
    let count = unsafe { counter.cast::<u64>().read_volatile() };
    assert_eq!(count as usize, (hosts - 1) * round, "{me}");
    meet();
}

#[test]
fn jobs_run_over_bridges_of_all_kinds_and_lose_one() {
    // Some of these hosts reach each other through others.
    let links: [Link; 6] = [
        epf::tests::link(),
        plx::tests::link(),
        intel::tests::link(),
        intel::tests::first_link(),
        amd::tests::link(),
        switchtec::tests::link(),
    ];
    let mut ports = ports_of(&links);
    // Somebody has mistaken right for left.
    ports[2].swap(0, 1);
    let cables = links.map(|(_, cable)| cable);
    run(ports, &[], |world, hosts| {
        // As who measures asks.
        let transport: &dyn Any = world.transports()[0].as_ref();
        let facts = transport.downcast_ref::<Ntb>().and_then(Ntb::ports).expect("ports in use");
        assert!(facts.devices && facts.link.is_some_and(|link| link.width > 0), "{facts:?}");
        let places = Places::new(world, hosts, false);
        exchange(world, hosts, places, 1);
        exchange(world, hosts, places, 2);
        if world.pe() == 1 {
            cables[1].lose(0);
        }
        exchange(world, hosts, places, 3);
        exchange(world, hosts, places, 4);
        let described = world.transports()[0].describe_own().join("\n");
        let alone = described.contains("right 0 of 1, left 1 of 1");
        assert!(alone || world.pe() != 1, "the way that is left: {described}");
    });
}

/// Several PEs on each of three hosts: those that are not the first use the ports beside it. A device is gone, and all go
/// on.
#[test]
fn several_pes_on_a_host_share_bridges_of_all_kinds() {
    let rings: [[Link; 3]; 2] = [
        [epf::tests::link(), plx::tests::link(), intel::tests::first_link()],
        [amd::tests::link(), switchtec::tests::link(), intel::tests::link()],
    ];
    for links in rings {
        let mut ports = ports_of(&links);
        ports[1].swap(0, 1);
        let cables = links.map(|(_, cable)| cable);
        run_on(ports, 3, &[], |world, pes| {
            let places = Places::new(world, pes, false);
            exchange(world, pes, places, 1);
            exchange(world, pes, places, 2);
            let described = world.transports()[0].describe().join("\n");
            let beside = described.contains("used beside the first PE of this host");
            assert_eq!(beside, world.pe() % 3 != 0, "{described}");
            let own = world.transports()[0].describe_own().join("\n");
            assert!(!own.contains("DMA engine"), "there is none: {own}");
            if world.pe() == 4 {
                cables[1].lose(0);
            }
            exchange(world, pes, places, 3);
            exchange(world, pes, places, 4);
        });
    }
}

/// The first PE goes on as soon as it knows that there is nothing to lend; those that come later hear why.
#[test]
fn a_first_pe_without_ports_tells_the_others_of_its_host() {
    let ports = ports_of(&[epf::tests::link(), plx::tests::link()]);
    let localities = [(0, 0), (0, 1), (0, 2), (1, 0)];
    let localities =
        localities.map(|(host, local_index)| Locality { local_index, ..Locality::alone_on(host) });
    // More lanes than there can be. Only a failing test waits for all of the time.
    let settings = [("SHMEM_NTB_LANES", "64"), ("SHMEM_START_TIMEOUT", "100")];
    let config = Config::from_environment(Environment::from_iter(settings)).expect("valid");
    let name = (u64::from(std::process::id()) << 32 | 1).to_le_bytes();
    let meeting = Some(Meeting { name, token: *b"no ports" });
    let job = |pe| Job { pe, localities: &localities, config: &config, meeting };
    let first = Ntb { ports: Some(TestPorts::Made(ports[0].clone())), ..Ntb::default() };
    let why = first.probe(&job(0)).expect_err("too many lanes");
    drop(first);
    for pe in [1, 2] {
        let mut beside = Ntb { ports: Some(TestPorts::Borrowed), ..Ntb::default() };
        beside.probe(&job(pe)).expect("nothing is known yet");
        let told = beside.open(&job(pe), &[]).expect_err("there are none").to_string();
        assert!(told.contains("has no NTB ports") && told.contains(&why), "{told}");
    }
}

/// Engines are those of the first PE of each host.
#[test]
fn several_pes_on_a_host_leave_engines_to_the_first() {
    let (links, _stops): (Vec<Link>, Vec<_>) = (0..2).map(|_| engine::plx::tests::link()).unzip();
    let ports = ports_of(&links);
    // Heaps that fit in the window twice.
    let settings = [("SHMEM_NTB_DMA", "4k"), ("SHMEM_SYMMETRIC_SIZE", "1m")];
    run_on(ports.clone(), 2, &settings, |world, pes| {
        let places = Places::new(world, pes, true);
        exchange(world, pes, places, 1);
        exchange(world, pes, places, 2);
        let described = world.transports()[0].describe_own().join("\n");
        let makes = described.contains("makes non-blocking direct puts");
        assert_eq!(makes, world.pe() % 2 == 0, "{described}");
        let leaves = described.contains("are used by the first PE of a host alone");
        assert_eq!(leaves, world.pe() % 2 != 0, "{described}");
    });
    let made = |port: &Arc<dyn NtbPort>| port.counters()[Event::DmaTransfers];
    assert!(ports.iter().flatten().map(made).sum::<u64>() > 0);
}

/// What a bridge in a processor says of its link before that is enabled is no speed.
#[test]
fn lanes_are_planned_for_links_that_are_up() {
    let makes: [(fn() -> Link, PcieGen); 2] =
        [(intel::tests::link, PcieGen::Gen3), (intel::tests::first_link, PcieGen::Gen2)];
    for (make, speed) in makes {
        let links: Vec<Link> = (0..2).map(|_| make()).collect();
        let ports = ports_of(&links);
        for port in ports.iter().flatten() {
            let before = port.link_state();
            assert_eq!((before.up, before.speed, before.width), (false, PcieGen::Gen1, 1));
        }
        let timing = LinkTiming { speed, width: 8, ..LinkTiming::default() };
        let costs = LinkCosts::desktop(timing.line_bytes_per_s() / 1e9, 8, None);
        let expected = format!("links of {:.1} GB/s", costs.payload_rate());
        run(ports, &[], |world, _| {
            let described = world.transports()[0].describe().join("\n");
            assert!(described.contains(&expected), "{expected}: {described}");
        });
    }
}

#[test]
fn jobs_put_by_engines_of_switches_and_lose_one() {
    jobs_put_by(engine::plx::tests::link);
}

#[test]
fn jobs_put_by_engines_of_processors_and_lose_one() {
    jobs_put_by(engine::ioat::tests::link);
}

/// Two hosts with one port each, and three of which the one between the others has two.
#[test]
fn jobs_run_over_a_line_of_hosts() {
    let alone = |port: &Arc<dyn NtbPort>| -> [Arc<dyn NtbPort>; 2] {
        [port.clone(), Arc::new(AbsentPort::beside(port.clone()))]
    };
    let [(a, _), (b, _), (c, _)] = [epf::tests::link(), plx::tests::link(), amd::tests::link()];
    let two = vec![alone(&a[0]), alone(&a[1])];
    let three = vec![alone(&b[0]), [b[1].clone(), c[0].clone()], alone(&c[1])];
    for ports in [two, three] {
        run(ports, &[], |world, hosts| {
            let places = Places::new(world, hosts, false);
            exchange(world, hosts, places, 1);
            exchange(world, hosts, places, 2);
            let described = world.transports()[0].describe().join("\n");
            let line = format!("host {} of a line of {hosts}", world.pe());
            assert!(described.contains(&line), "{described}");
            // No link joins the ends.
            let hops = Distance::Hops(hosts as u32 - 1);
            assert_eq!(world.distance(0, hosts - 1), hops);
        });
    }
}

/// A root complex that passes nothing on leaves all to the CPU, and people are told.
#[test]
fn jobs_run_where_engines_reach_nothing() {
    let (links, _engines): (Vec<Link>, Vec<_>) =
        (0..3).map(|_| engine::plx::tests::isolated_link()).unzip();
    let ports = ports_of(&links);
    run(ports.clone(), &[("SHMEM_NTB_DMA", "4k")], |world, hosts| {
        let places = Places::new(world, hosts, true);
        exchange(world, hosts, places, 1);
        exchange(world, hosts, places, 2);
        let described = world.transports()[0].describe().join("\n");
        assert!(described.contains("does not arrive at the peer"), "{described}");
    });
    let made = |port: &Arc<dyn NtbPort>| port.counters()[Event::DmaTransfers];
    assert_eq!(ports.iter().flatten().map(made).sum::<u64>(), 0);
}

/// Engines make long puts to neighbours and move packets to others. One stops without a word, another link is
/// lost: the others go on with what they have.
fn jobs_put_by(make: impl Fn() -> Equipped) {
    let (links, stops): (Vec<Link>, Vec<_>) = (0..3).map(|_| make()).unzip();
    let ports = ports_of(&links);
    let made = |port: &Arc<dyn NtbPort>| port.counters()[Event::DmaTransfers];
    let all = || ports.iter().flatten().map(made).sum::<u64>();
    run(ports.clone(), &[("SHMEM_NTB_DMA", "4k")], |world, hosts| {
        let places = Places::new(world, hosts, true);
        let meet = || world.bootstrap().barrier().expect("all PEs meet");
        let before = all();
        meet();
        exchange(world, hosts, places, 1);
        let (transfers, puts) = (all() - before, (hosts * (hosts - 1)) as u64);
        assert!(transfers >= puts, "engines made {transfers} transfers for {puts} puts");
        meet();
        if world.pe() == 1 {
            stops[1]();
        }
        exchange(world, hosts, places, 2);
        exchange(world, hosts, places, 3);
        if world.pe() == 0 {
            // The port there goes on saying that its link is up.
            links[0].1.lose(1);
        }
        exchange(world, hosts, places, 4);
        exchange(world, hosts, places, 5);
        let described = world.transports()[0].describe().join("\n");
        let given_up = described.contains("not used any more, because");
        assert!(given_up || world.pe() != 1, "{described}");
    });
}

/// A link whose first end has engines, and what makes them stop.
pub type Equipped = (Link, Stop);

/// Makes engines stop without a word.
pub type Stop = Box<dyn Fn() + Send + Sync>;

/// The ports of hosts in a ring, by host and side: the first end of a link is the right port of a host.
fn ports_of(links: &[Link]) -> Vec<[Arc<dyn NtbPort>; 2]> {
    let left = |host: usize| links[(host + links.len() - 1) % links.len()].0[1].clone();
    (0..links.len()).map(|host| [links[host].0[0].clone(), left(host)]).collect()
}

/// A job of a PE for each pair of ports.
fn run(
    ports: Vec<[Arc<dyn NtbPort>; 2]>,
    settings: &[(&str, &str)],
    act: impl Fn(&World, usize) + Sync,
) {
    run_on(ports, 1, settings, act);
}

/// A job with so many PEs on a host for each pair of ports: the first opens them, and lends them to the others.
fn run_on(
    ports: Vec<[Arc<dyn NtbPort>; 2]>,
    each: usize,
    settings: &[(&str, &str)],
    act: impl Fn(&World, usize) + Sync,
) {
    let pes = ports.len() * each;
    let ports = ports.into_iter().flat_map(|pair| {
        let others = (1..each).map(|_| TestPorts::Borrowed);
        std::iter::once(TestPorts::Made(pair)).chain(others)
    });
    let ports: Vec<_> = ports.map(|pair| Mutex::new(Some(pair))).collect();
    let board = Arc::new(Board::create(pes).expect("a board"));
    std::thread::scope(|scope| {
        for (pe, bootstrap) in Threads::job(pes).into_iter().enumerate() {
            let (board, ports, act) = (board.clone(), &ports, &act);
            scope.spawn(move || {
                let host = (pe / each).to_string();
                let own = [("TOMBOLO_HOST", &*host), ("SHMEM_SYMMETRIC_SIZE", "4m")];
                let settings = own.into_iter().chain(settings.iter().copied());
                let config = Config::from_environment(Environment::from_iter(settings));
                let ports = ports[pe].lock().expect("nobody panics with it").take();
                let ntb = Box::new(Ntb { ports, ..Ntb::default() });
                let world = World::start(Setup {
                    bootstrap: Arc::new(bootstrap),
                    board,
                    config: config.expect("a valid environment"),
                    transports: match each {
                        1 => vec![ntb],
                        _ => vec![ntb, crate::create("shm").expect("a back end")],
                    },
                    share_statics: false,
                    several_threads: false,
                })
                .unwrap_or_else(|why| panic!("PE {pe}: {why}"));
                act(&world, pes);
                world.stop().expect("the world stops");
            });
        }
    });
}
