// SPDX-License-Identifier: Apache-2.0
//! How a port divides its windows.
//!
//! An inbound window leads to a range of addresses of its own, as large as the window. The IOMMU puts
//! memory behind parts of it: the slots. The first slot of window 0 is the port's own. It leads to the
//! [`Page`] in which the peer's port says which of *its* slots are open: so that is known here by
//! loads from local memory.

use super::chip::Aperture;
use crate::ntb::port::shared::BELLS;
use crate::ntb::port::{InboundMemory, PortError, Result, Window};
use std::os::fd::{BorrowedFd, OwnedFd};

/// Bytes of the port's [`Page`], and of the smallest slot: the same on both hosts, whatever pages their kernels have.
const PAGE: u64 = 4096;
/// Windows that are used.
pub const WINDOWS: usize = 2;
/// Slots of a window, the port's own included.
pub const SLOTS: usize = 128;
/// Where the words are in the page: by window and slot. Before them is the size of each window, and behind
/// those a greeting and the answer to one.
const TABLE: usize = 64;

/// Scratchpads in the page, of bridges that have none.
pub const SPADS: usize = 16;
/// Where they are, a word of 8 bytes each.
const SPADS_AT: usize = TABLE + WINDOWS * SLOTS * 8;

/// Where doorbells are, of bridges that have none: a word of 8 bytes each, which changes when the doorbell is rung.
const BELLS_AT: usize = SPADS_AT + SPADS * 8;

/// Where DMA engines of the peer write patterns in a trial, a part of it each.
const TRIALS_AT: usize = (BELLS_AT + BELLS * 8).next_multiple_of(64);
/// Engines of a port.
pub const ENGINES: usize = 8;

const _: () = assert!(TRIALS_AT + ENGINES * 64 <= PAGE as usize);

/// The first slot of a window that is for users of the port.
pub fn first_slot(window: usize) -> usize {
    usize::from(window == 0)
}

/// Bytes of a page of this kernel: memory is put behind addresses by whole ones.
pub fn page() -> u64 {
    tombolo_core::memory::page_size() as u64
}

/// What users see of a window: all slots but the port's own.
pub fn window_of(index: usize, aperture: &Aperture) -> Result<Window> {
    window_by(page(), index, aperture)
}

/// The same, with pages of so many bytes.
fn window_by(page: u64, index: usize, aperture: &Aperture) -> Result<Window> {
    // Both sides make the same of it.
    let size = size_of(aperture);
    let slot_size = (size / SLOTS as u64).max(PAGE);
    let all = usize::try_from(size / slot_size).unwrap_or(0);
    let slots = all.saturating_sub(first_slot(index));
    if !size.is_power_of_two() || slots < 8 || slot_size > 1 << 31 {
        return Err(PortError::Invalid(format!(
            "window {index} has {size} bytes: powers of two from {} to {} can be used",
            16 * PAGE,
            (SLOTS as u64) << 31
        )));
    }
    if slot_size < page {
        return Err(PortError::Invalid(format!(
            "window {index} has {size} bytes: this kernel has pages of {page} bytes, with which {} are the \
             least that can be used",
            SLOTS as u64 * page
        )));
    }
    Ok(Window {
        size: slots as u64 * slot_size,
        slots,
        addr_align: page,
        size_align: page,
        size_aligned: false,
        has_limit: true,
        fixed: false,
    })
}

/// Bytes of a window, the port's own slot included: as many as both hosts can reach.
pub fn size_of(aperture: &Aperture) -> u64 {
    aperture.size.min(aperture.inbound)
}

/// Where the word with the size of a window is in the page.
pub fn size_at(window: usize) -> usize {
    window * 8
}

/// Where a side says, with another value whenever its link comes up, that its windows lead where they are to
/// lead; and where it repeats what its peer has said, behind all else that it says. They are next to each other.
pub const GREETING_AT: usize = WINDOWS * 8;
pub const ANSWER_AT: usize = GREETING_AT + 8;

const _: () = assert!(ANSWER_AT + 8 <= TABLE);

/// Where the word of a slot is, counted from the port's own slot, in the page.
pub fn word_at(window: usize, slot: usize) -> usize {
    TABLE + (window * SLOTS + slot) * 8
}

/// Where the word of a scratchpad is in the page.
pub fn spad_at(index: usize) -> usize {
    SPADS_AT + index * 8
}

/// Where the word of a doorbell is in the page.
pub fn bell_at(bit: usize) -> usize {
    BELLS_AT + bit * 8
}

/// Where the engine of that number writes in a trial, in the page.
pub fn trial_at(engine: usize) -> usize {
    TRIALS_AT + engine % ENGINES * 64
}

/// What the peer says: memory of this host that it writes to.
pub struct Page(InboundMemory);

impl Page {
    pub fn new() -> Result<Page> {
        InboundMemory::new(PAGE as usize).map(Page)
    }

    /// That of another process.
    pub fn join(file: OwnedFd) -> Result<Page> {
        InboundMemory::of_file(file, 0, (PAGE as usize).next_multiple_of(page() as usize)).map(Page)
    }

    /// The file, for other processes.
    pub fn file(&self) -> Option<BorrowedFd<'_>> {
        self.0.file()
    }

    pub fn base(&self) -> *mut u8 {
        self.0.base()
    }

    /// Bytes that are mapped: whole pages.
    pub fn mapped(&self) -> usize {
        self.0.size()
    }

    pub fn spad(&self, index: usize) -> u32 {
        self.0.load(spad_at(index)) as u32
    }

    pub fn set_spad(&self, index: usize, value: u32) {
        self.0.store(spad_at(index), value.into());
    }

    /// The word of a doorbell: anything.
    pub fn bell(&self, bit: usize) -> u64 {
        self.0.load(bell_at(bit))
    }

    /// What the peer says of the size of a window: anything, and 0 before it says so.
    pub fn size(&self, window: usize) -> u64 {
        self.0.load(size_at(window))
    }

    /// The greeting of the peer, and its answer to that of this side: anything.
    pub fn greeting(&self) -> u64 {
        self.0.load(GREETING_AT)
    }

    pub fn answer(&self) -> u64 {
        self.0.load(ANSWER_AT)
    }

    /// The word of a slot of the peer: anything.
    pub fn entry(&self, window: usize, slot: usize) -> u64 {
        self.0.load(word_at(window, slot))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_divided_into_pages_at_least() {
        for shift in 16..=38 {
            let size = 1 << shift;
            let aperture = Aperture { bar: 2, offset: 0, size, inbound: 4 * size };
            let [first, second] = [0, 1].map(|index| window_by(PAGE, index, &aperture).unwrap());
            assert!(second.slots <= SLOTS && first.slots + 1 == second.slots, "{first}");
            assert_eq!(second.size, 1 << shift);
            assert!(first.slot_size().is_power_of_two() && first.slot_size() >= PAGE);
        }
        for size in [0, 1 << 12, 3 << 16, 1 << 60] {
            let aperture = Aperture { bar: 2, offset: 0, size, inbound: 1 << 60 };
            assert!(window_by(PAGE, 0, &aperture).is_err(), "{size}");
        }
    }

    /// Hosts whose kernels have pages of different sizes divide a window alike, or one says that it cannot.
    #[test]
    fn slots_that_are_less_than_a_page_are_refused() {
        const PAGES: u64 = 64 << 10;
        let aperture = |size| Aperture { bar: 2, offset: 0, size, inbound: size };
        let why = window_by(PAGES, 0, &aperture(4 << 20)).unwrap_err().to_string();
        assert!(why.contains("pages of 65536 bytes") && why.contains("8388608"), "{why}");
        for size in [8 << 20, 64 << 20] {
            let [large, small] =
                [PAGES, PAGE].map(|page| window_by(page, 0, &aperture(size)).unwrap());
            assert_eq!((large.size, large.slots), (small.size, small.slots));
            assert_eq!((large.addr_align, large.round_up(1)), (PAGES, PAGES));
        }
    }
}
