// SPDX-License-Identifier: Apache-2.0
//! Jobs over bridges of all kinds, on models of their registers: hosts learn their cables, put, get and
//! add, and go on when a device is gone.

use super::Ntb;
use crate::ntb::port::{NtbPort, amd, epf, intel, plx, switchtec};
use std::sync::{Arc, Mutex};
use tombolo_core::board::Board;
use tombolo_core::bootstrap::Threads;
use tombolo_core::config::Environment;
use tombolo_core::ops::Mode;
use tombolo_core::transport::{Amo, AmoOp};
use tombolo_core::{Config, Setup, World};

/// One for each kind of link; some of them reach each other through others.
const HOSTS: usize = 6;
const BYTES: usize = 100_000;

/// Both ends of a link, and what takes the device of the first one away.
pub type Link = ([Arc<dyn NtbPort>; 2], Box<dyn Fn() + Send + Sync>);

/// What a PE writes to another in a round.
fn pattern(from: usize, to: usize, round: usize) -> Vec<u8> {
    (0..BYTES).map(|at| (at * 7 + from * 31 + to * 57 + round * 101) as u8).collect()
}

/// Everybody writes to everybody, reads it back, and counts.
fn exchange(world: &World, place: *mut u8, counter: *mut u8, round: usize) {
    let (me, context) = (world.pe(), world.context());
    let meet = || world.bootstrap().barrier().expect("all PEs meet");
    let others = || (0..HOSTS).filter(|pe| *pe != me);
    let part = |pe: usize| place.wrapping_add(pe * BYTES);
    for pe in others() {
        let bytes = pattern(me, pe, round);
        // SAFETY: the source is as long, and the put blocks.
        unsafe { world.put(context, part(me), bytes.as_ptr(), BYTES, pe, Mode::Blocking, "put") };
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
    assert_eq!(count as usize, (HOSTS - 1) * round, "{me}");
    meet();
}

#[test]
fn jobs_run_over_bridges_of_all_kinds_and_lose_one() {
    let links: [Link; HOSTS] = [
        epf::tests::link(),
        plx::tests::link(),
        intel::tests::link(),
        intel::tests::first_link(),
        amd::tests::link(),
        switchtec::tests::link(),
    ];
    // By host and side: the first end of a link is the right port of a host.
    let mut ports: Vec<[Arc<dyn NtbPort>; 2]> = (0..HOSTS)
        .map(|host| [links[host].0[0].clone(), links[(host + HOSTS - 1) % HOSTS].0[1].clone()])
        .collect();
    let lose = links.map(|(_, lose)| lose);
    // Somebody has mistaken right for left.
    ports[2].swap(0, 1);
    let ports: Vec<_> = ports.into_iter().map(|pair| Mutex::new(Some(pair))).collect();
    let board = Arc::new(Board::create(HOSTS).expect("a board"));
    std::thread::scope(|scope| {
        for (pe, bootstrap) in Threads::job(HOSTS).into_iter().enumerate() {
            let (board, ports, lose) = (board.clone(), &ports, &lose);
            scope.spawn(move || {
                let host = pe.to_string();
                let settings = [("TOMBOLO_HOST", &*host), ("SHMEM_SYMMETRIC_SIZE", "4m")];
                let config = Config::from_environment(Environment::from_iter(settings));
                let ports = ports[pe].lock().expect("nobody panics with it").take();
                let world = World::start(Setup {
                    bootstrap: Arc::new(bootstrap),
                    board,
                    config: config.expect("a valid environment"),
                    transports: vec![Box::new(Ntb { ports, ..Ntb::default() })],
                    share_statics: false,
                    several_threads: false,
                })
                .unwrap_or_else(|why| panic!("PE {pe}: {why}"));
                let place = world.heap().allocate(HOSTS * BYTES, 64);
                let counter = world.heap().allocate(8, 8);
                exchange(&world, place, counter, 1);
                exchange(&world, place, counter, 2);
                if pe == 1 {
                    lose[1]();
                }
                exchange(&world, place, counter, 3);
                exchange(&world, place, counter, 4);
                let described = world.transports()[0].describe_own().join("\n");
                let alone = described.contains("right 0 of 1, left 1 of 1");
                assert!(alone || pe != 1, "the way that is left: {described}");
                world.stop().expect("the world stops");
            });
        }
    });
}
