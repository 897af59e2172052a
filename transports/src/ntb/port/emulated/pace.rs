//! The time model on the clock of the wall: pacing of writers.
//!
//! There is no thread that plays the wire. The writer itself waits, by spinning, until the moment
//! its bytes are due at the peer, and only then places them:
//!
//! - Every chunk reserves its time on the wire in a clock shared by all requesters of the direction,
//!   so that together they never exceed the line rate. Each direction has its own clock.
//! - The first chunk of a burst is due one propagation time after it has left. In hardware the
//!   writer would have gone on meanwhile; here it comes back late by that much. This lag is
//!   remembered, and as long as writes follow each other within a propagation time they are issued,
//!   by the model's clock, earlier by the lag: a burst pays propagation once, as in hardware, and its
//!   last byte arrives when it should.
//!
//! What this gets wrong: a write that joins a running burst because of something the writer learnt
//! after the burst began is visible early by at most one propagation time, and a writer gets the CPU
//! back late by as much. Bytes never arrive before the line rate allows.

use super::link::Link;
use std::sync::atomic::{AtomicU64, Ordering};

/// Above this a wait gives the CPU away, picoseconds.
const YIELD_ABOVE_PS: u64 = 20_000_000;

/// One requester's place in time.
#[derive(Debug, Default)]
pub struct Pace {
    /// When the last write was placed.
    placed_ps: u64,
    /// How much later than in hardware the writer came back from it.
    lag_ps: u64,
}

impl Pace {
    /// Reserves `wire_ps` on the wire and waits until what was sent has arrived.
    pub fn transmit(&mut self, link: &Link, wire: &AtomicU64, wire_ps: u64, propagation_ps: u64) {
        let now = link.now_ps();
        let slot = self.reserve(now, wire, wire_ps, propagation_ps);
        // In a burst of small writes the time has often come: looking at the clock again would
        // cost more than the write.
        let now = if now >= slot.due_ps { now } else { wait_until(link, slot.due_ps) };
        self.placed(now, &slot);
    }

    fn reserve(&self, now: u64, wire: &AtomicU64, wire_ps: u64, propagation_ps: u64) -> Slot {
        let in_burst = now.saturating_sub(self.placed_ps) < propagation_ps;
        let issued = if in_burst { now.saturating_sub(self.lag_ps) } else { now };
        let start_ps = reserve(wire, issued, wire_ps);
        Slot { start_ps, due_ps: start_ps + wire_ps + propagation_ps }
    }

    /// The hardware would have let the writer go when the wire took the chunk. A delay beyond what
    /// the model asks for (the process lost the CPU) is not made up for.
    fn placed(&mut self, now: u64, slot: &Slot) {
        self.placed_ps = now;
        self.lag_ps = slot.due_ps - slot.start_ps;
    }
}

#[derive(Debug)]
struct Slot {
    start_ps: u64,
    due_ps: u64,
}

/// Takes `wire_ps` of the wire, not before `issued_ps`; gives the start.
fn reserve(wire: &AtomicU64, issued_ps: u64, wire_ps: u64) -> u64 {
    let mut free = wire.load(Ordering::Relaxed);
    loop {
        // A clock further ahead than a second is damage: do not follow it.
        let ahead = if free > issued_ps + 1_000_000_000_000 { issued_ps } else { free };
        let start = issued_ps.max(ahead);
        let next = start + wire_ps;
        match wire.compare_exchange_weak(free, next, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return start,
            Err(seen) => free = seen,
        }
    }
}

/// Spins until `due_ps`; gives the time it ended.
pub fn wait_until(link: &Link, due_ps: u64) -> u64 {
    loop {
        let now = link.now_ps();
        if now >= due_ps {
            return now;
        }
        if due_ps - now > YIELD_ABOVE_PS {
            std::thread::yield_now();
        } else {
            std::hint::spin_loop();
        }
    }
}

/// Charges a register write of 4 bytes and its trip; gives the time of arrival.
pub fn register_write(link: &Link, side: usize) -> u64 {
    let now = link.now_ps();
    if !link.is_modelled() {
        return now;
    }
    let timing = &link.config.timing;
    let wire_ps = timing.wire_ps(4, 1);
    let start = reserve(&link.side(side).wire_free_ps.0, now, wire_ps);
    wait_until(link, now + u64::from(timing.register_write_ns) * 1000);
    start + wire_ps + u64::from(timing.propagation_ns) * 1000
}

/// Charges a load from a register of this side.
pub fn register_read(link: &Link) {
    if link.is_modelled() {
        wait_until(link, link.now_ps() + u64::from(link.config.timing.register_read_ns) * 1000);
    }
}

/// Charges a round trip.
pub fn remote_read(link: &Link) {
    if link.is_modelled() {
        wait_until(link, link.now_ps() + u64::from(link.config.timing.read_ns) * 1000);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROPAGATION: u64 = 400_000;
    const WIRE: u64 = 150_000;

    /// Writes back to back with a copy that takes `copy_ps` of CPU; gives the time of the last.
    fn burst(chunks: u64, copy_ps: u64, begin: u64, pace: &mut Pace, wire: &AtomicU64) -> u64 {
        let mut now = begin;
        for _ in 0..chunks {
            let slot = pace.reserve(now, wire, WIRE, PROPAGATION);
            now = now.max(slot.due_ps);
            pace.placed(now, &slot);
            now += copy_ps;
        }
        now - copy_ps
    }

    #[test]
    fn a_burst_pays_propagation_once_and_keeps_the_wire_full() {
        let (mut pace, wire) = (Pace::default(), AtomicU64::new(0));
        let begin = 10_000_000;
        let end = burst(100, 100_000, begin, &mut pace, &wire);
        assert_eq!(end, begin + 100 * WIRE + PROPAGATION);
    }

    #[test]
    fn a_pause_pays_propagation_again() {
        let (mut pace, wire) = (Pace::default(), AtomicU64::new(0));
        let end = burst(1, 0, 10_000_000, &mut pace, &wire);
        let begin = end + PROPAGATION;
        assert_eq!(burst(1, 0, begin, &mut pace, &wire), begin + WIRE + PROPAGATION);
    }

    #[test]
    fn two_requesters_share_the_wire() {
        let wire = AtomicU64::new(0);
        let (mut one, mut two) = (Pace::default(), Pace::default());
        let begin = 10_000_000;
        for pair in 1..=50 {
            let first = one.reserve(begin, &wire, WIRE, PROPAGATION);
            let second = two.reserve(begin, &wire, WIRE, PROPAGATION);
            one.placed(first.due_ps, &first);
            two.placed(second.due_ps, &second);
            assert_eq!(second.due_ps, begin + 2 * pair * WIRE + PROPAGATION);
        }
    }

    #[test]
    fn time_lost_to_the_scheduler_is_not_made_up_for() {
        let (mut pace, wire) = (Pace::default(), AtomicU64::new(0));
        let slot = pace.reserve(10_000_000, &wire, WIRE, PROPAGATION);
        let late = slot.due_ps + 4_000_000;
        pace.placed(late, &slot);
        let end = burst(10, 0, late, &mut pace, &wire);
        assert_eq!(end, late + 10 * WIRE - WIRE);
    }
}
