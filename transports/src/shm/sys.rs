// SPDX-License-Identifier: Apache-2.0
//! System calls of the shared-memory transport.

use nix::sys::mman::{MapFlags, ProtFlags, mmap};
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::OwnedFd;

/// Maps `len` bytes of a file, shared, for reading and writing.
pub fn map_shared(file: &OwnedFd, len: usize) -> io::Result<*mut u8> {
    let length = NonZeroUsize::new(len).ok_or(io::ErrorKind::InvalidInput)?;
    let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    let flags = MapFlags::MAP_SHARED | MapFlags::MAP_NORESERVE;
    // SAFETY: a fresh mapping at an address of the kernel's choice.
    let base = unsafe { mmap(None, length, access, flags, file, 0) }?;
    Ok(base.as_ptr().cast())
}

/// Undoes [`map_shared`].
///
/// # Safety
/// Nobody uses the memory any more.
pub unsafe fn unmap(base: *mut u8, len: usize) {
    // SAFETY: by the caller's word.
    unsafe { libc::munmap(base.cast(), len) };
}
