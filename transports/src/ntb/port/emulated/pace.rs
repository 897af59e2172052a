// SPDX-License-Identifier: Apache-2.0
//! The time model on the clock of the wall: when a posted write leaves and when the peer may see it.
//!
//! A requester keeps what it has sent ([`Flight`]) until it is due at the peer; whoever looks after the
//! wire then places it ([`Wire`]):
//!
//! - Every piece reserves its time on the wire in a clock shared by all requesters of the direction,
//!   so that together they never exceed the line rate. Each direction has its own clock. A piece is
//!   due one propagation time after it has left the wire, and placed at the first look after that.
//! - The writer goes on meanwhile, as in hardware, and as there it is held up when more than
//!   [`POSTED_BYTES`] wait for the wire.
//!
//! What this gets wrong: bytes arrive late where nobody looks in time, because nobody of the process
//! polls the port or the machine has no processor for it. They never arrive before the line rate
//! allows.
//!
//! [`Flight`]: super::flight::Flight
//! [`Wire`]: super::wire::Wire

use super::link::Link;
use crate::ntb::port::LinkTiming;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that may wait between CPU and wire before stores stall: the posted-write buffers of a root
/// port, in the simulator too.
const POSTED_BYTES: u64 = 2048;
/// Above this a wait gives the CPU away, picoseconds.
const YIELD_ABOVE_PS: u64 = 20_000_000;

/// One requester's place in time.
#[derive(Debug)]
pub struct Pace {
    propagation_ps: u64,
    posted_ps: u64,
}

/// When a piece of a write goes where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passage {
    /// The writer may go on.
    pub accepted_ps: u64,
    /// The peer may see it.
    pub due_ps: u64,
}

impl Pace {
    pub fn new(timing: &LinkTiming) -> Pace {
        Pace {
            propagation_ps: u64::from(timing.propagation_ns) * 1000,
            posted_ps: timing.wire_ps(POSTED_BYTES, POSTED_BYTES / 64),
        }
    }

    /// From a write that finds the posted buffers full to its arrival, on a wire of its own.
    pub fn latency_ps(&self) -> u64 {
        self.propagation_ps + self.posted_ps
    }

    /// Takes `wire_ps` of the wire for a piece written now, which a fault delays by `delay_ps`.
    pub fn issue(&self, now: u64, wire: &AtomicU64, wire_ps: u64, delay_ps: u64) -> Passage {
        let start = reserve(wire, now, wire_ps);
        let accepted_ps = now.max(start.saturating_sub(self.posted_ps));
        Passage { accepted_ps, due_ps: start + wire_ps + self.propagation_ps + delay_ps }
    }
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
        pause(due_ps - now);
    }
}

/// One round of a wait that has `left_ps` to go.
pub fn pause(left_ps: u64) {
    if left_ps > YIELD_ABOVE_PS {
        std::thread::yield_now();
    } else {
        std::hint::spin_loop();
    }
}

/// Charges a register write of 4 bytes and its one-way latency; gives the time of arrival.
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

    const WIRE: u64 = 150_000;
    const BEGIN: u64 = 10_000_000;

    fn pace() -> Pace {
        Pace::new(&LinkTiming::default())
    }

    const PROPAGATION: u64 = 400_000;

    /// Writes back to back with a copy that takes `copy_ps` of CPU; gives when the last is due and
    /// when the writer is through.
    fn burst(chunks: u64, copy_ps: u64, begin: u64, pace: &Pace, wire: &AtomicU64) -> Passage {
        let (mut now, mut due_ps) = (begin, 0);
        for _ in 0..chunks {
            let passage = pace.issue(now, wire, WIRE, 0);
            now = now.max(passage.accepted_ps) + copy_ps;
            due_ps = passage.due_ps;
        }
        Passage { accepted_ps: now, due_ps }
    }

    #[test]
    fn a_burst_pays_propagation_once_and_keeps_the_wire_full() {
        let (pace, wire) = (pace(), AtomicU64::new(0));
        let end = burst(100, 100_000, BEGIN, &pace, &wire);
        assert_eq!(end.due_ps, BEGIN + 100 * WIRE + PROPAGATION);
    }

    #[test]
    fn a_writer_is_ahead_of_the_wire_by_the_posted_buffers_and_no_more() {
        let (pace, wire) = (pace(), AtomicU64::new(0));
        let first = pace.issue(BEGIN, &wire, WIRE, 0);
        assert_eq!((first.accepted_ps, first.due_ps), (BEGIN, BEGIN + WIRE + PROPAGATION));
        let end = burst(100, 0, BEGIN, &pace, &wire);
        assert_eq!(end.accepted_ps, BEGIN + 100 * WIRE - pace.posted_ps);
    }

    #[test]
    fn a_pause_that_the_posted_buffers_cover_leaves_no_gap_and_a_longer_one_does() {
        let (pace, wire) = (pace(), AtomicU64::new(0));
        let end = burst(100, 0, BEGIN, &pace, &wire);
        let covered = end.accepted_ps + pace.posted_ps;
        let next = pace.issue(covered, &wire, WIRE, 0);
        assert_eq!(next.due_ps, end.due_ps + WIRE);
        let late = covered + 2 * WIRE;
        let last = pace.issue(late, &wire, WIRE, 0);
        assert_eq!(last.due_ps, late + WIRE + PROPAGATION);
    }

    #[test]
    fn nothing_is_due_before_its_own_trip() {
        let (pace, wire) = (pace(), AtomicU64::new(0));
        let mut now = BEGIN;
        for pause in [0, 1000, WIRE, PROPAGATION / 2, PROPAGATION] {
            now += WIRE + pause;
            let passage = pace.issue(now, &wire, WIRE, 0);
            assert_eq!(passage.due_ps, now + WIRE + PROPAGATION, "after {pause} ps");
        }
    }

    #[test]
    fn two_requesters_share_the_wire() {
        let wire = AtomicU64::new(0);
        let (one, two) = (pace(), pace());
        for pair in 1..=50 {
            one.issue(BEGIN, &wire, WIRE, 0);
            let second = two.issue(BEGIN, &wire, WIRE, 0);
            assert_eq!(second.due_ps, BEGIN + 2 * pair * WIRE + PROPAGATION);
        }
    }

    #[test]
    fn a_fault_delays_the_arrival_and_not_the_writer() {
        let (pace, wire) = (pace(), AtomicU64::new(0));
        let passage = pace.issue(BEGIN, &wire, WIRE, 7_000);
        assert_eq!(passage.due_ps, BEGIN + WIRE + PROPAGATION + 7_000);
        assert_eq!(passage.accepted_ps, BEGIN);
    }
}
