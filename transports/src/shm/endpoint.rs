// SPDX-License-Identifier: Apache-2.0
//! The data path to a peer of the same host: plain memory.

use super::sys;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use tombolo_core::transport::{
    Amo, AmoSet, Capabilities, Endpoint, Mapping, Remote, SegmentKind, Signal, Status, Stream,
};
use tombolo_core::{amo, copy};

/// Mapped memory.
#[derive(Debug)]
pub struct Map {
    base: *mut u8,
    len: usize,
    owned: bool,
}

// SAFETY: plain shared memory; access goes through raw pointers and atomics only.
unsafe impl Send for Map {}
// SAFETY: as above.
unsafe impl Sync for Map {}

impl Map {
    /// Memory that somebody else unmaps.
    ///
    /// # Safety
    /// `len` bytes at `base` stay mapped while the map is used.
    pub unsafe fn borrowed(base: *mut u8, len: usize) -> Map {
        Map { base, len, owned: false }
    }

    /// Maps the first `len` bytes of a memory file, which must hold as many: touching more would be
    /// fatal.
    pub fn of_file(file: &OwnedFd, len: usize) -> io::Result<Map> {
        Ok(Map { base: sys::map_shared(file, len)?, len, owned: true })
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        if self.owned {
            // SAFETY: mapped by `of_file`; endpoints are dropped after their last use.
            unsafe { sys::unmap(self.base, self.len) };
        }
    }
}

/// Where a segment is mapped.
#[derive(Debug)]
struct Window {
    base: *mut u8,
    len: usize,
    /// Keeps the memory mapped.
    _map: Arc<Map>,
}

// SAFETY: as for the map that it is part of.
unsafe impl Send for Window {}
// SAFETY: as above.
unsafe impl Sync for Window {}

/// One peer's segments.
#[derive(Debug, Default)]
pub struct ShmEndpoint {
    windows: [Option<Window>; 2],
}

impl ShmEndpoint {
    /// Enters `len` bytes at `offset` of a map as a segment. They must lie within.
    pub fn set(&mut self, kind: SegmentKind, map: Arc<Map>, offset: usize, len: usize) {
        assert!(offset.checked_add(len).is_some_and(|end| end <= map.len), "part of the map");
        let base = map.base.wrapping_add(offset);
        self.windows[kind as usize] = Some(Window { base, len, _map: map });
    }

    /// The address of `len` bytes at `remote`; none if they are not all there.
    fn at(&self, remote: Remote, len: usize) -> Option<*mut u8> {
        let window = self.windows[remote.segment as usize].as_ref()?;
        remote.fits(len, window.len).then(|| window.base.wrapping_add(remote.offset))
    }
}

impl Endpoint for ShmEndpoint {
    fn capabilities(&self, segment: SegmentKind) -> Capabilities {
        match self.windows[segment as usize] {
            None => Capabilities::NONE,
            Some(_) => Capabilities {
                put: true,
                get: true,
                amos: AmoSet::ALL,
                signals: AmoSet::SIGNALS,
                whole_words: true,
                ordered: true,
                ..Capabilities::NONE
            },
        }
    }

    fn mapped(&self, segment: SegmentKind) -> Option<Mapping> {
        let window = self.windows[segment as usize].as_ref()?;
        Some(Mapping { base: window.base, len: window.len, load: true, atomic: true })
    }

    unsafe fn put(
        &self,
        _stream: &Stream,
        dest: Remote,
        source: *const u8,
        len: usize,
        _blocking: bool,
    ) -> Status {
        let Some(at) = self.at(dest, len) else { return Status::Failed };
        // Puts before this one are complete: who sees this one sees them.
        fence(Ordering::Release);
        // SAFETY: inside the mapping; the caller vouches for the source.
        unsafe { copy::cached(at, source, len) };
        Status::Complete
    }

    unsafe fn get(&self, _stream: &Stream, dest: *mut u8, source: Remote, len: usize) -> Status {
        let Some(at) = self.at(source, len) else { return Status::Failed };
        // SAFETY: inside the mapping; the caller vouches for the destination.
        unsafe { copy::cached(dest, at, len) };
        Status::Complete
    }

    unsafe fn amo(
        &self,
        _stream: &Stream,
        target: Remote,
        amo: Amo,
        result: Option<*mut u8>,
    ) -> Status {
        let Some(at) = self.at(target, amo.size.into()) else { return Status::Failed };
        // SAFETY: inside the mapping and aligned by contract; the low bytes come first.
        unsafe {
            let old = amo::execute(at, amo);
            if let Some(result) = result {
                std::ptr::copy_nonoverlapping((&raw const old).cast(), result, amo.size.into());
            }
        }
        Status::Complete
    }

    unsafe fn put_signal(
        &self,
        stream: &Stream,
        dest: Remote,
        source: *const u8,
        len: usize,
        signal: Signal,
        blocking: bool,
    ) -> Status {
        // SAFETY: the caller vouches for the arguments. The atomic update releases the data.
        unsafe {
            match self.put(stream, dest, source, len, blocking) {
                Status::Complete => self.amo(stream, signal.word, signal.amo(), None),
                other => other,
            }
        }
    }
}
