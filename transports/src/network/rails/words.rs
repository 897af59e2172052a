// SPDX-License-Identifier: Apache-2.0
//! What PEs with several rails tell each other about them.
//!
//! ```text
//! number of the receiver | rail, word | number of the sender
//! ```

/// Bytes of a message.
pub const WORDS: usize = 24;

/// What is said of a rail between sender and receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Word {
    /// Whoever hears this answers by the same rail.
    Ask = 1,
    /// The answer.
    Alive = 2,
    /// The sender has given up the rail and closed its connection.
    Closed = 4,
    /// The sender has closed its connection after it was told that the receiver has.
    Confirmed = 8,
}

/// All of them.
pub const ALL: [Word; 4] = [Word::Ask, Word::Alive, Word::Closed, Word::Confirmed];

/// A message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// Number that the receiver has told in its name; a stranger does not know it.
    pub to: u64,
    /// The same of the sender.
    pub from: u64,
    /// Which rail.
    pub rail: u8,
    /// What of it.
    pub word: Word,
}

impl Message {
    /// The message's bytes.
    pub fn encode(&self) -> [u8; WORDS] {
        let mut bytes = [0; WORDS];
        bytes[..8].copy_from_slice(&self.to.to_le_bytes());
        [bytes[8], bytes[9]] = [self.word as u8, self.rail];
        bytes[16..].copy_from_slice(&self.from.to_le_bytes());
        bytes
    }

    /// The message that `encode` made; none if it was something else.
    pub fn decode(bytes: &[u8]) -> Option<Message> {
        let bytes: &[u8; WORDS] = bytes.try_into().ok()?;
        let word = ALL.into_iter().find(|word| *word as u8 == bytes[8])?;
        let number = |at: usize| bytes[at..].first_chunk().map(|word| u64::from_le_bytes(*word));
        let (to, from) = (number(0)?, number(16)?);
        let is_known = bytes[10..16].iter().all(|byte| *byte == 0);
        is_known.then_some(Message { to, from, rail: bytes[9], word })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn messages_come_back_as_they_were(to: u64, from: u64, rail: u8, word in 0..ALL.len()) {
            let message = Message { to, from, rail, word: ALL[word] };
            prop_assert_eq!(Message::decode(&message.encode()), Some(message));
            prop_assert_eq!(Message::decode(&message.encode()[1..]), None);
        }

        #[test]
        fn garbage_is_no_message(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            if let Some(message) = Message::decode(&bytes) {
                prop_assert_eq!(&message.encode()[..], &bytes[..]);
            }
        }
    }
}
