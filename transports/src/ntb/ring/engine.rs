//! The engine: its state, the operations it takes, and how it is polled.

use tombolo_core::transport::{Amo, Remote, Signal, Status};

use super::bits::Bits;
use super::choose::piece_bytes;
use super::config::{Config, FETCHES, HOSTS_MAX};
use super::fair::{Sharing, shared_bytes, shared_piece};
use super::flow::{AskQueue, Entry, NONE, ReceiveFlow, SendFlow};
use super::health::RunClock;
use super::memory::{Memory, Outcome, Side, Span};
use super::ops::{Action, Op, Ops, Request, Retained, STREAM_SLOTS, Tags, stream_slot};
use super::packet::{Class, INLINE_BYTES, words_of};
use super::port::{Identity, Port};
use super::stats::Stats;
use super::topology::Topology;

/// Chunks of an operation that is one packet of the first flow.
const ONCE: [(u32, u32); 2] = [(0, 1), (0, 0)];

/// A variable or range at another host.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Host; not this one.
    pub host: u16,
    /// PE, counted within the host.
    pub pe: u8,
    /// Where in its symmetric memory.
    pub remote: Remote,
}

/// A put, perhaps with a signal.
#[derive(Clone, Copy, Debug)]
pub struct PutRequest {
    /// Given back with the completion.
    pub token: u64,
    /// The stream, for `fence`.
    pub stream: u32,
    /// Where to.
    pub target: Target,
    /// Address of the source, as [`Span::Local`].
    pub source: u64,
    /// Bytes.
    pub len: usize,
    /// The source is reused at once: keep a copy for repetitions.
    pub retain: bool,
    /// Applied after the data.
    pub signal: Option<Signal>,
}

/// A get.
#[derive(Clone, Copy, Debug)]
pub struct GetRequest {
    /// Given back with the completion.
    pub token: u64,
    /// The stream, for its share of the ring.
    pub stream: u32,
    /// Where from.
    pub target: Target,
    /// Address of the destination, as [`Span::Local`].
    pub dest: u64,
    /// Bytes.
    pub len: usize,
}

/// An AMO.
#[derive(Clone, Copy, Debug)]
pub struct AmoRequest {
    /// Given back with the completion.
    pub token: u64,
    /// The stream: AMOs follow what it put to the same host before.
    pub stream: u32,
    /// The variable.
    pub target: Target,
    /// What to do.
    pub amo: Amo,
    /// Where the old value goes, as [`Span::Local`].
    pub result: Option<u64>,
}

impl PutRequest {
    /// The signal of the transport contract.
    pub fn with_signal(self, signal: Signal) -> PutRequest {
        PutRequest { signal: Some(signal), ..self }
    }
}

/// Why an engine cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// A ring needs two hosts, and a header has room for so many.
    #[error("a ring of {0} hosts: expected 2 to {HOSTS_MAX}")]
    Hosts(u16),
    /// The host is not one of the ring.
    #[error("host {0} is not one of the {1} of the ring")]
    Me(u16, u16),
    /// A setting makes no sense.
    #[error("{0}")]
    Setting(&'static str),
}

/// One lane of one host.
#[derive(Clone, Debug, Hash)]
pub struct Engine {
    pub(super) config: Config,
    pub(super) me: u16,
    pub(super) hosts: u16,
    pub(super) lane: u8,
    /// Time that this engine has run, nanoseconds; all its timers go by it.
    pub(super) now: u64,
    clock: RunClock,
    pub(super) ports: [Port; 2],
    pub(super) topology: Topology,
    /// By host * 2 + flow.
    pub(super) flows: Vec<SendFlow>,
    pub(super) entries: Vec<Entry>,
    pub(super) inflows: Vec<ReceiveFlow>,
    pub(super) ops: Ops,
    pub(super) retained: Retained,
    pub(super) gets: Tags,
    pub(super) fetches: Tags,
    /// Results of fetching AMOs applied here, by source host and tag row.
    pub(super) results: Vec<(u32, u64)>,
    /// Flows with something to send, by direction.
    pub(super) ready: [Bits; 2],
    /// Acknowledgements owed, by direction and flow.
    pub(super) acks: [Bits; 2],
    /// Link states owed to the neighbours, by direction and origin.
    pub(super) news: [Bits; 2],
    /// Get requests, and after them recalls, to be repeated, by row.
    pub(super) again: Bits,
    /// Gets still to be asked for, by host * 2 + share.
    pub(super) asks: Vec<AskQueue>,
    /// Those with something to ask for, by direction.
    pub(super) asking: [Bits; 2],
    pub(super) sharing: Sharing,
    /// Split puts outstanding, by host and stream.
    pub(super) splits: Vec<u16>,
    /// By the same: fenced since the first flow was quiet.
    fenced: Vec<bool>,
    pub(super) cursor: [usize; 2],
    pub(super) ask_cursor: [usize; 2],
    pub(super) turn: [bool; 2],
    pub(super) is_lost: Vec<bool>,
    /// When a host was last heard to have said something new, by whatever way.
    pub(super) alive_at: Vec<u64>,
    pub(super) next_tick: u64,
    pub(super) next_beat: u64,
    pub(super) beats: u32,
    /// Hosts cut off at present, and since when.
    pub(super) cut: Option<(u64, (u16, u16))>,
    pub(super) was_whole: bool,
    pub(super) stats: Stats,
}

impl Engine {
    /// An engine for lane `lane` of host `me`, with both links down.
    pub fn new(config: Config, me: u16, hosts: u16, lane: u8) -> Result<Engine, EngineError> {
        if !(2..=HOSTS_MAX).contains(&hosts) {
            return Err(EngineError::Hosts(hosts));
        }
        if me >= hosts {
            return Err(EngineError::Me(me, hosts));
        }
        if !config.window.is_power_of_two() || config.window < 4 {
            return Err(EngineError::Setting("the window must be a power of two, 4 or more"));
        }
        if config.incarnation == 0 || config.burst == 0 {
            return Err(EngineError::Setting("the incarnation and the burst must not be 0"));
        }
        let topology = Topology::new(me, hosts);
        let port = |side: Side| {
            let neighbour = topology.step(me, side);
            Port::new(side, Identity { me, neighbour, hosts, lane }, &config)
        };
        let ports = [port(Side::Right), port(Side::Left)];
        let flows = usize::from(hosts) * 2;
        let nothing = Entry { op: NONE, chunk: 0, retained: NONE, last: false };
        let sets = |size: usize| [Bits::new(size), Bits::new(size)];
        Ok(Engine {
            ports,
            flows: vec![SendFlow::new(); flows],
            entries: vec![nothing; flows * config.window as usize],
            inflows: vec![ReceiveFlow::default(); flows],
            ops: Ops::new(config.operations),
            retained: Retained::new(config.retained_chunks),
            gets: Tags::new(config.gets),
            fetches: Tags::new(FETCHES),
            results: vec![(0, 0); usize::from(hosts) * FETCHES],
            ready: sets(flows),
            acks: sets(flows),
            news: sets(usize::from(hosts)),
            again: Bits::new(config.gets + FETCHES),
            asks: vec![AskQueue::new(); flows],
            asking: sets(flows),
            sharing: Sharing::default(),
            splits: vec![0; usize::from(hosts) * STREAM_SLOTS],
            fenced: vec![false; usize::from(hosts) * STREAM_SLOTS],
            cursor: [0; 2],
            ask_cursor: [0; 2],
            turn: [false; 2],
            is_lost: vec![false; usize::from(hosts)],
            next_tick: 0,
            next_beat: 0,
            beats: 0,
            cut: None,
            was_whole: false,
            now: 0,
            clock: RunClock::default(),
            alive_at: vec![0; usize::from(hosts)],
            stats: Stats::default(),
            config,
            me,
            hosts,
            lane,
            topology,
        })
    }

    /// The link at `side` came up or went down.
    pub fn link_event<M: Memory>(&mut self, side: Side, up: bool, now: u64, memory: &mut M) {
        self.now = self.clock.advance(now, self.config.step_ns);
        let port = &mut self.ports[side as usize];
        match up {
            true if port.is_down() => port.greet(self.now, memory),
            false if !port.is_down() => port.drop_link(),
            // Link events carry no state of their own and may come twice.
            _ => return,
        }
        self.notice_ports(memory);
    }

    /// Takes in what has arrived and sends what may be sent. Returns whether anything was done:
    /// after `false`, nothing will happen before new input or [`next_deadline`](Self::next_deadline).
    pub fn poll<M: Memory>(&mut self, now: u64, memory: &mut M) -> bool {
        let now = self.clock.advance(now, self.config.step_ns);
        self.now = now;
        let mut busy = false;
        let flaps = [self.ports[0].flaps(), self.ports[1].flaps()];
        let up = [self.ports[0].is_up(), self.ports[1].is_up()];
        for port in &mut self.ports {
            busy |= port.listen(now, self.config.slow_ns, memory, &mut self.stats);
        }
        if up != [self.ports[0].is_up(), self.ports[1].is_up()]
            || flaps != [self.ports[0].flaps(), self.ports[1].flaps()]
        {
            self.notice_ports(memory);
        }
        if now >= self.next_tick {
            self.tick(memory);
        }
        let held = self.stats.held_transit;
        for class in [Class::Control, Class::Reply, Class::Request] {
            for side in Side::BOTH {
                busy |= self.take(side, class, memory);
            }
        }
        // Transit that was held back goes on by itself after some polls.
        busy |= held != self.stats.held_transit;
        for side in Side::BOTH {
            busy |= self.send_control(side, memory);
            busy |= self.send_requests(side, memory);
        }
        for port in &mut self.ports {
            port.return_credits(memory, &mut self.stats);
        }
        busy
    }

    /// Whether packets wait to be sent, be it for room or for the next poll.
    pub fn has_more_to_send(&self) -> bool {
        self.ready.iter().chain(&self.asking).any(|waiting| !waiting.is_empty())
    }

    /// When `poll` must be called although nothing arrives.
    pub fn next_deadline(&self) -> u64 {
        self.clock.when(self.next_tick)
    }

    /// Copies local memory to another host.
    ///
    /// - `Pending`: accepted; `complete` follows. `Complete`: nothing to do. `Again`: a table is
    ///   full, poll first. `Failed`: the host is lost.
    /// - With `retain` the source may be reused on return. A put longer than the retained area
    ///   holds is never accepted with it: see [`retain_bytes_max`](Self::retain_bytes_max).
    pub fn put<M: Memory>(&mut self, put: &PutRequest, memory: &mut M) -> Status {
        let PutRequest { target, len, .. } = *put;
        if self.is_lost(target.host) {
            return Status::Failed;
        }
        if len == 0 && put.signal.is_none() {
            return Status::Complete;
        }
        let piece = self.piece(target.host, len, self.config.handling_bytes);
        let chunks = len.div_ceil(piece);
        let keep = put.retain && len > INLINE_BYTES;
        self.note_stream(put.stream);
        if !self.ops.has_room(put.stream, 2) || (keep && self.retained.room() < chunks) {
            return Status::Again;
        }
        let mut data = NONE;
        if len > 0 {
            let action = if len <= INLINE_BYTES {
                Action::PutInline { words: read_inline(put.source, len, memory) }
            } else if keep {
                Action::PutRetained { chunks: self.keep(put.source, len, piece, memory) }
            } else {
                Action::Put { source: put.source }
            };
            let token = if put.signal.is_none() { Some(put.token) } else { None };
            data = self.submit_put(put, action, token, piece);
        }
        if let Some(signal) = put.signal {
            // Behind the data in the same flow: applied after it, and completes after it.
            let target = Target { remote: signal.word, ..target };
            let action = Action::Amo(signal.amo());
            let signal = self.submit(Some(put.token), put.stream, action, target, 8, ONCE);
            if data != NONE {
                self.ops.at_mut(data).signal = signal;
            }
        }
        Status::Pending
    }

    /// Copies memory of another host here. Results as for [`put`](Self::put).
    pub fn get(&mut self, get: &GetRequest) -> Status {
        let GetRequest { target, len, .. } = *get;
        if self.is_lost(target.host) {
            return Status::Failed;
        }
        if len == 0 {
            return Status::Complete;
        }
        self.note_stream(get.stream);
        if !self.ops.has_room(get.stream, 1) {
            return Status::Again;
        }
        // Each packet of it is asked for by a short one.
        let piece = self.piece(target.host, len, self.config.handling_bytes * 3 / 2);
        let chunks = len.div_ceil(piece) as u32;
        let action = Action::Get { dest: get.dest };
        let mut op = self.op(Some(get.token), get.stream, action, target, len);
        let other = self.second_share(target.host, len, chunks);
        op.piece = piece as u32;
        op.remaining = chunks;
        op.todo = [(0, chunks - other), (chunks - other, chunks)];
        let op = self.ops.insert(op);
        for share in 0..if other > 0 { 2 } else { 1 } {
            let id = usize::from(target.host) * 2 + share;
            if self.asks[id].round.is_empty() {
                self.asks[id].side = self.direct(id);
            }
            self.asks[id].round.push(&mut self.ops, share, op);
            self.refresh_asks(id);
        }
        Status::Pending
    }

    /// Changes a variable at another host atomically. Results as for [`put`](Self::put).
    pub fn amo(&mut self, request: &AmoRequest) -> Status {
        let AmoRequest { token, stream, target, amo, result } = *request;
        if self.is_lost(target.host) {
            return Status::Failed;
        }
        self.note_stream(stream);
        if !self.ops.has_room(stream, 1) || (result.is_some() && !self.fetches.has_room()) {
            return Status::Again;
        }
        let len = usize::from(amo.size);
        let Some(result) = result else {
            self.submit(Some(token), stream, Action::Amo(amo), target, len, ONCE);
            return Status::Pending;
        };
        let tag = self.fetches.insert(Request {
            op: NONE,
            chunk: 0,
            queue: NONE,
            since: self.now,
            side: Side::Right,
            deadline: self.now + self.config.replay_ns,
            repeats: 0,
        });
        let action = Action::Fetch { amo, result, tag };
        let op = self.submit(Some(token), stream, action, target, len, ONCE);
        if let Some(request) = self.fetches.row_mut((tag & 0xffff) as usize) {
            request.op = op;
        }
        // Answered twice: by the acknowledgement, which allows to forget it, and by the result.
        self.ops.at_mut(op).remaining = 2;
        Status::Pending
    }

    /// Whether what `stream` issues to `host` from now on follows what it issued before.
    pub fn fence(&mut self, stream: u32, host: u16) -> bool {
        let slot = split_slot(host, stream);
        let ordered = self.splits[slot] == 0;
        if ordered && !self.flows[usize::from(host) * 2].is_quiet() {
            // What is under way one way must not be overtaken by a part of what comes the other way.
            self.fenced[slot] = true;
        }
        ordered
    }

    /// Number of hosts in the ring.
    pub fn hosts(&self) -> u16 {
        self.hosts
    }

    /// Whether a put may go both ways: not as long as something before the last fence is under way.
    fn may_split(&mut self, stream: u32, host: u16) -> bool {
        let slot = split_slot(host, stream);
        if self.fenced[slot] && self.flows[usize::from(host) * 2].is_quiet() {
            self.fenced[slot] = false;
        }
        !self.fenced[slot]
    }

    /// Says whether this engine's thread will block, so that neighbours ring the doorbell. Poll
    /// once more after saying so, and block for a bounded time.
    pub fn set_sleeping<M: Memory>(&mut self, sleeping: bool, memory: &mut M) {
        for port in &mut self.ports {
            port.set_sleeping(sleeping, memory);
        }
    }

    /// Operations accepted and not completed.
    pub fn outstanding(&self) -> usize {
        self.ops.outstanding()
    }

    /// Bytes of the longest put with `retain`.
    pub fn retain_bytes_max(&self) -> usize {
        self.config.retained_chunks * self.chunk_bytes()
    }

    /// Whether `host` has been given up.
    pub fn is_lost(&self, host: u16) -> bool {
        self.is_lost[usize::from(host)]
    }

    /// The way to `host` at present: direction and links to pass.
    pub fn way(&self, host: u16) -> Option<(Side, u16)> {
        let side = self.topology.choose(host)?;
        Some((side, self.topology.distance(side, host)))
    }

    /// Whether all links of the ring are known to be in use.
    pub fn is_whole(&self) -> bool {
        self.topology.is_whole()
    }

    /// Whether a link is in use.
    pub fn link_in_use(&self, side: Side) -> bool {
        self.ports[side as usize].is_up()
    }

    /// Epochs of a link in use: of this side and of the neighbour.
    pub fn link_epochs(&self, side: Side) -> Option<(u32, u32)> {
        let port = &self.ports[side as usize];
        port.is_up().then(|| port.epochs())
    }

    /// Counters.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    pub(super) fn chunk_bytes(&self) -> usize {
        self.config.geometry.chunk_bytes()
    }

    /// Ends an operation and tells the submitter, unless that has been done.
    pub(super) fn finish<M: Memory>(&mut self, index: u32, outcome: Outcome, memory: &mut M) {
        let op = *self.ops.at(index);
        if let Some(token) = op.token {
            memory.complete(token, if op.refused { Outcome::Refused } else { outcome });
        }
        if let Some(stream) = op.split {
            self.splits[split_slot(op.host, stream)] -= 1;
        }
        self.ops.remove(index);
    }

    /// Updates whether a flow is among those that can send.
    pub(super) fn refresh(&mut self, id: usize) {
        let flow = &self.flows[id];
        let work = flow.has_work(self.config.window);
        for side in Side::BOTH {
            self.ready[side as usize].set(id, work && flow.side == Some(side));
        }
    }

    /// The same for a queue of get requests.
    pub(super) fn refresh_asks(&mut self, id: usize) {
        let asks = &self.asks[id];
        for side in Side::BOTH {
            let asking = !asks.round.is_empty() && asks.side == Some(side);
            self.asking[side as usize].set(id, asking);
        }
    }

    fn note_stream(&mut self, stream: u32) {
        let until = self.now + self.config.share_ns;
        self.sharing.note(stream, self.ops.outstanding() > 0, until);
    }

    /// Bytes that may be under way to a host in one flow; none: as much as its window allows.
    pub(super) fn shared_limit(&self, host: u16) -> Option<usize> {
        let hops = || self.way(host).map_or(1, |(_, hops)| hops);
        self.sharing.is_on(self.now).then(|| shared_bytes(hops()))
    }

    /// The direction of a flow that starts anew.
    pub(super) fn direct(&self, id: usize) -> Option<Side> {
        let dst = (id / 2) as u16;
        let first = self.topology.choose(dst)?;
        let other = first.opposite();
        let second = id % 2 == 1 && self.topology.reaches(other, dst);
        Some(if second { other } else { first })
    }

    fn submit_put(
        &mut self,
        put: &PutRequest,
        action: Action,
        token: Option<u64>,
        piece: usize,
    ) -> u32 {
        let chunks = put.len.div_ceil(piece) as u32;
        let splittable = matches!(action, Action::Put { .. })
            && put.signal.is_none()
            && self.may_split(put.stream, put.target.host);
        let other = match splittable {
            true => self.second_share(put.target.host, put.len, chunks),
            false => 0,
        };
        let todo = [(0, chunks - other), (chunks - other, chunks)];
        let op = self.submit(token, put.stream, action, put.target, put.len, todo);
        self.ops.at_mut(op).piece = piece as u32;
        if other > 0 {
            let slot = split_slot(put.target.host, put.stream);
            self.splits[slot] += 1;
            self.ops.at_mut(op).split = Some(put.stream);
        }
        op
    }

    fn submit(
        &mut self,
        token: Option<u64>,
        stream: u32,
        action: Action,
        target: Target,
        len: usize,
        todo: [(u32, u32); 2],
    ) -> u32 {
        let mut op = self.op(token, stream, action, target, len);
        op.todo = todo;
        op.remaining = todo[0].1 - todo[0].0 + todo[1].1 - todo[1].0;
        let op = self.ops.insert(op);
        for (which, (from, to)) in todo.into_iter().enumerate() {
            if from < to {
                let id = usize::from(target.host) * 2 + which;
                self.enqueue(id, op);
                self.flows[id].queued += u64::from(to - from);
            }
        }
        op
    }

    fn op(
        &self,
        token: Option<u64>,
        stream: u32,
        action: Action,
        target: Target,
        len: usize,
    ) -> Op {
        debug_assert!(target.host != self.me && target.host < self.hosts);
        Op {
            token,
            stream,
            action,
            host: target.host,
            pe: target.pe,
            remote: target.remote,
            len,
            piece: self.chunk_bytes() as u32,
            remaining: 1,
            todo: [(0, 0); 2],
            next: [NONE; 2],
            round: [NONE; 2],
            last: [NONE; 2],
            refused: false,
            split: None,
            signal: NONE,
        }
    }

    fn enqueue(&mut self, id: usize, op: u32) {
        if self.flows[id].is_quiet() {
            // Only now may the direction change: nothing is on the way that could be overtaken.
            self.flows[id].side = self.direct(id);
            self.flows[id].deadline = self.now + self.config.replay_ns;
            self.flows[id].repeats = 0;
            self.flows[id].progress_at = self.now;
        }
        self.flows[id].round.push(&mut self.ops, id % 2, op);
        self.refresh(id);
    }

    /// Chunks of a large transfer that go the other way round: as many as arrive there in the time
    /// the others need, (n1 + h1) = (n0 + h0). None when the detour is more than one hop longer:
    /// then it takes more from the ring than it gives.
    fn second_share(&self, host: u16, len: usize, chunks: u32) -> u32 {
        let Some(side) = self.topology.choose(host) else { return 0 };
        let other = side.opposite();
        if !self.config.split
            || len < self.config.split_bytes_min
            || !self.topology.reaches(other, host)
        {
            return 0;
        }
        let detour = self.topology.distance(other, host) - self.topology.distance(side, host);
        if detour <= 1 { chunks.saturating_sub(u32::from(detour)) / 2 } else { 0 }
    }

    /// Bytes of the packets of a transfer. What is under way alone is cut up so that its copies
    /// overlap; with others under way they overlap each other, and long packets cost least.
    fn piece(&self, host: u16, len: usize, handling_bytes: u32) -> usize {
        let whole = self.chunk_bytes();
        let fits = |piece: usize| len.div_ceil(piece) <= self.config.retained_chunks;
        if self.sharing.is_on(self.now) {
            let piece = shared_piece(whole);
            return if fits(whole) && !fits(piece) { whole } else { piece };
        }
        if self.ops.outstanding() > 0 || handling_bytes == 0 {
            return whole;
        }
        let hops = self.way(host).map_or(1, |(_, hops)| hops);
        let piece = piece_bytes(len, hops, handling_bytes).min(whole);
        // All of it must fit the retained area if it is to be kept.
        if fits(piece) { piece } else { whole }
    }

    /// Copies a source into the retained area in pieces of `piece` bytes; gives the list of its
    /// chunks, first one first.
    fn keep<M: Memory>(&mut self, source: u64, len: usize, piece: usize, memory: &mut M) -> u32 {
        let size = self.chunk_bytes();
        let mut list = NONE;
        for index in (0..len.div_ceil(piece)).rev() {
            list = self.retained.take(list);
            let from = Span::Local(source + (index * piece) as u64);
            let to = Span::Retained(list as usize * size);
            let copied = memory.copy(from, to, piece.min(len - index * piece));
            debug_assert!(copied.is_ok(), "only symmetric ranges can be refused");
        }
        list
    }
}

fn read_inline<M: Memory>(source: u64, len: usize, memory: &mut M) -> [u64; 3] {
    let mut bytes = [0; INLINE_BYTES];
    let read = memory.read(Span::Local(source), &mut bytes[..len]);
    debug_assert!(read.is_ok(), "only symmetric ranges can be refused");
    words_of(&bytes)
}

fn split_slot(host: u16, stream: u32) -> usize {
    usize::from(host) * STREAM_SLOTS + stream_slot(stream)
}
