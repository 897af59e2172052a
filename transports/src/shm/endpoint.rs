// SPDX-License-Identifier: Apache-2.0
//! The data path to a peer of the same host: plain memory.

use super::sys;
use std::io;
use std::os::fd::OwnedFd;
use tombolo_core::transport::{
    Amo, AmoSet, Capabilities, Endpoint, Mapping, Remote, SegmentKind, Signal, Status, Stream,
};
use tombolo_core::{amo, copy};

/// A mapped segment.
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

    /// Maps a whole memory file, which must hold `len` bytes: touching more would be fatal.
    pub fn of_file(file: &OwnedFd, len: usize) -> io::Result<Map> {
        let size = nix::sys::stat::fstat(file)?.st_size as u64;
        if size < len as u64 {
            return Err(io::Error::other(format!("its file has {size} bytes instead of {len}")));
        }
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

/// One peer's segments.
#[derive(Debug, Default)]
pub struct ShmEndpoint {
    maps: [Option<Map>; 2],
}

impl ShmEndpoint {
    /// Enters the mapping of a segment.
    pub fn set(&mut self, kind: SegmentKind, map: Map) {
        self.maps[kind as usize] = Some(map);
    }

    /// The address of `len` bytes at `remote`; none if they are not all there.
    fn at(&self, remote: Remote, len: usize) -> Option<*mut u8> {
        let map = self.maps[remote.segment as usize].as_ref()?;
        remote.fits(len, map.len).then(|| map.base.wrapping_add(remote.offset))
    }
}

impl Endpoint for ShmEndpoint {
    fn capabilities(&self, segment: SegmentKind) -> Capabilities {
        match self.maps[segment as usize] {
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
        let map = self.maps[segment as usize].as_ref()?;
        Some(Mapping { base: map.base, len: map.len, load: true, atomic: true })
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
