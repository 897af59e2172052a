// SPDX-License-Identifier: Apache-2.0
//! Claiming and leaving the place of a requester in link memory.

use super::layout::{REQUESTER_EVENTS, REQUESTERS, Requester};
use super::link::Link;
use super::sys;
use crate::ntb::port::{Event, PortError, Result};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A claimed place; left on drop.
#[derive(Debug)]
pub struct Claim {
    link: Arc<Link>,
    side: usize,
    index: usize,
    placing: u32,
}

impl Claim {
    /// Takes a place of `side` that was used before and is free, or whose process is dead, or a
    /// fresh one: barriers look at all that were ever used.
    pub fn new(link: Arc<Link>, side: usize) -> Result<Claim> {
        let used = link.side(side).requesters().len();
        let mut alive = std::process::id();
        let index = take(&link, side, 0..used, |pid| pid == 0)
            .or_else(|| {
                take(&link, side, 0..used, |pid| {
                    let dead = pid != 0 && pid != alive && !sys::is_alive(pid);
                    alive = if dead || pid == 0 { alive } else { pid };
                    dead
                })
            })
            .or_else(|| take(&link, side, 0..REQUESTERS, |pid| pid == 0))
            .ok_or_else(|| {
                PortError::Exhausted(format!(
                    "all {REQUESTERS} places for writers on this side of the link are in use"
                ))
            })?;
        let requester = &link.side(side).requesters[index];
        fold(&link, side, requester);
        let placing = requester.placing.reset();
        link.side(side).requesters_used.fetch_max(index as u32 + 1, Ordering::SeqCst);
        Ok(Claim { link, side, index, placing })
    }

    pub fn index(&self) -> usize {
        self.index
    }

    pub fn count(&self, event: Event, by: u64) {
        self.place().count(event, by);
    }

    /// From here to `leave`, barriers wait for this requester. Everything looked up in between is
    /// newer than what a barrier's caller had changed before.
    pub fn enter(&mut self) {
        self.placing = self.placing.wrapping_add(1);
        self.place().placing.begin(self.placing);
    }

    pub fn leave(&mut self) {
        self.placing = self.placing.wrapping_add(1);
        self.place().placing.end(self.placing);
    }

    fn place(&self) -> &Requester {
        &self.link.side(self.side).requesters[self.index]
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        fold(&self.link, self.side, self.place());
        self.place().pid.store(0, Ordering::Release);
    }
}

/// Claims the first of `places` whose process `may_take` accepts.
fn take(
    link: &Link,
    side: usize,
    places: Range<usize>,
    mut may_take: impl FnMut(u32) -> bool,
) -> Option<usize> {
    let own = std::process::id();
    let order = (Ordering::AcqRel, Ordering::Relaxed);
    places.into_iter().find(|index| {
        let place = &link.side(side).requesters[*index].pid;
        let pid = place.load(Ordering::Relaxed);
        may_take(pid) && place.compare_exchange(pid, own, order.0, order.1).is_ok()
    })
}

/// Moves what a requester has counted to the totals of its side.
fn fold(link: &Link, side: usize, requester: &Requester) {
    for event in &Event::ALL[..REQUESTER_EVENTS] {
        let counted = requester.counters[*event as usize].swap(0, Ordering::Relaxed);
        link.side(side).count(*event, counted);
    }
}
