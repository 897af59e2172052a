// SPDX-License-Identifier: Apache-2.0
//! Queues for completions, and for buffers of what comes in.

use crate::random::Random;
use crate::types::{Cq, Wc};
use std::collections::VecDeque;
use std::os::fd::RawFd;

/// A completion.
struct Entry {
    wc: Wc,
    /// Which operation of a queue pair's send queue has ended, if one has, counted from the first.
    retires: Option<u64>,
    /// Nobody sees it earlier.
    not_before: u64,
}

/// A queue for completions.
pub struct Completions {
    entries: VecDeque<Entry>,
    most: usize,
    /// How many of the entries can be taken.
    visible: usize,
    /// Whether the next one that can be taken is to be told of.
    armed: bool,
    /// Where: an event descriptor. None without a channel.
    pub channel: Option<RawFd>,
    /// What the user calls it.
    pub handle: *mut Cq,
    /// Events that were taken and not acknowledged.
    pub unacknowledged: u32,
}

// SAFETY: the handle is only given back to whoever made the queue.
unsafe impl Send for Completions {}

impl Completions {
    pub fn new(most: usize, channel: Option<RawFd>, handle: *mut Cq) -> Completions {
        Completions {
            entries: VecDeque::new(),
            most,
            visible: 0,
            armed: false,
            channel,
            handle,
            unacknowledged: 0,
        }
    }

    /// Adds a completion. One more than there is room for ends the process: a card would lose it.
    pub fn push(&mut self, random: &mut Random, now: u64, wc: Wc, retires: Option<u64>) {
        if self.entries.len() >= self.most {
            eprintln!("ibverbs stand-in: a queue for {} completions overflows", self.most);
            std::process::abort();
        }
        let earliest = self.entries.back().map_or(0, |entry| entry.not_before);
        let not_before = earliest.max(now + random.delay());
        self.entries.push_back(Entry { wc, retires, not_before });
    }

    /// Has the next completion told of. None of those that can be taken now is.
    pub fn arm(&mut self) {
        self.armed = true;
    }

    /// Lets the time go on; gives when it should next.
    pub fn advance(&mut self, now: u64) -> Option<u64> {
        let before = self.visible;
        while self.entries.get(self.visible).is_some_and(|entry| entry.not_before <= now) {
            self.visible += 1;
        }
        if self.visible > before && self.armed {
            self.armed = false;
            if let Some(channel) = self.channel {
                crate::fabric::signal(channel);
            }
        }
        self.entries.get(self.visible).map(|entry| entry.not_before)
    }

    /// Takes a completion; with it the number of the operation that has ended, and its queue pair.
    pub fn take(&mut self) -> Option<(Wc, Option<u64>)> {
        self.visible = self.visible.checked_sub(1)?;
        self.entries.pop_front().map(|entry| (entry.wc, entry.retires))
    }

    /// Drops the completions of a queue pair.
    pub fn forget(&mut self, queue_pair: u32) {
        let mut kept = VecDeque::new();
        let visible = self.visible;
        for (at, entry) in self.entries.drain(..).enumerate() {
            if entry.wc.qp_num != queue_pair {
                kept.push_back(entry);
            } else if at < visible {
                self.visible -= 1;
            }
        }
        self.entries = kept;
    }
}

/// A buffer for what comes in.
pub struct Receive {
    pub id: u64,
    pub at: usize,
    pub len: usize,
    pub key: u32,
}

/// Buffers for what comes in, of one queue pair or of several.
pub struct Receives {
    pub posted: VecDeque<Receive>,
    pub most: usize,
}
