// SPDX-License-Identifier: Apache-2.0
//! Commands that run side by side.

use crate::steps::{Failure, announce, cannot_run};
use std::io::{self, Read};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// What no job takes, even on a slow machine that has other things to do. A test that waits for ever would hold up
/// everything.
const LIMIT: Duration = Duration::from_secs(25 * 60);
/// How long the output of a job may go on once that was killed.
const REST: Duration = Duration::from_secs(10);

/// A command with the name that people see.
pub struct Job {
    pub name: String,
    pub command: Command,
}

/// Jobs, and how many of them run at a time. They begin in this order.
pub struct Queue {
    pub jobs: Vec<Job>,
    pub most: usize,
}

/// Runs the jobs of all queues, one queue beside the other. What a job prints is given to `ended` when it has ended,
/// with its status: the jobs' outputs do not mix.
pub fn run(
    queues: impl IntoIterator<Item = Queue>,
    ended: impl FnMut(&Job, &[u8], ExitStatus) + Send,
) -> Result<(), Failure> {
    let ended = Mutex::new(ended);
    let queue = |Queue { jobs, most }| (Mutex::new(jobs.into_iter()), most);
    let queues: Vec<_> = queues.into_iter().map(queue).collect();
    let work = |jobs: &Mutex<std::vec::IntoIter<Job>>| {
        while let Some(mut job) = locked(jobs, Iterator::next) {
            announce(&job.name);
            let (printed, status) = output(&mut job.command, LIMIT)
                .map_err(|error| cannot_run(&job.command, &error))?;
            locked(&ended, |ended| ended(&job, &printed, status));
        }
        Ok(())
    };
    thread::scope(|scope| {
        let mut workers = vec![];
        for (jobs, most) in &queues {
            workers.extend((0..*most).map(|_| scope.spawn(|| work(jobs))));
        }
        workers.into_iter().try_for_each(|worker| worker.join().expect("no job panics"))
    })
}

fn locked<T, R>(what: &Mutex<T>, act: impl FnOnce(&mut T) -> R) -> R {
    act(&mut what.lock().unwrap_or_else(PoisonError::into_inner))
}

/// What a command prints to both streams, in the order in which it does. It is killed when the time is over, with all that
/// it has started.
fn output(command: &mut Command, limit: Duration) -> io::Result<(Vec<u8>, ExitStatus)> {
    let (mut from, to) = io::pipe()?;
    command.stdin(Stdio::null()).stdout(to.try_clone()?).stderr(to);
    let mut child = command.spawn()?;
    // The command keeps the ends that the child has.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    // Others that the child has started may have them too, and nobody waits for those.
    let (pieces, read) = mpsc::channel();
    thread::spawn(move || {
        let mut piece = vec![0; 1 << 16];
        while let Ok(len @ 1..) = from.read(&mut piece) {
            if pieces.send(piece[..len].to_vec()).is_err() {
                break;
            }
        }
    });
    let mut printed = vec![];
    let (mut until, mut was_killed) = (Instant::now() + limit, false);
    loop {
        match read.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(piece) => printed.extend(piece),
            Err(RecvTimeoutError::Timeout) if !was_killed => {
                kill_with_children(child.id());
                (until, was_killed) = (Instant::now() + REST, true);
            }
            Err(_) => break,
        }
    }
    Ok((printed, child.wait()?))
}

/// Kills a process and those that it has started, and these. Jobs of tests have process groups of their own.
fn kill_with_children(pid: u32) {
    let parents = parents();
    let mut all = vec![pid];
    let mut at = 0;
    while at < all.len() {
        let own = parents.iter().filter(|(_, parent)| *parent == all[at]).map(|(pid, _)| *pid);
        let own: Vec<u32> = own.filter(|pid| !all.contains(pid)).collect();
        all.extend(own);
        at += 1;
    }
    let all = all.iter().map(u32::to_string);
    let _ = Command::new("kill").arg("-KILL").args(all).stderr(Stdio::null()).status();
}

/// All processes with their parents.
fn parents() -> Vec<(u32, u32)> {
    let parent = |entry: io::Result<std::fs::DirEntry>| {
        let pid: u32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name before that, in parentheses, may hold anything.
        let parent = stat.rsplit_once(") ")?.1.split(' ').nth(1)?;
        Some((pid, parent.parse().ok()?))
    };
    std::fs::read_dir("/proc").into_iter().flatten().filter_map(parent).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;
    use std::os::unix::process::ExitStatusExt;

    fn shell(script: &str) -> Job {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Job { name: script.into(), command }
    }

    #[test]
    fn outputs_come_whole_with_their_status() {
        let scripts = ["echo a; echo b >&2; echo c", "echo d; exit 3", "kill -9 $$"];
        let mut told = vec![];
        run([Queue { jobs: scripts.map(shell).into(), most: 2 }], |job, text, status| {
            let text = String::from_utf8_lossy(text).into_owned();
            told.push((job.name.clone(), text, status.to_string()));
        })
        .unwrap();
        told.sort();
        let expected = [
            (scripts[0], "a\nb\nc\n", "exit status: 0"),
            (scripts[1], "d\n", "exit status: 3"),
            (scripts[2], "", "signal: 9 (SIGKILL)"),
        ];
        assert_eq!(told, expected.map(|(a, b, c)| (a.to_owned(), b.to_owned(), c.to_owned())));
    }

    #[test]
    fn a_command_that_is_not_there_is_an_error() {
        let job = Job { name: "none".into(), command: Command::new("/does/not/exist") };
        assert!(run([Queue { jobs: vec![job], most: 1 }], |_, _, _| {}).is_err());
    }

    #[test]
    fn a_command_that_does_not_end_is_killed() {
        let begun = Instant::now();
        // Even if others hold its output, that of a session of their own included.
        let mut hangs = shell("setsid sleep 600 & sleep 600 & echo a; exec sleep 600").command;
        let (printed, status) = output(&mut hangs, Duration::from_secs(1)).unwrap();
        assert_eq!((&*printed, status.signal()), (&b"a\n"[..], Some(9)));
        assert!(begun.elapsed() < REST, "its children were not killed");
    }

    #[test]
    fn queues_run_beside_each_other() {
        let (reads, writes) = io::pipe().unwrap();
        let end = |fd: i32| format!("/proc/{}/fd/{fd}", std::process::id());
        let (reads, writes) = (end(reads.as_raw_fd()), end(writes.as_raw_fd()));
        let scripts = [format!("timeout 60 head -n 1 {reads}"), format!("echo a > {writes}")];
        let queues = scripts.map(|script| Queue { jobs: vec![shell(&script)], most: 1 });
        let mut told = vec![];
        run(queues, |_, text, status| told.push((text.to_vec(), status.success()))).unwrap();
        told.sort();
        assert_eq!(told, [(vec![], true), (b"a\n".to_vec(), true)], "(printed, succeeded)");
    }
}
