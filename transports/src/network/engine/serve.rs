// SPDX-License-Identifier: Apache-2.0
//! Carrying out what others request, and answering it.

use super::past::Duty;
use super::peer::WINDOW;
use super::{Engine, Owner, accepted};
use crate::network::Network;
use crate::network::message::{HEADER, Header, Kind, Record};
use std::ptr::copy_nonoverlapping;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use tombolo_core::amo;
use tombolo_core::transport::{Blocks, Remote, Status};

/// Most requests of a peer of which the answers are held.
const HELD_MAX: u8 = WINDOW as u8 - 1;

/// An answer on its way out.
#[derive(Clone, Copy, Default)]
pub struct Answer {
    pub pe: u32,
    len: usize,
}

impl<N: Network> Engine<N> {
    /// Carries out a request and answers it. An answer is free.
    pub(super) fn serve(&mut self, message: &[u8]) {
        let answer = self.free_answers.pop();
        if let (Some(request), Some(answer)) = (Header::decode(message), answer) {
            match self.past.as_ref().map(|past| past.duty(request.pe, request.turn)) {
                None | Some(Duty::CarryOut) => self.answer(&request, message, answer.into()),
                Some(Duty::Answer(again)) => {
                    let out = self.buffer(&Owner::Answer(answer.into()));
                    let len = again.len();
                    // SAFETY: the answer's own buffer, which is not being sent.
                    unsafe { copy_nonoverlapping(again.as_ptr(), out, len) };
                    self.answers[usize::from(answer)] = Answer { pe: request.pe, len };
                    self.send_answer(answer.into());
                }
                Some(Duty::Nothing) => self.free_answers.push(answer),
            }
        }
    }

    fn answer(&mut self, request: &Header, message: &[u8], answer: usize) {
        let out = self.buffer(&Owner::Answer(answer));
        // SAFETY: the answer's own buffer, which is not being sent.
        let out = unsafe { std::slice::from_raw_parts_mut(out, self.shared_message) };
        let (mut from, mut to, mut refused) = (HEADER, HEADER, 0);
        for number in 1..=request.count {
            let Some(record) = message.get(from..).and_then(Record::decode) else {
                refused = if refused == 0 { number } else { refused };
                break;
            };
            let Some(asked) = out.get_mut(to..to + record.answer_len()) else {
                refused = if refused == 0 { number } else { refused };
                break;
            };
            (from, to) = (from + record.len(), to + asked.len());
            if self.carry_out(&record, asked).is_none() {
                asked.fill(0);
                refused = if refused == 0 { number } else { refused };
            }
        }
        let peer = &mut self.peers[request.pe as usize];
        // What is held has nothing to say but that it was carried out.
        let is_plain = refused == 0 && to == HEADER;
        let is_held = request.kind == Kind::Request && is_plain && peer.held < HELD_MAX;
        peer.served = request.turn;
        let held = if is_held { 0 } else { std::mem::take(&mut peer.held) };
        let header = Header {
            token: peer.theirs.token,
            kind: Kind::Answer,
            count: ((to - HEADER) / 8) as u16,
            held,
            refused,
            pe: self.me,
            turn: request.turn,
            answered: 0,
        };
        out[..HEADER].copy_from_slice(&header.encode());
        if let Some(past) = &mut self.past {
            past.keep(request.pe, request.turn, &out[..to]);
        }
        self.counters.served += 1;
        if is_held {
            self.peers[request.pe as usize].held += 1;
            return self.free_answers.push(answer as u16);
        }
        self.answers[answer] = Answer { pe: request.pe, len: to };
        self.send_answer(answer);
    }

    /// Sends the answers to a peer that are held, if there is room for that now.
    pub(super) fn answer_held(&mut self, pe: u32) {
        let peer = &mut self.peers[pe as usize];
        let Some(before) = peer.held.checked_sub(1) else { return };
        let Some(answer) = self.free_answers.pop() else { return };
        peer.held = 0;
        let header = Header {
            token: peer.theirs.token,
            kind: Kind::Answer,
            count: 0,
            held: before,
            refused: 0,
            pe: self.me,
            turn: peer.served,
            answered: 0,
        };
        let out = self.buffer(&Owner::Answer(answer.into()));
        // SAFETY: the answer's own buffer, which is not being sent.
        unsafe { copy_nonoverlapping(header.encode().as_ptr(), out, HEADER) };
        self.answers[usize::from(answer)] = Answer { pe, len: HEADER };
        self.send_answer(answer.into());
    }

    /// Carries out one operation, and writes what it asks for; none if it is refused.
    fn carry_out(&self, record: &Record<'_>, asked: &mut [u8]) -> Option<()> {
        match *record {
            Record::Put { at, data } => {
                let dest = self.own_at(at, data.len(), 1)?;
                // SAFETY: inside the segment.
                unsafe { store(dest, data) };
            }
            Record::Get { at, len } => {
                let source = self.own_at(at, len as usize, 1)?;
                // SAFETY: inside the segment.
                unsafe { load(source, asked.get_mut(..len as usize)?) };
            }
            Record::PutBlocks { to, data } => {
                let dest = self.own_blocks(&to)?;
                for (number, block) in data.chunks_exact(to.len).enumerate() {
                    // SAFETY: all blocks are inside the segment.
                    unsafe { store(dest.add(number * to.stride), block) };
                }
            }
            Record::GetBlocks { from } => {
                let source = self.own_blocks(&from)?;
                let asked = asked.get_mut(..from.bytes())?;
                for (number, block) in asked.chunks_exact_mut(from.len).enumerate() {
                    // SAFETY: as above.
                    unsafe { load(source.add(number * from.stride), block) };
                }
            }
            Record::Amo { at, amo, .. } => {
                let variable = self.own_at(at, amo.size.into(), amo.size.into())?;
                // SAFETY: inside the segment and aligned.
                let old = unsafe { amo::execute(variable, amo) };
                // Nothing where nobody wants it.
                if let Some(place) = asked.first_chunk_mut() {
                    *place = old.to_le_bytes();
                }
            }
        }
        Some(())
    }

    fn own_at(&self, at: Remote, len: usize, align: usize) -> Option<*mut u8> {
        let own = &self.own[at.segment as usize];
        let fits = at.fits(len, own.len) && at.offset.is_multiple_of(align);
        // SAFETY: inside the segment.
        fits.then(|| unsafe { own.base.add(at.offset) })
    }

    fn own_blocks(&self, blocks: &Blocks) -> Option<*mut u8> {
        blocks.fit(self.own[blocks.at.segment as usize].len).then_some(())?;
        self.own_at(blocks.at, blocks.len, 1)
    }

    /// Sends an answer, or keeps it for later.
    pub(super) fn send_answer(&mut self, index: usize) {
        let Answer { pe, len } = self.answers[index];
        if self.peers[pe as usize].is_lost {
            return self.free_answers.push(index as u16);
        }
        let to = self.peers[pe as usize].theirs.address;
        let buffer = self.buffer(&Owner::Answer(index));
        let context = self.context(Owner::Answer(index));
        let injected = len <= self.net.inject_max();
        // SAFETY: the answer's own buffer, and its context, are not touched until the completion.
        let result = unsafe {
            match injected {
                true => self.net.inject(to, std::slice::from_raw_parts(buffer, len)),
                false => self.net.send(to, buffer, len, self.key, context),
            }
        };
        self.counters.answers += u64::from(result == 0);
        match accepted(result) {
            Some(Status::Pending) if injected => self.free_answers.push(index as u16),
            Some(Status::Pending) => {}
            Some(_) => self.unsent_answers.push_back(index as u16),
            None => {
                let why = self.net.meaning(result);
                self.free_answers.push(index as u16);
                self.lose(pe, &why);
            }
        }
    }
}

/// Writes bytes of a put. Words are written whole, as their readers expect, and who sees them sees the puts before
/// them.
///
/// # Safety
/// `dest` is valid for the bytes.
#[inline]
unsafe fn store(dest: *mut u8, data: &[u8]) {
    if let (Ok(word), true) = (data.try_into(), (dest as usize).is_multiple_of(8)) {
        // SAFETY: by the caller's word, and aligned.
        return unsafe {
            (*dest.cast::<AtomicU64>()).store(u64::from_ne_bytes(word), Ordering::Release)
        };
    }
    if let (Ok(word), true) = (data.try_into(), (dest as usize).is_multiple_of(4)) {
        // SAFETY: as above.
        return unsafe {
            (*dest.cast::<AtomicU32>()).store(u32::from_ne_bytes(word), Ordering::Release)
        };
    }
    // Who sees these bytes sees the puts before them, as with a word.
    fence(Ordering::Release);
    // SAFETY: by the caller's word.
    unsafe { copy_nonoverlapping(data.as_ptr(), dest, data.len()) };
}

/// Reads bytes for a get, words whole.
///
/// # Safety
/// `source` is valid for the bytes.
#[inline]
unsafe fn load(source: *const u8, to: &mut [u8]) {
    // SAFETY: by the caller's word; atomics are aligned.
    unsafe {
        match to.len() {
            8 if (source as usize).is_multiple_of(8) => to.copy_from_slice(
                &(*source.cast::<AtomicU64>()).load(Ordering::Acquire).to_ne_bytes(),
            ),
            4 if (source as usize).is_multiple_of(4) => to.copy_from_slice(
                &(*source.cast::<AtomicU32>()).load(Ordering::Acquire).to_ne_bytes(),
            ),
            len => copy_nonoverlapping(source, to.as_mut_ptr(), len),
        }
    }
}
