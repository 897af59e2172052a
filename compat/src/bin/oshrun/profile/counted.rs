// SPDX-License-Identifier: Apache-2.0
//! What one PE has counted.

use serde::{Deserialize, Serialize};
use std::io;
use std::os::fd::OwnedFd;
use tombolo_core::profile::{self, CELL, Cell, PEER, REASONS};

/// What a PE has counted; see [`tombolo_core::profile`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Counted {
    pub pe: usize,
    /// Nanoseconds of the host's `CLOCK_MONOTONIC`; 0 for what never was.
    pub began: u64,
    pub ended: u64,
    /// What added to these makes them times since 1970.
    pub offset: u64,
    pub processors: u64,
    pub local: u64,
    pub rows: Vec<Row>,
    pub peers: Vec<[u64; PEER]>,
    pub waits: [[u64; 2]; REASONS],
    pub text: String,
    pub events: Vec<Event>,
    pub lost_events: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Row {
    pub routine: String,
    pub way: String,
    pub distance: String,
    pub class: u8,
    pub words: [u64; CELL],
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    pub begin: u64,
    pub end: u64,
    pub routine: String,
    pub way: String,
    pub distance: String,
    pub thread: u32,
    pub peer: Option<u32>,
    pub bytes: u64,
}

impl Counted {
    /// Reads what PE `pe` of `pes` has counted.
    pub fn read(pe: usize, fd: &OwnedFd, pes: usize) -> io::Result<Counted> {
        let read = profile::read(fd, pes)?;
        let rows = read.rows.into_iter().map(|row| {
            let profile::Row { routine, way, distance, class, words } = row;
            Row { routine, way, distance, class, words }
        });
        let events = read.events.into_iter().map(|event| {
            let profile::Event { begin, end, routine, way, distance, thread, peer, bytes } = event;
            Event { begin, end, routine, way, distance, thread, peer, bytes }
        });
        Ok(Counted {
            pe,
            began: read.began,
            ended: read.ended,
            offset: read.offset,
            processors: read.processors,
            local: read.local,
            rows: rows.collect(),
            events: events.collect(),
            peers: read.peers,
            waits: read.waits,
            text: read.text,
            lost_events: read.lost_events,
        })
    }
}

impl Row {
    pub fn word(&self, cell: Cell) -> u64 {
        self.words[cell as usize]
    }

    /// Nanoseconds of all calls: of those whose time was taken, and as many as the others are expected
    /// to have; and of all waits, which are all known.
    pub fn ns(&self) -> f64 {
        let [count, exact, exact_ns, samples, sample_ns, blocked, longest] = [
            Cell::Count,
            Cell::Exact,
            Cell::ExactNs,
            Cell::Samples,
            Cell::SampleNs,
            Cell::BlockedNs,
            Cell::LongestNs,
        ]
        .map(|cell| self.word(cell) as f64);
        let rest = (count - exact).max(0.0);
        let mean = match (samples > 0.0, exact > 1.0) {
            (true, _) => sample_ns / samples,
            // The first call of a kind finds cold caches.
            (false, true) => (exact_ns - longest.min(exact_ns)) / (exact - 1.0),
            (false, false) => exact_ns,
        };
        exact_ns + rest * mean + blocked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_that_were_not_taken_are_expected_to_be_like_samples() {
        let row = |words: [u64; CELL]| Row { words, ..Row::default() };
        // count, bytes, exact, exact_ns, samples, sample_ns, longest, blocked
        assert_eq!(row([4, 0, 4, 400, 0, 0, 200, 0]).ns(), 400.0);
        assert_eq!(row([108, 0, 8, 1000, 2, 20, 900, 0]).ns(), 1000.0 + 100.0 * 10.0);
        assert_eq!(row([10, 0, 8, 1000, 0, 0, 300, 0]).ns(), 1000.0 + 2.0 * 100.0);
        assert_eq!(row([5, 0, 0, 0, 0, 0, 0, 0]).ns(), 0.0);
        assert_eq!(row([1, 0, 1, 10, 0, 0, 500, 490]).ns(), 500.0);
    }
}
