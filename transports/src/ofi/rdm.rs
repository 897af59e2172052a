// SPDX-License-Identifier: Apache-2.0
//! One reliable datagram endpoint of libfabric with its completion queue, its peers' addresses and
//! the memory registered with it.
//!
//! The objects are opened for use by one thread at a time; whoever owns an [`Rdm`] sees to that.

use super::promises::{Keys, keeps_order};
use super::queue::Queue;
use super::sockets::{self, Connection, Reads};
use super::sys::{self, CqMsgEntry, FiAddr, Info, Library};
use crate::network::message::{MESSAGE, SHORT_MESSAGE};
use crate::network::rails::Rail;
use crate::network::{Atomics, Completion, Failure, Local, Network, RemoteAddress, Shared, Words};
use std::ffi::{c_int, c_void};
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::ptr::{NonNull, null, null_mut};
use tombolo_core::library::text_of;
use tombolo_core::registration::Device;
use tombolo_core::transport::{Amo, AmoOp, AmoSet};

/// Version of the interface that this is written for.
pub const API: u32 = sys::version(1, 17);

/// An open endpoint.
pub struct Rdm {
    library: &'static Library,
    fabric: *mut sys::Fabric,
    domain: *mut sys::Domain,
    av: *mut sys::Av,
    pub(super) queue: Option<Queue>,
    ep: *mut sys::Ep,
    regions: Vec<*mut sys::Mr>,
    keys: Keys,
    mr_mode: c_int,
    /// What the completion of a write says: that the data can be read at the target. With less it
    /// may come when they have only left.
    pub(super) write_flags: u64,
    /// Largest message that needs no completion.
    inject_size: usize,
    /// Largest operation.
    max_len: usize,
    /// Longest message.
    message_max: usize,
    /// Connections belong to addresses of peers, and end with them.
    closes: bool,
    /// Where a connection must be broken before it is closed while one of them is under way.
    reads: Option<Reads>,
    /// Writes to one peer are carried out in the order issued, and messages after writes.
    pub ordered: bool,
    /// What the provider carries out, if it is to.
    pub amos: AmoSet,
    /// It was told that the completion queue can be read no more.
    is_broken: bool,
}

// SAFETY: the objects may be used from any thread, by one at a time (FI_THREAD_DOMAIN).
unsafe impl Send for Rdm {}

/// Registered memory.
#[derive(Clone, Copy, Debug)]
pub struct Registered {
    /// What operations that use it locally pass along.
    desc: *mut c_void,
    mr: *mut sys::Mr,
}

impl Default for Registered {
    fn default() -> Registered {
        Registered { desc: null_mut(), mr: null_mut() }
    }
}

impl Device for Rdm {
    type Key = Registered;

    unsafe fn register(&mut self, at: *mut u8, len: usize) -> Result<Registered, String> {
        let key = self.keys.own();
        // SAFETY: by the caller's word.
        Ok(unsafe { self.enter(at, len, Access::Local, key) }?.local)
    }

    unsafe fn register_source(&mut self, at: *mut u8, len: usize) -> Result<Registered, String> {
        let key = self.keys.own();
        // SAFETY: by the caller's word.
        Ok(unsafe { self.enter(at, len, Access::Source, key) }?.local)
    }

    fn unregister(&mut self, key: Registered) {
        if let Some(at) = self.regions.iter().position(|one| *one == key.mr) {
            self.regions.swap_remove(at);
            // SAFETY: open until now, and no longer in the list of those to be closed.
            unsafe { close(key.mr.cast()) };
        }
    }
}

/// What may be done with registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    /// By this PE's own operations, which only read it.
    Source,
    /// By this PE's own operations.
    Local,
    /// By those of peers as well.
    Remote,
}

impl Rdm {
    /// Opens an endpoint as `info` describes it, for up to `peers` peers and `entries` operations
    /// under way; with `atomics` the provider carries out AMOs as far as it says that it can.
    ///
    /// # Safety
    /// `info` came from `fi_getinfo` and is not changed by anybody meanwhile.
    pub unsafe fn open(
        library: &'static Library,
        info: NonNull<Info>,
        peers: usize,
        entries: usize,
        atomics: bool,
    ) -> Result<Rdm, String> {
        let info = info.as_ptr();
        // SAFETY: `fi_getinfo` fills in all attributes.
        let (tx, endpoint, domain) =
            unsafe { (&*(*info).tx_attr, &*(*info).ep_attr, &*(*info).domain_attr) };
        // SAFETY: as above.
        let name = unsafe { text_of((*(*info).fabric_attr).prov_name) };
        let is_over_connections = name.ends_with(";ofi_rxm");
        let closes = is_over_connections && library.closes_connections;
        let is_fragile = closes && sockets::are_fragile(&name, library.version());
        let mut rdm = Rdm {
            library,
            fabric: null_mut(),
            domain: null_mut(),
            av: null_mut(),
            queue: None,
            ep: null_mut(),
            regions: Vec::new(),
            keys: Keys::of(domain.mr_key_size),
            mr_mode: domain.mr_mode,
            write_flags: sys::COMPLETION | sys::DELIVERY_COMPLETE,
            inject_size: tx.inject_size,
            max_len: endpoint.max_msg_size,
            // `ofi_rxm` makes thousands of buffers as long as the longest message.
            message_max: if is_over_connections { SHORT_MESSAGE } else { MESSAGE },
            closes,
            reads: is_fragile.then(|| Reads::up_to(entries)),
            ordered: keeps_order(tx.msg_order, endpoint),
            amos: AmoSet::NONE,
            is_broken: false,
        };
        // SAFETY: objects are made in the order in which they depend on each other, each from those
        // before it; a failure leaves the rest null, and `Drop` closes what there is.
        unsafe {
            let made =
                (library.functions.fabric)((*info).fabric_attr, &raw mut rdm.fabric, null_mut());
            rdm.check("fi_fabric", made)?;
            let make = (*(*rdm.fabric).ops).domain;
            let made = make(rdm.fabric, info, &raw mut rdm.domain, null_mut());
            rdm.check("fi_domain", made)?;
            rdm.open_av(peers)?;
            let name = text_of((*(*info).fabric_attr).prov_name);
            let queue = Queue::open(rdm.fabric, rdm.domain, entries, &name);
            let queue = rdm.queue.insert(queue.map_err(|error| rdm.failed("fi_cq_open", error))?);
            let cq = queue.cq.cast();
            let make = (*(*rdm.domain).ops).endpoint;
            let made = make(rdm.domain, info, &raw mut rdm.ep, null_mut());
            rdm.check("fi_endpoint", made)?;
            rdm.bind(rdm.av.cast(), 0)?;
            rdm.bind(cq, sys::TRANSMIT | sys::RECV)?;
            let control = (*(*rdm.ep).fid.ops).control;
            let enabled = control(rdm.ep.cast(), sys::ENABLE, null_mut());
            rdm.check("fi_enable", enabled)?;
            if atomics {
                rdm.amos = rdm.valid_amos();
            }
        }
        match atomics && rdm.amos.is_empty() {
            true => Err("the provider has no atomic operations".into()),
            false => Ok(rdm),
        }
    }

    /// AMOs that the provider says it has.
    ///
    /// # Safety
    /// The endpoint is enabled.
    unsafe fn valid_amos(&self) -> AmoSet {
        let mut found = AmoSet::NONE;
        // SAFETY: by the caller's word; the table is there as long as the endpoint, if there is one.
        let Some(ops) = (unsafe { (*self.ep).atomic.as_ref() }) else { return found };
        for (op, size) in AmoOp::ALL.into_iter().flat_map(|op| [4, 8].map(|size| (op, size))) {
            let (kind, number) = numbers(op, size);
            let is_valid = match op {
                AmoOp::CompareSwap => ops.compwritevalid,
                _ => ops.readwritevalid,
            };
            let mut count = 0;
            // SAFETY: by the caller's word; `count` is a place for the result.
            if unsafe { is_valid(self.ep, kind, number, &raw mut count) } == 0 && count > 0 {
                found = found.with(op, size);
            }
        }
        found
    }

    /// # Safety
    /// The domain is open.
    unsafe fn open_av(&mut self, peers: usize) -> Result<(), String> {
        let mut attr = sys::AvAttr {
            kind: sys::AV_TABLE,
            rx_ctx_bits: 0,
            count: peers,
            ep_per_node: 0,
            name: null(),
            map_addr: null_mut(),
            flags: 0,
        };
        // SAFETY: by the caller's word; `attr` outlives the call.
        let made = unsafe {
            let make = (*(*self.domain).ops).av_open;
            make(self.domain, &raw mut attr, &raw mut self.av, null_mut())
        };
        self.check("fi_av_open", made)
    }

    /// # Safety
    /// The endpoint and `other` are open.
    unsafe fn bind(&self, other: *mut sys::Fid, flags: u64) -> Result<(), String> {
        // SAFETY: by the caller's word.
        let bound = unsafe { ((*(*self.ep).fid.ops).bind)(self.ep.cast(), other, flags) };
        self.check("fi_ep_bind", bound)
    }

    fn check(&self, call: &str, status: c_int) -> Result<(), String> {
        match status {
            0 => Ok(()),
            error => Err(self.failed(call, error)),
        }
    }

    fn failed(&self, call: &str, error: c_int) -> String {
        format!("{call}: {}", self.library.error(error))
    }

    fn ended(&mut self, context: *mut c_void) {
        if let Some(reads) = &mut self.reads {
            reads.end(context);
        }
    }

    /// The completion queue.
    fn cq(&self) -> *mut sys::Cq {
        self.queue.as_ref().map_or(null_mut(), |queue| queue.cq)
    }

    /// Breaks the connection with a peer, so that the library may close it ([`sockets`]); true if it is
    /// broken.
    #[cold]
    fn break_connection(&mut self, address: FiAddr) -> bool {
        let own = self.name().ok().and_then(|name| sockets::address(&name));
        let Some((own, peer)) = own.zip(self.address_of(address)) else { return false };
        let cq = self.cq();
        // SAFETY: takes nothing from the queue, and has the library look at its sockets.
        let look = || _ = unsafe { ((*(*cq).ops).read)(cq, null_mut(), 0) };
        sockets::break_all(&Connection::between(own, peer), look)
    }

    /// The address of a peer, where it is one of IP.
    fn address_of(&self, address: FiAddr) -> Option<SocketAddr> {
        let mut name = [0u8; sys::NAME_MAX];
        let mut len = name.len();
        // SAFETY: an address that was inserted; at most `len` bytes are written.
        let found = unsafe {
            let lookup = (*(*self.av).ops).lookup;
            lookup(self.av, address, name.as_mut_ptr().cast(), &raw mut len)
        };
        (found == 0).then(|| sockets::address(name.get(..len)?))?
    }

    /// Behaves as with a provider that needs local registration.
    #[cfg(test)]
    pub fn demand_local_registration(&mut self) {
        self.mr_mode |= sys::MR_LOCAL;
    }

    /// How many private buffers were registered so far.
    #[cfg(test)]
    pub fn registered(&self) -> u64 {
        self.keys.given()
    }

    /// Registers memory. Where the provider lets the key be chosen it is `key`.
    ///
    /// # Safety
    /// The memory stays valid until `unregister` or the end of the endpoint.
    unsafe fn enter(
        &mut self,
        base: *mut u8,
        len: usize,
        access: Access,
        key: u64,
    ) -> Result<Shared<Registered>, String> {
        let own = sys::READ | sys::WRITE | sys::SEND | sys::RECV;
        let rights = match access {
            Access::Source => sys::WRITE,
            Access::Local => own,
            Access::Remote => own | sys::REMOTE_READ | sys::REMOTE_WRITE,
        };
        let mut mr: *mut sys::Mr = null_mut();
        // SAFETY: the domain is open; the caller vouches for the memory.
        unsafe {
            let reg = (*(*self.domain).mr).reg;
            let (domain, at) = (self.domain.cast(), base.cast_const().cast());
            let made = reg(domain, at, len, rights, 0, key, 0, &raw mut mr, null_mut());
            self.check("fi_mr_reg", made)?;
            self.regions.push(mr);
            if self.mr_mode & sys::MR_ENDPOINT != 0 {
                let ops = &*(*mr).fid.ops;
                self.check("fi_mr_bind", (ops.bind)(mr.cast(), self.ep.cast(), 0))?;
                let enabled = (ops.control)(mr.cast(), sys::ENABLE, null_mut());
                self.check("fi_mr_enable", enabled)?;
            }
            let base = if self.mr_mode & sys::MR_VIRT_ADDR != 0 { base as u64 } else { 0 };
            let local = Registered { desc: (*mr).mem_desc, mr };
            Ok(Shared { local, key: (*mr).key, base })
        }
    }

    /// The operation that failed, after the queue has said that one did.
    fn error(&mut self) -> Option<Failure> {
        // SAFETY: all-zero is a valid value; the queue fills it, and gives a string for the error
        // that is copied at once.
        unsafe {
            let mut entry: sys::CqErrEntry = std::mem::zeroed();
            let cq = self.cq();
            let ops = &*(*cq).ops;
            if (ops.readerr)(cq, &raw mut entry, 0) <= 0 {
                return None;
            }
            let why = (ops.strerror)(cq, entry.prov_errno, entry.err_data, null_mut(), 0);
            let (meaning, why) = (self.library.error(entry.err), text_of(why));
            let why = if why.is_empty() { meaning } else { format!("{meaning} ({why})") };
            self.ended(entry.op_context);
            Some(Failure { context: entry.op_context, is_refusal: is_refusal(entry.err), why })
        }
    }
}

/// Type and operation of an AMO as libfabric numbers them.
fn numbers(op: AmoOp, size: u8) -> (c_int, c_int) {
    let op = match op {
        AmoOp::Set => sys::ATOMIC_WRITE,
        AmoOp::Add => sys::SUM,
        AmoOp::And => sys::BAND,
        AmoOp::Or => sys::BOR,
        AmoOp::Xor => sys::BXOR,
        AmoOp::Fetch => sys::ATOMIC_READ,
        AmoOp::CompareSwap => sys::CSWAP,
    };
    (if size == 4 { sys::UINT32 } else { sys::UINT64 }, op)
}

/// Whether an error tells that the peer refused the operation, not that it is gone.
fn is_refusal(error: c_int) -> bool {
    matches!(error, libc::EACCES | libc::EPERM | libc::EINVAL | libc::EFAULT | libc::EKEYREJECTED)
        || error == sys::ENOKEY
}

impl Rail for Rdm {
    fn is_like(&self, other: &Rdm) -> bool {
        let of = |rdm: &Rdm| (rdm.mr_mode, rdm.inject_size, rdm.ordered, rdm.amos);
        of(self) == of(other)
    }

    fn max_len(&self) -> usize {
        self.max_len
    }

    fn wait_fd(&self) -> Option<RawFd> {
        self.queue.as_ref()?.fd
    }

    fn closes(&self) -> bool {
        self.closes
    }
}

impl Network for Rdm {
    fn is_ordered(&self) -> bool {
        self.ordered
    }

    fn needs_local_registration(&self) -> bool {
        self.mr_mode & sys::MR_LOCAL != 0
    }

    fn inject_max(&self) -> usize {
        self.inject_size
    }

    fn message_max(&self) -> usize {
        self.message_max
    }

    unsafe fn share(
        &mut self,
        at: *mut u8,
        len: usize,
        key: u64,
    ) -> Result<Shared<Registered>, String> {
        // SAFETY: by the caller's word.
        unsafe { self.enter(at, len, Access::Remote, self.keys.fit(key)) }
    }

    fn name(&self) -> Result<Vec<u8>, String> {
        let mut name = [0u8; sys::NAME_MAX];
        let mut len = name.len();
        // SAFETY: the endpoint is enabled; it writes up to `len` bytes.
        let asked = unsafe {
            let getname = (*(*self.ep).cm).getname;
            getname(self.ep.cast(), name.as_mut_ptr().cast(), &raw mut len)
        };
        self.check("fi_getname", asked)?;
        Ok(name.get(..len).ok_or("fi_getname: the address is too long")?.to_vec())
    }

    fn insert(&mut self, name: &[u8]) -> Result<FiAddr, String> {
        let mut padded = [0u8; sys::NAME_MAX];
        padded.get_mut(..name.len()).ok_or("an address is too long")?.copy_from_slice(name);
        let mut address = sys::ADDR_UNSPEC;
        // SAFETY: the provider reads an address of its own form, padded beyond any form's length.
        let inserted = unsafe {
            let insert = (*(*self.av).ops).insert;
            insert(self.av, padded.as_ptr().cast(), 1, &raw mut address, 0, null_mut())
        };
        match inserted {
            1 => Ok(address),
            error => Err(format!("fi_av_insert: {}", self.library.error(error))),
        }
    }

    /// Also closes the connection, where the library was told to ([`Library::closes_connections`]).
    fn remove(&mut self, mut address: FiAddr) {
        let reads = self.reads.as_ref().is_some_and(|reads| reads.are_under_way(address));
        if reads && !self.break_connection(address) {
            tracing::warn!("a connection that libfabric cannot close stays open");
            return;
        }
        // SAFETY: an address that was inserted. A refusal changes nothing.
        unsafe { ((*(*self.av).ops).remove)(self.av, &raw mut address, 1, 0) };
    }

    unsafe fn receive(
        &mut self,
        buffer: *mut u8,
        len: usize,
        key: Registered,
        context: *mut c_void,
    ) -> isize {
        // SAFETY: by the caller's word.
        unsafe {
            let receive = (*(*self.ep).msg).recv;
            receive(self.ep, buffer.cast(), len, key.desc, sys::ADDR_UNSPEC, context)
        }
    }

    unsafe fn send(
        &mut self,
        to: FiAddr,
        buffer: *const u8,
        len: usize,
        key: Registered,
        context: *mut c_void,
    ) -> isize {
        // SAFETY: by the caller's word.
        unsafe { ((*(*self.ep).msg).send)(self.ep, buffer.cast(), len, key.desc, to, context) }
    }

    fn inject(&mut self, to: FiAddr, message: &[u8]) -> isize {
        // SAFETY: the message is read during the call.
        unsafe { ((*(*self.ep).msg).inject)(self.ep, message.as_ptr().cast(), message.len(), to) }
    }

    unsafe fn read(
        &mut self,
        from: FiAddr,
        local: Local<Registered>,
        remote: RemoteAddress,
        context: *mut c_void,
    ) -> isize {
        let (buffer, len, desc) = (local.at.cast(), local.len, local.key.desc);
        // SAFETY: by the caller's word.
        let result = unsafe {
            let read = (*(*self.ep).rma).read;
            read(self.ep, buffer, len, desc, from, remote.address, remote.key, context)
        };
        if let Some(reads) = self.reads.as_mut().filter(|_| result == 0) {
            reads.add(context, from);
        }
        result
    }

    unsafe fn write(
        &mut self,
        to: FiAddr,
        local: Local<Registered>,
        remote: RemoteAddress,
        context: *mut c_void,
    ) -> isize {
        let mut desc = local.key.desc;
        let near = libc::iovec { iov_base: local.at.cast(), iov_len: local.len };
        let far = sys::RmaIov { addr: remote.address, len: local.len, key: remote.key };
        let message = sys::MsgRma {
            msg_iov: &raw const near,
            desc: &raw mut desc,
            iov_count: 1,
            addr: to,
            rma_iov: &raw const far,
            rma_iov_count: 1,
            context,
            data: 0,
        };
        let flags = self.write_flags;
        // SAFETY: by the caller's word; the vectors are read during the call.
        unsafe { ((*(*self.ep).rma).writemsg)(self.ep, &raw const message, flags) }
    }

    fn atomics(&self, _peer: u64) -> Atomics {
        Atomics { amos: self.amos, coherent: false }
    }

    /// What providers say of the order of their writes need not hold for their AMOs.
    fn overtakes_amos(&self) -> bool {
        !self.amos.is_empty()
    }

    unsafe fn amo(
        &mut self,
        to: FiAddr,
        amo: Amo,
        words: Words<Registered>,
        remote: RemoteAddress,
        context: *mut c_void,
    ) -> isize {
        let [operand, compare, result] = words.places().map(|word| word.cast::<c_void>());
        let ((kind, op), desc, ep) = (numbers(amo.op, amo.size), words.key.desc, self.ep);
        let RemoteAddress { address, key } = remote;
        // SAFETY: by the caller's word; an endpoint that has AMOs has the table.
        unsafe {
            let ops = &*(*ep).atomic;
            match amo.op {
                AmoOp::CompareSwap => (ops.compwrite)(
                    ep, operand, 1, desc, compare, desc, result, desc, to, address, key, kind, op,
                    context,
                ),
                _ => (ops.readwrite)(
                    ep, operand, 1, desc, result, desc, to, address, key, kind, op, context,
                ),
            }
        }
    }

    fn poll(&mut self, taken: &mut [Completion]) -> Result<usize, Failure> {
        let mut entries = [CqMsgEntry { op_context: null_mut(), flags: 0, len: 0 }; 16];
        let room = entries.len().min(taken.len());
        let cq = self.cq();
        // SAFETY: the queue writes entries of its format.
        let count = unsafe { ((*(*cq).ops).read)(cq, entries.as_mut_ptr().cast(), room) };
        if count == -sys::EAVAIL {
            return self.error().map_or(Ok(0), Err);
        }
        if count < 0
            && count != -(libc::EAGAIN as isize)
            && !std::mem::replace(&mut self.is_broken, true)
        {
            let why = self.library.error(count as c_int);
            tracing::warn!("libfabric does not tell any more what it has done: fi_cq_read: {why}");
        }
        let count = count.clamp(0, room as isize) as usize;
        for (to, from) in taken.iter_mut().zip(&entries[..count]) {
            *to = Completion { context: from.op_context, len: from.len };
            self.ended(from.op_context);
        }
        Ok(count)
    }

    fn meaning(&self, number: isize) -> String {
        self.library.error(number as c_int)
    }

    fn may_sleep(&mut self) -> bool {
        self.queue.as_ref().is_some_and(Queue::may_sleep)
    }
}

/// # Safety
/// Null, or an open object that is not used any more.
pub(super) unsafe fn close(object: *mut sys::Fid) {
    if !object.is_null() {
        // SAFETY: by the caller's word. A refusal leaves the object to the end of the process.
        unsafe { ((*(*object).ops).close)(object) };
    }
}

impl Drop for Rdm {
    fn drop(&mut self) {
        let bound = self.mr_mode & sys::MR_ENDPOINT != 0;
        // SAFETY: users before what they use; memory that is bound to the endpoint goes before it,
        // other memory after it, when nothing can arrive any more.
        unsafe {
            if bound {
                self.regions.drain(..).for_each(|mr| close(mr.cast()));
            }
            close(self.ep.cast());
            self.regions.drain(..).for_each(|mr| close(mr.cast()));
            self.queue = None;
            close(self.av.cast());
            close(self.domain.cast());
            close(self.fabric.cast());
        }
    }
}
