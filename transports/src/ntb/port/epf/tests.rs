// SPDX-License-Identifier: Apache-2.0
//! The port on a model of the function's registers.

use super::chip::EpfChip;
use super::model::{Epf, Ills, Shape};
use crate::ntb::drive::device_tests::Link;
use crate::ntb::port::bridge::testing::{Bench, opened, store};
use crate::ntb::port::bridge::{BridgePort, Device};
use crate::ntb::port::conformance::CASES;
use crate::ntb::port::{Line, NtbPort, PortError, Result};
use std::sync::Arc;
use std::time::{Duration, Instant};

const SHAPES: [Shape; 2] = [Shape::LINUX, Shape::SMALL];
/// Only a failing test waits so long.
const PATIENCE: Duration = Duration::from_secs(20);

fn open(bench: &Arc<Bench<Epf>>, side: usize) -> Result<BridgePort> {
    let device = bench.function(side);
    BridgePort::new(EpfChip::new(device.clone())?, device)
}

fn pair(shape: Shape) -> (Arc<Bench<Epf>>, BridgePort, BridgePort) {
    let bench = Bench::new(Epf::new(shape));
    let (a, b) = (open(&bench, 0).unwrap(), open(&bench, 1).unwrap());
    (bench, a, b)
}

/// Both ends of a link, for tests of others.
pub fn link() -> Link {
    let (bench, a, b) = pair(Shape { windows: [4 << 20, 16 << 20], ..Shape::LINUX });
    ([Arc::new(a), Arc::new(b)], Box::new(move || bench.lose(0)))
}

fn connected(shape: Shape) -> (Arc<Bench<Epf>>, BridgePort, BridgePort) {
    let (bench, a, b) = pair(shape);
    a.link_enable().unwrap();
    b.link_enable().unwrap();
    assert!(a.link_state().up && b.link_state().up);
    (bench, a, b)
}

#[test]
fn the_function_is_a_port() {
    for shape in SHAPES {
        for (name, case) in CASES {
            eprintln!("{name}, {shape:?}");
            let (_, a, b) = pair(shape);
            case(&a, &b);
        }
    }
}

#[test]
fn a_peer_reaches_what_is_open_and_nothing_else() {
    let (bench, a, b) = connected(Shape::LINUX);
    assert_eq!(bench.reachable(1).len(), 1, "the page of the port");
    let memory = [0, 1].map(|window| opened(&b, window, 12 << 10));
    let lens: Vec<usize> = bench.reachable(1).iter().map(|(_, len)| *len).collect();
    assert_eq!(lens, [4096, 8192, 4096, 8192, 4096], "slots of 8 KiB, and the page");
    let mut windows = [0, 1].map(|window| a.outbound(window).unwrap());
    for (window, memory) in windows.iter_mut().zip(&memory) {
        store(&mut **window, (12 << 10) - 8, 5).unwrap();
        assert_eq!(memory.load((12 << 10) - 8), 5);
        let refused = store(&mut **window, 12 << 10, 6);
        assert!(matches!(refused, Err(PortError::Closed { slot: 1, .. })), "{refused:?}");
    }
    // Neither does a peer whose driver keeps to nothing.
    let raw = bench.function(0);
    for offset in (4096..1 << 20).step_by(4096) {
        raw.store_words(4, offset, &[7]);
    }
    assert_eq!(bench.faults(1), 255 - 3);
    drop(b);
    assert_eq!(bench.reachable(1), []);
    assert!(!a.link_state().up, "who goes takes the link along");
}

#[test]
fn a_device_that_is_gone_is_a_link_that_is_lost() {
    let (bench, a, b) = connected(Shape::LINUX);
    let _memory = opened(&b, 0, 8192);
    let mut window = a.outbound(0).unwrap();
    store(&mut *window, 0, 1).unwrap();
    a.link_event();
    bench.lose(0);
    // Nothing interrupts: whoever looks finds it.
    let begun = Instant::now();
    while a.link_state().up {
        assert!(begun.elapsed() < PATIENCE);
    }
    assert!(a.db_wait(0, PATIENCE).link_changed);
    assert!(a.link_event() && !a.link_event());
    assert!(matches!(a.link_enable(), Err(PortError::Gone(_))));
    let memory = a.inbound_memory(0, 0, 4096).unwrap();
    let address = a.register(&memory.region()).unwrap();
    let result = a.mw_set_trans(0, 0, address, 4096);
    assert!(matches!(result, Err(PortError::Gone(_))), "{result:?}");
    assert!(matches!(store(&mut *window, 0, 2), Err(PortError::NotConnected)));
    window.write_line(0, &Line([3; 8]));
    a.peer_db_set(1);
    a.peer_spad_write(0, 1);
    assert_eq!((a.peer_spad_read(0), a.db_read()), (u32::MAX, 0));
    assert!(a.describe().contains("does not answer"), "{}", a.describe());
    let again = open(&bench, 0).err().expect("nothing is there").to_string();
    assert!(again.contains("does not answer"), "{again}");
}

#[test]
fn a_process_that_is_killed_leaves_a_link_that_the_next_one_uses() {
    let (bench, a, b) = connected(Shape::LINUX);
    let _memory = opened(&b, 0, 8192);
    let mut window = a.outbound(0).unwrap();
    store(&mut *window, 0, 1).unwrap();
    a.link_event();
    bench.kill(1);
    std::mem::forget(b);
    assert!(a.db_wait(0, PATIENCE).link_changed && !a.link_state().up);
    let b = open(&bench, 1).unwrap();
    b.link_enable().unwrap();
    assert!(a.link_state().up && b.link_state().up);
    let closed = store(&mut *window, 0, 2);
    assert!(matches!(closed, Err(PortError::Closed { .. })), "what was open before: {closed:?}");
    let memory = opened(&b, 0, 8192);
    store(&mut *window, 0, 3).unwrap();
    assert_eq!(memory.load(0), 3);
}

#[test]
fn what_a_peer_writes_is_not_believed() {
    let (bench, a, b) = connected(Shape::LINUX);
    let own = opened(&b, 0, 8192);
    let hostile = bench.function(1);
    let mut window = a.outbound(0).unwrap();
    let mut random = 7u64;
    for round in 0..300 {
        for offset in (0..4096).step_by(8) {
            random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            let word = if round == 0 { u64::MAX } else { random };
            // The page in which side 0 looks for open slots.
            hostile.store_words(4, offset, &[word]);
        }
        for index in 0..64 {
            b.peer_spad_write(index, random as u32);
        }
        let vector = (random >> 40) as u32 % 17;
        hostile.write32(2, 0x20 + 4 * vector as usize, 0xd000 + vector);
        a.db_wait(1, Duration::ZERO);
        let _ = window.open(0, usize::MAX);
        window.write_line(64 * (random as usize % 4096), &Line([1; 8]));
        window.read(64, &mut [0; 64]);
        let mapping = window.map(0, 8192);
        // SAFETY: eight bytes of a local.
        mapping.map(|mapping| unsafe { mapping.write(0, (&raw const random).cast(), 8) });
        a.link_state();
    }
    assert!(bench.faults(1) > 0, "it loses its own data");
    assert_eq!(own.size(), 8192);
}

#[test]
fn a_function_that_cannot_be_is_refused() {
    let refused = |what: &str, change: &dyn Fn(&mut Epf)| {
        let bench = Bench::new(Epf::new(Shape::LINUX));
        bench.tamper(|model, _| change(model));
        let why = open(&bench, 0).err().unwrap_or_else(|| panic!("{what} is taken")).to_string();
        assert!(why.contains("side 0 of a model"), "{why}");
        why
    };
    refused("no window", &|model| model.sides[0].put(0x20, 0));
    refused("scratchpads outside", &|model| model.sides[0].put(0x28, 0xf00));
    refused("scratchpads between words", &|model| model.sides[0].put(0x28, 0x201));
    refused("many scratchpads", &|model| model.sides[0].put(0x2c, 1 << 31));
    refused("a doorbell outside", &|model| model.sides[0].put(0xb4 + 4 * 3, 0x1000));
    refused("steps outside", &|model| model.sides[0].put(0x30, u32::MAX));
    let why = refused("no doorbells", &|model| model.ills = Ills::Refuses(1));
    assert!(why.contains("refused command 1"), "{why}");
    let why = refused("a hanging firmware", &|model| model.ills = Ills::Hangs);
    assert!(why.contains("does not end command"), "{why}");
    let bench = Bench::new(Epf::new(Shape { vectors: 1, ..Shape::LINUX }));
    let why = open(&bench, 0).err().expect("refused").to_string();
    assert!(why.contains("1 interrupt vectors"), "{why}");
    let narrow = Shape { windows: [32 << 10, 0], ..Shape::LINUX };
    assert!(open(&Bench::new(Epf::new(narrow)), 0).is_err(), "a window of a few pages");
}

/// Registers of any content: a port, or an error, and no access outside of the function.
#[test]
fn garbage_in_registers_does_no_harm() {
    let mut random = 3u64;
    let mut ports = 0;
    for _ in 0..2000 {
        let bench = Bench::new(Epf::new(Shape::LINUX));
        bench.tamper(|model, _| {
            // Some of the registers, in part with numbers that might be.
            for at in (0x20..0x134).step_by(4) {
                random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(11);
                let bits = random >> 33;
                if bits.is_multiple_of(61) {
                    model.sides[0].put(at, (random >> 20) as u32 >> (bits % 31));
                }
            }
        });
        let Ok(port) = open(&bench, 0) else { continue };
        ports += 1;
        let _ = port.link_enable();
        for index in [0, port.capabilities().spads.wrapping_sub(1), usize::MAX] {
            port.spad_write(index, 1);
            port.spad_read(index);
        }
        port.describe();
    }
    assert!(ports > 20, "{ports}");
}

#[test]
fn a_window_that_the_firmware_refuses_is_told() {
    let (bench, a, _b) = pair(Shape::LINUX);
    bench.tamper(|model, _| model.ills = Ills::Refuses(3));
    let why = a.link_enable().unwrap_err().to_string();
    assert!(why.contains("refused command 3"), "{why}");
    bench.tamper(|model, _| model.ills = Ills::None);
    a.link_enable().unwrap();
}
