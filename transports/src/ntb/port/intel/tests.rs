// SPDX-License-Identifier: Apache-2.0
//! The port on a model of the chips' registers.

mod model;

pub use super::first::tests::link as first_link;

use super::chip::IntelChip;
use crate::ntb::drive::device_tests::Link;
use crate::ntb::port::bridge::testing::{Bench, opened, store};
use crate::ntb::port::bridge::{BridgePort, Device};
use crate::ntb::port::conformance::CASES;
use crate::ntb::port::{NtbPort, PortError, Result};
use model::{Shape, Xeon};
use std::sync::Arc;
use std::time::{Duration, Instant};

const SHAPES: [Shape; 3] = [Shape::SKYLAKE, Shape::ICE_LAKE, Shape::FEW_VECTORS];
/// Only a failing test waits so long.
const PATIENCE: Duration = Duration::from_secs(20);

fn open(bench: &Arc<Bench<Xeon>>, side: usize) -> Result<BridgePort> {
    let device = bench.function(side);
    BridgePort::new(IntelChip::new(device.clone())?, device)
}

fn pair(shape: Shape) -> (Arc<Bench<Xeon>>, BridgePort, BridgePort) {
    let bench = Bench::new(Xeon::new(shape));
    let (a, b) = (open(&bench, 0).unwrap(), open(&bench, 1).unwrap());
    (bench, a, b)
}

/// Both ends of a link, for tests of others.
pub fn link() -> Link {
    let (bench, a, b) = pair(Shape { windows: [4 << 20, 16 << 20], ..Shape::ICE_LAKE });
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
        }
    }
}

/// Every doorbell wakes, that of the vector which the link has as well, and so does the link.
#[test]
fn no_doorbell_has_the_vector_that_does_not_work() {
    for shape in SHAPES {
        let (bench, a, b) = connected(shape);
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
            assert_eq!((b.link_state().up, a.link_state().up), (plugged, plugged));
            assert!(b.link_event());
        }
    }
}

#[test]
fn a_cable_that_was_out_is_used_again() {
    for shape in SHAPES {
        let (bench, a, b) = connected(shape);
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
    let why = |port: u16| {
        let bench = Bench::new(Xeon::new(Shape { port, ..Shape::SKYLAKE }));
        open(&bench, 0).err().expect("refused").to_string()
    };
    assert!(why(0).contains("NTB to NTB") && why(0).contains("BIOS"), "{}", why(0));
    assert!(why(0x41).contains("split"), "{}", why(0x41));
    let bench = Bench::new(Xeon::new(Shape { windows: [0, 0], ..Shape::ICE_LAKE }));
    assert!(open(&bench, 0).err().expect("refused").to_string().contains("0 windows"));
}

#[test]
fn a_device_that_is_gone_is_a_link_that_is_lost() {
    for shape in SHAPES {
        let (bench, a, _b) = connected(shape);
        a.link_event();
        bench.lose(0);
        assert!(!a.link_state().up && a.link_event());
        assert!(matches!(a.link_enable(), Err(PortError::Gone(_))));
        assert!(matches!(open(&bench, 0).err(), Some(PortError::Gone(_))));
    }
}

#[test]
fn a_process_that_is_killed_leaves_a_link_that_the_next_one_uses() {
    let (bench, a, b) = connected(Shape::SKYLAKE);
    let _memory = opened(&b, 0, 8192);
    let mut window = a.outbound(0).unwrap();
    store(&mut *window, 0, 1).unwrap();
    a.link_event();
    bench.kill(1);
    std::mem::forget(b);
    assert!(a.db_wait(0, PATIENCE).link_changed && !a.link_state().up);
    let b = open(&bench, 1).unwrap();
    b.link_enable().unwrap();
    assert!(a.link_state().up);
    let memory = opened(&b, 0, 8192);
    store(&mut *window, 0, 3).unwrap();
    assert_eq!(memory.load(0), 3);
}

#[test]
fn what_a_peer_writes_is_not_believed() {
    let (bench, a, _b) = connected(Shape::ICE_LAKE);
    let hostile = bench.function(1);
    let mut window = a.outbound(0).unwrap();
    let mut random = 7u64;
    for _ in 0..100 {
        for offset in (0..4096).step_by(8) {
            random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            hostile.store_words(2, offset, &[random]);
        }
        for index in 0..16 {
            hostile.write32(0, 0x8080 + 4 * index, random as u32);
        }
        hostile.write32(0, 0x100 + 4 * (random as usize % 32), 1);
        a.db_wait(1, Duration::ZERO);
        let _ = window.open(0, usize::MAX);
        window.read(64, &mut [0; 64]);
        let _ = window.map(0, 8192);
        a.link_state();
    }
    assert_eq!(bench.reachable(0).len(), 1);
}
