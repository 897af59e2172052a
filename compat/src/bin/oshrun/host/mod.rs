// SPDX-License-Identifier: Apache-2.0
//! The part of a job that runs on this host: its PEs, their PMI server and status board. It tells
//! what happens and does what it is ordered to; what follows from anything is decided elsewhere, for
//! the whole job.

mod requests;

use crate::cores::Cores;
use crate::output::Outlets;
use crate::pmi::{Server, Stage};
use crate::profile::counted::Unread;
use crate::signals::{self, Ended};
use crate::spawn::{self, Common, Failure, PeStart};
use crate::wire::{End, News, Order, Share};
use nix::sys::signal::{SigSet, Signal};
use nix::unistd::Pid;
use std::cell::RefCell;
use std::collections::HashMap;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{ChildStdin, ExitStatus};
use std::rc::Rc;
use std::time::Duration;
use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;
use tokio::time::sleep;
use tombolo_core::board::{Board, State, monotonic_ns};
use tombolo_core::profile::Area;

/// The PEs of this host.
pub struct Host {
    processes: Vec<Process>,
    server: Server,
    board: Board,
    /// Memory in which the PEs count what they do, if they are to.
    counters: Vec<OwnedFd>,
    /// PEs of the whole job.
    size: usize,
    /// The PE that was the first to leave since the barrier was open, here or on another host.
    leaving: Option<usize>,
    /// What has happened and was not told yet.
    news: Vec<News>,
    /// There are descriptors by which the kernel tells of the end of processes.
    watches: bool,
    /// Cores stay claimed as long as the job lives.
    _cores: Cores,
}

struct Process {
    /// Number of the PE in the job.
    pe: usize,
    pid: Pid,
    alive: bool,
    /// When it ended, nanoseconds of `CLOCK_MONOTONIC`; if its program did so first, when that was.
    ended: Option<u64>,
    /// It is lost and the others go on.
    departed: bool,
    /// Its PMI connection, until it is closed.
    connection: Option<Rc<UnixStream>>,
    /// The process that speaks on it: another than `pid` where that is a script.
    program: Option<Pid>,
    /// The beginning of a request.
    input: Vec<u8>,
}

impl Process {
    /// The program that a script runs as the PE.
    fn program_of_script(&self) -> Option<Pid> {
        self.program.filter(|program| *program != self.pid && signals::is_below(*program))
    }

    /// Sends a signal to the PE: to a script and to its program.
    fn send(&self, signal: Signal) {
        let program = self.program_of_script();
        program.into_iter().chain([self.pid]).for_each(|pid| signals::send(pid, signal));
    }

    /// The program of a script that has ended in this way by a signal for both: what the program does with it
    /// counts, which may take a while.
    fn left_behind(&self, status: ExitStatus) -> Option<Pid> {
        let signal = status.signal().and_then(|signal| Signal::try_from(signal).ok());
        signal.filter(|signal| signals::is_interrupt(*signal)).and(self.program_of_script())
    }
}

/// What the PEs have from the process that starts them.
pub struct Parent<'a> {
    /// Process group of the job.
    pub group: Pid,
    /// Signal mask that `oshrun` was started with.
    pub mask: SigSet,
    /// Index of the emulated host of a PE, and its links.
    pub emulated: &'a dyn Fn(usize) -> (Option<usize>, Option<[RawFd; 2]>),
    /// PE 0 reads a pipe.
    pub piped_input: bool,
}

/// What there is besides the host after the start.
pub struct Started {
    pub host: Host,
    pub outlets: Outlets,
    /// Writes to the standard input of PE 0, if that is a pipe.
    pub input: Option<ChildStdin>,
}

impl Host {
    /// Starts the PEs of `share`.
    pub fn start(share: &Share, parent: &Parent<'_>, outlets: Outlets) -> Result<Started, Failure> {
        let mut outlets = outlets;
        let count = share.pes.len();
        // One connection each, the pipes, and a few dozen of our own. Programs that scripts start have one more.
        let counted = if share.counting.is_some() { count } else { 0 };
        let needed = count + outlets.files(count) + counted + 64;
        let (files, watches) = spawn::allow_files(needed as u64, count as u64)?;
        let board = Board::create(share.size)
            .map_err(|e| Failure { code: 1, text: format!("cannot start: status board: {e}") })?;
        let cores = Cores::claim(share.bind, count);
        let counters = memory_of_counters(share)?;
        let (size, mask, group) = (share.size, parent.mask, parent.group);
        let one_machine = count == size;
        let common = Common { size, one_machine, board: &board, mask, group, files };
        let mut processes = Vec::with_capacity(count);
        let mut input = None;
        let pes = share.pes.iter();
        let hosts: Vec<Option<usize>> = pes.map(|(pe, _)| (parent.emulated)(*pe).0).collect();
        let locals = local_numbers(&hosts);
        for (at, &(pe, appnum)) in share.pes.iter().enumerate() {
            let (host, links) = (parent.emulated)(pe);
            let place = PeStart {
                pe,
                local: locals[at],
                host,
                links,
                core: cores.of(at),
                piped_input: parent.piped_input && pe == 0,
                profile: counters.get(at).map(|fd| fd.as_raw_fd()),
            };
            let program = &share.programs[appnum];
            let spawned = spawn::spawn(program, &place, &common, &mut outlets)?;
            input = input.or(spawned.input);
            processes.push(Process {
                pe,
                pid: spawned.pid,
                alive: true,
                ended: None,
                departed: false,
                connection: Some(Rc::new(spawned.connection)),
                program: None,
                input: vec![],
            });
        }
        let appnums: Vec<usize> = share.pes.iter().map(|(_, appnum)| *appnum).collect();
        let server = Server::new(share.job.clone(), &appnums, share.size, share.mapping.clone());
        let (leaving, news, _cores) = (None, vec![], cores);
        let host =
            Host { processes, server, board, counters, size, leaving, news, watches, _cores };
        Ok(Started { host, outlets, input })
    }

    /// What the PEs have counted; none if they were not to, or if this was asked before. To be called when they
    /// have ended.
    pub fn counted(&mut self) -> Vec<Unread> {
        let counters = std::mem::take(&mut self.counters).into_iter().zip(&self.processes);
        let unread = |(fd, process): (OwnedFd, &Process)| Unread {
            pe: process.pe,
            fd,
            pes: self.size,
            gone: process.ended.unwrap_or_else(monotonic_ns),
        };
        counters.map(unread).collect()
    }

    /// Process ids of the PEs, in the order of the share.
    pub fn pids(&self) -> Vec<i32> {
        self.processes.iter().map(|process| process.pid.as_raw()).collect()
    }

    /// What has happened since this was last asked.
    pub fn take_news(&mut self) -> Vec<News> {
        let abort = |news: &News| match news {
            News::Abort { pe, .. } => Some(*pe),
            _ => None,
        };
        if self.news.iter().all(|news| abort(news).is_none()) {
            return std::mem::take(&mut self.news);
        }
        // Who asks for the end of the job may do so because another PE has ended. That is the cause, however late
        // this process gets to see it.
        self.collect();
        let mut news = std::mem::take(&mut self.news);
        let asking: Vec<usize> = news.iter().filter_map(abort).collect();
        let mut causes = vec![];
        for one in &mut news {
            if let News::Ended(ends) = one {
                causes.extend(ends.extract_if(.., |end| !asking.contains(&end.pe)));
            }
        }
        if !causes.is_empty() {
            news.insert(0, News::Ended(causes));
        }
        news
    }

    /// Whether all PEs have ended.
    pub fn is_over(&self) -> bool {
        self.processes.iter().all(|process| !process.alive)
    }

    /// Whether all PEs are between `shmem_init` and `shmem_finalize`.
    pub fn is_running(&self) -> bool {
        self.processes.iter().all(|process| self.has_joined(process.pe))
    }

    fn has_joined(&self, pe: usize) -> bool {
        matches!(self.board.report(pe).state, State::Running | State::Leaving)
    }

    /// Whether a PE runs that has not finished `shmem_init` yet.
    pub fn is_starting(&self, pe: usize) -> bool {
        let alive = self.processes.iter().any(|process| process.pe == pe && process.alive);
        alive && matches!(self.board.report(pe).state, State::Absent | State::Starting)
    }

    /// How far a PE has come. After `shmem_finalize` it stays connected, for it may initialise the
    /// library again: then the status board tells that it has left.
    fn stage(&self, at: usize) -> Stage {
        match self.server.stage(at) {
            Stage::Inside if self.board.report(self.processes[at].pe).state == State::Finished => {
                Stage::Left
            }
            stage => stage,
        }
    }

    /// Does what it is told to; what concerns nothing but PEs of other hosts is no concern.
    pub fn obey(&mut self, order: Order) {
        match order {
            Order::Signal { signal, but } => {
                let Ok(signal) = Signal::try_from(signal) else { return };
                let told = self.alive().filter(|process| Some(process.pe) != but);
                told.for_each(|process| process.send(signal));
            }
            Order::Kill => {
                self.alive().for_each(|process| signals::send(process.pid, Signal::SIGKILL));
            }
            Order::Lose { pes, going_on } => self.lose(&pes, going_on),
            Order::Leaving { pe, barriers } => self.mark_leaving(pe, barriers),
            Order::Open(pairs) => {
                self.unmark_leaving();
                self.server.open_barrier(pairs).into_iter().for_each(|e| self.perform(e));
            }
            Order::Report => self.report(),
            // These concern the connection to who gives the orders.
            Order::Start(_)
            | Order::Credit { .. }
            | Order::Close { .. }
            | Order::Input(_)
            | Order::Beat
            | Order::Silence => {}
        }
    }

    fn alive(&self) -> impl Iterator<Item = &Process> {
        self.processes.iter().filter(|process| process.alive)
    }

    /// What is left of lost PEs is killed, and if the others go on, barriers do not wait for them.
    fn lose(&mut self, pes: &[usize], going_on: bool) {
        if going_on {
            pes.iter().for_each(|pe| self.board.mark_lost(*pe));
        }
        for at in 0..self.processes.len() {
            if !pes.contains(&self.processes[at].pe) {
                continue;
            }
            let Process { pid, alive, program, .. } = self.processes[at];
            if alive {
                signals::kill_tree(pid);
            }
            // A script may have left its program behind, which believes to be a PE still.
            if let Some(program) = program.filter(|program| signals::is_below(*program)) {
                signals::kill_tree(program);
            }
            if going_on {
                self.processes[at].departed = true;
                self.server.depart(at).into_iter().for_each(|effect| self.perform(effect));
            }
        }
    }

    fn report(&mut self) {
        let lines = self.processes.iter().map(|process| {
            let report = self.board.report(process.pe);
            // Where a script runs the program, it is the program's process that is of interest.
            let pid = if report.pid > 0 { report.pid } else { process.pid.as_raw() };
            let text = if process.alive { report.to_string() } else { "has ended".into() };
            (process.pe, pid, text)
        });
        let lines = lines.collect();
        self.news.push(News::Report(lines));
    }

    /// Takes the status of all children that have ended; gives those that are no PEs.
    pub fn collect(&mut self) -> Vec<Ended> {
        let mut others = vec![];
        let mut ends: Vec<End> = vec![];
        for ended in signals::reap() {
            let is_it = |process: &Process| process.alive && process.pid == ended.pid;
            let Some(at) = self.processes.iter().position(is_it) else {
                others.push(ended);
                continue;
            };
            // What it said last, such as an abort, comes before its end.
            self.take_requests(at);
            if let Some(program) = self.processes[at].left_behind(ended.status) {
                self.processes[at].pid = program;
                continue;
            }
            self.processes[at].alive = false;
            self.processes[at].ended.get_or_insert_with(monotonic_ns);
            let pe = self.processes[at].pe;
            let (stage, running) = (self.stage(at), self.has_joined(pe));
            let missed = self.board.missed(pe);
            ends.push(End { pe, status: ended.status.into_raw(), stage, running, missed });
        }
        // Of several that ended at once, the one that crashed is the cause of the others' ends.
        ends.sort_by_key(|end| libc::WIFEXITED(end.status));
        if !ends.is_empty() {
            self.news.push(News::Ended(ends));
        }
        self.check_barrier();
        others
    }

    /// The program of a script has ended, and the script may go on for long.
    fn program_ended(&mut self, at: usize) {
        // After `shmem_finalize` another program may follow, which is the PE as well.
        if self.has_joined(self.processes[at].pe) {
            self.processes[at].ended.get_or_insert_with(monotonic_ns);
        }
    }

    /// A barrier that some PE can no longer enter will never open.
    fn check_barrier(&mut self) {
        let gone = |process: &Process| !process.alive && !process.departed;
        if self.server.barrier_is_waiting() && self.processes.iter().any(gone) {
            self.news.push(News::Stuck);
        }
    }
}

/// The number of each PE among those of its emulated host, and how many these are; without emulated hosts they
/// are on one.
fn local_numbers(hosts: &[Option<usize>]) -> Vec<(usize, usize)> {
    let mut counts = HashMap::new();
    let mut next = |host: &Option<usize>| {
        let count = counts.entry(*host).or_insert(0);
        *count += 1;
        *count - 1
    };
    let numbers: Vec<usize> = hosts.iter().map(&mut next).collect();
    numbers.into_iter().zip(hosts).map(|(number, host)| (number, counts[host])).collect()
}

/// Memory in which the PEs of this host count what they do.
fn memory_of_counters(share: &Share) -> Result<Vec<OwnedFd>, Failure> {
    let Some(counting) = share.counting else { return Ok(Vec::new()) };
    let area = |_: &_| Area::create(share.size, counting.events);
    let areas: Result<_, _> = share.pes.iter().map(area).collect();
    areas.map_err(|e| Failure { code: 1, text: format!("cannot start: {e}") })
}

/// Answers the requests of all PEs as they come; `changed` is told when there may be news. Within a
/// `LocalSet`.
pub fn serve_all(host: &Rc<RefCell<Host>>, changed: &Rc<Notify>) {
    let connections: Vec<_> =
        host.borrow().processes.iter().map(|process| process.connection.clone()).collect();
    for (at, connection) in connections.into_iter().enumerate() {
        // SAFETY: the AsyncFd shares ownership of the socket, which stays open until it is dropped.
        let polled = connection.map(|connection| unsafe { AsyncFd::register(connection) });
        let Some(Ok(connection)) = polled else {
            unreachable!("a new connection is open, and an open socket can be polled");
        };
        tokio::task::spawn_local(serve(host.clone(), changed.clone(), at, connection));
    }
}

async fn serve(
    host: Rc<RefCell<Host>>,
    changed: Rc<Notify>,
    at: usize,
    connection: AsyncFd<Rc<UnixStream>>,
) {
    let mut watched = false;
    while let Ok(mut ready) = connection.readable().await {
        host.borrow_mut().take_requests(at);
        host.borrow_mut().check_barrier();
        let Process { pid, program, .. } = host.borrow().processes[at];
        if let Some(program) = program.filter(|program| !watched && *program != pid) {
            watched = true;
            tokio::task::spawn_local(watch(host.clone(), changed.clone(), at, program));
        }
        ready.clear_ready();
        changed.notify_one();
        if host.borrow().processes[at].connection.is_none() {
            return;
        }
    }
}

/// Waits for the end of a program that a script has started as a PE: it is no child, and the script
/// may hold the connection open.
async fn watch(host: Rc<RefCell<Host>>, changed: Rc<Notify>, at: usize, program: Pid) {
    /// Time between looks where nobody tells.
    const LOOK: Duration = Duration::from_millis(500);
    let watches = host.borrow().watches;
    match watches.then(|| signals::watch(program)) {
        Some(Ok(watched)) => _ = watched.readable().await,
        // There are too few descriptors, or the kernel is older than 5.3.
        _ => {
            while !signals::is_ending(program) {
                sleep(LOOK).await;
            }
        }
    }
    host.borrow_mut().take_requests(at);
    host.borrow_mut().program_ended(at);
    host.borrow_mut().lose_contact(at);
    changed.notify_one();
}

#[cfg(test)]
mod tests {
    use super::local_numbers;

    #[test]
    fn pes_are_numbered_on_their_host() {
        assert_eq!(local_numbers(&[None; 3]), [(0, 3), (1, 3), (2, 3)]);
        let in_turn = [0, 1, 0, 1, 0].map(Some);
        assert_eq!(local_numbers(&in_turn), [(0, 3), (0, 2), (1, 3), (1, 2), (2, 3)]);
    }
}
