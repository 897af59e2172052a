// SPDX-License-Identifier: Apache-2.0
//! The memory of PEs on other emulated hosts, which are all on this machine: the files that they have open are opened
//! once more, through `/proc`.

use nix::sys::mman::{MapFlags, ProtFlags, mmap};
use std::fs::{File, OpenOptions};
use std::num::NonZeroUsize;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use tombolo_core::transport::{Mapping, Segment, SegmentKind};

const KINDS: usize = SegmentKind::ALL.len();
/// Words that describe a segment: descriptor, where it begins in the file, length, layout.
const WORDS: usize = 4;
/// Bytes of an address in front of that of the transport below: the process, and its segments.
const HEAD: usize = 8 * (1 + WORDS * KINDS);

/// The files of this PE's segments, by kind, open for as long as others may look for them.
#[derive(Default)]
pub struct Files([Option<(OwnedFd, [u64; WORDS - 1])>; KINDS]);

impl Files {
    /// Keeps the files of segments open.
    pub fn of(segments: &[Segment<'_>]) -> std::io::Result<Files> {
        let mut files = Files::default();
        for segment in segments {
            let Some(file) = segment.file else { continue };
            let place = [segment.file_offset as u64, segment.len as u64, segment.layout];
            files.0[segment.kind as usize] = Some((file.try_clone_to_owned()?, place));
        }
        Ok(files)
    }

    /// The address of this PE: where its segments are, followed by its address over the transport below.
    pub fn address(&self, below: &[u8]) -> Vec<u8> {
        let mut words = vec![u64::from(std::process::id())];
        for slot in &self.0 {
            match slot {
                Some((file, place)) => {
                    words.push(file.as_raw_fd() as u64);
                    words.extend(place);
                }
                None => words.extend([u64::MAX; WORDS]),
            }
        }
        let mut address: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        address.extend_from_slice(below);
        address
    }

    /// Maps those segments of a PE of another host that this PE has in the same layout, by its address. Says why, if
    /// its heap is not among them.
    pub fn reach(&self, address: &[u8]) -> Result<[Option<Map>; KINDS], String> {
        let words = address.get(..HEAD).ok_or("its address cannot be read")?;
        let words = words.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
        let words: Vec<u64> = words.collect();
        let mut maps = [None, None];
        for (kind, its) in words[1..].chunks(WORDS).enumerate() {
            let alike = |(_, own): &(OwnedFd, [u64; WORDS - 1])| own[1..] == its[2..];
            if self.0[kind].as_ref().is_some_and(alike) {
                let path = format!("/proc/{}/fd/{}", words[0], its[0] as RawFd);
                let map = Map::of(&path, its[1], its[2]).map_err(|e| format!("{path}: {e}"))?;
                maps[kind] = Some(map);
            }
        }
        match maps[SegmentKind::Heap as usize] {
            Some(_) => Ok(maps),
            None => Err("its memory cannot be mapped by other processes".into()),
        }
    }
}

/// The address of a PE over the transport below, as [`Files::address`] was given it.
pub fn below(address: &[u8]) -> &[u8] {
    address.get(HEAD..).unwrap_or_default()
}

/// A mapped segment of another PE.
pub struct Map {
    base: *mut u8,
    len: usize,
}

// SAFETY: plain shared memory; access goes through raw pointers and atomics only.
unsafe impl Send for Map {}
// SAFETY: as above.
unsafe impl Sync for Map {}

impl Map {
    fn of(path: &str, offset: u64, len: u64) -> std::io::Result<Map> {
        let file: File = OpenOptions::new().read(true).write(true).open(path)?;
        let end = offset.checked_add(len);
        // Touching what is beyond the end of the file would be fatal.
        if end.is_none_or(|end| end > file.metadata().map_or(0, |found| found.len())) {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        let length = NonZeroUsize::new(len as usize).ok_or(std::io::ErrorKind::InvalidInput)?;
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        let flags = MapFlags::MAP_SHARED | MapFlags::MAP_NORESERVE;
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let base = unsafe { mmap(None, length, access, flags, &file, offset as i64) }?;
        Ok(Map { base: base.as_ptr().cast(), len: length.get() })
    }

    /// Where it lies in this process.
    pub fn mapping(&self) -> Mapping {
        Mapping { base: self.base, len: self.len, load: true, atomic: true }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: mapped by `of`; endpoints are dropped after their last use.
        unsafe { libc::munmap(self.base.cast(), self.len) };
    }
}
