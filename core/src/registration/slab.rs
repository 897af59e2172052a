// SPDX-License-Identifier: Apache-2.0
//! Memory for buffers: one piece, so that it can be registered at once.

use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap_anonymous, munmap};
use std::alloc::{Layout, handle_alloc_error};
use std::num::NonZeroUsize;
use std::ptr::NonNull;

/// Zeroed memory, aligned to pages. What is never used is never committed: the allocator would write zeros to
/// memory that is to be aligned.
pub struct Slab {
    mapping: NonNull<libc::c_void>,
    len: NonZeroUsize,
}

// SAFETY: plain memory of its own.
unsafe impl Send for Slab {}

impl Slab {
    /// `len` bytes, more than none. Ends the process if there is no memory, as other allocations do.
    pub fn new(len: usize) -> Slab {
        let len = NonZeroUsize::new(len).expect("more than no bytes");
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let mapping = unsafe { mmap_anonymous(None, len, access, MapFlags::MAP_PRIVATE) };
        let mapping = mapping.unwrap_or_else(|_| {
            handle_alloc_error(Layout::array::<u8>(len.get()).expect("a size that fits"))
        });
        // Before Linux 5.10 a process that wrote to it while it had a child got other pages than those that a device has.
        // A child gets empty pages instead; it has no use for these. Kernels without this advice refuse it.
        // SAFETY: the fresh mapping, which no child has read.
        let _ = unsafe { madvise(mapping, len.get(), MmapAdvise::MADV_WIPEONFORK) };
        Slab { mapping, len }
    }

    /// The first byte.
    pub fn base(&self) -> *mut u8 {
        self.mapping.as_ptr().cast()
    }

    /// Its length in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.len.get()
    }

    /// The byte at `offset`.
    pub fn at(&self, offset: usize) -> *mut u8 {
        assert!(offset < self.bytes());
        // SAFETY: inside the mapping.
        unsafe { self.base().add(offset) }
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        // SAFETY: the mapping made by `new`; whoever has its address keeps it.
        let _ = unsafe { munmap(self.mapping, self.bytes()) };
    }
}
