// SPDX-License-Identifier: Apache-2.0
//! How a message gets into a line of another PE, over a transport that promises little.

use super::message::LINE_WORDS;
use crate::transport::{Status, Stream};

/// A way into the control areas of other PEs. None of it waits.
pub trait Wire: Send + Sync {
    /// Starts putting a line at `offset` of a PE's control area. The line stays as it is until the
    /// stream is quiet.
    fn put(&self, stream: &Stream, pe: usize, offset: usize, line: &[u64; LINE_WORDS]) -> Status;

    /// Whether all puts of the stream are complete.
    fn is_quiet(&self, stream: &Stream) -> bool;

    /// Whether a message may go to a PE in one put: its words arrive whole, or its last word arrives
    /// after the others.
    fn takes_messages(&self, pe: usize) -> bool;

    /// Wakes the PE's service thread, if its bell is within reach.
    fn ring(&self, pe: usize);
}

/// The sending of one message after the other into the same line.
pub(crate) struct Sending {
    /// What is put, as it was last put.
    line: [u64; LINE_WORDS],
    /// The message to send next.
    next: Option<[u64; LINE_WORDS]>,
    /// The last word of the message in `line`, to be put when all others are complete.
    last: Option<u64>,
    stream: Stream,
}

impl Sending {
    /// Nothing to send.
    pub(crate) fn new() -> Sending {
        let stream = Stream::new(u32::MAX, true);
        Sending { line: [0; LINE_WORDS], next: None, last: None, stream }
    }

    /// Whether something is left to be put.
    pub(crate) fn is_unsent(&self) -> bool {
        self.next.is_some() || self.last.is_some()
    }

    /// Whether a put is under way, so that the memory of `self` may still be read.
    pub(crate) fn is_under_way(&self) -> bool {
        !self.stream.is_quiet()
    }

    /// Takes on a message. The one before it was sent.
    pub(crate) fn start(&mut self, message: [u64; LINE_WORDS]) {
        self.next = Some(message);
    }

    /// Puts what can be put now; true if something was.
    ///
    /// Every put waits for the puts before it, of this message or the last, to be complete: see the
    /// order in the module above. Whole lines are put, for the sake of transports with an alignment:
    /// to put a word again that is there already changes nothing, torn or not.
    pub(crate) fn advance(&mut self, wire: &impl Wire, pe: usize, offset: usize) -> bool {
        let mut moved = false;
        while self.is_unsent() && wire.is_quiet(&self.stream) {
            let (line, last) = match (self.last, self.next) {
                (Some(last), _) => (with_last(self.line, last), None),
                (None, Some(next)) if wire.takes_messages(pe) => (next, None),
                (None, Some(next)) => {
                    let before = self.line[LINE_WORDS - 1];
                    (with_last(next, before), Some(next[LINE_WORDS - 1]))
                }
                (None, None) => return moved,
            };
            let before = std::mem::replace(&mut self.line, line);
            match wire.put(&self.stream, pe, offset, &self.line) {
                Status::Again => {
                    self.line = before;
                    return moved;
                }
                // Whoever is gone waits for nothing.
                Status::Failed => (self.next, self.last) = (None, None),
                Status::Complete | Status::Pending => (self.next, self.last) = (None, last),
            }
            moved = true;
            if !self.is_unsent() {
                wire.ring(pe);
            }
        }
        moved
    }
}

fn with_last(mut line: [u64; LINE_WORDS], last: u64) -> [u64; LINE_WORDS] {
    line[LINE_WORDS - 1] = last;
    line
}
