// SPDX-License-Identifier: Apache-2.0
//! The port on a model of the chip's registers.

mod model;

use super::chip::PlxChip;
use crate::ntb::drive::device_tests::Link;
use crate::ntb::port::bridge::testing::{Bench, opened, store};
use crate::ntb::port::bridge::{BridgePort, Device};
use crate::ntb::port::conformance::CASES;
use crate::ntb::port::{NtbPort, PortError, Result};
use model::{Plx, Shape};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Only a failing test waits so long.
const PATIENCE: Duration = Duration::from_secs(20);

fn open(bench: &Arc<Bench<Plx>>, side: usize) -> Result<BridgePort> {
    let device = bench.function(side);
    BridgePort::new(PlxChip::new(device.clone())?, device)
}

fn pair(shape: Shape) -> (Arc<Bench<Plx>>, BridgePort, BridgePort) {
    let bench = Bench::new(Plx::new(shape));
    let (a, b) = (open(&bench, 0).unwrap(), open(&bench, 1).unwrap());
    (bench, a, b)
}

/// Both ends of a link, for tests of others.
pub fn link() -> Link {
    let (bench, a, b) = pair(Shape { windows: [[4 << 20, 16 << 20]; 2], ..Shape::EVEN });
    ([Arc::new(a), Arc::new(b)], Box::new(move || bench.lose(0)))
}

fn until(what: &str, mut happened: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !happened() {
        assert!(begun.elapsed() < PATIENCE, "{what}");
        std::thread::yield_now();
    }
}

fn connected(shape: Shape) -> (Arc<Bench<Plx>>, BridgePort, BridgePort) {
    let (bench, a, b) = pair(shape);
    a.link_enable().unwrap();
    b.link_enable().unwrap();
    until("the link", || a.link_state().up && b.link_state().up);
    (bench, a, b)
}

#[test]
fn the_chip_is_a_port() {
    for shape in [Shape::EVEN, Shape::UNEVEN] {
        for (name, case) in CASES {
            eprintln!("{name}, {shape:?}");
            let (_, a, b) = pair(shape);
            case(&a, &b);
            let (_, a, b) = pair(shape);
            case(&b, &a);
        }
    }
}

#[test]
fn windows_are_what_both_sides_have() {
    let (bench, a, b) = connected(Shape::UNEVEN);
    assert_eq!(a.capabilities().windows, b.capabilities().windows);
    let window = a.capabilities().windows[0];
    assert_eq!((a.capabilities().windows.len(), window.size), (1, 127 << 13));
    let narrow = Plx::new(Shape { wide: false, ..Shape::EVEN });
    let why = open(&Bench::new(narrow), 0).err().expect("no address fits in 32 bits").to_string();
    assert!(why.contains("0 windows"), "{why}");
    // What the larger window of the other side reaches beyond that is nothing.
    let memory = opened(&b, 0, 8192);
    let raw = bench.function(0);
    for offset in (4096..2 << 20).step_by(4096) {
        raw.store_words(2, offset, &[7]);
    }
    assert_eq!(bench.faults(1), 511 - 2);
    assert_eq!(memory.load(4096), 7);
}

#[test]
fn a_link_that_was_down_is_set_up_again() {
    let (bench, a, b) = connected(Shape::EVEN);
    for round in 1..=5 {
        let memory = opened(&b, 0, 8192);
        let mut window = a.outbound(0).unwrap();
        store(&mut *window, 0, round).unwrap();
        let before = [&a, &b].map(|port| port.link_state().generation);
        bench.tamper(|model, lines| model.cable_out(lines));
        until("both sides to notice", || {
            let now = [&a, &b].map(|port| port.link_state());
            (0..2).all(|side| now[side].generation != before[side] && now[side].up)
        });
        store(&mut *window, 8, round).unwrap();
        assert_eq!((memory.load(0), memory.load(8)), (round, round));
        b.db_clear_mask(1);
        a.peer_db_set(1);
        until("a doorbell", || b.db_wait(1, PATIENCE).pending == 1);
        b.db_clear(1);
        b.link_event();
        b.mw_clear_trans(0, 0, 1).unwrap();
    }
}

/// The chip fires once while doorbells come one upon another; nobody sleeps through one.
#[test]
fn doorbells_that_follow_each_other_fire_once_and_are_all_heard() {
    let (bench, a, b) = connected(Shape::EVEN);
    b.db_clear_mask(u64::MAX);
    b.link_event();
    std::thread::scope(|scope| {
        for bit in 0..4 {
            let b = &b;
            scope.spawn(move || {
                for _ in 0..200 {
                    until("a doorbell", || b.db_wait(1 << bit, PATIENCE).pending != 0);
                    b.db_clear(1 << bit);
                    b.peer_db_set(1 << bit);
                }
            });
            let a = &a;
            a.db_clear_mask(1 << bit);
            scope.spawn(move || {
                for _ in 0..200 {
                    a.peer_db_set(1 << bit);
                    until("an answer", || a.db_wait(1 << bit, PATIENCE).pending != 0);
                    a.db_clear(1 << bit);
                }
            });
        }
    });
    let fired = bench.tamper(|model, _| model.fired);
    assert!(fired[0] <= 900 && fired[1] <= 900, "{fired:?}");
}

#[test]
fn a_device_that_is_gone_is_a_link_that_is_lost() {
    let (bench, a, _b) = connected(Shape::EVEN);
    a.link_event();
    bench.lose(0);
    until("somebody to look", || !a.link_state().up);
    assert!(a.link_event());
    assert!(matches!(a.link_enable(), Err(PortError::Gone(_))));
    assert!(a.describe().contains("does not answer"), "{}", a.describe());
    assert!(matches!(open(&bench, 0).err(), Some(PortError::Gone(_))));
}

#[test]
fn a_process_that_is_killed_leaves_a_link_that_the_next_one_uses() {
    let (bench, a, b) = connected(Shape::EVEN);
    let _memory = opened(&b, 0, 8192);
    let mut window = a.outbound(0).unwrap();
    store(&mut *window, 0, 1).unwrap();
    let before = a.link_state().generation;
    bench.kill(1);
    std::mem::forget(b);
    store(&mut *window, 0, 2).unwrap();
    assert!(bench.faults(1) > 0, "the chip tells nobody, but the IOMMU lets nothing pass");
    let b = open(&bench, 1).unwrap();
    until("the link to go down", || !a.link_state().up);
    b.link_enable().unwrap();
    until("the link", || a.link_state().up && b.link_state().up);
    assert_ne!(a.link_state().generation, before);
    let memory = opened(&b, 0, 8192);
    store(&mut *window, 0, 3).unwrap();
    assert_eq!(memory.load(0), 3);
}

#[test]
fn what_a_peer_writes_is_not_believed() {
    let (bench, a, _b) = connected(Shape::EVEN);
    let hostile = bench.function(1);
    let mut window = a.outbound(0).unwrap();
    let mut random = 7u64;
    let mut next = || {
        random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        (random >> 20) as u32
    };
    for _ in 0..100 {
        for offset in (0..4096).step_by(8) {
            hostile.store_words(2, offset, &[u64::from(next()) << 32 | u64::from(next())]);
        }
        // Both sides share scratchpads, also those that tell of the link.
        for index in 0..8 {
            hostile.write32(0, 0x3f000 + 0xc6c + 4 * index, next());
        }
        hostile.write32(0, 0x3f000 + 0xc4c, next());
        a.db_wait(1, Duration::ZERO);
        let _ = window.open(0, usize::MAX);
        window.read(64, &mut [0; 64]);
        let _ = window.map(0, 8192);
        for index in 0..a.capabilities().spads {
            a.spad_read(index);
        }
        a.link_state();
    }
    assert_eq!(bench.reachable(0).len(), 1);
}
