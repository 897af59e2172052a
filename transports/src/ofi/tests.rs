// SPDX-License-Identifier: Apache-2.0
//! Two engines of one thread: what must hold whatever the provider promises and demands.

use super::choose::{Offers, Wish};
use super::rdm::Rdm;
use super::sys::{Library, installed};
use crate::network::engine::*;
use crate::network::message::{Record, data_max};
use crate::network::{Network, Shared};
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tombolo_core::registration::Slab;
use tombolo_core::transport::{Amo, AmoOp, Remote, SegmentKind, Status, Stream};

type Engine = crate::network::engine::Engine<Rdm>;

const LEN: usize = 1 << 20;

/// An engine and its segment.
struct End {
    engine: Engine,
    lost: Arc<Lost>,
    memory: Vec<u64>,
    name: Vec<u8>,
    theirs: Theirs,
}

/// What a provider asks for or leaves open, beyond what those here do.
#[derive(Clone, Copy, PartialEq)]
enum Harder {
    No,
    /// Local buffers must be registered.
    Local,
    /// Nothing keeps its order but messages.
    Unordered,
}

/// Two PEs that know each other, over each way to use TCP that there is; none where libfabric is not
/// installed.
fn pairs(harder: Harder) -> impl Iterator<Item = [End; 2]> {
    let found: Vec<_> =
        ["net", "tcp;ofi_rxm"].iter().filter_map(|provider| pair(provider, harder)).collect();
    assert!(!found.is_empty() || Library::get(2).is_err(), "no way to use TCP");
    found.into_iter()
}

fn pair(provider: &str, harder: Harder) -> Option<[End; 2]> {
    let library = installed()?;
    let wish = Wish { provider: provider.into(), one_machine: true, ..Wish::default() };
    let offers = Offers::find(library, &wish).ok()?;
    let open = |me: usize| {
        let mut memory = vec![0u64; LEN / 8];
        let base = memory.as_mut_ptr().cast();
        let token = 0x1000 + me as u64;
        // SAFETY: of the offers; the memory goes after the engine, by the order of the fields.
        let (rdm, shared) = unsafe {
            let mut rdm =
                Rdm::open(library, offers.info(&offers.candidates[0]), 2, ENTRIES, false).unwrap();
            rdm.ordered &= harder != Harder::Unordered;
            if harder == Harder::Local {
                rdm.demand_local_registration();
            }
            let shared = rdm.share(base, LEN, token).unwrap();
            (rdm, shared)
        };
        let name = rdm.name().unwrap();
        let none = Own { base: null_mut(), len: 0, shared: Shared::default() };
        let own = [Own { base, len: LEN, shared }, none];
        let segment = TheirSegment { base: shared.base, key: shared.key, len: LEN };
        let segments = [segment, TheirSegment::default()];
        let lost = Arc::new(Lost::none(2));
        let engine =
            Engine::new(rdm, me, token, own, lost.clone(), Duration::from_secs(6)).unwrap();
        End { engine, lost, memory, name, theirs: Theirs { address: 0, token, segments } }
    };
    let mut ends = [open(0), open(1)];
    let told = [0, 1].map(|pe| (ends[pe].name.clone(), ends[pe].theirs));
    for end in &mut ends {
        let peers = told.iter().map(|(name, theirs)| {
            Some(Theirs { address: end.engine.insert(name).unwrap(), ..*theirs })
        });
        let peers = peers.collect();
        end.engine.meet(peers);
    }
    Some(ends)
}

impl End {
    fn word(&self, index: usize) -> u64 {
        // SAFETY: an element, which the other engine writes.
        unsafe { (&raw const self.memory[index]).read_volatile() }
    }
}

fn heap(offset: usize) -> Remote {
    Remote { segment: SegmentKind::Heap, offset }
}

fn add(offset: usize, operand: u64) -> Record<'static> {
    let amo = Amo { op: AmoOp::Add, size: 8, operand, compare: 0 };
    Record::Amo { at: heap(offset), amo, fetch: false }
}

/// Makes progress on both until `ready`.
fn until(ends: &mut [End; 2], mut ready: impl FnMut(&mut [End; 2]) -> bool) {
    let begun = Instant::now();
    while !ready(ends) {
        ends.iter_mut().for_each(|end| _ = end.engine.progress());
        assert!(begun.elapsed() < Duration::from_secs(30), "nothing more happens");
    }
}

/// Waits until what PE 0 has issued on a stream has completed.
fn quiet(ends: &mut [End; 2], stream: &Stream) {
    until(ends, |ends| {
        ends[0].engine.quiet(stream);
        stream.is_quiet()
    });
}

/// Repeats an operation of PE 0 while there is no room.
fn issue(ends: &mut [End; 2], mut operate: impl FnMut(&mut Engine) -> Status) -> Status {
    let mut status = Status::Again;
    until(ends, |ends| {
        status = operate(&mut ends[0].engine);
        status != Status::Again
    });
    status
}

#[test]
fn long_transfers_work_with_any_kind_of_registration() {
    for harder in [Harder::No, Harder::Local] {
        for mut ends in pairs(harder) {
            let stream = Stream::new(1, true);
            for len in [1000, CHUNK, CHUNK + 8, LEN] {
                let source: Vec<u8> = (0..len).map(|i| (i * 7 + len) as u8).collect();
                let blocking = len <= CHUNK;
                // SAFETY: source and destination live until the stream is quiet.
                let status = issue(&mut ends, |engine| unsafe {
                    engine.write(&stream, 1, heap(0), source.as_ptr(), len, blocking, None)
                });
                assert_eq!(status, Status::Pending);
                quiet(&mut ends, &stream);
                let mut back = vec![0u8; len];
                // SAFETY: as above.
                let status = issue(&mut ends, |engine| unsafe {
                    engine.read(&stream, 1, back.as_mut_ptr(), heap(0), len)
                });
                assert_eq!(status, Status::Pending);
                quiet(&mut ends, &stream);
                assert!(back == source, "{len} bytes");
            }
            // Every place and buffer came back, and no buffer that is gone is registered any more.
            let engine = &mut ends[0].engine;
            assert_eq!((engine.free_rmas.len(), engine.free_chunks.len()), (RMAS, CHUNKS));
            engine.cache.clear(&mut engine.net);
            assert_eq!(engine.cache.size(), (0, 0));
        }
    }
}

#[test]
fn a_buffer_is_registered_once_as_long_as_it_is_mapped() {
    for mut ends in pairs(Harder::Local) {
        let stream = Stream::new(1, true);
        let mut registrations = Vec::new();
        for round in 0..6u8 {
            // Unmapped after each round, and often mapped at the same address in the next. Memory of the
            // allocator is not: it may keep what is freed.
            let source = Slab::new(LEN);
            // SAFETY: as long as that.
            unsafe { source.base().write_bytes(round + 1, LEN) };
            for _ in 0..2 {
                // SAFETY: the source lives until the stream is quiet.
                let status = issue(&mut ends, |engine| unsafe {
                    engine.write(&stream, 1, heap(0), source.base(), LEN, false, None)
                });
                assert_eq!(status, Status::Pending);
                quiet(&mut ends, &stream);
                assert_eq!(ends[1].word(LEN / 8 - 1), u64::from_ne_bytes([round + 1; 8]));
                registrations.push(ends[0].engine.net.registered());
            }
        }
        let new: Vec<u64> = registrations.windows(2).map(|two| two[1] - two[0]).collect();
        let expected = if ends[0].engine.cache.remembers() { 0 } else { 1 };
        assert!(new.iter().step_by(2).all(|new| *new == expected), "{registrations:?}");
        assert!(new.iter().skip(1).step_by(2).all(|new| *new == 1), "{registrations:?}");
    }
}

#[test]
fn a_signal_follows_its_data_whatever_the_provider_orders() {
    for harder in [Harder::No, Harder::Unordered] {
        for mut ends in pairs(harder) {
            let stream = Stream::new(1, true);
            let amo = Amo { op: AmoOp::Add, size: 8, operand: 1, compare: 0 };
            for round in 1..=20u64 {
                let source = vec![round; CHUNK / 8];
                // SAFETY: the source lives until the stream is quiet.
                let status = issue(&mut ends, |engine| unsafe {
                    let signal = Some((heap(LEN - 8), amo));
                    engine.write(&stream, 1, heap(0), source.as_ptr().cast(), CHUNK, false, signal)
                });
                assert_eq!(status, Status::Pending);
                until(&mut ends, |ends| ends[1].word(LEN / 8 - 1) == round);
                assert_eq!((ends[1].word(0), ends[1].word(CHUNK / 8 - 1)), (round, round));
                quiet(&mut ends, &stream);
            }
        }
    }
}

#[test]
fn rma_after_a_fence_does_not_overtake_requests() {
    for mut ends in pairs(Harder::No) {
        let stream = Stream::new(1, true);
        for round in 1..=50u64 {
            let (old, new) = (vec![2 * round; 64], vec![2 * round + 1; 64]);
            // SAFETY: both sources live until the stream is quiet.
            unsafe {
                let bytes = std::slice::from_raw_parts(old.as_ptr().cast(), 512);
                let put = Record::Put { at: heap(0), data: bytes };
                let status = issue(&mut ends, |e| e.request(&stream, 1, &put, null_mut()));
                assert_eq!(status, Status::Pending);
                assert_eq!(ends[0].engine.fence(&stream), Status::Complete);
                let status = issue(&mut ends, |e| {
                    e.write(&stream, 1, heap(0), new.as_ptr().cast(), 512, false, None)
                });
                assert_eq!(status, Status::Pending);
            }
            quiet(&mut ends, &stream);
            assert_eq!((ends[1].word(0), ends[1].word(63)), (2 * round + 1, 2 * round + 1));
        }
    }
}

#[test]
fn many_operations_share_a_message_and_all_are_counted() {
    for mut ends in pairs(Harder::No) {
        let streams = [Stream::new(1, true), Stream::new(2, false)];
        for number in 0..10_000 {
            let stream = &streams[number % 7 % 2];
            // SAFETY: there is no result.
            let status = issue(&mut ends, |engine| unsafe {
                engine.request(stream, 1, &add(number % 3 * 8, 1), null_mut())
            });
            assert_eq!(status, Status::Pending);
        }
        streams.iter().for_each(|stream| quiet(&mut ends, stream));
        assert_eq!((0..3).map(|index| ends[1].word(index)).sum::<u64>(), 10_000);
        let counters = ends[0].engine.counters();
        assert_eq!(counters.records, 10_000);
        assert!(counters.requests < 5_000, "{counters:?}");
        assert_eq!(ends[0].engine.free_batches.len(), BATCHES);
    }
}

/// Puts as long as a message may be, each with a signal, among adds that fill messages of their own.
#[test]
fn long_puts_share_a_message_with_their_signals_and_nothing_else() {
    for mut ends in pairs(Harder::No) {
        let stream = Stream::new(1, true);
        let len = data_max(ends[0].engine.net.message_max()) / 8 * 8;
        for round in 1..=50u64 {
            let bytes = vec![round as u8; len];
            let put = Record::Put { at: heap(64), data: &bytes };
            let status =
                issue(&mut ends, |engine| engine.request_with_signal(&stream, 1, &put, &add(0, 1)));
            assert_eq!(status, Status::Pending);
            for _ in 0..500 {
                // SAFETY: there is no result.
                let status = issue(&mut ends, |engine| unsafe {
                    engine.request(&stream, 1, &add(8, 1), null_mut())
                });
                assert_eq!(status, Status::Pending);
            }
        }
        quiet(&mut ends, &stream);
        let filled = u64::from_ne_bytes([50; 8]);
        let words = [0, 1, 8, 7 + len / 8, 8 + len / 8].map(|index| ends[1].word(index));
        assert_eq!(words, [50, 25_000, filled, filled, 0]);
        assert_eq!(ends[0].engine.counters().records, 50 * 2 + 25_000);
        assert_eq!(ends[0].engine.free_batches.len(), BATCHES);
    }
}

/// PE `from` adds 1 to the first word of the other one, which sees that without answering or soon.
fn add_and_see(ends: &mut [End; 2], from: usize, stream: &Stream) {
    let before = ends[1 - from].word(0);
    // SAFETY: there is no result.
    let status =
        unsafe { ends[from].engine.request(stream, 1 - from as u32, &add(0, 1), null_mut()) };
    assert_eq!(status, Status::Pending);
    until(ends, |ends| ends[1 - from].word(0) > before);
}

#[test]
fn answers_that_nobody_waits_for_travel_with_requests() {
    for mut ends in pairs(Harder::No) {
        let streams = [Stream::new(1, true), Stream::new(2, true)];
        for _ in 0..100 {
            add_and_see(&mut ends, 0, &streams[0]);
            add_and_see(&mut ends, 1, &streams[1]);
            assert!(streams[0].is_quiet());
        }
        // The clock may have asked for an answer now and then.
        for end in &ends {
            let Counters { served, answers, .. } = end.engine.counters();
            assert_eq!(served, 100);
            assert!(answers < 20, "{answers} answers to {served} requests");
        }
    }
}

#[test]
fn who_waits_is_answered_at_once_and_then_for_some_time() {
    for mut ends in pairs(Harder::No) {
        let stream = Stream::new(1, true);
        add_and_see(&mut ends, 0, &stream);
        quiet(&mut ends, &stream);
        // The second one is of nothing.
        let served = ends[1].engine.counters().served;
        assert!(served <= 2, "{served} requests");
        for _ in 0..100 {
            add_and_see(&mut ends, 0, &stream);
            quiet(&mut ends, &stream);
        }
        assert_eq!(ends[1].engine.counters().served, served + 100);
        assert_eq!(ends[0].engine.free_batches.len(), BATCHES);
    }
}

#[test]
fn few_requests_are_without_an_answer_at_a_time() {
    for mut ends in pairs(Harder::No) {
        let stream = Stream::new(1, true);
        for _ in 0..100 {
            add_and_see(&mut ends, 0, &stream);
            let left =
                stream.issued.load(Ordering::Relaxed) - stream.completed.load(Ordering::Relaxed);
            assert!(left <= 8, "{left} of 100");
        }
        // Nobody asks, and all are answered when the target has looked at its clock.
        ends[1].engine.looked_ns = 0;
        until(&mut ends, |_| stream.is_quiet());
    }
}

#[test]
fn what_lies_outside_is_refused_by_the_target_too() {
    for mut ends in pairs(Harder::No) {
        // The requester has got the length wrong.
        ends[0].engine.peers[1].theirs.segments[0].len = 2 * LEN;
        for record in [add(LEN, 1), add(LEN - 4, 1)] {
            let stream = Stream::new(1, true);
            // SAFETY: there is no result.
            let status =
                issue(&mut ends, |e| unsafe { e.request(&stream, 1, &record, null_mut()) });
            assert_eq!(status, Status::Pending);
            quiet(&mut ends, &stream);
            assert_eq!(stream.failed.load(Ordering::Relaxed), 2 | Stream::REFUSED);
        }
        assert!(!ends[0].lost.has(1));
    }
}

#[test]
fn messages_without_the_token_are_dropped() {
    for mut ends in pairs(Harder::No) {
        ends[0].engine.peers[1].theirs.token ^= 1;
        let stream = Stream::new(1, true);
        // SAFETY: there is no result.
        let status = issue(&mut ends, |e| unsafe { e.request(&stream, 1, &add(0, 1), null_mut()) });
        assert_eq!(status, Status::Pending);
        until(&mut ends, |ends| ends[1].engine.counters().strangers == 1);
        assert!(!stream.is_quiet());
        assert_eq!(ends[1].word(0), 0);
    }
}

#[test]
fn what_was_issued_to_a_peer_that_goes_fails_and_later_operations_do() {
    for mut ends in pairs(Harder::No) {
        let stream = Stream::new(1, true);
        let source = vec![1u8; LEN];
        // SAFETY: there is no result, and the source lives longer than the stream.
        let (request, write) = unsafe {
            let request = |e: &mut Engine| e.request(&stream, 1, &add(0, 1), null_mut());
            let write =
                |e: &mut Engine| e.write(&stream, 1, heap(0), source.as_ptr(), LEN, false, None);
            (request, write)
        };
        // Connects.
        assert_eq!(issue(&mut ends, request), Status::Pending);
        quiet(&mut ends, &stream);
        let [mut near, far] = ends;
        assert_eq!(write(&mut near.engine), Status::Pending);
        drop(far);
        let begun = Instant::now();
        while !stream.is_quiet() {
            near.engine.progress();
            assert!(begun.elapsed() < Duration::from_secs(10), "the loss is not noticed");
        }
        assert_eq!(stream.failed.load(Ordering::Relaxed), 2);
        assert_eq!((near.lost.first(), near.lost.has(1)), (Some(1), true));
        let later = Stream::new(2, true);
        // SAFETY: there is no result.
        let status = unsafe { near.engine.request(&later, 1, &add(0, 1), null_mut()) };
        assert_eq!((status, later.is_quiet()), (Status::Failed, true));
    }
}

#[test]
fn a_peer_that_is_silent_is_given_up() {
    for mut ends in pairs(Harder::No) {
        let stream = Stream::new(1, true);
        // SAFETY: there is no result.
        let request = |e: &mut Engine| unsafe { e.request(&stream, 1, &add(0, 1), null_mut()) };
        assert_eq!(issue(&mut ends, request), Status::Pending);
        quiet(&mut ends, &stream);
        // From here on nobody makes progress for PE 1, as if its cable were cut.
        let [near, _far] = &mut ends;
        let begun = Instant::now();
        while near.lost.first().is_none() {
            // As if it had not looked for long, of which half a second counts.
            near.engine.looked_ns = 0;
            near.engine.progress();
            assert!(begun.elapsed() < Duration::from_secs(30), "the loss is not noticed");
        }
        assert_eq!(near.lost.first(), Some(1));
        assert!(near.engine.clock <= 10_000_000_000, "{} ns", near.engine.clock);
    }
}
