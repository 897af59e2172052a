// SPDX-License-Identifier: Apache-2.0
//! The thread that serves other PEs while the program computes: one per PE, for requests and for all
//! transports that need it.
//!
//! A program that waits in the library serves by itself ([`Service::poll`]), at once; the thread then
//! keeps out of its way. Otherwise the thread looks for work, and sleeps when there is none: on the
//! bell where requesters can ring it, on the transports' event descriptors where they have some, and
//! for short times where neither tells of all work.

use super::server::Server;
use super::wire::Wire;
use crate::sync::thread::{self, JoinHandle};
use crate::sync::{Arc, AtomicBool, AtomicU32, AtomicU64, Futex, Mutex, Ordering};
use crate::transport::{Told, Work};
use std::os::fd::RawFd;
use std::sync::OnceLock;
use std::time::Duration;

/// What a service thread sleeps on, in the control area.
#[repr(C, align(64))]
pub struct Bell {
    pub(super) rings: Futex,
    /// 1 while the service thread sleeps or is about to.
    pub(super) asleep: AtomicU32,
}

impl Bell {
    /// Wakes the service thread if it sleeps. For requesters that have the bell mapped.
    pub fn ring(&self) {
        self.rings.change();
        if self.asleep.load(Ordering::SeqCst) != 0 {
            self.rings.wake();
        }
    }
}

/// What a service thread polls besides requests: the transports of a PE.
pub trait Pollable: Send + Sync {
    /// Moves work on; true if something moved.
    fn progress(&self) -> bool;

    /// Whether a thread of the program works on some of it at this moment.
    fn is_taken(&self) -> bool;

    /// Descriptors that become readable when there is work, or none if there is work of which no
    /// descriptor tells.
    fn event_fds(&self) -> Option<Vec<RawFd>>;

    /// Prepares for sleeping on the descriptors; false if there may be work already.
    fn arm(&self) -> bool;
}

/// How requests are announced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Announced {
    /// Everybody who may send one rings the bell.
    ByBell,
    /// Some requesters cannot reach the bell.
    Silently,
}

/// Looks in vain before the thread sleeps; each gives way to other threads.
const LOOKS: u32 = if cfg!(loom) { 0 } else { 50 };
/// Polls by the program between two looks of the thread that are too few to leave serving to it.
const RARELY: u64 = if cfg!(loom) { 0 } else { 8 };
/// Shortest and longest sleep when nothing tells of work, or when the program itself serves.
const NAP: [Duration; 2] = [Duration::from_micros(50), Duration::from_micros(500)];
/// Longest sleep when something tells of work: only against what nobody thinks of.
const SLEEP: Duration = Duration::from_millis(if cfg!(loom) { 1 } else { 1000 });

/// Serves other PEs until it is dropped.
pub struct Service<W: Wire + 'static> {
    shared: Arc<Shared<W>>,
    thread: Option<JoinHandle<()>>,
}

struct Shared<W> {
    server: Option<Mutex<Server<W>>>,
    transports: Option<Box<dyn Pollable>>,
    bell: *const Bell,
    announced: Announced,
    stop: AtomicBool,
    /// Counts polls by the program.
    polls: AtomicU64,
    told: OnceLock<Told>,
}

// SAFETY: the bell consists of atomics, in memory that outlives the thread by the contract of
// `start`; all else is shareable by itself.
unsafe impl<W: Send> Send for Shared<W> {}
// SAFETY: as above.
unsafe impl<W: Send> Sync for Shared<W> {}

impl<W: Wire + 'static> Service<W> {
    /// Starts serving: requests if there is a `server`, and `transports` if some need it.
    ///
    /// # Safety
    /// The bell stays mapped until the service is dropped.
    pub unsafe fn start(
        bell: *const Bell,
        server: Option<Server<W>>,
        announced: Announced,
        transports: Option<Box<dyn Pollable>>,
    ) -> std::io::Result<Service<W>> {
        let shared = Arc::new(Shared {
            server: server.map(Mutex::new),
            transports,
            bell,
            announced,
            stop: AtomicBool::new(false),
            polls: AtomicU64::new(0),
            told: OnceLock::new(),
        });
        let seen = shared.clone();
        let thread =
            thread::Builder::new().name("shmem-service".into()).spawn(move || seen.run())?;
        Ok(Service { shared, thread: Some(thread) })
    }

    /// Has `told` be told what the thread does.
    pub fn tell(&self, told: Told) {
        // The first stays.
        let _ = self.shared.told.set(told);
    }

    /// Serves once, for a thread of the program that waits.
    #[inline]
    pub fn poll(&self) {
        let polls = self.shared.polls.load(Ordering::Relaxed);
        self.shared.polls.store(polls.wrapping_add(1), Ordering::Relaxed);
        self.shared.answer();
    }
}

impl<W: Wire + 'static> Drop for Service<W> {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        let bell = self.shared.bell();
        bell.rings.change();
        bell.rings.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl<W: Wire> Shared<W> {
    fn bell(&self) -> &Bell {
        // SAFETY: mapped, by the contract of `Service::start`.
        unsafe { &*self.bell }
    }

    /// Answers requests, unless somebody else is at it.
    fn answer(&self) -> bool {
        let server = self.server.as_ref().and_then(|server| server.try_lock().ok());
        server.is_some_and(|mut server| server.serve())
    }

    fn run(&self) {
        let (mut looks, mut seen, mut nap) = (0, 0, NAP[0]);
        let mut work = Work::new("service thread");
        loop {
            // Before anything it may announce is looked at: the end, or requests.
            let rings = self.bell().rings.load();
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            let polls = self.polls.load(Ordering::Relaxed);
            let lately = polls.wrapping_sub(seen);
            seen = polls;
            if lately > RARELY {
                // The program serves while it waits. One that sleeps between its looks does not.
                self.bell().rings.wait(rings, nap);
                nap = (nap * 2).min(NAP[1]);
                continue;
            }
            let moved = self.transports.as_ref().is_some_and(|transports| transports.progress());
            if self.answer() || moved {
                (looks, nap) = (0, NAP[0]);
                work.looked(true, self.told.get());
                if self.transports.as_ref().is_some_and(|transports| transports.is_taken()) {
                    // A program that issues one operation after the other: looking on would only take
                    // the processor from it, or from the target.
                    self.bell().rings.wait(rings, nap);
                }
                continue;
            }
            work.looked(false, self.told.get());
            looks += 1;
            if looks <= LOOKS {
                thread::yield_now();
                continue;
            }
            if self.sleep(rings, nap) {
                // Transfers that need nothing but polls come in several pieces as a rule.
                looks = 0;
            }
            nap = (nap * 2).min(NAP[1]);
        }
    }

    /// Sleeps until there may be work; says whether a descriptor tells of some.
    fn sleep(&self, rings: u32, nap: Duration) -> bool {
        let fds = self.transports.as_ref().map(|transports| transports.event_fds());
        let limit = match (&fds, self.announced) {
            (None | Some(Some(_)), Announced::ByBell) => SLEEP,
            _ => nap,
        };
        match fds.flatten() {
            Some(fds) if !fds.is_empty() => self.sleep_on(&fds, rings, limit),
            _ => {
                let bell = self.bell();
                bell.asleep.store(1, Ordering::SeqCst);
                // Sleeps only if nobody has rung since.
                bell.rings.wait(rings, limit);
                bell.asleep.store(0, Ordering::SeqCst);
                false
            }
        }
    }

    /// Sleeps on descriptors. The bell cannot end that, so it is not for long where requests are
    /// announced by the bell alone.
    fn sleep_on(&self, fds: &[RawFd], rings: u32, limit: Duration) -> bool {
        let armed = self.transports.as_ref().is_some_and(|transports| transports.arm());
        if !armed || self.bell().rings.load() != rings {
            return false;
        }
        let limit = if self.server.is_some() { limit.min(NAP[1]) } else { limit.min(SLEEP / 10) };
        let poll = |fd: &RawFd| libc::pollfd { fd: *fd, events: libc::POLLIN, revents: 0 };
        let mut polled: Vec<libc::pollfd> = fds.iter().map(poll).collect();
        let limit = libc::timespec {
            tv_sec: limit.as_secs() as libc::time_t,
            tv_nsec: limit.subsec_nanos().into(),
        };
        // SAFETY: an array of that length and a valid time. Errors mean: look again.
        unsafe {
            libc::ppoll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, &limit, std::ptr::null())
                > 0
        }
    }
}
