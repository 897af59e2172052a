// SPDX-License-Identifier: Apache-2.0
//! The transport without order judges everything above transports: does it find what is wrong?
//!
//! Two protocols that once were in use here, and cannot live without order, are run over it as small
//! models, each with a fence as well, with which it is right. Without, they must go wrong within a few
//! seeds; with it, never. Waiting is decided without a clock: a number that will never come is known
//! from what has arrived.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tombolo_core::transport::{Endpoint, Remote, SegmentKind, Status, Stream};
use tombolo_core::{ContextOptions, World};
use tombolo_tests::run_job;

/// Seeds within which a fault must show.
const SEEDS: u64 = 40;
const ROUNDS: u64 = 40;

/// What the PEs of a job, threads of this process, know of each other by other means.
#[derive(Default)]
struct Truth {
    /// The last number whose puts are complete, by PE.
    settled: [AtomicU64; 2],
    /// The last request that was executed.
    answered: AtomicU64,
    wrong: AtomicBool,
}

impl Truth {
    fn is_wrong(&self) -> bool {
        self.wrong.load(Ordering::SeqCst)
    }

    fn accuse(&self) {
        self.wrong.store(true, Ordering::SeqCst);
    }

    fn settled(&self, pe: usize) -> u64 {
        self.settled[pe].load(Ordering::SeqCst)
    }
}

/// One PE's means of putting words to the other.
struct Side<'a> {
    world: &'a World,
    truth: &'a Truth,
    endpoint: &'a dyn Endpoint,
    stream: &'a Stream,
    /// Whether puts that depend on each other are ordered.
    fenced: bool,
}

impl Side<'_> {
    fn progress(&self) {
        self.world.transports()[0].progress();
        std::thread::yield_now();
    }

    /// Puts words, which stay as they are until everything is complete.
    fn put(&self, words: &[u64], place: *mut u64) {
        let transport = &self.world.transports()[0];
        while self.fenced && transport.fence(self.stream) == Status::Pending {
            self.progress();
        }
        let offset = place as usize - self.world.heap().base() as usize;
        let dest = Remote { segment: SegmentKind::Heap, offset };
        let (source, len) = (words.as_ptr().cast(), size_of_val(words));
        // SAFETY: the words live until the end of the job.
        while let status = unsafe { self.endpoint.put(self.stream, dest, source, len, false) }
            && status != Status::Pending
        {
            assert_eq!(status, Status::Again);
            self.progress();
        }
    }

    /// Notes when everything up to `number` is complete.
    fn settle(&self, number: u64) -> bool {
        let quiet = self.world.transports()[0].quiet(self.stream) == Status::Complete;
        if quiet {
            self.truth.settled[self.world.pe()].store(number, Ordering::SeqCst);
        }
        quiet
    }
}

/// Runs a model with each seed; gives the seeds with which it went wrong, and the number of those
/// with which it could be run.
fn judge(fenced: bool, model: fn(&Side<'_>)) -> (Vec<u64>, usize) {
    let (mut wrong, mut applied) = (Vec::new(), 0);
    for seed in 1..=SEEDS {
        let (truth, applies) = (Truth::default(), AtomicBool::new(false));
        let name = seed.to_string();
        let make = || vec![tombolo_transports::create("unordered").expect("known")];
        run_job(2, &[("SHMEM_UNORDERED_SEED", &name)], &make, |world| {
            let endpoint = world.endpoint(0, 1 - world.pe()).expect("an endpoint");
            let can = endpoint.capabilities(SegmentKind::Heap);
            // The models put whole words.
            if can.whole_words && can.put_align <= 8 {
                applies.store(true, Ordering::SeqCst);
                let options = ContextOptions { private: true, ..ContextOptions::default() };
                let context = world.new_context(world.team().clone(), options);
                let stream = &context.streams()[0];
                model(&Side { world, truth: &truth, endpoint, stream, fenced });
            }
            world.bootstrap().barrier().expect("all PEs meet");
        });
        applied += usize::from(applies.into_inner());
        if truth.is_wrong() {
            wrong.push(seed);
        }
    }
    (wrong, applied)
}

/// An array of zeros at the same place on both PEs.
fn words(world: &World, count: usize) -> *mut u64 {
    let place = world.heap().allocate(count * 8, 64);
    assert!(!place.is_null());
    world.bootstrap().barrier().expect("all PEs meet");
    place.cast()
}

fn load(place: *mut u64) -> u64 {
    // SAFETY: an aligned word of this PE's heap.
    unsafe { (*place.cast::<AtomicU64>()).load(Ordering::SeqCst) }
}

/// A barrier whose flag holds a number that only grows: its reader waits for "at least". Nothing
/// keeps an old number from arriving after a new one, and then the reader waits for ever.
fn growing_numbers(side: &Side<'_>) {
    let flag = words(side.world, 1);
    let numbers: Vec<u64> = (0..=ROUNDS).collect();
    let other = 1 - side.world.pe();
    'rounds: for number in 1..=ROUNDS {
        side.put(&numbers[number as usize..][..1], flag);
        while load(flag) < number {
            // All that the other has put is there for good, and not what it has put last.
            if side.truth.settled(other) >= number && load(flag) < number {
                side.truth.accuse();
            }
            if side.truth.is_wrong() {
                break 'rounds;
            }
            side.progress();
            side.settle(number);
        }
    }
    while !side.settle(ROUNDS) {
        side.progress();
    }
    // The other may look once more.
    while side.truth.settled(other) < ROUNDS {
        side.progress();
    }
}

/// Requests in a line of words, announced by a ticket in a put of its own. Nothing keeps the ticket
/// from arriving before its request, and then the request before it is executed again.
fn tickets_apart(side: &Side<'_>) {
    const LINE: usize = 4;
    let line = words(side.world, LINE + 1);
    let ticket_at = line.wrapping_add(LINE);
    let requests: Vec<[u64; LINE]> = (0..=ROUNDS).map(|number| [number; LINE]).collect();
    let truth = side.truth;
    if side.world.pe() == 0 {
        'requests: for request in &requests[1..] {
            side.put(request, line);
            side.put(&request[..1], ticket_at);
            while truth.answered.load(Ordering::SeqCst) < request[0] {
                if truth.is_wrong() {
                    break 'requests;
                }
                side.progress();
                side.settle(request[0]);
            }
        }
    } else {
        let mut last = 0;
        while last < ROUNDS && !truth.is_wrong() {
            let settled = truth.settled(0);
            let ticket = load(ticket_at);
            let request: Vec<u64> = (0..LINE).map(|index| load(line.wrapping_add(index))).collect();
            if ticket != last {
                if ticket != last + 1 || request != [ticket; LINE] {
                    truth.accuse();
                }
                last = ticket;
                truth.answered.store(ticket, Ordering::SeqCst);
            } else if settled > last {
                // It has arrived for good, and an old one has overwritten it.
                truth.accuse();
            }
            side.progress();
        }
    }
    while !side.settle(ROUNDS) {
        side.progress();
    }
}

#[test]
fn numbers_put_without_order_are_found_out() {
    let (wrong, applied) = judge(false, growing_numbers);
    println!("wrong with seeds {wrong:?}, of {applied}");
    assert!(wrong.len() * 4 > applied, "wrong with {wrong:?} alone, of {applied} seeds");
}

#[test]
fn tickets_put_without_order_are_found_out() {
    let (wrong, applied) = judge(false, tickets_apart);
    println!("wrong with seeds {wrong:?}, of {applied}");
    assert!(wrong.len() * 4 > applied, "wrong with {wrong:?} alone, of {applied} seeds");
}

#[test]
fn the_same_protocols_with_fences_are_right() {
    for model in [growing_numbers, tickets_apart] {
        let (wrong, applied) = judge(true, model);
        assert!(applied > 10, "{applied} seeds let the model run");
        assert!(wrong.is_empty(), "wrong with {wrong:?}");
    }
}
