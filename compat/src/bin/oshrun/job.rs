// SPDX-License-Identifier: Apache-2.0
//! Supervision of a job from its first PE to the last process it leaves behind.

mod deadlines;
mod ends;
mod losses;
mod news;

use crate::fabric::Ring;
use crate::fleet::{self, Event, Fleet, Killing, SILENT};
use crate::host::{self, Host, Parent, Started};
use crate::keeper::Launcher;
use crate::options::{Plan, Program};
use crate::output::{Copied, Outlets};
use crate::placement::Hosts;
use crate::profile::Collected;
use crate::profile::counted::Unread;
use crate::report;
use crate::signals::{self, Signals};
use crate::spawn::Failure;
use crate::thread;
use crate::wire::{End, Order, Setting, Share};
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use std::cell::RefCell;
use std::io::PipeReader;
use std::rc::Rc;
use std::time::Duration;
use tokio::io::unix::AsyncFd;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::{Instant, sleep_until};

/// After a failure that leaves the other PEs able to end by themselves.
const FINISH: Duration = Duration::from_millis(200);
/// Between SIGTERM and SIGKILL. With the others this stays below a second.
const TERMINATE: Duration = Duration::from_millis(400);
/// For processes that PEs have left behind, such as the end of a pipeline.
pub const LEFT_BEHIND: Duration = Duration::from_millis(200);
/// Between a signal from the user and SIGKILL, for programs that save their state.
const INTERRUPT: Duration = Duration::from_secs(5);
/// Between the loss of a PE's connection, or of the program that a script has started, and the end
/// of its process.
const LOST: Duration = Duration::from_millis(500);
/// The same while the kernel ends the process, which takes it long where much is to be closed or the
/// machine is busy.
const DYING: Duration = Duration::from_secs(10);
/// For a signal from the user that has ended PEs and is about to arrive here.
const ARRIVE: Duration = Duration::from_secs(1);
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
        Ok((job, around)) => {
            let tasks = tokio::task::LocalSet::new();
            tasks.run_until(supervise(job, around, launcher.keeper)).await
        }
        Err(failure) => {
            signals::sweep(Duration::ZERO);
            report::line(format_args!("{}", failure.text));
            Ending::Code(failure.code)
        }
    }
}

struct Job {
    pes: Vec<Pe>,
    reach: Reach,
    hosts: Hosts,
    ring: Ring,
    /// The PEs go on when others are lost.
    goes_on: bool,
    /// The start, from which times of faults count.
    started: Instant,
    timeout: Option<Duration>,
    /// Decided by the first failure, never changed by later ones.
    verdict: Option<Ending>,
    /// The first exit code other than 0 of a PE that had left the job in peace. The others go on.
    parting: Option<u8>,
    /// The user's signal that is to end the job.
    interrupted: Option<Signal>,
    /// Ends by a signal that this process is about to take itself, to be judged after it.
    untaken: Vec<End>,
    /// When to judge them without it.
    judge_at: Option<Instant>,
    /// What the hosts whose PEs all wait for the barrier have to tell the others.
    fences: Vec<Option<Vec<(String, String)>>>,
    /// The hosts were told of a PE that has left before the barrier is open.
    leaving: bool,
    /// A report of what PEs are doing, which some hosts still have to contribute to.
    report: Option<news::Report>,
    /// What the PEs have counted.
    collected: Collected,
    timeout_at: Option<Instant>,
    terminate_at: Option<Instant>,
    kill_at: Option<Instant>,
    /// All PEs were to be killed.
    killing: Option<Killing>,
    /// The user's signal that ended the wait for whoever is to read the output.
    unread: Option<Signal>,
}

/// Where the PEs are.
enum Reach {
    Here(Rc<RefCell<Host>>),
    Away(Box<Fleet>),
}

struct Pe {
    pid: Pid,
    alive: bool,
    /// It is lost: how it ends does not end the job.
    lost: bool,
    /// When to find the PE lost because its connection was closed, or its program ended, too early.
    lost_at: Option<NoContact>,
    /// The first PE that it went on without because it could not reach it.
    missed: Option<usize>,
    /// Its calls are checked.
    checked: bool,
}

impl Pe {
    /// Whether it has ended, as opposed to running or not being started yet.
    fn has_ended(&self) -> bool {
        !self.alive && self.pid.as_raw() > 0
    }
}

struct NoContact {
    at: Instant,
    how: String,
    running: bool,
}

/// What is watched while the job runs.
struct Around {
    signals: Signals,
    /// Told when there may be news of this host.
    changed: Rc<Notify>,
    /// What arrives from other hosts.
    events: Option<mpsc::UnboundedReceiver<(usize, Event)>>,
    outputs: Vec<Copied>,
}

/// Sets up everything and starts the PEs, or the agents that will.
fn start(plan: &Plan, launcher: &Launcher) -> Result<(Job, Around), Failure> {
    let system = |what: &str, why: &dyn std::fmt::Display| Failure {
        code: 1,
        text: format!("cannot start: {what}: {why}"),
    };
    let size = plan.size();
    plan.wish.check().map_err(|text| Failure { code: 2, text })?;
    let signals = Signals::new().map_err(|e| system("signals", &thread::reason(&e)))?;
    signals::adopt_orphans().map_err(|e| system("adopting orphans", &thread::reason(&e)))?;
    let hosts = Hosts::new(plan);
    let ring = Ring::new(plan)?;
    let changed = Rc::new(Notify::new());
    let name = format!("tombolo_{}", std::process::id());
    let (reach, pids, events, outputs) = match &plan.machines {
        Some(machines) => {
            let share = |host: usize| share(plan, &hosts, name.clone(), host);
            let shares = (0..machines.names.len()).map(share).collect::<Result<Vec<_>, _>>()?;
            let names = &machines.names;
            let running = fleet::start(&plan.remote, names, shares, launcher, plan.goes_on())?;
            (Reach::Away(Box::new(running.fleet)), vec![], Some(running.events), running.outputs)
        }
        None => {
            let share = share(plan, &hosts, name, 0)?;
            if plan.remote.directory.is_some() {
                let directory = &share.setting.directory;
                std::env::set_current_dir(directory).map_err(|e| Failure {
                    code: 2,
                    text: format!("--wdir {}: {e}", directory.display()),
                })?;
                // SAFETY: there is one thread.
                unsafe { std::env::set_var("PWD", directory) };
            }
            let emulated = |pe: usize| {
                let host = hosts.of(pe);
                (hosts.emulated.then_some(host), ring.links_of(host))
            };
            let (group, mask) = (launcher.group, launcher.mask_before);
            let parent = Parent { group, mask, emulated: &emulated, piped_input: false };
            let outlets = Outlets::new(size, plan.label);
            let Started { host, outlets, .. } = Host::start(&share, &parent, outlets)?;
            let pids = host.pids();
            (Reach::Here(Rc::new(RefCell::new(host))), pids, None, outlets.forward())
        }
    };
    let checked = |program: &Program| std::iter::repeat_n(program.is_checked(), program.count);
    let checked: Vec<bool> = plan.programs.iter().flat_map(checked).collect();
    let pe = |pe: usize| Pe {
        pid: Pid::from_raw(pids.get(pe).copied().unwrap_or(0)),
        alive: pe < pids.len(),
        lost: false,
        lost_at: None,
        missed: None,
        checked: checked[pe],
    };
    let job = Job {
        pes: (0..size).map(pe).collect(),
        reach,
        fences: vec![None; plan.machines.as_ref().map_or(1, |machines| machines.names.len())],
        hosts,
        ring,
        goes_on: plan.goes_on(),
        started: Instant::now(),
        timeout: plan.timeout,
        verdict: None,
        parting: None,
        interrupted: None,
        untaken: Vec::new(),
        judge_at: None,
        leaving: false,
        report: None,
        collected: Collected::new(plan.wish.clone()),
        timeout_at: plan.timeout.map(|time| Instant::now() + time),
        terminate_at: None,
        kill_at: None,
        killing: None,
        unread: None,
    };
    Ok((job, Around { signals, changed, events, outputs }))
}

/// What a machine has to know of the job: its PEs are those on `host`, or all if there is one.
fn share(plan: &Plan, hosts: &Hosts, job: String, host: usize) -> Result<Share, Failure> {
    let appnums = plan.programs.iter().enumerate();
    let appnums = appnums.flat_map(|(appnum, program)| std::iter::repeat_n(appnum, program.count));
    let here = |pe: usize| plan.machines.is_none() || hosts.of(pe) == host;
    let setting = Setting::own(&plan.remote)
        .map_err(|e| Failure { code: 1, text: format!("cannot start: {e}") })?;
    Ok(Share {
        job,
        size: plan.size(),
        mapping: hosts.mapping(),
        programs: plan.programs.clone(),
        pes: appnums.enumerate().filter(|(pe, _)| here(*pe)).collect(),
        bind: plan.bind,
        label: plan.label,
        joined: fleet::streams_are_one(),
        setting,
        counting: plan.wish.counting(),
    })
}

async fn supervise(mut job: Job, mut around: Around, keeper: PipeReader) -> Ending {
    if let Reach::Here(host) = &job.reach {
        host::serve_all(host, &around.changed);
    }
    // SAFETY: the AsyncFd owns the pipe, which stays open until it is dropped.
    let Ok(keeper) = (unsafe { AsyncFd::register(keeper) }) else {
        unreachable!("a pipe can be polled");
    };
    // A child may have ended before its signal could be read.
    job.collect();
    job.take_own_news();
    while !job.is_over() || job.awaits_signal() {
        let deadline = job.next_deadline();
        tokio::select! {
            event = around.signals.next() => match event {
                Ok(event) => job.take_signal(event),
                Err(error) => job.fail(format_args!("reading signals: {error}")),
            },
            () = around.changed.notified() => {}
            Some((host, event)) = next(&mut around.events) => job.take_event(host, event),
            _ = keeper.readable() => {
                // Nobody is left to be told.
                job.kill();
                signals::sweep(Duration::ZERO);
                return Ending::Signal(Signal::SIGKILL);
            }
            () = sleep_until(deadline.unwrap_or_else(Instant::now)), if deadline.is_some() => {}
        }
        job.take_own_news();
        job.meet_deadlines();
        job.take_own_news();
    }
    job.print_what_is_known();
    job.count_losses();
    if let Reach::Away(fleet) = &mut job.reach {
        fleet.close();
    }
    let withstood = signals::sweep(LEFT_BEHIND);
    if !withstood.is_empty() {
        let pids: Vec<String> = withstood.iter().map(Pid::to_string).collect();
        report::line(format_args!("processes that cannot be killed: {}", pids.join(", ")));
    }
    let ending = job.ending();
    let ending = match job.unread {
        None => finish_output(around.outputs, &around.signals, &keeper, ending).await,
        Some(signal) => Ending::Signal(signal),
    };
    job.show_what_was_counted(&around.signals, &keeper, ending).await
}

/// The next event from another host, if there can be one.
async fn next<T>(events: &mut Option<mpsc::UnboundedReceiver<T>>) -> Option<T> {
    match events {
        Some(events) => events.recv().await,
        None => std::future::pending().await,
    }
}

/// Waits until all output is written. A user who does not want to wait for a stalled reader
/// interrupts again.
async fn finish_output(
    outputs: Vec<Copied>,
    signals: &Signals,
    keeper: &AsyncFd<PipeReader>,
    ending: Ending,
) -> Ending {
    let mut lost = false;
    for outcome in outputs {
        match finish(outcome, signals, keeper).await {
            Finish::Done(written) => lost |= written.is_some_and(|loss| loss.0),
            Finish::Interrupted(signal) => return Ending::Signal(signal),
            Finish::Alone => return ending,
        }
    }
    if lost && ending == Ending::Code(0) { Ending::Code(1) } else { ending }
}

/// How the wait for a thread that writes has ended.
enum Finish<T> {
    /// With what the thread tells, if it does.
    Done(Option<T>),
    Interrupted(Signal),
    /// The keeper is gone.
    Alone,
}

async fn finish<T>(
    mut outcome: oneshot::Receiver<T>,
    signals: &Signals,
    keeper: &AsyncFd<PipeReader>,
) -> Finish<T> {
    loop {
        tokio::select! {
            told = &mut outcome => return Finish::Done(told.ok()),
            event = signals.next() => match event {
                Ok(signals::Event { signal, .. }) if signals::is_interrupt(signal) => {
                    return Finish::Interrupted(signal);
                }
                _ => {}
            },
            _ = keeper.readable() => return Finish::Alone,
        }
    }
}

impl Job {
    fn is_over(&self) -> bool {
        match &self.reach {
            Reach::Here(_) => self.pes.iter().all(|pe| !pe.alive),
            Reach::Away(fleet) => fleet.is_over(),
        }
    }

    /// Whether how the job ends depends on a signal that is about to arrive.
    fn awaits_signal(&self) -> bool {
        !self.untaken.is_empty() && self.verdict.is_none()
    }

    /// Whether all PEs have ended and their hosts still have output of theirs, which somebody is slow to read.
    /// That of this host alone is waited for elsewhere.
    fn has_only_output_left(&self) -> bool {
        matches!(self.reach, Reach::Away(_)) && self.pes.iter().all(Pe::has_ended)
    }

    fn ending(&self) -> Ending {
        let lost = self.pes.iter().any(|pe| pe.lost) || !self.apart().is_empty();
        let without_verdict = self.parting.unwrap_or(if lost { WITHOUT_LOST } else { 0 });
        self.verdict.unwrap_or(Ending::Code(without_verdict))
    }

    /// Shows what the PEs have counted, if they were to. As with output, a user who does not want to wait for
    /// whoever is to read it interrupts.
    async fn show_what_was_counted(
        mut self,
        signals: &Signals,
        keeper: &AsyncFd<PipeReader>,
        ending: Ending,
    ) -> Ending {
        if !self.collected.is_wanted() {
            return ending;
        }
        if let Reach::Here(host) = &self.reach {
            let unread = host.borrow_mut().counted();
            unread.iter().filter_map(Unread::read).for_each(|it| self.collected.take(it));
        }
        let machine = |pe| self.hosts.machine(self.hosts.of(pe)).to_owned();
        let places = (0..self.pes.len()).map(machine).collect();
        let (done, shown) = oneshot::channel();
        // The receiver is gone when the user has interrupted.
        thread::start(move || _ = done.send(self.collected.show(places)));
        match finish(shown, signals, keeper).await {
            Finish::Done(Some(true)) | Finish::Alone => ending,
            Finish::Interrupted(signal) => Ending::Signal(signal),
            Finish::Done(_) if ending == Ending::Code(0) => Ending::Code(1),
            Finish::Done(_) => ending,
        }
    }

    /// Has all hosts do something.
    fn order(&mut self, order: Order) {
        match &mut self.reach {
            Reach::Here(host) => host.borrow_mut().obey(order),
            Reach::Away(fleet) => fleet.order(&order),
        }
    }

    fn send_all(&mut self, signal: Signal) {
        self.order(Order::Signal { signal: signal as i32, but: None });
    }

    /// "PE 2 (pid 123, host name)".
    fn name(&self, pe: usize) -> String {
        let (pid, host) = (self.pes[pe].pid, self.hosts.of(pe));
        let machine = self.hosts.machine(host);
        match self.hosts.emulated {
            true => format!("PE {pe} (pid {pid}, emulated host {host} on {machine})"),
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

    /// Decides how the job ends; the PEs get `time` to end by themselves. After a signal from the
    /// user they keep what is left of the time for saving their state.
    fn end(&mut self, ending: Ending, time: Duration) {
        if self.verdict.is_none() {
            self.verdict = Some(ending);
            self.timeout_at = None;
            if self.interrupted.is_none() {
                let terminate_at = Instant::now() + time;
                self.terminate_at = Some(terminate_at);
                self.kill_at = Some(terminate_at + TERMINATE);
            }
            if let Reach::Away(fleet) = &mut self.reach {
                fleet.start_no_more();
            }
        }
    }

    fn kill(&mut self) {
        self.order(Order::Kill);
        (self.terminate_at, self.kill_at) = (None, None);
        let since = Instant::now();
        let until = match (&self.reach, self.killing) {
            // Somebody does not want to wait.
            (Reach::Away(_), Some(before)) => before.until.min(since + SILENT),
            _ => since + DYING,
        };
        self.killing = Some(Killing { since, until });
    }
}
