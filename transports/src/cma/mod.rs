// SPDX-License-Identifier: Apache-2.0
//! Cross-memory attach: the kernel copies between the address spaces of two processes of a host.
//!
//! Reaches memory that is not mapped, such as static data that could not be remapped. Puts and gets
//! are complete when they return and do not need the target's CPU. Atomics are left to the core.
//!
//! Whether the kernel allows it depends on user ids, security modules and container set-ups; so it
//! is tried on every peer, and what the attempt says counts. Where a host has many PEs, each tries some
//! of them at the start, and all if one of these is refused; the others it tries when it first uses them.
//!
//! Where Yama restricts access to ancestors (`kernel.yama.ptrace_scope` is 1), a PE permits it to all
//! processes of its user from its start to the end of the transport: PEs have no ancestor in common
//! that every launcher tells. Elsewhere nothing is permitted, for nothing has to be. A program that
//! is to keep that restriction runs with `SHMEM_TRANSPORTS=^cma`.
//!
//! The kernel finds the memory of a process by any of its threads that lives. The number of a process is that
//! of its first thread, which may end before others (`pthread_exit`).

mod endpoint;
mod sys;

use endpoint::{CmaEndpoint, Proof, Range};
use tombolo_core::error::Error;
use tombolo_core::process;
use tombolo_core::random;
use tombolo_core::transport::{Endpoint, Job, Segment, SegmentKind, Transport};

const NAME: &str = "cma";
const TOKEN: usize = 16;
/// PEs of a host that are all tried at the start.
const TRIED_MAX: usize = 64;
const RANGE: usize = 24;
const ADDRESS: usize = 16 + TOKEN + 2 * RANGE;

/// The CMA transport.
pub struct Cma {
    /// Read by peers through the kernel to make sure that they talk to the right process.
    token: Box<[u8; TOKEN]>,
    own: [Range; 2],
    /// PEs that the kernel lets this one reach, itself included.
    reached: usize,
    /// The first PE of this host that it does not, and why.
    refused: Option<(usize, String)>,
    /// This process has let others attach.
    permits: bool,
}

impl Default for Cma {
    fn default() -> Cma {
        Cma::new()
    }
}

impl Cma {
    /// A transport with nothing registered.
    pub fn new() -> Cma {
        Cma {
            token: Box::new([0; TOKEN]),
            own: [Range::default(); 2],
            reached: 0,
            refused: None,
            permits: false,
        }
    }

    /// The way to the process that this one, whose namespace is `numbered_by`, calls `pid`.
    fn endpoint(&self, numbered_by: u64, pid: i32, address: &[u8]) -> Result<CmaEndpoint, String> {
        if address.is_empty() {
            return Err("not available there".into());
        }
        let peer = Address::parse(address).ok_or("its address cannot be read")?;
        // There the number stands for another process, or for none.
        if peer.numbered_by != numbered_by {
            return Err("it is in another process namespace, such as a container's".into());
        }
        let mut ranges = [Range::default(); 2];
        for kind in SegmentKind::ALL {
            let (own, theirs) = (self.own[kind as usize], peer.ranges[kind as usize]);
            if own.len == theirs.len && own.layout == theirs.layout {
                ranges[kind as usize] = theirs;
            }
        }
        let proof = Proof { at: peer.token_at, token: peer.token };
        Ok(CmaEndpoint::new(pid, ranges, proof))
    }
}

impl Transport for Cma {
    fn name(&self) -> &'static str {
        NAME
    }

    fn probe(&self, _job: &Job<'_>) -> Result<(), String> {
        let (source, mut dest) = ([1u8; 8], [0u8; 8]);
        let me = nix::unistd::gettid().as_raw();
        // SAFETY: both buffers are valid for 8 bytes.
        unsafe {
            sys::read(me, dest.as_mut_ptr(), source.as_ptr() as usize, 8)
                .map_err(|e| format!("the kernel refuses process_vm_readv: {e}"))?;
            sys::write(me, dest.as_mut_ptr() as usize, source.as_ptr(), 8)
                .map_err(|e| format!("the kernel refuses process_vm_writev: {e}"))
        }
    }

    fn open(&mut self, _job: &Job<'_>, segments: &[Segment<'_>]) -> tombolo_core::Result<Vec<u8>> {
        random::fill(&mut self.token[..]).map_err(|e| Error::system("making a token", e))?;
        self.permits = sys::allow_siblings();
        for segment in segments {
            self.own[segment.kind as usize] =
                Range { base: segment.base as usize, len: segment.len, layout: segment.layout };
        }
        let token_at = self.token.as_ptr() as usize;
        let numbered_by = process::namespace();
        Ok(Address { numbered_by, token_at, token: *self.token, ranges: self.own }.bytes())
    }

    fn connect(
        &mut self,
        job: &Job<'_>,
        addresses: &[Vec<u8>],
    ) -> tombolo_core::Result<Vec<Result<Box<dyn Endpoint>, String>>> {
        let numbered_by = process::namespace();
        let connect = |pe: usize| {
            if !job.is_local(pe) {
                return Err("the PEs are on different hosts".into());
            }
            let address = addresses.get(pe).map(Vec::as_slice).unwrap_or_default();
            self.endpoint(numbered_by, job.localities[pe].pid, address)
        };
        let mut connected: Vec<_> = (0..job.n_pes()).map(connect).collect();
        try_out(&mut connected, job.pe);
        self.reached = connected.iter().filter(|endpoint| endpoint.is_ok()).count();
        let mut local = connected.iter().enumerate().filter(|(pe, _)| job.is_local(*pe));
        self.refused =
            local.find_map(|(pe, endpoint)| Some((pe, endpoint.as_ref().err()?.clone())));
        let boxed = |endpoint: CmaEndpoint| -> Box<dyn Endpoint> { Box::new(endpoint) };
        Ok(connected.into_iter().map(|endpoint| endpoint.map(boxed)).collect())
    }

    fn close(&mut self) {
        if std::mem::take(&mut self.permits) {
            sys::forbid_siblings();
        }
    }

    fn describe_own(&self) -> Vec<String> {
        let mut lines =
            vec![format!("the kernel copies to and from {} PEs, this one included", self.reached)];
        lines.extend(self.refused.iter().map(|(pe, why)| format!("not PE {pe}: {why}")));
        lines
    }
}

/// Tries the peers of PE `me`, by PE: all of them if they are few, else those at distances that are powers
/// of two, and all if one of these is refused.
fn try_out(peers: &mut [Result<CmaEndpoint, String>], me: usize) {
    let attempt = |peer: &mut Result<CmaEndpoint, String>| {
        let why = peer.as_ref().ok().and_then(|endpoint| endpoint.try_it().err());
        let refused = why.is_some();
        if let Some(why) = why {
            *peer = Err(why);
        }
        refused
    };
    let mut all = peers.iter().filter(|peer| peer.is_ok()).count() <= TRIED_MAX;
    if !all {
        let some = peers.iter_mut().enumerate();
        let some = some.filter(|(pe, _)| me.abs_diff(*pe).is_power_of_two());
        all = some.fold(false, |any, (_, peer)| attempt(peer) | any);
    }
    if all {
        peers.iter_mut().for_each(|peer| _ = attempt(peer));
    }
}

/// Where a PE's token and segments lie in its address space.
struct Address {
    /// The namespace in which the PE's process number was given.
    numbered_by: u64,
    token_at: usize,
    token: [u8; TOKEN],
    ranges: [Range; 2],
}

impl Address {
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.numbered_by.to_le_bytes().to_vec();
        bytes.extend_from_slice(&(self.token_at as u64).to_le_bytes());
        bytes.extend_from_slice(&self.token);
        for range in &self.ranges {
            for field in [range.base as u64, range.len as u64, range.layout] {
                bytes.extend_from_slice(&field.to_le_bytes());
            }
        }
        bytes
    }

    fn parse(bytes: &[u8]) -> Option<Address> {
        if bytes.len() != ADDRESS {
            return None;
        }
        let word = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        let range = |index: usize| {
            let at = 16 + TOKEN + index * RANGE;
            let (base, len) = (word(at)? as usize, word(at + 8)? as usize);
            Some(Range { base, len, layout: word(at + 16)? })
        };
        Some(Address {
            numbered_by: word(0)?,
            token_at: word(8)? as usize,
            token: bytes[16..16 + TOKEN].try_into().ok()?,
            ranges: [range(0)?, range(1)?],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tombolo_core::transport::{Remote, Status, Stream};

    #[test]
    fn a_process_that_is_not_the_peer_is_recognised() {
        let cma = Cma::new();
        let mine = [7u8; TOKEN];
        let in_space = |numbered_by, token| {
            let (token_at, ranges) = (mine.as_ptr() as usize, [Range::default(); 2]);
            Address { numbered_by, token_at, token, ranges }.bytes()
        };
        let address = |token| in_space(process::namespace(), token);
        let pid = std::process::id() as i32;
        let endpoint = |address: &[u8]| {
            let endpoint = cma.endpoint(process::namespace(), pid, address)?;
            endpoint.try_it().map(|()| endpoint)
        };
        assert!(endpoint(&address(mine)).is_ok());
        let other = endpoint(&address([8; TOKEN])).err().unwrap();
        assert!(other.contains("another"), "{other}");
        assert!(endpoint(&address(mine)[1..]).is_err());
        let elsewhere = in_space(process::namespace() + 1, mine);
        let why = endpoint(&elsewhere).err().unwrap();
        assert!(why.contains("namespace"), "{why}");
    }

    /// `count` peers, all of them this process, of which those that `wrong` names have another token.
    fn peers(
        count: usize,
        wrong: &[usize],
        token: &[u8; TOKEN],
    ) -> Vec<Result<CmaEndpoint, String>> {
        let peer = |pe: usize| {
            let mut proof = Proof { at: token.as_ptr() as usize, token: *token };
            proof.token[0] ^= u8::from(wrong.contains(&pe));
            let range = Range { base: token.as_ptr() as usize, len: TOKEN, layout: 0 };
            Ok(CmaEndpoint::new(std::process::id() as i32, [range; 2], proof))
        };
        (0..count).map(peer).collect()
    }

    #[test]
    fn of_many_peers_some_are_tried_at_start_and_the_others_when_they_are_used() {
        let token = [9; TOKEN];
        let refused = |count: usize, wrong: &[usize]| {
            let mut peers = peers(count, wrong, &token);
            try_out(&mut peers, 0);
            peers.iter().filter(|peer| peer.is_err()).count()
        };
        assert_eq!([refused(64, &[3, 5]), refused(200, &[3, 5]), refused(200, &[3, 4])], [2, 0, 2]);
        let mut many = peers(200, &[3], &token);
        try_out(&mut many, 0);
        let get = |pe: usize| {
            let (stream, mut dest) = (Stream::new(0, true), [0u8; TOKEN]);
            let source = Remote { segment: SegmentKind::Heap, offset: 0 };
            let endpoint = many[pe].as_ref().unwrap();
            // SAFETY: `dest` has as many bytes.
            let status = unsafe { endpoint.get(&stream, dest.as_mut_ptr(), source, TOKEN) };
            (status, dest)
        };
        assert_eq!(get(4), (Status::Complete, token));
        assert_eq!([get(3), get(3)], [(Status::Failed, [0; TOKEN]); 2]);
    }
}
