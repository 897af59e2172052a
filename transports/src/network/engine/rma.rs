// SPDX-License-Identifier: Apache-2.0
//! Puts and gets by RMA, and AMOs of the network.

use super::{CHUNK, Engine, Owner, RMAS, accepted, count_issued};
use crate::network::message::Record;
use crate::network::{Failure, Local, Network, RemoteAddress, Words};
use std::ffi::c_void;
use std::ptr::{copy_nonoverlapping, null, null_mut};
use std::sync::atomic::Ordering;
use tombolo_core::registration::{Held, Slab};
use tombolo_core::transport::{Amo, Remote, Status, Stream};

/// An RMA operation under way.
pub struct Rma<K> {
    /// Null when nobody waits for it: its place is free, or its peer was given up.
    pub stream: *const Stream,
    pub pe: u32,
    is_read: bool,
    taken: Taken<K>,
    /// What is copied when it is complete, and where to; nothing if that is null.
    copy_from: *const u8,
    copy_to: *mut u8,
    len: usize,
    /// The signal that follows the data.
    signal: Option<(Remote, Amo)>,
}

impl<K> Default for Rma<K> {
    fn default() -> Rma<K> {
        Rma {
            stream: null(),
            pe: 0,
            is_read: false,
            taken: Taken::NOTHING,
            copy_from: null(),
            copy_to: null_mut(),
            len: 0,
            signal: None,
        }
    }
}

/// A signal that is to be sent, because its data have arrived.
#[derive(Clone, Copy)]
pub struct Due {
    pub stream: *const Stream,
    pub pe: u32,
    at: Remote,
    amo: Amo,
}

/// The buffer of an operation, as the network gets it.
struct Buffer<K> {
    at: *mut u8,
    key: K,
    taken: Taken<K>,
}

/// What an operation took for its buffer, and gives back when it ends.
struct Taken<K> {
    /// Buffer that the network works on instead of the caller's.
    chunk: Option<u16>,
    /// Registration of the caller's buffer.
    held: Option<Held<K>>,
    /// Copy of a source that cannot be registered.
    copy: Option<Box<Copied<K>>>,
}

impl<K> Taken<K> {
    const NOTHING: Taken<K> = Taken { chunk: None, held: None, copy: None };
}

/// Memory that was registered for one operation.
struct Copied<K> {
    bytes: Slab,
    key: K,
}

impl<K> Rma<K> {
    /// An operation with a buffer, after which nothing is to be done.
    fn of(stream: &Stream, pe: u32, taken: Taken<K>, len: usize) -> Rma<K> {
        Rma { stream, pe, taken, len, ..Rma::default() }
    }
}

impl<N: Network> Engine<N> {
    /// Writes to a peer, and sends the signal, if there is one, when the data have arrived.
    ///
    /// # Safety
    /// As `Endpoint::put`; a blocking one is not longer than [`CHUNK`].
    #[expect(clippy::too_many_arguments, reason = "a put and its signal")]
    pub unsafe fn write(
        &mut self,
        stream: &Stream,
        pe: u32,
        dest: Remote,
        source: *const u8,
        len: usize,
        blocking: bool,
        signal: Option<(Remote, Amo)>,
    ) -> Status {
        if let Some(status) = self.not_now(stream, pe, dest, len) {
            return status;
        }
        // Where the order is kept the signal may follow at once; its place is made sure of first.
        let at_once = signal.is_some() && self.net.is_ordered();
        if let Some((at, amo)) = signal.filter(|_| at_once) {
            let record = Record::Amo { at, amo, fetch: false };
            if self.room(pe, record.len(), 0).is_none() {
                return Status::Again;
            }
        }
        let local = match self.local(pe, source.cast_mut(), len, Some(blocking)) {
            Ok(local) => local,
            Err(status) => return status,
        };
        if local.taken.chunk.is_some() {
            // SAFETY: the chunk is free and long enough; the caller vouches for the source.
            unsafe { copy_nonoverlapping(source, local.at, len) };
        }
        let later = signal.filter(|_| !at_once);
        let near = Local { at: local.at, len, key: local.key };
        let rma = Rma { signal: later, ..Rma::of(stream, pe, local.taken, len) };
        let status = self.issue(rma, dest, |net, to, far, context| {
            // SAFETY: source or chunk and the context stay until the completion.
            unsafe { net.write(to, near, far, context) }
        });
        if later.is_some() {
            // The signal follows when the data can be read.
            self.net.confirm();
        }
        if let Some((at, amo)) = signal.filter(|_| at_once && status == Status::Pending) {
            let record = Record::Amo { at, amo, fetch: false };
            self.append(stream, pe, &record, null_mut());
            self.flush(pe);
        }
        status
    }

    /// Reads from a peer.
    ///
    /// # Safety
    /// As `Endpoint::get`.
    pub unsafe fn read(
        &mut self,
        stream: &Stream,
        pe: u32,
        dest: *mut u8,
        source: Remote,
        len: usize,
    ) -> Status {
        if let Some(status) = self.not_now(stream, pe, source, len) {
            return status;
        }
        let local = match self.local(pe, dest, len, None) {
            Ok(local) => local,
            Err(status) => return status,
        };
        let near = Local { at: local.at, len, key: local.key };
        let mut rma = Rma { is_read: true, ..Rma::of(stream, pe, local.taken, len) };
        if rma.taken.chunk.is_some() {
            (rma.copy_from, rma.copy_to) = (near.at, dest);
        }
        self.issue(rma, source, |net, from, far, context| {
            // SAFETY: destination or chunk and the context stay until the completion.
            unsafe { net.read(from, near, far, context) }
        })
    }

    /// Has the network change a variable of a peer.
    ///
    /// # Safety
    /// As `Endpoint::device_amo`; `result` is null if nobody wants the old value.
    pub unsafe fn amo(
        &mut self,
        stream: &Stream,
        pe: u32,
        target: Remote,
        amo: Amo,
        result: *mut u8,
    ) -> Status {
        if let Some(status) = self.not_now(stream, pe, target, amo.size.into()) {
            return status;
        }
        // The place that `issue` takes has words of its own.
        let Some(index) = self.free_rmas.last() else { return self.no_room() };
        let words = Words { at: self.words(*index), key: self.key };
        // SAFETY: the engine's own, and free as the place is.
        unsafe { Words::<N::Key>::fill(words.at, amo) };
        let rma = Rma {
            stream,
            pe,
            copy_from: words.places()[2].cast(),
            copy_to: result,
            len: amo.size.into(),
            ..Rma::default()
        };
        self.issue(rma, target, |net, to, far, context| {
            // SAFETY: the words and the context stay until the completion.
            unsafe { net.amo(to, amo, words, far, context) }
        })
    }

    /// Why an operation cannot be issued now, if it cannot.
    fn not_now(&mut self, stream: &Stream, pe: u32, remote: Remote, len: usize) -> Option<Status> {
        if self.peers[pe as usize].is_lost || !self.holds(pe, remote, len) {
            return Some(Status::Failed);
        }
        self.use_peer(pe);
        let peer = &mut self.peers[pe as usize];
        peer.is_full |= peer.under_way > 0 && peer.under_way + len > self.net.under_way_max();
        if peer.is_full {
            return Some(self.no_room());
        }
        (!self.may_pass(pe, stream)).then_some(Status::Again)
    }

    /// The caller's buffer, or what stands for it in an operation on a peer; a write says whether its
    /// source is to be free when the call returns. Errors: there is no room for that now, or it cannot be
    /// registered.
    fn local(
        &mut self,
        pe: u32,
        at: *mut u8,
        len: usize,
        write: Option<bool>,
    ) -> Result<Buffer<N::Key>, Status> {
        let copied = write == Some(true);
        if write.is_some() && len <= self.net.inline_max() {
            return Ok(Buffer { at, key: N::Key::default(), taken: Taken::NOTHING });
        }
        let registered = !self.net.needs_local_registration();
        let inside = self.own.iter().find(|own| {
            let offset = (at as usize).wrapping_sub(own.base as usize);
            offset < own.len && len <= own.len - offset
        });
        let key = match inside {
            _ if registered => Some(N::Key::default()),
            own => own.map(|own| own.shared.local),
        };
        if let Some(key) = key.filter(|_| !copied) {
            return Ok(Buffer { at, key, taken: Taken::NOTHING });
        }
        if len <= CHUNK {
            let Some(chunk) = self.free_chunks.pop() else { return Err(self.no_room()) };
            let at = self.chunk(chunk);
            let taken = Taken { chunk: Some(chunk), ..Taken::NOTHING };
            return Ok(Buffer { at, key: self.key, taken });
        }
        // SAFETY: the caller vouches for the buffer until the completion, which gives it back.
        let why = match unsafe { self.cache.acquire(&mut self.net, at, len, write.is_some()) } {
            Ok(held) => {
                let taken = Taken { held: Some(held), ..Taken::NOTHING };
                return Ok(Buffer { at, key: held.key, taken });
            }
            Err(why) => why,
        };
        // Some devices cannot register memory that this process may not write, such as constants.
        // SAFETY: by the caller's word.
        match write.and_then(|_| unsafe { self.copy_of(at, len) }) {
            Some(copy) => Ok(copy),
            // Operations that end give registrations back.
            None if self.free_rmas.len() < RMAS => Err(self.no_room()),
            None => {
                // The peer is not lost: another transport may reach it. What this context has fenced is complete, or this
                // had to wait.
                tracing::warn!(
                    "the network device cannot use {len} bytes of memory at {at:p}, for an operation on PE {pe}: \
                     {why} (the limit of locked memory, ulimit -l, may be too low)"
                );
                Err(Status::Failed)
            }
        }
    }

    /// Operations under way have all the places there are: sees to it that they end.
    fn no_room(&mut self) -> Status {
        self.net.confirm();
        Status::Again
    }

    /// A copy of a source in memory that is registered for this operation alone, if that is possible.
    ///
    /// # Safety
    /// `source` is valid for reads of `len` bytes.
    unsafe fn copy_of(&mut self, source: *const u8, len: usize) -> Option<Buffer<N::Key>> {
        let bytes = Slab::new(len);
        let at = bytes.base();
        // SAFETY: the slab is given back after the registration.
        let key = unsafe { self.net.register(at, len) }.ok()?;
        // SAFETY: the slab is fresh and as long; the caller vouches for the source.
        unsafe { copy_nonoverlapping(source, at, len) };
        let copy = Some(Box::new(Copied { bytes, key }));
        Some(Buffer { at, key, taken: Taken { copy, ..Taken::NOTHING } })
    }

    fn release(&mut self, taken: Taken<N::Key>) {
        self.free_chunks.extend(taken.chunk);
        if let Some(held) = taken.held {
            self.cache.release(&mut self.net, held);
        }
        if let Some(copy) = taken.copy {
            let Copied { bytes, key } = *copy;
            self.net.unregister(key);
            drop(bytes);
        }
    }

    /// Posts an operation on `at` of its peer, if there is a place for it. `post` gets the network, the
    /// peer's address, the far end and the context.
    fn issue(
        &mut self,
        rma: Rma<N::Key>,
        at: Remote,
        post: impl FnOnce(&mut N, u64, RemoteAddress, *mut c_void) -> isize,
    ) -> Status {
        let Some(index) = self.free_rmas.pop() else {
            self.release(rma.taken);
            return self.no_room();
        };
        let pe = rma.pe;
        let theirs = self.peers[pe as usize].theirs;
        let segment = theirs.segments[at.segment as usize];
        let address = segment.base.wrapping_add(at.offset as u64);
        let context = self.context(Owner::Rma(index.into()));
        let far = RemoteAddress { address, key: segment.key };
        let result = post(&mut self.net, theirs.address, far, context);
        let status = accepted(result);
        self.peers[pe as usize].is_blocked = status == Some(Status::Again);
        if status == Some(Status::Pending) {
            // SAFETY: the stream of an operation that is just being issued.
            count_issued(unsafe { &*rma.stream }, 1);
            let peer = &mut self.peers[pe as usize];
            (peer.rmas, peer.under_way) = (peer.rmas + 1, peer.under_way + rma.len);
            self.rmas[usize::from(index)] = rma;
            return Status::Pending;
        }
        self.release(rma.taken);
        self.free_rmas.push(index);
        status.unwrap_or_else(|| {
            let why = self.net.meaning(result);
            self.lose(pe, &why);
            Status::Failed
        })
    }

    /// An operation is over; the network has let go of its context and buffer.
    pub(super) fn rma_done(&mut self, index: usize, result: Result<(), Failure>) {
        let rma = std::mem::take(&mut self.rmas[index]);
        self.free_rmas.push(index as u16);
        // SAFETY: streams live until everything issued on them has completed.
        let stream = unsafe { rma.stream.as_ref() };
        if stream.is_some() && result.is_ok() && !rma.copy_to.is_null() {
            // SAFETY: the caller vouched for the destination; the data are in the operation's own buffer.
            unsafe { copy_nonoverlapping(rma.copy_from, rma.copy_to, rma.len) };
        }
        self.release(rma.taken);
        // Of a peer that was given up.
        let Some(stream) = stream else { return };
        let peer = &mut self.peers[rma.pe as usize];
        (peer.rmas, peer.under_way) = (peer.rmas - 1, peer.under_way - rma.len);
        peer.is_full &= peer.rmas > 0;
        match result {
            Ok(()) => {
                self.counters.rma += 1;
                self.hear(rma.pe);
                match rma.signal {
                    Some((at, amo)) => {
                        self.due.push_back(Due { stream, pe: rma.pe, at, amo });
                    }
                    None => _ = stream.completed.fetch_add(1, Ordering::Release),
                }
            }
            Err(Failure { is_refusal, why, .. }) => {
                if !is_refusal {
                    self.lose(rma.pe, &why);
                }
                stream.fail(rma.pe, is_refusal);
            }
        }
    }

    /// Sends signals whose data have arrived.
    pub(super) fn signal_due(&mut self) {
        let mut at = 0;
        while let Some(due) = self.due.get(at).copied() {
            let record = Record::Amo { at: due.at, amo: due.amo, fetch: false };
            if self.room(due.pe, record.len(), 0).is_none() {
                // It must not hold up those to others. Those to the same PE find no room either, and keep their order.
                at += 1;
                continue;
            }
            self.due.remove(at);
            // SAFETY: streams live until everything issued on them has completed.
            let stream = unsafe { &*due.stream };
            // Counted with its data, so not once more.
            self.append_uncounted(stream, due.pe, &record, null_mut());
            self.flush(due.pe);
        }
    }

    /// Whether RMA operations on a stream to a peer are under way, or reads if these alone count.
    pub(super) fn has_rma(&self, stream: &Stream, pe: u32, only_reads: bool) -> bool {
        let own = |rma: &&Rma<N::Key>| {
            rma.pe == pe && std::ptr::eq(rma.stream, stream) && (rma.is_read || !only_reads)
        };
        let due = |due: &&Due| due.pe == pe && std::ptr::eq(due.stream, stream);
        self.peers[pe as usize].rmas > 0 && self.rmas.iter().any(|rma| own(&rma))
            || !only_reads && self.due.iter().any(|one| due(&one))
    }
}
