// SPDX-License-Identifier: Apache-2.0
//! The memory of PEs on other emulated hosts, which are all on this machine: the files that they have open are opened
//! once more, through `/proc`.

use crate::shm::address;
use crate::shm::endpoint::{Map, ShmEndpoint};
use std::fs::OpenOptions;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use tombolo_core::transport::{Segment, SegmentKind};

const KINDS: usize = SegmentKind::ALL.len();
/// Bytes in front of the address by which PEs of the same host find this one.
const DOOR: usize = 4 + 4 * KINDS;
/// Stands for a segment without a file.
const NONE: RawFd = -1;

/// The files of this PE's segments, by kind, open for as long as others may look for them.
#[derive(Default)]
pub struct Files([Option<OwnedFd>; KINDS]);

impl Files {
    /// Keeps the files of segments open.
    pub fn of(segments: &[Segment<'_>]) -> std::io::Result<Files> {
        let mut files = Files::default();
        for segment in segments {
            let file = segment.file.map(|file| file.try_clone_to_owned()).transpose()?;
            files.0[segment.kind as usize] = file;
        }
        Ok(files)
    }

    /// What tells PEs of other hosts where the files are, followed by `address`.
    pub fn told_before(&self, address: &[u8]) -> Vec<u8> {
        let mut told = std::process::id().to_le_bytes().to_vec();
        for file in &self.0 {
            let number = file.as_ref().map_or(NONE, OwnedFd::as_raw_fd);
            told.extend_from_slice(&number.to_le_bytes());
        }
        told.extend_from_slice(address);
        told
    }
}

/// What [`Files::told_before`] was told to tell.
pub fn inner(told: &[u8]) -> &[u8] {
    told.get(DOOR..).unwrap_or_default()
}

/// A PE of another host, by what it has told; `own` is the layout of this PE's segments, by kind.
pub fn reach(told: &[u8], own: &[Option<(usize, u64)>; KINDS]) -> Result<ShmEndpoint, String> {
    let unreadable = || "its address cannot be read".to_owned();
    let (words, inner) = told.split_at_checked(DOOR).ok_or_else(unreadable)?;
    let extents = address::parse(inner).ok_or_else(unreadable)?;
    let (words, _) = words.as_chunks::<4>();
    let process = u32::from_le_bytes(words[0]);
    let mut endpoint = ShmEndpoint::default();
    for (kind, extent) in SegmentKind::ALL.into_iter().zip(extents) {
        let number = RawFd::from_le_bytes(words[1 + kind as usize]);
        let Some(extent) = extent.filter(|_| number != NONE) else { continue };
        if own[kind as usize] != Some((extent.len as usize, extent.layout)) {
            continue;
        }
        let path = format!("/proc/{process}/fd/{number}");
        let failed = |e: std::io::Error| format!("{path}: {e}");
        let file = OpenOptions::new().read(true).write(true).open(&path).map_err(failed)?.into();
        let (id, size) = address::look_at(&file).map_err(failed)?;
        // Touching what is beyond the end of the file would be fatal.
        if id != extent.file || !extent.lies_within(size) {
            return Err(format!("{path} is not the file of its memory"));
        }
        let map = Arc::new(Map::of_file(&file, extent.end()).map_err(failed)?);
        endpoint.set(kind, map, extent.offset as usize, extent.len as usize);
    }
    Ok(endpoint)
}
