// SPDX-License-Identifier: Apache-2.0
//! The peer's window: stores to a base address register.

use super::core::{Core, WRITERS};
use super::layout::first_slot;
use crate::ntb::port::slots::Face;
use crate::ntb::port::{Event, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// A window, and a counter for writes to it.
#[derive(Clone)]
pub struct Target {
    core: Arc<Core>,
    window: usize,
    bar: usize,
    /// Where the first slot for users starts in the BAR.
    start: usize,
    size: usize,
    slot_size: usize,
    writer: usize,
}

/// Counts a write that is under way.
pub struct Writing<'a>(&'a AtomicU64);

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}

impl Target {
    /// `window` is one that the port has.
    pub fn new(core: Arc<Core>, window: usize) -> Target {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let aperture = core.apertures[window];
        let shape = core.windows[window];
        let slot_size = shape.slot_size() as usize;
        Target {
            window,
            bar: aperture.bar,
            start: aperture.offset + first_slot(window) * slot_size,
            size: shape.size as usize,
            slot_size,
            writer: NEXT.fetch_add(1, Ordering::Relaxed) % WRITERS,
            core,
        }
    }
}

impl Target {
    /// Where the window starts behind its base address register.
    pub fn start(&self) -> usize {
        self.start
    }
}

impl Face for Target {
    type Writing<'a> = Writing<'a>;

    fn index(&self) -> usize {
        self.window
    }

    fn sizes(&self) -> (usize, usize) {
        (self.size, self.slot_size)
    }

    fn begin(&self) -> Writing<'_> {
        let count = &self.core.writers[self.writer].0;
        count.fetch_add(1, Ordering::SeqCst);
        Writing(count)
    }

    fn entry(&self, slot: usize) -> u64 {
        self.core.page.entry(self.window, slot + first_slot(self.window))
    }

    fn up_generation(&self) -> Option<u64> {
        match self.core.up_generation.load(Ordering::SeqCst) {
            0 => None,
            generation => Some(generation),
        }
    }

    fn refresh(&self) {
        drop(self.core.look());
    }

    fn check(&self) -> Result<()> {
        self.core.check_size(self.window)
    }

    unsafe fn store(&self, offset: usize, source: *const u8, len: usize) {
        // SAFETY: the caller's promise.
        unsafe { self.core.device.store(self.bar, self.start + offset, source, len) };
    }

    fn store_words(&self, offset: usize, words: &[u64]) {
        self.core.device.store_words(self.bar, self.start + offset, words);
    }

    unsafe fn load(&self, offset: usize, dest: *mut u8, len: usize) {
        // SAFETY: the caller's promise.
        unsafe { self.core.device.load(self.bar, self.start + offset, dest, len) };
    }

    fn order(&self) {
        self.core.device.drain();
    }

    fn flush(&self) {
        self.core.device.drain();
    }

    fn count(&self, event: Event, amount: u64) {
        self.core.count(event, amount);
    }
}
