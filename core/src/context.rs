// SPDX-License-Identifier: Apache-2.0
//! Contexts: independent streams of operations with completion of their own (OpenSHMEM 1.6,
//! "Communication Management Routines").

use crate::config::Reuse;
use crate::load::Loads;
use crate::ops::Mode;
use crate::route::Either;
use crate::team::Team;
use crate::transport::Stream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Promises a program makes about a context.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ContextOptions {
    /// Threads never use it at the same time.
    pub serialized: bool,
    /// Only the creating thread uses it.
    pub private: bool,
    /// No quiet and fence for memory stores are asked of it.
    pub nostore: bool,
    /// How buffers are used, if that is another way than on contexts of which nothing is said.
    pub hint: Option<Reuse>,
}

/// A context: a team to number PEs in, and one stream per transport.
#[derive(Debug)]
pub struct Context {
    team: Arc<Team>,
    options: ContextOptions,
    /// The hint's number and one, 0 for none.
    hint: AtomicU8,
    streams: Box<[Stream]>,
    loads: Loads,
    /// Number of the routes by which all has gone that may be under way; 0 if it may have gone by several.
    routed_by: AtomicU64,
}

impl Context {
    /// A context over `team` with `streams` streams of number `id`: those of the transports, which `loads` has too, come first.
    pub fn new(
        team: Arc<Team>,
        options: ContextOptions,
        loads: Loads,
        streams: usize,
        id: u32,
    ) -> Context {
        let exclusive = options.private || options.serialized;
        let streams = (0..streams).map(|_| Stream::new(id, exclusive)).collect();
        let (hint, routed_by) = (AtomicU8::new(number(options.hint)), AtomicU64::new(0));
        Context { team, options, hint, streams, loads, routed_by }
    }

    /// How the buffers of its operations are used; none if as on all contexts of which nothing is said.
    #[inline]
    pub fn hint(&self) -> Option<Reuse> {
        match self.hint.load(Ordering::Relaxed) {
            0 => None,
            1 => Some(Reuse::Hot),
            _ => Some(Reuse::Cold),
        }
    }

    /// Says how the buffers of its next operations are used.
    pub fn set_hint(&self, hint: Option<Reuse>) {
        self.hint.store(number(hint), Ordering::Relaxed);
        self.note_routes(0);
    }

    /// Whether all that may be under way has gone by the routes of this number.
    pub(crate) fn is_routed_by(&self, routes: u64) -> bool {
        self.routed_by.load(Ordering::Relaxed) == routes
    }

    /// Notes that nothing is under way that has gone by other routes.
    pub(crate) fn note_routes(&self, routes: u64) {
        self.routed_by.store(routes, Ordering::Relaxed);
    }

    /// The team in which the context's PE numbers count.
    pub fn team(&self) -> &Arc<Team> {
        &self.team
    }

    /// What was said at creation.
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

    /// The transport, of two, that is to carry a transfer: a blocking one goes by the first, as it would without
    /// another one; any other goes by that which is expected to be done first.
    #[cold]
    #[inline(never)]
    pub fn one_of(&self, either: &Either, len: usize, mode: Mode) -> u8 {
        match mode {
            Mode::Blocking => either.transports[0],
            Mode::NonBlocking => self.loads.give(either, len, &self.streams),
        }
    }

    /// Nothing of the context is under way on a transport.
    pub(crate) fn settle(&self, transport: usize) {
        self.loads.take_back(transport);
    }

    /// True when no operation of the context is outstanding or has failed.
    pub fn is_quiet(&self) -> bool {
        self.streams.iter().all(Stream::is_settled)
    }
}

fn number(hint: Option<Reuse>) -> u8 {
    hint.map_or(0, |reuse| reuse as u8 + 1)
}
