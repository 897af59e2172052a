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

/// Makes room for `count` more descriptors, as far as the hard limit allows.
pub fn allow_descriptors(count: usize) {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    const OWN: u64 = 256;
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) {
        let wanted = (count as u64 + OWN).min(hard);
        if wanted > soft {
            let _ = setrlimit(Resource::RLIMIT_NOFILE, wanted, hard);
        }
    }
}
