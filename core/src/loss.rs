// SPDX-License-Identifier: Apache-2.0
//! PEs that cannot be reached any more, and programs that go on without them.
//!
//! A PE of another host is lost when a transport gives it up: its host died, or the links to it are
//! down for too long. By default the next operation or wait ends the job and names the PE. With
//! `SHMEM_ON_LOSS=continue` there is one warning for each lost PE instead, and
//! - operations on it are dropped: puts and AMOs have no effect, blocking gets give zeros, fetching
//!   AMOs give 0, quiet and fence do not wait for them;
//! - waits go on, for another PE may still end them, but one that lasts longer than [`GRACE`] while
//!   a PE is lost ends the job as by default. Time in which this process did not get to run does not
//!   count: then the PEs that are waited for may not have run either.
//!
//! A PE of the same host is lost when its process has ended. The launcher finds out first: by
//! default it ends the job, else it names the PE and marks it on the status board. The same holds
//! for it, but that memory shared with it stays as the PE left it: operations go there as before. Other launchers may
//! leave a job alone of which a process has died, as `srun` does without `--kill-on-bad-exit`. There each PE looks after
//! the next one of its host, and ends the job when that is gone; with `SHMEM_ON_LOSS=continue` it looks after all of its
//! host, and marks those that are gone on a board of its own.

use crate::board::monotonic_ns;
use crate::config::{Config, OnLoss};
use crate::process::{Stat, has_ended, is_of_no_process};
use crate::transport::Locality;
use crate::world::World;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// How long a wait may last while a PE is lost, from the loss or its own beginning, whichever is
/// later.
pub const GRACE: Duration = Duration::from_secs(10);

/// Waits look for losses more often than this, if their process runs.
const LOOK: Duration = Duration::from_millis(500);

/// How long a process may take from the loss of its memory to its end.
const DYING: Duration = Duration::from_millis(100);

/// How long a PE that has lost one of another machine waits for the launcher to end the job: where the lost
/// PE's process has ended, the launcher hears of it about when the connections break.
const NEWS_FROM_ELSEWHERE: Duration = Duration::from_millis(500);

/// Why a wait ends whose launcher has ended.
pub(crate) const LAUNCHER_GONE: &str = "the launcher is gone";

/// Part of the names of all routines that finalise the library.
const FINALIZE: &str = "shmem_finalize";

/// How long an operation on a PE of this host that has failed waits for the launcher to tell that
/// the PE has ended. Where a script has started it, the launcher takes half a second to be sure.
const NEWS: Duration = Duration::from_secs(2);

/// PEs that this PE knows to be lost.
pub(crate) struct Losses {
    /// By PE: when the loss was noticed on the monotonic clock, 0 if it was not.
    since: Box<[AtomicU64]>,
    /// When the last one was noticed.
    latest: AtomicU64,
    /// By PE: whether transports were told that its process has ended.
    passed_on: Box<[AtomicBool]>,
}

impl Losses {
    pub(crate) fn none(n_pes: usize) -> Losses {
        Losses {
            since: std::iter::repeat_with(AtomicU64::default).take(n_pes).collect(),
            latest: AtomicU64::new(0),
            passed_on: std::iter::repeat_with(AtomicBool::default).take(n_pes).collect(),
        }
    }

    pub(crate) fn is_known(&self, pe: usize) -> bool {
        self.since.get(pe).is_some_and(|since| since.load(Ordering::Acquire) != 0)
    }

    /// True the first time.
    fn note(&self, pe: usize, now: u64) -> bool {
        let Some(since) = self.since.get(pe) else { return false };
        // Before the PE is known to be lost: who knows of it finds the time.
        self.latest.fetch_max(now, Ordering::AcqRel);
        since.compare_exchange(0, now.max(1), Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Whether a wait has lasted too long at `now`, if a PE is lost.
    fn outlasts(&self, wait: &mut LongWait, now: u64) -> bool {
        let from = self.latest.load(Ordering::Acquire).max(wait.begun);
        if from > wait.from {
            *wait = LongWait { from, looked: from.max(wait.looked), held_up: 0, ..*wait };
        }
        let since = now.saturating_sub(wait.looked);
        wait.held_up += since.saturating_sub(LOOK.as_nanos() as u64);
        wait.looked = now;
        now.saturating_sub(from + wait.held_up) > GRACE.as_nanos() as u64
    }
}

/// A wait that looks for losses.
pub(crate) struct LongWait {
    begun: u64,
    /// Since when it may last no longer than [`GRACE`].
    from: u64,
    /// When it looked last.
    looked: u64,
    /// How long its process did not get to run, since `from`.
    held_up: u64,
}

impl LongWait {
    /// One that began at `begun`.
    pub(crate) fn new(begun: u64) -> LongWait {
        LongWait { begun, from: 0, looked: begun, held_up: 0 }
    }
}

impl World {
    /// Whether a transport has given up a PE, or the launcher one of this host: what is issued to
    /// it from then on fails, or changes nothing but the memory that it has left. Warns the first
    /// time if the program goes on without it and the launcher has not.
    pub fn is_lost(&self, pe: usize) -> bool {
        if self.losses().is_known(pe) {
            return true;
        }
        let told = self.is_told_lost(pe);
        let lost = told || self.transports().iter().any(|t| t.has_given_up(pe));
        if lost && self.losses().note(pe, monotonic_ns()) && self.goes_on() && !told {
            // What goes by one transport would arrive without what went by another one.
            for transport in self.transports() {
                transport.give_up(pe, "another transport has given it up");
            }
            self.board().miss(self.pe(), pe);
            self.warn_of(pe);
        }
        lost
    }

    /// Whether the launcher has told that a PE of this host is lost, or this PE has found out where no launcher
    /// tells. Of other hosts it may know before operations under way have failed, so there the transports count.
    fn is_told_lost(&self, pe: usize) -> bool {
        self.look_at_processes();
        let localities = self.localities();
        localities[pe].host == localities[self.pe()].host && self.board().is_lost(pe)
    }

    /// Where no launcher tells which PEs have ended without leaving, looks at processes of this host, now and then.
    fn look_at_processes(&self) {
        let Some(watched) = &self.watched else { return };
        for (pe, process) in watched.ended(monotonic_ns()) {
            // Who leaves has told so before its process ends.
            if self.board().is_lost(pe) || self.has_left(pe) {
                continue;
            }
            self.board().mark_lost(pe);
            let localities = self.localities();
            let here = localities[self.pe()].host;
            let mut left = (0..self.n_pes())
                .filter(|pe| localities[*pe].host == here && !self.board().is_lost(*pe));
            if left.next() == Some(self.pe()) {
                tracing::warn!(
                    "process {}, PE {pe}, has ended without finalizing the library; PE {} and those of its host go on \
                     without it, as SHMEM_ON_LOSS=continue asks",
                    process.pid,
                    self.pe()
                );
            }
        }
    }

    /// One PE of each host speaks for it.
    #[cold]
    fn warn_of(&self, pe: usize) {
        if self.localities()[self.pe()].local_index == 0 {
            tracing::warn!(
                "{}; PE {} and those of its host go on without it, as SHMEM_ON_LOSS=continue asks",
                self.loss_of(pe),
                self.pe()
            );
        }
    }

    /// Which PE cannot be reached, and why.
    fn loss_of(&self, pe: usize) -> String {
        let host = self.localities().get(pe).map_or("?", |l| &l.host_name);
        let why = self.transports().iter().find_map(|t| t.why_given_up(pe));
        let why = why.map_or_else(String::new, |why| format!(": {why}"));
        format!("PE {pe} on {host} cannot be reached any more{why}")
    }

    /// Whether the program asked to go on when PEs are lost.
    pub fn goes_on(&self) -> bool {
        self.config().on_loss == OnLoss::Continue
    }

    /// Whether a PE is lost and the program goes on without it.
    pub fn goes_on_without(&self, pe: usize) -> bool {
        self.goes_on() && self.is_lost(pe)
    }

    /// Whether an operation that has failed is to be dropped: its PE is lost and the program goes
    /// on without it. The failure may be the first sign of a loss, so there is time for others.
    #[cold]
    pub(crate) fn await_loss_verdict(&self, pe: usize) -> bool {
        let localities = self.localities();
        let local = localities[pe].host == localities[self.pe()].host;
        let begun = monotonic_ns();
        while self.goes_on() && !self.is_lost(pe) {
            if !local || monotonic_ns() - begun > NEWS.as_nanos() as u64 {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        self.goes_on()
    }

    /// A transport has failed towards PE `pe`. If that is because the PE's process, on this machine, has
    /// ended, the launcher knows of it too, ends the job and says why: waits for that. A launcher that has got no
    /// processor until then looks for ended processes before it takes what this PE says for the cause.
    #[cold]
    pub(crate) fn await_end_with(&self, pe: usize) {
        if self.goes_on() || !self.is_on_this_machine(pe) {
            return;
        }
        let pid = self.localities()[pe].pid;
        let begun = monotonic_ns();
        // A process that is ending loses its memory first.
        let mut limit = DYING;
        while monotonic_ns() - begun < limit.as_nanos() as u64 {
            // Of one whose number is not known nobody can tell.
            if pid != 0 && has_ended(pid) {
                limit = NEWS;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Emulated hosts are on one machine.
    fn is_on_this_machine(&self, pe: usize) -> bool {
        let localities = self.localities();
        let is_here = |other: &Locality| other.host == localities[self.pe()].host;
        self.config().host.is_some() || localities.get(pe).is_some_and(is_here)
    }

    /// Looks for losses for a wait; ends the job when a PE is lost and the
    /// program did not ask to go on, or the wait has lasted too long since.
    #[cold]
    pub(crate) fn check_losses(&self, routine: &'static str, wait: &mut LongWait) {
        self.check_finalized(routine);
        let Some(first) = self.look_for_losses(routine) else { return };
        if self.losses().outlasts(wait, monotonic_ns()) {
            let seconds = GRACE.as_secs();
            self.stop_job(
                routine,
                format_args!("{}; this wait has lasted {seconds} s since", self.loss_of(first)),
            );
        }
    }

    /// For a program that tests for something again and again in vain, every so often: ends the job where a
    /// wait for that would, but goes on for as long as the program does where PEs are lost and it asked to go on.
    /// Each test is over, so the program may do something else as well.
    #[cold]
    pub fn check_polls(&self, routine: &'static str) {
        if !self.bootstrap().is_alive() {
            self.stop_job(routine, LAUNCHER_GONE);
        }
        // A thread may go on testing while another one ends the process.
        if self.board().left_after(self.pe()).is_none() {
            self.check_finalized(routine);
        }
        _ = self.look_for_losses(routine);
    }

    /// Tells transports which PEs have ended, of whatever host: they might wait for them as long as `SHMEM_SILENCE`
    /// says.
    fn pass_on_ends(&self) {
        for (pe, passed_on) in self.losses().passed_on.iter().enumerate() {
            if self.board().is_lost(pe) && !passed_on.swap(true, Ordering::Relaxed) {
                self.transports().iter().for_each(|transport| transport.has_ended(pe));
            }
        }
    }

    /// The first PE that is lost, if the program asked to go on. Otherwise ends the job if one is.
    fn look_for_losses(&self, routine: &'static str) -> Option<usize> {
        self.check_service(routine);
        self.check_neighbour(routine);
        let told = || (0..self.n_pes()).find(|pe| self.is_told_lost(*pe));
        if self.goes_on() {
            self.look_at_processes();
            self.pass_on_ends();
        }
        let given_up = self.transports().iter().find_map(|t| t.first_unreachable());
        let first = given_up.or_else(told)?;
        if !self.goes_on() {
            self.abort_lost(routine, first);
        }
        // Every one is warned of.
        (0..self.n_pes()).for_each(|pe| _ = self.is_lost(pe));
        Some(first)
    }

    /// Ends the job when this PE can ask another nothing any more, or answer it nothing, though it is not
    /// lost: one of them would wait for ever.
    fn check_service(&self, routine: &'static str) {
        let is_cut_off = |pe: &usize| self.control_wire.is_cut_off(*pe);
        let cut_off = (0..self.n_pes()).filter(is_cut_off).find(|pe| !self.goes_on_without(*pe));
        if let Some(pe) = cut_off {
            self.await_end_with(pe);
            if !self.await_loss_verdict(pe) {
                self.abort_lost(routine, pe);
            }
        }
    }

    /// Ends the job when the PE that this one looks after has died and the launcher leaves it at that. PEs that
    /// finalise the library end after all of them have come to that.
    fn check_neighbour(&self, routine: &'static str) {
        if let Some(neighbour) = &self.neighbour
            && neighbour.process.has_ended()
        {
            std::thread::sleep(NEWS);
            let (pe, pid) = (neighbour.pe, neighbour.process.pid);
            self.stop_job(
                routine,
                format_args!(
                    "process {pid}, PE {pe}, has ended without finalizing the library: this wait would last for ever"
                ),
            );
        }
    }

    /// Ends the job when this PE waits in `routine` though another has finalised the library: the
    /// barrier of `shmem_finalize` has opened, so this PE has taken part in it by some other routine. If
    /// it finalises as well, it may be about to learn that the barrier is open, unless it has begun
    /// another barrier than that.
    /// PEs that go on without lost ones finalise without a barrier; they are let alone.
    fn check_finalized(&self, routine: &'static str) {
        if self.goes_on() {
            return;
        }
        let begun = routine.contains(FINALIZE).then(|| self.barriers());
        let gone = |pe: &usize| {
            let left = self.board().left_after(*pe);
            *pe != self.pe() && left.is_some() && begun != left
        };
        if let Some(pe) = (0..self.n_pes()).find(gone) {
            self.stop_job(
                routine,
                format_args!(
                    "PE {pe} has finalized the library, by shmem_finalize or by the end of its \
                     program: this wait would last for ever"
                ),
            );
        }
    }

    /// Ends the job because of a lost PE. If the PE's process has ended, the launcher ends the job, says
    /// why and gives its exit code: waits for that.
    #[cold]
    pub(crate) fn abort_lost(&self, routine: &'static str, pe: usize) -> ! {
        match self.is_on_this_machine(pe) {
            true => self.await_end_with(pe),
            false => std::thread::sleep(NEWS_FROM_ELSEWHERE),
        }
        self.stop_job(routine, format_args!("{}", self.loss_of(pe)))
    }
}

/// A PE of this host that this one looks after.
pub(crate) struct Neighbour {
    pe: usize,
    process: Process,
}

impl Neighbour {
    /// The next PE of the host, where this PE has to look after it: `oshrun` does that for all of its PEs.
    pub(crate) fn of(pe: usize, localities: &[Locality], config: &Config) -> Option<Neighbour> {
        if config.board_fd.is_some() || config.on_loss == OnLoss::Continue {
            return None;
        }
        let others = (pe + 1..localities.len()).chain(0..pe);
        let next =
            others.into_iter().find(|other| localities[*other].host == localities[pe].host)?;
        let pid = localities[next].pid;
        let process = Process::of(pid).filter(|_| pid != localities[pe].pid)?;
        Some(Neighbour { pe: next, process })
    }
}

/// PEs of this host that this one looks after, where it goes on without those that have ended and no launcher
/// tells which.
pub(crate) struct Watched {
    processes: Vec<(usize, Process)>,
    /// The one to look at next.
    next: AtomicUsize,
    /// When some were looked at last.
    looked: AtomicU64,
}

impl Watched {
    /// All PEs of the host but this one, where this PE has to look after them.
    pub(crate) fn of(pe: usize, localities: &[Locality], config: &Config) -> Option<Watched> {
        if config.board_fd.is_some() || config.on_loss != OnLoss::Continue {
            return None;
        }
        let own = &localities[pe];
        let others = localities.iter().enumerate();
        let others = others.filter(|(other, it)| *other != pe && it.host == own.host);
        if own.local_index == 0
            && let Some((other, _)) = others.clone().find(|(_, it)| it.pid == 0)
        {
            tracing::warn!(
                "PE {other} is in another process namespace than PE {pe}: if its process ends before it finalizes the \
                 library, nobody tells PE {pe} of it, and waits for it do not end"
            );
        }
        // PEs of tests may be threads of one process.
        let numbered = others.filter(|(_, it)| it.pid != 0 && it.pid != own.pid);
        let processes = numbered.filter_map(|(other, it)| Some((other, Process::of(it.pid)?)));
        let (next, looked) = (AtomicUsize::new(0), AtomicU64::new(0));
        Some(Watched { processes: processes.collect(), next, looked })
    }

    /// Those of the next few that have ended; none if some were looked at a short while before `now`.
    fn ended(&self, now: u64) -> impl Iterator<Item = (usize, &Process)> {
        /// Time between two looks, in nanoseconds.
        const EVERY: u64 = 50_000_000;
        /// Processes looked at in one go: each takes some ten microseconds.
        const TOGETHER: usize = 32;
        let looked = self.looked.load(Ordering::Relaxed);
        let is_due = now.saturating_sub(looked) > EVERY
            && self
                .looked
                .compare_exchange(looked, now, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok();
        let count = if is_due { self.processes.len().min(TOGETHER) } else { 0 };
        let first = self.next.fetch_add(count, Ordering::Relaxed);
        let some = (first..first.wrapping_add(count)).map(|at| at % self.processes.len());
        let some = some.map(|at| (self.processes[at].0, &self.processes[at].1));
        some.filter(|(_, process)| process.has_ended())
    }
}

/// A process that was seen running.
struct Process {
    pid: i32,
    /// Another one may get its number.
    started: u64,
}

impl Process {
    /// None where the system does not show that it runs.
    fn of(pid: i32) -> Option<Process> {
        let stat = Stat::of(pid).ok()?;
        (!stat.is_over).then_some(Process { pid, started: stat.started })
    }

    fn has_ended(&self) -> bool {
        match Stat::of(self.pid) {
            Ok(stat) => stat.is_over || stat.started != self.started,
            Err(error) => is_of_no_process(&error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_is_news_once() {
        let losses = Losses::none(3);
        assert!(!losses.is_known(1));
        assert!(losses.note(1, 5) && !losses.note(1, 6) && losses.note(2, 7));
        assert!(losses.is_known(1) && losses.is_known(2) && !losses.is_known(0));
        assert!(!losses.note(3, 8) && !losses.is_known(3));
    }

    #[test]
    fn a_process_is_told_from_another_one_with_its_number() {
        let own = Process::of(std::process::id() as i32).unwrap();
        assert!(!own.has_ended());
        assert!(Process { started: own.started + 1, ..own }.has_ended());
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let process = Process::of(child.id() as i32).unwrap();
        assert!(!process.has_ended());
        child.kill().unwrap();
        while !process.has_ended() {
            std::thread::yield_now();
        }
        assert!(Process::of(process.pid).is_none());
        child.wait().unwrap();
        assert!(process.has_ended() && Process::of(process.pid).is_none());
    }

    #[test]
    fn processes_that_have_ended_are_found_one_look_after_the_other() {
        let mut children: Vec<_> = (0..40)
            .map(|_| std::process::Command::new("sleep").arg("60").spawn().unwrap())
            .collect();
        let process = |child: &std::process::Child| Process::of(child.id() as i32).unwrap();
        let processes = children.iter().map(process).enumerate().collect();
        let watched = Watched { processes, next: AtomicUsize::new(0), looked: AtomicU64::new(0) };
        let second = 1_000_000_000;
        let found = |now: u64| watched.ended(now).map(|(pe, _)| pe).collect::<Vec<_>>();
        assert_eq!(found(second), []);
        for child in [3, 39] {
            children[child].kill().unwrap();
            children[child].wait().unwrap();
        }
        assert_eq!(found(second + 1), [], "it has just looked");
        // The last eight of them and the first 24, then the other 16 and the first ones again.
        assert_eq!(found(2 * second), [39, 3]);
        assert_eq!(found(3 * second), [39, 3]);
        children.iter_mut().for_each(|child| {
            let _ = child.kill();
            let _ = child.wait();
        });
    }

    #[test]
    fn the_grace_counts_from_the_loss_or_the_beginning_of_the_wait() {
        let (losses, grace) = (Losses::none(2), GRACE.as_nanos() as u64);
        // Looks every so often, and then at `last`.
        let lasts = |wait: &mut LongWait, last: u64| {
            let looks = (wait.looked..last).step_by(100_000_000).chain([last]);
            looks.fold(false, |_, now| losses.outlasts(wait, now))
        };
        losses.note(0, 100);
        let wait = &mut LongWait::new(0);
        assert!(!lasts(wait, 100 + grace) && lasts(wait, 101 + grace));
        let wait = &mut LongWait::new(200);
        assert!(!lasts(wait, 200 + grace));
        losses.note(1, 300);
        assert!(!lasts(wait, 300 + grace) && lasts(wait, 301 + grace));
    }

    #[test]
    fn a_process_that_does_not_run_does_not_use_up_the_grace() {
        let (losses, mut wait) = (Losses::none(1), LongWait::new(0));
        losses.note(0, 100);
        let second = 1_000_000_000;
        // Held up for four of five seconds, of which half of one counts.
        let looks = (1u64..).map(|look| losses.outlasts(&mut wait, look * 5 * second));
        let counted = looks.take_while(|outlasts| !outlasts).count() as u64;
        assert_eq!(counted, GRACE.as_secs() * 2);
    }
}
