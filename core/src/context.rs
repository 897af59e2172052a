// SPDX-License-Identifier: Apache-2.0
//! Contexts: independent streams of operations with completion of their own (OpenSHMEM 1.6,
//! "Communication Management Routines").

use crate::team::Team;
use crate::transport::Stream;
use std::sync::Arc;

/// Promises a program makes about a context.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ContextOptions {
    /// Threads never use it at the same time.
    pub serialized: bool,
    /// Only the creating thread uses it.
    pub private: bool,
    /// No quiet and fence for memory stores are asked of it.
    pub nostore: bool,
}

/// A context: a team to number PEs in, and one stream per transport.
#[derive(Debug)]
pub struct Context {
    team: Arc<Team>,
    options: ContextOptions,
    streams: Box<[Stream]>,
}

impl Context {
    /// A context over `team` with a stream of number `id` for each of `transports` transports.
    pub fn new(team: Arc<Team>, options: ContextOptions, transports: usize, id: u32) -> Context {
        let exclusive = options.private || options.serialized;
        let streams = (0..transports).map(|_| Stream::new(id, exclusive)).collect();
        Context { team, options, streams }
    }

    /// The team in which the context's PE numbers count.
    pub fn team(&self) -> &Arc<Team> {
        &self.team
    }

    /// What was promised at creation.
    pub fn options(&self) -> ContextOptions {
        self.options
    }

    /// The stream on a transport, by the transport's index.
    pub fn stream(&self, transport: usize) -> &Stream {
        &self.streams[transport]
    }

    /// All streams.
    pub fn streams(&self) -> &[Stream] {
        &self.streams
    }

    /// True when no operation of the context is outstanding.
    pub fn is_quiet(&self) -> bool {
        self.streams.iter().all(Stream::is_quiet)
    }
}
