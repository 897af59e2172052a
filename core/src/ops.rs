//! Operations on remote memory: the checked path.
//!
//! The fast path, [`Table::remote`](crate::table::Table::remote) and a store, load, copy or CPU
//! atomic, is taken by callers. Everything it does not find comes here: peers that are not mapped,
//! sizes for which another channel was measured to be better, checks asked for by `SHMEM_DEBUG`, and
//! addresses that are wrong.

mod issue;
mod served;

use crate::amo;
use crate::context::Context;
use crate::copy;
use crate::reroute::Observation;
use crate::route::Channel;
use crate::transport::{
    Amo, AmoOp, Endpoint, Remote, SegmentKind, Signal, SignalOp, Status, Stream,
};
use crate::world::World;
use std::sync::atomic::{Ordering, compiler_fence, fence};

/// Whether the source of a put may be reused when it returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// At once.
    Blocking,
    /// After the next quiet.
    NonBlocking,
}

impl World {
    /// The address in this process of `address` at `pe`; null if the PE is not mapped or the
    /// address not symmetric (OpenSHMEM 1.6, `shmem_ptr`).
    #[expect(clippy::not_unsafe_ptr_arg_deref, reason = "the address is compared, not read")]
    pub fn ptr<T>(&self, address: *const T, pe: usize) -> *mut T {
        assert!(pe < self.n_pes(), "PE {pe} of {}", self.n_pes());
        // SAFETY: the PE was checked; the address is only compared.
        unsafe { self.table().remote(address, pe) }
    }

    /// The segment and offset of a symmetric address.
    pub fn locate(&self, address: *const u8) -> Option<Remote> {
        let within = |base: *mut u8, len: usize| {
            let offset = (address as usize).wrapping_sub(base as usize);
            (offset < len).then_some(offset)
        };
        let heap = self.heap();
        if let Some(offset) = within(heap.base(), heap.len()) {
            return Some(Remote { segment: SegmentKind::Heap, offset });
        }
        let data = self.static_data()?;
        let offset = within(data.base(), data.len())?;
        Some(Remote { segment: SegmentKind::Static, offset })
    }

    /// Copies `len` bytes from `source` to symmetric `dest` at `pe`.
    ///
    /// # Safety
    /// `source` is readable for `len` bytes, for as long as `mode` says.
    #[expect(clippy::too_many_arguments, reason = "the arguments of shmem_putmem")]
    pub unsafe fn put(
        &self,
        context: &Context,
        dest: *mut u8,
        source: *const u8,
        len: usize,
        pe: usize,
        mode: Mode,
        routine: &'static str,
    ) {
        if len == 0 {
            return;
        }
        let target = self.target(routine, "dest", dest, len, pe);
        let routes = &self.routes().peers[pe];
        let channel = routes.put[target.segment as usize].choose(len);
        match channel {
            Channel::Cached | Channel::Streaming => {
                let seen = Seen { get: false, target, pe, len, channel };
                // SAFETY: the target was located, so the mapped range is valid; the caller vouches
                // for the source.
                self.watched(seen, || unsafe {
                    copy_by(channel, self.mapped(target, pe), source, len);
                });
            }
            Channel::Endpoint(index) => {
                let endpoint = self.endpoint_of(index, pe, routine);
                let word = matches!(len, 4 | 8) && target.offset.is_multiple_of(len);
                if word && !endpoint.capabilities().whole_words {
                    // SAFETY: the caller vouches for the source.
                    unsafe { self.put_word(target, source, len, pe, routine) };
                    return;
                }
                let straight = len >= routes.straight[target.segment as usize];
                // SAFETY: as above.
                let sent = unsafe {
                    if straight && mode == Mode::Blocking {
                        self.send_straight(context, index, target, source, len, pe, routine)
                    } else {
                        self.send(context, index, endpoint, target, source, len, pe, mode, routine)
                    }
                };
                if !sent && !self.is_dropped(pe) {
                    self.another_way(index, pe, target, false, routine);
                    // SAFETY: the same call once more, by another channel.
                    unsafe { self.put(context, dest, source, len, pe, mode, routine) };
                }
            }
            Channel::Service | Channel::Unreachable => self.no_route(routine, target, pe),
        }
    }

    /// Has the target set a word that its transport might tear.
    ///
    /// # Safety
    /// `source` is readable for `len`, 4 or 8, bytes.
    #[inline(never)]
    unsafe fn put_word(
        &self,
        target: Remote,
        source: *const u8,
        len: usize,
        pe: usize,
        routine: &'static str,
    ) {
        // SAFETY: by the caller's word.
        let value = unsafe { read_word(source, len) };
        let set = Amo { op: AmoOp::Set, size: len as u8, operand: value, compare: 0 };
        self.request(target, set, pe, routine);
    }

    /// Carries out an operation, timed if somebody wants to know.
    #[inline]
    fn watched(&self, seen: Seen, operate: impl FnOnce()) {
        let Some(observer) = self.observer() else { return operate() };
        let begun = crate::board::monotonic_ns();
        operate();
        let Seen { get, target, pe, len: bytes, channel } = seen;
        let ns = crate::board::monotonic_ns() - begun;
        let segment = target.segment;
        observer.saw(self, Observation { get, segment, pe, bytes, channel, ns });
    }

    /// After a transport failed: returns if puts (or gets) have another way, else ends the job.
    #[cold]
    fn another_way(&self, index: u8, pe: usize, target: Remote, get: bool, routine: &'static str) {
        if !self.drop_channel(index, pe, target.segment, get, routine) {
            self.lost(routine, pe);
        }
    }

    /// Copies `len` bytes from symmetric `source` at `pe` to `dest`. Non-blocking gets are complete
    /// after the next quiet.
    ///
    /// # Safety
    /// `dest` is writable for `len` bytes, for as long as `mode` says.
    #[expect(clippy::too_many_arguments, reason = "the arguments of shmem_getmem")]
    pub unsafe fn get(
        &self,
        context: &Context,
        dest: *mut u8,
        source: *const u8,
        len: usize,
        pe: usize,
        mode: Mode,
        routine: &'static str,
    ) {
        if len == 0 {
            return;
        }
        let target = self.target(routine, "source", source.cast_mut(), len, pe);
        let channel = self.routes().peers[pe].get[target.segment as usize].choose(len);
        let seen = Seen { get: true, target, pe, len, channel };
        match channel {
            // SAFETY: the target was located; the caller vouches for the destination.
            Channel::Cached | Channel::Streaming => self.watched(seen, || unsafe {
                copy_by(channel, dest, self.mapped(target, pe), len);
            }),
            Channel::Endpoint(index) => {
                let mut received = true;
                // SAFETY: by the caller's word.
                let mut receive = || unsafe {
                    received = self.receive(context, index, dest, target, len, pe, mode, routine);
                };
                match mode {
                    Mode::Blocking => self.watched(seen, receive),
                    Mode::NonBlocking => receive(),
                }
                if !received && self.is_dropped(pe) {
                    // SAFETY: by the caller's word; no piece is under way any more.
                    unsafe { dest.write_bytes(0, len) };
                } else if !received {
                    self.another_way(index, pe, target, true, routine);
                    // SAFETY: the same call once more, by another channel.
                    unsafe { self.get(context, dest, source, len, pe, mode, routine) };
                }
            }
            Channel::Service | Channel::Unreachable => self.no_route(routine, target, pe),
        }
    }

    /// Executes an AMO on a variable of `pe` and returns its old value, zero-extended.
    pub fn amo_fetch(
        &self,
        context: &Context,
        variable: *mut u8,
        amo: Amo,
        pe: usize,
        routine: &'static str,
    ) -> u64 {
        let target = self.amo_target(routine, variable, amo, pe);
        match self.routes().peers[pe].amo[target.segment as usize] {
            // SAFETY: located and aligned.
            Channel::Cached | Channel::Streaming => unsafe {
                amo::execute(self.mapped(target, pe), amo)
            },
            Channel::Endpoint(index) => {
                let endpoint = self.endpoint_of(index, pe, routine);
                let own = Stream::new(context.stream(index.into()).id, true);
                // What a lost PE answers.
                let mut result = 0u64;
                let place = (&raw mut result).cast::<u8>();
                self.until_accepted(routine, pe, || {
                    // SAFETY: the result lives until the stream is quiet, waited for below.
                    unsafe { endpoint.amo(&own, target, amo, Some(place)) }
                });
                self.until_quiet(&own, routine, pe);
                // SAFETY: written by another thread before the count seen above.
                unsafe { std::ptr::read_volatile(&raw const result) }
            }
            Channel::Service => self.request(target, amo, pe, routine),
            Channel::Unreachable => self.no_route(routine, target, pe),
        }
    }

    /// Executes an AMO whose old value goes to `fetch`, complete after the next quiet; or to nobody.
    ///
    /// # Safety
    /// `fetch` is writable for `amo.size` bytes until the next quiet of the context.
    pub unsafe fn amo_nbi(
        &self,
        context: &Context,
        fetch: Option<*mut u8>,
        variable: *mut u8,
        amo: Amo,
        pe: usize,
        routine: &'static str,
    ) {
        let target = self.amo_target(routine, variable, amo, pe);
        if let Channel::Endpoint(index) = self.routes().peers[pe].amo[target.segment as usize] {
            let endpoint = self.endpoint_of(index, pe, routine);
            let stream = context.stream(index.into());
            // SAFETY: the caller vouches for `fetch`.
            let accepted = self.until_accepted(routine, pe, || unsafe {
                endpoint.amo(stream, target, amo, fetch)
            });
            if let Some(fetch) = fetch.filter(|_| !accepted) {
                // SAFETY: as above.
                unsafe { fetch.write_bytes(0, amo.size.into()) };
            }
            return;
        }
        let old = self.amo_fetch(context, variable, amo, pe, routine);
        if let Some(fetch) = fetch {
            // SAFETY: the caller vouches for `fetch`; little-endian, so the low bytes come first.
            unsafe {
                std::ptr::copy_nonoverlapping((&raw const old).cast(), fetch, amo.size.into());
            }
        }
    }

    /// A put, then an update of the signal word that is visible only after the data.
    ///
    /// # Safety
    /// As [`World::put`].
    #[expect(clippy::too_many_arguments, reason = "the arguments of shmem_putmem_signal")]
    pub unsafe fn put_signal(
        &self,
        context: &Context,
        dest: *mut u8,
        source: *const u8,
        len: usize,
        word: *mut u64,
        value: u64,
        op: SignalOp,
        pe: usize,
        mode: Mode,
        routine: &'static str,
    ) {
        let signal_amo = Amo { op: op.into(), size: 8, operand: value, compare: 0 };
        let word_at = self.amo_target(routine, word.cast(), signal_amo, pe);
        if len > 0 {
            let target = self.target(routine, "dest", dest, len, pe);
            let routes = &self.routes().peers[pe];
            let put = routes.put[target.segment as usize].choose(len);
            if let Channel::Endpoint(index) = put
                && routes.amo[word_at.segment as usize] == put
            {
                let endpoint = self.endpoint_of(index, pe, routine);
                let can = endpoint.capabilities();
                if can.put_signal && (can.max_bytes == 0 || len <= can.max_bytes) {
                    let signal = Signal { word: word_at, op, value };
                    let blocking = mode == Mode::Blocking;
                    let stream = context.stream(index.into());
                    self.until_accepted(routine, pe, || {
                        // SAFETY: the caller vouches for the source.
                        unsafe {
                            endpoint.put_signal(stream, target, source, len, signal, blocking)
                        }
                    });
                    return;
                }
            }
            // SAFETY: as above.
            unsafe { self.put(context, dest, source, len, pe, mode, routine) };
            self.fence(context, routine);
        }
        // SAFETY: no result is asked for.
        unsafe { self.amo_nbi(context, None, word.cast(), signal_amo, pe, routine) };
    }

    /// Orders the context's operations to each PE before those issued later (OpenSHMEM 1.6,
    /// `shmem_fence`).
    pub fn fence(&self, context: &Context, routine: &'static str) {
        fence(Ordering::AcqRel);
        for (index, stream) in context.streams().iter().enumerate() {
            if stream.is_quiet() {
                continue;
            }
            for pe in 0..self.n_pes() {
                if let Some(endpoint) = self.endpoint(index, pe) {
                    self.until(routine, pe, || endpoint.fence(stream) != Status::Pending);
                }
            }
        }
    }

    /// Waits until all operations of the context are complete (OpenSHMEM 1.6, `shmem_quiet`).
    pub fn quiet(&self, context: &Context, routine: &'static str) {
        // Stores to mapped memory must have left the store buffer, not only be ordered.
        fence(Ordering::SeqCst);
        for stream in context.streams() {
            self.until_quiet(stream, routine, self.pe());
        }
        compiler_fence(Ordering::Acquire);
    }

    /// Where an operation on `len` bytes at `address` of `pe` goes; ends the job if it goes nowhere.
    fn target(
        &self,
        routine: &'static str,
        argument: &str,
        address: *mut u8,
        len: usize,
        pe: usize,
    ) -> Remote {
        if self.config().debug.0 {
            self.check_range(routine, argument, address, len);
        }
        if pe >= self.n_pes() {
            self.bad_pe(routine, pe as i64, self.n_pes());
        }
        match self.locate(address) {
            Some(target) => target,
            None => self.not_symmetric(routine, argument, address),
        }
    }

    fn amo_target(&self, routine: &'static str, variable: *mut u8, amo: Amo, pe: usize) -> Remote {
        let size = usize::from(amo.size);
        if !(variable as usize).is_multiple_of(size) {
            self.stop_job(
                routine,
                format_args!(
                    "address {variable:p} is not aligned to {size} bytes, as atomic operations need"
                ),
            );
        }
        self.target(routine, "variable", variable, size, pe)
    }

    fn mapped(&self, target: Remote, pe: usize) -> *mut u8 {
        let base = match target.segment {
            SegmentKind::Heap => self.heap().base(),
            SegmentKind::Static => self.static_data().map_or(std::ptr::null_mut(), |d| d.base()),
        };
        // SAFETY: the PE was checked by `target`, and the routes say that it is mapped.
        unsafe { self.table().remote(base.wrapping_add(target.offset), pe) }
    }

    fn endpoint_of(&self, index: u8, pe: usize, routine: &'static str) -> &dyn Endpoint {
        self.endpoint(index.into(), pe).unwrap_or_else(|| {
            self.stop_job(routine, format_args!("the route to PE {pe} names no endpoint"))
        })
    }

    #[cold]
    fn no_route(&self, routine: &'static str, target: Remote, pe: usize) -> ! {
        let what = match target.segment {
            SegmentKind::Heap => "the symmetric heap",
            SegmentKind::Static => "static data",
        };
        let why = self.why_unreachable(pe);
        self.stop_job(routine, format_args!("no transport reaches {what} of PE {pe} ({why})"))
    }
}

/// What an observer is told, but for the time.
struct Seen {
    get: bool,
    target: Remote,
    pe: usize,
    len: usize,
    channel: Channel,
}

/// # Safety
/// Both ranges are valid for `len` bytes.
unsafe fn copy_by(channel: Channel, dest: *mut u8, source: *const u8, len: usize) {
    // SAFETY: by the caller's word.
    unsafe {
        match channel {
            Channel::Streaming => copy::streaming(dest, source, len),
            _ => copy::cached(dest, source, len),
        }
    }
}

/// # Safety
/// `source` is readable for `len`, 4 or 8, bytes.
unsafe fn read_word(source: *const u8, len: usize) -> u64 {
    // SAFETY: by the caller's word.
    unsafe {
        match len {
            4 => u64::from(source.cast::<u32>().read_unaligned()),
            _ => source.cast::<u64>().read_unaligned(),
        }
    }
}
