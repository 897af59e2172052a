// SPDX-License-Identifier: Apache-2.0
//! What happens to a world: arrivals, link events, deaths.

use super::faults::Incident;
use super::network::PostedWrite;
use super::world::{What, World};
use crate::ntb::ring::Side;

/// Software learns of a link event so much later.
const LINK_NOTICE_NS: u64 = 20_000;
/// The same at most, where links are rough.
const LATE_NOTICE_NS: u64 = 1_000_000;
/// A lane's thread looks round so often when there is nothing to do.
pub(super) const LOOK_ROUND_PS: u64 = 30_000;

impl World<'_> {
    pub(super) fn arrive(&mut self, post: PostedWrite, now_ps: u64) {
        if !self.network.arrives(&post) {
            self.network.lost += 1;
            return;
        }
        let at = usize::from(post.host) * self.lanes_per_host() + post.lane;
        let lane = &mut self.lanes[at];
        let doorbell = post.bytes.is_empty();
        if !doorbell {
            lane.memory.arrive(post.side, post.offset, &post.bytes, now_ps);
        }
        if !lane.asleep || doorbell {
            let at_ps = lane.free_ps.max(now_ps + LOOK_ROUND_PS);
            self.wake(at, at_ps);
        }
    }

    pub(super) fn happen(&mut self, incident: Incident, now_ps: u64) {
        match incident {
            Incident::Die(host) => {
                self.dead[usize::from(host)] = true;
                self.news += 1;
            }
            Incident::Corrupt(cable, ppm) => self.network.spoil(cable, ppm),
            Incident::Delay(cable, by_ns) => self.network.delay(cable, by_ns),
            Incident::Link(cable, up) => {
                self.network.set_physical(cable, up);
                for (host, side) in self.network.ends(cable) {
                    let late = LINK_NOTICE_NS / 2 + self.random.below(LINK_NOTICE_NS);
                    // An event may be late, and each end has its own.
                    let is_late = self.simulation.faults.rough && self.random.below(4) == 0;
                    let late = if is_late { self.random.below(LATE_NOTICE_NS) } else { late };
                    self.push(now_ps + late * 1000, What::Notice(host, side));
                }
            }
        }
    }

    /// Software reads the link state after an event.
    pub(super) fn notice(&mut self, host: u16, side: Side, now_ps: u64) {
        let up = self.network.link_register(host, side);
        self.network.enable(host, side);
        if self.dead[usize::from(host)] {
            return;
        }
        let first = usize::from(host) * self.lanes_per_host();
        for at in first..first + self.lanes_per_host() {
            let start_ps = self.lanes[at].free_ps.max(now_ps);
            let mut until_ps = start_ps;
            self.with_host(at, start_ps, |engine, host| {
                // A link that went and came back within the notice is still a new link.
                engine.link_event(side, false, host.now_ps / 1000, host);
                if up {
                    engine.link_event(side, true, host.now_ps / 1000, host);
                }
                until_ps = host.now_ps;
            });
            self.lanes[at].free_ps = until_ps;
            self.collect(until_ps);
            self.wake(at, until_ps);
        }
    }

    /// The threads of a random host do not run for a while.
    pub(super) fn stall(&mut self, now_ps: u64) {
        let every_ps = self.simulation.faults.stall_ns.unwrap_or(1) * 1000;
        let host = self.random.below(u64::from(self.simulation.hosts)) as usize;
        self.stalled_ps[host] = now_ps + 1 + self.random.below(every_ps);
        let next_ps = now_ps + every_ps / 2 + self.random.below(every_ps);
        self.push(next_ps, What::Stall);
    }

    /// A random cable goes down and comes back; never two at a time, which would cut hosts off.
    pub(super) fn flap(&mut self, now_ps: u64) {
        let every_ps = self.simulation.faults.flap_ns.unwrap_or(1) * 1000;
        let cable = self.random.below(u64::from(self.simulation.hosts)) as u16;
        let down_ps = 1 + self.random.below(every_ps);
        self.happen(Incident::Link(cable, false), now_ps);
        self.push(now_ps + down_ps, What::Incident(Incident::Link(cable, true)));
        let next_ps = now_ps + every_ps + self.random.below(every_ps);
        self.push(next_ps, What::Flap);
    }
}
