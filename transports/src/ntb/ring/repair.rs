// SPDX-License-Identifier: Apache-2.0
//! Timers, link changes, repetition, and giving up.

use super::config::Config;
use super::engine::Engine;
use super::fetcher::Overdue;
use super::memory::{Completion, Event, Memory, Side, Transfer};
use super::ops::{Action, Op, Ops};
use super::sender::Lateness;
use super::topology::LinkState;

/// Heartbeats between repetitions of a host's link state.
const NEWS_BEATS: u32 = 16;

/// When an engine looks at what depends on time.
#[derive(Clone, Copy, Debug, Default, Hash)]
pub(super) struct Timers {
    next_tick: u64,
    next_beat: u64,
    beats: u32,
}

impl Timers {
    pub(super) fn next(&self) -> u64 {
        self.next_tick
    }

    #[inline]
    pub(super) fn are_due(&self, now: u64) -> bool {
        now >= self.next_tick
    }

    /// Begins a look. Whether it comes with a heartbeat, and with one that repeats the link state.
    fn begin(&mut self, now: u64, config: &Config) -> (bool, bool) {
        self.next_tick = now + config.tick_ns;
        let beats = now >= self.next_beat;
        if beats {
            self.next_beat = now + config.beat_ns;
            self.beats = self.beats.wrapping_add(1);
        }
        (beats, beats && self.beats.is_multiple_of(NEWS_BEATS))
    }
}

impl Engine {
    /// Looks at everything that depends on time.
    pub(super) fn tick<M: Memory>(&mut self, memory: &mut M) {
        let (beats, announces) = self.timers.begin(self.now, &self.config);
        if beats {
            for port in &mut self.ports {
                port.beat(self.now, memory);
            }
        }
        if announces {
            self.announce();
        }
        for side in Side::BOTH {
            self.suspect(side, memory);
            self.check_health(side, memory);
            let (now, after) = (self.now, self.config.gap_ns);
            self.ports[side as usize].skip_lost(now, after, memory, &mut self.stats);
        }
        for id in 0..self.sender.len() {
            if self.receiver.has_unreported(id) {
                self.owe_ack(id, Side::Right);
            }
            if self.sender.repeat_late(id, self.now, &self.config) == Lateness::Hopeless {
                self.give_up((id / 2) as u16, memory);
            }
        }
        for row in self.fetcher.rows() {
            self.ask_late(row, memory);
        }
        self.look_for_lost(memory);
        self.end_lost(memory);
    }

    /// Tells everyone when a port's state is not what this host has announced.
    pub(super) fn notice_ports<M: Memory>(&mut self, memory: &mut M) {
        let told = self.topology.state(self.me);
        for side in Side::BOTH {
            let at = side as usize;
            let (was, is) = (told.up[at], self.ports[at].is_up());
            let flapped = told.flaps[at] != self.ports[at].flaps();
            if was && (!is || flapped) {
                memory.event(Event::LinkDown(side));
            }
            if is && (!was || flapped) {
                memory.event(Event::LinkUp(side));
                // The neighbour may have missed anything while it was away.
                for origin in 0..self.hosts {
                    let known = self.topology.state(origin).seq != 0;
                    self.news[at].set(usize::from(origin), known);
                }
            }
        }
        self.announce();
    }

    /// Moves and repeats what was on its way over a link next to `origin` that changed.
    pub(super) fn repair(&mut self, origin: u16, changed: [bool; 2]) {
        for id in 0..self.sender.len() {
            let dst = (id / 2) as u16;
            if dst == self.me || self.sender.is_quiet(id) {
                continue;
            }
            if self.sender.side(id).is_none_or(|side| self.is_broken(side, dst, origin, changed)) {
                let side = self.topology.side_of_flow(id);
                let deadline = self.now + self.config.replay_ns;
                self.stats.rerouted += u64::from(self.sender.reroute(id, side, deadline));
            }
        }
        for row in self.fetcher.rows() {
            let Some(request) = self.fetcher.get_at(row) else { continue };
            let dst = self.ops.at(request.op).host;
            if self.is_broken(request.side, dst, origin, changed) {
                self.repeat_request(row, dst);
            }
        }
        let Engine { fetcher, topology, .. } = self;
        fetcher.redirect(|id| topology.side_of_flow(id));
        for side in Side::BOTH {
            for id in 0..self.sender.len() {
                if self.receiver.owes(id, side) {
                    self.owe_ack(id, side);
                }
            }
        }
    }

    fn is_broken(&self, side: Side, dst: u16, origin: u16, changed: [bool; 2]) -> bool {
        !self.topology.reaches(side, dst)
            || Side::BOTH
                .into_iter()
                .any(|end| changed[end as usize] && self.topology.crosses(side, dst, origin, end))
    }

    /// Says anew what this host's ports do.
    fn announce(&mut self) {
        let state = LinkState {
            seq: self.topology.state(self.me).seq.wrapping_add(1),
            up: [self.ports[0].is_up(), self.ports[1].is_up()],
            flaps: [self.ports[0].flaps(), self.ports[1].flaps()],
            silent: [self.ports[0].is_silent(), self.ports[1].is_silent()],
        };
        let changed = self.topology.learn(self.me, state);
        for news in &mut self.news {
            news.set(usize::from(self.me), true);
        }
        if let Some(changed) = changed.filter(|&changed| changed != [false; 2]) {
            self.repair(self.me, changed);
        }
    }

    /// A silent neighbour: looks at the link. If the neighbour is known to run the link is at fault;
    /// otherwise it may be stopped, and is waited for longer.
    fn suspect<M: Memory>(&mut self, side: Side, memory: &mut M) {
        let neighbour = self.topology.step(self.me, side);
        let port = &mut self.ports[side as usize];
        let silent = self.now.saturating_sub(port.heard_at());
        if !port.is_up() || silent < self.config.suspect_ns {
            return;
        }
        let ran = self.losses.alive_at(neighbour) > port.heard_at() + self.config.suspect_ns;
        if !memory.link_is_up(side) {
            port.drop_link();
        } else if ran && silent >= self.config.dead_ns {
            port.health.outage();
            port.greet(self.now, memory);
        } else if silent >= self.config.silent_ns {
            port.greet(self.now, memory);
            port.set_silent();
            memory.event(Event::Silent(side));
        } else {
            return;
        }
        self.notice_ports(memory);
    }

    /// Rests a link in poor health while there is another way to the neighbour, and ends the rest.
    fn check_health<M: Memory>(&mut self, side: Side, memory: &mut M) {
        let neighbour = self.topology.step(self.me, side);
        let another_way = self.topology.reaches(side.opposite(), neighbour);
        let is_stuck = memory.take_stuck(side, another_way);
        let port = &mut self.ports[side as usize];
        if port.is_resting() {
            if !another_way || port.health.is_rested(self.now) {
                port.greet(self.now, memory);
            }
            return;
        }
        // A link that takes no stores need not be in use to hold up the other one.
        let rests = is_stuck && !port.is_down() || port.is_up() && port.health.is_poor();
        if rests && another_way {
            port.rest(self.now, self.config.rest_ns, memory);
            memory.event(Event::Resting(side));
            self.notice_ports(memory);
        }
    }

    /// Repeats a get request, or recalls a result, whose answer is late.
    fn ask_late<M: Memory>(&mut self, row: usize, memory: &mut M) {
        let Engine { fetcher, ops, topology, config, now, .. } = self;
        let is_reachable = |host| topology.choose(host).is_some();
        match fetcher.look_at(row, *now, ops, config, is_reachable) {
            Overdue::No => {}
            Overdue::Repeat(host) => self.repeat_request(row, host),
            Overdue::Hopeless(host) => self.give_up(host, memory),
        }
    }

    fn repeat_request(&mut self, row: usize, dst: u16) {
        if let Some(side) = self.topology.choose(dst) {
            self.fetcher.repeat(row, side);
        }
    }

    fn look_for_lost<M: Memory>(&mut self, memory: &mut M) {
        let cut = self.losses.cut_off(&self.topology, self.now, &self.config);
        let Some((first, count)) = cut else { return };
        let mut news = false;
        for step in 0..count {
            let dst = (first + step) % self.hosts;
            if !self.is_lost(dst) {
                news = true;
                self.fail(dst, memory);
            }
        }
        if news {
            memory.event(Event::Lost { first, count });
        }
    }

    /// Gives a host up: what was issued to it fails, and nothing more is issued to it.
    pub fn give_up<M: Memory>(&mut self, dst: u16, memory: &mut M) {
        self.fail(dst, memory);
        memory.event(Event::GaveUp(dst));
    }

    /// Ends all operations to a host that will not answer any more.
    fn fail<M: Memory>(&mut self, dst: u16, memory: &mut M) {
        // The host may run and take what was sent. So that is stored before its sources hold something else: kept copies,
        // which are given back, and buffers of the program.
        while memory.store_some() {}
        self.losses.note_lost(dst);
        for id in [usize::from(dst) * 2, usize::from(dst) * 2 + 1] {
            self.sender.forget(id);
        }
        self.fetcher.forget(dst, &self.ops);
        self.end_lost(memory);
    }

    /// Ends the operations to hosts that were given up: those to one host together, when no DMA engine reads their sources
    /// any more.
    fn end_lost<M: Memory>(&mut self, memory: &mut M) {
        let mut from = 0;
        while let Some(host) = self.losses.next_ending(from) {
            from = host + 1;
            let mut has_left = |op: &Op| {
                let queued = |side: Side| Transfer::Queued(op.queued[side as usize]);
                Side::BOTH.into_iter().all(|side| memory.has_left(side, queued(side)))
            };
            if !self.ops.to(host).all(|(_, op)| has_left(op)) {
                continue;
            }
            let first = |ops: &Ops| ops.to(host).next().map(|(index, op)| (index, op.action));
            while let Some((index, action)) = first(&self.ops) {
                if let Action::PutRetained { chunks } = action {
                    self.sender.give_back(chunks);
                }
                self.finish(index, Completion::Lost, memory);
            }
            self.losses.note_ended(host);
        }
    }
}
