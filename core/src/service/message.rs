// SPDX-License-Identifier: Apache-2.0
//! Requests and replies as words that carry their ticket.

use crate::sync::{AtomicU64, Ordering};
use crate::transport::{Amo, AmoOp, Remote, SegmentKind};

/// Words of a line, and so of a message.
pub(crate) const LINE_WORDS: usize = 8;

/// Bits of a word that hold the ticket.
const TICKET_BITS: u32 = 16;
const LOW48: u64 = (1 << 48) - 1;
/// The operation number of a plain store.
const STORE: u64 = 15;

/// What a target is asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// An atomic operation.
    Amo(Amo),
    /// To store up to 8 bytes at any address. A length that is a power of two at a multiple of it is
    /// stored whole.
    Store {
        /// Bytes to store: 1 to 8.
        len: u8,
        /// The bytes, the first one lowest.
        bytes: u64,
    },
}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Where.
    pub target: Remote,
    /// What.
    pub wanted: Wanted,
}

/// A reply: the old value of an AMO, or none if the request was refused as malformed.
pub(crate) type Reply = Option<u64>;

/// Tickets of one line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TicketSource(u16);

impl TicketSource {
    /// The ticket after the last one that was taken.
    pub(crate) fn next(self) -> u16 {
        self.0 % u16::MAX + 1
    }

    /// The last one that was taken.
    pub(crate) fn last(self) -> u16 {
        self.0
    }

    /// Takes it.
    pub(crate) fn take(&mut self) -> u16 {
        self.0 = self.next();
        self.0
    }
}

/// A line of the control area, in which one side writes messages and the other reads them.
#[repr(C, align(64))]
#[derive(Default)]
pub(crate) struct MessageLine(pub(crate) [AtomicU64; LINE_WORDS]);

impl MessageLine {
    /// The message with this ticket, if it is there.
    pub(crate) fn read(&self, ticket: u16) -> Option<[u64; LINE_WORDS]> {
        let tagged = |index: usize| {
            let word = self.0[index].load(Ordering::Acquire);
            (word as u16 == ticket).then_some(word >> TICKET_BITS)
        };
        // The last word first: while nothing has come, one look tells.
        tagged(LINE_WORDS - 1)?;
        let mut words = [0; LINE_WORDS];
        for (index, word) in words.iter_mut().enumerate() {
            *word = tagged(index)?;
        }
        Some(words)
    }

    /// Writes a message into mapped memory.
    pub(crate) fn write(&self, words: &[u64; LINE_WORDS]) {
        for (place, word) in self.0.iter().zip(words) {
            place.store(*word, Ordering::Release);
        }
    }
}

fn tag(payload: &[u64], ticket: u16) -> [u64; LINE_WORDS] {
    let word = |index: usize| payload.get(index).copied().unwrap_or(0);
    std::array::from_fn(|index| word(index) << TICKET_BITS | u64::from(ticket))
}

impl Request {
    pub(crate) fn encode(&self, ticket: u16) -> [u64; LINE_WORDS] {
        let (op, size, operand, compare) = match self.wanted {
            Wanted::Amo(amo) => (amo.op as u64, amo.size, amo.operand, amo.compare),
            Wanted::Store { len, bytes } => (STORE, len, bytes, 0),
        };
        let kind = op | u64::from(size) << 4 | (self.target.segment as u64) << 8;
        let high = kind | operand >> 48 << 16 | compare >> 48 << 32;
        tag(&[high, self.target.offset as u64, operand & LOW48, compare & LOW48], ticket)
    }

    /// What the words of another process say, if it makes sense. Not checked against the segment.
    pub(crate) fn decode(words: &[u64; LINE_WORDS]) -> Option<Request> {
        let [high, offset, operand, compare, ..] = *words;
        let (op, size) = (high & 0xf, (high >> 4 & 0xf) as u8);
        let segment = SegmentKind::ALL.into_iter().find(|s| *s as u64 == high >> 8 & 0xff)?;
        let operand = operand | (high >> 16 & 0xffff) << 48;
        let compare = compare | (high >> 32 & 0xffff) << 48;
        let offset = usize::try_from(offset).ok()?;
        let wanted = match op {
            STORE if (1..=8).contains(&size) => Wanted::Store { len: size, bytes: operand },
            _ => {
                let op = AmoOp::from_bits(op)?;
                let aligned = matches!(size, 4 | 8) && offset.is_multiple_of(size.into());
                let amo = Amo { op, size, operand, compare };
                aligned.then_some(Wanted::Amo(amo))?
            }
        };
        Some(Request { target: Remote { segment, offset }, wanted })
    }

    /// Bytes of the target that are touched.
    pub(crate) fn len(&self) -> usize {
        match self.wanted {
            Wanted::Amo(amo) => amo.size.into(),
            Wanted::Store { len, .. } => len.into(),
        }
    }
}

/// A reply as words.
pub(crate) fn encode_reply(reply: Reply, ticket: u16) -> [u64; LINE_WORDS] {
    let (value, refused) = (reply.unwrap_or(0), u64::from(reply.is_none()));
    tag(&[value & LOW48, value >> 48 | refused << 16], ticket)
}

/// A reply from its words.
pub(crate) fn decode_reply(words: &[u64; LINE_WORDS]) -> Reply {
    let [low, high, ..] = *words;
    (high >> 16 & 1 == 0).then_some(low | (high & 0xffff) << 48)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn stripped(words: [u64; LINE_WORDS]) -> [u64; LINE_WORDS] {
        words.map(|word| word >> TICKET_BITS)
    }

    proptest! {
        #[test]
        fn requests_and_replies_come_out_as_they_went_in(
            op in 0u64..7, size in prop::sample::select(vec![4u8, 8]), segment in 0usize..2,
            place in 0usize..1 << 40, operand: u64, compare: u64, ticket in 1u16.., refused: bool,
        ) {
            let op = AmoOp::from_bits(op).expect("a number of an operation");
            let wanted = Wanted::Amo(Amo { op, size, operand, compare });
            let target = Remote { segment: SegmentKind::ALL[segment], offset: place * 8 };
            let request = Request { target, wanted };
            let words = request.encode(ticket);
            prop_assert!(words.iter().all(|word| *word as u16 == ticket));
            prop_assert_eq!(Request::decode(&stripped(words)), Some(request));
            let reply = (!refused).then_some(operand);
            prop_assert_eq!(decode_reply(&stripped(encode_reply(reply, ticket))), reply);
        }

        #[test]
        fn noise_is_no_request_or_a_well_formed_one(words: [u64; LINE_WORDS]) {
            if let Some(Request { target, wanted: Wanted::Amo(amo) }) = Request::decode(&stripped(words)) {
                prop_assert!(matches!(amo.size, 4 | 8) && target.offset % usize::from(amo.size) == 0);
            }
        }
    }

    /// Whatever words of two consecutive messages stand in a line, the newer one is read only when
    /// it is there as a whole.
    #[test]
    fn a_message_is_seen_only_as_a_whole() {
        let amo = |operand| Wanted::Amo(Amo { op: AmoOp::Add, size: 8, operand, compare: operand });
        let target = Remote { segment: SegmentKind::Heap, offset: 64 };
        for (old, new) in [(1u16, 2u16), (255, 256), (65_535, 1)] {
            let before = Request { target, wanted: amo(u64::MAX) }.encode(old);
            let after = Request { target, wanted: amo(7) }.encode(new);
            for arrived in 0..1u32 << LINE_WORDS {
                let line = MessageLine::default();
                line.write(&before);
                for (index, word) in after.iter().enumerate() {
                    if arrived >> index & 1 != 0 {
                        line.0[index].store(*word, Ordering::Relaxed);
                    }
                }
                let seen = line.read(new).and_then(|w| Request::decode(&w));
                let whole = arrived == (1 << LINE_WORDS) - 1;
                assert_eq!(seen, whole.then_some(Request { target, wanted: amo(7) }));
            }
        }
    }

    /// Where words may be torn, only the last one can be while the others are complete.
    #[test]
    fn a_torn_last_word_is_not_taken_for_the_next_message() {
        for ticket in 1..=u16::MAX {
            let (old, new) = (u64::from(ticket), u64::from(TicketSource(ticket).next()));
            for torn in 0..2u32 {
                let mask = 0xffu64 << (8 * torn);
                let mixed = (old & !mask | new & mask) as u16;
                assert!(u64::from(mixed) != new || mixed == new as u16);
                // The one that is expected after that has not come.
                assert_ne!(mixed, TicketSource(new as u16).next(), "{old} {new}");
            }
        }
    }
}
