// SPDX-License-Identifier: Apache-2.0
//! The data path to a peer by kernel copies.

use super::{TOKEN, sys};
use std::io;
use std::sync::atomic::{AtomicI32, AtomicU8, Ordering, fence};
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
    /// The thread of the process by which the kernel finds its memory: the first one, as long as it lives.
    thread: AtomicI32,
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
        let (thread, state) = (AtomicI32::new(pid), AtomicU8::new(UNTRIED));
        CmaEndpoint { pid, thread, ranges, proof, state }
    }

    /// Tries whether the peer can be reached, or says why not.
    pub fn try_it(&self) -> Result<(), String> {
        let pid = self.pid;
        let tried = match self.by_living_thread(|thread| self.is_peer(thread)) {
            Err(e) => Err(format!("the kernel refuses access to process {pid}: {e}")),
            Ok(false) => Err(format!("process {pid} is another one")),
            Ok(true) => Ok(()),
        };
        self.state.store(if tried.is_ok() { REACHED } else { REFUSED }, Ordering::Relaxed);
        tried
    }

    /// Whether a thread is one of the peer.
    fn is_peer(&self, thread: i32) -> io::Result<bool> {
        let mut token = [0u8; TOKEN];
        // SAFETY: `token` is valid for its length.
        unsafe { sys::read(thread, token.as_mut_ptr(), self.proof.at, TOKEN) }?;
        Ok(token == self.proof.token)
    }

    /// Accesses memory by a thread of the peer, and by another one if that has ended.
    #[inline]
    fn by_living_thread<R>(&self, mut access: impl FnMut(i32) -> io::Result<R>) -> io::Result<R> {
        loop {
            let thread = self.thread.load(Ordering::Relaxed);
            match access(thread) {
                Err(e) if e.raw_os_error() == Some(libc::ESRCH) => {
                    match self.another_than(thread) {
                        Some(other) => self.thread.store(other, Ordering::Relaxed),
                        None => return Err(e),
                    }
                }
                done => return done,
            }
        }
    }

    /// A thread of the peer besides this one, which has ended.
    #[cold]
    fn another_than(&self, ended: i32) -> Option<i32> {
        let is_peer = |thread: &i32| matches!(self.is_peer(*thread), Ok(true));
        sys::threads(self.pid).into_iter().filter(|thread| *thread != ended).find(is_peer)
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
        // Puts before this one are complete: who sees this one sees them.
        fence(Ordering::Release);
        // SAFETY: the caller vouches for the source.
        match self.by_living_thread(|thread| unsafe { write(thread, address, source, len) }) {
            Ok(()) => Status::Complete,
            Err(_) => Status::Failed,
        }
    }

    unsafe fn get(&self, _stream: &Stream, dest: *mut u8, source: Remote, len: usize) -> Status {
        let Some(address) = self.at(source, len) else { return Status::Failed };
        // SAFETY: the caller vouches for the destination.
        match self.by_living_thread(|thread| unsafe { sys::read(thread, dest, address, len) }) {
            Ok(()) => Status::Complete,
            Err(_) => Status::Failed,
        }
    }
}
