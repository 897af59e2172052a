// SPDX-License-Identifier: Apache-2.0
//! The library: found when it is needed, loaded once per process, never unloaded.

use super::types::*;
use std::ffi::{c_char, c_int, c_void};
use std::sync::OnceLock;
use tombolo_core::foreign_functions;
use tombolo_core::library::{Loaded, Scope, text_of};

/// Name of the library.
const NAME: &str = "libibverbs.so.1";

foreign_functions! {
    /// The functions that the library exports; those of the data path are in [`ContextOps`].
    pub struct Library {
        pub get_device_list = c"ibv_get_device_list": fn(*mut c_int) -> *mut *mut Device;
        pub free_device_list = c"ibv_free_device_list": fn(*mut *mut Device);
        pub open_device = c"ibv_open_device": fn(*mut Device) -> *mut Context;
        pub close_device = c"ibv_close_device": fn(*mut Context) -> c_int;
        pub query_device = c"ibv_query_device": fn(*mut Context, *mut DeviceAttr) -> c_int;
        pub query_port = c"ibv_query_port": fn(*mut Context, u8, *mut PortAttr) -> c_int;
        pub query_gid = c"ibv_query_gid": fn(*mut Context, u8, c_int, *mut Gid) -> c_int;
        pub alloc_pd = c"ibv_alloc_pd": fn(*mut Context) -> *mut Pd;
        pub dealloc_pd = c"ibv_dealloc_pd": fn(*mut Pd) -> c_int;
        pub reg_mr = c"ibv_reg_mr": fn(*mut Pd, *mut c_void, usize, c_int) -> *mut Mr;
        pub dereg_mr = c"ibv_dereg_mr": fn(*mut Mr) -> c_int;
        pub create_comp_channel = c"ibv_create_comp_channel": fn(*mut Context) -> *mut CompChannel;
        pub destroy_comp_channel = c"ibv_destroy_comp_channel": fn(*mut CompChannel) -> c_int;
        pub create_cq = c"ibv_create_cq":
            fn(*mut Context, c_int, *mut c_void, *mut CompChannel, c_int) -> *mut Cq;
        pub destroy_cq = c"ibv_destroy_cq": fn(*mut Cq) -> c_int;
        pub get_cq_event = c"ibv_get_cq_event":
            fn(*mut CompChannel, *mut *mut Cq, *mut *mut c_void) -> c_int;
        pub ack_cq_events = c"ibv_ack_cq_events": fn(*mut Cq, u32);
        pub create_srq = c"ibv_create_srq": fn(*mut Pd, *mut SrqInitAttr) -> *mut Srq;
        pub destroy_srq = c"ibv_destroy_srq": fn(*mut Srq) -> c_int;
        pub create_qp = c"ibv_create_qp": fn(*mut Pd, *mut QpInitAttr) -> *mut Qp;
        pub modify_qp = c"ibv_modify_qp": fn(*mut Qp, *mut QpAttr, c_int) -> c_int;
        pub destroy_qp = c"ibv_destroy_qp": fn(*mut Qp) -> c_int;
        pub create_ah = c"ibv_create_ah": fn(*mut Pd, *mut AhAttr) -> *mut Ah;
        pub destroy_ah = c"ibv_destroy_ah": fn(*mut Ah) -> c_int;
        pub wc_status_str = c"ibv_wc_status_str": fn(c_int) -> *const c_char;
    }
}

impl Library {
    /// The library, loaded at the first call; why it cannot be used if it cannot.
    pub fn get() -> Result<&'static Library, String> {
        static LIBRARY: OnceLock<Result<Library, String>> = OnceLock::new();
        LIBRARY.get_or_init(Library::load).as_ref().map_err(Clone::clone)
    }

    fn load() -> Result<Library, String> {
        // SAFETY: the library's constructors do nothing beyond the library, and the types are those of the headers
        // that its name stands for.
        unsafe {
            let library = Loaded::open(NAME, Scope::Local)
                .map_err(|why| why.with_remedy("libibverbs1 ibverbs-providers"))?;
            Library::of(&library)
        }
    }

    /// What the status of a completion means.
    pub fn status(&self, status: c_int) -> String {
        // SAFETY: gives a constant string for every number.
        unsafe { text_of((self.wc_status_str)(status)) }
    }
}
