//! What PEs tell each other while the world starts.

use crate::bootstrap::Bootstrap;
use crate::config::{Config, Shown, Tune};
use crate::error::{Error, Result};
use crate::transport::{Endpoint, Job, Locality, Segment, Transport};
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::MetadataExt;

/// Endpoints by transport, then PE.
pub type Endpoints = Vec<Vec<Option<Box<dyn Endpoint>>>>;

/// PEs of one job must speak the same dialect.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Settings by which PEs act together, so that a difference would leave some of them waiting.
fn common_settings(config: &Config) -> [(&'static str, String); 3] {
    let tune = match &config.tune {
        Tune::Off => "off",
        Tune::File(_) => "a saved table",
        // How often a PE measures is its own business, that it agrees with the others is not.
        Tune::Auto | Tune::Always | Tune::Adaptive => "on",
    };
    [
        ("SHMEM_TUNE", tune.to_owned()),
        ("SHMEM_ON_LOSS", Shown(&config.on_loss).to_string()),
        ("SHMEM_NTB_CRC", Shown(&config.ntb_crc).to_string()),
    ]
}

/// Compares this PE's settings with those of `pe`, in the form they are exchanged in.
fn compare(mine: &[(&str, String)], pe: usize, theirs: &str) -> Result<()> {
    for ((name, value), other) in mine.iter().zip(theirs.split(';')) {
        if value != other {
            return Err(Error::Bootstrap(format!(
                "{name} is {value} on this PE and {other} on PE {pe}: set it to the same value \
                 everywhere"
            )));
        }
    }
    Ok(())
}

/// Tells the others where this PE is and learns where they are. An error if PEs run different
/// versions, or differ in settings that they must have alike.
pub fn localities(bootstrap: &dyn Bootstrap, config: &Config) -> Result<Vec<Locality>> {
    let host_name = nix::unistd::gethostname()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_else(|_| "unknown".into());
    let host_name = match config.host {
        Some(number) => format!("emulated host {number} of {host_name}"),
        None => host_name,
    };
    let settings = common_settings(config);
    let values = settings.each_ref().map(|(_, value)| value.as_str()).join(";");
    let (host, pid) = (host_id(config), std::process::id());
    let mine = format!("{VERSION}\n{host}\n{pid}\n{host_name}\n{values}");
    let all = bootstrap.allgather(mine.as_bytes())?;
    let mut hosts: HashMap<u64, (u32, u32)> = HashMap::new();
    all.iter()
        .enumerate()
        .map(|(pe, bytes)| {
            let unreadable = || Error::Bootstrap(format!("PE {pe} says where it is unreadably"));
            let text = std::str::from_utf8(bytes).map_err(|_| unreadable())?;
            let mut fields = text.split('\n');
            let mut field = || fields.next().ok_or_else(unreadable);
            let version = field()?;
            if version != VERSION {
                return Err(Error::Bootstrap(format!(
                    "PE {pe} runs version {version} of the library, this PE {VERSION}"
                )));
            }
            let host: u64 = field()?.parse().map_err(|_| unreadable())?;
            let pid = field()?.parse().map_err(|_| unreadable())?;
            let host_name = field()?.to_owned();
            compare(&settings, pe, field()?)?;
            let next = hosts.len() as u32;
            let (host_index, count) = hosts.entry(host).or_insert((next, 0));
            let local_index = *count;
            *count += 1;
            Ok(Locality { host, host_index: *host_index, local_index, host_name, pid })
        })
        .collect()
}

/// Equal for two processes exactly if they may share memory: same kernel, same network namespace
/// (through whose sockets descriptors are passed), same emulated host.
fn host_id(config: &Config) -> u64 {
    let mut hasher = DefaultHasher::new();
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok().hash(&mut hasher);
    std::fs::metadata("/proc/self/ns/net").ok().map(|m| (m.dev(), m.ino())).hash(&mut hasher);
    config.host.hash(&mut hasher);
    hasher.finish()
}

/// Opens the transports that work, exchanges their addresses and connects. Gives the endpoints and,
/// for every PE, the reasons why transports do not reach it. Transports that do not work here are
/// removed.
pub fn connect(
    bootstrap: &dyn Bootstrap,
    job: &Job<'_>,
    segments: &[Segment<'_>],
    transports: &mut Vec<Box<dyn Transport>>,
) -> Result<(Endpoints, Vec<String>)> {
    let mut reasons = vec![Vec::new(); job.n_pes()];
    let mut blob = Vec::new();
    transports.retain_mut(|transport| {
        let opened = transport
            .probe(job)
            .and_then(|()| transport.open(job, segments).map_err(|e| e.to_string()));
        match opened {
            Ok(address) => {
                append(&mut blob, transport.name().as_bytes());
                append(&mut blob, &address);
                true
            }
            Err(why) => {
                tracing::info!("transport {} is not used: {why}", transport.name());
                reasons.iter_mut().for_each(|r| r.push(format!("{}: {why}", transport.name())));
                false
            }
        }
    });
    let blobs = bootstrap.allgather(&blob)?;
    let mut endpoints = Vec::new();
    for transport in transports.iter_mut() {
        let addresses: Vec<Vec<u8>> = blobs
            .iter()
            .map(|blob| find(blob, transport.name().as_bytes()).unwrap_or_default())
            .collect();
        let connected = transport.connect(job, &addresses)?;
        let row = connected.into_iter().enumerate().map(|(pe, result)| match result {
            Ok(endpoint) => Some(endpoint),
            Err(why) => {
                reasons[pe].push(format!("{}: {why}", transport.name()));
                None
            }
        });
        endpoints.push(row.collect());
    }
    let join = |r: Vec<String>| if r.is_empty() { "none is chosen".into() } else { r.join("; ") };
    Ok((endpoints, reasons.into_iter().map(join).collect()))
}

fn append(blob: &mut Vec<u8>, bytes: &[u8]) {
    blob.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    blob.extend_from_slice(bytes);
}

/// The address that follows `name` in a blob of alternating names and addresses.
fn find(mut blob: &[u8], name: &[u8]) -> Option<Vec<u8>> {
    let mut next = || -> Option<&[u8]> {
        let (len, rest) = blob.split_first_chunk::<4>()?;
        let (bytes, rest) = rest.split_at_checked(u32::from_le_bytes(*len) as usize)?;
        blob = rest;
        Some(bytes)
    };
    loop {
        let (found, address) = (next()?, next()?);
        if found == name {
            return Some(address.to_vec());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_in_common_settings_is_named() {
        let mine = [("SHMEM_TUNE", "on".to_owned()), ("SHMEM_ON_LOSS", "end".to_owned())];
        assert!(compare(&mine, 3, "on;end").is_ok());
        let error = compare(&mine, 3, "on;continue").unwrap_err().to_string();
        assert!(error.contains("SHMEM_ON_LOSS is end on this PE and continue on PE 3"), "{error}");
    }

    #[test]
    fn addresses_are_found_by_name_and_torn_blobs_are_survived() {
        let mut blob = Vec::new();
        for (name, address) in [("shm", "a"), ("cma", ""), ("ntb", "xyz")] {
            append(&mut blob, name.as_bytes());
            append(&mut blob, address.as_bytes());
        }
        assert_eq!(find(&blob, b"ntb"), Some(b"xyz".to_vec()));
        assert_eq!(find(&blob, b"cma"), Some(vec![]));
        assert_eq!(find(&blob, b"ofi"), None);
        for cut in 0..blob.len() {
            assert_eq!(find(&blob[..cut], b"ntb"), None);
        }
    }
}
