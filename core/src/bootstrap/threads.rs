// SPDX-License-Identifier: Apache-2.0
//! A job whose PEs are threads of one process: every part of the runtime but the launcher can be
//! run and tested this way.

use super::Bootstrap;
use crate::error::{Error, Result};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// One PE of a job of threads.
pub struct Threads {
    pe: usize,
    shared: Arc<Shared>,
}

struct Shared {
    n_pes: usize,
    state: Mutex<State>,
    changed: Condvar,
    /// A PE has ended the job.
    ended: AtomicBool,
}

struct State {
    round: u64,
    arrived: usize,
    values: Vec<Vec<u8>>,
    last: Vec<Vec<u8>>,
}

/// A test that waits longer than this has failed.
const PATIENCE: Duration = Duration::from_secs(60);

impl Threads {
    /// The bootstraps of a job of `n_pes` threads, in PE order.
    pub fn job(n_pes: usize) -> Vec<Threads> {
        let state =
            State { round: 0, arrived: 0, values: vec![Vec::new(); n_pes], last: Vec::new() };
        let shared = Arc::new(Shared {
            n_pes,
            state: Mutex::new(state),
            changed: Condvar::new(),
            ended: AtomicBool::new(false),
        });
        (0..n_pes).map(|pe| Threads { pe, shared: shared.clone() }).collect()
    }
}

impl Bootstrap for Threads {
    fn pe(&self) -> usize {
        self.pe
    }

    fn n_pes(&self) -> usize {
        self.shared.n_pes
    }

    fn allgather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>> {
        let mut state = self.shared.state.lock().unwrap_or_else(|e| e.into_inner());
        let round = state.round;
        state.values[self.pe] = mine.to_vec();
        state.arrived += 1;
        if state.arrived == self.shared.n_pes {
            state.arrived = 0;
            state.round += 1;
            state.last = state.values.clone();
            self.shared.changed.notify_all();
            return Ok(state.last.clone());
        }
        // `last` cannot be replaced before this PE has read it: the next round needs it to arrive.
        let (state, waited) = self
            .shared
            .changed
            .wait_timeout_while(state, PATIENCE, |state| state.round == round)
            .unwrap_or_else(|e| e.into_inner());
        if waited.timed_out() {
            return Err(Error::Bootstrap("another thread of the job did not arrive".into()));
        }
        Ok(state.last.clone())
    }

    fn barrier(&self) -> Result<()> {
        self.allgather(&[]).map(drop)
    }

    fn abort(&self, code: i32) {
        self.shared.ended.store(true, Ordering::Relaxed);
        panic!("PE {} ends the job with code {code}", self.pe);
    }

    fn finalize(&self) {}

    fn is_alive(&self) -> bool {
        !self.shared.ended.load(Ordering::Relaxed)
    }

    fn launcher(&self) -> &str {
        "threads of one process"
    }
}

impl Drop for Threads {
    /// A PE that panics ends the job, as the death of a process does: the others would wait for it.
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.shared.ended.store(true, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_thread_gets_every_contribution_in_order() {
        std::thread::scope(|scope| {
            for job in Threads::job(5) {
                scope.spawn(move || {
                    for round in 0..50u8 {
                        let all = job.allgather(&[round, job.pe() as u8]).unwrap();
                        let expected: Vec<Vec<u8>> = (0..5).map(|pe| vec![round, pe]).collect();
                        assert_eq!(all, expected);
                    }
                });
            }
        });
    }
}
