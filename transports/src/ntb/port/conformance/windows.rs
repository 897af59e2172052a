// SPDX-License-Identifier: Apache-2.0
//! Windows: translation, bounds, order.

use super::{PATIENCE, connect, open, open_size, pattern, sender, steadily, until};
use crate::ntb::port::{InboundMemory, Line, NtbPort, PortError, WindowMapping};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

pub(super) fn leads_to_memory_alone(a: &dyn NtbPort, b: &dyn NtbPort) {
    connect(a, b);
    let (before, target, behind) = (open(b, 0), open(b, 1), open(b, 2));
    let mut sender = sender(a);
    assert_eq!(sender.window.size() as u64, b.capabilities().windows[0].size);
    let size = target.memory.size();
    sender.write_word(target.start, 11);
    sender.write_word(target.start + size - 8, 22);
    until("the writes", || (target.memory.load(0), target.memory.load(size - 8)) == (11, 22));
    assert_eq!(before.memory.load(size - 8), 0, "the slot before is untouched");
    assert_eq!(behind.memory.load(0), 0, "the slot behind is untouched");
}

pub(super) fn any_shape(a: &dyn NtbPort, b: &dyn NtbPort) {
    connect(a, b);
    let target = open(b, 0);
    let mut sender = sender(a);
    let mut expected = vec![0; 8192];
    for (seed, len) in [1, 2, 3, 4, 7, 8, 15, 16, 63, 64, 65, 127, 200, 1000].iter().enumerate() {
        for offset in [0, 1, 4, 8, 60, 63, 64, 1021, 4096, 4100] {
            let bytes = pattern((seed * 100 + offset) as u64, *len);
            sender.write(offset, &bytes);
            expected[offset..offset + len].copy_from_slice(&bytes);
            until("the bytes", || target.memory.copy_out(0, 8192) == expected);
        }
    }
}

pub(super) fn spans_slots(a: &dyn NtbPort, b: &dyn NtbPort) {
    connect(a, b);
    let slot_size = b.capabilities().windows[0].slot_size();
    let target = open_size(b, 2, 2 * slot_size);
    let mut sender = sender(a);
    let bytes = pattern(1, 5000);
    let offset = slot_size as usize - 2345;
    sender.write(target.start + offset, &bytes);
    until("both parts", || target.memory.copy_out(offset, 5000) == bytes);
}

pub(super) fn rules_are_enforced(a: &dyn NtbPort, b: &dyn NtbPort) {
    connect(a, b);
    let rules = b.capabilities().windows[0];
    let slot = rules.slot_size();
    let memory = b.inbound_memory(0, 0, 4 * slot as usize).unwrap();
    let address = b.register(&memory.region()).unwrap();
    if rules.fixed {
        let other = InboundMemory::new(slot as usize).unwrap();
        let result = b.register(&other.region());
        assert!(matches!(result, Err(PortError::Unsupported(_))), "other memory: {result:?}");
        let result = b.mw_set_trans(0, 1, address, slot);
        assert!(matches!(result, Err(PortError::Invalid(_))), "in another place: {result:?}");
    } else {
        assert!(address.0.is_multiple_of(rules.size), "aligned to the window");
    }
    let refused = |window, slot, address, size, why: &str| {
        let result = b.mw_set_trans(window, slot, address, size);
        assert!(matches!(result, Err(PortError::Invalid(_))), "{why}: {result:?}");
    };
    refused(0, 0, address.plus(rules.addr_align / 2), slot, "address between alignments");
    refused(0, 0, address, 0, "no size");
    refused(0, 0, address, slot - 1, "size between alignments");
    refused(0, rules.slots - 1, address, 2 * slot, "beyond the end of the window");
    refused(0, rules.slots, address, slot, "a slot that is not there");
    refused(b.capabilities().windows.len(), 0, address, slot, "a window that is not there");
    refused(0, 0, address.plus(8 * slot), slot, "memory that is not registered");
    if rules.size_aligned {
        refused(0, 0, address, 3 * rules.size_align, "size no power of two");
        refused(0, 0, address.plus(slot / 2), slot, "address not aligned to the size");
    }
    assert!(b.mw_clear_trans(0, rules.slots, 1).is_err());
    b.mw_set_trans(0, 0, address, slot).unwrap();
    assert!(b.unregister(address).is_err(), "a window still leads there");
    b.mw_clear_trans(0, 0, 1).unwrap();
    b.unregister(address).unwrap();
    assert!(b.unregister(address).is_err(), "it is gone");
    refused(0, 0, address, slot, "memory that is not registered any more");
}

pub(super) fn not_connected(a: &dyn NtbPort, b: &dyn NtbPort) {
    let slot = b.capabilities().windows[0].slot_size();
    let memory = b.inbound_memory(0, 0, slot as usize).unwrap();
    let address = b.register(&memory.region()).unwrap();
    let result = b.mw_set_trans(0, 0, address, slot);
    assert!(matches!(result, Err(PortError::NotConnected)), "{result:?}");
    connect(a, b);
    b.mw_set_trans(0, 0, address, slot).unwrap();
    b.mw_clear_trans(0, 0, 1).unwrap();
}

pub(super) fn faults(a: &dyn NtbPort, b: &dyn NtbPort) {
    connect(a, b);
    let target = open(b, 0);
    let mut sender = sender(a);
    let size = sender.window.size();
    let slot = target.memory.size();
    sender.write_word(slot - 8, 6);
    until("what is open", || target.memory.load(slot - 8) == 6);
    // All of this vanishes, but for what lies in the open slot.
    steadily(a, || {
        sender.try_word(slot, 1);
        sender.try_write(slot - 64, &[7; 128]);
        sender.try_word(size, 1);
        sender.try_word(usize::MAX - 3, 1);
        sender.window.write_line(target.start + 8, &Line([9; 8]));
        Some(())
    });
    sender.write_word(target.start, 5);
    until("what follows", || target.memory.load(0) == 5);
    assert_eq!(target.memory.copy_out(slot - 64, 64), [7; 64], "the half in an open slot arrives");
    assert_eq!(target.memory.load(8), 0, "a line that is not aligned");
    let missing = b.capabilities().windows.len();
    assert!(a.outbound(missing).is_err(), "a window that is not there");
}

pub(super) fn limit(a: &dyn NtbPort, b: &dyn NtbPort) {
    connect(a, b);
    let rules = b.capabilities().windows[0];
    let slot = rules.slot_size();
    let short = rules.size_align;
    if !rules.has_limit {
        let memory = b.inbound_memory(0, 0, slot as usize).unwrap();
        let address = b.register(&memory.region()).unwrap();
        let result = b.mw_set_trans(0, 0, address, slot / 2);
        assert!(matches!(result, Err(PortError::Invalid(_))), "{result:?}");
        return whole_slot_before_less_memory(a, b);
    }
    let target = open_size(b, 0, short);
    let mut sender = sender(a);
    let end = short as usize;
    sender.write_word(0, 1);
    steadily(a, || {
        sender.try_write(end - 128, &[5; 256]);
        Some(())
    });
    until("what is inside", || target.memory.copy_out(end - 128, 128) == [5; 128]);
}

/// Without a limit register the slot is open as a whole, but the bus ends where memory does.
fn whole_slot_before_less_memory(a: &dyn NtbPort, b: &dyn NtbPort) {
    let memory = b.inbound_memory(0, 0, 4096).unwrap();
    let address = b.register(&memory.region()).unwrap();
    b.mw_set_trans(0, 0, address, b.capabilities().windows[0].round_up(4096)).unwrap();
    let mut sender = sender(a);
    sender.write(4096 - 64, &[5; 128]);
    until("what is inside", || memory.copy_out(4096 - 64, 64) == [5; 64]);
    b.mw_clear_trans(0, 0, 1).unwrap();
}

pub(super) fn cleared(a: &dyn NtbPort, b: &dyn NtbPort) {
    connect(a, b);
    let target = open(b, 1);
    let mut sender = sender(a);
    sender.write_word(target.start, 1);
    until("the write", || target.memory.load(0) == 1);
    b.mw_clear_trans(0, 1, 1).unwrap();
    sender.try_word(target.start, 2);
    sender.window.write_line(target.start, &Line([3; 8]));
    sender.window.flush();
    b.mw_set_trans(0, 1, target.address, target.size).unwrap();
    // Not opened again by the writer: what follows a loss is lost as well.
    sender.window.write_line(target.start, &Line([3; 8]));
    sender.window.flush();
    sender.write_word(target.start + 64, 4);
    until("a write to the slot that is open again", || target.memory.load(64) == 4);
    assert_eq!(target.memory.load(0), 1, "what was written meanwhile never arrives");
}

pub(super) fn clear_is_a_barrier(a: &dyn NtbPort, b: &dyn NtbPort) {
    connect(a, b);
    let target = open(b, 0);
    let memory = &target.memory;
    hammered(a, memory, |written| {
        for round in 0..20 {
            until("writes to arrive", || memory.load(0) != 0);
            b.mw_clear_trans(0, 0, 1).unwrap();
            memory.store(0, 0);
            let before = written();
            until("more writes", || written() > before + 100);
            assert_eq!(memory.load(0), 0, "round {round}: a write came through a closed window");
            b.mw_set_trans(0, 0, target.address, target.size).unwrap();
        }
    });
}

/// Runs `body` while another thread writes non-zero words to the start of window 0 of `port`.
/// `body` is given the count of words.
pub(super) fn hammered(
    port: &dyn NtbPort,
    memory: &InboundMemory,
    body: impl FnOnce(&dyn Fn() -> u64),
) {
    let stop = AtomicBool::new(false);
    let written = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut sender = sender(port);
            let start = Instant::now();
            while !stop.load(Ordering::Relaxed) && start.elapsed() < 2 * PATIENCE {
                let value = written.load(Ordering::Relaxed) + 1;
                sender.try_word(0, value);
                written.store(value, Ordering::Relaxed);
            }
        });
        // A failing body must not leave the other thread running.
        let stopper = Stopper(&stop);
        body(&|| written.load(Ordering::Relaxed));
        drop(stopper);
    });
    assert!(memory.size() > 0);
}

struct Stopper<'a>(&'a AtomicBool);

impl Drop for Stopper<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

pub(super) fn set_again(a: &dyn NtbPort, b: &dyn NtbPort) {
    connect(a, b);
    let first = open(b, 0);
    let mut sender = sender(a);
    sender.write_word(0, 1);
    until("the first write", || first.memory.load(0) == 1);
    let second = open(b, 0);
    assert_eq!(second.memory.load(0), 0, "new memory");
    sender.write_word(0, 2);
    until("the second write", || second.memory.load(0) == 2);
    if !b.capabilities().windows[0].fixed {
        assert_eq!(first.memory.load(0), 1);
    }
}

pub(super) fn reads(a: &dyn NtbPort, b: &dyn NtbPort) {
    connect(a, b);
    let target = open(b, 0);
    target.memory.store(8, 0x0807_0605_0403_0201);
    let mut sender = sender(a);
    sender.write_word(16, 0x42);
    let mut bytes = [0; 16];
    steadily(a, || {
        sender.window.read(8, &mut bytes);
        Some(())
    });
    assert_eq!(bytes, [1, 2, 3, 4, 5, 6, 7, 8, 0x42, 0, 0, 0, 0, 0, 0, 0]);
    sender.window.read(target.memory.size(), &mut bytes);
    assert_eq!(bytes, [0xff; 16], "a closed slot reads as all ones");
    let size = sender.window.size();
    sender.window.read(size - 8, &mut bytes);
    assert_eq!(bytes, [0xff; 16], "so does the end of the window");
}

pub(super) fn flag_follows_data(a: &dyn NtbPort, b: &dyn NtbPort) {
    connect(a, b);
    let target = open(b, 0);
    let (memory, rounds) = (&target.memory, 200u64);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut sender = sender(a);
            for round in 1..=rounds {
                sender.write(4096, &[round as u8; 1000]);
                sender.write_word(0, round);
                until("the reader", || memory.load(8) == round);
            }
        });
        for round in 1..=rounds {
            until("the flag", || memory.load(0) == round);
            assert_eq!(memory.copy_out(4096, 1000), [round as u8; 1000], "round {round}");
            memory.store(8, round);
        }
    });
}

pub(super) fn line_is_whole(a: &dyn NtbPort, b: &dyn NtbPort) {
    connect(a, b);
    let target = open(b, 0);
    let (memory, rounds) = (&target.memory, 2000u64);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut window = a.outbound(0).unwrap();
            for round in 1..=rounds {
                steadily(a, || {
                    window.open(64, 64).ok()?;
                    window.write_line(64, &Line([round; 8]));
                    window.flush();
                    Some(())
                });
            }
        });
        let mut last = 0;
        let start = Instant::now();
        while last < rounds {
            assert!(start.elapsed() < PATIENCE, "stopped at line {last}");
            last = memory.load(64 + 56);
            for word in 0..7 {
                let seen = memory.load(64 + word * 8);
                assert!(seen >= last, "word {word} is of line {seen}, the last word of {last}");
            }
        }
    });
}

pub(super) fn handles(a: &dyn NtbPort, b: &dyn NtbPort) {
    connect(a, b);
    let targets: Vec<_> = (0..4).map(|slot| open(b, slot)).collect();
    std::thread::scope(|scope| {
        for (index, target) in targets.iter().enumerate() {
            scope.spawn(move || {
                let mut sender = sender(a);
                for chunk in 0..16 {
                    let bytes = pattern((index * 16 + chunk) as u64, 300);
                    sender.write(target.start + chunk * 300, &bytes);
                }
            });
        }
    });
    for (index, target) in targets.iter().enumerate() {
        for chunk in 0..16 {
            let expected = pattern((index * 16 + chunk) as u64, 300);
            until("a handle's bytes", || target.memory.copy_out(chunk * 300, 300) == expected);
        }
    }
}

pub(super) fn mapping(a: &dyn NtbPort, b: &dyn NtbPort) {
    connect(a, b);
    let slot_size = b.capabilities().windows[0].slot_size();
    let target = open_size(b, 2, 2 * slot_size);
    let mut sender = sender(a);
    let len = 2 * slot_size as usize - 64;
    sender.write_word(target.start, 1);
    let window = &mut *sender.window;
    assert!(window.map(target.start, len + 65).is_none(), "beyond what is open");
    assert!(window.map(0, 8).is_none(), "a closed slot");
    assert!(window.map(window.size(), 8).is_none(), "beyond the window");
    let word = 77u64;
    // SAFETY: eight bytes of a local.
    let store = |to: &dyn WindowMapping, at| unsafe { to.write(at, (&raw const word).cast(), 8) };
    let used = steadily(a, || {
        window.open(target.start, len).ok()?;
        let Some(mapping) = window.map(target.start + 64, len) else { return Some(None) };
        let stored = store(&*mapping, len - 8);
        drop(open(b, 0));
        Some(Some((stored && mapping.is_open(), mapping)))
    });
    let Some((stays_open, mapping)) = used else {
        assert!(a.capabilities().write_combining, "refused only where order would be lost");
        return;
    };
    assert!(stays_open, "it can be written, and another slot that changes is no matter");
    until("the store", || target.memory.load(2 * slot_size as usize - 8) == 77);
    assert_eq!(mapping.size(), len);
    let beyond = store(&*mapping, len - 7) || store(&*mapping, usize::MAX);
    assert!(!beyond, "beyond its end");
    b.mw_clear_trans(0, 3, 1).unwrap();
    assert!(!mapping.is_open() && !store(&*mapping, 0), "one of its slots is closed");
    b.mw_set_trans(0, 2, target.address, target.size).unwrap();
    let mapping = steadily(a, || window.map(target.start, 8));
    a.link_disable().unwrap();
    assert!(!mapping.is_open(), "the link is down");
    assert!(window.map(target.start, 8).is_none());
}
