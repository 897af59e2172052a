// SPDX-License-Identifier: Apache-2.0
//! Reading an area after its PE has ended.

use super::{
    CELL, CLASSES, Cell, EVENT, EVENTS_MAX, Head, Layout, MAGIC, NAME, PAGE, PEER, REASONS, ROW,
    ROWS, SLOTS, TEXT,
};
use std::fs::File;
use std::io::{Error, ErrorKind, Result};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

/// What a PE has counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Read {
    /// Begin of counting, nanoseconds of the host's `CLOCK_MONOTONIC`; 0 if it never began.
    pub began: u64,
    /// End of counting; 0 if it never ended.
    pub ended: u64,
    /// What added to these times makes them times since 1970.
    pub offset: u64,
    /// Processors that the PE may use.
    pub processors: u64,
    /// PEs of its host.
    pub local: u64,
    /// Cells in which something was counted.
    pub rows: Vec<Row>,
    /// By PE, what was exchanged with it.
    pub peers: Vec<[u64; PEER]>,
    /// By reason, number of waits and nanoseconds.
    pub waits: [[u64; 2]; REASONS],
    /// What the transports counted.
    pub text: String,
    /// Events, the oldest first.
    pub events: Vec<Event>,
    /// Events that were overwritten.
    pub lost_events: u64,
}

/// One cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Name of the routine.
    pub routine: String,
    /// What carried it; empty for what stays in the PE.
    pub way: String,
    /// How far.
    pub distance: String,
    /// Class of the size.
    pub class: u8,
    /// See [`Cell`].
    pub words: [u64; CELL],
}

/// Something that took time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Begin, nanoseconds of the host's `CLOCK_MONOTONIC`.
    pub begin: u64,
    /// End.
    pub end: u64,
    /// The routine.
    pub routine: String,
    /// What carried it, or what was waited for.
    pub way: String,
    /// How far; empty for waits.
    pub distance: String,
    /// Number of the thread.
    pub thread: u32,
    /// The PE that it concerned.
    pub peer: Option<u32>,
    /// Bytes.
    pub bytes: u64,
}

/// Reads the area of a PE of a job of `pes` PEs. Errors: the system's; what is there is no area.
pub fn read(fd: &OwnedFd, pes: usize) -> Result<Read> {
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
    // The size of the file cannot have been changed by a stray store; the header can.
    let len = file.metadata()?.len() as usize;
    let capacity = (head(Head::Capacity) as usize).min(EVENTS_MAX);
    let layout = Layout { pes, events: capacity };
    if layout.len() != len {
        return Ok(Read {
            began: head(Head::Began),
            peers: vec![[0; PEER]; pes],
            ..Read::default()
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
    const _: () = assert!(ROW == 3 * NAME && PAGE >= 2 * REASONS * 8);

    let mut read = Read {
        began: head(Head::Began),
        ended: head(Head::Ended),
        offset: head(Head::Offset),
        processors: head(Head::Processors),
        local: head(Head::Local),
        peers: vec![[0; PEER]; pes],
        text: text(Layout::TEXT_AT, (head(Head::Text) as usize).min(TEXT))?,
        ..Read::default()
    };
    let mut cells = vec![[0u64; CELL]; rows * CLASSES];
    for slot in 0..slots {
        for (reason, pair) in words(layout.slot(slot), 2 * REASONS)?.chunks_exact(2).enumerate() {
            read.waits[reason][0] = read.waits[reason][0].saturating_add(pair[0]);
            read.waits[reason][1] = read.waits[reason][1].saturating_add(pair[1]);
        }
        for (pe, own) in words(layout.peer(slot, 0), pes * PEER)?.chunks_exact(PEER).enumerate() {
            read.peers[pe]
                .iter_mut()
                .zip(own)
                .for_each(|(sum, own)| *sum = sum.saturating_add(*own));
        }
        let own = words(layout.cell(slot, 0, 0), rows * CLASSES * CELL)?;
        for (sum, own) in cells.iter_mut().zip(own.chunks_exact(CELL)) {
            for (index, (sum, own)) in sum.iter_mut().zip(own).enumerate() {
                *sum = match index == Cell::LongestNs as usize {
                    true => (*sum).max(*own),
                    false => sum.saturating_add(*own),
                };
            }
        }
    }
    for (index, words) in cells.into_iter().enumerate() {
        if words[Cell::Count as usize] > 0 {
            let [routine, way, distance] = names[index / CLASSES].clone();
            read.rows.push(Row { routine, way, distance, class: (index % CLASSES) as u8, words });
        }
    }
    let total = head(Head::Events);
    let there = total.min(capacity as u64) as usize;
    read.lost_events = if capacity == 0 { 0 } else { total - there as u64 };
    let mut events: Vec<(u64, Event)> = words(Layout::event(0), there * EVENT)?
        .chunks_exact(EVENT)
        .filter_map(|words| {
            let [number, begin, end, row, peer, bytes] = words.try_into().ok()?;
            let [routine, way, distance] = names.get((row as u32) as usize)?.clone();
            let thread = (row >> 32) as u32;
            let peer = (peer > 0 && peer <= pes as u64).then(|| (peer - 1) as u32);
            // 0: the PE stopped while it wrote this one.
            let event = Event { begin, end, routine, way, distance, thread, peer, bytes };
            (number > 0 && end >= begin).then_some((number, event))
        })
        .collect();
    events.sort_by_key(|(number, _)| *number);
    read.events = events.into_iter().map(|(_, event)| event).collect();
    Ok(read)
}
