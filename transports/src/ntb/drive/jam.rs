// SPDX-License-Identifier: Apache-2.0
//! Links that do not take what the CPU stores to them.

use tombolo_core::board::monotonic_ns;
use tombolo_core::threads::waited_for_processor_ns;

/// A store that takes so long was not taken by its link, or its thread did not run: the time for which it
/// waited for a processor does not count, but the system does not tell of all.
const LONG_STORE_NS: u64 = 50_000_000;
/// So many of them with fewer than [`TIMED_STORES`] short ones after each were not taken.
const LONG_STORES_MAX: u32 = 3;
/// Stores that are timed after a poll took long, or after a long store. More than a link takes at once
/// when what has held it up has passed (an emulated one takes 256), and fewer than the thousands that a
/// thread makes while it has a processor.
const TIMED_STORES: u32 = 512;

/// Whether a link takes what is stored to it. Stores are timed only after a poll that took long:
/// as a rule nothing is looked at but a counter.
#[derive(Default)]
pub struct Jam {
    /// Stores still to be timed.
    timed: u32,
    /// Long ones since stores are timed.
    long: u32,
    /// The link did not take stores lately: a single one tells.
    known: bool,
    stuck: bool,
    /// What is stored while it is stuck need not get there.
    may_drop: bool,
}

impl Jam {
    /// What is stored to a link that takes nothing is dropped until the engine has heard of it, if there
    /// is another way: each store would hold up that way as well.
    #[inline]
    pub fn drops(&self) -> bool {
        self.stuck && self.may_drop
    }

    /// Begins a store: the time, if it is to be timed.
    #[inline]
    pub fn begin(&self) -> Option<u64> {
        (self.timed > 0).then(monotonic_ns)
    }

    #[inline]
    pub fn end(&mut self, begun: Option<u64>) {
        if let Some(begun) = begun {
            self.note(monotonic_ns() - begun, waited_for_processor_ns);
        }
    }

    /// Times stores, if none are timed. What was seen of those that are remains.
    pub fn time(&mut self) {
        if self.timed == 0 {
            self.timed = TIMED_STORES;
        }
    }

    /// Whether the link has been found not to take what is stored, since this was asked last. `may_drop`: what
    /// is stored meanwhile need not get there.
    pub fn take_stuck(&mut self, may_drop: bool) -> bool {
        self.may_drop = may_drop;
        std::mem::take(&mut self.stuck)
    }

    /// A store took so long. `waited_ns` tells how much of that, at most, its thread waited for a processor.
    #[cold]
    fn note(&mut self, took_ns: u64, waited_ns: impl FnOnce() -> u64) {
        self.timed -= 1;
        let is_long =
            took_ns >= LONG_STORE_NS && took_ns.saturating_sub(waited_ns()) >= LONG_STORE_NS;
        if is_long {
            (self.timed, self.long) = (TIMED_STORES, self.long + 1);
        } else if self.timed == 0 {
            (self.long, self.known) = (0, false);
        }
        if self.long >= if self.known { 1 } else { LONG_STORES_MAX } {
            (self.long, self.known, self.stuck) = (0, true, true);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_stuck_after_several_long_stores_and_then_after_one() {
        let mut jam = Jam { may_drop: true, ..Jam::default() };
        let long = |jam: &mut Jam| jam.note(LONG_STORE_NS, || 0);
        let never = || -> u64 { unreachable!("a short store is not asked about") };
        let short =
            |jam: &mut Jam, count| (0..count).for_each(|_| jam.note(LONG_STORE_NS - 1, never));
        jam.time();
        for _ in 0..LONG_STORES_MAX {
            (1..LONG_STORES_MAX).for_each(|_| long(&mut jam));
            short(&mut jam, TIMED_STORES);
            assert!(!jam.drops(), "a thread that did not run for a while now and then");
            assert!(jam.begin().is_none());
            jam.time();
        }
        for _ in 0..LONG_STORES_MAX {
            assert!(!jam.drops());
            short(&mut jam, TIMED_STORES - 1);
            jam.time();
            long(&mut jam);
        }
        assert!(jam.drops() && jam.begin().is_some());
        jam.may_drop = false;
        assert!(!jam.drops(), "a bad link is better than none");
        assert!(std::mem::take(&mut jam.stuck));
        long(&mut jam);
        assert!(std::mem::take(&mut jam.stuck), "tried again, and still so");
        short(&mut jam, TIMED_STORES);
        assert!(jam.begin().is_none() && !jam.known, "long good again: not timed any more");
    }

    #[test]
    fn a_link_is_not_stuck_where_threads_wait_for_processors() {
        let mut jam = Jam { may_drop: true, ..Jam::default() };
        for took in [LONG_STORE_NS, 2 * LONG_STORE_NS - 1, 10 * LONG_STORE_NS] {
            jam.time();
            for _ in 0..10 * LONG_STORES_MAX {
                jam.note(took, || took - LONG_STORE_NS + 1);
                jam.note(took, || u64::MAX);
                assert!(!jam.drops() && jam.long == 0);
            }
        }
        // What is left is the link's doing.
        (0..LONG_STORES_MAX).for_each(|_| jam.note(10 * LONG_STORE_NS, || 9 * LONG_STORE_NS));
        assert!(jam.drops());
        // A single one tells now, unless it is the processor that was missing.
        jam.stuck = false;
        jam.note(10 * LONG_STORE_NS, || 10 * LONG_STORE_NS);
        assert!(!jam.drops());
        jam.note(10 * LONG_STORE_NS, || 0);
        assert!(jam.drops());
    }
}
