// SPDX-License-Identifier: Apache-2.0
//! The memory of the symmetric heap: an anonymous memory file, reserved whole, committed by the
//! kernel page by page when it is first touched. It has no name in the file system, so nothing is
//! left when its processes are gone, however they went.

use super::allocator::{Allocator, Placement};
use super::common::Part;
use super::limits;
use crate::config::{Bytes, Config};
use crate::error::{Error, Result};
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap, munmap};
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Mutex;

/// The heap starts at a multiple of this at least, so that huge pages fit.
const HUGE_PAGE: usize = 2 << 20;

/// The symmetric heap of this PE: a control area for the runtime, then what programs allocate from.
pub struct Heap {
    base: NonNull<u8>,
    len: usize,
    control: usize,
    /// What programs allocate from starts at a multiple of this on every PE.
    alignment: usize,
    part: Part,
    huge_pages: bool,
    allocator: Mutex<Allocator>,
}

// SAFETY: the heap is plain shared memory; its own books are behind a mutex.
unsafe impl Send for Heap {}
// SAFETY: as above.
unsafe impl Sync for Heap {}

impl Heap {
    /// Reserves a heap of `config.symmetric_size` bytes behind a control area of `control` bytes, in a
    /// memory file of its own.
    pub fn reserve(config: &Config, control: usize) -> Result<Heap> {
        Heap::check(config)?;
        let len = Heap::length(config, control)?;
        let part = Part::alone("tombolo-heap", "the symmetric heap (SHMEM_SYMMETRIC_SIZE)", len)?;
        Heap::of(part, config, control)
    }

    /// Compares what is asked for with what there is, before anything is touched: an error if that is not enough
    /// for one PE.
    pub fn check(config: &Config) -> Result<()> {
        check(config.symmetric_size)
    }

    /// Warns if there is less than `local_pes` PEs, which share the host's memory, may use together. For one of
    /// them; no error, as memory that nobody touches costs nothing.
    pub fn warn_of_all(config: &Config, local_pes: usize) {
        warn_of_all(config.symmetric_size, local_pes);
    }

    /// Length of a heap of `config.symmetric_size` bytes with a control area of `control` bytes.
    pub fn length(config: &Config, control: usize) -> Result<usize> {
        let asked = config.symmetric_size;
        usize::try_from(asked.0)
            .ok()
            .and_then(|bytes| bytes.checked_next_multiple_of(super::page_size()))
            .and_then(|bytes| bytes.checked_add(control.next_multiple_of(HUGE_PAGE)))
            .ok_or_else(|| Error::Memory(format!("SHMEM_SYMMETRIC_SIZE={asked} is too large")))
    }

    /// The heap in a part of a memory file that is as long as [`Heap::length`] tells.
    pub fn of(part: Part, config: &Config, control: usize) -> Result<Heap> {
        let (asked, len) = (config.symmetric_size, Heap::length(config, control)?);
        let control = control.next_multiple_of(HUGE_PAGE);
        let alignment = alignment(len - control);
        let base = map_aligned(&part, len, control, alignment).map_err(|e| {
            let why = match getrlimit(Resource::RLIMIT_AS) {
                Ok((limit, _)) if limit != RLIM_INFINITY => {
                    format!("; the limit on address space is {} (ulimit -v)", mebibytes(limit))
                }
                _ => String::new(),
            };
            Error::Memory(format!(
                "mapping a symmetric heap of {asked} (SHMEM_SYMMETRIC_SIZE) failed: {e}{why}"
            ))
        })?;
        let huge_pages = config.huge_pages.0
            // SAFETY: advice on memory mapped just above.
            && unsafe { madvise(base.cast(), len, MmapAdvise::MADV_HUGEPAGE) }.is_ok();
        let allocator = Mutex::new(Allocator::new(len - control));
        Ok(Heap { base, len, control, alignment, part, huge_pages, allocator })
    }

    /// Start of the segment: the control area.
    pub fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Length of the segment in bytes, control area included.
    pub fn len(&self) -> usize {
        self.len
    }

    /// A heap always holds its control area.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Length of the control area in bytes.
    pub fn control_len(&self) -> usize {
        self.control
    }

    /// The memory file, which may hold heaps of other PEs too.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.part.file.as_fd()
    }

    /// Where in the file the heap begins.
    pub fn file_offset(&self) -> usize {
        self.part.offset
    }

    /// Whether the kernel took the advice to use huge pages.
    pub fn huge_pages(&self) -> bool {
        self.huge_pages
    }

    /// Takes `size` bytes aligned to `align`; null when that is impossible. Not collective by
    /// itself: every PE has to make the same calls in the same order.
    pub fn allocate(&self, size: usize, align: usize) -> *mut u8 {
        self.allocate_placed(size, Placement::aligned(align))
    }

    /// As [`Heap::allocate`], with a certain placement.
    pub fn allocate_placed(&self, size: usize, placement: Placement) -> *mut u8 {
        // The allocator aligns offsets; they are addresses only up to the alignment of the start.
        let offset =
            (placement.align <= self.alignment).then(|| self.books().allocate(size, placement));
        match offset.flatten() {
            // SAFETY: the allocator hands out offsets below its capacity, `len - control`.
            Some(offset) => unsafe { self.base().add(self.control + offset) },
            None => std::ptr::null_mut(),
        }
    }

    /// Gives a block back; false if `block` is not one.
    pub fn free(&self, block: *mut u8) -> bool {
        self.offset_of(block).is_some_and(|offset| self.books().free(offset))
    }

    /// Resizes a block in place; false if it has to move.
    pub fn resize(&self, block: *mut u8, size: usize) -> bool {
        self.offset_of(block).is_some_and(|offset| self.books().resize(offset, size))
    }

    /// The size asked for of a block.
    pub fn size_of(&self, block: *const u8) -> Option<usize> {
        self.books().size_of(self.offset_of(block)?)
    }

    /// How a block lies.
    pub fn placement_of(&self, block: *const u8) -> Option<Placement> {
        self.books().placement_of(self.offset_of(block)?)
    }

    /// The live block that holds `address`: its start and size.
    pub fn block_at(&self, address: *const u8) -> Option<(*mut u8, usize)> {
        let (offset, size) = self.books().block_at(self.offset_of(address)?)?;
        // SAFETY: an offset of the allocator lies inside the heap.
        Some((unsafe { self.base().add(self.control + offset) }, size))
    }

    /// A size of the heap, as `SHMEM_SYMMETRIC_SIZE` tells it, with which this allocation would
    /// succeed; none if none would do.
    pub fn sufficient(&self, size: usize, placement: Placement) -> Option<usize> {
        self.books().sufficient(size, placement)
    }

    /// Free bytes, the largest free range, and the capacity.
    pub fn free_bytes(&self) -> (usize, usize, usize) {
        let books = self.books();
        (books.free_bytes(), books.largest_free(), books.capacity())
    }

    fn offset_of(&self, address: *const u8) -> Option<usize> {
        let offset = (address as usize).checked_sub(self.base() as usize + self.control)?;
        (offset < self.len - self.control).then_some(offset)
    }

    fn books(&self) -> std::sync::MutexGuard<'_, Allocator> {
        self.allocator.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Drop for Heap {
    fn drop(&mut self) {
        // SAFETY: the mapping made by `reserve`; whoever drops the heap has ended its users.
        let _ = unsafe { munmap(self.base.cast(), self.len) };
    }
}

fn check(asked: Bytes) -> Result<()> {
    match limits::memory_limit() {
        Some(limit) if asked.0 > limit.bytes => Err(Error::Memory(format!(
            "SHMEM_SYMMETRIC_SIZE={asked} asks for {} per PE, but the {} is {}; \
             set SHMEM_SYMMETRIC_SIZE to less",
            mebibytes(asked.0),
            limit.source,
            mebibytes(limit.bytes)
        ))),
        _ => Ok(()),
    }
}

fn warn_of_all(asked: Bytes, local_pes: usize) {
    let all = asked.0.saturating_mul(local_pes as u64);
    if asked.0 > 1 << 30
        && let Some(limit) = limits::memory_limit()
        && all > limit.bytes
    {
        tracing::warn!(
            "{local_pes} PEs with SHMEM_SYMMETRIC_SIZE={asked} may use more than the {}, \
             {}, if they touch all of it",
            limit.source,
            mebibytes(limit.bytes)
        );
    }
}

fn mebibytes(bytes: u64) -> String {
    format!("{} MiB", bytes >> 20)
}

/// Every alignment that a block of `capacity` bytes could be asked for.
fn alignment(capacity: usize) -> usize {
    capacity.checked_next_power_of_two().unwrap_or(HUGE_PAGE).max(HUGE_PAGE)
}

/// Maps `len` bytes of the file shared, with the byte at `inner` at a multiple of `alignment`.
fn map_aligned(
    part: &Part,
    len: usize,
    inner: usize,
    alignment: usize,
) -> nix::Result<NonNull<u8>> {
    let padded =
        len.checked_add(alignment).and_then(NonZeroUsize::new).ok_or(nix::Error::EINVAL)?;
    let reserve = MapFlags::MAP_PRIVATE | MapFlags::MAP_ANONYMOUS | MapFlags::MAP_NORESERVE;
    // SAFETY: a fresh reservation at an address of the kernel's choice, then, inside it, the
    // mapping wanted; what is left over at both ends is given back and used by nobody.
    unsafe {
        let start = nix::sys::mman::mmap_anonymous(None, padded, ProtFlags::PROT_NONE, reserve)?;
        let first = start.as_ptr() as usize;
        let base = (first + inner).next_multiple_of(alignment) - inner;
        if let Some(bytes) = NonZeroUsize::new(base - first) {
            munmap(start, bytes.get())?;
        }
        let end = NonNull::new((base + len) as *mut _).ok_or(nix::Error::EINVAL)?;
        if let Some(bytes) = NonZeroUsize::new(alignment - (base - first)) {
            munmap(end, bytes.get())?;
        }
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        let shared = MapFlags::MAP_SHARED | MapFlags::MAP_FIXED | MapFlags::MAP_NORESERVE;
        let length = NonZeroUsize::new(len).ok_or(nix::Error::EINVAL)?;
        let offset = part.offset as libc::off_t;
        mmap(NonZeroUsize::new(base), length, access, shared, &part.file, offset).map(NonNull::cast)
    }
}
