// SPDX-License-Identifier: Apache-2.0
//! The form of messages: operations that the target's processor carries out, and its answers.
//!
//! A request holds a batch of records, carried out in order; its answer holds the old values and the data
//! that were asked for, each padded to words of 8 bytes. Requests that nobody waits for are answered
//! together, with a later request or answer to the same PE. All numbers are little-endian words of 8 bytes.
//!
//! ```text
//! header   token of the receiver | kind, count, held, refused, PE of the sender | turn, answered
//! record   operation, bytes of the variable, segment, flags, length | offset | operands or data
//! blocks   as a record of bytes, and before the data: stride | bytes of a block
//! ```
//!
//! Everything in a message came from another process: reading it checks every length.

use tombolo_core::transport::{Amo, AmoOp, Blocks, Remote, SegmentKind};

/// Longest message of many operations, in bytes, and of answers.
pub const MESSAGE: usize = (16 << 10) + 256;
/// Longest message of any network, that of the transport `tcp`: a long put and its signal. Instead of it, a write would
/// wait after a fence until the requests before the fence are answered: over plain TCP that takes longer than to copy the
/// data twice. Over libfabric it is the other way round: as one message, a put of 64 KiB and its signal take twice as
/// long as a write and a message (measured with the provider `net`).
pub const LONG_MESSAGE: usize = (64 << 10) + 256;
/// Longest message of networks for which longer buffers cost too much.
pub const SHORT_MESSAGE: usize = (4 << 10) + 256;
/// Bytes of the header.
pub const HEADER: usize = 24;
/// Bytes of a record without operands.
const RECORD: usize = 16;
/// The same of blocks.
const BLOCKS: usize = RECORD + 16;

/// Most records in a message of `message` bytes.
pub const fn records_max(message: usize) -> usize {
    (message - HEADER) / RECORD
}

/// Longest put in bytes that fits a message of `message` bytes beside its signal.
pub const fn data_max(message: usize) -> usize {
    message - 192
}

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Operations to be carried out, and answered when it costs nothing.
    Request = 1,
    /// What became of them.
    Answer = 2,
    /// A request, perhaps of nothing, that is to be answered at once.
    Urgent = 3,
}

/// Who sends what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Chosen by the receiver when it opened; a stranger does not know it.
    pub token: u64,
    /// Request or answer.
    pub kind: Kind,
    /// Records, or words of an answer.
    pub count: u16,
    /// How many requests of the receiver, the last of them [`Header::answered`], were carried out without
    /// being answered before. None of them was refused or asked for old values.
    pub held: u8,
    /// Of an answer: 1 + the first record that was refused, or 0.
    pub refused: u16,
    /// The sender.
    pub pe: u32,
    /// Number of the request among those of the requester to this PE; of an answer, which one it answers.
    pub turn: u32,
    /// See `held`.
    pub answered: u32,
}

impl Header {
    /// The header's bytes.
    pub fn encode(&self) -> [u8; HEADER] {
        let second = u64::from(self.pe) << 32
            | u64::from(self.refused & 0xfff) << 20
            | u64::from(self.held & 0xf) << 16
            | u64::from(self.count & 0xfff) << 4
            | self.kind as u64;
        let mut bytes = [0; HEADER];
        bytes[..8].copy_from_slice(&self.token.to_le_bytes());
        bytes[8..16].copy_from_slice(&second.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.turn.to_le_bytes());
        bytes[20..].copy_from_slice(&self.answered.to_le_bytes());
        bytes
    }

    /// The header of a message; none if it is none.
    pub fn decode(message: &[u8]) -> Option<Header> {
        let second = word(message, 8)?;
        let third = word(message, 16)?;
        Some(Header {
            token: word(message, 0)?,
            kind: match second & 0xf {
                1 => Kind::Request,
                2 => Kind::Answer,
                3 => Kind::Urgent,
                _ => return None,
            },
            count: (second >> 4 & 0xfff) as u16,
            held: (second >> 16 & 0xf) as u8,
            refused: (second >> 20 & 0xfff) as u16,
            pe: (second >> 32) as u32,
            turn: third as u32,
            answered: (third >> 32) as u32,
        })
    }
}

/// One operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record<'a> {
    /// Write these bytes.
    Put {
        /// Where.
        at: Remote,
        /// What.
        data: &'a [u8],
    },
    /// Answer with these bytes.
    Get {
        /// Where they are.
        at: Remote,
        /// How many.
        len: u32,
    },
    /// Write these bytes to blocks.
    PutBlocks {
        /// Where.
        to: Blocks,
        /// What, one block behind the other.
        data: &'a [u8],
    },
    /// Answer with the bytes of blocks, one behind the other.
    GetBlocks {
        /// Where they are.
        from: Blocks,
    },
    /// Change a variable.
    Amo {
        /// Which.
        at: Remote,
        /// How.
        amo: Amo,
        /// The old value is wanted.
        fetch: bool,
    },
}

const PUT: u8 = 0xff;
const GET: u8 = 0xfe;
const PUT_BLOCKS: u8 = 0xfd;
const GET_BLOCKS: u8 = 0xfc;

impl Record<'_> {
    /// Bytes that the record takes.
    pub fn len(&self) -> usize {
        match self {
            Record::Put { data, .. } => RECORD + data.len().next_multiple_of(8),
            Record::Get { .. } => RECORD,
            Record::PutBlocks { data, .. } => BLOCKS + data.len().next_multiple_of(8),
            Record::GetBlocks { .. } => BLOCKS,
            Record::Amo { amo, .. } if amo.op == AmoOp::CompareSwap => RECORD + 16,
            Record::Amo { .. } => RECORD + 8,
        }
    }

    /// Bytes that it takes in the answer.
    pub fn answer_len(&self) -> usize {
        match self {
            Record::Get { len, .. } => padded(*len),
            Record::GetBlocks { from } => from.bytes().next_multiple_of(8),
            Record::Amo { fetch: true, .. } => 8,
            Record::Put { .. } | Record::PutBlocks { .. } | Record::Amo { .. } => 0,
        }
    }

    /// Writes the record to the start of `to`, which has room for it.
    pub fn encode(&self, to: &mut [u8]) {
        match *self {
            Record::Put { at, data } => {
                head_of_bytes(to, PUT, at, data.len() as u32);
                to[RECORD..RECORD + data.len()].copy_from_slice(data);
            }
            Record::Get { at, len } => head_of_bytes(to, GET, at, len),
            Record::PutBlocks { to: blocks, data } => {
                head_of_blocks(to, PUT_BLOCKS, blocks);
                to[BLOCKS..BLOCKS + data.len()].copy_from_slice(data);
            }
            Record::GetBlocks { from } => head_of_blocks(to, GET_BLOCKS, from),
            Record::Amo { at, amo, fetch } => {
                let head = [amo.op as u8, amo.size, at.segment as u8, u8::from(fetch)];
                to[..4].copy_from_slice(&head);
                to[4..8].fill(0);
                to[8..16].copy_from_slice(&(at.offset as u64).to_le_bytes());
                to[16..24].copy_from_slice(&amo.operand.to_le_bytes());
                if amo.op == AmoOp::CompareSwap {
                    to[24..32].copy_from_slice(&amo.compare.to_le_bytes());
                }
            }
        }
    }

    /// The record at the start of `from`; none if it is malformed.
    pub fn decode(from: &[u8]) -> Option<Record<'_>> {
        let [kind, size, segment, fetch] = *from.first_chunk::<4>()?;
        let segment = *SegmentKind::ALL.get(usize::from(segment))?;
        let at = Remote { segment, offset: usize::try_from(word(from, 8)?).ok()? };
        let len = u32::from_le_bytes(from[4..8].try_into().ok()?);
        if kind == GET {
            return Some(Record::Get { at, len });
        }
        if kind == PUT {
            let end = RECORD.checked_add(padded(len))?;
            let data = from.get(RECORD..end)?.get(..len as usize)?;
            return Some(Record::Put { at, data });
        }
        if kind == PUT_BLOCKS || kind == GET_BLOCKS {
            let (stride, block) = (word(from, RECORD)?, word(from, RECORD + 8)?);
            let block = usize::try_from(block).ok().filter(|block| *block > 0)?;
            let count = len as usize / block;
            let blocks = Blocks { at, len: block, stride: usize::try_from(stride).ok()?, count };
            if !(len as usize).is_multiple_of(block) {
                return None;
            }
            if kind == GET_BLOCKS {
                return Some(Record::GetBlocks { from: blocks });
            }
            let end = BLOCKS.checked_add(padded(len))?;
            let data = from.get(BLOCKS..end)?.get(..len as usize)?;
            return Some(Record::PutBlocks { to: blocks, data });
        }
        let op = AmoOp::from_bits(kind.into())?;
        if !matches!(size, 4 | 8) {
            return None;
        }
        let compare = if op == AmoOp::CompareSwap { word(from, 24)? } else { 0 };
        let amo = Amo { op, size, operand: word(from, 16)?, compare };
        Some(Record::Amo { at, amo, fetch: fetch != 0 })
    }
}

/// Bytes that so many take in a message.
pub fn padded(len: u32) -> usize {
    (len as usize).next_multiple_of(8)
}

/// Writes the head of a record of bytes of a segment.
fn head_of_bytes(to: &mut [u8], kind: u8, at: Remote, len: u32) {
    to[..4].copy_from_slice(&[kind, 0, at.segment as u8, 0]);
    to[4..8].copy_from_slice(&len.to_le_bytes());
    to[8..16].copy_from_slice(&(at.offset as u64).to_le_bytes());
}

/// Writes the head of a record of blocks.
fn head_of_blocks(to: &mut [u8], kind: u8, blocks: Blocks) {
    head_of_bytes(to, kind, blocks.at, blocks.bytes() as u32);
    to[RECORD..RECORD + 8].copy_from_slice(&(blocks.stride as u64).to_le_bytes());
    to[RECORD + 8..BLOCKS].copy_from_slice(&(blocks.len as u64).to_le_bytes());
}

/// The word at `at`, if the message goes that far.
pub fn word(message: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(message.get(at..at.checked_add(8)?)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn records_come_back_as_they_were() {
        let at = Remote { segment: SegmentKind::Static, offset: 1 << 40 };
        let data: Vec<u8> = (0..13).collect();
        let amo = |op| Amo { op, size: 4, operand: 7, compare: 0 };
        let swap = Amo { compare: 9, ..amo(AmoOp::CompareSwap) };
        let records = [
            Record::Put { at, data: &data },
            Record::Get { at, len: 13 },
            Record::PutBlocks {
                to: Blocks { at, len: 13, stride: 1 << 50, count: 1 },
                data: &data,
            },
            Record::PutBlocks { to: Blocks { at, len: 4, stride: 5, count: 3 }, data: &data[1..] },
            Record::GetBlocks { from: Blocks { at, len: 3, stride: 40, count: 7 } },
            Record::Amo { at, amo: amo(AmoOp::Add), fetch: false },
            Record::Amo { at, amo: swap, fetch: true },
        ];
        for record in records {
            let mut bytes = vec![0xaa; record.len()];
            record.encode(&mut bytes);
            assert_eq!(Record::decode(&bytes), Some(record));
            for cut in 0..bytes.len() {
                assert_eq!(Record::decode(&bytes[..cut]), None, "{record:?} cut to {cut}");
            }
        }
    }

    #[test]
    fn a_full_message_holds_a_long_put_and_a_signal() {
        let at = Remote { segment: SegmentKind::Heap, offset: 0 };
        let put = Record::Put { at, data: &[0; data_max(SHORT_MESSAGE)] };
        let amo = Amo { op: AmoOp::CompareSwap, size: 8, operand: 0, compare: 0 };
        let signal = Record::Amo { at, amo, fetch: true };
        assert!(HEADER + put.len() + signal.len() <= SHORT_MESSAGE);
    }

    proptest! {
        #[test]
        fn headers_come_back_as_they_were(
            token: u64, count in 0..0x1000u16, refused in 0..=records_max(MESSAGE) as u16,
            pe: u32, held in 0..16u8, turn: u32, answered: u32, kind in 0..3usize
        ) {
            let kind = [Kind::Request, Kind::Answer, Kind::Urgent][kind];
            let header = Header { token, kind, count, held, refused, pe, turn, answered };
            prop_assert_eq!(Header::decode(&header.encode()), Some(header));
        }

        #[test]
        fn no_bytes_are_read_beyond_a_record(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            if let Some(record) = Record::decode(&bytes) {
                prop_assert!(record.len() <= bytes.len());
            }
        }
    }
}
