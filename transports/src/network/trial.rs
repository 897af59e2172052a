// SPDX-License-Identifier: Apache-2.0
//! Trying a network: a put, a get and a message between two ends in this process.
//!
//! What it claims of itself does not count. One that completes a put before the data can be read at
//! the target, or never, is found out here, before anybody relies on it.

use super::{Completion, Local, Network, RemoteAddress, Shared, Words};
use std::ffi::c_void;
use std::time::{Duration, Instant};
use tombolo_core::transport::{Amo, AmoOp};

/// Bytes of the memory that puts go to.
const SPACE: usize = 64 << 10;
/// How long any step may take. A connection is made in the first one.
const LIMIT: Duration = Duration::from_secs(3);
/// How long the target does nothing at first, so that a put that only claims to have arrived
/// completes meanwhile.
const ASLEEP: Duration = Duration::from_millis(2);

struct End<N: Network> {
    net: N,
    /// Memory for peers, and after it a buffer of the same length for own operations.
    memory: Vec<u64>,
    shared: Shared<N::Key>,
    other: u64,
    myself: u64,
    done: usize,
    contexts: Box<[[u64; 8]; 4]>,
}

/// Why a network cannot be used, if it cannot, by two ends of it.
pub fn run<N: Network>(near: N, far: N) -> Result<(), String> {
    let (mut near, mut far) = (End::open(near, 0x5eed)?, End::open(far, 0xfeed)?);
    near.other = near.net.insert(&far.net.name()?)?;
    far.other = far.net.insert(&near.net.name()?)?;
    // A short one, which also connects, then one that takes several packets.
    for (round, len) in [(1u64, 8usize), (2, SPACE), (3, 8), (4, SPACE)] {
        put(&mut near, &mut far, round, len)?;
        get(&mut near, &mut far, round, len)?;
    }
    message(&mut near, &mut far)?;
    amos(&mut near, &mut far, false)?;
    // Of those that are atomic among each other alone each PE uses them on its own memory as well.
    if !near.net.atomics(near.other).of_device().is_empty() {
        near.myself = near.net.insert(&near.net.name()?)?;
        amos(&mut near, &mut far, true)?;
    }
    Ok(())
}

impl<N: Network> End<N> {
    fn open(net: N, key: u64) -> Result<End<N>, String> {
        let mut both = (net, vec![0u64; 2 * SPACE / 8]);
        let base = both.1.as_mut_ptr().cast();
        // SAFETY: the memory is freed after the network, by the order of the fields, here as in what is given.
        let shared = unsafe { both.0.share(base, 2 * SPACE, key) }?;
        let (net, memory) = both;
        Ok(End {
            net,
            memory,
            shared,
            other: u64::MAX,
            myself: u64::MAX,
            done: 0,
            contexts: Box::default(),
        })
    }

    /// A word of the memory as it is now: others write to it.
    fn word(&self, index: usize) -> u64 {
        // SAFETY: an element of the vector.
        unsafe { (&raw const self.memory[index]).read_volatile() }
    }

    fn buffer(&mut self, len: usize) -> Local<N::Key> {
        let at = self.memory[SPACE / 8..].as_mut_ptr().cast();
        Local { at, len, key: self.shared.local }
    }

    fn start(&self) -> RemoteAddress {
        RemoteAddress { address: self.shared.base, key: self.shared.key }
    }

    fn context(&mut self, index: usize) -> *mut c_void {
        (&raw mut self.contexts[index]).cast()
    }

    fn progress(&mut self) -> Result<(), String> {
        let mut taken = [Completion::NONE; 4];
        self.done += self.net.poll(&mut taken).map_err(|failure| failure.why)?;
        Ok(())
    }
}

/// Repeats `post` while there is no room, or no connection yet.
fn post<N: Network>(
    near: &mut End<N>,
    far: &mut End<N>,
    what: &str,
    mut post: impl FnMut(&mut End<N>) -> isize,
) -> Result<(), String> {
    let begun = Instant::now();
    loop {
        match post(near) {
            0 => return Ok(()),
            error if error != -(libc::EAGAIN as isize) => {
                return Err(format!("{what}: {}", near.net.meaning(error)));
            }
            _ if begun.elapsed() > LIMIT => return Err(format!("{what} is not taken")),
            _ => {}
        }
        near.progress().and_then(|()| far.progress()).map_err(|why| format!("{what}: {why}"))?;
    }
}

fn await_done<N: Network>(
    near: &mut End<N>,
    far: &mut End<N>,
    what: &str,
    asleep: Duration,
    ready: impl Fn(&End<N>, &End<N>) -> bool,
) -> Result<(), String> {
    let begun = Instant::now();
    while !ready(near, far) {
        near.net.confirm();
        near.progress().map_err(|why| format!("{what}: {why}"))?;
        let waited = begun.elapsed();
        if waited > asleep {
            far.progress().map_err(|why| format!("{what}: {why}"))?;
        }
        if waited > LIMIT {
            return Err(format!("{what} does not complete"));
        }
    }
    Ok(())
}

/// The words of a round: all different from those of the round before.
fn pattern(round: u64, index: usize) -> u64 {
    round << 56 | index as u64
}

fn put<N: Network>(
    near: &mut End<N>,
    far: &mut End<N>,
    round: u64,
    len: usize,
) -> Result<(), String> {
    let what = format!("a put of {len} bytes");
    let source = near.buffer(len);
    for index in 0..len / 8 {
        near.memory[SPACE / 8 + index] = pattern(round, index);
    }
    let (before, at) = (near.done, far.start());
    let context = near.context(0);
    post(near, far, &what, |near| {
        let to = near.other;
        // SAFETY: buffer and context live until the network is closed.
        unsafe { near.net.write(to, source, at, context) }
    })?;
    await_done(near, far, &what, ASLEEP, |near, _| near.done > before)?;
    match (0..len / 8).all(|index| far.word(index) == pattern(round, index)) {
        true => Ok(()),
        false => Err(format!("{what} completes before its data have arrived")),
    }
}

fn get<N: Network>(
    near: &mut End<N>,
    far: &mut End<N>,
    round: u64,
    len: usize,
) -> Result<(), String> {
    let what = format!("a get of {len} bytes");
    let dest = near.buffer(len);
    near.memory[SPACE / 8..].fill(0);
    let (before, at) = (near.done, far.start());
    let context = near.context(1);
    post(near, far, &what, |near| {
        let from = near.other;
        // SAFETY: buffer and context live until the network is closed.
        unsafe { near.net.read(from, dest, at, context) }
    })?;
    await_done(near, far, &what, Duration::ZERO, |near, _| near.done > before)?;
    match (0..len / 8).all(|index| near.word(SPACE / 8 + index) == pattern(round, index)) {
        true => Ok(()),
        false => Err(format!("{what} completes without its data")),
    }
}

fn message<N: Network>(near: &mut End<N>, far: &mut End<N>) -> Result<(), String> {
    let what = "a message";
    let buffer = far.buffer(64);
    let context = far.context(2);
    // SAFETY: buffer and context live until the network is closed.
    let posted = unsafe { far.net.receive(buffer.at, 64, buffer.key, context) };
    if posted != 0 {
        return Err(format!("a buffer for {what}: {}", far.net.meaning(posted)));
    }
    near.memory[SPACE / 8] = pattern(9, 9);
    let (sent, before) = (near.done, far.done);
    let (source, context) = (near.buffer(64), near.context(3));
    post(near, far, what, |near| {
        let to = near.other;
        // SAFETY: as above.
        unsafe { near.net.send(to, source.at, 64, source.key, context) }
    })?;
    // That it was sent may be told after it has arrived, and is not to be taken for the end of what follows.
    await_done(near, far, what, Duration::ZERO, |near, far| near.done > sent && far.done > before)?;
    match far.word(SPACE / 8) == pattern(9, 9) {
        true => Ok(()),
        false => Err(format!("{what} arrives without its data")),
    }
}

/// Each AMO that the network claims to carry out, on a variable of the far end or of the near end itself.
fn amos<N: Network>(near: &mut End<N>, far: &mut End<N>, to_self: bool) -> Result<(), String> {
    let all = AmoOp::ALL.into_iter().flat_map(|op| [4, 8].map(|size| (op, size)));
    let claimed = near.net.atomics(if to_self { near.myself } else { near.other }).amos;
    for (op, size) in all.filter(|(op, size)| claimed.has(*op, *size)) {
        let what =
            format!("an atomic {op:?} of {size} bytes{}", if to_self { " by itself" } else { "" });
        let amo = Amo { op, size, operand: 5, compare: 0x11 };
        // The other half of a word of 4 bytes is not to be touched.
        let (old, rest) = (0x11, if size == 4 { 0x77 << 32 } else { 0 });
        let target = if to_self { &mut *near } else { &mut *far };
        target.memory[1] = old | rest;
        let start = if to_self { near.start() } else { far.start() };
        let at = RemoteAddress { address: start.address + 8, ..start };
        let buffer = near.buffer(Words::<N::Key>::SIZE);
        let words = Words { at: buffer.at.cast(), key: buffer.key };
        let (before, context) = (near.done, near.context(0));
        near.memory[SPACE / 8 + 2] = u64::MAX;
        post(near, far, &what, |near| {
            let to = if to_self { near.myself } else { near.other };
            // SAFETY: words and context live until the network is closed, and are used for this alone.
            unsafe {
                Words::<N::Key>::fill(words.at, amo);
                near.net.amo(to, amo, words, at, context)
            }
        })?;
        await_done(near, far, &what, Duration::ZERO, |near, _| near.done > before)?;
        let mask = if size == 4 { u64::from(u32::MAX) } else { u64::MAX };
        let told = near.word(SPACE / 8 + 2) & mask;
        let now = if to_self { near.word(1) } else { far.word(1) };
        if told != old || now != amo.applied_to(old) | rest {
            return Err(format!("{what} gives {told:#x} and leaves {now:#x}"));
        }
    }
    Ok(())
}
