// SPDX-License-Identifier: Apache-2.0
//! The DMA engine, or its absence.

use super::{Opened, connect, open_size, pattern, until};
use crate::ntb::port::{DmaChannel, DmaRefusal, DmaTransfer, InboundMemory, NtbPort, PortError};
use std::time::{Duration, Instant};

/// True when there is no engine, and opening one says so.
fn absent(port: &dyn NtbPort) -> bool {
    let absent = port.capabilities().dma.is_none();
    if absent {
        assert!(matches!(port.dma(0), Err(PortError::Unsupported(_))));
    }
    absent
}

/// Memory that the engine of `port` may read, with bytes in it.
fn source(port: &dyn NtbPort, seed: u64, len: usize) -> InboundMemory {
    let memory = InboundMemory::new(len).unwrap();
    // SAFETY: fresh memory of at least this length.
    unsafe { memory.base().copy_from(pattern(seed, len).as_ptr(), len) };
    port.register(&memory.region()).unwrap();
    memory
}

/// Opens as many slots of window 0 as the transfers of any case need.
fn open(port: &dyn NtbPort, slot: usize) -> Opened<'_> {
    let slot_size = port.capabilities().windows[0].slot_size();
    open_size(port, slot, slot_size.max(1 << 16))
}

/// A channel with `len` bytes of window 0 open, of which the port may be told late.
fn channel(port: &dyn NtbPort, len: usize) -> Box<dyn DmaChannel> {
    let mut channel = port.dma(0).unwrap();
    until("the range to be open", || match channel.open(0, len) {
        Ok(()) => true,
        Err(PortError::NotConnected | PortError::Closed { .. }) => false,
        Err(error) => panic!("{error}"),
    });
    channel
}

fn to(offset: usize, source: &InboundMemory, len: usize) -> DmaTransfer {
    DmaTransfer { offset, source: source.base(), len, flag: None }
}

pub(super) fn data_before_flag(a: &dyn NtbPort, b: &dyn NtbPort) {
    if absent(a) {
        return;
    }
    connect(a, b);
    let target = open(b, 0);
    let len = 30_000;
    let bytes = source(a, 3, len);
    let mut channel = channel(a, 1 << 16);
    // SAFETY: `bytes` outlives the channel.
    unsafe {
        let first = DmaTransfer { flag: Some((0, 9)), ..to(64, &bytes, len) };
        assert_eq!(channel.submit(first), Ok(1));
        assert_eq!(channel.submit(to(30_080, &bytes, len)), Ok(2));
    }
    until("the flag", || {
        channel.poll();
        target.memory.load(0) == 9
    });
    assert_eq!(target.memory.copy_out(64, len), pattern(3, len));
    until("both transfers", || channel.poll().finished == 2);
    until("their bytes", || target.memory.copy_out(30_080, len) == pattern(3, len));
}

pub(super) fn in_order(a: &dyn NtbPort, b: &dyn NtbPort) {
    if absent(a) {
        return;
    }
    connect(a, b);
    let target = open(b, 0);
    let len = 20_000;
    let bytes = source(a, 5, len);
    let mut channel = channel(a, 1 << 16);
    for round in 1..=20u64 {
        let offset = 64 + (round as usize % 2) * 20_032;
        (offset..offset + len).step_by(8).for_each(|at| target.memory.store(at, 0));
        // The flag is a transfer of its own, without data.
        let none = std::ptr::null();
        let flag = DmaTransfer { offset: 0, source: none, len: 0, flag: Some((0, round)) };
        // SAFETY: `bytes` outlives the channel; the other transfer reads nothing.
        unsafe {
            channel.submit(to(offset, &bytes, len)).unwrap();
            channel.submit(flag).unwrap();
        }
        until("the flag", || {
            channel.poll();
            target.memory.load(0) == round
        });
        assert_eq!(target.memory.copy_out(offset, len), pattern(5, len));
    }
}

pub(super) fn without_polls(a: &dyn NtbPort, b: &dyn NtbPort) {
    if absent(a) {
        return;
    }
    connect(a, b);
    let target = open(b, 0);
    let bytes = source(a, 7, 1 << 15);
    let mut channel = channel(a, 1 << 15);
    let transfer = DmaTransfer { flag: Some((1 << 15, 1)), ..to(0, &bytes, 1 << 15) };
    channel.open(1 << 15, 8).unwrap();
    // SAFETY: `bytes` outlives the channel.
    unsafe { channel.submit(transfer) }.unwrap();
    until("the flag, though nobody polls the channel", || {
        b.poll();
        a.poll();
        target.memory.load(1 << 15) == 1
    });
    assert_eq!(target.memory.copy_out(0, 1 << 15), pattern(7, 1 << 15));
}

pub(super) fn wakes(a: &dyn NtbPort, b: &dyn NtbPort) {
    if absent(a) {
        return;
    }
    connect(a, b);
    a.link_event();
    let target = open(b, 0);
    let bytes = source(a, 9, 1 << 15);
    let mut channel = channel(a, 1 << 15);
    let long = Duration::from_secs(20);
    if !channel.wake() {
        return;
    }
    for number in 1..=5 {
        let begun = Instant::now();
        // SAFETY: `bytes` outlives the channel.
        unsafe { channel.submit(to(0, &bytes, 1 << 15)) }.unwrap();
        while !a.db_wait(0, long).transferred {
            assert!(begun.elapsed() < long, "nobody was told of the end of a transfer");
        }
        let progress = channel.poll();
        assert_eq!((progress.finished, progress.failed), (number, 0));
    }
    until("the bytes", || target.memory.copy_out(0, 1 << 15) == pattern(9, 1 << 15));
    assert!(!a.db_wait(0, Duration::from_millis(2)).transferred, "it is told once");
}

pub(super) fn bounded(a: &dyn NtbPort, b: &dyn NtbPort) {
    if absent(a) {
        return;
    }
    connect(a, b);
    let target = open(b, 0);
    let limits = a.capabilities().dma.expect("checked above");
    let word = source(a, 11, 8);
    let mut channel = channel(a, 64);
    let own = 5u64;
    let other = DmaTransfer { offset: 8, source: (&raw const own).cast(), len: 8, flag: None };
    let mut taken = 0;
    // SAFETY: `word` outlives the channel; what is refused is not read.
    unsafe {
        let refused = channel.submit(to(8, &word, limits.max_len + 1));
        assert_eq!(refused, Err(DmaRefusal::TooLong));
        assert_eq!(channel.submit(other), Err(DmaRefusal::Unregistered), "memory of a program");
        let over = DmaTransfer { len: word.size() + 1, ..to(8, &word, 0) };
        assert_eq!(channel.submit(over), Err(DmaRefusal::Unregistered), "over the end");
        // An engine moves on meanwhile, so more than there are descriptors may find room.
        while taken < 4 * limits.descriptors as u64 {
            match channel.submit(to(8, &word, 8)) {
                Ok(number) => {
                    taken += 1;
                    assert_eq!(number, taken);
                }
                Err(why) => {
                    assert_eq!(why, DmaRefusal::Full);
                    assert!(taken >= limits.descriptors as u64);
                    break;
                }
            }
        }
    }
    until("the transfers", || channel.poll().finished == taken);
    let expected = u64::from_ne_bytes(pattern(11, 8).try_into().unwrap());
    until("the word", || target.memory.load(8) == expected);
    assert_eq!(channel.poll().failed, 0);
}

pub(super) fn lost_with_the_link(a: &dyn NtbPort, b: &dyn NtbPort) {
    if absent(a) {
        return;
    }
    connect(a, b);
    let target = open(b, 0);
    let bytes = source(a, 13, 4096);
    let mut channel = channel(a, 8192);
    a.link_disable().unwrap();
    until("the link to go down", || !b.link_state().up);
    // SAFETY: `bytes` outlives the channel.
    unsafe { channel.submit(to(0, &bytes, 4096)) }.unwrap();
    until("the transfer", || channel.poll().finished == 1);
    a.link_enable().unwrap();
    until("the link to come back", || a.link_state().up && b.link_state().up);
    b.mw_set_trans(0, 0, target.address, target.size).unwrap();
    // Not opened again: this is lost as well, though the link is up.
    // SAFETY: as above.
    unsafe { channel.submit(to(0, &bytes, 4096)) }.unwrap();
    until("the transfer", || channel.poll().finished == 2);
    channel.open(0, 8192).unwrap();
    // SAFETY: as above.
    unsafe { channel.submit(to(4096, &bytes, 4096)) }.unwrap();
    until("what was sent after", || {
        channel.poll();
        target.memory.copy_out(4096, 4096) == pattern(13, 4096)
    });
    assert_eq!(target.memory.copy_out(0, 4096), vec![0; 4096], "what was sent before");
}

/// Slot 0 is set again, slot 1 with the flag is not: the flag of what is lost in slot 0 is not written.
pub(super) fn flag_lost_with_data(a: &dyn NtbPort, b: &dyn NtbPort) {
    if absent(a) {
        return;
    }
    connect(a, b);
    let slot_size = b.capabilities().windows[0].slot_size() as usize;
    let (target, flags) = (super::open(b, 0), super::open(b, 1));
    let bytes = source(a, 15, 4096);
    let mut channel = channel(a, 2 * slot_size);
    let put = |channel: &mut dyn DmaChannel, flag: usize| {
        let flag = Some((slot_size + flag, 1));
        // SAFETY: `bytes` outlives the channel.
        unsafe { channel.submit(DmaTransfer { flag, ..to(0, &bytes, 4096) }) }.unwrap();
    };
    put(&mut *channel, 0);
    until("the first flag", || {
        channel.poll();
        flags.memory.load(0) == 1
    });
    b.mw_set_trans(0, 0, target.address, target.size).unwrap();
    (0..4096).step_by(8).for_each(|at| target.memory.store(at, 0));
    put(&mut *channel, 8);
    until("both transfers", || channel.poll().finished == 2);
    until("the range to be open", || channel.open(0, 2 * slot_size).is_ok());
    put(&mut *channel, 16);
    until("what was sent behind", || {
        channel.poll();
        flags.memory.load(16) == 1
    });
    assert_eq!(flags.memory.load(8), 0, "the flag of what was lost");
    assert_eq!(target.memory.copy_out(0, 4096), pattern(15, 4096));
}
