// SPDX-License-Identifier: Apache-2.0
//! Threads of the library beside those of the program.

use nix::sys::signal::{SigSet, SigmaskHow, pthread_sigmask};
use std::io;
use std::thread::{Builder, JoinHandle};

/// Starts a thread that takes no signals: these are for the program's own threads.
pub fn spawn_without_signals(
    name: &str,
    run: impl FnOnce() + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    let mut before = SigSet::empty();
    pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::all()), Some(&mut before))?;
    let started = Builder::new().name(name.into()).spawn(run);
    pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&before), None)?;
    started
}
