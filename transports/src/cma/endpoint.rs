// SPDX-License-Identifier: Apache-2.0
//! The data path to a peer by kernel copies.

use super::sys;
use tombolo_core::transport::{
    Capabilities, Endpoint, Mapping, Remote, SegmentKind, Status, Stream,
};

/// A segment in the peer's address space; empty where it is not reached.
#[derive(Clone, Copy, Debug, Default)]
pub struct Range {
    /// Start.
    pub base: usize,
    /// Length in bytes.
    pub len: usize,
    /// Layout.
    pub layout: u64,
}

/// One peer process.
#[derive(Debug)]
pub struct CmaEndpoint {
    pid: i32,
    ranges: [Range; 2],
}

impl CmaEndpoint {
    /// A peer that has been tried.
    pub fn new(pid: i32, ranges: [Range; 2]) -> CmaEndpoint {
        CmaEndpoint { pid, ranges }
    }

    fn at(&self, remote: Remote, len: usize) -> Option<usize> {
        let range = &self.ranges[remote.segment as usize];
        remote.fits(len, range.len).then(|| range.base + remote.offset)
    }
}

impl Endpoint for CmaEndpoint {
    fn capabilities(&self, segment: SegmentKind) -> Capabilities {
        match self.ranges[segment as usize].len {
            0 => Capabilities::NONE,
            _ => Capabilities {
                put: true,
                get: true,
                ordered: true,
                ends_last: sys::ENDS_LAST,
                ..Capabilities::NONE
            },
        }
    }

    fn mapped(&self, _segment: SegmentKind) -> Option<Mapping> {
        None
    }

    unsafe fn put(
        &self,
        _stream: &Stream,
        dest: Remote,
        source: *const u8,
        len: usize,
        _blocking: bool,
    ) -> Status {
        let Some(address) = self.at(dest, len) else { return Status::Failed };
        let write = if sys::has_end(address, len) { sys::write_in_two } else { sys::write };
        // SAFETY: the caller vouches for the source.
        match unsafe { write(self.pid, address, source, len) } {
            Ok(()) => Status::Complete,
            Err(_) => Status::Failed,
        }
    }

    unsafe fn get(&self, _stream: &Stream, dest: *mut u8, source: Remote, len: usize) -> Status {
        let Some(address) = self.at(source, len) else { return Status::Failed };
        // SAFETY: the caller vouches for the destination.
        match unsafe { sys::read(self.pid, dest, address, len) } {
            Ok(()) => Status::Complete,
            Err(_) => Status::Failed,
        }
    }
}
