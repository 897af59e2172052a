// SPDX-License-Identifier: Apache-2.0
//! Counters and events of one PE, in memory shared with its launcher: what `oshrun --profile` and
//! `oshrun --trace` show.
//!
//! The launcher makes an [`Area`] for each PE and reads its file when the PE has ended, in whatever
//! way: what a PE has counted is there even if it was killed. The area is an anonymous memory
//! file in which pages exist only once they are written.
//!
//! ```text
//! header | rows: what is counted | text | events, a ring | slots: the counters of each thread
//! ```
//!
//! - A row is a routine by one way, such as `shmem_put` through mapped memory to PEs of the same host.
//! - A cell is a row in one class of sizes. Each thread has cells of its own, up to [`SLOTS`] threads;
//!   all others share the last slot.
//! - What a thread is in the middle of is there as well, with the time at which it began: whoever knows when the
//!   PE ended knows how long that took.
//! - Readers check every field: a PE may have stopped anywhere, and programs may overwrite anything.

use crate::error::{Error, Result};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// Rows of a PE. The last one takes what finds no row of its own.
pub const ROWS: usize = 1024;
/// Classes of sizes.
pub const CLASSES: usize = 28;
/// Threads with counters of their own, and one slot for all others.
pub const SLOTS: usize = 16;
/// Reasons for waiting, and room for more.
pub const REASONS: usize = 16;
/// Words of a cell, one cache line.
pub const CELL: usize = 8;
/// Words of a slot for what was exchanged with one PE, one cache line.
pub const PEER: usize = 8;
/// Words of a slot for the lives of its threads.
pub const LIVES: usize = 4;
/// Words of a slot for what its thread is in the middle of.
pub const PENDING: usize = Pending::WaitNs as usize + REASONS;
/// Words of an event.
pub const EVENT: usize = 6;
/// Bytes of the name of a routine, and of each of the two parts of a way.
pub const NAME: usize = 64;
/// Bytes of the text.
pub const TEXT: usize = 16 << 10;
/// Most events that an area may be asked to hold.
pub const EVENTS_MAX: usize = 1 << 20;

/// What stands in place of a distance in rows of events that are no calls.
pub mod event {
    /// Something that happened to a link, whose number stands in place of the bytes.
    pub const LINK: &str = "link";
    /// Streams of packets that change direction, whose number stands in place of the bytes.
    pub const FAILOVER: &str = "failover";
    /// Work of a service thread; the number of its turns stands in place of the bytes.
    pub const WORK: &str = "service";
}

/// First word of an area.
pub const MAGIC: u64 = 0x746f_6d62_7072_6f66;
/// Bytes of the header, and the unit in which parts of an area begin.
pub const PAGE: usize = 4096;
/// Bytes of what a row says of itself: three names.
pub const ROW: usize = 3 * NAME;

/// Words of the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Head {
    /// Tells areas from other files.
    Magic,
    /// Number of PEs of the job.
    Pes,
    /// Events that the ring holds; 0 if none are wanted.
    Capacity,
    /// Begin of counting, nanoseconds of `CLOCK_MONOTONIC`; 0 if it never began.
    Began,
    /// End of counting; 0 if it never ended.
    Ended,
    /// Difference of `CLOCK_REALTIME` and `CLOCK_MONOTONIC` when the area was made.
    Offset,
    /// Rows in use.
    Rows,
    /// Events so far, those that were overwritten included.
    Events,
    /// Bytes of text.
    Text,
    /// Slots in use.
    Slots,
    /// Processors for the PEs of its host, as far as the PE can tell.
    Processors,
    /// PEs of its host.
    Local,
    /// When it called `shmem_global_exit`; 0 if it never did.
    Exited,
}

/// Words of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Cell {
    /// Calls.
    Count,
    /// Bytes of all of them.
    Bytes,
    /// Calls of which the time was taken because all times of this kind are.
    Exact,
    /// Nanoseconds of those, without those blocked.
    ExactNs,
    /// Calls of which the time was taken as samples of all others.
    Samples,
    /// Nanoseconds of those, without those blocked.
    SampleNs,
    /// The longest call.
    LongestNs,
    /// Nanoseconds of all waits of all calls that were longer than their spinning.
    BlockedNs,
}

/// Words of the lives of a slot's threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Lives {
    /// Threads that began to count.
    Begun,
    /// When each of them did, added up, nanoseconds of `CLOCK_MONOTONIC`; may overflow.
    Since,
    /// Threads that have ended.
    Ended,
    /// When each of them did, or counting before it, likewise.
    Until,
}

/// Words of what a slot's thread is in the middle of. Times are nanoseconds of `CLOCK_MONOTONIC`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Pending {
    /// 1 and the number of the cell in which the call counts; 0 outside of calls whose time is taken.
    Call,
    /// Begin of the call.
    CallSince,
    /// Nanoseconds of its waits that have ended.
    CallBlocked,
    /// 1 and the PE operated on, or 0.
    CallPeer,
    /// Its bytes.
    CallBytes,
    /// 1 and the number of the cell in which the wait counts; 0 if nothing is waited for.
    Wait,
    /// Not 0: the wait counts as a call of its own.
    WaitAlone,
    /// Begin of the wait.
    WaitSince,
    /// 1 and the PE waited for, or 0.
    WaitPeer,
    /// What is waited for now, a number of [`crate::wait::Reason`].
    WaitReason,
    /// By reason, nanoseconds of the wait until that was so: the first of [`REASONS`] words.
    WaitNs,
}

/// Words of what was exchanged with one PE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Exchanged {
    /// Puts.
    Puts,
    /// Bytes of them.
    PutBytes,
    /// Gets.
    Gets,
    /// Bytes of them.
    GetBytes,
    /// Atomic operations and signals.
    Amos,
}

/// The class of a size: the least power of two that is not below it, from 8 bytes on.
#[inline(always)]
pub fn class(len: usize) -> usize {
    let bits = usize::BITS - len.saturating_sub(1).leading_zeros();
    (bits.saturating_sub(3) as usize).min(CLASSES - 1)
}

/// The largest size of a class.
pub fn class_max(class: usize) -> u64 {
    8 << class
}

/// Where the parts of an area are, in bytes from its begin.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// Number of PEs of the job.
    pub pes: usize,
    /// Events that the ring holds.
    pub events: usize,
}

impl Layout {
    const ROWS_AT: usize = PAGE;
    /// The text.
    pub const TEXT_AT: usize = Layout::ROWS_AT + (ROWS * ROW).next_multiple_of(PAGE);
    const EVENTS_AT: usize = Layout::TEXT_AT + TEXT;

    /// What a row says of itself.
    pub fn row(row: usize) -> usize {
        Layout::ROWS_AT + row * ROW
    }

    /// An event of the ring.
    pub fn event(index: usize) -> usize {
        Layout::EVENTS_AT + index * EVENT * 8
    }

    /// The waits of a slot.
    pub fn slot(&self, slot: usize) -> usize {
        let first = (Layout::EVENTS_AT + self.events * EVENT * 8).next_multiple_of(PAGE);
        first + slot * (self.peers() + PAGE + ROWS * CLASSES * CELL * 8)
    }

    /// The lives of a slot's threads.
    pub fn lives(&self, slot: usize) -> usize {
        self.slot(slot) + 2 * REASONS * 8
    }

    /// What a slot's thread is in the middle of.
    pub fn pending(&self, slot: usize) -> usize {
        // Away from what is added up all the time.
        self.lives(slot) + (LIVES * 8).next_multiple_of(64)
    }

    fn peers(&self) -> usize {
        (self.pes * PEER * 8).next_multiple_of(PAGE)
    }

    /// What a slot has exchanged with a PE.
    pub fn peer(&self, slot: usize, pe: usize) -> usize {
        self.slot(slot) + PAGE + pe * PEER * 8
    }

    /// A cell of a slot.
    pub fn cell(&self, slot: usize, row: usize, class: usize) -> usize {
        self.slot(slot) + PAGE + self.peers() + (row * CLASSES + class) * CELL * 8
    }

    /// All of it.
    pub fn size(&self) -> usize {
        self.slot(SLOTS)
    }
}

/// The area of one PE, mapped.
pub struct Area {
    start: NonNull<u8>,
    /// Bytes that are mapped: all of it, or only the header.
    mapped: usize,
    layout: Layout,
    fd: OwnedFd,
}

// SAFETY: all access is by atomic words, and the mapping lives as long as the area.
unsafe impl Send for Area {}
// SAFETY: as above.
unsafe impl Sync for Area {}

impl Area {
    /// Makes the area of a PE of a job of `pes` PEs, with room for `events` events.
    pub fn create(pes: usize, events: usize) -> Result<OwnedFd> {
        let fd = memfd_create("tombolo-profile", MFdFlags::MFD_CLOEXEC)
            .map_err(|e| Error::system("making the memory of a profile", e))?;
        let layout = Layout { pes, events: events.min(EVENTS_MAX) };
        crate::memory::check_file_size("a profile (--profile, --trace)", layout.size())?;
        nix::unistd::ftruncate(&fd, layout.size() as i64)
            .map_err(|e| Error::system("sizing the memory of a profile", e))?;
        let area = Area::map(fd, layout.size(), layout)?;
        area.head(Head::Pes).store(pes as u64, Ordering::Relaxed);
        area.head(Head::Capacity).store(layout.events as u64, Ordering::Relaxed);
        let offset = realtime_ns().wrapping_sub(crate::board::monotonic_ns());
        area.head(Head::Offset).store(offset, Ordering::Relaxed);
        area.head(Head::Magic).store(MAGIC, Ordering::Release);
        area.fd.try_clone().map_err(|e| Error::system("keeping the memory of a profile", e))
    }

    /// Maps the area that a launcher has made for a PE of a job of `pes` PEs.
    pub fn open(fd: OwnedFd, pes: usize) -> Result<Area> {
        let stat = nix::sys::stat::fstat(&fd)
            .map_err(|e| Error::system("looking at the memory of a profile", e))?;
        let wrong = || Error::Bootstrap("the memory of a profile is not of this job".to_owned());
        if (stat.st_size as usize) < PAGE {
            return Err(wrong());
        }
        let header = Area::map(fd, PAGE, Layout { pes, events: 0 })?;
        let word = |head| header.head(head).load(Ordering::Acquire);
        let layout = Layout { pes, events: (word(Head::Capacity) as usize).min(EVENTS_MAX) };
        let sound = word(Head::Magic) == MAGIC && word(Head::Pes) == pes as u64;
        let fd = header.fd.try_clone().map_err(|e| Error::system("the memory of a profile", e))?;
        match sound && stat.st_size as usize == layout.size() {
            true => Area::map(fd, layout.size(), layout),
            false => Err(wrong()),
        }
    }

    /// Maps the first `len` bytes.
    fn map(fd: OwnedFd, len: usize, layout: Layout) -> Result<Area> {
        let length = NonZeroUsize::new(len).expect("no area is empty");
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a fresh shared mapping at an address of the kernel's choice.
        let start = unsafe { mmap(None, length, access, MapFlags::MAP_SHARED, &fd, 0) }
            .map_err(|e| Error::system("mapping the memory of a profile", e))?;
        Ok(Area { start: start.cast(), mapped: len, layout, fd })
    }

    /// The descriptor to hand to other processes.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Events that the ring holds.
    pub fn capacity(&self) -> usize {
        self.layout.events
    }

    #[inline(always)]
    fn words(&self, offset: usize) -> *const AtomicU64 {
        // SAFETY: callers pass offsets of the layout, which lie inside the mapping.
        unsafe { self.start.as_ptr().add(offset).cast() }
    }

    /// A word of the header.
    #[inline(always)]
    pub fn head(&self, word: Head) -> &AtomicU64 {
        // SAFETY: inside the header; all words are atomic and live as long as the area.
        unsafe { &*self.words(0).add(word as usize) }
    }

    /// The cells of a row, by class.
    pub fn cells(&self, slot: usize, row: usize) -> &[[AtomicU64; CELL]; CLASSES] {
        assert!(slot < SLOTS && row < ROWS);
        // SAFETY: a place of the layout; otherwise as above.
        unsafe { &*self.words(self.layout.cell(slot, row, 0)).cast() }
    }

    /// What a slot has exchanged with each PE.
    pub fn peers(&self, slot: usize) -> &[[AtomicU64; PEER]] {
        assert!(slot < SLOTS);
        let first = self.words(self.layout.peer(slot, 0)).cast();
        // SAFETY: as above; there is one for each PE.
        unsafe { std::slice::from_raw_parts(first, self.layout.pes) }
    }

    /// Number of waits of a slot for a reason, and nanoseconds.
    pub fn waits(&self, slot: usize, reason: usize) -> [&AtomicU64; 2] {
        assert!(slot < SLOTS && reason < REASONS);
        let first = self.words(self.layout.slot(slot));
        // SAFETY: in the first page of a slot; otherwise as above.
        [0, 1].map(|word| unsafe { &*first.add(2 * reason + word) })
    }

    /// What is known of the lives of a slot's threads.
    pub fn lives(&self, slot: usize) -> &[AtomicU64; LIVES] {
        assert!(slot < SLOTS);
        // SAFETY: behind the waits in the first page of a slot; otherwise as above.
        unsafe { &*self.words(self.layout.lives(slot)).cast() }
    }

    /// What a slot's thread is in the middle of.
    pub fn pending(&self, slot: usize) -> &[AtomicU64; PENDING] {
        assert!(slot < SLOTS);
        // SAFETY: behind the lives in the first page of a slot; otherwise as above.
        unsafe { &*self.words(self.layout.pending(slot)).cast() }
    }

    /// Says what a row counts: a routine, by which way, and how far. One caller at a time.
    pub fn name(&self, row: usize, parts: [&str; 3]) {
        assert!(row < ROWS);
        for (part, text) in parts.into_iter().enumerate() {
            let mut bytes = [0u8; NAME];
            let kept = text.len().min(NAME - 1);
            bytes[..kept].copy_from_slice(&text.as_bytes()[..kept]);
            self.write(Layout::row(row) + part * NAME, &bytes);
        }
    }

    /// Replaces the text; what is too much is cut off.
    pub fn set_text(&self, text: &str) {
        let mut end = text.len().min(TEXT);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let mut bytes = text.as_bytes()[..end].to_vec();
        bytes.resize(end.next_multiple_of(8), 0);
        self.write(Layout::TEXT_AT, &bytes);
        self.head(Head::Text).store(end as u64, Ordering::Release);
    }

    fn write(&self, offset: usize, bytes: &[u8]) {
        for (index, word) in bytes.chunks_exact(8).enumerate() {
            let word = u64::from_le_bytes(word.try_into().expect("8 bytes"));
            // SAFETY: callers stay inside the layout; otherwise as above.
            unsafe { &*self.words(offset).add(index) }.store(word, Ordering::Relaxed);
        }
    }

    /// Adds an event to the ring: `[begin, end, row and 2^32 times the slot, 1 + peer or 0, bytes]`. The oldest makes room.
    pub fn event(&self, words: [u64; EVENT - 1]) {
        if self.layout.events == 0 {
            return;
        }
        let number = self.head(Head::Events).fetch_add(1, Ordering::Relaxed);
        let at = self.words(Layout::event((number % self.layout.events as u64) as usize));
        // SAFETY: an event of the ring; otherwise as above.
        let word = |index: usize| unsafe { &*at.add(index) };
        word(0).store(0, Ordering::Relaxed);
        for (index, value) in words.into_iter().enumerate() {
            word(index + 1).store(value, Ordering::Relaxed);
        }
        word(0).store(number + 1, Ordering::Release);
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        // SAFETY: the mapping made by `map`; no reference into it outlives the area.
        let _ = unsafe { munmap(self.start.cast(), self.mapped) };
    }
}

fn realtime_ns() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |now| now.as_nanos() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_of_sizes_are_powers_of_two() {
        assert_eq!([0, 1, 8, 9, 16, 17, 4096].map(class), [0, 0, 0, 1, 1, 2, 9]);
        assert_eq!((class(usize::MAX), class_max(0), class_max(9)), (CLASSES - 1, 8, 4096));
        for len in [1usize, 8, 9, 100, 4097, 1 << 30] {
            let class = class(len);
            assert!(
                class_max(class) >= len as u64 && (class == 0 || class_max(class - 1) < len as u64)
            );
        }
    }

    #[test]
    fn memory_of_another_job_is_refused() {
        let fd = Area::create(3, 0).unwrap();
        assert!(Area::open(fd.try_clone().unwrap(), 3).is_ok());
        assert!(Area::open(fd.try_clone().unwrap(), 4).is_err());
        nix::unistd::ftruncate(&fd, 100).unwrap();
        assert!(Area::open(fd, 3).is_err());
    }
}
