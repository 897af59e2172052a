// SPDX-License-Identifier: Apache-2.0
//! Buffers of one size in one piece of memory, which is registered once.

use super::Slab;

/// Equal buffers, aligned to pages as a whole. What is never used is never committed.
pub struct Pool {
    slab: Slab,
    size: usize,
    free: Vec<u16>,
}

impl Pool {
    /// `count` buffers of `size` bytes each, more than none of both.
    pub fn new(count: u16, size: usize) -> Pool {
        let slab = Slab::new(usize::from(count) * size);
        Pool { slab, size, free: (0..count).rev().collect() }
    }

    /// The whole memory, to be registered.
    pub fn memory(&self) -> (*mut u8, usize) {
        (self.slab.base(), self.slab.bytes())
    }

    /// Bytes of a buffer.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Takes a buffer, if one is free.
    pub fn take(&mut self) -> Option<u16> {
        self.free.pop()
    }

    /// Where a buffer lies.
    pub fn at(&self, buffer: u16) -> *mut u8 {
        self.slab.at(usize::from(buffer) * self.size)
    }

    /// Gives a buffer back.
    pub fn give(&mut self, buffer: u16) {
        debug_assert!(!self.free.contains(&buffer), "buffer {buffer} is given back twice");
        self.free.push(buffer);
    }
}
