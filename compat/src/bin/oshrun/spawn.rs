// SPDX-License-Identifier: Apache-2.0
//! Starting one PE.

use crate::options::Program;
use crate::output::Outlets;
use crate::thread;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use nix::sys::socket::{setsockopt, sockopt};
use nix::unistd::Pid;
use std::collections::BTreeMap;
use std::ffi::{CString, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{ChildStdin, Command, Stdio};
use tombolo_core::board::Board;
use tombolo_core::bootstrap::number_of_socket;

/// Variables of other launchers, which would contradict what the PEs are told here.
const FOREIGN: [&str; 4] = ["PMI_ID", "PMI_PORT", "PMIX_NAMESPACE", "PMIX_RANK"];

/// What all PEs of a job have in common.
pub struct Common<'a> {
    pub size: usize,
    /// All PEs are on this machine.
    pub one_machine: bool,
    pub board: &'a Board,
    /// Signal mask that `oshrun` was started with.
    pub mask: SigSet,
    /// Process group of the job.
    pub group: Pid,
    /// Limit on open files that `oshrun` was started with.
    pub files: libc::rlimit,
}

/// What is particular to one PE.
pub struct PeStart {
    pub pe: usize,
    /// Its number among the PEs of its host, and how many these are: of the emulated host, if there is one.
    pub local: (usize, usize),
    /// Index of its emulated host.
    pub host: Option<usize>,
    /// Links of that host to the left and to the right.
    pub links: Option<[RawFd; 2]>,
    /// The processors of its core, if it is bound.
    pub core: Option<CpuSet>,
    /// It reads a pipe as its standard input.
    pub piped_input: bool,
    /// Memory in which it counts what it does.
    pub profile: Option<RawFd>,
}

/// A PE that was started.
pub struct Spawned {
    pub pid: Pid,
    /// Our end of its PMI connection.
    pub connection: UnixStream,
    /// Writes to its standard input, if that is a pipe.
    pub input: Option<ChildStdin>,
}

/// A program that could not be started.
#[derive(Debug)]
pub struct Failure {
    /// 127 if there is no such program, 126 if there is but it cannot be executed, as in shells.
    pub code: u8,
    pub text: String,
}

/// Starts PE `place.pe`.
pub fn spawn(
    program: &Program,
    place: &PeStart,
    common: &Common<'_>,
    outlets: &mut Outlets,
) -> Result<Spawned, Failure> {
    let (ours, theirs) = UnixStream::pair().map_err(|e| internal("connection", &e))?;
    ours.set_nonblocking(true).map_err(|e| internal("connection", &e))?;
    // A script may have its program speak.
    setsockopt(&ours, sockopt::PassCred, &true).map_err(|e| internal("connection", &e.into()))?;
    let mut command = Command::new(&program.command);
    command.args(&program.arguments);
    command.stdin(match place.pe {
        0 if place.piped_input => Stdio::piped(),
        0 => Stdio::inherit(),
        _ => Stdio::null(),
    });
    outlets.attach(place.pe, &mut command).map_err(|e| internal("output", &e))?;
    for name in FOREIGN {
        command.env_remove(name);
    }
    let connection = number_of_socket(theirs.as_raw_fd()).unwrap_or_default();
    for (name, value) in variables(place, common, theirs.as_raw_fd(), connection) {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.envs(program.environment.iter().map(|(name, value)| (name, value)));
    prepare(&mut command, place, common, theirs.as_raw_fd());
    if is_binary(Path::new(&program.command)) {
        leave_to_kernel(&mut command);
    }
    let mut child = command.spawn().map_err(|error| explain(program, error))?;
    let (pid, input) = (Pid::from_raw(child.id() as i32), child.stdin.take());
    Ok(Spawned { pid, connection: ours, input })
}

/// What a PE learns from its environment; `None` for what it must not inherit.
fn variables(
    place: &PeStart,
    common: &Common<'_>,
    pmi: RawFd,
    connection: u64,
) -> [(&'static str, Option<String>); 13] {
    [
        ("PMI_FD", Some(pmi.to_string())),
        ("PMI_RANK", Some(place.pe.to_string())),
        ("PMI_SIZE", Some(common.size.to_string())),
        ("PMI_SPAWNED", Some("0".into())),
        // By these names scripts know them that choose a device for each process under MPICH's launcher.
        ("MPI_LOCALRANKID", Some(place.local.0.to_string())),
        ("MPI_LOCALNRANKS", Some(place.local.1.to_string())),
        ("TOMBOLO_CONNECTION", Some(connection.to_string())),
        ("TOMBOLO_BOARD_FD", Some(common.board.fd().as_raw_fd().to_string())),
        ("TOMBOLO_HOST", place.host.map(|host| host.to_string())),
        ("TOMBOLO_NTB_FD", place.links.map(|[left, right]| format!("{left},{right}"))),
        ("TOMBOLO_PROFILE_FD", place.profile.map(|fd| fd.to_string())),
        ("TOMBOLO_BOUND", place.core.map(|_| "on".into())),
        ("TOMBOLO_ONE_MACHINE", common.one_machine.then(|| "on".into())),
    ]
}

/// Arranges what the new process does between fork and exec.
fn prepare(command: &mut Command, place: &PeStart, common: &Common<'_>, pmi: RawFd) {
    let parent = std::process::id();
    let board = common.board.fd().as_raw_fd();
    let [left, right] = place.links.unwrap_or([board; 2]);
    let kept = [pmi, board, left, right, place.profile.unwrap_or(board)];
    let (mask, group, files, core) = (common.mask, common.group, common.files, place.core);
    let setup = move || {
        nix::unistd::setpgid(Pid::from_raw(0), group)?;
        nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
        // Without this check a parent that died just before would go unnoticed.
        if std::os::unix::process::parent_id() != parent {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        for fd in kept {
            // SAFETY: the descriptors are open in the parent for as long as it spawns.
            if unsafe { libc::fcntl(fd, libc::F_SETFD, 0) } < 0 {
                return Err(io::Error::last_os_error());
            }
        }
        if let Some(core) = core {
            sched_setaffinity(Pid::from_raw(0), &core)?;
        }
        // SAFETY: plain system calls on values owned by this closure. Ctrl-\ asks `oshrun` for a
        // report; the terminal sends it to the PEs as well, which must outlive it.
        unsafe {
            libc::setrlimit(libc::RLIMIT_NOFILE, &files);
            libc::signal(libc::SIGQUIT, libc::SIG_IGN);
        }
        nix::sys::signal::sigprocmask(SigmaskHow::SIG_SETMASK, Some(&mask), None)?;
        Ok(())
    };
    // SAFETY: `setup` makes system calls only, which is all that may be done after a fork.
    unsafe { command.pre_exec(setup) };
}

/// Whether a file that is named with its directory is a program in machine code.
fn is_binary(path: &Path) -> bool {
    const START: &[u8] = b"\x7fELF";
    let mut start = [0; START.len()];
    let named = path.as_os_str().as_encoded_bytes().contains(&b'/');
    let read = |mut file: File| file.read_exact(&mut start);
    named && File::open(path).and_then(read).is_ok() && start == START
}

/// Has `command` fail where the kernel refuses its program. Rust runs programs by `execvp`, which has a shell
/// run what the kernel refuses: the shell would take machine code for commands.
fn leave_to_kernel(command: &mut Command) {
    let mut variables: BTreeMap<OsString, OsString> = std::env::vars_os().collect();
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => variables.insert(name.into(), value.into()),
            None => variables.remove(name),
        };
    }
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words: Result<Vec<_>, _> = words.map(|word| CString::new(word.as_bytes())).collect();
    let setting = |(name, value): (OsString, OsString)| {
        CString::new([name.as_bytes(), b"=", value.as_bytes()].concat())
    };
    let variables: Result<Vec<_>, _> = variables.into_iter().map(setting).collect();
    // Text with a zero byte in it is refused by `spawn`.
    let (Ok(words), Ok(variables)) = (words, variables) else { return };
    let run = move || match nix::unistd::execve(&words[0], &words, &variables) {
        Ok(never) => match never {},
        Err(error) => Err(error.into()),
    };
    // SAFETY: PEs are started while there is one thread, so that memory may be allocated after the fork.
    unsafe { command.pre_exec(run) };
}

/// Raises the limit on open files to what is needed, and by what is `useful` besides, as far as that goes. Returns the
/// limit as it was, and whether there is room for all of it.
pub fn allow_files(needed: u64, useful: u64) -> Result<(libc::rlimit, bool), Failure> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a valid place for the result.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) } != 0 {
        return Err(internal("limits", &io::Error::last_os_error()));
    }
    let all = needed + useful;
    if all > limit.rlim_cur {
        let raised = libc::rlimit { rlim_cur: all.min(limit.rlim_max), ..limit };
        // SAFETY: `raised` is a valid limit not above the hard one.
        if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raised) } != 0 {
            return Err(internal("limits", &io::Error::last_os_error()));
        }
    }
    if needed > limit.rlim_max {
        let text = format!(
            "this many PEs need {needed} open files, the limit is {} (see ulimit -n)",
            limit.rlim_max
        );
        return Err(Failure { code: 1, text });
    }
    Ok((limit, all <= limit.rlim_max))
}

fn internal(what: &str, error: &io::Error) -> Failure {
    Failure { code: 1, text: format!("cannot set up a PE ({what}): {}", thread::reason(error)) }
}

/// Says why a program did not start, in the terms of the person who asked for it.
fn explain(program: &Program, error: io::Error) -> Failure {
    let name = program.command.display();
    let path = Path::new(&program.command);
    let with_directory = program.command.as_encoded_bytes().contains(&b'/');
    let (code, why) = match error.kind() {
        // What all PEs but the first one read.
        io::ErrorKind::NotFound if !Path::new("/dev/null").exists() => {
            (1, "there is no /dev/null".into())
        }
        io::ErrorKind::NotFound if with_directory && path.exists() => {
            (126, "its interpreter (#! line or dynamic loader) does not exist".into())
        }
        io::ErrorKind::NotFound if with_directory => (127, "no such file".into()),
        io::ErrorKind::NotFound if path.is_file() => {
            (127, format!("not found in PATH; to run the one in this directory write ./{name}"))
        }
        io::ErrorKind::NotFound => (127, "not found in PATH".into()),
        io::ErrorKind::PermissionDenied if with_directory && path.is_dir() => {
            (126, "it is a directory".into())
        }
        io::ErrorKind::PermissionDenied => (126, "no permission to execute it".into()),
        _ if error.raw_os_error() == Some(libc::ENOEXEC) => {
            (126, "it is a program for another kind of machine, or a part of one".into())
        }
        // The fork failed, not the program.
        io::ErrorKind::WouldBlock => (1, thread::reason(&error)),
        _ => (126, error.to_string()),
    };
    Failure { code, text: format!("cannot run '{name}': {why}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tombolo::variables as known;
    use tombolo_core::config::Audience;

    #[test]
    fn every_launcher_variable_is_set_or_removed() {
        let board = Board::create(1).unwrap();
        let files = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        let (mask, group) = (SigSet::empty(), Pid::this());
        let common = Common { size: 1, one_machine: true, board: &board, mask, group, files };
        let links = Some([7, 8]);
        let place = PeStart {
            pe: 0,
            local: (0, 1),
            host: Some(0),
            links,
            core: None,
            piped_input: false,
            profile: None,
        };
        let set = variables(&place, &common, 3, 4);
        for variable in known::all().filter(|v| v.audience == Audience::Launcher) {
            assert!(set.iter().any(|(name, _)| *name == variable.name), "{}", variable.name);
        }
    }
}
