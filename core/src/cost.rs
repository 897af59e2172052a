// SPDX-License-Identifier: Apache-2.0
//! What single operations are expected to take: what algorithms of collective operations are chosen
//! by.
//!
//! All members of a collective call choose for themselves and must choose alike. So costs follow
//! only from what all PEs of a job have alike: built-in values, or measurements that were shared.

use crate::transport::Distance;

/// Sizes in bytes for which times are kept; a straight line is drawn between them.
pub const SIZES: [usize; 8] = [8, 64, 512, 4 << 10, 32 << 10, 256 << 10, 2 << 20, 16 << 20];

/// Hops between hosts that are told apart; anything further goes like the last.
pub const HOPS: usize = 4;

/// Times by distance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Costs {
    /// On one host.
    pub host: Times,
    /// Over 1, 2, ... hops.
    pub hops: [Times; HOPS],
    /// Over a network.
    pub network: Times,
    /// PEs that share a processor, rounded up; 1 where each has its own.
    pub crowd: u32,
    /// Processors that each PE has, at least 1: with more of them, others than the PE's own work for it.
    pub processors: u32,
}

/// Times between two PEs, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// Of one of several puts that are under way together, by size.
    pub put: [u32; SIZES.len()],
    /// Of a get, by size.
    pub get: [u32; SIZES.len()],
    /// One-way latency: from storing a word to its being noticed.
    pub latency: u32,
    /// From the last of several puts to the news that all have arrived. Puts through a window have arrived
    /// when they return, so that this is about 0.
    pub completion: u32,
}

impl Default for Costs {
    /// Before anything is measured: a copy within the caches, a link of a few GB/s. Only ratios
    /// matter.
    fn default() -> Costs {
        let line = |start: usize, bytes_per_ns: usize| {
            SIZES.map(|bytes| (start + bytes / bytes_per_ns) as u32)
        };
        let far = |hops: usize| Times {
            put: line(100, 5),
            get: line(2000 * hops, 5),
            latency: 1000 * hops as u32,
            completion: if hops == 1 { 0 } else { 2000 * hops as u32 },
        };
        Costs {
            host: Times { put: line(1, 64), get: line(1, 64), latency: 2 * LINE_NS, completion: 0 },
            hops: std::array::from_fn(|index| far(index + 1)),
            network: Times {
                put: line(1000, 1),
                get: line(20_000, 1),
                latency: 10_000,
                completion: 20_000,
            },
            crowd: 1,
            processors: 1,
        }
    }
}

/// One cache line from another core.
pub const LINE_NS: u32 = 60;

/// Until another PE runs on a processor that two of them share.
const SWITCH_NS: u64 = 1500;

impl Costs {
    /// Of a put of `bytes`, one of several under way together.
    pub fn put_ns(&self, distance: Distance, bytes: usize) -> u64 {
        between(&self.at(distance).put, bytes)
    }

    /// Of a get.
    pub fn get_ns(&self, distance: Distance, bytes: usize) -> u64 {
        between(&self.at(distance).get, bytes)
    }

    /// From the return of a put to the arrival of its data: half of the time until the news of it.
    pub fn arrival_ns(&self, distance: Distance) -> u64 {
        self.beyond(distance, |times| times.completion) / 2
    }

    /// From storing a word to its being noticed.
    pub fn latency_ns(&self, distance: Distance) -> u64 {
        self.beyond(distance, |times| times.latency)
    }

    /// A time for a distance. Each hop after the last distance takes as long as that to the last.
    fn beyond(&self, distance: Distance, time: impl Fn(&Times) -> u32) -> u64 {
        let measured = u64::from(time(self.at(distance)));
        match distance {
            Distance::Hops(hops) if hops as usize > HOPS => {
                let hop = measured.saturating_sub(time(&self.hops[HOPS - 2]).into());
                measured + u64::from(hops - HOPS as u32) * hop
            }
            _ => measured,
        }
    }

    /// From storing a word to its being noticed by a PE that waits for it, and may have to wait for a
    /// processor.
    pub fn notice_ns(&self, distance: Distance) -> u64 {
        let (latency, switch) = (self.latency_ns(distance), self.switch_ns());
        // Where PEs share processors, what was measured has waits of both sides in it.
        let most = match distance {
            Distance::Hops(hops) if switch > 0 => u64::from(hops) * (1000 + 2 * switch),
            _ => u64::MAX,
        };
        latency.min(most) + switch
    }

    /// What a PE waits for a processor; nothing where each has its own.
    pub fn switch_ns(&self) -> u64 {
        if self.crowd > 1 { u64::from(self.crowd) * SWITCH_NS } else { 0 }
    }

    /// What work of all PEs at the same time takes, if it takes one of them so long.
    pub fn shared_ns(&self, work: u64) -> u64 {
        work.saturating_mul(self.crowd.into())
    }

    fn at(&self, distance: Distance) -> &Times {
        match distance {
            Distance::Myself | Distance::Host => &self.host,
            Distance::Hops(hops) => &self.hops[(hops.max(1) as usize - 1).min(HOPS - 1)],
            Distance::Network => &self.network,
        }
    }
}

/// The time for a size; below the first as for the first, above the last in proportion.
fn between(times: &[u32; SIZES.len()], bytes: usize) -> u64 {
    let last = SIZES.len() - 1;
    if bytes <= SIZES[0] {
        return times[0].into();
    }
    if bytes >= SIZES[last] {
        return (u128::from(times[last]) * bytes as u128 / SIZES[last] as u128) as u64;
    }
    let above = SIZES.iter().position(|size| bytes < *size).unwrap_or(last);
    let (x0, x1, x) = (SIZES[above - 1] as u64, SIZES[above] as u64, bytes as u64);
    let (y0, y1) = (u64::from(times[above - 1]), u64::from(times[above]));
    // Below 2^57: sizes are below 2^25 here.
    (y0 * (x1 - x) + y1 * (x - x0)) / (x1 - x0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_lie_on_lines_between_the_sizes_and_go_on_after_the_last() {
        let times = [10, 10, 10, 80, 640, 5000, 40_000, 320_000];
        for (size, time) in SIZES.iter().zip(times) {
            assert_eq!(between(&times, *size), u64::from(time));
        }
        assert_eq!(between(&times, 0), 10);
        assert_eq!(between(&times, (4 << 10) + (14 << 10)), 360);
        assert_eq!(between(&times, 64 << 20), 4 * 320_000);
        assert!(between(&[u32::MAX; SIZES.len()], usize::MAX) > 1 << 60);
    }

    #[test]
    fn pes_that_share_processors_wait_for_them() {
        let alone = Costs::default();
        let [two, four] = [2, 4].map(|crowd| Costs { crowd, ..Costs::default() });
        let host = Distance::Host;
        assert_eq!(alone.notice_ns(host), alone.latency_ns(host));
        assert!(alone.notice_ns(host) < two.notice_ns(host));
        assert!(two.notice_ns(host) < four.notice_ns(host));
        assert_eq!((alone.shared_ns(10), four.shared_ns(10)), (10, 40));
    }

    #[test]
    fn each_hop_after_the_last_distance_takes_as_long_as_that_to_the_last() {
        let mut costs = Costs::default();
        for (index, times) in costs.hops.iter_mut().enumerate() {
            times.latency = 700 + 500 * index as u32;
            times.completion = 2 * times.latency;
        }
        let [host, near, far] = [Distance::Host, Distance::Hops(1), Distance::Hops(2)];
        assert_eq!(costs.latency_ns(Distance::Hops(HOPS as u32)), 2200);
        assert_eq!(costs.latency_ns(Distance::Hops(60)), 2200 + 56 * 500);
        assert_eq!(costs.arrival_ns(Distance::Hops(60)), costs.latency_ns(Distance::Hops(60)));
        assert!(costs.latency_ns(host) < costs.latency_ns(near));
        assert!(costs.latency_ns(near) < costs.latency_ns(far));
        assert!(costs.get_ns(far, 8) > costs.get_ns(near, 8));
    }
}
