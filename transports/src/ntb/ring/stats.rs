// SPDX-License-Identifier: Apache-2.0
//! Counters of one engine. They describe; nothing is decided by them.

use std::hash::{Hash, Hasher};

/// Counters since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Stats {
    /// Packets put on a ring here, repetitions included.
    pub injected: u64,
    /// Payload bytes of them.
    pub injected_bytes: u64,
    /// Packets passed on for others.
    pub relayed: u64,
    /// Payload bytes of them.
    pub relayed_bytes: u64,
    /// Packets taken in for PEs of this host.
    pub delivered: u64,
    /// Payload bytes of them.
    pub delivered_bytes: u64,
    /// Polls at which an injection lacked credit.
    pub stalled_injection: u64,
    /// Polls at which transit lacked credit.
    pub stalled_transit: u64,
    /// Polls at which transit was held back so that local packets are not starved.
    pub held_transit: u64,
    /// Packets sent again.
    pub replayed: u64,
    /// Packets that had been applied before and were not applied again.
    pub duplicates: u64,
    /// Packets that came before an earlier one and were dropped.
    pub out_of_order: u64,
    /// Slots announced that never arrived.
    pub slots_lost: u64,
    /// Packets in transit dropped because the next link is down.
    pub transit_dropped: u64,
    /// Headers, hellos and credits that made no sense.
    pub malformed: u64,
    /// Headers, credits and payloads with a wrong CRC.
    pub corrupt: u64,
    /// Packets whose payload had not arrived with its header.
    pub unsealed: u64,
    /// Operations whose address was refused here.
    pub refused: u64,
    /// Doorbells rung.
    pub doorbells: u64,
    /// Acknowledgements sent.
    pub acks: u64,
    /// Flows that changed direction because of a link.
    pub rerouted: u64,
}

impl Stats {
    /// Adds another engine's counters.
    pub fn add(&mut self, other: &Stats) {
        let Stats {
            injected,
            injected_bytes,
            relayed,
            relayed_bytes,
            delivered,
            delivered_bytes,
            stalled_injection,
            stalled_transit,
            held_transit,
            replayed,
            duplicates,
            out_of_order,
            slots_lost,
            transit_dropped,
            malformed,
            corrupt,
            unsealed,
            refused,
            doorbells,
            acks,
            rerouted,
        } = other;
        self.injected += injected;
        self.injected_bytes += injected_bytes;
        self.relayed += relayed;
        self.relayed_bytes += relayed_bytes;
        self.delivered += delivered;
        self.delivered_bytes += delivered_bytes;
        self.stalled_injection += stalled_injection;
        self.stalled_transit += stalled_transit;
        self.held_transit += held_transit;
        self.replayed += replayed;
        self.duplicates += duplicates;
        self.out_of_order += out_of_order;
        self.slots_lost += slots_lost;
        self.transit_dropped += transit_dropped;
        self.malformed += malformed;
        self.corrupt += corrupt;
        self.unsealed += unsealed;
        self.refused += refused;
        self.doorbells += doorbells;
        self.acks += acks;
        self.rerouted += rerouted;
    }
}

// Two engines that differ in counters alone behave the same: a model check must not tell them
// apart.
impl Hash for Stats {
    fn hash<S: Hasher>(&self, _: &mut S) {}
}
