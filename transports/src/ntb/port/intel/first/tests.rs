// SPDX-License-Identifier: Apache-2.0
//! The port on a model of the chips' registers, which panics when something is done that can hang a host.

mod model;

use super::FirstChip;
use crate::ntb::drive::device_tests::Link;
use crate::ntb::port::bridge::testing::{Bench, opened, store};
use crate::ntb::port::bridge::{BridgePort, Device};
use crate::ntb::port::conformance::CASES;
use crate::ntb::port::{NtbPort, PortError, Result};
use model::{Shape, Xeon};
use std::sync::Arc;
use std::time::{Duration, Instant};

const SHAPES: [Shape; 3] = [Shape::SANDY_BRIDGE, Shape::BROADWELL, Shape::ONE_VECTOR];
/// Only a failing test waits so long.
const PATIENCE: Duration = Duration::from_secs(20);

fn open(bench: &Arc<Bench<Xeon>>, side: usize) -> Result<BridgePort> {
    let device = bench.function(side);
    BridgePort::new(FirstChip::new(device.clone())?, device)
}

fn pair(shape: Shape) -> (Arc<Bench<Xeon>>, BridgePort, BridgePort) {
    let bench = Bench::new(Xeon::new(shape));
    let (a, b) = (open(&bench, 0).unwrap(), open(&bench, 1).unwrap());
    (bench, a, b)
}

/// Both ends of a link, for tests of others.
pub fn link() -> Link {
    let (bench, a, b) = pair(Shape { windows: [4 << 20, 16 << 20], ..Shape::BROADWELL });
    ([Arc::new(a), Arc::new(b)], Box::new(move || bench.lose(0)))
}

fn connected(shape: Shape) -> (Arc<Bench<Xeon>>, BridgePort, BridgePort) {
    let (bench, a, b) = pair(shape);
    a.link_enable().unwrap();
    b.link_enable().unwrap();
    assert!(a.link_state().up && b.link_state().up);
    (bench, a, b)
}

#[test]
fn the_chips_are_ports() {
    for shape in SHAPES {
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
fn every_doorbell_wakes_who_has_waited_short_or_long() {
    let (_bench, a, b) = connected(Shape::BROADWELL);
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
        let (bench, a, b) = connected(shape);
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
    let why = |shape| open(&Bench::new(Xeon::new(shape)), 0).err().expect("refused").to_string();
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
    let (bench, a, _b) = connected(Shape::BROADWELL);
    a.link_event();
    bench.lose(0);
    assert!(!a.link_state().up && a.link_event());
    assert!(matches!(a.link_enable(), Err(PortError::Gone(_))));
    assert!(matches!(open(&bench, 0).err(), Some(PortError::Gone(_))));
}

#[test]
fn a_process_that_is_killed_leaves_a_link_that_the_next_one_uses() {
    let (bench, a, b) = connected(Shape::SANDY_BRIDGE);
    let _memory = opened(&b, 0, 8192);
    let mut window = a.outbound(0).unwrap();
    store(&mut *window, 0, 1).unwrap();
    a.peer_db_set(1);
    a.link_event();
    bench.kill(1);
    std::mem::forget(b);
    assert!(a.db_wait(0, PATIENCE).link_changed && !a.link_state().up);
    let b = open(&bench, 1).unwrap();
    b.link_enable().unwrap();
    assert!(a.link_state().up);
    assert_eq!(b.db_read(), 0, "what rang before was not for this process");
    let memory = opened(&b, 0, 8192);
    store(&mut *window, 0, 3).unwrap();
    a.peer_db_set(1);
    assert_eq!((memory.load(0), b.db_read()), (3, 1));
}

#[test]
fn what_a_peer_writes_is_not_believed() {
    let (bench, a, _b) = connected(Shape::BROADWELL);
    let hostile = bench.function(1);
    let mut window = a.outbound(0).unwrap();
    let mut random = 7u64;
    for _ in 0..100 {
        for offset in (0..4096).step_by(8) {
            random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            hostile.store_words(2, offset, &[random]);
        }
        a.db_wait(1, Duration::ZERO);
        assert_eq!(a.db_read() & !a.db_valid_mask(), 0);
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
