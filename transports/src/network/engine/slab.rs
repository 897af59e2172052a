// SPDX-License-Identifier: Apache-2.0
//! Memory for buffers: one piece, so that it can be registered at once.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};

/// Zeroed memory, aligned to pages. What is never used is never committed.
pub struct Slab {
    base: *mut u8,
    layout: Layout,
}

impl Slab {
    /// `len` bytes, more than none.
    pub fn new(len: usize) -> Slab {
        let layout = Layout::from_size_align(len, 4096).expect("a size that fits");
        assert!(len > 0);
        // SAFETY: the size is not zero.
        let base = unsafe { alloc_zeroed(layout) };
        if base.is_null() {
            handle_alloc_error(layout);
        }
        Slab { base, layout }
    }

    /// The first byte.
    pub fn base(&self) -> *mut u8 {
        self.base
    }

    /// The byte at `offset`.
    pub fn at(&self, offset: usize) -> *mut u8 {
        assert!(offset < self.layout.size());
        // SAFETY: inside the allocation.
        unsafe { self.base.add(offset) }
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.base, self.layout) };
    }
}
