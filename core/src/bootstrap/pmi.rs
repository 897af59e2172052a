// SPDX-License-Identifier: Apache-2.0
//! Launchers that pass their processes a descriptor (`PMI_FD`) and serve one of two protocols on
//! it: PMI-1 or PMI-2.

use super::pmi1::Pmi1;
use super::pmi2::Pmi2;
use super::wire::Wire;
use super::{Bootstrap, pieces};
use crate::config::Pmi as Wanted;
use crate::error::{Error, Result};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

/// Largest job accepted; a launcher that says more is not believed.
const PES_MAX: usize = 1 << 20;

/// What a protocol offers once it has been agreed on. Each call is one or more requests, which are
/// answered one after the other.
pub trait Protocol: Send {
    /// What it is called.
    fn name(&self) -> &'static str;

    /// Longest value that can be put.
    fn value_max(&self) -> usize;

    /// Puts a value, which others find after the next fence.
    fn put(&mut self, key: &str, value: &str) -> Result<()>;

    /// Collective: what was put before it is found after it. May return before all PEs have called it:
    /// then whoever asks for a value waits.
    fn fence(&mut self) -> Result<()>;

    /// Collective: returns when every PE has called it. `pe` is this one's number.
    fn barrier(&mut self, _pe: usize, _n_pes: usize) -> Result<()> {
        self.fence()
    }

    /// The value that `pe` put.
    fn get(&mut self, key: &str, pe: usize) -> Result<String>;

    /// The values of the keys made of `stem` and a PE's number, from the PE `first` on: one, or as
    /// many as the launcher gives at a time.
    fn get_several(&mut self, stem: &str, first: usize) -> Result<Vec<String>> {
        Ok(vec![self.get(&format!("{stem}{first}"), first)?])
    }

    /// What asks the launcher to end the job with an exit code. There is no answer.
    fn abort_request(&self) -> fn(i32) -> String;

    /// Says goodbye.
    fn finalize(&mut self);

    /// The connection.
    fn wire(&mut self) -> &mut Wire;
}

/// What the launcher told in the environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PmiEnvironment {
    /// The descriptor.
    pub fd: i32,
    /// Number of this process.
    pub pe: usize,
    /// Number of processes.
    pub n_pes: usize,
    /// Name of the job, which PMI-2 asks for.
    pub job: String,
}

impl PmiEnvironment {
    /// Reads the variables that come with `PMI_FD`.
    pub fn parse(lookup: &dyn Fn(&str) -> Option<String>) -> Result<PmiEnvironment> {
        let number = |name: &str| -> Result<usize> {
            let text = lookup(name)
                .ok_or_else(|| Error::Bootstrap(format!("PMI_FD is set but {name} is not")))?;
            text.trim().parse().map_err(|_| {
                Error::Bootstrap(format!("{name}='{text}' is not a number a launcher would set"))
            })
        };
        let fd = i32::try_from(number("PMI_FD")?).unwrap_or(-1);
        let (pe, n_pes) = (number("PMI_RANK")?, number("PMI_SIZE")?);
        check(pe, n_pes)?;
        let job = lookup("PMI_JOBID").filter(|job| !job.contains([';', '=', '\n']));
        Ok(PmiEnvironment { fd, pe, n_pes, job: job.unwrap_or_default() })
    }
}

/// Refuses numbers that no job can have.
pub fn check(pe: usize, n_pes: usize) -> Result<()> {
    match pe < n_pes && n_pes <= PES_MAX {
        true => Ok(()),
        false => Err(Error::Bootstrap(format!("the launcher says PE {pe} of {n_pes}"))),
    }
}

/// A connection to a launcher that passed a descriptor.
pub struct Pmi {
    pe: usize,
    n_pes: usize,
    state: Mutex<State>,
    fd: i32,
    /// See [`Protocol::abort_request`].
    abort_request: fn(i32) -> String,
    /// Longest wait for an answer, but at the end.
    timeout: Duration,
    name: &'static str,
}

struct State {
    protocol: Box<dyn Protocol>,
    round: u32,
    finalized: bool,
}

impl Pmi {
    /// Agrees on a protocol over `wire`.
    ///
    /// PMI-1 is tried first: `oshrun`, Hydra and Slurm's pmi2 plugin all serve it. Under Slurm
    /// (`native` is then PMI-2) the plugin's own protocol is tried first, because nothing promises
    /// that it will go on serving the other. What the launcher turns down, it is not asked for again.
    pub fn connect(
        place: &PmiEnvironment,
        mut wire: Wire,
        wanted: Wanted,
        native: Wanted,
        timeout: Duration,
    ) -> Result<Pmi> {
        let order: &[Wanted] = match (wanted, native) {
            (Wanted::Pmi1, _) => &[Wanted::Pmi1],
            (Wanted::Pmi2, _) => &[Wanted::Pmi2],
            (_, Wanted::Pmi2) => &[Wanted::Pmi2, Wanted::Pmi1],
            _ => &[Wanted::Pmi1, Wanted::Pmi2],
        };
        let mut agreed = None;
        for version in order {
            let number = if *version == Wanted::Pmi2 { 2 } else { 1 };
            if offer(&mut wire, number)? {
                agreed = Some(*version);
                break;
            }
        }
        let protocol: Box<dyn Protocol> = match agreed {
            Some(Wanted::Pmi2) => Box::new(Pmi2::join(wire, place)?),
            Some(_) => Box::new(Pmi1::join(wire)?),
            None => {
                let what = match order {
                    [Wanted::Pmi1] => "PMI-1, which SHMEM_PMI asks for",
                    [Wanted::Pmi2] => "PMI-2, which SHMEM_PMI asks for",
                    _ => "PMI-1 or PMI-2 with this program",
                };
                return Err(Error::Bootstrap(format!("the launcher does not speak {what}")));
            }
        };
        Ok(Pmi::over(protocol, place.pe, place.n_pes, timeout))
    }

    fn over(mut protocol: Box<dyn Protocol>, pe: usize, n_pes: usize, timeout: Duration) -> Pmi {
        let (fd, name) = (protocol.wire().fd(), protocol.name());
        let abort_request = protocol.abort_request();
        let state = Mutex::new(State { protocol, round: 0, finalized: false });
        Pmi { pe, n_pes, state, fd, abort_request, timeout, name }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// Offers to speak version `number`, in the words that both versions begin with; whether the
/// launcher agrees.
fn offer(wire: &mut Wire, number: u32) -> Result<bool> {
    let minor = if number == 1 { 1 } else { 0 };
    wire.send(&format!("cmd=init pmi_version={number} pmi_subversion={minor}\n"))?;
    let answer = wire.line()?;
    let word = |key: &str| super::pmi1::word(&answer, key);
    if word("cmd") != Some("response_to_init") {
        return Err(wire.nonsense(answer.as_bytes()));
    }
    let version = word("pmi_version").and_then(|version| version.parse().ok());
    Ok(matches!(word("rc"), None | Some("0"))
        && version.is_none_or(|version: u32| version == number))
}

impl Bootstrap for Pmi {
    fn pe(&self) -> usize {
        self.pe
    }

    fn n_pes(&self) -> usize {
        self.n_pes
    }

    fn allgather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>> {
        let mut state = self.state();
        state.round += 1;
        let round = state.round;
        pieces::gather(&mut *state.protocol, round, self.pe, self.n_pes, mine)
    }

    fn barrier(&self) -> Result<()> {
        self.state().protocol.barrier(self.pe, self.n_pes)
    }

    fn barrier_at_end(&self) -> Result<()> {
        let mut state = self.state();
        state.protocol.wire().limit(None);
        // A launcher that dies closes the connection, which ends this as well.
        let opened = state.protocol.barrier(self.pe, self.n_pes);
        state.protocol.wire().limit(Some(self.timeout));
        opened
    }

    fn abort(&self, code: i32) {
        // Not by way of the protocol: another thread may be using it, to wait in `shmem_finalize` for PEs that never come.
        let request = (self.abort_request)(code);
        // SAFETY: the descriptor belongs to the wire, which lives.
        unsafe { libc::send(self.fd, request.as_ptr().cast(), request.len(), libc::MSG_NOSIGNAL) };
    }

    fn finalize(&self) {
        let mut state = self.state();
        if !state.finalized {
            state.finalized = true;
            state.protocol.finalize();
        }
    }

    fn is_alive(&self) -> bool {
        let mut poll = libc::pollfd { fd: self.fd, events: 0, revents: 0 };
        // SAFETY: one valid pollfd; the descriptor belongs to the wire, which lives.
        let n = unsafe { libc::poll(&mut poll, 1, 0) };
        n == 0 || poll.revents & (libc::POLLHUP | libc::POLLERR | libc::POLLNVAL) == 0
    }

    fn launcher(&self) -> &str {
        self.name
    }
}

#[cfg(test)]
mod tests;
