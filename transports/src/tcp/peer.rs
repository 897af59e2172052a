// SPDX-License-Identifier: Apache-2.0
//! One peer: its connection, what was sent by it and waits for an answer, and the frame that is coming in.

use super::frame::{HEAD, Head};
use super::out::{Body, Out};
use super::socket::Greeting;
use crate::network::{Completion, Failure};
use std::collections::VecDeque;
use std::ffi::c_void;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::ptr::null_mut;
use std::sync::atomic::{Ordering, fence};

/// Pieces of memory, and bytes copied, that wait for a socket before nothing more is taken.
const PARTS: usize = 128;
const COPIED: usize = 256 << 10;
/// The same with answers to what the peer asks for. No peer asks for so much before it has answers.
const PARTS_LIMIT: usize = 8192;
/// Reads of a socket in a row, so that others have their turn.
const ROUNDS: usize = 8;
/// Bytes that are read at a time beside those of a body whose place is known. With 8 KiB instead, streams of short puts
/// took a quarter longer, and long ones no less, although less of them is copied.
pub const SCRATCH: usize = 64 << 10;

/// Memory of this PE that peers may name.
pub struct Region {
    pub base: *mut u8,
    pub len: usize,
    pub key: u64,
}

/// A buffer for a message.
pub struct Receive {
    pub at: *mut u8,
    pub len: usize,
    pub context: *mut c_void,
}

/// What all peers of a PE have in common.
#[derive(Default)]
pub struct Common {
    pub regions: Vec<Region>,
    /// The one that was posted last is used first: the processor has it at hand.
    pub receives: Vec<Receive>,
    pub done: VecDeque<Completion>,
    pub failed: VecDeque<Failure>,
    pub scratch: Box<[u8]>,
}

impl Common {
    /// Where a range of shared memory lies; none if a peer may not name it.
    fn find(&self, key: u64, offset: u64, len: usize) -> Option<*mut u8> {
        let region = self.regions.iter().find(|region| region.key == key)?;
        let offset = usize::try_from(offset).ok()?;
        let inside = offset <= region.len && len <= region.len - offset;
        inside.then(|| region.base.wrapping_add(offset))
    }
}

/// How far the connection is.
pub enum State {
    /// Nothing was sent yet.
    Idle,
    /// The system connects. How many looks ago that began.
    Connecting(OwnedFd, u32),
    /// Own greeting was sent; that of the peer is awaited.
    Greeting(OwnedFd, Greeting),
    /// The peer has closed a connection before it greeted, or there was no room for a socket. Where both sides began to
    /// connect, that of the peer is to be used; if none comes, this side connects again.
    Expecting {
        /// Looks so far.
        looks: u32,
    },
    Open(OwnedFd),
    /// For good, with an error number.
    Closed(i32),
}

/// A read that was sent.
struct Wanted {
    context: *mut c_void,
    at: *mut u8,
    len: usize,
}

/// What happens at the end of a body.
enum Then {
    Nothing,
    Deliver { receive: Receive, len: usize },
    Written,
    RefuseWrite,
    EndRead,
}

/// See the module.
pub struct Peer {
    pub address: SocketAddr,
    pub token: u64,
    pub state: State,
    /// How often this side has begun to connect.
    pub attempts: u32,
    pub out: Out,
    /// In the list of those whose socket takes nothing more.
    pub is_blocked: bool,
    /// The descriptor to sleep on tells when the socket takes more.
    pub is_watched: bool,
    /// A part of a long body has come, or the socket, which took nothing more, has taken some, since this was last
    /// asked. Both show that the peer runs, or did until buffers of its system were full or empty: a socket that is full
    /// has room again when the peer's system has taken what was sent.
    has_moved: bool,
    head: [u8; HEAD],
    have: usize,
    /// Where the rest of the body goes, nowhere if that is null, and how long it is; none between frames.
    body: Option<(*mut u8, usize, Then)>,
    /// What came behind a message for which there was no buffer.
    kept: Vec<u8>,
    writes: VecDeque<*mut c_void>,
    reads: VecDeque<Wanted>,
    /// Writes that were carried out and of which the peer does not know.
    written: u64,
}

impl Peer {
    /// One to whom nothing was sent.
    pub fn new(address: SocketAddr, token: u64) -> Peer {
        Peer {
            address,
            token,
            state: State::Idle,
            attempts: 0,
            out: Out::default(),
            is_blocked: false,
            is_watched: false,
            has_moved: false,
            head: [0; HEAD],
            have: 0,
            body: None,
            kept: Vec::new(),
            writes: VecDeque::new(),
            reads: VecDeque::new(),
            written: 0,
        }
    }

    /// The socket, of a connection by which frames go.
    pub fn socket(&self) -> Option<RawFd> {
        match &self.state {
            State::Open(socket) => Some(socket.as_raw_fd()),
            _ => None,
        }
    }

    /// Whether more may be posted.
    pub fn has_room(&self) -> bool {
        let (parts, copied) = self.out.size();
        parts < PARTS && copied < COPIED
    }

    /// Sends what the socket takes of what waits.
    pub fn flush(&mut self, common: &mut Common) -> Result<(), i32> {
        let Some(socket) = self.socket() else { return Ok(()) };
        self.has_moved |= self.out.flush(socket, &mut common.done)?;
        Ok(())
    }

    /// See `has_moved`.
    pub fn take_moved(&mut self) -> bool {
        std::mem::take(&mut self.has_moved)
    }

    /// Whether something that came waits for a buffer.
    pub fn is_stalled(&self) -> bool {
        !self.kept.is_empty() || self.have == HEAD && self.body.is_none()
    }

    /// Sends a frame: an error number if the connection is gone, which the caller closes then.
    ///
    /// # Safety
    /// As [`Out::post`].
    pub unsafe fn post(&mut self, head: Head, body: Body, common: &mut Common) -> Result<(), i32> {
        let socket = self.socket();
        // SAFETY: by the caller's word.
        unsafe { self.out.post(socket, &head.encode(), body, &mut common.done) }
    }

    /// A write was posted.
    pub fn await_write(&mut self, context: *mut c_void) {
        self.writes.push_back(context);
    }

    /// A read was posted.
    pub fn await_read(&mut self, context: *mut c_void, at: *mut u8, len: usize) {
        self.reads.push_back(Wanted { context, at, len });
    }

    /// Ends the connection for good: what is under way fails.
    pub fn close(&mut self, error: i32, why: &str, common: &mut Common) {
        self.state = State::Closed(error);
        if let Some((_, _, Then::Deliver { receive, .. })) = self.body.take() {
            common.receives.push(receive);
        }
        self.have = 0;
        self.kept.clear();
        let waiting = self.writes.drain(..).chain(self.reads.drain(..).map(|read| read.context));
        for context in waiting.chain(self.out.clear()) {
            common.failed.push_back(Failure { context, is_refusal: false, why: why.into() });
        }
    }

    /// Takes what the socket has; an error number if the connection is gone.
    pub fn read(&mut self, common: &mut Common) -> Result<(), i32> {
        let Some(socket) = self.socket() else { return Ok(()) };
        if self.is_stalled() {
            let kept = std::mem::take(&mut self.kept);
            let used = self.parse(&kept, common)?;
            self.kept.extend_from_slice(&kept[used..]);
        }
        let mut scratch = std::mem::take(&mut common.scratch);
        let result = self.read_rounds(socket, &mut scratch, common);
        common.scratch = scratch;
        result?;
        self.acknowledge(common)
    }

    fn read_rounds(
        &mut self,
        socket: RawFd,
        scratch: &mut [u8],
        common: &mut Common,
    ) -> Result<(), i32> {
        for _ in 0..ROUNDS {
            if self.is_stalled() {
                return Ok(());
            }
            let (at, direct) = match &self.body {
                Some((at, len, _)) if !at.is_null() => (*at, *len),
                _ => (null_mut(), 0),
            };
            // SAFETY: the place of the body was checked when its head came, or is a buffer of this PE.
            let came = unsafe { receive(socket, at, direct, scratch) }?;
            let Some(came) = came else { return Ok(()) };
            let of_body = came.min(direct);
            if of_body > 0 {
                self.has_moved = true;
                self.advance(of_body, common)?;
            }
            let bytes = &scratch[..came - of_body];
            let used = self.parse(bytes, common)?;
            self.kept.extend_from_slice(&bytes[used..]);
            if came < direct + scratch.len() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Takes bytes of frames: how many, all unless a message waits for a buffer.
    fn parse(&mut self, bytes: &[u8], common: &mut Common) -> Result<usize, i32> {
        let mut used = 0;
        loop {
            if self.body.is_none() {
                let take = (HEAD - self.have).min(bytes.len() - used);
                self.head[self.have..][..take].copy_from_slice(&bytes[used..][..take]);
                (self.have, used) = (self.have + take, used + take);
                if self.have < HEAD || !self.begin(common)? {
                    return Ok(used);
                }
            }
            let Some((at, len, _)) = &self.body else { continue };
            let take = (*len).min(bytes.len() - used);
            if !at.is_null() {
                // SAFETY: the place of the body was checked when its head came, or is a buffer of this PE.
                unsafe { std::ptr::copy_nonoverlapping(bytes[used..].as_ptr(), *at, take) };
            }
            used += take;
            self.advance(take, common)?;
            if self.body.is_some() {
                return Ok(used);
            }
        }
    }

    /// So many bytes of the body are in their place.
    fn advance(&mut self, by: usize, common: &mut Common) -> Result<(), i32> {
        let Some((at, len, _)) = &mut self.body else { return Ok(()) };
        *len -= by;
        if !at.is_null() {
            *at = at.wrapping_add(by);
        }
        if *len > 0 {
            return Ok(());
        }
        let Some((_, _, then)) = self.body.take() else { return Ok(()) };
        self.have = 0;
        match then {
            Then::Nothing => {}
            Then::Deliver { receive, len } => {
                common.done.push_back(Completion { context: receive.context, len });
            }
            Then::Written => self.written += 1,
            Then::RefuseWrite => {
                self.acknowledge(common)?;
                self.answer(Head::WriteRefused, Body::NONE, common)?;
            }
            Then::EndRead => {
                if let Some(read) = self.reads.pop_front() {
                    common.done.push_back(Completion { context: read.context, len: 0 });
                }
            }
        }
        Ok(())
    }

    /// A head has come. False if it is of a message for which there is no buffer now.
    fn begin(&mut self, common: &mut Common) -> Result<bool, i32> {
        let none = (null_mut(), 0, Then::Nothing);
        let body = match Head::decode(&self.head).ok_or(libc::EPROTO)? {
            Head::Message { len } => {
                match common.receives.last().map(|receive| len <= receive.len) {
                    None => return Ok(false),
                    Some(false) => return Err(libc::EPROTO),
                    Some(true) => {}
                }
                let Some(receive) = common.receives.pop() else { return Ok(false) };
                (receive.at, len, Then::Deliver { receive, len })
            }
            Head::Write { len, offset, key } => match common.find(key, offset, len) {
                Some(at) => {
                    // Who sees this write sees those before it.
                    fence(Ordering::Release);
                    (at, len, Then::Written)
                }
                None => (null_mut(), len, Then::RefuseWrite),
            },
            Head::Written { count } => {
                for _ in 0..count {
                    let context = self.writes.pop_front().ok_or(libc::EPROTO)?;
                    common.done.push_back(Completion { context, len: 0 });
                }
                none
            }
            Head::WriteRefused => {
                refuse(self.writes.pop_front().ok_or(libc::EPROTO)?, common);
                none
            }
            Head::Read { len, offset, key } => {
                match common.find(key, offset, len) {
                    Some(at) => {
                        let (is_copied, context) = (false, null_mut());
                        let body = Body { at, len, is_copied, context };
                        self.answer(Head::Data { len }, body, common)?;
                    }
                    None => self.answer(Head::ReadRefused, Body::NONE, common)?,
                }
                none
            }
            Head::Data { len } => match self.reads.front() {
                Some(read) if read.len == len => (read.at, len, Then::EndRead),
                _ => return Err(libc::EPROTO),
            },
            Head::ReadRefused => {
                refuse(self.reads.pop_front().ok_or(libc::EPROTO)?.context, common);
                none
            }
        };
        self.body = Some(body);
        Ok(true)
    }

    /// Tells of writes that were carried out.
    fn acknowledge(&mut self, common: &mut Common) -> Result<(), i32> {
        match std::mem::take(&mut self.written) {
            0 => Ok(()),
            count => self.answer(Head::Written { count }, Body::NONE, common),
        }
    }

    /// Sends an answer, of which the body is shared memory.
    fn answer(&mut self, head: Head, body: Body, common: &mut Common) -> Result<(), i32> {
        if self.out.size().0 > PARTS_LIMIT {
            return Err(libc::EPROTO);
        }
        // SAFETY: shared memory is valid as long as connections are.
        unsafe { self.post(head, body, common) }
    }
}

fn refuse(context: *mut c_void, common: &mut Common) {
    let why = "the peer does not offer this memory".into();
    common.failed.push_back(Failure { context, is_refusal: true, why });
}

/// Receives without waiting, first to `at` and then to `scratch`: how many bytes came, none if there is nothing;
/// an error number if the connection is gone.
///
/// # Safety
/// `at` is valid for `len` bytes.
unsafe fn receive(
    socket: RawFd,
    at: *mut u8,
    len: usize,
    scratch: &mut [u8],
) -> Result<Option<usize>, i32> {
    let beside = (scratch.as_mut_ptr().cast(), scratch.len());
    let came = if len == 0 {
        // SAFETY: the slice.
        unsafe { libc::recv(socket, beside.0, beside.1, libc::MSG_DONTWAIT) }
    } else {
        let mut vectors = [
            libc::iovec { iov_base: at.cast(), iov_len: len },
            libc::iovec { iov_base: beside.0, iov_len: beside.1 },
        ];
        // SAFETY: all-zero is a valid header of a message without an address.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = vectors.as_mut_ptr();
        message.msg_iovlen = vectors.len() as _;
        // SAFETY: by the caller's word.
        unsafe { libc::recvmsg(socket, &raw mut message, libc::MSG_DONTWAIT) }
    };
    match came {
        0 => Err(libc::ECONNRESET),
        1.. => Ok(Some(came as usize)),
        _ => match nix::errno::Errno::last_raw() {
            libc::EAGAIN | libc::EINTR => Ok(None),
            error => Err(error),
        },
    }
}
