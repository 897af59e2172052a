// SPDX-License-Identifier: Apache-2.0
//! Several endpoints of one kind as one network: the first carries everything, and of long transfers each
//! carries a part.
//!
//! - A rail of a PE talks to the rail at the same place in the other PE's list.
//! - Rails take turns, transfer by transfer: they are taken to be alike.
//! - Nothing orders what takes different rails, so that a network of several keeps no order of writes.

use super::rdm::{Rdm, Registered};
use crate::network::{Atomics, Completion, Failure, Local, Network, RemoteAddress, Shared, Words};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use std::ffi::c_void;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use tombolo_core::registration::Device;
use tombolo_core::transport::Amo;

/// Rails at most.
const MOST: usize = 4;
/// Shortest transfer that takes turns.
const LONG: usize = 32 << 10;
/// Keys of one piece of shared memory, by rail.
type Keys = [u64; MOST];
/// Longest transfer where there are several rails: so that one of a megabyte keeps all of them busy.
pub const PIECE: usize = 256 << 10;

/// See the module.
pub struct Rails {
    rails: Vec<Rdm>,
    /// Keys of this PE's shared memory, by rail.
    shared: Vec<Keys>,
    peers: Vec<Peer>,
    /// The rail of the next long transfer, and that which is polled first.
    turn: usize,
    poll_from: usize,
    /// Readable when a descriptor of a rail is; none where one rail has none.
    wait: Option<Wait>,
}

enum Wait {
    One(RawFd),
    All(Epoll),
}

/// A peer.
struct Peer {
    /// Its address, by rail; as many as both PEs have.
    addresses: Vec<u64>,
    /// Keys of its shared memory, by rail.
    keys: Vec<Keys>,
}

/// A registration, by rail.
pub type Key = [Registered; MOST];

impl Rails {
    /// One network of one or several endpoints.
    pub fn new(rails: Vec<Rdm>) -> Result<Rails, String> {
        let [first, others @ ..] = rails.as_slice() else { return Err("no endpoint".into()) };
        if others.len() >= MOST {
            return Err(format!("at most {MOST} interfaces are used at a time"));
        }
        if others.iter().any(|other| !other.is_like(first)) {
            return Err("the interfaces' endpoints differ in what they can do".into());
        }
        let wait = wait_for(&rails);
        Ok(Rails { rails, shared: vec![], peers: vec![], turn: 0, poll_from: 0, wait })
    }

    /// Whether there are several.
    pub fn are_several(&self) -> bool {
        self.rails.len() > 1
    }

    /// Longest transfer.
    pub fn max_len(&self) -> usize {
        self.rails.iter().map(|rail| rail.max_len).min().unwrap_or(0)
    }

    /// What to sleep on; see `may_sleep`.
    pub fn wait_fd(&self) -> Option<RawFd> {
        self.wait.as_ref().map(|wait| match wait {
            Wait::One(fd) => *fd,
            Wait::All(epoll) => epoll.0.as_raw_fd(),
        })
    }

    /// The rail for a transfer, the peer's address there, and the far end as that rail names it.
    fn choose(
        &mut self,
        peer: u64,
        len: usize,
        far: RemoteAddress,
    ) -> Option<(usize, u64, RemoteAddress)> {
        let Peer { addresses, keys } = self.peers.get(peer as usize)?;
        if len < LONG || addresses.len() == 1 {
            return Some((0, *addresses.first()?, far));
        }
        self.turn = (self.turn + 1) % addresses.len();
        let keys = keys.iter().find(|keys| keys[0] == far.key)?;
        Some((self.turn, addresses[self.turn], RemoteAddress { key: keys[self.turn], ..far }))
    }

    fn first(&self, peer: u64) -> Option<u64> {
        self.peers.get(peer as usize)?.addresses.first().copied()
    }
}

fn wait_for(rails: &[Rdm]) -> Option<Wait> {
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

/// What there is no such peer for.
const NOBODY: isize = -(libc::EINVAL as isize);

impl Device for Rails {
    type Key = Key;

    unsafe fn register(&mut self, at: *mut u8, len: usize) -> Result<Key, String> {
        let mut key = Key::default();
        for index in 0..self.rails.len() {
            // SAFETY: by the caller's word.
            match unsafe { self.rails[index].register(at, len) } {
                Ok(registered) => key[index] = registered,
                Err(why) => {
                    self.unregister(key);
                    return Err(why);
                }
            }
        }
        Ok(key)
    }

    fn unregister(&mut self, key: Key) {
        for (rail, key) in self.rails.iter_mut().zip(key) {
            rail.unregister(key);
        }
    }
}

impl Network for Rails {
    fn is_ordered(&self) -> bool {
        !self.are_several() && self.rails[0].ordered
    }

    fn needs_local_registration(&self) -> bool {
        self.rails[0].needs_local_registration()
    }

    fn inject_max(&self) -> usize {
        self.rails[0].inject_max()
    }

    unsafe fn share(&mut self, at: *mut u8, len: usize, key: u64) -> Result<Shared<Key>, String> {
        let mut all = Shared { local: Key::default(), key: 0, base: 0 };
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
        let names = self.rails.iter().map(Network::name).collect::<Result<Vec<_>, _>>()?;
        let name = encode(&names, &self.shared);
        match name.len() {
            ..=255 => Ok(name),
            _ => Err("the addresses of so many interfaces are too long".into()),
        }
    }

    fn insert(&mut self, name: &[u8]) -> Result<u64, String> {
        let (names, keys) = decode(name).ok_or("its address cannot be read")?;
        let rails = self.rails.iter_mut().zip(names);
        let addresses = rails.map(|(rail, name)| rail.insert(name)).collect::<Result<_, _>>()?;
        self.peers.push(Peer { addresses, keys });
        Ok(self.peers.len() as u64 - 1)
    }

    fn remove(&mut self, peer: u64) {
        let Some(peer) = self.peers.get(peer as usize) else { return };
        for (rail, address) in self.rails.iter_mut().zip(&peer.addresses) {
            rail.remove(*address);
        }
    }

    unsafe fn receive(
        &mut self,
        buffer: *mut u8,
        len: usize,
        key: Key,
        context: *mut c_void,
    ) -> isize {
        // SAFETY: by the caller's word.
        unsafe { self.rails[0].receive(buffer, len, key[0], context) }
    }

    unsafe fn send(
        &mut self,
        to: u64,
        buffer: *const u8,
        len: usize,
        key: Key,
        context: *mut c_void,
    ) -> isize {
        let Some(to) = self.first(to) else { return NOBODY };
        // SAFETY: by the caller's word.
        unsafe { self.rails[0].send(to, buffer, len, key[0], context) }
    }

    fn inject(&mut self, to: u64, message: &[u8]) -> isize {
        let Some(to) = self.first(to) else { return NOBODY };
        self.rails[0].inject(to, message)
    }

    unsafe fn read(
        &mut self,
        from: u64,
        local: Local<Key>,
        remote: RemoteAddress,
        context: *mut c_void,
    ) -> isize {
        let Some((rail, from, remote)) = self.choose(from, local.len, remote) else {
            return NOBODY;
        };
        let local = Local { at: local.at, len: local.len, key: local.key[rail] };
        // SAFETY: by the caller's word.
        unsafe { self.rails[rail].read(from, local, remote, context) }
    }

    unsafe fn write(
        &mut self,
        to: u64,
        local: Local<Key>,
        remote: RemoteAddress,
        context: *mut c_void,
    ) -> isize {
        let Some((rail, to, remote)) = self.choose(to, local.len, remote) else { return NOBODY };
        let local = Local { at: local.at, len: local.len, key: local.key[rail] };
        // SAFETY: by the caller's word.
        unsafe { self.rails[rail].write(to, local, remote, context) }
    }

    fn atomics(&self, peer: u64) -> Atomics {
        self.rails[0].atomics(peer)
    }

    fn overtakes_amos(&self) -> bool {
        self.rails[0].overtakes_amos()
    }

    unsafe fn amo(
        &mut self,
        to: u64,
        amo: Amo,
        words: Words<Key>,
        remote: RemoteAddress,
        context: *mut c_void,
    ) -> isize {
        let Some(to) = self.first(to) else { return NOBODY };
        let words = Words { at: words.at, key: words.key[0] };
        // SAFETY: by the caller's word.
        unsafe { self.rails[0].amo(to, amo, words, remote, context) }
    }

    fn poll(&mut self, taken: &mut [Completion]) -> Result<usize, Failure> {
        for _ in 0..self.rails.len() {
            let rail = self.poll_from;
            self.poll_from = (rail + 1) % self.rails.len();
            match self.rails[rail].poll(taken) {
                Ok(0) => {}
                told => return told,
            }
        }
        Ok(0)
    }

    fn meaning(&self, number: isize) -> String {
        self.rails[0].meaning(number)
    }

    fn may_sleep(&mut self) -> bool {
        self.rails.iter_mut().all(Network::may_sleep)
    }
}

/// What others need: the address on each rail, and the keys of each piece of shared memory.
fn encode(names: &[Vec<u8>], shared: &[Keys]) -> Vec<u8> {
    let mut bytes = vec![names.len() as u8];
    for name in names {
        bytes.push(name.len() as u8);
        bytes.extend(name);
    }
    for keys in shared {
        bytes.extend(keys[..names.len()].iter().flat_map(|key| key.to_le_bytes()));
    }
    bytes
}

/// What `encode` made; none if it was something else.
fn decode(bytes: &[u8]) -> Option<(Vec<&[u8]>, Vec<Keys>)> {
    let (count, mut rest) = bytes.split_first()?;
    let count = usize::from(*count);
    if !(1..=MOST).contains(&count) {
        return None;
    }
    let mut names = vec![];
    for _ in 0..count {
        let (len, after) = rest.split_first()?;
        let (name, after) = after.split_at_checked(usize::from(*len))?;
        names.push(name);
        rest = after;
    }
    let (words, rest) = rest.as_chunks::<8>();
    if !rest.is_empty() || !words.len().is_multiple_of(count) {
        return None;
    }
    let keys = words.chunks(count).map(|words| {
        let mut keys = [0; MOST];
        keys.iter_mut().zip(words).for_each(|(key, word)| *key = u64::from_le_bytes(*word));
        keys
    });
    Some((names, keys.collect()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_name_comes_back_as_it_was_and_nothing_longer_does(
            names in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..30), 1..=MOST),
            keys in prop::collection::vec(any::<Keys>(), 0..3),
        ) {
            let mut keys = keys;
            keys.iter_mut().for_each(|keys| keys[names.len()..].fill(0));
            let bytes = encode(&names, &keys);
            let (told, told_keys) = decode(&bytes).unwrap();
            prop_assert_eq!(told, names);
            prop_assert_eq!(told_keys, keys);
            let longer = [&bytes[..], &[0]].concat();
            prop_assert_eq!(decode(&longer), None);
        }

        #[test]
        fn garbage_is_no_name(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            if let Some((names, keys)) = decode(&bytes) {
                let names: Vec<Vec<u8>> = names.into_iter().map(<[u8]>::to_vec).collect();
                prop_assert_eq!(encode(&names, &keys), bytes);
            }
        }
    }
}
