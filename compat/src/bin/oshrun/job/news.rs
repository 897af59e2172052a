// SPDX-License-Identifier: Apache-2.0
//! What hosts tell of their PEs, and of themselves.

use super::losses::listed;
use super::{DYING, Ending, FINISH, Job, LOST, NoContact, Reach};
use crate::fleet::{Event, Loss};
use crate::report;
use crate::wire::{News, Order};
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use std::time::Duration;
use tokio::time::Instant;

/// How long a report waits for what other hosts have to tell.
const ANSWER: Duration = Duration::from_secs(2);

/// What each PE is doing, as far as it is known.
pub(super) struct Report {
    /// Process id and description.
    pes: Vec<Option<(i32, String)>>,
    /// When to print without those that have not answered.
    pub(super) until: Instant,
}

impl Job {
    /// Takes what there is to tell of the PEs of this host.
    pub(super) fn take_own_news(&mut self) {
        while let Reach::Here(host) = &self.reach {
            let news = host.borrow_mut().take_news();
            if news.is_empty() {
                return;
            }
            news.into_iter().for_each(|news| self.take_news(0, news));
        }
    }

    /// Takes what has arrived from another host, or become of the connection to it.
    pub(super) fn take_event(&mut self, host: usize, event: Event) {
        let Reach::Away(fleet) = &mut self.reach else { return };
        if let Some(news) = fleet.take_event(host, event) {
            self.take_news(host, news);
        }
    }

    fn take_news(&mut self, host: usize, news: News) {
        let pes = self.hosts.on(host);
        // What an agent tells of PEs that are not its own is not true.
        let strange = match &news {
            News::Started(pids) => pids.len() != pes.len(),
            News::Ended(ends) => ends.iter().any(|end| !pes.contains(&end.pe)),
            News::Counted(counted) => !pes.contains(&counted.pe),
            News::Report(lines) => lines.iter().any(|(pe, ..)| !pes.contains(pe)),
            News::NoContact { pe, .. }
            | News::Abort { pe, .. }
            | News::Broken { pe, .. }
            | News::Events { pe, .. }
            | News::Leaving { pe, .. } => !pes.contains(pe),
            _ => false,
        };
        if strange && !self.hosts.emulated {
            let machine = self.hosts.machine(host).to_owned();
            return self.fail(format_args!("host {machine} sent news of PEs that are not on it"));
        }
        match news {
            News::Started(pids) => {
                for (pe, pid) in pes.into_iter().zip(pids) {
                    (self.pes[pe].pid, self.pes[pe].alive) = (Pid::from_raw(pid), true);
                }
            }
            News::Failed { code, text } => self.cannot_start(host, code, &text),
            News::Ended(ends) => self.take_ends(&ends),
            News::NoContact { pe, how, running, ending } => {
                if self.pes[pe].alive && !self.pes[pe].lost && self.pes[pe].lost_at.is_none() {
                    let at = Instant::now() + if ending { DYING } else { LOST };
                    self.pes[pe].lost_at = Some(NoContact { at, how, running });
                }
            }
            News::Abort { pe, code } => self.abort(pe, code),
            News::Broken { pe, why } => {
                self.fail(format_args!("{} sent a wrong PMI request: {why}", self.name(pe)));
            }
            // One is enough for the others to find out whether they wait in vain.
            News::Leaving { pe, barriers } => {
                if !std::mem::replace(&mut self.leaving, true) {
                    self.order(Order::Leaving { pe, barriers });
                }
            }
            News::Fence(pairs) => {
                self.fences[host] = Some(pairs);
                self.open_barrier();
                self.check_barrier();
            }
            News::Stuck => self.find_barrier_stuck(),
            News::Report(lines) => self.add_to_report(lines),
            News::Done { withstood } if !withstood.is_empty() => {
                let pids: Vec<String> = withstood.iter().map(i32::to_string).collect();
                let machine = self.hosts.machine(host);
                let pids = pids.join(", ");
                report::line(format_args!(
                    "host {machine}: processes that cannot be killed: {pids}"
                ));
            }
            News::Events { pe, events } => self.collected.take_events(pe, events),
            News::Counted(counted) => self.collected.take(*counted),
            // These concern the connection, which has taken them.
            News::Running(_)
            | News::Output { .. }
            | News::InputTaken(_)
            | News::Beat
            | News::Done { .. } => {}
        }
    }

    fn cannot_start(&mut self, host: usize, code: u8, text: &str) {
        if self.verdict.is_none() {
            report::line(format_args!("host {}: {text}", self.hosts.machine(host)));
            self.end(Ending::Code(code), Duration::ZERO);
        }
    }

    fn abort(&mut self, pe: usize, code: i32) {
        // An exit code has 8 bits; a failure must not turn into a success.
        let byte = if code != 0 && code & 0xff == 0 { 1 } else { (code & 0xff) as u8 };
        if self.interrupted.is_some() {
            // Misses those that a signal from the user has ended; the others may be saving their state.
            if self.verdict.is_some() {
                return;
            }
            // The program has decided what the signal means.
            (self.interrupted, self.kill_at) = (None, None);
        }
        // The others end at once; the one that asked may write its output first.
        self.order(Order::Signal { signal: Signal::SIGTERM as i32, but: Some(pe) });
        self.end(Ending::Code(byte), FINISH);
    }

    /// Opens the barrier if the PEs of all hosts that have some wait for it.
    pub(super) fn open_barrier(&mut self) {
        let has_some = |host: usize| self.hosts.on(host).iter().any(|pe| !self.pes[*pe].lost);
        let waits = |host: usize| self.fences[host].is_some() || !has_some(host);
        if (0..self.fences.len()).all(waits) && self.fences.iter().any(Option::is_some) {
            let pairs = self.fences.iter_mut().filter_map(Option::take).flatten().collect();
            self.leaving = false;
            self.order(Order::Open(pairs));
        }
    }

    /// Finds out which hosts cannot be reached any more.
    pub(super) fn look_after_hosts(&mut self) {
        let Reach::Away(fleet) = &mut self.reach else { return };
        for loss in fleet.look() {
            self.lose_host(&loss);
        }
    }

    fn lose_host(&mut self, loss: &Loss) {
        let all = self.hosts.on(loss.host);
        for pe in &all {
            self.pes[*pe].alive = false;
            self.pes[*pe].lost_at = None;
        }
        let machine = self.hosts.machine(loss.host).to_owned();
        let gone: Vec<usize> = all.into_iter().filter(|pe| !self.pes[*pe].lost).collect();
        if loss.running && self.can_go_on_without(&gone) {
            let why = &loss.why;
            let pes = listed(&gone);
            report::line(format_args!("host {machine} {why}; the others go on without PEs {pes}"));
            self.lose(&gone);
        } else if self.verdict.is_none() {
            match loss.started {
                true => self.fail(format_args!("host {machine} {}", loss.why)),
                false => self.cannot_start(loss.host, 1, &loss.why),
            }
        }
    }

    /// When to wait no longer for PEs that were to be killed, or for their hosts.
    pub(super) fn give_up_at(&self) -> Option<Instant> {
        match &self.reach {
            Reach::Here(_) => Some(self.killing?.until).filter(|_| !self.is_over()),
            Reach::Away(_) => self.give_up_hosts_at().map(|(_, at)| at).min(),
        }
    }

    fn give_up_hosts_at(&self) -> impl Iterator<Item = (usize, Instant)> {
        let of_hosts = match (&self.reach, self.killing) {
            (Reach::Away(fleet), Some(killing)) => Some((fleet, killing)),
            _ => None,
        };
        of_hosts.into_iter().flat_map(|(fleet, killing)| {
            let mut has_pes = vec![false; self.fences.len()];
            for (pe, it) in self.pes.iter().enumerate() {
                has_pes[self.hosts.of(pe)] |= !it.has_ended();
            }
            let hosts = has_pes.into_iter().enumerate();
            hosts.filter_map(move |(host, has_pes)| {
                Some((host, fleet.give_up_at(host, killing, has_pes)?))
            })
        })
    }

    /// Waits no longer for PEs that cannot be killed, and for hosts that do not answer even then.
    pub(super) fn give_up(&mut self, now: Instant) {
        let late = self.give_up_hosts_at().filter(|(_, at)| *at <= now);
        let hosts: Vec<usize> = late.map(|(host, _)| host).collect();
        let mut withstand: Vec<usize> = match &self.reach {
            Reach::Here(_) => (0..self.pes.len()).collect(),
            Reach::Away(_) => vec![],
        };
        for host in hosts {
            let Reach::Away(fleet) = &mut self.reach else { return };
            let pes = self.hosts.on(host);
            if fleet.give_up(host, now) {
                withstand.extend(pes);
                continue;
            }
            for pe in pes {
                self.pes[pe].alive = false;
            }
            let machine = self.hosts.machine(host);
            report::line(format_args!(
                "host {machine} does not answer; what runs there ends when it finds the connection \
                 lost"
            ));
        }
        for pe in withstand {
            if std::mem::take(&mut self.pes[pe].alive) {
                report::line(format_args!("{} cannot be killed", self.name(pe)));
            }
        }
    }

    /// Waits no longer for output of PEs that have all ended.
    pub(super) fn give_up_output(&mut self) {
        if let Reach::Away(fleet) = &mut self.reach {
            let now = Instant::now();
            (0..self.fences.len()).for_each(|host| _ = fleet.give_up(host, now));
        }
    }

    /// Prints what each PE is doing, as soon as all hosts have told.
    pub(super) fn print_report(&mut self) {
        // Hosts whose PEs have all ended have nothing more to tell.
        let ended = |pe: &super::Pe| {
            (pe.has_ended() && !pe.lost).then(|| (pe.pid.as_raw(), "has ended".to_owned()))
        };
        let pes = self.pes.iter().map(ended).collect();
        self.report = Some(Report { pes, until: Instant::now() + ANSWER });
        self.order(Order::Report);
    }

    fn add_to_report(&mut self, lines: Vec<(usize, i32, String)>) {
        let Some(report) = &mut self.report else { return };
        for (pe, pid, text) in lines {
            report.pes[pe] = Some((pid, text));
        }
        if report.pes.iter().all(Option::is_some) {
            self.print_what_is_known();
        }
    }

    /// Prints the report as far as it goes.
    pub(super) fn print_what_is_known(&mut self) {
        let Some(known) = self.report.take() else { return };
        for (pe, told) in known.pes.iter().enumerate() {
            let host = match self.is_away() {
                true => format!(", host {}", self.hosts.machine(self.hosts.of(pe))),
                false => String::new(),
            };
            match told {
                Some((pid, text)) => {
                    report::line(format_args!("PE {pe} (pid {pid}{host}): {text}"))
                }
                None if self.pes[pe].pid.as_raw() == 0 => {
                    let machine = self.hosts.machine(self.hosts.of(pe));
                    report::line(format_args!("PE {pe} (host {machine}): not started yet"));
                }
                None => {
                    let pid = self.pes[pe].pid;
                    let text = if self.pes[pe].lost { "is lost" } else { "no answer" };
                    report::line(format_args!("PE {pe} (pid {pid}{host}): {text}"));
                }
            }
        }
    }

    fn is_away(&self) -> bool {
        matches!(self.reach, Reach::Away(_))
    }
}
