// SPDX-License-Identifier: Apache-2.0
//! Signals as a stream of events, and the processes that a job leaves behind.

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, SigmaskHow, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::Pid;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitCode, ExitStatus};
use std::time::{Duration, Instant};
use tokio::io::unix::AsyncFd;
use tombolo_core::process::{Stat, is_ignored, is_of_no_process};

/// Signals that are passed on to the PEs and do nothing else.
const PASSED_ON: [Signal; 3] = [Signal::SIGUSR1, Signal::SIGUSR2, Signal::SIGCONT];

/// Signals that ask for the end of the job.
const INTERRUPTS: [Signal; 3] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP];

/// A signal that arrived at `oshrun`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    pub signal: Signal,
    /// Typed at the terminal, whose driver has sent it to the PEs as well.
    pub from_terminal: bool,
}

/// All signals `oshrun` acts upon. They are blocked and read from a descriptor, which also tells
/// who sent them.
pub struct Signals {
    fd: AsyncFd<SignalFd>,
}

/// Signals that are blocked from now on.
pub struct Blocked {
    /// Those acted upon: to be read.
    pub wanted: SigSet,
    /// The mask as it was, to give back to the PEs.
    pub before: SigSet,
}

/// Has the signals acted upon wait to be read.
pub fn block() -> io::Result<Blocked> {
    // A parent may have had its children's ends ignored, which would discard exit codes.
    let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
    // SAFETY: the default action runs no code of ours.
    unsafe { nix::sys::signal::sigaction(Signal::SIGCHLD, &default) }?;
    let wanted = wanted();
    let mut blocked = wanted;
    // So that a terminal lets the launcher write, which is not in its foreground.
    blocked.add(Signal::SIGTTOU);
    let before = blocked.thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
    Ok(Blocked { wanted, before })
}

fn wanted() -> SigSet {
    let mut wanted = SigSet::empty();
    wanted.extend([Signal::SIGCHLD, Signal::SIGQUIT, Signal::SIGTSTP]);
    wanted.extend(PASSED_ON);
    // What was ignored when we started (nohup, a script's background job) stays ignored.
    wanted.extend(INTERRUPTS.into_iter().filter(|signal| !is_ignored(*signal as i32)));
    wanted
}

/// Whether `signal` asks for the end of the job.
pub fn is_interrupt(signal: Signal) -> bool {
    INTERRUPTS.contains(&signal)
}

/// Whether a blocked signal arrives at this process now or in a moment.
pub fn comes_soon(signal: Signal) -> bool {
    const MOMENT: Duration = Duration::from_millis(50);
    let begun = Instant::now();
    loop {
        if is_pending(signal) {
            return true;
        }
        if begun.elapsed() >= MOMENT {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Whether a blocked signal has arrived at this process and is yet to be read.
fn is_pending(signal: Signal) -> bool {
    let mut pending = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: writes a set of signals to the place given, or fails.
    let known = unsafe { libc::sigpending(pending.as_mut_ptr()) } == 0;
    // SAFETY: written by the call above if it succeeded.
    known && unsafe { libc::sigismember(pending.as_ptr(), signal as i32) } == 1
}

/// Stops this process until somebody continues it. Not where somebody has done so already: a stop has the kernel
/// forget a SIGCONT that is yet to be read, and nobody would send another.
pub fn stop() {
    if !is_pending(Signal::SIGCONT) {
        let _ = nix::sys::signal::raise(Signal::SIGSTOP);
    }
}

/// Passes a signal on to the launcher.
pub fn pass_on(launcher: Pid, signal: Signal, from_kernel: bool) {
    // A terminal that hangs up tells the leader of its session alone.
    let from_terminal = from_kernel && signal != Signal::SIGHUP;
    let value = libc::sigval { sival_ptr: usize::from(from_terminal) as *mut _ };
    // SAFETY: a system call on plain values; fails if the launcher has ended.
    unsafe { libc::sigqueue(launcher.as_raw(), signal as i32, value) };
}

impl Signals {
    /// The signals that [`block`] has blocked.
    pub fn new() -> io::Result<Signals> {
        let fd = SignalFd::with_flags(&wanted(), SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
        // SAFETY: the AsyncFd owns the descriptor, which stays open and the same until it is dropped.
        let fd = unsafe { AsyncFd::register(fd) }?;
        Ok(Signals { fd })
    }

    /// The next signal.
    pub async fn next(&self) -> io::Result<Event> {
        loop {
            let mut ready = self.fd.readable().await?;
            let Some(info) = self.fd.get_ref().read_signal()? else {
                ready.clear_ready();
                continue;
            };
            if let Ok(signal) = Signal::try_from(info.ssi_signo as i32) {
                let from_terminal = info.ssi_code == libc::SI_QUEUE && info.ssi_ptr == 1;
                return Ok(Event { signal, from_terminal });
            }
        }
    }
}

/// Becomes readable when a process ends, whosever child it is.
pub fn watch(pid: Pid) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: makes a descriptor, which nobody else has, or fails.
    let fd = unsafe {
        match libc::syscall(libc::SYS_pidfd_open, pid.as_raw(), 0) {
            fd @ 0.. => OwnedFd::from_raw_fd(fd as i32),
            _ => return Err(io::Error::last_os_error()),
        }
    };
    // SAFETY: the AsyncFd owns the descriptor, which stays open and the same until it is dropped.
    Ok(unsafe { AsyncFd::register(fd) }?)
}

/// Sends a signal to a process, which may have ended already.
pub fn send(pid: Pid, signal: Signal) {
    // The only errors are that it is gone and that it has become another user's (setuid).
    let _ = nix::sys::signal::kill(pid, signal);
}

/// "SIGSEGV (Segmentation fault)".
pub fn describe(signal: i32) -> String {
    let name = Signal::try_from(signal)
        .map_or_else(|_| format!("signal {signal}"), |signal| signal.as_str().to_owned());
    // SAFETY: returns a string that is valid until the next call in this thread, or null.
    let text = unsafe { libc::strsignal(signal).as_ref().map(|s| std::ffi::CStr::from_ptr(s)) };
    match text {
        Some(text) => format!("{name} ({})", text.to_string_lossy()),
        None => name,
    }
}

/// Ends this process by `signal`, so that a shell sees a job that was interrupted.
pub fn end_by(signal: Signal) -> ExitCode {
    let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
    let mut set = SigSet::empty();
    set.add(signal);
    // SAFETY: the default action runs no code of ours.
    let restored = unsafe { nix::sys::signal::sigaction(signal, &default) };
    if restored.is_ok() && set.thread_unblock().is_ok() {
        let _ = nix::sys::signal::raise(signal);
    }
    // Reached as process 1 of a container, which such signals do not end.
    ExitCode::from(128 + signal as i32 as u8)
}

/// A child that has ended.
pub struct Ended {
    pub pid: Pid,
    pub status: ExitStatus,
}

/// Takes the status of every child that has ended so far.
pub fn reap() -> Vec<Ended> {
    let mut ended = vec![];
    let mut status = 0;
    // The system call itself: nix cannot express an end by a real-time signal.
    // SAFETY: `status` is a valid place for the result.
    while let pid @ 1.. = unsafe { libc::waitpid(-1, &mut status, libc::WNOHANG) } {
        ended.push(Ended { pid: Pid::from_raw(pid), status: ExitStatus::from_raw(status) });
    }
    ended
}

/// Whether a terminal that no background job may write to or read from has stopped a child.
pub fn is_stopped_by_terminal() -> bool {
    // SAFETY: an all-zero `siginfo_t` is a valid value, and the call only fills it.
    let stopped = || unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        let found = libc::waitid(libc::P_ALL, 0, &mut info, libc::WSTOPPED | libc::WNOHANG);
        (found == 0 && info.si_pid() != 0).then(|| info.si_status())
    };
    // Takes note of all, so that none counts again after the job was continued.
    std::iter::from_fn(stopped)
        .fold(false, |any, signal| any | matches!(signal, libc::SIGTTOU | libc::SIGTTIN))
}

/// Makes processes that lose their parent children of this one, so that they can be found.
pub fn adopt_orphans() -> io::Result<()> {
    Ok(nix::sys::prctl::set_child_subreaper(true)?)
}

/// Ends all processes that the job left behind: those that do not end within `grace` are killed.
/// Returns those that withstood even that.
pub fn sweep(grace: Duration) -> Vec<Pid> {
    /// So often they are killed, in two seconds or more. By the clock all of that time could pass while
    /// this process is stopped.
    const ATTEMPTS: usize = 4000;
    let begin = Instant::now();
    let mut attempts = 0;
    loop {
        reap();
        let left = children();
        if left.is_empty() || attempts == ATTEMPTS {
            return left;
        }
        if begin.elapsed() >= grace {
            attempts += 1;
            left.iter().for_each(|pid| send(*pid, Signal::SIGKILL));
        }
        std::thread::sleep(Duration::from_micros(500));
    }
}

/// Kills a process and all that it has started, but for those that have lost their parent.
pub fn kill_tree(root: Pid) {
    let mut pids = vec![root];
    let mut seen = 0;
    while let Some(pid) = pids.get(seen).copied() {
        // It starts no more from here on.
        send(pid, Signal::SIGSTOP);
        pids.extend(children_of(pid));
        seen += 1;
    }
    pids.into_iter().for_each(|pid| send(pid, Signal::SIGKILL));
}

/// Whether a process is a child of this one, or a child of such a one, and so on.
pub fn is_below(pid: Pid) -> bool {
    let above = std::iter::successors(parent(pid), |pid| parent(*pid));
    above.into_iter().any(|pid| pid == Pid::this())
}

/// Whether the kernel is ending a process: none of its threads runs the program any more, though what it
/// has open may not be closed yet.
pub fn is_ending(pid: Pid) -> bool {
    /// `PF_EXITING` of the kernel.
    const EXITING: u32 = 4;
    let threads = match std::fs::read_dir(format!("/proc/{pid}/task")) {
        Ok(threads) => threads,
        Err(error) => return is_of_no_process(&error),
    };
    threads.flatten().all(|thread| match std::fs::read_to_string(thread.path().join("stat")) {
        Ok(text) => Stat::parse(&text).is_some_and(|stat| stat.flags & EXITING != 0),
        Err(error) => is_of_no_process(&error),
    })
}

/// Whether `/proc` is there and numbers processes as they are numbered here: that of a container may be the one of
/// the system around it, in which the numbers of this process and its children are those of others.
fn has_proc() -> bool {
    let own = Pid::this().to_string();
    std::fs::read_link("/proc/self").is_ok_and(|number| number.as_os_str() == own.as_str())
}

/// Why children that have not ended within `grace` cannot be found, if that is so.
pub fn cannot_find_children(grace: Duration) -> Option<&'static str> {
    let begin = Instant::now();
    while !has_proc() && has_children() {
        if begin.elapsed() >= grace {
            return Some("/proc is not mounted, or is that of another process namespace");
        }
        reap();
        std::thread::sleep(Duration::from_millis(1));
    }
    None
}

fn has_children() -> bool {
    let mut info = std::mem::MaybeUninit::<libc::siginfo_t>::zeroed();
    let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: an all-zero `siginfo_t` is a valid value, and the call only fills it; fails where there is no child.
    unsafe { libc::waitid(libc::P_ALL, 0, info.as_mut_ptr(), flags) == 0 }
}

/// Children of this process, those adopted included.
fn children() -> Vec<Pid> {
    children_of(Pid::this())
}

/// Children of all threads of a process.
fn children_of(pid: Pid) -> Vec<Pid> {
    if !has_proc() {
        return vec![];
    }
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let listed: std::io::Result<Vec<String>> =
        threads.map(|thread| std::fs::read_to_string(thread.path().join("children"))).collect();
    if let Ok(listed) = &listed
        && let Some(pids) =
            listed.iter().flat_map(|l| l.split_whitespace()).map(parse_pid).collect()
    {
        return pids;
    }
    // Kernels without that file: look at every process.
    let Ok(processes) = std::fs::read_dir("/proc") else { return vec![] };
    let names = processes.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    names.filter_map(|name| parse_pid(&name)).filter(|child| parent(*child) == Some(pid)).collect()
}

fn parse_pid(text: &str) -> Option<Pid> {
    text.parse().ok().map(Pid::from_raw)
}

fn parent(pid: Pid) -> Option<Pid> {
    if !has_proc() {
        return None;
    }
    Some(Pid::from_raw(Stat::of(pid.as_raw()).ok()?.parent))
}

/// Whether `event` is only to be passed on.
pub fn is_passed_on(signal: Signal) -> bool {
    PASSED_ON.contains(&signal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_are_named_with_their_meaning() {
        assert_eq!(describe(libc::SIGSEGV), "SIGSEGV (Segmentation fault)");
        assert!(describe(libc::SIGRTMIN() + 1).starts_with("signal "));
    }

    #[test]
    fn the_parent_of_a_process_is_read() {
        let own = Pid::from_raw(std::process::id() as i32);
        assert_eq!(parent(own), Some(Pid::parent()));
        let child = std::process::Command::new("true").spawn().unwrap();
        assert!(is_below(Pid::from_raw(child.id() as i32)) && !is_below(own));
        child.wait_with_output().unwrap();
    }

    #[test]
    fn a_process_that_ends_is_told_from_one_that_runs() {
        assert!(!is_ending(Pid::this()));
        let child = std::process::Command::new("true").spawn().unwrap();
        let (pid, begun) = (Pid::from_raw(child.id() as i32), std::time::Instant::now());
        while !is_ending(pid) {
            assert!(begun.elapsed() < Duration::from_secs(20), "it has ended, but for its code");
            std::thread::sleep(Duration::from_millis(1));
        }
        child.wait_with_output().unwrap();
    }
}
