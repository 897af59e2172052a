// SPDX-License-Identifier: Apache-2.0
//! Two PEs with two rails, of which one is cut and mended again: nothing is lost, carried out twice or late.
//! The rails are as bad as connections may be: what was sent while one is cut arrives when it is mended,
//! unless the receiver has closed its end meanwhile; and who closes only its own end is sent more.

use super::{Rail, Rails};
use crate::network::engine::{Engine, Lost, Own, TheirSegment, Theirs};
use crate::network::message::{LONG_MESSAGE, Record};
use crate::network::*;
use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tombolo_core::board::monotonic_ns;
use tombolo_core::random::Random;
use tombolo_core::transport::{AmoOp, Remote, SegmentKind, Status, Stream};

const RAILS: usize = 2;
/// Bytes of the segment: the first half is put, what stays as it is and words follow.
const LEN: usize = 512 << 10;
const DATA: usize = LEN / 2;
const KEPT: usize = LEN / 4;
/// What a rail takes while it is cut.
const ROOM: usize = 100;

enum Packet {
    Message(Vec<u8>),
    Write { id: u64, at: u64, bytes: Vec<u8> },
    Read { id: u64, at: u64, len: usize },
    Ended { id: u64, bytes: Vec<u8> },
}

/// What is between the PEs.
#[derive(Default)]
struct Wires {
    /// By rail and sender.
    on_the_way: [[VecDeque<Packet>; 2]; RAILS],
    is_cut: [bool; RAILS],
    /// What a peer that was removed has sent still arrives.
    pretends: bool,
    /// A rail that is cut says so, by the failure of a transfer, after so many polls.
    fails_after: Option<u64>,
}

struct Wire {
    wires: Arc<Mutex<Wires>>,
    me: usize,
    rail: usize,
    posted: VecDeque<(*mut u8, usize, *mut c_void)>,
    /// Number, context and buffer of what was posted.
    pending: Vec<(u64, *mut c_void, *mut u8)>,
    done: VecDeque<Completion>,
    failed: VecDeque<Failure>,
    last: u64,
    /// Polls since it was cut.
    cut_for: u64,
}

// SAFETY: used by one thread.
unsafe impl Send for Wire {}

impl Wire {
    fn wires(&self) -> MutexGuard<'_, Wires> {
        self.wires.lock().unwrap()
    }

    fn put_on(&self, packet: Packet) -> isize {
        let queue = &mut self.wires().on_the_way[self.rail][self.me];
        if queue.len() >= ROOM {
            return -(libc::EAGAIN as isize);
        }
        queue.push_back(packet);
        0
    }

    fn take(&mut self, packet: Packet) {
        match packet {
            Packet::Message(bytes) => {
                let (buffer, len, context) = self.posted.pop_front().expect("asked before");
                assert!(bytes.len() <= len);
                // SAFETY: a buffer that was posted.
                unsafe { buffer.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
                self.done.push_back(Completion { context, len: bytes.len() });
            }
            Packet::Write { id, at, bytes } => {
                // SAFETY: in the segment of this PE.
                unsafe { (at as *mut u8).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
                self.answer(Packet::Ended { id, bytes: vec![] });
            }
            Packet::Read { id, at, len } => {
                // SAFETY: as above.
                let bytes = unsafe { std::slice::from_raw_parts(at as *const u8, len) }.to_vec();
                self.answer(Packet::Ended { id, bytes });
            }
            Packet::Ended { id, bytes } => {
                let Some(at) = self.pending.iter().position(|one| one.0 == id) else { return };
                let (_, context, buffer) = self.pending.swap_remove(at);
                // SAFETY: the buffer of a read; nothing otherwise.
                unsafe { buffer.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
                self.done.push_back(Completion { context, len: 0 });
            }
        }
    }

    fn answer(&self, packet: Packet) {
        self.wires().on_the_way[self.rail][self.me].push_back(packet);
    }

    fn issue(
        &mut self,
        context: *mut c_void,
        buffer: *mut u8,
        packet: impl FnOnce(u64) -> Packet,
    ) -> isize {
        self.last += 1;
        let result = self.put_on(packet(self.last));
        if result == 0 {
            self.pending.push((self.last, context, buffer));
        }
        result
    }
}

impl Device for Wire {
    type Key = ();

    unsafe fn register(&mut self, _: *mut u8, _: usize) -> Result<(), String> {
        Ok(())
    }

    fn unregister(&mut self, (): ()) {}
}

impl Rail for Wire {
    fn is_like(&self, _: &Wire) -> bool {
        true
    }

    fn max_len(&self) -> usize {
        1 << 20
    }

    fn wait_fd(&self) -> Option<RawFd> {
        None
    }

    fn closes(&self) -> bool {
        true
    }
}

impl Network for Wire {
    fn is_ordered(&self) -> bool {
        true
    }

    fn needs_local_registration(&self) -> bool {
        false
    }

    fn inject_max(&self) -> usize {
        64
    }

    fn message_max(&self) -> usize {
        LONG_MESSAGE
    }

    unsafe fn share(&mut self, at: *mut u8, _: usize, key: u64) -> Result<Shared<()>, String> {
        Ok(Shared { local: (), key: key + self.rail as u64, base: at as u64 })
    }

    fn name(&self) -> Result<Vec<u8>, String> {
        Ok(vec![self.me as u8])
    }

    fn insert(&mut self, name: &[u8]) -> Result<u64, String> {
        Ok(name[0].into())
    }

    fn remove(&mut self, peer: u64) {
        let mut wires = self.wires();
        if !wires.pretends {
            wires.on_the_way[self.rail][peer as usize].clear();
        }
        drop(wires);
        let ended = self.pending.drain(..).map(|(_, context, _)| Failure {
            context,
            is_refusal: false,
            why: "closed".into(),
        });
        self.failed.extend(ended);
    }

    unsafe fn receive(
        &mut self,
        buffer: *mut u8,
        len: usize,
        (): (),
        context: *mut c_void,
    ) -> isize {
        self.posted.push_back((buffer, len, context));
        0
    }

    unsafe fn send(
        &mut self,
        _: u64,
        buffer: *const u8,
        len: usize,
        (): (),
        context: *mut c_void,
    ) -> isize {
        // SAFETY: by the caller's word.
        let bytes = unsafe { std::slice::from_raw_parts(buffer, len) }.to_vec();
        let result = self.put_on(Packet::Message(bytes));
        if result == 0 {
            self.done.push_back(Completion { context, len: 0 });
        }
        result
    }

    fn inject(&mut self, _: u64, message: &[u8]) -> isize {
        self.put_on(Packet::Message(message.to_vec()))
    }

    unsafe fn read(
        &mut self,
        _: u64,
        local: Local<()>,
        RemoteAddress { address: at, .. }: RemoteAddress,
        context: *mut c_void,
    ) -> isize {
        self.issue(context, local.at, |id| Packet::Read { id, at, len: local.len })
    }

    unsafe fn write(
        &mut self,
        _: u64,
        local: Local<()>,
        RemoteAddress { address: at, .. }: RemoteAddress,
        context: *mut c_void,
    ) -> isize {
        // SAFETY: by the caller's word.
        let bytes = unsafe { std::slice::from_raw_parts(local.at, local.len) }.to_vec();
        self.issue(context, local.at, |id| Packet::Write { id, at, bytes })
    }

    fn poll(&mut self, taken: &mut [Completion]) -> Result<usize, Failure> {
        let wires = self.wires();
        let (is_cut, fails_after) = (wires.is_cut[self.rail], wires.fails_after);
        drop(wires);
        self.cut_for = if is_cut { self.cut_for + 1 } else { 0 };
        if fails_after.is_some_and(|polls| self.cut_for > polls)
            && let Some((_, context, _)) = self.pending.pop()
        {
            self.failed.push_back(Failure { context, is_refusal: false, why: "broken".into() });
        }
        for _ in 0..4 {
            let mut wires = self.wires();
            if wires.is_cut[self.rail] {
                break;
            }
            let queue = &mut wires.on_the_way[self.rail][1 - self.me];
            let is_message = matches!(queue.front(), Some(Packet::Message(_)));
            if is_message && self.posted.is_empty() {
                break;
            }
            let Some(packet) = queue.pop_front() else { break };
            drop(wires);
            self.take(packet);
        }
        if let Some(failure) = self.failed.pop_front() {
            return Err(failure);
        }
        let count = self.done.len().min(taken.len());
        taken.iter_mut().zip(self.done.drain(..count)).for_each(|(to, from)| *to = from);
        Ok(count)
    }

    fn meaning(&self, number: isize) -> String {
        number.to_string()
    }

    fn may_sleep(&mut self) -> bool {
        true
    }
}

struct End {
    engine: Engine<Rails<Wire>>,
    memory: Vec<u64>,
    lost: Arc<Lost>,
}

impl End {
    fn bytes(&self, range: std::ops::Range<usize>) -> Vec<u8> {
        let whole = self.memory.as_ptr().cast::<u8>();
        // SAFETY: inside the vector, to which engines write in this thread only.
        unsafe { std::slice::from_raw_parts(whole.add(range.start), range.len()) }.to_vec()
    }
}

fn ends(wires: &Arc<Mutex<Wires>>) -> [End; 2] {
    let made = [0, 1].map(|me: usize| {
        let wire = |rail| Wire {
            wires: wires.clone(),
            me,
            rail,
            posted: VecDeque::new(),
            pending: vec![],
            done: VecDeque::new(),
            failed: VecDeque::new(),
            last: 0,
            cut_for: 0,
        };
        let labels = vec!["one".into(), "two".into()];
        let mut net = Rails::new((0..RAILS).map(wire).collect(), labels).unwrap();
        let mut memory = vec![0u64; LEN / 8];
        // SAFETY: the memory goes after the engine, by the order of the fields.
        let shared = unsafe { net.share(memory.as_mut_ptr().cast(), LEN, 100) }.unwrap();
        let name = net.name().unwrap();
        let own = Own { base: memory.as_mut_ptr().cast(), len: LEN, shared };
        let none = Own { base: null_mut(), len: 0, shared: Shared::default() };
        let segment = TheirSegment { base: shared.base, key: shared.key, len: LEN };
        let lost = Arc::new(Lost::none(2));
        let token = 7 + me as u64;
        let engine =
            Engine::new(net, me, token, [own, none], lost.clone(), Duration::from_secs(6)).unwrap();
        let theirs = Theirs { address: 0, token, segments: [segment, TheirSegment::default()] };
        (End { engine, memory, lost }, name, theirs)
    });
    let told = [0, 1].map(|pe: usize| (made[pe].1.clone(), made[pe].2));
    let mut ends = made.map(|(end, _, _)| end);
    for end in &mut ends {
        let theirs = told.iter().map(|(name, theirs)| {
            Some(Theirs { address: end.engine.insert(name).unwrap(), ..*theirs })
        });
        let theirs = theirs.collect();
        end.engine.meet(theirs);
    }
    ends
}

fn heap(offset: usize) -> Remote {
    Remote { segment: SegmentKind::Heap, offset }
}

/// Rounds of puts, gets and AMOs of PE 0 while rails are cut and mended; what went wrong, if anything did.
fn rounds(seed: u64, wires: Wires) -> Result<(), String> {
    let wires = Arc::new(Mutex::new(wires));
    let mut ends = ends(&wires);
    let mut dice = Random::new(seed);
    let victim = dice.below(2) as usize;
    let (cut_at, mended_at) = (dice.below(400), 600 + dice.below(9000));
    let mut steps = 0;
    let mut step = |ends: &mut [End; 2], dice: &mut Random| {
        steps += 1;
        wires.lock().unwrap().is_cut[victim] = (cut_at..mended_at).contains(&steps);
        let end = &mut ends[dice.below(2) as usize].engine;
        if dice.one_in(50) {
            // As if a quarter of a second had passed.
            end.looked_ns = monotonic_ns() - 250_000_000;
        }
        end.progress();
        (steps < 200_000 && steps > mended_at, steps >= 200_000)
    };
    let kept: Vec<u8> = (0..KEPT as u64).map(|i| (i * 7 + i / 251) as u8).collect();
    // SAFETY: inside the vector, and nothing is under way.
    unsafe {
        let memory = ends[1].memory.as_mut_ptr().cast::<u8>();
        memory.add(DATA).copy_from_nonoverlapping(kept.as_ptr(), KEPT);
    }
    let mut adds = 0;
    let mut unheard = [0; 2];
    for round in 1u64.. {
        let (stream, other) = (Stream::new(1, true), Stream::new(1, true));
        let source: Vec<u8> = (0..DATA as u64).map(|i| (i * 31 + round) as u8).collect();
        let (mut back, mut old) = (vec![0u8; DATA], vec![u64::MAX; 20]);
        let mut gets: Vec<(usize, Vec<u8>)> = Vec::with_capacity(old.len());
        let mut at = 0;
        while at < DATA {
            let len = (1000 + dice.below(60_000) as usize).min(DATA - at);
            let mut status = Status::Again;
            while status == Status::Again {
                // SAFETY: the source lives until the stream is quiet.
                status = unsafe {
                    ends[0].engine.write(
                        &stream,
                        1,
                        heap(at),
                        source[at..].as_ptr(),
                        len,
                        false,
                        None,
                    )
                };
                step(&mut ends, &mut dice);
            }
            at += len;
        }
        for value in &mut old {
            let amo = Amo { op: AmoOp::Add, size: 8, operand: 1, compare: 0 };
            let record = Record::Amo { at: heap(LEN - 8), amo, fetch: true };
            let mut status = Status::Again;
            while status == Status::Again {
                let result = (&raw mut *value).cast();
                // SAFETY: the place lives until the stream is quiet.
                status = unsafe { ends[0].engine.request(&stream, 1, &record, result) };
                step(&mut ends, &mut dice);
            }
            // A get of which the answer carries the data.
            let len = dice.below(6000) as usize;
            let from = dice.below((KEPT - len) as u64) as usize;
            let record = Record::Get { at: heap(DATA + from), len: len as u32 };
            gets.push((from, vec![0xee; len]));
            let result = gets.last_mut().map_or(null_mut(), |(_, place)| place.as_mut_ptr());
            let mut status = Status::Again;
            while status == Status::Again {
                // SAFETY: the place lives until the stream is quiet.
                status = unsafe { ends[0].engine.request(&stream, 1, &record, result) };
                step(&mut ends, &mut dice);
            }
            // And one of either end of which the answer is not waited for.
            let from = dice.below(2) as usize;
            let record = Record::Amo { at: heap(LEN - 16), amo, fetch: false };
            let stream = [&stream, &other][from];
            let mut status = Status::Again;
            while status == Status::Again {
                // SAFETY: there is no result.
                status = unsafe {
                    ends[from].engine.request(stream, 1 - from as u32, &record, null_mut())
                };
                step(&mut ends, &mut dice);
            }
            unheard[from] += 1u64;
        }
        let mut is_over = (false, false);
        let is_quiet = || stream.is_quiet() && other.is_quiet();
        while !is_quiet() && !is_over.1 {
            is_over = step(&mut ends, &mut dice);
            if round % 2 == 0 {
                ends[0].engine.quiet(&stream);
                ends[1].engine.quiet(&other);
            }
        }
        if is_over.1 || ends.iter().any(|end| end.lost.first().is_some()) {
            return Err(format!("round {round} does not end, or a PE is lost"));
        }
        let expected: Vec<u64> = (adds..).take(old.len()).collect();
        adds += old.len() as u64;
        if old != expected {
            return Err(format!("AMOs of round {round} were not carried out once each: {old:?}"));
        }
        if gets.iter().any(|(from, got)| kept[*from..][..got.len()] != **got) {
            return Err(format!("gets of round {round} are wrong"));
        }
        for (from, count) in unheard.iter().enumerate() {
            if ends[1 - from].bytes(LEN - 16..LEN - 8) != count.to_le_bytes() {
                return Err(format!("plain AMOs of round {round} were not carried out once each"));
            }
        }
        if ends[1].bytes(0..DATA) != source {
            return Err(format!("round {round} is told to be complete and is not"));
        }
        // SAFETY: the destination lives until the stream is quiet.
        while unsafe { ends[0].engine.read(&stream, 1, back.as_mut_ptr(), heap(0), DATA / 2) }
            == Status::Again
        {
            step(&mut ends, &mut dice);
        }
        while !stream.is_quiet() {
            is_over = step(&mut ends, &mut dice);
            if is_over.1 {
                return Err("a get does not end".into());
            }
        }
        if back[..DATA / 2] != source[..DATA / 2] {
            return Err(format!("a get of round {round} is wrong"));
        }
        // Something newer, which stays.
        let newer: Vec<u8> = vec![round as u8 ^ 0x5a; DATA];
        // SAFETY: inside the vector, and nobody else writes to it now.
        unsafe {
            let memory = ends[1].memory.as_mut_ptr().cast::<u8>();
            memory.copy_from_nonoverlapping(newer.as_ptr(), DATA);
        }
        for _ in 0..if is_over.0 { 2000 } else { dice.below(200) } {
            step(&mut ends, &mut dice);
        }
        if ends[1].bytes(0..DATA) != newer {
            return Err(format!("something of round {round} came late"));
        }
        if is_over.0 {
            return Ok(());
        }
    }
    Ok(())
}

#[test]
fn nothing_is_lost_repeated_or_late_when_a_rail_is_cut_and_mended() {
    for seed in 0..60 {
        assert_eq!(rounds(seed, Wires::default()), Ok(()), "seed {seed}");
    }
}

/// Who finds out first sends its requests by the other rail before the peer knows; answers to them still go by the
/// one that is cut.
#[test]
fn nothing_is_lost_repeated_or_late_when_one_end_is_told_that_a_rail_fails() {
    for seed in 0..60 {
        let wires = Wires { fails_after: Some(seed % 50), ..Wires::default() };
        assert_eq!(rounds(seed, wires), Ok(()), "seed {seed}");
    }
}

#[test]
fn connections_that_are_not_closed_would_be_found_out() {
    let late =
        (0..60).filter_map(|seed| rounds(seed, Wires { pretends: true, ..Wires::default() }).err());
    assert!(late.filter(|why| why.contains("late")).count() > 0);
}
