// SPDX-License-Identifier: Apache-2.0
//! What changes routes while a program runs: a channel that fails, and an observer that watches
//! operations to correct the routes.

use crate::route::{Channel, PeerRoutes, Routes, Steps};
use crate::transport::SegmentKind;
use crate::world::World;

/// An operation that an [`Observer`] is told about.
#[derive(Clone, Copy, Debug)]
pub struct Observation {
    /// A get, else a put.
    pub get: bool,
    /// Where the remote buffer lies.
    pub segment: SegmentKind,
    /// The PE operated on.
    pub pe: usize,
    /// Payload in bytes.
    pub bytes: usize,
    /// The channel it took.
    pub channel: Channel,
    /// How long it took.
    pub ns: u64,
}

/// Watches blocking gets, and puts to mapped memory, that do not take a fast path. (Most
/// other puts return before they are complete, so that their time tells little.)
pub trait Observer: Send + Sync {
    /// Whether to time the next operation; called for every one, so it must be quick.
    fn wants(&self) -> bool;

    /// Told about an operation that was timed, by the thread that did it. May set routes.
    fn saw(&self, world: &World, seen: Observation);
}

/// PEs that transports have lost: pairs of transport index and PE.
pub(crate) type Dropped = Vec<(u8, usize)>;

impl World {
    /// A transport failed towards a PE: other channels take its place in the routes, with one
    /// warning unless the program goes on without that PE. False if puts (or gets) on the segment have no
    /// other way, or if a transport has given up the PE: what it still had to carry is lost or arrives late, so
    /// another transport cannot take over.
    #[cold]
    pub(crate) fn drop_channel(
        &self,
        index: u8,
        pe: usize,
        segment: SegmentKind,
        get: bool,
        routine: &str,
    ) -> bool {
        self.await_end_with(pe);
        if self.is_lost(pe) && !self.goes_on() {
            return false;
        }
        let mut dropped = self.dropped();
        if !dropped.contains(&(index, pe)) {
            dropped.push((index, pe));
            let name = self.transports().get(usize::from(index)).map_or("?", |t| t.name());
            // The loss of the PE itself has been reported.
            if !self.goes_on_without(pe) {
                tracing::warn!(
                    "{routine}: transport {name} fails towards PE {pe}; other channels are used from now on"
                );
            }
        }
        let routes = self.without(&dropped, self.routes().clone());
        let steps = if get { &routes.peers[pe].get } else { &routes.peers[pe].put };
        let reachable = !steps[segment as usize].channels.contains(&Channel::Unreachable);
        if routes != *self.routes() {
            self.swap_routes(routes, &dropped);
        }
        reachable
    }

    /// Routes in which no put or get takes a channel that was dropped. AMOs keep theirs: atomics of
    /// one variable must not change their domain.
    pub(crate) fn without(&self, dropped: &Dropped, mut routes: Routes) -> Routes {
        for &(lost, pe) in dropped {
            let others: Vec<_> = (0..self.transports().len())
                .map(|index| {
                    let gone = dropped.contains(&(index as u8, pe));
                    self.peer(index, pe).filter(|_| !gone)
                })
                .collect();
            let other = Routes::default_for(&others, |segment| self.is_mapped(segment, pe));
            for PeerRoutes { put, get, .. } in routes.to_mut(pe) {
                for kind in SegmentKind::ALL.map(|kind| kind as usize) {
                    replace(&mut put[kind], lost, &other.put[kind]);
                    replace(&mut get[kind], lost, &other.get[kind]);
                }
            }
        }
        routes
    }

    pub(crate) fn is_mapped(&self, segment: SegmentKind, pe: usize) -> bool {
        let base = self.base(segment);
        !base.is_null() && !self.ptr(base.cast_const(), pe).is_null()
    }
}

fn replace(steps: &mut Steps, lost: u8, others: &Steps) {
    for i in 0..steps.channels.len() {
        if steps.channels[i].takes(lost) {
            steps.channels[i] = others.choose(steps.limits[i]);
        }
    }
}
