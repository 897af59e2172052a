// SPDX-License-Identifier: Apache-2.0
//! How two PEs connect when one of them first needs the other: the messages, and what they change.
//!
//! A connection is a queue pair at either end, each told the number of the other. The numbers travel in
//! datagrams, which may be lost, repeated or cross each other:
//!
//! ```text
//! A makes a queue pair        A -> B  hello(A's numbers)
//! B makes one, connects it    B -> A  hello(B's numbers, connected)
//! A connects its own          A -> B  hello(A's numbers, connected, ready)
//! ```
//!
//! A PE is *connected* when its queue pair takes what the peer sends, and *ready* when it knows that of
//! the peer's; only then does it send. Until it is ready a PE that wants to send says hello again every
//! now and then; whoever gets a hello from a PE that is not ready answers.

/// Bytes of a message.
pub const HELLO: usize = 32;
const MAGIC: u32 = 0x3162_6d54;

/// A message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Number that the receiver has told in its address; a stranger does not know it.
    pub to: u64,
    /// The same of the sender.
    pub from: u64,
    /// The sender's queue pair.
    pub queue: u32,
    /// Number of the first packet it will send.
    pub packet: u32,
    /// The sender is connected.
    pub connected: bool,
    /// The sender is ready.
    pub ready: bool,
}

impl Hello {
    /// The message's bytes.
    pub fn encode(&self) -> [u8; HELLO] {
        let mut bytes = [0; HELLO];
        bytes[..4].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[4] = u8::from(self.connected) | u8::from(self.ready) << 1;
        bytes[8..16].copy_from_slice(&self.to.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.from.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.queue.to_le_bytes());
        bytes[28..].copy_from_slice(&self.packet.to_le_bytes());
        bytes
    }

    /// The message that `encode` made; none if it was something else.
    pub fn decode(bytes: &[u8]) -> Option<Hello> {
        let bytes: &[u8; HELLO] = bytes.try_into().ok()?;
        let word = |at: usize| bytes[at..].first_chunk::<4>().map(|word| u32::from_le_bytes(*word));
        let long = |at: usize| bytes[at..].first_chunk::<8>().map(|word| u64::from_le_bytes(*word));
        let known = word(0)? == MAGIC && bytes[4] <= 3 && bytes[5..8] == [0; 3];
        known.then_some(Hello {
            to: long(8)?,
            from: long(16)?,
            queue: word(24)?,
            packet: word(28)?,
            connected: bytes[4] & 1 != 0,
            ready: bytes[4] & 2 != 0,
        })
    }
}

/// How far a connection has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// The own queue pair is connected.
    pub connected: bool,
    /// The peer's is, as it has said.
    pub ready: bool,
}

/// What a message asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Todo {
    /// The own queue pair is to be connected to that of the message, then to be answered.
    pub connect: bool,
    /// An answer is to be sent.
    pub answer: bool,
}

impl Progress {
    /// What a message had asked for could not be done: the next one asks again.
    pub fn undo(&mut self) {
        *self = Progress::default();
    }

    /// What a message changes, provided that what it asks for is done, or undone by [`Progress::undo`].
    pub fn hear(&mut self, hello: &Hello) -> Todo {
        let todo = Todo { connect: !self.connected, answer: !hello.ready };
        self.connected = true;
        self.ready |= hello.connected;
        todo
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn messages_come_back_as_they_were(
            to: u64, from: u64, queue: u32, packet: u32, connected: bool, ready: bool
        ) {
            let hello = Hello { to, from, queue, packet, connected, ready };
            prop_assert_eq!(Hello::decode(&hello.encode()), Some(hello));
            prop_assert_eq!(Hello::decode(&hello.encode()[1..]), None);
        }

        #[test]
        fn garbage_is_no_message(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            if let Some(hello) = Hello::decode(&bytes) {
                prop_assert_eq!(&hello.encode()[..], &bytes[..]);
            }
        }

        /// Whatever is lost, repeated or overtaken: both become ready, nobody is ready before the other
        /// is connected, and then nothing more is sent.
        #[test]
        fn both_become_ready(wants in any::<[bool; 2]>(), fates in prop::collection::vec(0u8..4, 0..40)) {
            let mut ends = [Progress::default(); 2];
            let wants = if wants == [false; 2] { [true, false] } else { wants };
            let mut fates = fates.into_iter();
            let mut under_way: Vec<(usize, Hello)> = vec![];
            let hello = |end: &Progress| Hello {
                to: 1, from: 2, queue: 3, packet: 4, connected: end.connected, ready: end.ready,
            };
            for round in 0.. {
                prop_assert!(round < 100, "{:?}", ends);
                for own in [0, 1] {
                    // Whoever wants to send says hello again.
                    if wants[own] && !ends[own].ready {
                        under_way.push((1 - own, hello(&ends[own])));
                    }
                }
                if under_way.is_empty() {
                    break;
                }
                let mut left = vec![];
                for (to, message) in std::mem::take(&mut under_way) {
                    let copies = match fates.next() {
                        Some(0) => 0,
                        Some(1) => 2,
                        Some(2) => { left.push((to, message)); 0 }
                        _ => 1,
                    };
                    for _ in 0..copies {
                        let todo = ends[to].hear(&message);
                        if todo.connect && copies == 2 {
                            // The card could not, this time.
                            ends[to].undo();
                        } else if todo.answer {
                            left.push((1 - to, hello(&ends[to])));
                        }
                        prop_assert!(!ends[to].ready || ends[1 - to].connected);
                    }
                }
                under_way = left;
            }
            for own in [0, 1] {
                prop_assert!(ends[own].ready || !wants[own], "{:?}", ends);
            }
        }
    }
}
