// SPDX-License-Identifier: Apache-2.0
//! A transport that keeps the contract and nothing more, for tests (feature `testing`).
//!
//! It lies over another transport that maps the memory of peers, maps that of other emulated hosts of this machine
//! itself, and hides the mappings. What is put goes in pieces, each of which arrives at its own time, some of them
//! twice; what is complete is told late and in another order; AMOs are done at any time; now and then there is no room;
//! local buffers have to be registered; and what it can do at all, in which lengths and alignments, follows from a seed.
//! Every layer above must live with that: what passes over this transport relies on no more than
//! [`tombolo_core::transport`] promises.
//!
//! Time is the number of calls of `progress`, which the core's service thread makes: with the same
//! calls in the same order the same happens.

mod endpoint;
mod hosts;
mod local;
mod network;
mod settings;

use endpoint::{Held, UnorderedEndpoint};
use hosts::Files;
use network::Network;
use settings::UnorderedSettings;
use std::sync::Arc;
use tombolo_core::config::Table;
use tombolo_core::error::{Error, Result};
use tombolo_core::random::Random;
use tombolo_core::transport::{
    AmoOp, AmoSet, Capabilities, Endpoint, Job, Progress, Segment, SegmentKind, Status, Stream,
    Transport,
};

const NAME: &str = "unordered";

/// See the module.
pub struct Unordered {
    /// Maps the memory of PEs of the same host.
    inner: Box<dyn Transport>,
    /// What PEs of other hosts map.
    files: Files,
    /// Address and length of this PE's segments.
    own: Vec<(usize, usize)>,
    network: Option<Arc<Network>>,
}

impl Unordered {
    /// Over a transport that maps the memory of peers.
    pub fn over(inner: Box<dyn Transport>) -> Unordered {
        Unordered { inner, files: Files::default(), own: Vec::new(), network: None }
    }
}

/// Whether operations become visible in the order issued. Drawn apart, so that it does not change what
/// else the seed says.
fn keeps_order(seed: u64) -> bool {
    Random::new(seed.wrapping_mul(104_729)).one_in(5)
}

/// What endpoints can do: the same for all PEs that have the seed.
fn capabilities(seed: u64) -> Capabilities {
    let mut random = Random::new(seed);
    let mut amos = AmoSet::NONE;
    let all = random.one_in(4);
    for op in AmoOp::ALL {
        for size in [4, 8] {
            if all || random.one_in(2) {
                amos = amos.with(op, size);
            }
        }
    }
    let (amos, device_amos) = match random.one_in(3) {
        true => (AmoSet::NONE, amos),
        false => (amos, AmoSet::NONE),
    };
    let mut signals = AmoSet::NONE;
    for op in [AmoOp::Set, AmoOp::Add] {
        // A signal is an AMO, and both are in the domain of the CPU.
        if random.one_in(2) {
            signals = signals.with(op, 8);
        }
    }
    let align = |random: &mut Random| if random.one_in(4) { random.pick(&[4, 8, 64]) } else { 1 };
    Capabilities {
        put: true,
        get: true,
        amos,
        device_amos,
        signals,
        whole_words: !random.one_in(4),
        // Drawn apart, so that it does not change what else the seed says.
        ends_last: Random::new(seed.wrapping_mul(6_151)).one_in(2),
        ordered: keeps_order(seed),
        needs_target_cpu: false,
        put_max: random.pick(&[64, 192, 4096, usize::MAX]),
        get_max: random.pick(&[64, 192, 4096, usize::MAX]),
        put_align: align(&mut random),
        get_align: align(&mut random),
        inline_max: random.pick(&[0, 8, 100, usize::MAX]),
        // Drawn apart, so that it does not change what else the seed says.
        blocks_max: Random::new(seed.wrapping_mul(3_571)).pick(&[0, 96, 4096]),
    }
}

impl Transport for Unordered {
    fn name(&self) -> &'static str {
        NAME
    }

    fn settings(&self) -> Table {
        UnorderedSettings::TABLE
    }

    fn probe(&self, job: &Job<'_>) -> std::result::Result<(), String> {
        self.inner.probe(job)
    }

    fn open(&mut self, job: &Job<'_>, segments: &[Segment<'_>]) -> Result<Vec<u8>> {
        self.own = segments.iter().map(|segment| (segment.base as usize, segment.len)).collect();
        if (0..job.n_pes()).any(|pe| !job.is_local(pe)) {
            let failed = |e| Error::system("duplicating a descriptor", e);
            self.files = Files::of(segments).map_err(failed)?;
        }
        Ok(self.files.address(&self.inner.open(job, segments)?))
    }

    fn connect(
        &mut self,
        job: &Job<'_>,
        addresses: &[Vec<u8>],
    ) -> Result<Vec<std::result::Result<Box<dyn Endpoint>, String>>> {
        let settings = UnorderedSettings::read(job.config.environment())?;
        let can = capabilities(settings.seed.into());
        let network = Arc::new(Network::new(settings.seed.into(), job.pe, can.ordered, &self.own));
        self.network = Some(network.clone());
        let below: Vec<Vec<u8>> = addresses.iter().map(|all| hosts::below(all).into()).collect();
        let connected = self.inner.connect(job, &below)?;
        let wrap = |(pe, inner): (usize, std::result::Result<Box<dyn Endpoint>, String>)| {
            let (maps, held) = match job.is_local(pe) {
                true => {
                    let inner = inner?;
                    (SegmentKind::ALL.map(|kind| inner.mapped(kind)), Held::Endpoint(inner))
                }
                false => {
                    let maps = self.files.reach(&addresses[pe])?;
                    (maps.each_ref().map(|map| Some(map.as_ref()?.mapping())), Held::Maps(maps))
                }
            };
            let network = network.clone();
            let endpoint = UnorderedEndpoint { pe, maps, can, network, _held: held };
            Ok(Box::new(endpoint) as Box<dyn Endpoint>)
        };
        Ok(connected.into_iter().enumerate().map(wrap).collect())
    }

    fn fence(&self, stream: &Stream) -> Status {
        match self.network.as_ref().is_none_or(|network| network.fence(stream)) {
            true => Status::Complete,
            false => Status::Pending,
        }
    }

    fn quiet(&self, stream: &Stream) -> Status {
        if let Some(network) = &self.network {
            network.confirm(stream);
        }
        if stream.is_quiet() { Status::Complete } else { Status::Pending }
    }

    fn progress(&self) -> bool {
        self.network.as_ref().is_some_and(|network| network.step())
    }

    fn progress_needed(&self) -> Progress {
        Progress::Always
    }

    fn close(&mut self) {
        self.inner.close();
        self.files = Files::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_give_every_kind_of_transport() {
        let all: Vec<Capabilities> = (0..200).map(capabilities).collect();
        assert!(all.iter().any(|can| can.amos == AmoSet::ALL));
        assert!(all.iter().any(|can| can.amos != AmoSet::ALL));
        for both in [[true, true], [true, false], [false, true], [false, false]] {
            let device =
                |can: &Capabilities| [4, 8].map(|size| can.device_amos.is_sufficient(size));
            assert!(all.iter().any(|can| !can.device_amos.is_empty() && device(can) == both));
        }
        for aligned in [true, false] {
            assert!(all.iter().any(|can| (can.put_align > 1) == aligned));
            assert!(all.iter().any(|can| (can.get_align > 1) == aligned));
            assert!(all.iter().any(|can| can.whole_words == aligned));
            assert!(all.iter().any(|can| can.ordered == aligned));
            assert!(all.iter().any(|can| can.ends_last == aligned && !can.whole_words));
        }
        assert!(all.iter().all(|can| can.put_max >= can.put_align && can.get_max >= can.get_align));
    }
}
