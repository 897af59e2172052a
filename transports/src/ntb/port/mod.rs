// SPDX-License-Identifier: Apache-2.0
//! The hardware abstraction of a PCIe non-transparent bridge (NTB), in the vocabulary of Linux's
//! `include/linux/ntb.h`.
//!
//! An [`NtbPort`] is one end of one link. What it offers:
//!
//! - **Inbound windows**: this host decides which of its memory the peer may write, by translating
//!   slots of a window to registered memory ([`NtbPort::mw_set_trans`]).
//! - **Outbound windows**: the peer's inbound windows as seen from here ([`Outbound`]). Writes are
//!   posted: they are never answered, and a write that reaches nothing vanishes.
//! - **Doorbells** that latch, mask and wake; **scratchpads** for the handshake; the **link**; an
//!   optional **DMA** engine. [`Capabilities`] says what a port has and by which rules.
//!
//! What every back end promises, and what its users may rely on, is written at the methods; the
//! functions of `conformance` (feature `testing`) check it. Back ends: [`emulated`] (processes of one
//! machine play hosts) and PCI functions, driven through VFIO ([`open_ports`]): [`ivshmem`] (a device of
//! virtual machines), [`amd`], [`epf`], [`intel`], [`plx`] and [`switchtec`] (bridges). A port is used by several processes of a host at once: an
//! emulated one by whoever opens it, and that of a function by those to whom the process that has opened it lends it
//! ([`NtbPort::share`]). All of them see the same registers.
//!
//! Windows are divided into equal **slots** with a translation each, so that every PE of a host can
//! stand behind its own part of a window. PLX chips have this as the A-LUT (128 or 256 slots),
//! Switchtec as LUT windows; where the chip translates a window as a whole (Intel, AMD), the slots are
//! mappings of the host's IOMMU behind that one translation.
//!
//! With several PEs on a host each takes its [`Window::share`] of the slots of every window, puts its
//! ring memory and its symmetric segments there, and owns some doorbell bits; a peer computes the
//! same share and writes there. The link itself belongs to the host: any of its PEs enables it, none
//! disables it on leaving.

mod absent;
pub mod amd;
mod bridge;
mod capability;
#[cfg(any(test, feature = "testing"))]
pub mod conformance;
mod counters;
pub mod emulated;
pub(crate) mod engine;
pub mod epf;
pub mod functions;
pub mod intel;
pub mod ivshmem;
mod listener;
mod memory;
mod open;
pub mod plx;
pub(crate) mod shared;
mod slots;
pub mod switchtec;
mod timing;
mod vfio;

pub use absent::AbsentPort;
#[cfg(feature = "testing")]
pub use bridge::Device;
#[cfg(any(test, feature = "testing"))]
pub use bridge::testing as bridges;
pub use capability::{Arrival, Capabilities, DmaCapability, DoorbellDelivery, LinkEvent, Window};
pub use counters::{Counters, Event};
pub use memory::InboundMemory;
pub use open::open_ports;
pub use shared::Share;
pub use timing::{LinkTiming, PcieGen};
#[cfg(feature = "testing")]
pub use vfio::trial;

use std::os::fd::BorrowedFd;
use std::time::Duration;
use tombolo_core::error::reason;

/// An address as the bus sees it: what a translation points to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BusAddress(pub u64);

impl BusAddress {
    /// The address `bytes` further on.
    pub fn plus(self, bytes: u64) -> BusAddress {
        BusAddress(self.0.wrapping_add(bytes))
    }
}

/// Why an operation of the control plane was refused. Data-path operations do not fail: they vanish
/// and are counted ([`NtbPort::counters`]).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PortError {
    /// An argument breaks a rule of the hardware (`EINVAL`).
    #[error("{0}")]
    Invalid(String),
    /// The link is down (`ENOTCONN`).
    #[error("the link is down")]
    NotConnected,
    /// The peer has not opened this slot.
    #[error("the peer has not opened slot {slot} of window {window}")]
    Closed {
        /// Window.
        window: usize,
        /// Slot.
        slot: usize,
    },
    /// The port does not have this.
    #[error("the port has no {0}")]
    Unsupported(&'static str),
    /// A bounded resource is used up.
    #[error("{0}")]
    Exhausted(String),
    /// Another process holds a write through the window open and does not finish it.
    #[error("{0}")]
    Busy(String),
    /// The device was taken away, was reset, or lost its own link: its registers read as all ones.
    #[error("{0} does not answer any more: all its registers read as ones")]
    Gone(String),
    /// The operating system refused.
    #[error("{what}: {}", reason(.source))]
    System {
        /// What was attempted.
        what: String,
        /// Why it failed.
        source: std::io::Error,
    },
}

impl PortError {
    pub(crate) fn system(what: impl Into<String>, source: impl Into<std::io::Error>) -> PortError {
        PortError::System { what: what.into(), source: source.into() }
    }
}

/// Result of the control plane.
pub type Result<T, E = PortError> = std::result::Result<T, E>;

/// Memory of this process that the peer may be let into.
#[derive(Clone, Copy, Debug)]
pub struct Region<'a> {
    /// Where it lies in this process.
    pub base: *mut u8,
    /// Bytes.
    pub len: u64,
    /// The memory file it is a shared mapping of, if it is one. The file must not shrink while
    /// registered.
    pub file: Option<BorrowedFd<'a>>,
    /// Offset of `base` in the file, a multiple of the page size.
    pub file_offset: u64,
}

/// State of a link as this side sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkState {
    /// What the port believes. After a crash or reboot of the peer it may be wrong: only an answer
    /// from the peer proves that a link works.
    pub up: bool,
    /// Generation as trained.
    pub speed: PcieGen,
    /// Lanes as trained.
    pub width: u32,
    /// Largest payload of one TLP, bytes.
    pub max_payload: u32,
    /// Changes whenever the link goes up or down, so that a down and up between two looks is seen;
    /// perhaps only when the port is told of that, and for a change that was seen before it was told,
    /// once more then.
    pub generation: u64,
}

/// What ended a wait for a doorbell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wake {
    /// Bits asked for that are pending and not masked. Empty after a time-out or a spurious event.
    pub pending: u64,
    /// The link went up or down since this handle last asked ([`NtbPort::link_event`]).
    pub link_changed: bool,
    /// A DMA channel of this handle has carried out all that was queued ([`DmaChannel::wake`]).
    pub transferred: bool,
}

/// A 64-byte line: what the data path is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(64))]
pub struct Line(pub [u64; 8]);

impl Line {
    /// Bytes of a line.
    pub const BYTES: usize = 64;
}

/// One end of one NTB link. Object safe; callable from any thread.
///
/// Indices (window, slot, scratchpad) outside what [`Capabilities`] states are an error or, in calls
/// without one, are ignored and read as all ones, as a bus would do.
pub trait NtbPort: Send + Sync {
    /// What this port has. Never changes.
    fn capabilities(&self) -> &Capabilities;

    /// Whether it stands for a port that the host does not have.
    fn is_absent(&self) -> bool {
        false
    }

    /// Lets the link train. It comes up once both sides have enabled it; that is not waited for.
    fn link_enable(&self) -> Result<()>;

    /// Takes the link down. On return no write of either side is on its way any more. Scratchpads
    /// keep their values; with [`Capabilities::resets_on_link_down`] translations, doorbells and
    /// masks are lost.
    fn link_disable(&self) -> Result<()>;

    /// The link as this side sees it.
    fn link_state(&self) -> LinkState;

    /// Whether the link went up or down since this handle last asked. Carries no state: ask
    /// [`NtbPort::link_state`]. May be late, and may be true without a change.
    fn link_event(&self) -> bool;

    /// Makes `len` zeroed bytes, rounded up to whole pages, to stand behind inbound `window` from
    /// `first_slot` on: where the chip, or the IOMMU before it, wants memory of a certain kind, this is
    /// of that kind. Behind a [fixed](Window::fixed) window lies no other memory than this.
    fn inbound_memory(&self, window: usize, first_slot: usize, len: usize)
    -> Result<InboundMemory>;

    /// Makes memory known to the bus (IOMMU mapping, pinning). The bus address is at least as
    /// aligned as the largest window, or belongs to the place in a [fixed](Window::fixed) window that
    /// the memory was made for.
    fn register(&self, region: &Region<'_>) -> Result<BusAddress>;

    /// Whether it has DMA engines that only another process of this host uses.
    fn leaves_engines(&self) -> bool {
        false
    }

    /// The same for memory of another process of this host, which no DMA engine reads.
    fn register_for_other(&self, region: &Region<'_>) -> Result<BusAddress> {
        self.register(region)
    }

    /// Takes back `register`. `Invalid` while a translation set through this handle points to it.
    fn unregister(&self, address: BusAddress) -> Result<()>;

    /// Points the slots of inbound `window` from `first_slot` on at `size` bytes of registered
    /// memory, replacing what was behind them.
    ///
    /// - `Invalid`: an alignment or size rule of [`Window`] is broken, or the memory is not
    ///   registered. `NotConnected`: the link is down.
    /// - Bytes of the slots beyond the limit, or beyond the end of registered memory, stay closed.
    /// - The peer may hear only later that the slots are open.
    /// - Slow (register writes, up to 50 ms on some chips): done at link-up, never on the data path.
    fn mw_set_trans(
        &self,
        window: usize,
        first_slot: usize,
        address: BusAddress,
        size: u64,
    ) -> Result<()>;

    /// Closes `slots` slots of inbound `window`. On return no write of the peer through them is
    /// on its way any more, and later ones fault. Allowed while the link is down.
    ///
    /// Stores made by the peer through [`Outbound::map`] are not waited for. Where they are under way for a
    /// while ([`Arrival::Later`]), those that have not arrived fault as well.
    fn mw_clear_trans(&self, window: usize, first_slot: usize, slots: usize) -> Result<()>;

    /// Opens outbound `window` for one requester: a thread takes its own handle. Handles share the
    /// window, and have no order between them.
    fn outbound(&self, window: usize) -> Result<Box<dyn Outbound>>;

    /// Bits that exist and may be used.
    fn db_valid_mask(&self) -> u64 {
        match self.capabilities().doorbell_bits {
            64 => u64::MAX,
            bits => (1 << bits) - 1,
        }
    }

    /// Pending bits of this side, masked or not.
    fn db_read(&self) -> u64;

    /// Clears pending bits (write one to clear). Other bits are not touched.
    fn db_clear(&self, bits: u64);

    /// Bits that raise no event: all, at first and after a reset.
    fn db_read_mask(&self) -> u64;

    /// Masks bits: they still become pending.
    fn db_set_mask(&self, bits: u64);

    /// Unmasks bits. One that is pending raises the event now.
    fn db_clear_mask(&self, bits: u64);

    /// Rings the peer: a posted write that follows, in order, all writes this thread has flushed.
    /// Ringing a pending bit again is legal and coalesces.
    fn peer_db_set(&self, bits: u64);

    /// Waits until a bit of `bits` is pending and unmasked, the link changes, a DMA channel tells
    /// ([`DmaChannel::wake`]), or `timeout` passes.
    ///
    /// - Never sleeps while a bit asked for is pending and unmasked, so clear, look at the memory
    ///   again, then wait loses no wake-up when events are delivered as
    ///   [`DoorbellDelivery::PerBitVector`] or `AggregateLevel`.
    /// - With [`DoorbellDelivery::EdgeFromZero`] a bit set while others are pending raises nothing:
    ///   clear and re-read until zero, mask bits that are polled, and keep `timeout` short (1 ms).
    /// - May return early with nothing pending.
    fn db_wait(&self, bits: u64, timeout: Duration) -> Wake;

    /// Lets a port that is emulated move on what is under way; to be called by who polls for an
    /// answer. Nothing depends on it but time. Hardware does nothing here.
    fn poll(&self) {}

    /// The same for who has polled and is about to sleep: what is under way is moved on by others.
    fn rest(&self) {}

    /// Reads a scratchpad of this side.
    fn spad_read(&self, index: usize) -> u32;

    /// Writes a scratchpad of this side.
    fn spad_write(&self, index: usize, value: u32);

    /// Reads a scratchpad of the peer: waits for a round trip. All ones when the link is down.
    fn peer_spad_read(&self, index: usize) -> u32;

    /// Writes a scratchpad of the peer: posted; vanishes when the link is down. Scratchpads are
    /// single words: two of them never change together.
    fn peer_spad_write(&self, index: usize, value: u32);

    /// Opens a DMA channel that writes to outbound `window`. It is a requester of its own: its
    /// writes have no order with those of the CPU, doorbells included, nor with those of another channel.
    fn dma(&self, _window: usize) -> Result<Box<dyn DmaChannel>> {
        Err(PortError::Unsupported("DMA engine"))
    }

    /// What this side has done and seen since the port was created, over all processes using it.
    fn counters(&self) -> Counters;

    /// What other processes of this host need to use the port beside this one, which goes on to be its owner; an error
    /// where they cannot.
    fn share(&self) -> Result<Share> {
        Err(PortError::Unsupported("way for several processes to use it"))
    }

    /// One line about the port for people.
    fn describe(&self) -> String;
}

/// An outbound window, opened for one requester.
///
/// - Writes are **posted**: they return when they have left, not when they have arrived. There is no
///   status. A write that meets a closed slot, the end of the window or a dead link is dropped from
///   that TLP on, and counted.
/// - **Order**: after [`Outbound::flush`], whoever sees a later write of this handle sees the
///   earlier ones as well. Between two flushes the writes of a handle are unordered where the
///   window is write-combining ([`Capabilities::write_combining`]), in order where it is not. No order exists
///   between handles.
/// - **Atomicity**: aligned words of up to 8 bytes appear whole; nothing larger does. A line written
///   by [`Outbound::write_line`] is one TLP: whoever sees its last word sees all of it.
/// - **Loss**: what is written to a range that is not open ([`Outbound::open`]) vanishes. A range is
///   closed by everything after which writes might be lost: so nothing arrives that was written to
///   it after something that did not.
/// - Nothing here waits for the peer. Writes make no system call and allocate nothing.
pub trait Outbound: Send {
    /// Bytes of the window.
    fn size(&self) -> usize;

    /// Opens `len` bytes from `offset` on for writes of this handle, for as long as the link stays up, by
    /// its [`generation`](LinkState::generation), and the peer changes no translation of the range; after
    /// either, open it again. Everything that writes to the range will need from the operating system is
    /// obtained here, so that the program may use up or give away what it likes later.
    ///
    /// - `NotConnected`: the link is down. `Closed`: the peer has not opened all of the range, where
    ///   the hardware can tell; what it has opened is open. Other errors: the range cannot be used.
    /// - Slow: done when a link comes up, never on the data path.
    fn open(&mut self, offset: usize, len: usize) -> Result<()>;

    /// Writes `len` bytes at `offset`.
    ///
    /// # Safety
    /// `source` must be readable for `len` bytes.
    unsafe fn write(&mut self, offset: usize, source: *const u8, len: usize);

    /// Writes one line. `offset` is a multiple of 64, or the write is dropped and counted.
    fn write_line(&mut self, offset: usize, line: &Line);

    /// Drains write-combining buffers and orders earlier writes before later ones (`sfence`).
    /// Required before a flag or doorbell that announces data. Does not wait for arrival:
    /// [`Capabilities::arrival`] says where the writes are when it returns.
    fn flush(&mut self);

    /// Reads `dest.len()` bytes at `offset`: a round trip for every 8 bytes. For diagnosis; the data
    /// path never reads across a link, and a counter tells if it did. All ones where nothing answers.
    fn read(&mut self, offset: usize, dest: &mut [u8]);

    /// Opens a range for writes by all threads of this process, where the back end has such a thing
    /// and the peer has opened every slot of the range.
    fn map(&mut self, offset: usize, len: usize) -> Option<Box<dyn WindowMapping>>;
}

/// Part of an outbound window that many threads write to without a lock of theirs.
///
/// Writes follow the rules of [`Outbound`] and, at the end of each, a flush. Those of all mappings
/// that one handle has made are writes of that handle: whoever sees one sees all that were finished
/// before it.
pub trait WindowMapping: Send + Sync {
    /// Bytes.
    fn size(&self) -> usize;

    /// Writes `len` bytes at `offset` and flushes. False: link or translations are not what they
    /// were when the mapping was made, and this write and those under way
    /// ([`Capabilities::arrival`]) may be lost.
    ///
    /// # Safety
    /// `source` must be readable for `len` bytes.
    unsafe fn write(&self, offset: usize, source: *const u8, len: usize) -> bool;

    /// Link and translations are what they were when the mapping was made. A few loads.
    fn is_open(&self) -> bool;

    /// The link is not what it was then: nothing that was written is on its way any more.
    fn is_cut(&self) -> bool;
}

/// One DMA transfer into an outbound window.
#[derive(Clone, Copy, Debug)]
pub struct DmaTransfer {
    /// Where to, bytes from the start of the window.
    pub offset: usize,
    /// Where from: memory that was registered ([`NtbPort::register`]) before the range was opened.
    pub source: *const u8,
    /// Bytes, at most [`DmaCapability::max_len`]; 0 for a flag alone.
    pub len: usize,
    /// An 8-byte word written after the data, in order: (offset, value).
    pub flag: Option<(usize, u64)>,
}

/// Why a transfer was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DmaRefusal {
    /// All descriptors are in use: poll, then try again.
    Full,
    /// Longer than [`DmaCapability::max_len`].
    TooLong,
    /// The engine cannot read the source: it does not lie in memory known to the port.
    Unregistered,
    /// The engine is not used any more. It reads and writes nothing, and all its transfers have
    /// finished.
    Gone,
}

/// How far a channel has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DmaProgress {
    /// Transfers finished since the channel was opened, in order of submission, failed ones
    /// included.
    pub finished: u64,
    /// Transfers that ended in an error, of those finished. Some of their data may have been written;
    /// their flag was not.
    pub failed: u64,
}

/// A channel of a DMA engine. Writes follow the rules of [`Outbound`], and transfers are carried out in
/// the order of their submission: whoever sees the flag of one sees its data and all that was
/// written for those before it.
///
/// Of a channel that was dropped, or refuses transfers as [`DmaRefusal::Gone`], no write is on its way any more: what
/// arrives of them does before anything that the CPU writes later.
pub trait DmaChannel: Send {
    /// As [`Outbound::open`]. Transfers submitted before a link went down must have finished before the
    /// range is opened again, or they would reach what they were not meant for.
    fn open(&mut self, offset: usize, len: usize) -> Result<()>;

    /// Queues a transfer and returns its number, from 1.
    ///
    /// # Safety
    /// `transfer.source` must stay readable for `len` bytes until the transfer has finished or the
    /// channel is dropped.
    unsafe fn submit(&mut self, transfer: DmaTransfer) -> std::result::Result<u64, DmaRefusal>;

    /// How far the channel has come. Finished means posted, not visible at the peer. An engine
    /// without a thread of its own moves on here.
    fn poll(&mut self) -> DmaProgress;

    /// From now on a wait of the handle ([`NtbPort::db_wait`]) ends when the channel has carried out all
    /// that was queued, unless it is polled at that time. One of several who wait is told. False: the
    /// engine has no such interrupt.
    fn wake(&mut self) -> bool {
        false
    }
}
