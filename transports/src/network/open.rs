// SPDX-License-Identifier: Apache-2.0
//! A PE's part of a network, from its segments to the endpoints of its peers.

use super::address::{Address, Told};
use super::endpoint::NetworkEndpoint;
use super::engine::{Engine, Lost, Own, Theirs};
use super::port::Port;
use super::{Network, Shared};
use std::io::Read;
use std::os::fd::RawFd;
use std::ptr::null_mut;
use std::sync::Arc;
use tombolo_core::transport::{AmoSet, Endpoint, Job, Segment, SegmentKind};

/// Longest operation that is issued: a peer that takes one at a time over a slow network must not
/// seem silent meanwhile.
const PIECE: usize = 1 << 20;

/// What `Transport::connect` answers.
pub type Connected = Vec<Result<Box<dyn Endpoint>, String>>;

/// What a network is like.
pub struct Kind {
    /// Networks of different names do not reach each other.
    pub name: String,
    /// Longest put that the target's processor is to carry out; 0 where words arrive whole without.
    pub served_max: usize,
    /// Longest operation in bytes.
    pub max_len: usize,
    /// Becomes readable when there is something to do.
    pub wait_fd: Option<RawFd>,
}

/// What is open on this PE.
pub struct Opened<N: Network> {
    /// Its endpoint.
    pub port: Arc<Port<N>>,
    told: [Told; SegmentKind::ALL.len()],
    served_max: usize,
    piece: usize,
    device_amos: AmoSet,
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
        for segment in segments {
            let (base, len) = (segment.base, segment.len);
            // SAFETY: segments stay until `close` has returned. Keys are as good as secret.
            let shared = unsafe { net.share(base, len, random()?) }?;
            let kind = segment.kind as usize;
            own[kind] = Own { base, len, shared };
            told[kind] = Told::of(&own[kind], segment.layout);
        }
        let (name, token, device_amos) = (net.name()?, random()?, net.amos());
        let lost = Arc::new(Lost::none(job.n_pes()));
        let engine = Engine::new(net, job.pe, token, own, lost.clone())?;
        let port = Arc::new(Port::new(engine, lost, kind.wait_fd));
        let (served_max, piece) = (kind.served_max, kind.max_len.min(PIECE));
        let address = Address { kind: kind.name, name, token, told };
        Ok((Opened { port, told, served_max, piece, device_amos }, address.encode()))
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
            Ok(Theirs { address, token: peer.token, segments })
        };
        let met: Vec<_> = (0..job.n_pes()).map(meet).collect();
        let endpoint = |(pe, met): (usize, &Result<Theirs, String>)| {
            let theirs = met.clone()?;
            let is_self = pe == job.pe;
            if is_self && self.device_amos.is_empty() {
                return Err("this PE itself".into());
            }
            let endpoint = NetworkEndpoint {
                port: self.port.clone(),
                pe: pe as u32,
                segments: theirs.segments,
                served_max: self.served_max,
                piece: self.piece,
                device_amos: self.device_amos,
                is_self,
            };
            Ok(Box::new(endpoint) as Box<dyn Endpoint>)
        };
        let endpoints = met.iter().enumerate().map(endpoint).collect();
        self.port.meet(met.into_iter().map(Result::ok).collect());
        endpoints
    }
}

/// A number that nobody guesses.
pub fn random() -> Result<u64, String> {
    let mut bytes = [0; 8];
    std::fs::File::open("/dev/urandom")
        .and_then(|mut source| source.read_exact(&mut bytes))
        .map_err(|e| format!("/dev/urandom: {e}"))?;
    Ok(u64::from_le_bytes(bytes))
}
