// SPDX-License-Identifier: Apache-2.0
//! Binary interface of the C API: the values and structures of `include/tombolo/constants.h`.
//!
//! A program is compiled against the header and runs against the library, so the two must agree for
//! as long as the library's major version stands. The test
//! `the_header_and_the_library_agree_on_values` compares them through [`CONSTANTS`]. OpenSHMEM 1.6,
//! "Library Constants" and "Library Handles".

use core::ffi::{c_int, c_long};

/// Text of `SHMEM_VENDOR_STRING`, what `shmem_info_get_name` returns.
pub const SHMEM_VENDOR_STRING: &str = "Tombolo 0.1.0";

/// `shmem_team_config_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TeamConfig {
    /// Contexts the program asks to create from the team; counts under
    /// [`SHMEM_TEAM_NUM_CONTEXTS`].
    pub num_contexts: c_int,
}

/// `shmem_ctx_session_config_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionConfig {
    /// Most RMA calls expected in the session; counts under [`SHMEM_CTX_SESSION_TOTAL_OPS`].
    pub total_ops: usize,
}

impl Default for SessionConfig {
    /// The standard's default: the program does not say (`SIZE_MAX`).
    fn default() -> Self {
        SessionConfig { total_ops: usize::MAX }
    }
}

macro_rules! constants {
    ($($name:ident: $ty:ty = $value:expr;)+) => {
        $(
            #[doc = concat!("`", stringify!($name), "` of `shmem.h`.")]
            pub const $name: $ty = $value;
        )+

        /// Name and value of every numeric constant and predefined handle.
        pub const CONSTANTS: &[(&str, i64)] = &[$((stringify!($name), $name as i64)),+];
    };
}

constants! {
    // Version of the standard.
    SHMEM_MAJOR_VERSION: c_int = 1;
    SHMEM_MINOR_VERSION: c_int = 6;
    // Size in bytes of the array `shmem_info_get_name` may fill, its null included.
    SHMEM_MAX_NAME_LEN: usize = 256;

    // Thread level, in increasing order.
    SHMEM_THREAD_SINGLE: c_int = 0;
    SHMEM_THREAD_FUNNELED: c_int = 1;
    SHMEM_THREAD_SERIALIZED: c_int = 2;
    SHMEM_THREAD_MULTIPLE: c_int = 3;

    // Predefined value of a `shmem_ctx_t`.
    SHMEM_CTX_INVALID: usize = 0;
    SHMEM_CTX_DEFAULT: usize = 1;
    // Option of `shmem_ctx_create`.
    SHMEM_CTX_SERIALIZED: c_long = 1 << 0;
    SHMEM_CTX_PRIVATE: c_long = 1 << 1;
    SHMEM_CTX_NOSTORE: c_long = 1 << 2;
    // Option of `shmem_ctx_session_start`.
    SHMEM_CTX_SESSION_BATCH: c_long = 1 << 0;
    // Bit of the mask of `shmem_ctx_session_start`.
    SHMEM_CTX_SESSION_TOTAL_OPS: c_long = 1 << 0;

    // Predefined value of a `shmem_team_t`.
    SHMEM_TEAM_INVALID: usize = 0;
    SHMEM_TEAM_WORLD: usize = 1;
    SHMEM_TEAM_SHARED: usize = 2;
    // Bit of the mask of a team configuration.
    SHMEM_TEAM_NUM_CONTEXTS: c_long = 1 << 0;

    // Hint of `shmem_malloc_with_hints`.
    SHMEM_MALLOC_ATOMICS_REMOTE: c_long = 1 << 0;
    SHMEM_MALLOC_SIGNAL_REMOTE: c_long = 1 << 1;

    // Signal operation of `shmem_put_signal`.
    SHMEM_SIGNAL_SET: c_int = 0;
    SHMEM_SIGNAL_ADD: c_int = 1;

    // Comparison of the wait and test routines.
    SHMEM_CMP_EQ: c_int = 0;
    SHMEM_CMP_NE: c_int = 1;
    SHMEM_CMP_GT: c_int = 2;
    SHMEM_CMP_LE: c_int = 3;
    SHMEM_CMP_LT: c_int = 4;
    SHMEM_CMP_GE: c_int = 5;

    // What a program fills `pSync` arrays with.
    SHMEM_SYNC_VALUE: c_long = 0;
    // Length of a `pSync` array, in elements of type long.
    SHMEM_SYNC_SIZE: usize = 64;
    SHMEM_BARRIER_SYNC_SIZE: usize = 64;
    SHMEM_BCAST_SYNC_SIZE: usize = 64;
    SHMEM_COLLECT_SYNC_SIZE: usize = 64;
    SHMEM_REDUCE_SYNC_SIZE: usize = 64;
    SHMEM_ALLTOALL_SYNC_SIZE: usize = 64;
    SHMEM_ALLTOALLS_SYNC_SIZE: usize = 64;
    // Least length of a `pWrk` array, in elements of the reduction's type.
    SHMEM_REDUCE_MIN_WRKDATA_SIZE: usize = 16;
}
