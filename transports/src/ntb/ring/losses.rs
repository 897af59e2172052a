// SPDX-License-Identifier: Apache-2.0
//! Which hosts have been given up, and when others were last heard of.

use super::config::Config;
use super::topology::Topology;

/// What an engine knows of the life of other hosts.
#[derive(Clone, Debug, Hash)]
pub(super) struct Losses {
    is_lost: Vec<bool>,
    /// When a host was last heard to have said something new, by whatever way.
    alive_at: Vec<u64>,
    /// Hosts cut off at present, the first rightwards and how many, and since when.
    cut: Option<(u64, (u16, u16))>,
    was_whole: bool,
}

impl Losses {
    pub(super) fn new(hosts: u16) -> Losses {
        let hosts = usize::from(hosts);
        Losses {
            is_lost: vec![false; hosts],
            alive_at: vec![0; hosts],
            cut: None,
            was_whole: false,
        }
    }

    /// Whether a host has been given up.
    #[inline]
    pub(super) fn is_lost(&self, host: u16) -> bool {
        self.is_lost[usize::from(host)]
    }

    /// Gives a host up.
    pub(super) fn note_lost(&mut self, host: u16) {
        self.is_lost[usize::from(host)] = true;
    }

    /// A host has said something new.
    pub(super) fn note_alive(&mut self, host: u16, now: u64) {
        self.alive_at[usize::from(host)] = now;
    }

    /// When it last did.
    pub(super) fn alive_at(&self, host: u16) -> u64 {
        self.alive_at[usize::from(host)]
    }

    /// Hosts that have been cut off for too long: the first rightwards, and how many.
    pub(super) fn cut_off(
        &mut self,
        topology: &Topology,
        now: u64,
        config: &Config,
    ) -> Option<(u16, u16)> {
        let cut = topology.unreachable();
        if cut.1 == 0 {
            self.cut = None;
            self.was_whole = true;
            return None;
        }
        let since = match self.cut {
            Some((since, known)) if known == cut => since,
            _ => {
                self.cut = Some((now, cut));
                now
            }
        };
        let patience = match self.was_whole {
            false => config.connect_ns,
            true if topology.is_silence() => config.silence_ns,
            true => config.lost_ns,
        };
        (now.saturating_sub(since) >= patience).then_some(cut)
    }
}
