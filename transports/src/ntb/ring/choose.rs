// SPDX-License-Identifier: Apache-2.0
//! Chooses packet length, ring length and lanes from what links and processors cost.
//!
//! Pure and deterministic: the same numbers give the same choice everywhere. `ntbsim tune` compares
//! it with the best that an exhaustive search in the simulator finds.
//!
//! - **Rings.** A packet that fills a long slot costs least per byte where something else overlaps
//!   with it. But a CPU that copies into a window can only go on when the bridge has room, so with
//!   long packets one link idles while the other is written; and where a window is small, long slots
//!   are few, too few for small packets. [`choose`] weighs that under several loads.
//! - **Packets.** A transfer that is under way alone overlaps only with itself: N packets of length c
//!   pass h hops and the delivery in (N + h)(c/B + o), with B the rate of the link and o the time
//!   that a CPU needs for a packet. That is least for c = sqrt(S B o / (h + 1)): [`packet_bytes`].
//! - **Lanes.** More of them only where processors are left, and no more than bring something.

use super::layout::{Geometry, GeometryError};
use super::packet::Class;
use crate::ntb::port::LinkTiming;
use std::cmp::Reverse;

/// Shortest packet that a transfer is cut into, bytes.
const PACKET_BYTES_MIN: usize = 512;
/// Slot payloads that are considered, bytes.
const CHUNKS: [usize; 6] = [1 << 10, 2 << 10, 4 << 10, 8 << 10, 16 << 10, 32 << 10];
/// The longest of them for a CPU that stores in steps: in longer ones it handles hardly fewer bytes, and short
/// transfers have too few packets to be under way in.
const CHUNK_IN_STEPS_MAX: usize = 16 << 10;
/// Bytes that a lane takes from a window at most: more would not stay in the processor's cache.
const REGION_BYTES_MAX: usize = 9 << 19;
/// The same where a link is as fast as memory and all depends on the cache, and the slots that
/// are wanted then: measured, a slot that is used again sooner is still busy in two caches.
const CACHED: (usize, u32) = (9 << 18, 64);
/// Slots of the request, reply and control rings that are considered. With fewer replies than
/// requests, gets wait where they hold up what is behind them: only for small windows.
const SLOTS: [[u32; 3]; 7] = [
    [128, 128, 256],
    [64, 64, 128],
    [32, 32, 64],
    [32, 16, 64],
    [16, 16, 64],
    [16, 8, 64],
    [8, 8, 64],
];
/// Time that all to all takes longer with half the slots for what relays cannot pass on at once.
const RELAY_WAITS: f64 = 0.015;
/// Rings where not even the last of those fits with the shortest chunk.
const LEAST: (usize, [u32; 3]) = (512, [4, 4, 16]);
/// Lanes of a PE beyond which nothing is gained.
const LANES_MAX: usize = 4;
/// Transfers that are weighed, bytes.
const SIZES: [usize; 5] = [256, 1 << 10, 4 << 10, 16 << 10, 64 << 10];
/// Loads for each of them.
const LOADS: usize = 5;
/// What is so close to the best is as good, and less is better.
const CLOSE: f64 = 1.03;
/// Another lane is taken only if the worst load gains so much by it.
const GAIN: f64 = 1.05;

/// What the links and the processors of a ring cost. Times in nanoseconds, rates in bytes per
/// nanosecond.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkCosts {
    /// Rate of one direction of a link, headers of TLPs included; infinite where an emulated link is
    /// as fast as memory.
    pub line_rate: f64,
    /// Payload of the TLPs that the writer makes, bytes.
    pub tlp_bytes: f64,
    /// Header and framing of a TLP, bytes.
    pub tlp_overhead: f64,
    /// From the last byte sent to visible in the neighbour's memory.
    pub propagation: f64,
    /// Handing a packet to the DMA engine, and from there to its first byte; none where the CPU
    /// copies into the window.
    pub dma: Option<(f64, f64)>,
    /// Rate of a CPU copy.
    pub copy_rate: f64,
    /// Beginning a copy.
    pub touch: f64,
    /// Storing a line through a window.
    pub store: f64,
    /// Taking in a line that the bridge has written.
    pub detect: f64,
    /// Looking for packets, for each that is found.
    pub look: f64,
    /// Bytes that the bridge takes before a copy into the window has to wait.
    pub posted_bytes: f64,
    /// The CPU stores in steps, between which it takes in what has arrived.
    pub in_steps: bool,
}

/// What lanes have to run on. Counts of the host with most PEs.
pub struct Resources<'a> {
    /// Hosts of the ring.
    pub hosts: u16,
    /// Processors for each PE.
    pub cores: usize,
    /// Bytes of a window that a lane gets when every PE has so many lanes; 0 where that is too many.
    pub room: &'a dyn Fn(usize) -> usize,
}

/// What the user has set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overrides {
    /// Bytes of a slot's payload.
    pub chunk: Option<usize>,
    /// Lanes of each PE.
    pub lanes: Option<usize>,
}

/// Bytes from which on a DMA engine moves a block through a window sooner than the CPU does, in whole
/// pages; none: it never does.
pub fn dma_crossing(cpu: &LinkCosts, dma: &LinkCosts) -> Option<usize> {
    let (submit, start) = dma.dma?;
    let per_byte = |costs: &LinkCosts, copy_rate: f64| 1.0 / costs.payload_rate().min(copy_rate);
    let gain = per_byte(cpu, cpu.copy_rate) - per_byte(dma, f64::INFINITY);
    let bytes = (submit + start) / gain;
    (gain > 0.0).then(|| (bytes as usize).next_multiple_of(4096))
}

/// What was chosen, the same on all hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Rings of a lane.
    pub geometry: Geometry,
    /// Lanes of each PE.
    pub lanes: usize,
    /// For [`packet_bytes`].
    pub handling_bytes: u32,
    /// Why, for people.
    pub reason: String,
}

impl LinkCosts {
    /// A desktop core of the time of the published systems on a link that carries `line_rate`
    /// bytes per nanosecond: its stores are TLPs of `store_bytes`, those of a DMA engine, if one
    /// writes, of so many.
    ///
    /// Constants, because measuring would bring little: for processors that copy at 0.5 to 3 times
    /// this rate and handle packets in 0.25 to 2 times this time, the settings that these costs give
    /// reach 0.98 to 1.01 of what those of the true costs do, on average (`ntbsim processors`).
    pub fn desktop(line_rate: f64, store_bytes: u32, dma: Option<u32>) -> LinkCosts {
        LinkCosts {
            line_rate,
            tlp_bytes: dma.unwrap_or(store_bytes).into(),
            tlp_overhead: LinkTiming::TLP_OVERHEAD.into(),
            propagation: 400.0,
            dma: dma.map(|_| (120.0, 1000.0)),
            copy_rate: 11.0,
            touch: 20.0,
            store: 60.0,
            detect: 70.0,
            look: 20.0,
            posted_bytes: 2048.0,
            in_steps: true,
        }
    }

    /// Payload that a link carries per nanosecond.
    pub fn payload_rate(&self) -> f64 {
        self.line_rate * self.tlp_bytes / (self.tlp_bytes + self.tlp_overhead)
    }

    /// Bytes that a link carries, or a CPU copies, while a CPU handles one packet.
    pub fn handling_bytes(&self) -> u32 {
        // A DMA engine takes a packet while it still moves the one before.
        let write = if self.dma.is_some() { 0.0 } else { self.touch };
        let rate = self.payload_rate().min(self.copy_rate);
        ((write + self.store + self.detect) * rate) as u32
    }

    /// Time of a packet on the wire, header line included.
    fn wire(&self, bytes: f64) -> f64 {
        let tlps = [bytes, 64.0].map(|bytes| (bytes / self.tlp_bytes).ceil());
        let tlps = tlps[0] + tlps[1];
        (bytes + 64.0 + tlps * self.tlp_overhead) / self.line_rate
    }

    fn copy(&self, bytes: f64) -> f64 {
        self.touch + bytes / self.copy_rate
    }

    /// CPU time of putting a packet into a window. One that stores in steps waits for the link only when it
    /// has nothing to take in meanwhile.
    fn send(&self, bytes: f64) -> f64 {
        let stalled = match self.in_steps {
            true => 0.0,
            false => self.wire(bytes) - self.posted_bytes / self.line_rate,
        };
        let write = self.dma.map_or(self.copy(bytes).max(stalled), |(submit, _)| submit);
        self.look + self.store + write
    }

    /// CPU time of taking a packet to its destination.
    fn deliver(&self, bytes: f64) -> f64 {
        self.look + self.detect + self.copy(bytes)
    }

    /// From taking a slot to having its credit back.
    fn credit(&self, bytes: f64) -> f64 {
        self.send(bytes) + self.start() + self.deliver(bytes) + self.store + 2.0 * self.propagation
    }

    /// Time for which a CPU that waits for one link leaves the other without packets to pass on.
    fn stall(&self) -> f64 {
        if self.dma.is_some() { 0.0 } else { self.posted_bytes / self.line_rate }
    }

    fn start(&self) -> f64 {
        self.dma.map_or(0.0, |(_, start)| start)
    }
}

/// Times per byte of payload that transfers of [`SIZES`] take the busiest part of a ring, under
/// different loads each; every host has `lanes` lanes with these rings.
fn loads(
    costs: &LinkCosts,
    hosts: u16,
    geometry: &Geometry,
    lanes: usize,
) -> [[f64; LOADS]; SIZES.len()] {
    let hops: u16 = (1..hosts).map(|step| step.min(hosts - step)).sum();
    let hops = f64::from(hops) / f64::from(hosts - 1);
    let halved = f64::from(geometry.slots(Class::Request).trailing_zeros());
    let waits = if hops > 1.0 { 1.0 - RELAY_WAITS * halved } else { 1.0 };
    let stall = if hops > 1.0 { costs.stall() } else { 0.0 };
    SIZES.map(|size| {
        let bytes = size.min(geometry.chunk_bytes()) as f64;
        let cpu = |time: f64| time / lanes as f64;
        let (wire, send, deliver) = (costs.wire(bytes), costs.send(bytes), costs.deliver(bytes));
        let relay = costs.detect + send;
        // Half of a ring is kept from new packets, and credits of the rest come back in lots.
        let credit = |class| cpu(costs.credit(bytes) * 3.0 / f64::from(geometry.slots(class)));
        let one_way = wire.max(cpu(send)).max(cpu(deliver));
        [
            // One PE puts to one other, gets from it, then puts over both links.
            one_way.max(credit(Class::Request)),
            one_way.max(cpu(send + costs.detect)).max(credit(Class::Reply)),
            (wire / 2.0).max(cpu(send)).max(cpu(deliver)),
            // All to the neighbour, then all to all.
            wire.max(cpu(send + deliver)).max(credit(Class::Request)),
            ((wire * hops / 2.0).max(cpu(send + deliver + (hops - 1.0) * relay)) + stall) * waits,
        ]
        .map(|time| time / bytes)
    })
}

/// Rings and lanes with their times.
struct Candidate {
    geometry: Geometry,
    lanes: usize,
    times: [[f64; LOADS]; SIZES.len()],
}

impl Candidate {
    /// How many times the least time of a load it takes, for the load where that is most.
    fn regret(&self, least: &[[f64; LOADS]; SIZES.len()]) -> f64 {
        let pairs = self.times.iter().flatten().zip(least.iter().flatten());
        pairs.map(|(time, least)| time / least).fold(1.0, f64::max)
    }
}

/// The choice for a ring; the error says what does not fit.
///
/// Of all rings and numbers of lanes that fit, takes those whose worst load comes closest to what
/// any of them reaches for it. Of those that are about as close, the one with fewest lanes, then
/// with the shortest slots and most of them.
pub fn choose(
    costs: &LinkCosts,
    resources: &Resources<'_>,
    overrides: Overrides,
) -> Result<Choice, GeometryError> {
    let mut candidates = candidates(costs, resources, overrides)?;
    let mut least = [[f64::MAX; LOADS]; SIZES.len()];
    for candidate in &candidates {
        let pairs = least.iter_mut().flatten().zip(candidate.times.iter().flatten());
        pairs.for_each(|(least, time)| *least = least.min(*time));
    }
    let best = |lanes: usize| {
        let of_lanes = candidates.iter().filter(|candidate| candidate.lanes == lanes);
        of_lanes.map(|candidate| candidate.regret(&least)).fold(f64::MAX, f64::min)
    };
    let (first, last) = (candidates[0].lanes, candidates[candidates.len() - 1].lanes);
    let lanes = (first..=last)
        .fold(first, |lanes, more| if best(more) * GAIN < best(lanes) { more } else { lanes });
    let limit = best(lanes) * CLOSE;
    candidates.retain(|it| it.lanes == lanes && it.regret(&least) <= limit);
    // Spare slots take up what relays do not pass on at once.
    candidates.sort_by_key(|it| (it.geometry.chunk_bytes(), Reverse(it.geometry.region_bytes())));
    let geometry = candidates[0].geometry;
    let handling_bytes = costs.handling_bytes();
    let reason = reason(costs, resources, overrides, lanes, &geometry);
    Ok(Choice { geometry, lanes, handling_bytes, reason })
}

/// All that fit, by number of lanes; at least one.
fn candidates(
    costs: &LinkCosts,
    resources: &Resources<'_>,
    overrides: Overrides,
) -> Result<Vec<Candidate>, GeometryError> {
    let lanes_max = resources.cores.saturating_sub(1).clamp(1, LANES_MAX);
    let range = overrides.lanes.map_or(1..=lanes_max, |lanes| lanes..=lanes);
    let mut chunks = overrides.chunk.map_or(CHUNKS.to_vec(), |chunk| vec![chunk]);
    if costs.in_steps && costs.dma.is_none() && overrides.chunk.is_none() {
        chunks.retain(|chunk| *chunk <= CHUNK_IN_STEPS_MAX);
    }
    let (most, slots_wanted) = match costs.line_rate.is_finite() {
        true => (REGION_BYTES_MAX, 0),
        false => CACHED,
    };
    let mut found = Vec::new();
    for lanes in range.clone() {
        let room = (resources.room)(lanes).min(most);
        let mut add = |geometry: Geometry| {
            if geometry.region_bytes() <= room {
                let times = loads(costs, resources.hosts, &geometry, lanes);
                found.push(Candidate { geometry, lanes, times });
            }
        };
        for chunk in &chunks {
            for slots in SLOTS {
                add(Geometry::new(*chunk, slots)?);
            }
        }
        if found.is_empty() && lanes == *range.start() {
            let least = Geometry::new(overrides.chunk.unwrap_or(LEAST.0), LEAST.1)?;
            let needed = least.region_bytes();
            if needed > room {
                return Err(GeometryError::Region(room, needed));
            }
            let times = loads(costs, resources.hosts, &least, lanes);
            found.push(Candidate { geometry: least, lanes, times });
        }
    }
    let is_long = |it: &Candidate| it.geometry.slots(Class::Request) >= slots_wanted;
    if found.iter().any(is_long) {
        found.retain(is_long);
    }
    Ok(found)
}

/// Bytes of the packets into which a transfer of `len` bytes over `hops` hops is best cut when
/// nothing else is under way. A power of two, which may be longer than a slot.
pub fn packet_bytes(len: usize, hops: u16, handling_bytes: u32) -> usize {
    let square = len as u64 * u64::from(handling_bytes) / (u64::from(hops) + 1);
    // The power of two nearest to the root.
    let log = square.max(1).ilog2().div_ceil(2);
    PACKET_BYTES_MIN.max(1 << log)
}

fn reason(
    costs: &LinkCosts,
    resources: &Resources<'_>,
    overrides: Overrides,
    lanes: usize,
    geometry: &Geometry,
) -> String {
    let (chunk, slots) = (geometry.chunk_bytes(), geometry.slots(Class::Request));
    let writer = if costs.dma.is_some() { "DMA" } else { "CPU" };
    let rate = costs.payload_rate();
    let links = match rate.is_finite() {
        true => format!("links of {rate:.1} GB/s"),
        false => "links as fast as memory".into(),
    };
    let rings = match overrides.chunk {
        Some(_) => format!("packets of {chunk} bytes as SHMEM_NTB_CHUNK says"),
        None => format!("{slots} packets of {chunk} bytes suit {writer} copies to {links} best"),
    };
    let room = format!("with {} KiB of window for a lane", (resources.room)(lanes) >> 10);
    let cores = resources.cores;
    let lanes = match (overrides.lanes, lanes) {
        (Some(_), _) => "lanes as SHMEM_NTB_LANES says".to_string(),
        (None, 1) if cores == 0 => "1 lane because there are more PEs than cores".into(),
        (None, 1) if cores < 3 => format!("1 lane because each PE has but {cores} of the cores"),
        (None, 1) => "1 lane because more bring nothing".into(),
        (None, _) => format!("{lanes} lanes because each PE has {cores} of the cores"),
    };
    format!("{rings} {room}; {lanes}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PLX: f64 = 7.247;

    fn chosen(line_rate: f64, cores: usize, room: usize, overrides: Overrides) -> Choice {
        let resources = Resources { hosts: 3, cores, room: &|lanes| room / lanes };
        choose(&LinkCosts::desktop(line_rate, 64, None), &resources, overrides).unwrap()
    }

    #[test]
    fn lanes_are_for_those_with_cores() {
        for (cores, lanes) in [(0, 1), (1, 1), (2, 1), (3, 2)] {
            let choice = chosen(PLX, cores, 64 << 20, Overrides::default());
            assert_eq!(choice.lanes, lanes, "{cores} cores: {}", choice.reason);
        }
    }

    #[test]
    fn what_the_user_has_set_stays_and_is_said() {
        let overrides = Overrides { chunk: Some(512), lanes: Some(3) };
        let choice = chosen(PLX, 1, 64 << 20, overrides);
        assert_eq!((choice.geometry.chunk_bytes(), choice.lanes), (512, 3));
        for name in ["SHMEM_NTB_CHUNK", "SHMEM_NTB_LANES"] {
            assert!(choice.reason.contains(name), "{}", choice.reason);
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let resources = Resources { hosts: 3, cores: 1, room: &|_| 64 << 10 };
        let costs = LinkCosts::desktop(PLX, 64, None);
        let with = |bytes| Overrides { chunk: Some(bytes), lanes: None };
        assert_eq!(choose(&costs, &resources, with(100)), Err(GeometryError::Chunk(100)));
        let why = choose(&costs, &resources, with(32 << 10)).unwrap_err();
        assert!(matches!(why, GeometryError::Region(65536, _)), "{why}");
        let nothing = Resources { room: &|_| 4096, ..resources };
        let why = choose(&costs, &nothing, Overrides::default()).unwrap_err();
        assert!(matches!(why, GeometryError::Region(4096, _)), "{why}");
    }

    #[test]
    fn a_window_of_one_mebibyte_serves_eight_pes() {
        for pes in [1, 2, 4, 8] {
            let choice = chosen(PLX, 1, (1 << 20) / pes, Overrides::default());
            assert!(choice.geometry.region_bytes() * pes <= 1 << 20);
            assert!(choice.geometry.slots(Class::Request) >= 8);
        }
    }

    #[test]
    fn faster_links_get_longer_packets() {
        let chunk = |rate| chosen(rate, 1, 64 << 20, Overrides::default()).geometry.chunk_bytes();
        assert!(chunk(PLX / 4.0) < chunk(PLX));
        assert!(chunk(PLX) <= chunk(f64::INFINITY));
    }

    #[test]
    fn stores_that_are_not_combined_leave_a_quarter_of_the_link_and_long_blocks_to_engines() {
        let [words, lines] = [8, 64].map(|store| LinkCosts::desktop(PLX, store, None));
        assert!((words.payload_rate() / PLX - 0.25).abs() < 1e-9, "8 of 32 bytes");
        assert!((lines.payload_rate() / PLX - 64.0 / 88.0).abs() < 1e-9, "64 of 88 bytes");
        assert!(words.wire(4096.0) > 2.5 * lines.wire(4096.0));
        assert!((words.wire(0.0) * PLX - 64.0 * 4.0).abs() < 1e-9, "the header too goes in words");
        let engine = LinkCosts::desktop(PLX, 8, Some(256));
        assert_eq!(engine, LinkCosts::desktop(PLX, 64, Some(256)));
        let [from_words, from_lines] = [words, lines].map(|cpu| dma_crossing(&cpu, &engine));
        assert!(from_words < from_lines, "{from_words:?} {from_lines:?}");
        // A transfer that waits for the link is cut shorter.
        assert!(words.handling_bytes() < lines.handling_bytes());
    }

    #[test]
    fn a_transfer_is_cut_shorter_the_farther_it_goes() {
        assert_eq!(packet_bytes(16 << 10, 1, 790), 2048);
        assert_eq!(packet_bytes(256 << 10, 1, 790), 8192);
        assert_eq!(packet_bytes(256 << 10, 8, 790), 4096);
        assert_eq!(packet_bytes(25, 1, 0), 512);
    }

    proptest! {
        #[test]
        fn whatever_is_chosen_fits(
            hosts in 2u16..=256, cores in 0usize..64, room in 16usize << 10..64 << 20,
            rate in 0.1f64..100.0, dma: bool, store in prop::sample::select(&[8, 64]),
        ) {
            let resources = Resources { hosts, cores, room: &|lanes| room / lanes };
            let costs = LinkCosts::desktop(rate, store, dma.then_some(256));
            let choice = choose(&costs, &resources, Overrides::default()).unwrap();
            prop_assert!(choice.geometry.region_bytes() <= room / choice.lanes);
            prop_assert!(choice.lanes < cores.max(2));
            prop_assert_eq!(choose(&costs, &resources, Overrides::default()), Ok(choice));
        }
    }
}
