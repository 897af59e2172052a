// SPDX-License-Identifier: Apache-2.0
//! The descriptor over which a launcher and one of its processes speak.
//!
//! Whatever comes is bounded: in time by a deadline for each answer, in size by what the protocol
//! allows.

use super::ONE_USER;
use crate::error::{Error, Result};
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// No answer of a launcher is longer than this.
const ANSWER_MAX: usize = 1 << 20;

/// One end of the connection to a launcher.
pub struct Wire {
    stream: UnixStream,
    /// What has arrived and was not asked for yet.
    unread: Vec<u8>,
    limit: Option<Duration>,
    deadline: Option<Instant>,
    /// The last request, for messages.
    asked: String,
}

impl Wire {
    /// Takes over the descriptor `fd`, which a launcher passed to this process.
    pub fn take_over(fd: RawFd, limit: Duration) -> Result<Wire> {
        if !is_socket(fd) {
            return Err(Error::Bootstrap(format!(
                "PMI_FD={fd} is not open: this program was started by a process of another job; \
                 start it with oshrun, or clear PMI_FD to run it as one PE"
            )));
        }
        // SAFETY: the descriptor is open, and the launcher passed it for this use alone. Programs
        // that this one starts inherit the variable, but not the descriptor.
        let stream = unsafe {
            libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC);
            UnixStream::from(OwnedFd::from_raw_fd(fd))
        };
        Ok(Wire::over(stream, limit))
    }

    /// A wire over a connected socket, on which every answer is awaited for `limit` at most.
    pub fn over(stream: UnixStream, limit: Duration) -> Wire {
        // A deadline that has passed would be taken for none by the kernel.
        let limit = Some(limit.max(Duration::from_millis(1)));
        Wire { stream, unread: Vec::new(), limit, deadline: None, asked: String::new() }
    }

    /// Sets the longest wait for an answer.
    pub fn limit(&mut self, limit: Option<Duration>) {
        self.limit = limit;
    }

    /// The descriptor, which stays open as long as the wire lives.
    pub fn fd(&self) -> RawFd {
        self.stream.as_raw_fd()
    }

    /// Sends a request; from now on its answer is awaited.
    pub fn send(&mut self, request: &str) -> Result<()> {
        self.asked = request.trim().chars().take(80).collect();
        self.deadline = self.limit.and_then(|limit| Instant::now().checked_add(limit));
        // MSG_NOSIGNAL is what the standard library uses: a dead launcher is an error, not SIGPIPE.
        self.stream.write_all(request.as_bytes()).map_err(|e| match e.kind() {
            ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => self.closed(),
            _ if e.raw_os_error() == Some(libc::EBADF) => Error::Bootstrap(format!(
                "this process has closed its connection to the launcher: {ONE_USER}"
            )),
            _ => Error::system("writing to the launcher", e),
        })
    }

    /// The next line, without its end.
    pub fn line(&mut self) -> Result<String> {
        let mut searched = 0;
        loop {
            if let Some(at) = self.unread[searched..].iter().position(|byte| *byte == b'\n') {
                let mut line: Vec<u8> = self.unread.drain(..=searched + at).collect();
                line.pop();
                return self.text(line);
            }
            searched = self.unread.len();
            if searched > ANSWER_MAX {
                return Err(self.nonsense(&self.unread));
            }
            self.receive()?;
        }
    }

    /// The next `count` bytes.
    pub fn exactly(&mut self, count: usize) -> Result<String> {
        while self.unread.len() < count {
            self.receive()?;
        }
        let bytes = self.unread.drain(..count).collect();
        self.text(bytes)
    }

    /// The error that the launcher's answer makes no sense.
    pub fn nonsense(&self, answer: &[u8]) -> Error {
        let shown = answer[..answer.len().min(200)].escape_ascii();
        Error::Bootstrap(format!("the launcher answered '{shown}' to '{}'", self.asked))
    }

    fn text(&self, bytes: Vec<u8>) -> Result<String> {
        String::from_utf8(bytes).map_err(|e| self.nonsense(e.as_bytes()))
    }

    fn receive(&mut self) -> Result<()> {
        let mut chunk = [0; 16 << 10];
        let left = match self.deadline {
            Some(deadline) => match deadline.checked_duration_since(Instant::now()) {
                Some(left) if !left.is_zero() => Some(left.max(Duration::from_micros(1))),
                _ => return Err(self.late()),
            },
            None => None,
        };
        let read = self.stream.set_read_timeout(left).and_then(|()| self.stream.read(&mut chunk));
        match read {
            Ok(0) => Err(self.closed()),
            Ok(count) => {
                self.unread.extend_from_slice(&chunk[..count]);
                Ok(())
            }
            Err(e) => match e.kind() {
                ErrorKind::Interrupted => Ok(()),
                ErrorKind::WouldBlock | ErrorKind::TimedOut => Err(self.late()),
                ErrorKind::ConnectionReset => Err(self.closed()),
                _ => Err(Error::system("reading from the launcher", e)),
            },
        }
    }

    fn late(&self) -> Error {
        let limit = self.limit.unwrap_or_default().as_secs_f64();
        // Every PE asks for this, and the answer comes when the last one has.
        let waits_for_all =
            ["cmd=barrier_in", "kvs-fence"].iter().any(|one| self.asked.contains(one));
        Error::Bootstrap(match waits_for_all {
            true => format!(
                "some PEs did not call shmem_init, or did not get through it, within {limit} s \
                 (SHMEM_START_TIMEOUT)"
            ),
            false => format!(
                "the launcher did not answer '{}' within {limit} s (SHMEM_START_TIMEOUT)",
                self.asked
            ),
        })
    }

    fn closed(&self) -> Error {
        Error::Bootstrap(format!("the launcher closed the connection at '{}'", self.asked))
    }
}

/// Whether `fd` is an open socket.
pub fn is_socket(fd: RawFd) -> bool {
    number_of_socket(fd).is_some()
}

/// The number that the kernel has for an open socket: no two have the same at one time.
pub fn number_of_socket(fd: RawFd) -> Option<u64> {
    // SAFETY: all-zero is a valid value, and the call only fills it.
    let stat = unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        (libc::fstat(fd, &raw mut stat) == 0).then_some(stat)
    };
    let sockets = stat.filter(|stat| stat.st_mode & libc::S_IFMT == libc::S_IFSOCK);
    sockets.map(|stat| stat.st_ino)
}
