// SPDX-License-Identifier: Apache-2.0
//! Doorbells: latch, mask, events.

use super::{PATIENCE, connect, until};
use crate::ntb::port::NtbPort;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

pub(super) fn latches(a: &dyn NtbPort, b: &dyn NtbPort) {
    connect(a, b);
    assert_eq!(b.db_read(), 0);
    a.peer_db_set(0b101);
    a.peer_db_set(0b110);
    until("the doorbells", || b.db_read() == 0b111);
    assert_eq!(a.db_read(), 0, "the ringer's own register is another one");
    b.db_clear(0b011);
    assert_eq!(b.db_read(), 0b100, "only what was asked for is cleared");
    b.db_clear(0);
    assert_eq!(b.db_read(), 0b100);
}

pub(super) fn masked_at_first(a: &dyn NtbPort, b: &dyn NtbPort) {
    connect(a, b);
    assert_eq!(b.db_read_mask(), b.db_valid_mask());
    a.peer_db_set(1);
    until("the doorbell", || b.db_read() == 1);
    assert_eq!(b.db_wait(1, Duration::ZERO).pending, 0, "pending, but masked");
    b.db_clear_mask(0b11);
    assert_eq!(b.db_read_mask(), b.db_valid_mask() & !0b11);
    b.db_set_mask(0b10);
    assert_eq!(b.db_read_mask(), b.db_valid_mask() & !0b01);
}

pub(super) fn unmask_raises(a: &dyn NtbPort, b: &dyn NtbPort) {
    connect(a, b);
    b.link_event();
    a.peer_db_set(0b10);
    until("the doorbell", || b.db_read() == 0b10);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| waited(b, 0b10));
        b.db_clear_mask(0b10);
        assert_eq!(waiter.join().unwrap(), 0b10);
    });
}

pub(super) fn ends_a_wait(a: &dyn NtbPort, b: &dyn NtbPort) {
    connect(a, b);
    b.link_event();
    b.db_clear_mask(0b11);
    std::thread::scope(|scope| {
        let first = scope.spawn(|| waited(b, 0b01));
        let both = scope.spawn(|| waited(b, 0b11));
        a.peer_db_set(0b01);
        assert_eq!((first.join().unwrap(), both.join().unwrap()), (0b01, 0b01));
    });
    assert_eq!(b.db_read(), 0b01, "waiting clears nothing");
}

pub(super) fn wait_has_an_end(a: &dyn NtbPort, b: &dyn NtbPort) {
    connect(a, b);
    b.link_event();
    b.db_clear_mask(0b01);
    a.peer_db_set(0b10);
    let wake = b.db_wait(0b01, Duration::from_millis(2));
    assert_eq!((wake.pending, wake.link_changed), (0, false));
}

/// Both sides sleep for a doorbell and answer: any lost wake-up ends the case by time-out.
pub(super) fn no_lost_wakes(a: &dyn NtbPort, b: &dyn NtbPort) {
    connect(a, b);
    let rounds = 300;
    let mail = [AtomicU64::new(0), AtomicU64::new(0)];
    for port in [a, b] {
        port.db_clear_mask(1);
        port.link_event();
    }
    let sleep_until = |port: &dyn NtbPort, mail: &AtomicU64, round| {
        while mail.load(Ordering::SeqCst) < round {
            let start = Instant::now();
            let wake = port.db_wait(1, PATIENCE);
            let state = (mail.load(Ordering::SeqCst), port.db_read(), port.db_read_mask());
            let in_time = wake.pending != 0 || start.elapsed() < PATIENCE;
            assert!(in_time, "round {round}: slept through, {state:?}");
            port.db_clear(1);
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1..=rounds {
                sleep_until(b, &mail[1], round);
                mail[0].store(round, Ordering::SeqCst);
                b.peer_db_set(1);
            }
        });
        for round in 1..=rounds {
            mail[1].store(round, Ordering::SeqCst);
            a.peer_db_set(1);
            sleep_until(a, &mail[0], round);
        }
    });
}

pub(super) fn invalid_bits(a: &dyn NtbPort, b: &dyn NtbPort) {
    connect(a, b);
    let valid = b.db_valid_mask();
    assert_eq!(valid.count_ones(), b.capabilities().doorbell_bits);
    b.db_clear_mask(u64::MAX);
    assert_eq!(b.db_read_mask(), 0);
    a.peer_db_set(!valid);
    a.peer_db_set(u64::MAX);
    until("all doorbells", || b.db_read() == valid);
    b.db_clear(u64::MAX);
    assert_eq!(b.db_read(), 0);
}

/// Waits for a bit; spurious wakes are allowed.
fn waited(port: &dyn NtbPort, bits: u64) -> u64 {
    let mut pending = 0;
    until("a doorbell", || {
        pending = port.db_wait(bits, PATIENCE).pending;
        pending != 0
    });
    pending
}
