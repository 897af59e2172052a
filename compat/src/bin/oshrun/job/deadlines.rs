//! Signals, deadlines, and the report of what each PE is doing.

use super::{Ending, INTERRUPT, Job, Pe};
use crate::report;
use crate::signals::{self, Event};
use nix::sys::signal::Signal;
use std::time::Duration;
use tokio::time::Instant;

impl Job {
    pub(super) fn take_signal(&mut self, event: Event) {
        match event.signal {
            Signal::SIGCHLD => self.collect(),
            Signal::SIGQUIT => self.print_report(),
            Signal::SIGTSTP => self.stop(event),
            signal if signals::is_passed_on(signal) => self.send_all(signal),
            signal => self.interrupt(signal, event.from_terminal),
        }
    }

    /// Stops the PEs and ourselves until someone continues us.
    fn stop(&self, event: Event) {
        if !event.from_terminal {
            self.send_all(Signal::SIGTSTP);
        }
        let _ = nix::sys::signal::raise(Signal::SIGSTOP);
    }

    /// The first interrupt is the PEs' to handle; one during the end of a job ends it at once.
    fn interrupt(&mut self, signal: Signal, from_terminal: bool) {
        if self.interrupted.is_some() || self.verdict.is_some() {
            self.end(Ending::Signal(signal), Duration::ZERO);
            return self.kill();
        }
        self.interrupted = Some(signal);
        self.kill_at = Some(Instant::now() + INTERRUPT);
        if !from_terminal {
            self.send_all(signal);
        }
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let job = [self.timeout_at, self.terminate_at, self.kill_at, self.give_up_at];
        let fault = self.ring.next_fault().map(|at| self.started + at);
        job.into_iter().chain([fault]).chain(self.pes.iter().map(|pe| pe.lost_at)).flatten().min()
    }

    pub(super) fn meet_deadlines(&mut self) {
        let now = Instant::now();
        while self.ring.next_fault().is_some_and(|at| self.started + at <= now) {
            self.bring_fault_about();
        }
        let due = |deadline: &mut Option<Instant>| deadline.take_if(|at| *at <= now).is_some();
        for pe in 0..self.pes.len() {
            if due(&mut self.pes[pe].lost_at) {
                let how = &self.how_lost(pe);
                if !self.goes_on_without(pe, how) {
                    self.fail(format_args!("{} {how}", self.name(pe)));
                }
            }
        }
        if due(&mut self.timeout_at) {
            let seconds = self.timeout.unwrap_or_default().as_secs_f64();
            report::line(format_args!("the job has not ended after {seconds} s; ending it"));
            self.print_report();
            self.end(Ending::Code(124), Duration::ZERO);
        }
        if due(&mut self.terminate_at) {
            self.send_all(Signal::SIGTERM);
        }
        if due(&mut self.kill_at) {
            if let (None, Some(signal)) = (self.verdict, self.interrupted) {
                let seconds = INTERRUPT.as_secs();
                report::line(format_args!(
                    "PEs still run {seconds} s after {signal}; killing them"
                ));
                self.end(Ending::Signal(signal), Duration::ZERO);
            }
            self.kill();
        }
        if due(&mut self.give_up_at) {
            for pe in 0..self.pes.len() {
                if std::mem::take(&mut self.pes[pe].alive) {
                    report::line(format_args!("{} cannot be killed", self.name(pe)));
                }
            }
        }
    }

    fn how_lost(&self, pe: usize) -> String {
        match self.pes[pe] {
            Pe { connection: Some(_), program: Some(program), .. } => {
                format!("runs a script whose program (pid {program}) ended before shmem_finalize")
            }
            _ => "closed its connection before shmem_finalize".into(),
        }
    }

    fn bring_fault_about(&mut self) {
        let (host, failed) = self.ring.inject();
        if let Some(why) = failed {
            self.fail(format_args!("{why}"));
        }
        let Some(host) = host else { return };
        report::line(format_args!("emulated host {host} dies, as --fault asks"));
        let dying: Vec<usize> =
            (0..self.pes.len()).filter(|pe| self.hosts.of(*pe) == host).collect();
        self.lose(&dying);
    }

    /// Prints what each PE is doing.
    fn print_report(&self) {
        for (index, pe) in self.pes.iter().enumerate() {
            let report = self.board.report(index);
            // Where a script runs the program, it is the program's process that is of interest.
            let pid = if report.pid > 0 { report.pid } else { pe.pid.as_raw() };
            match pe.alive {
                true => report::line(format_args!("PE {index} (pid {pid}): {report}")),
                false => report::line(format_args!("PE {index} (pid {pid}): has ended")),
            }
        }
    }
}
