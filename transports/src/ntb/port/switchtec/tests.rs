// SPDX-License-Identifier: Apache-2.0
//! The port on a model of the switch's registers.

mod model;

use super::chip::SwitchtecChip;
use crate::ntb::drive::device_tests::Link;
use crate::ntb::port::bridge::testing::cases::{
    self, Driven, PATIENCE, connected, open, pair, refusal, until,
};
use crate::ntb::port::bridge::testing::{Bench, Function, opened, store};
use crate::ntb::port::bridge::{BridgePort, Device};
use crate::ntb::port::{NtbPort, Result};
use model::{Shape, Switch};
use std::sync::Arc;

const SHAPES: [Shape; 2] = [Shape::TWO, Shape::OF_SIX];

impl Driven for Switch {
    type Shape = Shape;

    fn of(shape: Shape) -> Switch {
        Switch::new(shape)
    }

    fn port(device: Arc<Function<Switch>>) -> Result<BridgePort> {
        BridgePort::new(SwitchtecChip::new(device.clone())?, device)
    }
}

/// Both ends of a link, for tests of others.
pub fn link() -> Link {
    cases::link::<Switch>(Shape { windows: [[4 << 20, 16 << 20]; 2], ..Shape::OF_SIX })
}

#[test]
fn the_switch_is_a_port() {
    cases::conforms::<Switch>(&SHAPES);
}

#[test]
fn several_processes_use_the_port() {
    cases::conforms_beside::<Switch>(&SHAPES);
}

#[test]
fn every_doorbell_wakes_alone_and_in_bursts() {
    for shape in SHAPES {
        let (bench, a, b) = connected::<Switch>(shape);
        for (from, to) in [(&a, &b), (&b, &a)] {
            to.db_clear_mask(u64::MAX);
            to.link_event();
            for bit in 0..27 {
                from.peer_db_set(1 << bit);
                let wake = to.db_wait(1 << bit, PATIENCE);
                assert_eq!((wake.pending, wake.link_changed), (1 << bit, false), "{shape:?}");
                to.db_clear(1 << bit);
            }
        }
        std::thread::scope(|scope| {
            for bit in 0..4 {
                for (port, first) in [(&a, true), (&b, false)] {
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
        assert!(bench.tamper(|model, _| model.fired).iter().all(|fired| *fired <= 900));
        // What others ring is left to them.
        bench.tamper(|model, lines| model.change(lines, |model| model.pending |= 0xf << 28));
        assert_eq!((a.db_read(), b.db_read()), (0, 0));
        assert_eq!(bench.tamper(|model, _| model.pending), 0xf << 28);
    }
}

#[test]
fn what_cannot_be_driven_is_told() {
    let why = refusal::<Switch>;
    let crosslink = why(Shape { crosslink: true, ..Shape::TWO });
    assert!(crosslink.contains("crosslink"), "{crosslink}");
    let open_end = why(Shape { targets: false, ..Shape::OF_SIX });
    assert!(open_end.contains("0 partitions"), "{open_end}");
    let one_vector = why(Shape { vectors: 1, ..Shape::TWO });
    assert!(one_vector.contains("1 interrupt vectors"), "{one_vector}");
    let none = why(Shape { windows: [[0; 2]; 2], ..Shape::TWO });
    assert!(none.contains("0 windows"), "{none}");
}

/// The firmware refuses a window that is larger than the BAR of the other side, however often it is
/// asked; what it has refused is no link.
#[test]
fn a_window_that_is_refused_leads_nowhere() {
    for shape in SHAPES {
        let uneven = Shape { windows: [[2 << 20, 2 << 20], [1 << 20, 2 << 20]], ..shape };
        let (bench, a, b) = pair::<Switch>(uneven);
        for _ in 0..2 {
            let refused = a.link_enable().unwrap_err().to_string();
            assert!(refused.contains("have to be as large"), "{refused}");
            assert!(refused.contains("error 0x3"), "why: {refused}");
        }
        b.link_enable().unwrap();
        assert!(!a.link_state().up && !b.link_state().up, "{shape:?}");
        assert!(!bench.tamper(|model, _| model.is_active(1)));
        // It hinders nobody who opens the other side.
        b.link_disable().unwrap();
        drop(b);
        bench.tamper(|model, _| model.abandon_too_large(1));
        open(&bench, 1).unwrap().link_enable().unwrap();
    }
}

/// A process may be killed between what it sets and what it asks the firmware to take, or when it has been
/// refused.
#[test]
fn what_was_set_and_not_taken_is_no_link() {
    for (shape, locked) in SHAPES.into_iter().flat_map(|shape| [(shape, true), (shape, false)]) {
        let (bench, a, b) = pair::<Switch>(shape);
        b.link_enable().unwrap();
        bench.tamper(|model, _| model.abandon(1, locked));
        assert!(!b.link_state().up, "{shape:?}");
        a.link_enable().unwrap();
        until("the link", || a.link_state().up && b.link_state().up);
        assert!(bench.tamper(|model, _| model.is_active(0) && model.is_active(1)), "{shape:?}");
        let memory = opened(&b, 0, 8192);
        store(&mut *a.outbound(0).unwrap(), 0, 5).unwrap();
        assert_eq!(memory.load(0), 5);
    }
}

/// A process that finds what it is to set, set by one that was killed, has it taken all the same.
#[test]
fn what_another_process_has_set_is_not_believed_to_be_taken() {
    for shape in SHAPES {
        let bench = Bench::new(Switch::new(shape));
        bench.tamper(|model, _| model.list_requesters());
        let (a, b) = (open(&bench, 0).unwrap(), open(&bench, 1).unwrap());
        a.link_enable().unwrap();
        b.link_enable().unwrap();
        until("the link", || a.link_state().up && b.link_state().up);
        let memory = opened(&b, 0, 8192);
        store(&mut *a.outbound(0).unwrap(), 0, 5).unwrap();
        assert_eq!(memory.load(0), 5);
    }
}

/// The firmware may take its time before it says that it has begun.
#[test]
fn a_status_of_before_is_no_refusal() {
    for late in [0, 1, 10] {
        let bench = Bench::new(Switch::new(Shape::TWO));
        bench.tamper(|model, _| model.late = late);
        let (a, b) = (open(&bench, 0).unwrap(), open(&bench, 1).unwrap());
        a.link_enable().unwrap();
        b.link_enable().unwrap();
        until("the link", || a.link_state().up && b.link_state().up);
        a.link_disable().unwrap();
        until("the link to go down", || !b.link_state().up);
    }
}

#[test]
fn a_device_that_is_gone_is_a_link_that_is_lost() {
    cases::is_lost_when_gone::<Switch>(&SHAPES);
}

#[test]
fn a_process_that_is_killed_leaves_a_link_that_the_next_one_uses() {
    cases::is_taken_over::<Switch>(&SHAPES, |_| false);
}

#[test]
fn what_a_peer_writes_is_not_believed() {
    cases::does_not_believe((Shape::OF_SIX, 0), 2, |hostile: &Function<Switch>, next| {
        // Registers of both partitions, and doorbells that are not its own.
        hostile.write32(0, 0x14000 + 0x2000 * 2 + 4, 1 + next() as u32 % 2);
        hostile.write32(0, 0x14000 + 0x2000 * 5 + 0x60, next() as u32);
        hostile.write64(0, 0x14000 + 0x2000 * 2 + 0x68, next());
        hostile.write64(0, 0x75000 + 0x4000 * 2, next());
        hostile.write64(0, 0x75010 + 0x4000 * 2, next());
    });
}
