// SPDX-License-Identifier: Apache-2.0
//! A queue pair: what it sends ([`requester`](self)), and what it does for others ([`crate::responder`]).

use crate::completions::{Completions, Receives};
use crate::fabric::Outbox;
use crate::frame::{Frame, Kind};
use crate::memory::{self, Regions};
use crate::models::Model;
use crate::random::Random;
use crate::responder::Responder;
use crate::types::*;
use std::collections::{BTreeMap, VecDeque};
use std::ffi::{c_int, c_uint};

pub const WC_LOC_PROT_ERR: c_int = 4;
pub const WC_WR_FLUSH_ERR: c_int = 5;
pub const WC_REM_INV_REQ_ERR: c_int = 9;
pub const WC_RETRY_EXC_ERR: c_int = 12;
pub const WC_OP_RECV: c_int = 128;

/// Operations of a connection that are under way at a time.
const UNDER_WAY: usize = 24;
/// Frames that a process waits to send to another one; more wait in send queues.
const BACKLOG: usize = 32;
/// Time without an answer after which the other end is asked whether it is there, nanoseconds.
const ASK_NS: u64 = 20_000_000;
/// How long a connection goes on when its other end is not there, as a card does that sends again. Long enough for
/// others to be quicker, as a launcher that tells of the death.
const ABSENT_NS: u64 = 300_000_000;
/// The same when nothing is known of it: its process may not get a processor.
const SILENT_NS: u64 = 8_000_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Reset,
    Init,
    /// It takes what comes.
    Receiving,
    /// It sends, too.
    Sending,
    Error,
}

/// What the data of an operation come from, or go to.
pub enum Local {
    /// Copied when it was posted.
    Inline(Vec<u8>),
    Memory {
        at: usize,
        len: usize,
        key: u32,
    },
}

/// An operation that was posted.
pub struct Operation {
    pub id: u64,
    pub op: c_int,
    pub flags: c_uint,
    pub local: Local,
    pub address: u64,
    pub key: u32,
    pub operands: [u64; 2],
    /// A card gets to it no earlier.
    pub not_before: u64,
}

impl Operation {
    /// Whether it reads something from the other end.
    fn brings(&self) -> bool {
        matches!(self.op, WR_READ | WR_COMPARE_SWAP | WR_FETCH_ADD)
    }

    fn len(&self) -> usize {
        match &self.local {
            Local::Inline(data) => data.len(),
            Local::Memory { len, .. } => *len,
        }
    }
}

/// What queue pairs use of the rest of a card.
pub struct Card<'a> {
    pub now: u64,
    pub random: &'a mut Random,
    pub regions: &'a Regions,
    pub completions: &'a mut BTreeMap<u32, Completions>,
    pub receives: &'a mut BTreeMap<u32, Receives>,
    pub out: &'a mut Outbox,
    /// When to look again.
    pub next: &'a mut u64,
}

impl Card<'_> {
    pub fn wake_at(&mut self, time: u64) {
        *self.next = (*self.next).min(time);
    }
}

pub struct QueuePair {
    pub number: u32,
    pub model: &'static Model,
    pub domain: usize,
    pub is_connected: bool,
    pub state: State,
    pub send_completions: u32,
    pub receive_completions: u32,
    pub receives: u32,
    pub most: usize,
    pub inline: usize,
    pub qkey: u32,
    pub access: c_int,
    pub peer: u32,
    /// Reads and atomic operations that may be under way.
    pub reads: usize,
    pub posted: VecDeque<Operation>,
    /// How many of these are under way, the first ones.
    under_way: usize,
    /// How many of those bring something.
    reading: usize,
    /// Number of the first of `posted`, as the other end counts.
    first: u32,
    /// Operations that were posted so far, and that are known to have ended, because a completion was taken.
    pub count: u64,
    pub retired: u64,
    /// Those that have ended.
    ended: u64,
    /// Bytes of an answer that have arrived.
    arrived: usize,
    heard: u64,
    asked: u64,
    absent_since: Option<u64>,
    pub responder: Responder,
}

impl QueuePair {
    #[allow(clippy::too_many_arguments, reason = "what it is made of")]
    pub fn new(
        number: u32,
        model: &'static Model,
        domain: usize,
        is_connected: bool,
        completions: (u32, u32),
        receives: u32,
        most: usize,
        inline: usize,
    ) -> QueuePair {
        QueuePair {
            number,
            model,
            domain,
            is_connected,
            state: State::Reset,
            send_completions: completions.0,
            receive_completions: completions.1,
            receives,
            most,
            inline,
            qkey: 0,
            access: 0,
            peer: 0,
            reads: 0,
            posted: VecDeque::new(),
            under_way: 0,
            reading: 0,
            first: 0,
            count: 0,
            retired: 0,
            ended: 0,
            arrived: 0,
            heard: 0,
            asked: 0,
            absent_since: None,
            responder: Responder::default(),
        }
    }

    /// Back to where it was when it was made.
    pub fn reset(&mut self) {
        self.posted.clear();
        (self.under_way, self.reading, self.arrived, self.absent_since) = (0, 0, 0, None);
        (self.retired, self.ended) = (self.count, self.count);
        self.responder.reset();
        self.state = State::Reset;
    }

    /// Whether what comes from the other end is taken.
    pub fn can_receive(&self) -> bool {
        matches!(self.state, State::Receiving | State::Sending)
    }

    /// The number of the first operation that is posted.
    pub fn send_from(&mut self, number: u32) {
        self.first = number;
    }

    fn frame(&self, kind: Kind) -> Frame {
        Frame::new(kind, self.model.network, self.peer, self.number)
    }

    /// Ends the first operation.
    fn end_first(&mut self, card: &mut Card<'_>, status: c_int) {
        let Some(operation) = self.posted.pop_front() else { return };
        if self.under_way > 0 {
            self.under_way -= 1;
            self.reading -= usize::from(operation.brings());
        }
        self.first = self.first.wrapping_add(1) & 0xff_ffff;
        self.ended += 1;
        self.arrived = 0;
        if operation.flags & SEND_SIGNALED == 0 && status == WC_SUCCESS {
            return;
        }
        let mut wc = Wc { wr_id: operation.id, status, qp_num: self.number, ..Wc::default() };
        if status != WC_SUCCESS {
            // Nothing else is said of a failure.
            (wc.opcode, wc.byte_len) =
                (card.random.below(200) as c_int, card.random.below(1 << 32) as u32);
        }
        let queue = card.completions.get_mut(&self.send_completions).expect("outlives its users");
        queue.push(card.random, card.now, wc, Some(self.ended));
    }

    /// The first operation has failed: nothing else is sent.
    pub fn fail(&mut self, card: &mut Card<'_>, status: c_int) {
        if !self.posted.is_empty() {
            self.end_first(card, status);
        }
        self.break_down(card);
    }

    /// What is under way fails, and all that is posted from now on.
    pub fn break_down(&mut self, card: &mut Card<'_>) {
        self.state = State::Error;
        while !self.posted.is_empty() {
            self.end_first(card, WC_WR_FLUSH_ERR);
        }
        self.responder.reset();
        if self.is_own(card) {
            let receives = card.receives.get_mut(&self.receives).expect("outlives its users");
            for receive in std::mem::take(&mut receives.posted) {
                let status = WC_WR_FLUSH_ERR;
                let wc = Wc { wr_id: receive.id, status, qp_num: self.number, ..Wc::default() };
                let queue = card.completions.get_mut(&self.receive_completions);
                queue.expect("outlives its users").push(card.random, card.now, wc, None);
            }
        }
    }

    /// Whether its buffers for what comes in are used by no other.
    fn is_own(&self, card: &Card<'_>) -> bool {
        !self.is_connected && card.receives.contains_key(&self.receives)
    }

    /// Sends what it is time for, and gives up a peer that is gone.
    pub fn advance(&mut self, card: &mut Card<'_>) {
        match self.state {
            State::Sending => {}
            State::Error if !self.posted.is_empty() => return self.break_down(card),
            _ => return,
        }
        while self.state == State::Sending
            && let Some(operation) = self.posted.get(self.under_way)
        {
            let brings = operation.brings();
            let must_wait = operation.flags & SEND_FENCE != 0 && self.reading > 0
                || brings && self.reading >= self.reads;
            if must_wait || self.under_way >= UNDER_WAY {
                break;
            }
            if operation.not_before > card.now {
                let time = operation.not_before;
                card.wake_at(time);
                break;
            }
            if card.out.backlog(self.peer) >= BACKLOG {
                card.wake_at(card.now + 200_000);
                break;
            }
            self.send(card);
        }
        if self.under_way == 0 {
            return;
        }
        let lost = self.absent_since.is_some_and(|since| card.now - since > ABSENT_NS)
            || card.now - self.heard > SILENT_NS;
        if lost {
            return self.fail(card, WC_RETRY_EXC_ERR);
        }
        if card.now - self.heard.max(self.asked) >= ASK_NS {
            self.asked = card.now;
            let probe = self.frame(Kind::Probe).encode(&[]);
            card.out.push(self.peer, probe);
        }
        let time = self.heard.max(self.asked) + ASK_NS;
        card.wake_at(time);
    }

    /// Sends the first operation that was not sent.
    fn send(&mut self, card: &mut Card<'_>) {
        let operation = &self.posted[self.under_way];
        let brings = operation.brings();
        let data = match &operation.local {
            Local::Inline(data) => Some(data.clone()),
            Local::Memory { at, len, key } => {
                // Also of what is written when the answer comes.
                let access = if brings { ACCESS_LOCAL_WRITE } else { 0 };
                let allowed =
                    *len == 0 || memory::allows(card.regions, *key, self.domain, *at, *len, access);
                match (allowed, brings) {
                    (false, _) => None,
                    (true, true) => Some(vec![]),
                    // SAFETY: registered, and therefore readable.
                    (true, false) => Some(unsafe {
                        memory::load(card.random, *at, *len, !self.model.is_software)
                    }),
                }
            }
        };
        let Some(data) = data else {
            // Those before it have not ended, and fail with it.
            return self.fail(card, WC_LOC_PROT_ERR);
        };
        let number = self.first.wrapping_add(self.under_way as u32) & 0xff_ffff;
        let frame = Frame {
            op: operation.op as u8,
            number,
            key: operation.key,
            len: operation.len() as u32,
            address: operation.address,
            operands: operation.operands,
            ..self.frame(Kind::Request)
        };
        let frames = if brings { vec![frame.encode(&[])] } else { frame.split(&data) };
        if self.is_connected {
            if self.under_way == 0 {
                (self.heard, self.asked) = (card.now, 0);
            }
            self.under_way += 1;
            self.reading += usize::from(brings);
        } else {
            // A datagram, which may be lost.
            if !card.random.one_in(40) {
                let datagram =
                    Frame { kind: Kind::Datagram, to: self.posted[0].operands[0] as u32, ..frame };
                card.out.push(datagram.to, datagram.encode(&data));
            }
            return self.end_first(card, WC_SUCCESS);
        }
        frames.into_iter().for_each(|frame| card.out.push(self.peer, frame));
    }

    /// The other end says that it is there, or not.
    pub fn hear(&mut self, is_there: bool, now: u64) {
        match is_there {
            true => (self.heard, self.absent_since) = (now, None),
            false => _ = self.absent_since.get_or_insert(now),
        }
    }

    /// A part of an answer has come.
    pub fn answered(&mut self, card: &mut Card<'_>, frame: &Frame, data: &[u8]) {
        let is_next = self.under_way > 0 && frame.number == self.first && frame.from == self.peer;
        if self.state != State::Sending || !is_next {
            return;
        }
        self.hear(true, card.now);
        if c_int::from(frame.status) != WC_SUCCESS {
            return self.fail(card, frame.status.into());
        }
        let operation = &self.posted[0];
        if operation.brings()
            && let Local::Memory { at, len, key } = operation.local
        {
            let (from, access) = (frame.offset as usize, ACCESS_LOCAL_WRITE);
            if frame.len as usize != len || from != self.arrived || from + data.len() > len {
                return self.fail(card, WC_REM_INV_REQ_ERR);
            }
            if !memory::allows(card.regions, key, self.domain, at, len, access) {
                return self.fail(card, WC_LOC_PROT_ERR);
            }
            let whole = !self.model.is_software;
            for (offset, piece) in memory::pieces(card.random, at + from, data.len(), whole) {
                let (offset, piece) = (offset as usize, piece as usize);
                // SAFETY: registered, and therefore writable.
                unsafe { memory::store(at + from + offset, &data[offset..offset + piece]) };
            }
            self.arrived += data.len();
            if self.arrived < len {
                return;
            }
        }
        self.end_first(card, WC_SUCCESS);
    }
}
