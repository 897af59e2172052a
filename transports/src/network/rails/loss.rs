// SPDX-License-Identifier: Apache-2.0
//! How a rail to a peer is given up, and what was under way by it goes on by others.
//!
//! A rail is given up when an operation by it fails, or when the peer answers by another rail and not by this
//! one ([`Peer::look`]). What may then be done again, and when:
//!
//! - Reads and writes: until they are complete, the contract has them write their bytes as often as they
//!   like, and nobody changes the source or looks at the destination. But a write must not arrive after it
//!   was repeated and told to be complete: what lies in buffers of the network on the way would overwrite
//!   what others have written since. So it is repeated only when no more of it can arrive.
//! - Messages: the receiver knows those that it has carried out by their numbers, and answers again
//!   ([`Event::Moved`]). They may be sent again at once, and are once more when the peer has closed the rail
//!   too: until then its answers may have gone by it.
//! - AMOs of the network: never, and those of different rails need not exclude each other. Where there are
//!   any, the peer is lost with its first rail.
//!
//! ```text
//! A closes its connection      A -> B  closed       (by another rail; again until it is confirmed)
//! B closes its own             B -> A  confirmed, closed
//! A closes what B opened since A -> B  confirmed
//! ```
//!
//! Who has closed never opens a connection again. Before B knows, it may have opened another one, on which
//! its writes are under way to A: therefore A closes once more when it is told that B has closed, and B
//! repeats its writes only after that was confirmed.

use super::ops::{self, Kind, Op};
use super::way::{Peer, State};
use super::words::{ALL, Message, Word};
use super::{LATER, Rail, Rails};
use crate::network::{Completion, Event, Failure, Network};
use tombolo_core::transport::AmoSet;

/// Polls between attempts to say what could not be said.
const PATIENCE: u32 = 32;

impl<R: Rail> Rails<R> {
    /// A rail did not take an operation on a peer: what its owner is told.
    pub(super) fn refused(&mut self, peer: u64, rail: usize, result: isize) -> isize {
        if result == LATER {
            return LATER;
        }
        let why = self.rails[rail].meaning(result);
        if self.give_up(peer, rail, &why) { LATER } else { result }
    }

    /// Something has happened to a rail.
    #[cold]
    pub(super) fn take_event(&mut self, rail: usize, event: Event) {
        let (Event::Moved(address) | Event::Alive(address) | Event::Lost(address, _)) = &event;
        let is_it = |peer: &Peer| peer.ways.get(rail).is_some_and(|way| way.address == *address);
        let Some(peer) = self.peers.iter().position(is_it) else { return };
        match event {
            Event::Lost(_, why) => {
                if !self.give_up(peer as u64, rail, &why) {
                    self.lose(peer as u64, &why);
                }
            }
            Event::Alive(_) => {
                self.peers[peer].ways[rail].is_heard = true;
                self.events.push_back(Event::Alive(peer as u64));
            }
            // What is sent by one rail keeps its way.
            Event::Moved(_) => {}
        }
    }

    pub(super) fn inject_by(&mut self, peer: u64, rail: usize, message: &[u8]) -> isize {
        let (to, net) = (&mut self.peers[peer as usize], &mut self.rails[rail]);
        to.is_used = true;
        to.ways[rail].is_used = true;
        match net.inject(to.ways[rail].address, message) {
            0 => 0,
            result => self.refused(peer, rail, result),
        }
    }

    /// Posts the buffer of a receive.
    pub(super) fn post_receive(&mut self, index: u16) -> isize {
        let (Op { rail, local, .. }, context) = (self.ops[index], self.ops.context(index));
        let rail = usize::from(rail);
        let key = local.key[rail];
        // SAFETY: whoever gave the buffer has it stay until the completion.
        let result = unsafe { self.rails[rail].receive(local.at, local.len, key, context) };
        self.receives[rail] += usize::from(result == 0);
        result
    }

    /// Gives up a rail to a peer; true if it is given up, and there is another one.
    #[cold]
    fn give_up(&mut self, peer: u64, rail: usize, why: &str) -> bool {
        let is_needed = rail == 0 && self.has_amos(peer);
        let to = &mut self.peers[peer as usize];
        if to.ways[rail].state != State::Open {
            return to.first().is_some();
        }
        if !self.survives || is_needed || to.open().count() < 2 {
            return false;
        }
        tracing::info!("{} is given up towards peer {peer}: {why}", self.labels[rail]);
        let was_first = to.first() == Some(rail);
        let way = &mut to.ways[rail];
        (way.state, way.why) = (State::Closed, why.to_owned());
        way.owed = Word::Closed as u8;
        self.rails[rail].remove(way.address);
        self.list(peer);
        for index in self.ops.of(peer) {
            let op = &mut self.ops[index];
            let is_own = usize::from(op.rail) == rail && op.state == ops::State::Posted;
            if is_own && !op.is_repeatable() {
                // The connection does not use its buffer any more.
                op.state = ops::State::Orphan;
                self.done.push_back(Completion { context: op.context, len: 0 });
            }
        }
        if was_first {
            self.move_messages(peer);
        }
        true
    }

    /// Messages to a peer that were not answered are sent again, before all others.
    fn move_messages(&mut self, peer: u64) {
        self.peers[peer as usize].is_moving = true;
        self.events.push_back(Event::Moved(peer));
    }

    fn has_amos(&self, peer: u64) -> bool {
        let first = &self.peers[peer as usize].ways[0];
        self.rails[0].atomics(first.address).amos != AmoSet::NONE
    }

    fn list(&mut self, peer: u64) {
        let to = &mut self.peers[peer as usize];
        if !to.is_listed {
            to.is_listed = true;
            self.listed.push(peer as u32);
        }
    }

    fn owe(&mut self, peer: u64, rail: usize, word: Word) {
        self.peers[peer as usize].ways[rail].owed |= word as u8;
        self.list(peer);
    }

    /// See [`Network::remove`].
    pub(super) fn forget(&mut self, peer: u64) {
        let Some(to) = self.peers.get_mut(peer as usize).filter(|to| !to.is_removed) else {
            return;
        };
        to.is_removed = true;
        for (rail, way) in to.ways.iter_mut().enumerate() {
            if way.state == State::Open {
                self.rails[rail].remove(way.address);
            }
            (way.state, way.owed) = (State::Gone, 0);
        }
        self.again.retain(|index| u64::from(self.ops[*index].peer) != peer);
        for index in self.ops.of(peer) {
            if self.ops[index].state == ops::State::Ended {
                let op = self.ops.leave(index);
                self.done.push_back(Completion { context: op.context, len: 0 });
            }
        }
    }

    /// What the owner of an operation that has ended is told, if anything.
    pub(super) fn ended(&mut self, completion: Completion) -> Option<Completion> {
        let Some(index) = self.ops.index(completion.context) else { return Some(completion) };
        let Op { kind, state, rail, peer, local, .. } = self.ops[index];
        match (kind, state) {
            (Kind::Receive, _) => {
                self.receives[usize::from(rail)] -= 1;
                let len = completion.len.min(local.len);
                // SAFETY: the buffer is this PE's from the completion on until it is posted again.
                let message = unsafe { std::slice::from_raw_parts(local.at, len) };
                if let Some(message) = Message::decode(message).filter(|one| one.to == self.id) {
                    self.hear(&message);
                    if self.post_receive(index) != 0 {
                        self.unposted.push(index);
                    }
                    return None;
                }
            }
            (_, ops::State::Orphan) => {
                self.ops.leave(index);
                return None;
            }
            (Kind::Read | Kind::Write, _) => {
                let to = &mut self.peers[peer as usize];
                let way = &mut to.ways[usize::from(rail)];
                way.under_way = way.under_way.saturating_sub(local.len);
                // What a connection that was closed says of its operations is not to be relied on.
                if way.state != State::Open && !to.is_removed {
                    self.set_aside(index);
                    return None;
                }
                way.is_heard = true;
            }
            _ => {}
        }
        let op = self.ops.leave(index);
        Some(Completion { context: op.context, len: completion.len })
    }

    /// As `ended`, of one that has failed.
    #[cold]
    pub(super) fn broke(&mut self, failure: Failure) -> Option<Failure> {
        let Some(index) = self.ops.index(failure.context) else { return Some(failure) };
        let Op { kind, state, rail, peer, local, .. } = self.ops[index];
        let (peer, rail) = (u64::from(peer), usize::from(rail));
        if kind == Kind::Receive {
            self.receives[rail] -= 1;
        } else if state == ops::State::Orphan {
            self.ops.leave(index);
            return None;
        } else {
            let way = &mut self.peers[peer as usize].ways[rail];
            let is_open = way.state == State::Open;
            if self.ops[index].is_repeatable() {
                way.under_way = way.under_way.saturating_sub(local.len);
            }
            let is_lost = self.peers[peer as usize].is_removed;
            let is_final = is_lost || failure.is_refusal && is_open;
            let goes_on = !is_final && self.give_up(peer, rail, &failure.why);
            if goes_on && self.ops[index].is_repeatable() {
                self.set_aside(index);
                return None;
            }
            if goes_on && self.ops[index].state == ops::State::Orphan {
                // A message, whose owner was told.
                self.ops.leave(index);
                return None;
            }
        }
        let op = self.ops.leave(index);
        Some(Failure { context: op.context, ..failure })
    }

    /// Keeps an operation that a rail has let go of until it may be repeated.
    fn set_aside(&mut self, index: u16) {
        let op = &mut self.ops[index];
        op.state = ops::State::Ended;
        if self.peers[op.peer as usize].ways[usize::from(op.rail)].state == State::Gone {
            self.again.push_back(index);
        }
    }

    /// Nothing arrives any more by a rail, from or to a peer.
    fn gone(&mut self, peer: u64, rail: usize) {
        self.peers[peer as usize].ways[rail].state = State::Gone;
        self.report(peer, rail);
        self.move_messages(peer);
        for index in self.ops.of(peer) {
            let op = self.ops[index];
            if usize::from(op.rail) != rail || !op.is_repeatable() {
                continue;
            }
            match op.state {
                ops::State::Ended => self.again.push_back(index),
                // The rail may still have the context, though nothing else. Where there is no other place it
                // waits until this one is told of.
                ops::State::Posted => {
                    let ended = Op { state: ops::State::Ended, ..op };
                    if let Some((place, _)) = self.ops.enter(ended) {
                        self.ops[index].state = ops::State::Orphan;
                        self.again.push_back(place);
                    }
                }
                ops::State::Free | ops::State::Orphan => {}
            }
        }
    }

    /// Tells people, once for each host and rail.
    fn report(&mut self, peer: u64, rail: usize) {
        let to = &self.peers[peer as usize];
        let Some(host) = to.host.clone() else { return };
        let told = (host, rail);
        if self.told.contains(&told) {
            return;
        }
        let others: Vec<&str> = to.open().map(|rail| &*self.labels[rail]).collect();
        tracing::warn!(
            "{} is given up towards {}, which goes on by {}: {}",
            self.labels[rail],
            told.0,
            others.join(", "),
            to.ways[rail].why
        );
        self.told.push(told);
    }

    /// Somebody has said something of a rail.
    fn hear(&mut self, message: &Message) {
        let rail = usize::from(message.rail);
        let Some(peer) = self.peers.iter().position(|peer| peer.name.id == message.from) else {
            return;
        };
        let (peer, from) = (peer as u64, &mut self.peers[peer]);
        if from.is_removed || rail >= from.ways.len() {
            return;
        }
        from.is_used = true;
        let way = &mut from.ways[rail];
        match (message.word, way.state) {
            (Word::Ask, State::Open) => self.owe(peer, rail, Word::Alive),
            (Word::Alive, _) => {
                (way.is_heard, way.is_answered, way.asked) = (true, true, None);
                // What it is asked for may be lost with the rail that is silent, and it is not.
                if from.is_suspected() {
                    self.events.push_back(Event::Alive(peer));
                }
            }
            (Word::Closed, State::Open) => {
                match self.give_up(peer, rail, "the other end has given it up") {
                    true => self.owe(peer, rail, Word::Confirmed),
                    false => self.lose(peer, "the other end has given up the last interface"),
                }
            }
            // The other end may have connected since, which it does not do any more.
            (Word::Closed, State::Closed | State::Gone) => {
                if let Ok(address) = self.rails[rail].insert(&from.name.rails[rail]) {
                    self.rails[rail].remove(address);
                    self.owe(peer, rail, Word::Confirmed);
                }
            }
            (Word::Confirmed, State::Closed) => self.gone(peer, rail),
            (Word::Ask | Word::Confirmed, _) => {}
        }
        self.say_all();
    }

    fn lose(&mut self, peer: u64, why: &str) {
        self.events.push_back(Event::Lost(peer, why.into()));
    }

    /// A quarter of a second has passed.
    pub(super) fn look_at_all(&mut self) {
        for peer in 0..self.peers.len() as u64 {
            let to = &mut self.peers[peer as usize];
            if !to.is_used || to.is_removed {
                continue;
            }
            let silent = to.look();
            if to.ways.iter().any(|way| way.owed != 0) {
                self.list(peer);
            }
            if let Some(rail) = silent {
                let why = "nothing comes by it from there, while other interfaces reach it";
                if !self.give_up(peer, rail, why) {
                    self.lose(peer, &format!("{}: {why}", self.labels[rail]));
                }
            }
        }
        self.say_all();
    }

    /// Says what is to be said, and posts what is to be repeated.
    pub(super) fn attend(&mut self) {
        self.polls = self.polls.wrapping_add(1);
        if !self.listed.is_empty() && self.polls.is_multiple_of(PATIENCE) {
            self.say_all();
        }
        if !self.unposted.is_empty() || !self.again.is_empty() {
            self.post_again();
        }
    }

    fn say_all(&mut self) {
        for _ in 0..self.listed.len() {
            let peer = self.listed.swap_remove(0);
            self.peers[peer as usize].is_listed = false;
            if !self.say(peer.into()) {
                self.list(peer.into());
            }
        }
    }

    #[cold]
    fn post_again(&mut self) {
        for _ in 0..self.unposted.len() {
            let index = self.unposted.swap_remove(0);
            if self.post_receive(index) != 0 {
                self.unposted.push(index);
            }
        }
        for _ in 0..self.again.len() {
            let Some(index) = self.again.pop_front() else { break };
            let op = self.ops.leave(index);
            // SAFETY: its owner has buffer and context stay until the completion.
            match unsafe { self.transfer(Op { state: ops::State::Posted, ..op }) } {
                0 => {}
                LATER => {
                    if let Some((index, _)) = self.ops.enter(op) {
                        self.again.push_back(index);
                    }
                }
                error => {
                    let why = self.meaning(error);
                    self.failed.push_back(Failure { context: op.context, is_refusal: false, why });
                }
            }
        }
    }

    /// Says what is owed to a peer; true if that was all.
    fn say(&mut self, peer: u64) -> bool {
        let mut all = true;
        for rail in 0..self.peers[peer as usize].ways.len() {
            for word in ALL {
                let to = &self.peers[peer as usize];
                if to.ways[rail].owed & word as u8 == 0 {
                    continue;
                }
                let by = match word {
                    Word::Ask | Word::Alive => {
                        Some(rail).filter(|rail| to.ways[*rail].state == State::Open)
                    }
                    Word::Closed | Word::Confirmed => to.first(),
                };
                let (from, to) = (self.id, to.name.id);
                let message = Message { to, from, rail: rail as u8, word }.encode();
                // What cannot be said by a rail that is closed is not waited for.
                let said = by.is_none_or(|by| self.inject_by(peer, by, &message) == 0);
                if said {
                    self.peers[peer as usize].ways[rail].owed &= !(word as u8);
                }
                all &= said;
            }
        }
        all
    }
}
