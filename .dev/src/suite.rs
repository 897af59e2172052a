// SPDX-License-Identifier: Apache-2.0
//! `cargo dev test`: every test there is, against an installed library.

use crate::Tree;
use crate::install::install;
use crate::python;
use crate::steps::{Failure, announce, cannot_run, find};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

/// Programs that some tests need, the Debian packages that bring them, and what cannot be tested
/// without.
const NEEDED: [(&str, &str, &str); 16] = [
    ("g++", "g++", "C++ programs"),
    ("mpiexec.hydra", "mpich", "the launcher against MPICH's clients, the library under mpiexec"),
    ("slurmctld", "slurm-wlm", "the library under Slurm's srun and sbatch"),
    (PMIX, "libpmix-dev", "the library under srun --mpi=pmix"),
    ("mpirun.openmpi", "openmpi-bin", "the library under Open MPI's mpirun"),
    (MPICC, "libmpich-dev", "the launcher against MPICH's clients"),
    ("clang", "clang", "headers and programs with a second compiler"),
    ("cmake", "cmake", "the CMake package"),
    ("pkg-config", "pkg-config", "the pkg-config file"),
    ("python3", "python3", "Python programs"),
    ("ip", "iproute2", "jobs on several hosts"),
    ("sshd", "openssh-server", "jobs on several hosts"),
    ("chromium", "chromium", "the page of oshperf in a browser"),
    (LIBFABRIC, "libfabric1", "the transport over libfabric"),
    (LIBIBVERBS, "ibverbs-providers", "the transport over verbs, in virtual machines"),
    ("lintian", "lintian", "faults of Debian packages"),
];

/// MPICH's compiler wrapper. Its headers are in a package of their own.
const MPICC: &str = "mpicc.mpich";

/// The name under which Slurm's plug-in looks for the library of PMIx, a link for developers.
const PMIX: &str = "libpmix.so";
/// Libraries that are loaded at run time.
const LIBFABRIC: &str = "libfabric.so.1";
/// See `LIBFABRIC`.
const LIBIBVERBS: &str = "libibverbs.so.1";

pub fn test(tree: &Tree, args: &[String]) -> Result<(), Failure> {
    let missing = provide_tools();
    let prefix = tree.target("tombolo");
    // The one waits for the network, the other for the processor.
    let (installed, python) = thread::scope(|scope| {
        let python = scope.spawn(|| python::provide(tree));
        (install(tree, &prefix), python.join().unwrap_or_default())
    });
    installed?;
    announce("cargo test --workspace");
    let mut command = tree.cargo(&["test", "--workspace", "--no-fail-fast"]);
    command.args(args).env("TOMBOLO_PREFIX", &prefix).stdout(Stdio::piped());
    if let Some(folder) = &python {
        command.env("TOMBOLO_PYTHON", folder);
    }
    let mut totals = Totals::default();
    let mut passed = count(&mut command, &mut totals)?;
    announce("model checking of lock-free code");
    let mut command = tree.cargo(&["test", "--release", "--lib"]);
    for package in ["tombolo-core", "tombolo-collectives", "tombolo-transports"] {
        command.args(["--package", package]);
    }
    command.arg("loom_");
    // Of its own, because the flag concerns every crate.
    command.env("RUSTFLAGS", "--cfg loom").env("CARGO_TARGET_DIR", tree.target("loom"));
    passed &= count(command.stdout(Stdio::piped()), &mut totals)?;
    announce(&format!(
        "{} passed, {} failed, {} ignored",
        totals.passed, totals.failed, totals.ignored
    ));
    for name in &totals.ignored_names {
        eprintln!("    ignored: {name}");
    }
    for (program, what) in missing {
        eprintln!("    {program} is not installed; not tested: {what}");
    }
    if python.is_none() {
        eprintln!("    shmem4py cannot be fetched; not tested: Python programs with NumPy and MPI");
    }
    match passed {
        true => Ok(()),
        false => Err(Failure::new(format!("tests failed\n  {}", totals.failures.join("\n  ")))),
    }
}

/// Runs a test command, shows and counts its results; says whether all passed.
fn count(command: &mut Command, totals: &mut Totals) -> Result<bool, Failure> {
    let mut child = command.spawn().map_err(|error| cannot_run(command, &error))?;
    if let Some(stdout) = child.stdout.take() {
        for line in BufReader::new(stdout).split(b'\n').map_while(Result::ok) {
            let line = String::from_utf8_lossy(&line);
            println!("{line}");
            totals.add(&line);
        }
    }
    let status = child.wait().map_err(|error| cannot_run(command, &error))?;
    Ok(status.success())
}

/// Installs what is missing where that is possible; returns what is missing still.
fn provide_tools() -> Vec<(&'static str, &'static str)> {
    let missing: Vec<_> = NEEDED.iter().filter(|(program, ..)| !is_there(program)).collect();
    let packages: Vec<&str> = missing.iter().map(|(_, package, _)| *package).collect();
    if !packages.is_empty() && is_root() && find("apt-get").is_some() {
        announce(&format!("installing {}", packages.join(", ")));
        // The lists of packages may be absent or old; the second attempt renews them.
        if !apt_get("install", &packages) && apt_get("update", &[]) {
            apt_get("install", &packages);
        }
    }
    let still = missing.into_iter().filter(|(program, ..)| !is_there(program));
    still.map(|(program, _, what)| (*program, *what)).collect()
}

/// Whether a program can be used: is found and, as a compiler wrapper, finds its headers.
fn is_there(program: &str) -> bool {
    if matches!(program, PMIX | LIBFABRIC | LIBIBVERBS) {
        // A program cannot ask the loader without loading.
        let folders = ["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/lib"];
        return folders.iter().any(|folder| Path::new(folder).join(program).exists());
    }
    if program != MPICC {
        // Daemons are where root finds them only.
        return find(program).is_some() || Path::new("/usr/sbin").join(program).exists();
    }
    let mut preprocess = Command::new(program);
    preprocess.args(["-E", "-include", "mpi.h", "-x", "c", "/dev/null"]);
    preprocess.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    preprocess.status().is_ok_and(|status| status.success())
}

pub fn apt_get(action: &str, packages: &[&str]) -> bool {
    let mut command = Command::new("apt-get");
    command.args(["-qq", "-y", "--no-install-recommends", action]).args(packages);
    command.env("DEBIAN_FRONTEND", "noninteractive").stdin(Stdio::null()).stdout(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

pub fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}

/// What all test programs report together.
#[derive(Default, Debug, PartialEq)]
struct Totals {
    passed: usize,
    failed: usize,
    ignored: usize,
    ignored_names: Vec<String>,
    failures: Vec<String>,
}

impl Totals {
    /// Takes one line of a test program's output.
    fn add(&mut self, line: &str) {
        if let Some(result) = line.strip_prefix("test result: ") {
            let count = |what: &str| -> usize {
                let words: Vec<&str> =
                    result.split([' ', ';', '.']).filter(|w| !w.is_empty()).collect();
                words.windows(2).find(|w| w[1] == what).and_then(|w| w[0].parse().ok()).unwrap_or(0)
            };
            self.passed += count("passed");
            self.failed += count("failed");
            self.ignored += count("ignored");
        } else if let Some((name, outcome)) =
            line.strip_prefix("test ").and_then(|test| test.rsplit_once(" ... "))
        {
            if outcome.starts_with("ignored") {
                let reason = outcome.strip_prefix("ignored, ").map(|why| format!(": {why}"));
                self.ignored_names.push(format!("{}{}", name.trim(), reason.unwrap_or_default()));
            } else if outcome.starts_with("FAILED") {
                self.failures.push(name.trim().to_owned());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_several_programs_add_up() {
        let mut totals = Totals::default();
        for line in [
            "test a ... ok",
            "test b ... ignored, needs a switch",
            "test [needs mpicc] c   ... ignored",
            "test d ... FAILED",
            "test result: FAILED. 1 passed; 1 failed; 2 ignored; 0 measured; 0 filtered out",
            "test result: ok. 5 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out",
        ] {
            totals.add(line);
        }
        assert_eq!((totals.passed, totals.failed, totals.ignored), (6, 1, 2));
        assert_eq!(totals.ignored_names, ["b: needs a switch", "[needs mpicc] c"]);
        assert_eq!(totals.failures, ["d"]);
    }
}
