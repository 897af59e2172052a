// SPDX-License-Identifier: Apache-2.0
//! A network by itself, as tools compare a transport with it: what is written and read here goes to the network as it
//! is, without routes, requests to the target's processor, or more than one thread.

use super::open::Kind;
use super::transport::{BackEnd, check_descriptors};
use super::{Completion, Local, Network, RemoteAddress, Shared, Words};
use std::ffi::c_void;
use std::time::{Duration, Instant};
use tombolo_core::transport::{Amo, Job};

/// Operations under way at most.
const MOST: usize = 64;
/// Buffers for what the other end tells.
const RECEIVES: usize = 4;
/// Words of a cache line.
const LINE: usize = 8;
/// Words before the buffers: a variable for AMOs, those of an AMO, one to be told from for each operation, and
/// what the other end tells.
const HEAD: usize = 2 * LINE + MOST + RECEIVES * LINE;
const _: () = assert!(HEAD.is_multiple_of(LINE));
/// What a network says that has no room, or no connection yet.
const FULL: isize = -(libc::EAGAIN as isize);
/// How long an operation may take. The first one makes a connection.
const LIMIT: Duration = Duration::from_secs(5);

/// One of two ends of a network. Both have the same room. Errors say in words what failed; the end is of no use then.
pub trait Alone: Send {
    /// What the network is, in a few words: the provider or the card, and its interface or port.
    fn medium(&self) -> &str;

    /// What the other end has to know of this one.
    fn card(&self) -> Result<Vec<u8>, String>;

    /// Takes the card of the other end.
    fn meet(&mut self, card: &[u8]) -> Result<(), String>;

    /// Writes `len` bytes to the other end so many times, at most as many as it was opened for, and waits
    /// until they can be read there.
    fn put(&mut self, len: usize, count: usize) -> Result<(), String>;

    /// Reads `len` bytes from the other end.
    fn get(&mut self, len: usize) -> Result<(), String>;

    /// Changes a variable of the other end, where the network does that by itself.
    fn amo(&mut self, amo: Amo) -> Result<(), String>;

    /// Whether it does.
    fn has(&self, amo: Amo) -> bool;

    /// Gives `len` bytes to the other end and a number with them or after them, without waiting for their arrival.
    fn tell(&mut self, len: usize, number: u64) -> Result<(), String>;

    /// Whether a number comes after the bytes that were written before it.
    fn tells_in_order(&self) -> bool;

    /// Does what the network needs the processor for. The number that the other end has told last.
    fn told(&mut self) -> Result<u64, String>;
}

/// A cache line of memory, as that of heaps is aligned.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line([u64; LINE]);

/// The end of one PE of a job.
struct End<N: Network> {
    /// Closed first: the network uses the memory and the contexts until then.
    net: N,
    medium: String,
    /// After [`HEAD`] words, bytes that the other end writes and reads, and as many of this one's.
    memory: Vec<Line>,
    shared: Shared<N::Key>,
    room: usize,
    /// The longest operation.
    max_len: usize,
    other: u64,
    remote: RemoteAddress,
    /// What the network keeps with operations, and with buffers for messages; those of operations that are free.
    contexts: Box<[[u64; 8]; MOST + RECEIVES]>,
    free: Vec<usize>,
    /// The last number that came.
    told: u64,
}

// SAFETY: keys are names of memory to the network, which may be used from any thread, by one at a time.
unsafe impl<N: Network> Send for End<N> {}

/// Opens the network that a job would use, for puts and gets of up to `room` bytes.
pub fn open<B: BackEnd>(job: &Job<'_>, room: usize) -> Result<Box<dyn Alone>, String> {
    check_descriptors()?;
    let (net, kind, _) = B::open(B::choose(job)?, job)?;
    Ok(Box::new(End::new(net, kind, room.next_multiple_of(size_of::<Line>()))?))
}

impl<N: Network> End<N> {
    fn new(net: N, kind: Kind, room: usize) -> Result<End<N>, String> {
        let mut end = End {
            net,
            medium: kind.medium,
            // Pages that were never written would all be the same one.
            memory: vec![Line([1; LINE]); HEAD / LINE + 2 * room / size_of::<Line>()],
            shared: Shared::default(),
            room,
            max_len: kind.max_len.max(1),
            other: 0,
            remote: RemoteAddress { address: 0, key: 0 },
            contexts: Box::new([[0; 8]; MOST + RECEIVES]),
            free: (0..MOST).collect(),
            told: 0,
        };
        let (at, len) = (end.memory.as_mut_ptr().cast(), size_of_val(&end.memory[..]));
        // SAFETY: the memory is freed after the network, by the order of the fields.
        end.shared = unsafe { end.net.share(at, len, 0xa1) }?;
        (0..RECEIVES).try_for_each(|index| end.receive(index))?;
        Ok(end)
    }

    /// A word of this end's memory.
    fn word(&mut self, word: usize) -> *mut u64 {
        &raw mut self.memory[word / LINE].0[word % LINE]
    }

    /// This end's memory from a word on.
    fn local(&mut self, word: usize, len: usize) -> Local<N::Key> {
        Local { at: self.word(word).cast(), len, key: self.shared.local }
    }

    /// The other end's memory from a word on.
    fn remote(&self, word: usize) -> RemoteAddress {
        let bytes = (word * size_of::<u64>()) as u64;
        RemoteAddress { address: self.remote.address + bytes, key: self.remote.key }
    }

    /// The first word of this end's own buffer.
    fn own(&self) -> usize {
        HEAD + self.room / size_of::<u64>()
    }

    fn poll(&mut self) -> Result<(), String> {
        let mut taken = [Completion::NONE; 16];
        let count = self.net.poll(&mut taken).map_err(|failure| failure.why)?;
        let first = self.contexts.as_ptr() as usize;
        for ended in &taken[..count] {
            match (ended.context as usize).wrapping_sub(first) / size_of::<[u64; 8]>() {
                index if index < MOST => self.free.push(index),
                index if index < MOST + RECEIVES => {
                    let word = self.word(End::<N>::message(index - MOST));
                    // SAFETY: a word of the memory, into which the network has put a message.
                    self.told = unsafe { word.read_volatile() };
                    self.receive(index - MOST)?;
                }
                // Nothing that was posted here.
                _ => {}
            }
        }
        Ok(())
    }

    /// The word of a buffer for messages.
    fn message(index: usize) -> usize {
        2 * LINE + MOST + index * LINE
    }

    /// Has the network put the next message into a buffer.
    fn receive(&mut self, index: usize) -> Result<(), String> {
        let local = self.local(End::<N>::message(index), LINE * size_of::<u64>());
        let context = (&raw mut self.contexts[MOST + index]).cast();
        // SAFETY: the buffer is in no message's use; both stay until the network is closed.
        match unsafe { self.net.receive(local.at, local.len, local.key, context) } {
            0 => Ok(()),
            error => Err(format!("a buffer for messages: {}", self.net.meaning(error))),
        }
    }

    /// Offers something to the network until it is taken.
    fn until_taken(
        &mut self,
        what: &str,
        mut offer: impl FnMut(&mut End<N>) -> isize,
    ) -> Result<(), String> {
        let begun = Instant::now();
        loop {
            match offer(self) {
                0 => return Ok(()),
                FULL if begun.elapsed() > LIMIT => return Err(format!("{what} is not taken")),
                FULL => {}
                error => return Err(format!("{what}: {}", self.net.meaning(error))),
            }
            self.net.confirm();
            self.poll().map_err(|why| format!("{what}: {why}"))?;
        }
    }

    /// Posts an operation, which has a number and a context of its own until it has ended.
    fn post(
        &mut self,
        what: &str,
        mut post: impl FnMut(&mut End<N>, usize, *mut c_void) -> isize,
    ) -> Result<(), String> {
        self.until_taken(what, |end| {
            let Some(index) = end.free.pop() else { return FULL };
            let context = (&raw mut end.contexts[index]).cast();
            let posted = post(end, index, context);
            if posted != 0 {
                end.free.push(index);
            }
            posted
        })
    }

    /// The part at a byte of a put or get of so many: here and at the other end.
    fn part(&mut self, at: usize, len: usize) -> (Local<N::Key>, RemoteAddress) {
        let mut local = self.local(self.own(), self.max_len.min(len - at));
        local.at = local.at.wrapping_add(at);
        let mut remote = self.remote(HEAD);
        remote.address += at as u64;
        (local, remote)
    }

    fn post_write(&mut self, len: usize) -> Result<(), String> {
        (0..len).step_by(self.max_len).try_for_each(|at| {
            self.post("a put", |end, _, context| {
                let (local, remote) = end.part(at, len);
                // SAFETY: both ends have the room; memory and contexts stay until the network is closed.
                unsafe { end.net.write(end.other, local, remote, context) }
            })
        })
    }

    /// Waits until all operations have ended.
    fn finish(&mut self, what: &str) -> Result<(), String> {
        let (mut begun, mut free) = (Instant::now(), self.free.len());
        while self.free.len() < MOST {
            self.net.confirm();
            self.poll().map_err(|why| format!("{what}: {why}"))?;
            if self.free.len() > free {
                (begun, free) = (Instant::now(), self.free.len());
            }
            if begun.elapsed() > LIMIT {
                return Err(format!("{what} does not complete"));
            }
        }
        Ok(())
    }
}

impl<N: Network> Alone for End<N> {
    fn medium(&self) -> &str {
        &self.medium
    }

    fn card(&self) -> Result<Vec<u8>, String> {
        let mut card = self.shared.base.to_le_bytes().to_vec();
        card.extend(self.shared.key.to_le_bytes());
        card.extend(self.net.name()?);
        Ok(card)
    }

    fn meet(&mut self, card: &[u8]) -> Result<(), String> {
        let (address, rest) =
            card.split_first_chunk().ok_or("the other end's card is too short")?;
        let (key, name) = rest.split_first_chunk().ok_or("the other end's card is too short")?;
        let (address, key) = (u64::from_le_bytes(*address), u64::from_le_bytes(*key));
        self.remote = RemoteAddress { address, key };
        self.other = self.net.insert(name)?;
        Ok(())
    }

    fn put(&mut self, len: usize, count: usize) -> Result<(), String> {
        assert!(len <= self.room, "a put of {len} bytes has no room");
        (0..count).try_for_each(|_| self.post_write(len))?;
        self.finish("a put")
    }

    fn get(&mut self, len: usize) -> Result<(), String> {
        assert!(len <= self.room, "a get of {len} bytes has no room");
        (0..len).step_by(self.max_len).try_for_each(|at| {
            self.post("a get", |end, _, context| {
                let (local, remote) = end.part(at, len);
                // SAFETY: as in `post_write`.
                unsafe { end.net.read(end.other, local, remote, context) }
            })
        })?;
        self.finish("a get")
    }

    fn amo(&mut self, amo: Amo) -> Result<(), String> {
        self.post("an AMO", |end, _, context| {
            let words = Words { at: end.word(LINE), key: end.shared.local };
            let remote = end.remote(0);
            // SAFETY: words of this end, one AMO at a time; both stay until the network is closed.
            unsafe {
                Words::<N::Key>::fill(words.at, amo);
                end.net.amo(end.other, amo, words, remote, context)
            }
        })?;
        self.finish("an AMO")
    }

    fn has(&self, amo: Amo) -> bool {
        self.net.atomics(self.other).amos.has(amo.op, amo.size)
    }

    fn tell(&mut self, len: usize, number: u64) -> Result<(), String> {
        // Few bytes go with the number.
        let mut message = [0; LINE * size_of::<u64>()];
        let whole = size_of::<u64>() + len;
        if whole <= message.len().min(self.net.inject_max()) {
            message[..size_of::<u64>()].copy_from_slice(&number.to_ne_bytes());
            return self
                .until_taken("a message", |end| end.net.inject(end.other, &message[..whole]));
        }
        self.post_write(len)?;
        self.net.fence();
        self.post("a message", |end, index, context| {
            let local = end.local(2 * LINE + index, size_of::<u64>());
            // SAFETY: the word of an operation that is not under way; it stays until the network is closed.
            unsafe {
                local.at.cast::<u64>().write(number);
                end.net.send(end.other, local.at, local.len, local.key, context)
            }
        })
    }

    fn tells_in_order(&self) -> bool {
        self.net.is_ordered()
    }

    fn told(&mut self) -> Result<u64, String> {
        if self.free.len() < MOST {
            self.net.confirm();
        }
        self.poll()?;
        Ok(self.told)
    }
}
