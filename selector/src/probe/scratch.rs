// SPDX-License-Identifier: Apache-2.0
//! Memory to measure with.

use super::{COLD_AREA, HUGE};
use tombolo_core::World;

/// Bytes between the two halves, so that they do not compete for the same cache sets.
const GAP: usize = 4096 + 256;
/// Room for what is not aligned.
const SLACK: usize = 64;

/// Symmetric scratch memory (the same place on every PE) and a private buffer of this PE.
pub struct Scratch {
    /// What peers write to, then what this PE sends from.
    heap: *mut u8,
    len: usize,
    private: Vec<u8>,
    /// Bytes of each half, and of the private buffer, that may have been written.
    touched: usize,
}

/// Bytes of each half that the symmetric heap has room for; none if that is not even a page.
pub fn room(world: &World, once: bool) -> Option<usize> {
    let (_, largest, _) = world.heap().free_bytes();
    let len = (largest / 8).min(if once { COLD_AREA } else { HUGE as usize });
    // Whole pages, a power of two: halves of different PEs are aligned alike.
    (len >= 4096).then(|| 1 << len.ilog2())
}

impl Scratch {
    /// Takes scratch memory from the symmetric heap: at most a quarter of what is free. None if not
    /// even a page is left. `once`: there is to be room for buffers that are used once. Every PE makes this
    /// call alike, so that the heap stays symmetric.
    pub fn take(world: &World, once: bool) -> Option<Scratch> {
        let len = room(world, once)?;
        let heap = world.heap().allocate(2 * (len + SLACK) + GAP, 4096);
        let scratch = Scratch { heap, len, private: Vec::new(), touched: 0 };
        (!heap.is_null()).then_some(scratch)
    }

    /// Bytes of each half.
    pub fn capacity(&self) -> usize {
        self.len
    }

    /// The half that peers write to, as a symmetric address.
    pub fn inbound(&self) -> *mut u8 {
        self.heap
    }

    /// The half this PE sends from and receives into.
    pub fn outbound(&self) -> *mut u8 {
        self.heap.wrapping_add(self.len + SLACK + GAP)
    }

    /// A private buffer of the same length.
    pub fn private(&mut self) -> *mut u8 {
        if self.private.is_empty() {
            self.private = vec![0; self.len + SLACK];
        }
        self.private.as_mut_ptr()
    }

    /// Notes that the first `bytes` bytes may be written.
    pub fn touch(&mut self, bytes: usize) {
        self.touched = self.touched.max(bytes + SLACK).min(self.len + SLACK);
    }

    /// Bytes of each half that may have been written.
    pub fn touched(&self) -> usize {
        self.touched
    }

    /// Gives the memory back: what was written is zero again and the allocator is as it was.
    /// `written`: how much peers may have written here.
    pub fn give_back(self, world: &World, written: usize) {
        for (half, bytes) in [(self.inbound(), written + SLACK), (self.outbound(), self.touched)] {
            let bytes = if bytes > SLACK { bytes.min(self.len + SLACK) } else { 0 };
            // SAFETY: both halves are `len + SLACK` bytes long and nobody else uses them any more.
            unsafe { half.write_bytes(0, bytes) };
        }
        world.heap().free(self.heap);
    }

    /// Gives nothing back: something may still write here.
    pub fn abandon(self) {
        std::mem::forget(self.private);
    }
}
