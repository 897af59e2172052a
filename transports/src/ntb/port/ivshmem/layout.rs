// SPDX-License-Identifier: Apache-2.0
//! What is where in the memory that two virtual machines share.
//!
//! Each side has a section, then each has a window, which the other writes to. All words may be
//! changed by the other side at any time, to anything.

use super::device::Device;
use crate::ntb::port::{PortError, Result, Window};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Scratchpads of a side.
pub const SPADS: usize = 16;
/// Slots that a window can have.
pub const SLOTS: usize = 256;
/// Counters of writes; the handles of a side share them.
pub const WRITERS: usize = 32;
/// Bytes of a section.
const SECTION: usize = 64 << 10;
/// Bytes of the smallest memory that two windows of some use fit in.
pub const SIZE_MIN: usize = 1 << 20;
const PAGE: usize = 4096;
/// Says of which form a section is; the last digits are the version.
const FORM: u64 = 0x544d_424c_4956_0001;

/// The registers of a side.
#[repr(C)]
pub struct Section {
    /// [`FORM`], when a driver has taken the side over.
    form: AtomicU64,
    /// How often the side was enabled or disabled; odd while it is enabled.
    pub enabled: AtomicU64,
    /// Doorbell bits that are pending.
    pub pending: AtomicU64,
    /// Those that raise no interrupt.
    pub mask: AtomicU64,
    /// Interrupt vectors of the device.
    pub vectors: AtomicU32,
    /// Scratchpads.
    pub spads: [AtomicU32; SPADS],
    /// Writes of this side that are under way.
    pub writers: [Counter; WRITERS],
    /// What is behind the slots of this side's window: see [`entry`](crate::ntb::port::slots::entry).
    pub entries: [AtomicU64; SLOTS],
}

/// A count on a line of its own.
#[repr(C, align(64))]
pub struct Counter(pub AtomicU64);

const _: () = assert!(size_of::<Section>() <= SECTION);

impl Section {
    /// Forgets what was there of this side. Scratchpads keep their values.
    pub fn take_over(&self, vectors: u32) {
        self.disable();
        self.entries.iter().for_each(|entry| entry.store(0, Ordering::SeqCst));
        self.writers.iter().for_each(|writer| writer.0.store(0, Ordering::SeqCst));
        self.pending.store(0, Ordering::SeqCst);
        self.mask.store(u64::MAX, Ordering::SeqCst);
        self.vectors.store(vectors, Ordering::SeqCst);
        self.form.store(FORM, Ordering::SeqCst);
    }

    /// Takes the link down at this side, if it is not.
    pub fn disable(&self) {
        let turn = |count: u64| (count % 2 == 1).then(|| count.wrapping_add(1));
        // An error says that it is disabled already.
        let _ = self.enabled.fetch_update(Ordering::SeqCst, Ordering::SeqCst, turn);
    }

    /// What the end of a virtual machine leaves undone.
    pub fn abandon(&self) {
        self.disable();
        self.form.store(0, Ordering::SeqCst);
    }
}

/// The shared memory of a link.
pub struct Shared {
    base: *mut u8,
    window: Window,
    /// Keeps the memory mapped.
    _device: Arc<dyn Device>,
}

// SAFETY: memory that is shared with another machine anyway; access is atomic or by raw pointer.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    /// The memory of a device. Refused where it is too small.
    pub fn new(device: Arc<dyn Device>) -> Result<Shared> {
        let (base, size) = device.memory();
        if size < SIZE_MIN || !base.addr().is_multiple_of(PAGE) {
            return Err(PortError::Invalid(format!(
                "{} shares {size} bytes with its peer: at least {SIZE_MIN} are needed",
                device.describe()
            )));
        }
        Ok(Shared { base, window: window_of(size), _device: device })
    }

    /// What the windows of both sides are like.
    pub fn window(&self) -> Window {
        self.window
    }

    /// The registers of a side.
    pub fn section(&self, side: usize) -> &Section {
        // SAFETY: aligned and inside of the memory, which is large enough for two; all fields are
        // atomics, for which every bit pattern is a value.
        unsafe { &*self.base.add(side * SECTION).cast::<Section>() }
    }

    /// Where the window of a side starts.
    pub fn window_base(&self, side: usize) -> *mut u8 {
        self.base.wrapping_add(2 * SECTION + side * self.window.size as usize)
    }

    /// Whether both sides have enabled the link.
    pub fn is_up(&self) -> bool {
        (0..2).all(|side| {
            self.is_present(side) && self.section(side).enabled.load(Ordering::SeqCst) % 2 == 1
        })
    }

    /// Whether a driver of this form has a side.
    pub fn is_present(&self, side: usize) -> bool {
        self.section(side).form.load(Ordering::SeqCst) == FORM
    }

    /// Changes whenever the link goes up or down.
    pub fn generation(&self) -> u64 {
        let count = |side: usize| self.section(side).enabled.load(Ordering::SeqCst);
        count(0).wrapping_add(count(1))
    }

    /// The generation of a link that is up.
    pub fn up_generation(&self) -> Option<u64> {
        let before = self.generation();
        (self.is_up() && self.generation() == before).then_some(before)
    }
}

/// Two windows share what two sections leave, in slots whose size is a power of two.
fn window_of(size: usize) -> Window {
    let half = (size - 2 * SECTION) / 2;
    let slot_size = half.div_ceil(SLOTS).next_power_of_two().max(PAGE);
    let slots = half / slot_size;
    Window {
        size: (slots * slot_size) as u64,
        slots,
        addr_align: PAGE as u64,
        size_align: PAGE as u64,
        size_aligned: false,
        has_limit: true,
        fixed: true,
    }
}

/// Where the section of a side starts in the memory of `len` bytes at `base`, for who serves the
/// link.
///
/// # Safety
/// The memory stays mapped as long as the result is used.
pub unsafe fn section_in<'a>(base: *mut u8, len: usize, side: usize) -> Option<&'a Section> {
    let inside = side < 2 && len >= SIZE_MIN && base.addr().is_multiple_of(PAGE);
    // SAFETY: inside and aligned, as was just checked; the caller keeps it mapped.
    inside.then(|| unsafe { &*base.add(side * SECTION).cast::<Section>() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_of_both_sides_fit_in_the_memory() {
        for shift in 20..=36 {
            for size in [1usize << shift, (1 << shift) + 12 * PAGE] {
                let window = window_of(size);
                assert!(2 * SECTION + 2 * window.size as usize <= size, "{size}");
                assert!(window.slots <= SLOTS && window.slots >= 64, "{size}: {window}");
                assert!(window.slot_size().is_power_of_two());
            }
        }
    }
}
