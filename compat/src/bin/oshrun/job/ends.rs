// SPDX-License-Identifier: Apache-2.0
//! The ends of PEs and what follows from them.

use super::{ARRIVE, Ending, FINISH, Job, Reach};
use crate::output;
use crate::pmi::Stage;
use crate::report;
use crate::signals;
use crate::wire::End;
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};
use nix::sys::signal::Signal;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;
use tokio::time::Instant;

impl Job {
    /// Takes the status of all children that have ended.
    pub(super) fn collect(&mut self) {
        match &mut self.reach {
            Reach::Here(host) => _ = host.borrow_mut().collect(),
            Reach::Away(fleet) => signals::reap().iter().for_each(|ended| fleet.child_ended(ended)),
        }
    }

    /// Draws the conclusions from the ends of PEs.
    pub(super) fn take_ends(&mut self, ends: &[End]) {
        for end in ends {
            self.pes[end.pe].alive = false;
            self.pes[end.pe].lost_at = None;
            self.pes[end.pe].missed = end.missed;
            let status = ExitStatus::from_raw(end.status);
            if !status.success() {
                self.collected.note(Some(end.pe), || format!("PE {} ended: {status}", end.pe));
            }
        }
        // A signal to the whole process group ends PEs before it has reached this process.
        let by = |end: &End| Signal::try_from(ExitStatus::from_raw(end.status).signal()?).ok();
        let interrupt = ends.iter().filter_map(by).find(|signal| signals::is_interrupt(*signal));
        let judged = self.interrupted.is_some() || self.verdict.is_some();
        if interrupt.is_some_and(|signal| !judged && signals::comes_soon(signal)) {
            self.untaken.extend(ends);
            self.judge_at.get_or_insert_with(|| Instant::now() + ARRIVE);
            return;
        }
        for end in ends {
            self.judge(end);
        }
        self.check_barrier();
    }

    fn judge(&mut self, end: &End) {
        let &End { pe, stage, running, .. } = end;
        let status = ExitStatus::from_raw(end.status);
        if self.verdict.is_some() || self.pes[pe].lost {
            return;
        }
        if let Some(signal) = status.signal() {
            return self.judge_signal(pe, signal, status.core_dumped(), running);
        }
        let code = status.code().unwrap_or(1) as u8;
        // Others that have no more to do with this PE may end in peace.
        let time = if stage == Stage::Inside { Duration::ZERO } else { FINISH };
        if code != 0 && stage == Stage::Left && self.interrupted.is_none() {
            // The others may still have work to do and output to write: none of them waits for this PE.
            let name = self.name(pe);
            report::line(format_args!("{name} exited with code {code} after shmem_finalize"));
            self.parting.get_or_insert(code);
        } else if code != 0 {
            if self.goes_on_without(pe, &format!("exited with code {code}"), running) {
                return;
            }
            // After an interrupt a code tells that it has been heard, not that something broke.
            if self.interrupted.is_none() {
                let name = self.name(pe);
                report::line(format_args!("{name} exited with code {code}; ending the job"));
            }
            self.end(Ending::Code(code), time);
        } else if stage == Stage::Inside {
            if let Some(signal) = self.interrupted {
                return self.end(Ending::Signal(signal), time);
            }
            let how = "exited without calling shmem_finalize";
            if !self.goes_on_without(pe, how, running) {
                self.fail(format_args!("{} {how}", self.name(pe)));
            }
        }
    }

    fn judge_signal(&mut self, pe: usize, signal: i32, core_dumped: bool, running: bool) {
        let known = Signal::try_from(signal).ok();
        if let Some(signal) = known.filter(|_| known == self.interrupted) {
            return self.end(Ending::Signal(signal), FINISH);
        }
        if known == Some(Signal::SIGPIPE) && output::reader_is_gone() {
            return self.end(Ending::Signal(Signal::SIGPIPE), Duration::ZERO);
        }
        let what = signals::describe(signal);
        let note = match known {
            Some(Signal::SIGKILL) if has_limited_time() => {
                ", sent by someone, or by the kernel for lack of memory or at the limit on processor time (ulimit -t)"
            }
            Some(Signal::SIGKILL) => ", sent by someone or by the kernel for lack of memory",
            _ if core_dumped => ", core dumped",
            _ => "",
        };
        let hint = match known {
            Some(Signal::SIGSEGV | Signal::SIGBUS) if !self.pes[pe].checked => {
                "; run with SHMEM_DEBUG=1 to find a wrong PE or address"
            }
            _ => "",
        };
        let how = format!("was killed by {what}{note}{hint}");
        if !self.goes_on_without(pe, &how, running) {
            report::line(format_args!("{} {how}; ending the job", self.name(pe)));
            self.end(Ending::Code(128 + signal as u8), Duration::ZERO);
        }
    }

    /// Judges the ends that were kept until this process has taken a signal itself, or has waited for it in vain.
    pub(super) fn judge_untaken(&mut self) {
        self.judge_at = None;
        for end in std::mem::take(&mut self.untaken) {
            self.judge(&end);
        }
        self.check_barrier();
    }

    /// A barrier that PEs wait for and that some other one can no longer enter will never open.
    pub(super) fn check_barrier(&mut self) {
        if self.fences.iter().any(Option::is_some) {
            self.find_barrier_stuck();
        }
    }

    /// PEs wait for a barrier: fails if some PE can no longer enter it.
    pub(super) fn find_barrier_stuck(&mut self) {
        let goes_on = self.goes_on;
        let has_gone = |pe: &super::Pe| pe.has_ended() && !(pe.lost && goes_on);
        // After a signal from the user, others may still be saving their state.
        if self.interrupted.is_some() {
            return;
        }
        if let Some(pe) = self.pes.iter().position(has_gone) {
            self.fail(format_args!(
                "{} has exited while other PEs wait for it to start or finish",
                self.name(pe)
            ));
        }
    }
}

/// Whether processes have a limit on their processor time, at which the kernel kills them.
fn has_limited_time() -> bool {
    getrlimit(Resource::RLIMIT_CPU).is_ok_and(|(_, most)| most != RLIM_INFINITY)
}
