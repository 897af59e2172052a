// SPDX-License-Identifier: Apache-2.0
//! The functions that the transport loads, and those that it finds in an open device.

use crate::completions::{Completions, Receive, Receives};
use crate::fabric::{Fabric, now, take_event};
use crate::memory::{self, Region};
use crate::models::{MODELS, Model};
use crate::queue_pair::{Local, Operation, QueuePair, State};
use crate::types::*;
use std::collections::VecDeque;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::path::PathBuf;
use std::ptr::null_mut;
use std::sync::Once;

/// An object of the interface, and the number by which it is known here.
#[repr(C)]
struct Object<T> {
    public: T,
    number: u32,
}

/// An object, given to the user.
fn give<T>(public: T, number: u32) -> *mut T {
    Box::into_raw(Box::new(Object { public, number })).cast()
}

/// # Safety
/// The object was made by `give`.
unsafe fn number_of<T>(object: *mut T) -> u32 {
    // SAFETY: by the caller's word.
    unsafe { (*object.cast::<Object<T>>()).number }
}

/// # Safety
/// The object was made by `give`, and is not used any more.
unsafe fn take_back<T>(object: *mut T) {
    // SAFETY: by the caller's word.
    drop(unsafe { Box::from_raw(object.cast::<Object<T>>()) });
}

/// A value of zeros.
///
/// # Safety
/// Zeros are a value of the type, but for what is filled in before it is used.
unsafe fn zeros<T>() -> Box<MaybeUninit<T>> {
    Box::new(MaybeUninit::zeroed())
}

fn failed<T>(error: c_int) -> *mut T {
    // SAFETY: the thread's own.
    unsafe { *libc::__errno_location() = error };
    null_mut()
}

/// The folder of this library, where what it has of sysfs is.
fn folder() -> PathBuf {
    // SAFETY: the place of a function of this library, whose name lasts as long.
    unsafe {
        let mut info: libc::Dl_info = std::mem::zeroed();
        let own = ibv_get_device_list as *const c_void;
        if libc::dladdr(own, &raw mut info) == 0 || info.dli_fname.is_null() {
            return PathBuf::new();
        }
        let name = CStr::from_ptr(info.dli_fname).to_string_lossy().into_owned();
        PathBuf::from(name).with_file_name("sysfs")
    }
}

fn write_text(field: &mut [c_char], text: &str) {
    for (to, from) in field.iter_mut().zip(text.bytes().chain([0])) {
        *to = from as c_char;
    }
}

/// The devices, made once.
fn devices() -> [*mut Device; MODELS.len()] {
    static ONCE: Once = Once::new();
    static mut DEVICES: [*mut Device; MODELS.len()] = [null_mut(); MODELS.len()];
    ONCE.call_once(|| {
        for (at, model) in MODELS.iter().enumerate() {
            // SAFETY: numbers, texts and pointers may be zeros; nobody else has the list.
            unsafe {
                let device = &mut *Box::into_raw(zeros::<Device>().assume_init());
                (device.node_type, device.transport_type) = (1, TRANSPORT_IB);
                write_text(&mut device.name, model.name);
                let folder = folder().join(model.name);
                write_text(&mut device.ibdev_path, &folder.to_string_lossy());
                DEVICES[at] = device;
            }
        }
    });
    // SAFETY: written once, before.
    unsafe { DEVICES }
}

/// # Safety
/// The device is one of the list.
unsafe fn model_of(device: *mut Device) -> &'static Model {
    let at = devices().iter().position(|one| *one == device).expect("a device of the list");
    &MODELS[at]
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_get_device_list(count: *mut c_int) -> *mut *mut Device {
    let mut list: Vec<*mut Device> = devices().into();
    list.push(null_mut());
    if !count.is_null() {
        // SAFETY: a place for the result.
        unsafe { count.write(MODELS.len() as c_int) };
    }
    Box::leak(list.into_boxed_slice()).as_mut_ptr()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_free_device_list(list: *mut *mut Device) {
    // SAFETY: made above, of this length.
    drop(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(list, MODELS.len() + 1)) });
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_open_device(device: *mut Device) -> *mut Context {
    Fabric::get();
    // SAFETY: zeros, but for the functions that are used.
    unsafe {
        let context = Box::into_raw(zeros::<Context>()).cast::<Context>();
        (&raw mut (*context).device).write(device);
        (&raw mut (*context).ops.poll_cq).write(poll_cq);
        (&raw mut (*context).ops.req_notify_cq).write(req_notify_cq);
        (&raw mut (*context).ops.post_srq_recv).write(post_srq_recv);
        (&raw mut (*context).ops.post_send).write(post_send);
        (&raw mut (*context).ops.post_recv).write(post_recv);
        (&raw mut (*context).cmd_fd).write(-1);
        let events = libc::eventfd(0, libc::EFD_CLOEXEC);
        (&raw mut (*context).async_fd).write(events);
        context
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_close_device(context: *mut Context) -> c_int {
    // SAFETY: made above, and not used any more.
    unsafe {
        libc::close((*context).async_fd);
        drop(Box::from_raw(context.cast::<MaybeUninit<Context>>()));
    }
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_device(context: *mut Context, attr: *mut DeviceAttr) -> c_int {
    // SAFETY: an open device and a place for numbers, which may be zeros.
    unsafe {
        let model = model_of((*context).device);
        attr.write(std::mem::zeroed());
        let attr = &mut *attr;
        (attr.phys_port_cnt, attr.max_qp, attr.max_qp_wr) = (1, 4000, 1024);
        (attr.max_cq, attr.max_cqe, attr.max_pd) = (4000, 65_535, 4000);
        (attr.max_sge, attr.max_sge_rd, attr.max_srq_sge) = (4, 4, 4);
        (attr.max_srq_wr, attr.max_mr) = (4096, model.regions as c_int);
        (attr.max_qp_rd_atom, attr.max_qp_init_rd_atom) = (model.reads, model.reads);
        attr.atomic_cap = model.atomics;
    }
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_port(
    context: *mut Context,
    port: u8,
    attr: *mut PortAttr,
) -> c_int {
    if port != 1 {
        return libc::EINVAL;
    }
    // SAFETY: an open device and a place for numbers.
    unsafe {
        let model = model_of((*context).device);
        attr.write(PortAttr {
            state: PORT_ACTIVE,
            max_mtu: 5,
            active_mtu: 5,
            gid_tbl_len: 1,
            max_msg_sz: 1 << 30,
            pkey_tbl_len: 1,
            lid: model.lid(),
            link_layer: model.link,
            ..PortAttr::default()
        });
    }
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_gid(
    context: *mut Context,
    port: u8,
    index: c_int,
    gid: *mut Gid,
) -> c_int {
    if port != 1 || index != 0 {
        return -1;
    }
    // SAFETY: an open device and a place for an address.
    unsafe { gid.write(model_of((*context).device).gid()) };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_alloc_pd(context: *mut Context) -> *mut Pd {
    give(Pd { context }, 0)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dealloc_pd(pd: *mut Pd) -> c_int {
    let domain = pd.addr();
    let state = Fabric::get().lock();
    let used = state.regions.values().any(|region| region.domain == domain)
        || state.queue_pairs.values().any(|qp| qp.domain == domain);
    if used {
        return libc::EBUSY;
    }
    // SAFETY: made above, and not used any more.
    unsafe { take_back(pd) };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr(
    pd: *mut Pd,
    at: *mut c_void,
    len: usize,
    access: c_int,
) -> *mut Mr {
    let remote = access & (ACCESS_REMOTE_WRITE | ACCESS_REMOTE_ATOMIC) != 0;
    if remote && access & ACCESS_LOCAL_WRITE == 0 {
        return failed(libc::EINVAL);
    }
    if !memory::is_mapped(at.addr(), len, access & ACCESS_LOCAL_WRITE != 0) {
        return failed(libc::EFAULT);
    }
    // SAFETY: the protection domain is open.
    let (context, model) = unsafe { ((*pd).context, model_of((*(*pd).context).device)) };
    let fabric = Fabric::get();
    let mut state = fabric.lock();
    let domain = pd.addr();
    if state.regions.values().filter(|region| region.domain == domain).count() >= model.regions {
        return failed(libc::ENOMEM);
    }
    let key = fabric.number(&mut state);
    state.regions.insert(key, Region { at: at.addr(), len, access, domain });
    // SAFETY: zeros, but for what is filled in.
    unsafe {
        let mr = Box::into_raw(zeros::<Mr>().assume_init());
        ((*mr).context, (*mr).addr, (*mr).length) = (context, at, len);
        ((*mr).lkey, (*mr).rkey) = (key, key);
        mr
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dereg_mr(mr: *mut Mr) -> c_int {
    let mut state = Fabric::get().lock();
    // The card uses the memory no longer when this returns.
    state.queue_pairs.values_mut().for_each(|qp| qp.responder.place_all());
    // SAFETY: made above, and not used any more.
    unsafe {
        state.regions.remove(&(*mr).lkey);
        drop(Box::from_raw(mr));
    }
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_comp_channel(context: *mut Context) -> *mut CompChannel {
    // SAFETY: zeros, but for what is filled in.
    unsafe {
        let channel = Box::into_raw(zeros::<Object<CompChannel>>()).cast::<CompChannel>();
        (&raw mut (*channel).context).write(context);
        let events = libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_SEMAPHORE);
        (&raw mut (*channel).fd).write(events);
        channel
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut CompChannel) -> c_int {
    let state = Fabric::get().lock();
    // SAFETY: made above.
    unsafe {
        if state.completions.values().any(|queue| queue.channel == Some((*channel).fd)) {
            return libc::EBUSY;
        }
        libc::close((*channel).fd);
        take_back(channel);
    }
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_cq(
    context: *mut Context,
    entries: c_int,
    _user: *mut c_void,
    channel: *mut CompChannel,
    _vector: c_int,
) -> *mut Cq {
    if !(1..=65_535).contains(&entries) {
        return failed(libc::EINVAL);
    }
    let fabric = Fabric::get();
    let mut state = fabric.lock();
    let number = fabric.number(&mut state);
    let cq = give(Cq { context }, number);
    // SAFETY: null, or made above.
    let channel = unsafe { channel.as_ref() }.map(|channel| channel.fd);
    state.completions.insert(number, Completions::new(entries as usize, channel, cq));
    cq
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_cq(cq: *mut Cq) -> c_int {
    let mut state = Fabric::get().lock();
    // SAFETY: made above.
    let number = unsafe { number_of(cq) };
    let uses = |qp: &QueuePair| qp.send_completions == number || qp.receive_completions == number;
    if state.queue_pairs.values().any(uses) {
        return libc::EBUSY;
    }
    let queue = state.completions.remove(&number);
    if queue.is_some_and(|queue| queue.unacknowledged > 0) {
        eprintln!("ibverbs stand-in: ibv_destroy_cq would wait for ibv_ack_cq_events for ever");
        std::process::abort();
    }
    // SAFETY: not used any more.
    unsafe { take_back(cq) };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_cq_event(
    channel: *mut CompChannel,
    cq: *mut *mut Cq,
    user: *mut *mut c_void,
) -> c_int {
    // SAFETY: the channel is open.
    let fd = unsafe { (*channel).fd };
    // Blocks where the user has not made that otherwise.
    if !take_event(fd) {
        return -1;
    }
    let mut state = Fabric::get().lock();
    // Of one queue: nobody here has several at a channel.
    let queue = state.completions.values_mut().find(|queue| queue.channel == Some(fd));
    let Some(queue) = queue else { return -1 };
    queue.unacknowledged += 1;
    // SAFETY: places for the results.
    unsafe {
        cq.write(queue.handle);
        user.write(null_mut());
    }
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_ack_cq_events(cq: *mut Cq, count: u32) {
    // SAFETY: the queue is open.
    let number = unsafe { number_of(cq) };
    if let Some(queue) = Fabric::get().lock().completions.get_mut(&number) {
        queue.unacknowledged -= count;
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_srq(pd: *mut Pd, wish: *mut SrqInitAttr) -> *mut Srq {
    let fabric = Fabric::get();
    let mut state = fabric.lock();
    let number = fabric.number(&mut state);
    // SAFETY: an open protection domain and a wish.
    let (context, most) = unsafe { ((*pd).context, (*wish).max_wr as usize) };
    state.receives.insert(number, Receives { posted: VecDeque::new(), most });
    give(Srq { context }, number)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_srq(srq: *mut Srq) -> c_int {
    let mut state = Fabric::get().lock();
    // SAFETY: made above.
    let number = unsafe { number_of(srq) };
    if state.queue_pairs.values().any(|qp| qp.receives == number) {
        return libc::EBUSY;
    }
    state.receives.remove(&number);
    // SAFETY: not used any more.
    unsafe { take_back(srq) };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_qp(pd: *mut Pd, wish: *mut QpInitAttr) -> *mut Qp {
    // SAFETY: an open protection domain, and a wish whose queues are open.
    let (context, wish) = unsafe { ((*pd).context, &mut *wish) };
    // SAFETY: the device is open.
    let model = unsafe { model_of((*context).device) };
    let cap = &mut wish.cap;
    // As drivers do of cards that take no data with an operation: the wish is not refused.
    if model.inline == 0 {
        cap.max_inline_data = 0;
    }
    if cap.max_inline_data as usize > model.inline || cap.max_send_wr > 1024 || cap.max_send_sge > 4
    {
        return failed(libc::EINVAL);
    }
    let fabric = Fabric::get();
    let mut state = fabric.lock();
    let number = fabric.number(&mut state);
    // SAFETY: open queues.
    let (completions, receives) = unsafe {
        let receives = if wish.srq.is_null() { number } else { number_of(wish.srq) };
        ((number_of(wish.send_cq), number_of(wish.recv_cq)), receives)
    };
    if receives == number {
        let most = cap.max_recv_wr as usize;
        state.receives.insert(number, Receives { posted: VecDeque::new(), most });
    }
    let is_connected = wish.qp_type == QPT_RC;
    let (most, inline) = (cap.max_send_wr as usize, cap.max_inline_data as usize);
    let queue_pair =
        QueuePair::new(number, model, pd.addr(), is_connected, completions, receives, most, inline);
    state.queue_pairs.insert(number, queue_pair);
    // SAFETY: zeros, but for what is filled in.
    unsafe {
        let qp = Box::into_raw(zeros::<Qp>().assume_init());
        ((*qp).context, (*qp).qp_num) = (context, number);
        qp
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_modify_qp(qp: *mut Qp, attr: *mut QpAttr, mask: c_int) -> c_int {
    let fabric = Fabric::get();
    let mut state = fabric.lock();
    // SAFETY: an open queue pair and its attributes.
    let (number, attr) = unsafe { ((*qp).qp_num, &*attr) };
    let Some(queue_pair) = state.queue_pairs.get_mut(&number) else { return libc::EINVAL };
    let (is_connected, before) = (queue_pair.is_connected, queue_pair.state);
    let to_init = QP_PKEY_INDEX | QP_PORT | if is_connected { QP_ACCESS_FLAGS } else { QP_QKEY };
    let to_receive = match is_connected {
        true => {
            QP_AV | QP_PATH_MTU | QP_DEST_QPN | QP_RQ_PSN | QP_MAX_DEST_RD_ATOMIC | QP_MIN_RNR_TIMER
        }
        false => 0,
    };
    let more = QP_TIMEOUT | QP_RETRY_CNT | QP_RNR_RETRY | QP_MAX_QP_RD_ATOMIC;
    let to_send = QP_SQ_PSN | if is_connected { more } else { 0 };
    let (needed, after) = match (before, attr.qp_state) {
        (_, QPS_RESET) => (0, State::Reset),
        (_, QPS_ERR) => (0, State::Error),
        (State::Reset, QPS_INIT) => (to_init, State::Init),
        (State::Init, QPS_RTR) => (to_receive, State::Receiving),
        (State::Receiving, QPS_RTS) => (to_send, State::Sending),
        _ => return libc::EINVAL,
    };
    if mask != needed | QP_STATE {
        return libc::EINVAL;
    }
    let model = queue_pair.model;
    match after {
        State::Reset => {
            queue_pair.reset();
            state.completions.values_mut().for_each(|queue| queue.forget(number));
            return 0;
        }
        State::Error => {
            fabric.with_card(&mut state, number, |qp, card| qp.break_down(card));
            return 0;
        }
        State::Init => {
            if attr.port_num != 1 || attr.pkey_index != 0 {
                return libc::EINVAL;
            }
            (queue_pair.access, queue_pair.qkey) = (attr.qp_access_flags as c_int, attr.qkey);
        }
        State::Receiving if is_connected => {
            let way = &attr.ah_attr;
            if !leads(model, way) || i32::from(attr.max_dest_rd_atomic) > model.reads {
                return libc::EINVAL;
            }
            queue_pair.peer = attr.dest_qp_num;
            queue_pair.responder.receive_from(attr.rq_psn & 0xff_ffff);
        }
        State::Sending if is_connected => {
            // Messages wait for buffers without a limit.
            if attr.rnr_retry != 7 || i32::from(attr.max_rd_atomic) > model.reads {
                return libc::EINVAL;
            }
            queue_pair.reads = attr.max_rd_atomic.into();
            queue_pair.send_from(attr.sq_psn & 0xff_ffff);
        }
        _ => {}
    }
    queue_pair.state = after;
    0
}

/// Whether a way leads to a port of the device's network.
fn leads(model: &Model, way: &AhAttr) -> bool {
    way.port_num == 1
        && match way.is_global {
            0 => model.link == LINK_INFINIBAND && way.dlid == model.lid(),
            _ => way.grh.sgid_index == 0 && way.grh.dgid == model.gid(),
        }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_qp(qp: *mut Qp) -> c_int {
    let mut state = Fabric::get().lock();
    // SAFETY: made above.
    let number = unsafe { (*qp).qp_num };
    let Some(mut queue_pair) = state.queue_pairs.remove(&number) else { return libc::EINVAL };
    queue_pair.responder.place_all();
    state.receives.remove(&number);
    if !queue_pair.model.is_software {
        state.completions.values_mut().for_each(|queue| queue.forget(number));
    }
    // SAFETY: not used any more.
    drop(unsafe { Box::from_raw(qp) });
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_ah(pd: *mut Pd, way: *mut AhAttr) -> *mut Ah {
    // SAFETY: an open protection domain and a way.
    unsafe {
        let context = (*pd).context;
        match leads(model_of((*context).device), &*way) {
            true => give(Ah { context }, 0),
            false => failed(libc::EINVAL),
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_ah(ah: *mut Ah) -> c_int {
    // SAFETY: made above, and not used any more.
    unsafe { take_back(ah) };
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_wc_status_str(status: c_int) -> *const c_char {
    let text = match status {
        0 => c"success",
        1 => c"local length error",
        4 => c"local protection error",
        5 => c"Work Request Flushed Error",
        9 => c"remote invalid request error",
        10 => c"remote access error",
        12 => c"transport retry counter exceeded",
        _ => c"unknown",
    };
    text.as_ptr()
}

unsafe extern "C" fn poll_cq(cq: *mut Cq, most: c_int, taken: *mut Wc) -> c_int {
    let fabric = Fabric::get();
    let mut state = fabric.lock();
    fabric.poll(&mut state);
    // SAFETY: the queue is open.
    let number = unsafe { number_of(cq) };
    let mut count = 0;
    while count < most {
        let queue = state.completions.get_mut(&number).expect("an open queue");
        let Some((wc, retires)) = queue.take() else { break };
        if let (Some(retires), Some(qp)) = (retires, state.queue_pairs.get_mut(&wc.qp_num)) {
            qp.retired = qp.retired.max(retires);
        }
        // SAFETY: there is room for so many.
        unsafe { taken.add(count as usize).write(wc) };
        count += 1;
    }
    count
}

unsafe extern "C" fn req_notify_cq(cq: *mut Cq, _solicited_only: c_int) -> c_int {
    // SAFETY: the queue is open.
    let number = unsafe { number_of(cq) };
    let fabric = Fabric::get();
    let mut state = fabric.lock();
    if let Some(queue) = state.completions.get_mut(&number) {
        queue.arm();
    }
    fabric.leave(&mut state);
    0
}

/// Adds buffers to a queue.
///
/// # Safety
/// A list of buffers.
unsafe fn post_to(queue: u32, mut wr: *mut RecvWr, bad: *mut *mut RecvWr) -> c_int {
    let mut state = Fabric::get().lock();
    let Some(receives) = state.receives.get_mut(&queue) else { return libc::EINVAL };
    // SAFETY: by the caller's word.
    while let Some(one) = unsafe { wr.as_ref() } {
        let error = match (one.num_sge, receives.posted.len() < receives.most) {
            (1, true) => 0,
            (1, false) => libc::ENOMEM,
            _ => libc::EINVAL,
        };
        if error != 0 {
            // SAFETY: a place for the result.
            unsafe { bad.write(wr) };
            return error;
        }
        // SAFETY: there is one.
        let sge = unsafe { *one.sg_list };
        let (at, len) = (sge.addr as usize, sge.length as usize);
        receives.posted.push_back(Receive { id: one.wr_id, at, len, key: sge.lkey });
        wr = one.next;
    }
    0
}

unsafe extern "C" fn post_srq_recv(srq: *mut Srq, wr: *mut RecvWr, bad: *mut *mut RecvWr) -> c_int {
    // SAFETY: the queue is open; the rest by the caller's word.
    unsafe { post_to(number_of(srq), wr, bad) }
}

unsafe extern "C" fn post_recv(qp: *mut Qp, wr: *mut RecvWr, bad: *mut *mut RecvWr) -> c_int {
    // SAFETY: the queue pair is open; the rest by the caller's word.
    unsafe { post_to((*qp).qp_num, wr, bad) }
}

unsafe extern "C" fn post_send(qp: *mut Qp, mut wr: *mut SendWr, bad: *mut *mut SendWr) -> c_int {
    let fabric = Fabric::get();
    let mut state = fabric.lock();
    // SAFETY: the queue pair is open.
    let number = unsafe { (*qp).qp_num };
    // SAFETY: a list of operations.
    while let Some(one) = unsafe { wr.as_ref() } {
        let delay = state.random.delay();
        let Some(qp) = state.queue_pairs.get_mut(&number) else { return libc::EINVAL };
        // SAFETY: an operation that is posted.
        match unsafe { operation(qp, one, now() + delay) } {
            Ok(operation) => {
                let time = operation.not_before;
                qp.posted.push_back(operation);
                qp.count += 1;
                fabric.wake_by(&mut state, time);
            }
            Err(error) => {
                // SAFETY: a place for the result.
                unsafe { bad.write(wr) };
                return error;
            }
        }
        wr = one.next;
    }
    0
}

/// What is posted, or why it cannot be.
///
/// # Safety
/// The operation's fields are what they say.
unsafe fn operation(qp: &QueuePair, wr: &SendWr, time: u64) -> Result<Operation, c_int> {
    let sends = matches!(qp.state, State::Sending | State::Error);
    let known = [WR_WRITE, WR_SEND, WR_READ, WR_COMPARE_SWAP, WR_FETCH_ADD];
    let fits = qp.is_connected || wr.opcode == WR_SEND;
    if !sends || !known.contains(&wr.opcode) || !fits || wr.num_sge != 1 {
        return Err(libc::EINVAL);
    }
    if qp.count - qp.retired >= qp.most as u64 {
        return Err(libc::ENOMEM);
    }
    // SAFETY: there is one.
    let sge = unsafe { *wr.sg_list };
    let (at, len) = (sge.addr as usize, sge.length as usize);
    let is_inline = wr.send_flags & SEND_INLINE != 0;
    let brings = matches!(wr.opcode, WR_READ | WR_COMPARE_SWAP | WR_FETCH_ADD);
    if is_inline && (brings || len > qp.inline) {
        return Err(libc::EINVAL);
    }
    let local = match (is_inline, len) {
        (true, 0) => Local::Inline(vec![]),
        (true, _) => {
            // SAFETY: by the caller's word.
            Local::Inline(unsafe { std::slice::from_raw_parts(at as *const u8, len) }.to_vec())
        }
        (false, _) => Local::Memory { at, len, key: sge.lkey },
    };
    // SAFETY: by the kind of operation.
    let (address, key, operands) = unsafe {
        match wr.opcode {
            WR_WRITE | WR_READ => (wr.to.memory.remote_addr, wr.to.memory.rkey, [0; 2]),
            WR_SEND if qp.is_connected => (0, 0, [0; 2]),
            WR_SEND => {
                let ToQueue { ah, remote_qpn, remote_qkey } = wr.to.queue;
                if ah.is_null() {
                    return Err(libc::EINVAL);
                }
                (0, remote_qkey, [remote_qpn.into(), 0])
            }
            _ => {
                let ToVariable { remote_addr, compare_add, swap, rkey } = wr.to.variable;
                (remote_addr, rkey, [compare_add, swap])
            }
        }
    };
    let earliest = qp.posted.back().map_or(0, |last| last.not_before);
    Ok(Operation {
        id: wr.wr_id,
        op: wr.opcode,
        flags: wr.send_flags,
        local,
        address,
        key,
        operands,
        not_before: earliest.max(time),
    })
}
