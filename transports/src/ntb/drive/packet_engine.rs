// SPDX-License-Identifier: Apache-2.0
//! The DMA engine of a port, as a lane has it move the payload of its packets.

use super::dma::DmaWriter;
use crate::ntb::port::InboundMemory;
use crate::ntb::ring::{LINE, LineWords, Transfer};

/// A DMA engine that moves payload.
pub struct PacketEngine {
    pub writer: DmaWriter,
    /// Bytes of payload from which on it does.
    pub least: usize,
    /// Registered memory for header lines that wait for it: one for each descriptor.
    pub lines: InboundMemory,
    /// The region is open for it: until then the CPU moves all.
    pub(super) open: bool,
    /// The header stored next belongs to a payload in its queue.
    pub(super) header_follows: bool,
    /// Something was queued, and was not seen to have ended.
    pub(super) busy: bool,
    /// Something was ever queued: it may be under way.
    used: bool,
    /// The doorbell is to be rung when its queue is empty.
    pub(super) rings: bool,
}

impl PacketEngine {
    /// With an empty queue.
    pub fn new(writer: DmaWriter, least: usize, lines: InboundMemory) -> PacketEngine {
        PacketEngine {
            writer,
            least,
            lines,
            open: false,
            header_follows: false,
            busy: false,
            used: false,
            rings: false,
        }
    }

    /// Queues a payload with its seal; none: the CPU has to move it. There is room for its header then.
    pub fn payload(&mut self, at: usize, source: *const u8, len: usize, seal: u64) -> Option<u64> {
        let room = self.writer.has_room(2);
        // SAFETY: symmetric memory stays mapped until the engine is closed, as do regions of the
        // ring; other memory is not known to the port, which refuses it.
        let queued =
            room.then(|| unsafe { self.writer.submit(at, source, len, Some((at + len, seal))) });
        let ticket = queued.flatten()?;
        (self.header_follows, self.busy, self.used) = (true, true, true);
        Some(ticket.number())
    }

    /// Queues a header line. Where the engine was given up meanwhile, the packet is lost with it: its
    /// slot stays empty, and its source sends it again.
    pub fn header(&mut self, at: usize, line: &LineWords) -> Transfer {
        let lines = self.lines.size() / LINE;
        let from = (self.writer.next_number() % lines as u64) as usize * LINE;
        for (word, value) in line.iter().enumerate() {
            self.lines.store(from + word * 8, *value);
        }
        let source = self.lines.base().wrapping_add(from);
        let body = LINE - 8;
        // SAFETY: a line of this engine's, written again after as many transfers as can be queued.
        let ticket = unsafe { self.writer.submit(at, source, body, Some((at + body, line[7]))) };
        ticket.map_or(Transfer::Done, |ticket| Transfer::Queued(ticket.number()))
    }

    /// Queues a word behind all that was queued. None: not now. `Done`: nothing is or may be under way.
    pub fn mark(&mut self, at: usize, word: u64) -> Option<Transfer> {
        if !self.used || self.writer.is_given_up() {
            return Some(Transfer::Done);
        }
        // Where it is not open for the engine, the word would be lost.
        let marked = if self.open { self.writer.mark((at, word)) } else { None };
        self.busy |= marked.is_some();
        marked
    }
}
