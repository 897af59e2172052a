// SPDX-License-Identifier: Apache-2.0
//! Whether a link is worth using: what it does to packets while both of its ends run.
//!
//! - A link that damages or loses [`BAD_MAX`] of some [`WINDOW`] packets, or on which every one of
//!   [`ROUND_TRIPS`] round trips takes too long, is rested: traffic goes the other way round, and
//!   after a while the link is tried again, each time later.
//! - So is a link that holds up those who store to it ([`Memory::take_stuck`](super::Memory)).
//! - A link is rested only while its neighbour is reached the other way: a bad link is better than
//!   none.
//! - One long round trip says nothing: the neighbour may not have run. All of many do.

/// Packets after which old ones count half.
const WINDOW: u32 = 1024;
/// Bad ones among them that are too many.
const BAD_MAX: u32 = 8;
/// What a link that goes silent while its neighbour runs counts for.
const OUTAGE: u32 = BAD_MAX / 2;
/// Round trips in a row that must all be long.
const ROUND_TRIPS: u32 = 64;
/// Most doublings of the time that a link is rested.
const RESTS_MAX: u32 = 6;

/// What is known of a link, as seen from one end.
#[derive(Clone, Copy, Debug, Default, Hash)]
pub(super) struct Health {
    seen: u32,
    bad: u32,
    round_trips: u32,
    shortest_ns: u64,
    slow: bool,
    rests: u32,
    until: u64,
}

impl Health {
    /// A packet was sound.
    pub(super) fn good(&mut self) {
        self.seen += 1;
        if self.seen >= WINDOW {
            if self.bad <= 1 {
                self.rests = 0;
            }
            self.seen /= 2;
            self.bad /= 2;
        }
    }

    /// A packet or a credit line was damaged, or a packet was lost.
    pub(super) fn bad(&mut self) {
        self.bad += 1;
        self.good();
    }

    /// Nothing came although the neighbour was running.
    pub(super) fn outage(&mut self) {
        self.bad += OUTAGE;
    }

    /// A round trip of a heartbeat took so long.
    pub(super) fn round_trip(&mut self, took_ns: u64, slow_ns: u64) {
        self.shortest_ns =
            if self.round_trips == 0 { took_ns } else { self.shortest_ns.min(took_ns) };
        self.round_trips += 1;
        if self.round_trips >= ROUND_TRIPS {
            self.slow = self.shortest_ns >= slow_ns;
            self.round_trips = 0;
        }
    }

    /// Whether the link should be rested.
    pub(super) fn is_poor(&self) -> bool {
        self.bad >= BAD_MAX || self.slow
    }

    /// Begins a rest of `rest_ns`, or twice as long as the last one.
    pub(super) fn rest(&mut self, now: u64, rest_ns: u64) {
        let until = now + (rest_ns << self.rests);
        let rests = (self.rests + 1).min(RESTS_MAX);
        *self = Health { rests, until, ..Health::default() };
    }

    /// Whether a rest is over.
    pub(super) fn is_rested(&self, now: u64) -> bool {
        now >= self.until
    }
}

/// Time as far as this engine has run. A poll that comes late counts for one step: a process that was
/// stopped, or did not get a processor, does not take the time for silence of its neighbours.
#[derive(Clone, Copy, Debug, Default, Hash)]
pub struct RunClock {
    run: u64,
    seen: u64,
}

impl RunClock {
    /// Time goes on to `now` of the caller's clock; gives the time that has been run.
    pub fn advance(&mut self, now: u64, step_ns: u64) -> u64 {
        if self.seen == 0 {
            self.run = now;
        } else {
            self.run += now.saturating_sub(self.seen).min(step_ns);
        }
        self.seen = now.max(self.seen);
        self.run
    }

    /// When it will be `run`, by the caller's clock.
    pub fn when(&self, run: u64) -> u64 {
        self.seen + run.saturating_sub(self.run)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_percent_of_bad_packets_is_too_much_and_one_in_a_thousand_is_not() {
        let after = |every: u32| {
            let mut health = Health::default();
            (1..10 * WINDOW).any(|packet| {
                if packet.is_multiple_of(every) {
                    health.bad()
                } else {
                    health.good()
                }
                health.is_poor()
            })
        };
        assert!(after(100) && !after(1000));
    }

    #[test]
    fn only_round_trips_that_are_all_long_count() {
        let mut health = Health::default();
        (0..ROUND_TRIPS)
            .for_each(|number| health.round_trip(if number == 9 { 1 } else { 500 }, 300));
        assert!(!health.is_poor());
        (0..ROUND_TRIPS).for_each(|_| health.round_trip(300, 300));
        assert!(health.is_poor());
        health.rest(1000, 50);
        assert!(!health.is_poor() && !health.is_rested(1049) && health.is_rested(1050));
        health.rest(2000, 50);
        assert!(!health.is_rested(2099) && health.is_rested(2100));
    }

    #[test]
    fn a_process_that_did_not_run_has_aged_by_one_step() {
        let mut clock = RunClock::default();
        assert_eq!(clock.advance(1_000, 10), 1_000);
        assert_eq!(clock.advance(1_004, 10), 1_004);
        assert_eq!(clock.advance(9_000, 10), 1_014);
        assert_eq!(clock.when(1_020), 9_006);
    }
}
