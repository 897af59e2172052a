// SPDX-License-Identifier: Apache-2.0
//! Everything one PE has under way over its endpoint. One thread at a time works on it.
//!
//! - Long puts and gets are RMA writes and reads ([`rma`]); a write completes when it can be read at
//!   the target. AMOs of a device are RMA as well.
//! - Words, short puts and gets, and AMOs are records in messages ([`batch`]), which the target's processor
//!   carries out ([`serve`]), so that words arrive whole and AMOs are atomic with those of its CPU.
//!   They are answered at once where somebody waits for that ([`delayed`]).
//! - Every operation has a place in a pool from which its context comes, and a completion, good or bad, finds
//!   its stream through its context. Nothing is allocated while the program runs, but for requests that come
//!   while no answer can leave, and copies of long sources that cannot be registered.

mod batch;
mod delayed;
mod past;
mod peer;
mod rma;
mod serve;

use super::message::{Header, Kind, MESSAGE};
use super::{Completion, Event, Failure, Network, Shared, Words};
use batch::Batch;
use past::Past;
use peer::Peer;
use rma::Rma;
use std::collections::VecDeque;
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tombolo_core::board::monotonic_ns;
use tombolo_core::registration::{Cache, Slab};
use tombolo_core::transport::{Blocks, Remote, SegmentKind, Status, Stream};

pub use peer::{Lost, TheirSegment, Theirs};

/// RMA operations under way.
pub(crate) const RMAS: usize = 512;
/// Requests being filled or under way.
pub(crate) const BATCHES: usize = 128;
/// Answers on their way out.
const ANSWERS: usize = 64;
/// Buffers for messages that come in.
const RECEIVES: usize = 64;
/// Most completions there can be at a time.
pub const ENTRIES: usize = RMAS + BATCHES + ANSWERS + RECEIVES;
/// Bytes of a buffer into which the source of a blocking put is copied.
pub const CHUNK: usize = 64 << 10;
/// Number of these buffers.
pub(crate) const CHUNKS: usize = 32;
/// Buffers for messages.
const MESSAGES: usize = BATCHES + ANSWERS + RECEIVES;
/// Where the words of AMOs begin among the buffers, and the bytes of each.
const WORDS_AT: usize = CHUNKS * CHUNK;
const WORDS: usize = Words::<()>::SIZE.next_power_of_two();
/// Where messages begin among the buffers.
const MESSAGES_AT: usize = WORDS_AT + RMAS * WORDS;
/// Polls between looks at the clock.
const POLLS: u32 = 64;

/// What a context points to: some networks, such as those of libfabric, write there.
pub type Context = [u64; 8];

/// A segment of this PE.
#[derive(Clone, Copy)]
pub struct Own<K> {
    /// Where it lies.
    pub base: *mut u8,
    /// Its length in bytes; 0 if there is none.
    pub len: usize,
    /// Its registration.
    pub shared: Shared<K>,
}

/// What was done, for people.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counters {
    /// RMA writes and reads that completed.
    pub rma: u64,
    /// Requests that were answered, and the operations in them.
    pub requests: u64,
    /// See `requests`.
    pub records: u64,
    /// Requests of others that were carried out.
    pub served: u64,
    /// Answers that were sent by themselves.
    pub answers: u64,
    /// Messages without the token or form of this job.
    pub strangers: u64,
}

impl Counters {
    /// A line for people.
    pub fn describe(&self) -> String {
        format!(
            "{} RMA operations, {} operations in {} requests; {} requests of others served with \
             {} answers, {} messages of strangers dropped",
            self.rma, self.records, self.requests, self.served, self.answers, self.strangers
        )
    }
}

/// See the module.
pub struct Engine<N: Network> {
    /// First, so that it is closed before the memory goes that it uses.
    pub(crate) net: N,
    /// Private buffers that are registered.
    pub(crate) cache: Cache<N::Key>,
    me: u32,
    token: u64,
    /// Bytes of the longest message.
    message: usize,
    /// The same of several operations, and of answers.
    shared_message: usize,
    own: [Own<N::Key>; SegmentKind::ALL.len()],
    pub(crate) peers: Box<[Peer]>,
    /// Peers to which something was sent, or from which something came.
    used: Vec<u32>,
    /// Peers with a request that the endpoint did not take.
    unsent: Vec<u32>,
    /// Peers that delay answers.
    delaying: Vec<u32>,
    waits: delayed::Waits,
    contexts: Box<[Context]>,
    slab: Slab,
    key: N::Key,
    rmas: Box<[Rma<N::Key>]>,
    pub(crate) free_rmas: Vec<u16>,
    pub(crate) free_chunks: Vec<u16>,
    batches: Box<[Batch]>,
    pub(crate) free_batches: Vec<u16>,
    answers: Box<[serve::Answer]>,
    free_answers: Vec<u16>,
    unsent_answers: VecDeque<u16>,
    /// Copies of requests that wait for a free answer: so there are always buffers for what comes in, and answers
    /// are taken, after which peers go on. Of each peer there are as many as it may send before it is answered, and
    /// those that it sends again.
    unserved: VecDeque<Box<[u8]>>,
    /// Buffers that could not be posted again.
    unposted: Vec<u16>,
    /// Signals whose data have arrived.
    due: VecDeque<rma::Due>,
    lost: Arc<Lost>,
    /// What peers have requested, where they may request it again.
    past: Option<Past>,
    polls: u32,
    pub(crate) looked_ns: u64,
    /// How long a peer may be silent while something waits for it.
    silence_ns: u64,
    /// Time in which this process ran, nanoseconds: a process that was stopped finds nobody lost.
    pub(crate) clock: u64,
    counters: Counters,
}

// SAFETY: the pointers lead to memory that lives as long as the engine or, by the contract of the
// endpoints, as long as the operation that uses it.
unsafe impl<N: Network> Send for Engine<N> {}

/// What a context belongs to.
enum Owner {
    Rma(usize),
    Batch(usize),
    Answer(usize),
    Receive(usize),
}

impl<N: Network> Engine<N> {
    /// Takes over an endpoint. `own` are registered with it, and stay valid until the engine goes. A peer may be silent for
    /// `silence`, a second at least, while something waits for it.
    pub fn new(
        mut net: N,
        me: usize,
        token: u64,
        own: [Own<N::Key>; SegmentKind::ALL.len()],
        lost: Arc<Lost>,
        silence: Duration,
    ) -> Result<Engine<N>, String> {
        let message = net.message_max();
        let shared_message = message.min(MESSAGE);
        let buffers = MESSAGES_AT + MESSAGES * message;
        let slab = Slab::new(buffers);
        let needed = net.needs_local_registration();
        let key = match needed {
            // SAFETY: the slab lives longer than the network, by the order of the fields.
            true => unsafe { net.register(slab.base(), buffers) }?,
            false => N::Key::default(),
        };
        // What needs no registration needs nobody who watches memory.
        let cache = if needed { Cache::new() } else { Cache::idle() };
        let mut engine = Engine {
            net,
            cache,
            me: me as u32,
            token,
            message,
            shared_message,
            own,
            peers: Box::default(),
            used: Vec::new(),
            unsent: Vec::new(),
            delaying: Vec::new(),
            waits: delayed::Waits::new(),
            contexts: vec![Context::default(); ENTRIES].into(),
            slab,
            key,
            rmas: std::iter::repeat_with(Rma::default).take(RMAS).collect(),
            free_rmas: (0..RMAS as u16).rev().collect(),
            free_chunks: (0..CHUNKS as u16).rev().collect(),
            batches: std::iter::repeat_with(|| Batch::new(shared_message)).take(BATCHES).collect(),
            free_batches: (0..BATCHES as u16).rev().collect(),
            answers: vec![serve::Answer::default(); ANSWERS].into(),
            free_answers: (0..ANSWERS as u16).rev().collect(),
            unsent_answers: VecDeque::with_capacity(ANSWERS),
            unserved: VecDeque::new(),
            unposted: Vec::with_capacity(RECEIVES),
            due: VecDeque::with_capacity(RMAS),
            lost,
            past: None,
            polls: 0,
            looked_ns: monotonic_ns(),
            silence_ns: silence.max(Duration::from_secs(1)).as_nanos().min(u64::MAX.into()) as u64,
            clock: 0,
            counters: Counters::default(),
        };
        (0..RECEIVES).for_each(|index| engine.post_receive(index));
        match engine.unposted.len() {
            0 => Ok(engine),
            n => Err(format!("{n} of {RECEIVES} buffers for messages are not taken")),
        }
    }

    /// Enters the peers, by PE; none where one is not reached. Nothing is sent.
    pub fn meet(&mut self, peers: Vec<Option<Theirs>>) {
        self.used = Vec::with_capacity(peers.len());
        self.unsent = Vec::with_capacity(peers.len());
        self.delaying = Vec::with_capacity(peers.len());
        self.past = self.net.repeats().then(|| Past::new(peers.len(), self.shared_message));
        self.peers = peers.into_iter().map(Peer::new).collect();
    }

    /// Enters a peer's address; sends nothing.
    pub fn insert(&mut self, name: &[u8]) -> Result<u64, String> {
        self.net.insert(name)
    }

    /// See [`Network::introduce`].
    pub fn introduce(&mut self, peer: u64, host: &str) {
        self.net.introduce(peer, host);
    }

    /// What was done so far.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// See [`Network::may_sleep`].
    pub fn may_sleep(&mut self) -> bool {
        self.net.may_sleep()
    }

    fn context(&mut self, owner: Owner) -> *mut c_void {
        let index = match owner {
            Owner::Rma(index) => index,
            Owner::Batch(index) => RMAS + index,
            Owner::Answer(index) => RMAS + BATCHES + index,
            Owner::Receive(index) => RMAS + BATCHES + ANSWERS + index,
        };
        (&raw mut self.contexts[index]).cast()
    }

    fn owner(&self, context: *mut c_void) -> Option<Owner> {
        let bytes = (context as usize).checked_sub(self.contexts.as_ptr() as usize)?;
        let index = bytes / size_of::<Context>();
        Some(match index {
            0..RMAS => Owner::Rma(index),
            _ if index < RMAS + BATCHES => Owner::Batch(index - RMAS),
            _ if index < RMAS + BATCHES + ANSWERS => Owner::Answer(index - RMAS - BATCHES),
            _ if index < ENTRIES => Owner::Receive(index - RMAS - BATCHES - ANSWERS),
            _ => return None,
        })
    }

    /// The buffer of a message.
    fn buffer(&self, owner: &Owner) -> *mut u8 {
        let index = match *owner {
            Owner::Batch(index) => index,
            Owner::Answer(index) => BATCHES + index,
            Owner::Receive(index) => BATCHES + ANSWERS + index,
            Owner::Rma(_) => unreachable!("RMA operations have chunks"),
        };
        self.slab.at(MESSAGES_AT + index * self.message)
    }

    /// The words of an AMO.
    fn words(&self, index: u16) -> *mut u64 {
        self.slab.at(WORDS_AT + usize::from(index) * WORDS).cast()
    }

    fn chunk(&self, index: u16) -> *mut u8 {
        self.slab.at(usize::from(index) * CHUNK)
    }

    /// Takes completions and carries out what came in; says whether there was anything.
    pub fn progress(&mut self) -> bool {
        let mut busy = false;
        // What one round brings may make room for the next; but others wait for the lock.
        for _ in 0..4 {
            let mut taken = [Completion::NONE; 16];
            match self.net.poll(&mut taken) {
                Ok(count) => {
                    taken.iter().take(count).for_each(|one| self.take(*one));
                    busy |= count > 0;
                    // Another look at a queue that was not full takes as long as the first one.
                    if count < taken.len() {
                        break;
                    }
                }
                Err(failure) => {
                    self.take_failure(failure);
                    busy = true;
                }
            }
        }
        while let Some(event) = self.net.event() {
            self.take_event(event);
            busy = true;
        }
        if busy || self.has_leftovers() {
            self.retry();
        }
        self.polls += 1;
        if self.polls >= POLLS || !busy {
            self.polls = 0;
            self.look_at_clock();
        }
        busy
    }

    fn take(&mut self, Completion { context, len }: Completion) {
        match self.owner(context) {
            Some(Owner::Rma(index)) => self.rma_done(index, Ok(())),
            Some(Owner::Batch(index)) => self.batch_sent(index),
            Some(Owner::Answer(index)) => self.free_answers.push(index as u16),
            Some(Owner::Receive(index)) => self.take_message(index, len),
            None => self.counters.strangers += 1,
        }
    }

    #[cold]
    fn take_event(&mut self, event: Event) {
        let (Event::Moved(address) | Event::Alive(address) | Event::Lost(address, _)) = &event;
        let of = |peer: &Peer| peer.theirs.address == *address;
        let Some(pe) = self.peers.iter().position(of).map(|pe| pe as u32) else { return };
        match event {
            Event::Moved(_) => self.begin_again(pe),
            Event::Alive(_) => self.hear(pe),
            Event::Lost(_, why) => self.lose(pe, &why),
        }
    }

    #[cold]
    fn take_failure(&mut self, failure: Failure) {
        let Failure { context, why, .. } = &failure;
        match self.owner(*context) {
            Some(Owner::Rma(index)) => self.rma_done(index, Err(failure)),
            Some(Owner::Batch(index)) => {
                let pe = self.batches[index].pe;
                self.lose(pe, why);
                self.batch_sent(index);
            }
            Some(Owner::Answer(index)) => {
                let pe = self.answers[index].pe;
                self.free_answers.push(index as u16);
                self.lose(pe, why);
            }
            Some(Owner::Receive(index)) => {
                tracing::debug!("a message was not received: {why}");
                self.post_receive(index);
            }
            None => tracing::debug!("{why}"),
        }
    }

    fn has_leftovers(&self) -> bool {
        !(self.unsent.is_empty()
            && self.unsent_answers.is_empty()
            && self.unserved.is_empty()
            && self.unposted.is_empty()
            && self.due.is_empty())
    }

    /// Tries again what there was no room for.
    fn retry(&mut self) {
        for _ in 0..self.unposted.len() {
            let index = self.unposted.swap_remove(0);
            self.post_receive(index.into());
        }
        for _ in 0..self.unsent_answers.len() {
            // One that does not get through goes to the end: it must not hold up those to others.
            if let Some(index) = self.unsent_answers.pop_front() {
                self.send_answer(index.into());
            }
        }
        while !self.free_answers.is_empty() {
            let Some(request) = self.unserved.pop_front() else { break };
            self.serve(&request);
        }
        self.signal_due();
        for at in (0..self.unsent.len()).rev() {
            let pe = self.unsent[at];
            self.peers[pe as usize].is_unsent = false;
            self.unsent.swap_remove(at);
            self.flush(pe);
        }
    }

    fn take_message(&mut self, index: usize, len: usize) {
        let buffer = self.buffer(&Owner::Receive(index));
        // SAFETY: the buffer belongs to this PE from the completion on until it is posted again.
        let message = unsafe { std::slice::from_raw_parts(buffer, len.min(self.message)) };
        let header = Header::decode(message)
            .filter(|header| header.token == self.token && (header.pe as usize) < self.peers.len());
        let Some(header) = header else {
            self.counters.strangers += 1;
            return self.post_receive(index);
        };
        if self.peers[header.pe as usize].is_lost {
            // It ran on after it was given up. What it asks for is not done: others go on without it.
            return self.post_receive(index);
        }
        self.hear(header.pe);
        if header.held > 0 && header.kind != Kind::Answer {
            self.take_held(header.pe, header.answered, header.held);
        }
        match header.kind {
            Kind::Request | Kind::Urgent
                if self.free_answers.is_empty() || !self.unserved.is_empty() =>
            {
                self.unserved.push_back(message.into());
            }
            Kind::Request | Kind::Urgent => self.serve(message),
            Kind::Answer => self.take_answer(&header, message),
        }
        self.post_receive(index);
    }

    fn post_receive(&mut self, index: usize) {
        let buffer = self.buffer(&Owner::Receive(index));
        let (key, context) = (self.key, self.context(Owner::Receive(index)));
        // SAFETY: buffer and context are the engine's, and used for nothing else until then.
        if unsafe { self.net.receive(buffer, self.message, key, context) } != 0 {
            self.unposted.push(index as u16);
        }
    }

    /// Whether a range lies inside a segment of a peer that is reached.
    fn holds(&self, pe: u32, remote: Remote, len: usize) -> bool {
        remote.fits(len, self.peers[pe as usize].theirs.segments[remote.segment as usize].len)
    }

    /// The same of blocks.
    fn holds_blocks(&self, pe: u32, blocks: &Blocks) -> bool {
        blocks.fit(self.peers[pe as usize].theirs.segments[blocks.at.segment as usize].len)
    }
}

/// Counts operations that were accepted.
fn count_issued(stream: &Stream, count: u64) {
    if stream.exclusive {
        let issued = stream.issued.load(Ordering::Relaxed);
        stream.issued.store(issued + count, Ordering::Relaxed);
    } else {
        stream.issued.fetch_add(count, Ordering::Relaxed);
    }
}

/// What a result of posting means to the caller of an operation on a peer.
fn accepted(result: isize) -> Option<Status> {
    match result {
        0 => Some(Status::Pending),
        error if error == -(libc::EAGAIN as isize) => Some(Status::Again),
        _ => None,
    }
}
