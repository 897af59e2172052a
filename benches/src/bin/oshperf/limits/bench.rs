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
use tombolo_core::config::Config;
use tombolo_core::transport::{Job, Locality};
use tombolo_transports::Alone;

/// Bytes of a stream before its receiver answers, at least.
const STREAM: usize = 1 << 20;
/// Puts of a series at most.
const SERIES: usize = 512;

/// Buffers and helpers.
pub struct Bench {
    budget: Duration,
    from: Vec<u8>,
    to: Vec<u8>,
    /// Another process, with buffers at the same addresses.
    process: Option<Pid>,
    connection: Option<(TcpStream, TcpStream)>,
    networks: Vec<Network>,
}

/// Both ends of a network of others in this process, or why there is none.
struct Network {
    transport: &'static str,
    ends: Result<[Box<dyn Alone>; 2], String>,
}

/// What several threads write lies in lines of its own.
#[repr(align(128))]
#[derive(Default)]
struct CacheLine(AtomicU64);

impl Bench {
    /// For sizes up to `room`.
    pub fn new(budget: Duration, room: usize) -> Bench {
        let [from, to] = [1u8, 2].map(|byte| vec![byte; room + 16]);
        Bench { budget, from, to, process: None, connection: None, networks: Vec::new() }
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

    /// The two ends of the network that a transport would use on this machine.
    fn network(&mut self, transport: &'static str) -> Result<&mut [Box<dyn Alone>; 2], String> {
        let known = self.networks.iter().position(|network| network.transport == transport);
        let at = known.unwrap_or_else(|| {
            let ends = open(transport, self.from.len());
            self.networks.push(Network { transport, ends });
            self.networks.len() - 1
        });
        self.networks[at].ends.as_mut().map_err(|why| why.clone())
    }

    /// Uses a network no more.
    fn give_up(&mut self, transport: &str, why: &str) {
        for network in self.networks.iter_mut().filter(|network| network.transport == transport) {
            network.ends = Err(why.to_owned());
        }
    }

    /// What a network that was measured is, in a few words.
    pub fn medium(&self, transport: &str) -> Option<String> {
        let network = self.networks.iter().find(|network| network.transport == transport)?;
        network.ends.as_ref().ok().map(|[near, _]| near.medium().to_owned())
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

/// Two ends that know each other, as two PEs of this machine would have them.
fn open(transport: &'static str, room: usize) -> Result<[Box<dyn Alone>; 2], String> {
    let text = |text: std::ffi::OsString| text.to_string_lossy().into_owned();
    let variables = std::env::vars_os().map(|(name, value)| (text(name), text(value)));
    let variables = variables.chain([("SHMEM_TRANSPORTS".to_owned(), transport.to_owned())]);
    let config =
        Config::from_environment(variables.collect()).map_err(|error| error.to_string())?;
    let localities = [(); 2].map(|()| Locality::alone_on(0));
    let open = |pe| {
        let job = Job { pe, localities: &localities, config: &config, meeting: None };
        tombolo_transports::alone(transport, &job, room).ok_or("it has no network of others")?
    };
    let [mut near, mut far] = [open(0)?, open(1)?];
    near.meet(&far.card()?)?;
    far.meet(&near.card()?)?;
    Ok([near, far])
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

/// A put by libfabric's provider until it can be read at its target.
pub fn libfabric(bench: &mut Bench, size: usize) -> Result<Times, String> {
    puts(bench, "ofi", size, 1)
}

/// One of many such puts.
pub fn libfabric_stream(bench: &mut Bench, size: usize) -> Result<Times, String> {
    puts(bench, "ofi", size, STREAM.div_ceil(size).min(SERIES))
}

/// A put by an RDMA card until it can be read at its target.
pub fn card(bench: &mut Bench, size: usize) -> Result<Times, String> {
    puts(bench, "verbs", size, 1)
}

/// One of many such puts.
pub fn card_stream(bench: &mut Bench, size: usize) -> Result<Times, String> {
    puts(bench, "verbs", size, STREAM.div_ceil(size).min(SERIES))
}

/// The time of one of `count` puts under way at a time. Another thread lends the target its processor.
fn puts(
    bench: &mut Bench,
    transport: &'static str,
    size: usize,
    count: usize,
) -> Result<Times, String> {
    /// Looks at the target before others may need its processor.
    const LOOKS: u32 = 32;
    let budget = bench.budget;
    let [near, far] = bench.network(transport)?;
    let done = AtomicBool::new(false);
    let times: Result<Times, String> = thread::scope(|scope| {
        let target = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                for _ in 0..LOOKS {
                    far.told()?;
                }
                thread::yield_now();
            }
            Ok::<(), String>(())
        });
        let mut put = Ok(());
        let times = timing::alone(budget, || {
            if put.is_ok() {
                put = near.put(size, count);
            }
        });
        done.store(true, Ordering::Relaxed);
        target.join().map_err(|_| "the target's thread ended".to_owned())??;
        put.map(|()| times.divided(count as f64))
    });
    // Later tables name this reason, too.
    times.inspect_err(|why| bench.give_up(transport, why))
}

/// An atomic addition of one thread.
pub fn xadd(bench: &mut Bench, _: usize) -> Result<Times, String> {
    let word = CacheLine::default();
    let add = || {
        black_box(word.0.fetch_add(1, Ordering::SeqCst));
    };
    Ok(timing::alone(bench.budget, add))
}

/// The same while another thread does it too: the mean of each batch in which that is so. A core keeps the line for
/// many additions before the other one gets it, so that the times of a few would be those of one thread alone.
pub fn contended(bench: &mut Bench, _: usize) -> Result<Times, String> {
    /// Additions between two looks at the clock.
    const LOOK: u64 = 64;
    const PART: Duration = Duration::from_micros(25);
    /// For the other thread to get a processor.
    const PATIENCE: Duration = Duration::from_secs(2);
    let [word, others] = [(); 2].map(|()| CacheLine::default());
    let done = AtomicBool::new(false);
    let add = || {
        black_box(word.0.fetch_add(1, Ordering::SeqCst));
    };
    let part = || {
        let (before, begun, mut count) = (others.0.load(Ordering::Relaxed), Instant::now(), 0);
        loop {
            (0..LOOK).for_each(|_| add());
            count += LOOK;
            let took = begun.elapsed();
            if took >= PART {
                let theirs = others.0.load(Ordering::Relaxed) - before;
                return Part { count, theirs, took };
            }
        }
    };
    let values = thread::scope(|scope| {
        scope.spawn(|| {
            let mut count = 0;
            while !done.load(Ordering::Relaxed) {
                add();
                count += 1;
                others.0.store(count, Ordering::Relaxed);
            }
        });
        let (mut values, mut measured) = (Vec::new(), Duration::ZERO);
        let begun = Instant::now();
        while (measured < bench.budget || values.len() < LEAST)
            && begun.elapsed() < 4 * bench.budget + PATIENCE
        {
            if let Some((mean, took)) = mean(&[(); 4].map(|()| part())) {
                values.push(mean);
                measured += took;
            }
        }
        done.store(true, Ordering::Relaxed);
        values
    });
    match values.len() {
        ..LEAST => Err("the two threads hardly ever ran at the same time: there are too few idle \
                        processors"
            .to_owned()),
        _ => Ok(Times::new(values, None)),
    }
}

/// Batches in which two threads must have met.
const LEAST: usize = 3;

/// A part of a batch: the additions of this thread and of the other one, and the time.
struct Part {
    count: u64,
    theirs: u64,
    took: Duration,
}

/// Nanoseconds for an addition of this thread, and the time of the whole batch; None if the other thread did not
/// add in every part of it as well. Where both have one processor in turns it adds in none, or much in one.
fn mean(batch: &[Part]) -> Option<(f64, Duration)> {
    let both = |part: &Part| (part.count / 10..=10 * part.count).contains(&part.theirs);
    let (count, took): (u64, Duration) =
        (batch.iter().map(|part| part.count).sum(), batch.iter().map(|part| part.took).sum());
    batch.iter().all(both).then(|| (took.as_nanos() as f64 / count as f64, took))
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
        for measure in [copy, streaming, tcp, tcp_stream, xadd, line, store, load] {
            assert!(measure(&mut bench, 64).unwrap().median() >= 0.0);
        }
        // A machine may forbid it, be too busy, or have no such network.
        for measure in [cma, contended, libfabric, libfabric_stream, card, card_stream] {
            match measure(&mut bench, 64) {
                Ok(times) => assert!(times.median() > 0.0),
                Err(why) => assert!(!why.is_empty()),
            }
        }
    }

    #[test]
    fn a_batch_counts_if_the_other_thread_adds_all_the_time() {
        let took = Duration::from_nanos(1000);
        let batch = |theirs: [u64; 2]| theirs.map(|theirs| Part { count: 100, theirs, took });
        let (mean_ns, whole) = mean(&batch([80, 130])).unwrap();
        assert_eq!((mean_ns, whole), (10.0, 2 * took));
        for theirs in [[0, 0], [0, 100], [100, 9], [100, 5000]] {
            assert!(mean(&batch(theirs)).is_none(), "{theirs:?}");
        }
    }
}
