// SPDX-License-Identifier: Apache-2.0
//! libfabric's C interface, as far as it is used: types, constants and the library, which is loaded
//! at run time.
//!
//! Written after the headers of libfabric 1.17; its application binary interface only ever appends
//! fields. Most of the interface is reached through the tables of functions that its objects carry,
//! as the inline functions of the headers do.

mod library;
mod types;

#[cfg(test)]
pub use library::CLOSE;
pub use library::Library;
pub use types::*;

#[cfg(test)]
mod tests;
#[cfg(test)]
pub use tests::installed;
