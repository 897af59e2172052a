// SPDX-License-Identifier: Apache-2.0
//! The data path to a peer by kernel copies.

use super::{TOKEN, sys};
use std::sync::atomic::{AtomicU8, Ordering};
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

/// How a process shows that it is the peer: by bytes of its memory that only the two know.
#[derive(Clone, Copy, Debug)]
pub struct Proof {
    /// Where they lie in the peer's address space.
    pub at: usize,
    /// What they are.
    pub token: [u8; TOKEN],
}

/// One peer process.
#[derive(Debug)]
pub struct CmaEndpoint {
    pid: i32,
    ranges: [Range; 2],
    proof: Proof,
    state: AtomicU8,
}

/// Not tried yet.
const UNTRIED: u8 = 0;
/// It is the peer, and the kernel gives access.
const REACHED: u8 = 1;
/// One of the two is not so.
const REFUSED: u8 = 2;

impl CmaEndpoint {
    /// A peer, to be tried now or at its first use.
    pub fn new(pid: i32, ranges: [Range; 2], proof: Proof) -> CmaEndpoint {
        CmaEndpoint { pid, ranges, proof, state: AtomicU8::new(UNTRIED) }
    }

    /// Tries whether the peer can be reached, or says why not.
    pub fn try_it(&self) -> Result<(), String> {
        let (pid, mut token) = (self.pid, [0u8; TOKEN]);
        // SAFETY: `token` is valid for its length.
        let read = unsafe { sys::read(pid, token.as_mut_ptr(), self.proof.at, TOKEN) };
        let tried = match read {
            Err(e) => Err(format!("the kernel refuses access to process {pid}: {e}")),
            Ok(()) if token != self.proof.token => Err(format!("process {pid} is another one")),
            Ok(()) => Ok(()),
        };
        self.state.store(if tried.is_ok() { REACHED } else { REFUSED }, Ordering::Relaxed);
        tried
    }

    fn is_reached(&self) -> bool {
        match self.state.load(Ordering::Relaxed) {
            UNTRIED => self.try_it().is_ok(),
            state => state == REACHED,
        }
    }

    fn at(&self, remote: Remote, len: usize) -> Option<usize> {
        let range = &self.ranges[remote.segment as usize];
        (remote.fits(len, range.len) && self.is_reached()).then(|| range.base + remote.offset)
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
