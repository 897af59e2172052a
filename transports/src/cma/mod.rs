// SPDX-License-Identifier: Apache-2.0
//! Cross-memory attach: the kernel copies between the address spaces of two processes of a host.
//!
//! Reaches memory that is not mapped, such as static data that could not be remapped. Puts and gets
//! are complete when they return and do not need the target's CPU. Atomics are left to the core.
//!
//! Whether the kernel allows it depends on user ids, security modules and container set-ups; so it
//! is tried on every peer, and what the attempt says counts.
//!
//! Where Yama restricts access to ancestors (`kernel.yama.ptrace_scope` is 1), a PE permits it to all
//! processes of its user from its start to the end of the transport: PEs have no ancestor in common
//! that every launcher tells. Elsewhere nothing is permitted, for nothing has to be. A program that
//! is to keep that restriction runs with `SHMEM_TRANSPORTS=^cma`.

mod endpoint;
mod sys;

use endpoint::{CmaEndpoint, Range};
use std::io::Read;
use tombolo_core::error::{Error, Result};
use tombolo_core::transport::{Endpoint, Job, Segment, SegmentKind, Transport};

const NAME: &str = "cma";
const TOKEN: usize = 16;
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

    /// The way to the process that this one, whose name space is `numbered_by`, calls `pid`.
    fn endpoint(
        &self,
        numbered_by: u64,
        pid: i32,
        address: &[u8],
    ) -> std::result::Result<CmaEndpoint, String> {
        if address.is_empty() {
            return Err("not available there".into());
        }
        let peer = Address::parse(address).ok_or("its address cannot be read")?;
        // There the number stands for another process, or for none.
        if peer.numbered_by != numbered_by {
            return Err("it is in another process name space, such as a container's".into());
        }
        let mut token = [0u8; TOKEN];
        // SAFETY: `token` is valid for its length.
        unsafe { sys::read(pid, token.as_mut_ptr(), peer.token_at, TOKEN) }
            .map_err(|e| format!("the kernel refuses access to process {pid}: {e}"))?;
        if token != peer.token {
            return Err(format!("process {pid} is another one"));
        }
        let mut ranges = [Range::default(); 2];
        for kind in SegmentKind::ALL {
            let (own, theirs) = (self.own[kind as usize], peer.ranges[kind as usize]);
            if own.len == theirs.len && own.layout == theirs.layout {
                ranges[kind as usize] = theirs;
            }
        }
        Ok(CmaEndpoint::new(pid, ranges))
    }
}

impl Transport for Cma {
    fn name(&self) -> &'static str {
        NAME
    }

    fn probe(&self, job: &Job<'_>) -> std::result::Result<(), String> {
        let (source, mut dest) = ([1u8; 8], [0u8; 8]);
        let pid = job.localities[job.pe].pid;
        // SAFETY: both buffers are valid for 8 bytes.
        unsafe { sys::read(pid, dest.as_mut_ptr(), source.as_ptr() as usize, 8) }
            .map_err(|e| format!("the kernel refuses process_vm_readv: {e}"))
    }

    fn open(&mut self, _job: &Job<'_>, segments: &[Segment<'_>]) -> Result<Vec<u8>> {
        std::fs::File::open("/dev/urandom")
            .and_then(|mut source| source.read_exact(&mut self.token[..]))
            .map_err(|e| Error::system("making a token", e))?;
        self.permits = sys::allow_siblings();
        for segment in segments {
            self.own[segment.kind as usize] =
                Range { base: segment.base as usize, len: segment.len, layout: segment.layout };
        }
        let token_at = self.token.as_ptr() as usize;
        let numbered_by = sys::process_name_space();
        Ok(Address { numbered_by, token_at, token: *self.token, ranges: self.own }.bytes())
    }

    fn connect(
        &mut self,
        job: &Job<'_>,
        addresses: &[Vec<u8>],
    ) -> Result<Vec<std::result::Result<Box<dyn Endpoint>, String>>> {
        let numbered_by = sys::process_name_space();
        let connect = |pe: usize| -> std::result::Result<Box<dyn Endpoint>, String> {
            if !job.is_local(pe) {
                return Err("not on this host".into());
            }
            let address = addresses.get(pe).map(Vec::as_slice).unwrap_or_default();
            Ok(Box::new(self.endpoint(numbered_by, job.localities[pe].pid, address)?))
        };
        let connected: Vec<_> = (0..job.n_pes()).map(connect).collect();
        self.reached = connected.iter().filter(|endpoint| endpoint.is_ok()).count();
        let mut local = connected.iter().enumerate().filter(|(pe, _)| job.is_local(*pe));
        self.refused =
            local.find_map(|(pe, endpoint)| Some((pe, endpoint.as_ref().err()?.clone())));
        Ok(connected)
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

/// Where a PE's token and segments lie in its address space.
struct Address {
    /// The name space in which the PE's process number was given.
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

    #[test]
    fn a_process_that_is_not_the_peer_is_recognised() {
        let cma = Cma::new();
        let mine = [7u8; TOKEN];
        let in_space = |numbered_by, token| {
            let (token_at, ranges) = (mine.as_ptr() as usize, [Range::default(); 2]);
            Address { numbered_by, token_at, token, ranges }.bytes()
        };
        let address = |token| in_space(sys::process_name_space(), token);
        let pid = std::process::id() as i32;
        let endpoint = |address: &[u8]| cma.endpoint(sys::process_name_space(), pid, address);
        assert!(endpoint(&address(mine)).is_ok());
        let other = endpoint(&address([8; TOKEN])).err().unwrap();
        assert!(other.contains("another"), "{other}");
        assert!(endpoint(&address(mine)[1..]).is_err());
        let elsewhere = in_space(sys::process_name_space() + 1, mine);
        let why = endpoint(&elsewhere).err().unwrap();
        assert!(why.contains("name space"), "{why}");
    }
}
