// SPDX-License-Identifier: Apache-2.0
//! What `oshrun` itself has to say: whole lines on standard error.

use std::fmt;
use std::io::Write;

/// Writes one line in one piece, so that it cannot be torn by what the PEs print.
pub fn line(text: fmt::Arguments<'_>) {
    let text = format!("oshrun: {text}\n");
    // Nobody is left to be told when standard error is closed.
    let _ = std::io::stderr().write_all(text.as_bytes());
}
