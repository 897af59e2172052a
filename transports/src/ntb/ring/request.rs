// SPDX-License-Identifier: Apache-2.0
//! What is asked of an engine.

use tombolo_core::transport::{Amo, Remote, Signal};

/// A variable or range at another host.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Host; not this one.
    pub host: u16,
    /// PE, counted within the host.
    pub pe: u8,
    /// Where in its symmetric memory.
    pub remote: Remote,
}

/// A put, perhaps with a signal.
#[derive(Clone, Copy, Debug)]
pub struct PutRequest {
    /// Given back with the completion.
    pub token: u64,
    /// The stream, for `fence`.
    pub stream: u32,
    /// Where to.
    pub target: Target,
    /// Address of the source, as [`Span::Local`].
    pub source: u64,
    /// Bytes.
    pub len: usize,
    /// The source is reused at once: keep a copy for repetitions.
    pub retain: bool,
    /// Applied after the data.
    pub signal: Option<Signal>,
}

/// A get.
#[derive(Clone, Copy, Debug)]
pub struct GetRequest {
    /// Given back with the completion.
    pub token: u64,
    /// The stream, for its share of the ring.
    pub stream: u32,
    /// Where from.
    pub target: Target,
    /// Address of the destination, as [`Span::Local`].
    pub dest: u64,
    /// Bytes.
    pub len: usize,
}

/// An AMO.
#[derive(Clone, Copy, Debug)]
pub struct AmoRequest {
    /// Given back with the completion.
    pub token: u64,
    /// The stream: AMOs follow what it put to the same host before.
    pub stream: u32,
    /// The variable.
    pub target: Target,
    /// What to do.
    pub amo: Amo,
    /// Where the old value goes, as [`Span::Local`].
    pub result: Option<u64>,
}

impl PutRequest {
    /// The signal of the transport contract.
    pub fn with_signal(self, signal: Signal) -> PutRequest {
        PutRequest { signal: Some(signal), ..self }
    }
}
