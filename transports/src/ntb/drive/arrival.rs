// SPDX-License-Identifier: Apache-2.0
//! Direct puts that are under way for a while: when they have arrived.
//!
//! A number is written behind puts, into a word of the peer's heap and through the same window, and that
//! word is asked for over the ring, where the peer's service thread answers. What it answers with has
//! arrived, and so has all that was written before. Stores of the CPU and transfers of a DMA engine have
//! no order between them, so each has a word and questions of its own.
//!
//! - Behind stores of the CPU the number is written when a PE waits (in `quiet`, for one): one
//!   question for each wait, however many puts went before it.
//! - A DMA engine writes a number behind each put, and the question is put when it has carried out all: by
//!   who waits, or else by a service thread, which the engine wakes. So a program that computes
//!   meanwhile finds the answer there.
//!
//! A write that is lost is not noticed by who makes it. So until the answer has come the sources
//! stay what they are (only puts that promise as much go this way), and puts that are lost are repeated
//! over the ring:
//!
//! - When the link has changed: nothing is under way over it any more.
//! - When a transfer of an engine has failed: a number goes behind the others, and when it has arrived nothing
//!   is under way any more.
//! - When a number does not arrive ([`Patience`]), or cannot be written, though the link seems to be up, or
//!   when the peer has closed its window: something may be under way. The peer says first that its window
//!   is closed ([`closing`](super::closing)). A peer that does not is given up after a while, as is one that
//!   the ring does not reach.

use super::closing::{self, Word};
use super::direct::{DirectPeer, Way};
use super::dma::{Outcome, Ticket};
use super::lane::Lane;
use super::token::token;
use crate::ntb::ring::{Config, GetRequest, PutRequest, RunClock, Target};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tombolo_core::board::monotonic_ns;
use tombolo_core::transport::{Remote, SegmentKind, Status, Stream};

/// Direct puts to one PE that may be under way; more go over the ring.
const PUTS_MAX: usize = 256;
/// Numbers behind transfers that have failed, before the way is given up.
const MARKS_MAX: u32 = 4;

/// Who makes direct puts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// The CPU, by stores.
    Cpu,
    /// The port's DMA engine.
    Dma,
}

impl By {
    /// Number of them.
    pub const COUNT: usize = 2;
    /// All, in index order.
    pub const BOTH: [By; By::COUNT] = [By::Cpu, By::Dma];
}

/// How long something is waited for, nanoseconds for which this PE looks, while the peer's host answers.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// For a number behind puts.
    arrival_ns: u64,
    /// For the peer to close its window.
    closing_ns: u64,
    /// Longest time that counts between two looks.
    step_ns: u64,
}

impl Patience {
    /// That of the ring with links that seem to be up, and with hosts that are silent.
    pub fn new(config: &Config) -> Patience {
        let Config { dead_ns, silence_ns, step_ns, .. } = *config;
        Patience { arrival_ns: dead_ns, closing_ns: silence_ns, step_ns }
    }
}

/// What is under way to one PE.
pub struct Arrivals {
    by: By,
    peer: Arc<DirectPeer>,
    lane: Arc<Lane>,
    pe: usize,
    /// The words of this PE in its heap.
    words: Words,
    patience: Patience,
    /// Something is under way.
    busy: AtomicBool,
    state: Mutex<State>,
    /// Counts questions; the answer.
    questions: Stream,
    answer: AtomicU64,
}

#[derive(Default)]
struct State {
    /// By which what is under way went.
    way: Option<Way>,
    /// Not asked about yet.
    puts: Vec<Put>,
    /// Before the number that is asked for.
    asked: Vec<Put>,
    /// To be repeated over the ring.
    lost: Vec<Put>,
    /// They may still arrive, as far as is known.
    doubt: Option<Doubt>,
    /// Written last.
    number: u64,
    /// Behind those that were asked about.
    asked_number: u64,
    /// Puts that have arrived, and how often that was asked.
    counts: (u64, u64),
    /// The question is still to be put.
    to_ask: bool,
    /// Numbers that were written behind transfers of which some have failed.
    marks: u32,
    /// Some of those that were asked about have failed: all are repeated.
    again: bool,
    /// Since when the answer has been waited for in vain.
    clock: RunClock,
    waits_since: Option<u64>,
    /// Requests to close windows.
    requests: u64,
    /// The DMA engine's last transfer, and the way it goes.
    transfer: Option<(Way, Ticket)>,
}

/// A put that its stream counts as issued.
#[derive(Clone, Copy)]
struct Put {
    stream: *const Stream,
    dest: Remote,
    source: u64,
    len: usize,
}

/// What is to be known before puts that were lost are repeated: that they do not arrive by the way that
/// they went.
struct Doubt {
    way: Way,
    /// What the peer is asked, and answers.
    request: u64,
    is_asked: bool,
}

/// Where the words of this PE are in the heap of the peer.
#[derive(Clone, Copy)]
pub struct Words {
    pub host: u16,
    /// The peer, counted within its host.
    pub local: u8,
    pub n_pes: usize,
    /// This PE.
    pub me: usize,
}

impl Words {
    fn at(&self, word: Word, by: By) -> Target {
        let offset = word.offset(self.n_pes, self.me, by);
        Target {
            host: self.host,
            pe: self.local,
            remote: Remote { segment: SegmentKind::Heap, offset },
        }
    }
}

// SAFETY: whoever issues keeps stream and source until the put has completed or the job ends.
unsafe impl Send for Put {}

impl State {
    /// The engine has taken a transfer. A failure of one since the first put that is not known to
    /// have arrived is one of these puts, for all that is known.
    fn note_transfer(&mut self, way: Way, ticket: Ticket) {
        let first = self.puts.is_empty() && self.asked.is_empty();
        let earlier = self.transfer.filter(|_| !first);
        let ticket = earlier.map_or(ticket, |(_, earlier)| ticket.since(earlier));
        self.transfer = Some((way, ticket));
    }

    /// Whether something has been waited for in vain for `ns`.
    fn has_waited(&mut self, ns: u64, step_ns: u64) -> bool {
        let now = self.clock.advance(monotonic_ns(), step_ns);
        now - *self.waits_since.get_or_insert(now) >= ns
    }
}

impl Put {
    fn stream(&self) -> &Stream {
        // SAFETY: as said above; a put is forgotten when it has completed.
        unsafe { &*self.stream }
    }
}

impl Arrivals {
    /// Nothing under way to `pe`.
    pub fn new(
        by: By,
        peer: Arc<DirectPeer>,
        lane: Arc<Lane>,
        pe: usize,
        words: Words,
        patience: Patience,
    ) -> Arrivals {
        Arrivals {
            by,
            peer,
            lane,
            pe,
            words,
            patience,
            busy: AtomicBool::new(false),
            state: Mutex::default(),
            questions: Stream::new(u32::MAX, true),
            answer: AtomicU64::new(0),
        }
    }

    /// Whether a put of a stream is under way.
    pub fn has(&self, stream: &Stream) -> bool {
        let state = self.lock();
        let mut puts = state.puts.iter().chain(&state.asked).chain(&state.lost);
        puts.any(|put| std::ptr::eq(put.stream, stream))
    }

    /// Puts directly and counts the put; none: it has to go over the ring.
    ///
    /// # Safety
    /// As `Endpoint::put` that is not blocking; the range was checked.
    pub unsafe fn put(
        &self,
        stream: &Stream,
        dest: Remote,
        source: *const u8,
        len: usize,
    ) -> Option<Status> {
        let mut state = self.lock();
        let state = &mut *state;
        if state.puts.len() + state.asked.len() >= PUTS_MAX || !state.lost.is_empty() {
            return None;
        }
        let way = match state.way {
            Some(way) if self.peer.is_way_open(way, SegmentKind::Heap) => way,
            Some(_) => {
                self.give_up_way(state);
                return None;
            }
            None => self.peer.way(SegmentKind::Heap)?,
        };
        let status = stream.counted(|| {
            // SAFETY: the caller's promise.
            match unsafe { self.write(state, way, dest, source, len) } {
                true => Status::Pending,
                false => Status::Again,
            }
        });
        if status != Status::Pending {
            if state.way.is_some() && !self.peer.is_way_open(way, SegmentKind::Heap) {
                self.give_up_way(state);
            }
            return None;
        }
        state.way = Some(way);
        state.puts.push(Put { stream, dest, source: source as u64, len });
        self.busy.store(true, Ordering::Release);
        Some(status)
    }

    /// Puts that have arrived, and how often that was asked.
    pub fn counts(&self) -> (u64, u64) {
        self.lock().counts
    }

    /// Somebody waits, or a DMA engine has told something: asks about what is under way, and takes answers.
    pub fn progress(&self) {
        if !self.busy.load(Ordering::Acquire) {
            return;
        }
        let Ok(mut state) = self.state.try_lock() else { return };
        let state = &mut *state;
        if !state.lost.is_empty() {
            return self.repeat_lost(state);
        }
        if state.to_ask {
            return self.ask(state, Word::Number);
        }
        if !state.asked.is_empty() {
            return self.hear(state);
        }
        let Some(way) = state.way else { return self.busy.store(false, Ordering::Release) };
        if state.puts.is_empty() {
            state.way = None;
            return;
        }
        // A way that is not the one of the puts any more leads nowhere: the puts may be lost.
        if !self.peer.is_way_open(way, SegmentKind::Heap) {
            return self.give_up_way(state);
        }
        match self.by {
            By::Cpu => {
                state.number += 1;
                if !self.store_number(state.number, way) {
                    return self.give_up_way(state);
                }
            }
            By::Dma => match self.transfer_outcome(state) {
                Outcome::UnderWay => return,
                Outcome::Failed if self.mark(state, way) => return,
                Outcome::Failed => return self.give_up_way(state),
                Outcome::Posted => {}
            },
        }
        std::mem::swap(&mut state.puts, &mut state.asked);
        state.asked_number = state.number;
        state.again = std::mem::take(&mut state.marks) > 0;
        state.waits_since = None;
        state.counts.1 += 1;
        self.ask(state, Word::Number);
    }

    /// Writes to the peer. False: nothing can be said to have arrived.
    ///
    /// # Safety
    /// As `put`.
    unsafe fn write(
        &self,
        state: &mut State,
        way: Way,
        dest: Remote,
        source: *const u8,
        len: usize,
    ) -> bool {
        let Remote { segment, offset } = dest;
        match self.by {
            // SAFETY: the caller's promise.
            By::Cpu => unsafe { self.peer.put_by(way, segment, offset, source, len) },
            By::Dma => {
                let at = self.peer.window_offset(segment, offset, len);
                // SAFETY: the caller's promise; the source stays until the put has completed.
                let ticket = at.and_then(|at| unsafe { self.submit(state, way, at, source, len) });
                let Some(ticket) = ticket else { return false };
                state.note_transfer(way, ticket);
                true
            }
        }
    }

    /// Has the engine write to `at` of the window, and a number behind it.
    ///
    /// # Safety
    /// `source` is readable for `len` bytes until the transfer has ended.
    unsafe fn submit(
        &self,
        state: &mut State,
        way: Way,
        at: usize,
        source: *const u8,
        len: usize,
    ) -> Option<Ticket> {
        let Remote { segment, offset } = self.words.at(Word::Number, self.by).remote;
        let word_at = self.peer.window_offset(segment, offset, 8)?;
        let number = state.number + 1;
        // SAFETY: the caller's promise.
        let ticket =
            unsafe { self.peer.engine(way)?.submit(at, source, len, Some((word_at, number))) }?;
        state.number = number;
        Some(ticket)
    }

    /// Some transfers have failed, others may be under way: has the engine write a number behind all of them.
    /// False: it does not.
    fn mark(&self, state: &mut State, way: Way) -> bool {
        let ticket = (state.marks < MARKS_MAX)
            // SAFETY: nothing is read.
            .then(|| unsafe { self.submit(state, way, 0, std::ptr::null(), 0) });
        let Some(ticket) = ticket.flatten() else { return false };
        state.marks += 1;
        // Whether it fails as well is all that counts now.
        state.transfer = Some((way, ticket));
        true
    }

    /// Stores a number behind the puts; false: it could not be written.
    fn store_number(&self, number: u64, way: Way) -> bool {
        let Remote { segment, offset } = self.words.at(Word::Number, self.by).remote;
        // SAFETY: eight bytes of a local, to a word of the peer's control area.
        unsafe { self.peer.put_by(way, segment, offset, (&raw const number).cast(), 8) }
    }

    fn transfer_outcome(&self, state: &State) -> Outcome {
        let Some((way, ticket)) = state.transfer else { return Outcome::Posted };
        self.peer.engine(way).map_or(Outcome::Failed, |engine| engine.outcome(ticket))
    }

    /// Asks for a word over the ring.
    fn ask(&self, state: &mut State, word: Word) {
        let get = GetRequest {
            token: token(&self.questions, self.pe),
            stream: self.questions.id,
            target: self.words.at(word, self.by),
            dest: self.answer.as_ptr() as u64,
            len: 8,
        };
        let status = self.questions.counted(|| self.lane.submit(|engine, _| engine.get(&get)));
        state.to_ask = status == Status::Again;
        if status == Status::Failed {
            self.fail(state);
        }
    }

    fn hear(&self, state: &mut State) {
        if !self.questions.is_quiet() {
            return;
        }
        if self.questions.failed.swap(0, Ordering::Relaxed) != 0 {
            return self.fail(state);
        }
        // It may be that of later puts already.
        if self.answer.load(Ordering::Acquire) >= state.asked_number {
            if state.puts.is_empty() {
                state.way = None;
            }
            if state.again {
                state.lost.append(&mut state.asked);
                return self.repeat_lost(state);
            }
            state.counts.0 += state.asked.len() as u64;
            for put in state.asked.drain(..) {
                put.stream().completed.fetch_add(1, Ordering::Release);
            }
            return;
        }
        let Patience { arrival_ns, step_ns, .. } = self.patience;
        let is_open = state.way.is_some_and(|way| self.peer.is_way_open(way, SegmentKind::Heap));
        if is_open && !state.has_waited(arrival_ns, step_ns) {
            // Asked faster than stores are.
            self.ask(state, Word::Number);
        } else {
            self.give_up_way(state);
        }
    }

    /// Anything under way may have been lost.
    fn give_up_way(&self, state: &mut State) {
        (state.to_ask, state.marks) = (false, 0);
        state.lost.append(&mut state.asked);
        state.lost.append(&mut state.puts);
        if let Some(way) = state.way.take().filter(|way| !self.peer.is_cut(*way)) {
            self.peer.withdraw(way);
            state.requests += 1;
            let request = closing::request(state.requests, way.side().opposite());
            state.doubt = Some(Doubt { way, request, is_asked: false });
            state.waits_since = None;
        }
        self.repeat_lost(state);
    }

    /// Whether nothing of what was lost is under way. Asks the peer if need be.
    fn is_certain(&self, state: &mut State) -> bool {
        let Some(doubt) = &state.doubt else { return true };
        let Doubt { way, request, is_asked } = *doubt;
        // An answer that is still to come would be taken for that of the next question.
        if !self.questions.is_quiet() {
            return false;
        }
        if self.questions.failed.swap(0, Ordering::Relaxed) != 0 {
            self.fail(state);
            return false;
        }
        let is_closed = is_asked && self.answer.load(Ordering::Acquire) == request;
        if is_closed || self.peer.is_cut(way) {
            (state.doubt, state.to_ask) = (None, false);
            return true;
        }
        let Patience { closing_ns, step_ns, .. } = self.patience;
        if state.has_waited(closing_ns, step_ns) {
            tracing::warn!(
                "PE {} does not close its window for puts that have not arrived: its host is given up",
                self.pe
            );
            self.lane.give_up(self.words.host);
            self.fail(state);
        } else if is_asked {
            self.ask(state, Word::Closed);
        } else {
            self.ask_to_close(state, request);
        }
        false
    }

    fn ask_to_close(&self, state: &mut State, request: u64) {
        // An earlier answer is none.
        self.answer.store(0, Ordering::Relaxed);
        let put = PutRequest {
            token: token(&self.questions, self.pe),
            stream: self.questions.id,
            target: self.words.at(Word::Request, self.by),
            source: (&raw const request) as u64,
            len: 8,
            // Read at once, as all that travels in a header.
            retain: true,
            signal: None,
        };
        let submit = || self.lane.submit(|engine, host| engine.put(&put, host));
        match self.questions.counted(submit) {
            Status::Failed => self.fail(state),
            Status::Again => {}
            Status::Pending | Status::Complete => {
                state.doubt.iter_mut().for_each(|doubt| doubt.is_asked = true);
            }
        }
    }

    fn repeat_lost(&self, state: &mut State) {
        if !self.is_certain(state) || self.transfer_outcome(state) == Outcome::UnderWay {
            // What is still to be written would overwrite what comes after the repetition.
            return;
        }
        while let Some(put) = state.lost.last().copied() {
            let Put { dest, source, len, .. } = put;
            let request = PutRequest {
                token: token(put.stream(), self.pe),
                stream: put.stream().id,
                target: Target { remote: dest, ..self.words.at(Word::Number, self.by) },
                source,
                len,
                retain: false,
                signal: None,
            };
            match self.lane.submit(|engine, host| engine.put(&request, host)) {
                Status::Again => return,
                Status::Pending => {}
                Status::Complete => _ = put.stream().completed.fetch_add(1, Ordering::Release),
                Status::Failed => put.stream().fail(self.pe as u32, false),
            }
            state.lost.pop();
        }
    }

    /// The PE is lost, and everything under way with it.
    fn fail(&self, state: &mut State) {
        (state.way, state.doubt) = (None, None);
        (state.to_ask, state.marks) = (false, 0);
        for puts in [&mut state.asked, &mut state.puts, &mut state.lost] {
            puts.drain(..).for_each(|put| put.stream().fail(self.pe as u32, false));
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ntb::NtbSettings;
    use crate::ntb::drive::carriers::CarrierRules;
    use crate::ntb::drive::port_memory::{PortMemory, SideParts};
    use crate::ntb::port::NtbPort;
    use crate::ntb::port::emulated::{EmulatedPort, Fabric, FabricSpec};
    use crate::ntb::ring::{Engine, Geometry, Side};
    use tombolo_core::config::Environment;

    const WINDOW: usize = 0;

    /// A lane at a port that both its sides are.
    fn lane(port: &Arc<EmulatedPort>, config: Config) -> Lane {
        let side = || {
            let bytes = config.geometry.region_bytes();
            SideParts {
                port: port.clone(),
                inbound: Arc::new(port.inbound_memory(WINDOW, 0, bytes).unwrap()),
                outbound: port.outbound(WINDOW).unwrap(),
                engine: None,
                in_steps: false,
            }
        };
        let region = 0..config.geometry.region_bytes();
        let memory = PortMemory::new([side(), side()], region, 1, &config);
        Lane::new(Engine::new(config, 0, 2, 0).unwrap(), memory)
    }

    /// Puts are repeated when their link is cut, but no question is put before the last one was answered.
    #[test]
    fn a_link_that_is_cut_ends_no_question() {
        let fabric = Fabric::create(&FabricSpec::new(2)).unwrap();
        let (right, left) = (fabric.ports(0).unwrap().right, fabric.ports(1).unwrap().left);
        right.link_enable().unwrap();
        left.link_enable().unwrap();
        let size = left.capabilities().windows[WINDOW].slot_size();
        let memory = left.inbound_memory(WINDOW, 0, size as usize).unwrap();
        let address = left.register(&memory.region()).unwrap();
        left.mw_set_trans(WINDOW, 0, address, size).unwrap();
        let settings = NtbSettings::read(&Environment::default()).unwrap();
        let rules = CarrierRules::new(&settings, None, true, 4096);
        let offers = [Some((0, 4096)), None];
        let peer = Arc::new(DirectPeer::new(offers, vec![Side::Right], [None, None], rules));
        assert!(peer.map(Side::Right, &mut *right.outbound(WINDOW).unwrap()));
        let way = peer.way(SegmentKind::Heap).expect("it is mapped");

        let config = Config::simulated(Geometry::new(64, [4, 4, 4]).unwrap(), false);
        let words = Words { host: 1, local: 0, n_pes: 2, me: 0 };
        let lane = Arc::new(lane(&right, config));
        let arrivals = Arrivals::new(By::Cpu, peer, lane, 1, words, Patience::new(&config));
        let mut state = arrivals.lock();
        let request = closing::request(1, Side::Left);
        state.doubt = Some(Doubt { way, request, is_asked: true });
        assert_eq!(arrivals.questions.counted(|| Status::Pending), Status::Pending);
        assert!(!arrivals.is_certain(&mut state), "nothing was heard");
        left.link_disable().unwrap();
        assert!(arrivals.peer.is_cut(way));
        assert!(!arrivals.is_certain(&mut state), "its answer is still to come");
        arrivals.questions.completed.fetch_add(1, Ordering::Release);
        assert!(arrivals.is_certain(&mut state) && state.doubt.is_none());
    }
}
