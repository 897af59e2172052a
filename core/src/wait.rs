//! Waiting that is considerate: spin briefly, then yield, then sleep.
//!
//! A PE with a processor of its own spins long enough to see what a running peer does next. Where
//! PEs outnumber the processors the process may use, spinning only keeps the awaited PE from
//! running, so it yields almost at once.

use crate::board::monotonic_ns;
use crate::config::Config;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// What a PE is waiting for, shown when the job hangs.
#[derive(Clone, Copy, Debug)]
pub struct Waiting {
    /// Name of the routine the program called.
    pub routine: &'static str,
    /// Team number, address or peer.
    pub argument: u64,
}

/// How long to do what. Times in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// Checks before the clock is looked at for the first time.
    pub checks: u32,
    /// Spin at least this long.
    pub spin_ns: u64,
    /// Then yield this long.
    pub yield_ns: u64,
    /// Longest sleep afterwards.
    pub sleep_max: Duration,
}

impl Patience {
    /// For `local_pes` PEs on this host.
    pub fn for_host(config: &Config, local_pes: usize) -> Patience {
        if config.bound.0 || local_pes <= usable_cpus() {
            Patience {
                checks: 200,
                // Longer than most awaited peers take, and shorter than anything a scheduler does:
                // where other jobs keep the processors busy, spinning holds up the peer itself.
                spin_ns: 10_000,
                yield_ns: 5_000_000,
                sleep_max: Duration::from_micros(500),
            }
        } else {
            Patience {
                // The awaited PE does nothing as long as this one has the processor.
                checks: 1,
                spin_ns: 0,
                yield_ns: 20_000_000,
                sleep_max: Duration::from_millis(1),
            }
        }
    }

    /// Waits until it is over, in three phases. They begin anew when something arrives: more may
    /// follow, and whoever sent it waits for an answer that this PE gives.
    pub fn wait(&self, awaited: &mut dyn Awaited) {
        let mut begun = monotonic_ns();
        let mut checked = begun;
        loop {
            loop {
                let now = monotonic_ns();
                let waited = now.saturating_sub(begun);
                if waited >= self.spin_ns + self.yield_ns {
                    break;
                }
                // Arrivals alone must not keep it from finding out that the job is over.
                look_around(now, &mut checked, awaited);
                let spinning = waited < self.spin_ns;
                for _ in 0..if spinning { 32 } else { 1 } {
                    match awaited.look() {
                        Seen::End => return,
                        Seen::Arrival => begun = monotonic_ns() - self.spin_ns,
                        Seen::Nothing => {}
                    }
                    std::hint::spin_loop();
                }
                if !spinning {
                    std::thread::yield_now();
                }
            }
            let mut nap = Duration::from_micros(20);
            loop {
                match awaited.look() {
                    Seen::End => return,
                    Seen::Arrival => break,
                    Seen::Nothing => {}
                }
                if awaited.sleep(nap) {
                    break;
                }
                nap = (nap * 2).min(self.sleep_max);
                look_around(monotonic_ns(), &mut checked, awaited);
            }
            begun = monotonic_ns() - self.spin_ns;
        }
    }
}

fn look_around(now: u64, checked: &mut u64, awaited: &mut dyn Awaited) {
    if now - *checked > 100_000_000 {
        *checked = now;
        awaited.every_so_often();
    }
}

/// What a wait has found at a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// It is over.
    End,
    /// Something has come over a network, but not what is awaited.
    Arrival,
    /// Nothing.
    Nothing,
}

/// What is waited for.
pub trait Awaited {
    /// Makes progress and looks.
    fn look(&mut self) -> Seen;

    /// Sleeps for so long, or until something arrives: true if it may have.
    fn sleep(&mut self, longest: Duration) -> bool;

    /// Called about ten times a second while the wait lasts.
    fn every_so_often(&mut self);
}

/// Sleeps until one of the descriptors is readable, but not longer than told; true if one is.
pub(crate) fn until_readable(fds: &[RawFd], longest: Duration) -> bool {
    let mut polled = [libc::pollfd { fd: -1, events: libc::POLLIN, revents: 0 }; 16];
    // Those that do not fit are looked at when the time is over.
    let len = fds.len().min(polled.len());
    for (polled, fd) in polled.iter_mut().zip(fds) {
        polled.fd = *fd;
    }
    let time = libc::timespec {
        tv_sec: longest.as_secs() as libc::time_t,
        tv_nsec: longest.subsec_nanos().into(),
    };
    // SAFETY: an array of at least that length and a valid time. Errors mean: look again.
    let ready =
        unsafe { libc::ppoll(polled.as_mut_ptr(), len as libc::nfds_t, &time, std::ptr::null()) };
    ready > 0
}

/// Counts how often a program has polled in vain, and lets others run when that gets long: a program
/// that tests in a loop of its own waits no less than one in a waiting call.
#[derive(Debug, Default)]
pub struct Polls(AtomicU64);

impl Polls {
    /// Nothing polled yet.
    pub const fn new() -> Polls {
        Polls(AtomicU64::new(0))
    }

    /// The program found what it polled for.
    #[inline]
    pub fn found(&self) {
        if self.0.load(Ordering::Relaxed) != 0 {
            self.0.store(0, Ordering::Relaxed);
        }
    }

    /// The program polled in vain. A poll takes a nanosecond at least, so after `spin_ns` of them it
    /// has spun as long as a waiting call does before it yields.
    pub fn in_vain(&self, patience: &Patience) {
        // Threads that poll at the same time may lose counts; it is only a measure.
        let polls = self.0.load(Ordering::Relaxed);
        self.0.store(polls + 1, Ordering::Relaxed);
        if polls >= patience.spin_ns.max(patience.checks.into()) {
            std::thread::yield_now();
        }
    }
}

/// Processors this process may use: its affinity mask, or less where a cgroup has a quota.
pub fn usable_cpus() -> usize {
    // The standard library counts the affinity mask and the cgroup quota.
    std::thread::available_parallelism().map_or(1, usize::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Patience = Patience {
        checks: 1,
        spin_ns: 1,
        yield_ns: 1_000_000,
        sleep_max: Duration::from_millis(1),
    };

    /// Says what it is told to see, and counts.
    struct Scripted<F: FnMut(u32) -> Seen> {
        see: F,
        sleeps: u32,
        looks_around: u32,
    }

    impl<F: FnMut(u32) -> Seen> Awaited for Scripted<F> {
        fn look(&mut self) -> Seen {
            // The second look around ends all.
            if self.looks_around > 1 { Seen::End } else { (self.see)(self.sleeps) }
        }

        fn sleep(&mut self, longest: Duration) -> bool {
            std::thread::sleep(longest);
            self.sleeps += 1;
            false
        }

        fn every_so_often(&mut self) {
            self.looks_around += 1;
        }
    }

    fn wait(see: impl FnMut(u32) -> Seen) -> (u32, u32) {
        let mut scripted = Scripted { see, sleeps: 0, looks_around: 0 };
        PATIENCE.wait(&mut scripted);
        (scripted.sleeps, scripted.looks_around)
    }

    #[test]
    fn a_wait_looks_around_while_it_sleeps_and_while_things_arrive() {
        let (sleeps, looks) = wait(|_| Seen::Nothing);
        assert!(sleeps > 0 && looks == 2);
        assert_eq!(wait(|_| Seen::Arrival), (0, 2));
    }

    #[test]
    fn what_arrives_ends_the_sleep_for_a_while() {
        // One arrival, after the first sleep; then as many looks as yielding for a millisecond gives.
        let (mut arrived, mut looks) = (None, 0);
        let end = |sleeps: u32| {
            looks += u32::from(arrived.is_some());
            match (sleeps, arrived) {
                (1, None) => {
                    arrived = Some(monotonic_ns());
                    Seen::Arrival
                }
                (2.., Some(_)) => Seen::End,
                _ => Seen::Nothing,
            }
        };
        let begun = monotonic_ns();
        assert_eq!(wait(end), (2, 0));
        let polled = monotonic_ns() - arrived.expect("it was slept once");
        assert!(looks > 0 && polled >= PATIENCE.yield_ns, "{looks} looks, {polled} ns");
        assert!(begun < arrived.expect("as above"));
    }
}
