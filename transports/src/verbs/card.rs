// SPDX-License-Identifier: Apache-2.0
//! An open device: its queues, and memory that is registered with it.
//!
//! The objects are used by one thread at a time; whoever owns a [`Card`] sees to that.

use super::amos::Domain;
use super::choose::{self, GidEntry, GidKind, PortState};
use super::queue::DEPTH;
use super::sys::{self, AhAttr, Gid, Library, QpAttr};
use std::ffi::{CStr, c_int};
use std::fmt::{self, Display, Formatter};
use std::io;
use std::net::IpAddr;
use std::os::fd::RawFd;
use std::path::PathBuf;
use std::ptr::null_mut;
use tombolo_core::registration::Device;

/// Most bytes that are posted with an operation itself; less where a card has no room for so many.
const INLINE: [u32; 4] = [220, 128, 64, 0];
/// Completions that the queue has room for, if the device has.
const COMPLETIONS: c_int = 4096;

/// See the module.
pub struct Card {
    pub library: &'static Library,
    pub context: *mut sys::Context,
    pub pd: *mut sys::Pd,
    channel: *mut sys::CompChannel,
    pub cq: *mut sys::Cq,
    pub srq: *mut sys::Srq,
    regions: Vec<*mut sys::Mr>,
    sysfs: PathBuf,
    /// Most bytes that are posted with an operation itself, of all connections.
    pub inline: u32,
    /// What its atomic operations that are used exclude.
    pub domain: Domain,
    /// Reads and atomic operations under way on a connection, as the device that issues them and as the
    /// other one allows.
    pub reads: (u8, u8),
}

// SAFETY: the objects may be used from any thread.
unsafe impl Send for Card {}

/// What one PE tells others of its port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortAddress {
    /// Of InfiniBand.
    pub lid: u16,
    pub gid: Gid,
    /// Longest packet, as a number of the interface.
    pub mtu: u8,
}

/// A port that is used.
#[derive(Clone, Copy, Debug)]
pub struct Port {
    pub number: u8,
    pub link: u8,
    pub gid: GidEntry,
    pub address: PortAddress,
    pub max_len: usize,
}

impl Port {
    /// The way from this port to another.
    pub fn way_to(&self, other: &PortAddress) -> AhAttr {
        let mut way = AhAttr { port_num: self.number, dlid: other.lid, ..AhAttr::default() };
        // On InfiniBand the addresses of one subnet are short.
        let near = self.address.gid[..8] == other.gid[..8] && other.lid != 0;
        if self.link != sys::LINK_INFINIBAND || !near {
            way.is_global = 1;
            way.grh.dgid = other.gid;
            way.grh.sgid_index = self.gid.index as u8;
            way.grh.hop_limit = 64;
        }
        way
    }
}

/// A key for memory.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// What operations that use it locally pass along.
    pub local: u32,
    mr: *mut sys::Mr,
}

impl Default for Key {
    fn default() -> Key {
        Key { local: 0, mr: null_mut() }
    }
}

impl Device for Card {
    type Key = Key;

    unsafe fn register(&mut self, at: *mut u8, len: usize) -> Result<Key, String> {
        // SAFETY: by the caller's word.
        Ok(unsafe { self.enter(at, len, sys::ACCESS_LOCAL_WRITE) }?.0)
    }

    unsafe fn register_source(&mut self, at: *mut u8, len: usize) -> Result<Key, String> {
        // SAFETY: by the caller's word.
        Ok(unsafe { self.enter(at, len, 0) }?.0)
    }

    fn unregister(&mut self, key: Key) {
        if let Some(at) = self.regions.iter().position(|one| *one == key.mr) {
            self.regions.swap_remove(at);
            // SAFETY: registered until now. A refusal leaves it to the end of the process.
            unsafe { (self.library.dereg_mr)(key.mr) };
        }
    }
}

impl Card {
    /// Opens a device; nothing is made on it yet.
    pub fn open(library: &'static Library, device: *mut sys::Device) -> Result<Card, String> {
        // SAFETY: of the list, which is there still.
        let (context, sysfs) =
            unsafe { ((library.open_device)(device), text(&(*device).ibdev_path).into()) };
        if context.is_null() {
            return Err(error("ibv_open_device"));
        }
        Ok(Card {
            library,
            context,
            pd: null_mut(),
            channel: null_mut(),
            cq: null_mut(),
            srq: null_mut(),
            regions: vec![],
            sysfs,
            inline: 0,
            domain: Domain::None,
            reads: (0, 0),
        })
    }

    fn attributes(&self) -> Result<sys::DeviceAttr, String> {
        // SAFETY: zeros are a valid value, and the library fills it in.
        unsafe {
            let mut attr = std::mem::zeroed();
            check("ibv_query_device", (self.library.query_device)(self.context, &raw mut attr))?;
            Ok(attr)
        }
    }

    /// What the atomic operations of the device exclude.
    pub fn atomic_operations(&self) -> Result<Domain, String> {
        Ok(Domain::of(self.attributes()?.atomic_cap))
    }

    /// What peers may do to memory, by the names of the interface.
    pub fn remote_access(&self) -> c_int {
        let atomic = if self.domain == Domain::None { 0 } else { sys::ACCESS_REMOTE_ATOMIC };
        sys::ACCESS_REMOTE_READ | sys::ACCESS_REMOTE_WRITE | atomic
    }

    fn port(&self, number: u8) -> Result<sys::PortAttr, String> {
        let mut attr = sys::PortAttr::default();
        // SAFETY: the library fills in the attributes, or the first of them.
        let status = unsafe { (self.library.query_port)(self.context, number, &raw mut attr) };
        check("ibv_query_port", status).map(|()| attr)
    }

    pub fn ports(&self) -> Result<Vec<PortState>, String> {
        let count = self.attributes()?.phys_port_cnt;
        let state = |number: u8| {
            let port = self.port(number)?;
            let is_active = port.state == sys::PORT_ACTIVE;
            // The library says 0 for InfiniBand where nothing else has been known for long.
            let link = if port.link_layer == 0 { sys::LINK_INFINIBAND } else { port.link_layer };
            Ok(PortState { number: number.into(), is_active, link })
        };
        (1..=count).map(state).collect()
    }

    fn gid(&self, port: u8, index: u32) -> Option<GidEntry> {
        let mut gid = Gid::default();
        // SAFETY: the library writes an address.
        let status =
            unsafe { (self.library.query_gid)(self.context, port, index as c_int, &raw mut gid) };
        let kind = format!("ports/{port}/gid_attrs/types/{index}");
        let kind = std::fs::read_to_string(self.sysfs.join(kind)).ok();
        let kind = GidKind::of(kind.as_deref());
        (status == 0).then_some(GidEntry { index, gid, kind })
    }

    /// Looks at a port that is to be used, and chooses its address, if `gid` does not; see [`choose::best_gid`].
    pub fn choose_port(
        &self,
        number: u32,
        gid: Option<u32>,
        one_machine: bool,
        shared: &[IpAddr],
    ) -> Result<Port, String> {
        let number = u8::try_from(number).map_err(|_| format!("there is no port {number}"))?;
        let attr = self.port(number)?;
        let link = if attr.link_layer == 0 { sys::LINK_INFINIBAND } else { attr.link_layer };
        // Places that are free have an address of zeros, or none.
        let places = 0..attr.gid_tbl_len.clamp(0, 256) as u32;
        let chosen = match gid {
            Some(index) => self
                .gid(number, index)
                .filter(|entry| index < 256 && entry.gid != Gid::default())
                .ok_or_else(|| format!("port {number} has no GID {index}"))?,
            None if link == sys::LINK_INFINIBAND => {
                self.gid(number, 0).ok_or_else(|| format!("port {number} has no GID"))?
            }
            None => {
                let entries: Vec<_> = places.filter_map(|at| self.gid(number, at)).collect();
                choose::best_gid(&entries, one_machine, shared).ok_or_else(|| {
                    format!("port {number} has no address: its network interface needs one")
                })?
            }
        };
        let address =
            PortAddress { lid: attr.lid, gid: chosen.gid, mtu: attr.active_mtu.clamp(1, 5) as u8 };
        Ok(Port { number, link, gid: chosen, address, max_len: attr.max_msg_sz as usize })
    }

    /// Makes the queues, with room for `receives` messages, and finds out how much an operation of a
    /// connection may carry.
    pub fn prepare(&mut self, receives: u32) -> Result<(), String> {
        let attr = self.attributes()?;
        let few = |most: c_int| most.clamp(1, 16) as u8;
        self.reads = (few(attr.max_qp_init_rd_atom), few(attr.max_qp_rd_atom));
        let library = self.library;
        // SAFETY: objects are made in the order in which they depend on each other, each from those
        // before it; a failure leaves the rest null, and `Drop` takes back what there is.
        unsafe {
            self.pd = made("ibv_alloc_pd", (library.alloc_pd)(self.context))?;
            let channel = (library.create_comp_channel)(self.context);
            self.channel = made("ibv_create_comp_channel", channel)?;
            let flags = libc::fcntl((*self.channel).fd, libc::F_GETFL);
            libc::fcntl((*self.channel).fd, libc::F_SETFL, flags | libc::O_NONBLOCK);
            let entries = COMPLETIONS.min(attr.max_cqe);
            let cq = (library.create_cq)(self.context, entries, null_mut(), self.channel, 0);
            self.cq = made("ibv_create_cq", cq)?;
            let mut wish = sys::SrqInitAttr {
                srq_context: null_mut(),
                max_wr: receives,
                max_sge: 1,
                srq_limit: 0,
            };
            self.srq = made("ibv_create_srq", (library.create_srq)(self.pd, &raw mut wish))?;
        }
        let mut why = String::new();
        for inline in INLINE {
            self.inline = inline;
            match self.connection() {
                Ok(qp) => {
                    // SAFETY: just made, and used for nothing.
                    return check("ibv_destroy_qp", unsafe { (library.destroy_qp)(qp) });
                }
                Err(error) => why = error,
            }
        }
        Err(why)
    }

    /// Registers memory.
    ///
    /// # Safety
    /// It stays valid until `unregister` or the end of the card.
    pub unsafe fn enter(
        &mut self,
        at: *mut u8,
        len: usize,
        access: c_int,
    ) -> Result<(Key, u32), String> {
        // SAFETY: by the caller's word.
        let mr = unsafe { (self.library.reg_mr)(self.pd, at.cast(), len, access) };
        if mr.is_null() {
            let why = io::Error::last_os_error();
            let limit = matches!(why.raw_os_error(), Some(libc::ENOMEM | libc::EAGAIN));
            let advice = if limit { ": see ulimit -l, and SHMEM_SYMMETRIC_SIZE" } else { "" };
            return Err(format!("{len} bytes cannot be registered with the card: {why}{advice}"));
        }
        self.regions.push(mr);
        // SAFETY: just made.
        unsafe { Ok((Key { local: (*mr).lkey, mr }, (*mr).rkey)) }
    }

    /// Makes the queue pair of a connection, which shares the receives of the card.
    pub fn connection(&mut self) -> Result<*mut sys::Qp, String> {
        self.queue_pair(sys::QPT_RC, DEPTH as u32, 0, self.inline)
    }

    /// Makes a queue pair for datagrams, with room for so many of each kind.
    pub fn datagrams(&mut self, sends: u32, receives: u32) -> Result<*mut sys::Qp, String> {
        self.queue_pair(sys::QPT_UD, sends, receives, 0)
    }

    fn queue_pair(
        &mut self,
        kind: c_int,
        sends: u32,
        receives: u32,
        inline: u32,
    ) -> Result<*mut sys::Qp, String> {
        let cap = sys::QpCap {
            max_send_wr: sends,
            max_recv_wr: receives,
            max_send_sge: 1,
            max_recv_sge: u32::from(receives > 0),
            max_inline_data: inline,
        };
        let mut wish = sys::QpInitAttr {
            qp_context: null_mut(),
            send_cq: self.cq,
            recv_cq: self.cq,
            srq: if receives > 0 { null_mut() } else { self.srq },
            cap,
            qp_type: kind,
            sq_sig_all: 0,
        };
        // SAFETY: protection domain and queues are open.
        let qp = unsafe { (self.library.create_qp)(self.pd, &raw mut wish) };
        let qp = made("ibv_create_qp", qp)?;
        // Some drivers grant less than is asked for, and tell.
        let granted = wish.cap.max_inline_data;
        if granted < inline {
            // SAFETY: just made, and used for nothing.
            check("ibv_destroy_qp", unsafe { (self.library.destroy_qp)(qp) })?;
            return Err(format!("ibv_create_qp: {granted} bytes inline of {inline} are granted"));
        }
        Ok(qp)
    }

    /// Changes the state of a queue pair.
    pub fn modify(&self, qp: *mut sys::Qp, mut attr: QpAttr, mask: c_int) -> Result<(), Refused> {
        // SAFETY: the queue pair is open.
        match unsafe { (self.library.modify_qp)(qp, &raw mut attr, mask | sys::QP_STATE) } {
            0 => Ok(()),
            -1 => Err(Refused(io::Error::last_os_error())),
            number => Err(Refused(io::Error::from_raw_os_error(number.abs()))),
        }
    }

    /// What to sleep on; see `arm`.
    pub fn wait_fd(&self) -> RawFd {
        // SAFETY: the channel is open.
        unsafe { (*self.channel).fd }
    }

    /// Has the next completion show at the descriptor.
    pub fn arm(&mut self) -> bool {
        let (mut cq, mut context, mut events) = (null_mut(), null_mut(), 0);
        // SAFETY: channel and queue are open; the descriptor does not block.
        unsafe {
            while (self.library.get_cq_event)(self.channel, &raw mut cq, &raw mut context) == 0 {
                events += 1;
            }
            if events > 0 {
                (self.library.ack_cq_events)(self.cq, events);
            }
            ((*self.context).ops.req_notify_cq)(self.cq, 0) == 0
        }
    }

    /// Takes completions.
    pub fn poll(&mut self, taken: &mut [sys::Wc]) -> usize {
        // SAFETY: the queue writes up to so many entries.
        let count = unsafe {
            ((*self.context).ops.poll_cq)(self.cq, taken.len() as c_int, taken.as_mut_ptr())
        };
        count.clamp(0, taken.len() as c_int) as usize
    }
}

/// The text in a field.
pub fn text(field: &[std::ffi::c_char]) -> String {
    // SAFETY: the library ends the text within the field.
    unsafe { CStr::from_ptr(field.as_ptr()) }.to_string_lossy().into_owned()
}

/// What a function of the library that returns an error number has said.
pub fn check(call: &str, status: c_int) -> Result<(), String> {
    match status {
        0 => Ok(()),
        -1 => Err(error(call)),
        number => Err(format!("{call}: {}", io::Error::from_raw_os_error(number.abs()))),
    }
}

/// What a function of the library that returns an object has said.
fn made<T>(call: &str, object: *mut T) -> Result<*mut T, String> {
    if object.is_null() { Err(error(call)) } else { Ok(object) }
}

fn error(call: &str) -> String {
    format!("{call}: {}", io::Error::last_os_error())
}

/// The state of a queue pair was not changed.
pub struct Refused(io::Error);

impl Refused {
    /// Whether it may be changed later: cards ask the network for the address of the neighbour, which may be lost.
    pub fn is_transient(&self) -> bool {
        let transient =
            [libc::ETIMEDOUT, libc::EAGAIN, libc::EINTR, libc::ENETUNREACH, libc::EHOSTUNREACH];
        self.0.raw_os_error().is_some_and(|error| transient.contains(&error))
    }
}

impl Display for Refused {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "ibv_modify_qp: {}", self.0)
    }
}

impl From<Refused> for String {
    fn from(why: Refused) -> String {
        why.to_string()
    }
}

impl Drop for Card {
    fn drop(&mut self) {
        let library = self.library;
        // SAFETY: users before what they use; queue pairs are gone. A refusal leaves an object to the
        // end of the process.
        unsafe {
            self.regions.drain(..).for_each(|mr| _ = (library.dereg_mr)(mr));
            if !self.srq.is_null() {
                (library.destroy_srq)(self.srq);
            }
            if !self.cq.is_null() {
                (library.destroy_cq)(self.cq);
            }
            if !self.channel.is_null() {
                (library.destroy_comp_channel)(self.channel);
            }
            if !self.pd.is_null() {
                (library.dealloc_pd)(self.pd);
            }
            (library.close_device)(self.context);
        }
    }
}
