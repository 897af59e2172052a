// SPDX-License-Identifier: Apache-2.0
//! Buffers of one size in one piece of memory, which is registered once.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};

/// Equal buffers, aligned to pages as a whole. What is never used is never committed.
pub struct Pool {
    base: *mut u8,
    layout: Layout,
    size: usize,
    free: Vec<u16>,
}

// SAFETY: plain memory of its own.
unsafe impl Send for Pool {}

impl Pool {
    /// `count` buffers of `size` bytes each, more than none of both.
    pub fn new(count: u16, size: usize) -> Pool {
        let layout = Layout::from_size_align(usize::from(count) * size, 4096);
        let layout = layout.expect("a size that fits");
        assert!(layout.size() > 0);
        // SAFETY: the size is not zero.
        let base = unsafe { alloc_zeroed(layout) };
        if base.is_null() {
            handle_alloc_error(layout);
        }
        Pool { base, layout, size, free: (0..count).rev().collect() }
    }

    /// The whole memory, to be registered.
    pub fn memory(&self) -> (*mut u8, usize) {
        (self.base, self.layout.size())
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
        let offset = usize::from(buffer) * self.size;
        assert!(offset < self.layout.size());
        // SAFETY: inside the allocation.
        unsafe { self.base.add(offset) }
    }

    /// Gives a buffer back.
    pub fn give(&mut self, buffer: u16) {
        debug_assert!(!self.free.contains(&buffer), "buffer {buffer} is given back twice");
        self.free.push(buffer);
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.base, self.layout) };
    }
}
