// SPDX-License-Identifier: Apache-2.0
//! How long it takes two PEs to meet after they have put data: each waits until these have arrived, puts a word to the
//! other one and waits for its word, as in each round of a barrier. Both write at the same time, so that lines move more
//! often than for words that go to and fro.
//!
//! This takes part of both PEs, unlike everything else that is measured. Puts go by the routes in force.

use super::batch::summary;
use super::scratch::Scratch;
use crate::data::{CACHED, Point};
use std::time::{Duration, Instant};
use tombolo_core::World;
use tombolo_core::ops::Mode;
use tombolo_core::route::Channel;
use tombolo_core::transport::SegmentKind;
use tombolo_core::wait::{Reason, Waiting};

const ROUTINE: &str = "measuring how soon PEs meet";
/// Meetings that are timed together.
const MEETINGS: u64 = 20;
/// Batches at least, besides the first, and at most, and for how long at most.
const BATCHES_MIN: usize = 3;
const BATCHES: usize = 40;
const LASTING: Duration = Duration::from_millis(3);
/// A word that takes longer will not come: the other PE has given up, or has no processor.
const PATIENCE: Duration = Duration::from_millis(20);
/// Batches of puts without meetings.
const PUTS: usize = 9;
/// Words of scratch memory that are waited for: two for meetings and [`END`].
const WORDS: usize = 3;
/// The word that tells that there are no more meetings.
const END: usize = 2;
/// The word that stands for data, in another cache line.
const DATA: usize = 8;
/// Bytes of scratch memory that may have been written.
pub const WRITTEN: usize = 8 * (DATA + 1);

/// The channel that words to a PE take.
pub fn channel(world: &World, pe: usize) -> Option<String> {
    match world.routes().peers[pe].put[SegmentKind::Heap as usize].choose(8) {
        Channel::Cached | Channel::Streaming => Some(CACHED.to_owned()),
        Channel::Endpoint(index) => Some(world.transports()[usize::from(index)].name().to_owned()),
        Channel::Striped(_) | Channel::Either(_) | Channel::Service | Channel::Unreachable => None,
    }
}

/// Meets a PE again and again and takes the time; none if it does not come.
pub fn lead(world: &World, scratch: &Scratch, pe: usize) -> Option<Point> {
    let mut times = Vec::new();
    let mut word = 0;
    let begun = Instant::now();
    let mut came = true;
    while came && times.len() < BATCHES && begun.elapsed() < LASTING {
        let start = Instant::now();
        came = (0..MEETINGS).all(|_| {
            word += 1;
            send_after_data(world, scratch, word, pe);
            wait(world, || read(scratch, place(word)) == word)
        });
        times.push(start.elapsed().as_nanos() as f64 / MEETINGS as f64);
    }
    send(world, scratch, (END, 1), pe);
    world.quiet(world.context(), ROUTINE);
    // The data would have been put without a meeting, too.
    let mut puts: Vec<f64> = (0..PUTS)
        .map(|_| {
            let start = Instant::now();
            (0..MEETINGS).for_each(|word| send(world, scratch, (DATA, word), pe));
            start.elapsed().as_nanos() as f64 / MEETINGS as f64
        })
        .collect();
    world.quiet(world.context(), ROUTINE);
    let (put, _) = summary(&mut puts);
    // Few batches in that time are the scheduler's doing: nothing is known then.
    (came && times.len() > BATCHES_MIN).then(|| {
        // Lines and threads of the other side are still far away in the first one.
        times.rotate_left(1);
        times.truncate(times.len() - 1);
        let (both, spread) = summary(&mut times);
        let ns = (both - put).max(both / 2.0);
        Point { bytes: 8, ns, spread, batches: times.len() as u16 }
    })
}

/// Meets a PE until it comes no more.
pub fn follow(world: &World, scratch: &Scratch, pe: usize) {
    let ended = || read(scratch, END) != 0;
    for word in 1.. {
        send_after_data(world, scratch, word, pe);
        if !wait(world, || read(scratch, place(word)) == word || ended()) || ended() {
            break;
        }
    }
    world.quiet(world.context(), ROUTINE);
}

/// Where the word of a meeting is: the one before the last has been seen when it is sent, so that none overtakes
/// another, in whatever order puts arrive.
fn place(word: u64) -> usize {
    (word % 2) as usize
}

/// Puts data, as a program does between two barriers, waits until they are there, and puts a word.
fn send_after_data(world: &World, scratch: &Scratch, word: u64, pe: usize) {
    send(world, scratch, (DATA, word), pe);
    world.quiet(world.context(), ROUTINE);
    send(world, scratch, (place(word), word), pe);
}

/// Empties the words of this PE, for the next pair. Nobody may be about to write them.
pub fn clear(scratch: &Scratch) {
    for place in 0..WORDS {
        // SAFETY: a word of this PE's scratch memory.
        unsafe { scratch.inbound().cast::<u64>().add(place).write_volatile(0) };
    }
}

fn send(world: &World, scratch: &Scratch, (place, word): (usize, u64), pe: usize) {
    let dest = scratch.inbound().wrapping_add(8 * place);
    let from = (&raw const word).cast();
    // SAFETY: a word of symmetric scratch memory, and a local one that a blocking put is done with on return.
    unsafe { world.put(world.context(), dest, from, 8, pe, Mode::Blocking, ROUTINE) };
}

fn read(scratch: &Scratch, place: usize) -> u64 {
    // SAFETY: a word of this PE's scratch memory; another process may write it meanwhile.
    unsafe { scratch.inbound().cast::<u64>().add(place).read_volatile() }
}

/// Waits as programs do; false if it takes too long.
fn wait(world: &World, is_there: impl Fn() -> bool) -> bool {
    let (mut looks, mut begun, mut came) = (0u32, None, false);
    let waiting = Waiting { routine: ROUTINE, argument: 0, reason: Reason::Variable };
    world.wait(waiting, || {
        came = is_there();
        looks += 1;
        let mut late = || begun.get_or_insert_with(Instant::now).elapsed() > PATIENCE;
        came || (looks.is_multiple_of(64) && late())
    });
    came
}
