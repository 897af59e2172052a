// SPDX-License-Identifier: Apache-2.0
//! The [`Memory`] of a simulated engine: every call takes virtual time.

use tombolo_core::transport::Amo;

use super::memory::{LaneMemory, Symmetric, amo, line_bytes, sealed};
use super::model::{HostModel, Writer};
use super::network::{Network, Writing};
use crate::ntb::ring::{
    Completion, Event, LineWords, Location, Memory, OutOfRange, STEP_BYTES, Side, Span, Step,
    Transfer,
};

/// CPU time by what it was spent on.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuTime {
    /// Moving payload into a window from local memory.
    pub inject_ps: u64,
    /// Moving payload from an inbound slot to the other window.
    pub relay_ps: u64,
    /// Moving payload to its destination.
    pub deliver_ps: u64,
    /// Storing header and control lines.
    pub store_ps: u64,
    /// Looking for lines and taking them in.
    pub detect_ps: u64,
    /// CRC.
    pub crc_ps: u64,
    /// Waiting because posted writes backed up.
    pub backed_up_ps: u64,
}

/// What one lane's thread works with while it polls.
pub struct TimedMemory<'a> {
    /// Its host.
    pub host: u16,
    /// Its lane.
    pub lane: usize,
    /// Its clock.
    pub now_ps: u64,
    /// Its memory.
    pub memory: &'a mut LaneMemory,
    /// The memory of the host's PEs.
    pub symmetric: &'a mut Symmetric,
    /// The cables.
    pub network: &'a mut Network,
    /// Costs.
    pub model: &'a HostModel,
    /// Largest TLP.
    pub mps_bytes: u64,
    /// Where its time goes.
    pub cpu: &'a mut CpuTime,
    /// Operations that ended.
    pub completions: &'a mut Vec<(u64, Completion)>,
    /// What the engine reported.
    pub events: &'a mut Vec<(u64, u16, Event)>,
}

impl TimedMemory<'_> {
    /// Time of a copy that has begun.
    pub(super) fn bytes_ps(&self, len: usize) -> u64 {
        (len as f64 * 1000.0 / self.model.copy_rate) as u64
    }

    /// Copies to a destination for a while.
    pub(super) fn spend_copying(&mut self, ps: u64) {
        self.now_ps += ps;
        self.cpu.deliver_ps += ps;
    }

    /// Writes payload through a window; the thread goes on when the rest fits the posted buffers. Gives
    /// the time at which the last byte leaves.
    pub(super) fn write_out(
        &mut self,
        side: Side,
        offset: usize,
        bytes: &[u8],
        (relayed, touched): (bool, bool),
        writer: Writer,
    ) -> u64 {
        let start = self.now_ps;
        let (cpu_ps, from_ps, until_ps, tlp_bytes) = match writer {
            Writer::Cpu => {
                let touch_ps = if touched { 0 } else { self.model.touch_ps };
                let cpu = touch_ps + self.bytes_ps(bytes.len());
                (cpu, start + touch_ps, start + cpu, 64)
            }
            Writer::Dma => {
                let first = start + self.model.dma_submit_ps + self.model.dma_start_ps;
                (self.model.dma_submit_ps, first, first, self.mps_bytes)
            }
        };
        let by_engine = writer == Writer::Dma && self.network.is_rough();
        let writing = Writing {
            host: self.host,
            side,
            lane: self.lane,
            from_ps,
            until_ps,
            tlp_bytes,
            by_engine,
        };
        let gone = self.network.write(writing, offset, bytes);
        self.now_ps += cpu_ps;
        if relayed {
            self.cpu.relay_ps += cpu_ps;
        } else {
            self.cpu.inject_ps += cpu_ps;
        }
        if writer == Writer::Cpu {
            self.back_up(gone);
        }
        gone
    }

    fn back_up(&mut self, gone_ps: u64) {
        let room_ps = (self.model.posted_bytes as f64 * 1000.0 / 7.0) as u64;
        let free = gone_ps.saturating_sub(room_ps);
        if free > self.now_ps {
            self.cpu.backed_up_ps += free - self.now_ps;
            self.now_ps = free;
        }
    }
}

impl TimedMemory<'_> {
    /// Stores the next step of a side, if anything waits there.
    fn store_step(&mut self, side: Side) -> bool {
        let Some(step) = self.memory.steps[side as usize].take() else { return false };
        let bytes = match step {
            Step::Payload { from, len, .. } => self.memory.bytes(self.symmetric, from, len),
            Step::Header { .. } => Ok(&[][..]),
        };
        let bytes = bytes.expect("the range was found to be good").to_vec();
        self.store(side, step, bytes);
        if self.memory.steps[side as usize].is_header_next() {
            self.store_step(side);
        }
        true
    }

    /// Stores the next step of a side, whose payload `bytes` gives.
    pub(super) fn store(&mut self, side: Side, step: Step, bytes: Vec<u8>) {
        match step {
            Step::Header { offset, line } => self.line_out(side, offset, &line),
            Step::Payload { from, offset, seal, is_first, .. } => {
                let bytes = seal.map_or_else(|| bytes.clone(), |seal| sealed(&bytes, seal));
                let relayed = matches!(from, Span::Inbound(..));
                self.write_out(side, offset, &bytes, (relayed, !is_first), Writer::Cpu);
            }
        }
    }

    /// Stores a header or control line.
    fn line_out(&mut self, side: Side, offset: usize, line: &LineWords) {
        let from_ps = self.now_ps;
        self.now_ps += self.model.store_ps;
        self.cpu.store_ps += self.model.store_ps;
        let gone =
            self.network.write(self.one_line(side, from_ps, false), offset, &line_bytes(line));
        if self.model.writer == Writer::Cpu {
            self.back_up(gone);
        }
    }

    /// How a line leaves that is there at this time.
    fn one_line(&self, side: Side, from_ps: u64, by_engine: bool) -> Writing {
        let (host, lane, until_ps) = (self.host, self.lane, from_ps);
        Writing { host, side, lane, from_ps, until_ps, tlp_bytes: 64, by_engine }
    }
}

impl Memory for TimedMemory<'_> {
    fn load_word(&mut self, side: Side, offset: usize) -> u64 {
        self.now_ps += self.model.look_ps;
        self.cpu.detect_ps += self.model.look_ps;
        self.memory.word(side, offset)
    }

    fn load_line(&mut self, side: Side, offset: usize) -> LineWords {
        self.now_ps += self.model.detect_ps;
        self.cpu.detect_ps += self.model.detect_ps;
        self.memory.line(side, offset)
    }

    fn store_line(&mut self, side: Side, offset: usize, line: &LineWords) {
        self.line_out(side, offset, line);
    }

    fn store_header(&mut self, side: Side, offset: usize, line: &LineWords) -> Transfer {
        if let Some(number) = self.memory.steps[side as usize].header(offset, line) {
            return Transfer::Queued(number);
        }
        if std::mem::take(&mut self.memory.header_follows[side as usize]) {
            let from_ps = self.now_ps + self.model.dma_submit_ps + self.model.dma_start_ps;
            let writing = self.one_line(side, from_ps, true);
            return Transfer::Queued(self.network.write(writing, offset, &line_bytes(line)));
        }
        self.line_out(side, offset, line);
        Transfer::Done
    }

    fn copy(&mut self, from: Span, to: Span, len: usize) -> Result<(), OutOfRange> {
        let bytes = self.memory.bytes(self.symmetric, from, len)?.to_vec();
        self.spend_copying(self.model.touch_ps);
        for part in bytes.chunks(STEP_BYTES) {
            self.spend_copying(self.bytes_ps(part.len()));
            self.store_some();
        }
        self.memory.write(self.symmetric, to, &bytes)
    }

    fn has_steps(&self) -> bool {
        self.memory.steps.iter().any(|steps| !steps.is_empty())
    }

    fn is_idle(&mut self, side: Side) -> bool {
        let ended = self.now_ps >= self.memory.last_transfer_ps[side as usize];
        self.memory.steps[side as usize].is_empty() && ended
    }

    fn store_some(&mut self) -> bool {
        Side::BOTH.into_iter().fold(false, |some, side| self.store_step(side) | some)
    }

    fn send(
        &mut self,
        from: Span,
        side: Side,
        offset: usize,
        len: usize,
        seal: u64,
    ) -> Result<Transfer, OutOfRange> {
        let bytes = sealed(self.memory.bytes(self.symmetric, from, len)?, seal);
        // What is stored out of order looks as if something were lost.
        while self.memory.must_store_first(side, from) && self.store_some() {}
        if self.model.writer == Writer::Cpu
            && let Some(number) = self.memory.leave(from, side, offset, len, seal)
        {
            if !matches!(from, Span::Inbound(..)) {
                self.store_step(side);
            }
            return Ok(Transfer::Queued(number));
        }
        // Ports have the CPU move copies that are kept.
        let is_kept = self.network.is_rough() && matches!(from, Span::Retained(_));
        let writer = if is_kept { Writer::Cpu } else { self.model.writer };
        let relayed = matches!(from, Span::Inbound(..));
        let gone_ps = self.write_out(side, offset, &bytes, (relayed, false), writer);
        if writer == Writer::Cpu {
            return Ok(Transfer::Done);
        }
        if self.network.is_rough() {
            self.memory.header_follows[side as usize] = true;
            self.memory.last_transfer_ps[side as usize] = gone_ps;
        }
        if let Span::Inbound(side, at) = from {
            self.memory.note_reading(side, at..at + len, gone_ps);
        }
        // The engine reads each byte when it puts it on the wire.
        Ok(Transfer::Queued(gone_ps))
    }

    fn has_left(&mut self, side: Side, transfer: Transfer) -> bool {
        match transfer {
            Transfer::Done => true,
            Transfer::Queued(number) if self.model.writer == Writer::Cpu => {
                self.memory.steps[side as usize].has_ended(number)
            }
            Transfer::Queued(gone_ps) => self.now_ps >= gone_ps,
        }
    }

    fn mark(&mut self, side: Side, offset: usize, word: u64) -> Option<Transfer> {
        // Where links are not rough, engines keep the order of the CPU.
        if self.model.writer == Writer::Cpu || !self.network.is_rough() {
            return Some(Transfer::Done);
        }
        let from_ps = self.now_ps + self.model.dma_submit_ps + self.model.dma_start_ps;
        self.now_ps += self.model.dma_submit_ps;
        let writing = self.one_line(side, from_ps, true);
        Some(Transfer::Queued(self.network.write(writing, offset, &word.to_le_bytes())))
    }

    fn checksum(&mut self, span: Span, len: usize) -> u32 {
        let cost = (len as f64 * 1000.0 / self.model.crc_rate) as u64;
        self.now_ps += cost;
        self.cpu.crc_ps += cost;
        let bytes = self.memory.bytes(self.symmetric, span, len);
        crc32c::crc32c(bytes.expect("sums are taken of slots and buffers"))
    }

    fn read(&mut self, span: Span, bytes: &mut [u8]) -> Result<(), OutOfRange> {
        self.now_ps += self.model.touch_ps;
        self.cpu.inject_ps += self.model.touch_ps;
        bytes.copy_from_slice(self.memory.bytes(self.symmetric, span, bytes.len())?);
        Ok(())
    }

    fn write(&mut self, span: Span, bytes: &[u8]) -> Result<(), OutOfRange> {
        self.now_ps += self.model.touch_ps;
        self.cpu.deliver_ps += self.model.touch_ps;
        self.memory.write(self.symmetric, span, bytes)
    }

    fn amo(&mut self, place: Location, request: &Amo) -> Result<u64, OutOfRange> {
        self.now_ps += self.model.touch_ps;
        self.cpu.deliver_ps += self.model.touch_ps;
        amo(self.symmetric, place, request)
    }

    fn ring(&mut self, side: Side) {
        self.now_ps += self.model.register_write_ns * 1000;
        let after_ps = self.model.interrupt_ns * 1000;
        self.network.ring(self.host, side, self.lane, self.now_ps, after_ps);
    }

    fn link_is_up(&mut self, side: Side) -> bool {
        self.now_ps += self.model.register_write_ns * 1000;
        self.network.link_register(self.host, side)
    }

    fn complete(&mut self, token: u64, outcome: Completion) {
        self.now_ps += self.model.submit_ps;
        self.completions.push((token, outcome));
    }

    fn event(&mut self, event: Event) {
        self.events.push((self.now_ps / 1000, self.host, event));
    }
}
