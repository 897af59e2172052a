// SPDX-License-Identifier: Apache-2.0
//! Measuring at one point, through the library.

use super::timing::{self, Meter, Sampling, Times};
use super::{Pe, Point, Word, api::*};
use crate::catalogue::{Kind, Test};
use std::ffi::c_long;
use std::hint::black_box;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Threads of the test of contexts.
pub const THREADS_MAX: usize = 4;
/// Puts of a series.
const WINDOW: usize = 64;
/// Times that longer measurements are repeated.
const SLICES: u32 = 5;
/// A put that takes so long is waited for by itself.
const LONG: Duration = Duration::from_micros(20);

/// Puts of a series of this size: fewer where the buffer holds fewer.
pub fn window(size: usize, room: usize) -> usize {
    (4 * room.max(1 << 20) / size.max(1)).clamp(4, WINDOW)
}

impl Pe {
    /// Takes the times of a test; PE 0 has them. Collective. Errors: a PE received wrong bytes.
    pub fn measure(&self, test: &Test, x: u64) -> Result<Option<Point>, String> {
        let size = x as usize;
        let times = match test.name {
            "put" => self.alone(|| self.put(size)),
            "get" => self.alone(|| self.get(size)),
            "iput" | "iget" => self.alone(|| self.strided(test.name, size)),
            "fetch_add" | "add" | "compare_swap" => self.alone(|| self.amo(test.name)),
            "rate" => {
                let window = window(size, self.room);
                self.alone(|| self.series(size, window)).map(|times| times.divided(window as f64))
            }
            "bibw" => self.both_ways(size),
            "overlap" => return Ok(self.overlap(test, x)),
            "signal" => self.signal(size),
            "contexts" => return Ok(self.contexts(test, x)),
            _ => self.collective(test.name, size),
        };
        if matches!(test.name, "put" | "get") {
            self.check(test.name, size)?;
        }
        Ok(times.map(|times| point(test, x, &times)))
    }

    /// Times of what PE 0 does alone, while the others wait in a barrier.
    fn alone(&self, operation: impl FnMut()) -> Option<Times> {
        self.barrier();
        let times = (self.me == 0).then(|| timing::alone(self.budget, operation));
        self.barrier();
        times
    }

    fn put(&self, size: usize) {
        // SAFETY: both buffers hold the largest size.
        unsafe {
            shmem_putmem(self.dest.cast(), self.source.cast(), size, self.peer as i32);
            shmem_quiet();
        }
    }

    fn get(&self, size: usize) {
        // SAFETY: as in `put`.
        unsafe { shmem_getmem(self.dest.cast(), self.source.cast(), size, self.peer as i32) };
    }

    /// Every second word of the other PE.
    fn strided(&self, name: &str, size: usize) {
        let (to, from) = (self.dest.cast::<c_long>(), self.source.cast::<c_long>());
        let (count, peer) = (size / size_of::<c_long>(), self.peer as i32);
        // SAFETY: both buffers hold the largest size for each of two PEs at least.
        unsafe {
            match name {
                "iput" => {
                    shmem_long_iput(to, from, 2, 1, count, peer);
                    shmem_quiet();
                }
                _ => shmem_long_iget(to, from, 1, 2, count, peer),
            }
        }
    }

    fn amo(&self, name: &str) {
        let (word, peer) = (self.word(Word::Atomic), self.peer as i32);
        // SAFETY: a symmetric word of its own.
        unsafe {
            match name {
                "fetch_add" => {
                    black_box(shmem_long_atomic_fetch_add(word, 1, peer));
                }
                "add" => {
                    shmem_long_atomic_add(word, 1, peer);
                    shmem_quiet();
                }
                _ => {
                    black_box(shmem_long_atomic_compare_swap(word, 0, 0, peer));
                }
            }
        }
    }

    /// Non-blocking puts, side by side as far as there is room, and a quiet.
    fn series(&self, size: usize, window: usize) {
        let other = if self.me == 0 { self.peer } else { 0 };
        let places = (self.room / size.max(1)).max(1);
        for k in 0..window {
            let at = k % places * size;
            // SAFETY: the places lie in the buffers.
            unsafe {
                let (to, from) = (self.dest.wrapping_add(at), self.source.wrapping_add(at));
                shmem_putmem_nbi(to.cast(), from.cast(), size, other as i32);
            }
        }
        // SAFETY: the library is initialised.
        unsafe { shmem_quiet() };
    }

    /// Times per put of both PEs together, while both send.
    fn both_ways(&self, size: usize) -> Option<Times> {
        let window = window(size, self.room);
        self.barrier();
        let each = if self.in_pair() {
            timing::estimate(|| self.series(size, window))
        } else {
            Duration::ZERO
        };
        let slice = (self.budget / SLICES).as_nanos() as u64;
        let count = self.agree((slice / each.as_nanos().max(1) as u64).max(1));
        let (mut values, mut meter) = (Vec::new(), Meter::new());
        let puts = count * window as u64;
        for _ in 0..SLICES {
            self.barrier();
            let before = timing::cpu();
            let begun = Instant::now();
            if self.in_pair() {
                (0..count).for_each(|_| self.series(size, window));
            }
            // Until the other one is done too.
            self.barrier();
            values.push(begun.elapsed().as_nanos() as f64 / (2 * puts) as f64);
            meter.add_since(before);
        }
        let cpu = meter.ns_of(u64::from(SLICES) * puts);
        (self.me == 0).then(|| Times::new(values, Some(cpu)))
    }

    /// Half the time of a put with a signal there and one back.
    fn signal(&self, size: usize) -> Option<Times> {
        let word = self.word(Word::Signal).cast::<u64>();
        let other = if self.me == 0 { self.peer } else { 0 } as i32;
        // SAFETY: this PE's own word, which only the other PE of the pair writes.
        let mut trip = unsafe { word.read_volatile() };
        let mut once = || {
            trip += 1;
            // SAFETY: symmetric buffers of that size, and a word.
            unsafe {
                let send = || {
                    let (to, from) = (self.dest.cast(), self.source.cast());
                    shmem_putmem_signal(to, from, size, word, trip, SHMEM_SIGNAL_SET, other);
                };
                if self.me == 0 {
                    send();
                }
                shmem_signal_wait_until(word, SHMEM_CMP_GE, trip);
                if self.me != 0 {
                    send();
                }
            }
        };
        const FIRST: u32 = 8;
        self.barrier();
        let begun = Instant::now();
        if self.in_pair() {
            (0..FIRST).for_each(|_| once());
        }
        let plan = self.plan(begun.elapsed() / FIRST);
        let times = self.in_pair().then(|| timing::run(plan, once));
        self.barrier();
        times.filter(|_| self.me == 0).map(|times| times.divided(2.0))
    }

    /// The plan of PE 0. Collective.
    pub fn plan(&self, each: Duration) -> Sampling {
        let Sampling { group, samples } = Sampling::new(self.budget, each);
        Sampling { group: self.agree(group), samples: self.agree(samples) }
    }

    fn collective(&self, name: &str, size: usize) -> Option<Times> {
        let (to, from) = (self.dest.cast(), self.source.cast());
        // As PE 0 is measured, it is not the one that may leave first.
        let root = (self.n - 1) as i32;
        let once = || {
            // SAFETY: the buffers hold the size for each PE.
            let _ = unsafe {
                match name {
                    "barrier" => {
                        shmem_barrier_all();
                        0
                    }
                    "sync" => {
                        shmem_sync_all();
                        0
                    }
                    "broadcast" => shmem_broadcastmem(SHMEM_TEAM_WORLD, to, from, size, root),
                    "fcollect" => shmem_fcollectmem(SHMEM_TEAM_WORLD, to, from, size),
                    "alltoall" => shmem_alltoallmem(SHMEM_TEAM_WORLD, to, from, size),
                    _ => {
                        let (to, from) = (to.cast::<c_long>(), from.cast::<c_long>());
                        shmem_long_sum_reduce(SHMEM_TEAM_WORLD, to, from, size / 8)
                    }
                }
            };
        };
        self.barrier();
        const FIRST: u32 = 4;
        let begun = Instant::now();
        (0..FIRST).for_each(|_| once());
        let plan = self.plan(begun.elapsed() / FIRST);
        let (mut values, mut meter) = (Vec::new(), Meter::new());
        for _ in 0..plan.samples {
            // All begin together.
            self.barrier();
            let before = timing::cpu();
            let begun = Instant::now();
            (0..plan.group).for_each(|_| once());
            values.push(begun.elapsed().as_nanos() as f64 / plan.group as f64);
            meter.add_since(before);
        }
        self.barrier();
        let cpu = meter.ns_of(plan.samples * plan.group);
        (self.me == 0).then(|| Times::new(values, Some(cpu)))
    }

    /// How much of a put is hidden by computing for as long as the put takes.
    fn overlap(&self, test: &Test, x: u64) -> Option<Point> {
        let size = x as usize;
        let begin = || {
            let (to, from) = (self.dest.cast(), self.source.cast());
            // SAFETY: both buffers hold the size.
            unsafe { shmem_putmem_nbi(to, from, size, self.peer as i32) };
        };
        // SAFETY: the library is initialised.
        let end = || unsafe { shmem_quiet() };
        self.barrier();
        let share = (self.me == 0).then(|| {
            let pure = timing::alone(self.budget / 3, || {
                begin();
                end();
            });
            // A loop that takes as long: as many turns as that, by the time of many turns.
            const TURNS: u64 = 20_000;
            let turn = timing::alone(self.budget / 6, || compute(TURNS)).median() / TURNS as f64;
            let turns = (pure.median() / turn).ceil() as u64;
            let alone = timing::alone(self.budget / 6, || compute(turns));
            let computing = alone.median();
            let both = timing::alone(self.budget / 3, || {
                begin();
                compute(turns);
                end();
            });
            let hidden = |both: f64| (1.0 - (both - computing) / pure.median()).clamp(0.0, 1.0);
            let values = both.kept().into_iter().map(|both| 100.0 * hidden(both)).collect();
            let put = both.cpu_ns.zip(alone.cpu_ns).map(|(both, alone)| (both - alone).max(0.0));
            Times::new(values, put)
        });
        self.barrier();
        share.map(|times| Point {
            test: test.name.to_owned(),
            x,
            values: times.kept(),
            tail: vec![],
            cpu_us: times.cpu_ns.map(|ns| ns / 1e3),
            ceiling: None,
        })
    }

    /// Million 8-byte puts per second of several threads together.
    fn contexts(&self, test: &Test, x: u64) -> Option<Point> {
        self.barrier();
        let measured = (self.me == 0).then(|| self.threads(x as usize));
        self.barrier();
        measured.map(|(values, cpu_ns)| Point {
            test: test.name.to_owned(),
            x,
            values: crate::stats::sorted(values),
            tail: vec![],
            cpu_us: Some(cpu_ns / 1e3),
            ceiling: None,
        })
    }

    /// The rates of slices, and the processor time of all threads for a put.
    fn threads(&self, count: usize) -> (Vec<f64>, f64) {
        let slice = self.budget / SLICES;
        let first = self.word(Word::Threads) as usize;
        let (together, puts) = (Barrier::new(count), AtomicU64::new(0));
        let peer = self.peer as i32;
        let body = |thread: usize| {
            let word = (first + thread * super::LINE) as *mut c_long;
            let mut context = 0;
            // SAFETY: the context is used by this thread alone, and the word too.
            unsafe {
                let made = shmem_ctx_create(SHMEM_CTX_PRIVATE, &mut context);
                let value = 1 as c_long;
                let put = || {
                    let from = (&raw const value).cast();
                    shmem_ctx_putmem_nbi(context, word.cast(), from, 8, peer);
                };
                // Where a put takes long, the clock is looked at after each.
                let begun = Instant::now();
                if made == 0 {
                    put();
                }
                let series = if begun.elapsed() > LONG { 1 } else { WINDOW };
                // Every thread has to come to the barriers below, also one without a context.
                let (mut rates, mut meter, mut total) = (Vec::new(), Meter::new(), 0);
                for _ in 0..SLICES {
                    together.wait();
                    puts.store(0, Ordering::Relaxed);
                    let before = timing::cpu();
                    together.wait();
                    let (begun, mut own) = (Instant::now(), 0u64);
                    while made == 0 && begun.elapsed() < slice {
                        (0..series).for_each(|_| put());
                        shmem_ctx_quiet(context);
                        own += series as u64;
                    }
                    puts.fetch_add(own, Ordering::Relaxed);
                    let took = begun.elapsed();
                    together.wait();
                    meter.add_since(before);
                    let all = puts.load(Ordering::Relaxed);
                    rates.push(all as f64 / took.as_secs_f64() / 1e6);
                    total += all;
                }
                if made == 0 {
                    shmem_ctx_destroy(context);
                }
                (rates, meter.ns_of(total))
            }
        };
        std::thread::scope(|scope| {
            let body = &body;
            let others: Vec<_> = (1..count).map(|k| scope.spawn(move || body(k))).collect();
            let measured = body(0);
            others.into_iter().for_each(|other| drop(other.join()));
            measured
        })
    }

    /// Whether the bytes of the last put or get are those of the source.
    fn check(&self, name: &str, size: usize) -> Result<(), String> {
        // Of another pattern than what was moved before.
        let mark = (size % 253) as u8 ^ 0x5a;
        let content = |at: usize| (at % 249) as u8 ^ mark;
        self.barrier();
        // SAFETY: this PE's own buffers, between barriers.
        unsafe { (0..size).for_each(|at| self.source.add(at).write(content(at))) };
        self.barrier();
        if self.me == 0 {
            if name == "put" { self.put(size) } else { self.get(size) }
        }
        self.barrier();
        let receiver = if name == "put" { self.peer } else { 0 };
        // SAFETY: as above.
        let wrong =
            unsafe { (0..size).find(|at| self.dest.add(*at).read_volatile() != content(*at)) };
        match wrong.filter(|_| self.me == receiver) {
            Some(at) => {
                Err(format!("PE {receiver} has a wrong byte {at} after a {name} of {size}"))
            }
            None => Ok(()),
        }
    }
}

/// Work that needs nothing but the processor.
fn compute(turns: u64) {
    let mut value = 1u64;
    for turn in 0..turns {
        value = black_box(value.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(turn));
    }
}

fn point(test: &Test, x: u64, times: &Times) -> Point {
    let value = |ns: f64| in_unit(test.kind, x, ns);
    let mut values: Vec<f64> = times.kept().into_iter().map(value).collect();
    values.sort_unstable_by(f64::total_cmp);
    let tail = if test.kind == Kind::Latency { times.tail() } else { vec![] };
    Point {
        test: test.name.to_owned(),
        x,
        values,
        tail: tail.into_iter().map(value).collect(),
        cpu_us: times.cpu_ns.map(|ns| ns / 1e3),
        ceiling: None,
    }
}

/// Nanoseconds of one operation in the unit of a test.
pub fn in_unit(kind: Kind, size: u64, ns: f64) -> f64 {
    match kind {
        Kind::Latency => ns / 1e3,
        // Bytes per nanosecond are thousands of MB/s.
        Kind::Bandwidth => size as f64 / ns * 1e3,
        Kind::Rate => 1e3 / ns,
        Kind::Share => ns,
    }
}
