//! A limit for what runs in this process and cannot be ended from outside: threads that wait for each
//! other in vain.

use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Ends the process, with the name of what took too long, unless it is dropped before.
pub struct Watchdog {
    over: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    /// Begins to watch.
    pub fn start(what: impl Into<String>, limit_seconds: u64) -> Watchdog {
        let what = what.into();
        let (over, watched) = channel::<()>();
        let thread = std::thread::spawn(move || {
            let limit = Duration::from_secs(limit_seconds);
            if watched.recv_timeout(limit) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                eprintln!("test {what} ... FAILED: not over after {limit_seconds} s");
                std::process::exit(101);
            }
        });
        Watchdog { over: Some(over), thread: Some(thread) }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        drop(self.over.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
