// SPDX-License-Identifier: Apache-2.0
//! Trying a provider: a put, a get and a message between two endpoints of this process.
//!
//! What a provider lists does not count. One that completes a put before the data can be read at
//! the target, or never, is found out here, before anybody relies on it.

use super::choose::Candidate;
use super::choose::Offers;
use super::rdm::{Access, Rdm, Region};
use super::sys::{self, Context2, CqMsgEntry, FiAddr, Library};
use std::ffi::c_void;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

/// Bytes of the memory that puts go to.
const SPACE: usize = 64 << 10;
/// How long any step may take. A connection is made in the first one.
const LIMIT: Duration = Duration::from_secs(3);
/// How long the target does nothing at first, so that a put that only claims to have arrived
/// completes meanwhile.
const ASLEEP: Duration = Duration::from_millis(2);

struct End {
    rdm: Rdm,
    /// Memory for peers, and after it a buffer of the same length for own operations.
    memory: Vec<u64>,
    region: Region,
    other: FiAddr,
    done: usize,
    contexts: Box<[Context2; 4]>,
}

/// Why a candidate cannot be used, if it cannot.
pub fn run(
    library: &'static Library,
    offers: &Offers,
    candidate: &Candidate,
) -> Result<(), String> {
    let near = End::open(library, offers, candidate, 0x5eed)?;
    let far = End::open(library, offers, candidate, 0xfeed)?;
    between(near, far)
}

fn between(mut near: End, mut far: End) -> Result<(), String> {
    near.other = near.rdm.insert(&far.rdm.name()?)?;
    far.other = far.rdm.insert(&near.rdm.name()?)?;
    // A short one, which also connects, then one that takes several packets.
    for (round, len) in [(1u64, 8usize), (2, SPACE), (3, 8), (4, SPACE)] {
        put(&mut near, &mut far, round, len)?;
        get(&mut near, &mut far, round, len)?;
    }
    message(&mut near, &mut far)
}

impl End {
    fn open(
        library: &'static Library,
        offers: &Offers,
        candidate: &Candidate,
        key: u64,
    ) -> Result<End, String> {
        // SAFETY: of the offers, which are only read.
        let mut rdm = unsafe { Rdm::open(library, offers.info(candidate), 2, 16) }?;
        let mut memory = vec![0u64; 2 * SPACE / 8];
        let base = memory.as_mut_ptr().cast();
        // SAFETY: the memory is freed after the endpoint, by the order of the fields.
        let (region, _) = unsafe { rdm.register(base, 2 * SPACE, Access::Remote, key) }?;
        let contexts = Box::new([[0; 8]; 4]);
        Ok(End { rdm, memory, region, other: sys::ADDR_UNSPEC, done: 0, contexts })
    }

    /// A word of the memory as it is now: others write to it.
    fn word(&self, index: usize) -> u64 {
        // SAFETY: an element of the vector.
        unsafe { (&raw const self.memory[index]).read_volatile() }
    }

    fn buffer(&mut self) -> *mut u8 {
        self.memory[SPACE / 8..].as_mut_ptr().cast()
    }

    fn context(&mut self, index: usize) -> *mut c_void {
        (&raw mut self.contexts[index]).cast()
    }

    fn progress(&mut self) -> Result<(), String> {
        let mut entries = [CqMsgEntry { op_context: null_mut(), flags: 0, len: 0 }; 4];
        match self.rdm.poll(&mut entries) {
            n if n >= 0 => self.done += n as usize,
            error if error == -(libc::EAGAIN as isize) => {}
            error if error == -sys::EAVAIL => {
                let why = self.rdm.error().map(|(_, _, why)| why);
                return Err(why.unwrap_or_else(|| "an operation failed".into()));
            }
            error => return Err(self.rdm.meaning(error)),
        }
        Ok(())
    }
}

/// Repeats `post` while there is no room, or no connection yet.
fn post(
    near: &mut End,
    far: &mut End,
    what: &str,
    mut post: impl FnMut(&mut End) -> isize,
) -> Result<(), String> {
    let begun = Instant::now();
    loop {
        match post(near) {
            0 => return Ok(()),
            error if error != -(libc::EAGAIN as isize) => {
                return Err(format!("{what}: {}", near.rdm.meaning(error)));
            }
            _ if begun.elapsed() > LIMIT => return Err(format!("{what} is not taken")),
            _ => {}
        }
        near.progress().and_then(|()| far.progress()).map_err(|why| format!("{what}: {why}"))?;
    }
}

fn await_done(
    near: &mut End,
    far: &mut End,
    what: &str,
    asleep: Duration,
    ready: impl Fn(&End, &End) -> bool,
) -> Result<(), String> {
    let begun = Instant::now();
    while !ready(near, far) {
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

fn put(near: &mut End, far: &mut End, round: u64, len: usize) -> Result<(), String> {
    let what = format!("a put of {len} bytes");
    let source = near.buffer();
    for index in 0..len / 8 {
        near.memory[SPACE / 8 + index] = pattern(round, index);
    }
    let (before, at) = (near.done, far.region);
    let context = near.context(0);
    post(near, far, &what, |near| {
        let (to, desc) = (near.other, near.region.desc);
        // SAFETY: buffer and context live until the endpoint is closed.
        unsafe { near.rdm.write(to, source, len, desc, at.base, at.key, context) }
    })?;
    await_done(near, far, &what, ASLEEP, |near, _| near.done > before)?;
    match (0..len / 8).all(|index| far.word(index) == pattern(round, index)) {
        true => Ok(()),
        false => Err(format!("{what} completes before its data have arrived")),
    }
}

fn get(near: &mut End, far: &mut End, round: u64, len: usize) -> Result<(), String> {
    let what = format!("a get of {len} bytes");
    let dest = near.buffer();
    near.memory[SPACE / 8..].fill(0);
    let (before, at) = (near.done, far.region);
    let context = near.context(1);
    post(near, far, &what, |near| {
        let (from, desc) = (near.other, near.region.desc);
        // SAFETY: buffer and context live until the endpoint is closed.
        unsafe { near.rdm.read(from, dest, len, desc, at.base, at.key, context) }
    })?;
    await_done(near, far, &what, Duration::ZERO, |near, _| near.done > before)?;
    match (0..len / 8).all(|index| near.word(SPACE / 8 + index) == pattern(round, index)) {
        true => Ok(()),
        false => Err(format!("{what} completes without its data")),
    }
}

fn message(near: &mut End, far: &mut End) -> Result<(), String> {
    let what = "a message";
    let (buffer, desc) = (far.buffer(), far.region.desc);
    let context = far.context(2);
    // SAFETY: buffer and context live until the endpoint is closed.
    let posted = unsafe { far.rdm.receive(buffer, 64, desc, context) };
    if posted != 0 {
        return Err(format!("a buffer for {what}: {}", far.rdm.meaning(posted)));
    }
    near.memory[SPACE / 8] = pattern(9, 9);
    let (before, source, context) = (far.done, near.buffer(), near.context(3));
    post(near, far, what, |near| {
        let (to, desc) = (near.other, near.region.desc);
        // SAFETY: as above.
        unsafe { near.rdm.send(to, source, 64, desc, context) }
    })?;
    await_done(near, far, what, Duration::ZERO, |_, far| far.done > before)?;
    match far.word(SPACE / 8) == pattern(9, 9) {
        true => Ok(()),
        false => Err(format!("{what} arrives without its data")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::choose::Wish;
    use super::*;

    /// Both ends of a trial of a provider, if it is there.
    fn ends(provider: &str) -> Option<(End, End)> {
        let library = Library::get().ok()?;
        let wish = Wish { provider: provider.into(), one_machine: true, ..Wish::default() };
        let offers = Offers::find(library, &wish).ok()?;
        let open = |key| End::open(library, &offers, &offers.candidates[0], key).unwrap();
        Some((open(1), open(2)))
    }

    #[test]
    fn providers_that_deliver_pass() {
        for provider in ["tcp;ofi_rxm", "udp;ofi_rxd", "sockets", "shm"] {
            if let Some((near, far)) = ends(provider) {
                assert_eq!(between(near, far), Ok(()), "{provider}");
            }
        }
    }

    #[test]
    fn completions_that_are_not_delivery_are_found_out() {
        if let Some((mut near, far)) = ends("tcp;ofi_rxm") {
            // What a provider does that takes "has left" for "has arrived".
            near.rdm.write_flags = sys::COMPLETION;
            let why = between(near, far).unwrap_err();
            assert!(why.contains("before its data have arrived"), "{why}");
        }
    }
}
