// SPDX-License-Identifier: Apache-2.0
//! The port on a model of the chips' registers.

mod model;

pub use super::first::tests::link as first_link;

use super::chip::IntelChip;
use crate::ntb::drive::device_tests::Link;
use crate::ntb::port::bridge::testing::cases::{
    self, Driven, PATIENCE, connected, pair, refusal, until,
};
use crate::ntb::port::bridge::testing::{Function, opened, store};
use crate::ntb::port::bridge::{BridgePort, Device};
use crate::ntb::port::{NtbPort, PortError, Result};
pub(crate) use model::{Shape, Xeon};
use std::sync::Arc;
use std::time::Instant;

const SHAPES: [Shape; 5] = [
    Shape::SKYLAKE,
    Shape::ICE_LAKE,
    Shape::FEW_VECTORS,
    Shape::FORGETFUL_SKYLAKE,
    Shape::FORGETFUL_ICE_LAKE,
];

impl Driven for Xeon {
    type Shape = Shape;

    fn of(shape: Shape) -> Xeon {
        Xeon::new(shape)
    }

    fn port(device: Arc<Function<Xeon>>) -> Result<BridgePort> {
        BridgePort::new(IntelChip::new(device.clone())?, device)
    }
}

/// Both ends of a link, for tests of others.
pub fn link() -> Link {
    cases::link::<Xeon>(Shape { windows: [4 << 20, 16 << 20], ..Shape::ICE_LAKE })
}

#[test]
fn the_chips_are_ports() {
    cases::conforms::<Xeon>(&SHAPES);
}

#[test]
fn several_processes_use_the_port() {
    cases::conforms_beside::<Xeon>(&SHAPES);
}

/// Every doorbell wakes, that of the vector which the link has as well, and so does the link.
#[test]
fn no_doorbell_has_the_vector_that_does_not_work() {
    for shape in SHAPES {
        let (bench, a, b) = connected::<Xeon>(shape);
        b.db_clear_mask(u64::MAX);
        b.link_event();
        for bit in 0..32 {
            a.peer_db_set(1 << bit);
            let wake = b.db_wait(1 << bit, PATIENCE);
            assert_eq!((wake.pending, wake.link_changed), (1 << bit, false), "{shape:?}");
            b.db_clear(1 << bit);
        }
        for plugged in [false, true, false, true] {
            bench.tamper(|model, lines| model.plug(plugged, lines));
            assert!(b.db_wait(0, PATIENCE).link_changed, "{shape:?}");
            until("both sides", || [&a, &b].iter().all(|port| port.link_state().up == plugged));
            assert!(b.link_event());
        }
    }
}

#[test]
fn a_cable_that_was_out_is_used_again() {
    for shape in SHAPES {
        let (bench, a, b) = connected::<Xeon>(shape);
        let memory = opened(&b, 0, 8192);
        let mut window = a.outbound(0).unwrap();
        store(&mut *window, 0, 1).unwrap();
        bench.tamper(|model, lines| model.plug(false, lines));
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
    let why = |port| refusal::<Xeon>(Shape { port, ..Shape::SKYLAKE });
    assert!(why(0).contains("NTB to NTB") && why(0).contains("BIOS"), "{}", why(0));
    assert!(why(0x41).contains("split"), "{}", why(0x41));
    let why = |port_1| refusal::<Xeon>(Shape { port_1, ..Shape::ICE_LAKE });
    for port_1 in [0, 0x1100, 0x300] {
        assert!(why(port_1).contains("NTB to NTB"), "{}", why(port_1));
    }
    for shape in [Shape::SKYLAKE, Shape::ICE_LAKE] {
        let uneven = refusal::<Xeon>(Shape { outer_smaller: 2, ..shape });
        assert!(uneven.contains("2^(20 and 20)") && uneven.contains("2^(18 and 20)"), "{uneven}");
        assert!(uneven.contains("Embar1"), "{uneven}");
    }
    let (_bench, a, _b) = pair::<Xeon>(Shape { trains: false, ..Shape::ICE_LAKE });
    let untrained = a.link_enable().unwrap_err().to_string();
    assert!(untrained.contains("does not begin to train"), "{untrained}");
    assert!(refusal::<Xeon>(Shape { windows: [0, 0], ..Shape::ICE_LAKE }).contains("0 windows"));
}

/// Hosts whose windows have different sizes would divide them in different ways.
#[test]
fn windows_of_different_sizes_are_told() {
    for shape in [Shape::SKYLAKE, Shape::ICE_LAKE] {
        let (_bench, a, b) = connected::<Xeon>(Shape { smaller: 1, ..shape });
        let memory = opened(&b, 0, 8192);
        let why = store(&mut *a.outbound(0).unwrap(), 0, 1).unwrap_err().to_string();
        assert!(
            why.contains("1048576 bytes at this host and 524288 bytes at its neighbour"),
            "{why}"
        );
        let why = store(&mut *b.outbound(1).unwrap(), 0, 1).unwrap_err().to_string();
        assert!(why.contains("window 1 has 524288 bytes at this host"), "{why}");
        assert_eq!(memory.load(0), 0);
    }
}

/// It is known only when the link is up; that is no link then.
#[test]
fn a_limit_that_is_not_taken_is_told() {
    let (bench, a, b) = pair::<Xeon>(Shape::SKYLAKE);
    bench.tamper(|model, _| model.sides[0].fixed = 1 << 20);
    a.link_enable().unwrap();
    b.link_enable().unwrap();
    until("a reason", || a.describe().contains("register"));
    let why = a.describe();
    assert!(why.contains("0x4018 (where the window ends on the link)"), "{why}");
    assert!(why.contains("takes 0x100000000000 for 0x100000100000"), "{why}");
    assert!(!a.link_state().up && !b.link_state().up);
    assert!(b.describe().contains("the neighbour's port does not answer"), "{}", b.describe());
    bench.tamper(|model, _| model.sides[0].fixed = 0);
    until("what is taken at last", || a.link_state().up && b.link_state().up);
}

/// What fails on the way does not keep the rest from being done, and can be done again.
#[test]
fn a_link_that_is_not_taken_down_whole_is_taken_down_again() {
    let (bench, a, b) = connected::<Xeon>(Shape::SKYLAKE);
    bench.tamper(|model, _| model.sides[0].fixed = 1 << 20);
    let why = a.link_disable().unwrap_err().to_string();
    assert!(why.contains("0x4018"), "{why}");
    until("the peer to notice", || !b.link_state().up && !a.link_state().up);
    a.link_disable().unwrap();
    bench.tamper(|model, _| model.sides[0].fixed = 0);
    a.link_enable().unwrap();
    until("the link", || a.link_state().up && b.link_state().up);
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
    cases::does_not_believe((Shape::ICE_LAKE, 0), 2, |hostile: &Function<Xeon>, next| {
        for index in 0..16 {
            hostile.write32(0, 0x8080 + 4 * index, next() as u32);
        }
        hostile.write32(0, 0x100 + 4 * (next() as usize % 32), 1);
    });
}
