// SPDX-License-Identifier: Apache-2.0
//! What peers have requested and were answered, where a network may deliver a request twice: each is carried
//! out once, and answered as often as it comes.
//!
//! Requests of a peer are numbered in the order in which they are sent ([`Header::turn`]), and all that wait
//! for their answer are within [`WINDOW`] of each other.
//!
//! [`Header::turn`]: crate::network::message::Header::turn

use super::peer::WINDOW;

/// What is to be done with a request.
#[derive(Debug, PartialEq, Eq)]
pub enum Duty<'a> {
    /// To carry it out.
    CarryOut,
    /// To give this answer again.
    Answer(&'a [u8]),
    /// Nothing: the peer has got its answer, or is not the one it was.
    Nothing,
}

/// See the module.
pub struct Past {
    /// Bytes of the longest answer.
    longest: usize,
    /// Turn of the next request, by PE.
    next: Box<[u32]>,
    /// Turns and lengths of the last answers to each PE.
    kept: Box<[[(u32, u16); WINDOW]]>,
    /// The answers. What is not used is never committed.
    answers: Box<[u8]>,
}

impl Past {
    /// Nothing of `n_pes`, of which the answers have up to so many bytes.
    pub fn new(n_pes: usize, longest: usize) -> Past {
        Past {
            longest,
            next: vec![1; n_pes].into(),
            kept: vec![[(0, 0); WINDOW]; n_pes].into(),
            answers: vec![0; n_pes * WINDOW * longest].into(),
        }
    }

    fn place(&self, pe: u32, turn: u32) -> usize {
        (pe as usize * WINDOW + turn as usize % WINDOW) * self.longest
    }

    /// What to do with a request of a PE of the job.
    pub fn duty(&self, pe: u32, turn: u32) -> Duty<'_> {
        if turn == self.next[pe as usize] {
            return Duty::CarryOut;
        }
        let (kept, len) = self.kept[pe as usize][turn as usize % WINDOW];
        match kept == turn && len > 0 {
            true => Duty::Answer(&self.answers[self.place(pe, turn)..][..len.into()]),
            false => Duty::Nothing,
        }
    }

    /// Keeps the answer to a request that was carried out.
    pub fn keep(&mut self, pe: u32, turn: u32, answer: &[u8]) {
        self.next[pe as usize] = turn.wrapping_add(1);
        self.kept[pe as usize][turn as usize % WINDOW] = (turn, answer.len() as u16);
        let place = self.place(pe, turn);
        self.answers[place..][..answer.len()].copy_from_slice(answer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// A sender that begins again from its oldest unanswered request at any moment, whatever is lost.
        #[test]
        fn each_is_carried_out_once(steps in prop::collection::vec((0..4u8, 0..WINDOW as u32), 0..300)) {
            let mut past = Past::new(2, 8);
            let (mut carried_out, mut oldest, mut sent) = (0u32, 1u32, 1u32);
            for (step, back) in steps {
                // A new one, or one that was sent before and may have been answered since.
                let turn = match step {
                    0 | 1 if sent - oldest < WINDOW as u32 => {
                        sent += 1;
                        sent - 1
                    }
                    _ => sent.saturating_sub(back).max(1),
                };
                if turn > carried_out + 1 || turn >= sent {
                    continue;
                }
                match past.duty(1, turn) {
                    Duty::CarryOut => {
                        carried_out += 1;
                        prop_assert_eq!(turn, carried_out);
                        past.keep(1, turn, &turn.to_le_bytes());
                    }
                    Duty::Answer(answer) => prop_assert_eq!(answer, &turn.to_le_bytes()),
                    Duty::Nothing => prop_assert!(turn < oldest),
                }
                // Its answer may get lost.
                if step != 3 && turn == oldest {
                    oldest += 1;
                }
            }
            prop_assert_eq!(past.duty(0, 2), Duty::Nothing);
        }
    }
}
