// SPDX-License-Identifier: Apache-2.0
//! What transports over networks have in common, where the network writes to and reads from
//! registered memory and carries messages.
//!
//! ```text
//! endpoint -> port (lock) -> engine: RMA, requests and answers -> a back end's network
//! ```
//!
//! - Long transfers are RMA; AMOs, and what the network does not keep whole, are carried out by the
//!   target's processor ([`engine`]), or AMOs by the network, which says in whose domain ([`Atomics`]).
//! - A back end ([`transport`]) provides a [`Network`], and says which one is to be used. [`trial`] finds
//!   out whether it works, and [`alone`] measures it by itself.

pub mod address;
pub mod alone;
pub mod endpoint;
pub mod engine;
pub mod message;
pub mod open;
pub mod port;
pub mod rails;
#[cfg(test)]
mod tests;
pub mod transport;
pub mod trial;

use std::ffi::c_void;
use std::ptr::null_mut;
use tombolo_core::registration::Device;
use tombolo_core::transport::{Amo, AmoSet, Job};

/// A network as one PE uses it, from one thread at a time.
///
/// Peers have numbers, which [`Network::insert`] gives. Operations that are accepted end with one
/// completion or one failure, which names them by their context; what is posted returns 0 where it
/// was accepted, `-EAGAIN` where there is no room or no connection yet, and another negative error
/// number where the peer cannot be reached. Messages to one peer arrive in the order in which they were sent.
///
/// Its [`Device`] registers private buffers for operations of this PE.
pub trait Network: Device<Key: Default> + Send {
    /// Writes to one peer become visible in the order issued, and messages follow writes.
    fn is_ordered(&self) -> bool;

    /// Operations must say in which registered memory their local buffer lies.
    fn needs_local_registration(&self) -> bool;

    /// Longest message that needs no completion.
    fn inject_max(&self) -> usize;

    /// Longest message, the same at both ends: up to [`message::LONG_MESSAGE`], and [`message::SHORT_MESSAGE`] where
    /// many operations in one or long ones gain less than the buffers cost.
    fn message_max(&self) -> usize {
        message::SHORT_MESSAGE
    }

    /// Longest write whose source is copied by the call that posts it, registered or not.
    fn inline_max(&self) -> usize {
        0
    }

    /// Bytes of reads and writes to a peer after which all have to end before there are more. What else either side sends,
    /// such as a sign of life, may wait behind them: a few seconds at most where many share a slow link.
    fn under_way_max(&self) -> usize {
        16 << 20
    }

    /// Registers memory for operations of peers as well. Where the key can be chosen it is `key`.
    ///
    /// # Safety
    /// The memory stays valid until the network is closed.
    unsafe fn share(
        &mut self,
        at: *mut u8,
        len: usize,
        key: u64,
    ) -> Result<Shared<Self::Key>, String>;

    /// By what peers reach this PE.
    fn name(&self) -> Result<Vec<u8>, String>;

    /// Enters a peer; sends nothing.
    fn insert(&mut self, name: &[u8]) -> Result<u64, String>;

    /// Tells the name of the host of a peer, of which people are to be told.
    fn introduce(&mut self, _peer: u64, _host: &str) {}

    /// Forgets a peer: operations under way fail, and write nowhere afterwards.
    fn remove(&mut self, peer: u64);

    /// Posts a buffer for a message from anybody.
    ///
    /// # Safety
    /// Buffer and context are valid until the completion.
    unsafe fn receive(
        &mut self,
        buffer: *mut u8,
        len: usize,
        key: Self::Key,
        context: *mut c_void,
    ) -> isize;

    /// Sends a message. The completion says no more than that the buffer is free.
    ///
    /// # Safety
    /// Buffer and context are valid until the completion.
    unsafe fn send(
        &mut self,
        to: u64,
        buffer: *const u8,
        len: usize,
        key: Self::Key,
        context: *mut c_void,
    ) -> isize;

    /// Sends a message of up to [`Network::inject_max`] bytes, which is copied; nothing tells of its
    /// completion.
    fn inject(&mut self, to: u64, message: &[u8]) -> isize;

    /// Reads from a peer's memory.
    ///
    /// # Safety
    /// Buffer and context are valid until the completion.
    unsafe fn read(
        &mut self,
        from: u64,
        local: Local<Self::Key>,
        remote: RemoteAddress,
        context: *mut c_void,
    ) -> isize;

    /// Writes to a peer's memory. The completion says that the data can be read there.
    ///
    /// # Safety
    /// Buffer and context are valid until the completion.
    unsafe fn write(
        &mut self,
        to: u64,
        local: Local<Self::Key>,
        remote: RemoteAddress,
        context: *mut c_void,
    ) -> isize;

    /// What is carried out on the variables of a peer, or of this PE.
    fn atomics(&self, _peer: u64) -> Atomics {
        Atomics::default()
    }

    /// What is posted after [`Network::fence`] may overtake AMOs posted before it.
    fn overtakes_amos(&self) -> bool {
        false
    }

    /// Changes a variable of a peer, or of this PE. The completion says that it was changed, and that the
    /// old value is in the third of the words.
    ///
    /// # Safety
    /// Words and context are valid until the completion.
    unsafe fn amo(
        &mut self,
        _to: u64,
        _amo: Amo,
        _words: Words<Self::Key>,
        _remote: RemoteAddress,
        _context: *mut c_void,
    ) -> isize {
        -(libc::ENOSYS as isize)
    }

    /// Sees to it that what was accepted completes: somebody is about to wait.
    fn confirm(&mut self) {}

    /// What is posted after [`Network::fence`] may overtake reads posted before it, which then give what was
    /// written later. Most networks let answers wait for room while they go on with what else has come.
    fn overtakes_reads(&self) -> bool {
        true
    }

    /// What is posted from now on follows what was posted before, as far as the network can have it so.
    fn fence(&mut self) {}

    /// Makes progress and takes completions: their number, or the operation that failed.
    fn poll(&mut self, taken: &mut [Completion]) -> Result<usize, Failure>;

    /// Messages may arrive more than once, in the order sent or again from an earlier one on.
    fn repeats(&self) -> bool {
        false
    }

    /// A quarter of a second has passed.
    fn look(&mut self) {}

    /// What else has happened.
    fn event(&mut self) -> Option<Event> {
        None
    }

    /// What an error number means.
    fn meaning(&self, number: isize) -> String;

    /// Whether all there was has been taken, so that what comes next shows at the descriptor.
    fn may_sleep(&mut self) -> bool;
}

/// AMOs that a network carries out by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Atomics {
    /// Which.
    pub amos: AmoSet,
    /// They are atomic with those of the target's processor too, not among each other alone.
    pub coherent: bool,
}

impl Atomics {
    /// Those that are atomic among each other alone.
    pub fn of_device(&self) -> AmoSet {
        if self.coherent { AmoSet::NONE } else { self.amos }
    }

    /// Those that are atomic with those of the target's processor.
    pub fn of_processor(&self) -> AmoSet {
        if self.coherent { self.amos } else { AmoSet::NONE }
    }
}

/// What happens to a network beside its operations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Messages to this peer take another way from now on: of those before, the peer may have got the first
    /// ones and not the last ones.
    Moved(u64),
    /// This peer runs, although nothing of what was asked of it has ended.
    Alive(u64),
    /// This peer cannot be reached any more, and why.
    Lost(u64, String),
}

/// The end of an operation.
#[derive(Clone, Copy, Debug)]
pub struct Completion {
    /// Of the operation.
    pub context: *mut c_void,
    /// Of a message that came in: its length in bytes.
    pub len: usize,
}

impl Completion {
    /// A place for one.
    pub const NONE: Completion = Completion { context: null_mut(), len: 0 };
}

/// The end of an operation that failed.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Of the operation.
    pub context: *mut c_void,
    /// The peer refused it, and can be reached still.
    pub is_refusal: bool,
    /// What went wrong.
    pub why: String,
}

/// The local end of an operation.
#[derive(Clone, Copy, Debug)]
pub struct Local<K> {
    /// The buffer.
    pub at: *mut u8,
    /// Its length in bytes.
    pub len: usize,
    /// In which registered memory it lies.
    pub key: K,
}

/// What an AMO needs of local memory: its operand, its comparand and a place for the old value, as words
/// of 8 bytes.
#[derive(Clone, Copy, Debug)]
pub struct Words<K> {
    /// The first of them.
    pub at: *mut u64,
    /// In which registered memory they lie.
    pub key: K,
}

impl<K> Words<K> {
    /// Bytes of all.
    pub const SIZE: usize = 3 * size_of::<u64>();

    /// Writes what an AMO is to be given, zero-extended.
    ///
    /// # Safety
    /// The words are valid, and nobody else uses them.
    pub unsafe fn fill(at: *mut u64, amo: Amo) {
        // SAFETY: by the caller's word.
        unsafe {
            at.write(amo.operand);
            at.add(1).write(amo.compare);
        }
    }

    /// Operand, comparand and the place of the old value.
    pub fn places(&self) -> [*mut u64; 3] {
        [0, 1, 2].map(|index| self.at.wrapping_add(index))
    }
}

/// The far end of an operation.
#[derive(Clone, Copy, Debug)]
pub struct RemoteAddress {
    /// As the peer's network names it.
    pub address: u64,
    /// Of the peer's registered memory.
    pub key: u64,
}

/// Memory that peers reach.
#[derive(Clone, Copy, Debug, Default)]
pub struct Shared<K> {
    /// What own operations pass along.
    pub local: K,
    /// What peers pass along.
    pub key: u64,
    /// The address by which peers name its first byte.
    pub base: u64,
}

/// Whether a job is on one machine, so that addresses of the loop-back interface will do.
pub fn is_on_one_machine(job: &Job<'_>) -> bool {
    let first = job.localities[0].host;
    job.config.host.is_some() || job.localities.iter().all(|place| place.host == first)
}

/// Why a network is not wanted, if so: where there is another way to all PEs, unless it is named.
pub fn is_wanted(job: &Job<'_>, name: &str) -> Result<(), String> {
    match job.config.transports.asks_for(name) || !is_on_one_machine(job) {
        true => Ok(()),
        false => {
            Err("for several machines; on one machine only where SHMEM_TRANSPORTS names it".into())
        }
    }
}
