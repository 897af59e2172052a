// SPDX-License-Identifier: Apache-2.0
//! Signals, deadlines, and the report of what each PE is doing.

use super::{Ending, INTERRUPT, Job, NoContact, Reach};
use crate::report;
use crate::signals::{self, Event};
use crate::wire::Order;
use nix::sys::signal::Signal;
use std::time::Duration;
use tokio::time::Instant;

impl Job {
    pub(super) fn take_signal(&mut self, event: Event) {
        match event.signal {
            Signal::SIGCHLD => {
                self.collect();
                if matches!(self.reach, Reach::Here(_)) && signals::is_stopped_by_terminal() {
                    self.stop_ourselves();
                }
            }
            Signal::SIGQUIT => self.print_report(),
            Signal::SIGTSTP => self.stop(event),
            signal if signals::is_passed_on(signal) => self.send_all(signal),
            _ => self.interrupt(event),
        }
    }

    /// Stops the PEs and ourselves until someone continues us.
    fn stop(&mut self, event: Event) {
        if !self.have_heard(event) {
            self.send_all(Signal::SIGTSTP);
        }
        self.stop_ourselves();
    }

    /// The PEs are stopped: so is the whole job for the shell, which can continue it.
    fn stop_ourselves(&mut self) {
        self.order(Order::Silence);
        if let Reach::Away(fleet) = &mut self.reach {
            fleet.pause();
        }
        signals::stop();
        if let Reach::Away(fleet) = &mut self.reach {
            fleet.wake();
        }
    }

    /// Whether the PEs have got a signal already: from the terminal, which knows those of this host.
    fn have_heard(&self, event: Event) -> bool {
        event.from_terminal && matches!(self.reach, Reach::Here(_))
    }

    /// The first interrupt is the PEs' to handle; one during the end of a job ends it at once.
    fn interrupt(&mut self, event: Event) {
        let signal = event.signal;
        if self.has_only_output_left() && self.untaken.is_empty() {
            self.unread = Some(signal);
            return self.give_up_output();
        }
        let starting = matches!(&self.reach, Reach::Away(fleet) if fleet.is_starting());
        if self.interrupted.is_some() || self.verdict.is_some() || starting {
            self.end(Ending::Signal(signal), Duration::ZERO);
            return self.kill();
        }
        self.interrupted = Some(signal);
        self.timeout_at = None;
        self.kill_at = Some(Instant::now() + INTERRUPT);
        if !self.have_heard(event) {
            self.send_all(signal);
        }
        self.judge_untaken();
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let give_up_at = self.give_up_at();
        let job = [self.judge_at, self.timeout_at, self.terminate_at, self.kill_at, give_up_at];
        let fault = self.ring.next_fault().map(|at| self.started + at);
        let fleet = match &self.reach {
            Reach::Here(_) => None,
            Reach::Away(fleet) => fleet.next_deadline(),
        };
        let report = self.report.as_ref().map(|report| report.until);
        let lost = self.pes.iter().map(|pe| pe.lost_at.as_ref().map(|lost| lost.at));
        job.into_iter().chain([fault, fleet, report]).chain(lost).flatten().min()
    }

    pub(super) fn meet_deadlines(&mut self) {
        let now = Instant::now();
        while self.ring.next_fault().is_some_and(|at| self.started + at <= now) {
            self.bring_fault_about();
        }
        let due = |deadline: &mut Option<Instant>| deadline.take_if(|at| *at <= now).is_some();
        for pe in 0..self.pes.len() {
            let lost = self.pes[pe].lost_at.take_if(|lost| lost.at <= now);
            // After a signal from the user, programs may go in any order.
            let lost = lost.filter(|_| self.interrupted.is_none());
            if let Some(NoContact { how, running, .. }) = lost
                && !self.goes_on_without(pe, &how, running)
            {
                self.fail(format_args!("{} {how}", self.name(pe)));
            }
        }
        if due(&mut self.judge_at) {
            self.judge_untaken();
        }
        if due(&mut self.timeout_at) && !self.has_only_output_left() {
            let seconds = self.timeout.unwrap_or_default().as_secs_f64();
            report::line(format_args!("the job has not ended after {seconds} s; ending it"));
            self.print_report();
            self.end(Ending::Code(124), Duration::ZERO);
        }
        if due(&mut self.terminate_at) {
            self.send_all(Signal::SIGTERM);
        }
        if due(&mut self.kill_at) {
            let over = self.has_only_output_left();
            if let Some(signal) = self.interrupted.filter(|_| !over) {
                let seconds = INTERRUPT.as_secs();
                report::line(format_args!(
                    "PEs still run {seconds} s after {signal}; killing them"
                ));
                self.end(Ending::Signal(signal), Duration::ZERO);
            }
            if self.verdict.is_some() {
                self.kill();
            }
        }
        if self.report.as_ref().is_some_and(|report| report.until <= now) {
            self.print_what_is_known();
        }
        self.look_after_hosts();
        if self.give_up_at().is_some_and(|at| at <= now) {
            self.give_up(now);
        }
    }

    fn bring_fault_about(&mut self) {
        let fault = self.ring.next_fault_words();
        let (host, failed) = self.ring.inject();
        self.collected.note(None, || format!("fault: {fault}"));
        if let Some(why) = failed {
            self.fail(format_args!("{why}"));
        }
        let Some(host) = host else { return };
        let (pes, how) = (self.hosts.on(host), "dies, as --fault asks");
        let starting = match &self.reach {
            Reach::Here(here) => pes.iter().any(|pe| here.borrow().is_starting(*pe)),
            Reach::Away(_) => false,
        };
        if starting {
            // What its PEs have to tell the others will never come, whether these go on or not.
            self.fail(format_args!(
                "emulated host {host} {how}, before its PEs have finished shmem_init"
            ));
            return self.order(Order::Lose { pes, going_on: false });
        }
        report::line(format_args!("emulated host {host} {how}"));
        self.lose(&pes);
    }
}
