//! Supervision of a job from its first PE to the last process it leaves behind.

use crate::cores::Cores;
use crate::fabric::{self, Ring};
use crate::options::Plan;
use crate::output::{self, Outlets};
use crate::placement::Hosts;
use crate::pmi::{self, Effect, Server, Stage};
use crate::report;
use crate::signals::{self, Ended, Event, Signals};
use crate::spawn::{self, Common, Failure, Place};
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use std::cell::RefCell;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::rc::Rc;
use std::time::Duration;
use tokio::io::unix::AsyncFd;
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, sleep_until};
use tombolo_core::board::Board;

/// After a failure that leaves the other PEs able to end by themselves.
const FINISH: Duration = Duration::from_millis(200);
/// Between SIGTERM and SIGKILL. With the others this stays below a second.
const TERMINATE: Duration = Duration::from_millis(400);
/// For processes that PEs have left behind, such as the end of a pipeline.
const LEFT_BEHIND: Duration = Duration::from_millis(200);
/// Between a signal from the user and SIGKILL, for programs that save their state.
const INTERRUPT: Duration = Duration::from_secs(5);
/// After SIGKILL, for processes that the kernel does not let go.
const GIVE_UP: Duration = Duration::from_secs(3);
/// Between the loss of a PE's connection and that of its process.
const LOST: Duration = Duration::from_millis(500);

/// How `oshrun` itself ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    Code(u8),
    Signal(Signal),
}

/// Runs the job; what has to be said has been said when this returns.
pub async fn run(plan: Plan) -> Ending {
    match start(&plan) {
        Ok((job, signals, outputs)) => {
            let tasks = tokio::task::LocalSet::new();
            tasks.run_until(supervise(job, signals, outputs)).await
        }
        Err(failure) => {
            signals::sweep(Duration::ZERO);
            report::line(format_args!("{}", failure.text));
            Ending::Code(failure.code)
        }
    }
}

type Outcome = oneshot::Receiver<io::Result<()>>;

struct Job {
    pes: Vec<Pe>,
    server: Server,
    board: Board,
    hosts: Hosts,
    ring: Ring,
    /// The start, from which times of faults count.
    started: Instant,
    /// Machine's name, for messages.
    machine: String,
    /// Cores stay claimed as long as the job lives.
    _cores: Cores,
    timeout: Option<Duration>,
    /// Decided by the first failure, never changed by later ones.
    verdict: Option<Ending>,
    /// The user's signal that is to end the job.
    interrupted: Option<Signal>,
    timeout_at: Option<Instant>,
    terminate_at: Option<Instant>,
    kill_at: Option<Instant>,
    give_up_at: Option<Instant>,
}

struct Pe {
    pid: Pid,
    alive: bool,
    /// Its PMI connection, until it is closed.
    connection: Option<Rc<UnixStream>>,
    /// The beginning of a request.
    input: Vec<u8>,
    /// It went down with its emulated host, which is for the other PEs to find out.
    downed: bool,
    /// When to find the job broken because the connection was closed too early.
    lost_at: Option<Instant>,
}

/// Sets up everything and starts the PEs.
fn start(plan: &Plan) -> Result<(Job, Signals, Vec<Outcome>), Failure> {
    let system = |what: &str, why: &dyn std::fmt::Display| Failure {
        code: 1,
        text: format!("cannot start: {what}: {why}"),
    };
    let size = plan.size();
    let signals = Signals::new().map_err(|e| system("signals", &e))?;
    signals::adopt_orphans().map_err(|e| system("adopting orphans", &e))?;
    let mut outlets = Outlets::new(size, plan.label);
    // One connection each, the pipes, and a few dozen of our own.
    let files = spawn::allow_files((size + outlets.files(size) + 64) as u64)?;
    let board = Board::create(size).map_err(|e| system("status board", &e))?;
    let hosts = Hosts::new(plan);
    let ring = Ring::new(plan)?;
    let cores = Cores::claim(plan.bind, size);
    let common = Common { size, board: &board, mask: signals.mask_before, files };
    let mut pes = Vec::with_capacity(size);
    let mut appnums = Vec::with_capacity(size);
    for (appnum, program) in plan.programs.iter().enumerate() {
        for _ in 0..program.count {
            let pe = pes.len();
            let host = hosts.emulated.then(|| hosts.of(pe));
            let links = ring.links_of(hosts.of(pe));
            let place = Place { pe, host, links, core: cores.of(pe) };
            let (pid, connection) = spawn::spawn(program, &place, &common, &mut outlets)?;
            let connection = Some(Rc::new(connection));
            let input = vec![];
            pes.push(Pe { pid, alive: true, connection, input, downed: false, lost_at: None });
            appnums.push(appnum);
        }
    }
    let server = Server::new(format!("tombolo_{}", std::process::id()), &appnums, hosts.mapping());
    let machine = nix::unistd::gethostname()
        .map_or_else(|_| "localhost".into(), |name| name.to_string_lossy().into_owned());
    let job = Job {
        pes,
        server,
        board,
        hosts,
        ring,
        started: Instant::now(),
        machine,
        _cores: cores,
        timeout: plan.timeout,
        verdict: None,
        interrupted: None,
        timeout_at: plan.timeout.map(|time| Instant::now() + time),
        terminate_at: None,
        kill_at: None,
        give_up_at: None,
    };
    Ok((job, signals, outlets.forward()))
}

async fn supervise(job: Job, signals: Signals, outputs: Vec<Outcome>) -> Ending {
    let connections: Vec<_> = job.pes.iter().map(|pe| pe.connection.clone()).collect();
    let job = Rc::new(RefCell::new(job));
    let changed = Rc::new(Notify::new());
    for (pe, connection) in connections.into_iter().enumerate() {
        // SAFETY: the AsyncFd shares ownership of the socket, which stays open until it is dropped.
        let polled = connection.map(|connection| unsafe { AsyncFd::register(connection) });
        let Some(Ok(connection)) = polled else {
            unreachable!("a new connection is open, and an open socket can be polled");
        };
        tokio::task::spawn_local(serve(job.clone(), changed.clone(), pe, connection));
    }
    // A child may have ended before its signal could be read.
    job.borrow_mut().collect();
    while !job.borrow().is_over() {
        let deadline = job.borrow().next_deadline();
        tokio::select! {
            event = signals.next() => match event {
                Ok(event) => job.borrow_mut().take_signal(event),
                Err(error) => job.borrow_mut().fail(format_args!("reading signals: {error}")),
            },
            () = changed.notified() => {}
            () = sleep_until(deadline.unwrap_or_else(Instant::now)), if deadline.is_some() => {}
        }
        job.borrow_mut().meet_deadlines();
    }
    let withstood = signals::sweep(LEFT_BEHIND);
    if !withstood.is_empty() {
        let pids: Vec<String> = withstood.iter().map(Pid::to_string).collect();
        report::line(format_args!("processes that cannot be killed: {}", pids.join(", ")));
    }
    let ending = job.borrow().ending();
    finish_output(outputs, &signals, ending).await
}

/// Answers the requests of one PE as they come.
async fn serve(
    job: Rc<RefCell<Job>>,
    changed: Rc<Notify>,
    pe: usize,
    connection: AsyncFd<Rc<UnixStream>>,
) {
    while let Ok(mut ready) = connection.readable().await {
        job.borrow_mut().take_requests(pe);
        job.borrow_mut().check_barrier();
        ready.clear_ready();
        changed.notify_one();
        if job.borrow().pes[pe].connection.is_none() {
            return;
        }
    }
}

/// Waits until all output is written. A user who does not want to wait for a stalled reader
/// interrupts again.
async fn finish_output(outputs: Vec<Outcome>, signals: &Signals, ending: Ending) -> Ending {
    for outcome in outputs {
        let mut outcome = outcome;
        loop {
            tokio::select! {
                written = &mut outcome => match written {
                    Ok(Err(error)) => {
                        report::line(format_args!("cannot write the output of the PEs: {error}"));
                        return if ending == Ending::Code(0) { Ending::Code(1) } else { ending };
                    }
                    _ => break,
                },
                event = signals.next() => match event {
                    Ok(Event { signal, .. }) if is_interrupt(signal) => return Ending::Signal(signal),
                    _ => {}
                },
            }
        }
    }
    ending
}

fn is_interrupt(signal: Signal) -> bool {
    matches!(signal, Signal::SIGINT | Signal::SIGTERM | Signal::SIGHUP)
}

impl Job {
    fn is_over(&self) -> bool {
        self.pes.iter().all(|pe| !pe.alive)
    }

    fn ending(&self) -> Ending {
        self.verdict.unwrap_or(Ending::Code(0))
    }

    fn send_all(&self, signal: Signal) {
        self.pes.iter().filter(|pe| pe.alive).for_each(|pe| signals::send(pe.pid, signal));
    }

    /// "PE 2 (pid 123, host name)".
    fn name(&self, pe: usize) -> String {
        let (pid, machine) = (self.pes[pe].pid, &self.machine);
        match self.hosts.emulated {
            true => {
                format!("PE {pe} (pid {pid}, emulated host {} on {machine})", self.hosts.of(pe))
            }
            false => format!("PE {pe} (pid {pid}, host {machine})"),
        }
    }

    /// Ends the job because something is wrong with it as a whole.
    fn fail(&mut self, why: std::fmt::Arguments<'_>) {
        if self.verdict.is_none() {
            report::line(format_args!("{why}; ending the job"));
            self.end(Ending::Code(1), Duration::ZERO);
        }
    }

    /// Decides how the job ends; the PEs get `time` to end by themselves.
    fn end(&mut self, ending: Ending, time: Duration) {
        if self.verdict.is_none() {
            self.verdict = Some(ending);
            let terminate_at = Instant::now() + time;
            self.timeout_at = None;
            self.terminate_at = Some(terminate_at);
            self.kill_at = Some(terminate_at + TERMINATE);
        }
    }

    fn kill(&mut self) {
        self.send_all(Signal::SIGKILL);
        (self.terminate_at, self.kill_at) = (None, None);
        self.give_up_at = Some(Instant::now() + GIVE_UP);
    }
}

/// The PMI connections.
impl Job {
    /// Takes and answers what PE `pe` has sent so far.
    fn take_requests(&mut self, pe: usize) {
        let mut chunk = [0; 4096];
        while let Some(connection) = self.pes[pe].connection.clone() {
            match (&*connection).read(&mut chunk) {
                Ok(0) => self.close(pe),
                Ok(count) => self.take_bytes(pe, &chunk[..count]),
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return,
                    io::ErrorKind::Interrupted => {}
                    _ => self.close(pe),
                },
            }
        }
    }

    fn close(&mut self, pe: usize) {
        self.pes[pe].connection = None;
        if self.server.stage(pe) == Stage::Inside && !self.pes[pe].downed {
            self.pes[pe].lost_at = Some(Instant::now() + LOST);
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

    fn perform(&mut self, effect: Effect) {
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

/// The ends of PEs.
impl Job {
    /// Takes all children that have ended and draws the conclusions.
    fn collect(&mut self) {
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
        if self.verdict.is_some() || self.pes[pe].downed {
            return;
        }
        if let Some(signal) = status.signal() {
            return self.judge_signal(pe, signal, status.core_dumped());
        }
        let stage = self.server.stage(pe);
        let code = status.code().unwrap_or(1) as u8;
        // Others that have no more to do with this PE may end in peace.
        let time = if stage == Stage::Inside { Duration::ZERO } else { FINISH };
        if code != 0 {
            // After an interrupt a code tells that it has been heard, not that something broke.
            if self.interrupted.is_none() {
                let name = self.name(pe);
                report::line(format_args!("{name} exited with code {code}; ending the job"));
            }
            self.end(Ending::Code(code), time);
        } else if stage == Stage::Inside {
            self.fail(format_args!("{} exited without calling shmem_finalize", self.name(pe)));
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
        let name = self.name(pe);
        let what = signals::describe(signal);
        let note = match known {
            Some(Signal::SIGKILL) => ", sent by someone or by the kernel for lack of memory",
            _ if core_dumped => ", core dumped",
            _ => "",
        };
        report::line(format_args!("{name} was killed by {what}{note}; ending the job"));
        self.end(Ending::Code(128 + signal as u8), Duration::ZERO);
    }

    /// A barrier that some PE can no longer enter will never open.
    fn check_barrier(&mut self) {
        if self.server.barrier_is_waiting()
            && let Some(pe) = self.pes.iter().position(|pe| !pe.alive)
        {
            self.fail(format_args!(
                "{} has exited while other PEs wait for it to start or finish",
                self.name(pe)
            ));
        }
    }
}

/// Signals and deadlines.
impl Job {
    fn take_signal(&mut self, event: Event) {
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

    fn next_deadline(&self) -> Option<Instant> {
        let job = [self.timeout_at, self.terminate_at, self.kill_at, self.give_up_at];
        let fault = self.ring.next_fault().map(|at| self.started + at);
        job.into_iter().chain([fault]).chain(self.pes.iter().map(|pe| pe.lost_at)).flatten().min()
    }

    fn meet_deadlines(&mut self) {
        let now = Instant::now();
        while self.ring.next_fault().is_some_and(|at| self.started + at <= now) {
            self.bring_fault_about();
        }
        let due = |deadline: &mut Option<Instant>| deadline.take_if(|at| *at <= now).is_some();
        for pe in 0..self.pes.len() {
            if due(&mut self.pes[pe].lost_at) {
                self.fail(format_args!(
                    "{} closed its connection before shmem_finalize",
                    self.name(pe)
                ));
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

    fn bring_fault_about(&mut self) {
        let (host, failed) = self.ring.inject();
        if let Some(why) = failed {
            self.fail(format_args!("{why}"));
        }
        let Some(host) = host else { return };
        report::line(format_args!("emulated host {host} dies, as --fault asks"));
        for pe in 0..self.pes.len() {
            self.pes[pe].downed |= self.hosts.of(pe) == host;
        }
        let dying = self.pes.iter().filter(|pe| pe.alive && pe.downed);
        fabric::kill_all(dying.map(|pe| pe.pid));
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
