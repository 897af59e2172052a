// SPDX-License-Identifier: Apache-2.0
//! Who carries out AMOs, as the network says what its own exclude; and what a PE takes in while nothing that it
//! sends leaves. The network notes what it is asked for, and ends nothing.

use super::endpoint::Served;
use super::engine::{CHUNK, Engine, Lost, Own, TheirSegment, Theirs};
use super::message::{HEADER, Header, Kind as MessageKind, Record};
use super::open::{Kind, Opened, unsettled};
use super::*;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tombolo_core::Config;
use tombolo_core::transport::{
    AmoOp, Blocks, Endpoint, Locality, Remote, Segment, SegmentKind, Signal, SignalOp, Status,
    Stream,
};

type Log = Arc<Mutex<Vec<&'static str>>>;
type Coming = Arc<Mutex<VecDeque<Vec<u8>>>>;

#[derive(Default)]
struct Noting {
    atomics: Atomics,
    overtakes: bool,
    overtakes_reads: bool,
    /// Writes keep no order.
    unordered: bool,
    /// Bytes under way at most; 0: as networks have it.
    most: usize,
    /// Local buffers must be registered.
    registers: bool,
    /// Where memory begins that cannot be.
    refuses: usize,
    /// Registrations there are.
    registered: Arc<AtomicUsize>,
    /// Sources of writes.
    written: Arc<Mutex<Vec<Vec<u8>>>>,
    /// How often it was asked to see to it that operations end.
    confirms: Arc<AtomicUsize>,
    happened: Vec<Event>,
    log: Log,
    /// Messages that come in.
    coming: Coming,
    /// To whom messages went.
    told: Arc<Mutex<Vec<u64>>>,
    /// What they were.
    said: Arc<Mutex<Vec<Vec<u8>>>>,
    /// Writes end at once.
    ends_writes: bool,
    ended: VecDeque<*mut c_void>,
    posted: VecDeque<(*mut u8, usize, *mut c_void)>,
}

// SAFETY: used by one thread.
unsafe impl Send for Noting {}

impl Noting {
    fn note(&self, what: &'static str) -> isize {
        self.log.lock().unwrap().push(what);
        0
    }
}

impl Device for Noting {
    type Key = ();

    unsafe fn register(&mut self, at: *mut u8, len: usize) -> Result<(), String> {
        if (at as usize..at as usize + len).contains(&self.refuses) {
            return Err("it cannot be written".into());
        }
        self.registered.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn unregister(&mut self, (): ()) {
        self.registered.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Network for Noting {
    fn is_ordered(&self) -> bool {
        !self.unordered
    }

    fn needs_local_registration(&self) -> bool {
        self.registers
    }

    fn under_way_max(&self) -> usize {
        if self.most > 0 { self.most } else { usize::MAX }
    }

    fn confirm(&mut self) {
        self.confirms.fetch_add(1, Ordering::Relaxed);
    }

    fn event(&mut self) -> Option<Event> {
        self.happened.pop()
    }

    fn inject_max(&self) -> usize {
        0
    }

    unsafe fn share(&mut self, at: *mut u8, _: usize, key: u64) -> Result<Shared<()>, String> {
        Ok(Shared { local: (), key, base: at as u64 })
    }

    fn name(&self) -> Result<Vec<u8>, String> {
        Ok(vec![1])
    }

    fn insert(&mut self, _: &[u8]) -> Result<u64, String> {
        Ok(0)
    }

    fn remove(&mut self, _: u64) {}

    unsafe fn receive(&mut self, at: *mut u8, len: usize, (): (), context: *mut c_void) -> isize {
        self.posted.push_back((at, len, context));
        0
    }

    unsafe fn send(&mut self, to: u64, at: *const u8, len: usize, (): (), _: *mut c_void) -> isize {
        self.told.lock().unwrap().push(to);
        // SAFETY: by the caller's word.
        self.said.lock().unwrap().push(unsafe { std::slice::from_raw_parts(at, len) }.to_vec());
        self.note("message")
    }

    fn inject(&mut self, _: u64, _: &[u8]) -> isize {
        self.note("message")
    }

    unsafe fn read(&mut self, _: u64, _: Local<()>, _: RemoteAddress, _: *mut c_void) -> isize {
        self.note("read")
    }

    unsafe fn write(&mut self, _: u64, of: Local<()>, _: RemoteAddress, end: *mut c_void) -> isize {
        // SAFETY: by the caller's word.
        self.written
            .lock()
            .unwrap()
            .push(unsafe { std::slice::from_raw_parts(of.at, of.len) }.to_vec());
        self.ended.extend(self.ends_writes.then_some(end));
        self.note("write")
    }

    fn atomics(&self, _: u64) -> Atomics {
        self.atomics
    }

    fn overtakes_amos(&self) -> bool {
        self.overtakes
    }

    fn overtakes_reads(&self) -> bool {
        self.overtakes_reads
    }

    unsafe fn amo(
        &mut self,
        _: u64,
        _: Amo,
        _: Words<()>,
        _: RemoteAddress,
        _: *mut c_void,
    ) -> isize {
        self.note("AMO")
    }

    fn poll(&mut self, taken: &mut [Completion]) -> Result<usize, Failure> {
        if let Some(context) = self.ended.pop_front() {
            taken[0] = Completion { context, len: 0 };
            return Ok(1);
        }
        let mut coming = self.coming.lock().unwrap();
        // What finds no buffer waits.
        if coming.is_empty() || self.posted.is_empty() {
            return Ok(0);
        }
        let message = coming.pop_front().expect("there is one");
        let (at, len, context) = self.posted.pop_front().expect("there is one");
        assert!(message.len() <= len);
        // SAFETY: a buffer that was posted.
        unsafe { at.copy_from_nonoverlapping(message.as_ptr(), message.len()) };
        taken[0] = Completion { context, len: message.len() };
        Ok(1)
    }

    fn meaning(&self, _: isize) -> String {
        String::new()
    }

    fn may_sleep(&mut self) -> bool {
        true
    }
}

/// The ways of PE 0 of two to itself, where there is one, and to PE 1.
struct Two {
    opened: Opened<Noting>,
    own: Option<Box<dyn Endpoint>>,
    other: Box<dyn Endpoint>,
    log: Log,
}

fn two(atomics: Atomics, overtakes: bool) -> Two {
    two_of(Noting { atomics, overtakes, ..Noting::default() })
}

/// Bytes of the heap of each.
const HEAP: usize = 256 << 10;

fn two_of(net: Noting) -> Two {
    let config = Config::from_environment([("SHMEM_DEBUG", "0")].into_iter().collect()).unwrap();
    let job =
        Job { pe: 0, localities: &[0, 1].map(Locality::alone_on), config: &config, meeting: None };
    let memory = Box::leak(vec![0u64; HEAP / 8].into_boxed_slice());
    let segment = Segment {
        kind: SegmentKind::Heap,
        base: memory.as_mut_ptr().cast(),
        len: HEAP,
        whole: memory.as_mut_ptr().cast(),
        file: None,
        file_offset: 0,
        layout: 7,
    };
    let log = net.log.clone();
    let kind = Kind {
        medium: String::new(),
        name: "noting".into(),
        served: Served::BY_DEVICE,
        max_len: 1 << 20,
        wait_fd: None,
        amos_asked_for: None,
    };
    let (opened, address) = Opened::new(net, kind, &job, &[segment]).unwrap();
    let mut ways = opened.meet(&job, &[address.clone(), address], |_, _| String::new());
    let other = ways.pop().unwrap().unwrap();
    Two { own: ways.pop().unwrap().ok(), other, opened, log }
}

const VARIABLE: Remote = Remote { segment: SegmentKind::Heap, offset: 8 };

impl Two {
    /// What an AMO on PE 1 leads to.
    fn amo(&self, stream: &Stream, op: AmoOp, size: u8) -> &'static str {
        let amo = Amo { op, size, operand: 1, compare: 0 };
        // SAFETY: there is no result.
        let status = unsafe { self.other.amo(stream, VARIABLE, amo, None) };
        assert_eq!(status, Status::Pending);
        self.log.lock().unwrap().pop().unwrap()
    }
}

const ADDS: AmoSet = AmoSet::NONE.with(AmoOp::Add, 8).with(AmoOp::CompareSwap, 8);

#[test]
fn what_is_atomic_with_processors_is_mixed_with_what_they_do() {
    let two = two(Atomics { amos: ADDS, coherent: true }, false);
    // A PE changes its own variables itself.
    assert!(two.own.is_none());
    let can = two.other.capabilities(SegmentKind::Heap);
    assert!(can.device_amos.is_empty() && can.amos == AmoSet::ALL);
    let stream = Stream::new(1, true);
    let by = |op, size| two.amo(&stream, op, size);
    assert_eq!((by(AmoOp::Add, 8), by(AmoOp::CompareSwap, 8)), ("AMO", "AMO"));
    assert_eq!((by(AmoOp::Or, 8), by(AmoOp::Add, 4)), ("message", "message"));
}

#[test]
fn what_is_atomic_among_itself_alone_is_left_to_the_core() {
    let two = two(Atomics { amos: ADDS, coherent: false }, false);
    let can = two.other.capabilities(SegmentKind::Heap);
    assert!(can.device_amos == ADDS && can.amos == AmoSet::ALL);
    let own = two.own.as_ref().expect("a way to itself").capabilities(SegmentKind::Heap);
    assert!(own.device_amos == ADDS && own.amos.is_empty() && !own.reach());
    // In the domain of the target's processor.
    let stream = Stream::new(1, true);
    assert_eq!(two.amo(&stream, AmoOp::Add, 8), "message");
    let amo = Amo { op: AmoOp::Add, size: 8, operand: 1, compare: 0 };
    for way in [two.own.as_ref().unwrap(), &two.other] {
        // SAFETY: there is no result.
        let status = unsafe { way.device_amo(&stream, VARIABLE, amo, None) };
        assert_eq!((status, two.log.lock().unwrap().pop()), (Status::Pending, Some("AMO")));
    }
}

#[test]
fn a_network_without_amos_has_no_way_to_its_own_pe() {
    let two = two(Atomics::default(), false);
    assert!(two.own.is_none());
    assert!(two.other.capabilities(SegmentKind::Heap).device_amos.is_empty());
}

#[test]
fn a_fence_waits_for_amos_that_are_overtaken_alone() {
    for overtakes in [false, true] {
        let two = two(Atomics { amos: ADDS, coherent: true }, overtakes);
        let stream = Stream::new(1, true);
        assert_eq!(two.amo(&stream, AmoOp::Add, 8), "AMO");
        let expected = if overtakes { Status::Pending } else { Status::Complete };
        assert_eq!(two.opened.port.fence(&stream), expected);
    }
}

#[test]
fn a_fence_waits_for_reads_that_are_overtaken_alone() {
    for overtakes_reads in [false, true] {
        let two = two_of(Noting { overtakes_reads, ..Noting::default() });
        let stream = Stream::new(1, true);
        let mut buffer = [0u8; 64];
        // SAFETY: the buffer stays; nothing is written to it.
        let status = unsafe { two.other.put(&stream, VARIABLE, buffer.as_ptr(), 64, false) };
        assert_eq!((status, two.opened.port.fence(&stream)), (Status::Pending, Status::Complete));
        // SAFETY: as above.
        let status = unsafe { two.other.get(&stream, buffer.as_mut_ptr(), VARIABLE, 64) };
        let expected = if overtakes_reads { Status::Pending } else { Status::Complete };
        assert_eq!((status, two.opened.port.fence(&stream)), (Status::Pending, expected));
        // Reads of another stream do not count.
        let other = Stream::new(2, true);
        // SAFETY: as above.
        let status = unsafe { two.other.put(&other, VARIABLE, buffer.as_ptr(), 64, false) };
        assert_eq!((status, two.opened.port.fence(&other)), (Status::Pending, Status::Complete));
        assert_eq!(*two.log.lock().unwrap(), ["write", "read", "write"]);
    }
}

/// A card tells that data can be read only if it is asked, so that whoever waits for an operation to end has to ask.
#[test]
fn who_waits_for_operations_to_end_sees_to_it_that_they_do() {
    let confirms = Arc::new(AtomicUsize::new(0));
    let asked = || confirms.swap(0, Ordering::Relaxed) > 0;
    let net = |registers, unordered| Noting {
        registers,
        unordered,
        confirms: confirms.clone(),
        ..Noting::default()
    };
    let (buffer, stream) = ([0u8; 1024], Stream::new(1, true));
    let put = |two: &Two, blocking| {
        // SAFETY: the buffer stays.
        unsafe { two.other.put(&stream, VARIABLE, buffer.as_ptr(), 64, blocking) }
    };
    // All buffers into which sources are copied are under way, then all places of operations.
    for (registers, blocking, most) in [(true, true, 32), (false, false, 512)] {
        let two = two_of(net(registers, false));
        for _ in 0..most {
            assert_eq!((put(&two, blocking), asked()), (Status::Pending, false));
        }
        assert_eq!((put(&two, blocking), asked()), (Status::Again, true));
    }
    // As many bytes as may be under way; what is longer goes alone.
    const P: Status = Status::Pending;
    for (lens, expected) in [
        ([64, 64, 64, 16], [P, P, Status::Again, Status::Again]),
        ([1024, 8, 8, 8], [P, Status::Again, Status::Again, Status::Again]),
    ] {
        let two = two_of(Noting { most: 150, ..net(false, false) });
        // SAFETY: the buffer stays.
        let put = |len| unsafe { two.other.put(&stream, VARIABLE, buffer.as_ptr(), len, false) };
        assert_eq!((lens.map(put), asked()), (expected, true));
    }
    // A fence, and a signal behind data, where nothing is ordered.
    let two = two_of(net(false, true));
    assert_eq!((put(&two, false), asked()), (Status::Pending, false));
    assert_eq!((two.opened.port.fence(&stream), asked()), (Status::Pending, true));
    let signal = Signal { word: VARIABLE, op: SignalOp::Add, value: 1 };
    // SAFETY: the buffer stays.
    let status =
        unsafe { two.other.put_signal(&stream, VARIABLE, buffer.as_ptr(), 1024, signal, false) };
    assert_eq!((status, asked()), (Status::Pending, true));
}

/// Cards whose driver registers all memory for writing refuse constants. Nothing stays registered for them.
#[test]
fn a_source_that_cannot_be_registered_is_copied() {
    const LEN: usize = 2 * CHUNK;
    let source = vec![7u8; LEN];
    let (registered, written) = <(Arc<AtomicUsize>, Arc<Mutex<Vec<Vec<u8>>>>)>::default();
    let two = two_of(Noting {
        registers: true,
        refuses: source.as_ptr() as usize + CHUNK,
        registered: registered.clone(),
        written: written.clone(),
        ends_writes: true,
        ..Noting::default()
    });
    let stream = Stream::new(1, true);
    let registrations = || registered.load(Ordering::Relaxed);
    let before = registrations();
    for times in 1..=2 {
        // SAFETY: the buffer stays.
        let status = unsafe { two.other.put(&stream, VARIABLE, source.as_ptr(), LEN, false) };
        assert_eq!((status, registrations()), (Status::Pending, before + 1));
        two.opened.port.progress();
        assert!(stream.is_quiet() && stream.is_settled());
        assert_eq!((registrations(), written.lock().unwrap().len()), (before, times));
    }
    assert!(written.lock().unwrap().iter().all(|bytes| *bytes == source));
    // What is to be written there cannot be copied: the memory is the caller's.
    let mut dest = source;
    // SAFETY: as above.
    let status = unsafe { two.other.get(&stream, dest.as_mut_ptr(), VARIABLE, LEN) };
    assert_eq!((status, registrations()), (Status::Failed, before));
    // That is no fault of the peer.
    assert_eq!(two.opened.port.lost().first(), None);
}

/// Otherwise a PE that was stopped until others have gone on without it would take part again.
#[test]
fn what_a_peer_asks_for_after_it_was_given_up_is_not_done() {
    for is_lost in [false, true] {
        let coming = Coming::default();
        let happened = if is_lost { vec![Event::Lost(0, "it is silent".into())] } else { vec![] };
        let net = Noting { coming: coming.clone(), happened, ..Noting::default() };
        let mut memory = vec![0u64; 512];
        let mut engine = serving(net, &mut memory);
        engine.progress();
        let add = Amo { op: AmoOp::Add, size: 8, operand: 3, compare: 0 };
        let record = Record::Amo { at: VARIABLE, amo: add, fetch: false };
        let mut message = header(MessageKind::Urgent, 1, 1).encode().to_vec();
        message.resize(HEADER + record.len(), 0);
        record.encode(&mut message[HEADER..]);
        coming.lock().unwrap().push_back(message);
        (0..4).for_each(|_| _ = engine.progress());
        assert!(coming.lock().unwrap().is_empty());
        drop(engine);
        assert_eq!(memory[1], if is_lost { 0 } else { 3 });
    }
}

/// Nobody waits for the dead as for those that may only be stopped.
#[test]
fn a_peer_whose_process_has_ended_is_given_up_soon() {
    let mut memory = vec![0u64; 512];
    let lost = Arc::new(Lost::none(3));
    let mut engine = serving_of(Noting::default(), &mut memory, lost.clone());
    let stream = Stream::new(1, true);
    let amo = Amo { op: AmoOp::Add, size: 8, operand: 1, compare: 0 };
    let record = Record::Amo { at: VARIABLE, amo, fetch: false };
    // SAFETY: there is no result.
    let requested = unsafe { engine.request(&stream, 1, &record, null_mut()) };
    assert_eq!(requested, Status::Pending);
    engine.has_ended(1);
    engine.progress();
    assert!(!lost.has(1), "what it had sent may still come");
    while !lost.has(1) {
        engine.progress();
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(lost.why(1).as_deref(), Some("its process has ended"));
    assert!(stream.is_quiet() && !stream.is_settled() && !lost.has(2));
}

/// Strangers do not know the token, and what a peer names may lie outside.
#[test]
fn what_strangers_ask_for_or_lies_outside_is_not_done() {
    let outside = Remote { offset: 4096, ..VARIABLE };
    for (token, at, done) in [(7, VARIABLE, [3, 0]), (8, VARIABLE, [0; 2]), (7, outside, [0; 2])] {
        let coming = Coming::default();
        let mut memory = vec![0u64; 513];
        let net = Noting { coming: coming.clone(), ..Noting::default() };
        let mut engine = serving(net, &mut memory[..512]);
        let amo = Amo { op: AmoOp::Add, size: 8, operand: 3, compare: 0 };
        let record = Record::Amo { at, amo, fetch: false };
        let header = Header { token, ..header(MessageKind::Urgent, 1, 1) };
        let mut message = header.encode().to_vec();
        message.resize(HEADER + record.len(), 0);
        record.encode(&mut message[HEADER..]);
        coming.lock().unwrap().push_back(message);
        (0..4).for_each(|_| _ = engine.progress());
        assert!(coming.lock().unwrap().is_empty());
        drop(engine);
        assert_eq!([memory[1], memory[512]], done, "{token}, {at:?}");
    }
}

/// Blocks are checked to the last one, and those between them stay as they are.
#[test]
fn blocks_are_put_and_got_and_those_outside_are_not() {
    let blocks =
        |offset, count| Blocks { at: Remote { offset, ..VARIABLE }, len: 8, stride: 24, count };
    let (inside, outside) = (blocks(8, 3), blocks(4096 - 55, 3));
    let last = blocks(4096 - 56, 3);
    let wraps = Blocks { stride: usize::MAX / 2, ..inside };
    for (to, done) in [(inside, true), (last, true), (outside, false), (wraps, false)] {
        let (coming, answers) = (Coming::default(), Arc::default());
        let net =
            Noting { coming: coming.clone(), said: Arc::clone(&answers), ..Noting::default() };
        let mut memory = vec![0u64; 513];
        let mut engine = serving(net, &mut memory[..512]);
        let data: Vec<u8> = (1..=24).collect();
        let records = [Record::PutBlocks { to, data: &data }, Record::GetBlocks { from: to }];
        let mut message = header(MessageKind::Urgent, 2, 1).encode().to_vec();
        for record in records {
            let at = message.len();
            message.resize(at + record.len(), 0);
            record.encode(&mut message[at..]);
        }
        coming.lock().unwrap().push_back(message);
        (0..4).for_each(|_| _ = engine.progress());
        drop(engine);
        let bytes: Vec<u8> = memory.iter().flat_map(|word| word.to_le_bytes()).collect();
        let mut expected = vec![0; bytes.len()];
        for number in (0..3).filter(|_| done) {
            let at = to.at.offset + number * to.stride;
            expected[at..at + 8].copy_from_slice(&data[number * 8..][..8]);
        }
        assert_eq!(bytes, expected, "{to:?}");
        let answer = answers.lock().unwrap().pop().expect("an answer");
        let refused = Header::decode(&answer).unwrap().refused;
        assert_eq!(refused, u16::from(!done), "{to:?}");
        assert_eq!(answer[HEADER..], if done { data } else { vec![0; 24] });
    }
}

/// PE 0 of three, with this memory as its heap.
fn serving(net: Noting, memory: &mut [u64]) -> Engine<Noting> {
    serving_of(net, memory, Arc::new(Lost::none(3)))
}

/// The same, which tells of lost peers.
fn serving_of(net: Noting, memory: &mut [u64], lost: Arc<Lost>) -> Engine<Noting> {
    let (base, len) = (memory.as_mut_ptr(), size_of_val(memory));
    let shared = Shared { local: (), key: 1, base: base as u64 };
    let own = Own { base: base.cast(), len, shared };
    let none = Own { base: null_mut(), len: 0, shared: Shared::default() };
    let mut engine = Engine::new(net, 0, 7, [own, none], lost, Duration::from_secs(6)).unwrap();
    let segment = TheirSegment { base: shared.base, key: 1, len };
    let segments = [segment, TheirSegment::default()];
    let peer = |address| Some(Theirs { address, token: 8, segments });
    engine.meet(vec![None, peer(0), peer(1)]);
    engine
}

/// A PE that does not answer, as one that is busy or about to be found lost, holds up nothing but its own.
#[test]
fn a_signal_does_not_wait_for_one_to_another_pe() {
    let told = Arc::default();
    let net =
        Noting { told: Arc::clone(&told), unordered: true, ends_writes: true, ..Noting::default() };
    let mut memory = vec![0u64; 512];
    let mut engine = serving(net, &mut memory);
    let (buffer, stream) = ([0u8; 1024], Stream::new(1, true));
    let amo = Amo { op: AmoOp::Add, size: 8, operand: 1, compare: 0 };
    let record = Record::Amo { at: VARIABLE, amo, fetch: false };
    // SAFETY: there is no result.
    while unsafe { engine.request(&stream, 1, &record, null_mut()) } == Status::Pending {}
    told.lock().unwrap().clear();
    for pe in [1, 2] {
        let (from, signal) = (buffer.as_ptr(), Some((VARIABLE, amo)));
        // SAFETY: the buffer stays.
        let status = unsafe { engine.write(&stream, pe, VARIABLE, from, 1024, false, signal) };
        assert_eq!(status, Status::Pending);
    }
    (0..4).for_each(|_| _ = engine.progress());
    assert_eq!(*told.lock().unwrap(), [1], "the second PE is at address 1");
}

/// A write may overtake a request that is under way.
#[test]
fn a_write_waits_for_requests_before_a_fence() {
    let coming = Coming::default();
    let net = Noting { coming: coming.clone(), ..Noting::default() };
    let mut memory = vec![0u64; 512];
    let mut engine = serving(net, &mut memory);
    let (buffer, stream) = ([0u8; 1024], Stream::new(1, true));
    let amo = Amo { op: AmoOp::Add, size: 8, operand: 1, compare: 0 };
    let record = Record::Amo { at: VARIABLE, amo, fetch: false };
    // SAFETY: there is no result.
    let requested = unsafe { engine.request(&stream, 1, &record, null_mut()) };
    assert_eq!((requested, engine.fence(&stream)), (Status::Pending, Status::Complete));
    // The second one is of the same context.
    let (same, other) = (Stream::new(1, true), Stream::new(2, true));
    let write_on = |engine: &mut Engine<Noting>, stream: &Stream, pe| {
        // SAFETY: the buffer stays.
        unsafe { engine.write(stream, pe, VARIABLE, buffer.as_ptr(), 1024, false, None) }
    };
    let write = |engine: &mut Engine<Noting>, pe| write_on(engine, &stream, pe);
    assert_eq!(write(&mut engine, 1), Status::Again);
    assert_eq!(write_on(&mut engine, &same, 1), Status::Again);
    // Nothing was requested of another PE, or on another context.
    assert_eq!(write(&mut engine, 2), Status::Pending);
    assert_eq!(write_on(&mut engine, &other, 1), Status::Pending);
    coming.lock().unwrap().push_back(header(MessageKind::Answer, 0, 1).encode().to_vec());
    engine.progress();
    assert_eq!(write(&mut engine, 1), Status::Pending);
}

/// Of a message of PE 1.
fn header(kind: MessageKind, count: u16, turn: u32) -> Header {
    Header { token: 7, kind, count, held: 0, refused: 0, pe: 1, turn, answered: 0 }
}

/// Otherwise PEs that all wait for each other to take in answers would wait forever.
#[test]
fn answers_are_taken_while_many_requests_wait_and_nothing_leaves() {
    const REQUESTS: u32 = 300;
    let coming = Coming::default();
    let net = Noting { coming: coming.clone(), ..Noting::default() };
    let mut memory = vec![0u64; 512];
    let mut engine = serving(net, &mut memory);
    let get = Record::Get { at: Remote { segment: SegmentKind::Heap, offset: 0 }, len: 4000 };
    for turn in 1..=REQUESTS {
        let mut message = header(MessageKind::Urgent, 1, turn).encode().to_vec();
        message.resize(HEADER + get.len(), 0);
        get.encode(&mut message[HEADER..]);
        coming.lock().unwrap().push_back(message);
    }
    let (stream, mut word) = (Stream::new(1, true), 0u64);
    let amo = Amo { op: AmoOp::Fetch, size: 8, operand: 0, compare: 0 };
    let record = Record::Amo { at: VARIABLE, amo, fetch: true };
    // SAFETY: the word lives until the stream is quiet.
    let status = unsafe { engine.request(&stream, 1, &record, (&raw mut word).cast()) };
    assert_eq!(status, Status::Pending);
    let mut answer = header(MessageKind::Answer, 1, 1).encode().to_vec();
    answer.extend(5u64.to_le_bytes());
    coming.lock().unwrap().push_back(answer);
    (0..=2 * REQUESTS).for_each(|_| _ = engine.progress());
    assert!(coming.lock().unwrap().is_empty());
    assert!(stream.is_quiet() && word == 5);
}

#[test]
fn who_asks_for_the_card_is_told_where_it_is_not_used() {
    assert_eq!(unsettled("X=card", &[true, true]), None);
    let told = |by_device: &[bool]| unsettled("X=card", by_device).unwrap();
    assert!(told(&[false, false]).contains("variables of all PEs nevertheless"));
    assert!(told(&[true, false]).contains("variables of PE 1 nevertheless"));
    let some = told(&[false, true, false, false]);
    assert!(some.contains("X=card: processors") && some.contains("3 PEs, from 0 to 3, never"));
}
