// SPDX-License-Identifier: Apache-2.0
//! PMI-2: messages of `key=value;`, each after six characters that give its length.

use super::pmi::{PmiEnvironment, Protocol};
use super::wire::Wire;
use crate::error::{Error, Result};

/// Longest value; servers count the end of the text as well.
const VALUE_MAX: usize = 1023;
/// Characters of a message's length.
const HEAD: usize = 6;

/// The protocol over a connection on which it has been agreed.
pub struct Pmi2 {
    wire: Wire,
    job: String,
    /// Barriers so far.
    barriers: u64,
}

impl Pmi2 {
    /// Introduces this process to the launcher, which must see its place alike.
    pub fn join(wire: Wire, place: &PmiEnvironment) -> Result<Pmi2> {
        let mut pmi = Pmi2 { wire, job: place.job.clone(), barriers: 0 };
        let (job, pe) = (&place.job, place.pe);
        let greeting = match job.is_empty() {
            true => format!("cmd=fullinit;pmirank={pe};threaded=FALSE;"),
            false => format!("cmd=fullinit;pmijobid={job};pmirank={pe};threaded=FALSE;"),
        };
        let answer = pmi.ask(&greeting, "fullinit-response")?;
        for (key, variable, mine) in
            [("rank", "PMI_RANK", place.pe), ("size", "PMI_SIZE", place.n_pes)]
        {
            let theirs = field(&answer, key).unwrap_or("nothing");
            if theirs.parse() != Ok(mine) {
                return Err(Error::Bootstrap(format!(
                    "the launcher set {variable}={mine} and now says {theirs}"
                )));
            }
        }
        let answer = pmi.ask("cmd=job-getid;", "job-getid-response")?;
        pmi.job = field(&answer, "jobid").unwrap_or_default().to_owned();
        Ok(pmi)
    }

    /// Sends a request and reads its answer, which must be called `expected` and have no error.
    fn ask(&mut self, request: &str, expected: &str) -> Result<String> {
        self.wire.send(&framed(request))?;
        let head = self.wire.exactly(HEAD)?;
        // Some servers put the length to the left of its place, others to the right.
        let Ok(length) = head.trim().parse::<usize>() else {
            return Err(self.wire.nonsense(head.as_bytes()));
        };
        let answer = self.wire.exactly(length)?;
        let fits = field(&answer, "cmd") == Some(expected)
            && field(&answer, "rc").is_none_or(|rc| rc == "0");
        if fits { Ok(answer) } else { Err(self.wire.nonsense(answer.as_bytes())) }
    }
}

fn framed(message: &str) -> String {
    format!("{:>HEAD$}{message}", message.len())
}

/// The value of a key in a message. Servers differ in the order of keys.
fn field<'a>(message: &'a str, key: &str) -> Option<&'a str> {
    let pairs = message.trim_end().split(';').filter_map(|pair| pair.split_once('='));
    pairs.into_iter().find(|(found, _)| *found == key).map(|(_, value)| value)
}

impl Protocol for Pmi2 {
    fn name(&self) -> &'static str {
        "PMI-2"
    }

    fn value_max(&self) -> usize {
        VALUE_MAX
    }

    fn put(&mut self, key: &str, value: &str) -> Result<()> {
        // The end of a value cannot be written otherwise.
        debug_assert!(!value.contains(';'), "{value}");
        self.ask(&format!("cmd=kvs-put;key={key};value={value};"), "kvs-put-response").map(drop)
    }

    fn fence(&mut self) -> Result<()> {
        self.ask("cmd=kvs-fence;", "kvs-fence-response").map(drop)
    }

    /// Hydra answers a fence before the others have called it, and lets them wait who ask for a value.
    /// So a PE knows that another has come when it finds what that has put: by dissemination, as many
    /// times as the number of PEs can be halved.
    fn barrier(&mut self, pe: usize, n_pes: usize) -> Result<()> {
        self.barriers += 1;
        let number = self.barriers;
        let mut step = 1;
        while step < n_pes {
            let key = |pe: usize| format!("b{number}-{step}-{pe}");
            self.put(&key(pe), "1")?;
            self.fence()?;
            let before = (pe + n_pes - step) % n_pes;
            self.get(&key(before), before)?;
            step *= 2;
        }
        Ok(())
    }

    fn get(&mut self, key: &str, pe: usize) -> Result<String> {
        let job = &self.job;
        let request = format!("cmd=kvs-get;jobid={job};srcid={pe};key={key};");
        let answer = self.ask(&request, "kvs-get-response")?;
        if field(&answer, "found") != Some("TRUE") {
            return Err(Error::Bootstrap(format!("PE {pe} has not published {key}")));
        }
        Ok(field(&answer, "value").unwrap_or_default().to_owned())
    }

    fn abort_request(&self) -> fn(i32) -> String {
        |code| framed(&format!("cmd=abort;isworld=TRUE;msg=a PE asked for exit code {code};"))
    }

    fn finalize(&mut self) {
        let _ = self.ask("cmd=finalize;", "finalize-response");
    }

    fn wire(&mut self) -> &mut Wire {
        &mut self.wire
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read_by_key_in_any_order() {
        let slurm = "cmd=kvs-get-response;rc=0;found=TRUE;value=2:00ff;";
        let hydra = "cmd=kvs-get-response;found=TRUE;value=2:00ff;rc=0;\n";
        for answer in [slurm, hydra] {
            assert_eq!(field(answer, "value"), Some("2:00ff"));
            assert_eq!(field(answer, "rc"), Some("0"));
            assert_eq!(field(answer, "srcid"), None);
        }
    }

    #[test]
    fn messages_carry_their_length() {
        assert_eq!(framed("cmd=kvs-fence;"), "    14cmd=kvs-fence;");
    }
}
