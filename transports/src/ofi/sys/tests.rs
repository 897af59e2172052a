// SPDX-License-Identifier: Apache-2.0
//! The layout of the types against that of the C headers of libfabric 1.17 on x86-64, as a C
//! compiler tells it (`sizeof`, `offsetof`).

use super::Library;
use super::types::*;
use crate::network::engine::Context;
use std::io::{Write, stderr};
use std::mem::{offset_of, size_of};

/// libfabric. Where it is not installed it is told that a test tries nothing, and a test of CI fails.
pub fn installed() -> Option<&'static Library> {
    let why = match Library::get(2) {
        Ok(library) => return Some(library),
        Err(why) => why,
    };
    assert!(std::env::var_os("CI").is_none(), "{why}");
    // Past the test harness, which shows nothing of tests that pass.
    let name = std::thread::current().name().unwrap_or_default().to_owned();
    let _ = writeln!(stderr(), "{name}: not tested: {why}");
    None
}

#[test]
fn sizes_are_those_of_the_headers() {
    let sizes = [
        ("Info", size_of::<Info>(), 120),
        ("TxAttr", size_of::<TxAttr>(), 80),
        ("RxAttr", size_of::<RxAttr>(), 64),
        ("EpAttr", size_of::<EpAttr>(), 96),
        ("DomainAttr", size_of::<DomainAttr>(), 192),
        ("FabricAttr", size_of::<FabricAttr>(), 32),
        ("Fid", size_of::<Fid>(), 24),
        ("Fabric", size_of::<Fabric>(), 40),
        ("Domain", size_of::<Domain>(), 40),
        ("Av", size_of::<Av>(), 32),
        ("Cq", size_of::<Cq>(), 32),
        ("Ep", size_of::<Ep>(), 80),
        ("Mr", size_of::<Mr>(), 40),
        ("AvAttr", size_of::<AvAttr>(), 48),
        ("CqAttr", size_of::<CqAttr>(), 40),
        ("WaitAttr", size_of::<WaitAttr>(), 16),
        ("Wait", size_of::<Wait>(), 32),
        ("CqMsgEntry", size_of::<CqMsgEntry>(), 24),
        ("MsgRma", size_of::<MsgRma>(), 64),
        ("RmaIov", size_of::<RmaIov>(), 24),
        ("fi_context2", size_of::<Context>(), 64),
    ];
    for (name, ours, theirs) in sizes {
        assert_eq!(ours, theirs, "{name}");
    }
    // With room behind it.
    assert_eq!(size_of::<CqErrEntry>(), 80 + 32);
}

#[test]
fn fields_are_where_the_headers_have_them() {
    let offsets = [
        ("Info.addr_format", offset_of!(Info, addr_format), 24),
        ("Info.src_addr", offset_of!(Info, src_addr), 48),
        ("Info.tx_attr", offset_of!(Info, tx_attr), 72),
        ("Info.domain_attr", offset_of!(Info, domain_attr), 96),
        ("Info.fabric_attr", offset_of!(Info, fabric_attr), 104),
        ("Info.nic", offset_of!(Info, nic), 112),
        ("TxAttr.op_flags", offset_of!(TxAttr, op_flags), 16),
        ("TxAttr.msg_order", offset_of!(TxAttr, msg_order), 24),
        ("TxAttr.inject_size", offset_of!(TxAttr, inject_size), 40),
        ("TxAttr.size", offset_of!(TxAttr, size), 48),
        ("RxAttr.size", offset_of!(RxAttr, size), 48),
        ("EpAttr.max_msg_size", offset_of!(EpAttr, max_msg_size), 16),
        ("EpAttr.max_order_waw_size", offset_of!(EpAttr, max_order_waw_size), 48),
        ("EpAttr.auth_key", offset_of!(EpAttr, auth_key), 88),
        ("DomainAttr.threading", offset_of!(DomainAttr, threading), 16),
        ("DomainAttr.mr_mode", offset_of!(DomainAttr, mr_mode), 36),
        ("DomainAttr.mr_key_size", offset_of!(DomainAttr, mr_key_size), 40),
        ("DomainAttr.caps", offset_of!(DomainAttr, caps), 136),
        ("DomainAttr.tclass", offset_of!(DomainAttr, tclass), 184),
        ("FabricAttr.prov_name", offset_of!(FabricAttr, prov_name), 16),
        ("FabricAttr.api_version", offset_of!(FabricAttr, api_version), 28),
        ("FidOps.control", offset_of!(FidOps, control), 24),
        ("Mr.mem_desc", offset_of!(Mr, mem_desc), 24),
        ("Mr.key", offset_of!(Mr, key), 32),
        ("Ep.cm", offset_of!(Ep, cm), 32),
        ("Ep.msg", offset_of!(Ep, msg), 40),
        ("Ep.rma", offset_of!(Ep, rma), 48),
        ("FabricOps.domain", offset_of!(FabricOps, domain), 8),
        ("FabricOps.wait_open", offset_of!(FabricOps, wait_open), 32),
        ("FabricOps.trywait", offset_of!(FabricOps, trywait), 40),
        ("DomainOps.av_open", offset_of!(DomainOps, av_open), 8),
        ("DomainOps.cq_open", offset_of!(DomainOps, cq_open), 16),
        ("DomainOps.endpoint", offset_of!(DomainOps, endpoint), 24),
        ("MrOps.reg", offset_of!(MrOps, reg), 8),
        ("AvOps.insert", offset_of!(AvOps, insert), 8),
        ("AvOps.remove", offset_of!(AvOps, remove), 32),
        ("CqOps.read", offset_of!(CqOps, read), 8),
        ("CqOps.readerr", offset_of!(CqOps, readerr), 24),
        ("CqOps.signal", offset_of!(CqOps, signal), 48),
        ("WaitOps.wait", offset_of!(WaitOps, wait), 8),
        ("CqOps.strerror", offset_of!(CqOps, strerror), 56),
        ("CmOps.getname", offset_of!(CmOps, getname), 16),
        ("RmaOps.read", offset_of!(RmaOps, read), 8),
        ("RmaOps.writemsg", offset_of!(RmaOps, writemsg), 48),
        ("MsgOps.recv", offset_of!(MsgOps, recv), 8),
        ("MsgOps.send", offset_of!(MsgOps, send), 32),
        ("MsgOps.inject", offset_of!(MsgOps, inject), 56),
        ("CqAttr.format", offset_of!(CqAttr, format), 16),
        ("CqAttr.wait_obj", offset_of!(CqAttr, wait_obj), 20),
        ("CqErrEntry.err", offset_of!(CqErrEntry, err), 56),
        ("CqErrEntry.err_data", offset_of!(CqErrEntry, err_data), 64),
        ("MsgRma.context", offset_of!(MsgRma, context), 48),
    ];
    for (name, ours, theirs) in offsets {
        assert_eq!(ours, theirs, "{name}");
    }
}
