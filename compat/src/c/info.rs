// SPDX-License-Identifier: Apache-2.0
//! What the library is, and calls that are there for tools (OpenSHMEM 1.6,
//! `shmem_info_get_version`, `shmem_info_get_name`, `shmem_pcontrol`).

use crate::abi::{
    SHMEM_MAJOR_VERSION, SHMEM_MAX_NAME_LEN, SHMEM_MINOR_VERSION, SHMEM_VENDOR_STRING,
};
use std::ffi::{c_char, c_int};

const _: () = assert!(SHMEM_VENDOR_STRING.len() < SHMEM_MAX_NAME_LEN, "the name has no room");

routines! {
    callers: "results are writable: numbers, and `SHMEM_MAX_NAME_LEN` characters for the name, which is \
        no longer";
    [shmem_info_get_version](major: *mut c_int, minor: *mut c_int) {
        major.write(SHMEM_MAJOR_VERSION);
        minor.write(SHMEM_MINOR_VERSION);
    }
    [shmem_info_get_name](name: *mut c_char) {
        let text = SHMEM_VENDOR_STRING;
        std::ptr::copy_nonoverlapping(text.as_ptr().cast(), name, text.len());
        name.add(text.len()).write(0);
    }
    // The library itself makes no use of the level: profiling libraries put their own in its place.
    // C declares further arguments; a callee that reads none needs not know of them.
    [shmem_pcontrol](_level: c_int) {}
}
