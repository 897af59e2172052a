// SPDX-License-Identifier: Apache-2.0
//! The port on a model of the switch's registers.

mod model;

use super::chip::SwitchtecChip;
use crate::ntb::drive::device_tests::Link;
use crate::ntb::port::bridge::testing::{Bench, opened, store};
use crate::ntb::port::bridge::{BridgePort, Device};
use crate::ntb::port::conformance::CASES;
use crate::ntb::port::{NtbPort, PortError, Result};
use model::{Shape, Switch};
use std::sync::Arc;
use std::time::{Duration, Instant};

const SHAPES: [Shape; 2] = [Shape::TWO, Shape::OF_SIX];
/// Only a failing test waits so long.
const PATIENCE: Duration = Duration::from_secs(20);

fn open(bench: &Arc<Bench<Switch>>, side: usize) -> Result<BridgePort> {
    let device = bench.function(side);
    BridgePort::new(SwitchtecChip::new(device.clone())?, device)
}

fn pair(shape: Shape) -> (Arc<Bench<Switch>>, BridgePort, BridgePort) {
    let bench = Bench::new(Switch::new(shape));
    let (a, b) = (open(&bench, 0).unwrap(), open(&bench, 1).unwrap());
    (bench, a, b)
}

/// Both ends of a link, for tests of others.
pub fn link() -> Link {
    let (bench, a, b) = pair(Shape { windows: [[4 << 20, 16 << 20]; 2], ..Shape::OF_SIX });
    ([Arc::new(a), Arc::new(b)], Box::new(move || bench.lose(0)))
}

fn until(what: &str, mut happened: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !happened() {
        assert!(begun.elapsed() < PATIENCE, "{what}");
        std::thread::yield_now();
    }
}

fn connected(shape: Shape) -> (Arc<Bench<Switch>>, BridgePort, BridgePort) {
    let (bench, a, b) = pair(shape);
    a.link_enable().unwrap();
    b.link_enable().unwrap();
    assert!(a.link_state().up && b.link_state().up);
    (bench, a, b)
}

#[test]
fn the_switch_is_a_port() {
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
fn every_doorbell_wakes_alone_and_in_bursts() {
    for shape in SHAPES {
        let (bench, a, b) = connected(shape);
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
    let why = |shape| open(&Bench::new(Switch::new(shape)), 0).err().expect("refused").to_string();
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
    let (_bench, a, _b) = pair(uneven);
    let refused = a.link_enable().unwrap_err().to_string();
    assert!(refused.contains("have to be as large"), "{refused}");
}

#[test]
fn a_device_that_is_gone_is_a_link_that_is_lost() {
    let (bench, a, _b) = connected(Shape::TWO);
    a.link_event();
    bench.lose(0);
    assert!(!a.link_state().up && a.link_event());
    assert!(matches!(a.link_enable(), Err(PortError::Gone(_))));
    assert!(a.describe().contains("does not answer"), "{}", a.describe());
    assert!(matches!(open(&bench, 0).err(), Some(PortError::Gone(_))));
}

/// Nobody tells of it but the next process.
#[test]
fn a_process_that_is_killed_leaves_a_link_that_the_next_one_uses() {
    for shape in SHAPES {
        for killed in [0, 1] {
            let (bench, a, b) = connected(shape);
            let (left, lost) = if killed == 1 { (a, b) } else { (b, a) };
            let _memory = opened(&lost, 0, 8192);
            let mut window = left.outbound(0).unwrap();
            store(&mut *window, 0, 1).unwrap();
            let before = left.link_state().generation;
            bench.kill(killed);
            std::mem::forget(lost);
            let _ = store(&mut *window, 0, 2);
            assert!(bench.reachable(killed).is_empty(), "the IOMMU lets nothing pass");
            let next = open(&bench, killed).unwrap();
            until("the link to go down", || !left.link_state().up);
            next.link_enable().unwrap();
            until("the link", || left.link_state().up && next.link_state().up);
            assert_ne!(left.link_state().generation, before);
            let memory = opened(&next, 0, 8192);
            store(&mut *window, 0, 3).unwrap();
            assert_eq!(memory.load(0), 3);
            let memory = opened(&left, 1, 8192);
            store(&mut *next.outbound(1).unwrap(), 0, 4).unwrap();
            assert_eq!(memory.load(0), 4);
        }
    }
}

#[test]
fn what_a_peer_writes_is_not_believed() {
    let (bench, a, _b) = connected(Shape::OF_SIX);
    let hostile = bench.function(1);
    let mut window = a.outbound(0).unwrap();
    let mut random = 7u64;
    let mut next = || {
        random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        random >> 16
    };
    for _ in 0..100 {
        for offset in (0..4096).step_by(8) {
            hostile.store_words(2, offset, &[next()]);
        }
        // Registers of both partitions, and doorbells that are not its own.
        hostile.write32(0, 0x14000 + 0x2000 * 2 + 4, 1 + next() as u32 % 2);
        hostile.write32(0, 0x14000 + 0x2000 * 5 + 0x60, next() as u32);
        hostile.write64(0, 0x14000 + 0x2000 * 2 + 0x68, next());
        hostile.write64(0, 0x75000 + 0x4000 * 2, next());
        hostile.write64(0, 0x75010 + 0x4000 * 2, next());
        a.db_wait(1, Duration::ZERO);
        assert_eq!(a.db_read() & !a.db_valid_mask(), 0);
        let _ = window.open(0, usize::MAX);
        window.read(64, &mut [0; 64]);
        let _ = window.map(0, 8192);
        a.link_state();
    }
    assert_eq!(bench.reachable(0).len(), 1);
}
