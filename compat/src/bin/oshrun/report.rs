// SPDX-License-Identifier: Apache-2.0
//! What `oshrun` itself has to say: whole lines on standard error.
//!
//! Somebody who reads them may stall, such as a pager that waits for a key. The job must go on to be looked after
//! all the same, so what cannot be written at once is written by a thread.

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::fmt;
use std::io::Write;
use std::os::fd::AsFd;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Mutex, PoisonError};
use std::thread::Builder;
use std::time::Duration;

/// Bytes that a pipe which can be written to takes at once.
const AT_ONCE: usize = 4096;

/// For a reader who stalls, at the end.
const PATIENCE: Duration = Duration::from_millis(500);

/// The thread that writes, once there is one.
static LATER: Mutex<Option<Sender<Item>>> = Mutex::new(None);

enum Item {
    Line(String),
    Flush(Sender<()>),
}

/// Writes one line in one piece, so that it cannot be torn by what the PEs print.
pub fn line(text: fmt::Arguments<'_>) {
    let text = format!("oshrun: {text}\n");
    let mut later = LATER.lock().unwrap_or_else(PoisonError::into_inner);
    if later.is_none() && text.len() <= AT_ONCE && can_write() {
        return write(&text);
    }
    if later.is_none() {
        let (sender, items) = mpsc::channel();
        let started = Builder::new().spawn(move || write_all(&items));
        *later = started.ok().map(|_| sender);
    }
    match &*later {
        // The thread ends with the process.
        Some(sender) => _ = sender.send(Item::Line(text)),
        None => write(&text),
    }
}

/// To be called before this process ends: waits until all lines are written, but not for long.
pub fn flush() {
    let later = LATER.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let (done, written) = mpsc::channel();
    if later.is_some_and(|later| later.send(Item::Flush(done)).is_ok()) {
        let _ = written.recv_timeout(PATIENCE);
    }
}

fn write_all(items: &Receiver<Item>) {
    for item in items {
        match item {
            Item::Line(text) => write(&text),
            Item::Flush(done) => _ = done.send(()),
        }
    }
}

fn write(text: &str) {
    // Nobody is left to be told when standard error is closed.
    let _ = std::io::stderr().write_all(text.as_bytes());
}

/// Whether standard error takes some bytes at once, or is closed.
fn can_write() -> bool {
    let stderr = std::io::stderr();
    let mut polled = [PollFd::new(stderr.as_fd(), PollFlags::POLLOUT)];
    poll(&mut polled, PollTimeout::ZERO) != Ok(0)
}
