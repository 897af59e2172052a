// SPDX-License-Identifier: Apache-2.0
//! The library: found when it is needed, loaded once per process, never unloaded.

use super::types::*;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;

/// Name of the library.
const NAME: &str = "libibverbs.so.1";

/// Declares the functions that the library exports, and looks them up.
macro_rules! functions {
    ($($name:ident = $symbol:literal: fn($($argument:ty),*) -> $result:ty;)*) => {
        /// The functions that the library exports; those of the data path are in [`ContextOps`].
        pub struct Library {
            $(pub $name: unsafe extern "C" fn($($argument),*) -> $result,)*
        }

        impl Library {
            /// # Safety
            /// The library is the right one.
            unsafe fn look_up(library: &'static libloading::Library) -> Result<Library, String> {
                // SAFETY: the types are those of the headers; the library is never unloaded.
                unsafe { Ok(Library { $($name: symbol(library, $symbol)?,)* }) }
            }
        }
    };
}

functions! {
    get_device_list = c"ibv_get_device_list": fn(*mut c_int) -> *mut *mut Device;
    free_device_list = c"ibv_free_device_list": fn(*mut *mut Device) -> ();
    open_device = c"ibv_open_device": fn(*mut Device) -> *mut Context;
    close_device = c"ibv_close_device": fn(*mut Context) -> c_int;
    query_device = c"ibv_query_device": fn(*mut Context, *mut DeviceAttr) -> c_int;
    query_port = c"ibv_query_port": fn(*mut Context, u8, *mut PortAttr) -> c_int;
    query_gid = c"ibv_query_gid": fn(*mut Context, u8, c_int, *mut Gid) -> c_int;
    alloc_pd = c"ibv_alloc_pd": fn(*mut Context) -> *mut Pd;
    dealloc_pd = c"ibv_dealloc_pd": fn(*mut Pd) -> c_int;
    reg_mr = c"ibv_reg_mr": fn(*mut Pd, *mut c_void, usize, c_int) -> *mut Mr;
    dereg_mr = c"ibv_dereg_mr": fn(*mut Mr) -> c_int;
    create_comp_channel = c"ibv_create_comp_channel": fn(*mut Context) -> *mut CompChannel;
    destroy_comp_channel = c"ibv_destroy_comp_channel": fn(*mut CompChannel) -> c_int;
    create_cq = c"ibv_create_cq":
        fn(*mut Context, c_int, *mut c_void, *mut CompChannel, c_int) -> *mut Cq;
    destroy_cq = c"ibv_destroy_cq": fn(*mut Cq) -> c_int;
    get_cq_event = c"ibv_get_cq_event": fn(*mut CompChannel, *mut *mut Cq, *mut *mut c_void) -> c_int;
    ack_cq_events = c"ibv_ack_cq_events": fn(*mut Cq, u32) -> ();
    create_srq = c"ibv_create_srq": fn(*mut Pd, *mut SrqInitAttr) -> *mut Srq;
    destroy_srq = c"ibv_destroy_srq": fn(*mut Srq) -> c_int;
    create_qp = c"ibv_create_qp": fn(*mut Pd, *mut QpInitAttr) -> *mut Qp;
    modify_qp = c"ibv_modify_qp": fn(*mut Qp, *mut QpAttr, c_int) -> c_int;
    destroy_qp = c"ibv_destroy_qp": fn(*mut Qp) -> c_int;
    create_ah = c"ibv_create_ah": fn(*mut Pd, *mut AhAttr) -> *mut Ah;
    destroy_ah = c"ibv_destroy_ah": fn(*mut Ah) -> c_int;
    wc_status_str = c"ibv_wc_status_str": fn(c_int) -> *const c_char;
}

impl Library {
    /// The library, loaded at the first call; why it cannot be used if it cannot.
    pub fn get() -> Result<&'static Library, String> {
        static LIBRARY: OnceLock<Result<Library, String>> = OnceLock::new();
        LIBRARY.get_or_init(Library::load).as_ref().map_err(Clone::clone)
    }

    fn load() -> Result<Library, String> {
        // SAFETY: the library's constructors do nothing beyond the library.
        let library = unsafe { libloading::Library::new(NAME) };
        let library = library.map_err(|why| {
            let why = why.to_string();
            match why.contains("No such file") {
                true => format!(
                    "{NAME} is not installed (Debian: apt install libibverbs1 ibverbs-providers)"
                ),
                false => format!("{NAME} cannot be loaded: {why}"),
            }
        })?;
        // Other libraries may use it to the end of the process.
        let library = Box::leak(Box::new(library));
        // SAFETY: found under the name that stands for this interface.
        unsafe { Library::look_up(library) }
    }

    /// What the status of a completion means.
    pub fn status(&self, status: c_int) -> String {
        // SAFETY: gives a constant string for every number.
        text_of(unsafe { (self.wc_status_str)(status) })
    }
}

/// A C string of the library; empty for null.
fn text_of(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: the library's strings end with a zero and are valid where they are read.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// # Safety
/// `T` is the symbol's type.
unsafe fn symbol<T: Copy>(library: &'static libloading::Library, name: &CStr) -> Result<T, String> {
    // SAFETY: by the caller's word.
    let found = unsafe { library.get::<T>(name.to_bytes_with_nul()) };
    found
        .map(|symbol| *symbol)
        .map_err(|_| format!("{NAME} has no function {}", name.to_string_lossy()))
}
