// SPDX-License-Identifier: Apache-2.0
//! Tables that fault when they are read past their end.

use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, mprotect, munmap};
use std::num::NonZeroUsize;
use std::ptr::NonNull;

/// Bytes behind a table that nobody may read.
const GUARD: usize = 64 << 10;

/// A table of words that ends where memory that cannot be read begins. Paths that do not check an
/// index, because the program vouches for it, then end the process at a wrong one, where they would
/// otherwise take what happens to lie there for an address.
#[derive(Debug)]
pub struct Guarded {
    mapping: NonNull<libc::c_void>,
    bytes: NonZeroUsize,
    first: *const usize,
}

// SAFETY: the table is never written after it was made.
unsafe impl Send for Guarded {}
// SAFETY: as above.
unsafe impl Sync for Guarded {}

impl Guarded {
    /// A table of these words. Errors: the system's, for lack of memory.
    pub fn new(words: &[usize]) -> nix::Result<Guarded> {
        let len = size_of_val(words);
        let room = len.next_multiple_of(super::page_size());
        let bytes = NonZeroUsize::MIN.saturating_add(room + GUARD - 1);
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE;
        // SAFETY: a fresh mapping at an address of the kernel's choice, of which the last `GUARD`
        // bytes lose their access; the words end where these begin.
        unsafe {
            let mapping = mmap_anonymous(None, bytes, access, flags)?;
            mprotect(mapping.byte_add(room), GUARD, ProtFlags::PROT_NONE)?;
            let first = mapping.byte_add(room - len).cast::<usize>();
            first.copy_from_nonoverlapping(NonNull::from(words).cast(), words.len());
            Ok(Guarded { mapping, bytes, first: first.as_ptr() })
        }
    }

    /// The first word.
    pub fn as_ptr(&self) -> *const usize {
        self.first
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // SAFETY: the mapping made by `new`; whoever has its address keeps the table.
        let _ = unsafe { munmap(self.mapping, self.bytes.get()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_end_where_nothing_can_be_read() {
        for count in [0, 1, 5, 512, 513] {
            let words: Vec<usize> = (0..count).collect();
            let table = Guarded::new(&words).unwrap();
            // SAFETY: the words of the table.
            let found = unsafe { std::slice::from_raw_parts(table.as_ptr(), count) };
            assert_eq!(found, words);
            // The kernel refuses where a load would fault.
            let end = table.as_ptr().wrapping_add(count);
            let (_read, write) = nix::unistd::pipe().unwrap();
            for past in [0, GUARD / 8 - 1] {
                // SAFETY: the kernel checks the address.
                let written = unsafe {
                    libc::write(
                        std::os::fd::AsRawFd::as_raw_fd(&write),
                        end.wrapping_add(past).cast(),
                        8,
                    )
                };
                assert_eq!(written, -1, "{past} words past {count}");
            }
        }
    }
}
