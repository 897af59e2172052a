// SPDX-License-Identifier: Apache-2.0
//! Which hosts have been given up, and when others were last heard of.

use super::bits::Bits;
use super::config::Config;
use super::topology::Topology;

/// What an engine knows of the life of other hosts.
#[derive(Clone, Debug, Hash)]
pub(super) struct Losses {
    is_lost: Vec<bool>,
    /// Of those, hosts to which operations have not ended.
    ending: Bits,
    /// When a host was last heard to have said something new, by whatever way.
    alive_at: Vec<u64>,
    /// By host. Links elsewhere may come and go while a host is cut off.
    cuts: Vec<Cut>,
    any_cut: bool,
    was_whole: bool,
}

/// Since when a host has been cut off, if it is.
#[derive(Clone, Copy, Debug, Default, Hash)]
struct Cut {
    since: Option<u64>,
    /// The same by links that are down, and not by a neighbour that is merely silent.
    down_since: Option<u64>,
}

impl Losses {
    pub(super) fn new(hosts: u16) -> Losses {
        let hosts = usize::from(hosts);
        Losses {
            is_lost: vec![false; hosts],
            ending: Bits::new(hosts),
            alive_at: vec![0; hosts],
            cuts: vec![Cut::default(); hosts],
            any_cut: false,
            was_whole: false,
        }
    }

    /// Whether a host has been given up.
    #[inline]
    pub(super) fn is_lost(&self, host: u16) -> bool {
        self.is_lost[usize::from(host)]
    }

    /// Gives a host up, to which operations may be outstanding.
    pub(super) fn note_lost(&mut self, host: u16) {
        self.is_lost[usize::from(host)] = true;
        self.ending.set(usize::from(host), true);
    }

    /// The first host from `from` on that was given up, and to which operations may be outstanding.
    pub(super) fn next_ending(&self, from: u16) -> Option<u16> {
        let next = self.ending.next_from(usize::from(from)).map(|host| host as u16);
        next.filter(|host| *host >= from)
    }

    /// All operations to a host have ended.
    pub(super) fn note_ended(&mut self, host: u16) {
        self.ending.set(usize::from(host), false);
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
        let (first, count) = topology.unreachable();
        let hosts = self.cuts.len() as u16;
        let is_silence = count > 0 && topology.is_silence();
        if count > 0 || self.any_cut {
            self.any_cut = count > 0;
            for host in 0..hosts {
                let is_cut = (host + hosts - first) % hosts < count;
                self.cuts[usize::from(host)].look(now, is_cut, is_silence);
            }
        }
        if count == 0 {
            self.was_whole = true;
            return None;
        }
        let for_long = match (self.was_whole, is_silence) {
            (false, _) => config.connect_ns,
            (true, true) => config.silence_ns,
            (true, false) => config.silence_ns.max(config.lost_ns),
        };
        let down_for_long = if self.was_whole { config.lost_ns } else { u64::MAX };
        // Hosts are cut off side by side at all times, so those that have been for so long are, too.
        let mut late = (0..count).map(|step| (first + step) % hosts).filter(|host| {
            let Cut { since, down_since } = self.cuts[usize::from(*host)];
            let is_late = |since: Option<u64>, patience| {
                since.is_some_and(|since| now.saturating_sub(since) >= patience)
            };
            is_late(since, for_long) || is_late(down_since, down_for_long)
        });
        let first = late.next()?;
        Some((first, 1 + late.count() as u16))
    }
}

impl Cut {
    fn look(&mut self, now: u64, is_cut: bool, is_silence: bool) {
        let Cut { since, down_since } = *self;
        let from = |since: Option<u64>| since.or(Some(now));
        self.since = is_cut.then_some(from(since)).flatten();
        self.down_since = (is_cut && !is_silence).then_some(from(down_since)).flatten();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ntb::ring::Geometry;
    use crate::ntb::ring::topology::LinkState;

    struct Ring(Topology, Losses, u32);

    impl Ring {
        /// Five hosts as host 0 or another one sees them, with all links in use.
        fn of(me: u16) -> Ring {
            let mut ring = Ring(Topology::new(me, 5, 0), Losses::new(5), 0);
            (0..5).for_each(|host| ring.says(host, [true; 2], [false; 2]));
            assert_eq!(ring.cut_off(1), None);
            ring
        }

        fn says(&mut self, host: u16, up: [bool; 2], silent: [bool; 2]) {
            self.2 += 1;
            self.0.learn(host, LinkState { seq: self.2, up, silent, ..LinkState::default() });
        }

        fn cut_off(&mut self, now: u64) -> Option<(u16, u16)> {
            self.1.cut_off(&self.0, now, &config())
        }
    }

    fn config() -> Config {
        let config = Config::simulated(Geometry::new(64, [2, 2, 2]).unwrap(), false);
        Config { silence_ns: 4 * config.lost_ns, ..config }
    }

    #[test]
    fn a_host_is_given_up_although_links_elsewhere_come_and_go() {
        let mut ring = Ring::of(0);
        ring.says(0, [false, true], [false; 2]);
        ring.says(2, [true, false], [false; 2]);
        let (begun, lost_ns) = (1000, config().lost_ns);
        for look in 0..8 {
            ring.says(3, [true, look % 2 == 0], [false; 2]);
            assert_eq!(ring.cut_off(begun + look * lost_ns / 8), None, "{look}");
        }
        assert_eq!(ring.0.unreachable(), (1, 2));
        assert_eq!(ring.cut_off(begun + lost_ns), Some((1, 1)), "host 2 may come back");
        assert_eq!(ring.cut_off(begun + 2 * lost_ns), Some((1, 2)));
    }

    #[test]
    fn a_host_that_is_silent_is_not_given_up_because_links_on_the_way_are_down_for_a_while() {
        let mut ring = Ring::of(4);
        ring.says(0, [false, true], [true, false]);
        ring.says(2, [true, false], [false, true]);
        let (begun, lost_ns) = (1000, config().lost_ns);
        assert_eq!(ring.cut_off(begun), None);
        assert_eq!(ring.cut_off(begun + 2 * lost_ns), None);
        // Both links that lead there.
        ring.says(4, [false, true], [false; 2]);
        ring.says(3, [true, false], [false; 2]);
        assert_eq!(ring.0.unreachable(), (0, 3));
        assert_eq!(ring.cut_off(begun + 2 * lost_ns + 1), None);
        ring.says(4, [true; 2], [false; 2]);
        ring.says(3, [true; 2], [false; 2]);
        assert_eq!(ring.cut_off(begun + 3 * lost_ns), None);
        assert_eq!(ring.cut_off(begun + config().silence_ns), Some((1, 1)));
    }
}
