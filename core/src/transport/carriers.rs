// SPDX-License-Identifier: Apache-2.0
//! What carries the puts of an endpoint that has several means to do so.

use crate::named;

named! {
    /// What carries a put.
    #[derive(PartialOrd, Ord)]
    Carrier {
        /// Stores of the CPU into the peer's memory.
        Stores = "stores",
        /// Packets, which the peer's host takes apart.
        Packets = "packets",
        /// A DMA engine.
        Engine = "engine",
    }
}

/// Bytes from which on puts have another carrier than stores; `usize::MAX` for none of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Carriers {
    /// Blocking puts, and puts with a signal, of at least so many bytes go in packets.
    pub blocking_packets: usize,
    /// Non-blocking puts that the engine does not make go in packets if they have at least so many bytes.
    pub packets: usize,
    /// The engine makes non-blocking puts of at least so many bytes.
    pub engine: usize,
}

impl Carriers {
    /// Stores, whatever the size.
    pub const STORES: Carriers =
        Carriers { blocking_packets: usize::MAX, packets: usize::MAX, engine: usize::MAX };

    /// One carrier for all puts that it can carry.
    pub const fn only(carrier: Carrier) -> Carriers {
        match carrier {
            Carrier::Stores => Carriers::STORES,
            Carrier::Packets => Carriers { blocking_packets: 0, packets: 0, ..Carriers::STORES },
            Carrier::Engine => Carriers { engine: 0, ..Carriers::STORES },
        }
    }
}

/// Between which carriers an endpoint leaves the choice to others: not where the user has chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CarrierChoice {
    /// Blocking puts can be stores as well as packets.
    pub blocking: bool,
    /// Non-blocking puts can.
    pub non_blocking: bool,
    /// Non-blocking puts can be left to an engine.
    pub engine: Option<EngineChoice>,
}

impl CarrierChoice {
    /// Whether there is nothing to choose.
    pub fn is_empty(&self) -> bool {
        *self == CarrierChoice::default()
    }
}

/// An engine that may make puts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineChoice {
    /// Bytes of the puts that it makes as long as nobody has measured them, by a model; `usize::MAX` for none.
    pub expected: usize,
    /// It leaves the processors of PEs to these: it is a device, or a thread for which there is another processor.
    pub is_free: bool,
}
