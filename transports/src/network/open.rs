// SPDX-License-Identifier: Apache-2.0
//! A PE's part of a network, from its segments to the endpoints of its peers.

use super::address::{Address, Told};
use super::endpoint::{NetworkEndpoint, Served, blocks_max};
use super::engine::{Engine, Lost, Own, Theirs};
use super::port::Port;
use super::{Network, Shared};
use std::os::fd::RawFd;
use std::ptr::null_mut;
use std::sync::{Arc, OnceLock};
use tombolo_core::random;
use tombolo_core::transport::{Endpoint, Job, Segment, SegmentKind};

/// Longest operation that is issued: a peer that takes one at a time over a slow network must not
/// seem silent meanwhile.
pub const PIECE: usize = 1 << 20;

/// What `Transport::connect` answers.
pub type Connected = Vec<Result<Box<dyn Endpoint>, String>>;

/// What a network is like.
pub struct Kind {
    /// Networks of different names do not reach each other.
    pub name: String,
    /// See [`Transport::medium`](tombolo_core::transport::Transport::medium).
    pub medium: String,
    /// What the target's processor is to carry out.
    pub served: Served,
    /// Longest operation in bytes.
    pub max_len: usize,
    /// Becomes readable when there is something to do.
    pub wait_fd: Option<RawFd>,
    /// The setting by which the user asks for AMOs of the network, where they are atomic among each other
    /// alone.
    pub amos_asked_for: Option<&'static str>,
}

/// What is open on this PE.
pub struct Opened<N: Network> {
    /// Its endpoint.
    pub port: Arc<Port<N>>,
    told: [Told; SegmentKind::ALL.len()],
    served: Served,
    piece: usize,
    blocks_max: usize,
    me: usize,
    amos_asked_for: Option<&'static str>,
    /// By PE, whether the network carries out all AMOs there, of the sizes that it can.
    by_device: OnceLock<Box<[bool]>>,
}

impl<N: Network + 'static> Opened<N> {
    /// Shares the segments, which stay until the port is closed, and gives the address to tell.
    pub fn new(
        mut net: N,
        kind: Kind,
        job: &Job<'_>,
        segments: &[Segment<'_>],
    ) -> Result<(Opened<N>, Vec<u8>), String> {
        let none = Own { base: null_mut(), len: 0, shared: Shared::default() };
        let mut own = [none; SegmentKind::ALL.len()];
        let mut told = [Told::default(); SegmentKind::ALL.len()];
        // A segment with gaps is registered, and changed for others, in a mapping without. Buffers of this PE's
        // own operations that lie in it are treated like private ones.
        for segment in segments.iter().filter(|segment| !segment.whole.is_null()) {
            let (base, len) = (segment.whole, segment.len);
            // SAFETY: segments stay until `close` has returned. Keys are as good as secret.
            let shared = unsafe { net.share(base, len, random()?) }?;
            let kind = segment.kind as usize;
            own[kind] = Own { base, len, shared };
            told[kind] = Told::of(&own[kind], segment.layout);
        }
        let (name, token) = (net.name()?, random()?);
        let blocks_max = blocks_max(net.message_max());
        let lost = Arc::new(Lost::none(job.n_pes()));
        let silence = job.config.silence;
        let engine = Engine::new(net, job.pe, token, own, lost.clone(), silence)?;
        let port = Arc::new(Port::new(engine, lost, kind.wait_fd));
        let (served, piece) = (kind.served, kind.max_len.min(PIECE));
        let amos_asked_for = kind.amos_asked_for;
        let address = Address { kind: kind.name, name, token, told };
        let by_device = OnceLock::new();
        let me = job.pe;
        let opened =
            Opened { port, told, served, piece, blocks_max, me, amos_asked_for, by_device };
        Ok((opened, address.encode()))
    }

    /// Enters the peers' addresses, and makes an endpoint for each that can be reached. `unlike` says
    /// why two kinds of networks do not.
    pub fn meet(
        &self,
        job: &Job<'_>,
        addresses: &[Vec<u8>],
        unlike: impl Fn(&str, &str) -> String,
    ) -> Connected {
        let mine = addresses.get(job.pe).and_then(|mine| Address::decode(mine));
        let kind = mine.map(|mine| mine.kind).unwrap_or_default();
        let meet = |pe: usize| -> Result<Theirs, String> {
            let bytes = addresses.get(pe).map(Vec::as_slice).unwrap_or_default();
            if bytes.is_empty() {
                return Err("not available there".into());
            }
            let peer = Address::decode(bytes).ok_or("its address cannot be read")?;
            if peer.kind != kind {
                return Err(unlike(&peer.kind, &kind));
            }
            let mut segments = SegmentKind::ALL.map(|kind| peer.told[kind as usize].segment);
            for kind in SegmentKind::ALL.map(|kind| kind as usize) {
                let (own, theirs) = (&self.told[kind], &peer.told[kind]);
                if own.segment.len != theirs.segment.len || own.layout != theirs.layout {
                    segments[kind].len = 0;
                }
            }
            let address = self.port.insert(&peer.name)?;
            if pe > job.pe {
                // Of two, one tells people what happens between them.
                self.port.introduce(address, &job.localities[pe].host_name);
            }
            Ok(Theirs { address, token: peer.token, segments })
        };
        let met: Vec<_> = (0..job.n_pes()).map(meet).collect();
        let endpoint = |(pe, met): (usize, &Result<Theirs, String>)| {
            let theirs = met.clone()?;
            let is_self = pe == job.pe;
            let atomics = self.port.atomics(theirs.address);
            if is_self && atomics.of_device().is_empty() {
                return Err("this PE itself".into());
            }
            let endpoint = NetworkEndpoint {
                port: self.port.clone(),
                pe: pe as u32,
                segments: theirs.segments,
                served: self.served,
                piece: self.piece,
                blocks_max: self.blocks_max,
                atomics,
                is_self,
            };
            Ok(Box::new(endpoint) as Box<dyn Endpoint>)
        };
        let endpoints = met.iter().enumerate().map(endpoint).collect();
        self.port.meet(met.into_iter().map(Result::ok).collect());
        endpoints
    }
}

impl<N: Network> Opened<N> {
    /// See [`Transport::amos_settled`](tombolo_core::transport::Transport::amos_settled).
    pub fn amos_settled(&self, by_device: &[bool]) {
        let asked_for = self.amos_asked_for.filter(|_| self.me == 0);
        if let Some(what) = asked_for.and_then(|asked_for| unsettled(asked_for, by_device)) {
            tracing::warn!("{what}");
        }
        _ = self.by_device.set(by_device.into());
    }

    /// Lines for people.
    pub fn describe(&self) -> Vec<String> {
        let mut lines = vec![self.port.counters().describe()];
        let all = self.by_device.get().map_or(&[][..], |all| all);
        if let count @ 1.. = all.iter().filter(|by_device| **by_device).count() {
            lines.push(format!(
                "the network carries out AMOs on variables of {count} of {} PEs",
                all.len()
            ));
        }
        lines
    }
}

/// What is to be said of PEs whose variables the network was to change and does not, if there are any.
pub fn unsettled(asked_for: &str, by_device: &[bool]) -> Option<String> {
    let others: Vec<String> = by_device
        .iter()
        .enumerate()
        .filter(|(_, by_device)| !**by_device)
        .map(|(pe, _)| pe.to_string())
        .collect();
    let pes = match &others[..] {
        [] => return None,
        all if all.len() == by_device.len() => "all PEs".to_owned(),
        [one] => format!("PE {one}"),
        [first, .., last] => format!("{} PEs, from {first} to {last},", others.len()),
    };
    Some(format!(
        "{asked_for}: processors carry out the AMOs on variables of {pes} nevertheless, because other \
         PEs of the same host map their memory, or because not all PEs reach them in this way; one PE \
         per host, or SHMEM_TRANSPORTS with this transport alone, changes that"
    ))
}

/// A number that nobody guesses.
pub fn random() -> Result<u64, String> {
    let mut bytes = [0; 8];
    random::fill(&mut bytes).map_err(|e| format!("making a random number: {e}"))?;
    Ok(u64::from_le_bytes(bytes))
}
