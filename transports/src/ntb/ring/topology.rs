// SPDX-License-Identifier: Apache-2.0
//! What a host knows of the ring: link states of all hosts, and the ways that follow from them.
//!
//! Each host floods the state of its two ports (origin, sequence, up bits, flap counts). A link is
//! usable when both of its ends say so. Rings being what they are, all a host needs of this is how
//! many hosts it reaches going right and going left.

use super::memory::Side;

/// What a host says of its own ports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct LinkState {
    pub seq: u32,
    pub up: [bool; 2],
    pub flaps: [u16; 2],
    /// The port is not up because its neighbour is silent, not because the link is down.
    pub silent: [bool; 2],
}

impl LinkState {
    pub(super) fn to_word(self) -> u64 {
        u64::from(self.up[0])
            | u64::from(self.up[1]) << 1
            | u64::from(self.silent[0]) << 2
            | u64::from(self.silent[1]) << 3
            | u64::from(self.flaps[0]) << 16
            | u64::from(self.flaps[1]) << 32
    }

    pub(super) fn from_word(seq: u32, word: u64) -> LinkState {
        LinkState {
            seq,
            up: [word & 1 != 0, word & 2 != 0],
            flaps: [(word >> 16) as u16, (word >> 32) as u16],
            silent: [word & 4 != 0, word & 8 != 0],
        }
    }
}

#[derive(Clone, Debug, Hash)]
pub(super) struct Topology {
    me: u16,
    hosts: u16,
    /// The way to take where both are equally long.
    tie: Side,
    states: Vec<LinkState>,
    hop_span: [u16; 2],
}

impl Topology {
    /// What host `me` knows for one of its lanes.
    ///
    /// Where both ways to a host are equally long, even hosts send right and odd hosts left. (The parity of source
    /// plus destination is the same for all opposite pairs of a ring, and would send all of them one way.)
    /// Between two hosts both ways are always equally long. There half of a host's lanes send each way, so that
    /// a transfer over lanes 0 and 1, or over lanes 0 and 2, uses both links.
    pub(super) fn new(me: u16, hosts: u16, lane: u8) -> Topology {
        let states = vec![LinkState::default(); usize::from(hosts)];
        let swaps = if hosts == 2 { lane.count_ones() } else { 0 };
        let even = (u32::from(me) + swaps).is_multiple_of(2);
        let tie = if even { Side::Right } else { Side::Left };
        Topology { me, hosts, tie, states, hop_span: [0; 2] }
    }

    pub(super) fn state(&self, origin: u16) -> LinkState {
        self.states[usize::from(origin)]
    }

    /// Stores news of a host. `None`: it was not new. Otherwise the links at the host's right and
    /// left whose state or flap count changed.
    pub(super) fn learn(&mut self, origin: u16, state: LinkState) -> Option<[bool; 2]> {
        let known = &mut self.states[usize::from(origin)];
        if state.seq.wrapping_sub(known.seq) as i32 <= 0 {
            return None;
        }
        let changed = [0, 1]
            .map(|side| known.up[side] != state.up[side] || known.flaps[side] != state.flaps[side]);
        *known = state;
        for side in Side::BOTH {
            self.hop_span[side as usize] = self.count_hops(side);
        }
        Some(changed)
    }

    /// Links to pass from this host to `dst` going to `side`; 0 for itself.
    pub(super) fn distance(&self, side: Side, dst: u16) -> u16 {
        let (from, to) = match side {
            Side::Right => (self.me, dst),
            Side::Left => (dst, self.me),
        };
        if to >= from { to - from } else { to + self.hosts - from }
    }

    /// Whether all links to `dst` going to `side` are up.
    pub(super) fn reaches(&self, side: Side, dst: u16) -> bool {
        self.distance(side, dst) <= self.hop_span[side as usize]
    }

    /// Whether the link on side `end` of `origin` is on the way to `dst` going to `side`.
    pub(super) fn crosses(&self, side: Side, dst: u16, origin: u16, end: Side) -> bool {
        // The end of the link that is nearer when walking to `side`.
        let near = if end == side { origin } else { self.step(origin, end) };
        self.distance(side, near) < self.distance(side, dst)
    }

    /// The way to `dst`: the shorter one that is up, or `tie` if both are equally long.
    pub(super) fn choose(&self, dst: u16) -> Option<Side> {
        let right = self.reaches(Side::Right, dst);
        let left = self.reaches(Side::Left, dst);
        let (far_right, far_left) =
            (self.distance(Side::Right, dst), self.distance(Side::Left, dst));
        match (right, left) {
            (false, false) => None,
            (true, false) => Some(Side::Right),
            (false, true) => Some(Side::Left),
            (true, true) if far_right < far_left => Some(Side::Right),
            (true, true) if far_left < far_right => Some(Side::Left),
            (true, true) => Some(self.tie),
        }
    }

    /// The direction of a flow that starts anew: the first flow of a host goes the chosen way, the
    /// second the other way where that leads there.
    pub(super) fn side_of_flow(&self, id: usize) -> Option<Side> {
        let dst = (id / 2) as u16;
        let first = self.choose(dst)?;
        let other = first.opposite();
        let second = id % 2 == 1 && self.reaches(other, dst);
        Some(if second { other } else { first })
    }

    /// Hosts that no way leads to: the first going right, and how many.
    pub(super) fn unreachable(&self) -> (u16, u16) {
        let reached = u32::from(self.hop_span[0]) + u32::from(self.hop_span[1]);
        let count = (u32::from(self.hosts) - 1).saturating_sub(reached) as u16;
        ((self.me + self.hop_span[0] + 1) % self.hosts, count)
    }

    /// Whether a host next to those that no way leads to says that they are merely silent.
    pub(super) fn is_silence(&self) -> bool {
        Side::BOTH.into_iter().any(|side| {
            let last = (0..self.hop_span[side as usize]).fold(self.me, |at, _| self.step(at, side));
            self.state(last).silent[side as usize]
        })
    }

    /// Whether both ways lead all round.
    pub(super) fn is_whole(&self) -> bool {
        self.hop_span == [self.hosts - 1; 2]
    }

    /// The neighbour of `host` on `side`.
    pub(super) fn step(&self, host: u16, side: Side) -> u16 {
        match side {
            Side::Right => (host + 1) % self.hosts,
            Side::Left => (host + self.hosts - 1) % self.hosts,
        }
    }

    fn count_hops(&self, side: Side) -> u16 {
        let mut at = self.me;
        for count in 0..self.hosts - 1 {
            let next = self.step(at, side);
            let up =
                self.state(at).up[side as usize] && self.state(next).up[side.opposite() as usize];
            if !up {
                return count;
            }
            at = next;
        }
        self.hosts - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(me: u16, hosts: u16) -> Topology {
        whole_of_lane(me, hosts, 0)
    }

    fn whole_of_lane(me: u16, hosts: u16, lane: u8) -> Topology {
        let mut topology = Topology::new(me, hosts, lane);
        for host in 0..hosts {
            topology.learn(
                host,
                LinkState { seq: 1, up: [true; 2], flaps: [0; 2], ..LinkState::default() },
            );
        }
        topology
    }

    #[test]
    fn the_shorter_way_is_taken_and_ties_agree() {
        let topology = whole(0, 6);
        assert_eq!(topology.choose(1), Some(Side::Right));
        assert_eq!(topology.choose(5), Some(Side::Left));
        assert_eq!(topology.choose(3), Some(Side::Right));
        assert_eq!(whole(1, 6).choose(4), Some(Side::Left));
    }

    #[test]
    fn between_two_hosts_lanes_that_follow_each_other_and_lanes_two_apart_take_different_ways() {
        let way = |hosts, lane, dst| whole_of_lane(0, hosts, lane).choose(dst);
        let (right, left) = (Some(Side::Right), Some(Side::Left));
        assert_eq!([0, 1, 2, 3].map(|lane| way(2, lane, 1)), [right, left, left, right]);
        // On other rings all lanes of a host take one, whether it is shorter or as long.
        assert_eq!([0, 1, 2, 3].map(|lane| way(6, lane, 1)), [right; 4]);
        assert_eq!([0, 1, 2, 3].map(|lane| way(6, lane, 3)), [right; 4]);
    }

    #[test]
    fn a_dead_link_turns_the_ring_into_a_line() {
        let mut topology = whole(0, 5);
        let down = LinkState { seq: 2, up: [false, true], flaps: [1, 0], ..LinkState::default() };
        assert_eq!(topology.learn(1, down), Some([true, false]));
        assert_eq!(topology.learn(1, down), None);
        assert_eq!(topology.choose(1), Some(Side::Right));
        assert_eq!(topology.choose(2), Some(Side::Left));
        assert_eq!(topology.unreachable().1, 0);
        assert!(topology.crosses(Side::Right, 2, 1, Side::Right));
        assert!(!topology.crosses(Side::Right, 1, 1, Side::Right));
        assert!(topology.crosses(Side::Right, 2, 2, Side::Left));
        assert!(!topology.crosses(Side::Left, 2, 2, Side::Left));
    }

    #[test]
    fn two_dead_links_cut_hosts_off() {
        let mut topology = whole(4, 5);
        topology.learn(
            0,
            LinkState { seq: 2, up: [false, true], flaps: [1, 0], ..LinkState::default() },
        );
        topology.learn(
            3,
            LinkState { seq: 2, up: [true, false], flaps: [0, 1], ..LinkState::default() },
        );
        assert_eq!(topology.unreachable(), (1, 2));
        assert_eq!(topology.choose(2), None);
        assert_eq!(topology.choose(3), Some(Side::Left));
    }

    #[test]
    fn two_hosts_have_two_ways() {
        let topology = whole(0, 2);
        assert!(topology.reaches(Side::Right, 1) && topology.reaches(Side::Left, 1));
        assert_eq!(topology.unreachable().1, 0);
    }
}
