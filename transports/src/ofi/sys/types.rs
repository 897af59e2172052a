// SPDX-License-Identifier: Apache-2.0
//! Types and constants of the headers `rdma/*.h`.
//!
//! Fields and functions that nothing here uses are opaque, so that a table has its true layout and
//! its entries cannot be called by mistake.

use std::ffi::{c_char, c_int, c_void};

/// An entry of a function table that is not used.
pub type Unused = *const c_void;

/// What every object starts with.
#[repr(C)]
pub struct Fid {
    pub fclass: usize,
    pub context: *mut c_void,
    pub ops: *const FidOps,
}

#[repr(C)]
pub struct FidOps {
    pub size: usize,
    pub close: unsafe extern "C" fn(*mut Fid) -> c_int,
    pub bind: unsafe extern "C" fn(*mut Fid, *mut Fid, u64) -> c_int,
    pub control: unsafe extern "C" fn(*mut Fid, c_int, *mut c_void) -> c_int,
}

#[repr(C)]
pub struct Info {
    pub next: *mut Info,
    pub caps: u64,
    pub mode: u64,
    pub addr_format: u32,
    pub src_addrlen: usize,
    pub dest_addrlen: usize,
    pub src_addr: *mut c_void,
    pub dest_addr: *mut c_void,
    pub handle: *mut Fid,
    pub tx_attr: *mut TxAttr,
    pub rx_attr: *mut RxAttr,
    pub ep_attr: *mut EpAttr,
    pub domain_attr: *mut DomainAttr,
    pub fabric_attr: *mut FabricAttr,
    pub nic: *mut c_void,
}

#[repr(C)]
pub struct TxAttr {
    pub caps: u64,
    pub mode: u64,
    pub op_flags: u64,
    pub msg_order: u64,
    pub comp_order: u64,
    pub inject_size: usize,
    pub size: usize,
    pub iov_limit: usize,
    pub rma_iov_limit: usize,
    pub tclass: u32,
}

#[repr(C)]
pub struct RxAttr {
    pub caps: u64,
    pub mode: u64,
    pub op_flags: u64,
    pub msg_order: u64,
    pub comp_order: u64,
    pub total_buffered_recv: usize,
    pub size: usize,
    pub iov_limit: usize,
}

#[repr(C)]
pub struct EpAttr {
    pub kind: c_int,
    pub protocol: u32,
    pub protocol_version: u32,
    pub max_msg_size: usize,
    pub msg_prefix_size: usize,
    pub max_order_raw_size: usize,
    pub max_order_war_size: usize,
    pub max_order_waw_size: usize,
    pub mem_tag_format: u64,
    pub tx_ctx_cnt: usize,
    pub rx_ctx_cnt: usize,
    pub auth_key_size: usize,
    pub auth_key: *mut u8,
}

#[repr(C)]
pub struct DomainAttr {
    pub domain: *mut c_void,
    pub name: *mut c_char,
    pub threading: c_int,
    pub control_progress: c_int,
    pub data_progress: c_int,
    pub resource_mgmt: c_int,
    pub av_type: c_int,
    pub mr_mode: c_int,
    pub mr_key_size: usize,
    pub cq_data_size: usize,
    pub cq_cnt: usize,
    pub ep_cnt: usize,
    pub tx_ctx_cnt: usize,
    pub rx_ctx_cnt: usize,
    pub max_ep_tx_ctx: usize,
    pub max_ep_rx_ctx: usize,
    pub max_ep_stx_ctx: usize,
    pub max_ep_srx_ctx: usize,
    pub cntr_cnt: usize,
    pub mr_iov_limit: usize,
    pub caps: u64,
    pub mode: u64,
    pub auth_key: *mut u8,
    pub auth_key_size: usize,
    pub max_err_data: usize,
    pub mr_cnt: usize,
    pub tclass: u32,
}

#[repr(C)]
pub struct FabricAttr {
    pub fabric: *mut c_void,
    pub name: *mut c_char,
    pub prov_name: *mut c_char,
    pub prov_version: u32,
    pub api_version: u32,
}

#[repr(C)]
pub struct Fabric {
    pub fid: Fid,
    pub ops: *const FabricOps,
    pub api_version: u32,
}

#[repr(C)]
pub struct FabricOps {
    pub size: usize,
    pub domain:
        unsafe extern "C" fn(*mut Fabric, *mut Info, *mut *mut Domain, *mut c_void) -> c_int,
    pub passive_ep: Unused,
    pub eq_open: Unused,
    pub wait_open: unsafe extern "C" fn(*mut Fabric, *mut WaitAttr, *mut *mut Wait) -> c_int,
    pub trywait: unsafe extern "C" fn(*mut Fabric, *mut *mut Fid, c_int) -> c_int,
}

#[repr(C)]
pub struct Domain {
    pub fid: Fid,
    pub ops: *const DomainOps,
    pub mr: *const MrOps,
}

#[repr(C)]
pub struct DomainOps {
    pub size: usize,
    pub av_open: unsafe extern "C" fn(*mut Domain, *mut AvAttr, *mut *mut Av, *mut c_void) -> c_int,
    pub cq_open: unsafe extern "C" fn(*mut Domain, *mut CqAttr, *mut *mut Cq, *mut c_void) -> c_int,
    pub endpoint: unsafe extern "C" fn(*mut Domain, *mut Info, *mut *mut Ep, *mut c_void) -> c_int,
}

#[repr(C)]
pub struct MrOps {
    pub size: usize,
    pub reg: unsafe extern "C" fn(
        fid: *mut Fid,
        buf: *const c_void,
        len: usize,
        access: u64,
        offset: u64,
        requested_key: u64,
        flags: u64,
        mr: *mut *mut Mr,
        context: *mut c_void,
    ) -> c_int,
}

#[repr(C)]
pub struct Mr {
    pub fid: Fid,
    pub mem_desc: *mut c_void,
    pub key: u64,
}

#[repr(C)]
pub struct AvAttr {
    pub kind: c_int,
    pub rx_ctx_bits: c_int,
    pub count: usize,
    pub ep_per_node: usize,
    pub name: *const c_char,
    pub map_addr: *mut c_void,
    pub flags: u64,
}

#[repr(C)]
pub struct Av {
    pub fid: Fid,
    pub ops: *const AvOps,
}

#[repr(C)]
pub struct AvOps {
    pub size: usize,
    pub insert:
        unsafe extern "C" fn(*mut Av, *const c_void, usize, *mut FiAddr, u64, *mut c_void) -> c_int,
    pub insertsvc: Unused,
    pub insertsym: Unused,
    pub remove: unsafe extern "C" fn(*mut Av, *mut FiAddr, usize, u64) -> c_int,
    pub lookup: unsafe extern "C" fn(*mut Av, FiAddr, *mut c_void, *mut usize) -> c_int,
}

#[repr(C)]
pub struct CqAttr {
    pub size: usize,
    pub flags: u64,
    pub format: c_int,
    pub wait_obj: c_int,
    pub signaling_vector: c_int,
    pub wait_cond: c_int,
    pub wait_set: *mut Wait,
}

#[repr(C)]
pub struct WaitAttr {
    pub wait_obj: c_int,
    pub flags: u64,
}

/// What one or several queues wake.
#[repr(C)]
pub struct Wait {
    pub fid: Fid,
    pub ops: *const WaitOps,
}

#[repr(C)]
pub struct WaitOps {
    pub size: usize,
    pub wait: unsafe extern "C" fn(*mut Wait, c_int) -> c_int,
}

#[repr(C)]
pub struct Cq {
    pub fid: Fid,
    pub ops: *const CqOps,
}

#[repr(C)]
pub struct CqOps {
    pub size: usize,
    pub read: unsafe extern "C" fn(*mut Cq, *mut c_void, usize) -> isize,
    pub readfrom: Unused,
    pub readerr: unsafe extern "C" fn(*mut Cq, *mut CqErrEntry, u64) -> isize,
    pub sread: Unused,
    pub sreadfrom: Unused,
    pub signal: unsafe extern "C" fn(*mut Cq) -> c_int,
    pub strerror:
        unsafe extern "C" fn(*mut Cq, c_int, *const c_void, *mut c_char, usize) -> *const c_char,
}

/// An entry of a completion queue of format [`CQ_FORMAT_MSG`].
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CqMsgEntry {
    pub op_context: *mut c_void,
    pub flags: u64,
    pub len: usize,
}

#[repr(C)]
pub struct CqErrEntry {
    pub op_context: *mut c_void,
    pub flags: u64,
    pub len: usize,
    pub buf: *mut c_void,
    pub data: u64,
    pub tag: u64,
    pub olen: usize,
    pub err: c_int,
    pub prov_errno: c_int,
    pub err_data: *mut c_void,
    pub err_data_size: usize,
    /// Room for what later versions append.
    pub later: [u64; 4],
}

#[repr(C)]
pub struct Ep {
    pub fid: Fid,
    pub ops: Unused,
    pub cm: *const CmOps,
    pub msg: *const MsgOps,
    pub rma: *const RmaOps,
    pub tagged: Unused,
    pub atomic: *const AtomicOps,
    pub collective: Unused,
}

#[repr(C)]
pub struct CmOps {
    pub size: usize,
    pub setname: Unused,
    pub getname: unsafe extern "C" fn(*mut Fid, *mut c_void, *mut usize) -> c_int,
}

#[repr(C)]
pub struct MsgOps {
    pub size: usize,
    pub recv: unsafe extern "C" fn(
        *mut Ep,
        *mut c_void,
        usize,
        *mut c_void,
        FiAddr,
        *mut c_void,
    ) -> isize,
    pub recvv: Unused,
    pub recvmsg: Unused,
    pub send: unsafe extern "C" fn(
        *mut Ep,
        *const c_void,
        usize,
        *mut c_void,
        FiAddr,
        *mut c_void,
    ) -> isize,
    pub sendv: Unused,
    pub sendmsg: Unused,
    pub inject: unsafe extern "C" fn(*mut Ep, *const c_void, usize, FiAddr) -> isize,
}

#[repr(C)]
pub struct RmaOps {
    pub size: usize,
    pub read: unsafe extern "C" fn(
        *mut Ep,
        *mut c_void,
        usize,
        *mut c_void,
        FiAddr,
        u64,
        u64,
        *mut c_void,
    ) -> isize,
    pub readv: Unused,
    pub readmsg: Unused,
    pub write: Unused,
    pub writev: Unused,
    pub writemsg: unsafe extern "C" fn(*mut Ep, *const MsgRma, u64) -> isize,
}

/// Whether a provider has an operation on a type, and on how many values at a time.
pub type IsValid = unsafe extern "C" fn(*mut Ep, c_int, c_int, *mut usize) -> c_int;

#[repr(C)]
pub struct AtomicOps {
    pub size: usize,
    pub write: Unused,
    pub writev: Unused,
    pub writemsg: Unused,
    pub inject: Unused,
    /// Operand, count, its region; result, its region; peer, address, key, type, operation, context.
    pub readwrite: unsafe extern "C" fn(
        *mut Ep,
        *const c_void,
        usize,
        *mut c_void,
        *mut c_void,
        *mut c_void,
        FiAddr,
        u64,
        u64,
        c_int,
        c_int,
        *mut c_void,
    ) -> isize,
    pub readwritev: Unused,
    pub readwritemsg: Unused,
    /// As above, with comparand and its region before the result.
    pub compwrite: unsafe extern "C" fn(
        *mut Ep,
        *const c_void,
        usize,
        *mut c_void,
        *const c_void,
        *mut c_void,
        *mut c_void,
        *mut c_void,
        FiAddr,
        u64,
        u64,
        c_int,
        c_int,
        *mut c_void,
    ) -> isize,
    pub compwritev: Unused,
    pub compwritemsg: Unused,
    pub writevalid: Unused,
    pub readwritevalid: IsValid,
    pub compwritevalid: IsValid,
}

#[repr(C)]
pub struct MsgRma {
    pub msg_iov: *const libc::iovec,
    pub desc: *mut *mut c_void,
    pub iov_count: usize,
    pub addr: FiAddr,
    pub rma_iov: *const RmaIov,
    pub rma_iov_count: usize,
    pub context: *mut c_void,
    pub data: u64,
}

#[repr(C)]
pub struct RmaIov {
    pub addr: u64,
    pub len: usize,
    pub key: u64,
}

/// `fi_addr_t`: a peer, as the address vector numbers it.
pub type FiAddr = u64;
pub const ADDR_UNSPEC: FiAddr = u64::MAX;

pub const fn version(major: u32, minor: u32) -> u32 {
    major << 16 | minor
}

pub const MSG: u64 = 1 << 1;
pub const RMA: u64 = 1 << 2;
pub const ATOMIC: u64 = 1 << 4;
pub const READ: u64 = 1 << 8;
pub const WRITE: u64 = 1 << 9;
pub const RECV: u64 = 1 << 10;
pub const SEND: u64 = 1 << 11;
pub const TRANSMIT: u64 = SEND;
pub const REMOTE_READ: u64 = 1 << 12;
pub const REMOTE_WRITE: u64 = 1 << 13;
pub const COMPLETION: u64 = 1 << 24;
pub const DELIVERY_COMPLETE: u64 = 1 << 28;
/// Mode bit `FI_CONTEXT`: operations carry a `fi_context`.
pub const CONTEXT: u64 = 1 << 59;
/// Mode bit `FI_CONTEXT2`: operations carry a `fi_context2`.
pub const CONTEXT2: u64 = 1 << 52;

pub const ORDER_WAW: u64 = 1 << 4;
pub const ORDER_SAW: u64 = 1 << 7;
pub const ORDER_SAS: u64 = 1 << 8;

/// Types of atomic operations.
pub const UINT32: c_int = 5;
pub const UINT64: c_int = 7;
/// Atomic operations.
pub const SUM: c_int = 2;
pub const BOR: c_int = 6;
pub const BAND: c_int = 7;
pub const BXOR: c_int = 9;
pub const ATOMIC_READ: c_int = 10;
pub const ATOMIC_WRITE: c_int = 11;
pub const CSWAP: c_int = 12;

pub const MR_LOCAL: c_int = 1 << 2;
pub const MR_VIRT_ADDR: c_int = 1 << 4;
pub const MR_ALLOCATED: c_int = 1 << 5;
pub const MR_PROV_KEY: c_int = 1 << 6;
pub const MR_ENDPOINT: c_int = 1 << 9;

pub const EP_RDM: c_int = 3;
pub const AV_TABLE: c_int = 2;
pub const THREAD_DOMAIN: c_int = 3;
pub const PROGRESS_MANUAL: c_int = 2;
pub const RM_ENABLED: c_int = 2;
pub const CQ_FORMAT_MSG: c_int = 2;
pub const WAIT_NONE: c_int = 0;
pub const WAIT_SET: c_int = 2;
pub const WAIT_FD: c_int = 3;
/// Commands of `fi_control`.
pub const GETWAIT: c_int = 5;
pub const ENABLE: c_int = 6;

pub const SOCKADDR_IN: u32 = 2;
pub const SOCKADDR_IN6: u32 = 3;

/// Largest endpoint address that is taken (`FI_NAME_MAX` of all providers known).
pub const NAME_MAX: usize = 256;

/// Errors are negative numbers of `errno`, and these of libfabric's own.
pub const EAVAIL: isize = 259;
/// The peer does not know the key of the memory.
pub const ENOKEY: c_int = 266;
