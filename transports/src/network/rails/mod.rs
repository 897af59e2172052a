// SPDX-License-Identifier: Apache-2.0
//! One or several networks of one kind as one: of several each carries a part of long transfers, and one
//! goes on without another ([`loss`]).
//!
//! - A rail of a PE talks to the rail at the same place in the other PE's list.
//! - Messages, short transfers and AMOs of the network take the first rail that is not given up; a long
//!   transfer takes the one with the fewest bytes under way to this peer.
//! - Nothing orders what takes different rails, so that a network of several keeps no order of writes.
//! - Where there is one rail, everything goes straight to it.

mod loss;
mod name;
mod ops;
#[cfg(test)]
mod tests;
mod way;
mod words;

use super::message::SHORT_MESSAGE;
use super::{
    Atomics, Completion, Event, Failure, Local, Network, RemoteAddress, Shared, Words, open,
};
use name::{Keys, Name};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use ops::{Kind, Op, Ops};
use std::collections::VecDeque;
use std::ffi::c_void;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::ptr::null_mut;
use tombolo_core::registration::Device;
use tombolo_core::transport::Amo;
use way::Peer;

/// Rails at most.
const MOST: usize = 4;
/// Shortest transfer that is long.
const LONG: usize = 32 << 10;
/// Longest transfer where there are several rails: so that one of a megabyte keeps all of them busy.
const PIECE: usize = 256 << 10;
/// Bytes of long transfers under way to a peer by one rail: enough to keep it busy, and not so many that a
/// sign of life waits long behind them.
const UNDER_WAY: usize = 4 << 20;

/// A network that may be one of several.
pub trait Rail: Network {
    /// Whether another one takes and does the same.
    fn is_like(&self, other: &Self) -> bool;

    /// Longest transfer.
    fn max_len(&self) -> usize;

    /// Becomes readable when there is something to do, after [`Network::may_sleep`].
    fn wait_fd(&self) -> Option<RawFd>;

    /// Whether [`Network::remove`] closes the connection with a peer at once: nothing that the peer has
    /// sent by it arrives afterwards.
    fn closes(&self) -> bool;
}

/// See the module.
pub struct Rails<R: Rail> {
    rails: Vec<R>,
    /// For people, by rail.
    labels: Vec<String>,
    /// A rail that fails is given up, and others carry on.
    survives: bool,
    /// Longest message that all of them copy.
    inject_max: usize,
    /// A number that strangers do not know.
    id: u64,
    /// Keys of this PE's shared memory.
    shared: Vec<Keys>,
    peers: Vec<Peer>,
    ops: Ops<R::Key>,
    /// Places of operations to be repeated.
    again: VecDeque<u16>,
    /// Buffers posted for messages, by rail.
    receives: [usize; MOST],
    /// Places of receives that a rail did not take back.
    unposted: Vec<u16>,
    /// Peers to whom something is to be said.
    listed: Vec<u32>,
    done: VecDeque<Completion>,
    failed: VecDeque<Failure>,
    events: VecDeque<Event>,
    /// Hosts and rails of which people were told.
    told: Vec<(String, usize)>,
    /// Which of rails that are alike is next, and which is polled first.
    turn: usize,
    poll_from: usize,
    polls: u32,
    /// Readable when a descriptor of a rail is; none where one rail has none.
    wait: Option<Wait>,
}

// SAFETY: the pointers lead to memory that lives as long as the rails or, by the contract of networks, as
// long as the operation that uses it.
unsafe impl<R: Rail> Send for Rails<R> {}

enum Wait {
    One(RawFd),
    All(Epoll),
}

impl<R: Rail> Rails<R> {
    /// Registers memory with each rail, or with none.
    fn on_all(
        &mut self,
        mut register: impl FnMut(&mut R) -> Result<R::Key, String>,
    ) -> Result<Key<R>, String> {
        let mut key = Key::<R>::default();
        for index in 0..self.rails.len() {
            match register(&mut self.rails[index]) {
                Ok(registered) => key[index] = registered,
                Err(why) => {
                    let done = self.rails[..index].iter_mut().zip(key);
                    done.for_each(|(rail, key)| rail.unregister(key));
                    return Err(why);
                }
            }
        }
        Ok(key)
    }

    /// One network of one or several, with what people call each.
    pub fn new(rails: Vec<R>, labels: Vec<String>) -> Result<Rails<R>, String> {
        let [first, others @ ..] = rails.as_slice() else { return Err("no interface".into()) };
        if others.len() >= MOST {
            return Err(format!("at most {MOST} interfaces are used at a time"));
        }
        if others.iter().any(|other| !other.is_like(first)) {
            return Err("the interfaces differ in what they can do".into());
        }
        let several = !others.is_empty();
        let inject_max = rails.iter().map(Network::inject_max).min().unwrap_or(0);
        let wait = wait_for(&rails);
        Ok(Rails {
            survives: several && rails.iter().all(Rail::closes) && inject_max >= words::WORDS,
            inject_max,
            id: open::random()?,
            ops: Ops::new(if several { rails.len() } else { 0 }),
            rails,
            labels,
            shared: vec![],
            peers: vec![],
            again: VecDeque::new(),
            receives: [0; MOST],
            unposted: vec![],
            listed: vec![],
            done: VecDeque::new(),
            failed: VecDeque::new(),
            events: VecDeque::new(),
            told: vec![],
            turn: 0,
            poll_from: 0,
            polls: 0,
            wait,
        })
    }

    /// Whether there are several.
    pub fn are_several(&self) -> bool {
        self.rails.len() > 1
    }

    /// A line for people, where there are several.
    pub fn describe(&self) -> Option<String> {
        let line = match self.survives {
            true => "an interface that fails is given up, and the others carry on",
            false => "a host that one of these interfaces does not reach any more is lost",
        };
        self.are_several().then(|| line.into())
    }

    /// Longest transfer.
    pub fn max_len(&self) -> usize {
        let longest = self.rails.iter().map(Rail::max_len).min().unwrap_or(0);
        if self.are_several() { longest.min(PIECE) } else { longest }
    }

    /// What to sleep on; see `may_sleep`.
    pub fn wait_fd(&self) -> Option<RawFd> {
        self.wait.as_ref().map(|wait| match wait {
            Wait::One(fd) => *fd,
            Wait::All(epoll) => epoll.0.as_raw_fd(),
        })
    }

    /// The rail for a transfer, or why there is none now.
    fn choose(&mut self, peer: u64, len: usize) -> Result<usize, isize> {
        let to = self.peers.get(peer as usize).ok_or(NOBODY)?;
        if len < LONG {
            return to.first().ok_or(UNREACHABLE);
        }
        self.turn = self.turn.wrapping_add(1);
        let least =
            |rail: &usize| (to.ways[*rail].under_way, rail.wrapping_add(self.turn) % to.ways.len());
        let rail = to.open().min_by_key(least).ok_or(UNREACHABLE)?;
        let under_way = to.ways[rail].under_way;
        if under_way == 0 || under_way + len <= UNDER_WAY { Ok(rail) } else { Err(LATER) }
    }

    /// Posts an operation on a peer by one of several rails. `post` gets the rail, the peer's address there
    /// and the context; the operation says which rail.
    fn post(
        &mut self,
        op: Op<R::Key>,
        post: impl FnOnce(&mut R, u64, *mut c_void) -> isize,
    ) -> isize {
        let (peer, rail) = (u64::from(op.peer), usize::from(op.rail));
        let Some((index, context)) = self.ops.enter(op) else { return LATER };
        let to = &mut self.peers[peer as usize];
        let way = &mut to.ways[rail];
        (to.is_used, way.is_used) = (true, true);
        let result = post(&mut self.rails[rail], way.address, context);
        if result == 0 {
            if op.is_repeatable() {
                way.under_way += op.local.len;
            }
            return 0;
        }
        self.ops.leave(index);
        self.refused(peer, rail, result)
    }

    /// Posts a read or a write.
    ///
    /// # Safety
    /// Buffer and context are valid until the completion.
    unsafe fn transfer(&mut self, op: Op<R::Key>) -> isize {
        let rail = match self.choose(op.peer.into(), op.local.len) {
            Ok(rail) => rail,
            Err(why) => return why,
        };
        let Some(keys) = self.peers[op.peer as usize].keys(op.remote.key) else { return NOBODY };
        let remote = RemoteAddress { key: keys[rail], ..op.remote };
        let local = Local { at: op.local.at, len: op.local.len, key: op.local.key[rail] };
        self.post(Op { rail: rail as u8, ..op }, |net, to, context| {
            // SAFETY: by the caller's word; the context is the rails' own.
            unsafe {
                match op.kind {
                    Kind::Read => net.read(to, local, remote, context),
                    _ => net.write(to, local, remote, context),
                }
            }
        })
    }

    /// The rail for a message, or why there is none now.
    fn first(&self, peer: u64) -> Result<usize, isize> {
        let to = self.peers.get(peer as usize).ok_or(NOBODY)?;
        if to.is_moving { Err(LATER) } else { to.first().ok_or(UNREACHABLE) }
    }

    /// An operation that is about to be posted.
    fn op(&self, kind: Kind, rail: usize, peer: u64, context: *mut c_void) -> Op<R::Key> {
        Op {
            kind,
            state: ops::State::Posted,
            rail: rail as u8,
            peer: peer as u32,
            context,
            local: Local { at: null_mut(), len: 0, key: Key::<R>::default() },
            remote: RemoteAddress { address: 0, key: 0 },
        }
    }
}

fn wait_for<R: Rail>(rails: &[R]) -> Option<Wait> {
    if let [only] = rails {
        return only.wait_fd().map(Wait::One);
    }
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).ok()?;
    for rail in rails {
        // SAFETY: the descriptor is the rail's, which is open as long as this is.
        let fd = unsafe { BorrowedFd::borrow_raw(rail.wait_fd()?) };
        epoll.add(fd, EpollEvent::new(EpollFlags::EPOLLIN, 0)).ok()?;
    }
    Some(Wait::All(epoll))
}

/// A registration, by rail.
type Key<R> = [<R as Device>::Key; MOST];

/// There is no such peer.
const NOBODY: isize = -(libc::EINVAL as isize);
/// All rails to it were given up.
const UNREACHABLE: isize = -(libc::EHOSTUNREACH as isize);
/// There is no room now.
const LATER: isize = -(libc::EAGAIN as isize);

impl<R: Rail> Device for Rails<R> {
    type Key = Key<R>;

    unsafe fn register(&mut self, at: *mut u8, len: usize) -> Result<Key<R>, String> {
        // SAFETY: by the caller's word.
        self.on_all(|rail| unsafe { rail.register(at, len) })
    }

    unsafe fn register_source(&mut self, at: *mut u8, len: usize) -> Result<Key<R>, String> {
        // SAFETY: by the caller's word.
        self.on_all(|rail| unsafe { rail.register_source(at, len) })
    }

    fn unregister(&mut self, key: Key<R>) {
        for (rail, key) in self.rails.iter_mut().zip(key) {
            rail.unregister(key);
        }
    }
}

impl<R: Rail> Network for Rails<R> {
    fn is_ordered(&self) -> bool {
        !self.are_several() && self.rails[0].is_ordered()
    }

    fn needs_local_registration(&self) -> bool {
        self.rails[0].needs_local_registration()
    }

    fn inject_max(&self) -> usize {
        self.inject_max
    }

    fn message_max(&self) -> usize {
        self.rails.iter().map(Network::message_max).min().unwrap_or(SHORT_MESSAGE)
    }

    fn inline_max(&self) -> usize {
        // What may have to be repeated keeps its source until it is complete.
        if self.are_several() { 0 } else { self.rails[0].inline_max() }
    }

    fn under_way_max(&self) -> usize {
        // Several have a limit for each.
        if self.are_several() { usize::MAX } else { self.rails[0].under_way_max() }
    }

    unsafe fn share(
        &mut self,
        at: *mut u8,
        len: usize,
        key: u64,
    ) -> Result<Shared<Key<R>>, String> {
        let mut all = Shared { local: Key::<R>::default(), key: 0, base: 0 };
        let mut keys = [0; MOST];
        for (index, rail) in self.rails.iter_mut().enumerate() {
            // SAFETY: by the caller's word.
            let shared = unsafe { rail.share(at, len, key) }?;
            (all.local[index], keys[index]) = (shared.local, shared.key);
            // The same on all rails, which are alike.
            all.base = shared.base;
        }
        all.key = keys[0];
        self.shared.push(keys);
        Ok(all)
    }

    fn name(&self) -> Result<Vec<u8>, String> {
        let rails = self.rails.iter().map(Network::name).collect::<Result<Vec<_>, _>>()?;
        let name = Name { rails, id: self.id, keys: self.shared.clone() }.encode();
        match name.len() {
            ..=255 => Ok(name),
            _ => Err("the addresses of so many interfaces are too long".into()),
        }
    }

    fn insert(&mut self, name: &[u8]) -> Result<u64, String> {
        let name = Name::decode(name).ok_or("its address cannot be read")?;
        if !self.are_several() {
            return self.rails[0].insert(name.rails.first().ok_or("it has no address")?);
        }
        let rails = self.rails.iter_mut().zip(&name.rails);
        let addresses = rails.map(|(rail, name)| rail.insert(name)).collect::<Result<_, _>>()?;
        self.peers.push(Peer::new(name, addresses));
        Ok(self.peers.len() as u64 - 1)
    }

    fn introduce(&mut self, peer: u64, host: &str) {
        if let Some(peer) = self.peers.get_mut(peer as usize) {
            peer.host = Some(host.to_owned());
        }
    }

    fn remove(&mut self, peer: u64) {
        match self.are_several() {
            true => self.forget(peer),
            false => self.rails[0].remove(peer),
        }
    }

    unsafe fn receive(
        &mut self,
        buffer: *mut u8,
        len: usize,
        key: Key<R>,
        context: *mut c_void,
    ) -> isize {
        if !self.are_several() {
            // SAFETY: by the caller's word.
            return unsafe { self.rails[0].receive(buffer, len, key[0], context) };
        }
        let least = (0..self.rails.len()).min_by_key(|rail| self.receives[*rail]);
        let op = self.op(Kind::Receive, least.unwrap_or(0), 0, context);
        let op = Op { local: Local { at: buffer, len, key }, ..op };
        let Some((index, _)) = self.ops.enter(op) else { return LATER };
        let result = self.post_receive(index);
        if result != 0 {
            self.ops.leave(index);
        }
        result
    }

    unsafe fn send(
        &mut self,
        to: u64,
        buffer: *const u8,
        len: usize,
        key: Key<R>,
        context: *mut c_void,
    ) -> isize {
        if !self.are_several() {
            // SAFETY: by the caller's word.
            return unsafe { self.rails[0].send(to, buffer, len, key[0], context) };
        }
        let rail = match self.first(to) {
            Ok(rail) => rail,
            Err(why) => return why,
        };
        self.post(self.op(Kind::Send, rail, to, context), |net, to, context| {
            // SAFETY: by the caller's word; the context is the rails' own.
            unsafe { net.send(to, buffer, len, key[rail], context) }
        })
    }

    fn inject(&mut self, to: u64, message: &[u8]) -> isize {
        if !self.are_several() {
            return self.rails[0].inject(to, message);
        }
        match self.first(to) {
            Ok(rail) => self.inject_by(to, rail, message),
            Err(why) => why,
        }
    }

    unsafe fn read(
        &mut self,
        from: u64,
        local: Local<Key<R>>,
        remote: RemoteAddress,
        context: *mut c_void,
    ) -> isize {
        if !self.are_several() {
            let local = Local { at: local.at, len: local.len, key: local.key[0] };
            // SAFETY: by the caller's word.
            return unsafe { self.rails[0].read(from, local, remote, context) };
        }
        let op = Op { local, remote, ..self.op(Kind::Read, 0, from, context) };
        // SAFETY: by the caller's word.
        unsafe { self.transfer(op) }
    }

    unsafe fn write(
        &mut self,
        to: u64,
        local: Local<Key<R>>,
        remote: RemoteAddress,
        context: *mut c_void,
    ) -> isize {
        if !self.are_several() {
            let local = Local { at: local.at, len: local.len, key: local.key[0] };
            // SAFETY: by the caller's word.
            return unsafe { self.rails[0].write(to, local, remote, context) };
        }
        let op = Op { local, remote, ..self.op(Kind::Write, 0, to, context) };
        // SAFETY: by the caller's word.
        unsafe { self.transfer(op) }
    }

    fn atomics(&self, peer: u64) -> Atomics {
        match self.peers.get(peer as usize) {
            _ if !self.are_several() => self.rails[0].atomics(peer),
            Some(peer) => self.rails[0].atomics(peer.ways[0].address),
            None => Atomics::default(),
        }
    }

    fn overtakes_amos(&self) -> bool {
        self.rails[0].overtakes_amos()
    }

    unsafe fn amo(
        &mut self,
        to: u64,
        amo: Amo,
        words: Words<Key<R>>,
        remote: RemoteAddress,
        context: *mut c_void,
    ) -> isize {
        let words = Words { at: words.at, key: words.key[0] };
        if !self.are_several() {
            // SAFETY: by the caller's word.
            return unsafe { self.rails[0].amo(to, amo, words, remote, context) };
        }
        // Those of different rails need not exclude each other.
        match self.first(to) {
            Ok(0) => {}
            Ok(_) => return UNREACHABLE,
            Err(why) => return why,
        }
        self.post(self.op(Kind::Amo, 0, to, context), |net, to, context| {
            // SAFETY: by the caller's word; the context is the rails' own.
            unsafe { net.amo(to, amo, words, remote, context) }
        })
    }

    fn confirm(&mut self) {
        self.rails.iter_mut().for_each(Network::confirm);
    }

    fn overtakes_reads(&self) -> bool {
        self.rails.iter().any(Network::overtakes_reads)
    }

    fn fence(&mut self) {
        self.rails.iter_mut().for_each(Network::fence);
    }

    fn poll(&mut self, taken: &mut [Completion]) -> Result<usize, Failure> {
        if !self.are_several() {
            return self.rails[0].poll(taken);
        }
        self.attend();
        for _ in 0..self.rails.len() {
            let rail = self.poll_from;
            self.poll_from = (rail + 1) % self.rails.len();
            match self.rails[rail].poll(taken) {
                Ok(0) => {}
                Ok(count) => {
                    let mut kept = 0;
                    for at in 0..count {
                        if let Some(completion) = self.ended(taken[at]) {
                            taken[kept] = completion;
                            kept += 1;
                        }
                    }
                    if kept > 0 {
                        return Ok(kept);
                    }
                }
                Err(failure) => {
                    if let Some(failure) = self.broke(failure) {
                        return Err(failure);
                    }
                }
            }
        }
        if let Some(failure) = self.failed.pop_front() {
            return Err(failure);
        }
        let count = self.done.len().min(taken.len());
        for (to, from) in taken.iter_mut().zip(self.done.drain(..count)) {
            *to = from;
        }
        Ok(count)
    }

    fn repeats(&self) -> bool {
        self.survives
    }

    fn look(&mut self) {
        self.rails.iter_mut().for_each(Network::look);
        if self.survives {
            self.look_at_all();
        }
    }

    fn event(&mut self) -> Option<Event> {
        if !self.are_several() {
            return self.rails[0].event();
        }
        for rail in 0..self.rails.len() {
            while let Some(event) = self.rails[rail].event() {
                self.take_event(rail, event);
            }
        }
        // What was sent before is to have ended.
        let event = if self.done.is_empty() { self.events.pop_front() } else { None };
        if let Some(Event::Moved(peer)) = &event {
            self.peers[*peer as usize].is_moving = false;
        }
        event
    }

    fn meaning(&self, number: isize) -> String {
        match number {
            UNREACHABLE if self.are_several() => "all interfaces to it were given up".into(),
            _ => self.rails[0].meaning(number),
        }
    }

    fn may_sleep(&mut self) -> bool {
        let is_idle = self.done.is_empty() && self.failed.is_empty() && self.events.is_empty();
        let is_posted = self.unposted.is_empty() && self.again.is_empty();
        is_idle && is_posted && self.rails.iter_mut().all(Network::may_sleep)
    }
}
