// SPDX-License-Identifier: Apache-2.0
//! What is to happen, in the order of virtual time.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

/// Events; those of one time happen in the order in which they were put in.
pub struct Queue<W> {
    events: BinaryHeap<Reverse<Timed<W>>>,
    number: u64,
}

struct Timed<W> {
    at_ps: u64,
    number: u64,
    what: W,
}

impl<W> Queue<W> {
    /// Nothing is to happen.
    pub fn new() -> Queue<W> {
        Queue { events: BinaryHeap::new(), number: 0 }
    }

    /// Something will happen.
    pub fn push(&mut self, at_ps: u64, what: W) {
        self.number += 1;
        self.events.push(Reverse(Timed { at_ps, number: self.number, what }));
    }

    /// The next event and its time.
    pub fn pop(&mut self) -> Option<(u64, W)> {
        self.events.pop().map(|Reverse(timed)| (timed.at_ps, timed.what))
    }

    /// The time of the next event.
    pub fn next_ps(&self) -> Option<u64> {
        self.events.peek().map(|Reverse(timed)| timed.at_ps)
    }
}

impl<W> PartialEq for Timed<W> {
    fn eq(&self, other: &Timed<W>) -> bool {
        (self.at_ps, self.number) == (other.at_ps, other.number)
    }
}

impl<W> Eq for Timed<W> {}

impl<W> PartialOrd for Timed<W> {
    fn partial_cmp(&self, other: &Timed<W>) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<W> Ord for Timed<W> {
    fn cmp(&self, other: &Timed<W>) -> Ordering {
        (self.at_ps, self.number).cmp(&(other.at_ps, other.number))
    }
}
