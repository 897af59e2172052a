// SPDX-License-Identifier: Apache-2.0
//! What transports have under way, as far as transfers are given to them by it: see [`Channel::Either`].
//!
//! A transfer adds the time that its transport is expected to need for it. What a context has added is taken back
//! when it has nothing under way there any more, so that an error of what is expected does not add up. No clock
//! is read.
//!
//! [`Channel::Either`]: crate::route::Channel::Either

use crate::route::Either;
use crate::transport::Stream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What one transport has been given by all contexts of this PE.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Load {
    /// Nanoseconds expected for what is under way.
    ns: AtomicU64,
    transfers: AtomicU64,
    bytes: AtomicU64,
}

impl Load {
    /// How many transfers the transport was given, and their bytes.
    pub fn given(&self) -> (u64, u64) {
        (self.transfers.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed))
    }
}

/// A context's part in the load of each transport.
#[derive(Debug)]
pub struct Loads {
    all: Arc<[Load]>,
    /// Nanoseconds that the context has added, by transport.
    own: Box<[AtomicU64]>,
}

impl Loads {
    /// Nothing so far.
    pub fn new(all: Arc<[Load]>) -> Loads {
        let own = all.iter().map(|_| AtomicU64::new(0)).collect();
        Loads { all, own }
    }

    /// Gives a transfer to the transport that is expected to be done with it first; the first one where it makes no
    /// difference. `streams` are the context's, by transport.
    pub fn give(&self, either: &Either, len: usize, streams: &[Stream]) -> u8 {
        let done = |place: usize| {
            let index = usize::from(either.transports[place]);
            if streams[index].is_quiet() {
                self.take_back(index);
            }
            self.all[index].ns.load(Ordering::Relaxed).saturating_add(either.ns(place, len))
        };
        let place = usize::from(done(1) < done(0));
        let index = usize::from(either.transports[place]);
        let load = &self.all[index];
        // In this order: who takes back finds in the sum what it takes.
        load.ns.fetch_add(either.ns(place, len), Ordering::Relaxed);
        self.own[index].fetch_add(either.ns(place, len), Ordering::Release);
        load.transfers.fetch_add(1, Ordering::Relaxed);
        load.bytes.fetch_add(len as u64, Ordering::Relaxed);
        either.transports[place]
    }

    /// Nothing of the context is under way on a transport.
    pub fn take_back(&self, index: usize) {
        if let Some(own) = self.own.get(index).filter(|own| own.load(Ordering::Relaxed) > 0) {
            let ns = own.swap(0, Ordering::Acquire);
            self.all[index].ns.fetch_sub(ns, Ordering::Relaxed);
        }
    }
}

impl Drop for Loads {
    fn drop(&mut self) {
        (0..self.own.len()).for_each(|index| self.take_back(index));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: usize = 1024;

    fn either(ns_per_kib: [u16; 2]) -> Either {
        Either { transports: [0, 1], ns_per_kib }
    }

    fn streams() -> [Stream; 2] {
        [Stream::new(0, true), Stream::new(0, true)]
    }

    /// A transport that carries one transfer after another, each in the time that is expected.
    fn last_done(either: &Either, lens: &[usize], choose: impl Fn(usize) -> u8) -> u64 {
        let mut done = [0; 2];
        for len in lens {
            let place = usize::from(choose(*len));
            done[place] += either.ns(place, *len);
        }
        done[0].max(done[1])
    }

    #[test]
    fn two_links_carry_a_series_in_the_time_of_their_sum() {
        for (costs, best) in [([100, 100], 0.5), ([100, 300], 0.75), ([250, 100], 0.714)] {
            let either = either(costs);
            let streams = streams();
            streams.iter().for_each(|stream| stream.issued.store(1, Ordering::Relaxed));
            let loads = Loads::new([Load::default(), Load::default()].into());
            let lens: Vec<usize> = (0..64).map(|n| (256 + n % 4 * 256) * KIB).collect();
            let alone = [0, 1].map(|place| last_done(&either, &lens, |_| place));
            let shared = last_done(&either, &lens, |len| loads.give(&either, len, &streams));
            let ratio = shared as f64 / alone[0].min(alone[1]) as f64;
            assert!((best..best + 0.03).contains(&ratio), "{costs:?}: {ratio}");
            // Every one is given to the one or the other.
            let given =
                loads.all.iter().map(Load::given).fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1));
            assert_eq!(given, (64, lens.iter().sum::<usize>() as u64));
        }
    }

    #[test]
    fn what_has_nothing_under_way_is_as_good_as_new() {
        let either = either([100, 120]);
        let all: Arc<[Load]> = [Load::default(), Load::default()].into();
        let (loads, streams) = (Loads::new(all.clone()), streams());
        // Complete at once: the faster one each time.
        assert_eq!([0; 3].map(|_| loads.give(&either, KIB, &streams)), [0; 3]);
        streams[0].issued.store(3, Ordering::Relaxed);
        assert_eq!(loads.give(&either, KIB, &streams), 1);
        streams[0].completed.store(3, Ordering::Relaxed);
        assert_eq!(loads.give(&either, KIB, &streams), 0);
        drop(loads);
        assert!(all.iter().all(|load| load.ns.load(Ordering::Relaxed) == 0));
    }

    #[test]
    fn contexts_see_what_others_have_under_way() {
        let either = either([100, 100]);
        let all: Arc<[Load]> = [Load::default(), Load::default()].into();
        let contexts = [0; 4].map(|_| (Loads::new(all.clone()), streams()));
        let chosen = contexts.each_ref().map(|(loads, streams)| {
            let index = loads.give(&either, KIB, streams);
            streams[usize::from(index)].issued.store(1, Ordering::Relaxed);
            index
        });
        assert_eq!(chosen, [0, 1, 0, 1]);
        // One that has completed and says so makes room, whoever asks next.
        let (loads, streams) = &contexts[1];
        streams[1].completed.store(1, Ordering::Relaxed);
        loads.take_back(1);
        assert_eq!(contexts[0].0.give(&either, KIB, &contexts[0].1), 1);
    }
}
