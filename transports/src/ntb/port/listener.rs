// SPDX-License-Identifier: Apache-2.0
//! Waiting for the interrupts of a device, by any number of threads.
//!
//! One thread takes the events of all vectors and wakes whoever waits; each looks for itself at what
//! it waits for. So no thread takes an event that was meant for another one.

use super::shared::Words;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::io;
use std::os::fd::AsFd;
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tombolo_core::threads::spawn_without_signals;

/// How long to pause between looks at doorbells that interrupt nobody, after so long a wait.
pub fn pause_between_looks(waited: Duration) -> Duration {
    (waited / 8).clamp(Duration::from_micros(20), Duration::from_millis(1))
}

/// What raises events.
pub trait Source: Send + Sync + 'static {
    /// One for each interrupt vector; 64 at most.
    fn interrupts(&self) -> &[EventFd];

    /// Takes the events of vectors: those whose bits are in `raised`.
    fn attend(&self, raised: u64);

    /// After so many milliseconds `attend` looks though no event tells of anything; none: never.
    fn patience_ms(&self) -> Option<u8> {
        None
    }
}

/// Threads that wait.
#[derive(Default)]
pub struct Waiters {
    /// Held while something is looked at that an event may change.
    looking: Mutex<()>,
    event: Condvar,
    /// Where other processes wait for the same, if there are any.
    others: OnceLock<Arc<Words>>,
}

impl Waiters {
    /// From now on other processes wait, too.
    pub fn share(&self, words: &Arc<Words>) {
        self.others.get_or_init(|| words.clone());
    }

    /// Has those who wait look again.
    pub fn tell(&self) {
        // Whoever has looked and not found it is waiting by now.
        drop(self.looking.lock().unwrap_or_else(PoisonError::into_inner));
        self.event.notify_all();
        if let Some(others) = self.others.get() {
            others.tell();
        }
    }

    /// Waits until `look` says so or `timeout` has passed; returns what it has seen last.
    pub fn wait<T>(&self, timeout: Duration, look: impl Fn() -> (bool, T)) -> T {
        let deadline = Instant::now().checked_add(timeout);
        let mut looking = self.looking.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let (done, seen) = look();
            let now = Instant::now();
            let left = deadline.map_or(timeout, |at| at.saturating_duration_since(now));
            if done || left.is_zero() {
                return seen;
            }
            let waited = self.event.wait_timeout(looking, left);
            looking = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// The thread; it ends with the value.
pub struct Listener {
    stop: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
}

impl Listener {
    /// Attends to `source` and tells `waiters` of every event.
    pub fn start<S: Source>(
        name: &str,
        source: Arc<S>,
        waiters: Arc<Waiters>,
    ) -> io::Result<Listener> {
        let stop = Arc::new(EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC)?);
        let own = stop.clone();
        let thread = spawn_without_signals(name, move || listen(&*source, &waiters, &own))?;
        Ok(Listener { stop, thread: Some(thread) })
    }
}

fn listen(source: &impl Source, waiters: &Waiters, stop: &EventFd) {
    let watched = std::iter::once(stop).chain(source.interrupts());
    let mut fds: Vec<PollFd<'_>> =
        watched.map(|event| PollFd::new(event.as_fd(), PollFlags::POLLIN)).collect();
    loop {
        let timeout = source.patience_ms().map_or(PollTimeout::NONE, PollTimeout::from);
        if poll(&mut fds, timeout).is_err() {
            continue;
        }
        let raised = |fd: &PollFd<'_>| fd.any().unwrap_or(false);
        if raised(&fds[0]) {
            return;
        }
        let vectors = fds[1..].iter().take(64).enumerate();
        let vectors =
            vectors.filter(|(_, fd)| raised(fd)).fold(0, |all, (index, _)| all | 1 << index);
        source.attend(vectors);
        waiters.tell();
    }
}

/// Takes the events of some vectors; says of which there were any.
pub fn take(interrupts: &[EventFd], vectors: u64) -> u64 {
    let asked =
        interrupts.iter().take(64).enumerate().filter(|(index, _)| vectors >> index & 1 == 1);
    // An error says that it is empty already: nothing was lost by that.
    asked.filter(|(_, event)| event.read().is_ok()).fold(0, |all, (index, _)| all | 1 << index)
}

impl Drop for Listener {
    fn drop(&mut self) {
        // A full counter stops the thread as well.
        let _ = self.stop.write(1);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been printed already.
            let _ = thread.join();
        }
    }
}
