// SPDX-License-Identifier: Apache-2.0
//! The transports of a PE and the endpoints they gave.

use super::exchange::Endpoints;
use crate::service::{Pollable, await_fds};
use crate::transport::{
    Amo, AmoSet, Capabilities, Distance, Endpoint, Progress, Remote, SegmentKind, Status, Stream,
    Transport,
};
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// One way to one PE.
pub struct Peer {
    /// The data path.
    pub endpoint: Box<dyn Endpoint>,
    can: [Capabilities; SegmentKind::ALL.len()],
    failed: AtomicBool,
}

impl Peer {
    /// The endpoint of a PE, with what it can do.
    pub fn new(endpoint: Box<dyn Endpoint>) -> Peer {
        let can = SegmentKind::ALL.map(|segment| endpoint.capabilities(segment));
        Peer { endpoint, can, failed: AtomicBool::new(false) }
    }

    /// What can be done on a segment.
    #[inline]
    pub fn can(&self, segment: SegmentKind) -> &Capabilities {
        &self.can[segment as usize]
    }

    /// The AMOs that are carried out on a segment, by the device or not.
    pub(crate) fn amos(&self, segment: SegmentKind, by_device: bool) -> AmoSet {
        let can = self.can(segment);
        if by_device { can.device_amos } else { can.amos }
    }

    /// Issues an AMO, by the device or not.
    ///
    /// # Safety
    /// As [`Endpoint::amo`].
    pub(crate) unsafe fn amo(
        &self,
        stream: &Stream,
        target: Remote,
        amo: Amo,
        result: Option<*mut u8>,
        by_device: bool,
    ) -> Status {
        // SAFETY: by the caller's word.
        unsafe {
            match by_device {
                true => self.endpoint.device_amo(stream, target, amo, result),
                false => self.endpoint.amo(stream, target, amo, result),
            }
        }
    }

    /// Whether an operation has failed for good.
    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    /// Remembers that an operation has failed for good.
    pub fn note_failure(&self) {
        self.failed.store(true, Ordering::Relaxed);
    }
}

/// All ways to all PEs.
#[derive(Default)]
pub struct Peers {
    transports: Vec<Box<dyn Transport>>,
    /// By transport, then PE.
    by: Vec<Vec<Option<Peer>>>,
    /// Transports that keep the order of operations to every PE.
    ordered: Vec<bool>,
}

impl Peers {
    pub(super) fn new(transports: Vec<Box<dyn Transport>>, endpoints: Endpoints) -> Peers {
        let row = |row: Vec<Option<Box<dyn Endpoint>>>| {
            row.into_iter().map(|endpoint| endpoint.map(Peer::new)).collect()
        };
        let by: Vec<Vec<Option<Peer>>> = endpoints.into_iter().map(row).collect();
        let keeps = |peer: &Peer| peer.can.iter().all(|can| !can.reach() || can.ordered);
        let ordered = by.iter().map(|row| row.iter().flatten().all(keeps)).collect();
        Peers { transports, by, ordered }
    }

    /// The transports, in order of preference.
    pub fn transports(&self) -> &[Box<dyn Transport>] {
        &self.transports
    }

    pub(super) fn transports_mut(&mut self) -> &mut [Box<dyn Transport>] {
        &mut self.transports
    }

    /// The way of a transport, by index, to a PE.
    #[inline]
    pub fn get(&self, transport: usize, pe: usize) -> Option<&Peer> {
        self.by.get(transport)?.get(pe)?.as_ref()
    }

    /// Whether a transport keeps the order of a stream's operations to every PE by itself.
    pub fn is_ordered(&self, transport: usize) -> bool {
        self.ordered[transport]
    }

    /// All ways to a PE, by transport.
    pub fn of(&self, pe: usize) -> Vec<Option<&Peer>> {
        (0..self.transports.len()).map(|transport| self.get(transport, pe)).collect()
    }

    /// Whether a PE is reached and no way to it needs the help of the PE's service thread.
    pub(super) fn are_sufficient(&self, pe: usize) -> bool {
        let mut ways = self.by.iter().filter_map(|row| row.get(pe)?.as_ref()).peekable();
        let whole = |peer: &Peer| peer.can.iter().all(|can| !can.reach() || can.is_sufficient());
        ways.peek().is_some() && ways.all(whole)
    }

    /// Whether the same transports reach both PEs and can do the same there.
    pub fn are_alike(&self, a: usize, b: usize) -> bool {
        let can = |transport, pe| self.get(transport, pe).map(|peer| &peer.can);
        (0..self.transports.len()).all(|transport| can(transport, a) == can(transport, b))
    }

    /// How far apart two PEs of different hosts are, on the transport that brings them closest.
    pub(super) fn distance(&self, a: usize, b: usize) -> Option<Distance> {
        self.transports.iter().filter_map(|transport| transport.distance(a, b)).min()
    }

    /// How much `progress` is needed.
    pub(super) fn progress_needed(&self) -> Progress {
        let needed = self.transports.iter().map(|transport| transport.progress_needed());
        needed.max().unwrap_or(Progress::None)
    }
}

/// Longest nap in a wait. What comes through mapped memory ends none, and would have waited for milliseconds if the
/// thread had given way to one that computes.
const NAP: Duration = Duration::from_micros(20);

/// The transports that a service thread has to poll.
pub(super) struct Polled(pub(super) Arc<Peers>);

impl Polled {
    /// Sleeps for a moment, or until a transport has something; false, at once, where no descriptor tells of that.
    pub(super) fn nap(&self) -> bool {
        let Some(fds) = self.event_fds().filter(|fds| !fds.is_empty()) else { return false };
        // Where there may be work already, it is time to look.
        if self.arm() {
            await_fds(&fds, NAP);
        }
        true
    }

    fn transports(&self) -> impl Iterator<Item = &dyn Transport> {
        let all = self.0.transports.iter().map(|transport| &**transport);
        all.filter(|transport| transport.progress_needed() == Progress::Always)
    }
}

impl Pollable for Polled {
    fn progress(&self) -> bool {
        self.transports().fold(false, |moved, transport| transport.progress() | moved)
    }

    fn is_taken(&self) -> bool {
        self.transports().any(Transport::is_taken)
    }

    fn event_fds(&self) -> Option<Vec<RawFd>> {
        self.transports().map(Transport::event_fd).collect()
    }

    fn arm(&self) -> bool {
        self.transports().all(Transport::arm)
    }
}
