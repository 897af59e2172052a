// SPDX-License-Identifier: Apache-2.0
//! The port on a model of the switch's registers.

mod model;

use super::chip::SwitchtecChip;
use crate::ntb::drive::device_tests::Link;
use crate::ntb::port::bridge::testing::Function;
use crate::ntb::port::bridge::testing::cases::{
    self, Driven, PATIENCE, connected, pair, refusal, until,
};
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
    // The firmware refuses a window that is larger than the BAR of the other side.
    let uneven = Shape { windows: [[2 << 20, 2 << 20], [1 << 20, 2 << 20]], ..Shape::TWO };
    let (_bench, a, _b) = pair::<Switch>(uneven);
    let refused = a.link_enable().unwrap_err().to_string();
    assert!(refused.contains("have to be as large"), "{refused}");
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
