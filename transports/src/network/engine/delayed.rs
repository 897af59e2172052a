// SPDX-License-Identifier: Apache-2.0
//! Which requests are answered at once, and which later, as TCP delays acknowledgements.
//!
//! An answer costs both ends as much as a request, and few are waited for: a collective, or a program that
//! puts a flag, goes on with what the other PE sends next. So a request says whether its answer is wanted at
//! once ([`Kind::Urgent`]). The target delays the other answers, and sends them with its next message to the
//! same PE, whether that is a request or an answer.
//!
//! - A request is urgent if it asks for old values, if its stream has waited for answers lately, if [`HELD`]
//!   requests before it have delayed answers, or if requests follow each other so closely that they share
//!   messages.
//! - When a stream begins to wait for a delayed answer, an urgent request is sent, an empty one if there is no
//!   other. The next requests of the stream are urgent too, so that they need no empty one.
//! - An answer that nobody asks for is sent after a quarter of a second, so that the requester knows that its
//!   peer is alive.
//!
//! [`Kind::Urgent`]: crate::network::message::Kind::Urgent

use super::{BATCHES, Engine};
use crate::network::Network;
use tombolo_core::transport::Stream;

/// Requests to a peer with delayed answers, at most. The next one is urgent.
pub(super) const HELD: usize = 3;
/// Requests of a stream that are urgent after it has waited for an answer.
const LATELY: u8 = 8;
/// Streams that are told apart, by the last bits of their numbers.
const STREAMS: usize = 64;

/// How many of the next requests of each stream are urgent, because it has waited for answers lately. Streams that
/// share a place are taken for one, which costs time alone.
pub struct Waits([u8; STREAMS]);

impl Waits {
    pub fn new() -> Waits {
        Waits([0; STREAMS])
    }

    fn of(&mut self, stream: &Stream) -> &mut u8 {
        &mut self.0[stream.id as usize % STREAMS]
    }

    /// Whether requests of a stream are urgent.
    pub fn lately(&self, stream: &Stream) -> bool {
        self.0[stream.id as usize % STREAMS] > 0
    }

    /// A stream waits for an answer.
    pub fn note(&mut self, stream: &Stream) {
        *self.of(stream) = LATELY;
    }

    /// A request of a stream was sent.
    pub fn sent(&mut self, stream: &Stream) {
        let left = self.of(stream);
        *left = left.saturating_sub(1);
    }
}

impl<N: Network> Engine<N> {
    /// Sees to it that what was issued on a stream completes: somebody waits for that.
    pub fn quiet(&mut self, stream: &Stream) {
        self.net.confirm();
        if self.waits.lately(stream) {
            self.waits.note(stream);
        }
        for at in (0..self.delaying.len()).rev() {
            let pe = self.delaying[at];
            let peer = &self.peers[pe as usize];
            let is_own = |index: &u16| self.batches[usize::from(*index)].is_of(stream);
            if peer.delayed().iter().any(is_own) {
                self.waits.note(stream);
                self.ask_for_answers(pe);
            }
            if self.peers[pe as usize].delayed().is_empty() {
                self.peers[pe as usize].is_delaying = false;
                self.delaying.swap_remove(at);
            }
        }
    }

    /// Whether nothing of a stream is under way to a peer; no as well while requests of several streams are.
    pub fn is_quiet_to(&self, pe: u32, stream: &Stream) -> bool {
        let peer = &self.peers[pe as usize];
        let mut requests = peer.sent[..peer.sent_count].iter().chain(&peer.open);
        !self.has_rma(stream, pe, false)
            && !requests.any(|index| self.batches[usize::from(*index)].is_of(stream))
    }

    /// Sees to it that a peer answers all requests soon: by an urgent one.
    pub(super) fn ask_for_answers(&mut self, pe: u32) {
        let open = self.peers[pe as usize].open;
        // None if all are under way: those are urgent, and each that is answered makes room for another try.
        if let Some(index) = open.or_else(|| self.open_batch(pe)) {
            self.batches[usize::from(index)].is_urgent = true;
            self.flush_all(pe);
        }
    }

    /// Whether the open request to a peer is urgent.
    pub(super) fn is_urgent(&self, pe: u32, index: u16) -> bool {
        let (peer, batch) = (&self.peers[pe as usize], &self.batches[usize::from(index)]);
        batch.is_urgent
            // A sign of life is asked for.
            || batch.is_empty()
            || peer.is_burst
            || peer.delayed().len() >= HELD
            // Requests that wait for long leave room for others.
            || self.free_batches.len() < BATCHES / 2
    }

    /// A request to a peer was sent that is not urgent.
    pub(super) fn note_delayed(&mut self, pe: u32) {
        let peer = &mut self.peers[pe as usize];
        if !peer.is_delaying {
            peer.is_delaying = true;
            self.delaying.push(pe);
        }
    }
}
