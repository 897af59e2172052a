// SPDX-License-Identifier: Apache-2.0
//! How long it takes until a PE that waits sees what another one writes: half a round trip of words.
//!
//! This takes part of both PEs, unlike everything else that is measured. Puts go by the routes in force.

use super::batch::summary;
use super::clock::give_way;
use super::scratch::Scratch;
use crate::data::{CACHED, Point};
use std::time::{Duration, Instant};
use tombolo_core::World;
use tombolo_core::ops::Mode;
use tombolo_core::route::Channel;
use tombolo_core::transport::SegmentKind;

const ROUTINE: &str = "measuring how soon words are seen";
/// Round trips that are timed together.
const TRIPS: u64 = 10;
/// Batches at least, besides the first, and at most, and for how long at most.
const BATCHES_MIN: usize = 3;
const BATCHES: usize = 40;
const LASTING: Duration = Duration::from_millis(3);
/// A word that takes longer will not come: the other PE has given up, or has no processor.
const PATIENCE: Duration = Duration::from_millis(20);
/// Before others are given a chance.
const SPIN: Duration = Duration::from_micros(50);
/// Where a PE that starts and one that answers have their words, in bytes; nobody else uses the lines.
const ANSWERED: usize = 0;
const ASKED: usize = 64;
/// Bytes of scratch memory that may have been written.
pub const WRITTEN: usize = 128;
/// The word that ends it.
const END: u64 = u64::MAX;

/// The channel that words to a PE take.
pub fn channel(world: &World, pe: usize) -> Option<String> {
    match world.routes().peers[pe].put[SegmentKind::Heap as usize].choose(8) {
        Channel::Cached | Channel::Streaming => Some(CACHED.to_owned()),
        Channel::Endpoint(index) => Some(world.transports()[usize::from(index)].name().to_owned()),
        Channel::Service | Channel::Unreachable => None,
    }
}

/// Sends words to a PE that answers them: the time of one way; none if it does not answer.
pub fn ask(world: &World, scratch: &Scratch, pe: usize) -> Option<Point> {
    let mut times = Vec::new();
    let mut word = 0;
    let begun = Instant::now();
    let mut answered = true;
    while answered && times.len() < BATCHES && begun.elapsed() < LASTING {
        let start = Instant::now();
        answered = (0..TRIPS).all(|_| {
            word += 1;
            send(world, scratch, ASKED, word, pe);
            wait(world, scratch, ANSWERED, |seen| seen == word)
        });
        times.push(start.elapsed().as_nanos() as f64 / (2 * TRIPS) as f64);
    }
    send(world, scratch, ASKED, END, pe);
    world.quiet(world.context(), ROUTINE);
    // Few batches in that time are the scheduler's doing: nothing is known then.
    (answered && times.len() > BATCHES_MIN).then(|| {
        // Lines and threads of the other side are still far away in the first one.
        times.rotate_left(1);
        times.truncate(times.len() - 1);
        let (ns, spread) = summary(&mut times);
        Point { bytes: 8, ns, spread, batches: times.len() as u16 }
    })
}

/// Answers the words of a PE until it sends no more.
pub fn answer(world: &World, scratch: &Scratch, pe: usize) {
    for word in 1.. {
        if !wait(world, scratch, ASKED, |seen| seen == word || seen == END)
            || read(scratch, ASKED) == END
        {
            break;
        }
        send(world, scratch, ANSWERED, word, pe);
    }
    world.quiet(world.context(), ROUTINE);
}

/// Empties the words of this PE, for the next pair. Nobody may be about to write them.
pub fn clear(scratch: &Scratch) {
    for at in [ASKED, ANSWERED] {
        // SAFETY: a word of this PE's scratch memory.
        unsafe { scratch.inbound().wrapping_add(at).cast::<u64>().write_volatile(0) };
    }
}

fn send(world: &World, scratch: &Scratch, at: usize, word: u64, pe: usize) {
    let (dest, from) = (scratch.inbound().wrapping_add(at), (&raw const word).cast());
    // SAFETY: a word of symmetric scratch memory, and a local one that a blocking put is done with on return.
    unsafe { world.put(world.context(), dest, from, 8, pe, Mode::Blocking, ROUTINE) };
}

fn read(scratch: &Scratch, at: usize) -> u64 {
    // SAFETY: a word of this PE's scratch memory; another process may write it meanwhile.
    unsafe { scratch.inbound().wrapping_add(at).cast::<u64>().read_volatile() }
}

/// Waits for a word; false if it does not come.
fn wait(world: &World, scratch: &Scratch, at: usize, is_it: impl Fn(u64) -> bool) -> bool {
    let mut begun = None;
    for turn in 1u32.. {
        if is_it(read(scratch, at)) {
            return true;
        }
        std::hint::spin_loop();
        world.progress();
        if turn.is_multiple_of(64) {
            let waited = begun.get_or_insert_with(Instant::now).elapsed();
            if waited > PATIENCE {
                return false;
            }
            if waited > SPIN {
                give_way();
            }
        }
    }
    false
}
