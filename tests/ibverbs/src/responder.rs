// SPDX-License-Identifier: Apache-2.0
//! What a queue pair does for the other end.
//!
//! Operations are carried out in the order in which they were posted, but reads and atomic operations, which others may
//! overtake. Answers leave in that order. What is written has a place in a queue from which it goes to memory later, and at
//! once where the specification wants it: for a read or an atomic operation that was posted after it, and before
//! somebody is told of a message that was.

use crate::frame::{Frame, Kind};
use crate::memory;
use crate::queue_pair::{Card, QueuePair, WC_OP_RECV, WC_REM_INV_REQ_ERR};
use crate::types::*;
use std::collections::VecDeque;
use std::ffi::c_int;

/// How long a message waits for a buffer, nanoseconds, until it is sent again.
const NO_BUFFER_NS: u64 = 200_000;

/// Longest time that data which were acknowledged are on their way to memory, nanoseconds.
const PLACING_NS: u64 = 2_000_000;

/// An operation that has come.
struct Request {
    frame: Frame,
    data: Vec<u8>,
    not_before: u64,
}

/// An answer that follows those before it.
enum Answer {
    /// Nothing was done yet.
    Late(Request),
    Ready(Vec<Vec<u8>>),
}

/// Data that are on their way to memory.
struct Placing {
    at: usize,
    data: Vec<u8>,
    /// What is missing.
    pieces: Vec<(u32, u32)>,
    not_before: u64,
}

impl Placing {
    fn place(&mut self, count: usize) {
        for (from, len) in self.pieces.drain(..count) {
            let (from, len) = (from as usize, len as usize);
            // SAFETY: registered when it came; whoever takes that back places all before.
            unsafe { memory::store(self.at + from, &self.data[from..from + len]) };
        }
    }
}

/// See the module.
#[derive(Default)]
pub struct Responder {
    /// Number of the next operation.
    next: u32,
    /// The operation of which parts have come.
    partial: Vec<u8>,
    requests: VecDeque<Request>,
    answers: VecDeque<Answer>,
    placing: VecDeque<Placing>,
    /// Messages wait for a buffer until then.
    no_buffer_until: u64,
}

impl Responder {
    pub fn reset(&mut self) {
        self.place_all();
        *self = Responder { next: self.next, ..Responder::default() };
    }

    pub fn receive_from(&mut self, number: u32) {
        self.next = number;
    }

    /// Whether an operation has come that was not carried out, although others after it may have been.
    fn is_late(&self) -> bool {
        self.answers.iter().any(|one| matches!(one, Answer::Late(_)))
    }

    /// Places everything.
    pub fn place_all(&mut self) {
        for mut placing in self.placing.drain(..) {
            let count = placing.pieces.len();
            placing.place(count);
        }
    }

    /// A part of an operation has come from the other end.
    pub fn take(&mut self, card: &mut Card<'_>, frame: &Frame, data: &[u8]) {
        if matches!(c_int::from(frame.op), WR_READ | WR_COMPARE_SWAP | WR_FETCH_ADD) {
            return self.enter(card, *frame, vec![]);
        }
        if frame.offset as usize != self.partial.len() {
            // The rest of one that began before the connection did.
            return self.partial.clear();
        }
        self.partial.extend(data);
        if self.partial.len() >= frame.len as usize {
            let data = std::mem::take(&mut self.partial);
            self.enter(card, Frame { offset: 0, ..*frame }, data);
        }
    }

    fn enter(&mut self, card: &mut Card<'_>, frame: Frame, data: Vec<u8>) {
        let earliest = self.requests.back().map_or(0, |request| request.not_before);
        let not_before = earliest.max(card.now + card.random.delay());
        self.requests.push_back(Request { frame, data, not_before });
    }
}

impl QueuePair {
    /// Does what it is time for.
    pub fn respond(&mut self, card: &mut Card<'_>) {
        while self.can_receive()
            && let Some(request) = self.responder.requests.front()
        {
            let time = request.not_before.max(self.responder.no_buffer_until);
            if time > card.now {
                card.wake_at(time);
                break;
            }
            let request = self.responder.requests.pop_front().expect("just seen");
            if request.frame.number != self.responder.next {
                continue;
            }
            if let Some(waits) = self.carry_out(card, request) {
                self.responder.requests.push_front(waits);
                self.responder.no_buffer_until = card.now + NO_BUFFER_NS;
            }
        }
        if self.can_receive() {
            self.answer(card);
            self.place(card);
        }
    }

    /// Gives the operation back if it is to wait.
    fn carry_out(&mut self, card: &mut Card<'_>, request: Request) -> Option<Request> {
        let Request { frame, .. } = &request;
        let (at, len) = (frame.address as usize, frame.len as usize);
        let allowed = |access: c_int| {
            self.access & access == access
                && memory::allows(card.regions, frame.key, self.domain, at, len, access)
        };
        let own = match c_int::from(frame.op) {
            WR_WRITE if len > 0 && !allowed(ACCESS_REMOTE_WRITE) => Err(WC_REM_ACCESS_ERR),
            WR_READ if len > 0 && !allowed(ACCESS_REMOTE_READ) => Err(WC_REM_ACCESS_ERR),
            WR_COMPARE_SWAP | WR_FETCH_ADD if !allowed(ACCESS_REMOTE_ATOMIC) => {
                Err(WC_REM_ACCESS_ERR)
            }
            WR_COMPARE_SWAP | WR_FETCH_ADD if len != 8 || !at.is_multiple_of(8) => {
                Err(WC_REM_INV_REQ_ERR)
            }
            WR_WRITE | WR_READ | WR_COMPARE_SWAP | WR_FETCH_ADD | WR_SEND => Ok(()),
            _ => Err(WC_REM_INV_REQ_ERR),
        };
        let brings = matches!(c_int::from(frame.op), WR_READ | WR_COMPARE_SWAP | WR_FETCH_ADD);
        let late = self.responder.is_late();
        if let Err(status) = own {
            return self.refuse(card, request, status);
        }
        if c_int::from(frame.op) == WR_SEND {
            let queue = card.receives.get_mut(&self.receives).expect("outlives its users");
            let Some(receive) = queue.posted.pop_front() else { return Some(request) };
            let key = receive.key;
            if len > receive.len
                || !memory::allows(
                    card.regions,
                    key,
                    self.domain,
                    receive.at,
                    len,
                    ACCESS_LOCAL_WRITE,
                )
            {
                return self.refuse(card, request, WC_REM_INV_REQ_ERR);
            }
            self.responder.place_all();
            self.deliver(card, &request.data, receive.at, 0);
            let wc = Wc {
                wr_id: receive.id,
                opcode: WC_OP_RECV,
                byte_len: len as u32,
                qp_num: self.number,
                ..Wc::default()
            };
            let queue = card.completions.get_mut(&self.receive_completions);
            queue.expect("outlives its users").push(card.random, card.now, wc, None);
        }
        self.responder.next = self.responder.next.wrapping_add(1) & 0xff_ffff;
        if c_int::from(request.frame.op) == WR_WRITE {
            let Request { frame, data, .. } = &request;
            let pieces = memory::pieces(card.random, at, len, !self.model.is_software);
            // Long, because it holds up nobody who asks for the data as the specification has it.
            let not_before = card.now + card.random.below(2) * card.random.below(PLACING_NS);
            let data = data.clone();
            self.responder.placing.push_back(Placing { at, data, pieces, not_before });
            if self.model.is_software {
                // The kernel copies the data, and then answers.
                self.responder.place_all();
            }
            self.responder.answers.push_back(Answer::Ready(vec![self.accept(frame)]));
        } else if brings {
            self.responder.answers.push_back(Answer::Late(request));
            if !late && !card.random.one_in(4) {
                self.catch_up(card);
            }
        } else {
            let frame = self.accept(&request.frame);
            self.responder.answers.push_back(Answer::Ready(vec![frame]));
        }
        None
    }

    /// Carries out the first operation that is late.
    fn catch_up(&mut self, card: &mut Card<'_>) {
        let mut all = self.responder.answers.iter();
        let Some(at_place) = all.position(|one| matches!(one, Answer::Late(_))) else { return };
        let emptied = &mut self.responder.answers[at_place];
        let Answer::Late(request) = std::mem::replace(emptied, Answer::Ready(vec![])) else {
            return;
        };
        let Frame { op, address, len, operands: [first, second], .. } = request.frame;
        let (at, len) = (address as usize, len as usize);
        self.responder.place_all();
        let data = if op == WR_READ as u8 {
            // SAFETY: registered, and therefore readable.
            unsafe { memory::load(card.random, at, len, !self.model.is_software) }
        } else {
            let change = |old: u64| match op == WR_FETCH_ADD as u8 {
                true => old.wrapping_add(first),
                false if old == first => second,
                false => old,
            };
            let with_processors = self.model.atomics == ATOMIC_GLOB;
            // SAFETY: registered, and therefore writable; aligned.
            let old = unsafe { memory::atomic(card.random, at, with_processors, change) };
            old.to_ne_bytes().into()
        };
        let frames = Frame { number: request.frame.number, ..self.response() }.split(&data);
        self.responder.answers[at_place] = Answer::Ready(frames);
    }

    fn response(&self) -> Frame {
        Frame::new(Kind::Response, self.model.network, self.peer, self.number)
    }

    fn accept(&self, frame: &Frame) -> Vec<u8> {
        Frame { number: frame.number, ..self.response() }.encode(&[])
    }

    /// Refuses an operation, and everything after it.
    fn refuse(&mut self, card: &mut Card<'_>, request: Request, status: c_int) -> Option<Request> {
        // Those before it are answered, and then it is.
        while self.responder.is_late() {
            self.catch_up(card);
        }
        self.answer(card);
        let frame = Frame { number: request.frame.number, status: status as u8, ..self.response() };
        card.out.push(self.peer, frame.encode(&[]));
        self.break_down(card);
        None
    }

    /// Sends the answers that there are, in order.
    fn answer(&mut self, card: &mut Card<'_>) {
        if matches!(self.responder.answers.front(), Some(Answer::Late(_))) {
            match card.random.one_in(3) {
                true => self.catch_up(card),
                false => card.wake_at(card.now + 30_000),
            }
        }
        while let Some(Answer::Ready(_)) = self.responder.answers.front() {
            let Some(Answer::Ready(frames)) = self.responder.answers.pop_front() else { break };
            frames.into_iter().for_each(|frame| card.out.push(self.peer, frame));
        }
    }

    /// Lets data get to memory, in order.
    fn place(&mut self, card: &mut Card<'_>) {
        while let Some(placing) = self.responder.placing.front_mut() {
            if placing.not_before > card.now {
                let time = placing.not_before;
                return card.wake_at(time);
            }
            let all = placing.pieces.len();
            if all > 1 && card.random.one_in(3) {
                let some = card.random.below(all as u64) as usize;
                placing.place(some);
                placing.not_before = card.now + 1 + card.random.delay();
                continue;
            }
            placing.place(all);
            self.responder.placing.pop_front();
        }
    }

    /// Writes what has come into a buffer, behind so many bytes.
    fn deliver(&mut self, card: &mut Card<'_>, data: &[u8], at: usize, behind: usize) {
        let whole = !self.model.is_software;
        for (from, len) in memory::pieces(card.random, at + behind, data.len(), whole) {
            let (from, len) = (from as usize, len as usize);
            // SAFETY: registered, and therefore writable.
            unsafe { memory::store(at + behind + from, &data[from..from + len]) };
        }
    }

    /// A datagram has come.
    pub fn take_datagram(&mut self, card: &mut Card<'_>, frame: &Frame, data: &[u8]) {
        if !self.can_receive() || frame.key != self.qkey {
            return;
        }
        let queue = card.receives.get_mut(&self.receives).expect("outlives its users");
        let Some(receive) = queue.posted.pop_front() else { return };
        let len = GRH + data.len();
        let access = ACCESS_LOCAL_WRITE;
        let fits = len <= receive.len
            && memory::allows(card.regions, receive.key, self.domain, receive.at, len, access);
        let status = if fits { WC_SUCCESS } else { crate::queue_pair::WC_LOC_PROT_ERR };
        if fits {
            self.deliver(card, data, receive.at, GRH);
        }
        let wc = Wc {
            wr_id: receive.id,
            status,
            opcode: WC_OP_RECV,
            byte_len: len as u32,
            qp_num: self.number,
            src_qp: frame.from,
            ..Wc::default()
        };
        let queue = card.completions.get_mut(&self.receive_completions);
        queue.expect("outlives its users").push(card.random, card.now, wc, None);
    }
}
