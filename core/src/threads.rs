// SPDX-License-Identifier: Apache-2.0
//! Threads of the library beside those of the program.

use nix::sched::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use nix::sys::signal::{SigSet, SigmaskHow, pthread_sigmask};
use nix::unistd::{Pid, gettid};
use std::cell::Cell;
use std::fs::File;
use std::io::{self, Read};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::{Builder, JoinHandle};

/// Threads of the library that run, and zeros. Without locks and allocated memory, for which some of them must not wait.
static RUNNING: [AtomicU32; 256] = [const { AtomicU32::new(0) }; 256];

/// Starts a thread that takes no signals: these are for the program's own threads.
pub fn spawn_without_signals(
    name: &str,
    run: impl FnOnce() + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    without_signals(|| Builder::new().name(name.into()).spawn(|| of_library(run)))
}

/// Why there may be no more threads, or no more processes.
pub const NO_MORE: &str = "the limit on processes (see ulimit -u, and pids.max of the cgroup) or on address space \
    (ulimit -v) is reached";

/// Has `start` start a thread that takes no signals. Where there may be no more threads, the error says so.
pub fn without_signals<T>(start: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let mut before = SigSet::empty();
    pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::all()), Some(&mut before))?;
    let started = start();
    pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&before), None)?;
    started.map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => io::Error::new(error.kind(), NO_MORE),
        _ => error,
    })
}

/// What a thread of the library does: [`is_of_library`] is true of it meanwhile.
pub fn of_library(run: impl FnOnce()) {
    let _listed = Listed::now();
    run();
}

/// Whether a thread of this process is one of the library that runs.
pub fn is_of_library(thread: u32) -> bool {
    RUNNING.iter().any(|running| running.load(Ordering::Relaxed) == thread)
}

/// A thread of the library, as long as it runs: its number may be one of the program's afterwards.
struct Listed(u32);

impl Listed {
    /// This thread.
    fn now() -> Listed {
        let thread = gettid().as_raw().cast_unsigned();
        replace(0, thread);
        Listed(thread)
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        replace(self.0, 0);
    }
}

fn replace(old: u32, new: u32) {
    let order = Ordering::Relaxed;
    let _ = RUNNING.iter().find(|running| running.compare_exchange(old, new, order, order).is_ok());
}

/// The processor that this thread runs on; one that there is not where that cannot be told.
pub fn processor() -> usize {
    sched_getcpu().unwrap_or(usize::MAX)
}

thread_local! {
    /// What [`waited_for_processor_ns`] has told so far.
    static WAITED_NS: Cell<u64> = const { Cell::new(0) };
}

/// How long this thread could have run and had no processor, since it last asked; 0 where the system does
/// not tell. Takes some system calls.
pub fn waited_for_processor_ns() -> u64 {
    let mut text = [0; 96];
    let read = File::open("/proc/thread-self/schedstat").and_then(|mut file| file.read(&mut text));
    // Nanoseconds on a processor, nanoseconds waited for one, turns.
    let text = text.get(..read.unwrap_or(0)).and_then(|text| str::from_utf8(text).ok());
    let waited = text.and_then(|text| text.split_whitespace().nth(1)?.parse().ok());
    let waited: u64 = waited.unwrap_or(0);
    waited.saturating_sub(WAITED_NS.replace(waited))
}

/// The processors that a thread may use.
pub struct Processors(Option<CpuSet>);

impl Processors {
    /// Those of this thread.
    pub fn of_thread() -> Processors {
        Processors(sched_getaffinity(Pid::from_raw(0)).ok())
    }

    /// If this thread is on `processor`, it moves to another one and keeps off this one. In virtual machines
    /// the system leaves threads on one processor taking turns while another has nothing to do. Where there
    /// is no other processor the thread stays, and no later call tries again.
    pub fn leave(&mut self, processor: usize) {
        let Some(mut others) = self.0.filter(|_| sched_getcpu() == Ok(processor)) else { return };
        if others.unset(processor).is_err() || sched_setaffinity(Pid::from_raw(0), &others).is_err()
        {
            self.0 = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::signal::Signal;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Arc, mpsc};
    use std::time::{Duration, Instant};

    /// Two threads want one processor: each waits for about half of the time.
    #[test]
    fn waiting_for_a_processor_is_told() {
        const LONG: Duration = Duration::from_millis(200);
        std::thread::spawn(|| {
            let mut one = CpuSet::new();
            one.set(processor()).unwrap();
            sched_setaffinity(Pid::from_raw(0), &one).unwrap();
            let stop = Arc::new(AtomicBool::new(false));
            let stopped = stop.clone();
            // It inherits the processor.
            let other = std::thread::spawn(move || {
                while !stopped.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
            waited_for_processor_ns();
            let begun = Instant::now();
            while begun.elapsed() < LONG {
                std::hint::spin_loop();
            }
            let asked = Instant::now();
            let (waited, again) = (waited_for_processor_ns(), waited_for_processor_ns());
            let passed = asked.elapsed().as_nanos() as u64;
            stop.store(true, Ordering::Relaxed);
            other.join().unwrap();
            match File::open("/proc/thread-self/schedstat") {
                Ok(_) => assert!(waited > LONG.as_nanos() as u64 / 10, "{waited} ns"),
                Err(_) => assert_eq!(waited, 0),
            }
            assert!(again <= passed, "{again} ns in {passed}: what was told is told again");
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_thread_of_the_library_is_known_as_long_as_it_runs_and_takes_no_signals() {
        let (told, number) = mpsc::channel();
        let (end, ends) = mpsc::channel::<()>();
        let thread = spawn_without_signals("test", move || {
            let mut mask = SigSet::empty();
            pthread_sigmask(SigmaskHow::SIG_SETMASK, None, Some(&mut mask)).unwrap();
            told.send((gettid().as_raw().cast_unsigned(), mask)).unwrap();
            let _ = ends.recv();
        });
        let (number, mask) = number.recv().unwrap();
        assert!(mask.contains(Signal::SIGUSR1) && mask.contains(Signal::SIGTERM));
        assert!(is_of_library(number) && !is_of_library(gettid().as_raw().cast_unsigned()));
        drop(end);
        thread.unwrap().join().unwrap();
        assert!(!is_of_library(number));
    }

    #[test]
    fn a_thread_keeps_off_a_processor_where_it_may_use_another() {
        let me = Pid::from_raw(0);
        let all = sched_getaffinity(me).unwrap();
        let mut processors = Processors::of_thread();
        let count =
            |set: &CpuSet| (0..CpuSet::count()).filter(|at| set.is_set(*at) == Ok(true)).count();
        // One after the other: all but the last are allowed again.
        for _ in 0..3 {
            let here = processor();
            processors.leave(here);
            match count(&all) {
                1 => assert_eq!(processor(), here),
                several => {
                    let now = sched_getaffinity(me).unwrap();
                    assert_eq!((count(&now), now.is_set(here)), (several - 1, Ok(false)));
                    assert_ne!(processor(), here);
                }
            }
        }
        let before = sched_getaffinity(me).unwrap();
        processors.leave(usize::MAX);
        assert_eq!(sched_getaffinity(me).unwrap(), before, "it was not there");
        // Where there is one alone it stays.
        let mut one = CpuSet::new();
        one.set(processor()).unwrap();
        sched_setaffinity(me, &one).unwrap();
        let mut processors = Processors::of_thread();
        processors.leave(processor());
        assert_eq!(sched_getaffinity(me).unwrap(), one);
        sched_setaffinity(me, &all).unwrap();
    }
}
