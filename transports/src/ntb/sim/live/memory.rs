// SPDX-License-Identifier: Apache-2.0
//! The [`Memory`] of the engines of a PE that is a thread of this process: its real memory, at the pace of
//! the model.

use tombolo_core::amo;
use tombolo_core::transport::Amo;

use super::super::memory::sealed;
use super::super::model::Writer;
use super::super::timed_memory::TimedMemory;
use crate::ntb::ring::{
    Completion, Event, LineWords, Location, Memory, OutOfRange, STEP_BYTES, Side, Span, Step,
    Transfer,
};

/// The symmetric heap of a PE.
#[derive(Clone, Copy)]
pub struct Heap {
    /// Where it lies.
    pub base: *mut u8,
    /// Bytes.
    pub len: usize,
}

// SAFETY: an address. Who uses it vouches for the memory.
unsafe impl Send for Heap {}
// SAFETY: as above.
unsafe impl Sync for Heap {}

impl Default for Heap {
    fn default() -> Heap {
        Heap { base: std::ptr::null_mut(), len: 0 }
    }
}

/// What was written to the heap, or to buffers of the program.
#[derive(Clone, Copy, Debug, Default)]
pub struct Delivered {
    /// Payloads.
    copies: usize,
    /// Words and other short pieces: the last one of each payload, and what came alone.
    short: usize,
    /// When the last of them was written.
    short_ps: u64,
}

impl Delivered {
    /// When something came that a PE may wait for, if it did: a flag is never part of a payload.
    pub fn alone_ps(&self) -> Option<u64> {
        (self.short > self.copies).then_some(self.short_ps)
    }

    /// A payload.
    pub fn any_payload(&self) -> bool {
        self.copies > 0
    }
}

/// What a lane of a PE works with while it does something.
pub struct LiveMemory<'a> {
    pub timed: TimedMemory<'a>,
    pub heap: Heap,
    pub delivered: Delivered,
}

impl LiveMemory<'_> {
    /// Where `len` bytes of this PE lie.
    fn at(&mut self, span: Span, len: usize) -> Result<*mut u8, OutOfRange> {
        Ok(match span {
            Span::Inbound(side, at) => {
                self.timed.memory.inbound[side as usize][at..at + len].as_mut_ptr()
            }
            Span::Retained(at) => self.timed.memory.retained[at..at + len].as_mut_ptr(),
            Span::Local(at) => at as *mut u8,
            Span::Symmetric(Location { pe: 0, segment: 0, offset }) => {
                let at = usize::try_from(offset).map_err(|_| OutOfRange)?;
                let end = at.checked_add(len).ok_or(OutOfRange)?;
                if end > self.heap.len {
                    return Err(OutOfRange);
                }
                self.heap.base.wrapping_add(at)
            }
            Span::Symmetric(_) => return Err(OutOfRange),
        })
    }

    fn bytes(&mut self, span: Span, len: usize) -> Result<&[u8], OutOfRange> {
        let at = self.at(span, len)?;
        // SAFETY: a range of the lane, checked, or of the program, which vouches for it; PEs run by
        // turns, so nobody writes it now.
        Ok(unsafe { std::slice::from_raw_parts(at, len) })
    }

    /// Stores the next step of a side, if anything waits there.
    fn store_step(&mut self, side: Side) -> bool {
        let Some(step) = self.timed.memory.steps[side as usize].take() else { return false };
        let bytes = match step {
            Step::Payload { from, len, .. } => self.bytes(from, len),
            Step::Header { .. } => Ok(&[][..]),
        };
        let bytes = bytes.expect("the range was found to be good").to_vec();
        self.timed.store(side, step, bytes);
        if self.timed.memory.steps[side as usize].is_header_next() {
            self.store_step(side);
        }
        true
    }

    fn note_short(&mut self) {
        self.delivered.short += 1;
        self.delivered.short_ps = self.timed.now_ps;
    }
}

fn is_of_program(to: Span) -> bool {
    matches!(to, Span::Symmetric(_) | Span::Local(_))
}

impl Memory for LiveMemory<'_> {
    fn load_word(&mut self, side: Side, offset: usize) -> u64 {
        self.timed.load_word(side, offset)
    }

    fn load_line(&mut self, side: Side, offset: usize) -> LineWords {
        self.timed.load_line(side, offset)
    }

    fn store_line(&mut self, side: Side, offset: usize, line: &LineWords) {
        self.timed.store_line(side, offset, line);
    }

    fn store_header(&mut self, side: Side, offset: usize, line: &LineWords) -> Transfer {
        self.timed.store_header(side, offset, line)
    }

    fn has_steps(&self) -> bool {
        self.timed.has_steps()
    }

    fn is_idle(&mut self, side: Side) -> bool {
        self.timed.is_idle(side)
    }

    fn store_some(&mut self) -> bool {
        Side::BOTH.into_iter().fold(false, |some, side| self.store_step(side) | some)
    }

    fn copy(&mut self, from: Span, to: Span, len: usize) -> Result<(), OutOfRange> {
        let (source, dest) = (self.at(from, len)?, self.at(to, len)?);
        // SAFETY: both hold `len` bytes, checked or vouched for by the program.
        unsafe { dest.copy_from(source, len) };
        self.timed.spend_copying(self.timed.model.touch_ps);
        for at in (0..len).step_by(STEP_BYTES) {
            let part_ps = self.timed.bytes_ps(STEP_BYTES.min(len - at));
            self.timed.spend_copying(part_ps);
            self.store_some();
        }
        self.delivered.copies += usize::from(is_of_program(to));
        Ok(())
    }

    fn send(
        &mut self,
        from: Span,
        side: Side,
        offset: usize,
        len: usize,
        seal: u64,
    ) -> Result<Transfer, OutOfRange> {
        let bytes = sealed(self.bytes(from, len)?, seal);
        // What is stored out of order looks as if something were lost.
        while self.timed.memory.must_store_first(side, from) && self.store_some() {}
        if self.timed.model.writer == Writer::Cpu
            && let Some(number) = self.timed.memory.leave(from, side, offset, len, seal)
        {
            if !matches!(from, Span::Inbound(..)) {
                self.store_step(side);
            }
            return Ok(Transfer::Queued(number));
        }
        let (relayed, writer) = (matches!(from, Span::Inbound(..)), self.timed.model.writer);
        let gone_ps = self.timed.write_out(side, offset, &bytes, (relayed, false), writer);
        if self.timed.model.writer == Writer::Cpu {
            return Ok(Transfer::Done);
        }
        if let Span::Inbound(side, at) = from {
            self.timed.memory.note_reading(side, at..at + len, gone_ps);
        }
        Ok(Transfer::Queued(gone_ps))
    }

    fn has_left(&mut self, side: Side, transfer: Transfer) -> bool {
        self.timed.has_left(side, transfer)
    }

    fn mark(&mut self, side: Side, offset: usize, word: u64) -> Option<Transfer> {
        self.timed.mark(side, offset, word)
    }

    fn checksum(&mut self, span: Span, len: usize) -> u32 {
        let cost_ps = (len as f64 * 1000.0 / self.timed.model.crc_rate) as u64;
        self.timed.now_ps += cost_ps;
        self.timed.cpu.crc_ps += cost_ps;
        crc32c::crc32c(self.bytes(span, len).expect("sums are taken of slots and buffers"))
    }

    fn read(&mut self, span: Span, bytes: &mut [u8]) -> Result<(), OutOfRange> {
        self.timed.now_ps += self.timed.model.touch_ps;
        self.timed.cpu.inject_ps += self.timed.model.touch_ps;
        bytes.copy_from_slice(self.bytes(span, bytes.len())?);
        Ok(())
    }

    fn write(&mut self, span: Span, bytes: &[u8]) -> Result<(), OutOfRange> {
        let dest = self.at(span, bytes.len())?;
        // SAFETY: as in `copy`.
        unsafe { dest.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        self.timed.now_ps += self.timed.model.touch_ps;
        self.timed.cpu.deliver_ps += self.timed.model.touch_ps;
        if is_of_program(span) {
            self.note_short();
        }
        Ok(())
    }

    fn amo(&mut self, place: Location, request: &Amo) -> Result<u64, OutOfRange> {
        let at = self.at(Span::Symmetric(place), request.size.into())?;
        if !at.addr().is_multiple_of(request.size.into()) {
            return Err(OutOfRange);
        }
        self.timed.now_ps += self.timed.model.touch_ps;
        self.timed.cpu.deliver_ps += self.timed.model.touch_ps;
        self.note_short();
        // SAFETY: inside the heap and aligned, both just checked.
        Ok(unsafe { amo::execute(at, *request) })
    }

    fn ring(&mut self, side: Side) {
        self.timed.ring(side);
    }

    fn link_is_up(&mut self, side: Side) -> bool {
        self.timed.link_is_up(side)
    }

    fn complete(&mut self, token: u64, outcome: Completion) {
        self.timed.complete(token, outcome);
    }

    fn event(&mut self, event: Event) {
        self.timed.event(event);
    }
}
