// SPDX-License-Identifier: Apache-2.0
//! The [`Memory`] of a simulated engine: every call takes virtual time.

use tombolo_core::transport::Amo;

use super::memory::{LaneMemory, Symmetric, amo, line_bytes, sealed};
use super::model::{HostModel, Writer};
use super::network::{Network, Writing};
use crate::ntb::ring::{
    Completion, Event, LineWords, Location, Memory, OutOfRange, Side, Span, Transfer,
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
    pub(super) fn copy_ps(&self, len: usize) -> u64 {
        (len as f64 * 1000.0 / self.model.copy_rate) as u64 + self.model.touch_ps
    }

    /// Writes payload through a window; the thread goes on when the rest fits the posted buffers. Gives
    /// the time at which the last byte leaves.
    pub(super) fn write_out(
        &mut self,
        side: Side,
        offset: usize,
        bytes: &[u8],
        relayed: bool,
    ) -> u64 {
        let start = self.now_ps;
        let (cpu_ps, from_ps, until_ps, tlp_bytes) = match self.model.writer {
            Writer::Cpu => {
                let cpu = self.copy_ps(bytes.len());
                (cpu, start + self.model.touch_ps, start + cpu, 64)
            }
            Writer::Dma => {
                let first = start + self.model.dma_submit_ps + self.model.dma_start_ps;
                (self.model.dma_submit_ps, first, first, self.mps_bytes)
            }
        };
        let writing =
            Writing { host: self.host, side, lane: self.lane, from_ps, until_ps, tlp_bytes };
        let gone = self.network.write(writing, offset, bytes);
        self.now_ps += cpu_ps;
        if relayed {
            self.cpu.relay_ps += cpu_ps;
        } else {
            self.cpu.inject_ps += cpu_ps;
        }
        if self.model.writer == Writer::Cpu {
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
        let from_ps = self.now_ps;
        self.now_ps += self.model.store_ps;
        self.cpu.store_ps += self.model.store_ps;
        let writing = Writing {
            host: self.host,
            side,
            lane: self.lane,
            from_ps,
            until_ps: from_ps,
            tlp_bytes: 64,
        };
        let gone = self.network.write(writing, offset, &line_bytes(line));
        if self.model.writer == Writer::Cpu {
            self.back_up(gone);
        }
    }

    fn copy(&mut self, from: Span, to: Span, len: usize) -> Result<(), OutOfRange> {
        let bytes = self.memory.bytes(self.symmetric, from, len)?.to_vec();
        let cost = self.copy_ps(len);
        self.now_ps += cost;
        self.cpu.deliver_ps += cost;
        self.memory.write(self.symmetric, to, &bytes)
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
        let gone_ps = self.write_out(side, offset, &bytes, matches!(from, Span::Inbound(..)));
        if self.model.writer == Writer::Cpu {
            return Ok(Transfer::Done);
        }
        if let Span::Inbound(side, at) = from {
            self.memory.note_reading(side, at..at + len, gone_ps);
        }
        // The engine reads each byte when it puts it on the wire.
        Ok(Transfer::Queued(gone_ps))
    }

    fn has_left(&mut self, _: Side, transfer: Transfer) -> bool {
        match transfer {
            Transfer::Done => true,
            Transfer::Queued(gone_ps) => self.now_ps >= gone_ps,
        }
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
