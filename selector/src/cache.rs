// SPDX-License-Identifier: Apache-2.0
//! Measurements on disk: one file per machine fingerprint, and tables people save and replay.
//!
//! Files are replaced whole by renaming, so that a reader sees an old file or a new one and jobs
//! that write at the same time do not damage each other's. A file that is corrupt, half written or
//! about another machine is ignored, and replaced by the next measurement. Other users of the machine
//! can neither have files of theirs read nor other files overwritten.

use crate::data::{Digest, Measurements};
use crate::probe;
use serde::{Deserialize, Serialize};
use std::ffi::CStr;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tombolo_core::config::{Audience, CacheDirectory, Reuse};
use tombolo_core::sizes;
use tombolo_core::transport::Transport;
use tombolo_core::wait::{self, usable_cpus};
use tombolo_core::{Result, World};

mod file;
pub use file::{Owner, read};

/// Changes with the meaning of the file.
const FORMAT: u32 = 4;

/// Doubtful measurements are used for this long; see [`Measurements::doubt`]. Then a job measures again.
pub const DOUBTFUL_FOR: Duration = Duration::from_secs(600);

const NO_TABLE: &str =
    "it is not a saved table; saved tables are the files tuning-*.json in the cache directory";

/// Tables that are kept.
const KEPT: usize = 32;
/// What names of files begin with.
const PREFIX: &str = "tuning-";

/// A saved table.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Saved {
    /// Version of the format.
    pub format: u32,
    /// What the measurements depend on, in words.
    pub machine: String,
    /// Digest of the measurements; not checked in files that people replay and may have edited.
    pub digest: String,
    /// The measurements.
    #[serde(flatten)]
    pub measured: Measurements,
}

impl Saved {
    /// A table to save.
    pub fn new(machine: &str, measured: Measurements) -> Saved {
        let digest = format!("{:016x}", measured.digest());
        Saved { format: FORMAT, machine: machine.to_owned(), digest, measured }
    }

    /// Reads text; the error says what is wrong with it.
    pub fn parse(text: &str) -> Result<Saved, String> {
        /// What every format has.
        #[derive(Deserialize)]
        struct Head {
            format: u32,
        }
        let head: Head = serde_json::from_str(text).map_err(|_| NO_TABLE.to_owned())?;
        if head.format != FORMAT {
            return Err(format!("format {} is not format {FORMAT}", head.format));
        }
        let saved: Saved = serde_json::from_str(text).map_err(|e| e.to_string())?;
        saved.measured.check()?;
        Ok(saved)
    }

    /// Whether the digest is that of the measurements.
    fn is_unaltered(&self) -> bool {
        u64::from_str_radix(&self.digest, 16) == Ok(self.measured.digest())
    }

    /// Text to write.
    pub fn text(&self) -> String {
        // Only maps with keys that are not text could fail.
        let mut text = serde_json::to_string(self).unwrap_or_default();
        text.push('\n');
        text
    }
}

/// The cache directory in force: that of the setting, `$XDG_CACHE_HOME/tombolo` or
/// `~/.cache/tombolo`. None when switched off or when there is no home; an error, for people, if its
/// files cannot be trusted.
pub fn directory(setting: &CacheDirectory) -> Result<Option<PathBuf>, String> {
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let Some(path) = path(setting, variable) else { return Ok(None) };
    match file::check_directory(&path) {
        Ok(()) => Ok(Some(path)),
        Err(why) => Err(format!("no measurements are kept in {}: {why}", path.display())),
    }
}

fn path(setting: &CacheDirectory, variable: impl Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    // The standard for XDG_CACHE_HOME says to ignore paths that are not absolute; a home that is
    // none would be a folder in the working directory.
    let absolute = |name: &str| variable(name).filter(|path| path.is_absolute());
    match setting {
        CacheDirectory::Off => None,
        CacheDirectory::At(path) => Some(path.clone()),
        CacheDirectory::Usual => {
            let home = || Some(absolute("HOME")?.join(".cache"));
            Some(absolute("XDG_CACHE_HOME").or_else(home)?.join("tombolo"))
        }
    }
}

/// The file for a fingerprint.
pub fn file(directory: &Path, fingerprint: u64) -> PathBuf {
    directory.join(format!("{PREFIX}{fingerprint:016x}.json"))
}

/// Measurements of a machine, if there is a sound file about it. A file that cannot be read as one of this
/// user's own is warned of where `warns` is set, which is enough on one PE.
pub fn load(path: &Path, machine: &str, warns: bool) -> Option<Measurements> {
    let saved = match read(path, Owner::Own) {
        Ok(text) => Saved::parse(&text),
        Err(e) if e.kind() == io::ErrorKind::NotFound => return None,
        Err(e) if warns => {
            let link = e.raw_os_error() == Some(libc::ELOOP);
            let why = if link { "it is a symbolic link".to_owned() } else { e.to_string() };
            tracing::warn!("{} is ignored and will be replaced: {why}", path.display());
            return None;
        }
        Err(e) => Err(e.to_string()),
    };
    let sound = saved.and_then(|saved| match saved.measured.doubt() {
        _ if saved.machine != machine => Err("it is about another machine".to_owned()),
        _ if !saved.is_unaltered() => Err("its digest does not fit its content".to_owned()),
        Some(why) if age(path).is_none_or(|age| age > DOUBTFUL_FOR) => {
            Err(format!("it is doubtful: {why}"))
        }
        _ => Ok(saved.measured),
    });
    sound
        .inspect_err(|why| {
            tracing::info!("{} is ignored and will be replaced: {why}", path.display())
        })
        .ok()
}

/// Time since a file was written; none if that cannot be told.
fn age(path: &Path) -> Option<Duration> {
    std::fs::metadata(path).ok()?.modified().ok()?.elapsed().ok()
}

/// The sound files of a cache directory, the newest first.
pub fn newest_first(directory: &Path) -> impl Iterator<Item = (PathBuf, Saved)> {
    let mut files: Vec<_> = std::fs::read_dir(directory)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| entry.path().extension().is_some_and(|e| e == "json"))
        .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())))
        .collect();
    files.sort();
    let saved = |(_, path): (_, PathBuf)| {
        let saved = Saved::parse(&read(&path, Owner::Own).ok()?).ok()?;
        saved.is_unaltered().then_some((path, saved))
    };
    files.into_iter().rev().filter_map(saved)
}

/// Replaces the table at `path`, in a cache directory, and removes the oldest ones there.
pub fn store(path: &Path, saved: &Saved) -> io::Result<()> {
    let directory = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
    file::make_directory(directory)?;
    file::check_directory(directory).map_err(io::Error::other)?;
    file::replace(path, &saved.text())?;
    file::evict(directory, PREFIX, KEPT)
}

/// PEs of the host that has most.
fn most_pes(world: &World) -> usize {
    let on_host = |host| world.localities().iter().filter(|l| l.host_index == host).count();
    (0..world.hosts()).map(on_host).max().unwrap_or(1)
}

/// Whether PEs of one host outnumber its processors. Those of other emulated hosts, which share them, do
/// not count: what such a job measures counts for jobs on as many machines, too.
pub fn is_crowded(world: &World) -> bool {
    !world.config().bound.0 && wait::crowd(most_pes(world)) > 1
}

/// Whether this PE has mapped the static data of all PEs of its host whose heaps it has mapped.
fn shares_statics(world: &World) -> bool {
    let there = |base: *mut u8, pe| !world.ptr(base.cast_const(), pe).is_null();
    world.static_data().is_none_or(|data| {
        let mut mapped = (0..world.n_pes()).filter(|pe| there(world.heap().base(), *pe));
        mapped.all(|pe| there(data.base(), pe))
    })
}

/// What measurements on this PE's machine depend on: one line for people, hashed for the file name.
pub fn machine(world: &World) -> Result<String> {
    let cpu = cpu_model();
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let kernel = kernel.trim();
    // Networks between emulated hosts lie within one machine.
    let hosts = match (world.hosts(), world.config().host.is_some()) {
        (1, _) => "1 host".to_owned(),
        (count, false) => format!("{count} hosts"),
        (count, true) => format!("{count} emulated hosts"),
    };
    let crowded = if is_crowded(world) { ", crowded" } else { "" };
    let several = if most_pes(world) > 1 { "several PEs" } else { "one PE" };
    let named = |t: &dyn Transport| match t.medium() {
        Some(medium) => format!("{} ({medium})", t.name()),
        None => t.name().to_owned(),
    };
    let transports: Vec<String> = world.transports().iter().map(|t| named(&**t)).collect();
    let huge = if world.heap().huge_pages() { ", huge pages" } else { "" };
    let copied = if shares_statics(world) { "" } else { ", static data not mapped" };
    // Other sizes are measured then.
    let asked = world.config().tune_hint.mention(Reuse::Cold);
    let once = if asked { ", buffers used once" } else { "" };
    let most = probe::room(world, asked).unwrap_or(0);
    let tool = tool().map(|tool| format!(", under {tool}")).unwrap_or_default();
    let mut text = format!(
        "Tombolo {}; {cpu}, {} CPUs; Linux {kernel}; {hosts}, {several} each{crowded}; \
         {}{huge}{copied}{once}, room for {}{tool}",
        env!("CARGO_PKG_VERSION"),
        usable_cpus(),
        transports.join("+"),
        sizes::size(most as u64),
    );
    // What a transport was told (window sizes, threads, devices) changes what it can do.
    for transport in world.transports() {
        for row in (transport.settings().rows)(world.config().environment())? {
            let concerns = row.variable.audience == Audience::User;
            if concerns && row.value != row.variable.default {
                text.push_str(&format!("; {}={}", row.variable.name, row.value));
            }
        }
    }
    Ok(text)
}

/// A tool that watches what this program does with its memory. What is measured under it holds for
/// programs under it alone.
fn tool() -> Option<&'static str> {
    let linked = |name: &CStr| {
        // SAFETY: asks for the address of a symbol by a valid name.
        unsafe { !libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()).is_null() }
    };
    let preloaded = std::env::var("LD_PRELOAD").unwrap_or_default();
    match () {
        () if linked(c"__asan_init") => Some("AddressSanitizer"),
        () if linked(c"__tsan_init") => Some("ThreadSanitizer"),
        () if preloaded.contains("vgpreload") => Some("valgrind"),
        () => None,
    }
}

/// The key of a machine.
pub fn fingerprint(machine: &str) -> u64 {
    let mut digest = Digest::default();
    digest.text(machine);
    digest.0
}

/// The transports in what [`machine`] says, as it writes them.
pub fn transports(machine: &str) -> &str {
    let most = machine.split("; ").nth(4).unwrap_or_default();
    most.split(", ").next().unwrap_or_default()
}

/// The first processor's model. Reads the start of the file only: all of it takes milliseconds on
/// large machines.
fn cpu_model() -> String {
    let mut start = [0u8; 2048];
    let read = std::fs::File::open("/proc/cpuinfo").and_then(|mut file| file.read(&mut start));
    let text = String::from_utf8_lossy(&start[..read.unwrap_or(0)]).into_owned();
    let field = |name: &str| {
        text.lines().find(|line| line.starts_with(name))?.split(':').nth(1).map(str::trim)
    };
    match (field("model name"), field("stepping")) {
        (Some(model), Some(stepping)) => format!("{model} stepping {stepping}"),
        (Some(model), None) => model.to_owned(),
        _ => std::env::consts::ARCH.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::class::Class;
    use crate::data::{Buffer, CACHED, Curve, Key, Operation, Point};

    fn sample(scale: f32) -> Measurements {
        let key = Key {
            class: Class::Hops(2),
            operation: Operation::Put,
            buffer: Buffer::Heap,
            channel: CACHED.into(),
        };
        let points = (0..20).map(|i| Point {
            bytes: 8 << i,
            ns: scale * (i + 1) as f32,
            spread: 0.1,
            batches: 7,
        });
        Measurements {
            curves: vec![Curve { key, points: points.collect(), checks: vec![] }],
            ..Measurements::default()
        }
    }

    #[test]
    fn what_is_stored_is_loaded() {
        let directory = tempfile::tempdir().unwrap();
        let path = file(&directory.path().join("deeper"), 7);
        store(&path, &Saved::new("m", sample(1.1))).unwrap();
        assert_eq!(load(&path, "m", false), Some(sample(1.1)));
        assert_eq!(load(&path, "another machine", false), None);
        assert_eq!(newest_first(path.parent().unwrap()).next().unwrap().0, path);
    }

    #[test]
    fn doubtful_measurements_are_used_for_a_while_only() {
        let directory = tempfile::tempdir().unwrap();
        let path = file(directory.path(), 7);
        let mut doubtful = sample(1.0);
        doubtful.curves[0].points.iter_mut().for_each(|point| point.batches = 0);
        store(&path, &Saved::new("m", doubtful.clone())).unwrap();
        assert_eq!(load(&path, "m", false), Some(doubtful));
        let old = std::time::SystemTime::now() - DOUBTFUL_FOR - Duration::from_secs(60);
        let set_age = || {
            let file = std::fs::File::options().write(true).open(&path).unwrap();
            file.set_modified(old).unwrap();
        };
        set_age();
        assert_eq!(load(&path, "m", false), None);
        store(&path, &Saved::new("m", sample(1.0))).unwrap();
        set_age();
        assert_eq!(load(&path, "m", false), Some(sample(1.0)));
    }

    #[test]
    fn without_a_home_there_is_no_cache() {
        let path = |xdg: &str, home: &str| {
            path(&CacheDirectory::Usual, |name| match name {
                "XDG_CACHE_HOME" => Some(xdg.into()),
                _ => Some(home.into()),
            })
        };
        assert_eq!(path("/x", "/home/a"), Some("/x/tombolo".into()));
        assert_eq!(path("x", "/home/a"), Some("/home/a/.cache/tombolo".into()));
        assert_eq!(path("", ""), None);
        assert_eq!(path("x", "home/a"), None);
    }

    #[test]
    fn old_tables_make_room_for_new_ones() {
        let directory = tempfile::tempdir().unwrap();
        for fingerprint in 0..40 {
            store(&file(directory.path(), fingerprint), &Saved::new("m", sample(1.0))).unwrap();
        }
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), KEPT);
        assert!(load(&file(directory.path(), 39), "m", false).is_some());
    }

    #[test]
    fn damaged_files_are_ignored() {
        let directory = tempfile::tempdir().unwrap();
        let path = file(directory.path(), 7);
        let good = Saved::new("m", sample(1.0)).text();
        for cut in (0..good.len() - 1).step_by(7) {
            std::fs::write(&path, &good[..cut]).unwrap();
            assert_eq!(load(&path, "m", false), None, "cut at {cut}");
        }
        let start = good.find("points").unwrap();
        for at in start..good.len() - 1 {
            let mut bytes = good.clone().into_bytes();
            if !bytes[at].is_ascii_digit() {
                continue;
            }
            bytes[at] = b'0' + (bytes[at] - b'0' + 1) % 10;
            std::fs::write(&path, &bytes).unwrap();
            assert!(load(&path, "m", false).is_none_or(|m| m == sample(1.0)), "digit at {at}");
        }
        std::fs::write(&path, [0xff; 100]).unwrap();
        assert_eq!(load(&path, "m", false), None);
        store(&path, &Saved::new("m", sample(2.0))).unwrap();
        assert_eq!(load(&path, "m", false), Some(sample(2.0)));
    }

    #[test]
    fn altered_tables_are_not_among_those_to_estimate_from() {
        let directory = tempfile::tempdir().unwrap();
        let [sound, altered] = [7, 8].map(|fingerprint| file(directory.path(), fingerprint));
        store(&sound, &Saved::new("m", sample(1.0))).unwrap();
        let mut saved = Saved::new("m", sample(1.0));
        saved.measured.curves[0].points[3].ns *= 2.0;
        store(&altered, &saved).unwrap();
        let found: Vec<PathBuf> = newest_first(directory.path()).map(|(path, _)| path).collect();
        assert_eq!(found, [sound]);
    }

    #[test]
    fn jobs_that_write_at_once_leave_a_whole_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = file(directory.path(), 7);
        store(&path, &Saved::new("m", sample(1.0))).unwrap();
        std::thread::scope(|scope| {
            for writer in 1..4 {
                let path = &path;
                scope.spawn(move || {
                    for _ in 0..50 {
                        store(path, &Saved::new("m", sample(writer as f32))).unwrap();
                    }
                });
            }
            for _ in 0..200 {
                assert!(load(&path, "m", false).is_some(), "a reader saw half a file");
            }
        });
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1, "temporary files stay");
    }

    #[test]
    fn impossible_numbers_are_refused() {
        let mut bad = sample(1.0);
        bad.curves[0].points.swap(0, 1);
        assert!(Saved::parse(&Saved::new("m", bad).text()).is_err());
        let mut bad = sample(1.0);
        bad.curves[0].points[3].ns = -1.0;
        assert!(Saved::parse(&Saved::new("m", bad).text()).is_err());
        assert!(Saved::parse("{}").is_err());
        let other = Saved { format: FORMAT + 1, ..Saved::new("m", sample(1.0)) };
        assert!(Saved::parse(&other.text()).is_err_and(|why| why.contains("is not format")));
    }

    mod garbage {
        use super::*;
        use crate::policy;
        use proptest::prelude::*;
        use tombolo_core::route::STEPS_MAX;

        proptest! {
            /// Whatever stands in a table: it is refused, or routes can be chosen by it.
            #[test]
            fn garbage_in_tables_does_no_harm(
                scale in prop_oneof![Just(1.0f32), any::<f32>()],
                changes in prop::collection::vec(
                    (any::<prop::sample::Index>(), "[-0-9.eE+{}:,\\[\\]\"a-z]{0,3}", 0usize..4), 0..5,
                ),
            ) {
                let mut text = Saved::new("m", sample(scale)).text();
                for (index, new, len) in changes {
                    // All of it is ASCII.
                    let at = index.index(text.len());
                    let end = (at + len).min(text.len());
                    text.replace_range(at..end, &new);
                }
                if let Ok(saved) = Saved::parse(&text) {
                    let mut sum = sample(1.0);
                    sum.merge(saved.measured);
                    let _ = sum.digest();
                    for decision in policy::decide(&sum, &["shm", "ntb"], policy::Reuse::Hot) {
                        prop_assert!((1..=STEPS_MAX).contains(&decision.steps.len()));
                    }
                }
            }
        }
    }
}
