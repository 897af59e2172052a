// SPDX-License-Identifier: Apache-2.0
//! How long it takes two PEs to meet, alone and after one or both of them have put or got data: each waits until its
//! puts have arrived, puts a word to the other one and waits for its word, as in each round of a barrier. Both write at
//! the same time, so that lines move more often than for words that go to and fro, and who is served serves.
//!
//! This takes part of both PEs, unlike everything else that is measured. Puts and gets go by the routes in force.
//! One PE leads: it takes the time and decides how often, and tells the other one when to go on to the next task.

use super::scratch::Scratch;
use crate::class::Class;
use crate::data::{CACHED, Operation, Point};
use std::time::{Duration, Instant};
use tombolo_core::ops::Mode;
use tombolo_core::route::Channel;
use tombolo_core::transport::SegmentKind;
use tombolo_core::wait::{Reason, Waiting};
use tombolo_core::{Context, World};

const ROUTINE: &str = "measuring how soon PEs meet";
/// A batch lasts at least this long: threads that serve links, and others of the machine, run beside all of them alike.
const BATCH: Duration = Duration::from_micros(150);
/// Meetings of a batch at most.
const REPEATS_MAX: u32 = 1_000;
/// Meetings between looks at the clock.
const LOOKS: u32 = 16;
/// Part of a batch that goes before it, so that lines and threads of the other side are near.
const WARM_UP: u32 = 8;
/// Batches of each task at least, and at most. They take turns, so that what else the machine does for a while
/// does not meet all batches of one task.
const BATCHES_MIN: usize = 3;
const BATCHES: usize = 9;
/// A word that takes longer will not come: the other PE has given up, or has no processor.
const PATIENCE: Duration = Duration::from_millis(100);
/// Words of scratch memory that are waited for: two for meetings and [`DONE`].
const WORDS: usize = 3;
/// The word that tells how many turns are over.
const DONE: usize = 2;
/// All turns are over.
const ALL: u64 = u64::MAX;
/// Where data begin, in another cache line than the words.
const DATA: usize = 128;
/// Sizes of gets. They are shorter than what goes over two links at the same time, and longer ones take as much longer
/// than alone as these.
const GETS: &[u64] = &[8, 1024, 65_536];
/// Sizes of data that are handed on: within caches and beyond.
const HANDED: &[u64] = &[8, 1024, 16_384, 131_072, 1_048_576];

/// What PEs do before they meet, and bytes of it.
pub type Task = (Operation, u64);

/// What to measure between PEs of a class; sizes that the scratch memory has no room for are left out. On one host
/// data are copied between two meetings as without them, and over several links as over one.
pub fn plan(class: Class, room: usize) -> Vec<Task> {
    if class.hops() == 0 {
        return vec![(Operation::BothPut, 8)];
    }
    let mut tasks = vec![(Operation::Meeting, 8)];
    if class.hops() > 1 {
        return tasks;
    }
    tasks.extend([(Operation::MetPut, 8), (Operation::BothPut, 8)]);
    let gets = |bytes: &u64| [(Operation::MetGet, *bytes), (Operation::BothGet, *bytes)];
    tasks.extend(GETS.iter().flat_map(gets));
    tasks.extend(HANDED.iter().map(|bytes| (Operation::Handed, *bytes)));
    tasks.retain(|(_, bytes)| *bytes as usize + DATA <= room);
    tasks
}

/// The channel that words to a PE take.
pub fn channel(world: &World, pe: usize) -> Option<String> {
    match world.routes().peers[pe].put[SegmentKind::Heap as usize].choose(8) {
        Channel::Cached | Channel::Streaming => Some(CACHED.to_owned()),
        Channel::Endpoint(index) => Some(world.transports()[usize::from(index)].name().to_owned()),
        Channel::Striped(_) | Channel::Either(_) | Channel::Service | Channel::Unreachable => None,
    }
}

/// Meets a PE again and again for so long at most, and takes the time of each task that was seen often enough. Where
/// PEs wait for processors that is none, and starting the job takes no longer for it.
pub fn lead(
    world: &World,
    scratch: &mut Scratch,
    pe: usize,
    tasks: &[Task],
    longest: Duration,
) -> Vec<(Operation, Point)> {
    let mut pair = Pair::new(world, scratch, pe, tasks);
    let mut batches: Vec<Batches> = tasks.iter().map(|_| Batches::default()).collect();
    let (until, mut turn) = (Instant::now() + longest, 0);
    'rounds: for round in 0..BATCHES {
        for (index, (task, batches)) in tasks.iter().zip(&mut batches).enumerate() {
            // Where there is time for little, how soon PEs meet says most.
            let count = if (round, index) == (0, 0) { BATCHES_MIN } else { 1 };
            if (0..count).any(|_| batches.add(&mut pair, *task, until).is_none()) {
                break 'rounds;
            }
            turn += 1;
            // The word of the last meeting comes first, whatever way each goes.
            pair.complete();
            pair.put(DONE, turn);
            // The other one has begun the next meeting of this turn.
            pair.word += 1;
        }
    }
    pair.complete();
    pair.put(DONE, ALL);
    pair.complete();
    let seen = tasks.iter().zip(batches);
    seen.filter_map(|(task, batches)| Some((task.0, batches.point(task.1)?))).collect()
}

/// Meets a PE until it comes no more.
pub fn follow(world: &World, scratch: &mut Scratch, pe: usize, tasks: &[Task]) {
    let mut pair = Pair::new(world, scratch, pe, tasks);
    let done = pair.reader(DONE);
    for (turn, (operation, bytes)) in (0u64..).zip(tasks.iter().cycle()) {
        let one_sided = matches!(operation, Operation::MetPut | Operation::MetGet);
        let task = (if one_sided { Operation::Meeting } else { *operation }, *bytes);
        // Only a meeting that the other one does not come to is the last one, however soon it tells that the turn is over:
        // both count the same meetings.
        let mut end = End::Met;
        while end == End::Met {
            end = pair.meet(task, || done() > turn);
        }
        if end == End::Lost || done() == ALL {
            break;
        }
    }
    pair.complete();
}

/// Times of one task by batch, in nanoseconds of a meeting and what is done before it.
#[derive(Default)]
struct Batches(Vec<f64>);

impl Batches {
    /// Times another batch; none if the other PE does not come, or it is too late.
    fn add(&mut self, pair: &mut Pair<'_>, task: Task, until: Instant) -> Option<()> {
        let mut run = |repeats: u32| {
            let start = Instant::now();
            for count in 1..=repeats {
                let met = pair.meet(task, || false) == End::Met;
                let looks = count == repeats || count.is_multiple_of(LOOKS);
                (met && !(looks && Instant::now() > until)).then_some(())?;
            }
            Some(start.elapsed().as_nanos() as f64 / f64::from(repeats))
        };
        // A jump of the clock must not pass for a long meeting.
        let least = self.0.iter().copied().reduce(f64::min);
        let each = match least {
            Some(least) => least,
            None => {
                run(1)?;
                run(2)?.min(run(2)?)
            }
        };
        let fill = BATCH.as_nanos() as f64 / each.max(1.0);
        let repeats = (fill.ceil() as u32).clamp(1, REPEATS_MAX);
        run(repeats.div_ceil(WARM_UP))?;
        self.0.push(run(repeats)?);
        Some(())
    }

    /// The median of the faster half, as of the patterns that are to be predicted; none if few batches were taken.
    fn point(mut self, bytes: u64) -> Option<Point> {
        let times = &mut self.0;
        (times.len() >= BATCHES_MIN).then_some(())?;
        times.sort_unstable_by(f64::total_cmp);
        let middle = times[times.len().div_ceil(2) / 2];
        let spread = (middle / times[0].max(0.01) - 1.0) as f32;
        Some(Point { bytes, ns: middle.max(0.01) as f32, spread, batches: times.len() as u16 })
    }
}

/// How a meeting ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// Both have come.
    Met,
    /// The other PE has told that there are no more of this turn.
    Over,
    /// It does not come.
    Lost,
}

/// This PE and the other one.
struct Pair<'a> {
    world: &'a World,
    scratch: &'a Scratch,
    pe: usize,
    /// What was put last for the other one to see.
    word: u64,
}

impl<'a> Pair<'a> {
    fn new(world: &'a World, scratch: &'a mut Scratch, pe: usize, tasks: &[Task]) -> Pair<'a> {
        let most = tasks.iter().map(|(_, bytes)| *bytes as usize).max().unwrap_or(0);
        scratch.touch(DATA + most);
        Pair { world, scratch, pe, word: 0 }
    }

    /// Does a task once and waits for the other PE. `over` tells that this one need not.
    fn meet(&mut self, (operation, bytes): Task, over: impl Fn() -> bool) -> End {
        let (world, there) = (self.world, self.scratch.inbound().wrapping_add(DATA));
        let (here, len, context) = (self.scratch.outbound(), bytes as usize, world.context());
        // SAFETY: parts of both halves of symmetric scratch memory, which overlap neither each other nor the words.
        unsafe {
            match operation {
                Operation::MetPut | Operation::BothPut | Operation::Handed => {
                    world.put(context, there, here, len, self.pe, Mode::Blocking, ROUTINE);
                }
                Operation::MetGet | Operation::BothGet => {
                    world.get(context, here, there, len, self.pe, Mode::Blocking, ROUTINE);
                }
                _ => {}
            }
        }
        world.quiet(context, ROUTINE);
        self.word += 1;
        // As a barrier does: the word before the last went by the same context and must not arrive after this one.
        let parity = (self.word % 2) as usize;
        let context = &world.sync_contexts()[parity];
        if !context.is_quiet() {
            world.fence(context, ROUTINE);
        }
        self.put_by(context, parity, self.word);
        let (word, seen) = (self.word, self.reader(parity));
        if !wait(world, || seen() == word || over()) {
            return End::Lost;
        }
        if seen() != word {
            return End::Over;
        }
        if operation == Operation::Handed {
            // SAFETY: the same memory of this PE.
            unsafe { world.get(context, here, there, len, world.pe(), Mode::Blocking, ROUTINE) };
        }
        End::Met
    }

    /// Puts a word of scratch memory to the other PE.
    fn put(&self, place: usize, word: u64) {
        self.put_by(self.world.context(), place, word);
    }

    fn put_by(&self, context: &Context, place: usize, word: u64) {
        let dest = self.scratch.inbound().wrapping_add(8 * place);
        let from = (&raw const word).cast();
        // SAFETY: a word of symmetric scratch memory, and a local one that a blocking put is done with on return.
        unsafe { self.world.put(context, dest, from, 8, self.pe, Mode::Blocking, ROUTINE) };
    }

    /// What reads a word of this PE's scratch memory.
    fn reader(&self, place: usize) -> impl Fn() -> u64 + use<> {
        let word = self.scratch.inbound().cast::<u64>().wrapping_add(place);
        // SAFETY: a word of scratch memory, which outlives the pair; another process may write it meanwhile.
        move || unsafe { word.read_volatile() }
    }

    /// Waits until nothing is under way any more.
    fn complete(&self) {
        let contexts = self.world.sync_contexts().iter();
        contexts.chain([self.world.context()]).for_each(|c| self.world.quiet(c, ROUTINE));
    }
}

/// Empties the words of this PE, for the next pair. Nobody may be about to write them.
pub fn clear(scratch: &Scratch) {
    for place in 0..WORDS {
        // SAFETY: a word of this PE's scratch memory.
        unsafe { scratch.inbound().cast::<u64>().add(place).write_volatile(0) };
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_measured_fits_into_the_scratch_memory() {
        let bytes = |class, room| {
            plan(class, room).iter().map(|(_, bytes)| *bytes).max().unwrap_or(0) as usize
        };
        assert_eq!(bytes(Class::Hops(1), 8 << 20), 1 << 20);
        assert!((1024..=4096 - DATA).contains(&bytes(Class::Hops(1), 4096)));
        assert_eq!(plan(Class::Cache, 4096), [(Operation::BothPut, 8)]);
        assert_eq!(plan(Class::Hops(2), 8 << 20), [(Operation::Meeting, 8)]);
        let all = plan(Class::Network, 8 << 20);
        assert!(Operation::BEFORE_MEETINGS.iter().all(|op| all.contains(&(*op, 8))));
    }

    #[test]
    fn few_batches_tell_nothing() {
        let of = |times: &[f64]| Batches(times.to_vec()).point(8).map(|point| point.ns);
        assert_eq!(of(&[100.0, 101.0]), None);
        assert_eq!(of(&[105.0, 1e6, 100.0]), Some(105.0));
        assert_eq!(of(&[900.0, 104.0, 103.0, 800.0, 102.0, 700.0, 101.0]), Some(103.0));
    }
}
