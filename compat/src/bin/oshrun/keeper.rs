// SPDX-License-Identifier: Apache-2.0
//! Two processes that keep watch over each other, so that no job outlives `oshrun`.
//!
//! ```text
//! keeper (the process that was started) --- launcher --- PEs and what they start
//! ```
//!
//! The kernel gives processes that lose their parent to the nearest ancestor that asked for them.
//! Both ask. So whichever of the two is killed, the other finds everything that is left of the job
//! and kills it: PEs, programs started by scripts, processes in sessions of their own. If both are
//! killed before either can act, the kernel still kills the PEs, which asked for that, but not what
//! they have started.
//!
//! - Who sends signals to `oshrun` sends them to the keeper, which passes them on.
//! - The launcher has a process group of its own: what the terminal, or somebody else, sends to the
//!   group of the job reaches the keeper and the PEs, and the launcher once, from the keeper.

use crate::job::{Ending, LEFT_BEHIND};
use crate::report;
use crate::signals::{self, Blocked};
use crate::thread;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::{ForkResult, Pid, fork, getpgrp, setpgid};
use std::io::{self, PipeReader, PipeWriter};
use std::time::Duration;

/// What this process is.
pub enum Role {
    /// Keeps watch until the job has ended in this way.
    Keeper(Ending),
    /// Runs the job.
    Launcher(Launcher),
}

/// What the launcher has from the keeper.
pub struct Launcher {
    /// At its end when the keeper is gone.
    pub keeper: PipeReader,
    /// Process group of the job.
    pub group: Pid,
    /// Signal mask that `oshrun` was started with.
    pub mask_before: SigSet,
}

/// Makes two processes of one and returns in the launcher; in the keeper when the job has ended.
///
/// To be called while there is one thread.
pub fn split() -> io::Result<Role> {
    named("prctl", signals::adopt_orphans())?;
    let Blocked { wanted, before } = signals::block()?;
    let (reader, writer) = named("a pipe", io::pipe())?;
    let group = getpgrp();
    // SAFETY: there is one thread.
    match unsafe { fork() }? {
        ForkResult::Parent { child } => {
            drop(reader);
            // The child does the same: whichever is first, no signal to the group finds both in it.
            let _ = setpgid(child, child);
            Ok(Role::Keeper(keep(child, &wanted, &writer)?))
        }
        ForkResult::Child => {
            drop(writer);
            let moved = setpgid(Pid::from_raw(0), Pid::from_raw(0));
            named("setpgid", moved.map_err(io::Error::from))?;
            // Whoever kills all processes called oshrun shall not meet both.
            nix::sys::prctl::set_name(c"shmem-job")?;
            Ok(Role::Launcher(Launcher { keeper: reader, group, mask_before: before }))
        }
    }
}

/// What has been done, or an error that says what could not be.
fn named<T>(what: &str, done: io::Result<T>) -> io::Result<T> {
    done.map_err(|error| io::Error::other(format!("{what}: {}", thread::reason(&error))))
}

/// Passes signals on until the launcher has ended, and leaves nothing of the job behind. The
/// launcher notices the end of this process by `_alive`.
fn keep(launcher: Pid, wanted: &SigSet, _alive: &PipeWriter) -> io::Result<Ending> {
    let signals = SignalFd::with_flags(wanted, SfdFlags::SFD_CLOEXEC);
    let signals = named("signals", signals.map_err(io::Error::from))?;
    let ended = loop {
        let Some(info) = signals.read_signal()? else { continue };
        match Signal::try_from(info.ssi_signo as i32) {
            Ok(Signal::SIGCHLD) => {
                if let Some(ending) = look_after(launcher) {
                    break ending;
                }
            }
            Ok(signal) => signals::pass_on(launcher, signal, info.ssi_code == libc::SI_KERNEL),
            Err(_) => {}
        }
    };
    signals::sweep(Duration::ZERO);
    if let Some(why) = signals::cannot_find_children(LEFT_BEHIND) {
        report::line(format_args!(
            "the job has left processes behind, which cannot be found: {why}"
        ));
    }
    Ok(ended)
}

/// Takes what the children tell of themselves; says how the launcher has ended, if it has.
fn look_after(launcher: Pid) -> Option<Ending> {
    use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
    let flags = WaitPidFlag::WNOHANG | WaitPidFlag::WUNTRACED;
    match waitpid(launcher, Some(flags)).ok()? {
        WaitStatus::Exited(_, code) => Some(Ending::Code(code as u8)),
        WaitStatus::Signaled(_, signal, _) => {
            // By the others it ends itself, to tell that the job was interrupted.
            if !signals::is_interrupt(signal) && signal != Signal::SIGPIPE {
                let what = signals::describe(signal as i32);
                report::line(format_args!(
                    "the process that runs the job (pid {launcher}) was killed by {what}; \
                     ending the job"
                ));
            }
            Some(Ending::Signal(signal))
        }
        WaitStatus::Stopped(..) => {
            stop();
            None
        }
        _ => None,
    }
}

/// Stops this process, whose launcher and PEs are stopped, until somebody continues the job.
///
/// When a shell ends, the kernel hangs up on the process groups that are stopped and that nobody is left to
/// continue. It takes the launcher, which has a group of its own, for somebody who could continue the PEs, so
/// that this process has to find out.
fn stop() {
    let parent = Pid::parent();
    let group_of = |pid| nix::unistd::getpgid(Some(pid)).ok();
    let session_of = |pid| nix::unistd::getsid(pid).ok();
    let own = getpgrp();
    // The same that makes a shell one for the kernel.
    let could_continue = group_of(parent).is_some_and(|group| group != own)
        && session_of(Some(parent)) == session_of(None);
    if could_continue {
        // Wakes this process when its parent ends.
        let _ = nix::sys::prctl::set_pdeathsig(Signal::SIGCONT);
    }
    if !could_continue || Pid::parent() == parent {
        signals::stop();
    }
    if could_continue {
        let _ = nix::sys::prctl::set_pdeathsig(None);
        if Pid::parent() != parent {
            for signal in [Signal::SIGHUP, Signal::SIGCONT] {
                let _ = nix::sys::signal::killpg(own, signal);
            }
        }
    }
}
