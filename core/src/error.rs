// SPDX-License-Identifier: Apache-2.0
//! The one error type of the control plane. The data path returns a status instead.

use std::fmt;
use std::io::{self, Write};

/// Result of set-up, tear-down and other operations off the data path.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What failed, where, and why.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An environment variable that cannot be understood.
    #[error("{name}='{value}': {why}")]
    Config {
        /// Name of the variable.
        name: String,
        /// Its value.
        value: String,
        /// What was expected.
        why: String,
    },
    /// Memory that was asked for is not there.
    #[error("{0}")]
    Memory(String),
    /// The PEs cannot agree by the launcher: it is unreachable, the protocol broken, peers absent.
    #[error("{0}")]
    Bootstrap(String),
    /// The job cannot start for a reason that all PEs know alike; it is said once.
    #[error("{what}")]
    Common {
        /// The PE that says it to people.
        speaker: u32,
        /// The reason.
        what: String,
    },
    /// A transport failed.
    #[error("transport {transport}: {what}")]
    Transport {
        /// Name of the transport.
        transport: &'static str,
        /// What failed.
        what: String,
    },
    /// Another PE cannot be reached by any transport.
    #[error("no transport reaches PE {pe}: {why}")]
    Unreachable {
        /// The PE.
        pe: u32,
        /// One reason per transport.
        why: String,
    },
    /// The operating system refused.
    #[error("{what}: {}", reason(.source))]
    System {
        /// What was attempted.
        what: String,
        /// Why it failed.
        source: io::Error,
    },
}

impl Error {
    /// The error with something added to what its transport says.
    pub(crate) fn with(self, more: String) -> Error {
        match self {
            Error::Transport { transport, what } => {
                Error::Transport { transport, what: what + &more }
            }
            other => other,
        }
    }

    /// An operating system error with what was attempted.
    pub fn system(what: impl Into<String>, source: impl Into<io::Error>) -> Error {
        Error::System { what: what.into(), source: source.into() }
    }
}

/// What the operating system means: where it is a limit on the process, with the command that shows it.
pub fn reason(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::EMFILE) => "the limit on open files is reached (see ulimit -n)".into(),
        _ => error.to_string(),
    }
}

/// Writes `what` to standard error as one line of this library, in one piece: the PEs of a job share
/// their terminal.
pub fn report(what: impl fmt::Display) {
    // Where there is no standard error there is nobody to tell.
    let _ = io::stderr().write_all(format!("tombolo: {what}\n").as_bytes());
}
