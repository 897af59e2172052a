// SPDX-License-Identifier: Apache-2.0
//! Times of routes that take turns.

use super::{Local, Op};
use std::cell::Cell;
use std::time::{Duration, Instant};
use tombolo_core::World;
use tombolo_core::ops::Mode;
use tombolo_core::random::Random;
use tombolo_core::route::Routes;

const ROUTINE: &str = "oshperf routes";
/// Turns of each route at least.
const TURNS_MIN: usize = 7;
/// Turns of each route at most, in all.
const TURNS_MAX: usize = 200;
/// A turn lasts about this long, so that reading the clock does not count.
const TURN_NS: f64 = 20_000.0;
const REPEATS_MAX: f64 = 2_000.0;
/// Operations before a turn that do not count: they find the caches as another route left them.
const UNTIMED: usize = 3;

/// Memory that operations move bytes between.
pub struct Buffers {
    /// The remote one, as a symmetric address of this PE.
    pub there: *mut u8,
    /// The local one in the heap.
    pub heap: *mut u8,
    /// The local one outside of it.
    pub private: *mut u8,
    /// Bytes of each of them that operations go through in turn; less than one operation's to stay at the start.
    pub room: usize,
    /// Where in them the next operation is, whatever its size: what was used last is still in the caches.
    pub next: Cell<usize>,
}

impl Buffers {
    /// Where the next operation of so many bytes is.
    fn take(&self, bytes: usize) -> usize {
        let stride = bytes.next_multiple_of(64);
        let next = self.next.get().next_multiple_of(stride);
        let at = if next + stride <= self.room { next } else { 0 };
        self.next.set(at + stride);
        at
    }
}

/// What is done, and where.
pub struct Place<'a> {
    world: &'a World,
    /// The operation.
    pub op: Op,
    /// Its bytes.
    pub bytes: usize,
    pe: usize,
    here: *mut u8,
    buffers: &'a Buffers,
}

impl<'a> Place<'a> {
    pub fn new(
        world: &'a World,
        buffers: &'a Buffers,
        local: Local,
        pe: usize,
        op: Op,
        bytes: usize,
    ) -> Place<'a> {
        let here = if local == Local::Heap { buffers.heap } else { buffers.private };
        Place { world, op, bytes, pe, here, buffers }
    }

    /// The buffers of the next operation: the remote one, and the local one.
    fn here_and_there(&self) -> (*mut u8, *mut u8) {
        let at = self.buffers.take(self.bytes);
        (self.buffers.there.wrapping_add(at), self.here.wrapping_add(at))
    }

    /// Carries the operation out by the routes in force and waits for it. Gives the place of the last of several.
    fn perform(&self) -> (*mut u8, *mut u8) {
        let Place { world, op, bytes, pe, .. } = *self;
        let context = world.context();
        let mode = if op == Op::Nbi { Mode::NonBlocking } else { Mode::Blocking };
        let mut place = self.here_and_there();
        for single in 0..op.count() {
            // Each of several has buffers of its own where they are used once.
            if single > 0 {
                place = self.here_and_there();
            }
            let (there, here) = place;
            // SAFETY: both places lie in buffers that hold the largest size, and the PE is one of the job.
            unsafe {
                match op {
                    Op::Get => world.get(context, here, there, bytes, pe, mode, ROUTINE),
                    _ => world.put(context, there, here, bytes, pe, mode, ROUTINE),
                }
            }
        }
        if !context.is_quiet() {
            world.quiet(context, ROUTINE);
        }
        place
    }

    /// Reads a word of each line of what the operation wrote, where it is mapped.
    fn read(&self, (there, here): (*mut u8, *mut u8)) {
        let written = match self.op {
            Op::Get => here,
            _ => self.world.ptr(there, self.pe),
        };
        let word = |line: usize| written.wrapping_add(line * 64).cast::<u64>();
        let lines = if written.is_null() { 0 } else { self.bytes / 64 };
        let sum = (0..lines).fold(0u64, |sum, line| {
            // SAFETY: a word of the buffer, which is mapped and holds the size.
            sum.wrapping_add(unsafe { word(line).read_unaligned() })
        });
        std::hint::black_box(sum);
    }

    /// Nanoseconds of the operation by each of the routes, which take turns for about `budget` each; with
    /// reading what was written, if asked for.
    pub fn in_turns(&self, routes: &[&Routes], budget: Duration, read: bool) -> Vec<f64> {
        let once = || {
            let place = self.perform();
            if read {
                self.read(place);
            }
        };
        let repeats: Vec<u32> = routes
            .iter()
            .map(|routes| {
                self.world.set_routes((*routes).clone());
                once();
                let begun = Instant::now();
                (0..2).for_each(|_| once());
                let each = begun.elapsed().as_nanos() as f64 / 2.0;
                (TURN_NS / each.max(1.0)).clamp(1.0, REPEATS_MAX) as u32
            })
            .collect();
        let mut times = vec![Vec::new(); routes.len()];
        let (begun, whole) = (Instant::now(), budget * routes.len() as u32);
        for turn in 0..TURNS_MAX {
            if turn >= TURNS_MIN && begun.elapsed() >= whole {
                break;
            }
            for way in order(routes.len(), turn) {
                self.world.set_routes(routes[way].clone());
                (0..UNTIMED).for_each(|_| once());
                let begun = Instant::now();
                (0..repeats[way]).for_each(|_| once());
                times[way].push(begun.elapsed().as_nanos() as f64 / f64::from(repeats[way]));
            }
        }
        let each = |times: &mut Vec<f64>| faster_half(times) / self.op.count() as f64;
        times.iter_mut().map(each).collect()
    }
}

/// All of `count`, in an order that is another one in every turn.
fn order(count: usize, turn: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    let mut random = Random::new(turn as u64);
    for left in (1..count).rev() {
        order.swap(left, random.below(left as u64 + 1) as usize);
    }
    order
}

/// The median of the faster half: what disturbs makes slower, never faster.
fn faster_half(times: &mut [f64]) -> f64 {
    times.sort_unstable_by(f64::total_cmp);
    times[times.len().div_ceil(2) / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_route_has_its_turn_and_none_is_always_the_first() {
        let firsts: Vec<usize> = (0..30)
            .map(|turn| {
                let mut order = order(3, turn);
                let first = order[0];
                order.sort_unstable();
                assert_eq!(order, [0, 1, 2]);
                first
            })
            .collect();
        assert!((0..3).all(|way| firsts.contains(&way)), "{firsts:?}");
    }

    #[test]
    fn buffers_that_are_used_once_are_not_used_again_by_the_next_size() {
        let null = std::ptr::null_mut();
        let buffers =
            |room| Buffers { there: null, heap: null, private: null, room, next: Cell::new(0) };
        let cold = buffers(4096);
        assert_eq!(
            [8, 8, 100, 1024, 2048, 64].map(|bytes| cold.take(bytes)),
            [0, 64, 128, 1024, 2048, 0]
        );
        let hot = buffers(0);
        assert_eq!([8, 8, 4096].map(|bytes| hot.take(bytes)), [0, 0, 0]);
    }

    #[test]
    fn slow_turns_do_not_count() {
        assert_eq!(faster_half(&mut [900.0, 3.0, 1.0, 2.0, 5000.0, 800.0]), 2.0);
    }
}
