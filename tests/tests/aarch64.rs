// SPDX-License-Identifier: Apache-2.0
//! C programs compiled for aarch64, with the library built for it, under QEMU on other machines. The
//! launcher is this machine's. QEMU here keeps the order of x86-64 in memory: what the processor may
//! reorder is not tested.

use libtest_mimic::Trial;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tombolo_tests::unless;

#[allow(dead_code, reason = "each test uses its part")]
mod support;

use support::program::run_trials;
use support::{crate_dir, include_dir, run, scratch, tool};

const COMPILER: &str = "aarch64-linux-gnu-gcc";
const QEMU: [&str; 3] = ["qemu-aarch64-static", "-L", "/usr/aarch64-linux-gnu"];
/// Translated programs are slow.
const LIMIT: Duration = Duration::from_secs(240);

/// Programs that run between emulated hosts as well, and how: by the ring through windows and in
/// packets, and by TCP.
const BETWEEN_HOSTS: [&str; 5] = ["amo", "collectives", "rma", "signal", "static_data"];
const HOSTS: [&[&str]; 3] = [
    &["--hosts", "2"],
    &["--hosts", "2", "-x", "SHMEM_NTB_DIRECT=off"],
    &["--hosts", "2", "-x", "SHMEM_TRANSPORTS=tcp"],
];

fn main() {
    run_trials(trials)
}

fn trials(prefix: &Path) -> Vec<Trial> {
    let folder = library();
    let missing = folder.as_ref().err().cloned();
    let folder = Arc::new(folder.unwrap_or_default());
    let oshrun = prefix.join("bin/oshrun");
    let sources = fs::read_dir(crate_dir().join("c")).expect("the programs are there");
    let mut sources: Vec<_> = sources
        .map(|entry| entry.expect("a folder entry").path())
        .filter(|path| is_c(path))
        .collect();
    sources.sort();
    let trial = |program: &Arc<Program>, options: &'static [&'static str]| {
        let (program, oshrun, folder) = (program.clone(), oshrun.clone(), folder.clone());
        let name = format!("{} on 2 PEs {}", stem(&program.source), options.join(" "));
        let body = move || {
            let program = program.executable(&folder)?;
            let mut job = Command::new(&oshrun);
            job.args(["-n", "2"]).args(options).args(QEMU).arg(program);
            job.env("LD_LIBRARY_PATH", &*folder).env("SHMEM_SYMMETRIC_SIZE", "16m");
            job.env("SHMEM_TUNE_CACHE", scratch("tuning"));
            run(&mut job, LIMIT)?.succeeded()?;
            Ok(())
        };
        unless(missing.as_ref(), Trial::test(name.trim_end(), body))
    };
    let mut trials = Vec::new();
    for source in sources {
        let program = Arc::new(Program { source, built: OnceLock::new() });
        trials.push(trial(&program, &[]));
        if BETWEEN_HOSTS.contains(&stem(&program.source).as_str()) {
            trials.extend(HOSTS.map(|options| trial(&program, options)));
        }
    }
    trials
}

fn is_c(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "c")
}

fn stem(source: &Path) -> String {
    source.file_stem().expect("a file").to_string_lossy().into_owned()
}

/// A folder with the library for aarch64, or why there is none.
fn library() -> Result<PathBuf, String> {
    let built = std::env::var_os("TOMBOLO_AARCH64").map(PathBuf::from).ok_or(
        "no library for aarch64: `cargo dev test` builds it on other machines with gcc-aarch64-linux-gnu, \
         qemu-user-static and Rust's target aarch64-unknown-linux-gnu",
    )?;
    let folder = scratch("aarch64");
    for name in ["libtombolo.so", "libtombolo.so.0"] {
        let link = folder.join(name);
        let _ = fs::remove_file(&link);
        symlink(built.join("libtombolo.so"), &link)
            .map_err(|error| format!("{}: {error}", link.display()))?;
    }
    Ok(folder)
}

/// A program, compiled when a test first needs it, once: some take ten seconds.
struct Program {
    source: PathBuf,
    built: OnceLock<Result<PathBuf, String>>,
}

impl Program {
    fn executable(&self, library: &Path) -> Result<PathBuf, String> {
        self.built.get_or_init(|| compile(&self.source, library)).clone()
    }
}

/// Compiles a program. Not optimised: that takes a third of the time, and what is tested is in the library.
fn compile(source: &Path, library: &Path) -> Result<PathBuf, String> {
    let program = library.join(stem(source));
    let mut args = vec!["-pthread".into(), "-Wall".into(), "-Werror".into()];
    args.extend(["-I".into(), include_dir().into_os_string()]);
    args.extend([source.into(), "-o".into(), program.clone().into_os_string()]);
    args.extend(["-L".into(), library.into(), "-ltombolo".into()]);
    tool(COMPILER, &args)?;
    Ok(program)
}
