// SPDX-License-Identifier: Apache-2.0
//! Jobs to which something is done while they run.

use super::ends_with_this;
use libtest_mimic::Failed;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::io::{self, Read};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// No job of these tests takes longer, even between virtual machines, unless something is wrong.
const LIMIT: Duration = Duration::from_secs(300);

/// A job under way, once PE 0 has said that it is ready; it ends with this value, or when it takes too long.
pub struct Job {
    child: Child,
    /// The watchdog, and what it waits for.
    watchdog: Option<(Sender<()>, JoinHandle<()>)>,
}

impl Job {
    pub fn start(mut oshrun: Command) -> Result<Job, Failed> {
        oshrun.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = ends_with_this(&mut oshrun).spawn()?;
        let pid = Pid::from_raw(child.id() as i32);
        let (over, watched) = channel();
        let watchdog = thread::spawn(move || {
            if watched.recv_timeout(LIMIT) == Err(RecvTimeoutError::Timeout) {
                let _ = kill(pid, Signal::SIGKILL);
            }
        });
        let mut job = Job { child, watchdog: Some((over, watchdog)) };
        let mut line = String::new();
        let mut byte = [0];
        let stdout = job.child.stdout.as_mut().expect("piped");
        while !line.ends_with('\n') && stdout.read(&mut byte)? == 1 {
            line.push(byte[0].into());
        }
        match line.as_str() {
            "ready\n" => Ok(job),
            _ => Err(format!("the job does not start: {line}{}", job.ends()?.1).into()),
        }
    }

    /// Its exit code, and what it has said to the end.
    pub fn ends(&mut self) -> Result<(Option<i32>, String), Failed> {
        let all = |from: &mut dyn Read| -> io::Result<String> {
            let mut said = vec![];
            from.read_to_end(&mut said)?;
            Ok(String::from_utf8_lossy(&said).into_owned())
        };
        let Child { stdout, stderr, .. } = &mut self.child;
        let (stdout, stderr) = (stdout.as_mut().expect("piped"), stderr.as_mut().expect("piped"));
        // Both at once: a job waits until what it has said is read.
        let (told, printed) = thread::scope(|scope| {
            let printed = scope.spawn(|| all(stdout));
            (all(stderr), printed.join().expect("no panic"))
        });
        self.is_watched_no_longer();
        Ok((self.child.wait()?.code(), told? + &printed?))
    }

    /// Before anybody waits for the process: then its number may be another's.
    fn is_watched_no_longer(&mut self) {
        if let Some((over, watchdog)) = self.watchdog.take() {
            drop(over);
            watchdog.join().expect("the watchdog does not panic");
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.is_watched_no_longer();
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The longest time that nothing was seen to come, in seconds, as `cables.c` tells it.
pub fn longest(said: &str) -> Result<f64, Failed> {
    let found = said.lines().find_map(|line| line.split("longest ").nth(1));
    Ok(found.ok_or_else(|| format!("the job does not end: {said}"))?.parse()?)
}
