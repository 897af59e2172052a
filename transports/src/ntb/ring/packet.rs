// SPDX-License-Identifier: Apache-2.0
//! The header line: one 64-byte line that carries an operation, and up to 24 bytes of its data.
//!
//! | word | bits |
//! |---|---|
//! | 0 | kind 8, flags 8, source host 16, destination host 16, lane 8, destination PE 8 |
//! | 1 | lower half of the tag 32, CRC32C of words 0..=6 with this field zero 32 (0 when switched off) |
//! | 2 | sequence 32 (of what has none the upper half of the tag), length 32 |
//! | 3 | offset 48, segment 8, operation 8 |
//! | 4-6 | inline data, or operands and the upper half of the tag, or of a payload its CRC32C in word 4 and its tail in word 6; of blocks in word 5: stride 48, bytes of a block 16 |
//! | 7 | epoch of the sender's side of the link 32, ring position + 1 32 |
//!
//! - Word 7 belongs to the hop and is rewritten by each relay; everything else is end to end.
//! - Word 7 is stored last: a reader that sees the word it expects sees the line, and the payload
//!   that was written before it, unless that was lost on the way: the payload ends with the same
//!   word ([`body_bytes`](super::layout::body_bytes)).

use super::layout::LINE;
use std::num::NonZeroU64;

/// A line as eight words, little endian in memory.
pub type LineWords = [u64; LINE / 8];

/// Payload that travels inside the header line.
pub const INLINE_BYTES: usize = 24;

/// Traffic classes, each with rings and credits of its own in each direction of each link.
///
/// A handler may wait for a higher class, never for its own or a lower one: requests emit replies,
/// replies and control are always taken in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Class {
    /// Puts, AMOs, get requests.
    Request = 0,
    /// Data of gets, results of AMOs.
    Reply = 1,
    /// Acknowledgements and link states.
    Control = 2,
}

impl Class {
    /// Number of classes.
    pub const COUNT: usize = 3;
    /// All classes, in index order.
    pub const ALL: [Class; Class::COUNT] = [Class::Request, Class::Reply, Class::Control];
}

/// What a packet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// Data of a put. Sequenced.
    Put = 1,
    /// An AMO, or the signal of a put-with-signal. Sequenced.
    Amo = 2,
    /// Asks for data. Repeatable.
    Get = 3,
    /// Asks again for the result of an AMO that has been applied. Repeatable.
    Recall = 4,
    /// Data asked for.
    GetReply = 5,
    /// The old value of an AMO.
    AmoReply = 6,
    /// All below `sequence` of a flow has been applied.
    Ack = 7,
    /// What a host knows of its two links.
    LinkState = 8,
}

impl Kind {
    /// The class it travels in.
    pub fn class(self) -> Class {
        match self {
            Kind::Put | Kind::Amo | Kind::Get | Kind::Recall => Class::Request,
            Kind::GetReply | Kind::AmoReply => Class::Reply,
            Kind::Ack | Kind::LinkState => Class::Control,
        }
    }

    fn from_bits(bits: u8) -> Option<Kind> {
        const ALL: [Kind; 8] = [
            Kind::Put,
            Kind::Amo,
            Kind::Get,
            Kind::Recall,
            Kind::GetReply,
            Kind::AmoReply,
            Kind::Ack,
            Kind::LinkState,
        ];
        ALL.get(usize::from(bits).wrapping_sub(1)).copied()
    }
}

/// Flag bits of a packet.
pub mod flag {
    /// The data lies in the slot's payload, not in the line.
    pub const BULK: u8 = 1;
    /// Belongs to the second flow between the two hosts.
    pub const SECOND_FLOW: u8 = 2;
    /// The sender waits for an acknowledgement of this one.
    pub const ACK_NOW: u8 = 4;
    /// The AMO has a result.
    pub const FETCH: u8 = 8;
    /// The target refused; there is no data.
    pub const REFUSED: u8 = 16;
    /// Something is missing after `sequence`: send again from there.
    pub const GAP: u8 = 32;
    /// The data belong to blocks at equal distances.
    pub const BLOCKS: u8 = 64;
    /// All that have a meaning.
    pub const ALL: u8 = 127;
}

/// The form of blocks at equal distances, to which the data of a packet belong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Spread(NonZeroU64);

impl Spread {
    const STRIDE_BITS: u32 = 48;

    /// Blocks of `len` bytes, and `stride` bytes from the start of one to the start of the next; none if a packet cannot
    /// tell of them.
    pub fn new(len: usize, stride: usize) -> Option<Spread> {
        let (len, stride) = (u64::from(u16::try_from(len).ok()?), stride as u64);
        let fits = len > 0 && stride >> Spread::STRIDE_BITS == 0;
        NonZeroU64::new(len << Spread::STRIDE_BITS | stride).filter(|_| fits).map(Spread)
    }

    /// Bytes of a block.
    pub fn block(self) -> usize {
        (self.0.get() >> Spread::STRIDE_BITS) as usize
    }

    /// Bytes from the start of a block to the start of the next.
    pub fn stride(self) -> u64 {
        self.0.get() & ((1 << Spread::STRIDE_BITS) - 1)
    }
}

/// A decoded header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Packet {
    /// What it is.
    pub kind: Kind,
    /// Bits of [`flag`].
    pub flags: u8,
    /// Host that made it.
    pub src: u16,
    /// Host that takes it.
    pub dst: u16,
    /// Lane it belongs to.
    pub lane: u8,
    /// PE of the destination host, counted within the host.
    pub pe: u8,
    /// Lower half of what names the request that a reply answers: [`Packet::whole_tag`].
    pub tag: u32,
    /// Place in its flow; where it has none, the upper half.
    pub seq: u32,
    /// Bytes of data carried or asked for.
    pub len: u32,
    /// Offset in the segment, 48 bits.
    pub offset: u64,
    /// Segment index.
    pub segment: u8,
    /// AMO operation in the low 4 bits, bytes of the variable above.
    pub op: u8,
    /// Inline data or operands.
    pub words: [u64; 3],
}

/// Why a header is not followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// Unknown kind, undefined flags, or a kind that does not travel in this class.
    Kind,
    /// A host or lane that does not exist.
    Address,
    /// More data than a slot or a line holds.
    Length,
    /// The header's CRC does not match.
    Corrupt,
    /// The payload has not arrived.
    Unsealed,
}

/// What a header is checked against.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Ring it was found in.
    pub class: Class,
    /// Hosts of the job.
    pub hosts: u16,
    /// Lane of the ring.
    pub lane: u8,
    /// Payload bytes of a slot.
    pub chunk_bytes: usize,
    /// Whether headers carry a CRC.
    pub crc: bool,
}

impl Packet {
    /// The line without its word 7. `crc` fills in the header CRC.
    pub fn encode(&self, crc: bool) -> LineWords {
        debug_assert!(self.offset >> 48 == 0);
        let mut line = [
            u64::from(self.kind as u8)
                | u64::from(self.flags) << 8
                | u64::from(self.src) << 16
                | u64::from(self.dst) << 32
                | u64::from(self.lane) << 48
                | u64::from(self.pe) << 56,
            u64::from(self.tag),
            u64::from(self.seq) | u64::from(self.len) << 32,
            self.offset | u64::from(self.segment) << 48 | u64::from(self.op) << 56,
            self.words[0],
            self.words[1],
            self.words[2],
            0,
        ];
        if crc {
            line[1] |= u64::from(line_crc(&line)) << 32;
        }
        line
    }

    /// Checks and decodes a line. Nothing of a malformed line is used.
    pub fn decode(line: &LineWords, limits: &Limits) -> Result<Packet, Malformed> {
        if limits.crc {
            let mut bare = *line;
            bare[1] &= u64::from(u32::MAX);
            if line_crc(&bare) != (line[1] >> 32) as u32 {
                return Err(Malformed::Corrupt);
            }
        }
        let packet = Packet {
            kind: Kind::from_bits(line[0] as u8).ok_or(Malformed::Kind)?,
            flags: (line[0] >> 8) as u8,
            src: (line[0] >> 16) as u16,
            dst: (line[0] >> 32) as u16,
            lane: (line[0] >> 48) as u8,
            pe: (line[0] >> 56) as u8,
            tag: line[1] as u32,
            seq: line[2] as u32,
            len: (line[2] >> 32) as u32,
            offset: line[3] & ((1 << 48) - 1),
            segment: (line[3] >> 48) as u8,
            op: (line[3] >> 56) as u8,
            words: [line[4], line[5], line[6]],
        };
        packet.check(limits)?;
        Ok(packet)
    }

    /// Has the data belong to blocks.
    pub fn set_spread(&mut self, spread: Spread) {
        self.flags |= flag::BLOCKS;
        self.words[1] = spread.0.get();
    }

    /// The blocks that the data belong to; none if they belong to one place.
    pub fn spread(&self) -> Option<Spread> {
        if self.has(flag::BLOCKS) { NonZeroU64::new(self.words[1]).map(Spread) } else { None }
    }

    /// Whether all of `bits` are set.
    pub fn has(&self, bits: u8) -> bool {
        self.flags & bits == bits
    }

    /// Tag of the request that this is, asks about or answers. Of AMOs, which have a place in a flow, the upper half is
    /// behind the operands.
    pub fn whole_tag(&self) -> u64 {
        let upper = if self.kind == Kind::Amo { self.words[2] } else { u64::from(self.seq) };
        u64::from(self.tag) | upper << 32
    }

    /// Gives it that tag.
    pub fn set_tag(&mut self, tag: u64) {
        self.tag = tag as u32;
        match self.kind {
            Kind::Amo => self.words[2] = tag >> 32,
            _ => self.seq = (tag >> 32) as u32,
        }
    }

    /// Which of the two flows of its hosts it belongs to.
    pub fn flow(&self) -> usize {
        usize::from(self.has(flag::SECOND_FLOW))
    }

    /// Inline data as bytes.
    pub fn inline_bytes(&self) -> [u8; INLINE_BYTES] {
        bytes_of(&self.words)
    }

    fn check(&self, limits: &Limits) -> Result<(), Malformed> {
        if self.kind.class() != limits.class || self.flags & !flag::ALL != 0 {
            return Err(Malformed::Kind);
        }
        let hosts = limits.hosts;
        if self.src >= hosts || self.dst >= hosts || self.lane != limits.lane {
            return Err(Malformed::Address);
        }
        let carries = matches!(self.kind, Kind::Put | Kind::GetReply);
        if self.has(flag::BULK) && !carries {
            return Err(Malformed::Kind);
        }
        if self.has(flag::BLOCKS) {
            // No other has room to tell of them.
            if self.kind != Kind::Get && !(self.kind == Kind::Put && self.has(flag::BULK)) {
                return Err(Malformed::Kind);
            }
            let len = self.spread().map_or(0, Spread::block);
            if len == 0 || !(self.len as usize).is_multiple_of(len) {
                return Err(Malformed::Length);
            }
        }
        let in_slot = self.has(flag::BULK) || self.kind == Kind::Get;
        let most = if in_slot { limits.chunk_bytes } else { INLINE_BYTES };
        if self.len as usize > most {
            return Err(Malformed::Length);
        }
        Ok(())
    }
}

/// Words of inline data as the bytes they stand for.
pub(super) fn bytes_of(words: &[u64; 3]) -> [u8; INLINE_BYTES] {
    let mut bytes = [0; INLINE_BYTES];
    for (at, word) in bytes.chunks_exact_mut(8).zip(words) {
        at.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

/// Bytes of inline data as words.
pub(super) fn words_of(bytes: &[u8; INLINE_BYTES]) -> [u64; 3] {
    let mut words = [0; 3];
    for (word, at) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        let mut eight = [0; 8];
        eight.copy_from_slice(at);
        *word = u64::from_le_bytes(eight);
    }
    words
}

/// CRC32C of words 0..=6.
pub(super) fn line_crc(line: &LineWords) -> u32 {
    let mut bytes = [0; LINE - 8];
    for (at, word) in bytes.chunks_exact_mut(8).zip(line) {
        at.copy_from_slice(&word.to_le_bytes());
    }
    crc32c::crc32c(&bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LIMITS: Limits =
        Limits { class: Class::Request, hosts: 5, lane: 1, chunk_bytes: 4096, crc: true };

    fn put() -> Packet {
        Packet {
            kind: Kind::Put,
            flags: flag::BULK | flag::ACK_NOW,
            src: 4,
            dst: 2,
            lane: 1,
            pe: 7,
            tag: 9,
            seq: u32::MAX,
            len: 4096,
            offset: (1 << 48) - 1,
            segment: 1,
            op: 0x83,
            words: [1, 2, u64::MAX],
        }
    }

    #[test]
    fn a_packet_survives_the_line() {
        assert_eq!(Packet::decode(&put().encode(true), &LIMITS), Ok(put()));
    }

    #[test]
    fn blocks_survive_the_line_and_impossible_ones_do_not() {
        let spread = Spread::new(64, (1 << 48) - 1).unwrap();
        assert_eq!((spread.block(), spread.stride()), (64, (1 << 48) - 1));
        for none in [Spread::new(0, 8), Spread::new(1 << 16, 1 << 16), Spread::new(1, 1 << 48)] {
            assert_eq!(none, None);
        }
        let decode = |packet: Packet| Packet::decode(&packet.encode(true), &LIMITS);
        let mut blocks = put();
        blocks.set_spread(spread);
        assert_eq!(decode(blocks).unwrap().spread(), Some(spread));
        assert_eq!(decode(put()).unwrap().spread(), None);
        // Without room for its form, not whole, or of no length.
        let inline = Packet { flags: flag::BLOCKS, len: 8, ..blocks };
        assert_eq!(decode(inline), Err(Malformed::Kind));
        assert_eq!(decode(Packet { kind: Kind::Amo, ..inline }), Err(Malformed::Kind));
        assert_eq!(decode(Packet { len: 4095, ..blocks }), Err(Malformed::Length));
        assert_eq!(decode(Packet { words: [1, 9, 2], ..blocks }), Err(Malformed::Length));
        let get = Packet { kind: Kind::Get, flags: flag::BLOCKS, ..blocks };
        assert_eq!(decode(get).unwrap().spread(), Some(spread));
    }

    #[test]
    fn the_tag_of_a_request_survives_the_line() {
        for kind in [Kind::Get, Kind::Recall, Kind::GetReply, Kind::AmoReply, Kind::Amo] {
            let limits = Limits { class: kind.class(), ..LIMITS };
            let mut packet = Packet { kind, flags: 0, len: 8, ..put() };
            packet.set_tag(0x0123_4567_89ab_cdef);
            let tag = Packet::decode(&packet.encode(true), &limits).unwrap().whole_tag();
            assert_eq!(tag, 0x0123_4567_89ab_cdef, "{kind:?}");
        }
    }

    #[test]
    fn bad_fields_are_refused() {
        let refuse = |packet: Packet| Packet::decode(&packet.encode(true), &LIMITS).unwrap_err();
        assert_eq!(refuse(Packet { dst: 5, ..put() }), Malformed::Address);
        assert_eq!(refuse(Packet { src: 9, ..put() }), Malformed::Address);
        assert_eq!(refuse(Packet { lane: 0, ..put() }), Malformed::Address);
        assert_eq!(refuse(Packet { len: 4097, ..put() }), Malformed::Length);
        assert_eq!(refuse(Packet { len: 25, flags: 0, ..put() }), Malformed::Length);
        assert_eq!(refuse(Packet { flags: 0x80, ..put() }), Malformed::Kind);
        assert_eq!(refuse(Packet { kind: Kind::Ack, ..put() }), Malformed::Kind);
        assert_eq!(refuse(Packet { kind: Kind::Amo, ..put() }), Malformed::Kind);
    }

    proptest! {
        #[test]
        fn any_flipped_bit_is_noticed(bit in 0usize..448) {
            let mut line = put().encode(true);
            line[bit / 64] ^= 1 << (bit % 64);
            prop_assert_eq!(Packet::decode(&line, &LIMITS), Err(Malformed::Corrupt));
        }

        #[test]
        fn arbitrary_lines_never_pass_the_limits(line in prop::array::uniform8(any::<u64>())) {
            let limits = Limits { crc: false, ..LIMITS };
            if let Ok(packet) = Packet::decode(&line, &limits) {
                prop_assert!(packet.dst < 5 && packet.src < 5 && packet.len <= 4096);
                prop_assert_eq!(packet.kind.class(), Class::Request);
            }
        }
    }
}
