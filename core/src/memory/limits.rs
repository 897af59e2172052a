// SPDX-License-Identifier: Apache-2.0
//! How much memory there is for a job: the machine's, or less where a cgroup or a resource limit
//! says so. Best effort: what cannot be read does not limit.

use crate::error::{Error, Result};
use nix::sys::resource::{Resource, getrlimit};
use std::fs;

/// An error if a file of `bytes` bytes is longer than the process may make one: the attempt would
/// end it by a signal.
pub fn check_file_size(what: &str, bytes: usize) -> Result<()> {
    match getrlimit(Resource::RLIMIT_FSIZE) {
        Ok((limit, _)) if bytes as u64 > limit => Err(Error::Memory(format!(
            "{what} needs a memory file of {bytes} bytes, but the limit on the size of files is \
             {limit} bytes; raise it with 'ulimit -f'"
        ))),
        _ => Ok(()),
    }
}

/// A limit on memory and where it comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Bytes.
    pub bytes: u64,
    /// What sets it, for people.
    pub source: String,
}

/// The tightest limit on what this process and its peers on the host may use together.
pub fn memory_limit() -> Option<Limit> {
    machine().into_iter().chain(cgroup()).min_by_key(|limit| limit.bytes)
}

fn machine() -> Option<Limit> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("MemTotal:"))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(Limit { bytes: kib << 10, source: "memory of this machine".into() })
}

/// `memory.max` of the process's cgroup and all above it (version 2), `memory.limit_in_bytes`
/// (version 1).
fn cgroup() -> Option<Limit> {
    let own = fs::read_to_string("/proc/self/cgroup").ok()?;
    let mut tightest: Option<u64> = None;
    for line in own.lines() {
        let mut fields = line.splitn(3, ':');
        let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let (root, file) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max"),
            "memory" => ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
            _ => continue,
        };
        let mut path = path.trim_end_matches('/');
        loop {
            let value = fs::read_to_string(format!("{root}{path}/{file}"))
                .ok()
                .and_then(|text| text.trim().parse::<u64>().ok());
            tightest = tightest.into_iter().chain(value).min();
            match path.rfind('/') {
                Some(cut) => path = &path[..cut],
                None => break,
            }
        }
    }
    tightest.map(|bytes| Limit { bytes, source: "memory limit of this cgroup".into() })
}
