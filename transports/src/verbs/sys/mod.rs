// SPDX-License-Identifier: Apache-2.0
//! The interface of `libibverbs.so.1`, as far as it is used.
//!
//! Written by hand after the documentation of the library's stable interface; a test compares sizes
//! and places with those of the headers. Nothing here is needed to build, and the library is looked for
//! only when the transport is wanted.

mod library;
#[cfg(test)]
mod tests;
mod types;

pub use library::Library;
pub use types::*;
