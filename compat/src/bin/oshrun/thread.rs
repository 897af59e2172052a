// SPDX-License-Identifier: Apache-2.0
//! Threads, and why they or processes cannot be started.

use crate::report;
use std::io;
use tombolo_core::error;
use tombolo_core::threads::NO_MORE;

/// Runs `work` in a thread of its own. Each is needed: where it cannot be started, this process says so and ends,
/// and the job with it.
pub fn start<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) {
    if let Err(error) = std::thread::Builder::new().spawn(work) {
        report::line(format_args!("cannot start a thread: {}; ending the job", reason(&error)));
        report::flush();
        std::process::exit(1);
    }
}

/// Why a thread or process could not be started.
pub fn reason(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::WouldBlock => NO_MORE.into(),
        _ => error::reason(error),
    }
}
