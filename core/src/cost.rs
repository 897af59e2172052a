//! What single operations are expected to take: what algorithms of collective operations are chosen
//! by.
//!
//! All members of a collective call choose for themselves and must choose alike. So costs follow
//! only from what all PEs of a job have alike: built-in values, or measurements that were shared.

/// Sizes in bytes for which times are kept; a straight line is drawn between them.
pub const SIZES: [usize; 8] = [8, 64, 512, 4 << 10, 32 << 10, 256 << 10, 2 << 20, 16 << 20];

/// Distances that are told apart: on one host, and up to so many hops less one; anything further
/// goes like the last.
pub const DISTANCES: usize = 5;

/// Times by distance in hops, 0 on one host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Costs(pub [Distance; DISTANCES]);

/// Times between two PEs, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Distance {
    /// Of one of several puts that are under way together, by size.
    pub put: [u32; SIZES.len()],
    /// Of a get, by size.
    pub get: [u32; SIZES.len()],
    /// From storing a word to its being noticed.
    pub trip: u32,
}

impl Default for Costs {
    /// Before anything is measured: a copy within the caches, a link of a few GB/s. Only ratios
    /// matter.
    fn default() -> Costs {
        let line = |start: usize, bytes_per_ns: usize| {
            SIZES.map(|bytes| (start + bytes / bytes_per_ns) as u32)
        };
        Costs(std::array::from_fn(|hops| match hops {
            0 => Distance { put: line(1, 64), get: line(1, 64), trip: 2 * LINE_NS },
            _ => {
                let (put, get) = (line(100, 5), line(2000 * hops, 5));
                Distance { put, get, trip: 1000 * hops as u32 }
            }
        }))
    }
}

/// One cache line from another core.
pub const LINE_NS: u32 = 60;

impl Costs {
    /// Of a put of `bytes` over `hops`, one of several under way together.
    pub fn put_ns(&self, hops: u32, bytes: usize) -> u64 {
        between(&self.at(hops).put, bytes)
    }

    /// Of a get.
    pub fn get_ns(&self, hops: u32, bytes: usize) -> u64 {
        between(&self.at(hops).get, bytes)
    }

    /// From storing a word to its being noticed.
    pub fn trip_ns(&self, hops: u32) -> u64 {
        self.at(hops).trip.into()
    }

    fn at(&self, hops: u32) -> &Distance {
        &self.0[(hops as usize).min(DISTANCES - 1)]
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
    let (x0, x1) = (SIZES[above - 1], SIZES[above]);
    let (y0, y1) = (u64::from(times[above - 1]), u64::from(times[above]));
    let share = |y: u64, part: usize| y * part as u64 / (x1 - x0) as u64;
    share(y0, x1 - bytes) + share(y1, bytes - x0)
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
    fn further_than_the_last_distance_goes_like_the_last() {
        let costs = Costs::default();
        assert_eq!(costs.trip_ns(DISTANCES as u32 - 1), costs.trip_ns(60));
        assert!(costs.trip_ns(0) < costs.trip_ns(1) && costs.trip_ns(1) < costs.trip_ns(2));
        assert!(costs.get_ns(2, 8) > costs.get_ns(1, 8));
    }
}
