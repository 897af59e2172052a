// SPDX-License-Identifier: Apache-2.0
//! The DMA engine, or its absence.

use super::{connect, open, pattern, until};
use crate::ntb::port::{DmaRefusal, DmaTransfer, NtbPort, PortError};

/// True when there is no engine, and opening one says so.
fn absent(port: &dyn NtbPort) -> bool {
    let absent = port.capabilities().dma.is_none();
    if absent {
        assert!(matches!(port.dma(0), Err(PortError::Unsupported(_))));
    }
    absent
}

pub(super) fn data_before_flag(a: &dyn NtbPort, b: &dyn NtbPort) {
    if absent(a) {
        return;
    }
    connect(a, b);
    let target = open(b, 0);
    let bytes = pattern(3, 30_000);
    let mut channel = a.dma(0).unwrap();
    let transfer = |source: &Vec<u8>, offset, flag| DmaTransfer {
        offset,
        source: source.as_ptr(),
        len: source.len(),
        flag,
    };
    // SAFETY: `bytes` outlives the channel's transfers, which are waited for.
    unsafe {
        assert_eq!(channel.submit(transfer(&bytes, 64, Some((0, 9)))), Ok(1));
        assert_eq!(channel.submit(transfer(&bytes, 30_080, None)), Ok(2));
    }
    assert_eq!(target.memory.load(0), 0);
    until("the flag", || {
        channel.poll();
        target.memory.load(0) == 9
    });
    assert_eq!(target.memory.copy_out(64, bytes.len()), bytes);
    until("both transfers", || channel.poll().finished == 2);
    until("their bytes", || target.memory.copy_out(30_080, bytes.len()) == bytes);
}

pub(super) fn bounded(a: &dyn NtbPort, b: &dyn NtbPort) {
    if absent(a) {
        return;
    }
    connect(a, b);
    let target = open(b, 0);
    let limits = a.capabilities().dma.expect("checked above");
    let word = 5u64;
    let transfer =
        |len| DmaTransfer { offset: 8, source: (&raw const word).cast(), len, flag: None };
    let mut channel = a.dma(0).unwrap();
    // SAFETY: `word` outlives the transfers; those too long are refused before anything is read.
    unsafe {
        assert_eq!(channel.submit(transfer(limits.max_len + 1)), Err(DmaRefusal::TooLong));
        for number in 1..=limits.descriptors as u64 {
            assert_eq!(channel.submit(transfer(8)), Ok(number));
        }
        assert_eq!(channel.submit(transfer(8)), Err(DmaRefusal::Full));
    }
    until("the transfers", || channel.poll().finished == limits.descriptors as u64);
    until("the word", || target.memory.load(8) == 5);
    assert_eq!(channel.poll().failed, 0);
}
