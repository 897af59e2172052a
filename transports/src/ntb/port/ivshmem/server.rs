// SPDX-License-Identifier: Apache-2.0
//! The server that QEMU's `ivshmem-doorbell` asks for shared memory and for its peer: one for each
//! link, for two virtual machines.
//!
//! It speaks the protocol of QEMU's own: each message is a number of 8 bytes, some with a
//! descriptor. A client is told the version of the protocol, its number, the memory, then the
//! doorbells of its peer and its own; later, when its peer comes or goes. Beyond that, this server
//! takes the link down at the side of a virtual machine that ends, so that the other one knows.

use super::layout::{SIZE_MIN, Section, section_in};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use std::ffi::c_void;
use std::io::{self, IoSlice, Read};
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::time::Duration;

const PROTOCOL: i64 = 0;
const MEMORY: i64 = -1;
/// Virtual machines of a link.
const SIDES: usize = 2;
/// A client that takes nothing for so long is not there.
const PATIENCE: Duration = Duration::from_secs(2);

/// Serves one link.
#[derive(Debug)]
pub struct Server {
    path: PathBuf,
    listener: UnixListener,
    memory: OwnedFd,
    base: NonNull<c_void>,
    size: NonZeroUsize,
    vectors: usize,
    clients: [Option<Client>; SIDES],
}

#[derive(Debug)]
struct Client {
    stream: UnixStream,
    doorbells: Vec<EventFd>,
}

// SAFETY: the mapping is memory that others share anyway, reached by atomics only.
unsafe impl Send for Server {}

/// What has happened on a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// A virtual machine has come, and is this side.
    Came(usize),
    /// The one that was this side has gone.
    Went(usize),
    /// One was turned away: there are two already, or it does not take what it is told.
    Refused,
}

impl Server {
    /// Listens at `path`, with `size` bytes of shared memory, a power of two from 1 MiB, and `vectors` interrupts for
    /// each side. An error if there is something at the path, but for the socket of a server that was killed.
    pub fn bind(path: &Path, size: usize, vectors: usize) -> io::Result<Server> {
        let size = NonZeroUsize::new(size).filter(|s| s.is_power_of_two() && s.get() >= SIZE_MIN);
        let size = size.ok_or_else(|| {
            io::Error::other(format!("the memory is to be a power of two from {SIZE_MIN} bytes"))
        })?;
        let memory = memfd_create("tombolo-ivshmem", MFdFlags::MFD_CLOEXEC)?;
        nix::unistd::ftruncate(&memory, size.get() as i64)?;
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a fresh shared mapping at an address of the kernel's choice.
        let base = unsafe { mmap(None, size, access, MapFlags::MAP_SHARED, &memory, 0) }?;
        let listener = listen(path);
        if listener.is_err() {
            // SAFETY: the mapping just made.
            let _ = unsafe { munmap(base, size.get()) };
        }
        let (path, clients) = (path.to_owned(), [None, None]);
        Ok(Server { path, listener: listener?, memory, base, size, vectors, clients })
    }

    /// Where it listens.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Serves until something has happened, or for good if nothing does.
    pub fn wait(&mut self) -> io::Result<Change> {
        loop {
            let watched = std::iter::once(self.listener.as_fd());
            let streams =
                self.clients.iter().map(|client| client.as_ref().map(|c| c.stream.as_fd()));
            let fds: Vec<(Option<usize>, BorrowedFd<'_>)> = watched
                .map(|fd| (None, fd))
                .chain(streams.enumerate().filter_map(|(side, fd)| Some((Some(side), fd?))))
                .collect();
            let mut polled: Vec<PollFd<'_>> =
                fds.iter().map(|(_, fd)| PollFd::new(*fd, PollFlags::POLLIN)).collect();
            match poll(&mut polled, PollTimeout::NONE) {
                Err(nix::Error::EINTR) => continue,
                other => other?,
            };
            let ready = polled.iter().zip(&fds).filter(|(p, _)| p.any().unwrap_or(false));
            let ready: Vec<Option<usize>> = ready.map(|(_, (side, _))| *side).collect();
            // Who goes makes room for who comes.
            for side in ready.iter().flatten() {
                if self.has_gone(*side) {
                    self.remove(*side);
                    return Ok(Change::Went(*side));
                }
            }
            if ready.contains(&None) {
                return self.accept();
            }
        }
    }

    /// Clients have nothing to say.
    fn has_gone(&mut self, side: usize) -> bool {
        let Some(client) = &mut self.clients[side] else { return false };
        !matches!(client.stream.read(&mut [0; 64]), Ok(1..))
    }

    fn accept(&mut self) -> io::Result<Change> {
        let (stream, _) = self.listener.accept()?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let Some(side) = self.clients.iter().position(Option::is_none) else {
            return Ok(Change::Refused);
        };
        let doorbell = |_| EventFd::from_value_and_flags(0, EfdFlags::EFD_NONBLOCK);
        let doorbells = (0..self.vectors).map(doorbell).collect::<nix::Result<Vec<EventFd>>>()?;
        let client = Client { stream, doorbells };
        if self.introduce(side, &client).is_err() {
            return Ok(Change::Refused);
        }
        self.clients[side] = Some(client);
        Ok(Change::Came(side))
    }

    /// Tells a new client everything, and its peer about it.
    fn introduce(&self, side: usize, client: &Client) -> io::Result<()> {
        let number = side as i64;
        client.tell(PROTOCOL, None)?;
        client.tell(number, None)?;
        client.tell(MEMORY, Some(self.memory.as_fd()))?;
        if let Some(peer) = &self.clients[1 - side] {
            peer.doorbells.iter().try_for_each(|b| client.tell(1 - number, Some(b.as_fd())))?;
            // A peer that does not listen is found out by itself.
            let _ = client.doorbells.iter().try_for_each(|b| peer.tell(number, Some(b.as_fd())));
        }
        client.doorbells.iter().try_for_each(|b| client.tell(number, Some(b.as_fd())))
    }

    fn remove(&mut self, side: usize) {
        self.clients[side] = None;
        if let Some(section) = self.section(side) {
            section.abandon();
        }
        if let Some(peer) = &self.clients[1 - side] {
            let _ = peer.tell(side as i64, None);
            // An interrupt is how it learns of a change of the link.
            if let Some(first) = peer.doorbells.first() {
                let _ = first.write(1);
            }
        }
    }

    fn section(&self, side: usize) -> Option<&Section> {
        // SAFETY: mapped by `bind` for as long as the value lives, which the result borrows.
        unsafe { section_in(self.base.as_ptr().cast(), self.size.get(), side) }
    }
}

/// Listens at a path. The socket of a server that was killed is still there: it makes room.
fn listen(path: &Path) -> io::Result<UnixListener> {
    let taken = match UnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => error,
        other => return other,
    };
    match UnixStream::connect(path) {
        Ok(_) => Err(io::Error::other("another program listens there")),
        // Files that are no sockets refuse connections as well.
        Err(why) if why.kind() == io::ErrorKind::ConnectionRefused && is_socket(path) => {
            std::fs::remove_file(path)?;
            UnixListener::bind(path)
        }
        Err(_) => Err(taken),
    }
}

fn is_socket(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|about| about.file_type().is_socket())
}

impl Client {
    fn tell(&self, number: i64, descriptor: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let bytes = number.to_le_bytes();
        let raw: Vec<_> = descriptor.iter().map(AsRawFd::as_raw_fd).collect();
        let control: &[ControlMessage<'_>] = match raw.is_empty() {
            true => &[],
            false => &[ControlMessage::ScmRights(&raw)],
        };
        let words = [IoSlice::new(&bytes)];
        let fd = self.stream.as_raw_fd();
        let sent = sendmsg::<()>(fd, &words, control, MsgFlags::MSG_NOSIGNAL, None)?;
        match sent == bytes.len() {
            true => Ok(()),
            false => Err(io::Error::other("half a message was taken")),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // SAFETY: the mapping made by `bind`.
        let _ = unsafe { munmap(self.base, self.size.get()) };
        // Gone already, or not ours to remove: nothing depends on it.
        let _ = std::fs::remove_file(&self.path);
    }
}
