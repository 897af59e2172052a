// SPDX-License-Identifier: Apache-2.0
//! Requests: operations on a peer, gathered into messages while earlier ones are under way.
//!
//! The first requests to a peer go at once; while [`EAGER`] of them wait for their answer, which is under
//! way, the next one is filled, and it goes when one of these has been answered or when it is full. So a
//! single operation is not held up, and many travel together. Requests to one peer are carried out in the
//! order in which they were opened.

use super::peer::WINDOW;
use super::{Engine, Owner, accepted, count_issued};
use crate::network::Network;
use crate::network::message::{HEADER, Header, Kind, Record, padded, records_max};
use std::ptr::{self, copy_nonoverlapping, null};
use std::sync::atomic::Ordering;
use tombolo_core::transport::{Amo, Status, Stream};

/// Requests to a peer that go without waiting for more operations, not counting those of which the answers
/// are held.
const EAGER: usize = 2;

/// A record's owner.
#[derive(Clone, Copy)]
struct Entry {
    stream: *const Stream,
    /// Where the old value or the data go; null if there are none.
    result: *mut u8,
    size: u32,
}

/// A request.
pub struct Batch {
    pub pe: u32,
    /// Its number among those to this peer.
    turn: u32,
    len: usize,
    /// Bytes of its answer.
    answer_len: usize,
    entries: Vec<Entry>,
    /// The entries are of several streams.
    is_mixed: bool,
    /// It is to be answered at once.
    pub is_urgent: bool,
    /// It is being filled or waits for its answer.
    pub is_awaited: bool,
    /// How often the network still has the buffer: more than once where it is sent again.
    sending: u8,
}

impl Batch {
    /// One with room for as many records as a message of `message` bytes has.
    pub fn new(message: usize) -> Batch {
        Batch {
            pe: 0,
            turn: 0,
            len: HEADER,
            answer_len: HEADER,
            entries: Vec::with_capacity(records_max(message)),
            is_mixed: false,
            is_urgent: false,
            is_awaited: false,
            sending: 0,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether it may hold operations of a stream.
    pub fn is_of(&self, stream: &Stream) -> bool {
        self.is_mixed || self.entries.first().is_some_and(|entry| ptr::eq(entry.stream, stream))
    }

    /// Whether it may hold operations that a fence orders before others of a stream: those of the same context, which
    /// may have several streams.
    fn precedes(&self, stream: &Stream) -> bool {
        // SAFETY: streams live until everything issued on them has completed.
        let own = |entry: &Entry| unsafe { (*entry.stream).id == stream.id };
        self.is_mixed || self.entries.first().is_some_and(own)
    }
}

impl<N: Network> Engine<N> {
    /// Issues one operation.
    ///
    /// # Safety
    /// `result` is null, or writable for the size of the variable or of the data until the completion.
    pub unsafe fn request(
        &mut self,
        stream: &Stream,
        pe: u32,
        record: &Record<'_>,
        result: *mut u8,
    ) -> Status {
        if let Some(status) = self.not_for(pe, record, record.len(), record.answer_len()) {
            return status;
        }
        self.append(stream, pe, record, result);
        self.flush(pe);
        Status::Pending
    }

    /// Issues a put and its signal, which the target carries out in this order.
    pub fn request_with_signal(
        &mut self,
        stream: &Stream,
        pe: u32,
        put: &Record<'_>,
        signal: &Record<'_>,
    ) -> Status {
        let unfit = self.not_for(pe, put, put.len() + signal.len(), 0);
        if let Some(status) = unfit.or_else(|| self.not_for(pe, signal, signal.len(), 0)) {
            return status;
        }
        self.append(stream, pe, put, std::ptr::null_mut());
        self.append(stream, pe, signal, std::ptr::null_mut());
        self.flush(pe);
        Status::Pending
    }

    /// Why a record cannot be added with `bytes` in all, and `answer` in the answer, if it cannot.
    fn not_for(
        &mut self,
        pe: u32,
        record: &Record<'_>,
        bytes: usize,
        answer: usize,
    ) -> Option<Status> {
        let holds = match record {
            Record::Put { at, data } => self.holds(pe, *at, data.len()),
            Record::Get { at, len } => self.holds(pe, *at, *len as usize),
            Record::PutBlocks { to: blocks, .. } | Record::GetBlocks { from: blocks } => {
                self.holds_blocks(pe, blocks)
            }
            Record::Amo { at, amo: Amo { size, .. }, .. } => self.holds(pe, *at, (*size).into()),
        };
        if self.peers[pe as usize].is_lost || !holds {
            return Some(Status::Failed);
        }
        self.use_peer(pe);
        match self.room(pe, bytes, answer).is_none() {
            // It may just have been given up.
            true if self.peers[pe as usize].is_lost => Some(Status::Failed),
            true => Some(Status::Again),
            false => None,
        }
    }

    /// An open request with room for `bytes`, and for `answer` in its answer; none if there is none now. What is
    /// longer than messages of several operations goes alone.
    pub(super) fn room(&mut self, pe: u32, bytes: usize, answer: usize) -> Option<u16> {
        let fits = |engine: &Engine<N>, index: u16| {
            let batch = &engine.batches[usize::from(index)];
            let most = if batch.is_empty() { engine.message } else { engine.shared_message };
            batch.len + bytes <= most && batch.answer_len + answer <= engine.shared_message
        };
        if let Some(index) = self.peers[pe as usize].open {
            if fits(self, index) {
                return Some(index);
            }
            self.flush_all(pe);
        }
        self.open_batch(pe)
    }

    /// Opens a request if none is open.
    pub(super) fn open_batch(&mut self, pe: u32) -> Option<u16> {
        let peer = &mut self.peers[pe as usize];
        if peer.open.is_some() || peer.is_lost {
            return None;
        }
        let index = self.free_batches.pop()?;
        let batch = &mut self.batches[usize::from(index)];
        (batch.pe, batch.turn, batch.len, batch.is_awaited) = (pe, peer.turn, HEADER, true);
        (batch.answer_len, batch.is_mixed, batch.is_urgent) = (HEADER, false, false);
        batch.entries.clear();
        if peer.sent_count == 0 {
            // What was ordered by a fence has been carried out, so turns may go round.
            (peer.is_burst, peer.fenced) = (false, peer.turn);
        }
        peer.turn = peer.turn.wrapping_add(1);
        peer.open = Some(index);
        Some(index)
    }

    /// Adds a record to the open request, which has room for it.
    pub(super) fn append(
        &mut self,
        stream: &Stream,
        pe: u32,
        record: &Record<'_>,
        result: *mut u8,
    ) {
        count_issued(stream, 1);
        self.append_uncounted(stream, pe, record, result);
    }

    pub(super) fn append_uncounted(
        &mut self,
        stream: &Stream,
        pe: u32,
        record: &Record<'_>,
        result: *mut u8,
    ) {
        let index = self.peers[pe as usize].open.expect("room was made");
        let buffer = self.buffer(&Owner::Batch(index.into()));
        let batch = &mut self.batches[usize::from(index)];
        assert!(batch.len + record.len() <= self.message);
        // SAFETY: the rest of the batch's own buffer, which is not being sent.
        let rest = unsafe {
            std::slice::from_raw_parts_mut(buffer.add(batch.len), self.message - batch.len)
        };
        record.encode(rest);
        batch.len += record.len();
        let size = match record {
            Record::Amo { amo, .. } => amo.size.into(),
            Record::Get { len, .. } => *len,
            Record::GetBlocks { from } => from.bytes() as u32,
            Record::Put { .. } | Record::PutBlocks { .. } => 0,
        };
        batch.answer_len += record.answer_len();
        batch.is_mixed |= !batch.is_empty() && !batch.is_of(stream);
        batch.is_urgent |= !result.is_null() || self.waits.lately(stream);
        batch.entries.push(Entry { stream, result, size });
    }

    /// Sends the open request, unless the answers to enough others are under way.
    pub(super) fn flush(&mut self, pe: u32) {
        let peer = &mut self.peers[pe as usize];
        if peer.to_repeat == 0 && peer.sent_count - peer.delayed().len() >= EAGER {
            peer.is_burst |= peer.open.is_some();
            return;
        }
        self.flush_all(pe);
    }

    /// Sends the open request, unless as many wait for their answer as may.
    pub(super) fn flush_all(&mut self, pe: u32) {
        if self.peers[pe as usize].to_repeat > 0 && !self.repeat(pe) {
            return;
        }
        let peer = &self.peers[pe as usize];
        let Some(index) = peer.open.filter(|_| peer.sent_count < WINDOW) else { return };
        if self.past.is_some() && !self.is_in_window(pe, index) {
            return;
        }
        let (to, token) = (peer.theirs.address, peer.theirs.token);
        let buffer = self.buffer(&Owner::Batch(index.into()));
        let is_urgent = self.is_urgent(pe, index);
        let batch = &self.batches[usize::from(index)];
        let len = batch.len;
        let header = Header {
            token,
            kind: if is_urgent { Kind::Urgent } else { Kind::Request },
            count: batch.entries.len() as u16,
            held: peer.held,
            refused: 0,
            pe: self.me,
            turn: batch.turn,
            answered: peer.served,
        };
        // SAFETY: the batch's own buffer, which is not being sent.
        let message = unsafe { std::slice::from_raw_parts_mut(buffer, len) };
        message[..HEADER].copy_from_slice(&header.encode());
        let result = self.send_batch(to, index);
        match accepted(result) {
            Some(Status::Pending) => {
                let peer = &mut self.peers[pe as usize];
                peer.sent[peer.sent_count] = index;
                peer.sent_count += 1;
                peer.open = None;
                peer.held = 0;
                peer.delayed_count = if is_urgent { 0 } else { peer.delayed_count + 1 };
                if !is_urgent {
                    self.note_delayed(pe);
                }
                if let Some(entry) = self.batches[usize::from(index)].entries.first() {
                    // SAFETY: streams live until everything issued on them has completed.
                    self.waits.sent(unsafe { &*entry.stream });
                }
            }
            Some(_) => self.note_unsent(pe),
            None => {
                let why = self.net.meaning(result);
                self.lose(pe, &why);
            }
        }
    }

    /// Sends a request that is complete.
    fn send_batch(&mut self, to: u64, index: u16) -> isize {
        let owner = Owner::Batch(index.into());
        let (buffer, context) = (self.buffer(&owner), self.context(owner));
        let len = self.batches[usize::from(index)].len;
        let injected = len <= self.net.inject_max();
        // SAFETY: the batch's own buffer and context, which are not touched until the completion.
        let result = unsafe {
            match injected {
                true => self.net.inject(to, std::slice::from_raw_parts(buffer, len)),
                false => self.net.send(to, buffer, len, self.key, context),
            }
        };
        if result == 0 {
            self.batches[usize::from(index)].sending += u8::from(!injected);
        }
        result
    }

    /// Whether the peer still knows what it has answered since the oldest request that waits.
    fn is_in_window(&self, pe: u32, index: u16) -> bool {
        let peer = &self.peers[pe as usize];
        let turn = |index: u16| self.batches[usize::from(index)].turn;
        let oldest = peer.sent[..peer.sent_count].first();
        oldest.is_none_or(|oldest| turn(index).wrapping_sub(turn(*oldest)) < WINDOW as u32)
    }

    /// A peer may not have got the last of the requests that wait for their answer.
    #[cold]
    pub(super) fn begin_again(&mut self, pe: u32) {
        if self.peers[pe as usize].is_lost {
            return;
        }
        self.hear(pe);
        let peer = &mut self.peers[pe as usize];
        peer.to_repeat = peer.sent_count;
        self.flush(pe);
    }

    /// Sends requests again; true if there is none left that is to be.
    #[cold]
    fn repeat(&mut self, pe: u32) -> bool {
        while self.peers[pe as usize].to_repeat > 0 {
            let peer = &self.peers[pe as usize];
            let index = peer.sent[peer.sent_count - peer.to_repeat];
            let result = self.send_batch(peer.theirs.address, index);
            match accepted(result) {
                Some(Status::Pending) => self.peers[pe as usize].to_repeat -= 1,
                Some(_) => {
                    self.note_unsent(pe);
                    return false;
                }
                None => {
                    let why = self.net.meaning(result);
                    self.lose(pe, &why);
                }
            }
        }
        true
    }

    fn note_unsent(&mut self, pe: u32) {
        let peer = &mut self.peers[pe as usize];
        if !peer.is_unsent {
            peer.is_unsent = true;
            self.unsent.push(pe);
        }
    }

    /// The network has let go of a request's buffer.
    pub(super) fn batch_sent(&mut self, index: usize) {
        let batch = &mut self.batches[index];
        batch.sending = batch.sending.saturating_sub(1);
        self.free_batch(index);
    }

    fn free_batch(&mut self, index: usize) {
        let batch = &self.batches[index];
        if batch.sending == 0 && !batch.is_awaited {
            self.free_batches.push(index as u16);
        }
    }

    /// What became of a request, and of those before it of which the answers were held.
    pub(super) fn take_answer(&mut self, header: &Header, message: &[u8]) {
        let (pe, turn) = (header.pe, header.turn);
        self.finish_held(pe, turn.wrapping_sub(1), header.held);
        self.finish(pe, turn, header.refused, message);
        self.flush(pe);
    }

    /// Requests of which the answers were held, `count` of them up to this turn.
    pub(super) fn take_held(&mut self, pe: u32, last: u32, count: u8) {
        self.finish_held(pe, last, count);
        self.flush(pe);
    }

    fn finish_held(&mut self, pe: u32, last: u32, count: u8) {
        for before in (0..u32::from(count)).rev() {
            self.finish(pe, last.wrapping_sub(before), 0, &[]);
        }
    }

    /// A request to a peer was answered; `message` holds what it asked for, and `refused` is 1 + the first record
    /// that was refused.
    fn finish(&mut self, pe: u32, turn: u32, refused_from: u16, message: &[u8]) {
        let peer = &mut self.peers[pe as usize];
        let is_it = |index: &u16| self.batches[usize::from(*index)].turn == turn;
        // None if it came before, or from nobody.
        let Some(at) = peer.sent[..peer.sent_count].iter().position(is_it) else { return };
        let index = usize::from(peer.sent[at]);
        if at >= peer.sent_count - peer.to_repeat {
            peer.to_repeat -= 1;
        }
        if at >= peer.sent_count - peer.delayed_count {
            peer.delayed_count -= 1;
        }
        peer.sent.copy_within(at + 1..peer.sent_count, at);
        peer.sent_count -= 1;
        let batch = &mut self.batches[index];
        batch.is_awaited = false;
        self.counters.requests += 1;
        self.counters.records += batch.entries.len() as u64;
        let mut answer_at = HEADER;
        // Neighbours mostly belong to one stream: its count is raised once for all of them.
        let (mut last, mut done): (*const Stream, u64) = (null(), 0);
        for (number, entry) in batch.entries.iter().enumerate() {
            let mut refused = usize::from(refused_from) == number + 1;
            if !entry.result.is_null() {
                let (from, size) = (answer_at, entry.size as usize);
                answer_at += padded(entry.size);
                match message.get(from..from + size) {
                    // SAFETY: the caller vouched for so many bytes until the completion.
                    Some(answer) => unsafe {
                        copy_nonoverlapping(answer.as_ptr(), entry.result, size);
                    },
                    None => refused = true,
                }
            }
            if refused {
                // SAFETY: streams live until everything issued on them has completed.
                unsafe { (*entry.stream).fail(pe, true) };
                continue;
            }
            if entry.stream != last {
                // SAFETY: as above.
                unsafe { complete(last, done) };
                (last, done) = (entry.stream, 0);
            }
            done += 1;
        }
        // SAFETY: as above.
        unsafe { complete(last, done) };
        self.free_batch(index);
    }

    /// The peer of a request was given up.
    pub(super) fn batch_failed(&mut self, index: usize) {
        let batch = &mut self.batches[index];
        batch.is_awaited = false;
        for entry in &batch.entries {
            // SAFETY: streams live until everything issued on them has completed.
            unsafe { (*entry.stream).fail(batch.pe, false) };
        }
        batch.entries.clear();
        self.free_batch(index);
    }

    /// Orders what the stream issued to each peer before what is issued to it later: `Pending` while
    /// it is not.
    pub fn fence(&mut self, stream: &Stream) -> Status {
        if stream.is_quiet() {
            return Status::Complete;
        }
        self.net.fence();
        let is_ordered = self.net.is_ordered() && !self.net.overtakes_amos();
        let only_reads = is_ordered && self.net.overtakes_reads();
        let mut unordered = false;
        for at in 0..self.used.len() {
            let pe = self.used[at];
            // RMA can overtake a request: it has to wait for all opened so far. Requests keep their
            // order among each other.
            let peer = &mut self.peers[pe as usize];
            peer.fenced = peer.turn;
            unordered |= (only_reads || !is_ordered) && self.has_rma(stream, pe, only_reads);
        }
        if unordered {
            self.net.confirm();
            return Status::Pending;
        }
        Status::Complete
    }

    /// Whether RMA of a stream may go: all its requests before the last fence have been answered. Those of other contexts
    /// are not waited for: a thread that always has some under way, and fences, would hold up all others.
    pub(super) fn may_pass(&mut self, pe: u32, stream: &Stream) -> bool {
        let peer = &self.peers[pe as usize];
        let is_before = |index: &u16| {
            let batch = &self.batches[usize::from(*index)];
            (batch.turn.wrapping_sub(peer.fenced) as i32) < 0 && batch.precedes(stream)
        };
        let held = peer.sent[..peer.sent_count].iter().any(is_before);
        let open = peer.open.is_some_and(|index| is_before(&index));
        let awaited = peer.delayed().iter().find(|index| is_before(index));
        if let Some(entry) =
            awaited.and_then(|index| self.batches[usize::from(*index)].entries.first())
        {
            // SAFETY: streams live until everything issued on them has completed.
            self.waits.note(unsafe { &*entry.stream });
        }
        if open || awaited.is_some() {
            self.ask_for_answers(pe);
        }
        !(held || open)
    }
}

/// # Safety
/// Null with nothing done, or a stream with operations that were not counted.
unsafe fn complete(stream: *const Stream, done: u64) {
    // SAFETY: by the caller's word.
    if let Some(stream) = unsafe { stream.as_ref() } {
        stream.completed.fetch_add(done, Ordering::Release);
    }
}
