// SPDX-License-Identifier: Apache-2.0
//! Operations on remote memory: the checked path.
//!
//! The fast path, [`Table::remote`](crate::table::Table::remote) and a store, load, copy or CPU
//! atomic, is taken by callers. Everything it does not find comes here: peers that are not mapped,
//! sizes for which another channel was measured to be better, checks asked for by `SHMEM_DEBUG`, and
//! addresses that are wrong.

mod blocks;
mod emulate;
mod issue;
mod later;
mod served;
mod stripes;

pub use blocks::Strided;
pub(crate) use served::{ControlWire, Requesters};
use stripes::Transfer;

use crate::amo;
use crate::context::Context;
use crate::copy;
use crate::memory::statics::Constant;
use crate::reroute::Observation;
use crate::route::{Channel, PeerRoutes};
use crate::transport::{Amo, AmoOp, Remote, SegmentKind, Signal, SignalOp, Status, Stream};
use crate::wait::Reason;
use crate::world::World;
use crate::world::peers::Peer;
use std::sync::atomic::{Ordering, fence};

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

    /// As [`World::ptr`], for constants of the program too, which this PE itself has in the same place.
    pub fn ptr_to_read<T>(&self, address: *const T, pe: usize) -> *mut T {
        let found = self.ptr(address, pe);
        let here = found.is_null()
            && self.has_constant(address.cast(), size_of::<T>(), pe)
            && self.is_mapped(SegmentKind::Static, pe);
        if here { address.cast_mut() } else { found }
    }

    /// Whether `len` bytes at an address are constants of the program, and `pe`, which runs the same program,
    /// has the same ones there.
    #[cold]
    #[inline(never)]
    pub fn has_constant(&self, address: *const u8, len: usize, pe: usize) -> bool {
        let data = self.static_data();
        let constant = data.map_or(Constant::No, |data| data.constant(address as usize, len));
        let reached = || {
            let routes = &self.routes().peers[pe];
            routes.get[SegmentKind::Static as usize].choose(len) != Channel::Unreachable
        };
        match constant {
            Constant::No => false,
            // This PE need not ask anybody for its own.
            _ if pe == self.pe() => true,
            Constant::Alike => reached(),
            Constant::Relocated => false,
        }
    }

    /// The segment and offset of a symmetric address.
    #[inline]
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
        let near = within(data.base(), data.first_len());
        let offset = near.or_else(|| data.offset_beyond_first(address as usize))?;
        Some(Remote { segment: SegmentKind::Static, offset })
    }

    /// Bytes from `address` to the end of the segment that it is in, or of the part without gaps; 0 where
    /// it is in none.
    #[inline]
    pub fn room_at(&self, address: *const u8) -> usize {
        let room = |Remote { segment, offset }| match segment {
            SegmentKind::Heap => self.heap().len().saturating_sub(offset),
            SegmentKind::Static => self.static_data().map_or(0, |data| data.room_at(offset)),
        };
        self.locate(address).map_or(0, room)
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
        let routes = self.routes_to(context, pe);
        let mut channel = routes.put[target.segment as usize].choose(len);
        if let Channel::Either(either) = &channel {
            channel = Channel::Endpoint(context.one_of(either, len, mode));
        }
        match channel {
            Channel::Cached | Channel::Streaming => {
                let seen = Seen { get: false, target, pe, len, channel };
                // SAFETY: the target was located, so the mapped range is valid; the caller vouches
                // for the source.
                self.watched(context, seen, || unsafe {
                    copy_by(channel, self.mapped(target, pe), source, len);
                });
            }
            Channel::Endpoint(index) => {
                let peer = self.peer_of(index, pe, routine);
                let can = peer.can(target.segment);
                let is_word = || matches!(len, 4 | 8) && target.offset.is_multiple_of(len);
                if can.put_align > 1 || (!can.whole_words && is_word()) {
                    let align = can.put_align;
                    // SAFETY: the caller vouches for the source.
                    if unsafe {
                        self.put_by_parts(context, align, target, source, len, pe, routine)
                    } {
                        return;
                    }
                }
                let zero_copy = len >= routes.zero_copy[target.segment as usize];
                let way = Way { context, index, target, pe, routine };
                // SAFETY: as above.
                let sent = unsafe {
                    if zero_copy && mode == Mode::Blocking {
                        self.send_without_copy(way, source, len)
                    } else {
                        self.send(way, peer, source, len, mode)
                    }
                };
                if !sent && !self.is_dropped(target, pe) {
                    self.another_way(index, pe, target, false, routine);
                    // SAFETY: the same call once more, by another channel.
                    unsafe { self.put(context, dest, source, len, pe, mode, routine) };
                }
            }
            Channel::Striped(stripes) => {
                let local = source.cast_mut();
                let whole = Transfer { get: false, target, local, len, pe, mode };
                // SAFETY: the target was located; the caller vouches for the source.
                unsafe { self.striped(context, stripes, whole, routine) };
            }
            Channel::Either(_) | Channel::Service | Channel::Unreachable => {
                self.no_route(routine, target, pe)
            }
        }
    }

    /// The routes of a context's operations on a PE of the job.
    #[inline]
    fn routes_to(&self, context: &Context, pe: usize) -> &PeerRoutes {
        &self.routes().by_hint(context.hint())[pe]
    }

    /// Carries out an operation, timed if somebody wants to know. What measurements are corrected by is
    /// operations without a hint.
    #[inline]
    fn watched(&self, context: &Context, seen: Seen, operate: impl FnOnce()) {
        let Some(observer) = self.observer().filter(|_| context.hint().is_none()) else {
            return operate();
        };
        let begun = crate::board::monotonic_ns();
        operate();
        let Seen { get, target, pe, len: bytes, channel } = seen;
        let ns = crate::board::monotonic_ns() - begun;
        let segment = target.segment;
        observer.saw(self, Observation { get, segment, pe, bytes, channel, ns });
    }

    /// Whether an operation that failed is to be dropped: its PE is lost, the program goes on without it, and
    /// its memory is not shared with this PE. What is shared stays as the lost PE left it.
    #[cold]
    fn is_dropped(&self, target: Remote, pe: usize) -> bool {
        self.await_loss_verdict(pe) && !self.is_mapped(target.segment, pe)
    }

    /// After a transport failed: returns if puts (or gets) have another way, else ends the job.
    #[cold]
    fn another_way(&self, index: u8, pe: usize, target: Remote, get: bool, routine: &'static str) {
        if self.drop_channel(index, pe, target.segment, get, routine) {
            return;
        }
        if !self.is_lost(pe) && !self.transports().iter().any(|t| t.has_given_up(pe)) {
            let what = "no transport that is left carries out this operation on";
            self.stop_job(routine, format_args!("{what} PE {pe}; the warnings above say why"));
        }
        self.abort_lost(routine, pe);
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
        let Some(target) = self.place(routine, "source", source, len, pe, true) else {
            // SAFETY: constants of the program; the caller vouches for the destination.
            return unsafe { dest.copy_from(source, len) };
        };
        let mut channel = self.routes_to(context, pe).get[target.segment as usize].choose(len);
        if let Channel::Either(either) = &channel {
            channel = Channel::Endpoint(context.one_of(either, len, mode));
        }
        let seen = Seen { get: true, target, pe, len, channel };
        match channel {
            // SAFETY: the target was located; the caller vouches for the destination.
            Channel::Cached | Channel::Streaming => self.watched(context, seen, || unsafe {
                copy_by(channel, dest, self.mapped(target, pe), len);
            }),
            Channel::Endpoint(index) => {
                let mut received = true;
                let way = Way { context, index, target, pe, routine };
                // SAFETY: by the caller's word.
                let mut receive = || unsafe {
                    received = self.receive(way, dest, len, mode);
                };
                match mode {
                    Mode::Blocking => self.watched(context, seen, receive),
                    Mode::NonBlocking => receive(),
                }
                if !received && self.is_dropped(target, pe) {
                    // SAFETY: by the caller's word; no piece is under way any more.
                    unsafe { dest.write_bytes(0, len) };
                } else if !received {
                    self.another_way(index, pe, target, true, routine);
                    // SAFETY: the same call once more, by another channel.
                    unsafe { self.get(context, dest, source, len, pe, mode, routine) };
                }
            }
            Channel::Striped(stripes) => {
                let whole = Transfer { get: true, target, local: dest, len, pe, mode };
                // SAFETY: the target was located; the caller vouches for the destination.
                unsafe { self.striped(context, stripes, whole, routine) };
            }
            Channel::Either(_) | Channel::Service | Channel::Unreachable => {
                self.no_route(routine, target, pe)
            }
        }
        if mode == Mode::Blocking {
            copy::then_read();
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
        let Some(target) = self.amo_place(routine, variable, amo, pe) else {
            let constant = std::ptr::with_exposed_provenance_mut(variable.expose_provenance());
            // SAFETY: found in a constant of the program, and aligned; it is only read.
            return unsafe { amo::execute(constant, amo) };
        };
        let (channel, by_device) = self.amo_channel(target, amo, pe);
        match channel {
            // SAFETY: located and aligned.
            Channel::Cached | Channel::Streaming => unsafe {
                amo::execute(self.mapped(target, pe), amo)
            },
            Channel::Endpoint(index) => {
                let way = Way { context, index, target, pe, routine };
                self.amo_over_endpoint(way, amo, by_device)
            }
            Channel::Service => self.request_amo(target, amo, pe, routine),
            Channel::Striped(_) | Channel::Either(_) | Channel::Unreachable => {
                self.no_route(routine, target, pe)
            }
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
        let target = self.amo_place(routine, variable, amo, pe);
        if let Some(target) = target
            && let (Channel::Endpoint(index), by_device) = self.amo_channel(target, amo, pe)
            && let peer = self.peer_of(index, pe, routine)
            && peer.amos(target.segment, by_device).has(amo.op, amo.size)
        {
            let stream = context.stream(index.into());
            // SAFETY: the caller vouches for `fetch`.
            let accepted = self.until_accepted(routine, pe, || unsafe {
                peer.amo(stream, target, amo, fetch, by_device)
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
            let routes = self.routes_to(context, pe);
            let mut put = routes.put[target.segment as usize].choose(len);
            if let Channel::Either(either) = put {
                // Data and signal by the same transport are in order without waiting.
                put = Channel::Endpoint(either.transports[0]);
            }
            let (by_amo, by_device) = self.amo_channel(word_at, signal_amo, pe);
            if let Channel::Endpoint(index) = put {
                let peer = self.peer_of(index, pe, routine);
                let can = peer.can(target.segment);
                let whole = len <= can.put_max && can.put_align <= 1;
                // Setting a word is a store, in the CPU's domain by any way. A device may lose it to an
                // AMO that it carries out at the same time; the standard has a signal that sets exclude
                // none but such signals.
                let elsewhere = by_device || by_amo == Channel::Service;
                let coherent = if elsewhere { op == SignalOp::Set } else { by_amo == put };
                if coherent && whole && can.signals.has(signal_amo.op, 8) {
                    let signal = Signal { word: word_at, op, value };
                    let shared = context.stream(index.into());
                    let own = Stream::new(shared.id, true);
                    let waits =
                        mode == Mode::Blocking && len >= routes.zero_copy[target.segment as usize];
                    let stream = if waits { &own } else { shared };
                    let blocking = mode == Mode::Blocking && !waits;
                    let accepted = self.accepted(routine, pe, || {
                        // SAFETY: the caller vouches for the source.
                        unsafe {
                            peer.endpoint.put_signal(stream, target, source, len, signal, blocking)
                        }
                    });
                    if !accepted && !self.is_dropped(target, pe) {
                        self.another_way(index, pe, target, false, routine);
                        // SAFETY: the same call once more, by another channel.
                        return unsafe {
                            self.put_signal(
                                context, dest, source, len, word, value, op, pe, mode, routine,
                            )
                        };
                    }
                    if waits {
                        self.until_quiet(index, stream, routine, pe);
                    }
                    return;
                }
            }
            // SAFETY: as above.
            unsafe { self.put(context, dest, source, len, pe, mode, routine) };
            self.order_before(context, by_amo, routine);
        }
        // SAFETY: no result is asked for.
        unsafe { self.amo_nbi(context, None, word.cast(), signal_amo, pe, routine) };
    }

    /// Orders the context's operations to each PE before those issued later (OpenSHMEM 1.6,
    /// `shmem_fence`).
    ///
    /// A transport orders only what goes by itself. Where operations on a PE take several channels, or have taken
    /// others since the context's last fence, what is under way is waited for instead. What has failed is followed by
    /// nothing: later operations would arrive without it.
    pub fn fence(&self, context: &Context, routine: &'static str) {
        fence(Ordering::AcqRel);
        let (routes, sole) = self.sole();
        let is_routed_by = context.is_routed_by(routes);
        for (index, stream) in context.streams().iter().enumerate() {
            if stream.is_settled() {
                continue;
            }
            let is_sole = is_routed_by && sole >> index & 1 != 0;
            if is_sole && !stream.is_quiet() {
                self.order_on(index, stream, routine);
            } else {
                self.until_quiet(index as u8, stream, routine, self.pe());
            }
        }
        if !is_routed_by {
            context.note_routes(routes);
        }
    }

    /// Orders what the context has issued before an operation by the channel `next`.
    fn order_before(&self, context: &Context, next: Channel, routine: &'static str) {
        fence(Ordering::AcqRel);
        for (index, stream) in context.streams().iter().enumerate() {
            if stream.is_settled() {
                continue;
            }
            if next == Channel::Endpoint(index as u8) && !stream.is_quiet() {
                self.order_on(index, stream, routine);
            } else {
                self.until_quiet(index as u8, stream, routine, self.pe());
            }
        }
    }

    /// Orders what a stream has issued over one transport before what it issues over the same one.
    /// What is in order by itself needs nothing, not even a call.
    fn order_on(&self, index: usize, stream: &Stream, routine: &'static str) {
        if !self.peers().is_ordered(index) {
            let transport = &self.transports()[index];
            let done = || transport.fence(stream) != Status::Pending;
            self.until(routine, self.pe(), Reason::Completion, done);
        }
    }

    /// Waits until all operations of the context are complete (OpenSHMEM 1.6, `shmem_quiet`).
    pub fn quiet(&self, context: &Context, routine: &'static str) {
        // Stores to mapped memory must have left the store buffer, not only be ordered.
        fence(Ordering::SeqCst);
        for (index, stream) in context.streams().iter().enumerate() {
            // Of most transports nothing is under way: no call then.
            if !stream.is_settled() {
                self.until_quiet(index as u8, stream, routine, self.pe());
                context.settle(index);
            }
        }
    }

    /// Waits until the operations of the context on these PEs, by their numbers in the job, are complete (OpenSHMEM 1.6,
    /// `shmem_pe_quiet`). What a transport has under way to others is not waited for, where it tells them apart
    /// ([`Endpoint::is_quiet`](crate::transport::Endpoint::is_quiet)).
    pub fn pe_quiet(
        &self,
        context: &Context,
        pes: impl Iterator<Item = usize> + Clone,
        routine: &'static str,
    ) {
        fence(Ordering::SeqCst);
        for (index, stream) in context.streams().iter().enumerate() {
            if stream.is_settled() {
                continue;
            }
            let Some(transport) = self.transports().get(index) else {
                // Copies within the host.
                self.until_quiet(index as u8, stream, routine, self.pe());
                continue;
            };
            let mut endpoints = pes.clone().filter_map(|pe| self.endpoint(index, pe)).peekable();
            if endpoints.peek().is_none() {
                continue;
            }
            let done = || {
                if transport.quiet(stream) != Status::Pending {
                    return true;
                }
                // Those that were quiet once stay so, as far as this call is concerned.
                while endpoints.next_if(|endpoint| endpoint.is_quiet(stream)).is_some() {}
                endpoints.peek().is_none()
            };
            self.until(routine, self.pe(), Reason::Completion, done);
            self.has_not_failed(stream, routine);
            if stream.is_quiet() {
                context.settle(index);
            }
        }
    }

    /// Where an operation on `len` bytes at `address` of `pe` goes; ends the job if it goes nowhere.
    #[inline(always)]
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

    /// As [`World::target`] for what may only be read; none if it is a constant of the program.
    #[inline(always)]
    fn place(
        &self,
        routine: &'static str,
        argument: &str,
        address: *const u8,
        len: usize,
        pe: usize,
        reads: bool,
    ) -> Option<Remote> {
        if self.config().debug.0 {
            match reads {
                true => self.check_readable(routine, argument, address, len),
                false => self.check_range(routine, argument, address, len),
            }
        }
        if pe >= self.n_pes() {
            self.bad_pe(routine, pe as i64, self.n_pes());
        }
        self.locate(address).or_else(|| self.no_place(routine, argument, address, len, pe, reads))
    }

    /// None if constants are at an address that is not symmetric, the same at the PE as here, and are to be
    /// read; else ends the job.
    #[cold]
    #[inline(never)]
    fn no_place(
        &self,
        routine: &'static str,
        argument: &str,
        address: *const u8,
        len: usize,
        pe: usize,
        reads: bool,
    ) -> Option<Remote> {
        if reads && self.has_constant(address, len, pe) {
            return None;
        }
        self.not_symmetric(routine, argument, address)
    }

    /// Where the variable of an AMO is; none if it is a constant of the program, which is only read.
    #[inline]
    fn amo_place(
        &self,
        routine: &'static str,
        variable: *mut u8,
        amo: Amo,
        pe: usize,
    ) -> Option<Remote> {
        self.check_aligned(routine, variable, amo);
        let reads = amo.op == AmoOp::Fetch;
        self.place(routine, "variable", variable, amo.size.into(), pe, reads)
    }

    fn amo_target(&self, routine: &'static str, variable: *mut u8, amo: Amo, pe: usize) -> Remote {
        self.check_aligned(routine, variable, amo);
        self.target(routine, "variable", variable, amo.size.into(), pe)
    }

    fn check_aligned(&self, routine: &'static str, variable: *mut u8, amo: Amo) {
        let size = usize::from(amo.size);
        if !(variable as usize).is_multiple_of(size) {
            self.stop_job(
                routine,
                format_args!(
                    "address {variable:p} is not aligned to {size} bytes, as atomic operations need"
                ),
            );
        }
    }

    fn mapped(&self, target: Remote, pe: usize) -> *mut u8 {
        // SAFETY: the PE was checked by `target`, and the routes say that it is mapped.
        unsafe { self.table().remote(self.base(target.segment).wrapping_add(target.offset), pe) }
    }

    /// The channel of an AMO, and whether a device carries it out. What an endpoint does not do in the
    /// CPU's domain, the target does.
    fn amo_channel(&self, target: Remote, amo: Amo, pe: usize) -> (Channel, bool) {
        let channel = self.routes().peers[pe].amo[target.segment as usize];
        let Channel::Endpoint(index) = channel else { return (channel, false) };
        let devices = &self.devices[pe];
        if devices[usize::from(amo.size == 8)].is_some() {
            return (channel, true);
        }
        // The device has variables of the other size.
        if devices.iter().any(Option::is_some)
            && !self.ptr(self.base(target.segment).cast_const(), pe).is_null()
        {
            return (Channel::Cached, false);
        }
        let can = self.peer(index.into(), pe).map(|peer| peer.can(target.segment));
        match can {
            Some(can) if !can.amos.has(amo.op, amo.size) => (Channel::Service, false),
            _ => (channel, false),
        }
    }

    fn peer_of(&self, index: u8, pe: usize, routine: &'static str) -> &Peer {
        self.peer(index.into(), pe).unwrap_or_else(|| {
            self.stop_job(routine, format_args!("the route to PE {pe} names no endpoint"))
        })
    }

    #[cold]
    fn no_route(&self, routine: &'static str, target: Remote, pe: usize) -> ! {
        let (what, hint) = match target.segment {
            SegmentKind::Heap => ("the symmetric heap", ""),
            SegmentKind::Static if self.shares_static_data() => ("static data", ""),
            SegmentKind::Static => (
                "static data",
                "; the static data of this job are not in shared memory (SHMEM_STATIC), what shmem_malloc gives is",
            ),
        };
        let transports = self.transports().iter().enumerate();
        let others = transports.filter(|(index, _)| self.peer(*index, pe).is_some());
        let others: String = others
            .map(|(_, transport)| format!("{}: not this memory; ", transport.name()))
            .collect();
        let why = self.why_unreachable(pe);
        self.stop_job(
            routine,
            format_args!("no transport reaches {what} of PE {pe} ({others}{why}){hint}"),
        )
    }
}

/// Where an operation over an endpoint goes, and on whose behalf.
#[derive(Clone, Copy)]
struct Way<'a> {
    context: &'a Context,
    /// The transport.
    index: u8,
    target: Remote,
    pe: usize,
    routine: &'static str,
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
