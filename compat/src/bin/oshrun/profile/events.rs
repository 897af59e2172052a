// SPDX-License-Identifier: Apache-2.0
//! The events of a timeline: as a PE writes them, and in pieces as hosts tell them.
//!
//! There may be a million of each PE. They name what they are of by an index in [`Counted::names`], so that
//! each takes a few dozen bytes on its way and where it is kept.

use super::counted::Counted;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use tombolo_core::profile::EVENT;

/// Events in a piece: over a slow cable each still arrives within seconds, and tells that its host is there.
const PIECE: usize = 512;

/// Something that took time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    pub begin: u64,
    pub end: u64,
    pub bytes: u64,
    pub peer: Option<u32>,
    /// Number of the thread.
    pub thread: u32,
    /// Index in the names of its PE.
    pub name: u16,
    /// It ended with the PE.
    pub pending: bool,
}

/// Events as a PE writes them, which knows so many rows, in a job of so many PEs; the oldest first.
pub fn read(bytes: &[u8], rows: usize, pes: usize) -> Vec<Event> {
    let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("8 bytes"));
    let read = |bytes: &[u8]| {
        let mut words = bytes.chunks_exact(8).map(word);
        let [number, begin, end, row, peer, bytes]: [u64; EVENT] =
            std::array::from_fn(|_| words.next().unwrap_or(0));
        // A number 0: the PE stopped while it wrote this one.
        let sound = number > 0 && end >= begin && ((row as u32) as usize) < rows;
        let peer = (peer > 0 && peer <= pes as u64).then(|| (peer - 1) as u32);
        let (name, thread) = (row as u16, (row >> 32) as u32);
        sound.then_some((number, Event { begin, end, bytes, peer, thread, name, pending: false }))
    };
    let mut events: Vec<(u64, Event)> = bytes.chunks_exact(EVENT * 8).filter_map(read).collect();
    events.sort_by_key(|(number, _)| *number);
    events.into_iter().map(|(_, event)| event).collect()
}

/// Takes the events out of what a PE has counted, in pieces.
pub fn cut(counted: &mut Counted) -> impl Iterator<Item = Vec<Event>> + use<> {
    let mut events = std::mem::take(&mut counted.events).into_iter();
    std::iter::from_fn(move || {
        let piece: Vec<Event> = events.by_ref().take(PIECE).collect();
        (!piece.is_empty()).then_some(piece)
    })
}

/// Events that have arrived before the rest of what their PE has counted.
#[derive(Default)]
pub struct Pieces(HashMap<usize, Vec<Event>>);

impl Pieces {
    pub fn take(&mut self, pe: usize, piece: Vec<Event>) {
        self.0.entry(pe).or_default().extend(piece);
    }

    /// Gives the rest of what a PE has counted its events. Those without a name are left out.
    pub fn join(&mut self, counted: &mut Counted) {
        if let Some(before) = self.0.remove(&counted.pe) {
            let after = std::mem::replace(&mut counted.events, before);
            counted.events.extend(after);
        }
        let names = counted.names.len();
        counted.events.retain(|event| usize::from(event.name) < names);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{self, News};

    fn event(begin: u64, name: u16) -> Event {
        Event { begin, end: begin + 1, bytes: 8, peer: Some(1), thread: 0, name, pending: false }
    }

    fn counted(events: usize) -> Counted {
        Counted {
            pe: 3,
            names: vec![["shmem_put", "tcp", "hosts"].map(str::to_owned)],
            events: (0..events as u64).map(|begin| event(begin << 40, 0)).collect(),
            ..Counted::default()
        }
    }

    #[test]
    fn long_timelines_go_in_pieces_and_are_put_together_again() {
        for count in [0, 1, PIECE, 3 * PIECE + 1] {
            let (whole, mut rest) = (counted(count), counted(count));
            let mut news: Vec<News> =
                cut(&mut rest).map(|events| News::Events { pe: 3, events }).collect();
            news.push(News::Counted(Box::new(rest)));
            assert_eq!(news.len(), count.div_ceil(PIECE) + 1);
            let sent: Vec<Vec<u8>> = news.iter().map(|news| wire::encode(news).unwrap()).collect();
            // A second for each on the slowest of cables.
            assert!(sent.iter().all(|frame| frame.len() < 32 << 10));
            let mut pieces = Pieces::default();
            let bytes = sent.concat();
            let mut from = bytes.as_slice();
            let read = loop {
                match wire::read::<News>(&mut from).unwrap().unwrap() {
                    News::Events { pe, events } => pieces.take(pe, events),
                    News::Counted(mut rest) => {
                        pieces.join(&mut rest);
                        break *rest;
                    }
                    other => panic!("{other:?}"),
                }
            };
            assert_eq!(read, whole);
            // Whatever is cut off is an error, and no shorter timeline.
            let last = sent.last().unwrap().len();
            let mut cut_off = &bytes[..bytes.len() - last / 2];
            let end = std::iter::repeat_with(|| wire::read::<News>(&mut cut_off))
                .find(|read| !matches!(read, Ok(Some(News::Events { .. }))));
            assert!(end.unwrap().unwrap_err().contains("cut off"));
        }
    }

    #[test]
    fn events_of_nothing_are_left_out() {
        let mut pieces = Pieces::default();
        pieces.take(3, vec![event(1, 0), event(2, 1), event(3, u16::MAX)]);
        pieces.take(4, vec![event(9, 0)]);
        let mut rest = counted(0);
        pieces.join(&mut rest);
        assert_eq!(rest.events, [event(1, 0)]);
    }
}
