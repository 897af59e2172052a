// SPDX-License-Identifier: Apache-2.0
//! This process's card: its state, the socket by which it reaches those of others, and the thread that does its work.

use crate::completions::{Completions, Receives};
use crate::frame::{DATA, Frame, HEADER, Kind};
use crate::memory::Regions;
use crate::queue_pair::{Card, QueuePair};
use crate::random::Random;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::mem::{offset_of, zeroed};
use std::os::fd::RawFd;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

/// Bits of the number of a queue pair that tell it from others of its process; those above are the process's.
const INDEX_BITS: u32 = 12;
/// Frames that are taken in a turn.
const TAKEN: usize = 64;
/// Time after which frames that were not taken are sent again, nanoseconds.
const AGAIN_NS: u64 = 50_000;
/// Time after which the thread takes over from a program that does not poll, nanoseconds.
const POLLED_NS: u64 = 1_000_000;

/// See the module.
pub struct Fabric {
    socket: RawFd,
    /// An event descriptor that wakes the thread.
    wake: RawFd,
    process: u32,
    state: Mutex<State>,
}

/// All that there is of all devices of the process.
pub struct State {
    pub random: Random,
    pub regions: Regions,
    pub queue_pairs: BTreeMap<u32, QueuePair>,
    pub completions: BTreeMap<u32, Completions>,
    pub receives: BTreeMap<u32, Receives>,
    pub out: Outbox,
    /// Place for one that comes in.
    frame: Box<[u8]>,
    last: u32,
    /// When a thread of the program last did the card's work; 0 when it is about to sleep.
    polled: u64,
    /// When the thread goes on by itself; 0 while it runs.
    wakes_at: u64,
    /// Time until it has to.
    next: u64,
}

/// Frames that are to be sent, by process.
#[derive(Default)]
pub struct Outbox {
    queues: BTreeMap<u32, VecDeque<Vec<u8>>>,
}

impl Outbox {
    /// Sends a frame to the process of a queue pair, as soon as that takes it.
    pub fn push(&mut self, to: u32, frame: Vec<u8>) {
        self.queues.entry(to >> INDEX_BITS).or_default().push_back(frame);
    }

    /// Frames that wait for the process of a queue pair.
    pub fn backlog(&self, to: u32) -> usize {
        self.queues.get(&(to >> INDEX_BITS)).map_or(0, VecDeque::len)
    }

    /// Sends; gives the processes that are not there.
    fn flush(&mut self, socket: RawFd) -> Vec<u32> {
        let mut absent = vec![];
        for (process, queue) in &mut self.queues {
            let (address, len) = address(*process);
            while let Some(frame) = queue.front() {
                // SAFETY: frame and address are valid, and so long.
                let sent = unsafe {
                    let (frame, address) = (frame.as_ptr().cast(), (&raw const address).cast());
                    libc::sendto(socket, frame, queue[0].len(), libc::MSG_DONTWAIT, address, len)
                };
                let error = std::io::Error::last_os_error().raw_os_error();
                match (sent >= 0, error) {
                    (true, _) => _ = queue.pop_front(),
                    (false, Some(libc::ECONNREFUSED | libc::ENOENT)) => {
                        absent.push(*process);
                        queue.clear();
                    }
                    // It has no room.
                    _ => break,
                }
            }
        }
        self.queues.retain(|_, queue| !queue.is_empty());
        absent
    }
}

/// Time, in nanoseconds, from some time before anything else.
pub fn now() -> u64 {
    static BEGUN: OnceLock<Instant> = OnceLock::new();
    1_000_000_000 + BEGUN.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

/// Makes an event descriptor readable, once for each call.
pub fn signal(descriptor: RawFd) {
    let one = 1u64;
    // SAFETY: eight bytes; a descriptor that is closed is the caller's mistake.
    unsafe { libc::write(descriptor, (&raw const one).cast(), 8) };
}

/// Takes one such event.
pub fn take_event(descriptor: RawFd) -> bool {
    let mut count = 0u64;
    // SAFETY: eight bytes.
    unsafe { libc::read(descriptor, (&raw mut count).cast(), 8) == 8 }
}

/// The name of a process's socket. It goes with the process.
fn address(process: u32) -> (libc::sockaddr_un, libc::socklen_t) {
    // SAFETY: zeros are a valid address.
    let mut address: libc::sockaddr_un = unsafe { zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let name = format!("\0tombolo-ibverbs-{process}");
    for (to, from) in address.sun_path.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    (address, (offset_of!(libc::sockaddr_un, sun_path) + name.len()) as libc::socklen_t)
}

impl Fabric {
    /// This process's.
    pub fn get() -> &'static Fabric {
        static FABRIC: OnceLock<Fabric> = OnceLock::new();
        static THREAD: OnceLock<()> = OnceLock::new();
        let fabric = FABRIC.get_or_init(Fabric::new);
        THREAD.get_or_init(|| _ = std::thread::spawn(|| fabric.work()));
        fabric
    }

    fn new() -> Fabric {
        let seed = std::env::var("TOMBOLO_IBVERBS_SEED").ok().and_then(|text| text.parse().ok());
        // SAFETY: makes descriptors.
        let (socket, wake) = unsafe {
            let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
            let wake = libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK);
            (libc::socket(libc::AF_UNIX, kind, 0), wake)
        };
        let most = 1 << (24 - INDEX_BITS);
        let all = (0..most - 1).map(|at| 1 + (std::process::id() + at) % (most - 1));
        let process = all.into_iter().find(|process| {
            let (address, len) = address(*process);
            // SAFETY: the address is valid, and so long.
            unsafe { libc::bind(socket, (&raw const address).cast(), len) == 0 }
        });
        let process = process.expect("a socket for the card of this process");
        let state = State {
            random: Random::new(seed.unwrap_or(1)),
            regions: HashMap::new(),
            queue_pairs: BTreeMap::new(),
            completions: BTreeMap::new(),
            receives: BTreeMap::new(),
            out: Outbox::default(),
            frame: vec![0; HEADER + DATA].into(),
            last: 0,
            polled: 0,
            wakes_at: 0,
            next: u64::MAX,
        };
        Fabric { socket, wake, process, state: Mutex::new(state) }
    }

    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A number for something, which nothing else of this machine has now.
    pub fn number(&self, state: &mut State) -> u32 {
        const INDICES: u32 = (1 << INDEX_BITS) - 1;
        loop {
            state.last = (state.last + 1) & INDICES;
            let number = self.process << INDEX_BITS | state.last;
            let used = state.queue_pairs.contains_key(&number)
                || state.completions.contains_key(&number)
                || state.receives.contains_key(&number)
                || state.regions.contains_key(&number);
            if !used {
                return number;
            }
        }
    }

    /// Has the thread go on by `time` at the latest.
    pub fn wake_by(&self, state: &mut State, time: u64) {
        state.next = state.next.min(time);
        if state.wakes_at > time.max(state.polled.saturating_add(POLLED_NS)) {
            state.wakes_at = 0;
            signal(self.wake);
        }
    }

    /// Does something with a queue pair, beside the thread's work.
    pub fn with_card(
        &self,
        state: &mut State,
        number: u32,
        act: impl FnOnce(&mut QueuePair, &mut Card<'_>),
    ) {
        let State { random, regions, queue_pairs, completions, receives, out, .. } = state;
        let mut next = u64::MAX;
        let (now, next) = (now(), &mut next);
        let mut card = Card { now, random, regions, completions, receives, out, next };
        if let Some(queue_pair) = queue_pairs.get_mut(&number) {
            act(queue_pair, &mut card);
        }
        // What that has changed has a time of its own.
        self.wake_by(state, now);
    }

    fn work(&self) {
        // SAFETY: signals are for the program's own threads.
        unsafe {
            let mut all = zeroed();
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, std::ptr::null_mut());
        }
        loop {
            let (timeout, is_idle) = {
                let mut state = self.lock();
                let left_alone = state.polled.saturating_add(POLLED_NS);
                let time = now();
                if left_alone > time {
                    state.wakes_at = left_alone;
                    (left_alone - time, false)
                } else {
                    state.wakes_at = 0;
                    self.turn(&mut state);
                    state.wakes_at = state.next;
                    (state.next.saturating_sub(now()).min(1_000_000_000), true)
                }
            };
            let timeout =
                libc::timespec { tv_sec: 0, tv_nsec: timeout.min(999_999_999) as libc::c_long };
            let mut descriptors = [self.socket, self.wake].map(|fd| libc::pollfd {
                fd,
                events: libc::POLLIN,
                revents: 0,
            });
            // Nothing that comes matters while a thread of the program takes it.
            let awaited = &mut descriptors[usize::from(!is_idle)..];
            // SAFETY: descriptors and a time.
            unsafe {
                let (first, count) = (awaited.as_mut_ptr(), awaited.len() as libc::nfds_t);
                libc::ppoll(first, count, &raw const timeout, std::ptr::null());
            }
            take_event(self.wake);
        }
    }

    /// A thread of the program does the card's work.
    pub fn poll(&self, state: &mut State) {
        state.polled = now();
        self.turn(state);
    }

    /// No thread of the program does from now on.
    pub fn leave(&self, state: &mut State) {
        state.polled = 0;
        self.wake_by(state, 0);
    }

    /// Does all that it is time for.
    pub fn turn(&self, state: &mut State) {
        let time = now();
        let State { random, regions, queue_pairs, completions, receives, out, frame, .. } = state;
        let mut next = u64::MAX;
        let mut card =
            Card { now: time, random, regions, completions, receives, out, next: &mut next };
        let mut taken = 0;
        while taken < TAKEN {
            // SAFETY: so many bytes.
            let len = unsafe {
                let flags = libc::MSG_DONTWAIT;
                libc::recv(self.socket, frame.as_mut_ptr().cast(), frame.len(), flags)
            };
            let Ok(len) = usize::try_from(len) else { break };
            taken += 1;
            if let Some((header, data)) = Frame::decode(&frame[..len]) {
                hear(&mut card, queue_pairs, &header, data);
            }
        }
        if taken == TAKEN {
            card.wake_at(time);
        }
        for queue_pair in queue_pairs.values_mut() {
            queue_pair.respond(&mut card);
            queue_pair.advance(&mut card);
        }
        for process in card.out.flush(self.socket) {
            let of = |qp: &&mut QueuePair| qp.is_connected && qp.peer >> INDEX_BITS == process;
            queue_pairs.values_mut().filter(of).for_each(|qp| qp.hear(false, time));
        }
        if !card.out.queues.is_empty() {
            card.wake_at(time + AGAIN_NS);
        }
        for queue in completions.values_mut() {
            next = next.min(queue.advance(time).unwrap_or(u64::MAX));
        }
        state.next = next;
        self.wake_by(state, next);
    }
}

/// A frame has come.
fn hear(
    card: &mut Card<'_>,
    queue_pairs: &mut BTreeMap<u32, QueuePair>,
    frame: &Frame,
    data: &[u8],
) {
    let of_network = |qp: &&mut QueuePair| qp.model.network == frame.network;
    let own = queue_pairs.get_mut(&frame.to).filter(of_network);
    let from_peer = |qp: &QueuePair| qp.is_connected && qp.peer == frame.from;
    match (frame.kind, own) {
        (Kind::Request, Some(qp)) if from_peer(qp) && qp.can_receive() => {
            qp.responder.take(card, frame, data);
        }
        (Kind::Response, Some(qp)) if from_peer(qp) => qp.answered(card, frame, data),
        (Kind::Here | Kind::Gone, Some(qp)) if from_peer(qp) => {
            qp.hear(frame.kind == Kind::Here, card.now);
        }
        (Kind::Datagram, Some(qp)) if !qp.is_connected => qp.take_datagram(card, frame, data),
        (Kind::Probe, own) => {
            let is_here = own.is_some_and(|qp| from_peer(qp) && qp.can_receive());
            let kind = if is_here { Kind::Here } else { Kind::Gone };
            let answer = Frame::new(kind, frame.network, frame.from, frame.to);
            card.out.push(frame.from, answer.encode(&[]));
        }
        _ => {}
    }
}
