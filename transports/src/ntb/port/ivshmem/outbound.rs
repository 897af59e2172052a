// SPDX-License-Identifier: Apache-2.0
//! The peer's window: stores that its driver allows.

use super::Core;
use super::layout::WRITERS;
use crate::ntb::port::Event;
use crate::ntb::port::slots::Face;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};
use tombolo_core::copy;

/// The window, and a counter for writes to it.
#[derive(Clone)]
pub struct Target {
    core: Arc<Core>,
    base: *mut u8,
    slot_size: usize,
    size: usize,
    writer: usize,
}

// SAFETY: memory that is shared with another machine anyway; stores only.
unsafe impl Send for Target {}
// SAFETY: as above.
unsafe impl Sync for Target {}

/// Counts a write that is under way.
pub struct Writing<'a>(&'a AtomicU64);

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}

/// Counters for writes of the process that has the device open; others have one each, as long as there are enough.
const OWNERS: usize = WRITERS / 2;

/// The counter of a handle: the process in a place, and a number.
fn writer_of(place: usize, number: usize) -> usize {
    match place.checked_sub(1) {
        None => number % OWNERS,
        Some(other) => OWNERS + other % (WRITERS - OWNERS),
    }
}

/// The counter of a process that has ended, if no other has the same, of all in so many places.
pub fn left_by(place: usize, places: usize) -> Option<usize> {
    (place > 0 && places <= 1 + WRITERS - OWNERS).then(|| writer_of(place, 0))
}

impl Target {
    pub fn new(core: Arc<Core>) -> Target {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let window = core.shared.window();
        Target {
            base: core.shared.window_base(1 - core.side),
            slot_size: window.slot_size() as usize,
            size: window.size as usize,
            writer: writer_of(core.words.place(), NEXT.fetch_add(1, Ordering::Relaxed)),
            core,
        }
    }
}

impl Face for Target {
    type Writing<'a> = Writing<'a>;

    fn index(&self) -> usize {
        0
    }

    fn sizes(&self) -> (usize, usize) {
        (self.size, self.slot_size)
    }

    fn begin(&self) -> Writing<'_> {
        let count = &self.core.own().writers[self.writer].0;
        count.fetch_add(1, Ordering::SeqCst);
        Writing(count)
    }

    fn entry(&self, slot: usize) -> u64 {
        self.core.peer().entries[slot].load(Ordering::SeqCst)
    }

    fn up_generation(&self) -> Option<u64> {
        self.core.shared.up_generation()
    }

    unsafe fn store(&self, offset: usize, source: *const u8, len: usize) {
        // SAFETY: inside the peer's window, which stays mapped; the caller vouches for the source.
        unsafe { copy::cached(self.base.wrapping_add(offset), source, len) };
    }

    fn store_words(&self, offset: usize, words: &[u64]) {
        for (index, word) in words.iter().enumerate() {
            let at = self.base.wrapping_add(offset + index * 8);
            // SAFETY: an aligned word inside the peer's window, which stays mapped.
            unsafe { AtomicU64::from_ptr(at.cast()) }.store(*word, Ordering::Release);
        }
    }

    unsafe fn load(&self, offset: usize, dest: *mut u8, len: usize) {
        // SAFETY: inside the peer's window; the caller vouches for the destination.
        unsafe { copy::cached(dest, self.base.wrapping_add(offset), len) };
    }

    fn order(&self) {
        fence(Ordering::Release);
    }

    fn flush(&self) {
        fence(Ordering::SeqCst);
    }

    fn count(&self, event: Event, amount: u64) {
        self.core.count(event, amount);
    }
}
