//! How a message gets into a line of another PE, over a transport that promises little.

use crate::transport::{Status, Stream};

/// A way into the control areas of other PEs. None of it waits.
pub trait Wire: Send + Sync {
    /// Puts words at `offset` of a PE's control area; they may be reused at once.
    fn put(&self, stream: &Stream, pe: usize, offset: usize, words: &[u64]) -> Status;

    /// Whether all puts of the stream are complete.
    fn is_quiet(&self, stream: &Stream) -> bool;

    /// Whether words arrive whole at a PE.
    fn whole_words(&self, pe: usize) -> bool;

    /// Wakes the PE's service thread, if its bell is within reach.
    fn ring(&self, pe: usize);
}

/// The sending of one message after the other into the same line.
pub(crate) struct Sending<const N: usize> {
    words: [u64; N],
    /// Words of the message that were put.
    put: usize,
    stream: Stream,
}

impl<const N: usize> Sending<N> {
    /// Nothing to send.
    pub(crate) fn new() -> Sending<N> {
        Sending { words: [0; N], put: N, stream: Stream::new(u32::MAX, true) }
    }

    /// Whether words are left to be put.
    pub(crate) fn is_unsent(&self) -> bool {
        self.put < N
    }

    /// Takes on a message. The one before it was sent.
    pub(crate) fn start(&mut self, words: [u64; N]) {
        (self.words, self.put) = (words, 0);
    }

    /// Puts what can be put now; true if something was.
    ///
    /// Every put waits for the puts before it, of this message or the last, to be complete: see the
    /// order in the module above.
    pub(crate) fn advance(&mut self, wire: &impl Wire, pe: usize, offset: usize) -> bool {
        let mut moved = false;
        while self.is_unsent() && wire.is_quiet(&self.stream) {
            let end = if self.put == 0 && !wire.whole_words(pe) { N - 1 } else { N };
            let words = &self.words[self.put..end];
            match wire.put(&self.stream, pe, offset + self.put * 8, words) {
                Status::Again => return moved,
                // Whoever is gone waits for nothing.
                Status::Failed => self.put = N,
                Status::Complete | Status::Pending => self.put = end,
            }
            moved = true;
            if !self.is_unsent() {
                wire.ring(pe);
            }
        }
        moved
    }
}
