// SPDX-License-Identifier: Apache-2.0
//! Memory that stands behind inbound windows.

use super::{PortError, Region, Result};
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use std::fmt::Debug;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tombolo_core::memory::{check_file_size, page_size};

/// Memory for a window: zeroed, in an anonymous file of its own, which goes away with its last user
/// and whose pages are committed when touched; or memory of the device itself.
#[derive(Debug)]
pub struct InboundMemory {
    base: NonNull<u8>,
    len: usize,
    backing: Backing,
}

#[derive(Debug)]
enum Backing {
    File(OwnedFd),
    /// A file that was closed since.
    Mapped,
    /// Mapped for as long as this is held.
    Device {
        _mapping: Arc<dyn Debug + Send + Sync>,
    },
}

// SAFETY: the memory is shared with other processes anyway; access is by raw pointer or atomically.
unsafe impl Send for InboundMemory {}
// SAFETY: as above.
unsafe impl Sync for InboundMemory {}

impl InboundMemory {
    /// Makes `len` bytes (rounded up to whole pages).
    pub fn new(len: usize) -> Result<InboundMemory> {
        let len = len.max(1).next_multiple_of(page_size());
        let file = memfd_create("tombolo-ntb", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)
            .map_err(|e| PortError::system("creating memory for an NTB window", e))?;
        check_file_size("an NTB window", len).map_err(|e| PortError::Exhausted(e.to_string()))?;
        nix::unistd::ftruncate(&file, len as i64)
            .map_err(|e| PortError::system("sizing memory for an NTB window", e))?;
        // A peer has it mapped: were it to shrink, the peer would die of it.
        fcntl(&file, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK))
            .map_err(|e| PortError::system("sealing memory for an NTB window", e))?;
        InboundMemory::of_file(file, 0, len)
    }

    /// `len` bytes from `offset` on of a memory file, which may be that of another process: both are multiples of the
    /// page size.
    pub(super) fn of_file(file: OwnedFd, offset: u64, len: usize) -> Result<InboundMemory> {
        let failed = |e| PortError::system("mapping memory for an NTB window", e);
        let about = nix::sys::stat::fstat(&file).map_err(failed)?;
        let size = u64::try_from(about.st_size).unwrap_or(0);
        let is_file = about.st_mode & libc::S_IFMT == libc::S_IFREG;
        let inside = offset.checked_add(len as u64).is_some_and(|end| end <= size);
        let page = page_size();
        let whole = len.is_multiple_of(page) && offset.is_multiple_of(page as u64);
        let length = NonZeroUsize::new(len).filter(|_| is_file && inside && whole);
        let length = length.ok_or_else(|| {
            PortError::Invalid(format!(
                "{len} bytes at {offset:#x} of a file with {size} are no memory for an NTB window"
            ))
        })?;
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // Inside of a file.
        let at = offset as libc::off_t;
        // SAFETY: a fresh shared mapping at an address of the kernel's choice.
        let base = unsafe { mmap(None, length, access, MapFlags::MAP_SHARED, &file, at) };
        let base = base.map_err(failed)?;
        Ok(InboundMemory { base: base.cast(), len, backing: Backing::File(file) })
    }

    /// The same without its descriptor, which only who passes it on needs.
    pub(super) fn without_file(mut self) -> InboundMemory {
        self.backing = Backing::Mapped;
        self
    }

    /// The file that it is, if it is one as a whole.
    pub(super) fn file(&self) -> Option<BorrowedFd<'_>> {
        match &self.backing {
            Backing::File(file) => Some(file.as_fd()),
            Backing::Mapped | Backing::Device { .. } => None,
        }
    }

    /// `len` bytes at `base` of what a device has, which `mapping` keeps mapped.
    ///
    /// # Safety
    /// The range stays readable and writable for as long as `mapping` is held.
    pub(super) unsafe fn of_device(
        mapping: Arc<dyn Debug + Send + Sync>,
        base: NonNull<u8>,
        len: usize,
    ) -> InboundMemory {
        InboundMemory { base, len, backing: Backing::Device { _mapping: mapping } }
    }

    /// The whole of it, for [`super::NtbPort::register`].
    pub fn region(&self) -> Region<'_> {
        Region { base: self.base.as_ptr(), len: self.len as u64, file: self.file(), file_offset: 0 }
    }

    /// First byte. Peers write at any time: no references into it, only raw and atomic access.
    pub fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Bytes.
    pub fn size(&self) -> usize {
        self.len
    }

    /// The aligned 8-byte word at `offset`, with acquire order.
    ///
    /// # Panics
    /// If `offset` is not a multiple of 8 or not inside.
    pub fn load(&self, offset: usize) -> u64 {
        self.word(offset).load(Ordering::Acquire)
    }

    /// Stores to the aligned 8-byte word at `offset`, with release order. Panics as `load` does.
    pub fn store(&self, offset: usize, value: u64) {
        self.word(offset).store(value, Ordering::Release);
    }

    /// Copies `len` bytes at `offset` out. Bytes that a peer writes meanwhile may be old or new.
    ///
    /// # Panics
    /// If the range is not inside.
    pub fn copy_out(&self, offset: usize, len: usize) -> Vec<u8> {
        assert!(offset <= self.len && len <= self.len - offset, "{offset}+{len} of {}", self.len);
        let mut bytes = vec![0; len];
        // SAFETY: in bounds by the check above; the two do not overlap.
        unsafe { self.base.as_ptr().add(offset).copy_to_nonoverlapping(bytes.as_mut_ptr(), len) };
        bytes
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(
            offset.is_multiple_of(8) && offset + 8 <= self.len,
            "word {offset} of {}",
            self.len
        );
        // SAFETY: aligned and in bounds by the check above; atomic, so others may write it.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(offset).cast()) }
    }
}

impl Drop for InboundMemory {
    fn drop(&mut self) {
        if let Backing::File(_) | Backing::Mapped = self.backing {
            // SAFETY: the mapping made by `of_file`; nothing borrowed from it outlives `self`.
            let _ = unsafe { munmap(self.base.cast(), self.len) };
        }
    }
}
