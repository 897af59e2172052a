// SPDX-License-Identifier: Apache-2.0
//! Settings of an engine. All hosts of a job use the same, except for `incarnation`.

pub use super::layout::Geometry;

/// Most hosts of a ring.
pub const HOSTS_MAX: u16 = 256;
/// Fetching AMOs an engine may have outstanding; a target keeps as many results for each host.
pub const FETCHES: usize = 64;

/// Sizes and times. Times are in nanoseconds for which the engine has been polled.
#[derive(Clone, Copy, Debug, Hash)]
pub struct Config {
    /// Rings; agreed in the handshake.
    pub geometry: Geometry,
    /// CRC32C of every header and payload.
    pub crc: bool,
    /// Large puts and gets use both directions where the detour is at most one hop longer.
    pub split: bool,
    /// From which length, in bytes.
    pub split_bytes_min: usize,
    /// Bytes that a link carries while the busiest CPU on the way handles one packet, for the
    /// length of packets ([`packet_bytes`](super::choose::packet_bytes)); 0: they fill their slots.
    /// By default that of CPU copies to a Gen3 x8 link.
    pub handling_bytes: u32,
    /// Packets of a flow that may await acknowledgement; a power of two.
    pub window: u32,
    /// Operations that may be outstanding.
    pub operations: usize,
    /// Get requests that may be outstanding.
    pub gets: usize,
    /// Chunks that can be kept for puts whose source is reused at once.
    pub retained_chunks: usize,
    /// For so long after a quick operation met long ones of other streams more of them are
    /// expected, and no flow fills the way to its target.
    pub share_ns: u64,
    /// Packets taken from each ring, and put on each, in one poll.
    pub burst: u32,
    /// Random for each start of a host, so that the epochs of two starts differ.
    pub incarnation: u32,
    /// Between looks at timers.
    pub tick_ns: u64,
    /// Between heartbeats.
    pub beat_ns: u64,
    /// Silence after which the local link state is read.
    pub suspect_ns: u64,
    /// Silence after which a link is out of use though it seems up, if the neighbour is known to run
    /// meanwhile: its news come the other way round.
    pub dead_ns: u64,
    /// The same if nothing is heard of the neighbour at all: it may be stopped, or wait for a
    /// processor. Traffic goes round it.
    pub silent_ns: u64,
    /// A host that is silent for so long in addition is given up.
    pub silence_ns: u64,
    /// Cut off by links that are down for so long, hosts are given up.
    pub lost_ns: u64,
    /// Longest time that counts between two polls: time for which an engine did not run is no
    /// evidence against others.
    pub step_ns: u64,
    /// A link on which all round trips take so long is not used, if there is another way.
    pub slow_ns: u64,
    /// How long a link in poor health is not used at first.
    pub rest_ns: u64,
    /// The same before the ring has been whole for the first time.
    pub connect_ns: u64,
    /// Least time before unacknowledged packets are sent again; doubles with each repetition.
    pub replay_ns: u64,
    /// Repetitions without any progress, and for `silence_ns` at least, after which the target is
    /// given up.
    pub replays_max: u32,
    /// Time for which an announced slot may be missing.
    pub gap_ns: u64,
}

impl Config {
    /// Defaults for a geometry. `incarnation` must be random and not zero.
    pub fn new(geometry: Geometry, incarnation: u32) -> Config {
        const MS: u64 = 1_000_000;
        Config {
            geometry,
            crc: false,
            split: true,
            split_bytes_min: 128 << 10,
            handling_bytes: 800,
            window: 128,
            operations: 1024,
            gets: 128,
            retained_chunks: 64,
            share_ns: 100 * MS,
            burst: 8,
            incarnation,
            tick_ns: 100_000,
            beat_ns: MS,
            suspect_ns: 10 * MS,
            dead_ns: 500 * MS,
            silent_ns: 2_000 * MS,
            silence_ns: 30_000 * MS,
            lost_ns: 2_000 * MS,
            step_ns: 20 * MS,
            slow_ns: 250 * MS,
            rest_ns: 1_000 * MS,
            connect_ns: 30_000 * MS,
            replay_ns: 20 * MS,
            replays_max: 12,
            gap_ns: 5 * MS,
        }
    }

    /// Settings for virtual time, where threads are never held up by others: short patience, and
    /// shorter still when `faults` are expected.
    pub fn simulated(geometry: Geometry, faults: bool) -> Config {
        const US: u64 = 1_000;
        Config {
            burst: 1,
            tick_ns: 20 * US,
            beat_ns: 200 * US,
            suspect_ns: 1_000 * US,
            dead_ns: 3_000 * US,
            silent_ns: 4_000 * US,
            silence_ns: 20_000 * US,
            lost_ns: 20_000 * US,
            step_ns: 2_000 * US,
            slow_ns: 500 * US,
            rest_ns: 5_000 * US,
            replay_ns: if faults { 300 * US } else { 5_000 * US },
            gap_ns: 30 * US,
            ..Config::new(geometry, 1)
        }
    }

    /// Bytes of the retained area that [`Span::Retained`](super::Span) addresses: the chunks, and
    /// one in which data asked for are fixed before their CRC is taken.
    pub fn retained_bytes(&self) -> usize {
        self.kept_bytes() + self.geometry.chunk_bytes()
    }

    /// Bytes of the chunks alone: they stay as they are until their packets have been acknowledged.
    pub fn kept_bytes(&self) -> usize {
        self.retained_chunks * self.geometry.chunk_bytes()
    }
}
