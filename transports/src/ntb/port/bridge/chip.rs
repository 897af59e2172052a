// SPDX-License-Identifier: Apache-2.0
//! What one kind of bridge does in its own way: its registers and its quirks.

use crate::ntb::port::vfio::Trained;
use crate::ntb::port::{DoorbellDelivery, Result};

/// A part of a base address register through which this host writes into its peer's memory, and the one
/// through which the peer writes into memory of this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aperture {
    pub bar: usize,
    /// Where it starts in the BAR.
    pub offset: usize,
    /// Bytes, a power of two.
    pub size: u64,
    /// Bytes of that of the peer, a power of two: it can reach as many addresses.
    pub inbound: u64,
}

/// What a kind of bridge has.
#[derive(Clone, Debug)]
pub struct Facts {
    /// Name of the hardware, for people.
    pub name: &'static str,
    /// One or two.
    pub apertures: Vec<Aperture>,
    /// Doorbells of each side. With none, words of the port's own slots are used: they interrupt nobody,
    /// and whoever waits looks at them.
    pub doorbell_bits: u32,
    pub doorbell_vectors: u32,
    pub doorbell_delivery: DoorbellDelivery,
    /// Scratchpads that each side has for itself. With none, words of the port's own slots are used.
    pub spads: usize,
    /// Interrupt vectors that tell of the link.
    pub link_vectors: u64,
    /// Where the windows lead may be lost when the link comes up, until [`Chip::risen`] sets it again: so the
    /// link is not up before the peer has done that.
    pub forgets: bool,
}

/// A link as its chip sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChipLink {
    /// Both sides are enabled.
    pub up: bool,
    pub trained: Trained,
}

/// What has happened since the chip was last asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct News {
    /// Doorbell bits that the peer has rung.
    pub bells: u64,
    /// The link may have changed.
    pub link: bool,
}

/// A write to a register that rings one doorbell of the peer, and does nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bell {
    pub bar: usize,
    pub offset: usize,
    /// Bytes of the register: 2, 4 or 8.
    pub bytes: usize,
    pub value: u64,
}

/// A kind of bridge. Indices are inside of what [`Facts`] state. All but `ring` and scratchpads is
/// called under the lock of the port.
pub trait Chip: Send + Sync + 'static {
    fn facts(&self) -> Facts;

    /// Lets the link train, or takes it down. On return from the latter, no write of this side is on
    /// its way. Called with what it is already, too: what has failed half-way is tried again.
    fn enable(&self, on: bool) -> Result<()>;

    /// The link has come up, or may have been down meanwhile: sets again what the chip takes only
    /// then, or has lost. With an error the link counts as down, and this is called again.
    fn risen(&self) -> Result<()> {
        Ok(())
    }

    /// Leads the peer's writes through an inbound window to addresses from `address` on, as many as
    /// the peer's aperture has; or nowhere. On return, no write to where it led before is on its way. The
    /// address is a multiple of that aperture's size.
    fn aim(&self, window: usize, address: Option<u64>) -> Result<()>;

    /// The link; none when the device does not answer.
    fn link(&self) -> Option<ChipLink>;

    /// Takes what interrupts have told, and clears it: `raised` are the vectors whose events were
    /// there.
    fn take(&self, raised: u64) -> News;

    /// Lets functions of this host write through windows beside its processors: those with these requester
    /// numbers.
    fn admit(&self, _requesters: &[u16]) -> Result<()> {
        Ok(())
    }

    /// Rings the peer.
    fn ring(&self, _bits: u64) {}

    /// The access that rings a doorbell, for processes that know no more of the chip; none where it may change.
    fn bell(&self, _bit: u32) -> Option<Bell> {
        None
    }

    fn spad(&self, _index: usize) -> u32 {
        u32::MAX
    }

    fn set_spad(&self, _index: usize, _value: u32) {}

    fn peer_spad(&self, _index: usize) -> u32 {
        u32::MAX
    }

    fn set_peer_spad(&self, _index: usize, _value: u32) {}
}
