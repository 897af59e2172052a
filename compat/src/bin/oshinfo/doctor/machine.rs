// SPDX-License-Identifier: Apache-2.0
//! The machine that is looked at: this one, or one of which there is a copy of files.

use std::fs;
use std::path::{Path, PathBuf};
use tombolo_core::library::{Loaded, Scope};
use tombolo_core::sizes::size;

/// Where libraries are looked for below a root directory.
const LIBRARIES: [&str; 9] = [
    "usr/lib/x86_64-linux-gnu",
    "lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "lib/aarch64-linux-gnu",
    "usr/lib64",
    "lib64",
    "usr/local/lib",
    "usr/local/lib64",
    "usr/lib",
];

/// A machine, by the directory that holds its `/proc` and `/sys`.
pub struct Machine {
    root: PathBuf,
    /// It is the one that this process runs on, where things can be tried.
    live: bool,
}

impl Machine {
    /// This machine.
    pub fn this() -> Machine {
        Machine { root: "/".into(), live: true }
    }

    /// A machine whose files lie below `root`; nothing is tried.
    pub fn below(root: impl Into<PathBuf>) -> Machine {
        Machine { root: root.into(), live: false }
    }

    /// Whether things can be tried.
    pub fn is_live(&self) -> bool {
        self.live
    }

    /// What to call it.
    pub fn name(&self) -> String {
        let own = self.text("proc/sys/kernel/hostname").unwrap_or_else(|| "this machine".into());
        if self.live { own } else { format!("{own} (files below {})", self.root.display()) }
    }

    /// A path of it.
    pub fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        self.root.join(path)
    }

    /// A file's text without the line end; none where it cannot be read.
    pub fn text(&self, path: impl AsRef<Path>) -> Option<String> {
        let bytes = fs::read(self.path(path)).ok()?;
        Some(String::from_utf8_lossy(&bytes).trim_end().to_owned())
    }

    /// A file that holds a number.
    pub fn number(&self, path: impl AsRef<Path>) -> Option<u64> {
        self.text(path)?.trim().parse().ok()
    }

    /// The bracketed word of a file such as `always [madvise] never`.
    pub fn choice(&self, path: impl AsRef<Path>) -> Option<String> {
        let text = self.text(path)?;
        let (_, rest) = text.split_once('[')?;
        Some(rest.split_once(']')?.0.to_owned())
    }

    /// Names in a directory, sorted; none where there is no such directory.
    pub fn names(&self, path: impl AsRef<Path>) -> Vec<String> {
        let entries = fs::read_dir(self.path(path)).into_iter().flatten().flatten();
        let mut names: Vec<String> =
            entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        names
    }

    /// The value of a line `key: value` or `key value`.
    pub fn line(&self, path: impl AsRef<Path>, key: &str) -> Option<String> {
        let text = self.text(path)?;
        let value = text.lines().find_map(|line| line.strip_prefix(key));
        value.map(|value| value.trim_start_matches(':').trim().to_owned())
    }

    /// Bytes of a line such as `MemTotal: 1024 kB`.
    pub fn kibibytes(&self, path: impl AsRef<Path>, key: &str) -> Option<u64> {
        let value = self.line(path, key)?;
        value.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib << 10)
    }

    /// Soft and hard limit of this process, `u64::MAX` for none; `name` as `/proc/self/limits` has it.
    pub fn limit(&self, name: &str) -> Option<(u64, u64)> {
        let value = self.line("proc/self/limits", name)?;
        let mut words = value.split_whitespace().map(|word| match word {
            "unlimited" => Some(u64::MAX),
            number => number.parse().ok(),
        });
        Some((words.next()??, words.next()??))
    }

    /// Directories of this process's cgroup and all above it, the innermost first, below the root of
    /// the controller (version 1) or of all of them (version 2, no controller).
    pub fn cgroups(&self, controller: &str) -> Vec<PathBuf> {
        let own = self.text("proc/self/cgroup").unwrap_or_default();
        let path = own.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':').skip(1);
            let (controllers, path) = (fields.next()?, fields.next()?);
            controllers.split(',').any(|name| name == controller).then(|| path.to_owned())
        });
        let base = Path::new("sys/fs/cgroup").join(controller);
        let Some(path) = path else { return Vec::new() };
        let inside = path.trim_start_matches('/');
        let all = Path::new(inside).ancestors().map(|path| base.join(path));
        all.filter(|path| self.path(path).is_dir()).collect()
    }

    /// Whether a shared library can be had: loaded on this machine, found among the files of another.
    pub fn library(&self, name: &str) -> Result<(), String> {
        if !self.live {
            let found = LIBRARIES.iter().any(|dir| self.path(dir).join(name).exists());
            return if found { Ok(()) } else { Err(format!("{name} is not installed")) };
        }
        // SAFETY: constructors of libraries that are made to be loaded this way; it stays loaded.
        let loaded = unsafe { Loaded::open(name, Scope::Local) };
        loaded.map(drop).map_err(|why| why.to_string())
    }

    /// The program of this name: in `PATH` on this machine, in the usual places of another.
    pub fn program(&self, name: &str) -> Option<PathBuf> {
        let path = if self.live { std::env::var_os("PATH")? } else { "usr/bin:bin".into() };
        let mut all = std::env::split_paths(&path).map(|dir| self.path(dir).join(name));
        all.find(|path| path.is_file())
    }
}

/// A limit in bytes for people.
pub fn bytes(bytes: u64) -> String {
    match bytes {
        u64::MAX => "unlimited".to_owned(),
        _ => size(bytes),
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A machine of given files, in a directory that goes away with the value.
    pub struct Copy(PathBuf);

    impl Copy {
        pub fn of(name: &str, files: &[(&str, &str)]) -> Copy {
            let own = format!("tombolo-doctor-{}-{name}", std::process::id());
            let root = std::env::temp_dir().join(own);
            let copy = Copy(root);
            files.iter().for_each(|(path, text)| copy.write(path, text));
            copy
        }

        pub fn write(&self, path: &str, text: &str) {
            let path = self.0.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        pub fn machine(&self) -> Machine {
            Machine::below(&self.0)
        }
    }

    impl Drop for Copy {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn files_of_the_kernel_are_read_as_they_are_written() {
        let copy = Copy::of(
            "machine",
            &[
                ("proc/meminfo", "MemTotal:       24648 kB\nMemFree:    100 kB\n"),
                ("proc/self/limits", "Max locked memory         8192   unlimited    bytes\n"),
                ("sys/a", "always [madvise] never\n"),
                ("proc/self/cgroup", "4:memory:/a\n0::/user.slice/one\n"),
                ("sys/fs/cgroup/user.slice/cpu.max", "max 100000\n"),
                ("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "5\n"),
            ],
        );
        let machine = copy.machine();
        assert_eq!(machine.kibibytes("proc/meminfo", "MemTotal"), Some(24648 << 10));
        assert_eq!(machine.limit("Max locked memory"), Some((8192, u64::MAX)));
        assert_eq!(machine.limit("Max open files"), None);
        assert_eq!(machine.choice("sys/a").as_deref(), Some("madvise"));
        let unified = ["sys/fs/cgroup/user.slice", "sys/fs/cgroup/"].map(PathBuf::from);
        assert_eq!(machine.cgroups(""), unified);
        assert_eq!(machine.cgroups("memory")[0], Path::new("sys/fs/cgroup/memory/a"));
        assert!(machine.cgroups("cpu").is_empty());
        assert_eq!([9 << 10, 64 << 20, 24 << 30].map(bytes), ["9 KiB", "64 MiB", "24 GiB"]);
    }
}
