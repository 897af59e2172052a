// SPDX-License-Identifier: Apache-2.0
//! The memory of a link: registers of both sides, counters, fault control.
//!
//! It is all that two emulated hosts share, apart from memory behind translations. Every field is
//! atomic, since any process of the two hosts, and the launcher, may touch it at any time. Nothing
//! in it is a lock that a killed process could leave closed: changes of a translation are claimed
//! under the process id of whoever makes them, and taken over from the dead.

use super::config::LinkConfig;
use super::words::{Placing, Status, Translation};
use crate::ntb::port::{Counters, Event};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Windows a port can have.
pub const WINDOWS: usize = 4;
/// Slots a window can have.
pub const SLOTS: usize = 256;
/// Open outbound handles on one side of a link.
pub const REQUESTERS: usize = 1024;
/// Scratchpads of the profile with most of them.
pub const SPADS: usize = 128;
/// Doorbell bits of the profile with most of them.
pub const DOORBELLS: usize = 32;
/// Counters that belong to a requester: the first ones of [`Event`], up to DMA errors.
pub const REQUESTER_EVENTS: usize = Event::DmaErrors as usize + 1;

/// Everything.
#[repr(C, align(4096))]
pub struct LinkMemory {
    pub magic: AtomicU64,
    pub config: [AtomicU64; LinkConfig::WORDS],
    pub status: Status,
    pub faults: FaultControl,
    pub sides: [Side; 2],
}

/// Marks memory as a link of this layout.
pub const MAGIC: u64 = 0x746f_6d62_6e74_6204;

/// Faults that act on the data path, set by the launcher.
#[repr(C, align(128))]
pub struct FaultControl {
    /// TLPs damaged, per million.
    pub corrupt_ppm: AtomicU32,
    /// DMA transfers that fail, per million.
    pub dma_error_ppm: AtomicU32,
    /// Added to every write's propagation, nanoseconds.
    pub delay_ns: AtomicU64,
    /// Sides that believe the link up whatever happens, as bits.
    pub stuck_belief: AtomicU32,
}

/// One side's registers.
#[repr(C, align(128))]
pub struct Side {
    pub doorbell: Doorbell,
    pub spads: [AtomicU32; SPADS],
    /// When the wire out of this side is free again, picoseconds since the fabric was made.
    pub wire_free_ps: WireClock,
    /// Counters not kept by requesters, and those of requesters that are gone.
    pub totals: [AtomicU64; Event::ALL.len()],
    /// Raised whenever a translation of the window is opened or closed.
    pub window_changes: [AtomicU64; WINDOWS],
    /// Translations of this side's inbound windows.
    pub windows: [[Translation; SLOTS]; WINDOWS],
    /// Requesters that have been in use: those beyond are untouched.
    pub requesters_used: AtomicU32,
    pub requesters: [Requester; REQUESTERS],
}

/// A clock on a line of its own.
#[repr(C, align(128))]
pub struct WireClock(pub AtomicU64);

/// Doorbell registers and the word that waiters sleep on.
#[repr(C, align(128))]
pub struct Doorbell {
    /// Pending in the low half, mask in the high half: one word, so that edges are exact.
    pub register: AtomicU64,
    /// Raised with every event; processes sleep on it.
    pub events: AtomicU32,
    /// Processes sleeping on `events`.
    pub sleepers: AtomicU32,
    /// When the last ring of a bit arrived, picoseconds since the fabric was made.
    pub arrived_ps: [AtomicU64; DOORBELLS],
}

/// Someone who writes through the link: an open [`crate::ntb::port::Outbound`].
#[repr(C, align(128))]
pub struct Requester {
    /// Process, or 0 when free.
    pub pid: AtomicU32,
    pub placing: Placing,
    pub counters: [AtomicU64; REQUESTER_EVENTS],
}

impl Side {
    pub fn count(&self, event: Event, by: u64) {
        self.totals[event as usize].fetch_add(by, Ordering::Relaxed);
    }

    /// Requesters that have ever been in use. In one order with changes of links and translations: a requester that
    /// is not among them sees what was changed before.
    pub fn requesters(&self) -> &[Requester] {
        let used = self.requesters_used.load(Ordering::SeqCst) as usize;
        &self.requesters[..used.min(REQUESTERS)]
    }

    pub fn counters(&self) -> Counters {
        let mut counters = Counters::default();
        for event in Event::ALL {
            counters[event] = self.totals[event as usize].load(Ordering::Relaxed);
        }
        for requester in self.requesters() {
            for event in &Event::ALL[..REQUESTER_EVENTS] {
                let counted = requester.counters[*event as usize].load(Ordering::Relaxed);
                counters[*event] = counters[*event].wrapping_add(counted);
            }
        }
        counters
    }
}

impl Requester {
    /// Counts without a bus lock: only the requester's one thread writes.
    pub fn count(&self, event: Event, by: u64) {
        let counter = &self.counters[event as usize];
        counter.store(counter.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
    }
}
