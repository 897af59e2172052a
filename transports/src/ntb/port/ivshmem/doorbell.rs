// SPDX-License-Identifier: Apache-2.0
//! Waiting for interrupts, by any number of threads.
//!
//! One thread takes the events of all vectors and wakes whoever waits; each looks at the latch for
//! itself. So no thread takes an event that was meant for another one.

use super::device::Device;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::signal::{SigSet, SigmaskHow, pthread_sigmask};
use std::io;
use std::os::fd::AsFd;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Ends with the value.
pub struct Listener {
    state: Arc<State>,
    thread: Option<JoinHandle<()>>,
}

struct State {
    /// Held while something is looked at that an event may change.
    looking: Mutex<()>,
    event: Condvar,
    stop: EventFd,
}

impl Listener {
    pub fn start(device: &Arc<dyn Device>) -> io::Result<Listener> {
        let stop = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC)?;
        let state = Arc::new(State { looking: Mutex::default(), event: Condvar::new(), stop });
        let (device, own) = (device.clone(), state.clone());
        // Signals are for the program's own threads.
        let mut before = SigSet::empty();
        pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::all()), Some(&mut before))?;
        let builder = std::thread::Builder::new().name("shmem-ivshmem".into());
        let thread = builder.spawn(move || own.listen(&*device));
        pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&before), None)?;
        Ok(Listener { state, thread: Some(thread?) })
    }

    /// Has those who wait look again.
    pub fn tell(&self) {
        self.state.tell();
    }

    /// Waits until `look` says so or `timeout` has passed; returns what it has seen last.
    pub fn wait<T>(&self, timeout: Duration, look: impl Fn() -> (bool, T)) -> T {
        let deadline = Instant::now().checked_add(timeout);
        let mut looking = self.state.looking.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let (done, seen) = look();
            let now = Instant::now();
            let left = deadline.map_or(timeout, |at| at.saturating_duration_since(now));
            if done || left.is_zero() {
                return seen;
            }
            let waited = self.state.event.wait_timeout(looking, left);
            looking = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl State {
    fn tell(&self) {
        // Whoever has looked and not found it is waiting by now.
        drop(self.looking.lock().unwrap_or_else(PoisonError::into_inner));
        self.event.notify_all();
    }

    fn listen(&self, device: &dyn Device) {
        let interrupts = device.interrupts();
        let watched = std::iter::once(&self.stop).chain(interrupts);
        let mut fds: Vec<PollFd<'_>> =
            watched.map(|event| PollFd::new(event.as_fd(), PollFlags::POLLIN)).collect();
        loop {
            if poll(&mut fds, PollTimeout::NONE).is_err() {
                continue;
            }
            let raised = |fd: &PollFd<'_>| fd.any().unwrap_or(false);
            if raised(&fds[0]) {
                return;
            }
            for (fd, event) in fds[1..].iter().zip(interrupts) {
                if raised(fd) {
                    // Empty already: nothing was lost by that.
                    let _ = event.read();
                }
            }
            self.tell();
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // A full counter stops the thread as well.
        let _ = self.state.stop.write(1);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been printed already.
            let _ = thread.join();
        }
    }
}
