// SPDX-License-Identifier: Apache-2.0
//! Which requests are answered at once.
//!
//! An answer costs both ends as much as a request, and few are waited for: a collective, or a program that
//! puts a flag, goes on with what the other PE sends next. So a request says whether somebody waits for its
//! answer ([`Kind::Urgent`]). The target holds the answers to the others, and sends them with the next
//! message to the same PE, whatever that is.
//!
//! - Urgent is what asks for old values, what comes from a stream that has waited for answers lately, and
//!   what follows [`HELD`] requests that are not, or others so closely that they travel together.
//! - Who begins to wait for the answer to a request that is not urgent sends another one, of nothing, that
//!   is. Its stream is taken to wait after the next requests too, which then need no other.
//! - Nobody may wait for a held answer otherwise: the target sends it after a quarter of a second, so
//!   that this PE hears of it.
//!
//! [`Kind::Urgent`]: crate::network::message::Kind::Urgent

use super::{BATCHES, Engine};
use crate::network::Network;
use tombolo_core::transport::Stream;

/// Requests to a peer that are not urgent and not answered. The next one is urgent.
pub(super) const HELD: usize = 3;
/// Requests of a stream that are urgent after it has waited for an answer.
const LATELY: u8 = 8;
/// Streams that are told apart, by the last bits of their numbers.
const STREAMS: usize = 64;

/// Which streams have waited for answers lately: how many of the next requests of each are urgent. A guess,
/// which decides over speed alone.
pub struct Haste([u8; STREAMS]);

impl Haste {
    pub fn new() -> Haste {
        Haste([0; STREAMS])
    }

    fn of(&mut self, stream: &Stream) -> &mut u8 {
        &mut self.0[stream.id as usize % STREAMS]
    }

    /// Whether requests of a stream are urgent.
    pub fn has(&self, stream: &Stream) -> bool {
        self.0[stream.id as usize % STREAMS] > 0
    }

    /// A stream waits for an answer.
    pub fn waits(&mut self, stream: &Stream) {
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
        if self.haste.has(stream) {
            self.haste.waits(stream);
        }
        for at in (0..self.patient.len()).rev() {
            let pe = self.patient[at];
            let peer = &self.peers[pe as usize];
            let is_own = |index: &u16| self.batches[usize::from(*index)].is_of(stream);
            if peer.without_haste().iter().any(is_own) {
                self.haste.waits(stream);
                self.hurry(pe);
            }
            if self.peers[pe as usize].without_haste().is_empty() {
                self.peers[pe as usize].is_patient = false;
                self.patient.swap_remove(at);
            }
        }
    }

    /// Sees to it that a peer answers all requests soon: by an urgent one.
    pub(super) fn hurry(&mut self, pe: u32) {
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
            || peer.without_haste().len() >= HELD
            // Requests that wait for long leave room for others.
            || self.free_batches.len() < BATCHES / 2
    }

    /// A request to a peer was sent that is not urgent.
    pub(super) fn note_patient(&mut self, pe: u32) {
        let peer = &mut self.peers[pe as usize];
        if !peer.is_patient {
            peer.is_patient = true;
            self.patient.push(pe);
        }
    }
}
