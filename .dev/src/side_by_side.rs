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
/// has ended: the jobs' outputs do not mix. The result is whether all succeeded.
pub fn run(
    jobs: Vec<Job>,
    most: usize,
    ended: impl FnMut(&Job, &[u8]) + Send,
) -> Result<bool, Failure> {
    let (jobs, ended) = (Mutex::new(jobs.into_iter()), Mutex::new(ended));
    let work = || {
        let mut all = true;
        while let Some(mut job) = locked(&jobs, Iterator::next) {
            announce(&job.name);
            let (printed, status) =
                output(&mut job.command).map_err(|error| cannot_run(&job.command, &error))?;
            locked(&ended, |ended| ended(&job, &printed));
            all &= status.success();
        }
        Ok(all)
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..most).map(|_| scope.spawn(work)).collect();
        let mut results = workers.into_iter().map(|worker| worker.join().expect("no job panics"));
        results.try_fold(true, |all, result| Ok(all & result?))
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
    fn outputs_come_whole_and_a_failure_is_told() {
        let scripts = ["echo a; echo b >&2; echo c", "echo d; exit 3", "true"];
        let mut printed = vec![];
        let all = run(scripts.map(shell).into(), 2, |job, text| {
            printed.push((job.name.clone(), String::from_utf8_lossy(text).into_owned()));
        });
        assert!(!all.unwrap());
        printed.sort();
        let expected = [(scripts[0], "a\nb\nc\n"), (scripts[1], "d\n"), (scripts[2], "")];
        assert_eq!(printed, expected.map(|(name, text)| (name.to_owned(), text.to_owned())));
        assert!(run(vec![shell("true")], 2, |_, _| {}).unwrap());
    }

    #[test]
    fn a_command_that_is_not_there_is_an_error() {
        let job = Job { name: "none".into(), command: Command::new("/does/not/exist") };
        assert!(run(vec![job], 1, |_, _| {}).is_err());
    }
}
