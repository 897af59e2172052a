// SPDX-License-Identifier: Apache-2.0
//! Jobs to which something is done while they run.

use libtest_mimic::Failed;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};

/// A job under way, once PE 0 has said that it is ready; it ends with this value.
pub struct Job(Child);

impl Job {
    pub fn start(mut oshrun: Command) -> Result<Job, Failed> {
        oshrun.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut job = Job(oshrun.spawn()?);
        let mut line = String::new();
        let mut byte = [0];
        let stdout = job.0.stdout.as_mut().expect("piped");
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
        let lines = |from: &mut dyn Read| -> Result<String, Failed> {
            let mut said = String::new();
            for line in BufReader::new(from).lines() {
                said += &(line? + "\n");
            }
            Ok(said)
        };
        let said = lines(self.0.stderr.as_mut().expect("piped"))?;
        Ok((self.0.wait()?.code(), said + &lines(self.0.stdout.as_mut().expect("piped"))?))
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The longest time that nothing was seen to come, in seconds, as `cables.c` tells it.
pub fn longest(said: &str) -> Result<f64, Failed> {
    let found = said.lines().find_map(|line| line.split("longest ").nth(1));
    Ok(found.ok_or_else(|| format!("the job does not end: {said}"))?.parse()?)
}
