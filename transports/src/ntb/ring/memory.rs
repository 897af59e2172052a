// SPDX-License-Identifier: Apache-2.0
//! What the protocol asks of whoever runs it: windows, memory, and a place for results.
//!
//! The state machine does no I/O and holds no pointer. It names memory ([`Span`], [`Location`]), and
//! [`Memory`] moves the bytes: through a real window, or over virtual time in the simulator. Every method is on the data path: none may block, allocate or log.

use tombolo_core::transport::Amo;

use super::packet::LineWords;

/// One of a host's two ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Side {
    /// Towards the host with the next higher number.
    Right = 0,
    /// Towards the host with the next lower number.
    Left = 1,
}

impl Side {
    /// Both sides, in index order.
    pub const BOTH: [Side; 2] = [Side::Right, Side::Left];

    /// The other side.
    pub fn opposite(self) -> Side {
        match self {
            Side::Right => Side::Left,
            Side::Left => Side::Right,
        }
    }
}

/// A range of symmetric memory of a PE of this host. Comes from the wire: not to be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Location {
    /// PE, counted within the host.
    pub pe: u8,
    /// Segment index.
    pub segment: u8,
    /// Bytes from the start of the segment.
    pub offset: u64,
}

/// Bytes that can be moved. Offsets into regions come from the geometry and are sound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Span {
    /// In this host's own region behind a port: what the neighbour has written.
    Inbound(Side, usize),
    /// Symmetric memory; [`Memory`] checks the range.
    Symmetric(Location),
    /// A buffer of the program, by the address given with the operation.
    Local(u64),
    /// In the retained area, by offset ([`Config::retained_bytes`](super::Config)).
    Retained(usize),
}

impl Span {
    /// The bytes from `bytes` further on.
    pub fn plus(self, bytes: usize) -> Span {
        match self {
            Span::Inbound(side, at) => Span::Inbound(side, at + bytes),
            Span::Symmetric(location) => {
                // One that wraps around is in no segment either.
                let offset = location.offset.saturating_add(bytes as u64);
                Span::Symmetric(Location { offset, ..location })
            }
            Span::Local(address) => Span::Local(address + bytes as u64),
            Span::Retained(at) => Span::Retained(at + bytes),
        }
    }
}

/// The range is not inside a registered segment, or not aligned for an AMO.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfRange;

/// How an operation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completion {
    /// Visible at the target, or the result has been written.
    Done,
    /// The target refused the address.
    Refused,
    /// The target's host cannot be reached any more.
    Lost,
}

/// What people and the layer above should know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A neighbour answers; its link is in use.
    LinkUp(Side),
    /// A link is out of use; traffic goes the other way round.
    LinkDown(Side),
    /// A link is out of use for a while: it damages, loses or delays too much.
    Resting(Side),
    /// Nothing is heard of a neighbour although its link is up: it may be stopped. Traffic goes
    /// round it.
    Silent(Side),
    /// The neighbour speaks another version or was set up differently.
    Mismatch(Side),
    /// `count` hosts from `first` rightwards are cut off for good; their operations have failed.
    /// One host: it died, or both its links did. More: the ring is split.
    Lost {
        /// First of them.
        first: u16,
        /// How many.
        count: u16,
    },
    /// A host took no operation in spite of all repetitions; its operations have failed.
    GaveUp(u16),
}

/// What moves the bytes of a [`Memory::send`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Transfer {
    /// The CPU: it has, and the source may be used again.
    #[default]
    Done,
    /// A DMA engine, or the CPU later ([`Memory::store_some`]), by a number that grows: the source must stay
    /// as it is until it has been read ([`Memory::has_left`]).
    Queued(u64),
}

/// Windows and memory, as seen by one engine.
pub trait Memory {
    /// Loads an aligned word of the inbound region with acquire order.
    fn load_word(&mut self, side: Side, offset: usize) -> u64;

    /// Loads a line of the inbound region.
    fn load_line(&mut self, side: Side, offset: usize) -> LineWords;

    /// Stores a line in the neighbour's region, its last word last, after all that was stored to that side before
    /// has been posted, and all that was sent but what is still queued ([`Transfer::Queued`]).
    fn store_line(&mut self, side: Side, offset: usize, line: &LineWords);

    /// Stores the header line of a packet: as [`store_line`](Self::store_line), and after the payload that
    /// was sent to that side last, whoever moves it. Says whether it has been stored, or when.
    fn store_header(&mut self, side: Side, offset: usize, line: &LineWords) -> Transfer {
        self.store_line(side, offset, line);
        Transfer::Done
    }

    /// Copies `len` bytes. Aligned words of 4 and 8 bytes of symmetric memory never tear where place and length are
    /// multiples of theirs: packets begin and end at multiples of 8 bytes of their transfer, but for its last ones.
    fn copy(&mut self, from: Span, to: Span, len: usize) -> Result<(), OutOfRange>;

    /// Copies `len` bytes, whole words, to `offset` of the neighbour's region and the word `seal`
    /// behind them, so that the seal is not seen without the bytes after the next header stored there.
    fn send(
        &mut self,
        from: Span,
        side: Side,
        offset: usize,
        len: usize,
        seal: u64,
    ) -> Result<Transfer, OutOfRange>;

    /// Stores a little of what [`send`](Self::send) has left for the CPU to store later; false where nothing is
    /// left. Called in each poll that does anything, and polls go on as long as something is left.
    fn store_some(&mut self) -> bool {
        false
    }

    /// Whether something is left for [`store_some`](Self::store_some).
    fn has_steps(&self) -> bool {
        false
    }

    /// Whether the source of what was sent to that side is not needed any more.
    fn has_left(&mut self, _side: Side, transfer: Transfer) -> bool {
        transfer == Transfer::Done
    }

    /// Has whatever else than the CPU moves payload to that side write `word` at `offset` of the neighbour's region,
    /// behind all that it was given before: the CPU's stores say nothing of where its writes are. `Done`: nothing
    /// but the CPU's stores is or may be under way there. None: not now.
    fn mark(&mut self, _side: Side, _offset: usize, _word: u64) -> Option<Transfer> {
        Some(Transfer::Done)
    }

    /// CRC32C of `len` bytes.
    fn checksum(&mut self, span: Span, len: usize) -> u32;

    /// Reads up to 24 bytes; for data that travels inside a header line.
    fn read(&mut self, span: Span, bytes: &mut [u8]) -> Result<(), OutOfRange>;

    /// Writes up to 24 bytes; for data that travelled inside a header line.
    fn write(&mut self, span: Span, bytes: &[u8]) -> Result<(), OutOfRange>;

    /// Applies an AMO with the CPU's atomics, which local PEs use too, and gives the old value.
    fn amo(&mut self, place: Location, amo: &Amo) -> Result<u64, OutOfRange>;

    /// Whether stores to that side have lately held the caller up for so long that the link should
    /// not be used, because the link does not take them. Asked at every look at timers; the answer
    /// is about the time since it was last asked. With `may_drop`, which is said for the time until it is
    /// asked again, what is stored to a link that is stuck may be dropped: there is another way.
    fn take_stuck(&mut self, _side: Side, _may_drop: bool) -> bool {
        false
    }

    /// Whether nothing that was sent to that side is still to be written there. It may be under way.
    fn is_idle(&mut self, _side: Side) -> bool {
        true
    }

    /// Rings the neighbour's doorbell for this lane behind what was stored and sent there. Called for a
    /// sleeper only.
    fn ring(&mut self, side: Side);

    /// Reads the local link state. Called only when a neighbour has been silent.
    fn link_is_up(&mut self, side: Side) -> bool;

    /// An operation ended; `token` is the one it was submitted with.
    fn complete(&mut self, token: u64, outcome: Completion);

    /// Something worth telling.
    fn event(&mut self, event: Event);
}
