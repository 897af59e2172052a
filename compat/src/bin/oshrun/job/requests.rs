//! The PMI connections of a job.

use super::{Ending, FINISH, Job, LOST};
use crate::pmi::{self, Effect, Stage};
use crate::signals;
use nix::errno::Errno;
use nix::sys::signal::Signal;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, UnixCredentials, recvmsg};
use nix::unistd::Pid;
use std::io::{self, IoSliceMut, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use tokio::time::Instant;

impl Job {
    /// Takes and answers what PE `pe` has sent so far.
    pub(super) fn take_requests(&mut self, pe: usize) {
        let mut chunk = [0; 4096];
        while let Some(connection) = self.pes[pe].connection.clone() {
            match receive(&connection, &mut chunk) {
                Ok((0, _)) => self.close(pe),
                Ok((count, sender)) => {
                    self.pes[pe].program = self.pes[pe].program.or(sender);
                    self.take_bytes(pe, &chunk[..count]);
                }
                Err(Errno::EAGAIN) => return,
                Err(Errno::EINTR) => {}
                Err(_) => self.close(pe),
            }
        }
    }

    fn close(&mut self, pe: usize) {
        self.pes[pe].connection = None;
        self.lose_contact(pe);
    }

    /// PE `pe` can ask for nothing more; its process may end soon and tell why.
    pub(super) fn lose_contact(&mut self, pe: usize) {
        let inside = self.stage(pe) == Stage::Inside;
        let pe = &mut self.pes[pe];
        if inside && pe.alive && !pe.lost {
            pe.lost_at.get_or_insert(Instant::now() + LOST);
        }
    }

    fn take_bytes(&mut self, pe: usize, bytes: &[u8]) {
        self.pes[pe].input.extend_from_slice(bytes);
        while let Some(end) = self.pes[pe].input.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.pes[pe].input.drain(..=end).collect();
            match self.server.receive(pe, &line[..end]) {
                Ok(effects) => effects.into_iter().for_each(|effect| self.perform(effect)),
                Err(why) => return self.break_off(pe, &why),
            }
        }
        if self.pes[pe].input.len() > pmi::LINE_MAX {
            self.break_off(pe, "a request that does not end");
        }
    }

    /// The PE does not speak PMI-1: nothing it says can be relied upon any more.
    fn break_off(&mut self, pe: usize, why: &str) {
        self.pes[pe].connection = None;
        let why: String = why.chars().take(200).collect();
        self.fail(format_args!("{} sent a wrong PMI request: {why}", self.name(pe)));
    }

    pub(super) fn perform(&mut self, effect: Effect) {
        match effect {
            Effect::Reply(pe, line) => {
                let Some(connection) = self.pes[pe].connection.clone() else { return };
                let written = (&*connection).write_all(format!("{line}\n").as_bytes());
                // Replies are far smaller than the socket's buffer, and a PE that has gone is
                // noticed by its end.
                if written.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock) {
                    self.break_off(pe, "more requests than it reads replies");
                }
            }
            Effect::Abort { pe, code } => {
                // An exit code has 8 bits; a failure must not turn into a success.
                let byte = if code != 0 && code & 0xff == 0 { 1 } else { (code & 0xff) as u8 };
                // The others end at once; the one that asked may write its output first.
                let others = self.pes.iter().enumerate().filter(|(other, _)| *other != pe);
                others.filter(|(_, other)| other.alive).for_each(|(_, other)| {
                    signals::send(other.pid, Signal::SIGTERM);
                });
                self.end(Ending::Code(byte), FINISH);
            }
        }
    }
}

/// Reads what has arrived, and who has sent it if the kernel can tell.
fn receive(connection: &UnixStream, chunk: &mut [u8]) -> nix::Result<(usize, Option<Pid>)> {
    let mut space = nix::cmsg_space!(UnixCredentials);
    let mut data = [IoSliceMut::new(chunk)];
    let (fd, flags) = (connection.as_raw_fd(), MsgFlags::MSG_CMSG_CLOEXEC);
    let received = recvmsg::<()>(fd, &mut data, Some(&mut space), flags)?;
    let sender = received.cmsgs()?.find_map(|control| match control {
        ControlMessageOwned::ScmCredentials(sender) => Some(Pid::from_raw(sender.pid())),
        _ => None,
    });
    // 0 stands for a process of a name space that is hidden from this one.
    Ok((received.bytes, sender.filter(|pid| pid.as_raw() > 0)))
}
