// SPDX-License-Identifier: Apache-2.0
//! Commands that run side by side.

use crate::steps::{Failure, announce, cannot_run};
use std::io::{self, Read};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;

/// A command with the name that people see.
pub struct Job {
    pub name: String,
    pub command: Command,
}

/// Runs jobs, `most` of them at a time, and begins them in this order. What a job prints is given to `ended` when it
/// has ended, with its status: the jobs' outputs do not mix.
pub fn run(
    jobs: Vec<Job>,
    most: usize,
    ended: impl FnMut(&Job, &[u8], ExitStatus) + Send,
) -> Result<(), Failure> {
    let (jobs, ended) = (Mutex::new(jobs.into_iter()), Mutex::new(ended));
    let work = || {
        while let Some(mut job) = locked(&jobs, Iterator::next) {
            announce(&job.name);
            let (printed, status) =
                output(&mut job.command).map_err(|error| cannot_run(&job.command, &error))?;
            locked(&ended, |ended| ended(&job, &printed, status));
        }
        Ok(())
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..most).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("no job panics"))
    })
}

fn locked<T, R>(what: &Mutex<T>, act: impl FnOnce(&mut T) -> R) -> R {
    act(&mut what.lock().unwrap_or_else(PoisonError::into_inner))
}

/// What a command prints to both streams, in the order in which it does.
fn output(command: &mut Command) -> io::Result<(Vec<u8>, ExitStatus)> {
    let (mut from, to) = io::pipe()?;
    command.stdin(Stdio::null()).stdout(to.try_clone()?).stderr(to);
    let mut child = command.spawn()?;
    // The command keeps the ends that the child has.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut printed = vec![];
    from.read_to_end(&mut printed)?;
    Ok((printed, child.wait()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Job {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Job { name: script.into(), command }
    }

    #[test]
    fn outputs_come_whole_with_their_status() {
        let scripts = ["echo a; echo b >&2; echo c", "echo d; exit 3", "kill -9 $$"];
        let mut told = vec![];
        run(scripts.map(shell).into(), 2, |job, text, status| {
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
        assert!(run(vec![job], 1, |_, _, _| {}).is_err());
    }
}
