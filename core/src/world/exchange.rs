// SPDX-License-Identifier: Apache-2.0
//! What PEs tell each other while the world starts.

use crate::bootstrap::Bootstrap;
use crate::config::{Config, CoreSettings, Row};
use crate::error::{Error, Result};
use crate::interfaces;
use crate::memory::common::Need;
use crate::transport::{Endpoint, Job, Locality, Segment, Transport};
use crate::wait::usable_cpus;
use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::Pid;
use std::collections::HashMap;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::MetadataExt;

/// Endpoints by transport, then PE.
pub type Endpoints = Vec<Vec<Option<Box<dyn Endpoint>>>>;

/// A version has many builds before its release, whose messages may differ: [`Config::build`] tells them apart.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Between the items of a list that PEs exchange.
const SEPARATOR: char = '\x1f';
/// Networks that a PE tells of: what launchers pass on is short.
const NETWORKS: usize = 8;
/// Before the reason of a PE that cannot start.
const FAILED: &str = "!";

/// A variable that is not as by default, and what PEs must have alike of it.
type Setting = (String, String);

/// Those of one PE, the core's first.
fn settings(config: &Config, transports: &[Box<dyn Transport>]) -> Result<Vec<Setting>> {
    let mut rows = config.rows();
    for transport in transports {
        rows.extend((transport.settings().rows)(config.environment())?);
    }
    let setting = |row: Row| Some((row.variable.name.to_owned(), plain(&row.common?)));
    Ok(rows.into_iter().filter_map(setting).collect())
}

/// `text` as it can be an item of a list.
fn plain(text: &str) -> String {
    text.replace(char::is_control, "?")
}

/// The first setting that PEs do not have alike, in words: what they would do together leaves some
/// of them waiting. All PEs find the same one.
fn difference(all: &[Vec<Setting>]) -> Option<String> {
    let value = |pe: usize, name: &str| {
        let found = all[pe].iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    };
    let core = CoreSettings::VARIABLES.iter().map(|variable| variable.name);
    let names = core.chain(all.iter().flatten().map(|(name, _)| name.as_str()));
    names.into_iter().find_map(|name| {
        let first = value(0, name);
        let other = (1..all.len()).find(|pe| value(*pe, name) != first)?;
        let shown = |value: Option<&str>| match value {
            Some(value) => format!("'{value}'"),
            None => "the default".to_owned(),
        };
        Some(format!(
            "{name} is {} on PE 0 and {} on PE {other}: set it to the same value for all PEs",
            shown(first),
            shown(value(other, name))
        ))
    })
}

/// What a PE tells of itself when it starts.
struct Hello {
    build: String,
    host: u64,
    processors: u64,
    pid: i32,
    /// The namespace in which the process has this number.
    numbered_by: u64,
    host_name: String,
    settings: Vec<Setting>,
    notices: Vec<String>,
    need: Need,
    several_threads: bool,
    /// A list as text: only what one PE of each host tells is looked at.
    networks: String,
}

/// The version and the build of a PE's library, for people.
fn build_of(config: &Config) -> String {
    match config.build {
        "" => VERSION.to_owned(),
        build => format!("{VERSION}, build {build}"),
    }
}

/// A PE of another build, of which nothing else is known.
#[derive(Debug, PartialEq, Eq)]
struct Stranger {
    build: String,
    host_name: String,
}

impl Hello {
    /// The build and the name of the host stay the lines that they are: PEs of other builds read them.
    fn encode(&self) -> String {
        let Hello {
            build,
            host,
            processors,
            pid,
            numbered_by,
            host_name,
            settings,
            notices,
            need,
            ..
        } = self;
        let (several_threads, networks) = (self.several_threads, &self.networks);
        let Need { heap, statics, address } = need;
        let address: String = address.iter().map(|byte| format!("{byte:02x}")).collect();
        let settings = settings.iter().map(|(name, value)| format!("{name}={value}"));
        let list = |items: Vec<String>| items.join(&SEPARATOR.to_string());
        let (settings, notices) = (list(settings.collect()), list(notices.clone()));
        format!(
            "{build}\n{host}\n{processors}\n{pid}\n{numbered_by}\n{host_name}\n{settings}\n{notices}\n\
             {heap}\n{statics}\n{address}\n{several_threads}\n{networks}"
        )
    }

    /// None where the text is not that of a PE; an error if it runs another build than this one.
    fn decode(text: &str, own: &str) -> Option<Result<Hello, Stranger>> {
        let mut fields = text.split('\n');
        let build = fields.next()?.to_owned();
        if build != own {
            let host_name = fields.nth(4).unwrap_or("unknown").to_owned();
            return Some(Err(Stranger { build, host_name }));
        }
        let items = |text: &str| -> Vec<String> {
            text.split(SEPARATOR).filter(|item| !item.is_empty()).map(str::to_owned).collect()
        };
        let setting = |item: String| {
            item.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()))
        };
        Some(Ok(Hello {
            build,
            host: fields.next()?.parse().ok()?,
            processors: fields.next()?.parse().ok()?,
            pid: fields.next()?.parse().ok()?,
            numbered_by: fields.next()?.parse().ok()?,
            host_name: fields.next()?.to_owned(),
            settings: items(fields.next()?).into_iter().map(setting).collect::<Option<_>>()?,
            notices: items(fields.next()?),
            need: Need {
                heap: fields.next()?.parse().ok()?,
                statics: fields.next()?.parse().ok()?,
                address: bytes_of(fields.next()?)?,
            },
            several_threads: fields.next()?.parse().ok()?,
            networks: fields.next()?.to_owned(),
        }))
    }
}

/// That PEs run different builds, in words: the first that differs from PE 0. All PEs find the same one.
fn mixture(builds: &[(String, String)]) -> Option<String> {
    let (first, host) = builds.first()?;
    let other = builds.iter().position(|(build, _)| build != first)?;
    let (build, elsewhere) = &builds[other];
    Some(format!(
        "PEs run different builds of the library: PE 0 on host {host} runs version {first}, and PE {other} on host \
         {elsewhere} version {build}; install the same build on all hosts, and link programs that contain the \
         library again"
    ))
}

/// The bytes that hexadecimal digits stand for.
fn bytes_of(digits: &str) -> Option<Vec<u8>> {
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    digits.len().is_multiple_of(2).then(|| digits.as_bytes().chunks(2).map(byte).collect())?
}

/// What PE `pe` could not do, as an error of all PEs.
fn failed(me: usize, pe: usize, why: &str) -> Error {
    let what = match pe == me {
        true => why.to_owned(),
        false => format!("PE {pe} could not start: {why}"),
    };
    Error::Common { speaker: pe as u32, what }
}

/// Takes part in the first exchange for a PE that cannot start, so that the others end with its
/// reason. Gives the error that all PEs have.
pub fn refuse(bootstrap: &dyn Bootstrap, why: Error) -> Error {
    let all = bootstrap.allgather(format!("{FAILED}{why}").as_bytes());
    let lowest = all.ok().and_then(|all| first_failure(bootstrap.pe(), &all));
    lowest.unwrap_or(why)
}

fn first_failure(me: usize, all: &[Vec<u8>]) -> Option<Error> {
    all.iter().enumerate().find_map(|(pe, bytes)| {
        let why = bytes.strip_prefix(FAILED.as_bytes())?;
        Some(failed(me, pe, &String::from_utf8_lossy(why)))
    })
}

/// Collective: gives what this PE has done, and what all PEs have to tell, if all others have done
/// theirs, or the error of the first that has not.
pub fn agree<T>(
    bootstrap: &dyn Bootstrap,
    mine: Result<T>,
    told: &[u8],
) -> Result<(T, Vec<Vec<u8>>)> {
    let done = match mine {
        Ok(done) => done,
        Err(why) => return Err(refuse(bootstrap, why)),
    };
    let all = bootstrap.allgather(told)?;
    match first_failure(bootstrap.pe(), &all) {
        None => Ok((done, all)),
        Some(error) => Err(error),
    }
}

/// Tells the others where this PE is, what it needs of the memory of its host, and whether several of its
/// threads may call collective operations; learns that of them, of the last whether it is so of any PE. An
/// error if a PE cannot start, and if PEs run different builds or differ in settings that they must have alike.
pub fn localities(
    bootstrap: &dyn Bootstrap,
    config: &Config,
    transports: &[Box<dyn Transport>],
    need: Need,
    several_threads: bool,
) -> Result<(Vec<Locality>, Vec<Need>, bool)> {
    let settings = match settings(config, transports) {
        Ok(settings) => settings,
        Err(why) => return Err(refuse(bootstrap, why)),
    };
    let host_name = nix::unistd::gethostname()
        .map(|name| plain(&name.to_string_lossy()))
        .unwrap_or_else(|_| "unknown".into());
    let host_name = match config.host {
        Some(number) => format!("emulated host {number} of {host_name}"),
        None => host_name,
    };
    let mine = Hello {
        build: build_of(config),
        host: host_id(config),
        processors: processors_id(config),
        pid: std::process::id() as i32,
        numbered_by: crate::process::namespace(),
        host_name,
        settings,
        notices: config.notices.iter().map(|notice| plain(notice)).collect(),
        need,
        several_threads,
        // To ask for them takes a tenth of a millisecond, which adds up where hundreds of PEs share a host.
        networks: match config.one_machine.0 || config.host.is_some() || bootstrap.n_pes() == 1 {
            true => String::new(),
            false => {
                let networks = interfaces::networks(NETWORKS);
                let networks: Vec<String> = networks.iter().map(|one| one.to_string()).collect();
                networks.join(&SEPARATOR.to_string())
            }
        },
    };
    let (me, all) = (bootstrap.pe(), bootstrap.allgather(mine.encode().as_bytes())?);
    if let Some(error) = first_failure(me, &all) {
        return Err(error);
    }
    let mut hellos = Vec::with_capacity(all.len());
    let mut builds = Vec::with_capacity(all.len());
    for (pe, bytes) in all.iter().enumerate() {
        let told = std::str::from_utf8(bytes).ok();
        match told.and_then(|text| Hello::decode(text, &mine.build)) {
            Some(Ok(hello)) => {
                builds.push((hello.build.clone(), hello.host_name.clone()));
                hellos.push(hello);
            }
            Some(Err(Stranger { build, host_name })) => builds.push((build, host_name)),
            None => {
                let what = format!("PE {pe} sent a location that cannot be read");
                return Err(Error::Bootstrap(what));
            }
        }
    }
    if let Some(what) = mixture(&builds) {
        return Err(Error::Common { speaker: 0, what });
    }
    let settings: Vec<_> = hellos.iter_mut().map(|h| std::mem::take(&mut h.settings)).collect();
    if let Some(what) = difference(&settings) {
        return Err(Error::Common { speaker: 0, what });
    }
    if me == 0 {
        let mut notices: Vec<&String> = hellos.iter().flat_map(|hello| &hello.notices).collect();
        notices.sort_unstable();
        notices.dedup();
        notices.into_iter().for_each(|notice| tracing::warn!("{notice}"));
    }
    let several_threads = hellos.iter().any(|hello| hello.several_threads);
    let own_names = hellos[me].numbered_by;
    let mut hosts: HashMap<u64, (u32, u32)> = HashMap::new();
    let locality = |hello: Hello| {
        let next = hosts.len() as u32;
        let (host_index, count) = hosts.entry(hello.host).or_insert((next, 0));
        let local_index = *count;
        *count += 1;
        let Hello { host, processors, pid, numbered_by, host_name, need, networks, .. } = hello;
        // Its number says something to this process only if both have theirs from the same namespace.
        let pid = if numbered_by == own_names { pid } else { 0 };
        let host_index = *host_index;
        let networks = match local_index {
            0 => networks.split(SEPARATOR).filter_map(|one| one.parse().ok()).collect(),
            _ => vec![],
        };
        (Locality { host, processors, host_index, local_index, host_name, pid, networks }, need)
    };
    let (localities, needs) = hellos.into_iter().map(locality).unzip();
    Ok((localities, needs, several_threads))
}

/// Equal for two processes exactly if they may share memory: same kernel, same network namespace
/// (through whose sockets descriptors are passed), same emulated host. Its name says nothing: two
/// containers of one kernel may have the same, and two of one network different ones. Process
/// namespaces do not matter here: what numbers processes finds out about them itself.
fn host_id(config: &Config) -> u64 {
    let boot = boot_id();
    let network = std::fs::metadata("/proc/self/ns/net").ok().map(|m| (m.dev(), m.ino()));
    let name = nix::unistd::gethostname().ok();
    host_id_of(boot, network, name, config.host)
}

fn host_id_of(
    boot: Option<String>,
    network: Option<(u64, u64)>,
    name: Option<std::ffi::OsString>,
    emulated: Option<u32>,
) -> u64 {
    let mut hasher = DefaultHasher::new();
    // Without /proc the name is all there is: better than taking all machines for one.
    let name = name.filter(|_| boot.is_none() || network.is_none());
    (boot, network, name, emulated).hash(&mut hasher);
    hasher.finish()
}

fn boot_id() -> Option<String> {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()
}

/// Equal for two processes if they run on the same processors: same kernel, same affinity mask. A cgroup
/// with a quota has its own share of them.
fn processors_id(config: &Config) -> u64 {
    let mask = sched_getaffinity(Pid::from_raw(0)).ok();
    let usable = |mask: CpuSet| -> Vec<usize> {
        (0..CpuSet::count()).filter(|cpu| mask.is_set(*cpu).unwrap_or(false)).collect()
    };
    let usable = mask.map(usable).unwrap_or_default();
    let (boot, own) = (boot_id(), host_id(config));
    let shares = boot.is_some() && usable.len() == usable_cpus();
    let mut hasher = DefaultHasher::new();
    (boot, usable, (!shares).then_some(own)).hash(&mut hasher);
    hasher.finish()
}

/// Why transports do not reach a PE, each with its name.
#[derive(Clone, Debug, Default)]
pub struct Reasons(Vec<(&'static str, String)>);

impl Reasons {
    /// Why that of this name does not; none if it does, or is not to be used.
    pub fn of(&self, transport: &str) -> Option<&str> {
        self.0.iter().find(|(name, _)| *name == transport).map(|(_, why)| why.as_str())
    }
}

impl fmt::Display for Reasons {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("none is chosen");
        }
        for (index, (name, why)) in self.0.iter().enumerate() {
            write!(f, "{}{name}: {why}", if index > 0 { "; " } else { "" })?;
        }
        Ok(())
    }
}

/// Opens the transports that work, exchanges their addresses and connects. Gives the endpoints and,
/// for every PE, the reasons why transports do not reach it. Transports that do not work here are
/// removed.
pub fn connect(
    bootstrap: &dyn Bootstrap,
    job: &Job<'_>,
    segments: &[Segment<'_>],
    transports: &mut Vec<Box<dyn Transport>>,
) -> Result<(Endpoints, Vec<Reasons>)> {
    let mut reasons = vec![Reasons::default(); job.n_pes()];
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
                if job.config.transports.asks_for(transport.name()) {
                    append(&mut blob, refusal_of(transport.name()).as_bytes());
                    append(&mut blob, why.as_bytes());
                }
                reasons.iter_mut().for_each(|r| r.0.push((transport.name(), why.clone())));
                false
            }
        }
    });
    let blobs = bootstrap.allgather(&blob)?;
    if let Some(error) = first_failure(job.pe, &blobs) {
        return Err(error);
    }
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
                let refusal = find(&blobs[pe], refusal_of(transport.name()).as_bytes());
                let why = refusal.map_or(why, |why| {
                    format!("not available there: {}", String::from_utf8_lossy(&why))
                });
                reasons[pe].0.push((transport.name(), why));
                None
            }
        });
        endpoints.push(row.collect());
    }
    Ok((endpoints, reasons))
}

/// Under which a PE tells why a transport that users ask for by name does not work there.
fn refusal_of(transport: &str) -> String {
    format!("-{transport}")
}

fn append(blob: &mut Vec<u8>, bytes: &[u8]) {
    blob.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    blob.extend_from_slice(bytes);
}

/// What follows `name` in a blob of alternating names and texts: the address of a transport, or why there
/// is none.
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
    use crate::bootstrap::Threads;
    use proptest::prelude::*;
    use std::sync::Mutex;

    fn of(settings: &[(&str, &str)]) -> Vec<Setting> {
        settings.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
    }

    #[test]
    fn a_difference_in_settings_names_both_values_and_pes() {
        let on = of(&[("SHMEM_X_CRC", "on"), ("SHMEM_X_LANES", "2")]);
        assert_eq!(difference(&[on.clone(), on.clone(), on.clone()]), None);
        let what = difference(&[on.clone(), on.clone(), of(&[("SHMEM_X_CRC", "on")])]).unwrap();
        assert!(what.starts_with("SHMEM_X_LANES is '2' on PE 0 and the default on PE 2"), "{what}");
        let what = difference(&[vec![], of(&[("SHMEM_X_CRC", "on")])]).unwrap();
        assert!(what.starts_with("SHMEM_X_CRC is the default on PE 0 and 'on' on PE 1"), "{what}");
        // Without the transport there is none of its settings.
        let without = of(&[("SHMEM_TRANSPORTS", "shm")]);
        let what = difference(&[on, without]).unwrap();
        assert!(what.starts_with("SHMEM_TRANSPORTS is the default on PE 0 and 'shm'"), "{what}");
    }

    #[test]
    fn what_must_be_alike_is_told_if_it_is_not_the_default() {
        let environment = [
            ("SHMEM_DEBUG", "1"),
            ("SHMEM_TUNE", "always"),
            ("SHMEM_LOG", "info"),
            ("SHMEM_ROUTE", "a\nb"),
        ];
        let config = Config::from_environment(environment.into_iter().collect()).unwrap();
        let told = settings(&config, &[]).unwrap();
        assert_eq!(told, of(&[("SHMEM_DEBUG", "on"), ("SHMEM_ROUTE", "a?b")]));
    }

    #[test]
    fn a_hello_is_read_back_and_torn_text_is_survived() {
        let settings = of(&[("SHMEM_A", "x=1;y"), ("SHMEM_B", "")]);
        let notices = vec!["one".to_owned(), "two".to_owned()];
        let need = Need { heap: 1 << 40, statics: 5, address: vec![0, 255, 16] };
        let host_name = "h n".into();
        let networks = format!("10.99.0.1/24{SEPARATOR}fd00::1/64");
        let hello = Hello {
            build: "1.2, build ab".into(),
            host: 7,
            processors: 8,
            pid: 9,
            numbered_by: 10,
            host_name,
            settings,
            notices,
            need,
            several_threads: true,
            networks: networks.clone(),
        };
        let text = hello.encode();
        let read = Hello::decode(&text, &hello.build).unwrap().unwrap();
        assert_eq!((read.host, read.processors, &*read.host_name), (7, 8, "h n"));
        assert_eq!((read.pid, read.numbered_by), (9, 10));
        assert_eq!((read.settings, read.notices), (hello.settings, hello.notices));
        assert_eq!((read.need, read.several_threads), (hello.need, true));
        assert_eq!(read.networks, networks);
        for cut in 0..text.len() {
            Hello::decode(&text[..cut], &hello.build);
        }
        let stranger = Hello::decode(&text, "1.2, build cd").unwrap().err().unwrap();
        assert_eq!((&*stranger.build, &*stranger.host_name), ("1.2, build ab", "h n"));
        let stranger = Hello::decode("9.9\nnew", "1.2").unwrap().err().unwrap();
        assert_eq!((&*stranger.build, &*stranger.host_name), ("9.9", "unknown"));
    }

    proptest! {
        /// Whatever a PE says first: it is understood, or refused.
        #[test]
        fn garbage_in_what_pes_tell_does_no_harm(
            lines in prop::collection::vec("[0-9]{0,21}|[A-Z_=\u{1f}]{0,9}|\\PC{0,9}", 0..12),
            bytes in prop::collection::vec(any::<u8>(), 0..60), len in 0u32..70,
        ) {
            let text = format!("{VERSION}\n{}", lines.join("\n"));
            if let Some(Ok(hello)) = Hello::decode(&text, VERSION) {
                let again = Hello::decode(&hello.encode(), VERSION).and_then(Result::ok);
                prop_assert!(again.is_some_and(|again| again.settings == hello.settings));
            }
            let told = [text.into_bytes(), bytes.clone()];
            prop_assert_eq!(first_failure(0, &told).is_some(), bytes.starts_with(b"!"));
            let blob = [&len.to_le_bytes()[..], &bytes].concat();
            let _ = (find(&blob, b"shm"), find(&bytes, b""));
        }
    }

    #[test]
    fn pes_of_different_builds_are_refused_by_all_with_builds_and_hosts() {
        let errors = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for bootstrap in Threads::job(3) {
                let errors = &errors;
                scope.spawn(move || {
                    let build = if bootstrap.pe() == 2 { "cd" } else { "ab" };
                    let mut config = Config::default();
                    config.build = build;
                    let need = Need { heap: 1, statics: 1, address: vec![] };
                    let told = localities(&bootstrap, &config, &[], need, false);
                    let Err(error) = told else { panic!("not refused") };
                    errors.lock().unwrap().push(error);
                });
            }
        });
        let here = nix::unistd::gethostname().unwrap().into_string().unwrap();
        let errors = errors.into_inner().unwrap();
        assert_eq!(errors.len(), 3);
        for error in errors {
            let Error::Common { speaker: 0, what } = error else { panic!("{error}") };
            let first = format!("PE 0 on host {here} runs version {VERSION}, build ab, and PE 2");
            assert!(what.contains(&first), "{what}");
            let other = format!("PE 2 on host {here} version {VERSION}, build cd;");
            assert!(what.contains(&other), "{what}");
        }
        let same = ("1".to_owned(), "n1".to_owned());
        assert_eq!(mixture(&[same.clone(), same]), None);
    }

    #[test]
    fn the_reason_of_a_pe_that_cannot_start_reaches_all() {
        let errors = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for bootstrap in Threads::job(4) {
                let errors = &errors;
                scope.spawn(move || {
                    let mine = match bootstrap.pe() {
                        1 | 3 => Err(Error::Memory(format!("none on {}", bootstrap.pe()))),
                        _ => Ok(()),
                    };
                    let error = agree(&bootstrap, mine, b"").unwrap_err();
                    errors.lock().unwrap().push((bootstrap.pe(), error));
                });
            }
        });
        for (pe, error) in errors.into_inner().unwrap() {
            let Error::Common { speaker, what } = error else { panic!("{error}") };
            assert_eq!(speaker, 1);
            let expected = if pe == 1 { "none on 1" } else { "PE 1 could not start: none on 1" };
            assert_eq!(what, expected);
        }
    }

    #[test]
    fn a_host_is_told_by_kernel_and_network_not_by_its_name() {
        let id = |boot: &str, network: u64, name: &str, emulated| {
            host_id_of(Some(boot.into()), Some((4, network)), Some(name.into()), emulated)
        };
        let here = id("boot a", 1, "node", None);
        assert_eq!(here, id("boot a", 1, "another name", None));
        let others = [
            id("boot b", 1, "node", None),
            id("boot a", 2, "node", None),
            id("boot a", 1, "node", Some(0)),
        ];
        assert!(others.iter().all(|other| *other != here));
        let blind = |name: &str| host_id_of(None, None, Some(name.into()), None);
        assert_eq!(blind("node1"), blind("node1"));
        assert_ne!(blind("node1"), blind("node2"));
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
