// SPDX-License-Identifier: Apache-2.0
//! The peer's window: stores to a base address register.

use super::core::Core;
use super::layout::first_slot;
use super::reach::Reach;
use crate::ntb::port::slots::Face;
use crate::ntb::port::{Event, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// A window, and a counter for writes to it.
#[derive(Clone)]
pub struct Target {
    reach: Arc<Reach>,
    /// In the process that has the device open.
    core: Option<Arc<Core>>,
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
    pub fn new(core: &Arc<Core>, window: usize) -> Target {
        Target { core: Some(core.clone()), ..Target::beside(core.reach.clone(), window) }
    }

    /// The same in another process than that which has the device open.
    pub fn beside(reach: Arc<Reach>, window: usize) -> Target {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let aperture = reach.apertures[window];
        let shape = reach.windows[window];
        let slot_size = shape.slot_size() as usize;
        Target {
            window,
            bar: aperture.bar,
            start: aperture.offset + first_slot(window) * slot_size,
            size: shape.size as usize,
            slot_size,
            writer: NEXT.fetch_add(1, Ordering::Relaxed),
            core: None,
            reach,
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
        let count = self.reach.words.writer(self.writer);
        count.fetch_add(1, Ordering::SeqCst);
        Writing(count)
    }

    fn entry(&self, slot: usize) -> u64 {
        self.reach.page.entry(self.window, slot + first_slot(self.window))
    }

    fn up_generation(&self) -> Option<u64> {
        self.reach.words.up_generation()
    }

    fn refresh(&self) {
        if let Some(core) = &self.core {
            drop(core.look());
        }
    }

    fn check(&self) -> Result<()> {
        self.reach.check_size(self.window)
    }

    unsafe fn store(&self, offset: usize, source: *const u8, len: usize) {
        // SAFETY: the caller's promise.
        unsafe { self.reach.device.store(self.bar, self.start + offset, source, len) };
    }

    fn store_words(&self, offset: usize, words: &[u64]) {
        self.reach.device.store_words(self.bar, self.start + offset, words);
    }

    unsafe fn load(&self, offset: usize, dest: *mut u8, len: usize) {
        // SAFETY: the caller's promise.
        unsafe { self.reach.device.load(self.bar, self.start + offset, dest, len) };
    }

    fn order(&self) {
        self.reach.device.drain();
    }

    fn flush(&self) {
        self.reach.device.drain();
    }

    fn count(&self, event: Event, amount: u64) {
        self.reach.count(event, amount);
    }
}
