// SPDX-License-Identifier: Apache-2.0
//! How the tools of this package take part in jobs. Programs use [`crate::init`].

pub use crate::process::{Session, join};
