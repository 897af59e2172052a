// SPDX-License-Identifier: Apache-2.0
//! The PMI connections of this host's PEs.

use super::{Host, Process};
use crate::pmi::{self, Effect, Stage};
use crate::signals;
use crate::wire::News;
use nix::errno::Errno;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, UnixCredentials, recvmsg};
use nix::unistd::Pid;
use std::io::{self, IoSliceMut, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use tombolo_core::board::State;

impl Host {
    /// Takes and answers what a PE has sent so far.
    pub(super) fn take_requests(&mut self, at: usize) {
        let mut chunk = [0; 4096];
        while let Some(connection) = self.processes[at].connection.clone() {
            match receive(&connection, &mut chunk) {
                Ok((0, _)) => self.close(at),
                Ok((count, sender)) => {
                    self.processes[at].program = self.processes[at].program.or(sender);
                    self.take_bytes(at, &chunk[..count]);
                }
                Err(Errno::EAGAIN) => return,
                Err(Errno::EINTR) => {}
                Err(_) => self.close(at),
            }
        }
    }

    fn close(&mut self, at: usize) {
        self.processes[at].connection = None;
        self.lose_contact(at);
    }

    /// A PE can ask for nothing more; its process may end soon and tell why.
    pub(super) fn lose_contact(&mut self, at: usize) {
        let process = &self.processes[at];
        if self.stage(at) == Stage::Inside && process.alive && !process.departed {
            let how = match process {
                Process { connection: Some(_), program: Some(program), .. } => format!(
                    "runs a script whose program (pid {program}) ended before shmem_finalize"
                ),
                _ => "closed its connection before shmem_finalize".into(),
            };
            let (pe, ending) = (process.pe, signals::is_ending(process.pid));
            self.news.push(News::NoContact { pe, how, running: self.has_joined(pe), ending });
        }
    }

    fn take_bytes(&mut self, at: usize, bytes: &[u8]) {
        self.processes[at].input.extend_from_slice(bytes);
        while let Some(end) = self.processes[at].input.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.processes[at].input.drain(..=end).collect();
            match self.server.receive(at, &line[..end]) {
                Ok(effects) => {
                    self.tell_of_leaving(at);
                    effects.into_iter().for_each(|effect| self.perform(effect));
                }
                Err(why) => return self.break_off(at, &why),
            }
        }
        if self.processes[at].input.len() > pmi::LINE_MAX {
            self.break_off(at, "a request that does not end");
        }
    }

    /// The first PE that leaves is told of: who waits for it on another host, in any barrier but that of
    /// `shmem_finalize`, waits in vain.
    fn tell_of_leaving(&mut self, at: usize) {
        let pe = self.processes[at].pe;
        let report = self.board.report(pe);
        if report.state == State::Leaving && self.leaving.is_none() {
            self.leaving = Some(pe);
            self.news.push(News::Leaving { pe, barriers: report.barriers });
        }
    }

    /// The board tells of a PE of another host that leaves, unless it tells of one already.
    pub(super) fn mark_leaving(&mut self, pe: usize, barriers: u64) {
        if self.leaving.is_none() && pe < self.size {
            self.leaving = Some(pe);
            self.board.announce_leaving(pe, barriers);
        }
    }

    /// PEs of this host tell of themselves how they go on.
    pub(super) fn unmark_leaving(&mut self) {
        let is_here = |pe: &usize| self.processes.iter().any(|process| process.pe == *pe);
        if let Some(pe) = self.leaving.take().filter(|pe| !is_here(pe)) {
            self.board.announce(pe, State::Absent);
        }
    }

    /// The PE does not speak PMI-1: nothing it says can be relied upon any more.
    fn break_off(&mut self, at: usize, why: &str) {
        self.processes[at].connection = None;
        let why: String = why.chars().take(200).collect();
        self.news.push(News::Broken { pe: self.processes[at].pe, why });
    }

    pub(super) fn perform(&mut self, effect: Effect) {
        match effect {
            Effect::Reply(at, line) => {
                let Some(connection) = self.processes[at].connection.clone() else { return };
                let written = (&*connection).write_all(format!("{line}\n").as_bytes());
                // Replies are far smaller than the socket's buffer, and a PE that has gone is
                // noticed by its end.
                if written.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock) {
                    self.break_off(at, "more requests than it reads replies");
                }
            }
            Effect::Abort { pe, code } => {
                self.news.push(News::Abort { pe: self.processes[pe].pe, code });
            }
            Effect::Fence(pairs) => self.news.push(News::Fence(pairs)),
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
    // 0 stands for a process of a namespace that is hidden from this one.
    Ok((received.bytes, sender.filter(|pid| pid.as_raw() > 0)))
}
