// SPDX-License-Identifier: Apache-2.0
//! The port on a model of the chips' registers, which panics when something is done that can hang a host.

mod model;

use super::FirstChip;
use crate::ntb::drive::device_tests::Link;
use crate::ntb::port::bridge::BridgePort;
use crate::ntb::port::bridge::testing::cases::{self, Driven, PATIENCE, connected, refusal};
use crate::ntb::port::bridge::testing::{Function, opened, store};
use crate::ntb::port::{NtbPort, PortError, Result};
use model::{Shape, Xeon};
use std::sync::Arc;
use std::time::{Duration, Instant};

const SHAPES: [Shape; 3] = [Shape::SANDY_BRIDGE, Shape::BROADWELL, Shape::ONE_VECTOR];

impl Driven for Xeon {
    type Shape = Shape;

    fn of(shape: Shape) -> Xeon {
        Xeon::new(shape)
    }

    fn port(device: Arc<Function<Xeon>>) -> Result<BridgePort> {
        BridgePort::new(FirstChip::new(device.clone())?, device)
    }
}

/// Both ends of a link, for tests of others.
pub fn link() -> Link {
    cases::link::<Xeon>(Shape { windows: [4 << 20, 16 << 20], ..Shape::BROADWELL })
}

#[test]
fn the_chips_are_ports() {
    cases::conforms::<Xeon>(&SHAPES);
}

#[test]
fn several_processes_use_the_port() {
    cases::conforms_beside::<Xeon>(&SHAPES);
}

#[test]
fn every_doorbell_wakes_who_has_waited_short_or_long() {
    let (_bench, a, b) = connected::<Xeon>(Shape::BROADWELL);
    b.db_clear_mask(u64::MAX);
    b.link_event();
    for bit in 0..32 {
        let late = if bit % 8 == 0 { Duration::from_millis(30) } else { Duration::ZERO };
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| b.db_wait(1 << bit, PATIENCE));
            std::thread::sleep(late);
            a.peer_db_set(1 << bit);
            let wake = waiter.join().unwrap();
            assert_eq!((wake.pending, wake.link_changed), (1 << bit, false));
        });
        b.db_clear(1 << bit);
        assert_eq!(b.db_read(), 0, "rung once");
    }
}

#[test]
fn a_cable_that_was_out_is_used_again() {
    for shape in SHAPES {
        let (bench, a, b) = connected::<Xeon>(shape);
        let memory = opened(&b, 0, 8192);
        let mut window = a.outbound(0).unwrap();
        store(&mut *window, 0, 1).unwrap();
        b.link_event();
        bench.tamper(|model, lines| model.plug(false, lines));
        assert!(b.db_wait(0, PATIENCE).link_changed && b.link_event());
        assert!(matches!(store(&mut *window, 0, 2), Err(PortError::NotConnected)));
        bench.tamper(|model, lines| model.plug(true, lines));
        let begun = Instant::now();
        while store(&mut *window, 8, 3).is_err() {
            assert!(begun.elapsed() < PATIENCE);
        }
        assert_eq!((memory.load(0), memory.load(8)), (1, 3));
        assert_eq!((a.link_state().width, a.link_state().max_payload), (8, 256));
    }
}

#[test]
fn what_the_bios_has_set_up_otherwise_is_told() {
    let why = refusal::<Xeon>;
    let to_a_root_port = why(Shape { port: 0x12, ..Shape::BROADWELL });
    assert!(to_a_root_port.contains("NTB to NTB"), "{to_a_root_port}");
    let split = why(Shape { port: 0x41, ..Shape::BROADWELL });
    assert!(split.contains("split"), "{split}");
    let uneven = why(Shape { smaller: 1, ..Shape::BROADWELL });
    assert!(uneven.contains("20 and 21") && uneven.contains("19 and 20"), "{uneven}");
    assert!(uneven.contains("SBARSZ"), "{uneven}");
    let none = why(Shape { windows: [0, 0], ..Shape::BROADWELL });
    assert!(none.contains("0 windows"), "{none}");
}

#[test]
fn a_device_that_is_gone_is_a_link_that_is_lost() {
    cases::is_lost_when_gone::<Xeon>(&SHAPES);
}

#[test]
fn a_process_that_is_killed_leaves_a_link_that_the_next_one_uses() {
    cases::is_taken_over::<Xeon>(&SHAPES, |_| true);
}

#[test]
fn what_a_peer_writes_is_not_believed() {
    cases::does_not_believe((Shape::BROADWELL, 0), 2, |_: &Function<Xeon>, _| ());
}
