// SPDX-License-Identifier: Apache-2.0
//! Commands that run side by side.

use crate::steps::{Failure, announce, cannot_run};
use std::io::{self, Read};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// What no job takes, even on a slow machine that has other things to do. A test that waits for ever would hold up
/// everything.
const LIMIT: Duration = Duration::from_secs(40 * 60);

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

/// What a command prints to both streams, in the order in which it does. It is killed when the time is over.
fn output(command: &mut Command, limit: Duration) -> io::Result<(Vec<u8>, ExitStatus)> {
    let (mut from, to) = io::pipe()?;
    command.stdin(Stdio::null()).stdout(to.try_clone()?).stderr(to);
    let mut child = command.spawn()?;
    // The command keeps the ends that the child has.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut printed = vec![];
    let pid = child.id().to_string();
    let (ended, ends) = mpsc::channel::<()>();
    let read = thread::scope(|scope| {
        scope.spawn(move || {
            if ends.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                let _ = Command::new("kill").args(["-KILL", &pid]).status();
            }
        });
        let read = from.read_to_end(&mut printed);
        drop(ended);
        read
    });
    read?;
    Ok((printed, child.wait()?))
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
        let mut hangs = shell("echo a; exec sleep 600").command;
        let (printed, status) = output(&mut hangs, Duration::from_secs(1)).unwrap();
        assert_eq!((&*printed, status.signal()), (&b"a\n"[..], Some(9)));
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
