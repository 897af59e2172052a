// SPDX-License-Identifier: Apache-2.0
//! A limit for what runs in this process and cannot be ended from outside: threads that wait for each
//! other in vain.

use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Ends the process, with the name of what took too long, unless it is dropped before. Names what
/// panics, too.
pub struct Watchdog {
    what: String,
    over: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    /// Begins to watch.
    pub fn start(what: impl Into<String>, limit_seconds: u64) -> Watchdog {
        let what = what.into();
        let name = what.clone();
        let (over, watched) = channel::<()>();
        let thread = std::thread::spawn(move || {
            let limit = Duration::from_secs(limit_seconds);
            if watched.recv_timeout(limit) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                eprintln!("test {name} ... FAILED: not over after {limit_seconds} s");
                std::process::exit(101);
            }
        });
        Watchdog { what, over: Some(over), thread: Some(thread) }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("failed: {}", self.what);
        }
        drop(self.over.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
