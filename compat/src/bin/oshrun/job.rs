//! Supervision of a job from its first PE to the last process it leaves behind.

mod deadlines;
mod ends;
mod losses;
mod requests;

use crate::cores::Cores;
use crate::fabric::Ring;
use crate::keeper::Launcher;
use crate::options::Plan;
use crate::output::Outlets;
use crate::placement::Hosts;
use crate::pmi::Server;
use crate::report;
use crate::signals::{self, Event, Signals};
use crate::spawn::{self, Common, Failure, Place};
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use std::cell::RefCell;
use std::io::{self, PipeReader};
use std::os::unix::net::UnixStream;
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
/// Between the loss of a PE's connection, or of the program that a script has started, and the end
/// of its process.
const LOST: Duration = Duration::from_millis(500);
/// Exit code when PEs were lost and all others have ended well.
const WITHOUT_LOST: u8 = 125;

/// How `oshrun` itself ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    Code(u8),
    Signal(Signal),
}

/// Runs the job; what has to be said has been said when this returns.
pub async fn run(plan: Plan, launcher: Launcher) -> Ending {
    match start(&plan, &launcher) {
        Ok((job, signals, outputs)) => {
            let tasks = tokio::task::LocalSet::new();
            tasks.run_until(supervise(job, signals, launcher.keeper, outputs)).await
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
    /// The PEs go on when others are lost.
    goes_on: bool,
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
    /// The process that speaks on it: another than `pid` where that is a script.
    program: Option<Pid>,
    /// The beginning of a request.
    input: Vec<u8>,
    /// It is lost: how it ends does not end the job.
    lost: bool,
    /// When to find the PE lost because its connection was closed, or its program ended, too early.
    lost_at: Option<Instant>,
}

/// Sets up everything and starts the PEs.
fn start(plan: &Plan, launcher: &Launcher) -> Result<(Job, Signals, Vec<Outcome>), Failure> {
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
    let (mask, group) = (launcher.mask_before, launcher.group);
    let common = Common { size, board: &board, mask, group, files };
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
            let (program, lost, lost_at) = (None, false, None);
            pes.push(Pe { pid, alive: true, connection, program, input, lost, lost_at });
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
        goes_on: plan.goes_on(),
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

async fn supervise(
    job: Job,
    signals: Signals,
    keeper: PipeReader,
    outputs: Vec<Outcome>,
) -> Ending {
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
    // SAFETY: the AsyncFd owns the pipe, which stays open until it is dropped.
    let Ok(keeper) = (unsafe { AsyncFd::register(keeper) }) else {
        unreachable!("a pipe can be polled");
    };
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
            _ = keeper.readable() => {
                // Nobody is left to be told.
                job.borrow_mut().kill();
                signals::sweep(Duration::ZERO);
                return Ending::Signal(Signal::SIGKILL);
            }
            () = sleep_until(deadline.unwrap_or_else(Instant::now)), if deadline.is_some() => {}
        }
        job.borrow_mut().meet_deadlines();
    }
    job.borrow().count_losses();
    let withstood = signals::sweep(LEFT_BEHIND);
    if !withstood.is_empty() {
        let pids: Vec<String> = withstood.iter().map(Pid::to_string).collect();
        report::line(format_args!("processes that cannot be killed: {}", pids.join(", ")));
    }
    let ending = job.borrow().ending();
    finish_output(outputs, &signals, &keeper, ending).await
}

/// Answers the requests of one PE as they come.
async fn serve(
    job: Rc<RefCell<Job>>,
    changed: Rc<Notify>,
    pe: usize,
    connection: AsyncFd<Rc<UnixStream>>,
) {
    let mut watched = false;
    while let Ok(mut ready) = connection.readable().await {
        job.borrow_mut().take_requests(pe);
        job.borrow_mut().check_barrier();
        let Pe { pid, program, .. } = job.borrow().pes[pe];
        if let Some(program) = program.filter(|program| !watched && *program != pid) {
            watched = true;
            tokio::task::spawn_local(watch(job.clone(), changed.clone(), pe, program));
        }
        ready.clear_ready();
        changed.notify_one();
        if job.borrow().pes[pe].connection.is_none() {
            return;
        }
    }
}

/// Waits for the end of a program that a script has started as PE `pe`: it is no child, and the
/// script may hold the connection open.
async fn watch(job: Rc<RefCell<Job>>, changed: Rc<Notify>, pe: usize, program: Pid) {
    match signals::watch(program) {
        Ok(watched) => _ = watched.readable().await,
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
        // A kernel before 5.3.
        Err(_) => return,
    }
    job.borrow_mut().take_requests(pe);
    job.borrow_mut().lose_contact(pe);
    changed.notify_one();
}

/// Waits until all output is written. A user who does not want to wait for a stalled reader
/// interrupts again.
async fn finish_output(
    outputs: Vec<Outcome>,
    signals: &Signals,
    keeper: &AsyncFd<PipeReader>,
    ending: Ending,
) -> Ending {
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
                    Ok(Event { signal, .. }) if signals::is_interrupt(signal) => return Ending::Signal(signal),
                    _ => {}
                },
                _ = keeper.readable() => return ending,
            }
        }
    }
    ending
}

impl Job {
    fn is_over(&self) -> bool {
        self.pes.iter().all(|pe| !pe.alive)
    }

    fn ending(&self) -> Ending {
        let lost = self.pes.iter().any(|pe| pe.lost) || !self.apart().is_empty();
        self.verdict.unwrap_or(Ending::Code(if lost { WITHOUT_LOST } else { 0 }))
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
