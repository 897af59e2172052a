// SPDX-License-Identifier: Apache-2.0
//! Memory of simulated hosts. Everything is checked: a wrong offset of the engine is a bug and
//! panics, a wrong place from the wire is refused.

use std::ops::Range;
use tombolo_core::transport::{Amo, AmoOp};

use crate::ntb::ring::{Config, LINE, LineWords, Location, OutOfRange, Side, Span, Steps};

/// Symmetric memory of the PEs of a host: by PE, one segment each.
pub type Symmetric = Vec<Vec<u8>>;

/// What belongs to one lane: its inbound regions, the retained area, the program's buffers.
#[derive(Clone, Debug, Hash)]
pub struct LaneMemory {
    /// By side.
    pub inbound: [Vec<u8>; 2],
    /// Kept chunks.
    pub retained: Vec<u8>,
    /// Addresses are indices.
    pub local: Vec<u8>,
    /// Bytes of the retained area that stay as they are for long enough to be stored in steps.
    pub kept_bytes: usize,
    /// What the CPU has still to store, by side.
    pub steps: [Steps; 2],
    /// What a DMA engine reads of the inbound regions, and until when.
    reading: Vec<(Side, Range<usize>, u64)>,
    /// By side: the header that comes next belongs to a payload that an engine moves.
    pub header_follows: [bool; 2],
    /// By side: when the last payload that an engine moves has left.
    pub last_transfer_ps: [u64; 2],
}

impl LaneMemory {
    /// Zeroed memory.
    pub fn new(config: &Config, local_bytes: usize) -> LaneMemory {
        let region_bytes = config.geometry.region_bytes();
        LaneMemory {
            inbound: [vec![0; region_bytes], vec![0; region_bytes]],
            retained: vec![0; config.retained_bytes()],
            local: vec![0; local_bytes],
            kept_bytes: config.kept_bytes(),
            steps: [Steps::new(), Steps::new()],
            reading: Vec::new(),
            header_follows: [false; 2],
            last_transfer_ps: [0; 2],
        }
    }

    /// Whether something that waits has to be stored before a payload from there.
    pub fn must_store_first(&self, side: Side, from: Span) -> bool {
        self.steps[side as usize].must_store_first(self.stays(from))
    }

    /// Whether bytes stay as they are until their packets have been acknowledged.
    fn stays(&self, from: Span) -> bool {
        !matches!(from, Span::Retained(at) if at >= self.kept_bytes)
    }

    /// Leaves a payload to be stored in steps: its number, or none where it has to be stored now.
    pub fn leave(
        &mut self,
        from: Span,
        side: Side,
        offset: usize,
        len: usize,
        seal: u64,
    ) -> Option<u64> {
        let stays = self.stays(from);
        let steps = &mut self.steps[side as usize];
        stays.then(|| steps.payload(from, offset, len, seal)).flatten()
    }

    /// A DMA engine reads a part of an inbound region until `until_ps`.
    pub fn note_reading(&mut self, side: Side, range: Range<usize>, until_ps: u64) {
        self.reading.push((side, range, until_ps));
    }

    /// Bytes arrive in an inbound region at the time `now_ps`.
    pub fn arrive(&mut self, side: Side, offset: usize, bytes: &[u8], now_ps: u64) {
        let end = offset + bytes.len();
        self.reading.retain(|(.., until_ps)| *until_ps > now_ps);
        let torn = self
            .reading
            .iter()
            .any(|(read, range, _)| *read == side && offset < range.end && range.start < end);
        assert!(!torn, "{offset} to {end} of {side:?} is written while a DMA engine reads it");
        self.inbound[side as usize][offset..end].copy_from_slice(bytes);
    }

    /// A word of an inbound region.
    pub fn word(&self, side: Side, offset: usize) -> u64 {
        assert!(offset.is_multiple_of(8), "unaligned word at {offset}");
        word_at(&self.inbound[side as usize], offset)
    }

    /// A line of an inbound region.
    pub fn line(&self, side: Side, offset: usize) -> LineWords {
        assert!(offset.is_multiple_of(LINE), "unaligned line at {offset}");
        std::array::from_fn(|word| word_at(&self.inbound[side as usize], offset + word * 8))
    }

    /// The bytes of a readable span.
    pub fn bytes<'a>(
        &'a self,
        symmetric: &'a Symmetric,
        span: Span,
        len: usize,
    ) -> Result<&'a [u8], OutOfRange> {
        match span {
            Span::Inbound(side, at) => Ok(&self.inbound[side as usize][at..at + len]),
            Span::Local(at) => Ok(&self.local[at as usize..at as usize + len]),
            Span::Retained(at) => Ok(&self.retained[at..at + len]),
            Span::Symmetric(place) => {
                let (pe, at) = resolve(symmetric, place, len)?;
                Ok(&symmetric[pe][at..at + len])
            }
        }
    }

    /// Writes bytes to a span of this host.
    pub fn write(
        &mut self,
        symmetric: &mut Symmetric,
        span: Span,
        bytes: &[u8],
    ) -> Result<(), OutOfRange> {
        let len = bytes.len();
        let to = match span {
            Span::Local(at) => &mut self.local[at as usize..at as usize + len],
            Span::Retained(at) => &mut self.retained[at..at + len],
            Span::Symmetric(place) => {
                let (pe, at) = resolve(symmetric, place, len)?;
                &mut symmetric[pe][at..at + len]
            }
            Span::Inbound(..) => panic!("not a destination: {span:?}"),
        };
        to.copy_from_slice(bytes);
        Ok(())
    }
}

/// A line as it lies in memory.
pub fn line_bytes(line: &LineWords) -> [u8; LINE] {
    let mut bytes = [0; LINE];
    for (at, word) in bytes.chunks_exact_mut(8).zip(line) {
        at.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

/// Payload with its seal, as they lie in memory.
pub fn sealed(payload: &[u8], seal: u64) -> Vec<u8> {
    let mut bytes = payload.to_vec();
    bytes.extend(seal.to_le_bytes());
    bytes
}

/// Applies an AMO and gives the old value.
pub fn amo(symmetric: &mut Symmetric, place: Location, amo: &Amo) -> Result<u64, OutOfRange> {
    let size = usize::from(amo.size);
    if !place.offset.is_multiple_of(size as u64) {
        return Err(OutOfRange);
    }
    let (pe, at) = resolve(symmetric, place, size)?;
    let variable = &mut symmetric[pe][at..at + size];
    let mut bytes = [0; 8];
    bytes[..size].copy_from_slice(variable);
    let old = u64::from_le_bytes(bytes);
    let new = match amo.op {
        AmoOp::Set => amo.operand,
        AmoOp::Add => old.wrapping_add(amo.operand),
        AmoOp::And => old & amo.operand,
        AmoOp::Or => old | amo.operand,
        AmoOp::Xor => old ^ amo.operand,
        AmoOp::CompareSwap if old == amo.compare => amo.operand,
        AmoOp::Fetch | AmoOp::CompareSwap => old,
    };
    variable.copy_from_slice(&new.to_le_bytes()[..size]);
    Ok(old)
}

fn resolve(
    symmetric: &Symmetric,
    place: Location,
    len: usize,
) -> Result<(usize, usize), OutOfRange> {
    let pe = usize::from(place.pe);
    let segment = symmetric.get(pe).filter(|_| place.segment == 0).ok_or(OutOfRange)?;
    let at = usize::try_from(place.offset).map_err(|_| OutOfRange)?;
    let end = at.checked_add(len).ok_or(OutOfRange)?;
    if end <= segment.len() { Ok((pe, at)) } else { Err(OutOfRange) }
}

fn word_at(bytes: &[u8], offset: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[offset..offset + 8]);
    u64::from_le_bytes(word)
}
