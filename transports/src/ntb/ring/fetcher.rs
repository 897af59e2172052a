// SPDX-License-Identifier: Apache-2.0
//! What a lane asks of other hosts: the parts of gets, and the results of fetching AMOs. A request
//! that is not answered in time is repeated.

use super::bits::Bits;
use super::config::{Config, FETCHES};
use super::flow::RequestQueue;
use super::memory::Side;
use super::ops::{Ops, Request, Tags, row_of};
use super::sender::{BACKOFF_MAX, is_within};
use std::ops::Range;

/// Queues are numbered as flows are. Rows are those of gets, and after them those of AMOs.
#[derive(Clone, Debug, Hash)]
pub(super) struct Fetcher {
    gets: Tags,
    amos: Tags,
    /// Rows to be repeated.
    again: Bits,
    /// Gets with parts still to be asked for.
    queues: Vec<RequestQueue>,
    /// Queues that can ask, by direction.
    ready: [Bits; 2],
    /// Where the search for the next queue begins, by direction.
    cursor: [usize; 2],
}

/// A request that is sent again.
#[derive(Clone, Copy, Debug)]
pub(super) enum Repetition {
    /// For a part of a get.
    Get(u64, Request),
    /// For the result of an AMO that has been applied.
    Recall(u64, Request),
}

/// What is to be done about a request that has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Overdue {
    /// Nothing now.
    No,
    /// Ask this host again.
    Repeat(u16),
    /// Give this host up.
    Hopeless(u16),
}

impl Fetcher {
    pub(super) fn new(config: &Config, hosts: u16) -> Fetcher {
        let queues = usize::from(hosts) * 2;
        Fetcher {
            gets: Tags::new(config.gets),
            amos: Tags::new(FETCHES),
            again: Bits::new(config.gets + FETCHES),
            queues: vec![RequestQueue::new(); queues],
            ready: [Bits::new(queues), Bits::new(queues)],
            cursor: [0; 2],
        }
    }

    /// Whether a queue waits to ask in this direction, or requests are to be repeated in some.
    #[inline]
    pub(super) fn has_ready(&self, side: Side) -> bool {
        !self.ready[side as usize].is_empty() || !self.again.is_empty()
    }

    /// Queues an operation behind those of its stream. An empty queue takes the direction that `side`
    /// gives.
    pub(super) fn enqueue(
        &mut self,
        id: usize,
        op: u32,
        ops: &mut Ops,
        side: impl FnOnce() -> Option<Side>,
    ) {
        let queue = &mut self.queues[id];
        if queue.round.is_empty() {
            queue.side = side();
        }
        queue.round.push(ops, id % 2, op);
        self.refresh(id);
    }

    /// The next queue that may ask in this direction; `limit` as for [`super::sender::Sender::next`].
    pub(super) fn next(
        &mut self,
        side: Side,
        ops: &mut Ops,
        limit: impl Fn(usize) -> Option<usize>,
    ) -> Option<usize> {
        if !self.gets.has_room() {
            return None;
        }
        let Fetcher { ready, queues, cursor, .. } = self;
        ready[side as usize].find_from(cursor[side as usize], |id| {
            let Some(limit) = limit(id) else { return true };
            let queue = &mut queues[id];
            let under_way = queue.under_way;
            let may = |ops: &Ops, op: u32| is_within(ops.at(op), id % 2, under_way, limit);
            queue.round.turn_to(ops, id % 2, may).is_some()
        })
    }

    /// Whether something is to be asked for and there is no way.
    pub(super) fn lacks_way(&self) -> bool {
        self.queues.iter().any(|queue| queue.side.is_none() && !queue.round.is_empty())
    }

    /// Makes the next request of a queue that [`Fetcher::next`] has given; gives its tag.
    pub(super) fn take(
        &mut self,
        side: Side,
        id: usize,
        ops: &mut Ops,
        (now, replay_ns): (u64, u64),
    ) -> Option<(u64, Request)> {
        self.cursor[side as usize] = (id + 1) % self.queues.len();
        let queue = &mut self.queues[id];
        let op = queue.round.front()?;
        let (packet, end) = ops.at(op).todo[id % 2];
        ops.at_mut(op).todo[id % 2].0 += 1;
        queue.round.end_turn(ops, id % 2, packet + 1 == end);
        queue.under_way += 1;
        self.refresh(id);
        let deadline = now + replay_ns;
        let request =
            Request { op, packet, queue: id as u32, side, since: now, deadline, repeats: 0 };
        Some((self.gets.insert(request), request))
    }

    /// A row to be repeated in this direction.
    pub(super) fn next_again(&self, side: Side) -> Option<usize> {
        if self.again.is_empty() {
            return None;
        }
        self.again.iter().find(|&row| {
            // Not outstanding any more: `take_again` drops the mark, on whichever side.
            self.request(row).is_none_or(|(_, request)| request.side == side)
        })
    }

    /// What to send for a row of [`Fetcher::next_again`]; none if it has been answered meanwhile.
    pub(super) fn take_again(&mut self, row: usize) -> Option<Repetition> {
        self.again.set(row, false);
        let (tag, request) = self.request(row)?;
        Some(match row < self.gets.len() {
            true => Repetition::Get(tag, request),
            false => Repetition::Recall(tag, request),
        })
    }

    /// Whether the result of another AMO can be waited for.
    pub(super) fn has_room_for_amo(&self) -> bool {
        self.amos.has_room()
    }

    /// Waits for the result of an AMO; gives the tag. [`Fetcher::name_amo`] tells of what operation.
    pub(super) fn await_amo(&mut self, (now, replay_ns): (u64, u64)) -> u64 {
        self.amos.insert(Request {
            op: super::flow::NONE,
            packet: 0,
            queue: super::flow::NONE,
            since: now,
            side: Side::Right,
            deadline: now + replay_ns,
            repeats: 0,
        })
    }

    /// The operation that a tag of [`Fetcher::await_amo`] belongs to.
    pub(super) fn name_amo(&mut self, tag: u64, op: u32) {
        if let Some(request) = self.amos.row_mut(row_of(tag)) {
            request.op = op;
        }
    }

    /// The part of a get that a tag from the wire names, if it is outstanding.
    #[inline]
    pub(super) fn get(&self, tag: u64) -> Option<Request> {
        self.gets.find(tag)
    }

    /// The part has come.
    #[inline]
    pub(super) fn end_get(&mut self, tag: u64, request: &Request) {
        self.gets.remove(tag);
        self.queues[request.queue as usize].under_way -= 1;
    }

    /// Asks again for a part of a get as soon as possible.
    pub(super) fn get_again(&mut self, tag: u64) {
        self.again.set(row_of(tag), true);
    }

    /// The AMO that a tag from the wire names, if its result is outstanding.
    pub(super) fn amo(&self, tag: u64) -> Option<Request> {
        self.amos.find(tag)
    }

    /// The result has come, or never will.
    pub(super) fn end_amo(&mut self, tag: u64) {
        self.amos.remove(tag);
    }

    /// Rows of which some may have outstanding requests.
    pub(super) fn rows(&self) -> Range<usize> {
        let (gets, amos) = (self.gets.len(), self.amos.len());
        let first = if self.gets.is_empty() { gets } else { 0 };
        first..if self.amos.is_empty() { gets } else { gets + amos }
    }

    /// Looks at the time for which a request has had no answer.
    pub(super) fn look_at(
        &mut self,
        row: usize,
        now: u64,
        ops: &Ops,
        config: &Config,
        is_reachable: impl Fn(u16) -> bool,
    ) -> Overdue {
        let Some((_, request)) = self.request(row) else { return Overdue::No };
        if now < request.deadline {
            return Overdue::No;
        }
        let op = ops.at(request.op);
        let host = op.host;
        // A fetching AMO that is not acknowledged is its flow's business.
        let recallable = row < self.gets.len() || op.remaining == 1;
        let Some(request) = self.request_mut(row) else { return Overdue::No };
        request.deadline = now + (config.replay_ns << request.repeats.min(BACKOFF_MAX));
        if !recallable || !is_reachable(host) {
            return Overdue::No;
        }
        request.repeats += 1;
        let waited = now.saturating_sub(request.since);
        match request.repeats > config.replays_max && waited >= config.silence_ns {
            true => Overdue::Hopeless(host),
            false => Overdue::Repeat(host),
        }
    }

    /// Marks a request as one to be sent again, in this direction.
    pub(super) fn repeat(&mut self, row: usize, side: Side) {
        if let Some(request) = self.request_mut(row) {
            request.side = side;
        }
        self.again.set(row, true);
    }

    /// The part of a get in a row, if there is one.
    pub(super) fn get_at(&self, row: usize) -> Option<Request> {
        if row < self.gets.len() { self.gets.row(row).map(|(_, request)| request) } else { None }
    }

    /// Takes the directions of queues anew.
    pub(super) fn redirect(&mut self, side: impl Fn(usize) -> Option<Side>) {
        for id in 0..self.queues.len() {
            if !self.queues[id].round.is_empty() {
                self.queues[id].side = side(id);
                self.refresh(id);
            }
        }
    }

    /// Forgets all that was asked of a host.
    pub(super) fn forget(&mut self, host: u16, ops: &Ops) {
        for id in [usize::from(host) * 2, usize::from(host) * 2 + 1] {
            self.queues[id] = RequestQueue::new();
            self.refresh(id);
        }
        for row in self.rows() {
            let Some((tag, request)) = self.request(row) else { continue };
            if ops.at(request.op).host == host {
                self.again.set(row, false);
                let tags = if row < self.gets.len() { &mut self.gets } else { &mut self.amos };
                tags.remove(tag);
            }
        }
    }

    fn request(&self, row: usize) -> Option<(u64, Request)> {
        let gets = self.gets.len();
        if row < gets { self.gets.row(row) } else { self.amos.row(row - gets) }
    }

    fn request_mut(&mut self, row: usize) -> Option<&mut Request> {
        let gets = self.gets.len();
        if row < gets { self.gets.row_mut(row) } else { self.amos.row_mut(row - gets) }
    }

    fn refresh(&mut self, id: usize) {
        let queue = &self.queues[id];
        for side in Side::BOTH {
            let ready = !queue.round.is_empty() && queue.side == Some(side);
            self.ready[side as usize].set(id, ready);
        }
    }
}
