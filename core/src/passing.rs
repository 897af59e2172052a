// SPDX-License-Identifier: Apache-2.0
//! Receiving messages over Unix sockets that descriptors come with.

use nix::errno::Errno;
use nix::sys::socket::MsgFlags;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// What has been received.
#[derive(Debug)]
pub struct Received {
    /// Bytes; none: the other end is closed.
    pub len: usize,
    /// The descriptors that there was room for.
    pub files: Vec<OwnedFd>,
    /// Descriptors were lost: more came than were asked for, or this process may not have more.
    pub files_lost: bool,
    /// Bytes were lost: the message is longer than the room for it.
    pub is_cut: bool,
}

/// Receives a message into `bytes`, and `files_max` descriptors at least if they come with it; of 0, none. They are closed
/// when this process executes another program.
pub fn receive(
    socket: BorrowedFd<'_>,
    bytes: &mut [u8],
    files_max: usize,
    flags: MsgFlags,
) -> io::Result<Received> {
    let space = match u32::try_from(files_max * size_of::<i32>()) {
        Ok(0) => 0,
        // SAFETY: arithmetic.
        Ok(payload) => unsafe { libc::CMSG_SPACE(payload) as usize },
        Err(_) => return Err(io::ErrorKind::InvalidInput.into()),
    };
    // Words, as what is read there is aligned like them.
    let mut control = vec![0u64; space.div_ceil(size_of::<u64>())];
    loop {
        let mut data = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        // SAFETY: numbers and pointers, of which all may be 0.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        (message.msg_iov, message.msg_iovlen) = (&raw mut data, 1);
        if space > 0 {
            (message.msg_control, message.msg_controllen) =
                (control.as_mut_ptr().cast(), space as _);
        }
        let flags = flags | MsgFlags::MSG_CMSG_CLOEXEC;
        // SAFETY: all buffers are as long as it says, and outlive the call.
        let len = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags.bits()) };
        match Errno::result(len) {
            Ok(len) => {
                // Owned before anything else, so that none stays open by mistake.
                // SAFETY: as the kernel has left it, over a buffer that is there still.
                let files = unsafe { files_of(&message) };
                let lost = |flag: MsgFlags| message.msg_flags & flag.bits() != 0;
                return Ok(Received {
                    len: len as usize,
                    files,
                    files_lost: lost(MsgFlags::MSG_CTRUNC),
                    is_cut: lost(MsgFlags::MSG_TRUNC),
                });
            }
            Err(Errno::EINTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
}

/// The descriptors of a message.
///
/// # Safety
/// The kernel has just received it, and nobody has taken its descriptors.
unsafe fn files_of(message: &libc::msghdr) -> Vec<OwnedFd> {
    let mut files = Vec::new();
    // SAFETY: the control buffer is as long as the kernel says; none: no header.
    let mut header = unsafe { libc::CMSG_FIRSTHDR(message) };
    while !header.is_null() {
        // SAFETY: a header inside of the buffer, which is aligned for it.
        let (level, kind, len) =
            unsafe { ((*header).cmsg_level, (*header).cmsg_type, (*header).cmsg_len as usize) };
        if (level, kind) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
            // SAFETY: arithmetic, and the place behind the header.
            let (head, first) =
                unsafe { (libc::CMSG_LEN(0) as usize, libc::CMSG_DATA(header).cast::<i32>()) };
            for index in 0..len.saturating_sub(head) / size_of::<i32>() {
                // SAFETY: inside of the message by its length; a descriptor that the kernel has made for this process.
                files.push(unsafe { OwnedFd::from_raw_fd(first.add(index).read_unaligned()) });
            }
        }
        // SAFETY: as above.
        header = unsafe { libc::CMSG_NXTHDR(message, header) };
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::fcntl::OFlag;
    use nix::poll::{PollFd, PollFlags, poll};
    use nix::sys::socket::{
        AddressFamily, ControlMessage, SockFlag, SockType, UnixAddr, sendmsg, socketpair,
    };
    use nix::unistd::{pipe2, read};
    use std::io::IoSlice;
    use std::os::fd::AsFd;

    /// Sends `count` descriptors of a pipe's writing end, and the bytes `1 2 3`; receives with that much room.
    fn passed(count: usize, files_max: usize, room: usize) -> (Received, OwnedFd) {
        let flags = SockFlag::SOCK_CLOEXEC;
        let (from, to) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags).unwrap();
        let (reads, writes) = pipe2(OFlag::O_CLOEXEC).unwrap();
        let numbers = vec![writes.as_raw_fd(); count];
        let control = [ControlMessage::ScmRights(&numbers)];
        let control = if count == 0 { &control[..0] } else { &control[..] };
        let data = [IoSlice::new(&[1, 2, 3])];
        let flags = MsgFlags::empty();
        sendmsg::<UnixAddr>(from.as_raw_fd(), &data, control, flags, None).unwrap();
        let mut bytes = vec![0; room];
        let received = receive(to.as_fd(), &mut bytes, files_max, flags).unwrap();
        assert_eq!(bytes, [1, 2, 3][..room]);
        (received, reads)
    }

    #[test]
    fn descriptors_come_with_messages() {
        let (received, reads) = passed(3, 3, 3);
        let Received { len, files, files_lost, is_cut } = received;
        assert_eq!((len, files.len(), files_lost, is_cut), (3, 3, false, false));
        nix::unistd::write(&files[2], &[7]).unwrap();
        let mut byte = [0];
        assert_eq!((read(&reads, &mut byte), byte), (Ok(1), [7]));
        let (received, _) = passed(0, 3, 2);
        assert!(received.files.is_empty() && received.is_cut && !received.files_lost);
    }

    #[test]
    fn descriptors_for_which_there_is_no_room_are_not_left_open() {
        for (count, files_max) in [(9, 1), (9, 3), (1, 0)] {
            let (received, reads) = passed(count, files_max, 3);
            assert!(received.files_lost && received.files.len() < count, "{received:?}");
            drop(received);
            // Nobody can write to the pipe any more; a child of another test may for a moment. Only a failing test waits
            // for all of the time.
            let mut hung_up = [PollFd::new(reads.as_fd(), PollFlags::empty())];
            assert_eq!(poll(&mut hung_up, 20_000u16), Ok(1), "{count} of {files_max}");
        }
    }
}
