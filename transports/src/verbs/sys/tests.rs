// SPDX-License-Identifier: Apache-2.0
//! Sizes and places as a C compiler gives them for the headers of rdma-core, on 64-bit machines.

use super::*;
use std::mem::{align_of, offset_of, size_of};

#[test]
fn sizes_are_those_of_the_headers() {
    let sizes = [
        ("ibv_device", size_of::<Device>(), 664),
        ("ibv_context_ops", size_of::<ContextOps>(), 256),
        ("ibv_comp_channel", size_of::<CompChannel>(), 16),
        ("ibv_mr", size_of::<Mr>(), 48),
        ("ibv_sge", size_of::<Sge>(), 16),
        ("ibv_send_wr", size_of::<SendWr>(), 128),
        ("ibv_recv_wr", size_of::<RecvWr>(), 32),
        ("ibv_wc", size_of::<Wc>(), 48),
        ("ibv_qp_cap", size_of::<QpCap>(), 20),
        ("ibv_qp_init_attr", size_of::<QpInitAttr>(), 64),
        ("ibv_global_route", size_of::<GlobalRoute>().next_multiple_of(8), 24),
        ("ibv_ah_attr", size_of::<AhAttr>(), 32),
        ("ibv_qp_attr", size_of::<QpAttr>(), 144),
        ("ibv_srq_init_attr", size_of::<SrqInitAttr>(), 24),
        ("ibv_device_attr", size_of::<DeviceAttr>(), 232),
        ("ibv_port_attr", size_of::<PortAttr>(), 52),
    ];
    for (name, own, theirs) in sizes {
        assert_eq!(own, theirs, "{name}");
    }
    assert_eq!(align_of::<AhAttr>(), 8);
}

#[test]
fn fields_are_where_the_headers_have_them() {
    let places = [
        ("ibv_device.transport_type", offset_of!(Device, transport_type), 20),
        ("ibv_device.name", offset_of!(Device, name), 24),
        ("ibv_device.ibdev_path", offset_of!(Device, ibdev_path), 408),
        ("ibv_context.ops", offset_of!(Context, ops), 8),
        ("ibv_context.async_fd", offset_of!(Context, async_fd), 268),
        ("ibv_context_ops.poll_cq", offset_of!(ContextOps, poll_cq), 88),
        ("ibv_context_ops.req_notify_cq", offset_of!(ContextOps, req_notify_cq), 96),
        ("ibv_context_ops.post_srq_recv", offset_of!(ContextOps, post_srq_recv), 160),
        ("ibv_context_ops.post_send", offset_of!(ContextOps, post_send), 200),
        ("ibv_context_ops.post_recv", offset_of!(ContextOps, post_recv), 208),
        ("ibv_qp.qp_num", offset_of!(Qp, qp_num), 52),
        ("ibv_mr.lkey", offset_of!(Mr, lkey), 36),
        ("ibv_mr.rkey", offset_of!(Mr, rkey), 40),
        ("ibv_comp_channel.fd", offset_of!(CompChannel, fd), 8),
        ("ibv_send_wr.opcode", offset_of!(SendWr, opcode), 28),
        ("ibv_send_wr.send_flags", offset_of!(SendWr, send_flags), 32),
        ("ibv_send_wr.wr.rdma.remote_addr", offset_of!(SendWr, to), 40),
        ("ibv_send_wr.wr.rdma.rkey", 40 + offset_of!(ToMemory, rkey), 48),
        ("ibv_send_wr.wr.atomic.compare_add", 40 + offset_of!(ToVariable, compare_add), 48),
        ("ibv_send_wr.wr.atomic.swap", 40 + offset_of!(ToVariable, swap), 56),
        ("ibv_send_wr.wr.atomic.rkey", 40 + offset_of!(ToVariable, rkey), 64),
        ("ibv_send_wr.wr.ud.remote_qpn", 40 + offset_of!(ToQueue, remote_qpn), 48),
        ("ibv_send_wr.wr.ud.remote_qkey", 40 + offset_of!(ToQueue, remote_qkey), 52),
        ("ibv_send_wr.qp_type", offset_of!(SendWr, unused), 72),
        ("ibv_recv_wr.num_sge", offset_of!(RecvWr, num_sge), 24),
        ("ibv_wc.status", offset_of!(Wc, status), 8),
        ("ibv_wc.byte_len", offset_of!(Wc, byte_len), 20),
        ("ibv_wc.qp_num", offset_of!(Wc, qp_num), 28),
        ("ibv_wc.slid", offset_of!(Wc, slid), 42),
        ("ibv_qp_init_attr.cap", offset_of!(QpInitAttr, cap), 32),
        ("ibv_qp_init_attr.qp_type", offset_of!(QpInitAttr, qp_type), 52),
        ("ibv_qp_attr.path_mtu", offset_of!(QpAttr, path_mtu), 8),
        ("ibv_qp_attr.dest_qp_num", offset_of!(QpAttr, dest_qp_num), 28),
        ("ibv_qp_attr.ah_attr", offset_of!(QpAttr, ah_attr), 56),
        ("ibv_qp_attr.pkey_index", offset_of!(QpAttr, pkey_index), 120),
        ("ibv_qp_attr.max_rd_atomic", offset_of!(QpAttr, max_rd_atomic), 126),
        ("ibv_qp_attr.min_rnr_timer", offset_of!(QpAttr, min_rnr_timer), 128),
        ("ibv_qp_attr.timeout", offset_of!(QpAttr, timeout), 130),
        ("ibv_qp_attr.rnr_retry", offset_of!(QpAttr, rnr_retry), 132),
        ("ibv_ah_attr.dlid", offset_of!(AhAttr, dlid), 24),
        ("ibv_ah_attr.is_global", offset_of!(AhAttr, is_global), 29),
        ("ibv_global_route.sgid_index", offset_of!(GlobalRoute, sgid_index), 20),
        ("ibv_srq_init_attr.attr", offset_of!(SrqInitAttr, max_wr), 8),
        ("ibv_device_attr.max_qp_wr", offset_of!(DeviceAttr, max_qp_wr), 112),
        ("ibv_device_attr.max_cqe", offset_of!(DeviceAttr, max_cqe), 132),
        ("ibv_device_attr.max_qp_rd_atom", offset_of!(DeviceAttr, max_qp_rd_atom), 144),
        ("ibv_device_attr.max_qp_init_rd_atom", offset_of!(DeviceAttr, max_qp_init_rd_atom), 156),
        ("ibv_device_attr.atomic_cap", offset_of!(DeviceAttr, atomic_cap), 164),
        ("ibv_device_attr.max_srq_wr", offset_of!(DeviceAttr, max_srq_wr), 216),
        ("ibv_device_attr.phys_port_cnt", offset_of!(DeviceAttr, phys_port_cnt), 227),
        ("ibv_port_attr.gid_tbl_len", offset_of!(PortAttr, gid_tbl_len), 12),
        ("ibv_port_attr.max_msg_sz", offset_of!(PortAttr, max_msg_sz), 20),
        ("ibv_port_attr.lid", offset_of!(PortAttr, lid), 34),
        ("ibv_port_attr.active_width", offset_of!(PortAttr, active_width), 43),
        ("ibv_port_attr.link_layer", offset_of!(PortAttr, link_layer), 46),
    ];
    for (name, own, theirs) in places {
        assert_eq!(own, theirs, "{name}");
    }
}
