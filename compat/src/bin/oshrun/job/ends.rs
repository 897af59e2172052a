//! The ends of PEs and what follows from them.

use super::{Ending, FINISH, Job};
use crate::output;
use crate::pmi::Stage;
use crate::report;
use crate::signals::{self, Ended};
use nix::sys::signal::Signal;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;
use tombolo_core::board::State;

impl Job {
    /// Takes all children that have ended and draws the conclusions.
    pub(super) fn collect(&mut self) {
        let mut ended: Vec<(usize, ExitStatus)> = vec![];
        for Ended { pid, status } in signals::reap() {
            // Others are processes that PEs have left behind.
            if let Some(pe) = self.pes.iter().position(|pe| pe.alive && pe.pid == pid) {
                // What it said last, such as an abort, comes before its end.
                self.take_requests(pe);
                self.pes[pe].alive = false;
                self.pes[pe].lost_at = None;
                ended.push((pe, status));
            }
        }
        // Of several that ended at once, the one that crashed is the cause of the others' ends.
        ended.sort_by_key(|(_, status)| status.signal().is_none());
        for (pe, status) in ended {
            self.judge(pe, status);
        }
        self.check_barrier();
    }

    fn judge(&mut self, pe: usize, status: ExitStatus) {
        if self.verdict.is_some() || self.pes[pe].lost {
            return;
        }
        if let Some(signal) = status.signal() {
            return self.judge_signal(pe, signal, status.core_dumped());
        }
        let stage = self.stage(pe);
        let code = status.code().unwrap_or(1) as u8;
        // Others that have no more to do with this PE may end in peace.
        let time = if stage == Stage::Inside { Duration::ZERO } else { FINISH };
        if code != 0 {
            if self.goes_on_without(pe, &format!("exited with code {code}")) {
                return;
            }
            // After an interrupt a code tells that it has been heard, not that something broke.
            if self.interrupted.is_none() {
                let name = self.name(pe);
                report::line(format_args!("{name} exited with code {code}; ending the job"));
            }
            self.end(Ending::Code(code), time);
        } else if stage == Stage::Inside {
            let how = "exited without calling shmem_finalize";
            if !self.goes_on_without(pe, how) {
                self.fail(format_args!("{} {how}", self.name(pe)));
            }
        }
    }

    /// How far PE `pe` has come. After `shmem_finalize` it stays connected, for it may initialise the
    /// library again: then the status board tells that it has left.
    pub(super) fn stage(&self, pe: usize) -> Stage {
        match self.server.stage(pe) {
            Stage::Inside if self.board.report(pe).state == State::Finished => Stage::Left,
            stage => stage,
        }
    }

    fn judge_signal(&mut self, pe: usize, signal: i32, core_dumped: bool) {
        let known = Signal::try_from(signal).ok();
        if let Some(signal) = known.filter(|_| known == self.interrupted) {
            return self.end(Ending::Signal(signal), FINISH);
        }
        if known == Some(Signal::SIGPIPE) && output::reader_is_gone() {
            return self.end(Ending::Signal(Signal::SIGPIPE), Duration::ZERO);
        }
        let what = signals::describe(signal);
        let note = match known {
            Some(Signal::SIGKILL) => ", sent by someone or by the kernel for lack of memory",
            _ if core_dumped => ", core dumped",
            _ => "",
        };
        let unchecked = std::env::var_os("SHMEM_DEBUG").is_none_or(|value| value == "0");
        let hint = match known {
            Some(Signal::SIGSEGV | Signal::SIGBUS) if unchecked => {
                " (SHMEM_DEBUG=1 names wrong PEs and addresses in SHMEM calls)"
            }
            _ => "",
        };
        let how = format!("was killed by {what}{note}{hint}");
        if !self.goes_on_without(pe, &how) {
            report::line(format_args!("{} {how}; ending the job", self.name(pe)));
            self.end(Ending::Code(128 + signal as u8), Duration::ZERO);
        }
    }

    /// A barrier that some PE can no longer enter will never open.
    pub(super) fn check_barrier(&mut self) {
        if self.server.barrier_is_waiting()
            && let Some(pe) = self.pes.iter().position(|pe| !(pe.alive || pe.lost && self.goes_on))
        {
            self.fail(format_args!(
                "{} has exited while other PEs wait for it to start or finish",
                self.name(pe)
            ));
        }
    }
}
