// SPDX-License-Identifier: Apache-2.0
//! The port on a model of the chip's registers.

mod model;

use super::chip::PlxChip;
use crate::ntb::drive::device_tests::Link;
use crate::ntb::port::bridge::testing::cases::{self, Driven, PATIENCE, connected, open, until};
use crate::ntb::port::bridge::testing::{Bench, Function, opened, store};
use crate::ntb::port::bridge::{BridgePort, Device};
use crate::ntb::port::{NtbPort, Result};
pub(crate) use model::{Plx, Shape};
use std::sync::Arc;

impl Driven for Plx {
    type Shape = Shape;

    fn of(shape: Shape) -> Plx {
        Plx::new(shape)
    }

    fn port(device: Arc<Function<Plx>>) -> Result<BridgePort> {
        BridgePort::new(PlxChip::new(device.clone())?, device)
    }
}

/// Both ends of a link, for tests of others.
pub fn link() -> Link {
    cases::link::<Plx>(Shape { windows: [[4 << 20, 16 << 20]; 2], ..Shape::EVEN })
}

#[test]
fn the_chip_is_a_port() {
    cases::conforms::<Plx>(&[Shape::EVEN, Shape::UNEVEN]);
}

#[test]
fn several_processes_use_the_port() {
    cases::conforms_beside::<Plx>(&[Shape::EVEN, Shape::UNEVEN]);
}

#[test]
fn windows_are_what_both_sides_have() {
    let (bench, a, b) = connected::<Plx>(Shape::UNEVEN);
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
    let (bench, a, b) = connected::<Plx>(Shape::EVEN);
    for round in 1..=6 {
        let (memory, other) = (opened(&b, 0, 8192), opened(&a, 0, 8192));
        let (mut window, mut back) = (a.outbound(0).unwrap(), b.outbound(0).unwrap());
        store(&mut *window, 0, round).unwrap();
        store(&mut *back, 0, round).unwrap();
        let before = [&a, &b].map(|port| port.link_state().generation);
        bench.tamper(|model, lines| model.cable_out(round % 2 == 0, lines));
        until("both sides to notice", || {
            let now = [&a, &b].map(|port| port.link_state());
            (0..2).all(|side| now[side].generation != before[side] && now[side].up)
        });
        store(&mut *window, 8, round).unwrap();
        store(&mut *back, 8, round).unwrap();
        assert_eq!((memory.load(0), memory.load(8)), (round, round));
        assert_eq!((other.load(0), other.load(8)), (round, round));
        b.db_clear_mask(1);
        a.peer_db_set(1);
        until("a doorbell", || b.db_wait(1, PATIENCE).pending == 1);
        b.db_clear(1);
        b.link_event();
        b.mw_clear_trans(0, 0, 1).unwrap();
        a.mw_clear_trans(0, 0, 1).unwrap();
    }
}

/// The chip fires once while doorbells come one upon another; nobody sleeps through one.
#[test]
fn doorbells_that_follow_each_other_fire_once_and_are_all_heard() {
    let (bench, a, b) = connected::<Plx>(Shape::EVEN);
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
    cases::is_lost_when_gone::<Plx>(&[Shape::EVEN, Shape::UNEVEN]);
}

#[test]
fn a_process_that_is_killed_leaves_a_link_that_the_next_one_uses() {
    cases::is_taken_over::<Plx>(&[Shape::EVEN, Shape::UNEVEN], |_| false);
}

#[test]
fn what_a_peer_writes_is_not_believed() {
    cases::does_not_believe((Shape::EVEN, 0), 2, |hostile: &Function<Plx>, next| {
        // Both sides share scratchpads, also those that tell of the link.
        for index in 0..8 {
            hostile.write32(0, 0x3f000 + 0xc6c + 4 * index, next() as u32);
        }
        hostile.write32(0, 0x3f000 + 0xc4c, next() as u32);
    });
}
