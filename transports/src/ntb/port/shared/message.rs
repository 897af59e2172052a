// SPDX-License-Identifier: Apache-2.0
//! What processes that share a port say to each other: messages of words, with a text and descriptors behind them.
//!
//! Nothing that is read here is believed: what cannot be is an error, and numbers are checked where they are used.

use crate::ntb::port::{PortError, Result};
use nix::errno::Errno;
use nix::sys::socket::{ControlMessage, MsgFlags, UnixAddr, sendmsg};
use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use tombolo_core::passing;

/// Bytes of the longest message.
pub const BYTES_MAX: usize = 8192;
/// Descriptors that come with a message at most.
pub const FILES_MAX: usize = 3;
/// Why they have not come.
pub const NO_ROOM: &str = "a process of this host may not have more open files (ulimit -n)";
/// Bytes of the longest text of a reply.
const TEXT_MAX: usize = 2048;
/// Words of a request behind its first two.
pub const ARGUMENTS: usize = 4;
/// Words of a reply before its text.
const REPLY: usize = 3;
/// The same in bytes.
pub const REPLY_BYTES: usize = REPLY * 8;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Op {
    /// A file comes along. Its offset, bytes.
    Register = 1,
    /// In a fixed window: offset, bytes.
    RegisterFixed,
    /// Address.
    Unregister,
    /// Window, slot, address, bytes.
    SetTrans,
    /// Window, slot, slots.
    ClearTrans,
    LinkEnable,
    LinkDisable,
    /// Index.
    SpadRead,
    /// Index, value.
    SpadWrite,
    PeerSpadRead,
    PeerSpadWrite,
    Describe,
    /// Not answered: there are doorbells to ring.
    Ring,
    /// Not answered: the link is to be looked at.
    Look,
}

impl Op {
    pub const ALL: [Op; 14] = [
        Op::Register,
        Op::RegisterFixed,
        Op::Unregister,
        Op::SetTrans,
        Op::ClearTrans,
        Op::LinkEnable,
        Op::LinkDisable,
        Op::SpadRead,
        Op::SpadWrite,
        Op::PeerSpadRead,
        Op::PeerSpadWrite,
        Op::Describe,
        Op::Ring,
        Op::Look,
    ];

    /// Whether there is a reply.
    pub fn is_answered(self) -> bool {
        !matches!(self, Op::Ring | Op::Look)
    }
}

/// A request of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    pub op: Op,
    pub port: usize,
    pub arguments: [u64; ARGUMENTS],
}

impl Request {
    pub fn encode(&self) -> Vec<u8> {
        let head = [self.op as u64, self.port as u64];
        bytes_of(head.iter().chain(&self.arguments))
    }

    pub fn decode(bytes: &[u8]) -> Option<Request> {
        let words = words_of(bytes);
        let [op, port, arguments @ ..] = <[u64; 2 + ARGUMENTS]>::try_from(words).ok()?;
        let op = Op::ALL.into_iter().find(|known| *known as u64 == op)?;
        let whole = bytes.len() == (2 + ARGUMENTS) * 8;
        whole.then_some(Request { op, port: usize::try_from(port).ok()?, arguments })
    }
}

/// Words as bytes.
pub fn bytes_of<'a>(words: impl Iterator<Item = &'a u64>) -> Vec<u8> {
    words.flat_map(|word| word.to_ne_bytes()).collect()
}

/// Whole words of bytes.
pub fn words_of(bytes: &[u8]) -> Vec<u64> {
    bytes.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word)).collect()
}

/// A number and a text, or an error, as bytes.
pub fn encode_reply(reply: &Result<(u64, String)>) -> Vec<u8> {
    let text = |error: &PortError| error.to_string();
    let (words, text): ([u64; REPLY], String) = match reply {
        Ok((value, text)) => ([0, *value, 0], text.clone()),
        Err(PortError::NotConnected) => ([2, 0, 0], String::new()),
        Err(PortError::Closed { window, slot }) => {
            ([3, *window as u64, *slot as u64], String::new())
        }
        Err(PortError::Exhausted(what)) => ([4, 0, 0], what.clone()),
        Err(PortError::Busy(what)) => ([5, 0, 0], what.clone()),
        Err(PortError::Gone(what)) => ([6, 0, 0], what.clone()),
        Err(PortError::System { what, source }) => {
            ([7, source.raw_os_error().unwrap_or(libc::EIO) as u64, 0], what.clone())
        }
        Err(error @ (PortError::Invalid(_) | PortError::Unsupported(_))) => {
            ([1, 0, 0], text(error))
        }
    };
    let mut bytes = bytes_of(words.iter());
    bytes.extend(text.bytes().take(TEXT_MAX));
    bytes
}

/// Reads it back; none where it is no reply.
pub fn decode_reply(bytes: &[u8]) -> Option<Result<(u64, String)>> {
    let (head, text) = bytes.split_at_checked(REPLY * 8)?;
    let text = String::from_utf8_lossy(text).into_owned();
    let words = words_of(head);
    let number = |word: u64| usize::try_from(word).unwrap_or(usize::MAX);
    Some(match words[0] {
        0 => Ok((words[1], text)),
        1 => Err(PortError::Invalid(text)),
        2 => Err(PortError::NotConnected),
        3 => Err(PortError::Closed { window: number(words[1]), slot: number(words[2]) }),
        4 => Err(PortError::Exhausted(text)),
        5 => Err(PortError::Busy(text)),
        6 => Err(PortError::Gone(text)),
        7 => {
            let number = i32::try_from(words[1]).unwrap_or(libc::EIO);
            Err(PortError::system(text, io::Error::from_raw_os_error(number)))
        }
        _ => return None,
    })
}

/// Sends a message.
pub fn send(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    files: &[BorrowedFd<'_>],
    flags: MsgFlags,
) -> io::Result<()> {
    let raw: Vec<i32> = files.iter().map(AsRawFd::as_raw_fd).collect();
    let control = [ControlMessage::ScmRights(&raw)];
    let control = if raw.is_empty() { &control[..0] } else { &control[..] };
    let data = [IoSlice::new(bytes)];
    loop {
        let flags = flags | MsgFlags::MSG_NOSIGNAL;
        match sendmsg::<UnixAddr>(socket.as_raw_fd(), &data, control, flags, None) {
            Ok(_) => return Ok(()),
            Err(Errno::EINTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
}

/// Receives a message into `bytes`, whole. No bytes: the other end is closed.
pub fn receive(
    socket: BorrowedFd<'_>,
    bytes: &mut [u8],
    flags: MsgFlags,
) -> io::Result<(usize, Vec<OwnedFd>)> {
    let received = passing::receive(socket, bytes, FILES_MAX, flags)?;
    match (received.is_cut, received.files_lost) {
        (true, _) => Err(io::Error::other("a message is longer than any")),
        (_, true) => Err(io::Error::other(NO_ROOM)),
        _ => Ok((received.len, received.files)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn requests_are_read_back() {
        for op in Op::ALL {
            let request = Request { op, port: 1, arguments: [1, u64::MAX, 0, 7] };
            let bytes = request.encode();
            assert_eq!(Request::decode(&bytes), Some(request));
            assert_eq!(Request::decode(&bytes[..bytes.len() - 1]), None);
            assert_eq!(Request::decode(&[&bytes[..], &[0]].concat()), None);
        }
    }

    #[test]
    fn errors_are_read_back_as_what_they_are() {
        let system = || PortError::system("trying", io::Error::from_raw_os_error(libc::ENOMEM));
        let errors = [
            || PortError::Invalid("a".into()),
            || PortError::NotConnected,
            || PortError::Closed { window: 1, slot: 70 },
            || PortError::Exhausted("b".into()),
            || PortError::Busy("c".into()),
            || PortError::Gone("d".into()),
            system,
        ];
        for error in errors {
            let back = decode_reply(&encode_reply(&Err(error()))).unwrap().unwrap_err();
            assert_eq!(back.to_string(), error().to_string());
            assert_eq!(std::mem::discriminant(&back), std::mem::discriminant(&error()));
        }
        let back = decode_reply(&encode_reply(&Err(PortError::Unsupported("x")))).unwrap();
        assert_eq!(back.unwrap_err().to_string(), PortError::Unsupported("x").to_string());
        let good = decode_reply(&encode_reply(&Ok((5, "text".into())))).unwrap().unwrap();
        assert_eq!(good, (5, "text".to_owned()));
    }

    proptest! {
        #[test]
        fn garbage_is_no_message_or_some(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            if let Some(request) = Request::decode(&bytes) {
                prop_assert_eq!(request.encode(), bytes.clone());
            }
            let _ = decode_reply(&bytes);
        }
    }
}
