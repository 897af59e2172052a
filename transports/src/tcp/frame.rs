// SPDX-License-Identifier: Apache-2.0
//! What goes over a connection: a greeting, then frames.
//!
//! ```text
//! greeting  magic | token of the receiver | token of the sender
//! frame     kind, length of the body | two words of the kind | body
//! ```
//!
//! All numbers are little-endian. A connection begins with a greeting from each side; a PE reads nothing from a
//! connection before a greeting with its own token, which strangers do not know. Answers to writes and to reads
//! come in the order in which these were sent.

/// Bytes of a greeting.
pub const GREETING: usize = 24;
/// Bytes of the head of a frame.
pub const HEAD: usize = 24;

/// Changes with the form of what follows.
const MAGIC: u64 = u64::from_le_bytes(*b"tmblTCP1");

/// The greeting that one who has the token `from` sends to one who has the token `to`.
pub fn greeting(to: u64, from: u64) -> [u8; GREETING] {
    let mut bytes = [0; GREETING];
    for (at, word) in [MAGIC, to, from].into_iter().enumerate() {
        bytes[8 * at..][..8].copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

/// Who sent a greeting, if it is one for the owner of the token `to`.
pub fn greeted(bytes: &[u8; GREETING], to: u64) -> Option<u64> {
    (word(bytes, 0) == MAGIC && word(bytes, 8) == to).then(|| word(bytes, 16))
}

/// The head of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Head {
    /// A message, which is the body.
    Message {
        /// Bytes of the body.
        len: usize,
    },
    /// Write the body.
    Write {
        /// Bytes of the body.
        len: usize,
        /// Where to: in the memory with this key.
        offset: u64,
        /// Which memory.
        key: u64,
    },
    /// So many writes, the oldest that were not answered, can be read.
    Written {
        /// How many.
        count: u64,
    },
    /// The oldest write that was not answered is refused.
    WriteRefused,
    /// Send these bytes.
    Read {
        /// How many.
        len: usize,
        /// Where from: in the memory with this key.
        offset: u64,
        /// Which memory.
        key: u64,
    },
    /// The bytes that the oldest read asked for, which are the body.
    Data {
        /// Bytes of the body.
        len: usize,
    },
    /// The oldest read that was not answered is refused.
    ReadRefused,
}

impl Head {
    /// Its bytes.
    pub fn encode(&self) -> [u8; HEAD] {
        let (kind, len, first, second) = match *self {
            Head::Message { len } => (1, len, 0, 0),
            Head::Write { len, offset, key } => (2, len, offset, key),
            Head::Written { count } => (3, 0, count, 0),
            Head::WriteRefused => (4, 0, 0, 0),
            Head::Read { len, offset, key } => (5, len, offset, key),
            Head::Data { len } => (6, len, 0, 0),
            Head::ReadRefused => (7, 0, 0, 0),
        };
        let mut bytes = [0; HEAD];
        bytes[..8].copy_from_slice(&((len as u64) << 8 | kind).to_le_bytes());
        bytes[8..16].copy_from_slice(&first.to_le_bytes());
        bytes[16..].copy_from_slice(&second.to_le_bytes());
        bytes
    }

    /// The head that `encode` made; none if it was something else.
    pub fn decode(bytes: &[u8; HEAD]) -> Option<Head> {
        let (first, offset, key) = (word(bytes, 0), word(bytes, 8), word(bytes, 16));
        let len = usize::try_from(first >> 8).ok()?;
        Some(match first & 0xff {
            1 => Head::Message { len },
            2 => Head::Write { len, offset, key },
            3 => Head::Written { count: offset },
            4 => Head::WriteRefused,
            5 => Head::Read { len, offset, key },
            6 => Head::Data { len },
            7 => Head::ReadRefused,
            _ => return None,
        })
    }
}

fn word(bytes: &[u8; 24], at: usize) -> u64 {
    u64::from_le_bytes(*bytes[at..].first_chunk().expect("three words"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn heads_come_back_as_they_were(
            len in 0..1usize << 40, offset: u64, key: u64, count: u64, kind in 0..7usize
        ) {
            let head = [
                Head::Message { len },
                Head::Write { len, offset, key },
                Head::Written { count },
                Head::WriteRefused,
                Head::Read { len, offset, key },
                Head::Data { len },
                Head::ReadRefused,
            ][kind];
            prop_assert_eq!(Head::decode(&head.encode()), Some(head));
        }

        #[test]
        fn garbage_is_no_greeting(bytes: [u8; GREETING], to: u64) {
            prop_assert_eq!(greeted(&bytes, to), None);
        }
    }

    #[test]
    fn a_greeting_is_for_one_receiver() {
        assert_eq!(greeted(&greeting(5, 7), 5), Some(7));
        assert_eq!(greeted(&greeting(5, 7), 6), None);
        let mut of_another_version = greeting(5, 7);
        of_another_version[0] ^= 1;
        assert_eq!(greeted(&of_another_version, 5), None);
    }
}
