// SPDX-License-Identifier: Apache-2.0
//! What transports and service threads tell of themselves, for timelines.

use crate::board::monotonic_ns;

/// Looks in vain for so long end a spell of work, nanoseconds.
const PAUSE_NS: u64 = 5_000;
/// Longer spells are told in parts.
const SPELL_NS: u64 = 1_000_000;

/// What a transport or a service thread tells of its own work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// Something happened to a link.
    Link {
        /// What, in words.
        what: &'static str,
        /// The link's number.
        link: u32,
    },
    /// Streams of packets have changed direction because of a link.
    Failover {
        /// How many.
        flows: u64,
    },
    /// A thread has worked without its program, nanoseconds of `CLOCK_MONOTONIC`.
    Work {
        /// The thread, in words.
        what: &'static str,
        /// Begin.
        since: u64,
        /// End.
        until: u64,
        /// Times that it found something to do.
        turns: u64,
    },
}

/// Somebody who is told, by the thread concerned.
pub type Told = fn(&News);

/// Spells of work of one thread: each is told when it has ended.
pub struct Work {
    what: &'static str,
    since: u64,
    until: u64,
    turns: u64,
    /// When the thread last looked for work.
    looked: u64,
}

impl Work {
    /// Of a thread that has done nothing yet.
    pub fn new(what: &'static str) -> Work {
        Work { what, since: 0, until: 0, turns: 0, looked: 0 }
    }

    /// The thread has looked for work just now, and done some if it was `busy`.
    #[inline]
    pub fn looked(&mut self, busy: bool, told: Option<&Told>) {
        if let Some(told) = told {
            self.note(busy, monotonic_ns(), *told);
        }
    }

    fn note(&mut self, busy: bool, now: u64, told: Told) {
        let ended =
            now.saturating_sub(self.until) > PAUSE_NS || now.saturating_sub(self.since) > SPELL_NS;
        if self.turns > 0 && ended {
            let Work { what, since, until, turns, .. } = *self;
            told(&News::Work { what, since, until, turns });
            self.turns = 0;
        }
        if busy {
            if self.turns == 0 {
                // It began with this look, not at its end.
                let began_now = now.saturating_sub(self.looked) > PAUSE_NS;
                self.since = if began_now { now } else { self.looked };
            }
            self.turns += 1;
            self.until = now;
        }
        self.looked = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    thread_local! {
        static TOLD: RefCell<Vec<News>> = const { RefCell::new(Vec::new()) };
    }

    #[test]
    fn work_is_told_in_spells() {
        let told: Told = |news| TOLD.with_borrow_mut(|all| all.push(*news));
        let mut work = Work::new("x");
        work.looked(true, None);
        for (busy, now) in [(false, 99_000), (true, 100_000), (true, 101_000), (false, 104_000)] {
            work.note(busy, now, told);
        }
        assert!(TOLD.with_borrow(Vec::is_empty), "a short pause ends no spell");
        work.note(false, 107_000, told);
        work.note(false, 200_000, told);
        work.note(true, 300_000, told);
        work.note(true, 1_500_000, told);
        let spell = |since, until, turns| News::Work { what: "x", since, until, turns };
        let expected = [spell(99_000, 101_000, 2), spell(300_000, 300_000, 1)];
        assert_eq!(TOLD.take(), expected);
    }
}
