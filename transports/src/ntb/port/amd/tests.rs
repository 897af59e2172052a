// SPDX-License-Identifier: Apache-2.0
//! The port on a model of the chip's registers.

mod model;

use super::chip::AmdChip;
use crate::ntb::drive::device_tests::Link;
use crate::ntb::port::bridge::testing::cases::{
    self, Driven, PATIENCE, connected, open, refusal, until,
};
use crate::ntb::port::bridge::testing::{Function, opened, store};
use crate::ntb::port::bridge::{BridgePort, Device};
use crate::ntb::port::{NtbPort, PortError, Result};
use model::{Epyc, Shape};
use std::sync::Arc;

const SHAPES: [Shape; 3] = [Shape::FULL, Shape::ONE_VECTOR, Shape::DOORBELLS_ONLY];

impl Driven for Epyc {
    type Shape = Shape;

    fn of(shape: Shape) -> Epyc {
        Epyc::new(shape)
    }

    fn port(device: Arc<Function<Epyc>>) -> Result<BridgePort> {
        BridgePort::new(AmdChip::new(device.clone())?, device)
    }
}

/// Both ends of a link, for tests of others.
pub fn link() -> Link {
    cases::link::<Epyc>(Shape { windows: [4 << 20, 16 << 20], ..Shape::FULL })
}

#[test]
fn the_chip_is_a_port() {
    cases::conforms::<Epyc>(&SHAPES);
}

#[test]
fn several_processes_use_the_port() {
    cases::conforms_beside::<Epyc>(&SHAPES);
}

#[test]
fn every_doorbell_wakes_alone_and_in_bursts() {
    for shape in SHAPES {
        let (bench, a, b) = connected::<Epyc>(shape);
        for (from, to) in [(&a, &b), (&b, &a)] {
            to.db_clear_mask(u64::MAX);
            to.link_event();
            for bit in 0..15 {
                from.peer_db_set(1 << bit);
                let wake = to.db_wait(1 << bit, PATIENCE);
                assert_eq!((wake.pending, wake.link_changed), (1 << bit, false), "{shape:?}");
                to.db_clear(1 << bit);
            }
        }
        // All sixteen at once read as a function that is gone does.
        bench.tamper(|model, lines| model.change(1, lines, |side| side.pending = 0xffff));
        until("all doorbells", || b.db_read() == 0x7fff);
        assert!(b.link_state().up && b.link_event(), "the last one tells of the link");
    }
}

/// With one vector for all, the chip fires once while doorbells come one upon another; nobody
/// sleeps through one.
#[test]
fn doorbells_that_follow_each_other_are_all_heard() {
    let (bench, a, b) = connected::<Epyc>(Shape::ONE_VECTOR);
    std::thread::scope(|scope| {
        for bit in 0..4 {
            for (port, first) in [(&a, true), (&b, false)] {
                port.db_clear_mask(1 << bit);
                scope.spawn(move || {
                    for _ in 0..200 {
                        if first {
                            port.peer_db_set(1 << bit);
                        }
                        until("a doorbell", || port.db_wait(1 << bit, PATIENCE).pending != 0);
                        port.db_clear(1 << bit);
                        if !first {
                            port.peer_db_set(1 << bit);
                        }
                    }
                });
            }
        }
    });
    let fired = bench.tamper(|model, _| model.fired);
    assert!(fired[0] <= 900 && fired[1] <= 900, "{fired:?}");
}

/// The secondary side is behind the cable: it is gone for the process that had it, and the next one
/// takes it over.
#[test]
fn a_cable_that_was_out_is_used_again() {
    for shape in SHAPES {
        let (bench, a, mut b) = connected::<Epyc>(shape);
        for _ in 0..3 {
            until("the link", || a.link_state().up && b.link_state().up);
            let memory = opened(&b, 0, 8192);
            let mut window = a.outbound(0).unwrap();
            store(&mut *window, 0, 1).unwrap();
            assert_eq!(memory.load(0), 1);
            a.link_event();
            bench.tamper(|model, lines| model.plug(false, lines));
            until("the primary side to hear", || !a.link_state().up);
            assert!(a.link_event());
            assert!(matches!(store(&mut *window, 0, 2), Err(PortError::NotConnected)));
            assert!(!b.link_state().up);
            assert!(matches!(b.link_enable(), Err(PortError::Gone(_))));
            assert!(matches!(open(&bench, 1).err(), Some(PortError::Gone(_))));
            bench.tamper(|model, lines| model.plug(true, lines));
            assert!(!a.link_state().up, "nobody is ready there");
            let (taken, events) =
                bench.tamper(|model, _| (model.sides[0].acknowledged, model.sides[0].events));
            assert_eq!((taken, events), (taken | 0x60, 0), "the firmware was told");
            drop(b);
            b = open(&bench, 1).unwrap();
            b.link_enable().unwrap();
        }
    }
}

#[test]
fn a_process_that_is_killed_leaves_a_link_that_the_next_one_uses() {
    cases::is_taken_over::<Epyc>(&SHAPES, |shape| {
        // With 16 vectors nothing but looking tells of the link.
        shape.resets && shape.vectors != 16
    });
}

#[test]
fn a_side_whose_state_was_taken_back_says_it_again() {
    let (bench, a, b) = connected::<Epyc>(Shape::FULL);
    let before = a.link_state().generation;
    bench.tamper(|model, _| model.sides[1].ready = false);
    until("both sides to notice", || {
        let now = [&a, &b].map(|port| port.link_state());
        now[0].up && now[1].up && now[0].generation != before
    });
}

#[test]
fn a_device_that_is_gone_is_a_link_that_is_lost() {
    cases::is_lost_when_gone::<Epyc>(&SHAPES);
}

#[test]
fn what_cannot_be_a_port_is_told() {
    let why = refusal::<Epyc>;
    let few = why(Shape { vectors: 8, ..Shape::FULL });
    assert!(few.contains("8 interrupt vectors"), "{few}");
    let none = why(Shape { windows: [0, 0], ..Shape::FULL });
    assert!(none.contains("0 windows"), "{none}");
}

#[test]
fn what_a_peer_writes_is_not_believed() {
    for own in [0, 1] {
        cases::does_not_believe((Shape::FULL, own), 2, |hostile: &Function<Epyc>, next| {
            for index in 0..16 {
                hostile.write32(0, 0x210 + 4 * index, next() as u32);
            }
            // Registers of the other side, those that tell whether it is ready among them.
            hostile.write32(0, 0x808, next() as u32);
            hostile.write32(0, 0x870, next() as u32);
            hostile.write64(0, 0x838, next() << 12);
            hostile.write64(0, 0x818, next());
            hostile.write32(0, 0x408, next() as u32);
            hostile.write16(0, 0x454, next() as u16);
        });
    }
}
