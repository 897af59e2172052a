// SPDX-License-Identifier: Apache-2.0
//! The peer's window: stores that its driver allows.

use super::Core;
use super::layout::WRITERS;
use crate::ntb::port::Event;
use crate::ntb::port::shared::PLACES;
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

/// Counters for writes of the process that has the device open, where it lends the port: others have one each, as long as
/// there are enough.
const OWNERS: usize = WRITERS / 2;

/// The counter of a handle: the process in a place, and a number.
fn writer_of(place: usize, number: usize, is_lent: bool) -> usize {
    match place.checked_sub(1) {
        None if is_lent => number % OWNERS,
        None => number % WRITERS,
        Some(other) => OWNERS + other % (WRITERS - OWNERS),
    }
}

/// Processes that have ended, by place.
pub struct Left([bool; PLACES]);

impl Left {
    pub fn new() -> Left {
        Left([false; PLACES])
    }

    /// The process in a place has ended, of all in so many places: its counter, if all that have the same have ended.
    pub fn add(&mut self, place: usize, places: usize) -> Option<usize> {
        *self.0.get_mut(place).filter(|_| place > 0)? = true;
        let writer = |place| writer_of(place, 0, true);
        let mut others = (1..places.min(PLACES)).filter(|other| writer(*other) == writer(place));
        others.all(|other| self.0[other]).then(|| writer(place))
    }
}

impl Target {
    pub fn new(core: Arc<Core>) -> Target {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let window = core.shared.window();
        Target {
            base: core.shared.window_base(1 - core.side),
            slot_size: window.slot_size() as usize,
            size: window.size as usize,
            writer: writer_of(
                core.words.place(),
                NEXT.fetch_add(1, Ordering::Relaxed),
                core.is_lent.load(Ordering::SeqCst),
            ),
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
