// SPDX-License-Identifier: Apache-2.0
//! What is to be sent by a connection and has not been taken by its socket.

use super::frame::HEAD;
use crate::network::Completion;
use std::collections::VecDeque;
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::os::fd::RawFd;
use std::ptr::null_mut;

/// Pieces of memory that one call sends.
const VECTORS: usize = 16;
/// A body of so many bytes is sent in one piece with its head: the system takes longer to look at a list of pieces than
/// the copy takes.
const JOINED: usize = 1024;

/// Bytes that follow a head.
#[derive(Clone, Copy)]
pub struct Body {
    pub at: *const u8,
    pub len: usize,
    /// What does not leave at once is copied; otherwise it stays valid until it has left.
    pub is_copied: bool,
    /// Of a message: what its completion names. It completes when it has left.
    pub context: *mut c_void,
}

impl Body {
    /// Of a frame that is nothing but its head.
    pub const NONE: Body =
        Body { at: std::ptr::null(), len: 0, is_copied: true, context: null_mut() };
}

/// See the module.
#[derive(Default)]
pub struct Out {
    parts: VecDeque<Part>,
    /// The bytes of all [`Part::Copied`], one after another.
    copied: VecDeque<u8>,
}

enum Part {
    Copied(usize),
    Lent { at: *const u8, len: usize, context: *mut c_void },
}

impl Out {
    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// How much waits: pieces of memory, and bytes that were copied.
    pub fn size(&self) -> (usize, usize) {
        (self.parts.len(), self.copied.len())
    }

    /// Forgets all; gives the contexts of messages that have not left.
    pub fn clear(&mut self) -> impl Iterator<Item = *mut c_void> {
        self.copied.clear();
        std::mem::take(&mut self.parts).into_iter().filter_map(|part| match part {
            Part::Lent { context, .. } if !context.is_null() => Some(context),
            _ => None,
        })
    }

    /// Sends a frame behind what waits, or keeps what the socket does not take. Without a socket all is kept.
    ///
    /// # Safety
    /// The body is valid, and stays so until it has left, or [`Out::clear`], where it is not copied.
    pub unsafe fn post(
        &mut self,
        socket: Option<RawFd>,
        head: &[u8; HEAD],
        body: Body,
        done: &mut VecDeque<Completion>,
    ) -> Result<(), i32> {
        let mut sent = 0;
        if let Some(socket) = socket.filter(|_| self.parts.is_empty()) {
            // SAFETY: by the caller's word.
            sent = unsafe { send_frame(socket, head, &body) }?;
        }
        if sent < HEAD {
            self.copy(&head[sent..]);
        }
        let gone = sent.saturating_sub(HEAD);
        if gone == body.len {
            if !body.context.is_null() {
                match self.parts.is_empty() {
                    true => done.push_back(Completion { context: body.context, len: 0 }),
                    // An empty message behind its head.
                    false => self.lend(body.at, 0, body.context),
                }
            }
            return Ok(());
        }
        let rest = (body.at.wrapping_add(gone), body.len - gone);
        match body.is_copied {
            // SAFETY: by the caller's word.
            true => self.copy(unsafe { std::slice::from_raw_parts(rest.0, rest.1) }),
            false => self.lend(rest.0, rest.1, body.context),
        }
        Ok(())
    }

    fn copy(&mut self, bytes: &[u8]) {
        self.copied.extend(bytes);
        match self.parts.back_mut() {
            Some(Part::Copied(len)) => *len += bytes.len(),
            _ => self.parts.push_back(Part::Copied(bytes.len())),
        }
    }

    fn lend(&mut self, at: *const u8, len: usize, context: *mut c_void) {
        self.parts.push_back(Part::Lent { at, len, context });
    }

    /// Sends what the socket takes; says whether it took anything.
    pub fn flush(&mut self, socket: RawFd, done: &mut VecDeque<Completion>) -> Result<bool, i32> {
        let mut moved = false;
        while !self.parts.is_empty() {
            let (vectors, count, len) = self.vectors();
            // SAFETY: parts are valid until they have left.
            let sent = unsafe { send(socket, &vectors[..count]) }?;
            self.leave(sent, done);
            moved |= sent > 0;
            if sent < len {
                break;
            }
        }
        Ok(moved)
    }

    /// The first parts as memory to be sent: pieces, how many they are, and their bytes.
    fn vectors(&self) -> ([libc::iovec; VECTORS], usize, usize) {
        let mut vectors = [vector(std::ptr::null(), 0); VECTORS];
        let (mut count, mut len, mut copied) = (0, 0, 0);
        let (front, back) = self.copied.as_slices();
        for part in &self.parts {
            if count + 2 > VECTORS {
                break;
            }
            let mut add = |at: *const u8, bytes: usize| {
                vectors[count] = vector(at, bytes);
                (count, len) = (count + 1, len + bytes);
            };
            match *part {
                Part::Lent { at, len, .. } => add(at, len),
                Part::Copied(bytes) => {
                    let end = copied + bytes;
                    if copied < front.len() {
                        let piece = &front[copied..end.min(front.len())];
                        add(piece.as_ptr(), piece.len());
                    }
                    if end > front.len() {
                        let piece = &back[copied.saturating_sub(front.len())..end - front.len()];
                        add(piece.as_ptr(), piece.len());
                    }
                    copied = end;
                }
            }
        }
        (vectors, count, len)
    }

    /// So many bytes have left.
    fn leave(&mut self, mut sent: usize, done: &mut VecDeque<Completion>) {
        while let Some(part) = self.parts.front_mut() {
            let left = match part {
                Part::Copied(len) => {
                    let left = sent.min(*len);
                    self.copied.drain(..left);
                    (*len, sent) = (*len - left, sent - left);
                    *len
                }
                Part::Lent { at, len, .. } => {
                    let left = sent.min(*len);
                    (*at, *len, sent) = (at.wrapping_add(left), *len - left, sent - left);
                    *len
                }
            };
            if left > 0 {
                return;
            }
            if let Some(Part::Lent { context, .. }) = self.parts.pop_front()
                && !context.is_null()
            {
                done.push_back(Completion { context, len: 0 });
            }
        }
    }
}

const FLAGS: i32 = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;

fn vector(at: *const u8, len: usize) -> libc::iovec {
    libc::iovec { iov_base: at.cast_mut().cast(), iov_len: len }
}

/// Sends a frame behind which nothing waits: as [`send`].
///
/// # Safety
/// The body is valid.
unsafe fn send_frame(socket: RawFd, head: &[u8; HEAD], body: &Body) -> Result<usize, i32> {
    if body.len > JOINED {
        // SAFETY: the head, and by the caller's word the body.
        return unsafe { send(socket, &[vector(head.as_ptr(), HEAD), vector(body.at, body.len)]) };
    }
    let mut joined = MaybeUninit::<[u8; HEAD + JOINED]>::uninit();
    let at = joined.as_mut_ptr().cast::<u8>();
    // SAFETY: both fit; the body is valid by the caller's word, and what is sent was written.
    let sent = unsafe {
        at.copy_from_nonoverlapping(head.as_ptr(), HEAD);
        if body.len > 0 {
            at.add(HEAD).copy_from_nonoverlapping(body.at, body.len);
        }
        libc::send(socket, at.cast(), HEAD + body.len, FLAGS)
    };
    taken(sent)
}

/// Sends without waiting: how many bytes the socket took, or an error number.
///
/// # Safety
/// The vectors lead to valid memory.
unsafe fn send(socket: RawFd, vectors: &[libc::iovec]) -> Result<usize, i32> {
    // SAFETY: all-zero is a valid header of a message without an address.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = vectors.as_ptr().cast_mut();
    message.msg_iovlen = vectors.len() as _;
    // SAFETY: by the caller's word; vectors are only read.
    taken(unsafe { libc::sendmsg(socket, &raw const message, FLAGS) })
}

/// What a call that sends has given.
fn taken(sent: isize) -> Result<usize, i32> {
    match sent {
        0.. => Ok(sent as usize),
        _ => match nix::errno::Errno::last_raw() {
            libc::EAGAIN | libc::EINTR | libc::ENOBUFS => Ok(0),
            error => Err(error),
        },
    }
}
