// SPDX-License-Identifier: Apache-2.0
//! Two ends of a connection in this process, and what their cards may do.

use crate::interface::*;
use crate::models::MODELS;
use crate::types::*;
use std::collections::BTreeSet;
use std::ffi::c_int;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

const DEPTH: u32 = 8;
const LEN: usize = 4096;
const ALL: c_int =
    ACCESS_LOCAL_WRITE | ACCESS_REMOTE_WRITE | ACCESS_REMOTE_READ | ACCESS_REMOTE_ATOMIC;

/// An end with memory that the other one may use.
struct End {
    context: *mut Context,
    pd: *mut Pd,
    channel: *mut CompChannel,
    cq: *mut Cq,
    srq: *mut Srq,
    qp: *mut Qp,
    mr: *mut Mr,
    memory: *mut u64,
    way: AhAttr,
}

impl End {
    fn open(device: usize) -> End {
        let memory = Box::leak(vec![0u64; LEN / 8].into_boxed_slice()).as_mut_ptr();
        let model = &MODELS[device];
        // SAFETY: objects are made from those before them.
        unsafe {
            let list = ibv_get_device_list(null_mut());
            let context = ibv_open_device(*list.add(device));
            ibv_free_device_list(list);
            let pd = ibv_alloc_pd(context);
            let channel = ibv_create_comp_channel(context);
            libc::fcntl((*channel).fd, libc::F_SETFL, libc::O_NONBLOCK);
            let cq = ibv_create_cq(context, 64, null_mut(), channel, 0);
            let (srq_context, max_wr) = (null_mut(), 4);
            let mut wish = SrqInitAttr { srq_context, max_wr, max_sge: 1, srq_limit: 0 };
            let srq = ibv_create_srq(pd, &raw mut wish);
            let mut wish = QpInitAttr {
                qp_context: null_mut(),
                send_cq: cq,
                recv_cq: cq,
                srq,
                cap: QpCap { max_send_wr: DEPTH, max_inline_data: 64, ..QpCap::default() },
                qp_type: QPT_RC,
                sq_sig_all: 0,
            };
            let qp = ibv_create_qp(pd, &raw mut wish);
            let mr = ibv_reg_mr(pd, memory.cast(), LEN, ALL);
            let mut way = AhAttr { port_num: 1, dlid: model.lid(), ..AhAttr::default() };
            way.is_global = u8::from(model.link == LINK_ETHERNET);
            way.grh.dgid = model.gid();
            End { context, pd, channel, cq, srq, qp, mr, memory, way }
        }
    }

    fn modify(&self, attr: QpAttr, mask: c_int) -> c_int {
        let mut attr = attr;
        // SAFETY: the queue pair is open.
        unsafe { ibv_modify_qp(self.qp, &raw mut attr, mask | QP_STATE) }
    }

    fn number(&self) -> u32 {
        // SAFETY: the queue pair is open.
        unsafe { (*self.qp).qp_num }
    }

    fn connect(&self, other: &End) {
        let qp_access_flags = ALL as u32;
        let attr = QpAttr { qp_state: QPS_INIT, port_num: 1, qp_access_flags, ..QpAttr::default() };
        assert_eq!(self.modify(attr, QP_PKEY_INDEX | QP_PORT), libc::EINVAL, "lacks rights");
        assert_eq!(self.modify(attr, QP_PKEY_INDEX | QP_PORT | QP_ACCESS_FLAGS), 0);
        let attr = QpAttr {
            qp_state: QPS_RTR,
            dest_qp_num: other.number(),
            ah_attr: self.way,
            ..QpAttr::default()
        };
        let mask = QP_AV
            | QP_PATH_MTU
            | QP_DEST_QPN
            | QP_RQ_PSN
            | QP_MAX_DEST_RD_ATOMIC
            | QP_MIN_RNR_TIMER;
        assert_eq!(self.modify(attr, mask), 0);
        let attr =
            QpAttr { qp_state: QPS_RTS, rnr_retry: 7, max_rd_atomic: 1, ..QpAttr::default() };
        let mask = QP_TIMEOUT | QP_RETRY_CNT | QP_RNR_RETRY | QP_SQ_PSN | QP_MAX_QP_RD_ATOMIC;
        assert_eq!(self.modify(attr, mask), 0);
    }

    /// Posts an operation on the memory of the other end, from or to the place in one's own.
    fn post(&self, id: u64, op: c_int, flags: u32, from: usize, len: usize, to: &Far) -> c_int {
        let addr = self.memory as u64 + from as u64;
        // SAFETY: registered.
        let lkey = unsafe { (*self.mr).lkey };
        let mut sge = Sge { addr, length: len as u32, lkey };
        let memory = ToMemory { remote_addr: to.0, rkey: to.1 };
        let mut wr = SendWr {
            wr_id: id,
            next: null_mut(),
            sg_list: &raw mut sge,
            num_sge: 1,
            opcode: op,
            send_flags: flags,
            imm_data: 0,
            to: To { memory },
            unused: [0; 7],
        };
        if matches!(op, WR_FETCH_ADD | WR_COMPARE_SWAP) {
            let (remote_addr, rkey) = *to;
            wr.to.variable = ToVariable { remote_addr, compare_add: 5, swap: 0, rkey };
        }
        let mut bad = null_mut();
        // SAFETY: the queue pair is open.
        unsafe { ((*self.context).ops.post_send)(self.qp, &raw mut wr, &raw mut bad) }
    }

    fn receive(&self, id: u64) -> c_int {
        // SAFETY: registered.
        let lkey = unsafe { (*self.mr).lkey };
        let mut sge = Sge { addr: self.memory as u64, length: 64, lkey };
        let mut wr = RecvWr { wr_id: id, next: null_mut(), sg_list: &raw mut sge, num_sge: 1 };
        let mut bad = null_mut();
        // SAFETY: the queue is open.
        unsafe { ((*self.context).ops.post_srq_recv)(self.srq, &raw mut wr, &raw mut bad) }
    }

    /// The memory at a place.
    fn far(&self, at: usize) -> Far {
        // SAFETY: registered.
        (self.memory as u64 + at as u64, unsafe { (*self.mr).rkey })
    }

    fn word(&self, at: usize) -> u64 {
        // SAFETY: a word of the memory.
        unsafe { self.memory.add(at / 8).read_volatile() }
    }

    fn fill(&self, at: usize, words: usize, value: u64) {
        for word in at / 8..at / 8 + words {
            // SAFETY: a word of the memory.
            unsafe { self.memory.add(word).write_volatile(value) };
        }
    }

    fn poll(&self) -> Option<(u64, c_int)> {
        let mut wc = Wc::default();
        // SAFETY: the queue is open.
        let count = unsafe { ((*self.context).ops.poll_cq)(self.cq, 1, &raw mut wc) };
        (count == 1).then_some((wc.wr_id, wc.status))
    }

    /// The next completion.
    fn next(&self) -> (u64, c_int) {
        let begun = Instant::now();
        loop {
            if let Some(wc) = self.poll() {
                return wc;
            }
            assert!(begun.elapsed() < Duration::from_secs(20), "no completion");
            std::thread::yield_now();
        }
    }
}

impl Drop for End {
    fn drop(&mut self) {
        // SAFETY: users before what they use.
        unsafe {
            if !self.qp.is_null() {
                assert_eq!(ibv_destroy_qp(self.qp), 0);
            }
            assert_eq!(ibv_dereg_mr(self.mr), 0);
            assert_eq!(ibv_destroy_srq(self.srq), 0);
            assert_eq!(ibv_destroy_cq(self.cq), 0);
            assert_eq!(ibv_destroy_comp_channel(self.channel), 0);
            assert_eq!(ibv_dealloc_pd(self.pd), 0);
            assert_eq!(ibv_close_device(self.context), 0);
        }
    }
}

/// Address and key.
type Far = (u64, u32);

const CARD: usize = 0;
const SOFTWARE: usize = 4;

fn two(device: usize) -> (End, End) {
    let (a, b) = (End::open(device), End::open(device));
    a.connect(&b);
    b.connect(&a);
    (a, b)
}

#[test]
fn it_exports_what_the_transport_loads() {
    let names = |text: &'static str, before: &str| -> BTreeSet<&'static str> {
        let name = |(at, found): (usize, &str)| {
            let rest = &text[at + found.len()..];
            &rest[..rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len())]
        };
        text.match_indices(before).map(name).collect()
    };
    let loaded = include_str!("../../../transports/src/verbs/sys/library.rs");
    let exported = include_str!("interface.rs");
    assert_eq!(names(loaded, "c\"ibv_"), names(exported, "extern \"C\" fn ibv_"));
}

#[test]
fn reads_and_messages_show_what_was_written_before() {
    for device in [CARD, SOFTWARE] {
        let (a, b) = two(device);
        for round in 1..200 {
            assert_eq!(b.receive(round), 0);
            a.fill(64, 8, round);
            let flags = if round % 2 == 0 { SEND_INLINE } else { 0 };
            assert_eq!(a.post(0, WR_WRITE, flags, 64, 64, &b.far(2048)), 0);
            if flags != 0 {
                a.fill(64, 8, u64::MAX);
            }
            if round % 3 == 0 {
                assert_eq!(a.post(round, WR_READ, SEND_SIGNALED, 512, 64, &b.far(2048)), 0);
                assert_eq!(a.next(), (round, WC_SUCCESS));
                assert_eq!(a.word(512), round);
                assert_eq!(b.word(2048), round);
            }
            assert_eq!(a.post(round, WR_SEND, SEND_SIGNALED, 0, 8, &(0, 0)), 0);
            assert_eq!(b.next(), (round, WC_SUCCESS));
            assert!((2048..2048 + 64).step_by(8).all(|at| b.word(at) == round));
            assert_eq!(a.next(), (round, WC_SUCCESS));
        }
    }
}

#[test]
fn an_acknowledgement_shows_no_data_but_those_of_software() {
    for device in [CARD, SOFTWARE] {
        let (a, b) = two(device);
        let mut late = 0;
        for round in 1..=200 {
            a.fill(64, 1, round);
            assert_eq!(a.post(round, WR_WRITE, SEND_SIGNALED, 64, 8, &b.far(2048)), 0);
            assert_eq!(a.next(), (round, WC_SUCCESS));
            late += u32::from(b.word(2048) != round);
        }
        assert_eq!(late > 0, device == CARD, "{late}");
    }
}

#[test]
fn atomic_operations_give_the_old_value() {
    let (a, b) = two(CARD);
    for round in 0..50 {
        assert_eq!(a.post(1, WR_FETCH_ADD, SEND_SIGNALED, 64, 8, &b.far(128)), 0);
        assert_eq!(a.next(), (1, WC_SUCCESS));
        assert_eq!(a.word(64), 5 * round);
    }
    assert_eq!(b.word(128), 250);
}

#[test]
fn what_is_not_allowed_ends_the_connection_at_both_ends() {
    let refused = [(LEN - 4, 0), (0, 1), (usize::MAX, 0)];
    for (case, (at, more)) in refused.into_iter().enumerate() {
        let (a, b) = two(CARD);
        let (address, key) = b.far(0);
        let far = (address.wrapping_add(at as u64), key + more);
        // The end of the first is not told of; that of the others is.
        assert_eq!(a.post(1, WR_WRITE, 0, 0, 8, &b.far(64)), 0);
        assert_eq!(a.post(2, if case == 1 { WR_READ } else { WR_WRITE }, 0, 0, 8, &far), 0);
        assert_eq!(a.post(3, WR_WRITE, 0, 0, 8, &b.far(64)), 0);
        assert_eq!(a.next(), (2, WC_REM_ACCESS_ERR));
        assert_eq!(a.next(), (3, 5));
        assert_eq!(a.post(4, WR_WRITE, 0, 0, 8, &b.far(64)), 0);
        assert_eq!(a.next(), (4, 5));
        assert_eq!(b.post(5, WR_WRITE, 0, 0, 8, &a.far(64)), 0);
        assert_eq!(b.next(), (5, 5));
    }
}

#[test]
fn a_send_queue_has_room_again_when_a_completion_was_taken() {
    let (a, b) = two(CARD);
    let post = |id: u64, flags| a.post(id, WR_WRITE, flags, 0, 8, &b.far(64));
    for id in 1..u64::from(DEPTH) {
        assert_eq!(post(id, 0), 0);
    }
    assert_eq!(post(8, SEND_SIGNALED), 0);
    assert_eq!(post(9, 0), libc::ENOMEM);
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(post(9, 0), libc::ENOMEM);
    assert_eq!(a.next(), (8, WC_SUCCESS));
    assert_eq!(post(9, 0), 0);
    assert_eq!(b.receive(1) + b.receive(2) + b.receive(3) + b.receive(4), 0);
    assert_eq!(b.receive(5), libc::ENOMEM);
}

#[test]
fn an_event_tells_of_what_comes_after_it_was_asked_for() {
    let (a, b) = two(CARD);
    let arm = || {
        // SAFETY: the queue is open.
        assert_eq!(unsafe { ((*a.context).ops.req_notify_cq)(a.cq, 0) }, 0);
    };
    let is_told = |wait: c_int| {
        // SAFETY: the channel is open.
        let fd = unsafe { (*a.channel).fd };
        let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: one descriptor.
        unsafe { libc::poll(&raw mut poll, 1, wait) == 1 }
    };
    let write = |id| assert_eq!(a.post(id, WR_WRITE, SEND_SIGNALED, 0, 8, &b.far(64)), 0);
    write(1);
    write(2);
    assert_eq!(a.next(), (1, WC_SUCCESS));
    std::thread::sleep(Duration::from_millis(50));
    arm();
    assert!(!is_told(50), "of what was there");
    assert_eq!(a.next(), (2, WC_SUCCESS));
    write(3);
    assert!(is_told(20_000));
    let (mut cq, mut user) = (null_mut(), null_mut());
    // SAFETY: channel and queue are open.
    unsafe {
        assert_eq!(ibv_get_cq_event(a.channel, &raw mut cq, &raw mut user), 0);
        ibv_ack_cq_events(cq, 1);
    }
    assert!(cq == a.cq && !is_told(0));
    assert_eq!(a.next(), (3, WC_SUCCESS));
}

#[test]
fn completions_go_with_a_queue_pair_where_a_card_has_it_so() {
    for (device, left) in [(CARD, None), (SOFTWARE, Some((7, WC_SUCCESS)))] {
        let (a, mut b) = two(device);
        assert_eq!(b.receive(7), 0);
        assert_eq!(a.post(1, WR_SEND, SEND_SIGNALED, 0, 8, &(0, 0)), 0);
        assert_eq!(a.next(), (1, WC_SUCCESS));
        std::thread::sleep(Duration::from_millis(50));
        // SAFETY: not used any more.
        assert_eq!(unsafe { ibv_destroy_qp(b.qp) }, 0);
        b.qp = null_mut();
        assert_eq!(b.poll(), left);
    }
}

#[test]
fn who_is_gone_is_noticed() {
    let (a, mut b) = two(CARD);
    let far = b.far(64);
    // SAFETY: not used any more.
    assert_eq!(unsafe { ibv_destroy_qp(b.qp) }, 0);
    b.qp = null_mut();
    assert_eq!(a.post(1, WR_WRITE, 0, 0, 8, &far), 0);
    assert_eq!(a.next(), (1, 12));
}
