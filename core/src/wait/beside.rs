// SPDX-License-Identifier: Apache-2.0
//! Whether a thread that waits shares its processor with one that computes.
//!
//! Threads that wait give the processor back to each other within microseconds. One that computes keeps it to the end of
//! its turn, which takes milliseconds, and what is waited for may come meanwhile. A thread that sleeps for a moment, or
//! until it is woken for that, need not wait for the end of the turn.

/// Giving way for longer than this means that another thread computes.
pub const COMPUTES_NS: u64 = 200_000;
/// So many waits in a row in which one did are no coincidence.
const ROW: u32 = 4;
/// For how long a thread then sleeps in place of giving way, before it tries again; at most for so long if it finds
/// the other one computing each time.
const PAUSE_NS: u64 = 10_000_000;
const PAUSE_MAX_NS: u64 = 160_000_000;

/// What the waits of a thread have come to. Times in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Beside {
    /// Waits in a row in which another thread computed.
    row: u32,
    /// Whether one did in this wait.
    now: bool,
    /// Until when the thread does not give way.
    until: u64,
    /// For how long it does not the next time.
    pause: u64,
}

impl Beside {
    /// Nothing waited for yet.
    pub const NONE: Beside = Beside { row: 0, now: false, until: 0, pause: PAUSE_NS };

    /// The thread does not give way until this time.
    #[cfg(test)]
    pub fn until(until: u64) -> Beside {
        Beside { until, ..Beside::NONE }
    }

    /// The thread gave way from one time to another.
    pub fn gave_way(&mut self, from: u64, to: u64) {
        self.now |= to.saturating_sub(from) > COMPUTES_NS;
    }

    /// Whether the thread is to sleep at this time in place of giving way.
    pub fn sleeps(&self, now: u64) -> bool {
        now < self.until
    }

    /// A wait is over at this time: what the next one begins with.
    pub fn ended(self, now: u64) -> Beside {
        match self.now {
            // Whoever computed before is likely to do so again: after a pause, once is enough.
            true if self.row + 1 >= ROW => Beside {
                now: false,
                until: now + self.pause,
                pause: (2 * self.pause).min(PAUSE_MAX_NS),
                ..self
            },
            true => Beside { row: self.row + 1, now: false, ..self },
            // In a pause nothing tells whether one still computes.
            false if self.sleeps(now) => self,
            false => Beside::NONE,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A wait that ends at this time and gave way for so long before.
    fn wait(mut beside: Beside, gave_way: u64, now: u64) -> Beside {
        beside.gave_way(now - gave_way, now);
        beside.ended(now)
    }

    #[test]
    fn a_thread_sleeps_after_a_row_of_long_turns_of_others_and_tries_again() {
        let (long, short) = (COMPUTES_NS + 1, COMPUTES_NS);
        let mut now = 1_000_000_000;
        let mut beside = Beside::NONE;
        for gave_way in [long, long, long, short, long, long, long] {
            beside = wait(beside, gave_way, now);
            assert!(!beside.sleeps(now));
        }
        for pause in [10, 20, 40, 80, 160, 160].map(|ms| ms * 1_000_000) {
            beside = wait(beside, long, now);
            assert!(beside.sleeps(now + pause - 1) && !beside.sleeps(now + pause));
            // Sleeping, it gives way to nobody, which tells nothing.
            beside = wait(beside, 0, now + pause - 1);
            now += pause;
        }
        // Nobody computes any more: as at first.
        beside = wait(beside, short, now);
        for _ in 0..ROW {
            assert!(!beside.sleeps(now));
            beside = wait(beside, long, now);
        }
        assert!(beside.sleeps(now) && !beside.sleeps(now + PAUSE_NS));
    }
}
