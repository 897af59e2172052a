//! Chooses packet length, ring length and lanes from what links and processors cost.
//!
//! Pure and deterministic: the same numbers give the same choice everywhere. `ntbsim tune` compares
//! it with the best that an exhaustive search in the simulator finds.
//!
//! - **Slots.** A packet that fills its slot costs least per byte where something else overlaps
//!   with it. But a CPU that copies into a window can only go on when the bridge has room, so with
//!   long packets one link idles while the other is written. [`choose`] weighs both for the loads of
//!   [`loads`], and takes the shortest slot that is close to the best for all of them.
//! - **Pieces.** A transfer that is under way alone overlaps only with itself: N packets of length c
//!   pass h hops and the delivery in (N + h)(c/B + o), with B the rate of the link and o the time
//!   that a CPU needs for a packet. That is least for c = sqrt(S B o / (h + 1)): [`piece_bytes`].
//! - **Lanes.** More of them only where processors are left, and no more than bring something.

use super::layout::{Geometry, GeometryError};

/// Shortest packet that a transfer is cut into, bytes.
const PIECE_BYTES_MIN: usize = 512;
/// Slot payloads that are considered, bytes. With longer ones, so many slots as small packets need
/// would take more than [`REGION_BYTES_MAX`].
const CHUNKS: [usize; 6] = [1 << 10, 2 << 10, 4 << 10, 8 << 10, 16 << 10, 32 << 10];
/// Bytes that a lane takes from a window at most: more would not stay in the processor's cache.
const REGION_BYTES_MAX: usize = 5 << 19;
/// Slots of the request, reply and control rings in order of preference. With as many packets of 1
/// KiB a neighbour's link is full, even though only half of a ring is used for new packets.
const SLOTS: [[u32; 3]; 7] = [
    [128, 64, 256],
    [64, 64, 128],
    [32, 32, 64],
    [32, 16, 64],
    [16, 16, 64],
    [16, 8, 64],
    [8, 8, 64],
];
/// Rings where not even the last of those fits with the shortest chunk.
const LEAST: (usize, [u32; 3]) = (512, [4, 2, 16]);
/// Lanes of a PE beyond which nothing is gained.
const LANES_MAX: usize = 4;
/// A chunk that is so close to the best is as good, and shorter is better.
const CLOSE: f64 = 1.03;
/// Another lane is taken only if the ring gains so much by it.
const GAIN: f64 = 1.05;

/// What the links and the processors of a ring cost. Times in nanoseconds, rates in bytes per
/// nanosecond.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// Rate of one direction of a link, headers of TLPs included.
    pub line_rate: f64,
    /// Payload of the TLPs that the writer makes, bytes.
    pub tlp_bytes: f64,
    /// Header and framing of a TLP, bytes.
    pub tlp_overhead: f64,
    /// Handing a packet to the DMA engine; none where the CPU copies into the window.
    pub dma_submit: Option<f64>,
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
}

/// Where lanes are to run. Counts of the host with most PEs.
pub struct Place<'a> {
    /// Hosts of the ring.
    pub hosts: u16,
    /// Processors for each PE.
    pub cores: usize,
    /// Bytes of a window that a lane gets when every PE has so many lanes; 0 where that is too many.
    pub room: &'a dyn Fn(usize) -> usize,
}

/// What someone has settled by hand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settled {
    /// Bytes of a slot's payload.
    pub chunk: Option<usize>,
    /// Lanes of each PE.
    pub lanes: Option<usize>,
}

/// What was chosen, the same on all hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Rings of a lane.
    pub geometry: Geometry,
    /// Lanes of each PE.
    pub lanes: usize,
    /// For [`piece_bytes`].
    pub handling_bytes: u32,
    /// Why, for people.
    pub reason: String,
}

impl Costs {
    /// A desktop core of the time of the published systems on a link that carries `line_rate`
    /// bytes per nanosecond in TLPs of up to `max_payload` bytes.
    pub fn desktop(line_rate: f64, max_payload: u32, dma: bool) -> Costs {
        Costs {
            line_rate,
            tlp_bytes: if dma { f64::from(max_payload) } else { 64.0 },
            tlp_overhead: 24.0,
            dma_submit: dma.then_some(120.0),
            copy_rate: 11.0,
            touch: 20.0,
            store: 60.0,
            detect: 70.0,
            look: 20.0,
            posted_bytes: 2048.0,
        }
    }

    /// Payload that a link carries per nanosecond.
    pub fn payload_rate(&self) -> f64 {
        self.line_rate * self.tlp_bytes / (self.tlp_bytes + self.tlp_overhead)
    }

    /// Bytes that a link carries while a CPU handles one packet.
    pub fn handling_bytes(&self) -> u32 {
        let write = self.dma_submit.unwrap_or(self.touch);
        ((write + self.store + self.detect) * self.payload_rate()) as u32
    }

    /// Time of a packet on the wire, header line included.
    fn wire(&self, bytes: f64) -> f64 {
        let tlps = (bytes / self.tlp_bytes).ceil() + 1.0;
        (bytes + 64.0 + tlps * self.tlp_overhead) / self.line_rate
    }

    fn copy(&self, bytes: f64) -> f64 {
        self.touch + bytes / self.copy_rate
    }

    /// CPU time of putting a packet into a window.
    fn send(&self, bytes: f64) -> f64 {
        let write = self.dma_submit.unwrap_or_else(|| {
            let stalled = self.wire(bytes) - self.posted_bytes / self.line_rate;
            self.copy(bytes).max(stalled)
        });
        self.look + self.store + write
    }

    /// CPU time of taking a packet to its destination.
    fn deliver(&self, bytes: f64) -> f64 {
        self.look + self.detect + self.copy(bytes)
    }
}

/// Times that packets of `bytes` bytes take the busiest part of a ring, per byte of payload, under
/// different loads; each host has `lanes` lanes.
fn loads(costs: &Costs, hosts: u16, bytes: usize, lanes: usize) -> [f64; 4] {
    let bytes = bytes as f64;
    let cpu = |time: f64| time / lanes as f64;
    let (wire, send, deliver) = (costs.wire(bytes), costs.send(bytes), costs.deliver(bytes));
    let relay = costs.detect + send;
    let steps = 1..hosts;
    let hops: u16 = steps.map(|step| step.min(hosts - step)).sum();
    let hops = f64::from(hops) / f64::from(hosts - 1);
    [
        // One PE to one other, then over both links.
        wire.max(cpu(send)).max(cpu(deliver)),
        (wire / 2.0).max(cpu(send)).max(cpu(deliver)),
        // All to the neighbour, then all to all.
        wire.max(cpu(send + deliver)),
        (wire * hops / 2.0).max(cpu(send + deliver + (hops - 1.0) * relay)),
    ]
    .map(|time| time / bytes)
}

/// The choice for a ring; the error says what does not fit.
///
/// Fewer slots are taken before shorter ones where a window is small: rings of 8 slots of the
/// chosen length are longer than the bandwidth-delay product of a polled link, about 13 KB.
pub fn choose(costs: &Costs, place: &Place<'_>, settled: Settled) -> Result<Choice, GeometryError> {
    let lanes_max = place.cores.saturating_sub(1).clamp(1, LANES_MAX);
    let candidates = match settled.lanes {
        Some(lanes) => lanes..=lanes,
        None => 1..=lanes_max,
    };
    let mut best: Option<(f64, usize, Geometry)> = None;
    for lanes in candidates {
        let room = (place.room)(lanes);
        let geometry = match geometry(costs, place.hosts, lanes, room, settled.chunk) {
            Ok(geometry) => geometry,
            Err(why) if best.is_none() => return Err(why),
            Err(_) => break,
        };
        let chunk = geometry.chunk_bytes();
        let cost: f64 = loads(costs, place.hosts, chunk, lanes).iter().sum();
        if best.as_ref().is_none_or(|(least, ..)| cost * GAIN < *least) {
            best = Some((cost, lanes, geometry));
        }
    }
    let Some((_, lanes, geometry)) = best else { return Err(GeometryError::Region(0, least()?)) };
    let handling_bytes = costs.handling_bytes();
    let reason = reason(costs, place, settled, lanes, &geometry);
    Ok(Choice { geometry, lanes, handling_bytes, reason })
}

/// Bytes of the packets into which a transfer of `len` bytes over `hops` hops is best cut when
/// nothing else is under way. A power of two, which may be longer than a slot.
pub fn piece_bytes(len: usize, hops: u16, handling_bytes: u32) -> usize {
    let square = len as u64 * u64::from(handling_bytes) / (u64::from(hops) + 1);
    // The power of two nearest to the root.
    let log = square.max(1).ilog2().div_ceil(2);
    PIECE_BYTES_MIN.max(1 << log)
}

fn geometry(
    costs: &Costs,
    hosts: u16,
    lanes: usize,
    room: usize,
    settled: Option<usize>,
) -> Result<Geometry, GeometryError> {
    let room = room.min(REGION_BYTES_MAX);
    let wanted = settled.unwrap_or_else(|| chunk(costs, hosts, lanes));
    let shorter = CHUNKS.into_iter().rev().filter(|chunk| settled.is_none() && *chunk < wanted);
    for chunk in std::iter::once(wanted).chain(shorter) {
        for slots in SLOTS {
            let geometry = Geometry::new(chunk, slots)?;
            if geometry.region_bytes() <= room {
                return Ok(geometry);
            }
        }
    }
    let least = Geometry::new(settled.unwrap_or(LEAST.0), LEAST.1)?;
    match least.region_bytes() {
        needed if needed <= room => Ok(least),
        needed => Err(GeometryError::Region(room, needed)),
    }
}

/// The shortest chunk that is close to the best under all loads.
fn chunk(costs: &Costs, hosts: u16, lanes: usize) -> usize {
    let times = CHUNKS.map(|chunk| loads(costs, hosts, chunk, lanes));
    let regret = |row: &[f64; 4]| {
        let least = |load: usize| times.iter().map(|row| row[load]).fold(f64::MAX, f64::min);
        (0..row.len()).map(|load| row[load] / least(load)).fold(0.0, f64::max)
    };
    let least = times.iter().map(regret).fold(f64::MAX, f64::min);
    let close = times.iter().position(|row| regret(row) <= least * CLOSE);
    CHUNKS[close.unwrap_or(0)]
}

fn least() -> Result<usize, GeometryError> {
    Ok(Geometry::new(LEAST.0, LEAST.1)?.region_bytes())
}

fn reason(
    costs: &Costs,
    place: &Place<'_>,
    settled: Settled,
    lanes: usize,
    geometry: &Geometry,
) -> String {
    let chunk = geometry.chunk_bytes();
    let writer = if costs.dma_submit.is_some() { "DMA" } else { "CPU" };
    let best = self::chunk(costs, place.hosts, lanes);
    let chunk = match settled.chunk {
        Some(_) => format!("chunks of {chunk} bytes as SHMEM_NTB_CHUNK says"),
        None if chunk < best => {
            format!("chunks of {chunk} bytes because {best} do not fit the window")
        }
        None => format!(
            "chunks of {chunk} bytes suit {writer} copies to links of {:.1} GB/s best",
            costs.payload_rate()
        ),
    };
    let cores = place.cores;
    let lanes = match (settled.lanes, lanes) {
        (Some(lanes), _) => format!("{lanes} lanes as SHMEM_NTB_THREADS says"),
        (None, 1) if cores < 3 => format!("1 lane because a PE has no more than {cores} cores"),
        (None, 1) => "1 lane because more bring nothing".to_string(),
        (None, _) => format!("{lanes} lanes because a PE has {cores} cores"),
    };
    format!("{chunk}; {lanes}")
}
