// SPDX-License-Identifier: Apache-2.0
//! Which channel carries an operation: a table by peer, operation, segment and size.
//!
//! The table is a plain value. Defaults come from [`Routes::default_for`]; a selector that has
//! measured the channels replaces them with [`crate::World::set_routes`].

use crate::config::Reuse;
use crate::cost::Costs;
use crate::transport::{AmoSet, Capabilities, SegmentKind};
use crate::world::peers::Peer;
use std::sync::Arc;

/// A way to carry an operation to one peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Channel {
    /// Loads and stores on the peer's mapped memory.
    Cached,
    /// The same with stores that bypass the caches.
    Streaming,
    /// The endpoint of a transport, by the transport's index.
    Endpoint(u8),
    /// The endpoints of two transports at the same time.
    Striped(Stripes),
    /// The endpoint of one of two transports: that which is expected to be done first.
    Either(Either),
    /// Executed by the target from its request queue.
    Service,
    /// No way.
    Unreachable,
}

impl Channel {
    /// Whether operations by this channel are carried by the transport of this index, if only in part.
    pub fn takes(&self, transport: u8) -> bool {
        match self {
            Channel::Endpoint(index) => *index == transport,
            Channel::Striped(stripes) => stripes.transports.contains(&transport),
            Channel::Either(either) => either.transports.contains(&transport),
            _ => false,
        }
    }
}

/// How a transfer is divided among two transports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stripes {
    /// Indices of the transports; the part of the first one is issued first.
    pub transports: [u8; 2],
    /// Of 256 bytes, those that the first one carries.
    pub first: u8,
}

impl Stripes {
    /// Bytes of a transfer that the first transport carries: whole cache lines.
    pub fn first_len(&self, len: usize) -> usize {
        const LINE: usize = 64;
        let first = usize::from(self.first);
        (len / 256 * first + len % 256 * first / 256) / LINE * LINE
    }
}

/// Two transports, one of which carries a transfer: see [`Context::one_of`](crate::Context::one_of).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Either {
    /// Indices of the transports; the first one carries what is waited for at once.
    pub transports: [u8; 2],
    /// Nanoseconds that each needs for a KiB.
    pub ns_per_kib: [u16; 2],
}

impl Either {
    /// Nanoseconds that one of the transports needs for a transfer.
    pub fn ns(&self, place: usize, len: usize) -> u64 {
        (len as u64).saturating_mul(self.ns_per_kib[place].into()) >> 10
    }
}

/// Number of size classes a table distinguishes.
pub const STEPS_MAX: usize = 4;

/// Channels by size: the first step whose limit is not below the size is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Steps {
    /// Largest size in bytes of each step; unused steps and the last one have `usize::MAX`.
    pub limits: [usize; STEPS_MAX],
    /// Channel of each step.
    pub channels: [Channel; STEPS_MAX],
}

impl Steps {
    /// One channel for all sizes.
    pub const fn always(channel: Channel) -> Steps {
        Steps { limits: [usize::MAX; STEPS_MAX], channels: [channel; STEPS_MAX] }
    }

    /// `small` up to `limit` bytes, `large` above.
    pub const fn split(small: Channel, limit: usize, large: Channel) -> Steps {
        Steps {
            limits: [limit, usize::MAX, usize::MAX, usize::MAX],
            channels: [small, large, large, large],
        }
    }

    /// The channel for `len` bytes.
    pub fn choose(&self, len: usize) -> Channel {
        let step = self.limits.iter().position(|limit| len <= *limit);
        self.channels[step.unwrap_or(STEPS_MAX - 1)]
    }
}

/// Routes to one peer, by segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerRoutes {
    /// Puts.
    pub put: [Steps; 2],
    /// Gets.
    pub get: [Steps; 2],
    /// AMOs and signals: one channel per segment, so that CPU and other atomics never mix.
    pub amo: [Channel; 2],
    /// Bytes from which a blocking put through an endpoint is carried from its source without a
    /// copy and waited for. A shorter one returns as soon as the transport lets go of the source, which may
    /// cost a copy of it.
    pub zero_copy: [usize; 2],
}

/// Routes of one PE to all peers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Routes {
    /// By PE, for operations on contexts without a hint of their own.
    pub peers: Vec<PeerRoutes>,
    /// The same for contexts with a hint, by the hint; empty where it makes no difference. AMOs go as on
    /// all other contexts.
    pub hinted: [Vec<PeerRoutes>; Reuse::ALL.len()],
    /// What operations take: the same on all PEs. A PE that replaces its own routes alone keeps it; by its address
    /// collectives know that all PEs still choose by the same costs.
    pub costs: Arc<Costs>,
}

impl Routes {
    /// By PE, for operations on contexts with this hint.
    #[inline]
    pub fn by_hint(&self, hint: Option<Reuse>) -> &[PeerRoutes] {
        match hint.map(|reuse| &self.hinted[reuse as usize]) {
            Some(peers) if !peers.is_empty() => peers,
            _ => &self.peers,
        }
    }

    /// Routes to a PE, for every hint.
    pub fn to(&self, pe: usize) -> impl Iterator<Item = &PeerRoutes> {
        [&self.peers].into_iter().chain(&self.hinted).filter_map(move |peers| peers.get(pe))
    }

    /// As [`Routes::to`], to be changed.
    pub fn to_mut(&mut self, pe: usize) -> impl Iterator<Item = &mut PeerRoutes> {
        let hinted = self.hinted.iter_mut();
        [&mut self.peers].into_iter().chain(hinted).filter_map(move |peers| peers.get_mut(pe))
    }

    /// The largest size for which every PE that `mapped` names, and each of its segments, is reached
    /// in both directions by a plain cached copy, whatever the hint of the context: up to it a fast path
    /// need not look at the routes.
    pub fn cached_max(&self, mapped: impl Fn(usize, SegmentKind) -> bool) -> usize {
        let limit = |steps: &Steps| {
            let cached = steps.channels.iter().take_while(|c| **c == Channel::Cached).count();
            match cached {
                0 => 0,
                STEPS_MAX => usize::MAX,
                n => steps.limits[n - 1],
            }
        };
        let tables = [&self.peers].into_iter().chain(&self.hinted);
        let peers = tables.flat_map(|peers| peers.iter().enumerate());
        peers
            .flat_map(|(pe, routes)| SegmentKind::ALL.map(|kind| (pe, kind, routes)))
            .filter(|(pe, kind, _)| mapped(*pe, *kind))
            .map(|(_, kind, routes)| {
                limit(&routes.put[kind as usize]).min(limit(&routes.get[kind as usize]))
            })
            .min()
            .unwrap_or(usize::MAX)
    }

    /// Routes for a peer by capability alone: mapped memory where there is some, else the first
    /// endpoint, in order of preference, that can do the operation.
    pub fn default_for(
        peers: &[Option<&Peer>],
        mapped: impl Fn(SegmentKind) -> bool,
    ) -> PeerRoutes {
        let first = |segment: SegmentKind, able: &dyn Fn(&Capabilities) -> bool| {
            let able = |peer: &Option<&Peer>| peer.is_some_and(|peer| able(peer.can(segment)));
            peers.iter().position(able).map(|index| Channel::Endpoint(index as u8))
        };
        let copy = |segment: SegmentKind, able: &dyn Fn(&Capabilities) -> bool| {
            if mapped(segment) {
                // Bypassing the caches pays on some machines only: that is for measurement to say.
                Steps::always(Channel::Cached)
            } else {
                Steps::always(first(segment, able).unwrap_or(Channel::Unreachable))
            }
        };
        // Requests and replies are put into control areas, which lie in the heaps.
        let service =
            mapped(SegmentKind::Heap) || first(SegmentKind::Heap, &|can| can.put).is_some();
        let amo = |segment: SegmentKind| {
            if mapped(segment) {
                return Channel::Cached;
            }
            // An operation that the endpoint does not do itself is asked of the target, in the same
            // domain of atomicity.
            first(segment, &|can| !can.amos.is_empty()).unwrap_or_else(|| {
                match first(segment, &|can| can.reach()) {
                    Some(_) if service => Channel::Service,
                    _ => Channel::Unreachable,
                }
            })
        };
        let inline = |segment: SegmentKind| match copy(segment, &|can| can.put).choose(0) {
            Channel::Endpoint(index) => {
                let peer = peers[usize::from(index)];
                peer.map_or(usize::MAX, |peer| peer.can(segment).inline_max.saturating_add(1))
            }
            _ => usize::MAX,
        };
        PeerRoutes {
            put: SegmentKind::ALL.map(|s| copy(s, &|can| can.put)),
            get: SegmentKind::ALL.map(|s| copy(s, &|can| can.get)),
            amo: SegmentKind::ALL.map(amo),
            zero_copy: SegmentKind::ALL.map(inline),
        }
    }
}

impl PeerRoutes {
    /// Whether puts and AMOs go by a transport either all or not at all, so that its own fence orders
    /// them. Gets need no order. `peer` is the transport's way to the PE.
    pub fn keeps_apart(&self, transport: usize, peer: Option<&Peer>) -> bool {
        let by = Channel::Endpoint(transport as u8);
        let channels = || self.put.iter().flat_map(|steps| steps.channels).chain(self.amo);
        if !channels().any(|channel| channel.takes(transport as u8)) {
            return true;
        }
        // What an endpoint cannot do the target is asked for, which is another channel.
        let all =
            |can: &Capabilities| can.amos == AmoSet::ALL && can.whole_words && can.put_align <= 1;
        let able = |segment: SegmentKind| {
            peer.is_some_and(|peer| !peer.can(segment).reach() || all(peer.can(segment)))
        };
        channels().all(|channel| channel == by || channel == Channel::Unreachable)
            && SegmentKind::ALL.into_iter().all(able)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_step_that_holds_the_size_is_taken() {
        let steps = Steps::split(Channel::Cached, 100, Channel::Streaming);
        assert_eq!(steps.choose(0), Channel::Cached);
        assert_eq!(steps.choose(100), Channel::Cached);
        assert_eq!(steps.choose(101), Channel::Streaming);
        assert_eq!(steps.choose(usize::MAX), Channel::Streaming);
    }

    #[test]
    fn a_transfer_is_divided_at_cache_lines_and_nothing_is_lost() {
        for (first, len, expected) in
            [(128, 1 << 20, 1 << 19), (64, 4096, 1024), (1, 4096, 0), (255, 100, 64), (200, 0, 0)]
        {
            let stripes = Stripes { transports: [0, 1], first };
            assert_eq!(stripes.first_len(len), expected, "{first} of {len}");
        }
        let most = Stripes { transports: [0, 1], first: 255 };
        assert!(most.first_len(usize::MAX) < usize::MAX);
    }

    #[test]
    fn who_carries_parts_or_some_shares_a_pe_with_another_transport() {
        let stripes = Channel::Striped(Stripes { transports: [1, 0], first: 128 });
        let mut routes = PeerRoutes {
            put: [Steps::always(Channel::Endpoint(0)); 2],
            get: [Steps::always(Channel::Endpoint(0)); 2],
            amo: [Channel::Endpoint(0); 2],
            zero_copy: [usize::MAX; 2],
        };
        assert!(routes.keeps_apart(1, None));
        routes.put[0] = Steps::split(Channel::Endpoint(0), 1 << 20, stripes);
        assert!(!routes.keeps_apart(0, None) && !routes.keeps_apart(1, None));
        let either = Channel::Either(Either { transports: [0, 1], ns_per_kib: [1; 2] });
        routes.put[0] = Steps::split(Channel::Endpoint(0), 1 << 20, either);
        assert!(!routes.keeps_apart(0, None) && !routes.keeps_apart(1, None));
    }

    #[test]
    fn the_shortest_cached_range_of_all_mapped_peers_is_the_limit() {
        let all = Steps::always(Channel::Cached);
        let some = Steps::split(Channel::Cached, 100, Channel::Streaming);
        let none = Steps::always(Channel::Endpoint(0));
        let peer = |put, get| PeerRoutes {
            put: [put; 2],
            get: [get; 2],
            amo: [Channel::Cached; 2],
            zero_copy: [usize::MAX; 2],
        };
        let of = |peers: &[PeerRoutes], mapped: &dyn Fn(usize) -> bool| {
            let max = |peers: &[PeerRoutes], hinted| {
                let routes = Routes { peers: peers.to_vec(), hinted, costs: Arc::default() };
                routes.cached_max(|pe, _| mapped(pe))
            };
            let without = max(peers, Default::default());
            // Contexts of either kind count.
            let cold = vec![peer(all, all); peers.len()];
            assert_eq!(max(peers, [Vec::new(), cold.clone()]), without);
            assert_eq!(max(&cold, [Vec::new(), peers.to_vec()]), without);
            without
        };
        let table = [peer(all, some), peer(none, none)];
        assert_eq!(of(&table[..1], &|_| true), 100);
        assert_eq!(of(&table, &|_| true), 0);
        assert_eq!(of(&table, &|pe| pe == 0), 100);
        assert_eq!(of(&table, &|_| false), usize::MAX);
    }

    #[test]
    fn without_endpoints_only_mapped_memory_is_used() {
        let routes = Routes::default_for(&[], |segment| segment == SegmentKind::Heap);
        assert_eq!(routes.put[0].choose(8), Channel::Cached);
        assert_eq!(routes.put[1].choose(8), Channel::Unreachable);
        assert_eq!(routes.amo, [Channel::Cached, Channel::Unreachable]);
    }
}
