// SPDX-License-Identifier: Apache-2.0
//! What people are told about links and hosts, and what the core must know of it.

use super::lane::Lane;
use crate::ntb::ring::{Event, Side};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use tombolo_core::transport::{News, Told};

/// Turns events of engines into messages.
pub struct Reporter {
    /// PEs by host of the ring.
    pes: Vec<Vec<usize>>,
    /// The host of each PE that is on one.
    host_of: Vec<Option<u16>>,
    me: u16,
    /// The hosts are a line, whose ends no link joins.
    is_line: bool,
    /// All PEs see the same; one of a host speaks for it.
    speaks: bool,
    /// 1 + a PE that was given up, or 0.
    lost: AtomicU32,
    /// For whom a timeline is made, if for somebody.
    told: OnceLock<Told>,
    /// Flows that have changed direction, as far as was told.
    rerouted: AtomicU64,
}

impl Reporter {
    /// For host `me` of a ring, or of a line; `pes` by host.
    pub fn new(me: u16, pes: Vec<Vec<usize>>, is_line: bool, speaks: bool) -> Reporter {
        let count = pes.iter().flatten().max().map_or(0, |last| last + 1);
        let mut host_of = vec![None; count];
        for (host, pes) in pes.iter().enumerate() {
            pes.iter().for_each(|pe| host_of[*pe] = Some(host as u16));
        }
        Reporter {
            pes,
            host_of,
            me,
            is_line,
            speaks,
            lost: AtomicU32::new(0),
            told: OnceLock::new(),
            rerouted: AtomicU64::new(0),
        }
    }

    /// Has `told` be told about links and about service threads from now on.
    pub fn tell_to(&self, told: Told) {
        // The first stays.
        let _ = self.told.set(told);
    }

    /// Who is told about service threads.
    pub fn told(&self) -> Option<&Told> {
        self.told.get()
    }

    /// A PE that was given up.
    pub fn lost(&self) -> Option<usize> {
        match self.lost.load(Ordering::Acquire) {
            0 => None,
            pe => Some(pe as usize - 1),
        }
    }

    /// The host in the ring of a PE that is reached over it.
    pub fn host_of(&self, pe: usize) -> Option<u16> {
        *self.host_of.get(pe)?
    }

    /// Links between the hosts of two PEs, the shorter way round a ring.
    pub fn hops(&self, a: usize, b: usize) -> Option<u32> {
        let (a, b, hosts) = (self.host_of(a)?, self.host_of(b)?, self.pes.len() as u16);
        if self.is_line {
            return Some(a.abs_diff(b).into());
        }
        let forth = (b + hosts - a) % hosts;
        Some(forth.min(hosts - forth).into())
    }

    /// Tells what has happened on a lane; links go down for all lanes at once, so only the
    /// one that `leads` warns of it.
    pub fn report(&self, lane: &Lane, leads: bool) {
        while let Some(event) = lane.next_event() {
            self.tell(event, leads);
            self.draw(event, leads);
        }
        // Links of others count as well, whose state comes without an event.
        if let Some(told) = self.told.get().filter(|_| leads) {
            let rerouted = lane.stats().0.rerouted;
            let flows = rerouted - self.rerouted.swap(rerouted, Ordering::Relaxed).min(rerouted);
            if flows > 0 {
                told(&News::Failover { flows });
            }
        }
    }

    /// Has an event drawn on the timeline, once for a host.
    fn draw(&self, event: Event, leads: bool) {
        let Some(told) = self.told.get().filter(|_| leads && self.speaks) else { return };
        let (what, side) = match event {
            Event::LinkUp(side) => ("link in use", side),
            Event::LinkDown(side) => ("link down", side),
            Event::Resting(side) => {
                ("link not used for a while: too many packets are damaged, lost or late", side)
            }
            Event::Silent(side) => ("no answer over a link that is up", side),
            Event::Mismatch(side) => {
                ("link leads to a host whose NTB transport was set up differently", side)
            }
            Event::Lost { .. } | Event::GaveUp(_) => return,
        };
        told(&News::Link { what, link: self.link(side).0.into() });
    }

    fn tell(&self, event: Event, leads: bool) {
        match event {
            Event::LinkUp(side) => self.say_link(side, "is in use", false),
            Event::LinkDown(side) => {
                let what = match self.is_line {
                    true => "is out of use; the line of hosts is cut there",
                    false => "is out of use; traffic goes the other way round",
                };
                self.say_link(side, what, leads);
            }
            Event::Resting(side) => self.say_resting(side, leads),
            Event::Silent(side) => self.say_silent(side, leads),
            Event::Mismatch(side) => self.say_link(
                side,
                "leads to a host whose NTB transport was set up differently",
                leads,
            ),
            Event::Lost { first, count } => {
                let hosts = self.pes.len() as u16;
                self.give_up((0..count).map(|step| (first + step) % hosts));
            }
            Event::GaveUp(host) => self.give_up(std::iter::once(host)),
        }
    }

    /// A link, and the hosts at its left and right end.
    fn link(&self, side: Side) -> (u16, [u16; 2]) {
        let hosts = self.pes.len() as u16;
        let left = match side {
            Side::Right => self.me,
            Side::Left => (self.me + hosts - 1) % hosts,
        };
        (left, [left, (left + 1) % hosts])
    }

    /// Only the end that receives what is damaged or late knows of it.
    fn say_resting(&self, side: Side, warn: bool) {
        let (link, [a, b]) = self.link(side);
        if self.speaks && warn {
            tracing::warn!(
                "NTB link {link} (hosts {a} and {b}) is not used for a while: too many packets are damaged, lost or \
                 late"
            );
        }
    }

    /// Both ends see a link change: the host at its left end warns.
    fn say_link(&self, side: Side, what: &str, warn: bool) {
        let (link, [a, b]) = self.link(side);
        if self.speaks && warn && side == Side::Right {
            tracing::warn!("NTB link {link} (hosts {a} and {b}) {what}");
        } else {
            tracing::debug!("NTB link {link} (hosts {a} and {b}) {what}");
        }
    }

    fn say_silent(&self, side: Side, warn: bool) {
        let (_, [a, b]) = self.link(side);
        let host = if side == Side::Right { b } else { a };
        if self.speaks && warn {
            tracing::warn!(
                "host {host} does not answer, though its link is up: a PE of it may be stopped; it is \
                 given up after SHMEM_NTB_SILENCE seconds"
            );
        }
    }

    fn give_up(&self, hosts: impl Iterator<Item = u16>) {
        let hosts: Vec<u16> = hosts.collect();
        let pes: Vec<usize> = hosts
            .iter()
            .filter_map(|host| self.pes.get(usize::from(*host)))
            .flatten()
            .copied()
            .collect();
        if let Some(pe) = pes.first() {
            let news =
                self.lost.compare_exchange(0, *pe as u32 + 1, Ordering::AcqRel, Ordering::Relaxed);
            if news.is_ok() && self.speaks {
                tracing::error!(
                    "host {} cannot reach {} over the NTB ring any more ({})",
                    self.me,
                    list("host", hosts.iter()),
                    list("PE", pes.iter())
                );
            }
        }
    }
}

fn list<T: std::fmt::Display>(what: &str, items: impl ExactSizeIterator<Item = T>) -> String {
    let plural = if items.len() == 1 { "" } else { "s" };
    let items: Vec<String> = items.map(|item| item.to_string()).collect();
    format!("{what}{plural} {}", items.join(", "))
}
