// SPDX-License-Identifier: Apache-2.0
//! Running a job through `oshrun`, reading what it prints as it prints it.

use crate::interrupt;
use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};
use tombolo_core::threads::without_signals;

/// How long the launcher is given to end a job when told to.
const GRACE: Duration = Duration::from_secs(3);
/// How soon an interruption is noticed.
const LOOK: Duration = Duration::from_millis(50);

/// How a job ended.
#[derive(Debug, PartialEq)]
pub enum End {
    /// With code 0.
    Well,
    /// In another way: what it wrote on standard error, or that it was silent for too long; empty where
    /// people have seen what it wrote.
    Badly(String),
    /// The user wants no more.
    Interrupted,
}

/// The launcher of this installation, or the one in `PATH`.
pub fn oshrun() -> PathBuf {
    let own = std::env::current_exe().ok();
    let beside = own.and_then(|own| own.parent().map(|folder| folder.join("oshrun")));
    beside.filter(|path| path.is_file()).unwrap_or_else(|| Path::new("oshrun").to_owned())
}

/// Runs a command to its end, with all its processes. `line` gets the lines of its output. A job
/// that prints nothing for as long as `silence` is ended.
pub fn run(mut command: Command, silence: Duration, line: impl FnMut(&str)) -> End {
    command.stderr(Stdio::piped());
    attend(command, Some(silence), line)
}

/// Runs a command that a person watches: what it says on standard error is seen at once, and it may
/// take its time. `line` gets the lines of its output.
pub fn show(mut command: Command, line: impl FnMut(&str)) -> End {
    command.stderr(Stdio::inherit());
    attend(command, None, line)
}

fn attend(mut command: Command, silence: Option<Duration>, mut line: impl FnMut(&str)) -> End {
    let program = command.get_program().to_string_lossy().into_owned();
    // Ctrl-C is for this process, which then ends the job.
    command.process_group(0);
    end_with_this_process(&mut command);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => return End::Badly(format!("{program}: {error}")),
    };
    let (send, lines) = mpsc::channel();
    let stdout = child.stdout.take().expect("piped");
    let reads = start(move || {
        let lines = BufReader::new(stdout).split(b'\n').map_while(Result::ok);
        // Nobody takes them once the job was given up.
        lines.map(|line| send.send(line)).take_while(Result::is_ok).count();
    });
    let (whole, said) = mpsc::channel();
    let stderr = child.stderr.take();
    let is_seen = stderr.is_none();
    let hears = stderr.map_or(Ok(()), |mut stderr| {
        start(move || {
            let mut text = Vec::new();
            let _ = stderr.read_to_end(&mut text);
            let _ = whole.send(String::from_utf8_lossy(&text).into_owned());
        })
    });
    if let Err(why) = reads.and(hears) {
        end(&mut child);
        return End::Badly(why);
    }
    let mut last = Instant::now();
    loop {
        if interrupt::wanted() {
            end(&mut child);
            return End::Interrupted;
        }
        match lines.recv_timeout(LOOK) {
            Ok(text) => {
                line(&String::from_utf8_lossy(&text));
                last = Instant::now();
            }
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                if let Some(silence) = silence.filter(|silence| last.elapsed() > *silence) {
                    end(&mut child);
                    return End::Badly(format!("nothing came for {} s", silence.as_secs()));
                }
            }
        }
    }
    let ended = child.wait();
    // What it said comes at once; a process that it left would hold the other end.
    let said = said.recv_timeout(GRACE).unwrap_or_default();
    match ended {
        Ok(status) if status.success() => End::Well,
        Ok(_) if interrupt::wanted() => End::Interrupted,
        Ok(_) if is_seen => End::Badly(String::new()),
        Ok(status) if said.trim().is_empty() => End::Badly(format!("{program}: {status}")),
        Ok(_) => End::Badly(said),
        Err(error) => End::Badly(format!("{program}: {error}")),
    }
}

fn start(work: impl FnOnce() + Send + 'static) -> Result<(), String> {
    let started = without_signals(|| thread::Builder::new().spawn(work));
    started.map(drop).map_err(|why| format!("cannot start a thread: {why}"))
}

/// Has the kernel ask the launcher to end the job when this process is killed and cannot do so itself. To be
/// called, as the start of the command, by the thread that waits for it: the kernel goes by its end.
fn end_with_this_process(command: &mut Command) {
    let parent = std::process::id();
    let setup = move || {
        nix::sys::prctl::set_pdeathsig(Signal::SIGTERM)?;
        // Without this check a parent that died just before would go unnoticed.
        match std::os::unix::process::parent_id() == parent {
            true => Ok(()),
            false => Err(Errno::ESRCH.into()),
        }
    };
    // SAFETY: `setup` makes system calls only, which is all that may be done after a fork.
    unsafe { command.pre_exec(setup) };
}

/// Asks the launcher to end the job, and ends it otherwise if it does not.
fn end(child: &mut Child) {
    let group = Pid::from_raw(child.id() as i32);
    let _ = killpg(group, Signal::SIGTERM);
    let begun = Instant::now();
    while begun.elapsed() < GRACE {
        if let Ok(Some(_)) = child.try_wait() {
            return;
        }
        thread::sleep(Duration::from_millis(10));
    }
    let _ = killpg(group, Signal::SIGKILL);
    let _ = child.wait();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(text: &str, silence: Duration) -> (End, Vec<String>) {
        let mut lines = Vec::new();
        let mut command = Command::new("sh");
        command.args(["-c", text]);
        let end = run(command, silence, |line| lines.push(line.to_owned()));
        (end, lines)
    }

    #[test]
    fn output_is_read_and_failures_keep_their_words() {
        let long = Duration::from_secs(60);
        assert_eq!(shell("echo a; echo b", long), (End::Well, vec!["a".into(), "b".into()]));
        let (end, lines) = shell("echo a; echo why >&2; exit 3", long);
        assert_eq!((end, lines.len()), (End::Badly("why\n".into()), 1));
        let (end, _) = shell("exec sleep 1000", Duration::from_millis(10));
        assert!(matches!(end, End::Badly(why) if why.contains("nothing came")));
    }
}
