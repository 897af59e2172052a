//! Timers, link changes, repetition, and giving up.

use super::engine::Engine;
use super::fair::Round;
use super::flow::{AskQueue, NONE};
use super::memory::{Event, Memory, Outcome, Side};
use super::ops::{Action, Request};
use super::topology::LinkState;

/// Heartbeats between repetitions of a host's link state.
const NEWS_BEATS: u32 = 16;
/// Most doublings of the time between repetitions.
const BACKOFF_MAX: u32 = 5;

impl Engine {
    /// Looks at everything that depends on time.
    pub(super) fn tick<M: Memory>(&mut self, memory: &mut M) {
        self.next_tick = self.now + self.config.tick_ns;
        if self.now >= self.next_beat {
            self.next_beat = self.now + self.config.beat_ns;
            self.beats = self.beats.wrapping_add(1);
            for port in &mut self.ports {
                port.beat(self.now, memory);
            }
            if self.beats.is_multiple_of(NEWS_BEATS) {
                self.announce();
            }
        }
        for side in Side::BOTH {
            self.suspect(side, memory);
            self.check_health(side, memory);
            let (now, after) = (self.now, self.config.gap_ns);
            self.ports[side as usize].skip_lost(now, after, memory, &mut self.stats);
        }
        for id in 0..self.flows.len() {
            if self.inflows[id].unreported > 0 {
                self.owe_ack(id, Side::Right);
            }
            self.repeat_late(id, memory);
        }
        for row in 0..self.gets.len() + self.fetches.len() {
            self.ask_late(row, memory);
        }
        self.look_for_lost(memory);
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
        for id in 0..self.flows.len() {
            let dst = (id / 2) as u16;
            let flow = &self.flows[id];
            if dst == self.me || flow.is_quiet() {
                continue;
            }
            if flow.side.is_none_or(|side| self.is_broken(side, dst, origin, changed)) {
                let side = self.direct(id);
                let flow = &mut self.flows[id];
                self.stats.rerouted += u64::from(flow.side != side);
                flow.side = side;
                flow.deadline = self.now + self.config.replay_ns;
                flow.rewind();
                self.refresh(id);
            }
        }
        for row in 0..self.gets.len() {
            let Some((_, request)) = self.gets.row(row) else { continue };
            let dst = self.ops.at(request.op).host;
            if self.is_broken(request.side, dst, origin, changed) {
                self.repeat_request(row, dst);
            }
        }
        for id in 0..self.asks.len() {
            if !self.asks[id].round.is_empty() {
                self.asks[id].side = self.direct(id);
                self.refresh_asks(id);
            }
        }
        for side in Side::BOTH {
            for id in 0..self.flows.len() {
                if self.acks[side as usize].contains(id) {
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
        let ran = self.alive_at[usize::from(neighbour)] > port.heard_at() + self.config.suspect_ns;
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
        let port = &mut self.ports[side as usize];
        if port.is_resting() {
            if !another_way || port.health.is_rested(self.now) {
                port.greet(self.now, memory);
            }
        } else if port.is_up() && another_way && port.health.is_poor() {
            port.rest(self.now, self.config.rest_ns, memory);
            memory.event(Event::Resting(side));
            self.notice_ports(memory);
        }
    }

    fn repeat_late<M: Memory>(&mut self, id: usize, memory: &mut M) {
        let (now, base) = (self.now, self.config.replay_ns);
        let flow = &mut self.flows[id];
        if flow.is_acknowledged() || now < flow.deadline {
            return;
        }
        if flow.side.is_none() || flow.sent == flow.una {
            // No way, or no room so far: nothing is on the wire that could have been lost.
            flow.deadline = now + base;
            return;
        }
        flow.repeats += 1;
        flow.deadline = now + (base.max(4 * flow.round_trip_ns) << flow.repeats.min(BACKOFF_MAX));
        let waited = now.saturating_sub(flow.progress_at);
        if flow.repeats > self.config.replays_max && waited >= self.config.silence_ns {
            self.give_up((id / 2) as u16, memory);
            return;
        }
        flow.rewind();
        self.refresh(id);
    }

    /// Repeats a get request, or recalls a result, whose answer is late.
    fn ask_late<M: Memory>(&mut self, row: usize, memory: &mut M) {
        let now = self.now;
        let (base, silence) = (self.config.replay_ns, self.config.silence_ns);
        let Some((_, request)) = self.request(row) else { return };
        if now < request.deadline {
            return;
        }
        let op = self.ops.at(request.op);
        let dst = op.host;
        // A fetching AMO that is not acknowledged is its flow's business.
        let recallable = row < self.gets.len() || op.remaining == 1;
        let reachable = self.topology.choose(dst).is_some();
        let Some(request) = self.request_mut(row) else { return };
        request.deadline = now + (base << request.repeats.min(BACKOFF_MAX));
        if !recallable || !reachable {
            return;
        }
        request.repeats += 1;
        let waited = now.saturating_sub(request.since);
        if request.repeats > self.config.replays_max && waited >= silence {
            self.give_up(dst, memory);
        } else {
            self.repeat_request(row, dst);
        }
    }

    fn repeat_request(&mut self, row: usize, dst: u16) {
        if let Some(side) = self.topology.choose(dst) {
            if let Some(request) = self.request_mut(row) {
                request.side = side;
            }
            self.again.set(row, true);
        }
    }

    fn request_mut(&mut self, row: usize) -> Option<&mut Request> {
        let gets = self.gets.len();
        if row < gets { self.gets.row_mut(row) } else { self.fetches.row_mut(row - gets) }
    }

    fn look_for_lost<M: Memory>(&mut self, memory: &mut M) {
        let cut = self.topology.unreachable();
        if cut.1 == 0 {
            self.cut = None;
            self.was_whole = true;
            return;
        }
        let since = match self.cut {
            Some((since, known)) if known == cut => since,
            _ => {
                self.cut = Some((self.now, cut));
                self.now
            }
        };
        let patience = match self.was_whole {
            false => self.config.connect_ns,
            true if self.topology.is_silence() => self.config.silence_ns,
            true => self.config.lost_ns,
        };
        if self.now - since < patience {
            return;
        }
        let (first, count) = cut;
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

    fn give_up<M: Memory>(&mut self, dst: u16, memory: &mut M) {
        self.fail(dst, memory);
        memory.event(Event::GaveUp(dst));
    }

    /// Ends all operations to a host that will not answer any more.
    fn fail<M: Memory>(&mut self, dst: u16, memory: &mut M) {
        self.is_lost[usize::from(dst)] = true;
        for id in [usize::from(dst) * 2, usize::from(dst) * 2 + 1] {
            self.forget_flow(id);
            self.asks[id] = AskQueue::new();
            self.refresh_asks(id);
        }
        for row in 0..self.gets.len() + self.fetches.len() {
            let Some((tag, request)) = self.request(row) else { continue };
            if self.ops.at(request.op).host == dst {
                self.again.set(row, false);
                let tags = if row < self.gets.len() { &mut self.gets } else { &mut self.fetches };
                tags.remove(tag);
            }
        }
        while let Some(index) = self.ops.find_to(dst) {
            if let Action::PutRetained { chunks } = self.ops.at(index).action {
                let mut chunk = chunks;
                while chunk != NONE {
                    let after = self.retained.after(chunk);
                    self.retained.give_back(chunk);
                    chunk = after;
                }
            }
            self.finish(index, Outcome::Lost, memory);
        }
    }

    fn forget_flow(&mut self, id: usize) {
        while self.flows[id].una != self.flows[id].next {
            let entry = *self.entry(id, self.flows[id].una);
            if entry.retained != NONE {
                self.retained.give_back(entry.retained);
            }
            self.flows[id].una = self.flows[id].una.wrapping_add(1);
        }
        let flow = &mut self.flows[id];
        flow.sent = flow.next;
        flow.queued = 0;
        flow.round = Round::EMPTY;
        self.refresh(id);
    }
}
