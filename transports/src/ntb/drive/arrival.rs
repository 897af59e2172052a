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
//! stay what they are (only puts that promise as much go this way) and, when the link has been down
//! or the peer has closed its window meanwhile, the puts are repeated over the ring.

use super::direct::{DirectPeer, Way};
use super::dma::{Outcome, Ticket};
use super::lane::Lane;
use super::port_memory::token;
use crate::ntb::ring::{GetRequest, PutRequest, Target};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tombolo_core::transport::{Remote, SegmentKind, Status, Stream};

/// Direct puts to one PE that may be under way; more go over the ring.
const PUTS_MAX: usize = 256;

/// Who makes direct puts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// The CPU, by stores.
    Cpu,
    /// The port's DMA engine.
    Dma,
}

/// What is under way to one PE.
pub struct Arrivals {
    by: By,
    peer: Arc<DirectPeer>,
    lane: Arc<Lane>,
    pe: usize,
    /// The word behind the stores.
    flag: Target,
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
    /// Written last.
    number: u64,
    /// Behind those that were asked about.
    asked_number: u64,
    /// Puts that have arrived, and how often that was asked.
    counts: (u64, u64),
    /// The question is still to be put.
    to_ask: bool,
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
}

impl Put {
    fn stream(&self) -> &Stream {
        // SAFETY: as said above; a put is forgotten when it has completed.
        unsafe { &*self.stream }
    }
}

impl Arrivals {
    /// Nothing under way to `pe`, whose word for this PE is `flag`.
    pub fn new(
        by: By,
        peer: Arc<DirectPeer>,
        lane: Arc<Lane>,
        pe: usize,
        flag: Target,
    ) -> Arrivals {
        Arrivals {
            by,
            peer,
            lane,
            pe,
            flag,
            busy: AtomicBool::new(false),
            state: Mutex::default(),
            questions: Stream::new(u32::MAX, true),
            answer: AtomicU64::new(0),
        }
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
        if state.puts.len() + state.asked.len() >= PUTS_MAX {
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
        self.repeat_lost(state);
        if state.to_ask {
            return self.ask(state);
        }
        if !state.asked.is_empty() {
            return self.hear(state);
        }
        let Some(way) = state.way else {
            return self.busy.store(!state.lost.is_empty(), Ordering::Release);
        };
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
                Outcome::Failed => return self.give_up_way(state),
                Outcome::Posted => {}
            },
        }
        std::mem::swap(&mut state.puts, &mut state.asked);
        state.asked_number = state.number;
        state.counts.1 += 1;
        self.ask(state);
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
                let word = self.flag.remote;
                let word_at = self.peer.window_offset(word.segment, word.offset, 8);
                let places = at.zip(word_at).zip(self.peer.engine(way));
                let ticket = places.and_then(|((at, word_at), engine)| {
                    let number = Some((word_at, state.number + 1));
                    // SAFETY: the caller's promise; the source stays until the put has completed.
                    unsafe { engine.submit(at, source, len, number) }
                });
                let Some(ticket) = ticket else { return false };
                state.number += 1;
                state.note_transfer(way, ticket);
                true
            }
        }
    }

    /// Stores a number behind the puts; false: it could not be written.
    fn store_number(&self, number: u64, way: Way) -> bool {
        let Remote { segment, offset } = self.flag.remote;
        // SAFETY: eight bytes of a local, to a word of the peer's control area.
        unsafe { self.peer.put_by(way, segment, offset, (&raw const number).cast(), 8) }
    }

    fn transfer_outcome(&self, state: &State) -> Outcome {
        let Some((way, ticket)) = state.transfer else { return Outcome::Posted };
        self.peer.engine(way).map_or(Outcome::Failed, |engine| engine.outcome(ticket))
    }

    /// Asks for the word over the ring.
    fn ask(&self, state: &mut State) {
        let get = GetRequest {
            token: token(&self.questions, self.pe),
            stream: self.questions.id,
            target: self.flag,
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
            state.counts.0 += state.asked.len() as u64;
            for put in state.asked.drain(..) {
                put.stream().completed.fetch_add(1, Ordering::Release);
            }
            if state.puts.is_empty() {
                state.way = None;
            }
        } else if state.way.is_some_and(|way| self.peer.is_way_open(way, SegmentKind::Heap)) {
            // Asked faster than stores are.
            self.ask(state);
        } else {
            self.give_up_way(state);
        }
    }

    /// Anything under way may have been lost.
    fn give_up_way(&self, state: &mut State) {
        state.way = None;
        state.to_ask = false;
        state.lost.append(&mut state.asked);
        state.lost.append(&mut state.puts);
        self.repeat_lost(state);
    }

    fn repeat_lost(&self, state: &mut State) {
        if state.lost.is_empty() || self.transfer_outcome(state) == Outcome::UnderWay {
            // What the engine still has to write would overwrite what comes after the repetition.
            return;
        }
        while let Some(put) = state.lost.last().copied() {
            let Put { dest, source, len, .. } = put;
            let request = PutRequest {
                token: token(put.stream(), self.pe),
                stream: put.stream().id,
                target: Target { remote: dest, ..self.flag },
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
        state.way = None;
        state.to_ask = false;
        for puts in [&mut state.asked, &mut state.puts, &mut state.lost] {
            puts.drain(..).for_each(|put| put.stream().fail(self.pe as u32, false));
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
