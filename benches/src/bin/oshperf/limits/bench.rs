// SPDX-License-Identifier: Apache-2.0
//! How each limit is measured: times of one operation.

use crate::pe::timing::{self, Sampling, Times};
use crate::raw::{self, End};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, Pid, fork, pause};
use std::hint::black_box;
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Bytes of a stream before its receiver answers, at least.
const STREAM: usize = 1 << 20;

/// Buffers and helpers.
pub struct Bench {
    budget: Duration,
    from: Vec<u8>,
    to: Vec<u8>,
    /// Another process, with buffers at the same addresses.
    process: Option<Pid>,
    connection: Option<(TcpStream, TcpStream)>,
}

/// What several threads write lies in lines of its own.
#[repr(align(128))]
#[derive(Default)]
struct CacheLine(AtomicU64);

impl Bench {
    /// For sizes up to `room`.
    pub fn new(budget: Duration, room: usize) -> Bench {
        let [from, to] = [1u8, 2].map(|byte| vec![byte; room + 16]);
        Bench { budget, from, to, process: None, connection: None }
    }

    /// Buffers; the second one at a multiple of 16.
    fn buffers(&mut self) -> (*const u8, *mut u8) {
        let to = self.to.as_mut_ptr();
        (self.from.as_ptr(), to.wrapping_add(to.align_offset(16)))
    }

    fn process(&mut self) -> Result<Pid, String> {
        if let Some(process) = self.process {
            return Ok(process);
        }
        // SAFETY: the child calls nothing but prctl and pause.
        match unsafe { fork() } {
            Ok(ForkResult::Child) => {
                // It ends with its parent, however that ends.
                let _ = nix::sys::prctl::set_pdeathsig(Signal::SIGKILL);
                loop {
                    pause();
                }
            }
            Ok(ForkResult::Parent { child }) => {
                self.process = Some(child);
                Ok(child)
            }
            Err(why) => Err(format!("fork: {why}")),
        }
    }

    fn connection(&mut self) -> Result<(&TcpStream, &TcpStream), String> {
        if self.connection.is_none() {
            self.connection = Some(connect().map_err(|why| why.to_string())?);
        }
        let (near, far) = self.connection.as_ref().expect("just made");
        Ok((near, far))
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        if let Some(process) = self.process {
            let _ = kill(process, Signal::SIGKILL);
            let _ = waitpid(process, None);
        }
    }
}

fn connect() -> std::io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let near = TcpStream::connect(listener.local_addr()?)?;
    let (far, _) = listener.accept()?;
    raw::prepare(&near)?;
    raw::prepare(&far)?;
    Ok((near, far))
}

/// A copy through the caches.
pub fn copy(bench: &mut Bench, size: usize) -> Result<Times, String> {
    let (from, to) = bench.buffers();
    // SAFETY: both buffers are as long.
    Ok(timing::alone(bench.budget, || unsafe { raw::copy(to, from, size) }))
}

/// A copy past them.
pub fn streaming(bench: &mut Bench, size: usize) -> Result<Times, String> {
    let (from, to) = bench.buffers();
    // SAFETY: both buffers are as long.
    Ok(timing::alone(bench.budget, || unsafe { raw::copy_streaming(to, from, size) }))
}

/// A copy by the kernel to another process.
pub fn cma(bench: &mut Bench, size: usize) -> Result<Times, String> {
    let process = bench.process()?.as_raw();
    let (budget, to) = (bench.budget, bench.to.as_ptr() as usize);
    let from = &bench.from[..size];
    raw::cma_write(process, to, from).map_err(|why| why.to_string())?;
    let mut failed = false;
    let times = timing::alone(budget, || failed |= raw::cma_write(process, to, from).is_err());
    if failed { Err("the other process has gone".to_owned()) } else { Ok(times) }
}

/// Half a message there and the same back.
pub fn tcp(bench: &mut Bench, size: usize) -> Result<Times, String> {
    exchanges(bench, (size, size), 2)
}

/// One of many messages of a stream that is acknowledged at its end.
pub fn tcp_stream(bench: &mut Bench, size: usize) -> Result<Times, String> {
    let messages = STREAM.div_ceil(size);
    exchanges(bench, (size * messages, 1), messages)
}

/// The time of one of `parts` parts of an exchange between two threads.
fn exchanges(bench: &mut Bench, bytes: (usize, usize), parts: usize) -> Result<Times, String> {
    let budget = bench.budget;
    let (near, far) = bench.connection()?;
    let [mut own, mut other] = [(); 2].map(|()| vec![7u8; bytes.0.max(bytes.1)]);
    let rounds = |stream: &TcpStream, end, count, buffer: &mut [u8]| {
        raw::exchange(stream, end, count, bytes, buffer).map_err(|why| why.to_string())
    };
    let mut both = |count: u64| {
        thread::scope(|scope| {
            let answers = scope.spawn(|| rounds(far, End::Answerer, count, &mut other));
            let mut values = Vec::new();
            for _ in 0..count {
                let begun = Instant::now();
                rounds(near, End::Caller, 1, &mut own)?;
                values.push(begun.elapsed().as_nanos() as f64 / parts as f64);
            }
            answers.join().map_err(|_| "the answering thread ended".to_owned())??;
            Ok(values)
        })
    };
    const FIRST: u64 = 8;
    let begun = Instant::now();
    both(FIRST)?;
    let plan = Sampling::new(budget, begun.elapsed() / FIRST as u32);
    both(plan.samples).map(|values| Times::new(values, None))
}

/// An atomic addition of one thread.
pub fn xadd(bench: &mut Bench, _: usize) -> Result<Times, String> {
    let word = CacheLine::default();
    let add = || {
        black_box(word.0.fetch_add(1, Ordering::SeqCst));
    };
    Ok(timing::alone(bench.budget, add))
}

/// The same while another thread does it too.
pub fn contended(bench: &mut Bench, _: usize) -> Result<Times, String> {
    let (word, done) = (CacheLine::default(), AtomicBool::new(false));
    let add = || {
        black_box(word.0.fetch_add(1, Ordering::SeqCst));
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                add();
            }
        });
        let times = timing::alone(bench.budget, add);
        done.store(true, Ordering::Relaxed);
        Ok(times)
    })
}

/// Half a word there and a word back, between two threads.
pub fn line(bench: &mut Bench, _: usize) -> Result<Times, String> {
    let (there, back, done) = (CacheLine::default(), CacheLine::default(), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut trip = 1;
            while !done.load(Ordering::Relaxed) {
                if there.0.load(Ordering::Acquire) >= trip {
                    back.0.store(trip, Ordering::Release);
                    trip += 1;
                }
                std::hint::spin_loop();
            }
        });
        let mut trip = 0;
        let times = timing::alone(bench.budget, || {
            trip += 1;
            there.0.store(trip, Ordering::Release);
            raw::await_word(&back.0, trip);
        });
        done.store(true, Ordering::Relaxed);
        Ok(times.divided(2.0))
    })
}

/// A plain store, one of those that a processor does one after another.
pub fn store(bench: &mut Bench, _: usize) -> Result<Times, String> {
    let word = CacheLine::default();
    Ok(timing::alone(bench.budget, || black_box(&word).0.store(black_box(1), Ordering::Relaxed)))
}

/// A plain load from the first cache.
pub fn load(bench: &mut Bench, _: usize) -> Result<Times, String> {
    let word = CacheLine::default();
    let load = || {
        black_box(black_box(&word).0.load(Ordering::Relaxed));
    };
    Ok(timing::alone(bench.budget, load))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each way of measuring comes to its end with sound times, or says why not.
    #[test]
    fn every_limit_is_measured() {
        let mut bench = Bench::new(Duration::from_micros(100), 4096);
        for measure in [copy, streaming, tcp, tcp_stream, xadd, contended, line, store, load] {
            assert!(measure(&mut bench, 64).unwrap().median() >= 0.0);
        }
        // A machine may forbid it.
        match cma(&mut bench, 64) {
            Ok(times) => assert!(times.median() > 0.0),
            Err(why) => assert!(!why.is_empty()),
        }
    }
}
