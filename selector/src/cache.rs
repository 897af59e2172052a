//! Measurements on disk: one file per machine fingerprint, and tables people save and replay.
//!
//! Files are replaced whole by renaming, so that a reader sees an old file or a new one and jobs
//! that write at the same time do not damage each other's. A file that is corrupt, half written or
//! about another machine is ignored, and replaced by the next measurement.

use crate::data::{Digest, Measurements};
use serde::{Deserialize, Serialize};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use tombolo_core::World;
use tombolo_core::config::{Audience, VARIABLES};
use tombolo_core::wait::usable_cpus;

/// Changes with the meaning of the file.
const FORMAT: u32 = 1;

/// A larger file is not ours.
const SIZE_MAX: u64 = 16 << 20;

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
        let saved: Saved = serde_json::from_str(text).map_err(|e| e.to_string())?;
        if saved.format != FORMAT {
            return Err(format!("format {} is not format {FORMAT}", saved.format));
        }
        saved.measured.check()?;
        Ok(saved)
    }

    /// Text to write.
    pub fn text(&self) -> String {
        // Only maps with keys that are not text could fail.
        let mut text = serde_json::to_string(self).unwrap_or_default();
        text.push('\n');
        text
    }
}

/// The cache directory in force: `setting` (`SHMEM_TUNE_CACHE`), `$XDG_CACHE_HOME/tombolo` or
/// `~/.cache/tombolo`. None when switched off or when there is no home.
pub fn directory(setting: &str) -> Option<PathBuf> {
    match setting {
        "off" | "0" | "no" => None,
        "" => {
            let set = |name: &str| std::env::var_os(name).map(PathBuf::from);
            // The standard for XDG_CACHE_HOME says to ignore paths that are not absolute.
            let base = set("XDG_CACHE_HOME")
                .filter(|path| path.is_absolute())
                .or_else(|| Some(set("HOME")?.join(".cache")))?;
            Some(base.join("tombolo"))
        }
        path => Some(PathBuf::from(path)),
    }
}

/// The file for a fingerprint.
pub fn file(directory: &Path, fingerprint: u64) -> PathBuf {
    directory.join(format!("tuning-{fingerprint:016x}.json"))
}

/// Measurements of a machine, if there is a sound file about it.
pub fn load(path: &Path, machine: &str) -> Option<Measurements> {
    let mut text = String::new();
    let file = std::fs::File::open(path).ok()?;
    file.take(SIZE_MAX).read_to_string(&mut text).ok()?;
    let saved = Saved::parse(&text);
    let sound = saved.and_then(|saved| match saved.digest.parse_hex() {
        _ if saved.machine != machine => Err("it is about another machine".to_owned()),
        Some(digest) if digest == saved.measured.digest() => Ok(saved.measured),
        _ => Err("its digest does not fit its content".to_owned()),
    });
    sound
        .inspect_err(|why| {
            tracing::info!("{} is ignored and will be replaced: {why}", path.display())
        })
        .ok()
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
        let saved = Saved::parse(&std::fs::read_to_string(&path).ok()?).ok()?;
        Some((path, saved))
    };
    files.into_iter().rev().filter_map(saved)
}

trait ParseHex {
    fn parse_hex(&self) -> Option<u64>;
}

impl ParseHex for String {
    fn parse_hex(&self) -> Option<u64> {
        u64::from_str_radix(self, 16).ok()
    }
}

/// Replaces a file.
pub fn store(path: &Path, saved: &Saved) -> io::Result<()> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let directory = path.parent().filter(|p| !p.as_os_str().is_empty());
    if let Some(directory) = directory {
        std::fs::create_dir_all(directory)?;
    }
    let mut name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_owned();
    name.push(format!(".{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed)));
    let temporary = path.with_file_name(name);
    let written =
        std::fs::write(&temporary, saved.text()).and_then(|()| std::fs::rename(&temporary, path));
    if written.is_err() {
        let _ = std::fs::remove_file(&temporary);
    }
    written
}

/// What measurements on this PE's machine depend on: one line for people, hashed for the file name.
pub fn machine(world: &World) -> String {
    let cpu = cpu_model();
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let kernel = kernel.trim();
    let hosts = world.hosts();
    let on_host = |host| world.localities().iter().filter(|l| l.host_index == host).count();
    let pes = (0..hosts).map(on_host).max().unwrap_or(1);
    let crowded = if pes > usable_cpus() { ", crowded" } else { "" };
    let several = if pes > 1 { "several PEs" } else { "one PE" };
    let transports: Vec<&str> = world.transports().iter().map(|t| t.name()).collect();
    let huge = if world.heap().huge_pages() { ", huge pages" } else { "" };
    let mut text = format!(
        "Tombolo {}; {cpu}, {} CPUs; Linux {kernel}; {hosts} hosts, {several} each{crowded}; {}{huge}",
        env!("CARGO_PKG_VERSION"),
        usable_cpus(),
        transports.join("+"),
    );
    // What a transport was told (window sizes, threads, devices) changes what it can do.
    for (variable, value) in VARIABLES.iter().zip(world.config().values()) {
        let of = |name: &str| format!("SHMEM_{}", name.to_ascii_uppercase());
        let concerns = variable.audience == Audience::User
            && transports.iter().any(|t| variable.name.starts_with(&of(t)));
        if concerns && value != variable.default {
            text.push_str(&format!("; {}={value}", variable.name));
        }
    }
    text
}

/// The key of a machine.
pub fn fingerprint(machine: &str) -> u64 {
    let mut digest = Digest::default();
    digest.text(machine);
    digest.0
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

    struct Directory(PathBuf);

    impl Directory {
        fn new(name: &str) -> Directory {
            let path = std::env::temp_dir().join(format!("tombolo-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&path).unwrap();
            Directory(path)
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn sample(scale: f32) -> Measurements {
        let key = Key {
            class: Class::Ring(2),
            operation: Operation::Put,
            buffer: Buffer::Heap,
            channel: CACHED.into(),
        };
        let points =
            (0..20).map(|i| Point { bytes: 8 << i, ns: scale * (i + 1) as f32, spread: 0.1 });
        Measurements {
            curves: vec![Curve { key, points: points.collect(), checks: vec![] }],
            rejected: vec![],
        }
    }

    #[test]
    fn what_is_stored_is_loaded() {
        let directory = Directory::new("store");
        let path = file(&directory.0.join("deeper"), 7);
        store(&path, &Saved::new("m", sample(1.1))).unwrap();
        assert_eq!(load(&path, "m"), Some(sample(1.1)));
        assert_eq!(load(&path, "another machine"), None);
        assert_eq!(newest_first(path.parent().unwrap()).next().unwrap().0, path);
    }

    #[test]
    fn damaged_files_are_ignored() {
        let directory = Directory::new("damage");
        let path = file(&directory.0, 7);
        let good = Saved::new("m", sample(1.0)).text();
        for cut in (0..good.len() - 1).step_by(7) {
            std::fs::write(&path, &good[..cut]).unwrap();
            assert_eq!(load(&path, "m"), None, "cut at {cut}");
        }
        let start = good.find("points").unwrap();
        for at in start..good.len() - 1 {
            let mut bytes = good.clone().into_bytes();
            if !bytes[at].is_ascii_digit() {
                continue;
            }
            bytes[at] = b'0' + (bytes[at] - b'0' + 1) % 10;
            std::fs::write(&path, &bytes).unwrap();
            assert!(load(&path, "m").is_none_or(|m| m == sample(1.0)), "digit at {at}");
        }
        std::fs::write(&path, [0xff; 100]).unwrap();
        assert_eq!(load(&path, "m"), None);
        store(&path, &Saved::new("m", sample(2.0))).unwrap();
        assert_eq!(load(&path, "m"), Some(sample(2.0)));
    }

    #[test]
    fn jobs_that_write_at_once_leave_a_whole_file() {
        let directory = Directory::new("race");
        let path = file(&directory.0, 7);
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
                assert!(load(&path, "m").is_some(), "a reader saw half a file");
            }
        });
        assert_eq!(std::fs::read_dir(&directory.0).unwrap().count(), 1, "temporary files stay");
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
    }
}
