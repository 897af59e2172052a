// SPDX-License-Identifier: Apache-2.0
//! The port on a model of the function's registers.

use super::chip::EpfChip;
use super::model::{Epf, Ills, Shape};
use crate::ntb::drive::device_tests::Link;
use crate::ntb::port::bridge::testing::cases::{
    self, Driven, PATIENCE, connected, open, pair, refusal, until,
};
use crate::ntb::port::bridge::testing::{Bench, Function, opened, store};
use crate::ntb::port::bridge::{BridgePort, Device};
use crate::ntb::port::{NtbPort, PortError, Result};
use std::sync::Arc;
use std::time::Duration;

const SHAPES: [Shape; 3] = [Shape::LINUX, Shape::SMALL, Shape::NO_RESET];

impl Driven for Epf {
    type Shape = Shape;

    fn of(shape: Shape) -> Epf {
        Epf::new(shape)
    }

    fn port(device: Arc<Function<Epf>>) -> Result<BridgePort> {
        BridgePort::new(EpfChip::new(device.clone())?, device)
    }
}

/// Both ends of a link, for tests of others.
pub fn link() -> Link {
    cases::link::<Epf>(Shape { windows: [4 << 20, 16 << 20], ..Shape::LINUX })
}

#[test]
fn the_function_is_a_port() {
    cases::conforms::<Epf>(&SHAPES);
}

#[test]
fn several_processes_use_the_port() {
    cases::conforms_beside::<Epf>(&SHAPES);
}

#[test]
fn a_peer_reaches_what_is_open_and_nothing_else() {
    let (bench, a, b) = connected::<Epf>(Shape::LINUX);
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
    cases::is_lost_when_gone::<Epf>(&SHAPES);
}

#[test]
fn a_process_that_is_killed_leaves_a_link_that_the_next_one_uses() {
    cases::is_taken_over::<Epf>(&SHAPES, |shape| shape.resets);
}

/// A process was killed while the firmware had not taken a command of its own, and before it had heard of the
/// one before that.
#[test]
fn what_an_earlier_process_has_left_is_cleared_away() {
    let (bench, a, b) = connected::<Epf>(Shape::NO_RESET);
    bench.kill(1);
    std::mem::forget(b);
    let leave = |ills| {
        bench.tamper(|model, _| {
            model.ills = ills;
            model.sides[1].registers[8..10].copy_from_slice(&1u16.to_le_bytes());
        });
    };
    // A status that was left is not that of the next command.
    leave(Ills::Refuses(1));
    let why = open(&bench, 1).err().expect("refused").to_string();
    assert!(why.contains("refused command 1"), "{why}");
    bench.tamper(|model, _| model.sides[1].windows = [Some((1 << 20, 1 << 20)); 2]);
    leave(Ills::Waits);
    bench.tamper(|model, _| model.sides[1].put(0, 6));
    std::thread::scope(|scope| {
        let next = scope.spawn(|| open(&bench, 1).unwrap());
        while !next.is_finished() {
            // Slower than who looks.
            std::thread::sleep(Duration::from_millis(1));
            bench.tamper(|model, lines| model.work(lines));
        }
        bench.tamper(|model, _| {
            assert_eq!(model.sides[1].windows, [None; 2]);
            model.ills = Ills::None;
        });
        let next = next.join().unwrap();
        next.link_enable().unwrap();
        until("the link", || a.link_state().up && next.link_state().up);
    });
    assert_eq!(bench.tamper(|model, _| model.leaks), 0);
}

/// The firmware takes resources for a window as often as it is configured.
#[test]
fn windows_are_torn_down_before_they_are_configured_again() {
    for shape in SHAPES {
        let (bench, a, _b) = connected::<Epf>(shape);
        bench.tamper(|model, _| model.ills = Ills::Refuses(5));
        a.link_disable().unwrap();
        a.link_enable().unwrap_err();
        bench.tamper(|model, _| model.ills = Ills::None);
        a.link_enable().unwrap();
        assert_eq!(bench.tamper(|model, _| model.leaks), 0, "{shape:?}");
    }
}

/// As where the other host has its vector masked.
#[test]
fn a_firmware_that_tells_the_other_host_nothing_takes_links_down() {
    let bench = Bench::new(Epf::new(Shape::LINUX));
    bench.tamper(|model, _| model.ills = Ills::Refuses(6));
    let (a, b) = (open(&bench, 0).unwrap(), open(&bench, 1).unwrap());
    a.link_enable().unwrap();
    b.link_enable().unwrap();
    until("the link", || a.link_state().up && b.link_state().up);
    b.link_disable().unwrap();
    assert!(!a.link_state().up);
}

/// How the peer is rung is known when the peer has configured its doorbells, and not before.
#[test]
fn doorbells_are_those_that_the_peer_has_now() {
    let bench = Bench::new(Epf::new(Shape::LINUX));
    // As an earlier job has left it.
    bench.tamper(|model, _| {
        for vector in 0..17 {
            model.sides[0].put(0x34 + 4 * vector, 0xbad);
            model.sides[0].put(0xb4 + 4 * vector, 0x7777_0000);
        }
    });
    let (a, b) = (open(&bench, 0).unwrap(), open(&bench, 1).unwrap());
    a.link_enable().unwrap();
    b.link_enable().unwrap();
    until("the link", || a.link_state().up && b.link_state().up);
    b.db_clear_mask(u64::MAX);
    b.link_event();
    for bit in 0..16 {
        a.peer_db_set(1 << bit);
        assert_eq!(b.db_wait(1 << bit, PATIENCE).pending, 1 << bit);
    }
    b.db_clear(u64::MAX);
    // One that would be outside of the function is not rung, and others are.
    bench.tamper(|model, _| model.sides[0].put(0xb4 + 4, 0x1000));
    a.peer_db_set(3);
    assert_eq!(b.db_wait(2, PATIENCE).pending, 2);
    assert_eq!(b.db_read(), 2);
    // The next process there has others.
    bench.kill(1);
    drop(b);
    let next = open(&bench, 1).unwrap();
    next.link_enable().unwrap();
    until("the link", || a.link_state().up && next.link_state().up);
    for (from, to) in [(&a, &next), (&next, &a)] {
        to.db_clear_mask(1);
        from.peer_db_set(1);
        until("a doorbell", || to.db_wait(1, PATIENCE).pending == 1);
    }
}

#[test]
fn what_a_peer_writes_is_not_believed() {
    let registers = |hostile: &Function<Epf>, next: &mut dyn FnMut() -> u64| {
        // The scratchpads of its peer follow its own.
        for index in 64..128 {
            hostile.write32(0, 0x200 + 4 * index, next() as u32);
        }
        let at = 4 * (next() as usize % 17);
        hostile.write32(2, 0x20 + at, hostile.read32(0, 0x34 + at));
    };
    let bench = cases::does_not_believe((Shape::LINUX, 0), 4, registers);
    assert!(bench.faults(1) > 0, "it loses its own data");
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
    refused("steps outside", &|model| model.sides[0].put(0x30, 0x1000));
    refused("steps between words", &|model| model.sides[0].put(0x30, 6));
    let why = refused("no doorbells", &|model| model.ills = Ills::Refuses(1));
    assert!(why.contains("refused command 1"), "{why}");
    let why = refused("a hanging firmware", &|model| model.ills = Ills::Hangs);
    assert!(why.contains("does not end command"), "{why}");
    let why = refusal::<Epf>(Shape { vectors: 1, ..Shape::LINUX });
    assert!(why.contains("1 interrupt vectors"), "{why}");
    let narrow = refusal::<Epf>(Shape { windows: [32 << 10, 0], ..Shape::LINUX });
    assert!(narrow.contains("can be used"), "{narrow}");
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
    let (bench, a, _b) = pair::<Epf>(Shape::LINUX);
    bench.tamper(|model, _| model.ills = Ills::Refuses(3));
    let why = a.link_enable().unwrap_err().to_string();
    assert!(why.contains("refused command 3"), "{why}");
    bench.tamper(|model, _| model.ills = Ills::None);
    a.link_enable().unwrap();
}
