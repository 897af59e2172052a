// SPDX-License-Identifier: Apache-2.0
//! The link and the scratchpads.

use super::windows::hammered;
use super::{PATIENCE, connect, open, sender, until};
use crate::ntb::port::NtbPort;
use std::time::Duration;

pub(super) fn up_when_both_enable(a: &dyn NtbPort, b: &dyn NtbPort) {
    assert!(!a.link_state().up && !b.link_state().up);
    a.link_enable().unwrap();
    assert!(!a.link_state().up, "one side is not enough");
    a.link_enable().unwrap();
    assert!(!a.link_state().up, "nor is one side twice");
    connect(a, b);
    let state = a.link_state();
    assert!(state.width > 0 && state.max_payload >= 64, "{state:?}");
    b.link_disable().unwrap();
    assert!(!b.link_state().up);
    until("the link to be down on the other side", || !a.link_state().up);
    assert_ne!(a.link_state().generation, state.generation);
}

pub(super) fn changes_are_events(a: &dyn NtbPort, b: &dyn NtbPort) {
    assert!(!a.link_event());
    connect(a, b);
    assert!(a.link_event() && b.link_event());
    // A port that is told late says so once more.
    until("no events of a link that does not change", || !a.link_event() && !b.link_event());
    let before = b.link_state().generation;
    a.link_disable().unwrap();
    a.link_enable().unwrap();
    until("the event of a link that was down between two looks", || b.link_event());
    assert_ne!(b.link_state().generation, before);
    until("the link", || a.link_state().up && b.link_state().up);
}

pub(super) fn change_ends_a_wait(a: &dyn NtbPort, b: &dyn NtbPort) {
    connect(a, b);
    b.link_event();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            until("the link change", || {
                b.db_wait(1, PATIENCE).link_changed && b.link_event() && !b.link_state().up
            });
        });
        a.link_disable().unwrap();
        waiter.join().unwrap();
    });
}

pub(super) fn down_loses_everything(a: &dyn NtbPort, b: &dyn NtbPort) {
    connect(a, b);
    let target = open(b, 0);
    let mut sender = sender(a);
    sender.write_word(0, 1);
    a.peer_spad_write(0, 5);
    until("what was sent before", || (target.memory.load(0), b.spad_read(0)) == (1, 5));
    b.link_disable().unwrap();
    sender.try_word(0, 2);
    a.peer_db_set(1);
    a.peer_spad_write(0, 6);
    let mut bytes = [0; 8];
    sender.window.read(0, &mut bytes);
    assert_eq!(bytes, [0xff; 8], "reads give all ones");
    assert_eq!(a.peer_spad_read(0), u32::MAX);
    b.link_enable().unwrap();
    until("the link", || a.link_state().up);
    b.mw_set_trans(0, 0, target.address, target.size).unwrap();
    sender.write_word(8, 3);
    a.peer_spad_write(1, 7);
    a.peer_db_set(2);
    let arrived = || target.memory.load(8) == 3 && b.spad_read(1) == 7 && b.db_read() & 2 != 0;
    until("what was sent later", arrived);
    assert_eq!((target.memory.load(0), b.spad_read(0), b.db_read()), (1, 5, 2));
}

pub(super) fn down_keeps_or_resets(a: &dyn NtbPort, b: &dyn NtbPort) {
    connect(a, b);
    let target = open(b, 0);
    let mut sender = sender(a);
    b.db_clear_mask(2);
    a.peer_db_set(2);
    until("the doorbell", || b.db_read() == 2);
    a.spad_write(0, 33);
    b.spad_write(0, 44);
    a.link_disable().unwrap();
    assert_eq!((a.spad_read(0), b.spad_read(0)), (33, 44), "stale values survive");
    a.link_enable().unwrap();
    until("the link", || a.link_state().up && b.link_state().up);
    if b.capabilities().resets_on_link_down {
        assert_eq!((b.db_read(), b.db_read_mask()), (0, b.db_valid_mask()));
        sender.try_word(0, 7);
        b.mw_set_trans(0, 0, target.address, target.size).unwrap();
        sender.write_word(8, 8);
        until("what follows", || target.memory.load(8) == 8);
        assert_eq!(target.memory.load(0), 0, "nothing was behind the window");
    } else {
        assert_eq!((b.db_read(), b.db_read_mask()), (2, b.db_valid_mask() & !2));
        sender.write_word(0, 7);
        until("a write through what is still open", || target.memory.load(0) == 7);
    }
}

pub(super) fn comes_back(a: &dyn NtbPort, b: &dyn NtbPort) {
    connect(a, b);
    let target = open(b, 0);
    let mut sender = sender(a);
    for round in 1..=5 {
        b.link_disable().unwrap();
        sender.try_word(0, u64::MAX);
        b.link_enable().unwrap();
        until("the link", || a.link_state().up);
        b.mw_set_trans(0, 0, target.address, target.size).unwrap();
        sender.write_word(0, round);
        until("the write", || target.memory.load(0) == round);
    }
}

pub(super) fn disable_is_a_barrier(a: &dyn NtbPort, b: &dyn NtbPort) {
    connect(a, b);
    let target = open(b, 0);
    let memory = &target.memory;
    hammered(a, memory, |written| {
        for round in 0..20 {
            until("writes to arrive", || memory.load(0) != 0);
            b.link_disable().unwrap();
            memory.store(0, 0);
            let before = written();
            until("more writes", || written() > before + 100);
            assert_eq!(memory.load(0), 0, "round {round}: a write crossed a dead link");
            b.link_enable().unwrap();
            b.mw_set_trans(0, 0, target.address, target.size).unwrap();
        }
    });
}

pub(super) fn scratchpads(a: &dyn NtbPort, b: &dyn NtbPort) {
    connect(a, b);
    let count = a.capabilities().spads;
    for index in 0..count {
        a.spad_write(index, 100 + index as u32);
        a.peer_spad_write(index, 200 + index as u32);
    }
    for index in 0..count {
        let expected = (100 + index as u32, 200 + index as u32);
        until("the write", || b.spad_read(index) == expected.1);
        assert_eq!(a.spad_read(index), expected.0, "scratchpad {index}");
        assert_eq!((b.peer_spad_read(index), a.peer_spad_read(index)), expected);
    }
    a.spad_write(count, 1);
    a.peer_spad_write(count, 1);
    let all_ones = (u32::MAX, u32::MAX);
    assert_eq!((a.spad_read(count), a.peer_spad_read(count)), all_ones, "there is no such one");
    // Waiting for nothing returns in time even if nothing ever happens.
    assert_eq!(a.db_wait(0, Duration::ZERO).pending, 0);
}
