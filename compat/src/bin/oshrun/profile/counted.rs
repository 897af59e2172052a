// SPDX-License-Identifier: Apache-2.0
//! What one PE has counted.

use super::events::{self, Event};
use crate::report;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{Error, ErrorKind, Result};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use tombolo_core::profile::{
    CELL, CLASSES, Cell, EVENT, EVENTS_MAX, Head, LIVES, Layout, Lives, MAGIC, NAME, PEER, PENDING,
    Pending, REASONS, ROWS, SLOTS, TEXT,
};
use tombolo_core::wait::Reason;

/// What a PE has counted; see [`tombolo_core::profile`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Counted {
    pub pe: usize,
    /// Nanoseconds of the host's `CLOCK_MONOTONIC`; 0 if counting never began.
    pub began: u64,
    pub ended: u64,
    pub end: End,
    /// What added to these makes them times since 1970.
    pub offset: u64,
    /// Processors for the PEs of its host.
    pub processors: u64,
    /// PEs of its host.
    pub local: u64,
    /// Cells in which something was counted.
    pub rows: Vec<Row>,
    /// Nanoseconds of all threads that called something, from the first call of each to its end.
    pub lived: u64,
    /// Calls in which the PE ended. They count in all else as if they had returned at that moment.
    pub pending: Vec<Call>,
    /// By PE, what was exchanged with it.
    pub peers: Vec<[u64; PEER]>,
    /// By reason, number of waits and nanoseconds.
    pub waits: [[u64; 2]; REASONS],
    /// What the transports counted.
    pub text: String,
    /// Routine, what carried it or what was waited for, and how far; empty for waits: of events.
    pub names: Vec<[String; 3]>,
    /// The oldest first.
    pub events: Vec<Event>,
    /// Events that were overwritten.
    pub lost_events: u64,
}

/// What ended the counting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum End {
    /// It never began.
    #[default]
    Never,
    /// `shmem_finalize`.
    Finalize,
    /// The PE ended the job.
    GlobalExit,
    /// The PE ended in any other way.
    Process,
}

/// A call that did not return.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Call {
    pub routine: String,
    /// Nanoseconds, or those of its wait alone where its begin is not known.
    pub ns: u64,
    /// By reason, nanoseconds of the wait that it was in.
    pub waits: [u64; REASONS],
}

/// One cell.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Row {
    pub routine: String,
    /// What carried it; empty for what stays in the PE.
    pub way: String,
    /// How far.
    pub distance: String,
    /// Class of the size.
    pub class: u8,
    /// See [`Cell`].
    pub words: [u64; CELL],
    /// Nanoseconds of all calls.
    pub ns: f64,
}

/// What a PE has counted, still to be read.
pub struct Unread {
    pub pe: usize,
    pub fd: OwnedFd,
    /// PEs of the job.
    pub pes: usize,
    /// When its process ended.
    pub gone: u64,
}

impl Unread {
    /// None if it cannot be read, which is said.
    pub fn read(&self) -> Option<Counted> {
        let read = Counted::read(self.pe, &self.fd, self.pes, self.gone);
        read.map_err(|why| {
            let pe = self.pe;
            report::line(format_args!("what PE {pe} has counted cannot be read: {why}"));
        })
        .ok()
    }
}

impl Counted {
    /// Reads what PE `pe` of `pes`, whose process ended at `gone`, has counted. Errors: the system's; the memory is
    /// not of this job.
    pub fn read(pe: usize, fd: &OwnedFd, pes: usize, gone: u64) -> Result<Counted> {
        let file = File::from(fd.try_clone()?);
        // Not by a mapping: pages that do not exist would be made.
        let words = |offset: usize, count: usize| -> Result<Vec<u64>> {
            let mut bytes = vec![0; count * 8];
            file.read_exact_at(&mut bytes, offset as u64)?;
            let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("8 bytes"));
            Ok(bytes.chunks_exact(8).map(word).collect())
        };
        let header = words(0, 16)?;
        let head = |head: Head| header[head as usize];
        if head(Head::Magic) != MAGIC || head(Head::Pes) != pes as u64 {
            return Err(Error::new(ErrorKind::InvalidData, "no profile of this job"));
        }
        let (began, told) = (head(Head::Began), head(Head::Ended));
        // Anything later than the end of the process was written by a stray store.
        let finalized = told > 0 && (began..=gone).contains(&told);
        let ended = if finalized { told } else { gone };
        let end = match (began, finalized, head(Head::Exited)) {
            (0, ..) => End::Never,
            (_, true, _) => End::Finalize,
            (_, _, 0) => End::Process,
            _ => End::GlobalExit,
        };
        // The size of the file cannot have been changed by a stray store; the header can.
        let len = file.metadata()?.len() as usize;
        let capacity = (head(Head::Capacity) as usize).min(EVENTS_MAX);
        let layout = Layout { pes, events: capacity };
        if layout.size() != len {
            return Ok(Counted {
                pe,
                began,
                ended,
                end,
                peers: vec![[0; PEER]; pes],
                ..Counted::default()
            });
        }
        let rows = (head(Head::Rows) as usize).min(ROWS);
        let slots = (head(Head::Slots) as usize).min(SLOTS);
        let text = |offset: usize, len: usize| -> Result<String> {
            let mut bytes = vec![0; len];
            file.read_exact_at(&mut bytes, offset as u64)?;
            let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(len);
            Ok(String::from_utf8_lossy(&bytes[..end]).into_owned())
        };
        let names: Vec<[String; 3]> = (0..rows)
            .map(|row| {
                let part = |part: usize| text(Layout::row(row) + part * NAME, NAME);
                Ok([part(0)?, part(1)?, part(2)?])
            })
            .collect::<Result<_>>()?;

        let mut read = Counted {
            pe,
            began,
            ended,
            end,
            offset: head(Head::Offset),
            processors: head(Head::Processors),
            local: head(Head::Local),
            peers: vec![[0; PEER]; pes],
            text: text(Layout::TEXT_AT, (head(Head::Text) as usize).min(TEXT))?,
            names,
            ..Counted::default()
        };
        let mut cells = vec![[0u64; CELL]; rows * CLASSES];
        let mut pending = Vec::new();
        let mut times = vec![0.0; rows * CLASSES];
        for slot in 0..slots {
            for (reason, pair) in words(layout.slot(slot), 2 * REASONS)?.chunks_exact(2).enumerate()
            {
                read.waits[reason][0] = read.waits[reason][0].saturating_add(pair[0]);
                read.waits[reason][1] = read.waits[reason][1].saturating_add(pair[1]);
            }
            for (pe, own) in words(layout.peer(slot, 0), pes * PEER)?.chunks_exact(PEER).enumerate()
            {
                read.peers[pe]
                    .iter_mut()
                    .zip(own)
                    .for_each(|(sum, own)| *sum = sum.saturating_add(*own));
            }
            let mut own = words(layout.cell(slot, 0, 0), rows * CLASSES * CELL)?;
            if !finalized {
                pending
                    .extend(read.finish(&words(layout.pending(slot), PENDING)?, (slot, &mut own)));
            }
            let own_times: Vec<Time> = own.chunks_exact(CELL).map(Time::of).collect();
            let whole = own_times.iter().fold(Time::default(), Time::and);
            let lived = match whole.is_nothing() {
                // Threads of the library call nothing.
                true => Some(0),
                false => lived(&words(layout.lives(slot), LIVES)?, read.began, read.ended),
            };
            read.lived += lived.unwrap_or(0);
            let part = lived.map_or(1.0, |lived| whole.part_within(lived as f64));
            for (sum, own) in times.iter_mut().zip(&own_times) {
                *sum += own.known + part * own.expected;
            }
            for (sum, own) in cells.iter_mut().zip(own.chunks_exact(CELL)) {
                for (index, (sum, own)) in sum.iter_mut().zip(own).enumerate() {
                    *sum = match index == Cell::LongestNs as usize {
                        true => (*sum).max(*own),
                        false => sum.saturating_add(*own),
                    };
                }
            }
        }
        for (index, (words, ns)) in cells.into_iter().zip(times).enumerate() {
            if words[Cell::Count as usize] > 0 {
                let [routine, way, distance] = read.names[index / CLASSES].clone();
                read.rows.push(Row {
                    routine,
                    way,
                    distance,
                    class: (index % CLASSES) as u8,
                    words,
                    ns,
                });
            }
        }
        let total = head(Head::Events);
        let there = total.min(capacity as u64) as usize;
        read.lost_events = if capacity == 0 { 0 } else { total - there as u64 };
        let bytes = &mut vec![0; there * EVENT * 8];
        file.read_exact_at(bytes, Layout::event(0) as u64)?;
        read.events = events::read(bytes, rows, pes);
        if capacity > 0 {
            read.events.extend(pending);
        } else {
            read.names.clear();
        }
        Ok(read)
    }

    /// Counts the call and the wait that the thread of a slot was in when the PE ended, as if they had ended then: in
    /// the slot's cells `own` and here. Gives them as events.
    fn finish(&mut self, pending: &[u64], (slot, own): (usize, &mut [u64])) -> Vec<Event> {
        let word = |word: Pending| pending[word as usize];
        // Of what a stray store has written, nothing is taken.
        let begun = |cell: Pending, since: Pending| {
            let cell = (word(cell) as usize).checked_sub(1)?;
            let name = cell / CLASSES;
            // Rows have cells and names; names of waits, which follow, have no cells.
            (cell < own.len() / CELL).then_some(())?;
            self.names.get(name)?;
            let begin = Some(word(since)).filter(|since| *since >= self.began)?;
            let event = Event {
                begin,
                end: self.ended,
                name: name as u16,
                thread: slot as u32,
                peer: None,
                bytes: 0,
                pending: true,
            };
            Some((cell * CELL, self.ended.checked_sub(begin)?, event))
        };
        let peer = |word: u64| {
            let pe = word.checked_sub(1).filter(|pe| *pe < self.peers.len() as u64);
            pe.map(|pe| pe as u32)
        };
        let mut call = begun(Pending::Call, Pending::CallSince);
        let reason = Reason::ALL.get(word(Pending::WaitReason) as usize).copied();
        let mut wait = reason.and_then(|_| begun(Pending::Wait, Pending::WaitSince));
        let (mut blocked, mut waits) = (word(Pending::CallBlocked), [0; REASONS]);
        let mut add = |at: usize, cell: Cell, ns: u64| {
            let sum = &mut own[at + cell as usize];
            *sum = match cell {
                Cell::LongestNs => (*sum).max(ns),
                _ => sum.saturating_add(ns),
            };
        };
        if let (Some((at, ns, event)), Some(reason)) = (&mut wait, reason) {
            waits.copy_from_slice(&pending[Pending::WaitNs as usize..]);
            let known = waits.iter().fold(0u64, |sum, ns| sum.saturating_add(*ns));
            if known > *ns {
                waits = [0; REASONS];
            }
            waits[reason as usize] += *ns - known.min(*ns);
            // Named by what took most of it, as others are.
            let most = Reason::ALL.into_iter().max_by_key(|reason| waits[*reason as usize]);
            let routine = self.names[usize::from(event.name)][0].clone();
            let way = most.unwrap_or(reason).name().to_owned();
            event.name = self.names.len() as u16;
            self.names.push([routine, way, String::new()]);
            event.peer = peer(word(Pending::WaitPeer));
            add(*at, Cell::BlockedNs, *ns);
            if word(Pending::WaitAlone) != 0 {
                [Cell::Count, Cell::Exact].into_iter().for_each(|cell| add(*at, cell, 1));
                add(*at, Cell::LongestNs, *ns);
            }
            blocked = blocked.saturating_add(*ns);
        }
        if let Some((at, ns, event)) = &mut call {
            event.peer = peer(word(Pending::CallPeer));
            event.bytes = word(Pending::CallBytes);
            add(*at, Cell::Exact, 1);
            add(*at, Cell::ExactNs, ns.saturating_sub(blocked));
            add(*at, Cell::LongestNs, *ns);
        }
        for (reason, ns) in waits.into_iter().enumerate().filter(|(_, ns)| *ns > 0) {
            self.waits[reason][0] = self.waits[reason][0].saturating_add(1);
            self.waits[reason][1] = self.waits[reason][1].saturating_add(ns);
        }
        if let Some((_, ns, event)) = call.as_ref().or(wait.as_ref()) {
            let routine = self.names[usize::from(event.name)][0].clone();
            self.pending.push(Call { routine, ns: *ns, waits });
        }
        call.into_iter().chain(wait).map(|(.., event)| event).collect()
    }
}

impl Row {
    pub fn word(&self, cell: Cell) -> u64 {
        self.words[cell as usize]
    }
}

/// Nanoseconds of calls.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Time {
    /// Of those whose time was taken, and of all waits, which are all known.
    known: f64,
    /// What all others are expected to have taken.
    expected: f64,
}

impl Time {
    fn of(words: &[u64]) -> Time {
        let [count, exact, exact_ns, samples, sample_ns, blocked, longest] = [
            Cell::Count,
            Cell::Exact,
            Cell::ExactNs,
            Cell::Samples,
            Cell::SampleNs,
            Cell::BlockedNs,
            Cell::LongestNs,
        ]
        .map(|cell| words[cell as usize] as f64);
        let rest = (count - exact).max(0.0);
        let mean = match (samples > 0.0, exact > 1.0) {
            (true, _) => sample_ns / samples,
            // The first call of a kind finds cold caches.
            (false, true) => (exact_ns - longest.min(exact_ns)) / (exact - 1.0),
            (false, false) => exact_ns,
        };
        Time { known: exact_ns + blocked, expected: rest * mean }
    }

    fn and(self, other: &Time) -> Time {
        Time { known: self.known + other.known, expected: self.expected + other.expected }
    }

    fn is_nothing(self) -> bool {
        self == Time::default()
    }

    /// The part of what is expected for which there is time: samples may have been longer than others.
    fn part_within(self, lived: f64) -> f64 {
        let left = (lived - self.known).max(0.0);
        if self.expected > left { left / self.expected } else { 1.0 }
    }
}

/// Nanoseconds that the threads of a slot lived while something was counted; none if that makes no sense.
fn lived(lives: &[u64], began: u64, ended: u64) -> Option<u64> {
    let word = |word: Lives| lives[word as usize];
    let living = word(Lives::Begun).wrapping_sub(word(Lives::Ended));
    let until = word(Lives::Until).wrapping_add(living.wrapping_mul(ended));
    let lived = until.wrapping_sub(word(Lives::Since));
    let most = ended.checked_sub(began)?.saturating_mul(word(Lives::Begun));
    // Anything else was written by a stray store.
    Some(lived.min(most))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};
    use tombolo_core::profile::{Area, Exchanged};

    #[test]
    fn times_that_were_not_taken_are_expected_to_be_like_samples() {
        let time = |words: [u64; CELL]| {
            let Time { known, expected } = Time::of(&words);
            (known, expected)
        };
        // count, bytes, exact, exact_ns, samples, sample_ns, longest, blocked
        assert_eq!(time([4, 0, 4, 400, 0, 0, 200, 0]), (400.0, 0.0));
        assert_eq!(time([108, 0, 8, 1000, 2, 20, 900, 0]), (1000.0, 100.0 * 10.0));
        assert_eq!(time([10, 0, 8, 1000, 0, 0, 300, 0]), (1000.0, 2.0 * 100.0));
        assert_eq!(time([5, 0, 0, 0, 0, 0, 0, 0]), (0.0, 0.0));
        assert_eq!(time([1, 0, 1, 10, 0, 0, 500, 490]), (500.0, 0.0));
    }

    #[test]
    fn calls_take_no_longer_than_their_threads_live() {
        let fd = Area::create(2, 0).unwrap();
        let area = Area::open(fd.try_clone().unwrap(), 2).unwrap();
        let set = |words: &[AtomicU64], values: &[u64]| {
            words
                .iter()
                .zip(values)
                .for_each(|(word, value)| word.store(*value, Ordering::Relaxed));
        };
        area.head(Head::Began).store(1_000, Ordering::Relaxed);
        area.head(Head::Ended).store(11_000, Ordering::Relaxed);
        area.head(Head::Rows).store(1, Ordering::Relaxed);
        area.head(Head::Slots).store(3, Ordering::Relaxed);
        area.name(0, ["shmem_put", "ntb", "1 link"]);
        // 8 calls of 100 ns, and one sample of 90 us that stands for 92 more; they lived 10 us.
        set(&area.cells(0, 0)[0], &[100, 800, 8, 800, 1, 90_000, 90_000, 200]);
        set(area.lives(0), &[1, 1_000, 0, 0]);
        // Two threads that waited most of the time, one of which has ended.
        set(&area.cells(1, 0)[0], &[2, 16, 2, 100, 0, 0, 9_000, 16_000]);
        set(area.lives(1), &[2, 1_100 + 1_500, 1, 10_000]);
        // A thread of the library.
        set(area.lives(2), &[1, 2_000, 0, 0]);
        let read = Counted::read(0, &fd, 2, 12_000).unwrap();
        assert_eq!((read.end, read.ended), (End::Finalize, 11_000));
        assert_eq!(read.lived, 10_000 + 21_000 - 2_600);
        assert!((read.rows[0].ns - (10_000.0 + 16_100.0)).abs() < 1e-3, "{:?}", read.rows);
        // Without shmem_finalize, threads lived until the process ended.
        area.head(Head::Ended).store(0, Ordering::Relaxed);
        let read = Counted::read(0, &fd, 2, 12_000).unwrap();
        assert_eq!((read.end, read.ended), (End::Process, 12_000));
        assert_eq!(read.lived, 11_000 + 22_000 - 2_600);
        // How long is not known if somebody has overwritten it.
        area.head(Head::Ended).store(11_000, Ordering::Relaxed);
        set(area.lives(1), &[2, u64::MAX / 2, 1, 10_000]);
        assert!(Counted::read(0, &fd, 2, 12_000).unwrap().lived <= 30_000);
    }

    /// The area of a PE that began to count at 1,000 and has a barrier in row 0, and its words of what is pending.
    fn within_a_barrier(events: usize) -> (OwnedFd, Area) {
        let fd = Area::create(2, events).unwrap();
        let area = Area::open(fd.try_clone().unwrap(), 2).unwrap();
        for (head, value) in [(Head::Began, 1_000), (Head::Rows, 1), (Head::Slots, 1)] {
            area.head(head).store(value, Ordering::Relaxed);
        }
        area.name(0, ["shmem_barrier_all", "", ""]);
        area.lives(0)[Lives::Begun as usize].store(1, Ordering::Relaxed);
        area.lives(0)[Lives::Since as usize].store(1_000, Ordering::Relaxed);
        (fd, area)
    }

    #[test]
    fn the_call_in_which_a_pe_ends_counts_up_to_there() {
        let (fd, area) = within_a_barrier(4);
        let set = |word: Pending, value: u64| {
            area.pending(0)[word as usize].store(value, Ordering::Relaxed);
        };
        // One that took 100 ns, and one from 2,000 on that waited 50 ns, and waits from 3,000 on.
        for (cell, value) in [(Cell::Count, 2), (Cell::Exact, 1), (Cell::ExactNs, 100)] {
            area.cells(0, 0)[0][cell as usize].store(value, Ordering::Relaxed);
        }
        area.cells(0, 0)[0][Cell::BlockedNs as usize].store(50, Ordering::Relaxed);
        set(Pending::CallSince, 2_000);
        set(Pending::CallBlocked, 50);
        set(Pending::Call, 1);
        set(Pending::WaitSince, 3_000);
        set(Pending::WaitReason, Reason::Members as u64);
        set(Pending::Wait, 1);
        let read = Counted::read(0, &fd, 2, 9_000).unwrap();
        let row = &read.rows[0];
        assert_eq!([Cell::Count, Cell::Exact].map(|cell| row.word(cell)), [2, 2]);
        assert_eq!([Cell::ExactNs, Cell::BlockedNs].map(|cell| row.word(cell)), [1_050, 6_050]);
        assert_eq!((row.word(Cell::LongestNs), row.ns), (7_000, 7_100.0));
        assert_eq!(read.waits[Reason::Members as usize], [1, 6_000]);
        assert_eq!((read.pending[0].ns, read.lived), (7_000, 8_000));
        let way = |event: &Event| read.names[usize::from(event.name)][1].as_str();
        let spans: Vec<_> =
            read.events.iter().map(|e| (way(e), e.begin, e.end, e.pending)).collect();
        let words = "other PEs to arrive";
        assert_eq!(spans, [("", 2_000, 9_000, true), (words, 3_000, 9_000, true)]);
        // A wait may be for one thing after the other.
        set(Pending::WaitReason, Reason::Link as u64);
        area.pending(0)[Pending::WaitNs as usize + Reason::Members as usize]
            .store(500, Ordering::Relaxed);
        let read = Counted::read(0, &fd, 2, 9_000).unwrap();
        assert_eq!(
            [Reason::Members, Reason::Link].map(|reason| read.waits[reason as usize]),
            [[1, 500], [1, 5_500]]
        );
        // A PE that has finalised is in no call.
        area.head(Head::Ended).store(8_000, Ordering::Relaxed);
        let read = Counted::read(0, &fd, 2, 9_000).unwrap();
        assert!(read.pending.is_empty() && read.events.is_empty(), "{read:?}");
        assert_eq!(read.rows[0].word(Cell::BlockedNs), 50);
    }

    #[test]
    fn a_wait_in_which_a_pe_ends_may_be_all_that_is_known_of_its_call() {
        let (fd, area) = within_a_barrier(0);
        let set = |word: Pending, value: u64| {
            area.pending(0)[word as usize].store(value, Ordering::Relaxed);
        };
        set(Pending::WaitSince, 3_000);
        set(Pending::WaitAlone, 1);
        set(Pending::Wait, 1);
        let read = Counted::read(0, &fd, 2, 9_000).unwrap();
        let row = &read.rows[0];
        assert_eq!((row.word(Cell::Count), row.ns, read.pending[0].ns), (1, 6_000.0, 6_000));
        assert!(read.events.is_empty(), "no timeline is wanted");
        // Written by stray stores.
        let wrong =
            [(Pending::WaitSince, 999), (Pending::WaitSince, 9_001), (Pending::Wait, 1 << 40)];
        for (word, value) in wrong {
            let good = area.pending(0)[word as usize].swap(value, Ordering::Relaxed);
            let read = Counted::read(0, &fd, 2, 9_000).unwrap();
            assert!(read.rows.is_empty() && read.pending.is_empty(), "{word:?}: {read:?}");
            set(word, good);
        }
        set(Pending::WaitNs, u64::MAX);
        let read = Counted::read(0, &fd, 2, 9_000).unwrap();
        assert!(read.waits.iter().all(|[_, ns]| *ns <= 6_000), "{read:?}");
    }

    #[test]
    fn how_counting_ended_is_known() {
        let (fd, area) = within_a_barrier(0);
        let end = || Counted::read(0, &fd, 2, 9_000).map(|read| (read.end, read.ended)).unwrap();
        assert_eq!(end(), (End::Process, 9_000));
        area.head(Head::Exited).store(7_000, Ordering::Relaxed);
        assert_eq!(end(), (End::GlobalExit, 9_000));
        // Not after the process.
        area.head(Head::Ended).store(10_000, Ordering::Relaxed);
        assert_eq!(end(), (End::GlobalExit, 9_000));
        area.head(Head::Ended).store(8_000, Ordering::Relaxed);
        assert_eq!(end(), (End::Finalize, 8_000));
        area.head(Head::Began).store(0, Ordering::Relaxed);
        assert_eq!(end().0, End::Never);
    }

    #[test]
    fn what_is_written_is_read_and_pages_exist_only_where_something_was() {
        let fd = Area::create(3, 4).unwrap();
        let area = Area::open(fd.try_clone().unwrap(), 3).unwrap();
        area.head(Head::Began).store(5, Ordering::Relaxed);
        area.head(Head::Rows).store(1, Ordering::Relaxed);
        area.head(Head::Slots).store(2, Ordering::Relaxed);
        area.name(0, ["shmem_put", "mapped memory", "itself"]);
        for slot in 0..2 {
            area.cells(slot, 0)[3][Cell::Count as usize].store(10, Ordering::Relaxed);
            area.peers(slot)[2][Exchanged::PutBytes as usize].store(640, Ordering::Relaxed);
            area.waits(slot, 1)[1].store(7, Ordering::Relaxed);
        }
        area.set_text("a text");
        (0..6).for_each(|n| area.event([n, n + 1, 0, 3, 64]));
        let read = Counted::read(0, &fd, 3, 9).unwrap();
        assert_eq!((read.began, read.ended, read.text.as_str()), (5, 9, "a text"));
        assert_eq!(read.rows.len(), 1);
        let row = &read.rows[0];
        assert_eq!(
            (row.routine.as_str(), row.way.as_str(), row.distance.as_str()),
            ("shmem_put", "mapped memory", "itself")
        );
        assert_eq!((row.class, row.words[Cell::Count as usize]), (3, 20));
        assert_eq!(read.peers[2][Exchanged::PutBytes as usize], 1280);
        assert_eq!(read.waits[1], [0, 14]);
        assert_eq!(read.lost_events, 2);
        let begins: Vec<u64> = read.events.iter().map(|event| event.begin).collect();
        assert_eq!((begins, read.events[0].peer), (vec![2, 3, 4, 5], Some(2)));
        let stat = nix::sys::stat::fstat(&fd).unwrap();
        assert!(stat.st_blocks * 512 < stat.st_size / 10, "{stat:?}");
    }

    #[test]
    fn garbage_does_no_harm() {
        let fd = Area::create(3, 0).unwrap();
        let area = Area::open(fd.try_clone().unwrap(), 3).unwrap();
        area.event([1; EVENT - 1]);
        for head in [Head::Rows, Head::Slots, Head::Text, Head::Events, Head::Capacity] {
            area.head(head).store(u64::MAX, Ordering::Relaxed);
        }
        let read = Counted::read(0, &fd, 3, 9).unwrap();
        assert!(read.rows.is_empty() && read.events.is_empty());
        nix::unistd::ftruncate(&fd, 100).unwrap();
        assert!(Counted::read(0, &fd, 3, 9).is_err());
    }
}
